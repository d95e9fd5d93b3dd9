//! Models on GPUs: selecting a job's GPUs, creating the model there, and evaluating it.

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
use super::super::phases::Activity;
use super::super::recorded::Recorded;
use super::super::seats::Seats;
use crate::calibration;
use crate::cuda::{
    BatchShape, CudaEvaluation, CudaModel, Error, EvaluationResult, EvaluationShape, Execution, FedBatch,
    Feed, refusals,
};
use crate::evaluation::HeadMetrics;
use crate::job::{DenseUpdate, DeviceKind, Job, Precision};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::Overlaps;
use crate::planning;

/// What to do if a job is too large.
const WAY_OUT: &str = "Tables take less with embedding.dtype = \"bf16\", fewer rows (data.generate.rows_cap, or \
                       hashing at conversion), a smaller model.embedding_dim, or a sparse optimizer that keeps \
                       less beside each row; all else grows with train.batch_size. With device.kind = \"cpu\" \
                       the host's memory is what counts";

/// The GPUs that are to train a job, one per rank; or why the CPU trains it, as the end of a sentence.
pub(super) fn devices(
    job: &Job,
    seats: &Seats,
    spec: &ModelSpec,
) -> Result<Result<Vec<Arc<Device>>, String>, TrainError> {
    // Several processes cannot fall back to the CPU.
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
            "device.kind is \"cuda\", but {error}. With \"auto\" or \"cpu\" the job is trained on the CPU"
        ))),
        (Ok(_), Some(_)) if kind == DeviceKind::Cuda => Err(TrainError::Conflicts(refused)),
        (Err(NoDriver(_) | NoDevice { ordinal: 0, .. }), _) => {
            Ok(Err(", since there is no usable GPU".into()))
        }
        (Err(NoDevice { count, .. }), _) => {
            Ok(Err(format!(", since {ranks} ranks need as many GPUs, and there are {count}")))
        }
        // A GPU exists but cannot be used: its owner needs to know why.
        (Err(error), _) => Ok(Err(format!(", since {error}"))),
        (Ok(_), Some(first)) => Ok(Err(format!(", since GPUs do not support this job ({first})"))),
        (Ok(devices), None) => {
            let devices: Vec<Arc<Device>> = devices;
            let fp8 = job.device.precision == Precision::Fp8;
            let Some(other) = devices.iter().find(|device| fp8 && !device.multiplies_fp8()) else {
                return Ok(Ok(devices));
            };
            let name = other.name().map_err(Error::from)?;
            let why = format!("device.precision = \"fp8\" needs a Hopper GPU, and this is {name}");
            if kind == DeviceKind::Cuda {
                return Err(TrainError::Device(format!("{why}: use \"bf16\"")));
            }
            Ok(Err(format!(", since {why}")))
        }
    }
}

/// The GPUs that would train a job, in words; or why the CPU would, as the end of a sentence. Loads the libraries,
/// and compares the free memory with the tables only.
pub(super) fn device_of(
    job: &Job,
    seats: &Seats,
    (spec, rules): (&ModelSpec, &TrainingRules),
) -> Result<Result<String, String>, TrainError> {
    const GIB: f64 = (1u64 << 30) as f64;
    let devices = match devices(job, seats, spec)? {
        Ok(devices) => devices,
        Err(why) => return Ok(Err(why)),
    };
    let table_bytes = rules.table_bytes(spec) / devices.len().max(1) as u64;
    let check = || -> Result<(), String> {
        rankine_cuda::blas::check_library().map_err(|error| error.to_string())?;
        if seats.topology.nodes() > 1 {
            rankine_cuda::nccl::check_library().map_err(|error| error.to_string())?;
        }
        for device in &devices {
            let budget = device.bind().and_then(|()| device.budget()).map_err(|error| error.to_string())?;
            if table_bytes > budget.free_bytes {
                return Err(format!(
                    "the tables and their optimizer state take {:.1} GiB per GPU, but {:.1} GiB are free. {WAY_OUT}",
                    table_bytes as f64 / GIB,
                    budget.free_bytes as f64 / GIB
                ));
            }
        }
        Ok(())
    };
    match check() {
        Ok(()) => {
            let name = devices[0].name().map_err(Error::from)?;
            let count = devices.len();
            Ok(Ok(if count == 1 { format!("one GPU ({name})") } else { format!("{count} GPUs ({name})") }))
        }
        Err(why) if job.device.kind == DeviceKind::Cuda => {
            Err(TrainError::Device(format!("GPUs cannot take this job: {why}")))
        }
        Err(why) => Ok(Err(format!(", since {why}"))),
    }
}

