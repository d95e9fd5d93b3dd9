//! What learns: a model on the device that a job names.

#[cfg(feature = "cuda")]
mod gpu;

#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Instant;

use rankine_embedding::EmbeddingPlan;
use rankine_embedding::plan::Machine;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Dataset, Samples};

use super::batches::{Batch, Batches};
use super::evaluate::Scorer;
use super::phases::{Activity, Ceilings, Phase};
use super::recorded::Recorded;
use super::seats::Seats;
use super::translate::check_memory;
use super::{DeviceMemory, TrainError};
use crate::cpu::{CpuModel, RankTraffic, Sharding};
use crate::evaluation::HeadMetrics;
use crate::guard::StepOutcome;
use crate::job::{DenseUpdate, Job};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::Overlap;
#[cfg(feature = "cuda")]
use crate::overlap::Overlaps;
use crate::planning;
use crate::saved::{SavedModelError, Weights};

/// A model on a device. What steps came to may be known later than they are begun.
pub(super) enum Learner {
    /// In the host's memory, and what steps came to that was not taken yet.
    Cpu(Box<CpuModel>, Vec<StepOutcome>),
    /// In a GPU's memory, with what judges it there.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::cuda::CudaModel>, Box<gpu::Judge>),
}

/// A moment in a GPU's work.
#[cfg(feature = "cuda")]
pub(super) type Mark = rankine_cuda::Moment;
/// There is none.
#[cfg(not(feature = "cuda"))]
pub(super) type Mark = std::convert::Infallible;

/// On which device a job is to be trained.
pub(super) enum Choice {
    /// The CPU, over ranks where there is a plan; and why, in words to be said behind it.
    Cpu(Option<EmbeddingPlan>, String),
    /// GPUs, a rank each, and the processes that have the others; where tables lie over several; and what iterations do
    /// at the same time.
    #[cfg(feature = "cuda")]
    Cuda(Vec<Arc<rankine_cuda::Device>>, Seats, Option<gpu::Placed>, Overlaps),
}

impl Choice {
    /// Chooses as the job says; nothing is made yet.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] and [`TrainError::Device`] where the job cannot be trained here.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "GPUs alone are measured"))]
    pub(super) fn of(
        job: &Job,
        seats: &Seats,
        dataset: &Dataset,
        (spec, rules): (&ModelSpec, &TrainingRules),
        recorded: &Recorded,
    ) -> Result<Self, TrainError> {
        #[cfg(feature = "cuda")]
        let why = match gpu::devices(job, seats, spec)? {
            Ok(devices) => {
                let placed = gpu::place((&devices, seats), (job, recorded), dataset, (spec, rules))?;
                return Ok(Self::Cuda(devices, seats.clone(), placed, Overlaps::ALL));
            }
            Err(why) => why,
        };
        #[cfg(not(feature = "cuda"))]
        let why = match seats.processes.size() {
            1 => String::new(),
            _ => {
                return Err(TrainError::Device(
                    "several processes train on GPUs, and this build has none".into(),
                ));
            }
        };
        Ok(Self::Cpu(plan_for_cpu(job, dataset, spec, rules)?, why))
    }

    /// Leaves out some of what GPUs do at the same time; nothing changes on the CPU.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "GPUs alone overlap"))]
    pub(super) fn without(self, left_out: &[Overlap]) -> Self {
        match self {
            Self::Cpu(..) => self,
            #[cfg(feature = "cuda")]
            Self::Cuda(devices, seats, placed, _) => {
                Self::Cuda(devices, seats, placed, Overlaps::without(left_out))
            }
        }
    }

    /// What GPUs were taken to do in a second where tables were placed by it, for `machine.toml`.
    pub(super) fn machine(&self) -> Option<&str> {
        match self {
            Self::Cpu(..) => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(_, _, placed, _) => placed.as_ref().map(|placed| placed.machine.as_str()),
        }
    }

    /// The model of a job as training starts with it, and in words what trains it. Products take the algorithms that
    /// were recorded, where they are of such GPUs.
    ///
    /// # Errors
    /// [`TrainError::Device`] where the device does not take it.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "GPUs alone have bags' sizes and products")
    )]
    pub(super) fn initialize(
        self,
        job: &Job,
        dataset: &Dataset,
        (spec, rules): (&ModelSpec, &TrainingRules),
        threads: usize,
        recorded: &Recorded,
    ) -> Result<(Learner, String), TrainError> {
        let (plan, why) = match self {
            Self::Cpu(plan, why) => (plan, why),
            #[cfg(feature = "cuda")]
            Self::Cuda(devices, seats, placed, overlaps) => {
                let plan = placed.as_ref().map(|placed| &placed.plan);
                let (tuning, of) = (recorded.tuning.as_deref(), (&devices[..], &seats, plan, overlaps));
                match gpu::initialize(of, (job, tuning), dataset, (spec, rules))? {
                    Ok((model, name)) => {
                        return Ok((Learner::Cuda(Box::new(model), Box::default()), name));
                    }
                    Err(why) => (plan_for_cpu(job, dataset, spec, rules)?, why),
                }
            }
        };
        let model = match plan {
            None => CpuModel::initialized(spec.clone(), rules, job.seed),
            Some(plan) => {
                let ranks = job.device.ranks;
                let shard_dense_update = job.device.dense_update == DenseUpdate::Sharded;
                let sharding = Sharding { plan, shard_dense_update, threads };
                CpuModel::over_ranks(spec, rules, job.seed, sharding).map_err(|error| {
                    TrainError::Device(format!("cannot start the threads of {ranks} ranks: {error}"))
                })?
            }
        };
        Ok((Learner::Cpu(Box::new(model), Vec::new()), format!("the CPU{why}")))
    }
}

