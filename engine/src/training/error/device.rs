//! Why the device that a job asks for cannot train it.

use bytesize::ByteSize;
use rankine_backend::{BackendError, Cause};
use rankine_base::document::{Conflict, Problem};
use rankine_engine_gpu::{CreateError, OpenError};

/// What to do if a job is too large.
const WAY_OUT: &str = "To make tables smaller, use embedding.dtype = \"bf16\", fewer rows \
(data.generate.rows_cap, or hashing at conversion), a smaller model.embedding_dim, or a sparse optimizer with less \
state per row; all other parts shrink with train.batch_size. With embedding.device_memory = \"auto\", one GPU leaves \
rows that are looked up least in host memory. With device.kind = \"cpu\" the job uses host memory instead";

/// Why the device that a job asks for cannot train it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The job asks for GPUs, and the build is without CUDA.
    #[error(
        "device.kind is \"cuda\", but this build of Rankine trains only on the CPU: build one for GPUs with `cargo \
         build --release --features cuda`, or set device.kind to \"auto\" or \"cpu\""
    )]
    NoCuda,
    /// The job asks for GPUs, which cannot be opened.
    #[error("device.kind is \"cuda\", but {0}. With \"auto\" or \"cpu\" the job is trained on the CPU")]
    NoGpus(#[source] OpenError),
    /// Several processes cannot fall back to the CPU, and GPUs cannot be opened.
    #[error("several processes train on GPUs, and {0}")]
    NoGpusForProcesses(#[source] OpenError),
    /// A GPU without fp8 for a job in fp8.
    #[error("device.precision = \"fp8\" needs a Hopper GPU, and this is {gpu}: use \"bf16\"")]
    NoFp8 {
        /// The GPU's name.
        gpu: String,
    },
    /// The GPUs' libraries or memory do not suffice.
    #[error("GPUs cannot train this job: {0}")]
    Unusable(#[source] UnusableGpus),
    /// The model could not be created on the GPUs.
    #[error("{} cannot train this job: {error}. {WAY_OUT}", gpus_of(*gpus))]
    Full {
        /// The number of GPUs of this process.
        gpus: usize,
        /// Why.
        error: Cause,
    },
    /// The algorithms of `device.tuning` cannot be used.
    #[error(transparent)]
    Tuning(CreateError),
    /// The file of `device.machine` cannot be used.
    #[error("{0}")]
    Machine(Conflict),
    /// The description of a machine by a checkpoint or by another process cannot be used.
    #[error("{0}")]
    MachineText(Problem),
    /// The device refused what training asked of it.
    #[error(transparent)]
    Backend(BackendError),
}

/// Why open GPUs cannot train a model.
#[derive(Debug, thiserror::Error)]
pub enum UnusableGpus {
    /// A library cannot be loaded, or the driver does not answer.
    #[error("{0}")]
    System(#[from] Cause),
    /// The tables are larger than the free memory.
    #[error(
        "the tables and their optimizer state take {} per GPU, but {} are free. {WAY_OUT}",
        ByteSize(*tables),
        ByteSize(*free)
    )]
    TooSmall {
        /// Bytes of the tables and their optimizer state on each GPU.
        tables: u64,
        /// Free bytes of a GPU's memory.
        free: u64,
    },
}

/// `the GPU`, or one of several.
pub(in crate::training) fn gpus_of(count: usize) -> &'static str {
    if count == 1 { "the GPU" } else { "one of the GPUs" }
}
