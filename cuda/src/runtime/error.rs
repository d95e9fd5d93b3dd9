//! Errors of the GPU libraries and of ranks that work together.

use std::ffi::c_int;
use std::fmt;

use bytesize::ByteSize;
use cudarc::driver::{DriverError, sys};
use rankine_topology::{Node, Rank};

use super::budget::Budget;
use crate::probe::CollNetMissing;

/// An error of the driver or another library, or of finding it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This machine has no usable driver.
    #[error("no GPU can be used: {0}; `rankine doctor` lists where it looked")]
    NoDriver(String),
    /// The driver is too old for the CUDA version that the kernels are compiled with.
    #[error(
        "the driver supports CUDA {major}.{minor}, but 13.0 is needed: update it to 580 or later; `rankine doctor` \
         shows which file was loaded"
    )]
    OldDriver {
        /// Major version of the newest CUDA that it supports.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}: the driver shows {count} (CUDA_VISIBLE_DEVICES applies)")]
    NoDevice {
        /// The GPU asked for, from 0.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU that is too old for the kernels.
    #[error(
        "GPU {ordinal} has compute capability {}.{}, but the kernels need 8.0 (Ampere) or later: select other GPUs \
         with CUDA_VISIBLE_DEVICES",
        capability.0, capability.1
    )]
    OldDevice {
        /// The GPU, from 0.
        ordinal: usize,
        /// Its compute capability.
        capability: (c_int, c_int),
    },
    /// A GPU cannot access another one's memory.
    #[error(
        "GPU {from} cannot access the memory of GPU {to}: no NVLink or PCIe peer access connects them; select other \
         GPUs with CUDA_VISIBLE_DEVICES, or lower device.ranks"
    )]
    NoPeerAccess {
        /// The GPU that needs the access.
        from: usize,
        /// The GPU whose memory it is.
        to: usize,
    },
    /// Too few or too many ranks to share memory.
    #[error("{ranks} ranks cannot share memory, only 1 to {most} can: change device.ranks")]
    PeersCount {
        /// The ranks asked for.
        ranks: usize,
        /// The most that can share memory.
        most: usize,
    },
    /// Some ranks did not take part in a collective call in time.
    #[error(
        "rank {rank} waited {deadline_ms} ms for {}: see {} for the cause",
        Ranks(late), if late.len() == 1 { "its log" } else { "their logs" }
    )]
    PeersLate {
        /// The rank that waited.
        rank: Rank,
        /// The ranks that were late.
        late: Vec<Rank>,
        /// How long.
        deadline_ms: u128,
    },
    /// Ranks ended before the others.
    #[error(
        "rank {rank} cannot continue without {}, which ended early: see {}",
        Ranks(left), if left.len() == 1 { "its error" } else { "their errors" }
    )]
    PeersLeft {
        /// The rank that would have waited.
        rank: Rank,
        /// Those that ended.
        left: Vec<Rank>,
    },
    /// Ranks made different collective calls, or one has no memory for the call.
    #[error("rank {rank} cannot share with rank {other}: see the error of rank {other}")]
    PeersStray {
        /// The rank that reports it.
        rank: Rank,
        /// The other one.
        other: Rank,
    },
    /// A rank's connection to the other processes of its node failed.
    #[error("rank {rank} cannot share memory with the other processes: {why}")]
    PeersSocket {
        /// The rank that reports it.
        rank: Rank,
        /// The reason.
        why: String,
    },
    /// A rank could not exchange values with the other nodes.
    #[error("rank {rank} cannot reach the other nodes: {why}")]
    Nodes {
        /// The rank that reports it.
        rank: Rank,
        /// The reason.
        why: String,
    },
    /// A rank timed out waiting for another node.
    #[error(
        "rank {rank}, on node {node} of {nodes}, waited {waited_ms} ms for the other nodes: the lane of {lane} is in \
         \"{collective}\"; see the logs of the ranks on its rail, and check the network between the nodes"
    )]
    RailLate {
        /// The rank that waited.
        rank: Rank,
        /// Its node.
        node: Node,
        /// Number of nodes.
        nodes: usize,
        /// Purpose of the lane that waits.
        lane: &'static str,
        /// The collective that did not end.
        collective: &'static str,
        /// How long.
        waited_ms: u128,
    },
    /// A rank timed out at a barrier on the GPUs.
    #[error(
        "rank {waiting} waited {deadline_ms} ms for rank {missing} at {what}: see the log of its process for the cause"
    )]
    PeerBarrier {
        /// The rank that waited.
        waiting: Rank,
        /// The rank that did not arrive.
        missing: Rank,
        /// What it waited at.
        what: &'static str,
        /// How long.
        deadline_ms: u128,
    },
    /// A rank stopped waiting because another one is lost.
    #[error(
        "rank {waiting} gave up waiting for rank {missing} at {what}: see the log of its process for the cause"
    )]
    PeerGivenUp {
        /// The rank that waited.
        waiting: Rank,
        /// The rank that had not arrived.
        missing: Rank,
        /// What it waited at.
        what: &'static str,
    },
    /// cuBLASLt is not found or does not initialize.
    #[error("matrix products need cuBLASLt: {0}; `rankine doctor` lists where it looked")]
    NoBlas(String),
    /// CUPTI is not found or does not record.
    #[error("no trace can be taken: {0}; `rankine doctor` lists where it looked")]
    NoTrace(String),
    /// NCCL is not found or cannot be used.
    #[error("ranks on several nodes need NCCL: {0}; `rankine doctor` lists where it looked")]
    NoNccl(String),
    /// The network cannot sum.
    #[error(
        "network.collnet is \"require\", but CollNet is not available: {0}; install NCCL 2.27 or later and the plugin \
         of NVIDIA's SHARP, or set it to \"auto\" or \"off\""
    )]
    NoCollNet(CollNetMissing),
    /// A call of NCCL, or a collective that it started, failed.
    #[error("{call}: {words}; set NCCL_DEBUG=WARN for details")]
    Nccl {
        /// The function.
        call: &'static str,
        /// The library's message.
        words: String,
    },
    /// Some ranks did not join an NCCL communicator in time.
    #[error(
        "rank {rank} of {ranks} waited {deadline_ms} ms for NCCL to join all ranks: see the logs of the other ranks, \
         and check that NCCL_SOCKET_IFNAME names a network that the nodes share"
    )]
    NcclLate {
        /// The rank that waited.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
        /// How long.
        deadline_ms: u128,
    },
    /// A call of cuBLASLt failed.
    #[error("{call}: {status}")]
    Blas {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: String,
    },
    /// More memory is needed than is free.
    #[error(
        "not enough memory: {free:.2} of {total:.2} are free, and this takes {needed}",
        free = ByteSize(needed.free_bytes),
        total = ByteSize(needed.total_bytes)
    )]
    OutOfMemory {
        /// The memory needed and the memory available.
        needed: Box<Budget>,
    },
    /// A record of algorithms cannot be used here.
    #[error("the record of algorithms cannot be used: {0}")]
    Tuning(String),
    /// A call of the driver failed. After a kernel error every later call fails the same way.
    #[error("{call}: {words} (CUDA error {code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's message.
        words: String,
        /// Its error number.
        code: c_int,
    },
}

/// `rank 3`, or `ranks 1, 2`.
struct Ranks<'a>(&'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (index, rank) in self.0.iter().enumerate() {
            write!(f, "{} {rank}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns whether the error only reports that another rank is missing, whose own error has the reason.
    pub(crate) fn is_of_peers(&self) -> bool {
        matches!(self, Self::PeersLate { .. } | Self::PeersLeft { .. } | Self::PeersStray { .. })
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int)
    }
}

/// Adds the name of the failed call to an error.
pub(crate) trait DriverResult<T> {
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> DriverResult<T> for std::result::Result<T, DriverError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| {
            let words = error.error_string().map_or("unknown error".into(), |words| words.to_string_lossy());
            Error::Call { call, words: words.into_owned(), code: error.0 as c_int }
        })
    }
}
