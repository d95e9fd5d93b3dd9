//! Finds and opens a trained model in a run folder, a checkpoint or an export.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::blame::Blame;
use rankine_base::files::not_a_folder;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{Checkpoint, CheckpointError, DELTA_NAME, Disk, Files, ModelIdentity};
use rankine_engine_cpu::CpuModel;
use rankine_job::{Conflict, DataSource, Job, JobError, conflict_lines};
use rankine_model::ModelSpec;
use rankine_reader::convert::{BadName, Encoder, KnownColumns};
use rankine_reader::dataset::FIT_NAME;
use rankine_reader::{Columns, Dataset, Fit, IdRules};
use rankine_saved as saved;
use rankine_saved::{
    MANIFEST_NAME, ModelMetadata, SavedModel, SavedModelError, StoredWeights, Weights, scoring_model,
};

use crate::run_paths;

/// A folder that has a trained model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A run folder. It has a model once the run has finished, and checkpoints.
    Run(PathBuf),
    /// A checkpoint, full or incremental.
    Checkpoint(PathBuf),
    /// The folder that `export --format safetensors` writes, or the folder `model` of a finished run.
    Export(PathBuf),
}

/// What a command needs from a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Artifact {
    /// A model to score with.
    Model,
    /// The state of a training.
    Checkpoint,
    /// A checkpoint or an export.
    Any,
}

impl fmt::Display for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Checkpoint | Self::Any => "checkpoint",
        })
    }
}

impl Artifact {
    fn expected(self) -> &'static str {
        match self {
            Self::Model => {
                "the folder of a finished run, a checkpoint (`checkpoints/step-N` of a run), or an export (written by \
                 `rankine export --format safetensors`, or the folder `model` of a run)"
            }
            Self::Checkpoint => {
                "the folder of a run that has checkpoints, or a checkpoint (`checkpoints/step-N` of a run)"
            }
            Self::Any => {
                "the folder of a run that has checkpoints, a checkpoint (`checkpoints/step-N` of a run), or an export \
                 (written by `rankine export --format safetensors`, or the folder `model` of a run)"
            }
        }
    }
}

/// An error while finding or opening a model or a checkpoint, or evaluating it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The folder is something else.
    #[error("no {artifact} at {}: {found}; expected {}", path.display(), artifact.expected())]
    Other {
        /// What the command needs.
        artifact: Artifact,
        /// The folder.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// The folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The folder, or a file in it.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// An export of an older version, outside of its run folder.
    #[error(
        "{} was exported without its job, which sets the policy for ids out of range: export it again with this \
         version, or name the run",
        .0.display()
    )]
    NoJob(PathBuf),
    /// A vocabulary of a checkpoint's columns was not found.
    #[error(
        "the checkpoint {} needs the vocabularies of its dataset: {why}. `rankine export {} --format safetensors \
         --out DIR --data DATASET` writes a model that includes them",
        path.display(),
        path.display()
    )]
    NoVocabulary {
        /// The checkpoint.
        path: PathBuf,
        /// Why the first one cannot be read.
        why: rankine_base::Error,
    },
    /// Raw files cannot be read, since the model was trained on generated data.
    #[error("the model was trained on generated data, which has no raw rows: use --data")]
    NoRawRows,
    /// A raw row cannot be read, and bad rows are not to be skipped.
    #[error("{0}\nnothing was evaluated; --on-bad skip skips such rows, and counts and lists them")]
    BadRow(BadName),
    /// The model cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The saved job cannot be read.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The policy for ids out of range of the model's job does not suit its columns.
    #[error("the model's job does not suit its columns: {}", conflict_lines(.0))]
    Conflicts(Vec<Conflict>),
    /// The job's dataset cannot be opened.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
}

impl SourceError {
    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Other { .. }
            | Self::NoJob(_)
            | Self::NoVocabulary { .. }
            | Self::NoRawRows
            | Self::Job(_)
            | Self::Conflicts(_) => Blame::Usage,
            Self::Read { .. } => Blame::System,
            Self::BadRow(_) => Blame::Data,
            Self::Saved(error) => error.blame(),
            Self::Checkpoint(error) => error.blame(),
            Self::Data(error) => Blame::of_data(error),
        }
    }

    fn other(artifact: Artifact, path: &Path, found: impl Into<String>) -> Self {
        Self::Other { artifact, path: path.to_owned(), found: found.into() }
    }
}

