//! The evaluations of a trial and the time of its steps, by its log: its best evaluation, and the time that it needs to
//! reach an AUC.

use std::cmp::Ordering;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rankine_job::{AucTarget, StoppingMetric};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run_paths;
use crate::training::TrainError;

/// The fewest evaluations that a line goes through.
const LINE_MIN: usize = 3;
/// The most steps that an extrapolation reports, as a multiple of the steps of the trial. Far away it says nothing.
const EXTRAPOLATED_MAX: f64 = 16.0;

/// An evaluation on the validation set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps completed.
    pub step: u64,
    /// The metric.
    pub value: f64,
}

/// The training time of a trial until its AUC on the validation set reaches a target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeToTarget {
    /// Milliseconds per step: the median over the intervals between evaluations, without the evaluations.
    pub ms_per_step: f64,
    /// Steps until the target is reached; `None` if it is not.
    pub steps: Option<u64>,
    /// Seconds until the target is reached, which are `steps` times `ms_per_step`; `None` if it is not.
    pub seconds: Option<f64>,
    /// Where the number of steps comes from.
    pub basis: Basis,
}

/// Where a number of steps comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// An evaluation after these steps reached the target.
    Measured,
    /// The trial is expected to go on like the job itself: if it took half the steps of the job to its best AUC, it
    /// takes half of them to the target. If the job itself did not reach the target, a straight line through the AUCs
    /// of its last evaluations over the logarithm of their steps says when it would.
    Extrapolated,
    /// No evaluation reached the target, nor would one within 16 times the steps of the trial.
    NotReached,
}

/// The evaluations of a trial, and the time of its steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Curve {
    evaluations: Vec<Evaluation>,
    /// Milliseconds per step between two evaluations.
    step_ms: Vec<f64>,
}

impl Curve {
    /// Reads the log of a run up to a step.
    pub(super) fn read(run: &Path, metric: StoppingMetric, steps: u64) -> Result<Self, TrainError> {
        let path = run_paths::metrics(run);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            text => {
                let text = text.map_err(|error| TrainError::unreadable(&path, &error))?;
                Ok(Self::of(&text, metric, steps))
            }
        }
    }

    fn of(log: &str, metric: StoppingMetric, steps: u64) -> Self {
        let mut curve = Self::default();
        for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let Some(step) = line["step"].as_u64().filter(|step| *step <= steps) else { continue };
            if line["kind"] == "eval" && line["part"] == "validation" {
                // Without samples of both classes the metric is not defined.
                let value = line[metric.name()].as_f64();
                curve.evaluations.extend(value.map(|value| Evaluation { step, value }));
            } else if line["kind"] == "train" {
                // The last batch of an epoch may be smaller.
                let per_step = line["samples"].as_f64().map(|samples| samples / step as f64);
                let rate = line["samples_per_second"].as_f64().filter(|rate| *rate > 0.0);
                curve.step_ms.extend(per_step.zip(rate).map(|(samples, rate)| samples * 1e3 / rate));
            }
        }
        curve
    }

    /// Returns the best evaluation; the first one of equally good ones.
    pub(super) fn best(&self, metric: StoppingMetric) -> Option<Evaluation> {
        let mut best = None;
        for evaluation in &self.evaluations {
            if best_first(metric, Some(*evaluation), best).is_lt() {
                best = Some(*evaluation);
            }
        }
        best
    }

    /// Returns the first evaluation whose AUC reaches a target.
    pub(super) fn reaching(&self, target: AucTarget) -> Option<Evaluation> {
        self.evaluations.iter().copied().find(|evaluation| evaluation.value >= target.get())
    }

    /// Returns the median time of a step, in milliseconds.
    pub(super) fn ms_per_step(&self) -> Option<f64> {
        let mut sorted = self.step_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }

    /// Returns the time until the AUC reaches a target, extrapolated by the curve of the job itself; `None` if no step
    /// was timed.
    pub(super) fn time_to(&self, target: AucTarget, own: &Self) -> Option<TimeToTarget> {
        let ms_per_step = self.ms_per_step()?;
        let (steps, basis) = match self.reaching(target) {
            Some(reached) => (Some(reached.step), Basis::Measured),
            None => match self.extrapolated(target.get(), own) {
                Some(steps) => (Some(steps), Basis::Extrapolated),
                None => (None, Basis::NotReached),
            },
        };
        let seconds = steps.map(|steps| steps as f64 * ms_per_step / 1e3);
        Some(TimeToTarget { ms_per_step, steps, seconds, basis })
    }

    /// The steps until a target, if the AUC rises from here on as in the job itself.
    fn extrapolated(&self, target: f64, own: &Self) -> Option<u64> {
        let (best, last) = (self.best(StoppingMetric::Auc)?, self.evaluations.last()?.step as f64);
        let steps = (best.step as f64 * own.steps_to(target)? / own.steps_to(best.value)?).ceil();
        // The last evaluation is below the target.
        let steps = steps.max(last + 1.0);
        (steps <= last * EXTRAPOLATED_MAX).then_some(steps as u64)
    }

    /// The steps until the AUC reaches a value: between two evaluations in proportion, and beyond the best one on a
    /// line. Without a step, the AUC is 0.5.
    fn steps_to(&self, auc: f64) -> Option<f64> {
        let mut below = Evaluation { step: 0, value: 0.5 };
        for &evaluation in &self.evaluations {
            if evaluation.value >= auc {
                let share = (auc - below.value) / (evaluation.value - below.value);
                let steps = below.step as f64 + share * (evaluation.step - below.step) as f64;
                return (steps > 0.0).then_some(steps);
            }
            if evaluation.value > below.value {
                below = evaluation;
            }
        }
        self.on_line(auc)
    }

    /// The steps until a line through the last half of the AUCs, over the logarithm of their steps, reaches a value, by
    /// least squares; no fewer steps than the last evaluation has.
    fn on_line(&self, auc: f64) -> Option<f64> {
        let count = (self.evaluations.len() / 2).max(LINE_MIN);
        let last = self.evaluations.last()?.step as f64;
        let points = &self.evaluations[self.evaluations.len().checked_sub(count)?..];
        let mean = |of: &dyn Fn(&Evaluation) -> f64| points.iter().map(of).sum::<f64>() / count as f64;
        let log = |point: &Evaluation| (point.step as f64).ln();
        let (log_mean, auc_mean) = (mean(&log), mean(&|point| point.value));
        let covariance = mean(&|point| (log(point) - log_mean) * (point.value - auc_mean));
        let slope = covariance / mean(&|point| (log(point) - log_mean).powi(2));
        let steps = (log_mean + (auc - auc_mean) / slope).exp();
        (slope > 0.0 && steps.is_finite()).then_some(steps.max(last))
    }
}

