//! The end of a run: the last evaluation, the model and the summary.

use std::path::PathBuf;
use std::sync::Arc;

use rankine_reader::publish::PartialDir;
use rankine_reader::{Columns, Part};

use super::super::context::{RunContext, SampleSource};
use super::super::eval_sets::NamedDataset;
use super::super::processes::with_heartbeat;
use super::super::run_dir::{
    AverageSummary, BestSummary, DataSummary, DeviceSummary, EndReason, ExchangeSummary, IterationSummary,
    ModelSummary, Summary, TrainSummary,
};
use super::super::{Event, TrainError};
use super::early_stopping::DecidingMetrics;
use super::training_loop::{Subject, TrainingLoop};
use crate::checkpoint::{BestState, StateSource};
use crate::evaluation::EvalSummary;
use crate::launch::RunStage;
use crate::saved::{self, ModelMetadata, SavedModelError};

impl TrainingLoop<'_> {
    /// Evaluates and saves the trained model. Returns the summary, and the path of the run folder if this is the first
    /// process.
    ///
    /// # Errors
    /// As [`super::train`].
    pub(super) fn finish(mut self) -> Result<(Summary, Option<PathBuf>), TrainError> {
        let diverged = self.backend.diverged_ranks()?;
        if !diverged.is_empty() {
            return Err(TrainError::ReplicasDiffer(diverged));
        }
        self.checkpoints.finish(self.observer)?;
        if self.state.last_eval.is_none() {
            self.judge_step()?;
        }
        let best = self.restore_best()?;
        let step = best.map_or(self.state.step(), |best| best.step);
        let average = self.average_weights(step)?;
        let results = self.evaluate_model(step)?;
        let last = results.eval.as_ref().or(results.validation.as_ref());
        self.logs.end(self.state.total.samples, last.map(|eval| &eval.metrics))?;
        self.context.processes.does(RunStage::Saving, self.state.step());
        self.save_model(step)?;
        let summary = self.summary(results, Selection { best, average })?;
        if let Some(run) = &self.run {
            run.finish(&summary, self.checkpoints.trained(), self.state.last_scores.as_ref())?;
        }
        self.observer.observe(Event::Finished { step: self.state.step() });
        self.context.processes.wait("the end of the run")?;
        Ok((summary, self.run.map(|run| run.path().to_owned())))
    }

    /// Restores the best model, if early stopping keeps it and it is not that of the last step.
    fn restore_best(&mut self) -> Result<Option<BestSummary>, TrainError> {
        let Some((stopping, best)) = self.state.early_stopping.as_ref().zip(self.state.best()) else {
            return Ok(None);
        };
        let BestState { step, metric, value, .. } = best;
        let last = self.state.last_eval.as_ref().map(|eval| DecidingMetrics::from(&eval.metrics));
        let last_value = last.and_then(|last| stopping.value(last));
        if step != self.state.step() {
            let Some(checkpoint) = self.checkpoints.open_intact(step, self.observer)? else {
                tracing::warn!(
                    "step {step} had the best {}, but there is no intact checkpoint of it: the model is that of step {}",
                    metric.name(),
                    self.state.step()
                );
                return Ok(None);
            };
            let checkpoint: Arc<dyn StateSource> = checkpoint;
            with_heartbeat(self.context.processes, step, || self.backend.restore(&checkpoint))?;
            // It is the evaluation of another model.
            self.state.last_eval = None;
        }
        Ok(Some(BestSummary { step, metric, value, part: self.watched_part(), last_value }))
    }

    /// Evaluates the model, which is that of `step`, on the samples that it has not been evaluated on. The evaluation
    /// part comes last, since the scores of the last evaluation are saved.
    fn evaluate_model(&mut self, step: u64) -> Result<Results, TrainError> {
        let mut known = self.state.last_eval.take();
        let mut on = |part| match known.take_if(|_| part == self.watched_part()) {
            Some(eval) => Ok(Some(eval)),
            None => self.evaluate(part, step),
        };
        let (validation, mut eval) = (on(Part::Validation)?, on(Part::Eval)?);
        for NamedDataset { name, dataset, part } in self.context.eval_sets {
            let (summary, _) = self.evaluate_on(Subject { dataset, part: *part, set: Some(name) }, step)?;
            eval.get_or_insert_default().sets.insert(name.clone(), summary);
        }
        Ok(Results { validation, eval })
    }

    /// Saves the model of a step, if this is the first process.
    fn save_model(&mut self, step: u64) -> Result<(), TrainError> {
        let RunContext { processes, .. } = self.context;
        let Some(run) = &mut self.run else {
            // The rows of this process go to the first one.
            return Ok(saved::Weights::try_for_each_run(&*self.backend, &mut |_| Ok(()))?);
        };
        let dir = run.begin_model()?;
        // With several processes, each one reports its own progress.
        if processes.size() == 1 {
            with_heartbeat(processes, self.state.step(), || self.save_into(dir, step))?
        } else {
            self.save_into(dir, step)?
        };
        Ok(())
    }

    /// Saves the model, which was trained for this many steps, into a folder.
    pub(super) fn save_into(&self, dir: PartialDir, steps: u64) -> Result<(), SavedModelError> {
        let RunContext { job, dataset, .. } = self.context;
        let (job, columns) = (&job.to_toml(), &Columns::of(dataset));
        let vocabulary = &|name: &str| dataset.checked_file(name);
        saved::save_into(dir, &*self.backend, &ModelMetadata { steps, job, columns, vocabulary })
    }

    fn summary(&self, results: Results, selection: Selection) -> Result<Summary, TrainError> {
        let RunContext { job, dataset, source, topology, threads, .. } = self.context;
        let Results { validation, eval } = results;
        let Selection { best, average } = selection;
        let is_pushed = source == SampleSource::Program;
        let (state, total) = (&self.state, &self.state.total);
        let seconds = total.time.as_secs_f64();
        let raw_files = job.data.raw.iter().flat_map(|raw| raw.train.iter().chain(&raw.eval));
        let (traffic, steps) = (self.backend.traffic()?, total.steps - state.first_step);
        Ok(Summary {
            name: job.name.to_string(),
            seed: job.seed,
            version: env!("CARGO_PKG_VERSION").into(),
            data: DataSummary {
                dir: job.data.folder().map(|dir| dir.display().to_string()),
                raw: raw_files.map(|path| path.display().to_string()).collect(),
                train_samples: if is_pushed { total.samples } else { dataset.samples(Part::Train) },
                validation_samples: validation.as_ref().map(|_| dataset.samples(Part::Validation)),
                eval_samples: dataset.samples(Part::Eval),
                reader: if is_pushed { "pushed".into() } else { self.io.mode.to_string() },
            },
            model: ModelSummary {
                kind: job.model.kind().into(),
                dense_parameters: self.backend.spec().dense_parameters() as u64,
                embedding_parameters: self.backend.spec().embedding_parameters(),
            },
            device: DeviceSummary {
                kind: self.backend.kind().name().into(),
                precision: self.backend.precision(job).map(|precision| precision.name().into()),
                threads,
                ranks: topology.ranks(),
                nodes: topology.nodes(),
            },
            exchange: (topology.ranks() > 1 && steps > 0).then(|| ExchangeSummary::new(traffic, steps)),
            iteration: state.last_details.as_ref().map(IterationSummary::from),
            train: TrainSummary {
                stopped: state.end.unwrap_or(match source {
                    SampleSource::Dataset => EndReason::Epochs,
                    SampleSource::Program => EndReason::Program,
                }),
                steps: total.steps,
                samples: total.samples,
                loss: state.last_loss,
                seconds,
                samples_per_second: total.samples_per_second(),
                ms_per_iteration: seconds * 1e3 / total.steps as f64,
                overflow_steps: self.backend.overflow_steps()?,
                non_finite_steps: state.losses.guard().non_finite_steps,
                ids_out_of_range: state.ids_out_of_range.clone(),
                reader_wait_share: total.times.reading.as_secs_f64() / seconds,
            },
            eval,
            validation,
            best,
            average,
            init: state.init.clone(),
            search: self.search.clone(),
        })
    }
}

/// How the saved model was chosen.
struct Selection {
    best: Option<BestSummary>,
    average: Option<AverageSummary>,
}

/// The evaluations of the saved model.
struct Results {
    validation: Option<EvalSummary>,
    eval: Option<EvalSummary>,
}
