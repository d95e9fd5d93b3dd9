//! What learns: a model on the device that a job names.

use std::collections::VecDeque;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Instant;

use rankine_embedding::EmbeddingPlan;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Dataset, Samples};

use super::TrainError;
use super::batches::{Batch, Batches};
use super::evaluate::Scorer;
use super::translate::check_memory;
use crate::cpu::{CpuModel, Sharding};
use crate::evaluation::Evaluation;
use crate::job::{DenseUpdate, Job};
use crate::model::{ModelSpec, TrainingRules};
use crate::planning;

/// A model on a device. Losses of steps may come later than the steps.
pub(super) enum Learner {
    /// In the host's memory, and the losses that were not taken yet.
    Cpu(Box<CpuModel>, Vec<f64>),
    /// In a GPU's memory, and what it is judged on, where that lies there too.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::cuda::CudaModel>, Vec<Arc<crate::cuda::FedBatch>>),
}

/// On which device a job is to be trained.
pub(super) enum Choice {
    /// The CPU, over ranks where there is a plan; and why, in words to be said behind it.
    Cpu(Option<EmbeddingPlan>, String),
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(Arc<rankine_cuda::Device>),
}

impl Choice {
    /// Chooses as the job says; nothing is made yet.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] and [`TrainError::Device`] where the job cannot be trained here.
    pub(super) fn of(
        job: &Job,
        dataset: &Dataset,
        spec: &ModelSpec,
        rules: &TrainingRules,
    ) -> Result<Self, TrainError> {
        #[cfg(feature = "cuda")]
        let why = match gpu::device(job, dataset, spec, rules)? {
            Ok(device) => return Ok(Self::Cuda(device)),
            Err(why) => why,
        };
        #[cfg(not(feature = "cuda"))]
        let why = String::new();
        let topology = job.topology().map_err(|error| TrainError::Device(error.to_string()))?;
        let plan = (topology.ranks() > 1).then(|| planning::plan(job, spec, rules, dataset)).transpose()?;
        check_memory(spec, rules, plan.as_ref())?;
        Ok(Self::Cpu(plan, why))
    }

    /// The model of a job as training starts with it, and in words what trains it.
    ///
    /// # Errors
    /// [`TrainError::Device`] where the device does not take it.
    pub(super) fn initialize(
        self,
        job: &Job,
        dataset: &Dataset,
        spec: ModelSpec,
        rules: &TrainingRules,
        threads: usize,
    ) -> Result<(Learner, String), TrainError> {
        let (plan, why) = match self {
            Self::Cpu(plan, why) => (plan, why),
            #[cfg(feature = "cuda")]
            Self::Cuda(device) => match gpu::initialize(&device, job, dataset, &spec, rules)? {
                Ok((model, name)) => return Ok((Learner::Cuda(Box::new(model), Vec::new()), name)),
                Err(why) => {
                    check_memory(&spec, rules, None)?;
                    (None, why)
                }
            },
        };
        let model = match plan {
            None => CpuModel::initialized(spec, rules, job.seed),
            Some(plan) => {
                let ranks = job.device.ranks;
                let shard_dense_update = job.device.dense_update == DenseUpdate::Sharded;
                let sharding = Sharding { plan, shard_dense_update, threads };
                CpuModel::over_ranks(&spec, rules, job.seed, sharding).map_err(|error| {
                    TrainError::Device(format!("cannot start the threads of {ranks} ranks: {error}"))
                })?
            }
        };
        Ok((Learner::Cpu(Box::new(model), Vec::new()), format!("the CPU{why}")))
    }
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

    /// The model, where it lies in the host's memory.
    pub(super) fn cpu(&self) -> Option<&CpuModel> {
        match self {
            Self::Cpu(model, _) => Some(model),
            #[cfg(feature = "cuda")]
            Self::Cuda(..) => None,
        }
    }

    /// A copy of the model in the host's memory, where it lies elsewhere.
    pub(super) fn copy_to_host(&self) -> Result<Option<CpuModel>, TrainError> {
        match self {
            Self::Cpu(..) => Ok(None),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, _) => Ok(Some(model.to_host()?)),
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
            Self::Cuda(model, _) => Batches::for_gpu(model.device(), part, options, false),
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
            (Self::Cuda(model, _), Batch::Packed(batch)) => {
                model.train_fed(Arc::clone(batch), rate_factor)?
            }
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

    fn score(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Evaluation, TrainError> {
        match self {
            Self::Cpu(model, _) => model.score(part, options, progress),
            #[cfg(feature = "cuda")]
            Self::Cuda(model, resident) => gpu::score(model, resident, part, options, progress),
        }
    }
}

/// The mean loss of steps since the last report, as far as losses are known.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Of the steps whose loss is not known yet: their samples.
    ahead: VecDeque<usize>,
    /// Steps whose loss is known.
    steps: u64,
    sum: f64,
    samples: usize,
    /// The first loss that is no number, and its step.
    wrong: Option<(u64, f64)>,
}

impl Losses {
    /// A step over so many samples was begun.
    pub(super) fn began(&mut self, samples: usize) {
        self.ahead.push_back(samples);
    }

    /// The loss of the first step whose loss was not known.
    pub(super) fn known(&mut self, loss: f64) {
        let samples = self.ahead.pop_front().expect("a loss comes after its step");
        self.steps += 1;
        self.sum += loss * samples as f64;
        self.samples += samples;
        if !loss.is_finite() && self.wrong.is_none() {
            self.wrong = Some((self.steps, loss));
        }
    }

