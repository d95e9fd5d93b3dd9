//! Bags pooled by the owners of their rows: a rank's side for the bags of its own samples, and the owner's side for
//! the parts of all ranks' bags.
//!
//! To an owner, the parts of bags that ranks send it are ragged columns, one for each rank and feature; the rows that
//! it owns are tables on one GPU ([`super::pooled_rows`]). So their route, vectors and update are those of
//! [`crate::cuda::LocalTables`], except that vectors are written to the ranks whose bags they belong to, and gradients
//! come from there.
//!
//! Over several nodes, the bags that a rank splits among the owners of its node are parts of the bags of its rail's
//! ranks ([`super::bag_rails`]), node by node; all else is the same.

use rankine_cuda::kernels::{
    self, Addresses, Element, LinkCounts, LookUp, LookUpTask, PooledFeature, RANKS_MAX,
};
use rankine_cuda::{Buffer, Lane, Peers, Pointer, Rail, SharedBuffer};
use rankine_topology::{LocalRank, Rank, Topology};

use crate::cuda::error::{Error, Result};
use crate::cuda::exchange::bag_rails::{BagRails, BagSpacing};
use crate::cuda::layout::pooled::PooledSizes;
use crate::cuda::layout::{Ids, Layout};
use crate::cuda::local::route::LocalRoute;
use crate::cuda::routing::router::Router;
use crate::cuda::storage::RowStore;
use crate::cuda::{POISON, RoutedBatch, blocks};

/// One rank's part of the exchange of bags that owners pool, for batches of one size.
#[derive(Debug)]
pub(crate) struct PooledBags {
    local_rank: LocalRank,
    /// Ranks of the node.
    ranks: usize,
    sizes: PooledSizes,
    topology: Topology,
    /// Elements of a sample's vectors in the rank's batch.
    stride: usize,
    /// If there are several nodes.
    rails: Option<BagRails>,
    /// Features of the bags that are split here.
    features: Buffer<PooledFeature>,
    /// The most samples of a rank.
    samples: Buffer<u32>,
    /// `[owner][sample][width]`: vectors of parts, written here by the owners. The samples of all
    /// ranks of the rail follow each other.
    landing: SharedBuffer<u32>,
    faults: Buffer<u32>,
    /// As an owner: the layout of the parts of all ranks, to which its rows are tables.
    pub(super) received: Layout,
    pub(super) router: Router,
    /// Features that look up for each rank, with positions in that rank's landing.
    look_up_features: Buffer<kernels::Feature>,
    tasks: Vec<(Buffer<LookUpTask>, [u32; LookUpTask::KINDS])>,
    received_samples: Buffer<u32>,
    pub(super) routes: Vec<PooledRoute>,
}

/// The parts of a batch.
#[derive(Debug)]
pub(super) struct PooledRoute {
    /// `[owner][feature][samples + 1]`: where the parts of the rank's own bags start.
    starts: Buffer<u32>,
    /// As an owner: `[rank][feature][samples + 1]`, the ids, and the factors of those that have weights.
    pub(super) their_starts: SharedBuffer<u32>,
    their_ids: SharedBuffer<u32>,
    their_factors: Option<SharedBuffer<u32>>,
    /// As an owner: the route of the rows that these name.
    pub(super) route: LocalRoute,
}

impl PooledRoute {
    fn new(peers: &Peers, layout: &Layout, received: &Layout) -> Result<Self> {
        let starts = peers.ranks() * layout.pooled_features().len() * (received.samples + 1);
        let has_factors = received.factors() > 0;
        Ok(Self {
            starts: Buffer::filled(peers.device(), starts, 0)?,
            their_starts: peers.share(starts, 0)?,
            their_ids: peers.share(received.ids(), 0)?,
            their_factors: has_factors.then(|| peers.share(received.factors(), POISON)).transpose()?,
            route: LocalRoute::new(peers.device(), received)?,
        })
    }
}

impl PooledBags {
    /// The exchange of a layout's pooled bags, whose vectors travel as `T`; `None` if there are none. A collective
    /// call.
    pub(crate) fn new<T: Element>(
        peers: &Peers,
        rails: Option<(&Rail, &Rail)>,
        layout: &Layout,
        routes: usize,
    ) -> Result<Option<Self>> {
        if layout.pooled.is_empty() {
            return Ok(None);
        }
        let (device, rank, ranks) = (peers.device(), peers.rank(), peers.ranks());
        let (received, sizes) = (layout.received(rank)?, PooledSizes::new(layout, size_of::<T>()));
        let width = sizes.width;
        let landing = {
            let _exchange = device.purpose("exchange");
            peers.share((ranks * received.samples * width * size_of::<T>()).div_ceil(4), POISON)?
        };
        let _routes = device.purpose("routes");
        let look_up_features: Vec<_> = received
            .kernel_features(Rank(0))
            .into_iter()
            .map(|feature| kernels::Feature {
                vector_offset: feature.vector_offset % width as u32,
                ..feature
            })
            .collect();
        let each = layout.pooled_features().len();
        let tasks = (0..ranks).map(|of| {
            let (tasks, counts) = received.look_up_tasks_of(&look_up_features, of * each..(of + 1) * each);
            Ok::<_, Error>((Buffer::of(device, &tasks)?, counts))
        });
        let rails = rails.map(|rails| BagRails::new(device, layout, rails, sizes, routes));
        Ok(Some(Self {
            local_rank: peers.local_rank(),
            ranks,
            sizes,
            topology: layout.topology(),
            stride: layout.stride,
            rails: rails.transpose()?,
            features: Buffer::of(device, &layout.pooled_within_node())?,
            samples: Buffer::of(device, &[layout.samples as u32])?,
            landing,
            faults: Buffer::filled(device, 1, 0)?,
            router: Router::new(device, &received, Rank(0))?,
            tasks: tasks.collect::<Result<_>>()?,
            look_up_features: Buffer::of(device, &look_up_features)?,
            received_samples: Buffer::of(device, &[received.samples as u32])?,
            routes: (0..routes).map(|_| PooledRoute::new(peers, layout, &received)).collect::<Result<_>>()?,
            received,
        }))
    }

