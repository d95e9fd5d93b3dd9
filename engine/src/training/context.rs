//! What is fixed for a run from its beginning to its end.

use std::sync::Arc;
use std::time::SystemTime;

use rankine_embedding::Topology;
use rankine_reader::{Dataset, Part, Stop};

use crate::checkpoint::Files;
use crate::job::Job;
use crate::launch::ProcessGroup;
use crate::model::Model;

/// A run: what is trained, by which processes, and with which resources.
#[derive(Clone, Copy)]
pub(super) struct RunContext<'a> {
    /// With the counted ranks.
    pub(super) job: &'a Job,
    pub(super) dataset: &'a Dataset,
    /// The model's spec and update rules.
    pub(super) model: &'a Model,
    pub(super) processes: &'a ProcessGroup,
    pub(super) topology: Topology,
    /// The file system of checkpoints.
    pub(super) files: &'a Arc<dyn Files>,
    /// CPU threads.
    pub(super) threads: usize,
    /// The request to stop.
    pub(super) stop: &'a Stop,
    /// When this process began to prepare the run.
    pub(super) began: SystemTime,
}

impl RunContext<'_> {
    /// Samples that the run trains on, unless a target ends it.
    pub(super) fn samples(&self) -> u64 {
        let train = &self.job.train;
        let (epoch, batch) = (self.dataset.samples(Part::Train), u64::from(train.batch_size.get()));
        let all = epoch.saturating_mul(train.epochs.get());
        let Some(steps) = train.max_steps else { return all };
        let steps_an_epoch = epoch.div_ceil(batch);
        let (epochs, steps) = (steps.get() / steps_an_epoch, steps.get() % steps_an_epoch);
        all.min(epochs.saturating_mul(epoch).saturating_add(epoch.min(steps * batch)))
    }
}
