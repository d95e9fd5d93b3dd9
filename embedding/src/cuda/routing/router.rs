//! Sorts a batch's look-ups by key and finds the distinct keys: for tables on one GPU and for tables that ranks
//! exchange.

use std::ops::AddAssign;
use std::sync::Arc;

use rankine_cuda::kernels::{
    self, Feature, FeatureCounts, Pair, RouteBegin, RouteCount, RouteNumber, RouteNumberFactors, RouteSort,
    Segment,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_topology::Rank;

use crate::cuda::POISON;
use crate::cuda::error::Result;
use crate::cuda::layout::numbering::tiles;
use crate::cuda::layout::{Ids, Layout};
use crate::cuda::routing::frequent::{self, FrequentRowSet};

/// The buffers that receive a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteBuffers {
    /// The distinct rows, by owner, and ascending within an owner. A row's index in this list is its *slot*.
    pub(crate) rows: Pointer<u32>,
    /// Null, or per slot: where its bags start in `sorted`; then the end of the last one.
    pub(crate) starts: Pointer<u32>,
    /// Null, or where the slots of each owner start, then the number of slots.
    pub(crate) owner_starts: Pointer<u32>,
    /// Per look-up: its slot, if slots are needed.
    pub(crate) slots: Option<Pointer<u32>>,
    /// Slot and bag of each look-up, ascending.
    pub(crate) sorted: Pointer<Pair>,
    /// The factor of each sorted look-up that has one.
    pub(crate) factors: Pointer<f32>,
    /// Number of look-ups, and of distinct rows.
    pub(crate) counts: Pointer<u32>,
}

/// The look-ups of a table in a batch of a rank. A table whose columns are distributed over ranks is looked up once
/// for each part; tables whose owners pool are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookUpCounts {
    /// Look-ups.
    pub look_ups: u64,
    /// Distinct rows among them.
    pub distinct_rows: u64,
}

impl AddAssign for LookUpCounts {
    fn add_assign(&mut self, other: Self) {
        self.look_ups += other.look_ups;
        self.distinct_rows += other.distinct_rows;
    }
}

/// Builds routes, one after another.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) features: Buffer<Feature>,
    order: Buffer<u32>,
    segments: Buffer<Segment>,
    tile_segments: Buffer<u32>,
    begins: Buffer<u32>,
    /// Zero at the start of a route: histograms, states, and tickets.
    zeros: Buffer<u32>,
    pairs: Buffer<Pair>,
    faults: Buffer<u32>,
    /// Two per feature.
    feature_counts: Buffer<u32>,
    frequent: Option<FrequentRowSet>,
    /// Number of the first row of the set.
    frequent_base: u32,
    passes: u32,
    /// Tiles of the most look-ups.
    number_tiles: usize,
}

impl Router {
    pub(crate) fn new(device: &Arc<Device>, layout: &Layout, rank: Rank) -> Result<Self> {
        let order = layout.segment_features();
        let (segments, look_ups): (Vec<_>, Vec<_>) = layout.segments().into_iter().unzip();
        let of_tile = |(number, look_ups)| std::iter::repeat_n(number, tiles(look_ups));
        let tile_segments: Vec<u32> = (0..).zip(look_ups).flat_map(of_tile).collect();
        let passes = segments.iter().map(|segment| segment.passes).max().unwrap_or(1);
        let number_tiles = tiles(layout.look_ups());
        let zeros = ZeroedOffsets::new(segments.len(), tile_segments.len(), passes, number_tiles).end;
        Ok(Self {
            features: Buffer::of(device, &layout.kernel_features(rank))?,
            order: Buffer::of(device, &order)?,
            segments: Buffer::of(device, &segments)?,
            tile_segments: Buffer::of(device, &tile_segments)?,
            begins: Buffer::filled(device, order.len() + 1, POISON)?,
            zeros: Buffer::filled(device, zeros, POISON)?,
            pairs: Buffer::filled(device, layout.look_ups(), POISON)?,
            faults: Buffer::filled(device, 1, 0)?,
            feature_counts: Buffer::filled(device, 2 * order.len(), POISON)?,
            frequent: FrequentRowSet::of(device, layout)?,
            frequent_base: layout.listed().next().map_or(0, |(part, ..)| layout.bases[part] as u32),
            passes,
            number_tiles,
        })
    }

