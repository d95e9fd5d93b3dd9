//! The metrics that decide about the end of a training: whether the samples that are evaluated define them.

use rankine_job::{Conflict, StoppingMetric};
use rankine_model::evaluation::EvalSummary;
use rankine_reader::Part;

use super::early_stopping::DecidingMetrics;
use super::training_loop::TrainingLoop;
use crate::training::context::RunContext;
use crate::training::error::TrainError;

impl TrainingLoop<'_> {
    /// Checks that an evaluation defines the metrics that decide about the end of the training.
    /// All processes call this.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] with the setting whose metric is undefined; [`TrainError::Processes`].
    pub(super) fn check_deciding(
        &self,
        metrics: DecidingMetrics,
        eval: Option<&EvalSummary>,
    ) -> Result<(), TrainError> {
        let Some((key, metric)) = self.undefined_metric(metrics) else { return Ok(()) };
        Err(TrainError::Conflicts(vec![Conflict::new(key, self.why_undefined(metric, eval)?)]))
    }

    /// The setting that makes a metric decide which this evaluation does not define, and neither does a later one: it
    /// depends on the labels, not on the model.
    fn undefined_metric(&self, metrics: DecidingMetrics) -> Option<(&'static str, StoppingMetric)> {
        let RunContext { job, dataset, .. } = self.context;
        let stopping =
            job.train.early_stopping.map(|stopping| ("train.early_stopping.metric", stopping.metric));
        let target = job.eval.target_auc.map(|_| ("eval.target_auc", StoppingMetric::Auc));
        let mut deciding = [stopping, target].into_iter().flatten();
        let is_evaluated = dataset.samples(self.watched_part()) > 0;
        deciding.find(|&(_, metric)| is_evaluated && !metrics.defines(metric))
    }

    /// Why an evaluation does not define a metric, and the way out. Only the first process has
    /// the evaluation; all processes call this.
    fn why_undefined(
        &self,
        metric: StoppingMetric,
        eval: Option<&EvalSummary>,
    ) -> Result<String, TrainError> {
        let RunContext { processes, .. } = self.context;
        let label = self.backend.spec().heads.first().map_or("", |head| head.label.as_str());
        let (part, other) = match self.watched_part() {
            Part::Validation => ("validation set", "hold other samples out with train.validation"),
            _ => ("evaluation part", "hold samples out with train.validation"),
        };
        let metrics = eval.and_then(|eval| eval.metrics.first);
        let lacks = match metrics.map(|metrics| metrics.label_rate) {
            None => format!("has no sample with the label `{label}` that weighs more than 0"),
            Some(rate) => format!("has no sample with `{label}` = {}", u8::from(rate < 0.5)),
        };
        let log_loss = match metric {
            StoppingMetric::Auc => ", or compare with train.early_stopping.metric = \"log_loss\"",
            StoppingMetric::LogLoss => "",
        };
        let name = metric.name();
        let own =
            format!("the {part} {lacks}, so its {name} is undefined and cannot decide: {other}{log_loss}");
        let words = processes.of_first("why a metric is undefined", own.as_bytes())?;
        Ok(String::from_utf8_lossy(&words).into_owned())
    }
}
