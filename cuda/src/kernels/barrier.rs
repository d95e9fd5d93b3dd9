//! `barrier.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel, RANKS_MAX};
use crate::runtime::Pointer;

/// Flags that peers write into a rank's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Flags {
    /// Per peer: how often it has arrived.
    pub(crate) arrived: [u64; RANKS_MAX],
    /// 0; or 1 + the rank that waited in the upper half, and 1 + the rank that did not arrive in the lower.
    pub(crate) aborted: u64,
    /// Fills two cache lines.
    pub(crate) reserved: [u64; 7],
}

/// What waiting for peers needs apart from their flags.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// Null, or host memory: receives [`Flags::aborted`] once this rank has seen it.
    pub(crate) told: Pointer<u64>,
    /// Null, or host memory: not 0 if this rank shall stop waiting.
    pub(crate) give_up: Pointer<u64>,
    /// How long to wait before all ranks are made to give up.
    pub(crate) deadline_ns: u64,
    /// This rank.
    pub(crate) rank: u32,
    /// Number of ranks.
    pub(crate) ranks: u32,
}

/// Waits for all ranks: what each of them enqueued before is complete and visible to all. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    /// Per rank.
    pub(crate) flags: [Pointer<Flags>; RANKS_MAX],
    /// The barriers that this rank has passed.
    pub(crate) epoch: Pointer<u64>,
    pub(crate) wait: Wait,
}

/// Bit in the word behind [`Wait::told`]: this rank was made to give up by the host.
pub(crate) const GAVE_UP: u64 = 1 << 63;

const _: () = assert!(size_of::<Flags>() == 128 && size_of::<Wait>() == 32 && size_of::<Barrier>() == 104);

// SAFETY: `barrier.cu` has the same struct, and takes one warp.
unsafe impl Kernel for Barrier {
    const ID: Id = Family::Barrier.variant([]);
    const THREADS: u32 = 32;
}