/// The order of two evaluations, the better one first; an evaluation comes before none.
pub(super) fn best_first(
    metric: StoppingMetric,
    one: Option<Evaluation>,
    other: Option<Evaluation>,
) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => metric.gain(other.value, one.value).total_cmp(&0.0),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// The order of two times, the shorter one first: measured ones, then extrapolated ones, then none.
pub(super) fn fastest_first(one: Option<&TimeToTarget>, other: Option<&TimeToTarget>) -> Ordering {
    let rank = |time: Option<&TimeToTarget>| time.map_or(Basis::NotReached, |time| time.basis);
    let seconds = |time: Option<&TimeToTarget>| time.and_then(|time| time.seconds).unwrap_or(f64::INFINITY);
    rank(one).cmp(&rank(other)).then_with(|| seconds(one).total_cmp(&seconds(other)))
}

#[cfg(test)]
mod tests {
    use super::StoppingMetric::{Auc, LogLoss};
    use super::*;

    #[test]
    fn the_best_evaluation_counts_and_not_the_last() {
        let line = |part, step, auc: Option<f64>, log_loss| {
            let line = serde_json::json!({
                "kind": "eval", "part": part, "step": step, "auc": auc, "log_loss": log_loss,
            });
            line.to_string()
        };
        let log = [
            r#"{"kind":"train","step":50,"loss":0.1}"#.to_owned(),
            line("validation", 100, Some(0.70), 0.50),
            line("eval", 150, Some(0.99), 0.01),
            line("validation", 200, Some(0.80), 0.40),
            // Without samples of both classes the metric is not defined.
            line("validation", 300, None, 0.45),
            line("validation", 400, Some(0.75), 0.30),
            line("validation", 500, Some(0.80), 0.35),
            "{\"kind\":\"eval\",".to_owned(),
        ]
        .join("\n");
        let best = |metric, steps| {
            let curve = Curve::of(&log, metric, steps);
            curve.best(metric).map(|best| (best.step, best.value))
        };
        assert_eq!(best(Auc, 500), Some((200, 0.80)));
        assert_eq!(best(Auc, 199), Some((100, 0.70)));
        assert_eq!(best(LogLoss, 500), Some((400, 0.30)));
        assert_eq!(best(LogLoss, 300), Some((200, 0.40)));
        assert_eq!(best(Auc, 99), None);
        let curve = Curve::of(&log, Auc, 500);
        let reaching = |auc| curve.reaching(AucTarget::new(auc).unwrap()).map(|at| at.step);
        assert_eq!((reaching(0.70), reaching(0.71), reaching(0.81)), (Some(100), Some(200), None));
    }

    #[test]
    fn the_time_of_a_step_is_the_median_up_to_the_last_step() {
        let line = |step: u64, rate: f64| {
            let line = serde_json::json!({
                "kind": "train", "step": step, "samples": 200 * step, "samples_per_second": rate,
            });
            line.to_string()
        };
        let log =
            [line(10, 10.0), line(20, 1000.0), line(30, 500.0), line(40, 1.0), line(50, 1.0)].join("\n");
        // 200 samples take 20 s, 0.2 s and 0.4 s.
        let curve = Curve::of(&log, Auc, 30);
        assert_eq!(curve.ms_per_step(), Some(400.0));
        assert_eq!(Curve::default().ms_per_step(), None);
    }