impl ModelSource {
    /// Determines whether a folder is a run, a checkpoint or an export. Any other path means the run that
    /// [`run_paths::find`] finds.
    ///
    /// # Errors
    /// [`SourceError::Other`] if it is none of them; [`SourceError::Read`].
    pub fn find(path: &Path, artifact: Artifact) -> Result<Self, SourceError> {
        rankine_base::url::refuse(path, "a model that is read")?;
        let found = if path.is_dir() { path.to_owned() } else { run_paths::find(path) };
        let path = &*found;
        let names = match names(path) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(SourceError::other(artifact, path, "there is no such folder"));
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let found = match not_a_folder(path) {
                    Some((above, kind)) if above != path => format!("{} is {kind}", above.display()),
                    Some((_, kind)) => format!("it is {kind}"),
                    // It has changed since.
                    None => "it is not a folder".into(),
                };
                return Err(SourceError::other(artifact, path, found));
            }
            Err(source) => return Err(SourceError::Read { path: path.to_owned(), source }),
        };
        let has = |name: &str| names.iter().any(|own| own == name);
        let begins = |start: &str| names.iter().any(|own| own.starts_with(start));
        let other = |found: &str| Err(SourceError::other(artifact, path, found));
        if has(checkpoint::MANIFEST_NAME) {
            return Ok(Self::Checkpoint(path.to_owned()));
        }
        if has(MANIFEST_NAME) {
            return Ok(Self::Export(path.to_owned()));
        }
        if has(DELTA_NAME) {
            return other("it is a delta, which changes a model that is loaded already");
        }
        if begins("shard-") {
            return other("it is an incomplete checkpoint without manifest.json");
        }
        if has("dataset.json") {
            return other("it is a dataset");
        }
        if has(FIT_NAME) {
            return other("it is a fit, which has vocabularies but no weights");
        }
        if ["job.toml", "metrics.jsonl", "summary.json", "checkpoints", "model"].into_iter().any(has) {
            return Ok(Self::Run(path.to_owned()));
        }
        if begins("step-") {
            return Self::of_checkpoints(path, artifact);
        }
        other(match names.is_empty() {
            true => "it is an empty folder",
            false => "it is neither a run, a checkpoint nor an export",
        })
    }

    /// Resolves a folder of checkpoints: if checkpoints are accepted, a run's `checkpoints` stands for the run.
    fn of_checkpoints(path: &Path, artifact: Artifact) -> Result<Self, SourceError> {
        let run = path.parent().filter(|_| path.file_name().is_some_and(|name| name == "checkpoints"));
        let found = match (listed(path)?.first(), run, artifact) {
            (Some(_), Some(run), Artifact::Checkpoint | Artifact::Any) => {
                return Ok(Self::Run(run.to_owned()));
            }
            (Some(latest), ..) => {
                format!("it is a folder of checkpoints; {} is the latest", latest.display())
            }
            (None, ..) => "it is a folder of checkpoints, but none is complete".into(),
        };
        Err(SourceError::other(artifact, path, found))
    }

    /// Returns the first of [`ModelSource::checkpoints`], which is the latest.
    ///
    /// # Errors
    /// The errors of [`ModelSource::checkpoints`].
    pub fn latest_checkpoint(&self) -> Result<PathBuf, SourceError> {
        Ok(self.checkpoints()?.remove(0))
    }

    /// Returns the checkpoint itself, or the checkpoints of the run, the latest first. There is at least one.
    ///
    /// # Errors
    /// [`SourceError::Other`] if there are no checkpoints; [`SourceError::Checkpoint`].
    pub fn checkpoints(&self) -> Result<Vec<PathBuf>, SourceError> {
        let other = |path: &Path, found: &str| Err(SourceError::other(Artifact::Checkpoint, path, found));
        match self {
            Self::Checkpoint(path) => Ok(vec![path.clone()]),
            Self::Export(path) => other(path, "it is an export, which has weights but no optimizer state"),
            Self::Run(path) => {
                let listed = listed(&run_paths::checkpoints(path))?;
                match (listed.is_empty(), has_model(path)) {
                    (false, _) => Ok(listed),
                    (true, true) => {
                        other(path, "it is a run without checkpoints; its folder `model` is an export")
                    }
                    (true, false) => other(path, "it is a run without checkpoints"),
                }
            }
        }
    }

    /// Opens the model. If it is a run that has not finished, the model is the one of its latest checkpoint; `dataset`
    /// is as for [`OpenModel::of_checkpoint`].
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn open_latest(&self, dataset: Option<&Path>) -> Result<OpenModel, SourceError> {
        match self {
            Self::Export(_) => self.open(),
            Self::Run(path) if has_model(path) => self.open(),
            Self::Run(_) | Self::Checkpoint(_) => {
                OpenModel::of_checkpoint(open_checkpoint(&self.latest_checkpoint()?)?, dataset)
            }
        }
    }

    /// Opens the model. The model of a run is the one in its folder `model`.
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
                    // An older version: the job is only in the run folder.
                    None => match dir.parent().map(run_paths::job) {
                        Some(job) if dir.ends_with("model") && job.exists() => {
                            Job::load(&job, &[] as &[&str])?
                        }
                        _ => return Err(SourceError::NoJob(dir.clone())),
                    },
                };
                Ok(OpenModel::of_folder(dir.clone(), saved, job))
            }
            Self::Run(path) => {
                let dir = run_paths::model(path);
                if !has_model(path) {
                    let checkpoints = listed(&run_paths::checkpoints(path))?;
                    let latest = checkpoints.first().map_or("it has no checkpoint either".into(), |latest| {
                        format!("its latest checkpoint is {}", latest.display())
                    });
                    let found = format!("it is a run that has not finished; {latest}");
                    return Err(SourceError::other(Artifact::Model, path, found));
                }
                let job = Job::load(&run_paths::job(path), &[] as &[&str])?;
                Ok(OpenModel::of_folder(dir.clone(), SavedModel::open(&dir)?, job))
            }
        }
    }
}

