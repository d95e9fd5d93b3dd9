//! The job file: every setting of a training run, as TOML and as types.
//!
//! A job file is TOML and is read strictly: an unknown key, a value out of range or settings that contradict each other
//! are errors. An error names the file, line and column, marks the words with a caret and suggests the nearest known
//! key. `--set a.b=VALUE` replaces a value before anything is checked; `--set table.0.dim=8` changes the first
//! `[[table]]`. A key that is missing has the default that `docs/reference/job.md` states.
//!
//! Start at [`Job`] for the settings, at [`JobFile`] for how a text becomes a job, and at [`Job::builder`] for jobs in
//! code. Nothing here opens a dataset or a
//! device: other modules check a job against those and report [`Conflict`]s.
//!
//! ```
//! use rankine_job::Job;
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
//! # Ok::<(), rankine_job::JobError>(())
//! ```

#![forbid(unsafe_code)]

mod attention;
mod bucket_columns;
mod builder;
mod check;
mod checkpoint;
mod data;
mod definition;
mod dynamic;
mod embedding;
mod error;
mod feature;
mod file;
mod guard;
mod ids;
#[cfg(test)]
#[path = "../../../tests/support/json_schema.rs"]
mod json_schema;
mod metrics;
mod model;
mod network;
mod optimizer;
mod schedule;
mod settings;
#[cfg(test)]
mod tests;
mod threads;
mod train;
mod values;
mod write;

pub use attention::{Attention, DinAttention, DotAttention, MeanAttention};
pub use checkpoint::{Checkpoint, OnFailure};
pub use data::{ByteSize, CacheFolder, Data, DataCache, DataFolders, DataSource, Generate, Raw, Reader};
pub use definition::Job;
pub use dynamic::{Capacity, Evict, TableRows};
pub use embedding::{Dtype, Embedding, Exchange, MemoryBudget, Placement, Tier};
pub use error::JobError;
pub use error::conflict_lines;
pub use feature::{Buckets, Feature};
pub use file::JobFile;
pub use guard::{Guard, IdPolicy, NonFinite};
pub use metrics::{ListenAddress, Metrics};
pub use model::*;
pub use network::{CollNet, Network};
pub use optimizer::*;
pub use rankine_base::document::{Conflict, Problem};
pub use schedule::{Cosine, Schedule, Step, WarmupPolynomial};
pub use settings::{Kind, Settings};
pub use threads::thread_count;
pub use train::{
    Average, AverageKind, AverageSave, BlockFeed, CopyTiming, DenseUpdate, Device, DeviceKind, EarlyStopping,
    Eval, EvalSet, Precision, StoppingMetric, ThreadBinding, Train,
};
pub use values::{
    AdmitAfter, AucTarget, AverageCount, BatchSize, Count, Decay, Epochs, EvalBatchSize, Folders, Fraction,
    JobName, NonNegative, Positive, QueueDepth, RankCount, Ranks, Seconds, Shape, ThreadCount, Width,
    WindowBlocks,
};

/// The JSON Schema of job files, which `rankine init` writes for editors.
pub const SCHEMA: &str = include_str!("../job.schema.json");
