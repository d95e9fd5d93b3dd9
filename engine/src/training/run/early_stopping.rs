//! Early stopping: which evaluation was the best, and when training ends without a better one.

use rankine_checkpoint::{BestState, TrainState};
use rankine_job::{EarlyStopping as Settings, StoppingMetric};
use rankine_launch::ProcessGroup;
use rankine_model::evaluation::EvalMetrics;
use rankine_reader::Part;

use crate::training::checkpoints::Checkpoints;
use crate::training::error::TrainError;
use crate::training::event::{Observer, StoppingProgress};

/// The best evaluation of a run so far.
#[derive(Debug, Clone)]
pub(super) struct EarlyStopping {
    settings: Settings,
    best: Option<BestState>,
}

/// The metrics of the first head that decide about the end of a training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DecidingMetrics {
    pub(super) auc: Option<f64>,
    pub(super) log_loss: Option<f64>,
}

impl EarlyStopping {
    /// Continues from a checkpoint's best evaluation. One by another metric says nothing about this one.
    pub(super) fn resumed(settings: Settings, best: Option<BestState>) -> Self {
        let (own, other) = best.map_or((None, None), |best| match best.metric == settings.metric {
            true => (Some(best), None),
            false => (None, Some(best)),
        });
        if let Some(BestState { metric, .. }) = other {
            tracing::warn!(
                "train.early_stopping.metric is \"{}\" but was \"{}\": evaluations before this step are not compared",
                settings.metric.name(),
                metric.name()
            );
        }
        Self { settings, best: own }
    }

    /// The best evaluation so far.
    pub(super) fn best(&self) -> Option<BestState> {
        self.best
    }

    /// The value of the metric that decides.
    pub(super) fn value(&self, metrics: DecidingMetrics) -> Option<f64> {
        metrics.value(self.settings.metric)
    }

    /// Takes the evaluation after a step.
    pub(super) fn judge(&mut self, step: u64, metrics: DecidingMetrics) {
        let Settings { metric, min_delta, .. } = self.settings;
        let value = self.value(metrics);
        match (&mut self.best, value) {
            (Some(best), value)
                if value.is_none_or(|value| metric.gain(value, best.value) <= min_delta.get()) =>
            {
                best.evaluations_since += 1;
            }
            (_, Some(value)) => self.best = Some(BestState { step, metric, value, evaluations_since: 0 }),
            (_, None) => {}
        }
    }

    /// How the evaluation of a part after a step, which was judged, compares with the best one, if there is one.
    pub(super) fn progress(&self, step: u64, part: Part) -> Option<StoppingProgress> {
        let patience = self.settings.patience.get();
        self.best.map(|BestState { step: best_step, metric, value: best_value, evaluations_since }| {
            StoppingProgress { step, part, metric, best_step, best_value, evaluations_since, patience }
        })
    }

    /// Whether training ends: the last evaluations were not better than one before.
    pub(super) fn is_exhausted(&self) -> bool {
        self.best.is_some_and(|best| best.evaluations_since >= self.settings.patience.get())
    }
}

impl DecidingMetrics {
    /// The value of a metric, if it is defined.
    pub(super) fn value(self, metric: StoppingMetric) -> Option<f64> {
        let value = match metric {
            StoppingMetric::Auc => self.auc,
            StoppingMetric::LogLoss => self.log_loss,
        };
        value.filter(|value| value.is_finite())
    }

    /// Whether the evaluation defines a metric. Without samples of both classes, it defines no AUC.
    pub(super) fn defines(self, metric: StoppingMetric) -> bool {
        match metric {
            StoppingMetric::Auc => self.auc.is_some(),
            StoppingMetric::LogLoss => self.log_loss.is_some(),
        }
    }

    /// As the first process sends them to the others. A metric is never NaN.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let bytes = |value: Option<f64>| value.unwrap_or(f64::NAN).to_le_bytes();
        [bytes(self.auc), bytes(self.log_loss)].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let values = bytes.chunks(8).map(|value| value.try_into().map_or(f64::NAN, f64::from_le_bytes));
        let mut values = values.map(|value| Some(value).filter(|value| !value.is_nan()));
        let mut next = || values.next().flatten();
        Self { auc: next(), log_loss: next() }
    }
}

impl From<&EvalMetrics> for DecidingMetrics {
    fn from(metrics: &EvalMetrics) -> Self {
        let first = metrics.first.as_ref();
        Self { auc: first.and_then(|first| first.auc), log_loss: first.map(|first| first.log_loss) }
    }
}

