//! GPUs as a back end: selecting those of a job, creating the model there, training and evaluating it.

use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use rankine_checkpoint::{CheckpointError, DeviceState, StateSource};
use rankine_cuda::Error::{NoDevice, NoDriver};
use rankine_cuda::blas::Algorithms;
use rankine_cuda::probe::uuid_text;
use rankine_cuda::{ActivityKind, Device, Moment, Trace};
use rankine_embedding::cuda::{Error as GpuError, LookUpCounts};
use rankine_embedding::{EmbeddingPlan, RankTraffic};
use rankine_engine_gpu::{
    BatchShape, CudaEvaluation, CudaModel, Error, EvaluationResult, EvaluationShape, Execution, Feed,
    ModelSetup, calibration, refusals,
};
use rankine_job::{DenseUpdate, DeviceKind, Job, Precision};
use rankine_model::evaluation::HeadMetrics;
use rankine_model::guard::StepOutcome;
use rankine_model::overlap::{Overlap, Overlaps};
use rankine_model::{Model, ModelSpec};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::Rung;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Dataset, Part, Samples};
use rankine_saved::{SavedModelError, Weights};
use rankine_topology::Rank;

use super::batches::{Batch, BatchSource, Batches};
use super::device::{Backend, InitializedDevice, Profile, RankVisit};
use super::measurements::Measurements;
use super::memory::{DeviceMemory, MemoryPart};
use super::phases::{Ceilings, MeasuredPhase, TraceEvent};
use super::refusal::{GpuSelectionError, Refusal};
use super::scorer::{Scorer, ScoringProgress};
use crate::training::error::TrainError;
use crate::training::processes::RankAssignment;
use crate::training::report::{LookUpCount, PhaseRun, ReportDetails};
use crate::{build, planning};
pub(super) use rankine_engine_gpu::FeedBatch;

/// What to do if a job is too large.
const WAY_OUT: &str = "To make tables smaller, use embedding.dtype = \"bf16\", fewer rows (data.generate.rows_cap, or \
hashing at conversion), a smaller model.embedding_dim, or a sparse optimizer with less state per row; all other parts \
shrink with train.batch_size. With device.kind = \"cpu\" the job uses host memory instead";

/// Opens the GPUs that are to train a job, one per rank.
fn devices(
    job: &Job,
    assignment: &RankAssignment,
    spec: &ModelSpec,
) -> Result<Vec<Arc<Device>>, GpuSelectionError> {
    // Several processes cannot fall back to the CPU.
    let several = assignment.processes.size() > 1;
    let kind = if several { DeviceKind::Cuda } else { job.device.kind };
    if kind == DeviceKind::Cpu {
        return Err(Refusal::OnlyCpu.into());
    }
    let refused = refusals(job, spec);
    let ranks = job.device.ranks.get() as usize;
    let open = assignment.gpus.iter().map(|&gpu| Device::open(gpu)).collect::<rankine_cuda::Result<_>>();
    let devices: Vec<Arc<Device>> = match (open, refused.into_iter().next()) {
        (Ok(devices), None) => devices,
        (Err(error), _) if several => {
            let why = format!("several processes train on GPUs, and {error}");
            return Err(TrainError::Device(why).into());
        }
        (Err(error), _) if kind == DeviceKind::Cuda => {
            let why = format!(
                "device.kind is \"cuda\", but {error}. With \"auto\" or \"cpu\" the job is trained on the CPU"
            );
            return Err(TrainError::Device(why).into());
        }
        (Ok(_), Some(_)) if kind == DeviceKind::Cuda => {
            return Err(TrainError::Conflicts(refusals(job, spec)).into());
        }
        (Err(NoDriver(_) | NoDevice { ordinal: 0, .. }), _) => return Err(Refusal::NoGpu.into()),
        (Err(NoDevice { count, .. }), _) => return Err(Refusal::TooFew { ranks, gpus: count }.into()),
        // A GPU exists but cannot be used: its owner needs to know why.
        (Err(error), _) => return Err(Refusal::Unusable(error.to_string()).into()),
        (Ok(_), Some(first)) => return Err(Refusal::Unsupported(first).into()),
    };
    let fp8 = job.device.precision == Some(Precision::Fp8);
    let Some(other) = devices.iter().find(|device| fp8 && !device.multiplies_fp8()) else {
        return Ok(devices);
    };
    let why = Refusal::NoFp8 { gpu: other.name().map_err(Error::from)? };
    if kind == DeviceKind::Cuda {
        return Err(TrainError::Device(format!("{why}: use \"bf16\"")).into());
    }
    Err(why.into())
}

