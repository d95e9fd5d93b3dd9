//! What is fixed for a run from its beginning to its end.

use std::sync::Arc;
use std::time::SystemTime;

use rankine_base::Stop;
use rankine_checkpoint::Files;
use rankine_job::Job;
use rankine_launch::ProcessGroup;
use rankine_model::Model;
use rankine_reader::{Dataset, Part};
use rankine_topology::Topology;

use super::eval_sets::NamedDataset;
use super::event::RefitStage;
use super::power::MeteredGpus;
use super::start::Start;

/// Where the samples of a training come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleSource {
    /// The training part of the dataset.
    Dataset,
    /// A program, which pushes batches to a [`crate::trainer::Trainer`].
    Program,
}

/// A run: what is trained, by which processes, and with which resources.
#[derive(Clone, Copy)]
pub(super) struct RunContext<'a> {
    /// With the counted ranks.
    pub(super) job: &'a Job,
    pub(super) dataset: &'a Dataset,
    /// What the trained model is evaluated on besides.
    pub(super) eval_sets: &'a [NamedDataset],
    pub(super) source: SampleSource,
    /// The model's spec and update rules.
    pub(super) model: &'a Model,
    pub(super) processes: &'a ProcessGroup,
    pub(super) topology: Topology,
    /// The file system of checkpoints.
    pub(super) files: &'a Arc<dyn Files>,
    /// The GPUs whose power is measured, if they are not the devices of the run.
    pub(super) gpus: Option<&'a MeteredGpus>,
    /// CPU threads.
    pub(super) threads: usize,
    /// The request to stop.
    pub(super) stop: &'a Stop,
    /// Where it starts in the run folder.
    pub(super) start: Start,
    /// Which of the two trainings of a refit it is.
    pub(super) refit: Option<RefitStage<'a>>,
    /// When this process began to prepare the run.
    pub(super) began: SystemTime,
}

impl RunContext<'_> {
    /// Samples that the run trains on, unless a target ends it; `None` if a program decides.
    pub(super) fn samples(&self) -> Option<u64> {
        if self.source == SampleSource::Program {
            return None;
        }
        Some(self.job.train.samples(self.dataset.samples(Part::Train)))
    }
}
