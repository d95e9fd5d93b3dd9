//! Where a trained model lies: in a run, in a checkpoint, or in an export; and opening it there.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_reader::Dataset;
use rankine_reader::convert::Encoder;
use rankine_reader::files::not_a_folder;

use crate::checkpoint::{self, Checkpoint, CheckpointError, Disk, Files};
use crate::cpu::CpuModel;
use crate::job::{Job, JobError};
use crate::model::ModelSpec;
use crate::saved::{
    self, Beside, Columns, MANIFEST_NAME, SavedModel, SavedModelError, StoredWeights, scoring_model,
};
use crate::training::{self, RunDir, TrainError};

/// A folder that has a trained model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A run's folder: its model once it has finished, and its checkpoints.
    Run(PathBuf),
    /// A checkpoint, whole or an addition.
    Checkpoint(PathBuf),
    /// What `ckpt export` writes, and what a finished run has in its folder `model`.
    Export(PathBuf),
}

/// What is wanted of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A model to score with.
    Model,
    /// The state of a training.
    Checkpoint,
    /// A checkpoint or an export.
    Any,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Checkpoint | Self::Any => "checkpoint",
        })
    }
}

impl Wanted {
    fn expected(self) -> &'static str {
        match self {
            Self::Model => {
                "the folder of a finished run, a checkpoint (`checkpoints/step-N` of a run), or an export (what \
                 `rankine ckpt export` writes, or the folder `model` of a run)"
            }
            Self::Checkpoint => {
                "the folder of a run that has checkpoints, or a checkpoint (`checkpoints/step-N` of a run)"
            }
            Self::Any => {
                "the folder of a run that has checkpoints, a checkpoint (`checkpoints/step-N` of a run), or an export \
                 (what `rankine ckpt export` writes, or the folder `model` of a run)"
            }
        }
    }
}

