//! The contents of `scores.json`, the histograms of a run's last evaluation.

use serde::{Deserialize, Serialize};

use super::heads::HeadMetrics;
use super::histogram::ScoreHistogram;

/// The histograms of an evaluation as a run saves them in `scores.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedScores {
    /// Where the bins are.
    pub bins: ScoreBins,
    /// Of the heads whose labels were in the samples, in the model's order.
    pub heads: Vec<HeadScores>,
}

/// Bins of equal width.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScoreBins {
    /// The logit at the lower edge of the first bin.
    pub from: f64,
    /// The width of a bin, in units of the logit.
    pub width: f64,
}

/// The histogram of one head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadScores {
    /// The label column.
    pub label: String,
    /// What is added to the logits of the bins before they become probabilities; absent if it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub logit_offset: f64,
    /// The histogram.
    #[serde(flatten)]
    pub scores: ScoreHistogram,
}

impl SavedScores {
    /// The histograms of an evaluation; `None` if no head has one.
    pub fn of(heads: &[HeadMetrics]) -> Option<Self> {
        let of_head = |head: &HeadMetrics| {
            let (label, logit_offset) = (head.label.clone(), head.logit_offset);
            head.scores.clone().map(|scores| HeadScores { label, logit_offset, scores })
        };
        let heads: Vec<_> = heads.iter().filter_map(of_head).collect();
        let bins = ScoreBins { from: ScoreHistogram::FROM.into(), width: ScoreHistogram::WIDTH.into() };
        (!heads.is_empty()).then_some(Self { bins, heads })
    }
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::metrics::Scores;

    #[test]
    fn saved_scores_read_back_and_whole_numbers_are_short() {
        let scores = ScoreHistogram::of(&Scores {
            logits: vec![-20.0, 20.0],
            labels: vec![0.0, 1.0],
            weights: vec![2.0, 0.5],
        });
        let head = |label: &str, scores: &Option<ScoreHistogram>| HeadMetrics {
            label: label.into(),
            metrics: None,
            scores: scores.clone(),
            logit_offset: 0.0,
        };
        let saved = SavedScores::of(&[head("none", &None), head("click", &scores)]).unwrap();
        let json = serde_json::to_string(&saved).unwrap();
        let start = r#"{"bins":{"from":-16.0,"width":0.0625},"heads":[{"label":"click","negatives":[2,0,"#;
        assert!(json.starts_with(start) && json.ends_with(",0,0.5]}]}"), "{json}");
        assert_eq!(serde_json::from_str::<SavedScores>(&json).unwrap(), saved);
        assert_eq!(SavedScores::of(&[head("none", &None)]), None);
    }
}