/// The GPUs that would train a job, in words. Loads the libraries, and compares the free memory with the tables only.
pub(super) fn device_of(
    job: &Job,
    assignment: &RankAssignment,
    model: &Model,
) -> Result<String, GpuSelectionError> {
    let devices = devices(job, assignment, &model.spec)?;
    let table_bytes = model.table_bytes() / devices.len().max(1) as u64;
    let check = || -> Result<(), String> {
        rankine_cuda::blas::check_library().map_err(|error| error.to_string())?;
        if assignment.topology.nodes() > 1 {
            rankine_cuda::nccl::check_library().map_err(|error| error.to_string())?;
        }
        for device in &devices {
            let budget = device.bind().and_then(|()| device.budget()).map_err(|error| error.to_string())?;
            if table_bytes > budget.free_bytes {
                return Err(format!(
                    "the tables and their optimizer state take {} per GPU, but {} are free. {WAY_OUT}",
                    ByteSize(table_bytes),
                    ByteSize(budget.free_bytes)
                ));
            }
        }
        Ok(())
    };
    match check() {
        Ok(()) => {
            let name = devices[0].name().map_err(Error::from)?;
            let count = devices.len();
            Ok(if count == 1 { format!("one GPU ({name})") } else { format!("{count} GPUs ({name})") })
        }
        Err(why) if job.device.kind == DeviceKind::Cuda => {
            Err(TrainError::Device(format!("GPUs cannot train this job: {why}")).into())
        }
        Err(why) => Err(Refusal::Unusable(why).into()),
    }
}

