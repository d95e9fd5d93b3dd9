//! A checkpoint while it is written: it does not count before its folder has its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::sealed::{self, Checksum};
use rankine_reader::dataset::FileManifest;
use serde::{Deserialize, Serialize};

use super::error::IoContext;
use super::files::Files;
use super::folder::PARTIAL;
use super::manifest::{self, Manifest};
use super::shard::write_file;
use super::{CheckpointError, ShardFiles, step_name};

/// The path of the draft of a step's checkpoint, below `dir`.
pub fn draft_path(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("{}{PARTIAL}", step_name(step)))
}

/// A checkpoint's folder before it is complete: `step-N.partial`.
#[derive(Debug)]
pub struct Draft {
    files: Arc<dyn Files>,
    dir: PathBuf,
    target: PathBuf,
    partial: PathBuf,
}

/// A checkpoint that exists, and is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedCheckpoint {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The checksum of its manifest.
    pub xxh3: Checksum,
    /// The full checkpoint that it builds on.
    pub base: Option<u64>,
}

impl Draft {
    /// Makes the folder of a step's checkpoint below `dir`; replaces the draft of an interrupted run.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn begin(files: Arc<dyn Files>, dir: &Path, step: u64) -> Result<Self, CheckpointError> {
        let target = dir.join(step_name(step));
        let partial = draft_path(dir, step);
        files.create_dir(dir).context("create", dir)?;
        // Its own name must survive a power failure, too.
        let above = dir.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        files.sync_dir(above).context("sync", above)?;
        let name = format!("{}{PARTIAL}", step_name(step));
        if files.names(dir).context("read", dir)?.contains(&name) {
            files.remove_dir(&partial).context("remove", &partial)?;
        }
        files.create_dir(&partial).context("create", &partial)?;
        Ok(Self { files, dir: dir.to_owned(), target, partial })
    }

    /// The folder of the shards.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Publishes the checkpoint, once all ranks' shards are durable: writes the files beside them, each with its
    /// name, then the manifest, and renames the folder. `manifest` is complete except for the lists of files.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]. There is no checkpoint then; or, if the folder had its name already, a complete one
    /// that a power failure might still remove.
    pub fn publish(
        self,
        manifest: Manifest,
        shards: Vec<ShardFiles>,
        beside: &[(&str, &str)],
    ) -> Result<PublishedCheckpoint, CheckpointError> {
        match self.complete(manifest, shards, beside) {
            Ok(published) => {
                self.files.sync_dir(&self.dir).context("sync", &self.dir)?;
                Ok(published)
            }
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    fn complete(
        &self,
        mut manifest: Manifest,
        shards: Vec<ShardFiles>,
        beside: &[(&str, &str)],
    ) -> Result<PublishedCheckpoint, CheckpointError> {
        let Self { files, target, partial, .. } = self;
        let files = &**files;
        let mut bytes: u64 = shards.iter().map(|shard| shard.bytes).sum();
        manifest.shards = shards.into_iter().map(|shard| shard.index).collect();
        let written = beside.iter().map(|(name, text)| write_file(files, partial, name, text.as_bytes()));
        manifest.files = written.collect::<Result<Vec<FileManifest>, _>>()?;
        let text = sealed::to_json(manifest::KIND, manifest::FORMAT, &manifest);
        let written = write_file(files, partial, manifest::NAME, text.as_bytes())?;
        bytes += written.bytes + manifest.files.iter().map(|file| file.bytes).sum::<u64>();
        files.sync_dir(partial).context("sync", partial)?;
        files.rename(partial, target).context("rename", partial)?;
        let base = manifest.base.map(|base| base.step);
        Ok(PublishedCheckpoint {
            step: manifest.train.step,
            path: target.clone(),
            bytes,
            xxh3: written.xxh3,
            base,
        })
    }

    /// Removes as much of it as possible. Only logs errors: the one that led here is reported.
    pub fn abandon(self) {
        if let Err(error) = self.files.remove_dir(&self.partial) {
            tracing::warn!("cannot remove the incomplete checkpoint {}: {error}", self.partial.display());
        }
    }
}