/// Returns whether a run has finished, and so has a model.
fn has_model(run: &Path) -> bool {
    run_paths::model(run).join(MANIFEST_NAME).exists()
}

/// Returns the names in a folder.
fn names(path: &Path) -> std::io::Result<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    fs::read_dir(path)?.map(name).collect()
}

/// Returns a folder's checkpoints, the latest first. If the folder does not exist, the list is empty.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, SourceError> {
    Ok(checkpoint::list(&Disk, dir)?.into_iter().map(|(_, path)| path).collect())
}

/// An open model: all of it except for its weights is in memory.
#[derive(Debug)]
pub struct OpenModel {
    job: Job,
    columns: Columns,
    steps: u64,
    weights: WeightsSource,
    /// The folders to search for vocabularies.
    folders: Vec<PathBuf>,
}

/// Where the weights are stored.
#[derive(Debug)]
enum WeightsSource {
    Folder(PathBuf, Box<SavedModel>),
    Checkpoint(Box<Checkpoint>),
}

impl OpenModel {
    fn of_folder(dir: PathBuf, saved: SavedModel, job: Job) -> Self {
        let (columns, steps) = (saved.columns(), saved.steps);
        let folders = vec![dir.clone()];
        Self { job, columns, steps, folders, weights: WeightsSource::Folder(dir, Box::new(saved)) }
    }

