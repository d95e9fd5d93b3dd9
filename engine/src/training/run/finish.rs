//! The end of a run: the model, its last evaluation, and the summary.

use std::cell::Cell;
use std::sync::Arc;

use rankine_backend::CopiedBytes;
use rankine_base::publish::PartialDir;
use rankine_checkpoint::{BestState, StateSource};
use rankine_embedding::Membership;
use rankine_job::DataSource;
use rankine_launch::{ProcessGroup, RunStage};
use rankine_model::ModelSpec;
use rankine_model::evaluation::{EvalMetrics, EvalSummary};
use rankine_reader::{Columns, Part};
use rankine_saved as saved;
use rankine_saved::{ModelMetadata, SavedModelError, Weights};

use super::early_stopping::DecidingMetrics;
use super::evaluation::Subject;
use super::training_loop::TrainingLoop;
use crate::build;
use crate::training::context::{RunContext, SampleSource};
use crate::training::error::TrainError;
use crate::training::eval_sets::NamedDataset;
use crate::training::event::{Event, RefitStage};
use crate::training::power::PowerUse;
use crate::training::processes::with_heartbeat;
use crate::training::run_dir::RunDir;
use crate::training::summary::{
    AverageSummary, BestSummary, DataSummary, DeviceSummary, EndReason, ExchangeSummary, IterationSummary,
    ModelSummary, Summary, TierSummary, TrainSummary,
};

