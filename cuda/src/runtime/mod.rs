//! What any program on GPUs needs: devices and their memory, lanes, graphs, traces and errors.
//!
//! Nothing here knows what kernels compute, or that there are other ranks (apart from their errors). A device is
//! opened with the kernels that its caller loads; [`crate::kernels`] has the list.

mod budget;
mod buffer;
mod device;
mod error;
mod graph;
mod kernel;
mod lane;
mod ledger;
mod matrix;
mod memory;
mod pinned;
mod pointer;
mod trace;

pub use budget::{Budget, Part};
pub use buffer::Buffer;
pub use device::Device;
pub(crate) use error::DriverResult;
pub use error::{Error, Result};
pub use graph::Graph;
pub(crate) use kernel::Functions;
pub use kernel::{Id, Kernel};
pub use lane::{Lane, Moment};
pub use matrix::Matrix;
pub(crate) use memory::Memory;
pub use memory::Purpose;
pub use pinned::{PageLock, PinnedBuffer};
pub use pointer::Pointer;
pub use trace::{ActivityKind, GpuActivity, Trace};
