//! `rows.cu`.

use std::marker::PhantomData;

use super::names::{Family, lanes};
use super::{Addresses, Element, Id, Kernel, Shard};
use crate::runtime::{Lane, Pointer, Result};

/// Writes an owner's rows, converted to a type, to the ranks that look them up, or to this rank's messages for nodes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Send {
    /// This owner's rows.
    pub storage: Pointer<f32>,
    /// Ordered by base.
    pub shards: Pointer<Shard>,
    /// As [`super::Merge`] writes them.
    pub entries: Pointer<u32>,
    /// As [`super::Merge`] writes them.
    pub firsts: Pointer<u32>,
    /// As [`super::Merge`] writes them.
    pub counts: Pointer<u32>,
    /// Per rank, or per node: `[slot][width]`.
    pub landings: Addresses,
    /// Shards.
    pub shards_count: u32,
    /// Entries that a rank can have.
    pub capacity: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Elements from one slot to the next, a multiple of 8.
    pub width: u32,
    /// Entries that a rank can have of rows that only this owner stores.
    pub owned: u32,
}

impl Send {
    /// Enqueues it for rows that are sent as `T`. Grid: x over entries, any number of blocks; y over ranks, plus one if
    /// there are rows that every rank stores.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue<T: Element>(&self, lane: &Lane, blocks: (u32, u32)) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match self.width {
                0..=16 => lane.launch(&TeamSend::<T, 4>(*self, PhantomData), blocks),
                17..=64 => lane.launch(&TeamSend::<T, 16>(*self, PhantomData), blocks),
                _ => lane.launch(&TeamSend::<T, 32>(*self, PhantomData), blocks),
            }
        }
    }
}

/// [`Send`] by teams of `LANES` lanes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TeamSend<T, const LANES: u32>(Send, PhantomData<T>);

// SAFETY: `rows.cu` has the same struct.
unsafe impl<T: Element, const LANES: u32> Kernel for TeamSend<T, LANES> {
    const ID: Id = Family::Send.variant([T::KIND as usize, lanes(LANES)]);
    const THREADS: u32 = 256;
}
