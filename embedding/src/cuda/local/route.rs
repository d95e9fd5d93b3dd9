//! A batch's route if all tables are on one GPU: its look-ups sorted by row, and the distinct rows.

use std::sync::Arc;

use rankine_cuda::kernels::Pair;
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use crate::cuda::POISON;
use crate::cuda::error::Result;
use crate::cuda::layout::Layout;
use crate::cuda::routing::router::RouteBuffers;

/// A batch's route in the GPU's memory.
#[derive(Debug)]
pub(crate) struct LocalRoute {
    /// The distinct rows among those of all tables, ascending. A row's index in this list is its *slot*.
    pub(crate) rows: Buffer<u32>,
    /// Per slot: where its bags start in `sorted`; then the end of the last one.
    pub(crate) starts: Buffer<u32>,
    /// Slot and bag of each look-up, ascending.
    pub(crate) sorted: Buffer<Pair>,
    /// The factor of each sorted look-up that has one; empty if none has.
    pub(crate) factors: Buffer<f32>,
    /// Number of look-ups, and of distinct rows.
    pub(crate) counts: Buffer<u32>,
}

impl LocalRoute {
    pub(crate) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, POISON);
        let rows = layout.look_ups().min(layout.row_numbers());
        Ok(Self {
            rows: words(rows)?,
            starts: words(rows + 1)?,
            sorted: Buffer::filled(device, layout.look_ups(), POISON)?,
            factors: Buffer::filled(device, layout.sorted_factors(), POISON)?,
            counts: words(2)?,
        })
    }

    /// The buffers that receive the route.
    pub(crate) fn buffers(&self) -> RouteBuffers {
        RouteBuffers {
            rows: self.rows.pointer(),
            starts: self.starts.pointer(),
            owner_starts: Pointer::NULL,
            slots: None,
            sorted: self.sorted.pointer(),
            factors: self.factors.pointer(),
            counts: self.counts.pointer(),
        }
    }

    /// Copies the route to host memory, once the lane has finished all enqueued work.
    pub(crate) fn read(&self, lane: &Lane) -> Result<LocalRouteSnapshot> {
        let counts = self.counts.read(lane)?;
        let (look_ups, slots) = (counts[0] as usize, counts[1] as usize);
        let sorted = self.sorted.read_part(lane, 0, look_ups)?;
        let rows = self.rows.read_part(lane, 0, slots)?;
        let starts = self.starts.read_part(lane, 0, slots + 1)?;
        Ok(LocalRouteSnapshot { rows, starts, sorted })
    }
}

/// A route in host memory, for inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRouteSnapshot {
    /// The distinct rows among those of all tables, ascending; their indexes are slots.
    pub rows: Vec<u32>,
    /// Per slot: where its bags start in `sorted`; then the end of the last one.
    pub starts: Vec<u32>,
    /// Slot and bag of each look-up, ascending.
    pub sorted: Vec<Pair>,
}
