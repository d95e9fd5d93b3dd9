//! Models on GPUs. Without the feature `cuda` there are none: the stub has what the others ask for.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
mod no_cuda;

#[cfg(feature = "cuda")]
pub use cuda::*;
#[cfg(not(feature = "cuda"))]
pub use no_cuda::*;