    /// Opens the model of a checkpoint. `dataset` is the dataset that it was trained on, if that has moved from where
    /// the job has it.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn of_checkpoint(checkpoint: Checkpoint, dataset: Option<&Path>) -> Result<Self, SourceError> {
        let job = checkpoint.text("job.toml")?.unwrap_or_default();
        let job = Job::from_toml("job.toml", &job, &[] as &[&str])?;
        let mut folders: Vec<_> = dataset.into_iter().map(Path::to_owned).collect();
        let path = checkpoint.path().join(Columns::NAME);
        let saved = checkpoint.text(Columns::NAME)?.map(|text| Columns::from_json(&text)).transpose();
        let saved = saved.map_err(|what| CheckpointError::Damaged { path, what: what.to_string() })?;
        let columns = match (saved, dataset) {
            (Some(columns), None) => {
                // The run's model or the dataset: the first file with the right checksum is used.
                let run = checkpoint.path().parent().and_then(Path::parent);
                folders.extend(run.map(run_paths::model));
                folders.extend_from_slice(job.data.folders());
                columns
            }
            // The caller named the dataset, or an older version saved the checkpoint without `columns.json`.
            (saved, dataset) => {
                let dataset = match (dataset, job.data.source()) {
                    (Some(dir), _) => Dataset::open(dir)?,
                    (None, DataSource::Raw(raw)) => Dataset::raw(&raw.format()?, &raw.train, &raw.eval)?,
                    (None, DataSource::Folders(folders)) => folders.open()?,
                };
                let dataset = match &saved {
                    Some(columns) => dataset.with_buckets_of(&columns.schema),
                    None => dataset,
                };
                if !checkpoint.manifest().data.is_of(&dataset)? {
                    return Err(SavedModelError::Mismatch {
                        dataset: dataset.dir().to_owned(),
                        what: "it is not the dataset that the checkpoint was trained on; name that one with --data"
                            .into(),
                    }
                    .into());
                }
                folders.push(dataset.dir().to_owned());
                Columns::of(&dataset)
            }
        };
        let steps = checkpoint.manifest().train.step;
        Ok(Self { job, columns, steps, folders, weights: WeightsSource::Checkpoint(Box::new(checkpoint)) })
    }

    /// Returns the job that it was trained with.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns its columns.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Returns a dataset with the columns that it was trained on. Those that its job has made of numbers are added,
    /// with the buckets of the training.
    ///
    /// # Errors
    /// [`SavedModelError::Mismatch`] with the first difference.
    pub fn with_columns(&self, dataset: Dataset) -> Result<Dataset, SavedModelError> {
        let dataset = dataset.with_buckets_of(&self.columns.schema);
        match self.columns.difference(&dataset) {
            Some(what) => Err(SavedModelError::Mismatch {
                dataset: dataset.dir().to_owned(),
                what: format!("{what}. Convert its rows with `rankine convert ... --like RUN`"),
            }),
            None => Ok(dataset),
        }
    }

    /// Returns its rules for ids out of range.
    ///
    /// # Errors
    /// [`SourceError::Conflicts`].
    pub fn ids(&self) -> Result<IdRules, SourceError> {
        let schema = &self.columns.schema;
        let rules = self.job.id_rules(schema).map_err(SourceError::Conflicts)?;
        Ok(IdRules::new(schema, &rules)?)
    }

    /// Returns its parts and sizes.
    pub fn spec(&self) -> &ModelSpec {
        match &self.weights {
            WeightsSource::Folder(_, saved) => &saved.spec,
            WeightsSource::Checkpoint(checkpoint) => &checkpoint.manifest().spec,
        }
    }

    /// Returns the folders that it is read from.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let own = match &self.weights {
            WeightsSource::Folder(dir, _) => dir.clone(),
            WeightsSource::Checkpoint(checkpoint) => checkpoint.path().to_owned(),
        };
        // Without vocabularies nothing is read from the dataset: raw files may be in any folder, even in one that the
        // user exports a model to.
        let read = |folder: &&PathBuf| !self.columns.vocabularies.is_empty() && folder.is_dir();
        std::iter::once(own).chain(self.folders.iter().filter(read).cloned()).collect()
    }

    /// Returns the number of steps that it was trained for.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns what identifies it, given its weights: two models of the same training are the same if this is.
    ///
    /// # Errors
    /// [`SavedModelError`] if the weights are not finite.
    pub fn identity(&self, loaded: &CpuModel) -> Result<ModelIdentity, SavedModelError> {
        let known = match &self.weights {
            WeightsSource::Folder(_, saved) => saved.weights_checksum(),
            WeightsSource::Checkpoint(_) => None,
        };
        let weights = known.map_or_else(|| saved::weights_checksum(loaded), Ok)?;
        Ok(ModelIdentity { steps: self.steps, weights })
    }

    /// Reads the weights, without optimizer state.
    ///
    /// # Errors
    /// [`SavedModelError`] if they differ from what was saved.
    pub fn load(&self) -> Result<CpuModel, SavedModelError> {
        match &self.weights {
            WeightsSource::Folder(dir, saved) => saved.load(dir),
            WeightsSource::Checkpoint(checkpoint) => scoring_model(&StoredWeights(checkpoint)),
        }
    }

    /// Returns an encoder that converts raw rows into samples of the model.
    ///
    /// # Errors
    /// [`SourceError::NoVocabulary`] if a checkpoint's vocabularies are missing; [`SourceError::Data`].
    pub fn encoder(&self) -> Result<Encoder, SourceError> {
        self.columns.encoder(&self.folders).map_err(|error| self.without_vocabulary(error))
    }

    /// Returns its columns with what converts raw rows into samples, for further rows; `path` names it in messages.
    ///
    /// # Errors
    /// As [`OpenModel::encoder`].
    pub fn known_columns(&self, path: &Path) -> Result<KnownColumns, SourceError> {
        let Columns { schema, format, .. } = self.columns.clone();
        Ok(KnownColumns::new(path.display().to_string(), schema, format, self.encoder()?))
    }

    fn without_vocabulary(&self, why: rankine_base::Error) -> SourceError {
        match &self.weights {
            WeightsSource::Checkpoint(checkpoint) => {
                SourceError::NoVocabulary { path: checkpoint.path().to_owned(), why }
            }
            WeightsSource::Folder(..) => why.into(),
        }
    }

    /// Returns a dataset that has the columns of the model but no samples.
    ///
    /// # Errors
    /// [`SourceError::NoVocabulary`] if a checkpoint's vocabularies are missing; [`SourceError::Data`].
    pub fn without_samples(&self) -> Result<Dataset, SourceError> {
        let readable = |folder: &&PathBuf| {
            let folder = std::slice::from_ref(*folder);
            self.columns.vocabularies.iter().all(|file| self.columns.vocabulary(&file.name, folder).is_ok())
        };
        // The encoder's error says what is wrong with the vocabularies.
        let Some(folder) = self.folders.iter().find(readable) else {
            self.encoder()?;
            return Ok(self.columns.clone().without_samples(Path::new(""))?);
        };
        Ok(self.columns.clone().without_samples(folder)?)
    }

    /// Writes it as an export, which needs no other file.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn export(&self, dir: &Path) -> Result<(), SourceError> {
        self.check_vocabularies()?;
        Ok(self.with_contents(|weights, metadata| saved::save(dir, weights, metadata))?)
    }

    /// Checks that all vocabularies can be read, before anything is written.
    ///
    /// # Errors
    /// As [`OpenModel::encoder`].
    pub fn check_vocabularies(&self) -> Result<(), SourceError> {
        for file in &self.columns.vocabularies {
            let read = self.columns.vocabulary(&file.name, &self.folders);
            read.map_err(|error| self.without_vocabulary(error))?;
        }
        Ok(())
    }

    /// Calls `take` with the weights, which are read piece by piece, and with everything else that is saved.
    ///
    /// # Errors
    /// The errors of reading the weights, and of `take`.
    pub fn with_contents<T>(
        &self,
        take: impl FnOnce(&dyn Weights, &ModelMetadata<'_>) -> Result<T, SavedModelError>,
    ) -> Result<T, SavedModelError> {
        let metadata = ModelMetadata {
            steps: self.steps,
            job: &self.job.to_toml(),
            columns: &self.columns,
            vocabulary: &|name| self.columns.vocabulary(name, &self.folders),
        };
        match &self.weights {
            WeightsSource::Folder(dir, saved) => take(&saved.weights(dir)?, &metadata),
            WeightsSource::Checkpoint(checkpoint) => take(&StoredWeights(checkpoint), &metadata),
        }
    }
}