/// The model on its GPUs, and these in words; or why it is not there, as the end of the sentence "the CPU ...".
pub(super) fn initialize(
    (devices, seats, plan, overlaps): (&[Arc<Device>], &Seats, Option<&EmbeddingPlan>, Overlaps),
    (job, recorded): (&Job, Option<&str>),
    dataset: &Dataset,
    (spec, rules): (&ModelSpec, &TrainingRules),
) -> Result<Result<(CudaModel, String), String>, TrainError> {
    let precision = job.device.precision;
    let columns = dataset.schema().categorical.iter().enumerate();
    let hotness: Vec<_> =
        columns.map(|(number, column)| dataset.ids().hotness(number, column.hotness)).collect();
    let shape = BatchShape {
        batch_size: job.train.batch_size.get() as usize,
        score_size: job.eval.batch_size.get() as usize,
        hotness: &hotness,
        plan,
        tracks_updates: job.checkpoint.incremental,
    };
    let (processes, several) = (&seats.processes, seats.processes.size() > 1);
    let make = |algorithms| {
        let execution = Execution {
            deadline: job.guard.barrier_timeout_s.duration(),
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
        // Of another GPU, or another version of the library: later results are rounded differently.
        Some(Err(error)) if matches!(error.gpu(), Some(GpuError::Cuda(rankine_cuda::Error::Tuning(_)))) => {
            tracing::warn!("matrix products use other algorithms than before: {error}");
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
            Some(GpuError::Cuda(error @ rankine_cuda::Error::Tuning(_))) => Err(TrainError::Device(format!(
                "device.tuning: {error}. Remove the key, or time the algorithms again with device.tune = true"
            ))),
            _ if error.gpu().is_none() || error.misses_rank() => Err(error.into()),
            _ if several || job.device.kind == DeviceKind::Cuda => {
                Err(TrainError::Device(format!("{it} cannot take this job: {error}. {}", WAY_OUT)))
            }
            _ => Ok(Err(format!(", since {it} cannot take this job ({error})"))),
        },
    }
}

/// The placement of tables over several GPUs.
pub(in super::super) struct Placed {
    pub(super) plan: EmbeddingPlan,
    /// The performance assumed for the GPUs, as the text of a machine file.
    pub(super) machine: String,
}

/// Places the tables of a job over several GPUs. All processes use the performance that the first one knows.
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
        (Some(path), _) => planning::machine_of_job(path, 0, job).map_err(TrainError::Device)?,
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
    let plan = planning::plan(job, spec, rules, dataset, &planned_with)?;
    Ok(Some(Placed { plan, machine }))
}

/// The evaluation of a model. Keeps the blocks of the evaluation part if they fit on the GPUs, so that only the first
/// evaluation reads.
#[derive(Default)]
pub(in super::super) struct Judge {
    resident: Vec<FedBatch>,
}

impl Judge {
    /// As [`Scorer::judge`]; always of the same part.
    pub(super) fn judge(
        &mut self,
        model: &mut CudaModel,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64, &[u64]),
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
        if !CudaEvaluation::fits(part.samples) {
            let samples = part.samples;
            return Err(TrainError::Device(format!("a GPU cannot score {samples} samples at once")));
        }
        let options = StreamOptions { batch_size: options.batch_size.min(model.score_size()), ..*options };
        model.begin_evaluation(EvaluationShape {
            samples: part.samples as usize,
            batch_size: options.batch_size,
            weighted: part.schema.weight.is_some(),
        })?;
        let mut samples = 0;
        let mut count = |batch: usize, out_of_range: &[u64]| {
            samples += batch as u64;
            progress(samples, out_of_range);
        };
        // Kept until all samples are scored.
        let mut batches = None;
        if self.resident.is_empty() {
            let stay = Feed::fits(model.devices(), &part, &options)?;
            let batches = batches.insert(Batches::for_gpus(model, part, &options, stay)?);
            for batch in batches {
                let batch = batch?;
                match &batch {
                    Batch::Unpacked(batch) => model.evaluate(&batch.samples)?,
                    Batch::Packed(batch) => {
                        model.evaluate_fed(batch)?;
                        self.resident.extend(stay.then(|| batch.clone()));
                    }
                }
                count(batch.len(), batch.out_of_range());
            }
        } else {
            for batch in &self.resident {
                model.evaluate_fed(batch)?;
                count(batch.len(), &[]);
            }
        }
        let EvaluationResult { heads, nan_logits } = model.finish_evaluation()?;
        drop(batches);
        Ok((nan_logits == 0).then_some(heads))
    }
}

/// The activity of GPUs while `run` works and waits for it.
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

/// The source of the algorithms for matrix products.
fn algorithms(job: &Job) -> Result<Algorithms, TrainError> {
    let Some(path) = &job.device.tuning else {
        return Ok(if job.device.tune { Algorithms::Timed } else { Algorithms::Known });
    };
    let unusable = |why: String| TrainError::Device(format!("device.tuning: {}: {why}", path.display()));
    let text = rankine_reader::files::read_text(path).map_err(|error| unusable(error.to_string()))?;
    let record = serde_json::from_str(&text);
    record.map(Algorithms::Recorded).map_err(|error| {
        unusable(format!("not a tuning.json as a training writes to its run folder: {error}"))
    })
}
