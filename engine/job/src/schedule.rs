//! `[optimizer.schedule]`: the learning rate as a function of the step.

use std::f64::consts::PI;

use serde::Deserialize;

use super::values::{Count, Fraction, Positive};

/// `[optimizer.schedule]`: the factor of all learning rates, chosen by `kind`. The first step is step 1.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// 1 at every step.
    #[default]
    Constant,
    /// A linear warm-up to 1, a plateau, and a polynomial decay: the schedule of MLPerf.
    ///
    /// The factor at step `s` is:
    /// ```text
    /// s / warmup_steps                                              for s <= warmup_steps
    /// 1                                                             for s <= decay_start_step
    /// max(((decay_start_step + decay_steps - s) / decay_steps) ^ power, end_factor)
    ///                                                               for s <= decay_start_step + decay_steps
    /// end_factor                                                    afterwards
    /// ```
    WarmupPolynomial(WarmupPolynomial),
    /// A linear warm-up to 1, then drops by a factor, at regular intervals or at milestones.
    ///
    /// The factor at step `s` is:
    /// ```text
    /// min(s / warmup_steps, 1) * factor ^ drops
    /// ```
    /// where `drops` is the number of complete intervals of `every_steps`, or of milestones, before step `s`.
    Step(Step),
    /// A linear warm-up to 1, a plateau, and a cosine decay.
    ///
    /// The factor at step `s` is:
    /// ```text
    /// s / warmup_steps                                              for s <= warmup_steps
    /// 1                                                             for s <= decay_start_step
    /// end_factor + (1 - end_factor) * (1 + cos(pi * (s - decay_start_step) / decay_steps)) / 2
    ///                                                               for s <= decay_start_step + decay_steps
    /// end_factor                                                    afterwards
    /// ```
    Cosine(Cosine),
}

/// The settings of `kind = "warmup-polynomial"`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WarmupPolynomial {
    /// Steps of the warm-up; the last of them has the full rate. With 0 the first step has the full rate.
    pub warmup_steps: u64,
    /// The last step with the full rate, not before the end of the warm-up.
    pub decay_start_step: u64,
    /// Number of steps of the decay.
    pub decay_steps: Count,
    /// Exponent of the decay.
    #[serde(default = "default_power")]
    pub power: Positive,
    /// Lower bound of the factor during and after the decay.
    #[serde(default = "default_end_factor")]
    pub end_factor: Fraction,
}

fn default_power() -> Positive {
    Positive::new(2.0).expect("a constant in range")
}

fn default_end_factor() -> Fraction {
    Fraction::new(0.0).expect("a constant in range")
}

/// The settings of `kind = "step"`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Factor of each drop.
    pub factor: Fraction,
    /// Steps between two drops, counted from the first step of the training. Set either this or `milestones`.
    pub every_steps: Option<Count>,
    /// The last step before each drop, in ascending order.
    #[serde(default)]
    pub milestones: Vec<Count>,
    /// Steps of the warm-up; the last of them has the full rate. With 0 the first step has the full rate.
    #[serde(default)]
    pub warmup_steps: u64,
}

/// The settings of `kind = "cosine"`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cosine {
    /// Steps of the warm-up; the last of them has the full rate. With 0 the first step has the full rate.
    #[serde(default)]
    pub warmup_steps: u64,
    /// The last step with the full rate, not before the end of the warm-up. Without it, the end of the warm-up.
    pub decay_start_step: Option<u64>,
    /// Number of steps of the decay.
    pub decay_steps: Count,
    /// Factor at the end of the decay and afterwards.
    #[serde(default = "default_end_factor")]
    pub end_factor: Fraction,
}

impl Schedule {
    /// Returns the name in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::WarmupPolynomial(_) => "warmup-polynomial",
            Self::Step(_) => "step",
            Self::Cosine(_) => "cosine",
        }
    }

    /// Returns the factor of all learning rates at a step; the first step is 1.
    pub fn factor(&self, step: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::WarmupPolynomial(schedule) => schedule.factor(step),
            Self::Step(schedule) => schedule.factor(step),
            Self::Cosine(schedule) => schedule.factor(step),
        }
    }
}

