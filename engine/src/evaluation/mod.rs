//! How good a model's predictions are.

mod auc;
mod heads;
mod metrics;

pub use auc::auc;
#[cfg(feature = "cuda")]
pub(crate) use auc::of_pairs;
pub use heads::{EvalMetrics, Evaluation, HeadMetrics};
#[cfg(feature = "cuda")]
pub(crate) use metrics::Sums;
pub use metrics::{Metrics, Scores};
