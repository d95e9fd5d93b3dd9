//! What training asks of GPUs before there is a model on them, and why it may get none.

use std::path::PathBuf;

use rankine_backend::{BackendError, Cause};
use rankine_embedding::{EmbeddingPlan, TierPlan};
use rankine_job::Job;
use rankine_launch::ProcessGroup;
use rankine_model::Model;
use rankine_model::overlap::Overlaps;
use rankine_reader::Dataset;

/// A model to be created on GPUs.
#[derive(Debug, Clone, Copy)]
pub struct ModelRequest<'a> {
    /// The job, which sets the precision, the batch sizes, the seed and the source of the products' algorithms.
    pub job: &'a Job,
    /// The model's parts and rules.
    pub model: &'a Model,
    /// The dataset, whose bags the model must hold.
    pub dataset: &'a Dataset,
    /// The placement of tables over several GPUs.
    pub plan: Option<&'a EmbeddingPlan>,
    /// The rows that the GPU stores, if host memory has the others. Only for one GPU.
    pub tier: Option<&'a TierPlan>,
    /// The parts of an iteration that overlap.
    pub overlaps: Overlaps,
    /// The number of nodes.
    pub nodes: usize,
    /// The processes, if there are several.
    pub processes: Option<&'a ProcessGroup>,
    /// The record of the products' algorithms from a checkpoint, which comes before the job's.
    pub recorded: Option<&'a str>,
}

/// Why GPUs cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This build is without CUDA.
    #[error("this build does not support GPUs")]
    NotBuilt,
    /// No driver, or no GPU.
    #[error("{0}")]
    NoGpu(#[source] Cause),
    /// A GPU does not exist.
    #[error("{source}")]
    TooFew {
        /// The number of GPUs that exist.
        gpus: usize,
        /// The driver's error.
        source: Cause,
    },
    /// A GPU exists, but cannot be used.
    #[error("{0}")]
    Unusable(#[source] Cause),
}

/// Why a model cannot be created on GPUs.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The file of `device.tuning` cannot be used.
    #[error("device.tuning: {}: {source}", path.display())]
    TuningFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Cause,
    },
    /// The recorded algorithms of products are unknown to this GPU or its library.
    #[error("device.tuning: {0}. Remove the key, or time the algorithms again with device.tune = true")]
    Tuning(#[source] Cause),
    /// An operation of a GPU failed, usually for lack of memory.
    #[error("{0}")]
    Failed(#[source] Cause),
    /// A process or rank did not take part, or the data cannot be read.
    #[error(transparent)]
    Backend(BackendError),
}