impl Schedule {
    /// Returns the schedule of a training that is longer or shorter, by the ratio of two numbers of steps or samples.
    #[doc(hidden)]
    pub fn scaled(&self, to: u64, from: u64) -> Self {
        let (to, from) = (u128::from(to), u128::from(from.max(1)));
        let steps =
            |steps: u64| u64::try_from((u128::from(steps) * to + from / 2) / from).unwrap_or(u64::MAX);
        let count = |count: Count| Count::nearest(steps(count.get()));
        match self.clone() {
            Self::Constant => Self::Constant,
            Self::WarmupPolynomial(own) => Self::WarmupPolynomial(WarmupPolynomial {
                warmup_steps: steps(own.warmup_steps),
                decay_start_step: steps(own.decay_start_step),
                decay_steps: count(own.decay_steps),
                ..own
            }),
            Self::Step(own) => {
                let mut milestones: Vec<_> = own.milestones.iter().copied().map(count).collect();
                milestones.dedup();
                let (every_steps, warmup_steps) = (own.every_steps.map(count), steps(own.warmup_steps));
                Self::Step(Step { every_steps, milestones, warmup_steps, ..own })
            }
            Self::Cosine(own) => Self::Cosine(Cosine {
                warmup_steps: steps(own.warmup_steps),
                decay_start_step: own.decay_start_step.map(steps),
                decay_steps: count(own.decay_steps),
                ..own
            }),
        }
    }
}

/// The linear warm-up: 1 from its last step on.
fn rise(step: u64, warmup_steps: u64) -> f64 {
    if step < warmup_steps { step as f64 / warmup_steps as f64 } else { 1.0 }
}

impl WarmupPolynomial {
    fn factor(&self, step: u64) -> f64 {
        if step <= self.decay_start_step {
            return rise(step, self.warmup_steps);
        }
        // Steps are subtracted as integers: beyond 2^53 a difference of floats would lose the last ones.
        let decay_steps = self.decay_steps.get();
        let left = decay_steps.saturating_sub(step - self.decay_start_step);
        let factor = (left as f64 / decay_steps as f64).powf(self.power.get());
        factor.max(self.end_factor.get())
    }
}

impl Step {
    fn factor(&self, step: u64) -> f64 {
        let before = step.saturating_sub(1);
        let drops = match self.every_steps {
            Some(every) => before / every.get(),
            None => self.milestones.iter().filter(|milestone| milestone.get() <= before).count() as u64,
        };
        // With this many drops every factor but 1 has become 0.
        rise(step, self.warmup_steps) * self.factor.get().powi(drops.min(i32::MAX as u64) as i32)
    }
}

impl Cosine {
    /// The last step with the full rate.
    #[doc(hidden)]
    pub fn decay_start_step(&self) -> u64 {
        self.decay_start_step.unwrap_or(self.warmup_steps)
    }