impl TrainingLoop<'_> {
    /// Saves the trained model, evaluates it, and writes the results. Returns the summary.
    ///
    /// # Errors
    /// As [`super::train`]. If the model does not depend on what fails, it is saved.
    pub(super) fn finish(&mut self) -> Result<Summary, TrainError> {
        let diverged = self.backend.diverged_ranks()?;
        if !diverged.is_empty() {
            return Err(TrainError::ReplicasDiffer(diverged));
        }
        self.checkpoints.finish(self.observer)?;
        if self.state.early_stopping.is_some() && self.state.last_eval.is_none() {
            self.judge_step()?;
        }
        let best = self.restore_best()?;
        let step = best.map_or(self.state.step(), |best| best.step);
        let average = self.average_weights(step)?;
        self.save_model(step)?;
        let results = self.evaluate_model(step)?;
        let (processes, step) = (self.context.processes, self.state.step());
        processes.does(RunStage::Saving, step);
        let last = results.eval.as_ref().or(results.validation.as_ref()).map(|eval| eval.metrics.clone());
        let summary = self.summary(results, Selection { best, average })?;
        let written = with_heartbeat(processes, step, || self.write_results(&summary, last.as_ref()));
        self.together("the end of the run", written)?;
        let (saved_step, reason) = (summary.model_steps(), summary.train.stopped);
        self.observer.observe(Event::Finished { step, saved_step, reason });
        Ok(summary)
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
                    "step {step} had the best {}, but there is no intact checkpoint of it: the model is that of step \
                     {}",
                    metric.name(),
                    self.state.step()
                );
                return Ok(None);
            };
            self.restore_model(checkpoint, step)?;
            // It is the evaluation of another model.
            self.state.last_eval = None;
        }
        Ok(Some(BestSummary { step, metric, value, part: self.watched_part(), last_value }))
    }

    /// Restores another model than that of the last step.
    pub(super) fn restore_model(
        &mut self,
        source: Arc<dyn StateSource>,
        step: u64,
    ) -> Result<(), TrainError> {
        self.state.is_complete = false;
        Ok(with_heartbeat(self.context.processes, step, || self.backend.restore(&source))?)
    }

    /// Evaluates the model, which is that of `step`, on the samples that it has not been evaluated on. The evaluation
    /// part comes last, since the scores of the last evaluation are saved.
    fn evaluate_model(&mut self, step: u64) -> Result<Results, TrainError> {
        let mut known = self.state.last_eval.clone();
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

    /// Saves the model of a step. The first process writes the file, which no evaluation begins before: others must
    /// not wait on their devices for as long as that takes.
    fn save_model(&mut self, step: u64) -> Result<(), TrainError> {
        let RunContext { processes, .. } = self.context;
        processes.does(RunStage::Saving, self.state.step());
        let dir = self.run.as_mut().map(RunDir::begin_model);
        let weights = SharedWeights::new(&*self.backend, processes);
        let saved = match dir {
            Some(dir) => with_heartbeat(processes, self.state.step(), || {
                let saved = dir.and_then(|dir| Ok(self.save_into(dir, &weights, step)?));
                weights.take_all().map_err(TrainError::from).and(saved)
            }),
            // The rows of this process go to the first one.
            None => Ok(weights.take_all()?),
        };
        if saved.as_ref().is_err_and(TrainError::is_loss) {
            // The others may still wait for weights.
            return saved;
        }
        self.together("the saved model", saved)?;
        self.state.is_saved = true;
        processes.has_saved_model();
        Ok(())
    }

    /// Saves the model, which was trained for this many steps, into a folder.
    pub(super) fn save_into(
        &self,
        dir: PartialDir,
        weights: &(impl Weights + ?Sized),
        steps: u64,
    ) -> Result<(), SavedModelError> {
        let RunContext { job, dataset, .. } = self.context;
        let (job, columns) = (&job.to_toml(), &Columns::of(dataset));
        let vocabulary = &|name: &str| dataset.checked_file(name);
        saved::save_into(dir, weights, &ModelMetadata { steps, job, columns, vocabulary })
    }

    /// Writes the summary and what belongs to it, if this is the first process. `last` are the metrics of the last
    /// evaluation of the dataset that was trained on.
    fn write_results(&mut self, summary: &Summary, last: Option<&EvalMetrics>) -> Result<(), TrainError> {
        self.logs.end(self.state.total.samples, last)?;
        let Some(run) = &self.run else { return Ok(()) };
        run.finish(summary, self.checkpoints.trained(), self.state.last_scores.as_ref())
    }

    /// The bytes that each process read to train, and that were copied to its GPUs; no copied bytes if the CPU unpacked
    /// batches.
    fn bytes_of_processes(&self) -> Result<(Vec<u64>, Vec<CopiedBytes>), TrainError> {
        let CopiedBytes { from_host, between_gpus } = self.state.bytes_copied;
        let own = [self.state.bytes_read, from_host, between_gpus];
        let all = self.context.processes.gather("the bytes read and copied", bytemuck::bytes_of(&own))?;
        let all = all.iter().map(|bytes| bytemuck::pod_read_unaligned::<[u64; 3]>(bytes));
        let (read, copied): (_, Vec<_>) = all
            .map(|[read, from_host, between_gpus]| (read, CopiedBytes { from_host, between_gpus }))
            .unzip();
        Ok((read, if copied.contains(&CopiedBytes::default()) { Vec::new() } else { copied }))
    }

    fn summary(&self, results: Results, selection: Selection) -> Result<Summary, TrainError> {
        let RunContext { job, dataset, source, topology, threads, processes, .. } = self.context;
        let Results { validation, eval } = results;
        let Selection { best, average } = selection;
        let is_pushed = source == SampleSource::Program;
        let (state, total) = (&self.state, &self.state.total);
        let seconds = total.time.as_secs_f64();
        let (bytes_read, bytes_copied) = self.bytes_of_processes()?;
        let power = PowerUse::of_all(self.power_use, processes)?.summary(state.attempt_samples());
        let (traffic, steps) = (self.backend.traffic()?, total.steps - state.first_step);
        Ok(Summary {
            name: job.name.to_string(),
            seed: job.seed,
            version: build::here().version.clone(),
            build: Some(build::here().clone()),
            data: DataSummary {
                dir: match job.data.source() {
                    DataSource::Folders(folders) => Some(folders.name()),
                    DataSource::Raw(_) => None,
                },
                raw: job.data.raw_files().map(|path| path.display().to_string()).collect(),
                train_samples: if is_pushed { total.samples } else { dataset.samples(Part::Train) },
                validation_samples: validation.as_ref().map(|_| dataset.samples(Part::Validation)),
                eval_samples: dataset.samples(Part::Eval),
                reader: if is_pushed { "pushed".into() } else { self.io.mode.to_string() },
            },
            model: ModelSummary {
                kind: job.model.kind().name.into(),
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
            tier: self
                .tier
                .as_ref()
                .zip(self.backend.tier_traffic()?)
                .map(|(report, traffic)| TierSummary::new(report, traffic)),
            power,
            start: (steps > 0).then(|| state.start.times()),
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
                bytes_read,
                bytes_copied,
            },
            eval,
            validation,
            best,
            average,
            init: state.init.clone(),
            search: match self.context.refit {
                Some(RefitStage::Refit(search)) => Some(Box::new(search.clone())),
                Some(RefitStage::Search) | None => None,
            },
        })
    }
}

