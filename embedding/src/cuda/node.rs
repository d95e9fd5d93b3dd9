//! Tables over the GPUs of an NVLink domain, or of several: each rank owns some of the rows, and exchanges them with
//! its peers.

use rankine_cuda::kernels::{
    Dtype, Element, ElementKind, Feature, Groups, Learning, LookUp, LookUpTask, RANKS_MAX, Rate, Reduce,
    Send, Shard, Step, Update,
};
use rankine_cuda::{Buffer, Cluster, Lane, PeerBarrier, Pointer, Rail, Shared};

use super::device_rows::{self, DeviceRows, Store};
use super::error::{Result, check_ids};
use super::layout::{Ids, Layout};
use super::pooled::Pooled;
use super::rails::{Own, Owned, Rails};
use super::route::{Bits, NodeRoute, Snapshot};
use super::router::Router;
use super::squares::Squares;
use super::stage::Stage;
use super::{POISON, blocks, storage};

/// One rank's part of all tables.
///
/// Its operations enqueue work on lanes of its GPU, which must be the current one of the thread. A batch goes through
/// [`route`](Self::route), [`look_up`](Self::look_up), [`reduce`](Self::reduce), [`meet`](Self::meet) and
/// [`update`](Self::update), in this order; all ranks enqueue the same. Routes are made on one lane, everything else on
/// another, so that the route of a batch is made while the one before is worked on. Between the look-ups of two batches
/// all ranks must meet: what has landed must be pooled before other rows land. Training does so before it updates.
///
/// Over nodes, messages have one of a few sizes. Which one a batch needs is known once its route is made
/// ([`size_needed`](Self::size_needed)); where it is not the first, [`route_rest`](Self::route_rest) must follow, and
/// all else that is enqueued for the batch takes that size. With one node there is one size, 0.
#[derive(Debug)]
pub struct NodeTables {
    layout: Layout,
    rank: usize,
    /// The rank's place in its node.
    place: usize,
    seed: u64,
    /// What rows travel as, forth and, but for f16, back.
    element: ElementKind,
    /// The rank's rows, shard by shard.
    table: Buffer<f32>,
    shards: Buffer<Shard>,
    /// Where several ranks have some columns of rows each whose rule takes squares of whole ones.
    squares: Option<Squares>,
    /// What owners pool.
    pooled: Option<Pooled>,
    look_up_tasks: Buffer<LookUpTask>,
    /// How many are over rows of each type; all are over one.
    look_up_counts: [u32; 3],
    router: Router,
    /// What looks up in `landing`, by slots.
    landing_features: Buffer<Feature>,
    /// `[slot][width]`, of elements: rows as they arrive.
    landing: Shared<u32>,
    /// `[rank][entries_max][width]`: what each rank has summed for this owner's rows.
    sums: Shared<u32>,
    routes: Vec<NodeRoute>,
    /// Where there are several nodes.
    rails: Option<Rails>,
    union: Bits,
    parts: Buffer<f32>,
    /// Which rows have been updated, where that is of interest.
    touched: Option<Buffer<u32>>,
    stage: Stage,
    /// Of routes, which are made aside, and of all else.
    route_barrier: PeerBarrier,
    barrier: PeerBarrier,
}