    fn factor(&self, step: u64) -> f64 {
        let start = self.decay_start_step();
        if step <= start {
            return rise(step, self.warmup_steps);
        }
        let (done, end) = ((step - start).min(self.decay_steps.get()), self.end_factor.get());
        let wave = (PI * (done as f64 / self.decay_steps.get() as f64)).cos();
        end + (1.0 - end) * (0.5 * (1.0 + wave))
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
            // Either value differs from the formula by at most four roundings.
            assert!((actual - rate).abs() <= 4.0 * f64::EPSILON * rate, "step {step}: {actual}, not {rate}");
        }
    }

    #[test]
    fn a_scaled_schedule_has_the_same_rates_at_the_same_shares() {
        let cosine = Cosine {
            warmup_steps: 100,
            decay_start_step: Some(200),
            decay_steps: Count::new(800).unwrap(),
            end_factor: default_end_factor(),
        };
        let schedules = [
            Schedule::Constant,
            Schedule::WarmupPolynomial(mlperf()),
            Schedule::Cosine(cosine.clone()),
            step(100, Some(300), &[]),
            step(100, None, &[300, 600, 700]),
        ];
        for schedule in schedules {
            let (longer, same) = (schedule.scaled(10, 9), schedule.scaled(7, 7));
            assert_eq!(same, schedule);
            let tripled = schedule.scaled(3, 1);
            for step in [1, 99, 100, 250, 301, 601, 999, 50_000, 70_000] {
                // The middle of three steps; a step of the rise, or of the decay, changes the factor this much.
                let (own, other) = (schedule.factor(step), tripled.factor(3 * step - 1));
                assert!((own - other).abs() <= 0.01, "{schedule:?} at {step}: {own}, {other}");
            }
            assert_eq!(longer.scaled(9, 10), schedule);
        }
        let Schedule::Step(short) = step(100, None, &[300, 301, 700]).scaled(1, 100) else { panic!() };
        assert_eq!(short.milestones.iter().map(|step| step.get()).collect::<Vec<_>>(), [3, 7]);
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
    fn the_decay_has_the_power_asked_for() {
        // A quarter of the decay is left at its third quarter, and (1/4)^power of the rate.
        for (power, expected) in [(0.5, 0.5), (1.0, 0.25), (2.0, 0.0625), (3.0, 0.015_625)] {
            let power = Positive::new(power).unwrap();
            let schedule = WarmupPolynomial { decay_steps: Count::new(400).unwrap(), power, ..mlperf() };
            assert_eq!(schedule.factor(49315 + 300), expected, "{power:?}");
        }
    }

    #[test]
    fn without_warmup_the_first_step_has_the_full_rate() {
        let schedule = WarmupPolynomial { warmup_steps: 0, ..mlperf() };
        assert_eq!(schedule.factor(1), 1.0);
        assert_eq!(Schedule::Constant.factor(1), 1.0);
    }

    fn step(warmup_steps: u64, every_steps: Option<u64>, milestones: &[u64]) -> Schedule {
        step_by(0.5, warmup_steps, every_steps, milestones)
    }

    fn step_by(factor: f64, warmup_steps: u64, every_steps: Option<u64>, milestones: &[u64]) -> Schedule {
        Schedule::Step(Step {
            factor: Fraction::new(factor).unwrap(),
            every_steps: every_steps.and_then(Count::new),
            milestones: milestones.iter().map(|&step| Count::new(step).unwrap()).collect(),
            warmup_steps,
        })
    }

    #[test]
    fn rates_drop_behind_every_so_many_steps() {
        let schedule = step(4, Some(10), &[]);
        let expected = [
            (1, 0.25),
            (2, 0.5),
            (3, 0.75),
            (4, 1.0),
            (10, 1.0),
            (11, 0.5),
            (20, 0.5),
            (21, 0.25),
            (31, 0.125),
            (u64::MAX, 0.0),
        ];
        for (at, factor) in expected {
            assert_eq!(schedule.factor(at), factor, "step {at}");
        }
        // The warm-up continues while rates drop: 15/20 of one half.
        assert_eq!(step(20, Some(10), &[]).factor(15), 0.375);
        assert_eq!(step_by(0.25, 0, Some(10), &[]).factor(21), 0.0625);
        // No drop is the same as any number of drops by 1, and one by 0 leaves nothing.
        assert_eq!(step_by(1.0, 0, Some(1), &[]).factor(u64::MAX), 1.0);
        assert_eq!(
            (step_by(0.0, 0, Some(10), &[]).factor(10), step_by(0.0, 0, Some(10), &[]).factor(11)),
            (1.0, 0.0)
        );
    }

    #[test]
    fn rates_drop_behind_milestones() {
        let schedule = step(0, None, &[3, 4, 100]);
        let expected =
            [(1, 1.0), (3, 1.0), (4, 0.5), (5, 0.25), (100, 0.25), (101, 0.125), (1_000_000, 0.125)];
        for (at, factor) in expected {
            assert_eq!(schedule.factor(at), factor, "step {at}");
        }
    }

    #[test]
    fn the_cosine_goes_through_its_quarters() {
        let schedule = |decay_start_step, end_factor| {
            Schedule::Cosine(Cosine {
                warmup_steps: 10,
                decay_start_step,
                decay_steps: Count::new(120).unwrap(),
                end_factor: Fraction::new(end_factor).unwrap(),
            })
        };
        // With cos of 60, 90, 120 and 180 degrees: 1/2, 0, -1/2 and -1.
        let expected = [
            (5, 0.5),
            (10, 1.0),
            (30, 1.0),
            (30 + 40, 0.75),
            (30 + 60, 0.5),
            (30 + 80, 0.25),
            (30 + 120, 0.0),
            (u64::MAX, 0.0),
        ];
        for (at, factor) in expected {
            let actual = schedule(Some(30), 0.0).factor(at);
            // The cosine of a rounded pi is off by as much as pi was rounded.
            assert!((actual - factor).abs() <= 2.0 * f64::EPSILON, "step {at}: {actual}, not {factor}");
        }
        // Without a plateau the decay starts after the warm-up; it ends at a fifth of the rate.
        assert_eq!(schedule(None, 0.2).factor(10), 1.0);
        assert!((schedule(None, 0.2).factor(70) - 0.6).abs() <= 2.0 * f64::EPSILON);
        assert_eq!(schedule(None, 0.2).factor(1000), 0.2);
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
