//! CUDA, cuBLASLt and NCCL for Rankine.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! The libraries are found at run time, not at build time, so one binary serves machines with and without GPUs;
//! [`probe`] reports what is installed, and [`nvml`] what GPUs draw. Everything else needs the feature `cuda`, which
//! compiles the kernels into the binary.
//!
//! - `runtime` is what any program on GPUs needs. A [`Device`] has [`Lane`]s, on which work is enqueued; work uses
//!   [`Buffer`]s; a lane's work can be captured in a [`Graph`] and replayed.
//! - [`kernels`] is what ranking models need: a typed launcher for each kernel, from look-ups to metrics.
//! - [`blas`] multiplies matrices, fused with the element-wise work of a layer.
//! - `communication` connects ranks. [`Peers`] are ranks whose GPUs access each other's memory; a [`Cluster`] has the
//!   ranks of several nodes, which exchange data through [`nccl`].
//! - [`calibration`] measures how fast this machine's GPUs do all that.
//!
//! Each part uses only parts above it. `runtime` and `communication` do not know what ranking models compute. Models,
//! tables and training belong to the callers: kernels take addresses and sizes. Nothing waits for the device unless
//! the caller asks for it.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without the feature, most of the items linked above are not compiled.
#![cfg_attr(not(feature = "cuda"), allow(rustdoc::broken_intra_doc_links))]

pub mod nvml;
pub mod probe;

#[cfg(feature = "cuda")]
pub mod blas;
#[cfg(feature = "cuda")]
pub mod calibration;
#[cfg(feature = "cuda")]
mod communication;
#[cfg(feature = "cuda")]
pub mod kernels;
#[cfg(feature = "cuda")]
mod runtime;

#[cfg(feature = "cuda")]
pub use communication::{
    AllReduce, AllReduceWay, Cluster, ClusterSum, CopyGate, Gather, GatherError, GatherNodes, GiveUpFlag,
    PeerBarrier, Peers, Rail, SharedBuffer, nccl,
};
#[cfg(feature = "cuda")]
pub use kernels::E4m3;
#[cfg(feature = "cuda")]
pub use runtime::{
    ActivityKind, Budget, Buffer, Device, Error, GpuActivity, Graph, Lane, Moment, PageLock, Part,
    PinnedBuffer, Pointer, Purpose, Result, Trace,
};
