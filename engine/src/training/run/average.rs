//! The average of weights (`train.average`): evaluated beside the model at the end of a run, and saved if it is better.

use std::sync::Arc;

use rankine_job::{AverageSave, StoppingMetric};

use super::training_loop::TrainingLoop;
use crate::training::averaged_model::AveragedModel;
use crate::training::context::RunContext;
use crate::training::error::TrainError;
use crate::training::summary::AverageSummary;

impl TrainingLoop<'_> {
    /// Averages the model, which is that of `step`, with the snapshots before it, if the job asks for that, and
    /// evaluates both. The better one then is the model.
    pub(super) fn average_weights(&mut self, step: u64) -> Result<Option<AverageSummary>, TrainError> {
        let RunContext { job, model, processes, .. } = self.context;
        let Some(average) = job.train.average else { return Ok(None) };
        if step == self.state.step() {
            self.save_now()?;
        }
        let (mut checkpoints, mut missing) = (Vec::new(), Vec::new());
        for step in [step].into_iter().chain(average.steps_before(step)) {
            match self.checkpoints.open_intact(step, self.observer)? {
                Some(checkpoint) => checkpoints.push(checkpoint),
                None => missing.push(step),
            }
        }
        missing.reverse();
        let own = checkpoints.first().cloned().filter(|own| own.manifest().train.step == step);
        let Some(own) = own.filter(|_| checkpoints.len() > 1) else {
            if processes.is_first() {
                tracing::warn!(
                    "train.average: the model is that of step {step}, since there are no snapshots to average it with \
                     (train.average.every_steps is {})",
                    average.every_steps
                );
            }
            return Ok(None);
        };
        checkpoints.reverse();
        let averaged = AveragedModel::new(average, checkpoints, model);
        let steps = averaged.steps();
        if !missing.is_empty() && processes.is_first() {
            tracing::warn!(
                "train.average: there is no intact snapshot of {}: the average is that of {} models instead of {}",
                steps_in_words(&missing),
                steps.len(),
                steps.len() + missing.len()
            );
        }

        let part = self.watched_part();
        if self.state.last_eval.is_none() {
            self.state.last_eval = self.evaluate(part, step)?;
        }
        let metric = job.train.early_stopping.map_or(StoppingMetric::Auc, |stopping| stopping.metric);
        let model_value = self.deciding_metrics(self.state.last_eval.as_ref())?.value(metric);
        let of_model = (self.state.last_eval.take(), self.state.last_scores.take());
        self.restore_model(Arc::new(averaged), step)?;
        self.state.is_averaged = true;
        self.state.last_eval = self.evaluate(part, step)?;
        let value = self.deciding_metrics(self.state.last_eval.as_ref())?.value(metric);

        let is_better =
            value.is_some_and(|value| model_value.is_none_or(|model| metric.gain(value, model) > 0.0));
        let saved = is_better || average.save == AverageSave::Always;
        if !saved {
            self.restore_model(own, step)?;
            self.state.is_averaged = false;
            (self.state.last_eval, self.state.last_scores) = of_model;
        }
        Ok(Some(AverageSummary {
            kind: average.kind,
            steps,
            missing,
            metric,
            part,
            value,
            model_value,
            saved,
        }))
    }
}

/// `step 8`, or `steps 8, 16`.
fn steps_in_words(steps: &[u64]) -> String {
    let numbers: Vec<_> = steps.iter().map(u64::to_string).collect();
    format!("{} {}", if steps.len() == 1 { "step" } else { "steps" }, numbers.join(", "))
}
