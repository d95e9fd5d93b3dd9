//! The metrics of one pass over an evaluation part.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::auc::{CHUNK, auc, score_of_bits, weighted_auc};
use super::judged::JudgedHead;
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
    /// The same of the model's own probabilities on the rows as they are. Absent if negatives were downsampled neither
    /// in the training data nor in the evaluated data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_uncorrected: Option<f64>,
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
        let Self { samples, weights, losses, positives, .. } = *self;
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
            calibration: self.calibration(),
            calibration_uncorrected: None,
            label_rate: rate,
        })
    }

    /// Returns the metrics of corrected predictions, given the sums of the model's own predictions on the rows as they
    /// are.
    pub fn corrected(&self, uncorrected: &Self, auc: Option<f64>) -> Option<Metrics> {
        let calibration_uncorrected = uncorrected.calibration();
        self.metrics(auc).map(|metrics| Metrics { calibration_uncorrected, ..metrics })
    }

    /// Returns predictions over labels, unless no label is 1.
    fn calibration(&self) -> Option<f64> {
        (self.positives > 0.0).then(|| self.predictions / self.positives)
    }

    /// Adds a sample, as the head is judged.
    pub(super) fn add(&mut self, judged: &JudgedHead, logit: f32, label: f32, weight: f32) {
        let (logit, label) = (judged.correction.logit(logit), f64::from(label));
        let weight = judged.weight(label, f64::from(weight));
        self.samples += 1;
        self.weights += weight;
        self.losses += weight * bce(logit, label);
        self.predictions += weight * sigmoid(logit);
        self.positives += weight * label;
    }

    /// Adds the samples of a GPU's ranking keys, as `cuda/kernels/judge.cu` writes them: the score in the upper 32
    /// bits. Below it are the label and the weight if samples are `weighted`, and otherwise the label alone: 0, 1, or 2
    /// if it is missing. Weighted keys do not tell a missing label from a weight of 0, so samples are not counted.
    pub fn add_keys(&mut self, judged: &JudgedHead, keys: &[u64], weighted: bool) {
        let of_chunk = |keys: &[u64]| {
            let mut sums = Self::default();
            for &key in keys {
                let (logit, low) = (score_of_bits((key >> 32) as u32), key as u32);
                let (label, weight) = match (weighted, low) {
                    (true, _) => (low >> 31, f32::from_bits(low & !(1 << 31))),
                    (false, 0 | 1) => (low, 1.0),
                    (false, _) => continue,
                };
                sums.add(judged, logit, label as f32, weight);
            }
            sums
        };
        // One order for any number of threads.
        for chunk in keys.par_chunks(CHUNK).map(of_chunk).collect::<Vec<_>>() {
            self.weights += chunk.weights;
            self.losses += chunk.losses;
            self.predictions += chunk.predictions;
            self.positives += chunk.positives;
        }
    }
}

impl Scores {
    /// Computes the metrics of a head; `None` of no samples, or of none that weighs anything.
    pub fn metrics(&self, judged: &JudgedHead) -> Option<Metrics> {
        let sums = |judged: &JudgedHead| {
            let mut sums = Sums::default();
            for (sample, (&logit, &label)) in self.logits.iter().zip(&self.labels).enumerate() {
                sums.add(judged, logit, label, self.weights.get(sample).map_or(1.0, |&weight| weight));
            }
            sums
        };
        let auc = match self.weights.as_slice() {
            [] => auc(&self.logits, &self.labels),
            weights => weighted_auc(&self.logits, &self.labels, weights),
        };
        match judged.is_corrected() {
            false => sums(judged).metrics(auc),
            true => sums(judged).corrected(&sums(&judged.uncorrected()), auc),
        }
    }
}

#[cfg(test)]
mod tests {
    use rankine_reader::Schema;
    use rankine_reader::schema::{DenseDtype, Label};

    use super::*;
    use crate::HeadSpec;

    /// A head that was trained on one share of the negatives and is evaluated on another.
    fn judged(trained_on: Option<f64>, evaluated_on: Option<f64>) -> JudgedHead {
        let schema = |negatives_kept| Schema {
            labels: vec![Label { name: "click".into(), negatives_kept }],
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical: Vec::new(),
        };
        let head = HeadSpec { label: "click".into(), label_number: 0, weight: 1.0 };
        JudgedHead::of_heads(&[head], &schema(trained_on), &schema(evaluated_on)).remove(0)
    }

    fn of(scores: &Scores) -> Option<Metrics> {
        scores.metrics(&judged(None, None))
    }

    #[test]
    fn known_predictions_give_known_metrics() {
        let scores = Scores {
            logits: vec![0.0, 0.0, 3.0f32.ln(), -(3.0f32.ln())],
            labels: vec![0.0, 1.0, 1.0, 0.0],
            weights: Vec::new(),
        };
        let metrics = of(&scores).unwrap();
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
        let Metrics { samples, auc, log_loss, normalized_entropy, calibration, label_rate, .. } =
            of(&scores).unwrap();
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
        let metrics = of(&scores).unwrap();
        // ln(1 + e^100), ln(1 + e^50) and ln(1 + e^-20); the last is e^-20 up to its square.
        let expected = (150.0 + (-20.0f64).exp()) / 3.0;
        assert!((metrics.log_loss - expected).abs() <= 4.0 * f64::EPSILON * expected, "{}", metrics.log_loss);
    }