/// The GPUs that are to train a job.
pub(super) struct Gpus {
    /// One per rank of this process.
    devices: Vec<Arc<Device>>,
    /// The processes that have the others.
    assignment: RankAssignment,
    /// The placement of tables, if there are several ranks.
    placed: Option<PlacedTables>,
    /// The overlaps of an iteration.
    overlaps: Overlaps,
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
        let devices = devices(job, assignment, &model.spec)?;
        let mut gpus =
            Self { devices, assignment: assignment.clone(), placed: None, overlaps: Overlaps::ALL };
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
        let processes = self.assignment.processes.size();
        let model = self.create(job, dataset, model, measured.tuning.as_deref())?;
        let name = self.devices[0].name().map_err(Error::from)?;
        let how_many = match (self.assignment.topology.ranks(), processes) {
            (1, _) => "one GPU".into(),
            (count, 1) => format!("{count} GPUs"),
            (count, processes) => format!("{count} GPUs of {processes} processes"),
        };
        let name = format!("{how_many} ({name}) in {}", job.device.precision_on_gpus().name());
        let placements = InitializedDevice::placements(self.placed.as_ref().map(|placed| &placed.plan));
        let backend = Box::new(GpuBackend { model, resident: None, marks: Vec::new(), trace: None });
        Ok(InitializedDevice { backend, name, placements })
    }

    /// Creates the model.
    fn create(
        &self,
        job: &Job,
        dataset: &Dataset,
        model: &Model,
        recorded: Option<&str>,
    ) -> Result<CudaModel, GpuSelectionError> {
        let Self { devices, assignment, overlaps, .. } = self;
        let plan = self.placed.as_ref().map(|placed| &placed.plan);
        let columns = dataset.schema().categorical.iter().enumerate();
        let batches = BatchShape {
            batch_size: job.train.batch_size.get() as usize,
            score_size: job.eval.batch_size.get() as usize,
            hotness: columns.map(|(number, column)| dataset.ids().hotness(number, column.hotness)).collect(),
        };
        let several = assignment.processes.size() > 1;
        let make = |algorithms| {
            CudaModel::initialized(ModelSetup {
                model: model.clone(),
                seed: job.seed,
                execution: Execution {
                    deadline: job.guard.barrier_timeout_s.duration(),
                    precision: job.device.precision_on_gpus(),
                    algorithms,
                    overlaps: *overlaps,
                    shard_dense_update: job.device.dense_update == DenseUpdate::Sharded,
                },
                batches: batches.clone(),
                plan: plan.cloned(),
                tracks_updates: job.checkpoint.incremental,
                devices: devices.clone(),
                nodes: assignment.topology.nodes(),
                processes: several.then(|| assignment.processes.clone()),
                measures_memory: true,
            })
        };
        let recorded = recorded.and_then(|text| serde_json::from_str(text).ok()).map(Algorithms::Recorded);
        let made = match recorded.map(make) {
            // Of another GPU, or another version of the library: later results are rounded differently.
            Some(Err(error))
                if matches!(error.gpu(), Some(GpuError::Cuda(rankine_cuda::Error::Tuning(_)))) =>
            {
                tracing::warn!("matrix products use different algorithms from before: {error}");
                make(algorithms(job)?)
            }
            Some(made) => made,
            None => make(algorithms(job)?),
        };
        made.map_err(|error| match error.gpu() {
            Some(GpuError::Cuda(error @ rankine_cuda::Error::Tuning(_))) => TrainError::Device(format!(
                "device.tuning: {error}. Remove the key, or time the algorithms again with device.tune = true"
            ))
            .into(),
            _ if error.gpu().is_none() || error.misses_rank() => error.into(),
            _ if several || job.device.kind == DeviceKind::Cuda => {
                let it = if devices.len() == 1 { "the GPU" } else { "one of the GPUs" };
                TrainError::Device(format!("{it} cannot train this job: {error}. {WAY_OUT}")).into()
            }
            _ => Refusal::Full { gpus: devices.len(), error: error.to_string() }.into(),
        })
    }

    /// Places the tables of a job over several GPUs. All processes use the performance that the first one knows.
    fn place(
        &self,
        job: &Job,
        dataset: &Dataset,
        model: &Model,
        measured: &Measurements,
    ) -> Result<Option<PlacedTables>, TrainError> {
        let devices = &self.devices;
        let RankAssignment { processes, topology, gpus } = &self.assignment;
        if topology.ranks() == 1 {
            return Ok(None);
        }
        let precision = job.device.precision_on_gpus();
        let apart = (1..gpus.len()).all(|gpu| !gpus[..gpu].contains(&gpus[gpu]));
        let machine = match (&job.device.machine, &measured.machine) {
            (Some(path), _) => planning::machine_of_job(path, 0, job).map_err(TrainError::Device)?,
            (None, Some(text)) => planning::parse_machine(text, precision).map_err(TrainError::Device)?,
            (None, None) => {
                let a_node = topology.ranks_per_node();
                let build = apart.then(build::here);
                calibration::machine_of(devices, a_node, precision, build).map_err(Error::from)?
            }
        };
        let (machine, _) = planning::write_machine(&machine, "h200", precision);
        let machine = processes.of_first("the measured performance of the GPUs", machine.as_bytes())?;
        let machine = String::from_utf8_lossy(&machine).into_owned();
        let planned_with = planning::parse_machine(&machine, precision).map_err(TrainError::Device)?;
        let plan = planning::plan(job, model, dataset, &planned_with)?;
        Ok(Some(PlacedTables { plan, machine }))
    }
}

