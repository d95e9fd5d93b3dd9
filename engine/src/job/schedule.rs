//! The learning rate as a function of the step.

use serde::Deserialize;

use super::values::{Count, Fraction, Positive};

/// `[optimizer.schedule]`: what learning rates are multiplied with, chosen by `kind`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// `kind = "constant"`: 1 at every step.
    #[default]
    Constant,
    /// `kind = "warmup-polynomial"`
    WarmupPolynomial(WarmupPolynomial),
}

/// A linear rise to 1, a plateau, and a polynomial decay: MLPerf's schedule.
///
/// At step `s`, the first being 1:
/// ```text
/// s / warmup_steps                                              for s <= warmup_steps
/// 1                                                             for s <= decay_start_step
/// max(((decay_start_step + decay_steps - s) / decay_steps) ^ power, end_factor)
///                                                               for s <= decay_start_step + decay_steps
/// end_factor                                                    behind it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupPolynomial {
    /// Steps of the rise: the last of them has the full rate. 0 starts with the full rate.
    pub warmup_steps: u64,
    /// The last step with the full rate; not before the end of the rise.
    pub decay_start_step: u64,
    /// Steps of the decay.
    pub decay_steps: Count,
    /// The exponent of the decay. Default 2.
    #[serde(default = "default_power")]
    pub power: Positive,
    /// The least factor once the decay has begun. Default 0.
    #[serde(default = "default_end_factor")]
    pub end_factor: Fraction,
}

fn default_power() -> Positive {
    Positive::new(2.0).expect("a constant in range")
}

fn default_end_factor() -> Fraction {
    Fraction::new(0.0).expect("a constant in range")
}

impl Schedule {
    /// The factor of both learning rates at a step; the first step is 1.
    pub fn factor(&self, step: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::WarmupPolynomial(schedule) => schedule.factor(step),
        }
    }
}

impl WarmupPolynomial {
    fn factor(&self, step: u64) -> f64 {
        let decay_steps = self.decay_steps.get();
        if step < self.warmup_steps {
            step as f64 / self.warmup_steps as f64
        } else if step <= self.decay_start_step {
            1.0
        } else {
            // Steps are subtracted as integers: beyond 2^53 a difference of floats would lose the last ones.
            let left = decay_steps.saturating_sub(step - self.decay_start_step);
            let factor = (left as f64 / decay_steps as f64).powf(self.power.get());
            factor.max(self.end_factor.get())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mlperf() -> WarmupPolynomial {
        WarmupPolynomial {
            warmup_steps: 2750,
            decay_start_step: 49315,
            decay_steps: Count::new(27772).unwrap(),
            power: default_power(),
            end_factor: default_end_factor(),
        }
    }

    #[test]
    fn mlperf_dlrm_has_the_rates_of_the_reference() {
        let schedule = Schedule::WarmupPolynomial(mlperf());
        // (step, learning rate at 24), by hand: 24 s / 2750, then 24 ((77087 - s) / 27772)^2.
        let expected = [
            (1, 24.0 / 2750.0),
            (1375, 12.0),
            (2749, 24.0 * 2749.0 / 2750.0),
            (2750, 24.0),
            (2751, 24.0),
            (49315, 24.0),
            (49316, 23.998_271_671_618_17),
            (63201, 6.0),
            (77086, 24.0 / (27772.0 * 27772.0)),
            (77087, 0.0),
            (77088, 0.0),
            (u64::MAX, 0.0),
        ];
        for (step, rate) in expected {
            let actual = 24.0 * schedule.factor(step);
            // Four roundings lie between the formula and either value.
            assert!((actual - rate).abs() <= 4.0 * f64::EPSILON * rate, "step {step}: {actual}, not {rate}");
        }
    }

    #[test]
    fn decay_stops_at_the_end_factor() {
        let schedule = WarmupPolynomial { end_factor: Fraction::new(0.25).unwrap(), ..mlperf() };
        // Half of the decay: (1/2)^2 is the end factor itself.
        assert_eq!(schedule.factor(49315 + 13886), 0.25);
        assert_eq!(schedule.factor(49315 + 20000), 0.25);
        assert_eq!(schedule.factor(1_000_000), 0.25);
    }

    #[test]
    fn without_warmup_the_first_step_has_the_full_rate() {
        let schedule = WarmupPolynomial { warmup_steps: 0, ..mlperf() };
        assert_eq!(schedule.factor(1), 1.0);
        assert_eq!(Schedule::Constant.factor(1), 1.0);
    }

    proptest! {
        #[test]
        fn factors_rise_then_fall_and_stay_within_one(
            warmup_steps in 0u64..1000, plateau in 0u64..1000, decay_steps in 1u64..1000, power in 0.5..4.0,
        ) {
            let schedule = WarmupPolynomial {
                warmup_steps,
                decay_start_step: warmup_steps + plateau,
                decay_steps: Count::new(decay_steps).unwrap(),
                power: Positive::new(power).unwrap(),
                end_factor: default_end_factor(),
            };
            for step in 1..3100 {
                let (now, next) = (schedule.factor(step), schedule.factor(step + 1));
                prop_assert!((0.0..=1.0).contains(&now));
                let as_it_should = if step < warmup_steps { now < next } else { now >= next };
                prop_assert!(as_it_should, "step {}: {} then {}", step, now, next);
            }
        }
    }
}