/// What would train a job here, in words, found out without making a model: the device that training chooses, with its
/// libraries and with memory for the model.
///
/// # Errors
/// [`TrainError::Conflicts`] and [`TrainError::Device`], as training ends with them.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "GPUs alone have seats"))]
pub(super) fn device_of(
    job: &Job,
    seats: &Seats,
    (spec, rules): (&ModelSpec, &TrainingRules),
) -> Result<String, TrainError> {
    #[cfg(feature = "cuda")]
    let why = match gpu::device_of(job, seats, (spec, rules))? {
        Ok(gpus) => return Ok(gpus),
        Err(why) => why,
    };
    #[cfg(not(feature = "cuda"))]
    let why = "";
    check_memory(job, spec, rules, None)?;
    Ok(format!("the CPU{why}"))
}

/// Where the rows of tables lie among the CPU's ranks, where there are several.
fn plan_for_cpu(
    job: &Job,
    dataset: &Dataset,
    spec: &ModelSpec,
    rules: &TrainingRules,
) -> Result<Option<EmbeddingPlan>, TrainError> {
    let topology = job.topology().map_err(|error| TrainError::Device(error.to_string()))?;
    let memory = planning::memory_of_a_thread_rank(topology);
    let machine = match &job.device.machine {
        Some(path) => planning::machine_of_job(path, memory, job).map_err(TrainError::Device)?,
        None => Machine::cpu(memory),
    };
    let plan = || planning::plan(job, spec, rules, dataset, &machine);
    let plan = (topology.ranks() > 1).then(plan).transpose()?;
    check_memory(job, spec, rules, plan.as_ref())?;
    Ok(plan)
}