    /// Exchanges something between nodes, if there are several: NCCL's operations must run before anything is captured.
    pub(crate) fn warm_up(&self, lane: &Lane) -> Result<()> {
        self.rails.as_ref().map_or(Ok(()), |rails| rails.warm_up(lane))
    }

    /// The kernel that splits bags among the owners of the node, without vectors, gradients and counters.
    fn kernel(&self, batch: RoutedBatch) -> kernels::Pooling {
        let route = &self.routes[batch.slot];
        let (sizes, of_rank) = (&self.sizes, self.local_rank.0);
        let (bags, spacing) = match &self.rails {
            None => (batch.ids, BagSpacing::default()),
            Some(rails) => rails.parts(batch.slot, self.samples.pointer()),
        };
        // This rank's region at each owner.
        let starts = of_rank * sizes.features * (self.received.samples + 1);
        let own_ids = of_rank * (self.received.ids() / self.ranks);
        let own_factors = of_rank * (self.received.factors() / self.ranks);
        kernels::Pooling {
            features: self.features.pointer(),
            ids: bags.ids,
            factors: bags.factors,
            offsets: bags.offsets,
            samples_count: bags.samples,
            starts: route.starts.pointer(),
            their_starts: self.at(&route.their_starts, starts),
            their_ids: self.at(&route.their_ids, own_ids),
            their_factors: match &route.their_factors {
                Some(factors) => self.at(factors, own_factors),
                None => Addresses::NONE,
            },
            parts: self.landing.pointer(),
            their_gradients: Addresses::NONE,
            vectors: Addresses::NONE,
            gradients: Pointer::NULL,
            faults: self.faults.pointer(),
            counts: Pointer::NULL,
            ids_spacing: spacing.ids,
            factors_spacing: spacing.factors,
            offsets_spacing: spacing.offsets,
            features_count: sizes.features as u32,
            sources: self.topology.nodes() as u32,
            samples: sizes.samples as u32,
            owners: self.ranks as u32,
            owner_rows: 1,
            turns: self.topology.ranks() as u32,
            width: sizes.width as u32,
            their_stride: (self.ranks * sizes.width) as u32,
            stride: if self.rails.is_some() { sizes.width } else { self.stride } as u32,
            rank: of_rank as u32,
            contained: 0,
            added: sizes.samples as u32,
        }
    }

    /// The addresses, in each rank's memory, of an element of a shared buffer.
    fn at(&self, shared: &SharedBuffer<u32>, element: usize) -> Addresses {
        let of_ranks = shared.of_ranks();
        Addresses::of_ranks(std::array::from_fn(|rank| match rank < self.ranks {
            true => of_ranks[rank].element(element),
            false => Pointer::NULL,
        }))
    }

    /// Enqueues splitting the rank's bags into parts and sending their ids to the owners.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::route`].
    pub(crate) unsafe fn cut(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        // SAFETY: features and starts belong to this value, and owners have room for the ids of all samples; the
        // caller vouches for the rest.
        unsafe {
            self.rails.as_ref().map_or(Ok(()), |rails| rails.cut(lane, batch))?;
            Ok(self.kernel(batch).cut(lane)?)
        }
    }

    /// Enqueues building the route of the parts that this owner has received.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::route`]; all ranks must have sent their parts.
    pub(crate) unsafe fn route(&self, lane: &Lane, batch_slot: usize) -> Result<()> {
        let route = &self.routes[batch_slot];
        // SAFETY: router and route were created for this layout, and the ids fit it.
        unsafe {
            self.router.route(lane, &self.received, self.received_ids(batch_slot), route.route.buffers())
        }
    }

    fn received_ids(&self, batch_slot: usize) -> Ids {
        let route = &self.routes[batch_slot];
        Ids {
            ids: route.their_ids.pointer(),
            factors: match &route.their_factors {
                Some(factors) => factors.pointer().cast(),
                None => Pointer::NULL,
            },
            offsets: route.their_starts.pointer(),
            samples: self.received_samples.pointer(),
        }
    }

