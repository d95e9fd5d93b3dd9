//! The learner: a model on the device that a job selects.

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

/// A model on a device. The outcomes of steps may be known later than the steps are started.
pub(super) enum Learner {
    /// In host memory, with the outcomes of steps that were not taken yet.
    Cpu(Box<CpuModel>, Vec<StepOutcome>),
    /// In GPU memory, with its evaluation.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::cuda::CudaModel>, Box<gpu::Judge>),
}

/// A point in time of a GPU's work.
#[cfg(feature = "cuda")]
pub(super) type Mark = rankine_cuda::Moment;
/// None: there is no GPU in this build.
#[cfg(not(feature = "cuda"))]
pub(super) type Mark = std::convert::Infallible;

/// The device that a job is to be trained on.
pub(super) enum Choice {
    /// The CPU, over several ranks if there is a plan; and why, as the end of a sentence.
    Cpu(Option<EmbeddingPlan>, String),
    /// GPUs, one per rank, and the processes that have the others; the placement of tables if there are several; and
    /// the overlaps of an iteration.
    #[cfg(feature = "cuda")]
    Cuda(Vec<Arc<rankine_cuda::Device>>, Seats, Option<gpu::Placed>, Overlaps),
}

impl Choice {
    /// Selects the device as the job says; nothing is created yet.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] and [`TrainError::Device`] if the job cannot be trained here.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs are measured"))]
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
                    "several processes train on GPUs, and this build does not support GPUs".into(),
                ));
            }
        };
        Ok(Self::Cpu(plan_for_cpu(job, dataset, spec, rules)?, why))
    }

    /// Disables some overlaps of GPU work; no effect on the CPU.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs overlap work"))]
    pub(super) fn without(self, left_out: &[Overlap]) -> Self {
        match self {
            Self::Cpu(..) => self,
            #[cfg(feature = "cuda")]
            Self::Cuda(devices, seats, placed, _) => {
                Self::Cuda(devices, seats, placed, Overlaps::without(left_out))
            }
        }
    }

    /// The assumed performance of the GPUs if tables were placed by it, for `machine.toml`.
    pub(super) fn machine(&self) -> Option<&str> {
        match self {
            Self::Cpu(..) => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(_, _, placed, _) => placed.as_ref().map(|placed| placed.machine.as_str()),
        }
    }

    /// The model of a job with its initial weights, and the device in words. Matrix products use the algorithms that
    /// were recorded, if those are of the same GPUs.
    ///
    /// # Errors
    /// [`TrainError::Device`] if the device cannot hold it.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only GPUs use bag sizes and recorded products")
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

/// The device that would train a job here, in words, determined without creating a model: the device that training
/// selects, with its libraries and memory for the model.
///
/// # Errors
/// [`TrainError::Conflicts`] and [`TrainError::Device`], the errors that training would end with.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs have seats"))]
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

/// Which of the CPU's ranks store the rows of tables, if there are several ranks.
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

    /// The record of its product algorithms, for `tuning.json`; none on the CPU.
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

    /// Whether it computes in the job's precision, as GPUs do.
    pub(super) fn is_on_gpu(&self) -> bool {
        !matches!(self, Self::Cpu(..))
    }

    /// The device memory that the model uses, if the device has its own; with several, that of the fullest one.
    pub(super) fn memory(&self) -> Result<Option<DeviceMemory>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(Some(model.budget()?.into())),
        }
    }

    /// Steps skipped because fp16 gradients overflowed; `None` in other precisions.
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

    /// What ranks sent each other; see [`CpuModel::traffic`]. Not counted on GPUs.
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

    /// Starts a step; see [`CpuModel::train_step`].
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

    /// Milliseconds that each of `count` steps takes over batches that are resident on the device. Uses as many of
    /// the given batches as fit.
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

    /// The moment at which all started steps will be complete, on a GPU's clock.
    pub(super) fn mark(&self) -> Result<Option<Mark>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(Some(model.mark()?)),
        }
    }

    /// Milliseconds from each moment to the next, once all steps are complete.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs have marks"))]
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

    /// The time that each phase of an iteration takes by itself, if the device has phases, and the ceilings of that
    /// GPU. Requires a completed step; weights change.
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

    /// Trains this many steps on the batches that are resident on a GPU, and waits for them; none on a CPU.
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

    /// Records the GPU's activity, kernel by kernel, while `run` works and waits for it; nothing on a CPU.
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

    /// Reports outcomes of steps that were not reported yet, in order: of all started steps if `all`, otherwise of
    /// those that are known.
    pub(super) fn take_outcomes(
        &mut self,
        all: bool,
        tell: impl FnMut(StepOutcome),
    ) -> Result<(), TrainError> {
        match self {
            // On the CPU a step is complete when `train_step` returns.
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
