//! What learns: a model on the device that a job names.

#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Instant;

use rankine_embedding::EmbeddingPlan;
use rankine_embedding::plan::Machine;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Dataset, Samples};

use super::batches::{Batch, Batches};
use super::bench::{Activity, Ceilings, Phase};
use super::checkpoints::Recorded;
use super::evaluate::Scorer;
use super::seats::Seats;
use super::translate::check_memory;
use super::{DeviceMemory, TrainError};
use crate::cpu::{CpuModel, RankTraffic, Sharding};
use crate::evaluation::HeadMetrics;
use crate::job::{DenseUpdate, Job};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::Overlap;
#[cfg(feature = "cuda")]
use crate::overlap::Overlaps;
use crate::planning;
use crate::saved::{SavedModelError, Weights};

/// A model on a device. Losses of steps may come later than the steps.
pub(super) enum Learner {
    /// In the host's memory, and the losses that were not taken yet.
    Cpu(Box<CpuModel>, Vec<f64>),
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
        Some(path) => planning::machine_of_job(path, memory, job)?,
        None => Machine::cpu(memory),
    };
    let plan = || planning::plan(job, spec, rules, dataset, &machine);
    let plan = (topology.ranks() > 1).then(plan).transpose()?;
    check_memory(spec, rules, plan.as_ref())?;
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
            (Self::Cpu(model, losses), Batch::Unpacked(batch)) => {
                losses.push(model.train_step(&batch.samples, rate_factor));
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

    /// Tells the losses of steps that were not told yet, in order; of all that were begun, or of those alone that are
    /// known.
    pub(super) fn take_losses(&mut self, all: bool, tell: impl FnMut(f64)) -> Result<(), TrainError> {
        match self {
            // Here every loss is known when its step is done.
            Self::Cpu(_, losses) if all || !losses.is_empty() => losses.drain(..).for_each(tell),
            Self::Cpu(..) => {}
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => model.take_losses(all, tell)?,
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
        progress: &mut dyn FnMut(u64),
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

#[cfg(feature = "cuda")]
mod gpu {
    //! Which jobs GPUs train.

    use std::sync::Arc;

    use rankine_cuda::Error::{NoDevice, NoDriver};
    use rankine_cuda::blas::Algorithms;
    use rankine_cuda::{ActivityKind, Device, Trace};
    use rankine_embedding::EmbeddingPlan;
    use rankine_embedding::cuda::Error as GpuError;
    use rankine_reader::Dataset;
    use rankine_reader::dataset::DatasetPart;
    use rankine_reader::stream::StreamOptions;

    use super::super::TrainError;
    use super::super::batches::{Batch, Batches};
    use super::super::checkpoints::Recorded;
    use super::super::seats::Seats;
    use super::Activity;
    use crate::calibration;
    use crate::cuda::{
        BatchShape, CudaEvaluation, CudaModel, Error, Execution, FedBatch, Feed, Judgement, refusals,
    };
    use crate::evaluation::HeadMetrics;
    use crate::job::{DenseUpdate, DeviceKind, Exchange, Job, Placement, Precision};
    use crate::model::{ModelSpec, TrainingRules};
    use crate::overlap::Overlaps;
    use crate::planning;

    /// What to do where a job is too large.
    const WAY_OUT: &str = "Tables take less with embedding.dtype = \"bf16\", fewer rows (data.generate.rows_cap, or \
                           hashing at conversion), a smaller model.embedding_dim, or a sparse optimizer that keeps \
                           less beside each row; all else grows with train.batch_size. With device.kind = \"cpu\" \
                           the host's memory is what counts";

    /// The GPUs that are to train a job, one a rank; or why the CPU is, in words to be said behind that.
    pub(super) fn devices(
        job: &Job,
        seats: &Seats,
        spec: &ModelSpec,
    ) -> Result<Result<Vec<Arc<Device>>, String>, TrainError> {
        // Several processes have no other way.
        let several = seats.processes.size() > 1;
        let kind = if several { DeviceKind::Cuda } else { job.device.kind };
        if kind == DeviceKind::Cpu {
            return Ok(Err(String::new()));
        }
        let refused = refusals(job, spec);
        let ranks = job.device.ranks.get() as usize;
        let open = seats.gpus.iter().map(|&gpu| Device::open(gpu)).collect::<rankine_cuda::Result<_>>();
        match (open, refused.first()) {
            (Err(error), _) if several => {
                Err(TrainError::Device(format!("several processes train on GPUs, and {error}")))
            }
            (Err(error), _) if kind == DeviceKind::Cuda => Err(TrainError::Device(format!(
                "device.kind is \"cuda\", and {error}. With \"auto\" or \"cpu\" the job is trained on the CPU"
            ))),
            (Ok(_), Some(_)) if kind == DeviceKind::Cuda => Err(TrainError::Conflicts(refused)),
            (Err(NoDriver(_) | NoDevice { ordinal: 0, .. }), _) => {
                Ok(Err(", since there is no GPU that can be used".into()))
            }
            (Err(NoDevice { count, .. }), _) => {
                Ok(Err(format!(", since {ranks} ranks take as many GPUs, and there are {count}")))
            }
            // One that is there, and cannot be used: whoever has it wants to know why.
            (Err(error), _) => Ok(Err(format!(", since {error}"))),
            (Ok(_), Some(first)) => Ok(Err(format!(", since GPUs do not do this job ({first})"))),
            (Ok(devices), None) => {
                let devices: Vec<Arc<Device>> = devices;
                let fp8 = job.device.precision == Precision::Fp8;
                let Some(other) = devices.iter().find(|device| fp8 && !device.multiplies_fp8()) else {
                    return Ok(Ok(devices));
                };
                let name = other.name().map_err(Error::from)?;
                let why =
                    format!("{name} is no Hopper, whose tensor cores device.precision = \"fp8\" is for");
                if kind == DeviceKind::Cuda {
                    return Err(TrainError::Device(format!("{why}: use \"bf16\"")));
                }
                Ok(Err(format!(", since {why}")))
            }
        }
    }

    /// The job as it is planned over so many nodes, between which rows go that have an owner, and no bags.
    fn planned_over(job: &Job, nodes: usize) -> Job {
        let mut job = job.clone();
        if nodes > 1 {
            let of_rows = |placement: &mut Placement, exchange: &mut Exchange| {
                if *placement == Placement::Auto {
                    *placement = Placement::RowWise;
                }
                *exchange = Exchange::Rows;
            };
            of_rows(&mut job.embedding.placement, &mut job.embedding.exchange);
            for table in &mut job.tables {
                let exchange = table.exchange.get_or_insert(Exchange::Rows);
                if let Some(placement) = &mut table.placement {
                    of_rows(placement, exchange);
                }
            }
        }
        job
    }

    /// The model on its GPUs, and these in words; or why it is not there, in words to be said behind "the CPU".
    pub(super) fn initialize(
        (devices, seats, plan, overlaps): (&[Arc<Device>], &Seats, Option<&EmbeddingPlan>, Overlaps),
        (job, recorded): (&Job, Option<&str>),
        dataset: &Dataset,
        (spec, rules): (&ModelSpec, &TrainingRules),
    ) -> Result<Result<(CudaModel, String), String>, TrainError> {
        let precision = job.device.precision;
        let hotness: Vec<_> = dataset.schema().categorical.iter().map(|column| column.hotness).collect();
        let shape = BatchShape {
            batch_size: job.train.batch_size.get() as usize,
            score_size: job.eval.batch_size.get() as usize,
            hotness: &hotness,
            plan,
            keeps_book: job.checkpoint.incremental,
        };
        let (processes, several) = (&seats.processes, seats.processes.size() > 1);
        let make = |algorithms| {
            let execution = Execution {
                precision,
                algorithms,
                overlaps,
                shard_dense_update: job.device.dense_update == DenseUpdate::Sharded,
            };
            let spec = spec.clone();
            match devices {
                [device] if several => {
                    let device = (device, seats.topology.nodes());
                    CudaModel::of_processes(device, processes, spec, rules, execution, job.seed, shape)
                }
                _ => {
                    let over = (devices, seats.topology.nodes(), several.then_some(processes));
                    CudaModel::over_ranks(over, spec, rules, execution, job.seed, shape)
                }
            }
        };
        let recorded = recorded.and_then(|text| serde_json::from_str(text).ok()).map(Algorithms::Recorded);
        let made = match recorded.map(make) {
            // Of another GPU, or another version of the library: what follows is rounded otherwise.
            Some(Err(error))
                if matches!(error.gpu(), Some(GpuError::Cuda(rankine_cuda::Error::Tuning(_)))) =>
            {
                tracing::warn!("products take other algorithms than before: {error}");
                make(algorithms(job)?)
            }
            Some(made) => made,
            None => make(algorithms(job)?),
        };
        let it = if devices.len() == 1 { "the GPU" } else { "one of the GPUs" };
        match made {
            Ok(model) => {
                let name = devices[0].name().map_err(Error::from)?;
                let how_many = match (seats.topology.ranks(), processes.size()) {
                    (1, _) => "one GPU".into(),
                    (count, 1) => format!("{count} GPUs"),
                    (count, processes) => format!("{count} GPUs of {processes} processes"),
                };
                Ok(Ok((model, format!("{how_many} ({name}) in {}", precision.name()))))
            }
            Err(error) => match error.gpu() {
                Some(GpuError::Cuda(error @ rankine_cuda::Error::Tuning(_))) => {
                    Err(TrainError::Device(format!(
                        "device.tuning: {error}. Leave it out, or have algorithms timed anew with device.tune = true"
                    )))
                }
                _ if error.gpu().is_none() || error.misses_rank() => Err(error.into()),
                _ if several || job.device.kind == DeviceKind::Cuda => {
                    Err(TrainError::Device(format!("{it} cannot take this job: {error}. {}", WAY_OUT)))
                }
                _ => Ok(Err(format!(", since {it} cannot take this job ({error})"))),
            },
        }
    }

    /// Where tables lie over several GPUs.
    pub(in super::super) struct Placed {
        pub(super) plan: EmbeddingPlan,
        /// What the GPUs were taken to do in a second, in the words of a machine's file.
        pub(super) machine: String,
    }

    /// Places the tables of a job, where there are several GPUs. All processes take what the first one knows of them.
    pub(super) fn place(
        (devices, seats): (&[Arc<Device>], &Seats),
        (job, recorded): (&Job, &Recorded),
        dataset: &Dataset,
        (spec, rules): (&ModelSpec, &TrainingRules),
    ) -> Result<Option<Placed>, TrainError> {
        let Seats { processes, topology, gpus } = seats;
        if topology.ranks() == 1 {
            return Ok(None);
        }
        let precision = job.device.precision;
        let apart = (1..gpus.len()).all(|gpu| !gpus[..gpu].contains(&gpus[gpu]));
        let machine = match (&job.device.machine, &recorded.machine) {
            (Some(path), _) => planning::machine_of_job(path, 0, job)?,
            (None, Some(text)) => planning::parse_machine(text, precision).map_err(TrainError::Device)?,
            (None, None) => {
                let a_node = topology.ranks_per_node();
                calibration::machine_of(devices, a_node, precision, apart).map_err(Error::from)?
            }
        };
        let (machine, _) = planning::write_machine(&machine, "h200", precision);
        let machine = processes.of_first("what the GPUs do in a second", machine.as_bytes())?;
        let machine = String::from_utf8_lossy(&machine).into_owned();
        let planned_with = planning::parse_machine(&machine, precision).map_err(TrainError::Device)?;
        let job = planned_over(job, topology.nodes());
        let plan = planning::plan(&job, spec, rules, dataset, &planned_with)?;
        Ok(Some(Placed { plan, machine }))
    }

    /// What judges a model: with the evaluation's blocks, where those fit on the GPUs, so that only the first
    /// evaluation reads.
    #[derive(Default)]
    pub(in super::super) struct Judge {
        resident: Vec<FedBatch>,
    }

    impl Judge {
        /// As [`Scorer::judge`]: of one part, each time the same.
        pub(super) fn judge(
            &mut self,
            model: &mut CudaModel,
            part: DatasetPart,
            options: &StreamOptions,
            progress: &mut dyn FnMut(u64),
        ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
            if !CudaEvaluation::fits(part.samples) {
                let samples = part.samples;
                return Err(TrainError::Device(format!("a GPU does not judge {samples} samples at once")));
            }
            let options =
                StreamOptions { batch_size: options.batch_size.min(model.score_size()), ..*options };
            model.begin_judging(part.samples as usize, options.batch_size)?;
            let mut samples = 0;
            let mut count = |batch: usize| {
                samples += batch as u64;
                progress(samples);
            };
            // Kept until all is judged.
            let mut batches = None;
            if self.resident.is_empty() {
                let stay = Feed::fits(model.devices(), &part, &options)?;
                let batches = batches.insert(Batches::for_gpus(model, part, &options, stay)?);
                for batch in batches {
                    let batch = batch?;
                    match &batch {
                        Batch::Unpacked(batch) => model.judge(&batch.samples)?,
                        Batch::Packed(batch) => {
                            model.judge_fed(batch)?;
                            self.resident.extend(stay.then(|| batch.clone()));
                        }
                    }
                    count(batch.len());
                }
            } else {
                for batch in &self.resident {
                    model.judge_fed(batch)?;
                    count(batch.len());
                }
            }
            let Judgement { heads, not_numbers } = model.finish_judging()?;
            drop(batches);
            Ok((not_numbers == 0).then_some(heads))
        }
    }

    /// What GPUs do while `run` does something and waits for it.
    pub(super) fn trace(run: impl FnOnce() -> Result<(), TrainError>) -> Result<Vec<Activity>, TrainError> {
        let refused = |error: rankine_cuda::Error| TrainError::Device(error.to_string());
        let trace = Trace::begin().map_err(refused)?;
        run()?;
        let activities = trace.end().map_err(refused)?.into_iter();
        let shown = |activity: rankine_cuda::Activity| Activity {
            name: activity.name,
            is_kernel: activity.kind == ActivityKind::Kernel,
            device: activity.device,
            lane: activity.lane,
            begin_ns: activity.begin_ns,
            end_ns: activity.end_ns,
            bytes: activity.bytes,
        };
        Ok(activities.map(shown).collect())
    }

    /// Where the algorithms of products come from.
    fn algorithms(job: &Job) -> Result<Algorithms, TrainError> {
        let Some(path) = &job.device.tuning else {
            return Ok(if job.device.tune { Algorithms::Timed } else { Algorithms::Known });
        };
        let unusable = |why: String| TrainError::Device(format!("device.tuning: {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        let record = serde_json::from_str(&text);
        record.map(Algorithms::Recorded).map_err(|error| {
            unusable(format!("no record such as a training leaves in its folder as tuning.json: {error}"))
        })
    }
}
