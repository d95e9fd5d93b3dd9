//! The metrics of any command, as its monitor and its observers share them.

use std::sync::Arc;

use super::catalog::Catalog;
use super::families::{Beat, Common, RunInfo, Started, Task};
use super::gpus::GpuCollector;

/// What is exported of any command.
#[derive(Debug)]
pub(super) struct CommandMetrics {
    common: Common,
    pub(super) beat: Arc<Beat>,
    pub(super) gpus: GpuCollector,
}

impl CommandMetrics {
    pub(super) fn new(catalog: &mut Catalog, info: RunInfo) -> Self {
        Self { common: Common::new(catalog, info), beat: Arc::default(), gpus: GpuCollector::new() }
    }

    /// Starts a task of `total` units, whose progress is exported.
    pub(super) fn task(&self, task: &'static str, unit: &str, total: u64) -> Task {
        self.common.task(task, unit, total, &self.beat)
    }

    /// Describes the run, once its device is known.
    pub(super) fn describe(&self, started: &Started) {
        self.common.describe(started);
    }
}
