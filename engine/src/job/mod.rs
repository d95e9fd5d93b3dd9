//! The job file: every setting of a training run, as TOML and as types.
//!
//! A job file is TOML and is read strictly: an unknown key, a value out of range or settings that contradict each other
//! are errors. An error names the file, line and column, marks the words with a caret and suggests the nearest known
//! key. `--set a.b=VALUE` replaces a value before anything is checked; `--set table.0.dim=8` changes the first
//! `[[table]]`. A key that is missing has the default that `docs/reference/job.md` states.
//!
//! Start at [`Job`] for the settings and at [`JobFile`] for how a text becomes a job. Nothing here opens a dataset or a
//! device: other modules check a job against those and report [`Conflict`]s.
//!
//! ```
//! use rankine::job::Job;
//!
//! let text = r#"
//!     name = "tiny"
//!     data.dir = "data/tiny"
//!     model = { kind = "dlrm", embedding_dim = 16, bottom_mlp = [64, 16], top_mlp = [64] }
//!     optimizer.dense = { kind = "sgd", learning_rate = 0.1 }
//!     optimizer.sparse = { kind = "adagrad", learning_rate = 0.02 }
//!     train.batch_size = 512
//! "#;
//! let job = Job::from_toml("tiny.toml", text, &["train.epochs=2"])?;
//! assert_eq!(job.train.epochs.get(), 2);
//! # Ok::<(), rankine::job::JobError>(())
//! ```

use std::path::Path;

use serde::Deserialize;

mod check;
mod checkpoint;
mod data;
mod embedding;
mod error;
mod file;
mod guard;
mod model;
mod optimizer;
#[cfg(test)]
mod reference;
mod schedule;
#[cfg(test)]
mod tests;
mod train;
mod tree;
mod typed;
mod values;
mod write;

pub use checkpoint::{Checkpoint, OnFailure};
pub use data::{Data, Generate, Raw, Reader};
pub use embedding::{Dtype, Embedding, Exchange, Placement};
pub use error::{Conflict, JobError, Problem};
pub use file::JobFile;
pub use guard::{Guard, IdPolicy, NonFinite};
pub use model::{Dcnv2, DeepFm, Dlrm, Head, Model, Table, WideDeep};
pub use optimizer::{Adagrad, Adam, Ftrl, Momentum, Optimizer, Optimizers, RowwiseAdagrad, Sgd};
pub use schedule::{Cosine, Schedule, Step, WarmupPolynomial};
pub use train::{DenseUpdate, Device, DeviceKind, Eval, Precision, Train};
pub use values::{
    AucTarget, BatchSize, Count, Decay, Fraction, JobName, NonNegative, Positive, QueueDepth, RankCount,
    Ranks, Seconds, Shape, ThreadCount, Width, WindowBlocks,
};

/// A training job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Name of the job; the folders of its runs start with it.
    pub name: JobName,
    /// Seed of the initial weights and of the order of samples.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Where the samples are.
    pub data: Data,
    /// The model.
    pub model: Model,
    /// Tables that differ from the rest, or that several columns share.
    #[serde(default, rename = "table")]
    pub tables: Vec<Table>,
    /// The labels to learn.
    #[serde(default, rename = "head")]
    pub heads: Vec<Head>,
    /// How the rows of tables are distributed over ranks.
    #[serde(default)]
    pub embedding: Embedding,
    /// Optimizers and the learning-rate schedule.
    pub optimizer: Optimizers,
    /// Batch size, epochs and shuffling.
    pub train: Train,
    /// When the model is evaluated.
    #[serde(default)]
    pub eval: Eval,
    /// When checkpoints are saved.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What happens when something goes wrong during training.
    #[serde(default)]
    pub guard: Guard,
    /// How blocks are read.
    #[serde(default)]
    pub reader: Reader,
    /// The devices that train the model.
    #[serde(default)]
    pub device: Device,
}

fn default_seed() -> u64 {
    1
}

impl Job {
    /// Returns the `[[table]]` that names a column, with its index.
    pub fn table_of(&self, column: &str) -> Option<(usize, &Table)> {
        self.tables.iter().enumerate().find(|(_, table)| table.columns.iter().any(|other| other == column))
    }

    /// Reads a job file and applies `sets`, each of the form `a.b=VALUE`.
    ///
    /// # Errors
    /// [`JobError::Read`] if the file cannot be read, [`JobError::Invalid`] with all problems if it is not a valid job.
    pub fn load(path: &Path, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        JobFile::read(path, sets)?.job()
    }

    /// Parses a job from a text and applies `sets`; messages name the file `name`.
    ///
    /// # Errors
    /// [`JobError::Invalid`] with all problems if the text is not a valid job.
    pub fn from_toml(name: &str, text: &str, sets: &[impl AsRef<str>]) -> Result<Self, JobError> {
        JobFile::parse(name, text, sets)?.job()
    }
}

/// Reads a job file's text.
fn read_text(path: &Path) -> Result<String, JobError> {
    rankine_reader::files::read_text(path).map_err(|error| match error {
        rankine_reader::Error::Io { source, .. } => JobError::Read { path: path.to_owned(), source },
        error => JobError::NotText(error.to_string()),
    })
}
