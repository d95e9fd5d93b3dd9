//! Models on GPUs: the [`Backend`](rankine_backend::Backend) of CUDA. Without the feature `cuda` there are no GPUs: the
//! stub has what the others ask for.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cuda")]
mod cuda;
mod limits;
#[cfg(not(feature = "cuda"))]
mod no_cuda;
mod power;
mod request;

#[cfg(feature = "cuda")]
pub use cuda::*;
pub use limits::{SCORING_PARTS, refusals};
#[cfg(not(feature = "cuda"))]
pub use no_cuda::*;
pub use power::{GpuMeter, GpuReading, NvmlMeter, Throttling};
pub use request::{CreateError, ModelRequest, OpenError};
