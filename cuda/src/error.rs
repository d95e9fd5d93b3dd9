//! What can go wrong between here and a GPU.

use std::ffi::c_int;
use std::fmt;

use cudarc::driver::{DriverError, sys};

use crate::memory::Budget;

/// An error of the driver, or of finding it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This machine has no driver that serves.
    #[error("no GPU can be used: {0}; `rankine doctor` says what was looked for")]
    NoDriver(String),
    /// A driver that does not serve the CUDA that the kernels are compiled with.
    #[error(
        "the driver serves CUDA {major}.{minor}, and 13.0 is needed: update it to 580 or later; `rankine doctor` says \
         which file it is"
    )]
    OldDriver {
        /// The newest CUDA that it serves, the first number.
        major: u32,
        /// The second one.
        minor: u32,
    },
    /// A GPU that is not there.
    #[error("there is no GPU {ordinal}: the driver shows {count} (CUDA_VISIBLE_DEVICES applies)")]
    NoDevice {
        /// The GPU asked for, from 0.
        ordinal: usize,
        /// Those that there are.
        count: usize,
    },
    /// A GPU that no kernel is compiled for.
    #[error(
        "GPU {ordinal} has compute capability {}.{}, and the kernels are for 8.0 (Ampere) and later",
        capability.0, capability.1
    )]
    OldDevice {
        /// The GPU, from 0.
        ordinal: usize,
        /// Its compute capability.
        capability: (c_int, c_int),
    },
    /// A GPU that cannot reach another one's memory.
    #[error(
        "GPU {from} cannot access the memory of GPU {to}: they are not joined by NVLink or PCIe peer access"
    )]
    NoPeerAccess {
        /// The GPU that would read and write.
        from: usize,
        /// The GPU whose memory it is.
        to: usize,
    },
    /// Too few or too many ranks to share memory.
    #[error("{ranks} ranks cannot share memory: from 1 to {most} can")]
    PeersCount {
        /// The ranks asked for.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// Ranks that did not come to what all ranks do together.
    #[error(
        "rank {rank} waited {deadline_ms} ms for {}: look at their logs for what stopped them",
        Ranks(late)
    )]
    PeersLate {
        /// The rank that waited.
        rank: usize,
        /// Those that did not come.
        late: Vec<usize>,
        /// How long.
        deadline_ms: u128,
    },
    /// Ranks that have ended before the others.
    #[error("rank {rank} cannot go on without {}, which ended before: look at its error", Ranks(left))]
    PeersLeft {
        /// The rank that would have waited.
        rank: usize,
        /// Those that are gone.
        left: Vec<usize>,
    },
    /// Ranks that do different things at the same time, or one of which has no memory for it.
    #[error("rank {rank} and rank {other} do not share the same: look at the error of rank {other}")]
    PeersStray {
        /// The rank that tells.
        rank: usize,
        /// The other one.
        other: usize,
    },
    /// A rank's connections to the other processes of its node.
    #[error("rank {rank} cannot share memory with the other processes: {why}")]
    PeersSocket {
        /// The rank that tells.
        rank: usize,
        /// What is in the way.
        why: String,
    },
    /// What ranks of several nodes hand each other to find together.
    #[error("rank {rank} does not reach the other nodes: {why}")]
    Nodes {
        /// The rank that tells.
        rank: usize,
        /// What is in the way.
        why: String,
    },
    /// A rank that waited in vain for another node.
    #[error(
        "rank {rank}, on node {node} of {nodes}, waited {waited_ms} ms for the other nodes: the lane of {lane} is in \
         \"{collective}\"; look at the logs of the ranks with its place there, and at the network between"
    )]
    RailLate {
        /// The rank that waited.
        rank: usize,
        /// Its node.
        node: usize,
        /// All nodes.
        nodes: usize,
        /// What the lane is for that waits.
        lane: &'static str,
        /// What the collective is for that has no end.
        collective: &'static str,
        /// How long.
        waited_ms: u128,
    },
    /// A rank that waited in vain at a barrier on the GPUs.
    #[error(
        "rank {waiting} waited {deadline_ms} ms for rank {missing} at {what}: look at that rank's log for what \
         stopped it"
    )]
    PeerBarrier {
        /// The rank that waited.
        waiting: usize,
        /// The rank that did not come.
        missing: usize,
        /// To what.
        what: &'static str,
        /// How long.
        deadline_ms: u128,
    },
    /// A rank that was told to wait no more, since another one is lost.
    #[error("rank {waiting} gave up waiting for rank {missing} at {what}")]
    PeerGivenUp {
        /// The rank that waited.
        waiting: usize,
        /// The rank that had not come.
        missing: usize,
        /// To what.
        what: &'static str,
    },
    /// cuBLASLt is not here, or does not start.
    #[error("products of matrices need cuBLASLt: {0}; `rankine doctor` says what was looked for")]
    NoBlas(String),
    /// CUPTI is not here, or does not record.
    #[error("no trace can be taken: {0}; `rankine doctor` says what was looked for")]
    NoTrace(String),
    /// NCCL is not here, or lacks something.
    #[error("ranks on several nodes need NCCL: {0}; `rankine doctor` says what was looked for")]
    NoNccl(String),
    /// A call of NCCL failed, or what it had begun.
    #[error("{call}: {words}; NCCL_DEBUG=WARN in the environment has it say more")]
    Nccl {
        /// The function.
        call: &'static str,
        /// The library's words.
        words: String,
    },
    /// Ranks that did not come to make a communicator of NCCL's.
    #[error(
        "rank {rank} of {ranks} waited {deadline_ms} ms for NCCL to join all ranks: look at the others' logs, and \
         whether NCCL_SOCKET_IFNAME names a network that the nodes share"
    )]
    NcclLate {
        /// The rank that waited.
        rank: usize,
        /// All ranks.
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
        "its memory does not suffice: {free:.2} GB of {total:.2} are free, and this takes {needed}",
        free = needed.free_bytes as f64 / 1e9,
        total = needed.total_bytes as f64 / 1e9
    )]
    OutOfMemory {
        /// What it would take, and what there is.
        needed: Box<Budget>,
    },
    /// A record of algorithms that cannot be used here.
    #[error("the record of algorithms does not fit: {0}")]
    Tuning(String),
    /// A call of the driver failed. After an error of a kernel every later call fails likewise.
    #[error("{call}: {words} (CUDA error {code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's words.
        words: String,
        /// Its number.
        code: c_int,
    },
}

/// `rank 3`, or `ranks 1, 2`.
struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank" } else { "ranks" })?;
        for (place, rank) in self.0.iter().enumerate() {
            write!(f, "{} {rank}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether it only says that another rank is not there, whose own error says why.
    pub(crate) fn is_of_peers(&self) -> bool {
        matches!(self, Self::PeersLate { .. } | Self::PeersLeft { .. } | Self::PeersStray { .. })
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int)
    }
}

/// Names the call that an error comes from.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for std::result::Result<T, DriverError> {
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|error| {
            let words =
                error.error_string().map_or("an error without words".into(), |words| words.to_string_lossy());
            Error::Call { call, words: words.into_owned(), code: error.0 as c_int }
        })
    }
}