/// The placement of tables over several GPUs.
struct PlacedTables {
    plan: EmbeddingPlan,
    /// The performance assumed for the GPUs, as the text of a machine file.
    machine: String,
}

/// A model in GPU memory. Keeps the blocks of the part that was scored last if they fit on the GPUs, so that only its
/// first evaluation reads.
struct GpuBackend {
    model: CudaModel,
    resident: Option<ResidentPart>,
    /// Moments that were marked.
    marks: Vec<Moment>,
    /// The trace in progress.
    trace: Option<Trace>,
}

/// A part of the dataset in GPU memory.
struct ResidentPart {
    /// Its files.
    files: Vec<PathBuf>,
    part: Part,
    batches: Vec<Batch>,
}

/// Batches that GPUs unpack.
struct PackedBatches(Feed);

impl Iterator for PackedBatches {
    type Item = Result<Batch, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Batch::Packed).map_err(TrainError::from))
    }
}

impl BatchSource for PackedBatches {
    fn rung(&self) -> Rung {
        self.0.rung()
    }

    fn bytes_read(&self) -> u64 {
        self.0.bytes_read()
    }

    fn ready(&self) -> usize {
        self.0.ready()
    }
}

/// Starts to read a part for the GPUs of a model. The CPU unpacks raw records, data whose ids have rules, and data
/// with buckets; GPUs unpack everything else, and keep the blocks if they are to stay resident.
///
/// # Errors
/// As [`Feed::open`]; [`TrainError::Device`] if memory does not suffice.
fn open(
    model: &CudaModel,
    part: DatasetPart,
    options: &StreamOptions,
    stay: bool,
) -> Result<Batches, TrainError> {
    if part.why_unpacked().is_some() {
        return Batches::unpacked(part, options);
    }
    match Feed::open_shares(model.feed_ranks(), part, options, stay) {
        Ok(feed) => Ok(Batches::new(PackedBatches(feed))),
        Err(Error::Gpu(error)) => Err(TrainError::Device(format!(
            "not enough memory to stage batches for the GPU: {error}. A smaller train.shuffle_window_blocks or \
             train.batch_size needs less"
        ))),
        Err(error) => Err(error.into()),
    }
}

impl Backend for GpuBackend {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, TrainError> {
        open(&self.model, part, options, false)
    }

    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), TrainError> {
        match batch {
            Batch::Unpacked(batch) => self.model.train_step(&batch.samples, rate_factor)?,
            Batch::Packed(batch) => self.model.train_fed(batch, rate_factor)?,
        }
        Ok(())
    }

    fn take_outcomes(&mut self, all: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), TrainError> {
        Ok(self.model.take_outcomes(all, visit)?)
    }

    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, TrainError> {
        let most = CudaModel::RESIDENT_BATCHES.min(batches.len());
        Ok(self.model.time_steps(&batches[..most], rate_factor, count)?)
    }

    fn diverged_ranks(&self) -> Result<Vec<Rank>, TrainError> {
        Ok(self.model.diverged_ranks()?)
    }

    fn visit_ranks(&self, visit: RankVisit) -> Result<(), CheckpointError> {
        self.model.on_each_rank(move |rank, state| visit(rank, state)).map(drop)
    }

    fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        self.model.begin_tracking()
    }

    fn restore(&mut self, from: &Arc<dyn StateSource>) -> Result<(), CheckpointError> {
        self.model.restore(from, &Arc::new(from.dense()?))
    }

    fn device_state(&self) -> Result<Option<DeviceState>, CheckpointError> {
        self.model.device_state().map(Some)
    }

    fn tuning(&self) -> Result<Option<String>, TrainError> {
        let record = serde_json::to_string_pretty(&self.model.tuning()?);
        Ok(Some(record.expect("a record is plain data") + "\n"))
    }

    fn memory(&self) -> Result<Vec<DeviceMemory>, TrainError> {
        let part = |part: rankine_cuda::Part| MemoryPart { purpose: part.purpose.into(), bytes: part.bytes };
        let of_gpu = |(device, budget): (&Arc<Device>, rankine_cuda::Budget)| {
            Ok(DeviceMemory {
                gpu: device.ordinal(),
                uuid: uuid_text(device.uuid().map_err(Error::from)?),
                parts: budget.parts.into_iter().map(part).collect(),
                free_bytes: budget.free_bytes,
                total_bytes: budget.total_bytes,
            })
        };
        self.model.devices().iter().zip(self.model.budgets()?).map(of_gpu).collect()
    }

    fn overflow_steps(&self) -> Result<Option<u64>, TrainError> {
        Ok(self.model.overflow_steps()?)
    }

    fn traffic(&self) -> Result<RankTraffic, TrainError> {
        Ok(self.model.traffic()?)
    }

    fn report_details(&self, _: &Batch) -> Result<ReportDetails, TrainError> {
        let tables = self.spec().tables.iter().zip(self.model.look_ups()?);
        let look_ups = tables.map(|(table, LookUpCounts { look_ups, distinct_rows })| LookUpCount {
            table: table.name.clone(),
            look_ups,
            distinct_rows,
        });
        let phases = self.model.phases()?.into_iter().map(|run| PhaseRun {
            name: run.phase.name().into(),
            begin_ms: run.begin_ms,
            ms: run.ms,
            roofline_ms: run.roofline_ms,
        });
        Ok(ReportDetails {
            loss_scale: self.model.loss_scale()?,
            exchanged: self.traffic()?.into(),
            look_ups: look_ups.collect(),
            phases: phases.collect(),
        })
    }

    fn profile(&mut self) -> Option<&mut dyn Profile> {
        Some(self)
    }
}