/// Opens the columns of a dataset, a fit or a model, for further rows. A model has no statistics; the statistics of its
/// dataset are taken, if it is still where the job has it.
///
/// # Errors
/// See [`SourceError`]; [`SourceError::Other`] if the folder is none of them.
pub fn known_columns(path: &Path) -> Result<KnownColumns, SourceError> {
    if Dataset::exists(path) {
        return Ok(KnownColumns::of(&Dataset::open(path)?)?);
    }
    if Fit::exists(path) {
        return Ok(KnownColumns::of_fit(&Fit::open(path)?)?);
    }
    let model = ModelSource::find(path, Artifact::Model)?.open()?;
    let known = model.known_columns(path)?;
    let dataset = match model.job().data.source() {
        DataSource::Folders(folders) => folders.open().ok(),
        DataSource::Raw(_) => None,
    };
    let dataset = dataset.and_then(|dataset| model.with_columns(dataset).ok());
    match dataset.map(|dataset| dataset.statistics()) {
        Some(Ok(statistics)) => Ok(known.with_statistics(statistics)?),
        Some(Err(_)) | None => Ok(known),
    }
}

/// Opens a checkpoint in the file system.
///
/// # Errors
/// [`CheckpointError`].
pub fn open_checkpoint(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let files: Arc<dyn Files> = Arc::new(Disk);
    Checkpoint::open(&files, path)
}