/// Removes the best evaluation from the state that training resumes with, and warns, if the checkpoint of its model is
/// missing or damaged. Returns whether it was removed. A best evaluation by another metric is left: early stopping
/// ignores it.
pub(super) fn forget_lost_best(
    from: &mut TrainState,
    stopping: Option<Settings>,
    checkpoints: &Checkpoints,
    (processes, observer): (&ProcessGroup, &mut dyn Observer),
) -> Result<bool, TrainError> {
    let Some(best) = from.best.filter(|best| {
        best.step != from.step && stopping.is_some_and(|stopping| stopping.metric == best.metric)
    }) else {
        return Ok(false);
    };
    if checkpoints.open_intact(best.step, observer)?.is_some() {
        return Ok(false);
    }
    from.best = None;
    if processes.is_first() {
        let BestState { step, metric, .. } = best;
        tracing::warn!(
            "step {step} had the best {}, but there is no intact checkpoint of it, so its model is lost: evaluations \
             before step {now} are not compared, and the model of the run is the best one from there on",
            metric.name(),
            now = from.step
        );
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_job::{Count, NonNegative};

    fn stopping(metric: StoppingMetric, patience: u64, min_delta: f64) -> EarlyStopping {
        let (patience, min_delta) = (Count::new(patience).unwrap(), NonNegative::new(min_delta).unwrap());
        EarlyStopping::resumed(Settings { metric, patience, min_delta, refit: false }, None)
    }

    /// Judges evaluations of steps 10, 20 and so on until training ends. Returns the best step, its value, and the
    /// number of evaluations.
    fn judge(mut stopping: EarlyStopping, values: &[f64]) -> (Option<(u64, f64)>, usize) {
        for (number, &value) in values.iter().enumerate() {
            let value = Some(value).filter(|value| !value.is_nan());
            stopping.judge(10 * (number as u64 + 1), DecidingMetrics { auc: value, log_loss: value });
            if stopping.is_exhausted() {
                return (stopping.best().map(|best| (best.step, best.value)), number + 1);
            }
        }
        (stopping.best().map(|best| (best.step, best.value)), values.len())
    }

    #[test]
    fn training_ends_after_evaluations_without_a_better_one() {
        use StoppingMetric::{Auc, LogLoss};
        assert_eq!(judge(stopping(Auc, 2, 0.0), &[0.5, 0.7, 0.6, 0.8, 0.8, 0.7, 0.9]), (Some((40, 0.8)), 6));
        assert_eq!(judge(stopping(Auc, 1, 0.0), &[0.5, 0.5, 0.9]), (Some((10, 0.5)), 2));
        assert_eq!(judge(stopping(Auc, 3, 0.0), &[0.5, 0.6, 0.7]), (Some((30, 0.7)), 3));
        assert_eq!(judge(stopping(LogLoss, 2, 0.0), &[0.5, 0.4, 0.45, 0.41, 0.1]), (Some((20, 0.4)), 4));
    }

    #[test]
    fn a_gain_must_exceed_the_least_one() {
        let auc = stopping(StoppingMetric::Auc, 2, 0.25);
        assert_eq!(judge(auc, &[0.25, 0.5, 0.5625, 0.5, 0.5]), (Some((30, 0.5625)), 5));
        let log_loss = stopping(StoppingMetric::LogLoss, 2, 0.25);
        assert_eq!(judge(log_loss, &[0.75, 0.5, 0.375, 0.25, 0.125]), (Some((30, 0.375)), 5));
    }

    #[test]
    fn an_undefined_metric_is_never_the_best() {
        let auc = || stopping(StoppingMetric::Auc, 2, 0.0);
        assert_eq!(judge(auc(), &[f64::NAN; 5]), (None, 5));
        assert_eq!(judge(auc(), &[f64::NAN, 0.5, f64::NAN, f64::NAN, 0.9]), (Some((20, 0.5)), 4));
    }

    #[test]
    fn metrics_arrive_as_they_were_sent() {
        for (auc, log_loss) in [(None, None), (None, Some(0.1)), (Some(2.0 / 3.0), Some(f64::INFINITY))] {
            let metrics = DecidingMetrics { auc, log_loss };
            assert_eq!(DecidingMetrics::from_bytes(&metrics.to_bytes()), metrics);
        }
        assert_eq!(DecidingMetrics::from_bytes(&[]), DecidingMetrics::default());
    }

    #[test]
    fn another_metric_starts_anew() {
        let mut auc = stopping(StoppingMetric::Auc, 2, 0.0);
        auc.judge(10, DecidingMetrics { auc: Some(0.7), log_loss: Some(0.4) });
        let same = EarlyStopping::resumed(auc.settings, auc.best());
        assert_eq!(same.best(), auc.best());
        let other = Settings { metric: StoppingMetric::LogLoss, ..auc.settings };
        assert_eq!(EarlyStopping::resumed(other, auc.best()).best(), None);
    }
}
