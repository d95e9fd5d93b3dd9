//! Why nothing is measured.

/// Why nothing is measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A trace covers one process.
    #[error("a trace covers one process: launch one, or drop --trace")]
    SeveralProcesses,
    /// The training part does not fill a batch.
    #[error(
        "the training part has {samples} samples, less than one batch of {batch_size}: choose a smaller \
         train.batch_size"
    )]
    TooFewSamples {
        /// Samples of the training part.
        samples: u64,
        /// `train.batch_size`.
        batch_size: u64,
    },
    /// The CPU records no trace.
    #[error("traces need a GPU, and {device} trains this job: drop --trace")]
    NoTrace {
        /// The device.
        device: String,
    },
    /// The CPU overlaps nothing.
    #[error("parts of a step overlap only on GPUs, and {device} trains this job: drop --without")]
    NoOverlap {
        /// The device.
        device: String,
    },
    /// There is nothing to evaluate on.
    #[error("the dataset has no evaluation part: convert with --split, or set data.generate.eval_samples")]
    NoEvaluationPart,
    /// Nothing says which AUC to reach.
    #[error(
        "no AUC to reach: give --target-auc, or set eval.target_auc; only generated data have a target by default"
    )]
    NoTarget,
    /// No pass was asked for.
    #[error("a measurement needs at least one pass")]
    NoPasses,
}
