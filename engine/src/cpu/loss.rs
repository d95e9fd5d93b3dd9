//! Binary cross-entropy on logits.

/// `ln(1 + e^z) - label z`, without overflow for any z.
pub(crate) fn bce(logit: f64, label: f64) -> f64 {
    logit.max(0.0) - logit * label + (-logit.abs()).exp().ln_1p()
}

/// `1 / (1 + e^-z)`, without overflow for any z.
pub(crate) fn sigmoid(logit: f64) -> f64 {
    let e = (-logit.abs()).exp();
    if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// Gradients by the logits of the weighted mean loss, and the tile's share in the weighted sum. `weights` is empty
/// where every sample weighs 1; `total_weight` is that of the global batch.
pub(super) fn loss_and_gradients(
    logits: &[f32],
    labels: &[f32],
    weights: &[f32],
    total_weight: f64,
    gradients: &mut [f32],
) -> f64 {
    let mut sum = 0.0;
    for (sample, gradient) in gradients.iter_mut().enumerate() {
        let (logit, label) = (f64::from(logits[sample]), f64::from(labels[sample]));
        let weight = weights.get(sample).map_or(1.0, |&weight| f64::from(weight));
        sum += weight * bce(logit, label);
        *gradient = ((sigmoid(logit) - label) * weight / total_weight) as f32;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_logits_stay_finite() {
        assert_eq!(bce(1000.0, 1.0), 0.0);
        assert_eq!(bce(-1000.0, 1.0), 1000.0);
        assert_eq!(bce(0.0, 0.0), std::f64::consts::LN_2);
        assert_eq!((sigmoid(-1000.0), sigmoid(1000.0), sigmoid(0.0)), (0.0, 1.0, 0.5));
    }
}
