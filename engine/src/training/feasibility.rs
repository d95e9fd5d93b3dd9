//! Whether this build and this machine can train a job, determined by the checks of training itself, without
//! training.

use rankine_embedding::plan::TierReport;
use rankine_job::Job;
use rankine_launch::ProcessGroup;
use rankine_model::translate;
use rankine_reader::stream::BatchStream;
use rankine_reader::{Dataset, Part};

use super::backend::{self, check_build, thread_pool};
use super::data::{find_data, open_existing, train_options};
use super::error::TrainError;
use super::eval_sets;
use super::initial_model::InitialModel;
use super::processes::RankAssignment;

/// What a job finds on this machine.
#[derive(Debug, Default)]
pub struct Feasibility {
    /// The device that would train it, in words; `None` if that is not known.
    pub device: Option<String>,
    /// How the rows of its tables would be divided between a GPU and host memory; `None` if they would not be.
    pub tier: Option<TierReport>,
    /// How its samples would be read, if they exist.
    pub reading: Option<String>,
    /// What prevents this build and machine from training it: the errors that training would end with.
    pub obstacles: Vec<TrainError>,
}

/// Determines whether this process alone could train a valid job. Opens GPUs, and reads the first blocks of the
/// dataset; writes nothing.
pub fn feasibility(job: &Job) -> Feasibility {
    let mut here = Feasibility::default();
    here.note(check_build(job));
    here.note(thread_pool(job).map(drop));
    if let Some(Some(dataset)) = here.note(open_existing(job)) {
        here.reading = here.reads(job, &dataset);
        if let Ok(model) = translate(job, dataset.schema()) {
            here.note(InitialModel::of(job, &dataset, &model));
        }
        here.note(eval_sets::open(job, &dataset));
    }
    let assignment = RankAssignment::of(job, &ProcessGroup::alone(), 0);
    let Some((job, assignment)) = here.note(assignment) else { return here };
    // Without columns the size of the model is unknown.
    let Ok(data) = find_data(&job) else { return here };
    let Some(source) = data.source(&job) else { return here };
    // A build or machine without the device is already reported.
    if !here.obstacles.iter().any(|error| error.is_device())
        && let Ok(model) = translate(&job, source.schema())
        && let Some((device, tiers)) = here.note(backend::device_of(&job, &assignment, &source, &model))
    {
        here.device = Some(device);
        here.tier = tiers.map(|tiers| tiers.report().clone());
    }
    here
}

impl Feasibility {
    /// Returns a result's value, or records its error.
    fn note<V>(&mut self, result: Result<V, TrainError>) -> Option<V> {
        result.map_err(|error| self.obstacles.push(error)).ok()
    }

    /// Starts to read as training does.
    fn reads(&mut self, job: &Job, dataset: &Dataset) -> Option<String> {
        let options = train_options(job, job.reader.io_options());
        let opened = dataset.part(Part::Train).and_then(|part| BatchStream::open(part, &options));
        let stream = self.note(opened.map_err(TrainError::from))?;
        Some(stream.rung().name().to_owned())
    }
}
