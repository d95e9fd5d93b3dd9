//! CUDA, cuBLASLt and NCCL for Rankine.
//!
//! The libraries are found at run time, not at build time, so one binary serves machines with and without GPUs;
//! [`probe`] reports what is installed. Everything else needs the feature `cuda`, which compiles the kernels into the
//! binary. A [`Device`] has [`Lane`]s, on which work is enqueued; work uses [`Buffer`]s; a lane's work can be
//! captured in a [`Graph`] and replayed. [`Peers`] are ranks whose GPUs access each other's memory. A [`Cluster`]
//! connects ranks of several nodes, through [`nccl`]. [`kernels`] has a launcher for each kernel, and [`blas`] has
//! matrix products.
//!
//! Only [`kernels`], [`blas`] and [`calibrate`] know what ranking models compute; the rest serves any program on GPUs.
//! Nothing waits for the device without being asked to.

// Without the feature, most of the items linked above are not compiled.
#![cfg_attr(not(feature = "cuda"), allow(rustdoc::broken_intra_doc_links))]

pub mod probe;

#[cfg(feature = "cuda")]
pub mod blas;
#[cfg(feature = "cuda")]
mod budget;
#[cfg(feature = "cuda")]
mod buffer;
#[cfg(feature = "cuda")]
pub mod calibrate;
#[cfg(feature = "cuda")]
mod cluster;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod error;
#[cfg(feature = "cuda")]
mod fp8;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
pub mod kernels;
#[cfg(feature = "cuda")]
mod lane;
#[cfg(feature = "cuda")]
mod ledger;
#[cfg(feature = "cuda")]
mod matrix;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
pub mod nccl;
#[cfg(feature = "cuda")]
mod peers;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod pointer;
#[cfg(feature = "cuda")]
mod trace;

#[cfg(feature = "cuda")]
pub use budget::{Budget, Part};
#[cfg(feature = "cuda")]
pub use buffer::Buffer;
#[cfg(feature = "cuda")]
pub use cluster::{Cluster, ClusterSum, GatherNodes, Rail};
#[cfg(feature = "cuda")]
pub use device::Device;
#[cfg(feature = "cuda")]
pub use error::{Error, Result};
#[cfg(feature = "cuda")]
pub use fp8::E4m3;
#[cfg(feature = "cuda")]
pub use graph::Graph;
#[cfg(feature = "cuda")]
pub use lane::{Lane, Moment};
#[cfg(feature = "cuda")]
pub use memory::Purpose;
#[cfg(feature = "cuda")]
pub use peers::{AllReduce, AllReduceWay, Gather, GiveUpFlag, PeerBarrier, Peers, Shared};
#[cfg(feature = "cuda")]
pub use pinned::{Locked, Pinned};
#[cfg(feature = "cuda")]
pub use pointer::Pointer;
#[cfg(feature = "cuda")]
pub use trace::{Activity, ActivityKind, Trace};
