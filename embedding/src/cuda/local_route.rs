//! A batch's route where all tables lie on one GPU: its look-ups sorted by row, and the distinct rows.

use std::sync::Arc;

use rankine_cuda::kernels::Pair;
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::POISON;
use super::error::Result;
use super::layout::Layout;
use super::router::RoutePlaces;

/// A batch's route in the GPU's memory.
#[derive(Debug)]
pub(super) struct LocalRoute {
    /// The distinct rows among those of all tables, ascending. A row's place in this list is its *slot*.
    pub(super) rows: Buffer<u32>,
    /// Of each slot: where its bags begin in `sorted`; behind the last one, where they end.
    pub(super) starts: Buffer<u32>,
    /// Of each look-up its slot and its bag, ascending.
    pub(super) sorted: Buffer<Pair>,
    /// Look-ups, and distinct rows.
    pub(super) counts: Buffer<u32>,
}

impl LocalRoute {
    pub(super) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, POISON);
        let rows = layout.look_ups().min(layout.row_numbers());
        Ok(Self {
            rows: words(rows)?,
            starts: words(rows + 1)?,
            sorted: Buffer::filled(device, layout.look_ups(), POISON)?,
            counts: words(2)?,
        })
    }

    /// Where the route goes.
    pub(super) fn places(&self) -> RoutePlaces {
        RoutePlaces {
            rows: self.rows.pointer(),
            starts: self.starts.pointer(),
            owner_starts: Pointer::NULL,
            slots: Pointer::NULL,
            sorted: self.sorted.pointer(),
            counts: self.counts.pointer(),
        }
    }

    /// The route in the host's memory, once the lane has done all that was enqueued on it.
    pub(super) fn read(&self, lane: &Lane) -> Result<LocalSnapshot> {
        let counts = self.counts.read(lane)?;
        let (look_ups, slots) = (counts[0] as usize, counts[1] as usize);
        let sorted = self.sorted.read_part(lane, 0, look_ups)?;
        let rows = self.rows.read_part(lane, 0, slots)?;
        let starts = self.starts.read_part(lane, 0, slots + 1)?;
        Ok(LocalSnapshot { rows, starts, sorted })
    }
}

/// A route in the host's memory, for whoever wants to look at one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSnapshot {
    /// The distinct rows among those of all tables, ascending: their places are slots.
    pub rows: Vec<u32>,
    /// Of each slot: where its bags begin in `sorted`; behind the last one, where they end.
    pub starts: Vec<u32>,
    /// Of each look-up its slot and its bag, ascending.
    pub sorted: Vec<Pair>,
}
