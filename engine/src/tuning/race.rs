//! A search for the least training time to an AUC.
//!
//! The job itself is trained first, by itself. Its best AUC is the target, unless one is given, and its time to the
//! target is the time to beat. Then trials are trained one after another, so that none slows another one down. A round
//! lasts for a share of the time of the fastest trial so far: for a ninth, a third, all of it. A trial ends when an
//! evaluation reaches the target. The others are compared by extrapolation from the curve of the job itself: the
//! beginning of a trial's own curve is steep, and says little about its end.

use rankine_job::{AucTarget, StoppingMetric};

use super::curve::{Basis, Curve, TimeToTarget};
use super::trial::{Timing, Trial};
use super::{Search, TrialResult, TuneError};

/// What a search looks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// The best metric on the validation set.
    Quality,
    /// The least training time until the AUC on the validation set reaches a target.
    Time {
        /// The target; by default `eval.target_auc` of the job, and otherwise the best AUC of the job itself.
        target_auc: Option<AucTarget>,
    },
}

impl Objective {
    pub(super) fn is_time(self) -> bool {
        self != Self::Quality
    }
}

/// A trial is faster than the job itself if it takes less than this share of its time. Repeated measurements of a step
/// differ by some percent.
const FASTER: f64 = 0.95;

/// What trials compete with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Race {
    pub(super) target: AucTarget,
    /// The evaluations of the job itself.
    own: Curve,
    /// The training time of the job itself until the target, or until its end.
    seconds: f64,
    /// Its steps in that time.
    steps: u64,
    /// All of its steps.
    steps_max: u64,
}

impl Race {
    /// The time of a trial until the target.
    pub(super) fn time_of(&self, trial: &Curve) -> Option<TimeToTarget> {
        trial.time_to(self.target, &self.own)
    }

    /// The same share of the steps of another trial as the job itself took.
    pub(super) fn share_of(&self, steps_max: u64) -> u64 {
        let steps = u128::from(steps_max) * u128::from(self.steps) / u128::from(self.steps_max.max(1));
        u64::try_from(steps).unwrap_or(u64::MAX).max(1)
    }

    /// The steps of a trial until a round ends, which lasts for a share of `1 / divisor` of the time of the fastest
    /// trial. The first round of a trial, whose steps were not timed, trains on a share of the samples.
    pub(super) fn steps_of_round(&self, trial: &mut Trial, divisor: u64, results: &[TrialResult]) -> u64 {
        let own = &results[trial.number as usize];
        let fastest = results.iter().filter_map(|result| result.time.filter(is_measured)?.seconds);
        let seconds = fastest.fold(self.seconds, f64::min);
        if let Some(time) = own.time {
            trial.set_steps_max(((seconds * 1e3 / time.ms_per_step) as u64).max(own.steps).max(1));
        }
        trial.steps_max.div_ceil(divisor).max(own.steps)
    }

    /// What the job of the fastest trial says about it; `after N steps` follows.
    pub(super) fn found(&self, time: &TimeToTarget, validation: &str) -> String {
        let target = self.target.get();
        let verb = match time.basis {
            Basis::Measured => "reached",
            Basis::Extrapolated => "reaches, by extrapolation,",
            Basis::NotReached => "did not reach",
        };
        let seconds = time.seconds.map(|seconds| format!(" in {seconds:.3} s")).unwrap_or_default();
        format!("Its AUC on the validation set (\"{validation}\") {verb} {target:.5}{seconds}")
    }
}

/// Returns the job itself, unless a trial is faster; `None` then, and if it does not reach the target. The first trial
/// is the fastest one.
pub(super) fn own_unless_slower(trials: &[TrialResult]) -> Option<&TrialResult> {
    let seconds = |trial: &TrialResult| trial.time.filter(is_measured)?.seconds;
    let own = trials.iter().find(|trial| trial.trial == 0)?;
    (seconds(trials.first()?)? > FASTER * seconds(own)?).then_some(own)
}

fn is_measured(time: &TimeToTarget) -> bool {
    time.basis == Basis::Measured
}