/// Why a model, or a checkpoint, cannot be had from a folder.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The folder is something else.
    #[error("no {wanted} at {}: {found}; expected is {}", path.display(), wanted.expected())]
    Other {
        /// What was wanted.
        wanted: Wanted,
        /// The folder.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The folder, or a file of it.
        path: PathBuf,
        /// The operating system's words.
        source: std::io::Error,
    },
    /// An export of an older version, apart from its run.
    #[error(
        "{} was exported without its job, which says how ids beyond a table are dealt with: export it again with this \
         version, or name the run",
        .0.display()
    )]
    NoJob(PathBuf),
    /// A vocabulary of a checkpoint's columns is not where it could lie.
    #[error(
        "the checkpoint {} needs the vocabularies of its dataset, and they are not there: {why}. `rankine ckpt export \
         {} --out DIR --data DATASET` makes a model that has them",
        path.display(),
        path.display()
    )]
    NoVocabulary {
        /// The checkpoint.
        path: PathBuf,
        /// Why the first one cannot be had.
        why: rankine_reader::Error,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The job that was saved cannot be read.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The job's dataset cannot be opened.
    #[error(transparent)]
    Data(#[from] rankine_reader::Error),
    /// The job's dataset cannot be told from others.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl SourceError {
    fn other(wanted: Wanted, path: &Path, found: impl Into<String>) -> Self {
        Self::Other { wanted, path: path.to_owned(), found: found.into() }
    }
}

impl ModelSource {
    /// Finds out which of them a folder is.
    ///
    /// # Errors
    /// [`SourceError::Other`] where it is none, [`SourceError::Read`].
    pub fn find(path: &Path, wanted: Wanted) -> Result<Self, SourceError> {
        let names = match names(path) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(SourceError::other(wanted, path, "there is no such folder"));
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let found = match not_a_folder(path) {
                    Some((above, kind)) if above != path => format!("{} is {kind}", above.display()),
                    Some((_, kind)) => format!("it is {kind}"),
                    // It has changed meanwhile.
                    None => "it is not a folder".into(),
                };
                return Err(SourceError::other(wanted, path, found));
            }
            Err(source) => return Err(SourceError::Read { path: path.to_owned(), source }),
        };
        let has = |name: &str| names.iter().any(|own| own == name);
        let begins = |start: &str| names.iter().any(|own| own.starts_with(start));
        let other = |found: &str| Err(SourceError::other(wanted, path, found));
        if has(checkpoint::MANIFEST_NAME) {
            return Ok(Self::Checkpoint(path.to_owned()));
        }
        if has(MANIFEST_NAME) {
            return Ok(Self::Export(path.to_owned()));
        }
        if begins("shard-") {
            return other(
                "it is a checkpoint that was not written to its end, or has lost its manifest.json",
            );
        }
        if has("dataset.json") {
            return other("it is a dataset");
        }
        if ["job.toml", "metrics.jsonl", "summary.json", "checkpoints", "model"].into_iter().any(has) {
            return Ok(Self::Run(path.to_owned()));
        }
        if begins("step-") {
            return Self::of_checkpoints(path, wanted);
        }
        other(if names.is_empty() { "it is an empty folder" } else { "it is neither of them" })
    }

    /// A run's folder of checkpoints stands for the run, where checkpoints are wanted.
    fn of_checkpoints(path: &Path, wanted: Wanted) -> Result<Self, SourceError> {
        let run = path.parent().filter(|_| path.file_name().is_some_and(|name| name == "checkpoints"));
        let found = match (listed(path)?.first(), run, wanted) {
            (Some(_), Some(run), Wanted::Checkpoint | Wanted::Any) => return Ok(Self::Run(run.to_owned())),
            (Some(latest), ..) => {
                format!("it is a folder of checkpoints, of which {} is the latest", latest.display())
            }
            (None, ..) => "it is a folder of checkpoints, none of which is complete".into(),
        };
        Err(SourceError::other(wanted, path, found))
    }

    /// The latest of [`ModelSource::checkpoints`].
    ///
    /// # Errors
    /// As that.
    pub fn latest_checkpoint(&self) -> Result<PathBuf, SourceError> {
        Ok(self.checkpoints()?.remove(0))
    }

    /// The checkpoints that it means, at least one, the latest first: itself, or those of the run.
    ///
    /// # Errors
    /// [`SourceError::Other`] where there is none, [`SourceError::Checkpoint`].
    pub fn checkpoints(&self) -> Result<Vec<PathBuf>, SourceError> {
        let other = |path: &Path, found: &str| Err(SourceError::other(Wanted::Checkpoint, path, found));
        match self {
            Self::Checkpoint(path) => Ok(vec![path.clone()]),
            Self::Export(path) => other(path, "it is an export, which has weights and nothing of a training"),
            Self::Run(path) => {
                let listed = listed(&RunDir::checkpoints_path(path))?;
                match (listed.is_empty(), RunDir::model_path(path).join(MANIFEST_NAME).exists()) {
                    (false, _) => Ok(listed),
                    (true, true) => {
                        other(path, "it is a run without checkpoints, whose folder `model` is an export")
                    }
                    (true, false) => other(path, "it is a run without checkpoints"),
                }
            }
        }
    }

    /// Opens the model: of a run the one in its folder `model`.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn open(&self) -> Result<OpenModel, SourceError> {
        match self {
            Self::Checkpoint(path) => OpenModel::of_checkpoint(open_checkpoint(path)?, None),
            Self::Export(dir) => {
                let saved = SavedModel::open(dir)?;
                let job = match &saved.job {
                    Some(text) => Job::from_toml(MANIFEST_NAME, text, &[] as &[&str])?,
                    // Before exports had the job, a run's own folder `model` was one.
                    None => match dir.parent().map(RunDir::job_path) {
                        Some(job) if dir.ends_with("model") && job.exists() => {
                            Job::load(&job, &[] as &[&str])?
                        }
                        _ => return Err(SourceError::NoJob(dir.clone())),
                    },
                };
                Ok(OpenModel::of_folder(dir.clone(), saved, job))
            }
            Self::Run(path) => {
                let dir = RunDir::model_path(path);
                if !dir.join(MANIFEST_NAME).exists() {
                    let checkpoints = listed(&RunDir::checkpoints_path(path))?;
                    let latest = checkpoints.first().map_or("it has no checkpoint either".into(), |latest| {
                        format!("its latest checkpoint is {}", latest.display())
                    });
                    let found = format!("it is a run that has not finished; {latest}");
                    return Err(SourceError::other(Wanted::Model, path, found));
                }
                let job = Job::load(&RunDir::job_path(path), &[] as &[&str])?;
                Ok(OpenModel::of_folder(dir.clone(), SavedModel::open(&dir)?, job))
            }
        }
    }
}

/// The names in a folder.
fn names(path: &Path) -> std::io::Result<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    fs::read_dir(path)?.map(name).collect()
}

/// A folder's checkpoints, the latest first; none where there is no such folder.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, SourceError> {
    Ok(checkpoint::list(&Disk, dir)?.into_iter().map(|(_, path)| path).collect())
}

/// A trained model, opened: all but its weights is in memory.
#[derive(Debug)]
pub struct OpenModel {
    job: Job,
    columns: Columns,
    steps: u64,
    stored: Stored,
    /// Where vocabularies may lie.
    folders: Vec<PathBuf>,
}

/// Where the weights lie.
#[derive(Debug)]
enum Stored {
    Folder(PathBuf, Box<SavedModel>),
    Checkpoint(Box<Checkpoint>),
}

impl OpenModel {
    fn of_folder(dir: PathBuf, saved: SavedModel, job: Job) -> Self {
        let (columns, steps) = (saved.columns(), saved.steps);
        Self { job, columns, steps, folders: vec![dir.clone()], stored: Stored::Folder(dir, Box::new(saved)) }
    }

