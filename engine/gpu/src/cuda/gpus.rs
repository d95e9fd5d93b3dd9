//! The GPUs that are to train a job, before they have a model.

use std::path::Path;
use std::sync::Arc;

use rankine_backend::{Backend, BackendError, Cause};
use rankine_base::build::Build;
use rankine_cuda::blas::Algorithms;
use rankine_cuda::nccl::CollNet;
use rankine_cuda::{Device, Error as CudaError};
use rankine_embedding::cuda::Error as TableError;
use rankine_embedding::plan::Machine;
use rankine_job::{BlockFeed, CopyTiming, DataCache, DenseUpdate, Job, Precision, ThreadBinding};
use rankine_reader::{Dataset, Part};

use super::calibration;
use super::delivery::Delivery;
use super::error::Error;
use super::model::CudaModel;
use super::setup::{BatchShape, Execution, ModelSetup, ScoreSize};
use crate::request::{CreateError, ModelRequest, OpenError};

/// Open GPUs, one per rank of this process.
#[derive(Debug, Clone)]
pub struct OpenGpus(Vec<Arc<Device>>);

impl OpenGpus {
    /// Opens GPUs by their numbers, as the driver counts them. A number may occur several times.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(numbers: &[usize]) -> Result<Self, OpenError> {
        let open = numbers.iter().map(|&number| Device::open(number)).collect::<rankine_cuda::Result<_>>();
        open.map(Self).map_err(|error| match error {
            CudaError::NoDriver(_) | CudaError::NoDevice { ordinal: 0, .. } => OpenError::NoGpu(error.into()),
            CudaError::NoDevice { count, .. } => OpenError::TooFew { gpus: count, source: error.into() },
            error => OpenError::Unusable(error.into()),
        })
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the name of the first GPU.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    pub fn name(&self) -> Result<String, BackendError> {
        Ok(self.0[0].name().map_err(Error::from)?)
    }

    /// Returns the name of the first GPU that does not multiply in fp8.
    ///
    /// # Errors
    /// [`BackendError::Failed`].
    pub fn without_fp8(&self) -> Result<Option<String>, BackendError> {
        let other = self.0.iter().find(|device| !device.multiplies_fp8());
        Ok(other.map(|device| device.name()).transpose().map_err(Error::from)?)
    }

    /// Loads the libraries that training a job on several nodes, or one, needs.
    ///
    /// # Errors
    /// Which library cannot be loaded, and why.
    pub fn check_libraries(&self, job: &Job, nodes: usize) -> Result<(), Cause> {
        rankine_cuda::blas::check_library()?;
        if nodes > 1 {
            rankine_cuda::nccl::check_library()?;
            collnet(job).check()?;
        }
        Ok(())
    }

    /// Returns the free bytes of each GPU's memory.
    ///
    /// # Errors
    /// If the driver does not report them.
    pub fn free_bytes(&self) -> Result<Vec<u64>, Cause> {
        let free = self.0.iter().map(|device| {
            device.bind()?;
            Ok(device.budget()?.free_bytes)
        });
        free.collect()
    }

    /// Describes the `count` GPUs of a node to the planner; see [`calibration::machine_of`].
    ///
    /// # Errors
    /// [`BackendError::Failed`] if the driver does not report the memory or name of a GPU.
    pub fn machine(
        &self,
        count: usize,
        precision: Precision,
        build: Option<&Build>,
    ) -> Result<Machine, BackendError> {
        Ok(calibration::machine_of(&self.0, count, precision, build).map_err(Error::from)?)
    }

