//! The meaning of a logit: a probability, and a loss if the label is known.

/// `ln(1 + e^z) - label z`, without overflow for any z.
pub fn bce(logit: f64, label: f64) -> f64 {
    logit.max(0.0) - logit * label + (-logit.abs()).exp().ln_1p()
}

/// `1 / (1 + e^-z)`, without overflow for any z.
pub fn sigmoid(logit: f64) -> f64 {
    let e = (-logit.abs()).exp();
    if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
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
