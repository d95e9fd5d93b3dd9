//! Tables over the GPUs of one or more NVLink domains: each rank owns some of the rows, and exchanges them with its
//! peers.

pub(crate) mod bag_rails;
pub(crate) mod batch;
mod cold_rows;
pub(crate) mod landing;
pub(crate) mod pooled;
pub(crate) mod pooled_rows;
pub(crate) mod rails;
pub(crate) mod route;
pub(crate) mod squares;
pub(crate) mod sums;
pub(crate) mod traffic;

use rankine_cuda::kernels::{Element, ElementKind, RANKS_MAX, Update};
use rankine_cuda::{Cluster, Lane, PeerBarrier, Pointer, Rail};
use rankine_topology::{LocalRank, Rank};

use self::batch::BatchExchange;
use self::pooled::PooledBags;
use self::pooled_rows::PooledRows;
use self::rails::{ElementBytes, OwnerUpdates, Rails};
use self::route::RouteSnapshot;
use self::squares::Squares;
use self::sums::GradientSums;
use self::traffic::{MessageBytes, TrafficCounts};
use super::error::Result;
use super::layout::Layout;
use super::membership::DynamicTables;
use super::routing::router::LookUpCounts;
use super::storage::RowStore;
use super::storage::device_rows::DeviceRows;
use super::storage::stage::StagingMemory;
use super::tier::DeviceTier;
use super::{InitialWeights, RoutedBatch, UpdateInputs, blocks};
use crate::tier::TierPlan;
use crate::traffic::RankTraffic;

/// One rank's part of all tables.
///
/// Its operations enqueue work on lanes of its GPU, which must be current on the thread. A batch passes through
/// [`BatchExchange::route`], [`BatchExchange::look_up`], [`reduce`](Self::reduce), [`meet`](Self::meet) and
/// [`update`](Self::update), in this order; all ranks enqueue the same. Routes are built on one lane and everything
/// else runs on another, so that the route of a batch is built in parallel with the batch before. Between the
/// look-ups of two batches all ranks must meet: received rows must be pooled before the next rows arrive. In training
/// this happens before the update.
///
/// All look-ups go through a [`BatchExchange`], which is for batches of one size: training has one
/// ([`exchange`](Self::exchange)), and batches that are only looked up may have another
/// ([`exchange_for`](Self::exchange_for)).
#[derive(Debug)]
pub struct NodeTables {
    rank: Rank,
    local_rank: LocalRank,
    seed: u64,
    /// The type in which rows travel.
    element: ElementKind,
    /// The rows that this rank owns.
    rows: RowStore,
    /// If the rule of tables whose columns several ranks store depends on squares of whole rows.
    squares: Option<Squares>,
    /// Likewise, of tables whose owners pool.
    pooled: Option<PooledRows>,
    /// For batches of training.
    exchange: BatchExchange,
    sums: GradientSums,
    traffic: TrafficCounts,
    stage: StagingMemory,
    /// If host memory has some of the rows.
    tier: Option<DeviceTier>,
    /// For routes, on their lane, and for everything else.
    route_barrier: PeerBarrier,
    barrier: PeerBarrier,
}

