//! The GPUs of a job: selecting them, placing its tables, and creating the model there.

use rankine_embedding::EmbeddingPlan;
use rankine_engine_gpu::{CreateError, ModelRequest, OpenError, OpenGpus, refusals};
use rankine_job::{DeviceKind, Job, Precision};
use rankine_model::overlap::{Overlap, Overlaps};
use rankine_model::{Model, ModelSpec};
use rankine_reader::Dataset;

use super::initialized::InitializedDevice;
use super::measurements::Measurements;
use super::refusal::{GpuSelectionError, Refusal};
use crate::planning::{Source, Tiers};
use crate::training::error::{DeviceError, TrainError, UnusableGpus};
use crate::training::memory::check_host_rows;
use crate::training::processes::RankAssignment;
use crate::{build, planning};

/// Opens the GPUs that are to train a job, one per rank.
fn open(job: &Job, assignment: &RankAssignment, spec: &ModelSpec) -> Result<OpenGpus, GpuSelectionError> {
    // Several processes cannot fall back to the CPU.
    let several = assignment.processes.size() > 1;
    let kind = if several || job.requires_gpus() { DeviceKind::Cuda } else { job.device.kind };
    if kind == DeviceKind::Cpu {
        return Err(Refusal::OnlyCpu.into());
    }
    let mut refused = refusals(job, spec);
    if kind == DeviceKind::Cuda && !refused.is_empty() {
        return Err(TrainError::Conflicts(refused).into());
    }
    let ranks = job.device.ranks.get() as usize;
    let gpus = match OpenGpus::open(&assignment.gpus) {
        Ok(gpus) => gpus,
        Err(error) if several => return Err(DeviceError::NoGpusForProcesses(error).into()),
        Err(error) if kind == DeviceKind::Cuda => return Err(DeviceError::NoGpus(error).into()),
        Err(OpenError::NotBuilt) => return Err(Refusal::OnlyCpu.into()),
        Err(OpenError::NoGpu(_)) => return Err(Refusal::NoGpu.into()),
        Err(OpenError::TooFew { gpus, .. }) => return Err(Refusal::TooFew { ranks, gpus }.into()),
        // A GPU exists but cannot be used: its owner needs to know why.
        Err(OpenError::Unusable(error)) => return Err(Refusal::Unusable(error).into()),
    };
    if !refused.is_empty() {
        return Err(Refusal::Unsupported(refused.swap_remove(0)).into());
    }
    let fp8 = job.device.precision == Some(Precision::Fp8);
    match if fp8 { gpus.without_fp8()? } else { None } {
        None => Ok(gpus),
        Some(gpu) if kind == DeviceKind::Cuda => Err(DeviceError::NoFp8 { gpu }.into()),
        Some(gpu) => Err(Refusal::NoFp8 { gpu }.into()),
    }
}

/// The GPUs that would train a job, by number and name, and how the rows of its tables would be divided between a GPU
/// and host memory. Loads the libraries, and compares the free memory with the tables only.
pub(super) fn device_of(
    job: &Job,
    assignment: &RankAssignment,
    source: &Source<'_>,
    model: &Model,
) -> Result<(String, Option<Tiers>), GpuSelectionError> {
    let gpus = open(job, assignment, &model.spec)?;
    let tiers = divide(job, &gpus, assignment, source, model)?;
    let tables = match &tiers {
        Some(tiers) => tiers.report().device_bytes + tiers.report().landing_bytes,
        None => model.table_bytes(),
    };
    let tables = tables / gpus.count().max(1) as u64;
    let check = || -> Result<(), UnusableGpus> {
        gpus.check_libraries(job, assignment.topology.nodes())?;
        match gpus.free_bytes()?.into_iter().find(|&free| tables > free) {
            Some(free) => Err(UnusableGpus::TooSmall { tables, free }),
            None => Ok(()),
        }
    };
    match check() {
        Ok(()) => Ok((format!("{} ({})", counted(gpus.count()), gpus.name()?), tiers)),
        Err(why) if job.requires_gpus() => Err(DeviceError::Unusable(why).into()),
        Err(why) => Err(Refusal::Unusable(why.into()).into()),
    }
}

/// Divides the rows of a job's tables between its GPUs and host memory, if the job says so, and checks that the host
/// has memory for its part.
fn divide(
    job: &Job,
    gpus: &OpenGpus,
    assignment: &RankAssignment,
    source: &Source<'_>,
    model: &Model,
) -> Result<Option<Tiers>, TrainError> {
    if job.host_memory_key().is_none() {
        return Ok(None);
    }
    let free = gpus.free_bytes().map_err(|error| DeviceError::Unusable(UnusableGpus::from(error)))?;
    let of_rank = (assignment.topology.ranks(), free.into_iter().min().unwrap_or(0));
    let tiers = Tiers::of(job, model, source, of_rank)?;
    if let Some(tiers) = &tiers {
        check_host_rows(job, tiers.report(), (gpus.count(), assignment.topology.ranks()))?;
    }
    Ok(tiers)
}