    /// Creates a model on the GPUs. With several processes, all of them call this.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create(&self, request: &ModelRequest<'_>) -> Result<Box<dyn Backend>, CreateError> {
        let setup = self.setup(request);
        let make = |algorithms| {
            let mut setup = setup.clone();
            setup.execution.algorithms = algorithms;
            CudaModel::initialized(setup)
        };
        let recorded = request.recorded.and_then(|text| serde_json::from_str(text).ok());
        let made = match recorded.map(Algorithms::Recorded).map(make) {
            // Of another GPU, or another version of the library: later results are rounded differently.
            Some(Err(error)) if is_tuning(&error) => {
                tracing::warn!("matrix products use different algorithms from before: {error}");
                make(algorithms(request.job)?)
            }
            Some(made) => made,
            None => make(algorithms(request.job)?),
        };
        let model = made.map_err(|error| match error.gpu() {
            Some(TableError::Cuda(tuning @ CudaError::Tuning(_))) => {
                CreateError::Tuning(tuning.to_string().into())
            }
            Some(_) if !error.misses_rank() => CreateError::Failed(error.into()),
            _ => CreateError::Backend(error.into()),
        })?;
        Ok(Box::new(model))
    }

    fn setup(&self, request: &ModelRequest<'_>) -> ModelSetup {
        let ModelRequest { job, model, dataset, plan, tier, overlaps, nodes, processes, .. } = *request;
        let columns = dataset.schema().categorical.iter().enumerate();
        let hotness = columns.map(|(number, column)| dataset.ids().hotness(number, column.hotness));
        ModelSetup {
            model: model.clone(),
            seed: job.seed,
            execution: Execution {
                deadline: job.guard.barrier_timeout_s.duration(),
                collnet: collnet(job),
                overlaps,
                shard_dense_update: job.device.dense_update == DenseUpdate::Sharded,
                binds_threads: job.device.bind == ThreadBinding::Auto,
                gates_copies: job.device.copies == CopyTiming::BetweenExchanges,
                delivery: match (&job.data.cache, job.device.feed) {
                    (DataCache::Gpu, _) => Delivery::Kept,
                    (DataCache::None | DataCache::Folder(_), BlockFeed::Broadcast) => Delivery::Broadcast,
                    (DataCache::None | DataCache::Folder(_), BlockFeed::Auto | BlockFeed::Needed) => {
                        Delivery::Needed
                    }
                },
                ..Execution::new(job.device.precision_on_gpus())
            },
            batches: BatchShape {
                batch_size: job.train.batch_size.get() as usize,
                score_size: score_size(job, dataset),
                hotness: hotness.collect(),
            },
            plan: plan.cloned(),
            tier: tier.cloned(),
            tracks_updates: job.checkpoint.incremental,
            devices: self.0.clone(),
            nodes,
            processes: processes.cloned(),
            measures_memory: true,
        }
    }
}

/// Returns the samples that are scored at a time: no more than an evaluation has, unless the job says how many.
fn score_size(job: &Job, dataset: &Dataset) -> ScoreSize {
    if let Some(count) = job.eval.batch_size.count() {
        return ScoreSize::Fixed(count.get() as usize);
    }
    let evaluated = [Part::Eval, Part::Validation].map(|part| dataset.samples(part));
    let evaluated = evaluated.into_iter().max().unwrap_or(0).next_power_of_two();
    let samples_max = usize::try_from(evaluated).unwrap_or(usize::MAX);
    ScoreSize::Auto { samples_max }
}

/// Whether the network sums, according to a job.
fn collnet(job: &Job) -> CollNet {
    match job.network.collnet {
        rankine_job::CollNet::Off => CollNet::Off,
        rankine_job::CollNet::Auto => CollNet::Auto,
        rankine_job::CollNet::Require => CollNet::Require,
    }
}

/// Whether recorded algorithms do not suit the GPU.
fn is_tuning(error: &Error) -> bool {
    matches!(error.gpu(), Some(TableError::Cuda(CudaError::Tuning(_))))
}

/// Returns the source of the algorithms for matrix products, according to a job.
fn algorithms(job: &Job) -> Result<Algorithms, CreateError> {
    let Some(path) = &job.device.tuning else {
        return Ok(if job.device.tune { Algorithms::Timed } else { Algorithms::Known });
    };
    read_tuning(path).map_err(|source| CreateError::TuningFile { path: path.clone(), source })
}

fn read_tuning(path: &Path) -> Result<Algorithms, Cause> {
    let text = rankine_base::files::read_text(path)?;
    let record = serde_json::from_str(&text);
    record
        .map(Algorithms::Recorded)
        .map_err(|error| format!("not a tuning.json from a run folder: {error}").into())
}