impl Learner {
    /// The kind of device, as the summary calls it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Cpu(..) => "cpu",
            #[cfg(feature = "cuda")]
            Self::Cuda(..) => "cuda",
        }
    }

    /// The record of what its products take, for `tuning.json`; none on the CPU.
    pub(super) fn tuning(&self) -> Result<Option<String>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => {
                let record = serde_json::to_string_pretty(&model.tuning()?);
                Ok(Some(record.expect("a record is plain data") + "\n"))
            }
        }
    }

    /// Whether it computes in the job's precision, which is a GPU's.
    pub(super) fn is_on_gpu(&self) -> bool {
        !matches!(self, Self::Cpu(..))
    }

    /// What the model takes of the device's memory, where that is not the host's; of several, of the fullest one's.
    pub(super) fn memory(&self) -> Result<Option<DeviceMemory>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(Some(model.budget()?.into())),
        }
    }

    /// Steps that were left out since gradients were beyond the range of what is computed in, where that is so narrow.
    pub(super) fn skipped_steps(&self) -> Result<Option<u64>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(model.skipped_steps()?),
        }
    }

    /// The ranks whose replicas differ; see [`CpuModel::diverged_ranks`].
    pub(super) fn diverged_ranks(&self) -> Result<Vec<usize>, TrainError> {
        match self {
            Self::Cpu(model, _) => Ok(model.diverged_ranks()),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(model.diverged_ranks()?),
        }
    }

    /// What ranks have sent to each other; see [`CpuModel::traffic`]. GPUs do not count it.
    pub(super) fn traffic(&self) -> Option<RankTraffic> {
        match self {
            Self::Cpu(model, _) => Some(model.traffic()),
            #[cfg(feature = "cuda")]
            Self::Cuda(..) => None,
        }
    }

    /// Starts to read batches of a part.
    ///
    /// # Errors
    /// [`TrainError::Data`], [`TrainError::Gpu`].
    pub(super) fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, TrainError> {
        match self {
            Self::Cpu(..) => Batches::unpacked(part, options),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Batches::for_gpus(model, part, options, false),
        }
    }

    /// Begins a step; see [`CpuModel::train_step`].
    pub(super) fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), TrainError> {
        match (self, batch) {
            (Self::Cpu(model, outcomes), Batch::Unpacked(batch)) => {
                outcomes.push(model.train_step(&batch.samples, rate_factor));
            }
            #[cfg(feature = "cuda")]
            (Self::Cuda(model, _), Batch::Unpacked(batch)) => {
                model.train_step(&batch.samples, rate_factor)?
            }
            #[cfg(feature = "cuda")]
            (Self::Cuda(model, _), Batch::Packed(batch)) => model.train_fed(batch, rate_factor)?,
            #[cfg(feature = "cuda")]
            (Self::Cpu(..), Batch::Packed(_)) => unreachable!("batches are opened for the learner"),
        }
        Ok(())
    }

    /// How long `count` steps take, in milliseconds each, over batches that lie ready on the device; of those given, it
    /// takes as many as there is room for.
    pub(super) fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, TrainError> {
        match self {
            Self::Cpu(model, _) => {
                let step = |batch| {
                    let began = Instant::now();
                    model.train_step(batch, rate_factor);
                    began.elapsed().as_secs_f64() * 1e3
                };
                Ok(batches.iter().cycle().take(count).map(step).collect())
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => {
                let most = crate::cuda::CudaModel::RESIDENT_BATCHES.min(batches.len());
                Ok(model.time_steps(&batches[..most], rate_factor, count)?)
            }
        }
    }

    /// The moment at which the steps that were begun will be done, by a GPU's clock.
    pub(super) fn mark(&self) -> Result<Option<Mark>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(Some(model.mark()?)),
        }
    }

    /// Milliseconds from each moment to the next, once all steps are done.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "without GPUs there are no marks"))]
    pub(super) fn ms_between(&self, marks: &[Mark]) -> Result<Option<Vec<f64>>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(..) => {
                let ms = |pair: &[Mark]| pair[1].synchronize().and_then(|()| pair[1].ms_since(&pair[0]));
                let all = marks.windows(2).map(ms).collect::<Result<_, _>>();
                Ok(Some(all.map_err(crate::cuda::Error::from)?))
            }
        }
    }

    /// How long each phase of an iteration takes alone, where a GPU has phases, and what that GPU reaches at most. A
    /// step must have been done; weights change.
    pub(super) fn time_phases(&mut self) -> Result<(Vec<Phase>, Option<Ceilings>), TrainError> {
        match self {
            Self::Cpu(..) => Ok((Vec::new(), None)),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => {
                let times = model.time_phases()?;
                let ceilings = Ceilings {
                    gb_per_s: times.bytes_per_s / 1e9,
                    tflop_per_s: times.flops_per_s / 1e12,
                    fp8_tflop_per_s: times.fp8_flops_per_s.map(|flops| flops / 1e12),
                };
                let phases = times.phases.into_iter();
                let phases = phases.map(|(phase, ms, work)| {
                    let of_products = ceilings.fp8_tflop_per_s.filter(|_| work.fp8);
                    let tflop_per_s = of_products.unwrap_or(ceilings.tflop_per_s);
                    let ceilings = Ceilings { tflop_per_s, ..ceilings };
                    Phase::new(phase.name(), ms, (work.bytes, work.flops), ceilings)
                });
                Ok((phases.collect(), Some(ceilings)))
            }
        }
    }

    /// Trains so many steps on the batches that lie on a GPU, and waits for them; none on a CPU.
    pub(super) fn repeat_steps(&mut self, steps: usize) -> Result<(), TrainError> {
        match self {
            Self::Cpu(..) => {
                let _ = steps;
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(model.repeat_steps(steps)?),
        }
    }

    /// What a GPU does, kernel by kernel, while `run` does something and waits for it; nothing on a CPU.
    pub(super) fn trace(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), TrainError>,
    ) -> Result<Vec<Activity>, TrainError> {
        match self {
            Self::Cpu(..) => run(self).map(|()| Vec::new()),
            #[cfg(feature = "cuda")]
            Self::Cuda(..) => gpu::trace(|| run(self)),
        }
    }

    /// Tells what steps came to that were not told of yet, in order; of all that were begun, or of those alone of which
    /// it is known.
    pub(super) fn take_outcomes(
        &mut self,
        all: bool,
        tell: impl FnMut(StepOutcome),
    ) -> Result<(), TrainError> {
        match self {
            // Here a step is done when it is begun.
            Self::Cpu(_, outcomes) if all || !outcomes.is_empty() => outcomes.drain(..).for_each(tell),
            Self::Cpu(..) => {}
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.take_outcomes(all, tell)?,
        }
        Ok(())
    }
}

impl Scorer for Learner {
    fn spec(&self) -> &ModelSpec {
        match self {
            Self::Cpu(model, _) => model.spec(),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.spec(),
        }
    }

    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64, &[u64]),
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
        match self {
            Self::Cpu(model, _) => model.judge(part, options, progress),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, judge) => judge.judge(model, part, options, progress),
        }
    }
}

impl Weights for Learner {
    fn spec(&self) -> &ModelSpec {
        Scorer::spec(self)
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        match self {
            Self::Cpu(model, _) => model.try_for_each_run(tell),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.try_for_each_run(tell),
        }
    }
}
