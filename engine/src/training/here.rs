//! Whether this build and this machine can train a job, found out by what training itself asks, and without training.

use rankine_reader::stream::BatchStream;
use rankine_reader::{Dataset, Part};

use super::TrainError;
use super::data::{Prospect, open_existing, prospect};
use super::fit::{check_build, thread_pool, train_options};
use super::learner;
use super::seats::Seats;
use super::translate::translate;
use crate::job::Job;
use crate::launch::ProcessGroup;

/// What a job would find here.
#[derive(Debug, Default)]
pub struct Here {
    /// What would train it, in words; `None` where that is not known.
    pub device: Option<String>,
    /// How its samples would be read, where they are there.
    pub reading: Option<String>,
    /// What keeps this build and machine from training it: the errors that training would end with.
    pub obstacles: Vec<TrainError>,
}

/// Finds out whether a job that is sound could be trained by this process alone. GPUs are opened, and the first blocks
/// of the dataset are read; nothing is written.
pub fn here(job: &Job) -> Here {
    let mut here = Here::default();
    here.note(check_build(job));
    here.note(thread_pool(job).map(drop));
    if let Some(Some(dataset)) = here.note(open_existing(job)) {
        here.reading = here.reads(job, &dataset);
    }
    let seats = Seats::of(job, &ProcessGroup::alone());
    let Some((job, seats)) = here.note(seats) else { return here };
    let schema = match prospect(&job) {
        Ok(Prospect::Dataset(dataset)) => dataset.schema().clone(),
        Ok(Prospect::Shape(schema)) => schema,
        // Without columns nobody knows how large the model is.
        Ok(Prospect::Unknown) | Err(_) => return here,
    };
    // A build or machine without the device has been named already.
    if !here.obstacles.iter().any(|error| matches!(error, TrainError::Device(_)))
        && let Ok((spec, rules)) = translate(&job, &schema)
    {
        here.device = here.note(learner::device_of(&job, &seats, (&spec, &rules)));
    }
    here
}

impl Here {
    /// Takes a result's value, or its error.
    fn note<V>(&mut self, result: Result<V, TrainError>) -> Option<V> {
        result.map_err(|error| self.obstacles.push(error)).ok()
    }

    /// Begins to read as training does.
    fn reads(&mut self, job: &Job, dataset: &Dataset) -> Option<String> {
        let options = train_options(job, job.reader.io_options());
        let opened = dataset.part(Part::Train).and_then(|part| BatchStream::open(part, &options));
        let stream = self.note(opened.map_err(TrainError::from))?;
        Some(stream.rung().name().to_owned())
    }
}
