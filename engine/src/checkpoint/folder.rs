//! A run's folder of checkpoints: which there are, which is the latest good one, and which may go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::Doing;
use super::files::Files;
use super::{Checkpoint, CheckpointError};

/// What follows the name of a folder that is not complete, or is being removed.
pub(super) const PARTIAL: &str = ".partial";
/// What follows the name of one that was found to be damaged.
const DAMAGED: &str = ".damaged";

/// The name of a step's checkpoint.
pub fn step_name(step: u64) -> String {
    format!("step-{step}")
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Skipped {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Why.
    pub why: CheckpointError,
}

/// The checkpoints below a folder by their names, the latest first; what is in them is another question.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn list(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let names = files.names(dir).doing("read", dir)?;
    let steps = names.iter().filter_map(|name| {
        let step = name.strip_prefix("step-")?.parse().ok()?;
        // One spelling a step.
        (*name == step_name(step)).then_some(step)
    });
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable_by(|one, other| other.cmp(one));
    Ok(steps.into_iter().map(|step| (step, dir.join(step_name(step)))).collect())
}

/// The latest checkpoint of which every byte is what was written, and those after it that are not, with the reason.
///
/// # Errors
/// [`CheckpointError::Io`] where the folder itself cannot be read.
pub fn latest(
    files: &Arc<dyn Files>,
    dir: &Path,
) -> Result<(Option<Checkpoint>, Vec<Skipped>), CheckpointError> {
    let mut skipped = Vec::new();
    for (step, path) in list(&**files, dir)? {
        let opened = Checkpoint::open(files, &path).and_then(|checkpoint| {
            if checkpoint.manifest().train.step != step {
                return Err(CheckpointError::damaged(&path, "it is the checkpoint of another step"));
            }
            checkpoint.verify()?;
            Ok(checkpoint)
        });
        match opened {
            Ok(checkpoint) => return Ok((Some(checkpoint), skipped)),
            Err(why) => skipped.push(Skipped { step, path, why }),
        }
    }
    Ok((None, skipped))
}

/// Sets a damaged checkpoint aside, under another name, so that a new one of the step can take its place.
///
/// # Errors
/// [`CheckpointError::Io`].
pub(crate) fn set_aside(files: &dyn Files, dir: &Path, step: u64) -> Result<PathBuf, CheckpointError> {
    let path = dir.join(step_name(step));
    let names: BTreeSet<_> = files.names(dir).doing("read", dir)?.into_iter().collect();
    let numbered = (2..).map(|number| format!("{}{DAMAGED}-{number}", step_name(step)));
    let name = std::iter::once(format!("{}{DAMAGED}", step_name(step)))
        .chain(numbered)
        .find(|name| !names.contains(name))
        .expect("numbers do not run out");
    let aside = dir.join(name);
    files.rename(&path, &aside).doing("rename", &path)?;
    files.sync_dir(dir).doing("make durable", dir)?;
    Ok(aside)
}

/// Removes all but the latest `keep` checkpoints, those of steps after `newest`, and those that kept ones are additions
/// to. `base_of` tells of a step which one it is an addition to. Each is renamed first, so that none is ever half
/// there.
///
/// # Errors
/// [`CheckpointError::Io`]; those that are to be kept are there then, too.
pub fn prune(
    files: &dyn Files,
    dir: &Path,
    keep: usize,
    base_of: impl Fn(u64) -> Option<u64>,
) -> Result<(), CheckpointError> {
    let all: Vec<_> = list(files, dir)?.into_iter().map(|(step, _)| step).collect();
    let mut kept: BTreeSet<_> = all.iter().copied().take(keep).collect();
    let bases: Vec<_> = kept.iter().filter_map(|&step| base_of(step)).collect();
    kept.extend(bases);
    for step in all.into_iter().filter(|step| !kept.contains(step)) {
        let (path, going) = (dir.join(step_name(step)), dir.join(format!("{}{PARTIAL}", step_name(step))));
        if files.names(dir).doing("read", dir)?.contains(&format!("{}{PARTIAL}", step_name(step))) {
            files.remove_dir(&going).doing("remove", &going)?;
        }
        files.rename(&path, &going).doing("rename", &path)?;
        files.remove_dir(&going).doing("remove", &going)?;
    }
    Ok(())
}
