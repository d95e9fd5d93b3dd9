//! The evaluations of a run. Samples are scored between two steps; with `eval.beside_training`, the metrics are
//! computed beside the steps that follow, and taken at a step that is known beforehand: no result depends on the time.

use std::time::Instant;

use rankine_backend::Scored;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::ReachedTarget;
use rankine_launch::{ProcessGroup, RunStage};
use rankine_model::evaluation::{EvalMetrics, EvalSummary, HeadMetrics, JudgedHead, SavedScores};
use rankine_reader::{Dataset, Part};

use super::beside::{Evaluating, EvaluationBeside, taken_after};
use super::early_stopping::{DecidingMetrics, EarlyStopping};
use super::records::EvalRecord;
use super::training_loop::TrainingLoop;
use crate::training::context::{RunContext, SampleSource};
use crate::training::error::TrainError;
use crate::training::evaluate::{EvaluationOptions, ScoredPart, finite, score};
use crate::training::event::{Event, Observer};
use crate::training::identity::samples_checksum;
use crate::training::summary::EndReason;

/// What a model is evaluated on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) part: Part,
    /// The name of the `[[eval.set]]`; `None` for the dataset that is trained on.
    pub(super) set: Option<&'a str>,
}

impl TrainingLoop<'_> {
    /// Whether an evaluation is due after a step.
    pub(super) fn evaluates_at(&self, step: u64) -> bool {
        self.context.job.eval.is_due(step, self.epoch_steps())
    }

    fn epoch_steps(&self) -> u64 {
        let RunContext { job, dataset, .. } = self.context;
        dataset.samples(Part::Train).div_ceil(job.train.batch_size.get().into())
    }

    /// Whether metrics are computed beside the steps. Early stopping needs them before the next step changes the
    /// weights, which may be the best ones. A program that pushes samples decides about each step itself.
    fn evaluates_beside(&self) -> bool {
        let RunContext { job, source, .. } = self.context;
        job.eval.beside_training && job.train.early_stopping.is_none() && source == SampleSource::Dataset
    }

    /// The samples that evaluations during the training score: the validation set if there is one, otherwise the
    /// evaluation part.
    pub(super) fn watched_part(&self) -> Part {
        let has_validation = self.context.dataset.samples(Part::Validation) > 0;
        if has_validation { Part::Validation } else { Part::Eval }
    }

    /// Does what is due after a step: takes metrics, ends the training, evaluates the model.
    pub(super) fn evaluate_step(&mut self) -> Result<(), TrainError> {
        self.state.last_eval = None;
        self.state.last_scores = None;
        let step = self.state.step();
        let is_due = self.evaluates_at(step);
        if self.beside.as_ref().is_some_and(|beside| is_due || beside.taken_at <= step) {
            self.take_metrics()?;
        }
        if self.state.reached.is_some_and(|reached| reached.ends_at <= step) {
            self.end_at_target()
        } else if is_due {
            self.evaluate_now_or_beside()
        } else {
            Ok(())
        }
    }

    fn evaluate_now_or_beside(&mut self) -> Result<(), TrainError> {
        let (step, part) = (self.state.step(), self.watched_part());
        let RunContext { job, dataset, .. } = self.context;
        if !self.evaluates_beside() || dataset.samples(part) == 0 {
            let metrics = self.judge_step()?;
            self.check_deciding(metrics, self.state.last_eval.as_ref())?;
            return self.end_after(metrics);
        }
        let (evaluating, scores) = self.score(Subject { dataset, part, set: None }, step)?;
        let interval = job.eval.interval_steps(self.epoch_steps()).unwrap_or(1);
        let taken_at = taken_after(step, interval);
        self.beside = Some(EvaluationBeside { evaluating, metrics: scores.beside()?, taken_at });
        Ok(())
    }

    /// Waits for the metrics that are computed beside the steps, if there are any. All processes call this after the
    /// same step.
    pub(super) fn take_metrics(&mut self) -> Result<(), TrainError> {
        let Some(EvaluationBeside { evaluating, metrics, taken_at }) = self.beside.take() else {
            return Ok(());
        };
        let RunContext { dataset, processes, .. } = self.context;
        let step = evaluating.step;
        let subject = Subject { dataset, part: self.watched_part(), set: None };
        processes.does(RunStage::Evaluating, step);
        let began = Instant::now();
        let heads = finite(metrics.wait()?, dataset)?;
        let waited = began.elapsed().as_secs_f64();
        let evaluating = Evaluating { seconds: evaluating.seconds + waited, ..evaluating };
        let summary = self.record(subject, evaluating, &heads)?;
        let metrics = self.deciding_metrics(Some(&summary))?;
        self.check_deciding(metrics, Some(&summary))?;
        self.state.reached = self.reached(metrics.auc, taken_at);
        if step == self.state.step() {
            self.state.last_eval = Some(summary);
            self.state.last_scores = SavedScores::of(&heads);
        }
        Ok(())
    }

    /// Evaluates the model after a step, and compares the result with the best one.
    pub(super) fn judge_step(&mut self) -> Result<DecidingMetrics, TrainError> {
        let (step, part) = (self.state.step(), self.watched_part());
        self.state.last_eval = self.evaluate(part, step)?;
        let metrics = self.deciding_metrics(self.state.last_eval.as_ref())?;
        if let Some(stopping) = &mut self.state.early_stopping {
            stopping.judge(step, metrics);
            if let Some(progress) = stopping.progress(step, part) {
                if let Some(run) = &mut self.run {
                    run.append("early_stopping", &progress)?;
                }
                self.observer.observe(Event::Judged(progress));
            }
        }
        Ok(metrics)
    }

    /// The metrics of an evaluation, which only the first process has.
    pub(super) fn deciding_metrics(&self, eval: Option<&EvalSummary>) -> Result<DecidingMetrics, TrainError> {
        let own = eval.map(|eval| DecidingMetrics::from(&eval.metrics));
        let bytes = own.unwrap_or_default().to_bytes();
        let bytes = self.context.processes.of_first("the result of the evaluation", &bytes)?;
        Ok(DecidingMetrics::from_bytes(&bytes))
    }

    /// Whether an evaluation reaches the target; training then ends after the step `ends_at`.
    fn reached(&self, auc: Option<f64>, ends_at: u64) -> Option<ReachedTarget> {
        let (target, auc) = self.context.job.eval.target_auc.zip(auc)?;
        (auc >= target.get()).then_some(ReachedTarget { auc, ends_at })
    }

    /// Does what is due at the start: the evaluation at the checkpoint's step may have failed, or may have reached the
    /// target.
    pub(super) fn evaluate_start(&mut self) -> Result<(), TrainError> {
        let step = self.state.step();
        let metrics = match step > 0 && self.state.last_eval.is_none() && self.evaluates_at(step) {
            true => self.judge_step()?,
            false => self.deciding_metrics(self.state.last_eval.as_ref())?,
        };
        if !self.evaluates_beside() {
            return self.end_after(metrics);
        }
        // The job of the run may have had another target before it was resumed.
        let before = self.state.reached.and_then(|before| self.reached(Some(before.auc), before.ends_at));
        let interval = self.context.job.eval.interval_steps(self.epoch_steps()).unwrap_or(1);
        self.state.reached = before.or_else(|| self.reached(metrics.auc, taken_after(step, interval)));
        Ok(())
    }

    /// Takes the metrics that are still computed when the steps are done. If they, or earlier ones, reached the target,
    /// that is why the training ended.
    pub(super) fn evaluate_end(&mut self) -> Result<(), TrainError> {
        self.take_metrics()?;
        let is_reached = self.state.reached.is_some() && self.state.end != Some(EndReason::TargetAuc);
        if is_reached { self.end_at_target() } else { Ok(()) }
    }

    /// Ends training because an evaluation has reached the target, and evaluates the model that results.
    fn end_at_target(&mut self) -> Result<(), TrainError> {
        if self.state.last_eval.is_none() {
            self.judge_step()?;
        }
        self.state.end = Some(EndReason::TargetAuc);
        let last = self.state.last_eval.as_ref().map(|eval| &eval.metrics);
        self.logs.end(self.state.total.samples, last)
    }

    /// Ends training if the evaluation after the last step reached the job's target, or if there was no better one for
    /// long enough.
    fn end_after(&mut self, metrics: DecidingMetrics) -> Result<(), TrainError> {
        if self.reached(metrics.auc, self.state.step()).is_some() {
            return self.end_at_target();
        }
        if self.state.early_stopping.as_ref().is_some_and(EarlyStopping::is_exhausted) {
            self.state.end = Some(EndReason::EarlyStopping);
        }
        Ok(())
    }

    /// Evaluates the model of a step on a part of the dataset, if there is such a part, and keeps the scores.
    pub(super) fn evaluate(&mut self, part: Part, step: u64) -> Result<Option<EvalSummary>, TrainError> {
        let dataset = self.context.dataset;
        if dataset.samples(part) == 0 {
            return Ok(None);
        }
        let (summary, heads) = self.evaluate_on(Subject { dataset, part, set: None }, step)?;
        self.state.last_scores = SavedScores::of(&heads);
        Ok(Some(summary))
    }

    /// Evaluates the model of a step.
    pub(super) fn evaluate_on(
        &mut self,
        subject: Subject<'_>,
        step: u64,
    ) -> Result<(EvalSummary, Vec<HeadMetrics>), TrainError> {
        self.take_metrics()?;
        let (evaluating, scores) = self.score(subject, step)?;
        let began = Instant::now();
        let heads = finite(scores.metrics()?, subject.dataset)?;
        let seconds = evaluating.seconds + began.elapsed().as_secs_f64();
        let summary = self.record(subject, Evaluating { seconds, ..evaluating }, &heads)?;
        Ok((summary, heads))
    }

    /// Scores the samples with the model of a step.
    fn score(&mut self, subject: Subject<'_>, step: u64) -> Result<(Evaluating, Scored), TrainError> {
        let Subject { dataset, part, set } = subject;
        let RunContext { job, processes, .. } = self.context;
        self.logs.evaluation_begins(set, self.state.total.samples)?;
        let began = Instant::now();
        // The first batch may take long.
        processes.does(RunStage::Evaluating, step);
        let options = EvaluationOptions { batch_size: self.backend.scored_at_a_time(job), io: self.io };
        let mut watched = WatchedEvaluation { step, processes, observer: &mut *self.observer };
        let trained_on = self.context.dataset.schema();
        let judged = JudgedHead::of_heads(&self.backend.spec().heads, trained_on, dataset.schema());
        let scored = score(&mut *self.backend, &judged, dataset, part, &options, None, &mut watched)?;
        let ScoredPart { scores, ids_out_of_range } = scored;
        let seconds = began.elapsed().as_secs_f64();
        let samples = self.samples_of(subject)?;
        let averaged = self.state.is_averaged;
        Ok((Evaluating { step, averaged, samples, ids_out_of_range, seconds }, scores))
    }

    /// The checksum of the samples that are evaluated; only of the first process.
    fn samples_of(
        &mut self,
        Subject { dataset, part, set }: Subject<'_>,
    ) -> Result<Option<Checksum>, TrainError> {
        let RunContext { job, processes, .. } = self.context;
        let subject = (set.map(ToOwned::to_owned), part);
        Ok(match self.evaluated.get(&subject) {
            None if processes.is_first() => {
                // Reading the index of a part takes time.
                let checksum = samples_checksum(job, dataset, part)?;
                self.evaluated.insert(subject, checksum);
                Some(checksum)
            }
            known => known.copied(),
        })
    }

    /// Records the result of an evaluation, and tells the observer.
    fn record(
        &mut self,
        Subject { dataset, part, set }: Subject<'_>,
        evaluating: Evaluating,
        heads: &[HeadMetrics],
    ) -> Result<EvalSummary, TrainError> {
        let Evaluating { step, averaged, samples, ids_out_of_range, seconds } = evaluating;
        let metrics = EvalMetrics::from(heads);
        if let Some(run) = &mut self.run {
            let (metrics, ids_out_of_range) = (&metrics, &ids_out_of_range);
            run.append(
                "eval",
                &EvalRecord { step, part, set, samples, averaged, seconds, metrics, ids_out_of_range },
            )?;
        }
        self.logs.evaluation_ends(part, set, step, &metrics)?;
        self.observer.observe(Event::Evaluated { step, part, set, samples, averaged, seconds, heads });
        let mut summary = EvalSummary::new(metrics, seconds);
        summary.batch_size = Some(self.backend.scored_at_a_time(self.context.job) as u64);
        summary.auc_achievable = dataset.auc_achievable().filter(|_| part == Part::Eval);
        summary.ids_out_of_range = ids_out_of_range;
        Ok(summary)
    }
}

/// An evaluation that reports to the other processes that it makes progress.
struct WatchedEvaluation<'a> {
    step: u64,
    processes: &'a ProcessGroup,
    observer: &'a mut dyn Observer,
}

impl Observer for WatchedEvaluation<'_> {
    fn observe(&mut self, event: Event<'_>) {
        self.processes.does(RunStage::Evaluating, self.step);
        self.observer.observe(event);
    }
}