impl NodeTables {
    /// Creates the tables with the weights of the start of training, and the matching state. Rows travel as `T`, the
    /// type that the model computes in. `routes` is the number of batch slots, each of which holds a route. With
    /// several nodes there must be two rails: one for routes and one for everything else. With a plan, host memory has
    /// some of the rows; then steps are as with [`super::TieredTables`]. A collective call.
    ///
    /// # Panics
    /// If the layout is for another number of ranks or nodes, if there are fewer than two routes (one is built while
    /// the one before is in use), or three with a plan, or if rails are missing.
    ///
    /// # Errors
    /// If the layout is too large to be numbered, if there is not enough memory, or if a peer does not take part.
    pub fn initialized<T: Element>(
        cluster: &Cluster,
        rails: Option<(&Rail, &Rail)>,
        layout: Layout,
        lane: &Lane,
        weights: InitialWeights,
        routes: usize,
        plan: Option<&TierPlan>,
    ) -> Result<Self> {
        let of_cluster = (cluster.ranks(), cluster.nodes());
        assert_eq!((layout.ranks(), layout.nodes()), of_cluster, "the layout is for these ranks");
        assert_eq!(rails.is_some(), layout.nodes() > 1, "several nodes need rails");
        assert!(routes >= 2, "a route is built while the one before is in use");
        let (peers, rank) = (cluster.peers(), cluster.rank());
        let device = peers.device();
        let _routes = device.purpose("routes");
        let sums = GradientSums::new::<T>(peers, &layout)?;
        let exchange = BatchExchange::new::<T>(cluster, rails, layout.clone(), sums.element_bytes(), routes)?;
        let most = (routes, layout.union_max(peers.local_rank()));
        let tier = plan.map(|plan| DeviceTier::new(device, (&layout, rank), plan, weights, most));
        let tier = tier.transpose()?;
        let mut shards = layout.kernel_shards(rank, exchange.router.listed());
        let (mut words, mut row_numbers) = (layout.rank_words(rank), layout.row_numbers());
        if let Some(tier) = &tier {
            shards = tier.shards(shards);
            (words, row_numbers) = (tier.words(), tier.row_numbers());
        }
        let squares = Squares::new(peers, &layout)?;
        let bytes = ElementBytes { row: size_of::<T>(), sum: sums.element_bytes() };
        let pooled = exchange.bags.as_ref();
        let pooled = pooled
            .map(|bags| PooledRows::initialized::<T>(peers, &layout, bags, lane, weights))
            .transpose()?;
        let tables = Self {
            rows: RowStore::uninitialized(device, words, &shards)?,
            squares,
            pooled,
            exchange,
            sums,
            traffic: TrafficCounts::new(device, &layout, rank, bytes)?,
            stage: StagingMemory::default(),
            tier,
            route_barrier: PeerBarrier::new(peers)?.named("the barrier of routes"),
            barrier: PeerBarrier::new(peers)?.named("the barrier of rows and their gradients"),
            element: T::KIND,
            rank,
            local_rank: peers.local_rank(),
            seed: weights.seed,
        };
        // NCCL allocates at the first use of each operation, which must not run while other ranks still allocate.
        cluster.gather(0_u8)?;
        tables.warm_up(lane)?;
        let bounds = layout.bounds(&layout.parts, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe { tables.rows.initialize(lane, &shards, &bounds, row_numbers, weights.seed) }?;
        Ok(tables)
    }

    /// Exchanges squares between nodes once in each size: NCCL's operations must run before anything is captured.
    fn warm_up(&self, lane: &Lane) -> Result<()> {
        let (Some(rails), Some(squares)) = (&self.exchange.rails, &self.squares) else { return Ok(()) };
        for size in 0..rails.sizes() {
            // SAFETY: the squares belong to this value, and the lane is waited for.
            unsafe { squares.exchange(lane, rails, size) }?;
        }
        rails.wait(lane)
    }

    /// Creates the exchange for batches of `samples` samples that are only looked up, with `routes` batch slots. A
    /// collective call.
    ///
    /// # Panics
    /// If `T` is not the type that the tables were created with.
    ///
    /// # Errors
    /// As for [`NodeTables::initialized`].
    pub fn exchange_for<T: Element>(
        &self,
        cluster: &Cluster,
        samples: usize,
        routes: usize,
    ) -> Result<BatchExchange> {
        self.check_element::<T>();
        let rails = self.exchange.rails.as_ref().map(Rails::of_messages);
        let layout = self.layout().clone().with_samples(samples)?;
        BatchExchange::new::<T>(cluster, rails, layout, 0, routes)
    }

    /// The exchange of training batches.
    pub fn exchange(&self) -> &BatchExchange {
        &self.exchange
    }

    /// The rows of tables whose owners pool, with the bags of training batches.
    fn pooled(&self) -> Option<(&PooledRows, &PooledBags)> {
        self.pooled.as_ref().zip(self.exchange.bags.as_ref())
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.exchange.layout
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    fn blocks(&self, lane: &Lane) -> u32 {
        blocks(lane.device())
    }

    /// Enqueues a barrier on the lane of routes, between two of them: all ranks have reached it.
    ///
    /// # Safety
    /// As for [`BatchExchange::route`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn meet_between_routes(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the lifetimes of the ranks' barriers.
        Ok(unsafe { self.route_barrier.enqueue(lane) }?)
    }

    /// Enqueues setting the rows of this rank that begin anew in a slot's batch, before its look-ups.
    ///
    /// # Safety
    /// The dynamic tables must be of the layout and this rank; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn begin_rows(&self, lane: &Lane, dynamic: &DynamicTables, slot: usize) -> Result<()> {
        // SAFETY: the store has the rank's rows of the layout; the caller vouches for the rest.
        unsafe { dynamic.begin_rows(lane, slot, &self.rows) }
    }

    /// Whether vectors can be written in fp8: if they are short enough, and owners pool no bags.
    pub fn pools_to_fp8(&self) -> bool {
        self.exchange.landing.pools_to_fp8() && self.pooled.is_none()
    }

