//! The end of a run: the last evaluation, the model and the summary.

use std::path::PathBuf;

use rankine_reader::publish::PartialDir;
use rankine_reader::{Columns, Part};

use super::super::context::{RunContext, SampleSource};
use super::super::processes::with_heartbeat;
use super::super::run_dir::{
    DataSummary, DeviceSummary, EndReason, ExchangeSummary, IterationSummary, ModelSummary, Summary,
    TrainSummary,
};
use super::super::{Event, TrainError};
use super::training_loop::TrainingLoop;
use crate::evaluation::EvalSummary;
use crate::launch::Phase;
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
        let eval = match self.state.last_eval.take() {
            Some(eval) => Some(eval),
            None => self.evaluate()?,
        };
        self.logs.end(self.state.total.samples, eval.as_ref().map(|eval| &eval.metrics))?;
        self.context.processes.does(Phase::Saving, self.state.step());
        self.save_model()?;
        let summary = self.summary(eval)?;
        if let Some(run) = &self.run {
            run.finish(&summary, self.checkpoints.trained(), self.state.last_scores.as_ref())?;
        }
        self.observer.observe(Event::Finished { step: self.state.step() });
        self.context.processes.wait("the end of the run")?;
        Ok((summary, self.run.map(|run| run.path().to_owned())))
    }

    /// Saves the model, if this is the first process.
    fn save_model(&mut self) -> Result<(), TrainError> {
        let RunContext { processes, .. } = self.context;
        let Some(run) = &mut self.run else {
            // The rows of this process go to the first one.
            return Ok(saved::Weights::try_for_each_run(&*self.backend, &mut |_| Ok(()))?);
        };
        let dir = run.begin_model()?;
        // With several processes, each one reports its own progress.
        if processes.size() == 1 {
            with_heartbeat(processes, self.state.step(), || self.save_into(dir))?
        } else {
            self.save_into(dir)?
        };
        Ok(())
    }

    /// Saves the model into a folder.
    pub(super) fn save_into(&self, dir: PartialDir) -> Result<(), SavedModelError> {
        let RunContext { job, dataset, .. } = self.context;
        let (steps, job, columns) = (self.state.step(), &job.to_toml(), &Columns::of(dataset));
        let vocabulary = &|name: &str| dataset.checked_file(name);
        saved::save_into(dir, &*self.backend, &ModelMetadata { steps, job, columns, vocabulary })
    }

    fn summary(&self, eval: Option<EvalSummary>) -> Result<Summary, TrainError> {
        let RunContext { job, dataset, source, topology, threads, .. } = self.context;
        let is_pushed = source == SampleSource::Program;
        let (state, total) = (&self.state, &self.state.total);
        let seconds = total.time.as_secs_f64();
        let raw_files = job.data.raw.iter().flat_map(|raw| raw.train.iter().chain(&raw.eval));
        let traffic = self.backend.traffic().map(|traffic| (traffic, total.steps - state.first_step));
        Ok(Summary {
            name: job.name.to_string(),
            seed: job.seed,
            version: env!("CARGO_PKG_VERSION").into(),
            data: DataSummary {
                dir: job.data.folder().map(|dir| dir.display().to_string()),
                raw: raw_files.map(|path| path.display().to_string()).collect(),
                train_samples: if is_pushed { total.samples } else { dataset.samples(Part::Train) },
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
                precision: self.backend.is_on_gpu().then(|| job.device.precision.name().into()),
                threads,
                ranks: topology.ranks(),
                nodes: topology.nodes(),
            },
            exchange: traffic
                .filter(|&(_, steps)| topology.ranks() > 1 && steps > 0)
                .map(|(traffic, steps)| ExchangeSummary::new(traffic, steps)),
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
        })
    }
}
