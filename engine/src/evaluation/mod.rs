//! The quality of a model's predictions.

pub(crate) mod auc;
mod heads;
pub(crate) mod metrics;
#[cfg(test)]
mod tests;

pub use auc::{auc, weighted_auc};
pub use heads::{EvalMetrics, EvalSummary, Evaluation, HeadMetrics};
pub use metrics::{Metrics, Scores};
