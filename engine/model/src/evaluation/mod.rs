//! The quality of a model's predictions.

pub mod auc;
mod heads;
pub mod histogram;
mod judged;
pub mod metrics;
mod saved_scores;
#[cfg(test)]
mod tests;

pub use auc::{auc, weighted_auc};
pub use heads::{EvalMetrics, EvalSummary, Evaluation, HeadMetrics, RowCounts};
pub use histogram::ScoreHistogram;
pub use judged::JudgedHead;
pub use metrics::{Metrics, Scores};
pub use saved_scores::{HeadScores, SavedScores, ScoreBins};
