//! One rank: its GPU's part in every operation.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::kernels::{
    Barrier, Fetch, Gather, Groups, Link, Merge, Number, Parts, RANKS_MAX, Reduce, Runs, Send, Update,
    Vectors,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::error::{Error, Result};
use super::layout::{Ids, Layout};
use super::node::{Node, Shared};
use super::route::{Bits, OwnRoute, Snapshot};
use super::router::{RoutePlaces, Router};

/// Which batch's ids make which route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// The batch, among those whose ids are held.
    pub batch: usize,
    /// The route, among those that there are.
    pub route: usize,
}

/// A rank. Its operations enqueue work on lanes of its GPU, which must be the current one of the thread; the caller
/// orders lanes as the [module](super) says.
#[derive(Debug)]
pub struct Rank {
    node: Arc<Node>,
    device: Arc<Device>,
    rank: usize,
    router: Router,
    /// How many samples a batch has: all that there is room for.
    samples: Buffer<u32>,
    routes: Vec<OwnRoute>,
    union: Bits,
    parts: Buffer<f32>,
    vectors_gradients: Buffer<bf16>,
    rate: Buffer<f32>,
    epoch: Buffer<u64>,
}

impl Rank {
    pub(super) fn new(node: &Arc<Node>, device: &Arc<Device>, rank: usize) -> Result<Self> {
        device.bind()?;
        let layout = &node.layout;
        let runs = layout.ids().div_ceil(Reduce::RUN as usize);
        let routes = node.shared[rank].routes.iter().map(|_| OwnRoute::new(device, layout));
        Ok(Self {
            router: Router::new(device, layout)?,
            samples: Buffer::of(device, &[layout.samples as u32])?,
            routes: routes.collect::<Result<_>>()?,
            union: Bits::new(device, layout.span)?,
            parts: Buffer::filled(device, runs * 2 * layout.dim(), 0xff)?,
            vectors_gradients: Buffer::filled(device, layout.elements(), 0xff)?,
            rate: Buffer::filled(device, 1, 0)?,
            epoch: Buffer::filled(device, 1, 0)?,
            node: Arc::clone(node),
            device: Arc::clone(device),
            rank,
        })
    }