    #[test]
    fn weights_count_and_a_single_label_has_no_auc() {
        let scores =
            Scores { logits: vec![0.0, 0.0, 1.0], labels: vec![1.0, 0.0, 0.0], weights: vec![3.0, 1.0, 0.0] };
        let metrics = of(&scores).unwrap();
        assert!((metrics.log_loss - std::f64::consts::LN_2).abs() < 1e-12);
        assert!((metrics.label_rate - 0.75).abs() < 1e-12);
        // The sample above the positive weighs nothing, and the other one is tied with it.
        assert_eq!(metrics.auc, Some(0.5));
        let single = of(&Scores { logits: vec![0.3], labels: vec![0.0], weights: Vec::new() }).unwrap();
        assert_eq!((single.auc, single.normalized_entropy, single.calibration), (None, None, None));
        let nothing = Scores { logits: vec![0.3], labels: vec![0.0], weights: vec![0.0] };
        assert_eq!((of(&nothing), of(&Scores::default())), (None, None));
    }

    /// Two samples with the odds 1:1 and two with 3:1 among the rows that were kept, a fifth of the negatives. So the
    /// odds among all rows are 1:5 and 3:5.
    #[test]
    fn negatives_that_were_kept_stand_for_all() {
        let scores = Scores {
            logits: vec![0.0, 0.0, 3.0f32.ln(), 3.0f32.ln()],
            labels: vec![0.0, 1.0, 1.0, 0.0],
            weights: vec![1.0, 2.0, 3.0, 1.0],
        };
        // Five positives, and two negatives that stand for ten.
        let (positives, weights) = (5.0, 15.0);
        let (low, high) = (1.0 / 6.0f64, 3.0 / 8.0f64);
        let losses = -(5.0 * (1.0 - low).ln() + 2.0 * low.ln() + 3.0 * high.ln() + 5.0 * (1.0 - high).ln());
        let predictions = 7.0 * low + 8.0 * high;
        let metrics = scores.metrics(&judged(Some(0.2), Some(0.2))).unwrap();
        // The logit ln 3 is rounded by 2^-24 at most; losses and probabilities change no faster than it.
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
        close(metrics.log_loss, losses / weights);
        close(metrics.calibration.unwrap(), predictions / positives);
        close(metrics.label_rate, 1.0 / 3.0);
        close(
            metrics.normalized_entropy.unwrap(),
            losses / weights / (3.0f64.ln() - 2.0 / 3.0 * 2.0f64.ln()),
        );
        // Its own probabilities are 1/2 and 3/4, and the weights on the rows as they are 3 and 4.
        close(metrics.calibration_uncorrected.unwrap(), (3.0 * 0.5 + 4.0 * 0.75) / 5.0);
        let plain = of(&scores).unwrap();
        assert_eq!((metrics.auc, metrics.samples), (plain.auc, plain.samples));
        assert_eq!(plain.calibration_uncorrected, None);

        // The rows are all there are: only predictions are corrected.
        let whole = scores.metrics(&judged(Some(0.2), None)).unwrap();
        close(whole.calibration.unwrap(), (3.0 * low + 4.0 * high) / 5.0);
        close(whole.label_rate, 5.0 / 7.0);
        // A model of all rows, evaluated on some of the negatives.
        let sampled = scores.metrics(&judged(None, Some(0.2))).unwrap();
        close(sampled.calibration.unwrap(), (7.0 * 0.5 + 8.0 * 0.75) / 5.0);
        assert_eq!(scores.metrics(&judged(Some(0.2), Some(0.2)).uncorrected()), Some(plain));
    }

    /// Keys as `judge.cu` makes them: positive scores with their sign bit set, negative ones inverted.
    #[test]
    fn keys_of_a_gpu_have_the_sums_of_their_samples() {
        let key = |logit: f32, low: u32| {
            let bits = logit.to_bits();
            u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }) << 32 | u64::from(low)
        };
        let judged = judged(Some(0.25), Some(0.5));
        let samples = [(1.5f32, 1.0f32, 2.0f32), (-2.25, 0.0, 0.5), (0.0, 0.0, 3.0), (-7.0, 1.0, 1.0)];
        for weighted in [false, true] {
            let (mut expected, mut found) = (Sums::default(), Sums::default());
            let keys = samples.map(|(logit, label, weight)| {
                expected.add(&judged, logit, label, if weighted { weight } else { 1.0 });
                key(logit, if weighted { (label as u32) << 31 | weight.to_bits() } else { label as u32 })
            });
            // A sample without the label weighs nothing.
            let missing = key(9.0, if weighted { 0 } else { 2 });
            found.add_keys(&judged, &[&keys[..], &[missing]].concat(), weighted);
            assert_eq!(found, Sums { samples: 0, ..expected });
        }
    }
}