impl NodeTables {
    /// Tables as training starts with them: with the weights that [`crate::cpu::Table::initialized`] gives for the seed
    /// and the tables' numbers, and the state that goes with them; those from number `drawn` on begin with zeros, as
    /// first-order terms do. Rows travel as `T`, the type that the model computes in. `routes` is how many batches'
    /// routes are held. Over nodes there must be rails, that of routes and that of all else. A collective call.
    ///
    /// # Panics
    /// Where the layout is of another number of ranks or nodes, or where there are no two routes: one is made while the
    /// one before is in use; and where rails are missing.
    ///
    /// # Errors
    /// Where the layout is of more than can be numbered, where the memory does not suffice, and where a peer does not
    /// come.
    pub fn initialized<T: Element>(
        (cluster, rails): (&Cluster, Option<(&Rail, &Rail)>),
        layout: Layout,
        lane: &Lane,
        seed: u64,
        drawn: usize,
        routes: usize,
    ) -> Result<Self> {
        let of_cluster = (cluster.ranks(), cluster.nodes());
        assert_eq!((layout.ranks(), layout.nodes()), of_cluster, "the layout of these ranks");
        assert_eq!(rails.is_some(), layout.nodes() > 1, "rails where there are several nodes");
        assert!(routes >= 2, "a route is made while the one before is in use");
        layout.check_exchange()?;
        let (peers, rank) = (cluster.peers(), cluster.rank());
        let device = peers.device();
        let table = {
            let _tables = device.purpose("tables");
            Buffer::uninitialized(device, layout.rank_words(rank))?
        };
        let (landing, sums) = {
            let _exchange = device.purpose("exchange");
            let words = |rows, element_bytes| rows * layout.wire_width() * element_bytes / 4;
            let sums = layout.ranks * layout.entries_max();
            (
                peers.share(words(layout.slots_max(), size_of::<T>()), POISON)?,
                peers.share(words(sums, sum_bytes::<T>()), POISON)?,
            )
        };
        let _routes = device.purpose("routes");
        let parts = Reduce::<T>::parts_len(layout.look_ups(), layout.vectors());
        let landing_features = layout.landing_features::<T>();
        let (look_up_tasks, look_up_counts) = layout.look_up_tasks(&landing_features);
        let router = Router::new(device, &layout, rank)?;
        let shards = layout.kernel_shards(rank, router.listed());
        let squares = Squares::new(peers, &layout)?;
        let rails = rails.map(|rails| {
            let bytes = (size_of::<T>(), sum_bytes::<T>());
            Rails::new(cluster, &layout, rails, bytes, routes)
        });
        let tables = Self {
            rails: rails.transpose()?,
            table,
            shards: Buffer::of(device, &shards)?,
            squares,
            pooled: Pooled::initialized::<T>(peers, &layout, lane, (seed, drawn), routes)?,
            look_up_tasks: Buffer::of(device, &look_up_tasks)?,
            look_up_counts,
            router,
            landing_features: Buffer::of(device, &landing_features)?,
            landing,
            sums,
            routes: (0..routes).map(|_| NodeRoute::new(peers, &layout)).collect::<Result<_>>()?,
            union: Bits::new(device, layout.merged_spans() * layout.span)?,
            parts: Buffer::filled(device, parts, POISON)?,
            touched: None,
            stage: Stage::default(),
            route_barrier: PeerBarrier::new(peers)?.named("the barrier of routes"),
            barrier: PeerBarrier::new(peers)?.named("the barrier of rows and their gradients"),
            element: T::KIND,
            rank,
            place: peers.rank(),
            seed,
            layout,
        };
        if let (Some(squares), Some(rails)) = (&tables.squares, &tables.rails) {
            for size in 0..rails.sizes() {
                // As all that NCCL carries, once before anything is captured.
                // SAFETY: the squares are this value's, and the lane is waited for.
                unsafe { squares.exchange(lane, rails, size) }?;
            }
            rails.wait(lane)?;
        }
        // SAFETY: the table was just made with as many rows as the layout says.
        unsafe {
            let (bounds, rows) = (tables.layout.bounds(drawn), tables.layout.row_numbers());
            let begin = storage::Begin { shards: &shards, bounds: &bounds, rows, words: tables.table.len() };
            storage::initialize(device, lane, begin, tables.table.pointer(), seed)
        }?;
        Ok(tables)
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    fn blocks(&self, lane: &Lane) -> u32 {
        blocks(lane.device())
    }

    /// Blocks along x where a grid has one layer a list of rows.
    fn blocks_each_list(&self, lane: &Lane) -> (u32, u32) {
        let lists = self.layout.lists() as u32;
        (self.blocks(lane).div_ceil(lists), lists)
    }

    /// Enqueues making the route of a batch in one of the places for routes: the distinct rows that this rank looks up,
    /// a barrier, and as an owner the rows that the ranks look up here.
    ///
    /// # Safety
    /// The ids must be those of the layout; the batch whose route was made there before must be done with, at all
    /// ranks; all ranks must make the same routes in the same order, on one lane each; these tables, and those of all
    /// ranks, must live until the lane has done this, and where a graph is captured, for as long as that is replayed;
    /// see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn route(&self, lane: &Lane, ids: Ids, place: usize) -> Result<()> {
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.route_own(lane, ids, place)?;
            self.route_barrier.enqueue(lane)?;
            self.merge(lane, place)?;
            match &self.rails {
                Some(rails) => rails.route(lane, self.own(), &self.routes[place], place),
                None => Ok(()),
            }
        }
    }

    /// Sizes that messages between nodes have; 1 where there is one node.
    pub fn sizes(&self) -> usize {
        self.rails.as_ref().map_or(1, Rails::sizes)
    }

    /// The size of messages that a batch needs whose route is made: the same at all ranks of a rail.
    pub fn size_needed(&self, place: usize) -> usize {
        self.rails.as_ref().map_or(0, |rails| rails.size_needed(place))
    }

    /// Enqueues the rest of a route, where its batch needs another size than the first.
    ///
    /// # Panics
    /// Where there is one node.
    ///
    /// # Safety
    /// As for [`NodeTables::route`]; it must be the last route that was enqueued.
    ///
    /// # Errors
    /// Where the driver or NCCL refuses.
    pub unsafe fn route_rest(&self, lane: &Lane, place: usize, size: usize) -> Result<()> {
        let rails = self.rails.as_ref().expect("there are nodes to exchange with");
        // SAFETY: the caller vouches for all of this.
        unsafe { rails.route_rest(lane, self.own(), place, size) }
    }

    fn own(&self) -> Own<'_> {
        Own {
            layout: &self.layout,
            set: &self.union,
            shards: &self.shards,
            table: self.table.pointer(),
            place: self.place,
        }
    }

    /// The first part of [`NodeTables::route`], for whoever measures it alone: what looks up.
    ///
    /// # Safety
    /// As for [`NodeTables::route`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn route_own(&self, lane: &Lane, ids: Ids, place: usize) -> Result<()> {
        // SAFETY: router and route were made for the layout; the caller vouches for the ids.
        unsafe {
            self.router.route(lane, &self.layout, ids, self.routes[place].places())?;
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.cut(lane, ids, place))
        }
    }

    /// The last part of [`NodeTables::route`], for whoever measures it alone: what owns.
    ///
    /// # Safety
    /// As for [`NodeTables::route`]; all ranks must have made the first part.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn merge(&self, lane: &Lane, place: usize) -> Result<()> {
        let (merge, number, link) = self.routes[place].merge(&self.layout, self.place, self.union.set());
        let groups = (self.union.groups.len() as u32, 1);
        // SAFETY: all addresses are of this rank's buffers, and of its peers', which the caller vouches for; a rank
        // looks up no more than `entries_max` rows of an owner, and all together no more than `union_max`.
        unsafe {
            self.union.clear(lane)?;
            lane.launch(&merge, self.blocks_each_list(lane))?;
            lane.launch(&Groups(number), groups)?;
            lane.launch(&number, groups)?;
            lane.launch(&link, self.blocks_each_list(lane))?;
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.route(lane, place))
        }
    }

    /// Enqueues the look-up of the first `samples` samples of a batch that has a route: owners send rows; a barrier; of
    /// each bag the vector goes to where it belongs. Rows are rounded to `T` before they are pooled.
    ///
    /// # Panics
    /// Where `T` is another type than the tables were made for.
    ///
    /// # Safety
    /// The ids must be those of the routed batch, which has `samples` samples at least; there must be as many of the
    /// layout's stride in `vectors`; all ranks must have met since the last look-up; lives as for
    /// [`NodeTables::route`]; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        (place, size): (usize, usize),
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for all of this.
        unsafe {
            self.send::<T>(lane, place, size)?;
            self.meet(lane)?;
            self.pool(lane, ids, place, samples, vectors)
        }
    }

    /// The first part of [`NodeTables::look_up`], for whoever measures it alone: owners send rows.
    ///
    /// # Panics
    /// As for [`NodeTables::look_up`].
    ///
    /// # Safety
    /// As for [`NodeTables::look_up`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn send<T: Element>(&self, lane: &Lane, place: usize, size: usize) -> Result<()> {
        self.check_element::<T>();
        let (layout, route) = (&self.layout, &self.routes[place]);
        let owners = layout.owners() as u32;
        let send = Send::<T> {
            storage: self.table.pointer(),
            shards: self.shards.pointer(),
            entries: route.entries.pointer(),
            firsts: route.firsts.pointer(),
            counts: route.counts.pointer(),
            landings: self.landing.of_ranks().map(Pointer::cast),
            shards_count: self.shards.len() as u32,
            capacity: layout.entries_max() as u32,
            rank: self.place as u32,
            ranks: layout.ranks as u32,
            width: layout.wire_width() as u32,
            owned: layout.owned_max() as u32,
        };
        if let Some(rails) = &self.rails {
            let landings = self.landing.of_ranks();
            // SAFETY: the caller vouches for all of this.
            unsafe {
                if layout.owners() > layout.ranks {
                    self.send_own(lane, send)?;
                }
                return rails.send::<T>(lane, self.own(), (route, place, size), landings);
            }
        }
        // As many blocks as the GPU holds at once, so that rows go to all ranks at the same time.
        let blocks = (4 * lane.device().multiprocessors() / owners, owners);
        // SAFETY: the addresses are of this rank's buffers and of landings, which have a row of this type for each
        // slot; the caller vouches for the peers'.
        unsafe {
            send.enqueue(lane, blocks)?;
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.send::<T>(lane, place))
        }
    }

    /// Enqueues sending this rank the rows that every rank has, alone.
    ///
    /// # Safety
    /// As for [`NodeTables::send`].
    unsafe fn send_own<T: Element>(&self, lane: &Lane, send: Send<T>) -> Result<()> {
        // To no ranks: lists are those behind the ones of ranks.
        let ranks = self.layout.ranks;
        let own = Send::<T> {
            firsts: send.firsts.element(ranks),
            counts: send.counts.element(ranks),
            ranks: 0,
            ..send
        };
        // SAFETY: there is such a list of each rank; the caller vouches for the rest.
        Ok(unsafe { own.enqueue(lane, (self.blocks(lane), 1)) }?)
    }

    /// The last part of [`NodeTables::look_up`], for whoever measures it alone: vectors of what has landed.
    ///
    /// # Panics
    /// As for [`NodeTables::look_up`].
    ///
    /// # Safety
    /// As for [`NodeTables::look_up`]; all ranks must have met since rows were sent.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn pool<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        place: usize,
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        self.check_element::<T>();
        let look_up = LookUp {
            tables: self.landing.pointer().cast(),
            features: self.landing_features.pointer(),
            tasks: self.look_up_tasks.pointer(),
            ids: self.routes[place].slots.pointer(),
            offsets: ids.offsets,
            samples_count: ids.samples,
            output: vectors,
            samples: samples as u32,
            stride: self.layout.stride as u32,
        };
        // SAFETY: landing, slots, features and tasks are this value's; the caller vouches for the rest.
        unsafe {
            look_up.enqueue(lane, self.look_up_counts)?;
            let batch = (ids, place, self.layout.stride);
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.add(lane, batch, vectors))
        }
    }

    /// Enqueues the sums of the gradients of each distinct row that this rank looked up, which go to the rows' owners:
    /// as f32, or where gradients are bf16 as such. They are not scaled, and nothing stops this: [`NodeTables::update`]
    /// sees to both. [`NodeTables::meet`] must follow, and [`NodeTables::carry_back`].
    ///
    /// # Panics
    /// Where `T` is another type than the tables were made for.
    ///
    /// # Safety
    /// The ids must be those of the batch whose route is at `place`, and `gradients` must have the layout's stride for
    /// each of its samples; all ranks must have met since the last update; lives as for [`NodeTables::route`]; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn reduce<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        place: usize,
        gradients: Pointer<T>,
    ) -> Result<()> {
        self.check_element::<T>();
        let (layout, route) = (&self.layout, &self.routes[place]);
        let reduce = Reduce {
            pairs: route.sorted.pointer(),
            count: route.looked_up.pointer(),
            features: self.router.features.pointer(),
            offsets: ids.offsets,
            gradients,
            parts: self.parts.pointer(),
            starts: route.starts.pointer(),
            sums: self.sums.of_ranks(),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            width: layout.wire_width() as u32,
            capacity: layout.entries_max() as u32,
            rank: self.place as u32,
            ranks: layout.ranks as u32,
            dtype: Reduce::<T>::SUMS as u32,
            owners: layout.owners() as u32,
            owned: layout.owned_max() as u32,
        };
        // SAFETY: the addresses are of this rank's buffers, whose lengths follow from the layout, and of sums, of which
        // there is one for each row that a rank can look up at an owner; the caller vouches for the rest.
        unsafe {
            reduce.enqueue(lane, layout.look_ups() as u32)?;
            let batch = (ids, place, layout.stride);
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.send_gradients(lane, batch, gradients))
        }
    }

    /// Enqueues a barrier: it waits, on the GPU, until all ranks have come as far on their lanes, and what they wrote
    /// before can be read after.
    ///
    /// # Safety
    /// The lane must be that of all else but routes; lives as for [`NodeTables::route`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn meet(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the lives of the ranks' barriers.
        Ok(unsafe { self.barrier.enqueue(lane) }?)
    }

    /// Enqueues carrying sums of gradients on to the rows' owners in other nodes, once all ranks of the node have met;
    /// nothing where there is one node.
    ///
    /// # Safety
    /// All ranks must have met since they reduced; the size must be that of the batch; lives as for
    /// [`NodeTables::route`]; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver or NCCL refuses.
    pub unsafe fn carry_back(&self, lane: &Lane, place: usize, size: usize) -> Result<()> {
        let Some(rails) = &self.rails else { return Ok(()) };
        let sums = (self.sums.pointer(), self.sums_dtype());
        // SAFETY: the caller vouches for all of this.
        unsafe { rails.carry_back(lane, self.own(), (&self.routes[place], size), sums) }
    }

    /// What sums of gradients are stored as.
    fn sums_dtype(&self) -> Dtype {
        match self.element {
            ElementKind::F32 => Reduce::<f32>::SUMS,
            ElementKind::Bf16 => Reduce::<half::bf16>::SUMS,
            ElementKind::F16 => Reduce::<half::f16>::SUMS,
        }
    }

    /// Enqueues the update of each of this rank's rows that any rank looked up in the batch whose route is at `place`,
    /// by its table's rule and from the sum of the ranks' sums, in the order of ranks; of none where `stop` is not 0.
    /// `rates` is one a table; of the step its number counts, where weights are rounded at random. Where several ranks
    /// have some columns of rows each whose rule takes squares of whole rows, they meet in between.
    ///
    /// # Safety
    /// All ranks must have met since they reduced; the lane must be that of all else but routes; `stop` must be the
    /// same at all ranks; `rates` must be one for each table; `scale` is null or what gradients are multiplied by; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn update(
        &self,
        lane: &Lane,
        (place, size): (usize, usize),
        rates: Pointer<Rate>,
        step: Pointer<Step>,
        (scale, stop): (Pointer<f32>, Pointer<u32>),
    ) -> Result<()> {
        let (layout, route) = (&self.layout, &self.routes[place]);
        let owned = match &self.rails {
            Some(rails) => rails.owned(place),
            None => Owned {
                rows: route.union.pointer(),
                rows_count: route.union_starts.pointer().element(1),
                sources: route.sources.pointer(),
                sums: self.sums.pointer(),
                ranks: layout.ranks,
            },
        };
        let update = Update {
            by: Learning {
                shards: self.shards.pointer(),
                rates,
                scale,
                stop,
                step,
                seed: self.seed,
                storage: self.table.pointer(),
            },
            rows: owned.rows,
            rows_count: owned.rows_count,
            sources: owned.sources,
            sums: owned.sums,
            shared: self.squares.as_ref().map_or(Pointer::NULL, Squares::shared),
            squares: self.squares.as_ref().map_or([Pointer::NULL; RANKS_MAX], Squares::of_ranks),
            shards_count: self.shards.len() as u32,
            ranks: owned.ranks as u32,
            width: layout.wire_width() as u32,
            dtype: self.sums_dtype() as u32,
            rank: self.place as u32,
            reserved: 0,
        };
        let (vectors, blocks) = (layout.vectors() as u32, self.blocks(lane));
        // SAFETY: the addresses are of this rank's buffers, with the lengths that the layout says, and of squares, of
        // which there is one for each row that ranks can look up and shard of it; the caller vouches for the rest.
        unsafe {
            if let Some(squares) = &self.squares {
                update.share_squares(lane, vectors, blocks)?;
                self.meet(lane)?;
                self.rails.iter().try_for_each(|rails| squares.exchange(lane, rails, size))?;
            }
            update.enqueue(lane, vectors, blocks)?;
            self.pooled.as_ref().map_or(Ok(()), |pooled| pooled.update(lane, place, update.by))?;
        }
        device_rows::mark(self.touched.as_ref(), lane, (owned.rows, owned.rows_count), stop)
    }

    /// Keeps book of the rows that are updated by what is enqueued from now on, a bit each.
    ///
    /// # Errors
    /// Where the memory does not suffice.
    pub fn keep_book(&mut self) -> Result<()> {
        self.touched = Some(device_rows::bits(self.table.device(), &self.layout)?);
        self.pooled.as_mut().map_or(Ok(()), Pooled::keep_book)
    }

    /// The rows that this rank has, to be read and changed once the lane has done all that was enqueued on it. Of those
    /// that all ranks have, each speaks for a share.
    pub fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        let store = Store { table: &self.table, touched: self.touched.as_ref() };
        let rows = DeviceRows::new(lane, &self.stage).with_parts(&self.layout, self.rank, store);
        match &self.pooled {
            None => rows,
            Some(pooled) => rows.with_pooled(&self.layout, self.rank, (pooled.received(), pooled.store())),
        }
    }

    /// # Panics
    /// Where `T` is another type than the tables were made for.
    fn check_element<T: Element>(&self) {
        assert_eq!(T::KIND, self.element, "the type that rows travel as");
    }

    /// The look-ups of this rank in the batch whose route is at `place`, and the distinct rows among them.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn counts(&self, lane: &Lane, place: usize) -> Result<[u64; 2]> {
        let counts = self.routes[place].looked_up.read(lane)?;
        Ok([u64::from(counts[0]), u64::from(counts[1])])
    }

    /// A route, once it is made.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn snapshot(&self, lane: &Lane, place: usize) -> Result<Snapshot> {
        let mut snapshot = self.routes[place].read(lane, &self.layout)?;
        if let Some(rails) = &self.rails {
            snapshot.named = rails.read(lane, place)?;
        }
        Ok(snapshot)
    }

    /// Waits for the lane, and tells what went wrong on the GPU.
    ///
    /// # Errors
    /// Where the lane's work failed, where a rank did not come to a barrier in time, and where ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.barrier.check(lane)?;
        self.route_barrier.check(lane)?;
        let of_pooled = self.pooled.as_ref().map_or(Ok(0), |pooled| pooled.faults(lane))?;
        check_ids(self.router.faults(lane)? + of_pooled)
    }

    /// As [`NodeTables::check`], of what this rank's barriers have found by now; without waiting.
    ///
    /// # Errors
    /// Where a rank did not come to a barrier in time.
    pub fn check_now(&self) -> Result<()> {
        self.barrier.check_now()?;
        Ok(self.route_barrier.check_now()?)
    }

    /// Checksums and sizes aside, bytes of this rank's memory that peers access.
    pub fn shared_bytes(&self) -> usize {
        let of_routes = self.routes.iter().map(|route| route.list.bytes() + route.starts.bytes());
        let pooled = self.pooled.as_ref().map_or(0, Pooled::shared_bytes);
        self.landing.bytes() + self.sums.bytes() + of_routes.sum::<usize>() + pooled
    }
}

/// Bytes of an element of the sums of gradients of a type.
fn sum_bytes<T: Element>() -> usize {
    match Reduce::<T>::SUMS {
        Dtype::Fp32 => 4,
        _ => 2,
    }
}