    /// Enqueues pooling the parts that this owner has received, and writes each rank's vectors into its memory.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::look_up`].
    pub(crate) unsafe fn send<T: Element>(
        &self,
        lane: &Lane,
        rows: &RowStore,
        batch_slot: usize,
    ) -> Result<()> {
        let (ids, samples) = (self.received_ids(batch_slot), self.received.samples);
        for turn in 1..=self.ranks {
            // Each owner starts with a different rank and ends with itself.
            let to = (self.local_rank.0 + turn) % self.ranks;
            let (tasks, counts) = &self.tasks[to];
            let look_up = LookUp::<T> {
                tables: rows.table.pointer(),
                features: self.look_up_features.pointer(),
                tasks: tasks.pointer(),
                ids: ids.ids,
                factors: ids.factors,
                offsets: ids.offsets,
                samples_count: ids.samples,
                output: self
                    .landing
                    .of(LocalRank(to))
                    .cast::<T>()
                    .element(self.local_rank.0 * samples * self.sizes.width),
                keys: Pointer::NULL,
                samples: samples as u32,
                stride: self.sizes.width as u32,
            };
            // SAFETY: the rank's landing has room for all samples' parts of each owner; the caller vouches for the
            // rest.
            unsafe { look_up.enqueue(lane, *counts) }?;
        }
        Ok(())
    }

    /// Enqueues adding up what owners have pooled for the first `samples` samples.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::look_up`].
    pub(crate) unsafe fn add<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        let of_rank = {
            let mut vectors_at = [Pointer::NULL; RANKS_MAX];
            vectors_at[0] = vectors.cast();
            Addresses::of_ranks(vectors_at)
        };
        let (kernel, blocks) = (self.kernel(batch), self.blocks(lane, self.topology.nodes()));
        // SAFETY: the parts have arrived; the caller vouches for the rest.
        unsafe {
            let Some(rails) = &self.rails else {
                let kernel = kernels::Pooling { vectors: of_rank, added: samples as u32, ..kernel };
                return Ok(kernel.add::<T>(lane, blocks)?);
            };
            // Other nodes may look up more samples than this one.
            kernels::Pooling { vectors: rails.vectors(), ..kernel }.add::<T>(lane, blocks)?;
            rails.add::<T>(lane, (batch, samples), of_rank, self.blocks(lane, 1))
        }
    }

    /// Enqueues sending bags' gradients to each owner of a part, which has `received` for them, and counting what
    /// crosses links for the parts: in `counts` within the node, and in the counters after it between nodes.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::reduce`].
    pub(crate) unsafe fn send_gradients<T: Element>(
        &self,
        lane: &Lane,
        received: &SharedBuffer<u32>,
        batch: RoutedBatch,
        gradients: Pointer<T>,
        counts: Pointer<LinkCounts>,
    ) -> Result<()> {
        let of_bags = self.rails.as_ref().map_or(gradients.cast(), BagRails::gradients);
        let begin = self.local_rank.0 * self.sizes.width * self.sizes.element_bytes / size_of::<u32>();
        let their_gradients = self.at(received, begin);
        let kernel = kernels::Pooling { counts, gradients: of_bags, their_gradients, ..self.kernel(batch) };
        // SAFETY: each owner has room for the gradients of all ranks' samples; the caller vouches for the rest.
        unsafe {
            if let Some(rails) = &self.rails {
                rails.send_gradients(lane, (batch, gradients), counts.element(1), self.blocks(lane, 1))?;
            }
            Ok(kernel.send::<T>(lane, self.blocks(lane, self.topology.nodes()))?)
        }
    }

    /// Blocks per feature and source of bags.
    fn blocks(&self, lane: &Lane, sources: usize) -> u32 {
        blocks(lane.device()).div_ceil((sources * self.features.len()) as u32)
    }

    /// Waits for the lane, and returns how many ids were out of range.
    pub(crate) fn faults(&self, lane: &Lane) -> Result<u32> {
        let of_rails = self.rails.as_ref().map_or(Ok(0), |rails| rails.faults(lane))?;
        Ok(self.faults.read(lane)?[0] + of_rails)
    }

    /// Bytes that this rank sends to others of its node in a step whatever the batch: lengths of its bags' parts, and
    /// vectors of theirs.
    pub(crate) fn message_bytes(&self) -> u64 {
        let samples = self.received.samples;
        let lengths = self.features.len() * (samples + 1) * size_of::<u32>();
        ((self.ranks - 1) * (lengths + samples * self.sizes.width * self.sizes.element_bytes)) as u64
    }

    /// The same for other nodes: all messages, whatever they contain.
    pub(crate) fn bytes_between_nodes(&self) -> u64 {
        self.rails.as_ref().map_or(0, BagRails::message_bytes)
    }

    /// Bytes of this rank's memory that peers access, without gradients.
    pub(crate) fn shared_bytes(&self) -> usize {
        let of_route = |route: &PooledRoute| {
            let factors = route.their_factors.as_ref().map_or(0, |factors| factors.bytes());
            route.their_starts.bytes() + route.their_ids.bytes() + factors
        };
        let of_routes = self.routes.iter().map(of_route);
        self.landing.bytes() + of_routes.sum::<usize>()
    }
}
