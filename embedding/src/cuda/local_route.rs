//! A batch's route where all tables lie on one GPU: its look-ups sorted by row, and the distinct rows.

use std::sync::Arc;

use rankine_cuda::kernels::{self, Feature, Pair, RouteBegin, RouteCount, RouteNumber, RouteSort, Segment};
use rankine_cuda::{Buffer, Device, Lane};

use super::error::Result;
use super::layout::{Ids, Layout};
use super::route::Bits;

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
        let words = |len| Buffer::filled(device, len, Bits::POISON);
        let rows = layout.look_ups().min(layout.owner_rows());
        Ok(Self {
            rows: words(rows)?,
            starts: words(rows + 1)?,
            sorted: Buffer::filled(device, layout.look_ups(), Bits::POISON)?,
            counts: words(2)?,
        })
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

/// Makes routes, one after the other.
#[derive(Debug)]
pub(super) struct LocalRouter {
    pub(super) features: Buffer<Feature>,
    order: Buffer<u32>,
    segments: Buffer<Segment>,
    tile_segments: Buffer<u32>,
    begins: Buffer<u32>,
    /// What is zero when a route begins: histograms, states, and tickets.
    zeros: Buffer<u32>,
    pairs: Buffer<Pair>,
    pub(super) faults: Buffer<u32>,
    passes: u32,
    /// Tiles of all look-ups that there is room for.
    number_tiles: usize,
}

impl LocalRouter {
    pub(super) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let (order, segments) = (layout.features_by_table(), layout.segments());
        let tiles_of = |segment: &Segment| {
            let features = &order[segment.first as usize..][..segment.features as usize];
            tiles(features.iter().map(|&feature| layout.feature_look_ups(feature as usize)).sum())
        };
        let of_tile = |(number, segment)| std::iter::repeat_n(number, tiles_of(segment));
        let tile_segments: Vec<u32> = (0..).zip(&segments).flat_map(of_tile).collect();
        let passes = segments.iter().map(|segment| segment.passes).max().unwrap_or(1);
        let number_tiles = tiles(layout.look_ups());
        let zeros = Places::new(segments.len(), tile_segments.len(), passes, number_tiles).end;
        Ok(Self {
            features: Buffer::of(device, &layout.kernel_features())?,
            order: Buffer::of(device, &order)?,
            segments: Buffer::of(device, &segments)?,
            tile_segments: Buffer::of(device, &tile_segments)?,
            begins: Buffer::filled(device, order.len() + 1, Bits::POISON)?,
            zeros: Buffer::filled(device, zeros, Bits::POISON)?,
            pairs: Buffer::filled(device, layout.look_ups(), Bits::POISON)?,
            faults: Buffer::filled(device, 1, 0)?,
            passes,
            number_tiles,
        })
    }

    /// Enqueues making a batch's route.
    ///
    /// # Safety
    /// The layout must be the one that this and the route were made for, and that the ids are of; see [`Lane::launch`].
    pub(super) unsafe fn route(&self, lane: &Lane, layout: &Layout, ids: Ids, to: &LocalRoute) -> Result<()> {
        let (tiles, zeros) = (self.tile_segments.len(), self.zeros.pointer());
        let places = Places::new(self.segments.len(), tiles, self.passes, self.number_tiles);
        let route = kernels::Route {
            features: self.features.pointer(),
            order: self.order.pointer(),
            segments: self.segments.pointer(),
            tile_segments: self.tile_segments.pointer(),
            ids: ids.ids,
            offsets: ids.offsets,
            samples_count: ids.samples,
            begins: self.begins.pointer(),
            histograms: zeros,
            states: zeros.element(places.states),
            tile_states: zeros.element(places.tile_states),
            tickets: zeros.element(places.tickets),
            faults: self.faults.pointer(),
            pairs: self.pairs.pointer(),
            sorted: to.sorted.pointer(),
            rows: to.rows.pointer(),
            starts: to.starts.pointer(),
            counts: to.counts.pointer(),
            features_count: self.order.len() as u32,
            tiles: tiles as u32,
            passes: self.passes,
            pass: 0,
            sample_bits: layout.sample_bits(),
            reserved: 0,
        };
        // SAFETY: all addresses but the caller's are of this value's buffers and the route's, whose lengths follow from
        // the layout; the caller vouches for its own.
        unsafe {
            lane.fill(zeros, 0, self.zeros.len())?;
            lane.launch(&RouteBegin(route), (1, 1))?;
            lane.launch(&RouteCount(route), route.count_grid())?;
            for pass in 0..self.passes {
                lane.launch(&RouteSort(kernels::Route { pass, ..route }), (route.tiles, 1))?;
            }
            lane.launch(&RouteNumber(route), (self.number_tiles as u32, 1))?;
        }
        Ok(())
    }
}

/// Tiles of so many look-ups.
pub(super) fn tiles(look_ups: usize) -> usize {
    look_ups.div_ceil(kernels::Route::TILE)
}

/// Where the parts lie of what is zero when a route begins.
struct Places {
    states: usize,
    tile_states: usize,
    tickets: usize,
    end: usize,
}

impl Places {
    fn new(segments: usize, tiles: usize, passes: u32, number_tiles: usize) -> Self {
        let states = kernels::Route::histogram_words(segments);
        let tile_states = states + kernels::Route::state_words(tiles, passes);
        let tickets = tile_states + number_tiles;
        Self { states, tile_states, tickets, end: tickets + passes as usize + 1 }
    }
}
