//! How the predictions of a head are judged if negatives were downsampled.
//!
//! Two shares matter, and they may differ. The share of the *training* data corrects the logits. The share r of the
//! *evaluated* data says how many samples of the original data a negative stands for: 1/r. All metrics but the AUC are
//! of corrected predictions against those original data; the AUC depends on neither share.

use rankine_reader::Schema;

use crate::HeadSpec;
use crate::logit::Correction;

/// A head of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedHead {
    /// The head.
    pub head: HeadSpec,
    /// What its logits are corrected by.
    pub correction: Correction,
    /// What a negative's weight is multiplied by: 1 or more.
    negative_weight: f64,
}

impl JudgedHead {
    /// Returns the heads of a model that was trained on some columns and is evaluated on others with the same labels.
    pub fn of_heads(heads: &[HeadSpec], trained_on: &Schema, evaluated_on: &Schema) -> Vec<Self> {
        let corrections = Correction::of_heads(heads, trained_on);
        let of_head = |(head, correction): (&HeadSpec, Correction)| {
            let kept = evaluated_on.labels.get(head.label_number).map_or(1.0, |label| label.share_kept());
            Self { head: head.clone(), correction, negative_weight: 1.0 / kept }
        };
        heads.iter().zip(corrections).map(of_head).collect()
    }

    /// Returns heads that are judged by their own logits on the samples as they are.
    pub fn of_heads_uncorrected(heads: &[HeadSpec]) -> Vec<Self> {
        heads.iter().cloned().map(Self::of_uncorrected).collect()
    }

    /// Returns the head judged by its own logits on the samples as they are.
    pub fn uncorrected(&self) -> Self {
        Self::of_uncorrected(self.head.clone())
    }

    fn of_uncorrected(head: HeadSpec) -> Self {
        Self { head, correction: Correction::NONE, negative_weight: 1.0 }
    }

    /// Returns whether negatives were downsampled in the training data or in the evaluated data.
    pub fn is_corrected(&self) -> bool {
        self.correction != Correction::NONE || self.negative_weight != 1.0
    }

    /// Returns the weight of a sample in the original data.
    pub fn weight(&self, label: f64, weight: f64) -> f64 {
        if label == 0.0 { weight * self.negative_weight } else { weight }
    }
}