/// Scores a batch of the evaluation in progress.
fn evaluate_batch(model: &mut CudaModel, batch: &Batch) -> Result<(), Error> {
    match batch {
        Batch::Unpacked(batch) => model.evaluate(&batch.samples),
        Batch::Packed(batch) => model.evaluate_fed(batch),
    }
}

impl Scorer for GpuBackend {
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), TrainError>,
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
        if !CudaEvaluation::fits(part.samples) {
            let samples = part.samples;
            return Err(TrainError::Device(format!("a GPU cannot score {samples} samples at once")));
        }
        let options =
            StreamOptions { batch_size: options.batch_size.min(self.model.score_size()), ..*options };
        self.model.begin_evaluation(EvaluationShape {
            samples: part.samples as usize,
            batch_size: options.batch_size,
            weighted: part.schema.weight.is_some(),
        })?;
        let mut samples = 0;
        let mut count = |batch: &Batch, bytes_read: u64| {
            samples += batch.len() as u64;
            progress(ScoringProgress { samples, bytes_read, out_of_range: batch.out_of_range() })
        };
        // Kept until all samples are scored.
        let mut batches = None;
        // The memory of another part is free before it is decided whether this one fits.
        let is_same = |of: &ResidentPart| (of.part, &of.files) == (part.part, &part.files);
        self.resident = self.resident.take().filter(is_same);
        if let Some(resident) = &self.resident {
            for batch in &resident.batches {
                evaluate_batch(&mut self.model, batch)?;
                count(batch, 0)?;
            }
        } else {
            let stay = Feed::fits(self.model.devices(), &part, &options)?;
            let mut resident =
                ResidentPart { files: part.files.clone(), part: part.part, batches: Vec::new() };
            let batches = batches.insert(open(&self.model, part, &options, stay)?);
            while let Some(batch) = batches.next().transpose()? {
                evaluate_batch(&mut self.model, &batch)?;
                count(&batch, batches.bytes_read())?;
                resident
                    .batches
                    .extend(Some(batch).filter(|batch| stay && matches!(batch, Batch::Packed(_))));
            }
            self.resident = Some(resident).filter(|resident| !resident.batches.is_empty());
        }
        let EvaluationResult { heads, nan_logits } = self.model.finish_evaluation()?;
        drop(batches);
        Ok((nan_logits == 0).then_some(heads))
    }
}

