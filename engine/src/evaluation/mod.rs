//! How good a model's predictions are.

mod auc;
mod heads;
mod metrics;

pub use auc::auc;
pub use heads::{EvalMetrics, Evaluation, HeadMetrics};
pub use metrics::{Metrics, Scores};
