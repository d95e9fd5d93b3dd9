//! What training needs of a device.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use rankine_checkpoint::{CheckpointError, DeviceState, RankState, StateSource};
use rankine_embedding::{EmbeddingPlan, Placement, RankTraffic};
use rankine_job::{DeviceKind, Job, Precision};
use rankine_model::guard::StepOutcome;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_saved::Weights;
use rankine_topology::Rank;

use super::batches::{Batch, Batches};
use super::memory::DeviceMemory;
use super::phases::{Ceilings, MeasuredPhase, TraceEvent};
use super::scorer::Scorer;
use crate::training::error::TrainError;
use crate::training::report::ReportDetails;

/// A function of a rank's number and state.
pub(super) type RankVisit = Arc<dyn Fn(Rank, RankState<'_>) -> Result<(), CheckpointError> + Send + Sync>;

/// A model on a device. The outcomes of steps may be known later than the steps are started.
pub(in crate::training) trait Backend: Scorer + Weights {
    /// The kind of device.
    fn kind(&self) -> DeviceKind;

    /// Whether GPUs train.
    fn is_on_gpu(&self) -> bool {
        self.kind() == DeviceKind::Cuda
    }

    /// The precision of matrix products; `None` on a CPU that computes in fp32.
    fn precision(&self, job: &Job) -> Option<Precision> {
        Some(job.device.precision_on_gpus())
    }

    /// Starts to read batches of a part.
    ///
    /// # Errors
    /// [`TrainError::Data`], [`TrainError::Gpu`].
    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, TrainError>;

    /// Starts a step; see [`rankine_engine_cpu::CpuModel::train_step`].
    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), TrainError>;

    /// Reports outcomes of steps that were not reported yet, in order: of all started steps if `all`, otherwise of
    /// those that are known.
    fn take_outcomes(&mut self, all: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), TrainError>;

    /// Milliseconds that each of `count` steps takes over batches that are resident on the device. Uses as many of
    /// the given batches as fit.
    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, TrainError>;

    /// The ranks whose replicas differ; see [`rankine_engine_cpu::CpuModel::diverged_ranks`].
    fn diverged_ranks(&self) -> Result<Vec<Rank>, TrainError>;

    /// Calls `visit` with the state of each rank, all ranks at once, after all steps are complete.
    ///
    /// # Errors
    /// The first error that `visit` returns; [`CheckpointError::State`].
    fn visit_ranks(&self, visit: RankVisit) -> Result<(), CheckpointError>;

    /// Starts to record which rows are updated.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    fn begin_tracking(&mut self) -> Result<(), CheckpointError>;

    /// Restores the state of a source, which must be one of this model; its tables may have fewer rows.
    ///
    /// # Errors
    /// [`CheckpointError`]; the model is unusable then.
    fn restore(&mut self, from: &Arc<dyn StateSource>) -> Result<(), CheckpointError>;

    /// The state of a GPU besides parameters.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    fn device_state(&self) -> Result<Option<DeviceState>, CheckpointError> {
        Ok(None)
    }

    /// The record of its product algorithms, for `tuning.json`; none on the CPU.
    fn tuning(&self) -> Result<Option<String>, TrainError> {
        Ok(None)
    }

    /// The memory of each device of this process that has its own.
    ///
    /// # Errors
    /// [`TrainError::Gpu`].
    fn memory(&self) -> Result<Vec<DeviceMemory>, TrainError> {
        Ok(Vec::new())
    }

    /// Steps skipped because fp16 gradients overflowed; `None` in other precisions.
    fn overflow_steps(&self) -> Result<Option<u64>, TrainError> {
        Ok(None)
    }

    /// What all ranks sent each other in the training steps of this model, when these are complete; zero with one
    /// rank. All processes call this.
    ///
    /// # Errors
    /// [`TrainError::Gpu`], [`TrainError::Processes`].
    fn traffic(&self) -> Result<RankTraffic, TrainError>;

    /// Finds out the details of a report after a step on this batch, when all steps are complete.
    ///
    /// # Errors
    /// [`TrainError::Gpu`].
    fn report_details(&self, batch: &Batch) -> Result<ReportDetails, TrainError>;

    /// Looks into its iterations, if the device allows it.
    fn profile(&mut self) -> Option<&mut dyn Profile> {
        None
    }
}

/// A device on which a model was created.
pub(in crate::training) struct InitializedDevice {
    pub(in crate::training) backend: Box<dyn Backend>,
    /// The device, in words.
    pub(in crate::training) name: String,
    /// The placement of each table; empty with a single rank.
    pub(in crate::training) placements: Vec<Placement>,
}

impl InitializedDevice {
    /// Returns the placements of a plan.
    pub(super) fn placements(plan: Option<&EmbeddingPlan>) -> Vec<Placement> {
        plan.into_iter().flat_map(|plan| &plan.tables).map(|table| table.placement).collect()
    }
}

impl dyn Backend + '_ {
    /// Calls `visit` with the state of each rank, all ranks at once, after all steps are complete; returns its
    /// results in the order of ranks.
    ///
    /// # Errors
    /// As [`Backend::visit_ranks`].
    pub(in crate::training) fn on_each_rank<T: Send + 'static>(
        &self,
        visit: impl Fn(Rank, RankState<'_>) -> Result<T, CheckpointError> + Send + Sync + 'static,
    ) -> Result<Vec<T>, CheckpointError> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let results = Arc::clone(&found);
        self.visit_ranks(Arc::new(move |rank, state| {
            let result = visit(rank, state)?;
            results.lock().unwrap_or_else(PoisonError::into_inner).push((rank, result));
            Ok(())
        }))?;
        let mut found = mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        found.sort_by_key(|(rank, _)| *rank);
        Ok(found.into_iter().map(|(_, result)| result).collect())
    }
}

/// Measurements on a GPU.
pub(in crate::training) trait Profile {
    /// Marks the moment at which all started steps will be complete.
    fn mark(&mut self) -> Result<(), TrainError>;

    /// Milliseconds from each marked moment to the next, once all steps are complete.
    fn ms_between_marks(&self) -> Result<Vec<f64>, TrainError>;

    /// The time that each phase of an iteration takes by itself, and the ceilings of that GPU. Requires a completed
    /// step; weights change.
    fn time_phases(&mut self) -> Result<(Vec<MeasuredPhase>, Ceilings), TrainError>;

    /// Trains this many steps on the batches that are resident, and waits for them.
    fn repeat_steps(&mut self, steps: usize) -> Result<(), TrainError>;

    /// Starts to record the GPU's activity, kernel by kernel.
    fn begin_trace(&mut self) -> Result<(), TrainError>;

    /// Ends the recording, and returns the activity since it began.
    fn end_trace(&mut self) -> Result<Vec<TraceEvent>, TrainError>;
}