impl Weights for GpuBackend {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        self.model.try_for_each_run(visit)
    }
}

impl Profile for GpuBackend {
    fn mark(&mut self) -> Result<(), TrainError> {
        self.marks.push(self.model.mark()?);
        Ok(())
    }

    fn ms_between_marks(&self) -> Result<Vec<f64>, TrainError> {
        let ms = |pair: &[Moment]| pair[1].synchronize().and_then(|()| pair[1].ms_since(&pair[0]));
        let all = self.marks.windows(2).map(ms).collect::<Result<_, _>>();
        Ok(all.map_err(Error::from)?)
    }

    fn time_phases(&mut self) -> Result<(Vec<MeasuredPhase>, Ceilings), TrainError> {
        let times = self.model.time_phases()?;
        let ceilings = Ceilings {
            gb_per_s: times.bytes_per_s / 1e9,
            tflop_per_s: times.flops_per_s / 1e12,
            fp8_tflop_per_s: times.fp8_flops_per_s.map(|flops| flops / 1e12),
        };
        let phases = times.phases.into_iter().map(|(phase, ms, work)| {
            let of_products = ceilings.fp8_tflop_per_s.filter(|_| work.fp8);
            let tflop_ceiling = of_products.unwrap_or(ceilings.tflop_per_s);
            let (gb_per_s, tflop_per_s) = (work.bytes as f64 / ms / 1e6, work.flops as f64 / ms / 1e9);
            let roofline_share = (gb_per_s / ceilings.gb_per_s).max(tflop_per_s / tflop_ceiling);
            let (name, bytes, flops) = (phase.name(), work.bytes, work.flops);
            MeasuredPhase { name, ms, bytes, flops, gb_per_s, tflop_per_s, roofline_share }
        });
        Ok((phases.collect(), ceilings))
    }

    fn repeat_steps(&mut self, steps: usize) -> Result<(), TrainError> {
        Ok(self.model.repeat_steps(steps)?)
    }

    fn begin_trace(&mut self) -> Result<(), TrainError> {
        self.trace = Some(Trace::begin().map_err(|error| TrainError::Device(error.to_string()))?);
        Ok(())
    }

    fn end_trace(&mut self) -> Result<Vec<TraceEvent>, TrainError> {
        let Some(trace) = self.trace.take() else { return Ok(Vec::new()) };
        let activities = trace.end().map_err(|error| TrainError::Device(error.to_string()))?;
        let shown = |activity: rankine_cuda::GpuActivity| TraceEvent {
            name: activity.name,
            is_kernel: activity.kind == ActivityKind::Kernel,
            device: activity.device,
            lane: activity.lane,
            begin_ns: activity.begin_ns,
            end_ns: activity.end_ns,
            bytes: activity.bytes,
        };
        Ok(activities.into_iter().map(shown).collect())
    }
}

impl From<Error> for TrainError {
    fn from(error: Error) -> Self {
        match error {
            Error::Data(error) => Self::Data(error),
            Error::Processes(error) => Self::Processes(error),
            error if error.misses_rank() => Self::Missed { step: 0, words: error.to_string() },
            error => Self::Gpu(error.to_string()),
        }
    }
}

/// The source of the algorithms for matrix products.
fn algorithms(job: &Job) -> Result<Algorithms, TrainError> {
    let Some(path) = &job.device.tuning else {
        return Ok(if job.device.tune { Algorithms::Timed } else { Algorithms::Known });
    };
    let unusable = |why: String| TrainError::Device(format!("device.tuning: {}: {why}", path.display()));
    let text = rankine_base::files::read_text(path).map_err(|error| unusable(error.to_string()))?;
    let record = serde_json::from_str(&text);
    record
        .map(Algorithms::Recorded)
        .map_err(|error| unusable(format!("not a tuning.json from a run folder: {error}")))
}