    /// Its GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.rank
    }

    /// The layout that all ranks share.
    pub fn layout(&self) -> &Layout {
        &self.node.layout
    }

    fn shared(&self) -> &Shared {
        &self.node.shared[self.rank]
    }

    /// An address of each rank.
    fn of_ranks<T>(&self, of: impl Fn(&Shared) -> Pointer<T>) -> [Pointer<T>; RANKS_MAX] {
        std::array::from_fn(|rank| self.node.shared.get(rank).map_or(Pointer::NULL, &of))
    }

    fn blocks(&self) -> u32 {
        super::blocks(&self.device)
    }

    /// Blocks along x where a grid has one layer a rank.
    fn blocks_each_rank(&self) -> (u32, u32) {
        let ranks = self.layout().ranks as u32;
        (self.blocks().div_ceil(ranks), ranks)
    }

    /// Replaces the ids of a batch that is held: feature by feature, one a sample.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn set_ids(&self, lane: &Lane, batch: usize, ids: &[u32]) -> Result<()> {
        Ok(self.shared().ids[batch].write(lane, ids)?)
    }

    /// Replaces the gradients of the vectors: `[sample][stride]`.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn set_gradients(&self, lane: &Lane, gradients: &[bf16]) -> Result<()> {
        Ok(self.vectors_gradients.write(lane, gradients)?)
    }

    /// Sets the learning rate of the updates that follow.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn set_rate(&self, lane: &Lane, rate: f32) -> Result<()> {
        Ok(self.rate.write(lane, &[rate])?)
    }

    /// Sets this owner's rows to what [`crate::cpu::Table::initialized`] gives for the seed and the tables' numbers.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn initialize(&self, lane: &Lane, seed: u64) -> Result<()> {
        let rows = self.shared().table.pointer();
        // SAFETY: an owner's table has as many rows as the layout says, and lives as long as the node.
        unsafe {
            super::initialize(
                &self.device,
                lane,
                self.layout(),
                self.rank,
                rows,
                seed,
                self.layout().tables.len(),
            )
        }
    }

    /// Finds the distinct rows that a batch of this rank looks up, and the bags of each.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn route(&self, lane: &Lane, routing: Routing) -> Result<()> {
        let (own, shared) = (&self.routes[routing.route], &self.shared().routes[routing.route]);
        let to = RoutePlaces {
            rows: shared.list.pointer(),
            starts: Pointer::NULL,
            owner_starts: shared.starts.pointer(),
            slots: own.slots.pointer(),
            sorted: own.sorted.pointer(),
            counts: own.looked_up.pointer(),
        };
        let ids = Ids {
            ids: self.shared().ids[routing.batch].pointer(),
            offsets: Pointer::NULL,
            samples: self.samples.pointer(),
        };
        // SAFETY: ids and route are of this rank's buffers, whose lengths follow from the layout, which the router was
        // made for.
        unsafe { self.router.route(lane, self.layout(), ids, to) }
    }

    /// Reads which of this owner's rows each rank looks up. All ranks must have made the route.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn merge(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, own) = (self.layout(), &self.routes[route]);
        let merge = Merge {
            lists: self.of_ranks(|shared| shared.routes[route].list.pointer()),
            starts: self.of_ranks(|shared| shared.routes[route].starts.pointer()),
            entries: own.entries.pointer(),
            firsts: own.firsts.pointer(),
            counts: own.counts.pointer(),
            set: self.union.set(),
            capacity: layout.entries_max() as u32,
            rank: self.rank as u32,
        };
        let number = Number {
            set: merge.set,
            rows: own.union.pointer(),
            starts: own.union_starts.pointer(),
            sources: own.sources.pointer(),
            owners: 1,
            span: layout.span as u32,
            sources_width: layout.ranks as u32,
            reserved: 0,
        };
        let link = Link {
            entries: merge.entries,
            counts: merge.counts,
            set: merge.set,
            sources: number.sources,
            capacity: merge.capacity,
            ranks: layout.ranks as u32,
        };
        // SAFETY: all addresses are of this rank's buffers, and of its peers' as the node holds them; a rank looks up
        // no more than `entries_max` rows of an owner, and all together no more than `union_max`.
        unsafe {
            self.union.clear(lane)?;
            lane.launch(&merge, self.blocks_each_rank())?;
            lane.launch(&Groups(number), (self.union.groups.len() as u32, 1))?;
            lane.launch(&number, (self.union.groups.len() as u32, 1))?;
            lane.launch(&link, self.blocks_each_rank())?;
        }
        Ok(())
    }

    /// Writes this owner's rows to the ranks that look them up. All ranks must be done with the rows before.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn send(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, own) = (self.layout(), &self.routes[route]);
        let send = Send {
            table: self.shared().table.pointer(),
            entries: own.entries.pointer(),
            firsts: own.firsts.pointer(),
            counts: own.counts.pointer(),
            landings: self.of_ranks(|shared| shared.landing.pointer()),
            capacity: layout.entries_max() as u32,
            rank: self.rank as u32,
            ranks: layout.ranks as u32,
            dim: layout.dim() as u32,
        };
        // SAFETY: the addresses are of this rank's buffers and of landings that the node holds, with a row for each
        // slot.
        unsafe { lane.launch(&send, self.blocks_each_rank()) }?;
        Ok(())
    }

    /// Reads the rows that this rank looks up out of their owners' tables: in place of [`Rank::send`], it needs no
    /// merged route and moves twice the bytes. The tables must not change meanwhile.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn fetch(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, shared) = (self.layout(), self.shared());
        let fetch = Fetch {
            tables: self.of_ranks(|shared| shared.table.pointer()),
            list: shared.routes[route].list.pointer(),
            starts: shared.routes[route].starts.pointer(),
            landing: shared.landing.pointer(),
            rank: self.rank as u32,
            ranks: layout.ranks as u32,
            dim: layout.dim() as u32,
            reserved: 0,
        };
        // SAFETY: the addresses are of this rank's buffers and of tables that the node holds; the landing has a row for
        // each slot.
        unsafe { lane.launch(&fetch, self.blocks_each_rank()) }?;
        Ok(())
    }

    /// Writes a vector for each look-up of this owner's rows to the rank that looks up: in place of [`Rank::send`] and
    /// [`Rank::gather`], it needs no route but the ids of all ranks.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn send_vectors(&self, lane: &Lane, batch: usize) -> Result<()> {
        let layout = self.layout();
        let vectors = Vectors {
            table: self.shared().table.pointer(),
            features: self.router.features.pointer(),
            ids: self.of_ranks(|shared| shared.ids[batch].pointer()),
            outputs: self.of_ranks(|shared| shared.output.pointer()),
            samples: layout.samples as u32,
            features_count: layout.features.len() as u32,
            rank: self.rank as u32,
            ranks: layout.ranks as u32,
            stride: layout.stride as u32,
            dim: layout.dim() as u32,
        };
        // SAFETY: the addresses are of this rank's buffers and of ids and outputs that the node holds, all of which
        // have the lengths that the layout says.
        unsafe { lane.launch(&vectors, self.blocks_each_rank()) }?;
        Ok(())
    }

    /// Copies each look-up's row to where its vector belongs.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn gather(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, shared) = (self.layout(), self.shared());
        let gather = Gather {
            slots: self.routes[route].slots.pointer(),
            features: self.router.features.pointer(),
            landing: shared.landing.pointer(),
            output: shared.output.pointer(),
            samples: layout.samples as u32,
            features_count: layout.features.len() as u32,
            stride: layout.stride as u32,
            dim: layout.dim() as u32,
        };
        // SAFETY: the addresses are of this rank's buffers, with the lengths that the layout says.
        unsafe { lane.launch(&gather, (self.blocks(), 1)) }?;
        Ok(())
    }

    /// Sums the gradients of each distinct row that this rank looked up, and writes them to the rows' owners. These
    /// must be done with the gradients before.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn reduce(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, own) = (self.layout(), &self.routes[route]);
        let reduce = Reduce {
            pairs: own.sorted.pointer(),
            features: self.router.features.pointer(),
            gradients: self.vectors_gradients.pointer(),
            starts: self.shared().routes[route].starts.pointer(),
            sums: self.of_ranks(|shared| shared.gradients.pointer()),
            parts: self.parts.pointer(),
            ids: layout.ids() as u32,
            features_count: layout.features.len() as u32,
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            dim: layout.dim() as u32,
            capacity: layout.entries_max() as u32,
            rank: self.rank as u32,
            ranks: layout.ranks as u32,
        };
        // SAFETY: the addresses are of this rank's buffers, with two parts a run, and of sums that the node holds, with
        // one for each row that a rank can look up at an owner.
        unsafe {
            lane.launch(&Runs(reduce), reduce.runs_grid())?;
            lane.launch(&Parts(reduce), reduce.parts_grid())?;
        }
        Ok(())
    }

    /// Adds up the ranks' gradients of this owner's rows and updates each by gradient descent. All ranks must have
    /// written theirs.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn update(&self, lane: &Lane, route: usize) -> Result<()> {
        let (layout, own) = (self.layout(), &self.routes[route]);
        let update = Update {
            table: self.shared().table.pointer(),
            rows: own.union.pointer(),
            rows_count: own.union_starts.pointer().element(1),
            sources: own.sources.pointer(),
            gradients: self.shared().gradients.pointer(),
            rate: self.rate.pointer(),
            ranks: layout.ranks as u32,
            dim: layout.dim() as u32,
        };
        // SAFETY: the addresses are of this rank's buffers, with the lengths that the layout says.
        unsafe { lane.launch(&update, (self.blocks(), 1)) }?;
        Ok(())
    }

    /// Waits, on the GPU, until all ranks have come as far on their lanes; what they wrote before can be read after.
    /// The ranks must enqueue their barriers in the same order.
    ///
    /// # Errors
    /// Where the driver refuses. That a rank did not come in time is what [`Rank::check`] tells.
    pub fn barrier(&self, lane: &Lane) -> Result<()> {
        let barrier = Barrier {
            flags: self.of_ranks(|shared| shared.flags.pointer()),
            epoch: self.epoch.pointer(),
            told: Pointer::NULL,
            deadline_ns: u64::try_from(self.node.deadline.as_nanos()).unwrap_or(u64::MAX),
            rank: self.rank as u32,
            ranks: self.layout().ranks as u32,
        };
        // SAFETY: the addresses are of this rank's epoch and of flags that the node holds.
        unsafe { lane.launch(&barrier, (1, 1)) }?;
        Ok(())
    }

    /// Waits for the lane, and tells what went wrong on the GPU.
    ///
    /// # Errors
    /// Where the lane's work failed, where a rank did not come to a barrier, and where ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        let aborted = self.shared().flags.read(lane)?[0].aborted;
        if aborted != 0 {
            let (waiting, missing) = ((aborted >> 32) as u32 - 1, aborted as u32 - 1);
            return Err(Error::Deadline { waiting, missing, deadline_ms: self.node.deadline.as_millis() });
        }
        self.router.check(lane)
    }

    /// This owner's rows: `[row][dim]`.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn table(&self, lane: &Lane) -> Result<Vec<f32>> {
        Ok(self.shared().table.read(lane)?)
    }

    /// The vectors: `[sample][stride]`; only the features' columns are set.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn vectors(&self, lane: &Lane) -> Result<Vec<bf16>> {
        Ok(self.shared().output.read(lane)?)
    }

    /// The gradients that the ranks summed for this owner's rows: `[rank][entry][dim]`, with [`Layout::entries_max`]
    /// entries a rank.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn sums(&self, lane: &Lane) -> Result<Vec<bf16>> {
        Ok(self.shared().gradients.read(lane)?)
    }

    /// A route, once it is made and merged.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn snapshot(&self, lane: &Lane, route: usize) -> Result<Snapshot> {
        Snapshot::read(lane, self.layout(), &self.shared().routes[route], &self.routes[route])
    }

    /// Bytes of this rank that peers can access.
    pub fn shared_bytes(&self) -> usize {
        let Shared { table, landing, gradients, flags, routes, ids, output } = self.shared();
        let of_routes = routes.iter().map(|route| route.list.bytes() + route.starts.bytes());
        let of_ids = ids.iter().map(|ids| ids.bytes());
        let rows = table.bytes() + landing.bytes() + gradients.bytes() + output.bytes();
        rows + flags.bytes() + of_routes.sum::<usize>() + of_ids.sum::<usize>()
    }
}
