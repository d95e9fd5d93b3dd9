//! What training asks of a device.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use rankine_checkpoint::{CheckpointError, DeviceState, RankState, StateSource};
use rankine_embedding::{RankTraffic, TierTraffic};
use rankine_job::{DeviceKind, Job, Precision};
use rankine_model::guard::StepOutcome;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_saved::Weights;
use rankine_topology::Rank;

use super::batches::{Batch, Batches};
use super::error::BackendError;
use super::memory::DeviceMemory;
use super::profile::Profile;
use super::report::ReportDetails;
use super::scorer::Scorer;

/// A function of a rank's number and state.
pub type RankVisit = Arc<dyn Fn(Rank, RankState<'_>) -> Result<(), CheckpointError> + Send + Sync>;

/// A model on a device. The outcomes of steps may be known later than the steps are started.
pub trait Backend: Scorer + Weights {
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

    /// The samples that an evaluation scores at a time.
    fn scored_at_a_time(&self, job: &Job) -> usize {
        job.eval.batch_size_on_cpu()
    }

    /// Starts to read batches of a part.
    ///
    /// # Errors
    /// [`BackendError::Data`], [`BackendError::Staging`], [`BackendError::Failed`].
    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, BackendError>;

    /// Starts a step; see [`rankine_engine_cpu::CpuModel::train_step`].
    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), BackendError>;

    /// Reports outcomes of steps that were not reported yet, in order: of all started steps if `all`, otherwise of
    /// those that are known.
    fn take_outcomes(&mut self, all: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), BackendError>;

    /// Milliseconds that each of `count` steps takes over batches that are resident on the device. Uses as many of
    /// the given batches as fit.
    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, BackendError>;

    /// The ranks whose replicas differ; see [`rankine_engine_cpu::CpuModel::diverged_ranks`].
    fn diverged_ranks(&self) -> Result<Vec<Rank>, BackendError>;

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
    fn tuning(&self) -> Result<Option<String>, BackendError> {
        Ok(None)
    }

    /// The memory of each device of this process that has its own.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn memory(&self) -> Result<Vec<DeviceMemory>, BackendError> {
        Ok(Vec::new())
    }

    /// Steps skipped because fp16 gradients overflowed; `None` in other precisions.
    fn overflow_steps(&self) -> Result<Option<u64>, BackendError> {
        Ok(None)
    }

    /// What all ranks sent each other in the training steps of this model, when these are complete; zero with one
    /// rank. All processes call this.
    ///
    /// # Errors
    /// [`BackendError::Failed`], [`BackendError::Processes`].
    fn traffic(&self) -> Result<RankTraffic, BackendError>;

    /// What was copied between the device and host memory since the model was created, if the device stores only the
    /// hot rows of tables; when all steps are complete.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn tier_traffic(&self) -> Result<Option<TierTraffic>, BackendError> {
        Ok(None)
    }

    /// Finds out the details of a report after a step on this batch, when all steps are complete.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    fn report_details(&self, batch: &Batch) -> Result<ReportDetails, BackendError>;

    /// Looks into its iterations, if the device allows it.
    fn profile(&mut self) -> Option<&mut dyn Profile> {
        None
    }
}

impl dyn Backend + '_ {
    /// Calls `visit` with the state of each rank, all ranks at once, after all steps are complete; returns its
    /// results in the order of ranks.
    ///
    /// # Errors
    /// As [`Backend::visit_ranks`].
    pub fn on_each_rank<T: Send + 'static>(
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