fn counted(gpus: usize) -> String {
    if gpus == 1 { "one GPU".into() } else { format!("{gpus} GPUs") }
}

/// The GPUs that are to train a job.
pub(super) struct Gpus {
    /// One per rank of this process.
    gpus: OpenGpus,
    /// The processes that have the others.
    assignment: RankAssignment,
    /// The placement of tables, if there are several ranks.
    placed: Option<PlacedTables>,
    /// How rows are divided between the GPUs and host memory, if host memory has some.
    tiers: Option<Tiers>,
    /// The overlaps of an iteration.
    overlaps: Overlaps,
}

/// The placement of tables over several GPUs.
struct PlacedTables {
    plan: EmbeddingPlan,
    /// The performance assumed for the GPUs, as the text of a machine file.
    machine: String,
}

impl Gpus {
    /// Opens the GPUs of a job, and places its tables.
    pub(super) fn select(
        job: &Job,
        assignment: &RankAssignment,
        dataset: &Dataset,
        model: &Model,
        measured: &Measurements,
    ) -> Result<Self, GpuSelectionError> {
        let gpus = open(job, assignment, &model.spec)?;
        let tiers = divide(job, &gpus, assignment, &Source::Dataset(dataset), model)?;
        let assignment = assignment.clone();
        let mut gpus = Self { gpus, assignment, placed: None, tiers, overlaps: Overlaps::ALL };
        gpus.placed = gpus.place(job, dataset, model, measured)?;
        Ok(gpus)
    }

    /// Disables some overlaps.
    pub(super) fn disable(&mut self, left_out: &[Overlap]) {
        self.overlaps = Overlaps::without(left_out);
    }

    /// The assumed performance of the GPUs if tables were placed by it.
    pub(super) fn machine(&self) -> Option<&str> {
        self.placed.as_ref().map(|placed| placed.machine.as_str())
    }

    /// Creates the model on the GPUs, and says which these are.
    pub(super) fn initialize(
        self,
        job: &Job,
        dataset: &Dataset,
        model: &Model,
        measured: &Measurements,
    ) -> Result<InitializedDevice, GpuSelectionError> {
        let Self { gpus, assignment, placed, tiers, overlaps } = self;
        let RankAssignment { processes, topology, .. } = &assignment;
        let several = processes.size() > 1;
        let plan = placed.as_ref().map(|placed| &placed.plan);
        let tier = tiers.as_ref().map(|tiers| tiers.plan(job, dataset)).transpose();
        let tier = tier.map_err(TrainError::from)?;
        let created = gpus.create(&ModelRequest {
            job,
            model,
            dataset,
            plan,
            tier: tier.as_ref(),
            overlaps,
            nodes: topology.nodes(),
            processes: several.then_some(processes),
            recorded: measured.tuning.as_deref(),
        });
        let count = gpus.count();
        let backend = created.map_err(|error| -> GpuSelectionError {
            match error {
                CreateError::Backend(error) => error.into(),
                CreateError::Failed(error) if several || job.requires_gpus() => {
                    DeviceError::Full { gpus: count, error }.into()
                }
                CreateError::Failed(error) => Refusal::Full { gpus: count, error }.into(),
                error => DeviceError::Tuning(error).into(),
            }
        })?;
        let mut device = counted(topology.ranks());
        if several {
            device += &format!(" of {} processes", processes.size());
        }
        let name = format!("{device} ({}) in {}", gpus.name()?, job.device.precision_on_gpus().name());
        let placements = InitializedDevice::placements(plan);
        Ok(InitializedDevice { backend, name, placements, tier: tiers.map(|tiers| tiers.report().clone()) })
    }

    /// Places the tables of a job over several GPUs. All processes use the performance that the first one knows.
    fn place(
        &self,
        job: &Job,
        dataset: &Dataset,
        model: &Model,
        measured: &Measurements,
    ) -> Result<Option<PlacedTables>, TrainError> {
        let RankAssignment { processes, topology, gpus } = &self.assignment;
        if topology.ranks() == 1 {
            return Ok(None);
        }
        let precision = job.device.precision_on_gpus();
        let apart = (1..gpus.len()).all(|gpu| !gpus[..gpu].contains(&gpus[gpu]));
        let machine = match (&job.device.machine, &measured.machine) {
            (Some(path), _) => planning::machine_of_job(path, 0, job).map_err(DeviceError::Machine)?,
            (None, Some(text)) => {
                planning::parse_machine(text, precision).map_err(DeviceError::MachineText)?
            }
            (None, None) => {
                self.gpus.machine(topology.ranks_per_node(), precision, apart.then(build::here))?
            }
        };
        let (machine, _) = planning::write_machine(&machine, "h200", precision);
        let machine = processes.of_first("the measured performance of the GPUs", machine.as_bytes())?;
        let machine = String::from_utf8_lossy(&machine).into_owned();
        let planned_with = planning::parse_machine(&machine, precision).map_err(DeviceError::MachineText)?;
        let plan = planning::plan(job, model, dataset, (&planned_with, self.tiers.as_ref()))?;
        Ok(Some(PlacedTables { plan, machine }))
    }
}
