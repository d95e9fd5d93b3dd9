//! The meaning of a logit: a probability, and a loss if the label is known.
//!
//! A model that was trained on downsampled negatives overestimates probabilities: [`Correction`] is the one place that
//! knows by how much.

use rankine_reader::Schema;

use crate::HeadSpec;

/// `ln(1 + e^z) - label z`, without overflow for any z.
pub fn bce(logit: f64, label: f64) -> f64 {
    logit.max(0.0) - logit * label + (-logit.abs()).exp().ln_1p()
}

/// `1 / (1 + e^-z)`, without overflow for any z.
pub fn sigmoid(logit: f64) -> f64 {
    let e = (-logit.abs()).exp();
    if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// What a head's logits are corrected by, if its model was trained on a share r of the negatives.
///
/// Among the rows that were kept, the odds of a sample are p / (r (1 - p)), where p is its probability among all rows.
/// The model learns their logarithm, so the logit among all rows is the model's logit + ln r.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Correction(f64);

impl Correction {
    /// Leaves logits as they are.
    pub const NONE: Self = Self(0.0);

    /// Returns the correction of a model that was trained on this share of the negatives, above 0 and at most 1.
    pub fn of_share(kept: f64) -> Self {
        Self(kept.ln())
    }

    /// Returns the correction of each head of a model that was trained on these columns.
    pub fn of_heads(heads: &[HeadSpec], trained_on: &Schema) -> Vec<Self> {
        let of_head = |head: &HeadSpec| match trained_on.labels.get(head.label_number) {
            Some(label) => Self::of_share(label.share_kept()),
            None => Self::NONE,
        };
        heads.iter().map(of_head).collect()
    }

    /// Returns what is added to logits: 0 or less.
    pub fn offset(self) -> f64 {
        self.0
    }

    /// Returns the logit among all rows.
    pub fn logit(self, logit: f32) -> f64 {
        f64::from(logit) + self.0
    }

    /// Returns the probability among all rows. It is computed in double precision, so that different logits stay
    /// different.
    pub fn probability(self, logit: f32) -> f64 {
        sigmoid(self.logit(logit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 of 4 samples with this logit are positive. Of 100 negatives for 3 positives, 1 was kept.
    #[test]
    fn corrections_are_by_the_share_of_negatives() {
        let correction = Correction::of_share(0.01);
        let expected = 3.0 / 103.0;
        // The logit ln 3 is rounded by 2^-24 at most, and a probability changes less than its logit.
        assert!((correction.probability(3.0f32.ln()) - expected).abs() < 1e-7);
        assert_eq!(correction.offset(), 0.01f64.ln());
        for logit in [-3.25f32, -0.0, 0.0, 17.5] {
            assert_eq!(Correction::of_share(1.0).probability(logit), sigmoid(f64::from(logit)));
        }
        assert_eq!(Correction::of_share(1.0), Correction::NONE);
    }

    #[test]
    fn extreme_logits_stay_finite() {
        assert_eq!(bce(1000.0, 1.0), 0.0);
        assert_eq!(bce(-1000.0, 1.0), 1000.0);
        assert_eq!(bce(0.0, 0.0), std::f64::consts::LN_2);
        assert_eq!((sigmoid(-1000.0), sigmoid(1000.0), sigmoid(0.0)), (0.0, 1.0, 0.5));
    }
}
