//! `barrier.cu`.

use bytemuck::{Pod, Zeroable};

use super::{Id, Kernel, RANKS_MAX};
use crate::buffer::Pointer;

/// What peers write into a rank's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Flags {
    /// Of each peer: the barriers that it arrived at.
    pub arrived: [u64; RANKS_MAX],
    /// 0; or 1 + the rank that waited in the upper half, and 1 + the rank that did not arrive in the lower.
    pub aborted: u64,
    /// Fills two cache lines.
    pub reserved: [u64; 7],
}

/// Waits for all ranks: what each of them enqueued before is done and seen by all. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Barrier {
    /// Of each rank.
    pub flags: [Pointer<Flags>; RANKS_MAX],
    /// The barriers that this rank has passed.
    pub epoch: Pointer<u64>,
    /// Null, or where [`Flags::aborted`] is copied to when this rank finds it: memory that the host reads.
    pub told: Pointer<u64>,
    /// How long to wait before all ranks are told to give up.
    pub deadline_ns: u64,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
}

const _: () = assert!(size_of::<Flags>() == 128 && size_of::<Barrier>() == 96);

// SAFETY: `barrier.cu` has the same struct, and takes one warp.
unsafe impl Kernel for Barrier {
    const ID: Id = Id::Barrier;
    const NAME: &'static str = "barrier";
    const THREADS: u32 = 32;
}
