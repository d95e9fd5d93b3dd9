//! The quality of a model's predictions.

pub(crate) mod auc;
#[cfg(test)]
mod auc_tests;
mod heads;
pub(crate) mod metrics;

pub use auc::{auc, weighted_auc};
pub use heads::{EvalMetrics, EvalSummary, Evaluation, HeadMetrics};
pub use metrics::{Metrics, Scores};
