//! The metrics of a model with one head or several.

use std::collections::BTreeMap;

use rankine_reader::Samples;
use rankine_reader::convert::UnknownCategories;
use serde::{Deserialize, Serialize, Serializer};

use super::histogram::ScoreHistogram;
use super::judged::JudgedHead;
use super::metrics::{Metrics, Scores};

/// The logits and labels of an evaluation, head by head.
#[derive(Debug)]
pub struct Evaluation {
    heads: Vec<(JudgedHead, Scores)>,
    samples: u64,
}

/// The quality of one head's predictions.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HeadMetrics {
    /// The label column.
    pub label: String,
    /// `None` if no sample has the label.
    pub metrics: Option<Metrics>,
    /// The distribution of the model's logits, with the weights that samples have in the metrics; `None` if no sample
    /// has the label, or if weights are unusable, as [`ScoreHistogram::of`] says.
    pub scores: Option<ScoreHistogram>,
    /// What is added to a logit before it becomes a probability.
    pub logit_offset: f64,
}

impl HeadMetrics {
    #[doc(hidden)]
    pub fn new(label: String, metrics: Option<Metrics>, scores: Option<ScoreHistogram>) -> Self {
        Self { label, metrics, scores, logit_offset: 0.0 }
    }

    /// The result of a head. `scores` has the weights of samples as they are.
    #[doc(hidden)]
    pub fn of(judged: &JudgedHead, metrics: Option<Metrics>, scores: Option<ScoreHistogram>) -> Self {
        let scores = scores.map(|scores| scores.judged(judged));
        let logit_offset = judged.correction.offset();
        Self { logit_offset, ..Self::new(judged.head.label.clone(), metrics, scores) }
    }
}

/// The metrics of all heads as a run records them: those of the first head and, with several heads, an entry `heads`
/// with those of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalMetrics {
    /// Those of the first head; absent if no sample has its label.
    #[serde(flatten)]
    pub first: Option<Metrics>,
    /// Those of every head, by label; null if no sample has the label. Empty if the model has one head.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub heads: BTreeMap<String, Option<Metrics>>,
}

/// An evaluation as a run records it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvalSummary {
    /// The quality of the predictions.
    #[serde(flatten)]
    pub metrics: EvalMetrics,
    /// For generated data: the AUC of the teacher that made the labels, which a model cannot be expected to exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auc_achievable: Option<f64>,
    /// Wall-clock time of the evaluation.
    pub seconds: f64,
    /// The most samples that were scored at a time. Only evaluations of a run have it; it is absent in the summaries of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// The number of ids that were not rows of their tables, by column; absent if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids_out_of_range: BTreeMap<String, u64>,
    /// The evaluations on further datasets, by the names in the job; absent if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, Self>,
    /// For raw files: their rows. The evaluations of a run have none.
    #[serde(flatten, skip_deserializing)]
    pub rows: Option<RowCounts>,
}

impl EvalSummary {
    #[doc(hidden)]
    pub fn new(metrics: EvalMetrics, seconds: f64) -> Self {
        Self { metrics, seconds, ..Self::default() }
    }
}

/// Counts of raw rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RowCounts {
    /// Rows that were read, bad ones included.
    pub read: u64,
    /// Rows that could not be read, and were skipped.
    pub bad: u64,
    /// For each column with a vocabulary, in the model's order: the categories that have no row of their own, and share
    /// one.
    #[serde(serialize_with = "as_map")]
    pub unknown: Vec<(String, UnknownCategories)>,
}

impl RowCounts {
    #[doc(hidden)]
    pub fn new(read: u64, bad: u64, unknown: Vec<(String, UnknownCategories)>) -> Self {
        Self { read, bad, unknown }
    }
}