    /// A curve with steps of 2 ms.
    fn curve(evaluations: &[(u64, f64)]) -> Curve {
        let evaluations = evaluations.iter().map(|&(step, value)| Evaluation { step, value }).collect();
        Curve { evaluations, step_ms: vec![2.0] }
    }

    fn time_to(curve: &Curve, own: &Curve, target: f64) -> (Option<u64>, Option<f64>, Basis) {
        let time = curve.time_to(AucTarget::new(target).unwrap(), own).unwrap();
        assert_eq!(time.ms_per_step, 2.0);
        (time.steps, time.seconds, time.basis)
    }

    #[test]
    fn the_job_itself_reaches_a_target_by_an_evaluation_or_on_a_line_through_the_last_ones() {
        // 0.02 for each doubling of the steps, after a steep rise.
        let own = curve(&[(1, 0.50), (2, 0.58), (4, 0.60), (8, 0.61), (16, 0.70), (32, 0.72), (64, 0.74)]);
        let reach = |target| time_to(&own, &own, target);
        assert_eq!(reach(0.72), (Some(32), Some(0.064), Basis::Measured));
        // Half of seven evaluations are three: 0.75 follows after 64 times the root of 2.
        assert_eq!(reach(0.75), (Some(91), Some(0.182), Basis::Extrapolated));
        let (steps, _, basis) = reach(0.76);
        assert!(steps.is_some_and(|steps| (128..=129).contains(&steps)), "rounded up: {steps:?}");
        assert_eq!(basis, Basis::Extrapolated);
        // 0.83 would take 64 * 2^4.5 steps, more than 16 times as many.
        assert_eq!(reach(0.83), (None, None, Basis::NotReached));
        assert_eq!(Curve::default().time_to(AucTarget::new(0.7).unwrap(), &own), None);
        for evaluations in [
            &[(1, 0.70), (2, 0.69), (4, 0.68)][..],
            &[(1, 0.70), (2, 0.70), (4, 0.70)],
            &[(1, 0.6), (2, 0.65)],
            &[],
        ] {
            let own = curve(evaluations);
            assert_eq!(time_to(&own, &own, 0.71).2, Basis::NotReached, "{evaluations:?}");
        }
    }

    #[test]
    fn a_trial_is_expected_to_go_on_like_the_job_itself() {
        let own = curve(&[(10, 0.60), (20, 0.58), (40, 0.70), (80, 0.74), (90, 0.73)]);
        // The job takes 25 steps to 0.65, halfway from 10 to 40, and 60 to 0.72: 2.4 times as many.
        for (auc, expected) in [(0.65, 25.0), (0.55, 5.0), (0.72, 60.0)] {
            assert!((own.steps_to(auc).unwrap() - expected).abs() < 1e-9);
        }
        // Steps are rounded up, and products of decimal fractions are a little off.
        let takes = |trial: &[(u64, f64)], target, expected: u64| {
            let (steps, seconds, basis) = time_to(&curve(trial), &own, target);
            assert!(steps.is_some_and(|steps| steps == expected || steps == expected + 1), "{steps:?}");
            assert_eq!((seconds, basis), (steps.map(|steps| steps as f64 * 2.0 / 1e3), Basis::Extrapolated));
        };
        takes(&[(5, 0.62), (10, 0.65), (15, 0.64)], 0.72, 24);
        // It would have reached the target before its last evaluation, which did not.
        assert_eq!(time_to(&curve(&[(10, 0.65), (30, 0.64)]), &own, 0.72).0, Some(31));
        // The job takes 6 steps to 0.56, and 80 to the target.
        takes(&[(9, 0.56)], 0.74, 120);
        assert_eq!(time_to(&curve(&[(7, 0.54)]), &own, 0.74).2, Basis::NotReached);
        assert_eq!(time_to(&curve(&[(7, 0.50)]), &own, 0.74).2, Basis::NotReached, "it learned nothing");
        assert_eq!(time_to(&curve(&[]), &own, 0.74).2, Basis::NotReached);
    }

    #[test]
    fn measured_times_come_before_extrapolated_ones() {
        let time = |seconds, basis| TimeToTarget { ms_per_step: 1.0, steps: None, seconds, basis };
        let ordered = [
            Some(time(Some(3.0), Basis::Measured)),
            Some(time(Some(4.0), Basis::Measured)),
            Some(time(Some(1.0), Basis::Extrapolated)),
            Some(time(Some(2.0), Basis::Extrapolated)),
            Some(time(None, Basis::NotReached)),
        ];
        assert!(ordered.is_sorted_by(|one, other| fastest_first(one.as_ref(), other.as_ref()).is_lt()));
        assert!(fastest_first(None, ordered[4].as_ref()).is_eq());
    }
}