    /// Whether no loss is known since the last report.
    pub(super) fn is_empty(&self) -> bool {
        self.samples == 0
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.samples as f64
    }

    /// After a report.
    pub(super) fn begin_anew(&mut self) {
        (self.sum, self.samples) = (0.0, 0);
    }

    /// # Errors
    /// [`TrainError::Diverged`].
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.wrong.map_or(Ok(()), |(step, loss)| Err(TrainError::Diverged { step, loss }))
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    //! Which jobs GPUs train.

    use std::sync::Arc;

    use rankine_cuda::Device;
    use rankine_reader::dataset::DatasetPart;
    use rankine_reader::stream::StreamOptions;
    use rankine_reader::{Dataset, Samples};

    use super::super::TrainError;
    use super::super::batches::{Batch, Batches};
    use crate::cuda::{BatchShape, CudaModel, FedBatch, Feed, refusals};
    use crate::evaluation::Evaluation;
    use crate::job::{DeviceKind, Job};
    use crate::model::{ModelSpec, TrainingRules};

    /// The GPU that is to train a job; or why the CPU is, in words to be said behind that.
    pub(super) fn device(
        job: &Job,
        dataset: &Dataset,
        spec: &ModelSpec,
        rules: &TrainingRules,
    ) -> Result<Result<Arc<Device>, String>, TrainError> {
        let kind = job.device.kind;
        if kind == DeviceKind::Cpu {
            return Ok(Err(String::new()));
        }
        let refused = refusals(job, dataset.schema(), spec, rules);
        match (Device::open(0), refused.first()) {
            (Err(error), _) if kind == DeviceKind::Cuda => Err(TrainError::Device(format!(
                "device.kind is \"cuda\", and {error}. With \"auto\" or \"cpu\" the job is trained on the CPU"
            ))),
            (Ok(_), Some(_)) if kind == DeviceKind::Cuda => Err(TrainError::Conflicts(refused)),
            (Err(_), _) => Ok(Err(", since there is no GPU that can be used".into())),
            (Ok(_), Some(first)) => Ok(Err(format!(", since a GPU does not do this job ({first})"))),
            (Ok(device), None) => Ok(Ok(device)),
        }
    }

    /// The model on the GPU, and the GPU in words; or why it is not there, in words to be said behind "the CPU".
    pub(super) fn initialize(
        device: &Arc<Device>,
        job: &Job,
        dataset: &Dataset,
        spec: &ModelSpec,
        rules: &TrainingRules,
    ) -> Result<Result<(CudaModel, String), String>, TrainError> {
        let precision = job.device.precision;
        let hotness: Vec<_> = dataset.schema().categorical.iter().map(|column| column.hotness).collect();
        let shape = BatchShape {
            batch_size: job.train.batch_size.get() as usize,
            score_size: job.eval.batch_size.get() as usize,
            hotness: &hotness,
        };
        match CudaModel::initialized(device, spec.clone(), rules, precision, job.seed, shape) {
            Ok(model) => {
                let name = device.name().map_err(crate::cuda::Error::from)?;
                Ok(Ok((model, format!("one GPU ({name}) in {}", precision.name()))))
            }
            Err(error) if job.device.kind == DeviceKind::Cuda => Err(TrainError::Device(format!(
                "the GPU cannot take this job: {error}. Make the tables or the batch smaller, or set device.kind to \
                 \"cpu\""
            ))),
            Err(error) => Ok(Err(format!(", since the GPU cannot take this job ({error})"))),
        }
    }

    /// Scores a part. Where it fits, its blocks stay in the GPU's memory, as `resident`, for the next time.
    pub(super) fn score(
        model: &mut CudaModel,
        resident: &mut Vec<Arc<FedBatch>>,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Evaluation, TrainError> {
        let options = StreamOptions { batch_size: options.batch_size.min(model.score_size()), ..*options };
        let mut samples = 0;
        model.begin_scores(part.samples as usize)?;
        if resident.is_empty() {
            let stays = Feed::fits(model.device(), &part, &options)?;
            for batch in Batches::for_gpu(model.device(), part, &options, stays)? {
                let batch = batch?;
                samples += batch.len() as u64;
                match batch {
                    Batch::Unpacked(batch) => model.score(&batch.samples)?,
                    Batch::Packed(batch) => {
                        model.score_fed(Arc::clone(&batch))?;
                        if stays {
                            resident.push(batch);
                        }
                    }
                }
                progress(samples);
            }
        } else {
            for batch in resident.iter() {
                model.score_fed(Arc::clone(batch))?;
                samples += batch.len() as u64;
                progress(samples);
            }
        }
        let scores = model.take_scores()?;
        let heads = &model.spec().heads;
        let label_columns = heads.iter().map(|head| head.label_number + 1).max().unwrap_or(0);
        let mut labels = vec![Vec::new(); label_columns];
        for (head, of_head) in heads.iter().zip(scores.labels) {
            labels[head.label_number] = of_head;
        }
        let weights = scores.weights;
        let mut evaluation = Evaluation::new(heads);
        evaluation
            .add(&Samples { len: samples as usize, labels, weights, ..Samples::default() }, &scores.logits);
        Ok(evaluation)
    }
}