    /// Enqueues the sums of the gradients of each distinct row that this rank looked up, and sends them to the rows'
    /// owners: as bf16 if gradients are bf16, otherwise as f32. Scaling and skipped steps are handled by
    /// [`NodeTables::update`]. [`NodeTables::meet`] must follow, then [`NodeTables::carry_back`].
    ///
    /// # Panics
    /// If `T` is not the type that the tables were created with.
    ///
    /// # Safety
    /// The ids must be those of the batch in the batch slot, and `gradients` must have the layout's stride for each
    /// of its samples; all ranks must have met since the last update; lifetimes as for [`BatchExchange::route`]; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn reduce<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        gradients: Pointer<T>,
    ) -> Result<()> {
        self.check_element::<T>();
        let (route, features) = (&self.exchange.routes[batch.slot], self.exchange.router.features.pointer());
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.sums.reduce(lane, &self.exchange.layout, route, features, batch, gradients)?;
            self.pooled().map_or(Ok(()), |(rows, bags)| {
                bags.send_gradients(lane, rows.gradients(), batch, gradients, self.traffic.pointer())
            })
        }
    }

    /// Enqueues a barrier: waits, on the GPU, until all ranks have reached this point on their lanes; what they wrote
    /// before can be read after it.
    ///
    /// # Safety
    /// The lane must be the one of everything but routes; lifetimes as for [`BatchExchange::route`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn meet(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the lifetimes of the ranks' barriers.
        Ok(unsafe { self.barrier.enqueue(lane) }?)
    }

    /// Enqueues sending sums of gradients to the rows' owners in other nodes, once all ranks of the node have met;
    /// does nothing with one node.
    ///
    /// # Safety
    /// All ranks must have met since they reduced; the size must be that of the batch; lifetimes as for
    /// [`BatchExchange::route`]; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver or NCCL reports an error.
    pub unsafe fn carry_back(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        let Some(rails) = &self.exchange.rails else { return Ok(()) };
        let (own, route) = (self.exchange.rail_context(self), &self.exchange.routes[batch.slot]);
        // SAFETY: the caller vouches for all of this.
        unsafe { rails.carry_back(lane, own, route, batch.size, &self.sums) }
    }

    /// Enqueues the update of each of this rank's rows that any rank looked up in the batch in the batch slot, by its
    /// table's rule, from the sum of the ranks' sums, in the order of ranks. If rules depend on squares of whole rows
    /// whose columns several ranks store, the ranks meet in between.
    ///
    /// # Safety
    /// All ranks must have met since they reduced; the lane must be the one of everything but routes; `inputs.stop`
    /// must be the same at all ranks, and `inputs.rates` must have one rate per table; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn update(&self, lane: &Lane, batch: RoutedBatch, inputs: UpdateInputs) -> Result<()> {
        let BatchExchange { layout, routes, rails, .. } = &self.exchange;
        let route = &routes[batch.slot];
        let owned = match rails {
            Some(rails) => rails.owned(batch.slot),
            None => OwnerUpdates {
                rows: route.union.pointer(),
                rows_count: route.union_starts.pointer().element(1),
                sources: route.sources.pointer(),
                sums: self.sums.pointer(),
                ranks: layout.ranks,
            },
        };
        let update = Update {
            context: self.rows.update_context(inputs, self.seed),
            rows: self.tier.as_ref().map_or(owned.rows, |tier| tier.rows(batch.slot)),
            rows_count: owned.rows_count,
            sources: owned.sources,
            sums: owned.sums,
            shared: self.squares.as_ref().map_or(Pointer::NULL, Squares::shared),
            squares: self.squares.as_ref().map_or([Pointer::NULL; RANKS_MAX], Squares::of_ranks),
            counts: self.traffic.pointer(),
            shards_count: self.rows.shards.len() as u32,
            ranks: owned.ranks as u32,
            width: layout.wire_width() as u32,
            dtype: self.sums.dtype() as u32,
            rank: self.local_rank.0 as u32,
            // Each rank of the node sends them to its rail.
            forwards: (layout.ranks * (layout.nodes - 1)) as u32,
        };
        let (vectors, blocks) = (layout.vectors() as u32, self.blocks(lane));
        // SAFETY: the addresses are of this rank's buffers, with the lengths that the layout says, and of squares,
        // with one per shard for each row that ranks can look up; the caller vouches for the rest.
        unsafe {
            if let Some(squares) = &self.squares {
                update.share_squares(lane, vectors, blocks)?;
                self.meet(lane)?;
                rails.iter().try_for_each(|rails| squares.exchange(lane, rails, batch.size))?;
            }
            update.enqueue(lane, vectors, blocks)?;
            self.pooled().map_or(Ok(()), |(rows, bags)| rows.update(lane, bags, batch.slot, inputs))?;
        }
        // Marks have one bit per row of the rank, wherever it is stored.
        self.rows.mark(lane, owned.rows, owned.rows_count, inputs.stop)
    }

    /// Tracks, from the work enqueued next on, which rows are updated, with one bit per row.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn track_updates(&mut self) -> Result<()> {
        self.rows.track_updates(&self.exchange.layout)?;
        match (&mut self.pooled, &self.exchange.bags) {
            (Some(rows), Some(bags)) => rows.track_updates(bags),
            _ => Ok(()),
        }
    }

    /// The rows of this rank, for reading and writing once the lane has finished all enqueued work. Of rows that all
    /// ranks have, each rank is responsible for a share.
    pub fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        let rows = DeviceRows::new(lane, &self.stage).with_parts(
            &self.exchange.layout,
            self.rank,
            &self.rows,
            self.tier.as_ref(),
        );
        match self.pooled() {
            None => rows,
            Some((pooled, bags)) => {
                rows.with_pooled(&self.exchange.layout, self.rank, &bags.received, pooled.store())
            }
        }
    }

    /// # Panics
    /// If `T` is not the type that the tables were created with.
    fn check_element<T: Element>(&self) {
        assert_eq!(T::KIND, self.element, "the type that rows travel as");
    }

    /// Counts the look-ups of this rank in the batch in the batch slot, table by table, once the lane has finished all
    /// enqueued work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn counts(&self, lane: &Lane, batch_slot: usize) -> Result<Vec<LookUpCounts>> {
        self.exchange.router.count(lane, &self.exchange.layout, self.exchange.routes[batch_slot].buffers())
    }

    /// Enqueues counting what this rank exchanges in a step of training over a batch that has a route, at any time
    /// while the batch slot holds the route. [`NodeTables::reduce`] and [`NodeTables::update`] count parts of bags
    /// and squares; everything else is counted here.
    ///
    /// # Safety
    /// As for [`BatchExchange::look_up`], but no rank is waited for.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn count_traffic(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        let (bytes, bags) = (self.traffic.bytes, self.exchange.bags.as_ref());
        let between = |rails: &Rails| {
            let squares = self.squares.as_ref().map_or(0, |squares| squares.message_bytes(rails, batch.size));
            let bags = bags.map_or(0, PooledBags::bytes_between_nodes);
            rails.message_bytes(&self.exchange.layout, bytes, batch.size) + squares + bags
        };
        let messages = MessageBytes {
            within: bags.map_or(0, PooledBags::message_bytes),
            between: self.exchange.rails.as_ref().map(between),
        };
        // SAFETY: the caller vouches for it.
        unsafe { self.traffic.add(lane, &self.exchange.routes[batch.slot], messages) }
    }

    /// What this rank has sent in the steps that [`NodeTables::count_traffic`] counted, once the lane has finished all
    /// enqueued work. Only the sum over all ranks is meaningful: some of what a rank receives counts as its own.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn traffic(&self, lane: &Lane) -> Result<RankTraffic> {
        self.traffic.read(lane)
    }

    /// Forgets what was counted, once the lane has finished all enqueued work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn forget_traffic(&self, lane: &Lane) -> Result<()> {
        self.traffic.clear(lane)
    }

    /// Reads the route in a batch slot.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn snapshot(&self, lane: &Lane, batch_slot: usize) -> Result<RouteSnapshot> {
        let mut snapshot = self.exchange.routes[batch_slot].read(lane, &self.exchange.layout)?;
        if let Some(rails) = &self.exchange.rails {
            snapshot.named = rails.read(lane, batch_slot)?;
        }
        Ok(snapshot)
    }

    /// Waits for the lane, and returns errors found on the GPU.
    ///
    /// # Errors
    /// If the lane's work failed, if a rank did not reach a barrier in time, or if ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.barrier.check(lane)?;
        self.route_barrier.check(lane)?;
        self.exchange.check(lane)
    }

    /// As [`NodeTables::check`] for what this rank's barriers have found so far; without waiting.
    ///
    /// # Errors
    /// If a rank did not reach a barrier in time.
    pub fn check_now(&self) -> Result<()> {
        self.barrier.check_now()?;
        Ok(self.route_barrier.check_now()?)
    }

    /// Bytes of this rank's memory that peers access, without checksums and sizes.
    pub fn shared_bytes(&self) -> usize {
        let pooled = self.pooled.as_ref().map_or(0, |rows| rows.gradients().bytes());
        self.exchange.shared_bytes() + self.sums.shared_bytes() + pooled
    }
}
