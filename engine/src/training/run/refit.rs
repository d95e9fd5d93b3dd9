//! Refitting (`train.early_stopping.refit`): two trainings in one run folder. The first holds a validation set out and
//! finds the number of steps of the best model; the second trains a new model on all samples.
//!
//! Each is a training as any other. The first one's run folder is in that of the second, whose model is the result.

use std::path::{Path, PathBuf};

use rankine_base::Stop;
use rankine_job::{Average, AverageSave, Count, Job};
use rankine_launch::ProcessGroup;
use rankine_model::translate;
use rankine_reader::{Dataset, Part, Split};

use super::{TrainOptions, train_once};
use crate::run_paths;
use crate::training::data::open_together;
use crate::training::error::LeftResults;
use crate::training::error::TrainError;
use crate::training::event::{Observer, RefitStage};
use crate::training::processes::path_of_first;
use crate::training::run_dir::{self, RunDir};
use crate::training::start::Start;
use crate::training::summary::Summary;

/// Trains a job that asks for it.
///
/// # Errors
/// As [`super::train`].
pub(super) fn train(
    job: &Job,
    options: TrainOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<(Summary, Option<PathBuf>), TrainError> {
    let alone = ProcessGroup::alone();
    let processes = options.processes.unwrap_or(&alone);
    let stop = options.stop.cloned().unwrap_or_default();
    let samples = count_samples(job, processes, &stop, observer)?;
    let run = processes.is_first().then(|| folder(job, options)).transpose()?;
    let run = path_of_first(processes, run.as_deref())?;

    let search_dir = run_paths::search(&run);
    let in_search = TrainOptions { run_dir: Some(&search_dir), ..options };
    let searched = train_once(&search(job), in_search, Some(RefitStage::Search), observer);
    let (found, _) = searched.map_err(|error| match error {
        // Both trainings resume there.
        TrainError::Interrupted { cause, step, start, .. } => {
            TrainError::Interrupted { cause, step, run: run.clone(), start }
        }
        // The model of the search is not the result.
        TrainError::Ended { error, left: LeftResults { start, checkpoint, .. } } => TrainError::Ended {
            error,
            left: LeftResults { run: run.clone(), start, checkpoint, model: None },
        },
        error => error,
    })?;
    let in_run = TrainOptions { run_dir: Some(&run), ..options };
    let mut again = refit(job, found.model_steps(), samples);
    let is_averaged = found.average.as_ref().is_some_and(|average| average.saved);
    again.train.average =
        job.train.average.filter(|_| is_averaged).map(|own| Average { save: AverageSave::Always, ..own });
    train_once(&again, in_run, Some(RefitStage::Refit(&found)), observer)
}

/// The samples of a training part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrainingPart {
    /// Those that are not held out.
    pub(crate) searched: u64,
    /// All of them.
    pub(crate) all: u64,
}

impl TrainingPart {
    /// Counts the samples of a dataset.
    pub(crate) fn of(dataset: &Dataset) -> Self {
        let searched = dataset.samples(Part::Train);
        Self { searched, all: searched + dataset.samples(Part::Validation) }
    }

    /// Returns the number of steps on all samples that is in proportion to a number of steps on the first training's.
    pub(crate) fn steps(self, searched: u64) -> Count {
        let [steps, samples, all] = [searched, self.searched, self.all].map(u128::from);
        let steps = (steps * all + samples / 2) / samples.max(1);
        Count::nearest(u64::try_from(steps).unwrap_or(u64::MAX))
    }
}

/// Opens the dataset, and checks that the job suits it before a folder is made.
fn count_samples(
    job: &Job,
    processes: &ProcessGroup,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<TrainingPart, TrainError> {
    let dataset = open_together(job, processes, stop, None, observer)?;
    translate(job, dataset.schema()).map_err(TrainError::Conflicts)?;
    Ok(TrainingPart::of(&dataset))
}

/// Returns the run folder, in which both trainings start or resume.
fn folder(job: &Job, options: TrainOptions<'_>) -> Result<PathBuf, TrainError> {
    let Some(path) = options.run_dir else { return run_dir::fresh_for(job) };
    RunDir::refuse_locked(path)?;
    match options.start {
        Start::New => RunDir::refuse_used(path)?,
        Start::Resume => refuse_single(path)?,
        Start::Restart => {}
    }
    Ok(path.to_owned())
}

/// Refuses to resume a run that was not searched first: its model was trained without the validation set.
fn refuse_single(path: &Path) -> Result<(), TrainError> {
    if run_paths::search(path).exists() || !run_paths::metrics(path).exists() {
        return Ok(());
    }
    let what = format!("the run {} was trained without train.early_stopping.refit", path.display());
    Err(TrainError::unresumable_here(what))
}

/// The first training's job.
fn search(job: &Job) -> Job {
    let mut job = job.clone();
    if let Some(stopping) = &mut job.train.early_stopping {
        stopping.refit = false;
    }
    job.eval.set.clear();
    job
}

/// The job of a training on the whole training part, for a number of steps in proportion to that which another training
/// found; so are the steps of its schedule. The choice between weights and their average is not made again.
pub(crate) fn refit(job: &Job, found: u64, samples: TrainingPart) -> Job {
    let mut job = job.clone();
    let steps = samples.steps(found);
    job.optimizer.schedule = job.optimizer.schedule.scaled(samples.all, samples.searched);
    let steps_an_epoch = samples.all.div_ceil(u64::from(job.train.batch_size.get())).max(1);
    job.train.epochs = Count::nearest(steps.get().div_ceil(steps_an_epoch));
    job.train.max_steps = Some(steps);
    job.train.validation = Split::None;
    job.train.early_stopping = None;
    job.train.average = None;
    (job.eval.every_steps, job.eval.every) = (None, None);
    job.eval.target_auc = None;
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_proportion_to_samples() {
        let steps = |searched, all, steps| TrainingPart { searched, all }.steps(steps).get();
        assert_eq!(steps(900, 1000, 90), 100);
        assert_eq!(steps(900, 1000, 1), 1);
        assert_eq!(steps(800, 1000, 2), 3);
        assert_eq!(steps(3, 4, 0), 1);
        assert_eq!(steps(1 << 40, 1 << 41, 1 << 40), 1 << 41);
    }

    #[test]
    fn the_schedule_grows_as_the_steps_do() {
        let job = "name = 'a'\ndata.dir = 'b'\nmodel = { kind = 'wide-deep', embedding_dim = 4, top_mlp = [4] }\n\
                   optimizer.dense = { kind = 'sgd', learning_rate = 1 }\n\
                   optimizer.sparse = { kind = 'sgd', learning_rate = 1 }\n\
                   optimizer.schedule = { kind = 'cosine', warmup_steps = 9, decay_steps = 81 }\n\
                   train = { batch_size = 10, epochs = 1, validation = 'last:0.1' }\neval.every = 'epoch'\n";
        let job = Job::from_toml("job.toml", job, &[] as &[&str]).unwrap_or_else(|error| panic!("{error}"));
        let again = refit(&job, 90, TrainingPart { searched: 900, all: 1000 });
        assert_eq!((again.train.max_steps, again.train.epochs.get()), (Count::new(100), 1));
        assert_eq!(again.optimizer.schedule, job.optimizer.schedule.scaled(10, 9));
        assert!(!again.eval.is_repeated() && again.train.validation == Split::None);
    }
}