fn as_map<S: Serializer>(columns: &[(String, UnknownCategories)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(columns.iter().map(|(name, count)| (name, count)))
}

impl Evaluation {
    /// An evaluation without samples.
    pub fn new(heads: &[JudgedHead]) -> Self {
        Self { heads: heads.iter().map(|head| (head.clone(), Scores::default())).collect(), samples: 0 }
    }

    /// Adds a batch's samples with their logits, `[samples, heads]`. A head skips the samples without its label.
    pub fn add(&mut self, batch: &Samples, logits: &[f32]) {
        self.samples += batch.len as u64;
        let stride = self.heads.len();
        for (number, (head, scores)) in self.heads.iter_mut().enumerate() {
            for (sample, &label) in batch.labels[head.head.label_number].iter().enumerate() {
                if label.is_nan() {
                    continue;
                }
                scores.logits.push(logits[sample * stride + number]);
                scores.labels.push(label);
                scores.weights.extend(batch.weights.get(sample));
            }
        }
    }

    /// Samples added so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The metrics of each head, in the model's order.
    pub fn metrics(&self) -> Vec<HeadMetrics> {
        let of_head = |(head, scores): &(JudgedHead, Scores)| {
            HeadMetrics::of(head, scores.metrics(head), ScoreHistogram::of(scores))
        };
        self.heads.iter().map(of_head).collect()
    }
}

impl From<&[HeadMetrics]> for EvalMetrics {
    fn from(heads: &[HeadMetrics]) -> Self {
        let first = heads.first().and_then(|head| head.metrics);
        let several = if heads.len() > 1 { heads } else { &[] };
        Self { first, heads: several.iter().map(|head| (head.label.clone(), head.metrics)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadSpec;

    fn evaluation(labels: Vec<Vec<f32>>, weights: Vec<f32>, logits: &[f32]) -> Vec<HeadMetrics> {
        let head =
            |label_number: usize| HeadSpec { label: format!("L{label_number}"), label_number, weight: 1.0 };
        let heads: Vec<_> = (0..labels.len()).map(head).collect();
        let mut evaluation = Evaluation::new(&JudgedHead::of_heads_uncorrected(&heads));
        evaluation.add(&Samples { len: labels[0].len(), labels, weights, ..Samples::default() }, logits);
        evaluation.metrics()
    }

    #[test]
    fn heads_are_scored_on_the_samples_that_have_their_label() {
        let nan = f32::NAN;
        let labels = vec![vec![1.0, 0.0, 1.0], vec![nan, 1.0, 0.0], vec![nan; 3]];
        // For the second head the first sample would be in the wrong order.
        let logits = [2.0, 9.0, 0.0, -1.0, 3.0, 0.0, 1.0, 2.0, 0.0];
        let metrics = evaluation(labels, vec![1.0, 2.0, 6.0], &logits);
        let second = metrics[1].metrics.unwrap();
        assert_eq!((second.samples, second.auc, second.label_rate), (2, Some(1.0), 0.25));
        let first = metrics[0].metrics.unwrap();
        assert_eq!((first.samples, first.auc, first.label_rate), (3, Some(1.0), 7.0 / 9.0));
        assert_eq!((metrics[2].label.as_str(), metrics[2].metrics), ("L2", None));
        let total = |head: &HeadMetrics| {
            let scores = head.scores.as_ref()?;
            Some([&scores.negatives, &scores.positives].map(|sums| sums.iter().sum::<f64>()))
        };
        let totals: Vec<_> = metrics.iter().map(total).collect();
        assert_eq!(totals, [Some([2.0, 7.0]), Some([6.0, 2.0]), None]);
    }

    #[test]
    fn batches_add_up() {
        let head = HeadSpec { label: "click".into(), label_number: 1, weight: 1.0 };
        let mut evaluation = Evaluation::new(&JudgedHead::of_heads_uncorrected(&[head]));
        let mut add = |labels: &[f32], weights: &[f32], logits: &[f32]| {
            let labels = vec![vec![0.0; labels.len()], labels.to_vec()];
            let batch =
                Samples { len: labels[0].len(), labels, weights: weights.to_vec(), ..Samples::default() };
            evaluation.add(&batch, logits);
            evaluation.samples()
        };
        assert_eq!(add(&[1.0, 0.0, f32::NAN], &[2.0, 1.0, 9.0], &[1.0, 0.0, 0.0]), 3);
        // A short last batch, whose positive is below all negatives.
        assert_eq!(add(&[1.0], &[3.0], &[-1.0]), 4);
        let metrics = evaluation.metrics()[0].metrics.unwrap();
        assert_eq!((metrics.samples, metrics.auc, metrics.label_rate), (3, Some(0.4), 5.0 / 6.0));
    }

    #[test]
    fn recorded_metrics_read_back_and_several_heads_are_named() {
        let one = evaluation(vec![vec![1.0, 0.0]], Vec::new(), &[0.5, 0.0]);
        let several = evaluation(vec![vec![f32::NAN; 2], vec![1.0, 0.0]], Vec::new(), &[0.0; 4]);
        for heads in [&one, &several] {
            let kept = EvalMetrics::from(heads.as_slice());
            let json = serde_json::to_value(&kept).unwrap();
            assert_eq!(serde_json::from_value::<EvalMetrics>(json).unwrap(), kept);
        }
        let json = |heads: &[HeadMetrics]| serde_json::to_value(EvalMetrics::from(heads)).unwrap();
        assert_eq!((&json(&one)["auc"], json(&one).get("heads")), (&1.0.into(), None));
        assert_eq!(json(&several).get("auc"), None);
        assert!(json(&several)["heads"]["L0"].is_null());
        assert_eq!(json(&several)["heads"]["L1"]["samples"], 2);
    }
}
