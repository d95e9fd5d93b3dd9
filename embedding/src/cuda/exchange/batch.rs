//! What ranks exchange to look up batches of one size: routes, rows, and bags that owners pool.

use rankine_cuda::kernels::{Addresses, Element, Groups, Send, TierEntries, Vectors};
use rankine_cuda::{Cluster, Lane, Pointer, Rail};
use rankine_topology::LocalRank;

use super::NodeTables;
use super::landing::Landing;
use super::pooled::PooledBags;
use super::rails::{ElementBytes, RailContext, Rails};
use super::route::{KeyBitmap, NodeRoute};
use crate::cuda::error::{Result, check_ids};
use crate::cuda::layout::{Ids, Layout};
use crate::cuda::routing::router::Router;
use crate::cuda::storage::RowStore;
use crate::cuda::{RoutedBatch, blocks};

/// One rank's part of the exchange for look-ups, for batches of one size. All messages and buffers have this size.
///
/// Over several nodes, messages have one of a few sizes. The size that a batch needs is known once its route is built
/// ([`size_needed`](Self::size_needed)); if it is not the first, [`route_rest`](Self::route_rest) must follow, and
/// everything else that is enqueued for the batch takes that size. With one node there is one size, 0.
#[derive(Debug)]
pub struct BatchExchange {
    pub(super) layout: Layout,
    local_rank: LocalRank,
    pub(super) router: Router,
    pub(super) landing: Landing,
    pub(super) routes: Vec<NodeRoute>,
    pub(super) union: KeyBitmap,
    /// If there are several nodes.
    pub(super) rails: Option<Rails>,
    /// If owners pool the bags of some tables.
    pub(super) bags: Option<PooledBags>,
}

impl BatchExchange {
    /// For rows that travel as `T`, and sums of their gradients with elements of `sum_bytes`: 0 if batches are only
    /// looked up. With `routes` batch slots. A collective call.
    pub(super) fn new<T: Element>(
        cluster: &Cluster,
        rails: Option<(&Rail, &Rail)>,
        layout: Layout,
        sum_bytes: usize,
        routes: usize,
    ) -> Result<Self> {
        layout.check_exchange()?;
        let (peers, device) = (cluster.peers(), cluster.device());
        let bytes = ElementBytes { row: size_of::<T>(), sum: sum_bytes };
        let _routes = device.purpose("routes");
        let exchange = Self {
            landing: Landing::new::<T>(peers, &layout)?,
            router: Router::new(device, &layout, cluster.rank())?,
            routes: (0..routes).map(|_| NodeRoute::new(peers, &layout)).collect::<Result<_>>()?,
            union: KeyBitmap::new(device, layout.merged_spans() * layout.span)?,
            rails: rails.map(|rails| Rails::new(cluster, &layout, rails, bytes, routes)).transpose()?,
            bags: PooledBags::new::<T>(peers, rails, &layout, routes)?,
            local_rank: peers.local_rank(),
            layout,
        };
        if let Some(rails) = &exchange.rails {
            // NCCL allocates at the first use of each operation, which must not run while other ranks still allocate.
            cluster.gather(0_u8)?;
            let lane = Lane::new(device)?;
            rails.warm_up(&lane, &exchange.layout, bytes)?;
            exchange.bags.as_ref().map_or(Ok(()), |bags| bags.warm_up(&lane))?;
            rails.wait(&lane)?;
            cluster.gather(0_u8)?;
        }
        Ok(exchange)
    }

    /// The layout of batches.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of message sizes between nodes; 1 with one node.
    pub fn sizes(&self) -> usize {
        self.rails.as_ref().map_or(1, Rails::sizes)
    }

    /// The message size that a batch with a route needs: the same at all ranks of a rail.
    pub fn size_needed(&self, batch_slot: usize) -> usize {
        self.rails.as_ref().map_or(0, |rails| rails.size_needed(batch_slot))
    }

