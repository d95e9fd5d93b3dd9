//! Why GPUs do not train a job.

use std::fmt;

use rankine_backend::Cause;
use rankine_job::Conflict;

use crate::training::error::{TrainError, gpus_of};

/// Why the CPU trains a job that leaves the device open.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The job asks for the CPU, or the build has nothing else.
    OnlyCpu,
    /// No driver, or no GPU.
    NoGpu,
    /// Fewer GPUs than ranks.
    TooFew { ranks: usize, gpus: usize },
    /// GPUs do not support a setting of the job.
    Unsupported(Conflict),
    /// A GPU without fp8 for a job in fp8.
    NoFp8 { gpu: String },
    /// The GPUs, or their libraries or memory, cannot be used.
    Unusable(Cause),
    /// The model could not be created on the GPUs.
    Full { gpus: usize, error: Cause },
}

impl Refusal {
    /// The CPU, the precision in which it computes if that is not fp32, and why it trains.
    pub(super) fn cpu(&self, precision: Option<&str>) -> String {
        let precision = precision.map(|name| format!(" in {name}")).unwrap_or_default();
        match self {
            Self::OnlyCpu => format!("the CPU{precision}"),
            why => format!("the CPU{precision}, since {why}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyCpu => f.write_str("only the CPU may train this job"),
            Self::NoGpu => f.write_str("there is no usable GPU"),
            Self::TooFew { ranks, gpus } => {
                write!(f, "{ranks} ranks need {ranks} GPUs, but there are {gpus}")
            }
            Self::Unsupported(conflict) => write!(f, "GPUs do not support this job ({conflict})"),
            Self::NoFp8 { gpu } => {
                write!(f, "device.precision = \"fp8\" needs a Hopper GPU, and this is {gpu}")
            }
            Self::Unusable(error) => error.fmt(f),
            Self::Full { gpus, error } => write!(f, "{} cannot train this job ({error})", gpus_of(*gpus)),
        }
    }
}

/// Why there are no GPUs for a job: the CPU trains it instead, or nothing does.
#[derive(Debug)]
pub(super) enum GpuSelectionError {
    Refused(Refusal),
    Failed(TrainError),
}

impl<E: Into<TrainError>> From<E> for GpuSelectionError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Refusal> for GpuSelectionError {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}