impl Search<'_> {
    /// Trains the job itself, which sets the target, if there is none, and the time to beat.
    pub(super) fn begin_race(
        &mut self,
        target: Option<AucTarget>,
        results: &mut Vec<TrialResult>,
    ) -> Result<(), TuneError> {
        let mut trial = self.trial(0, &Vec::new())?;
        trial.timing = trial.timing.map(|timing| Timing { target, ..timing });
        results.push(TrialResult::begun(0, Vec::new()));
        let standing = self.round(std::slice::from_ref(&trial), &[trial.steps_max], results)?.pop().flatten();
        trial.remove_weights()?;
        let standing = standing.ok_or(TuneError::NoResult(StoppingMetric::Auc))?;
        let best = standing.curve.best(StoppingMetric::Auc);
        let target = target.or_else(|| AucTarget::new(best?.value)).ok_or(TuneError::NoTarget)?;
        let ms_per_step = standing.curve.ms_per_step().ok_or(TuneError::NoResult(StoppingMetric::Auc))?;
        let steps = standing.curve.reaching(target).map_or(standing.steps, |reached| reached.step);
        let seconds = steps as f64 * ms_per_step / 1e3;
        let race = Race { target, own: standing.curve.clone(), seconds, steps, steps_max: trial.steps_max };
        let result = &mut results[0];
        *result = result.clone().after(&standing, StoppingMetric::Auc, Some(&race));
        (self.observe)(result);
        self.race = Some(race);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rankine_job::Job;

    use super::*;

    /// A trial with steps of 10 ms.
    fn result(trial: u64, seconds: f64, basis: Basis) -> TrialResult {
        let time = TimeToTarget { ms_per_step: 10.0, steps: Some(1), seconds: Some(seconds), basis };
        TrialResult { steps: 7, time: Some(time), ..TrialResult::begun(trial, Vec::new()) }
    }

    #[test]
    fn a_trial_that_is_hardly_faster_does_not_replace_the_job_itself() {
        let own = result(0, 10.0, Basis::Measured);
        let chosen = |best: TrialResult| own_unless_slower(&[best, own.clone()]).map(|chosen| chosen.trial);
        assert_eq!(chosen(result(3, 9.6, Basis::Measured)), Some(0));
        assert_eq!(chosen(result(3, 9.4, Basis::Measured)), None);
        assert_eq!(own_unless_slower(std::slice::from_ref(&own)), Some(&own));
        // The job itself does not reach the target.
        let late = [result(3, 9.6, Basis::Measured), result(0, 10.0, Basis::Extrapolated)];
        assert_eq!(own_unless_slower(&late), None);
    }

    #[test]
    fn rounds_are_shares_of_the_time_of_the_fastest_trial() {
        let job = "name = 'a'\ndata.dir = 'b'\nmodel = { kind = 'wide-deep', embedding_dim = 4, top_mlp = [4] }\n\
                   optimizer.dense = { kind = 'sgd', learning_rate = 1 }\n\
                   optimizer.sparse = { kind = 'sgd', learning_rate = 1 }\ntrain = { batch_size = 10 }\n";
        let job = Job::from_toml("job.toml", job, &[] as &[&str]).unwrap_or_else(|error| panic!("{error}"));
        let target = AucTarget::new(0.7).expect("an AUC");
        let race = Race { target, own: Curve::default(), seconds: 9.0, steps: 300, steps_max: 900 };
        assert_eq!((race.share_of(450), race.share_of(1), race.share_of(u64::MAX)), (150, 1, u64::MAX / 3));
        let trial = |number| {
            let path = "trials".into();
            Trial { number, job: job.clone(), path, steps_max: 150, validation_samples: 0, timing: None }
        };
        // Nothing was timed: a ninth of the samples.
        let begun = [TrialResult::begun(0, Vec::new()), TrialResult::begun(1, Vec::new())];
        assert_eq!(race.steps_of_round(&mut trial(1), 9, &begun), 17);
        // A step takes 10 ms: 900 steps in 9 s, the time of the job itself, which no extrapolation shortens.
        let slow = [result(0, 9.0, Basis::Measured), result(1, 1.0, Basis::Extrapolated)];
        let mut second = trial(1);
        assert_eq!((race.steps_of_round(&mut second, 3, &slow), second.steps_max), (300, 900));
        // Another trial took 6 s.
        let fast = [slow[0].clone(), slow[1].clone(), result(2, 6.0, Basis::Measured)];
        assert_eq!(race.steps_of_round(&mut second, 1, &fast), 600);
        // It never goes back.
        let far = [slow[0].clone(), TrialResult { steps: 777, ..slow[1].clone() }, fast[2].clone()];
        assert_eq!((race.steps_of_round(&mut second, 1, &far), second.steps_max), (777, 777));
    }
}