    /// Enqueues building a batch's route.
    ///
    /// # Safety
    /// The layout must be the one with which this was created, and the ids must fit it; `to` must have room for as
    /// much as the layout says; see [`Lane::launch`].
    pub(crate) unsafe fn route(
        &self,
        lane: &Lane,
        layout: &Layout,
        ids: Ids,
        to: RouteBuffers,
    ) -> Result<()> {
        let (tiles, zeros) = (self.tile_segments.len(), self.zeros.pointer());
        let begins = ZeroedOffsets::new(self.segments.len(), tiles, self.passes, self.number_tiles);
        let route = kernels::Route {
            features: self.features.pointer(),
            order: self.order.pointer(),
            segments: self.segments.pointer(),
            tile_segments: self.tile_segments.pointer(),
            ids: ids.ids,
            factors: ids.factors,
            offsets: ids.offsets,
            samples_count: ids.samples,
            begins: self.begins.pointer(),
            histograms: zeros,
            states: zeros.element(begins.states),
            tile_states: zeros.element(begins.tile_states),
            tickets: zeros.element(begins.tickets),
            faults: self.faults.pointer(),
            pairs: self.pairs.pointer(),
            sorted: to.sorted,
            sorted_factors: to.factors,
            rows: to.rows,
            starts: to.starts,
            owner_starts: to.owner_starts,
            slots: to.slots.unwrap_or(Pointer::NULL),
            counts: to.counts,
            features_count: self.order.len() as u32,
            tiles: tiles as u32,
            passes: self.passes,
            pass: 0,
            sample_bits: layout.sample_bits(),
            position_bits: layout.position_bits(),
            ranks: layout.ranks as u32,
            span: layout.owner_span() as u32,
            frequent: self.frequent.as_ref().map_or(frequent::NONE, FrequentRowSet::set),
            frequent_base: self.frequent_base,
            owners: layout.owners() as u32,
            nodes: layout.nodes() as u32,
            by_position: u32::from(to.slots.is_some() || layout.has_factors()),
        };
        // SAFETY: all addresses but the caller's are of this value's buffers, whose lengths follow from the layout;
        // the caller vouches for its own.
        unsafe {
            lane.fill(zeros, 0, self.zeros.len())?;
            lane.launch(&RouteBegin(route), (1, 1))?;
            lane.launch(&RouteCount(route), route.count_grid())?;
            for pass in 0..self.passes {
                lane.launch(&RouteSort(kernels::Route { pass, ..route }), (route.tiles, 1))?;
            }
            let grid = (self.number_tiles as u32, 1);
            match layout.has_factors() {
                true => lane.launch(&RouteNumberFactors(route), grid)?,
                false => lane.launch(&RouteNumber(route), grid)?,
            }
        }
        Ok(())
    }

    /// Waits for the lane, and counts the look-ups of a batch, table by table, whose route is in these buffers.
    pub(crate) fn count(
        &self,
        lane: &Lane,
        layout: &Layout,
        route: RouteBuffers,
    ) -> Result<Vec<LookUpCounts>> {
        let features = self.order.len();
        let count = FeatureCounts {
            sorted: route.sorted,
            count: route.counts,
            counts: self.feature_counts.pointer(),
            features: features as u32,
            sample_bits: layout.sample_bits(),
        };
        // SAFETY: the route was built for the layout, and there are two words per feature.
        unsafe {
            lane.fill(count.counts, 0, 2 * features)?;
            lane.launch(&count, (lane.device().multiprocessors(), 1))?;
        }
        let mut tables = vec![LookUpCounts::default(); layout.tables.len()];
        let counts = self.feature_counts.read(lane)?;
        for ((feature, _), of_feature) in layout.sharded_features().zip(counts.chunks_exact(2)) {
            let of_table = &mut tables[feature.table];
            of_table.look_ups += u64::from(of_feature[0]);
            of_table.distinct_rows += u64::from(of_feature[1]);
        }
        Ok(tables)
    }

    /// The rows that every rank stores, of tables of which it does not store all.
    pub(crate) fn listed(&self) -> Pointer<u32> {
        self.frequent.as_ref().map_or(Pointer::NULL, FrequentRowSet::listed)
    }

    /// Waits for the lane, and returns how many ids were out of range.
    pub(crate) fn faults(&self, lane: &Lane) -> Result<u32> {
        Ok(self.faults.read(lane)?[0])
    }
}

/// Offsets of the arrays that are zero at the start of a route.
struct ZeroedOffsets {
    states: usize,
    tile_states: usize,
    tickets: usize,
    end: usize,
}

impl ZeroedOffsets {
    fn new(segments: usize, tiles: usize, passes: u32, number_tiles: usize) -> Self {
        let states = kernels::Route::histogram_words(segments);
        let tile_states = states + kernels::Route::state_words(tiles, passes);
        let tickets = tile_states + number_tiles;
        Self { states, tile_states, tickets, end: tickets + passes as usize + 1 }
    }
}