    /// Enqueues building the route of a batch in a batch slot: the distinct rows that this rank looks up; a barrier;
    /// and, as an owner, the rows that the ranks look up here.
    ///
    /// # Safety
    /// The exchange must be of these tables. The ids must fit its layout; the batch whose route was in the slot before
    /// must be finished at all ranks; all ranks must build the same routes in the same order, on one lane each;
    /// exchange and tables, and those of all ranks, must live until the lane has finished, and if a graph is captured,
    /// for as long as it is replayed; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn route(&self, tables: &NodeTables, lane: &Lane, ids: Ids, batch_slot: usize) -> Result<()> {
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.route_own(lane, ids, batch_slot)?;
            tables.route_barrier.enqueue(lane)?;
            self.merge(tables, lane, batch_slot)?;
            self.rails.as_ref().map_or(Ok(()), |rails| {
                rails.route(lane, self.rail_context(tables), &self.routes[batch_slot], batch_slot)
            })
        }
    }

    /// Enqueues the rest of a route, if its batch needs a size other than the first.
    ///
    /// # Panics
    /// With one node.
    ///
    /// # Safety
    /// As for [`BatchExchange::route`]; it must be the last route that was enqueued.
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn route_rest(
        &self,
        tables: &NodeTables,
        lane: &Lane,
        batch_slot: usize,
        size: usize,
    ) -> Result<()> {
        let rails = self.rails.as_ref().expect("there are several nodes");
        // SAFETY: the caller vouches for all of this.
        unsafe { rails.route_rest(lane, self.rail_context(tables), batch_slot, size) }
    }

    /// Enqueues the look-up of the first `samples` samples of a batch that has a route: owners send rows; a barrier;
    /// the vector of each bag is written to its position. Rows are rounded to `T` before they are pooled.
    ///
    /// # Panics
    /// If `T` is not the type that the tables were created with, or if the vectors are in fp8, but not
    /// [`NodeTables::pools_to_fp8`].
    ///
    /// # Safety
    /// The ids must be those of the routed batch, which must have at least `samples` samples; `vectors` must have as
    /// many samples with the layout's stride, or in fp8 with one that holds all vectors; all ranks must have met since
    /// the last look-up; lifetimes as for [`BatchExchange::route`]; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn look_up<T: Element>(
        &self,
        tables: &NodeTables,
        lane: &Lane,
        batch: RoutedBatch,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.send::<T>(tables, lane, batch)?;
            tables.meet(lane)?;
            self.pool(tables, lane, batch, samples, vectors)
        }
    }

    /// Waits for the lane, and returns an error if ids were out of range.
    ///
    /// # Errors
    /// In that case, and if the lane's work failed.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        let of_bags = self.bags.as_ref().map_or(Ok(0), |bags| bags.faults(lane))?;
        check_ids(self.router.faults(lane)? + of_bags)
    }

    /// Bytes of this rank's memory that peers access, without checksums and sizes.
    pub(super) fn shared_bytes(&self) -> usize {
        let of_routes = self.routes.iter().map(|route| route.list.bytes() + route.starts.bytes());
        let of_bags = self.bags.as_ref().map_or(0, PooledBags::shared_bytes);
        self.landing.shared_bytes() + of_routes.sum::<usize>() + of_bags
    }

    pub(super) fn rail_context<'a>(&'a self, tables: &'a NodeTables) -> RailContext<'a> {
        RailContext {
            layout: &self.layout,
            set: &self.union,
            rows: &tables.rows,
            local_rank: self.local_rank,
        }
    }

    /// Grid with one row of blocks per list of rows.
    pub(super) fn blocks_each_list(&self, lane: &Lane) -> (u32, u32) {
        let lists = self.layout.lists() as u32;
        (blocks(lane.device()).div_ceil(lists), lists)
    }

    /// The first part of [`BatchExchange::route`], for measuring it separately: finds the rank's look-ups.
    ///
    /// # Safety
    /// As for [`BatchExchange::route`].
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn route_own(&self, lane: &Lane, ids: Ids, batch_slot: usize) -> Result<()> {
        let batch = RoutedBatch { ids, slot: batch_slot, size: 0 };
        // SAFETY: router and route were created for the layout; the caller vouches for the ids.
        unsafe {
            self.router.route(lane, &self.layout, ids, self.routes[batch_slot].buffers())?;
            self.bags.as_ref().map_or(Ok(()), |bags| bags.cut(lane, batch))
        }
    }

    /// The second part of [`BatchExchange::route`], for measuring it separately: merges the look-ups of all ranks at
    /// this owner.
    ///
    /// # Safety
    /// As for [`BatchExchange::route`]; all ranks must have found their look-ups.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn merge(&self, tables: &NodeTables, lane: &Lane, batch_slot: usize) -> Result<()> {
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
            tables.locate(self, lane, batch_slot)?;
            self.bags.as_ref().map_or(Ok(()), |bags| bags.route(lane, batch_slot))
        }
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

    /// The first part of [`BatchExchange::look_up`], for measuring it separately: sends rows, and vectors of bags that
    /// this rank pools, to the ranks that look them up.
    ///
    /// # Panics
    /// As for [`BatchExchange::look_up`].
    ///
    /// # Safety
    /// As for [`BatchExchange::look_up`].
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn send<T: Element>(
        &self,
        tables: &NodeTables,
        lane: &Lane,
        batch: RoutedBatch,
    ) -> Result<()> {
        tables.check_element::<T>();
        let (layout, send) = (&self.layout, self.send_of(&tables.rows, batch.slot));
        // SAFETY: the addresses are of this rank's buffers and of landings, which have a row of this type for each
        // slot; the caller vouches for the peers', and for the rest.
        unsafe {
            tables.forward(self, lane, batch.slot)?;
            match &self.rails {
                None => {
                    let owners = layout.owners() as u32;
                    // As many blocks as the GPU holds at once, so that rows are sent to all ranks at the same time.
                    send.enqueue::<T>(lane, (4 * lane.device().multiprocessors() / owners, owners))?;
                }
                Some(rails) => {
                    if layout.owners() > layout.ranks {
                        // Only the rows that every rank stores, to this rank itself: their lists come last.
                        let (firsts, counts) =
                            (send.firsts.element(layout.ranks), send.counts.element(layout.ranks));
                        let own = Send { firsts, counts, ranks: 0, ..send };
                        own.enqueue::<T>(lane, (blocks(lane.device()), 1))?;
                    }
                    let (route, landings) = (&self.routes[batch.slot], self.landing.of_ranks());
                    rails.send::<T>(lane, self.rail_context(tables), route, batch, landings)?;
                }
            }
            match self.bags.as_ref().zip(tables.pooled.as_ref()) {
                Some((bags, rows)) => bags.send::<T>(lane, rows.store(), batch.slot),
                None => Ok(()),
            }
        }
    }

    /// The last part of [`BatchExchange::look_up`], for measuring it separately: pools the received rows, and adds up
    /// the received vectors of bags.
    ///
    /// # Panics
    /// As for [`BatchExchange::look_up`].
    ///
    /// # Safety
    /// As for [`BatchExchange::look_up`]; all ranks must have met since rows were sent.
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn pool<T: Element>(
        &self,
        tables: &NodeTables,
        lane: &Lane,
        batch: RoutedBatch,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        tables.check_element::<T>();
        let (route, sizes) = (&self.routes[batch.slot], (samples, self.layout.stride));
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.landing.pool(lane, route, batch, sizes, vectors)?;
            match (&self.bags, vectors) {
                (None, _) => Ok(()),
                (Some(bags), Vectors::Elements(vectors) | Vectors::WithKeys { vectors, .. }) => {
                    bags.add(lane, batch, samples, vectors)
                }
                (Some(_), Vectors::Fp8(_)) => {
                    panic!("bags that owners pool are added to vectors of elements")
                }
            }
        }
    }
}
