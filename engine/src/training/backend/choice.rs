//! Selects the device that trains a job, and creates its model there.

use rankine_embedding::EmbeddingPlan;
use rankine_embedding::plan::Machine;
use rankine_engine_cpu::{CpuModel, Sharding};
use rankine_job::{DenseUpdate, DeviceKind, Job};
use rankine_model::Model;
use rankine_model::overlap::Overlap;
use rankine_reader::Dataset;

use super::cpu::CpuBackend;
use super::gpu::{self, Gpus};
use super::initialized::InitializedDevice;
use super::measurements::Measurements;
use super::refusal::{GpuSelectionError, Refusal};
use crate::planning::{self, PlacementError, Source, Tiers};
use crate::training::error::{DeviceError, TrainError};
use crate::training::memory::check_memory;
use crate::training::processes::RankAssignment;

/// The device that a job is to be trained on.
pub(in crate::training) enum DeviceChoice {
    /// The CPU, over several ranks if there is a plan; and why.
    #[allow(private_interfaces, reason = "no other module looks inside")]
    Cpu(Option<EmbeddingPlan>, Refusal),
    #[allow(private_interfaces, reason = "no other module looks inside")]
    Gpus(Gpus),
}

impl DeviceChoice {
    /// Selects the device as the job says; nothing is created yet.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] and [`TrainError::Device`] if the job cannot be trained here.
    pub(in crate::training) fn of(
        job: &Job,
        assignment: &RankAssignment,
        dataset: &Dataset,
        model: &Model,
        measured: &Measurements,
    ) -> Result<Self, TrainError> {
        match Gpus::select(job, assignment, dataset, model, measured) {
            Ok(gpus) => Ok(Self::Gpus(gpus)),
            Err(GpuSelectionError::Refused(why)) => Ok(Self::Cpu(plan_for_cpu(job, dataset, model)?, why)),
            Err(GpuSelectionError::Failed(error)) => Err(error),
        }
    }

    /// Disables some overlaps of GPU work; no effect on the CPU.
    pub(in crate::training) fn without(mut self, left_out: &[Overlap]) -> Self {
        if let Self::Gpus(gpus) = &mut self {
            gpus.disable(left_out);
        }
        self
    }

    /// The assumed performance of the GPUs if tables were placed by it, for `machine.toml`.
    pub(in crate::training) fn machine(&self) -> Option<&str> {
        match self {
            Self::Cpu(..) => None,
            Self::Gpus(gpus) => gpus.machine(),
        }
    }

    /// The model of a job with its initial weights, and the device in words. Matrix products use the algorithms that
    /// were recorded, if those are of the same GPUs.
    ///
    /// # Errors
    /// [`TrainError::Device`] if the device cannot hold it.
    pub(in crate::training) fn initialize(
        self,
        job: &Job,
        dataset: &Dataset,
        model: &Model,
        threads: usize,
        measured: &Measurements,
    ) -> Result<InitializedDevice, TrainError> {
        let (plan, why) = match self {
            Self::Cpu(plan, why) => (plan, why),
            Self::Gpus(gpus) => match gpus.initialize(job, dataset, model, measured) {
                Ok(made) => return Ok(made),
                Err(GpuSelectionError::Refused(why)) => (plan_for_cpu(job, dataset, model)?, why),
                Err(GpuSelectionError::Failed(error)) => return Err(error),
            },
        };
        let placements = InitializedDevice::placements(plan.as_ref());
        let model = match plan {
            None => CpuModel::initialized(model, job.seed),
            Some(plan) => {
                let ranks = job.device.ranks;
                let shard_dense_update = job.device.dense_update == DenseUpdate::Sharded;
                let sharding = Sharding { plan, shard_dense_update, threads };
                CpuModel::over_ranks(model, job.seed, sharding).map_err(|error| TrainError::Threads {
                    what: format!("the threads of {ranks} ranks"),
                    source: error.into(),
                })?
            }
        };
        let backend = Box::new(CpuBackend::new(model, &job.device));
        Ok(InitializedDevice { name: backend.name(&why), backend, placements, tier: None })
    }
}

/// Checks that this build has the device that a job asks for.
///
/// # Errors
/// [`TrainError::Device`].
pub(in crate::training) fn check_build(job: &Job) -> Result<(), TrainError> {
    if job.device.kind == DeviceKind::Cuda && !rankine_engine_gpu::IN_BUILD {
        return Err(DeviceError::NoCuda.into());
    }
    Ok(())
}

/// The device that would train a job here, in words, determined without creating a model: the device that training
/// selects, with its libraries and memory for the model; and how the rows of tables would be divided between a GPU and
/// host memory, if they would be.
///
/// # Errors
/// [`TrainError::Conflicts`] and [`TrainError::Device`], the errors that training would end with.
pub(in crate::training) fn device_of(
    job: &Job,
    assignment: &RankAssignment,
    source: &Source<'_>,
    model: &Model,
) -> Result<(String, Option<Tiers>), TrainError> {
    match gpu::device_of(job, assignment, source, model) {
        Ok(gpus) => Ok(gpus),
        Err(GpuSelectionError::Failed(error)) => Err(error),
        Err(GpuSelectionError::Refused(why)) => {
            check_memory(job, model, None)?;
            Ok((why.cpu(None), None))
        }
    }
}

/// Which of the CPU's ranks store the rows of tables, if there are several ranks.
fn plan_for_cpu(job: &Job, dataset: &Dataset, model: &Model) -> Result<Option<EmbeddingPlan>, TrainError> {
    let topology = job.topology().map_err(PlacementError::from)?;
    let memory = planning::memory_of_a_thread_rank(topology);
    let machine = match &job.device.machine {
        Some(path) => planning::machine_of_job(path, memory, job).map_err(DeviceError::Machine)?,
        None => Machine::cpu(memory),
    };
    let plan = || planning::plan(job, model, dataset, (&machine, None));
    let plan = (topology.ranks() > 1).then(plan).transpose()?;
    check_memory(job, model, plan.as_ref())?;
    Ok(plan)
}