    /// The model of a checkpoint. `dataset` is the one that it was trained on, where that is not the job's any more.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn of_checkpoint(checkpoint: Checkpoint, dataset: Option<&Path>) -> Result<Self, SourceError> {
        let job = checkpoint.text("job.toml")?.unwrap_or_default();
        let job = Job::from_toml("job.toml", &job, &[] as &[&str])?;
        let mut folders: Vec<_> = dataset.into_iter().map(Path::to_owned).collect();
        let columns = match (checkpoint.text(Columns::NAME)?, dataset) {
            (Some(text), None) => {
                // The copy of the finished run, and the dataset: the one whose checksums match is used.
                let run = checkpoint.path().parent().and_then(Path::parent);
                folders.extend(run.map(RunDir::model_path));
                folders.extend(job.data.folder().map(Path::to_owned));
                let path = checkpoint.path().join(Columns::NAME);
                Columns::from_json(&text).map_err(|what| CheckpointError::Damaged { path, what })?
            }
            // Named, or of a checkpoint that an older version saved.
            (_, dataset) => {
                let dataset = match (dataset, &job.data.raw) {
                    (Some(dir), _) => Dataset::open(dir)?,
                    (None, Some(raw)) => Dataset::raw(&training::raw_format(raw)?, &raw.train, &raw.eval)?,
                    (None, None) => Dataset::open(job.data.folder().unwrap_or(Path::new("")))?,
                };
                if !training::is_of(checkpoint.manifest(), &dataset)? {
                    return Err(SavedModelError::Mismatch {
                        dataset: dataset.dir().to_owned(),
                        what: "it is not the dataset that the checkpoint was trained on: name that one with --data"
                            .into(),
                    }
                    .into());
                }
                folders.push(dataset.dir().to_owned());
                Columns::of(&dataset)
            }
        };
        let steps = checkpoint.manifest().train.step;
        Ok(Self { job, columns, steps, folders, stored: Stored::Checkpoint(Box::new(checkpoint)) })
    }

    /// The job that it was trained by.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Its columns.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Its parts and sizes.
    pub fn spec(&self) -> &ModelSpec {
        match &self.stored {
            Stored::Folder(_, saved) => &saved.spec,
            Stored::Checkpoint(checkpoint) => &checkpoint.manifest().spec,
        }
    }

    /// The folders that it is read from.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let own = match &self.stored {
            Stored::Folder(dir, _) => dir.clone(),
            Stored::Checkpoint(checkpoint) => checkpoint.path().to_owned(),
        };
        // Raw files lie in any folder, in which there may be room for a model, too.
        let read = |folder: &&PathBuf| !self.columns.vocabularies.is_empty() && folder.is_dir();
        std::iter::once(own).chain(self.folders.iter().filter(read).cloned()).collect()
    }

    /// Steps of training behind it.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Reads the weights; nothing is kept to learn with.
    ///
    /// # Errors
    /// [`SavedModelError`] where they are not what was saved.
    pub fn load(&self) -> Result<CpuModel, SavedModelError> {
        match &self.stored {
            Stored::Folder(dir, saved) => saved.load(dir),
            Stored::Checkpoint(checkpoint) => scoring_model(&StoredWeights(checkpoint)),
        }
    }

    /// What turns raw rows into samples of the model.
    ///
    /// # Errors
    /// [`SourceError::NoVocabulary`] where a checkpoint's vocabularies are gone; [`SourceError::Data`].
    pub fn encoder(&self) -> Result<Encoder, SourceError> {
        self.columns.encoder(&self.folders).map_err(|error| self.without_vocabulary(error))
    }

    fn without_vocabulary(&self, why: rankine_reader::Error) -> SourceError {
        match &self.stored {
            Stored::Checkpoint(checkpoint) => {
                SourceError::NoVocabulary { path: checkpoint.path().to_owned(), why }
            }
            Stored::Folder(..) => why.into(),
        }
    }

    /// Writes it as an export, which stands for itself.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn export(&self, dir: &Path) -> Result<(), SourceError> {
        // Before anything is written: all vocabularies are there.
        let vocabulary = |name: &str| self.columns.vocabulary(name, &self.folders);
        for file in &self.columns.vocabularies {
            vocabulary(&file.name).map_err(|error| self.without_vocabulary(error))?;
        }
        let beside = Beside {
            steps: self.steps,
            job: &self.job.to_toml(),
            columns: &self.columns,
            vocabulary: &vocabulary,
        };
        match &self.stored {
            Stored::Folder(..) => saved::save(dir, &self.load()?, &beside)?,
            Stored::Checkpoint(checkpoint) => saved::save(dir, &StoredWeights(checkpoint), &beside)?,
        }
        Ok(())
    }
}

/// Opens a checkpoint of the machine's own file system.
///
/// # Errors
/// [`CheckpointError`].
pub fn open_checkpoint(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let files: Arc<dyn Files> = Arc::new(Disk);
    Checkpoint::open(&files, path)
}
