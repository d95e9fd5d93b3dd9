//! The exchange of rows for batches of one size: their routes, and the rows that a rank receives.

use rankine_cuda::kernels::{Addresses, Element, Groups, Send, TierEntries, Vectors};
use rankine_cuda::{Lane, Peers, Pointer};
use rankine_topology::{LocalRank, Rank};

use super::landing::Landing;
use super::route::{KeyBitmap, NodeRoute};
use crate::cuda::error::Result;
use crate::cuda::layout::{Ids, Layout};
use crate::cuda::routing::router::Router;
use crate::cuda::storage::RowStore;
use crate::cuda::{RoutedBatch, blocks};

/// One rank's part of the exchange of rows, for batches of one size.
#[derive(Debug)]
pub struct RowExchange {
    pub(super) layout: Layout,
    local_rank: LocalRank,
    pub(super) router: Router,
    pub(super) landing: Landing,
    pub(super) routes: Vec<NodeRoute>,
    pub(super) union: KeyBitmap,
}

impl RowExchange {
    /// For rows that travel as `T`, with `routes` batch slots. A collective call.
    pub(super) fn new<T: Element>(peers: &Peers, layout: Layout, rank: Rank, routes: usize) -> Result<Self> {
        layout.check_exchange()?;
        let device = peers.device();
        let _routes = device.purpose("routes");
        Ok(Self {
            landing: Landing::new::<T>(peers, &layout)?,
            router: Router::new(device, &layout, rank)?,
            routes: (0..routes).map(|_| NodeRoute::new(peers, &layout)).collect::<Result<_>>()?,
            union: KeyBitmap::new(device, layout.merged_spans() * layout.span)?,
            local_rank: peers.local_rank(),
            layout,
        })
    }

    /// Samples of a rank's batch.
    pub fn samples(&self) -> usize {
        self.layout.samples()
    }

    /// Grid with one row of blocks per list of rows.
    pub(super) fn blocks_each_list(&self, lane: &Lane) -> (u32, u32) {
        let lists = self.layout.lists() as u32;
        (blocks(lane.device()).div_ceil(lists), lists)
    }

    /// Enqueues finding the rank's look-ups.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::route`].
    pub(super) unsafe fn route_own(&self, lane: &Lane, ids: Ids, batch_slot: usize) -> Result<()> {
        // SAFETY: router and route were created for the layout; the caller vouches for the ids.
        unsafe { self.router.route(lane, &self.layout, ids, self.routes[batch_slot].buffers()) }
    }

    /// Enqueues merging the look-ups of all ranks at this owner.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::route`]; all ranks must have found their look-ups.
    pub(super) unsafe fn merge(&self, lane: &Lane, batch_slot: usize) -> Result<()> {
        let (merge, number, link) =
            self.routes[batch_slot].merge(&self.layout, self.local_rank, self.union.set());
        let groups = (self.union.groups.len() as u32, 1);
        // SAFETY: all addresses are of this rank's buffers and of its peers', which the caller vouches for; a rank
        // looks up at most `entries_max` rows of an owner, and all together at most `union_max`.
        unsafe {
            self.union.clear(lane)?;
            lane.launch(&merge, self.blocks_each_list(lane))?;
            lane.launch(&Groups(number), groups)?;
            lane.launch(&number, groups)?;
            lane.launch(&link, self.blocks_each_list(lane))?;
        }
        Ok(())
    }

    /// The rows that ranks look up at this owner, and the grid of kernels that go through them.
    pub(super) fn entries_of(&self, lane: &Lane, batch_slot: usize) -> (TierEntries, (u32, u32)) {
        let (layout, route) = (&self.layout, &self.routes[batch_slot]);
        let entries = TierEntries {
            entries: route.entries.pointer(),
            counts: route.counts.pointer(),
            set: self.union.set(),
            stored_rows: Pointer::NULL,
            capacity: layout.entries_max() as u32,
            owned: layout.owned_max() as u32,
            ranks: layout.ranks as u32,
            reserved: 0,
        };
        (entries, self.blocks_each_list(lane))
    }

    /// Returns the kernel with which this rank sends the rows of a route to those that look them up.
    pub(super) fn send_of(&self, rows: &RowStore, batch_slot: usize) -> Send {
        let (layout, route) = (&self.layout, &self.routes[batch_slot]);
        Send {
            storage: rows.table.pointer(),
            shards: rows.shards.pointer(),
            entries: route.entries.pointer(),
            firsts: route.firsts.pointer(),
            counts: route.counts.pointer(),
            landings: Addresses::of_ranks(self.landing.of_ranks()),
            shards_count: rows.shards.len() as u32,
            capacity: layout.entries_max() as u32,
            rank: self.local_rank.0 as u32,
            ranks: layout.ranks as u32,
            width: layout.wire_width() as u32,
            owned: layout.owned_max() as u32,
        }
    }

    /// Enqueues sending this rank's rows within its node.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::look_up`].
    pub(super) unsafe fn send<T: Element>(
        &self,
        lane: &Lane,
        rows: &RowStore,
        batch_slot: usize,
    ) -> Result<()> {
        let owners = self.layout.owners() as u32;
        // As many blocks as the GPU holds at once, so that rows are sent to all ranks at the same time.
        let blocks = (4 * lane.device().multiprocessors() / owners, owners);
        // SAFETY: the addresses are of this rank's buffers and of landings, which have a row of this type for each
        // slot; the caller vouches for the peers'.
        Ok(unsafe { self.send_of(rows, batch_slot).enqueue::<T>(lane, blocks) }?)
    }

    /// Enqueues pooling the received rows.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::pool`].
    pub(super) unsafe fn pool<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.landing.pool(lane, &self.routes[batch.slot], batch, (samples, self.layout.stride), vectors)
        }
    }
}