/// The weights of several processes, each of which takes part until all weights were visited, even if the visitor of
/// the first one fails.
struct SharedWeights<'a> {
    weights: &'a dyn Weights,
    is_shared: bool,
    /// Whether all were visited.
    taken: Cell<bool>,
}

impl<'a> SharedWeights<'a> {
    fn new(weights: &'a dyn Weights, processes: &ProcessGroup) -> Self {
        let is_shared = processes.size() > 1;
        Self { weights, is_shared, taken: Cell::new(false) }
    }

    /// Takes part in visiting the weights, unless this process did that.
    fn take_all(&self) -> Result<(), SavedModelError> {
        if !self.is_shared || self.taken.get() {
            return Ok(());
        }
        self.try_for_each_run(&mut |_| Ok(()))
    }
}

impl Weights for SharedWeights<'_> {
    fn spec(&self) -> &ModelSpec {
        self.weights.spec()
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        if !self.is_shared {
            return self.weights.try_for_each_run(visit);
        }
        self.taken.set(true);
        let mut visited = Ok(());
        self.weights.try_for_each_run(&mut |run| {
            if visited.is_ok() {
                visited = visit(run);
            }
            Ok(())
        })?;
        visited
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        self.weights.memberships()
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

#[cfg(test)]
mod tests {
    use super::*;
    use rankine_model::Interaction;

    /// Three runs of weights, and how many were taken.
    struct Runs(ModelSpec, Cell<usize>);

    impl Weights for Runs {
        fn spec(&self) -> &ModelSpec {
            &self.0
        }

        fn try_for_each_run(
            &self,
            visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
        ) -> Result<(), SavedModelError> {
            (0..3).try_for_each(|number| {
                self.1.set(self.1.get() + 1);
                visit(&[number as f32])
            })
        }
    }

    /// The other processes send all rows, and then wait for the outcome: the first one must get that far, too.
    #[test]
    fn weights_of_several_processes_are_all_taken_whatever_fails() {
        let spec = ModelSpec {
            dense_columns: 0,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: Vec::new(),
            heads: Vec::new(),
            tables: Vec::new(),
            features: Vec::new(),
            attention: Vec::new(),
        };
        let full = || Err(SavedModelError::Gpu("the disk is full".into()));
        for (is_shared, before, fails, expected) in
            [(true, true, true, 3), (true, true, false, 3), (true, false, false, 3), (false, true, true, 1)]
        {
            let runs = Runs(spec.clone(), Cell::new(0));
            let shared = SharedWeights { weights: &runs, is_shared, taken: Cell::new(false) };
            if before {
                let visited = shared.try_for_each_run(&mut |_| if fails { full() } else { Ok(()) });
                assert_eq!(visited.is_err(), fails);
            }
            shared.take_all().expect("taking part does not fail");
            assert_eq!(runs.1.get(), expected, "{is_shared}, {before}, {fails}");
        }
    }
}
