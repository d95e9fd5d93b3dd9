//! The quality of a model's predictions.

mod auc;
#[cfg(test)]
mod auc_tests;
mod heads;
mod metrics;

#[cfg(feature = "cuda")]
pub(crate) use auc::{Pairs, WEIGHT_CLASSES, weight_scales};
pub use auc::{auc, weighted_auc};
pub use heads::{EvalMetrics, EvalSummary, Evaluation, HeadMetrics};
#[cfg(feature = "cuda")]
pub(crate) use metrics::Sums;
pub use metrics::{Metrics, Scores};
