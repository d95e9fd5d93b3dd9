//! Binary cross-entropy on logits, for one head or several, with labels that may be missing.

use std::ops::Range;

use rankine_reader::Samples;

use rankine_model::HeadSpec;
use rankine_model::logit::{bce, sigmoid};

/// A head's labels in a batch.
#[derive(Debug)]
pub(super) struct HeadLabels<'a> {
    /// 0, 1, or NaN if the label is missing: such a sample does not count in the head's loss.
    labels: &'a [f32],
    /// One per sample; empty if every sample weighs 1.
    weights: &'a [f32],
    /// The factor of the head's loss.
    head_weight: f64,
    /// The sum of the weights of the samples with a label, over the whole global batch.
    pub(super) total_weight: f64,
}

impl<'a> HeadLabels<'a> {
    /// For a whole batch. For a part of one, sum `total_weight` over all parts afterwards.
    pub(super) fn new(head: &HeadSpec, batch: &'a Samples) -> Self {
        let (labels, weights) = (batch.labels[head.label_number].as_slice(), batch.weights.as_slice());
        let labelled = (0..batch.len).filter(|&sample| !labels[sample].is_nan());
        let total_weight = labelled.map(|sample| weight_of(weights, sample)).sum();
        Self { labels, weights, head_weight: head.weight, total_weight }
    }

    /// Returns the head's share in the loss: the weighted mean over the samples with a label, times the head's weight;
    /// 0 without such samples.
    pub(super) fn loss(&self, weighted_sum: f64) -> f64 {
        if self.total_weight == 0.0 { 0.0 } else { self.head_weight * (weighted_sum / self.total_weight) }
    }

    /// Writes the gradients of the loss with respect to the logits of some samples, and returns the weighted sum of
    /// their losses. `logits` and `gradients` start with the head's first element, and have one of its elements every
    /// `stride` elements.
    pub(super) fn gradients(
        &self,
        samples: Range<usize>,
        stride: usize,
        logits: &[f32],
        gradients: &mut [f32],
    ) -> f64 {
        let mut sum = 0.0;
        let of_head = logits.iter().step_by(stride).zip(gradients.iter_mut().step_by(stride));
        for (sample, (&logit, gradient)) in samples.zip(of_head) {
            *gradient = 0.0;
            let (logit, label) = (f64::from(logit), f64::from(self.labels[sample]));
            let weight = weight_of(self.weights, sample);
            if label.is_nan() || self.total_weight == 0.0 {
                continue;
            }
            sum += weight * bce(logit, label);
            let scale = self.head_weight * weight;
            *gradient = ((sigmoid(logit) - label) * scale / self.total_weight) as f32;
        }
        sum
    }
}

fn weight_of(weights: &[f32], sample: usize) -> f64 {
    weights.get(sample).map_or(1.0, |&weight| f64::from(weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads with interleaved logits; the second sample lacks this head's label, and the third weighs 3.
    #[test]
    fn a_loss_is_the_weighted_mean_over_present_labels() {
        let batch = Samples {
            len: 3,
            labels: vec![vec![], vec![1.0, f32::NAN, 0.0]],
            weights: vec![1.0, 5.0, 3.0],
            ..Samples::default()
        };
        let head = HeadSpec { label: "buy".into(), label_number: 1, weight: 0.5 };
        let labels = HeadLabels::new(&head, &batch);
        assert_eq!(labels.total_weight, 4.0);
        // The sigmoid of 0 is one half; that of ln 3 is three quarters.
        let (logits, mut gradients) = ([0.0, 9.0, 0.0, 9.0, 3f32.ln(), 9.0], [7.0; 6]);
        let sum = labels.gradients(0..3, 2, &logits, &mut gradients);
        // Logarithms are computed in f64, of a logit that is rounded to f32.
        let exact = 2f64.ln() + 3.0 * 4f64.ln();
        assert!((sum - exact).abs() <= 1e-6, "{sum}");
        assert_eq!(labels.loss(8.0), 0.5 * 8.0 / 4.0);
        assert_eq!(gradients[0], -0.5 * 0.5 / 4.0);
        assert_eq!(gradients[2], 0.0);
        assert!((gradients[4] - 0.75 * 0.5 * 3.0 / 4.0).abs() <= 1e-7, "{}", gradients[4]);
        assert_eq!([gradients[1], gradients[3], gradients[5]], [7.0; 3]);

        // Only the third sample, as in a later tile; and a head without any label.
        let mut gradient = [7.0];
        let sum = labels.gradients(2..3, 1, &[0.0], &mut gradient);
        assert!((sum - 3.0 * 2f64.ln()).abs() <= 1e-12);
        assert_eq!(gradient, [0.5 * 0.5 * 3.0 / 4.0]);
        let unlabelled = Samples { labels: vec![vec![], vec![f32::NAN; 3]], ..batch };
        let labels = HeadLabels::new(&head, &unlabelled);
        assert_eq!((labels.total_weight, labels.loss(0.0)), (0.0, 0.0));
    }
}
