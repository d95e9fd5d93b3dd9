//! How good a model's predictions are.

mod auc;
mod metrics;

pub use auc::auc;
pub use metrics::{Evaluation, Metrics};
