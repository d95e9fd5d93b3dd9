//! The metrics of one pass over an evaluation part.

use serde::{Deserialize, Serialize};

use super::auc::{auc, weighted_auc};
use crate::logit::{bce, sigmoid};

/// One head's logits and labels, gathered batch by batch. Takes 8 bytes per sample, 12 if samples have weights, and 8
/// more while the AUC is computed.
#[derive(Debug, Clone, Default)]
pub struct Scores {
    /// Logits.
    pub logits: Vec<f32>,
    /// Labels, 0 or 1.
    pub labels: Vec<f32>,
    /// Weights; empty if every sample weighs 1.
    pub weights: Vec<f32>,
}

/// The quality of a model's predictions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Samples scored.
    pub samples: u64,
    /// The exact area under the ROC curve, weighted, ties counting half; absent if the samples of one label weigh
    /// nothing.
    pub auc: Option<f64>,
    /// Mean binary cross-entropy in nats, weighted.
    pub log_loss: f64,
    /// Log loss divided by the entropy of the label rate (He et al., "Practical Lessons from Predicting Clicks on Ads
    /// at Facebook", 2014): below 1 is better than predicting the rate; absent if all labels are equal.
    pub normalized_entropy: Option<f64>,
    /// Sum of predicted probabilities over sum of labels: 1 is calibrated; absent if no label is 1.
    pub calibration: Option<f64>,
    /// The share of labels that are 1, weighted.
    pub label_rate: f64,
}

/// Sums over samples, from which the metrics follow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// The number of samples.
    pub samples: u64,
    /// Sum of weights.
    pub weights: f64,
    /// Sum of losses times weights.
    pub losses: f64,
    /// Sum of predicted probabilities times weights.
    pub predictions: f64,
    /// Sum of labels times weights.
    pub positives: f64,
}

impl Sums {
    /// Returns the metrics; `None` without samples, or if none weighs anything.
    pub fn metrics(&self, auc: Option<f64>) -> Option<Metrics> {
        let Self { samples, weights, losses, predictions, positives } = *self;
        if weights == 0.0 {
            return None;
        }
        let (log_loss, rate) = (losses / weights, positives / weights);
        let entropy = -(rate * rate.ln() + (1.0 - rate) * (1.0 - rate).ln());
        Some(Metrics {
            samples,
            auc,
            log_loss,
            normalized_entropy: (entropy > 0.0).then(|| log_loss / entropy),
            calibration: (positives > 0.0).then(|| predictions / positives),
            label_rate: rate,
        })
    }
}

impl Scores {
    /// Computes the metrics; `None` of no samples, or of none that weighs anything.
    pub fn metrics(&self) -> Option<Metrics> {
        let mut sums = Sums { samples: self.logits.len() as u64, ..Sums::default() };
        for (sample, (&logit, &label)) in self.logits.iter().zip(&self.labels).enumerate() {
            let weight = self.weights.get(sample).map_or(1.0, |&weight| f64::from(weight));
            let (logit, label) = (f64::from(logit), f64::from(label));
            sums.weights += weight;
            sums.losses += weight * bce(logit, label);
            sums.predictions += weight * sigmoid(logit);
            sums.positives += weight * label;
        }
        let auc = match self.weights.as_slice() {
            [] => auc(&self.logits, &self.labels),
            weights => weighted_auc(&self.logits, &self.labels, weights),
        };
        sums.metrics(auc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_predictions_give_known_metrics() {
        let scores = Scores {
            logits: vec![0.0, 0.0, 3.0f32.ln(), -(3.0f32.ln())],
            labels: vec![0.0, 1.0, 1.0, 0.0],
            weights: Vec::new(),
        };
        let metrics = scores.metrics().unwrap();
        let log_loss = (2.0 * std::f64::consts::LN_2 + 2.0 * (4.0f64 / 3.0).ln()) / 4.0;
        assert!((metrics.log_loss - log_loss).abs() < 1e-7);
        assert!((metrics.normalized_entropy.unwrap() - log_loss / std::f64::consts::LN_2).abs() < 1e-7);
        assert!((metrics.calibration.unwrap() - 1.0).abs() < 1e-7);
        assert_eq!((metrics.samples, metrics.auc, metrics.label_rate), (4, Some(0.875), 0.5));
    }

    #[test]
    fn weights_count_in_every_metric() {
        let ln3 = 3.0f32.ln();
        let scores = Scores {
            logits: vec![ln3, 0.0, -ln3, 0.0],
            labels: vec![1.0, 1.0, 0.0, 0.0],
            weights: vec![4.0, 1.0, 2.0, 1.0],
        };
        let Metrics { samples, auc, log_loss, normalized_entropy, calibration, label_rate } =
            scores.metrics().unwrap();
        // Probabilities are 3/4, 1/2, 1/4 and 1/2, so that losses are ln 4/3, ln 2, ln 4/3 and ln 2.
        let expected = (6.0 * (4.0f64 / 3.0).ln() + 2.0 * 2.0f64.ln()) / 8.0;
        let entropy = -(5.0 / 8.0 * (5.0f64 / 8.0).ln() + 3.0 / 8.0 * (3.0f64 / 8.0).ln());
        // The logit ln 3 is rounded by half of 2^-23 at most, and neither loss nor probability changes faster than it.
        let rounding = 2.0f64.powi(-24);
        assert!((log_loss - expected).abs() <= rounding, "{log_loss}");
        assert!((normalized_entropy.unwrap() - expected / entropy).abs() <= rounding / entropy);
        // Predicted are 4 * 3/4 + 1/2 + 2 * 1/4 + 1/2 of the labels' 5.
        assert!((calibration.unwrap() - 0.9).abs() <= rounding, "{calibration:?}");
        assert_eq!((samples, label_rate), (4, 0.625));
        // The second of 5 * 3 positives ties with one negative.
        assert!((auc.unwrap() - 14.5 / 15.0).abs() <= f64::EPSILON, "{auc:?}");
    }

    #[test]
    fn the_log_loss_of_a_confident_mistake_is_not_clipped() {
        let scores =
            Scores { logits: vec![-100.0, 50.0, 20.0], labels: vec![1.0, 0.0, 1.0], weights: Vec::new() };
        let metrics = scores.metrics().unwrap();
        // ln(1 + e^100), ln(1 + e^50) and ln(1 + e^-20); the last is e^-20 up to its square.
        let expected = (150.0 + (-20.0f64).exp()) / 3.0;
        assert!((metrics.log_loss - expected).abs() <= 4.0 * f64::EPSILON * expected, "{}", metrics.log_loss);
    }

    #[test]
    fn weights_count_and_a_single_label_has_no_auc() {
        let scores =
            Scores { logits: vec![0.0, 0.0, 1.0], labels: vec![1.0, 0.0, 0.0], weights: vec![3.0, 1.0, 0.0] };
        let metrics = scores.metrics().unwrap();
        assert!((metrics.log_loss - std::f64::consts::LN_2).abs() < 1e-12);
        assert!((metrics.label_rate - 0.75).abs() < 1e-12);
        // The sample above the positive weighs nothing, and the other one is tied with it.
        assert_eq!(metrics.auc, Some(0.5));
        let single = Scores { logits: vec![0.3], labels: vec![0.0], weights: Vec::new() }.metrics().unwrap();
        assert_eq!((single.auc, single.normalized_entropy, single.calibration), (None, None, None));
        let nothing = Scores { logits: vec![0.3], labels: vec![0.0], weights: vec![0.0] };
        assert_eq!((nothing.metrics(), Scores::default().metrics()), (None, None));
    }
}
