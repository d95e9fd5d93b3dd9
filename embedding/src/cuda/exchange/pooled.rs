//! Bags pooled by the owners of their rows: a rank's side for the bags of its own samples, and the owner's side for
//! the parts of all ranks' bags.
//!
//! To an owner, the parts of bags that ranks send it are ragged columns, one for each rank and feature; the rows that
//! it owns are tables on one GPU. So their route, vectors and update are those of [`crate::cuda::LocalTables`], except
//! that vectors are written to the ranks whose bags they belong to, and gradients come from there.
//!
//! Over several nodes, the bags that a rank splits among the owners of its node are parts of the bags of its rail's
//! ranks ([`super::bag_rails`]), node by node; all else is the same.

use half::{bf16, f16};
use rankine_cuda::kernels::{
    self, Addresses, Element, ElementKind, LinkCounts, LookUp, LookUpTask, PooledFeature, RANKS_MAX,
    SparseUpdate,
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
use crate::cuda::{InitialWeights, POISON, RoutedBatch, UpdateInputs, blocks};

/// One rank's share of tables whose owners pool.
#[derive(Debug)]
pub(crate) struct PooledTables {
    local_rank: LocalRank,
    /// Ranks of the node.
    ranks: usize,
    seed: u64,
    sizes: PooledSizes,
    element: ElementKind,
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
    received: Layout,
    /// `[sample][rank][width]`: gradients of bags, written here by the ranks.
    gradients: SharedBuffer<u32>,
    rows: RowStore,
    router: Router,
    /// Features that look up for each rank, with positions in that rank's landing.
    look_up_features: Buffer<kernels::Feature>,
    tasks: Vec<(Buffer<LookUpTask>, [u32; LookUpTask::KINDS])>,
    received_samples: Buffer<u32>,
    sums: Buffer<f32>,
    routes: Vec<PooledRoute>,
}

/// The parts of a batch.
#[derive(Debug)]
struct PooledRoute {
    /// `[owner][feature][samples + 1]`: where the parts of the rank's own bags start.
    starts: Buffer<u32>,
    /// As an owner: `[rank][feature][samples + 1]`, the ids, and the factors of those that have weights.
    their_starts: SharedBuffer<u32>,
    their_ids: SharedBuffer<u32>,
    their_factors: Option<SharedBuffer<u32>>,
    /// As an owner: the route of the rows that these name.
    route: LocalRoute,
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

impl PooledTables {
    /// The pooled tables of a layout, `None` if there are none; see [`crate::cuda::NodeTables::initialized`]. A
    /// collective call.
    pub(crate) fn initialized<T: Element>(
        peers: &Peers,
        rails: Option<(&Rail, &Rail)>,
        layout: &Layout,
        lane: &Lane,
        weights: InitialWeights,
        routes: usize,
    ) -> Result<Option<Self>> {
        if layout.pooled.is_empty() {
            return Ok(None);
        }
        let (device, rank, ranks) = (peers.device(), peers.rank(), peers.ranks());
        let (received, sizes) = (layout.received(rank)?, PooledSizes::new(layout, size_of::<T>()));
        let width = sizes.width;
        let (landing, gradients) = {
            let _exchange = device.purpose("exchange");
            let words = (ranks * received.samples * width * size_of::<T>()).div_ceil(4);
            (peers.share(words, POISON)?, peers.share(words, POISON)?)
        };
        let _routes = device.purpose("routes");
        let shards = layout.pooled_shards(rank, &received);
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
        let sums = SparseUpdate::<f32>::parts_len(received.look_ups(), received.vectors());
        let rails = rails.map(|rails| BagRails::new(device, layout, rails, sizes, routes));
        let pooled = Self {
            local_rank: peers.local_rank(),
            ranks,
            seed: weights.seed,
            sizes,
            element: T::KIND,
            topology: layout.topology(),
            stride: layout.stride,
            rails: rails.transpose()?,
            features: Buffer::of(device, &layout.pooled_within_node())?,
            samples: Buffer::of(device, &[layout.samples as u32])?,
            landing,
            faults: Buffer::filled(device, 1, 0)?,
            gradients,
            rows: RowStore::uninitialized(device, received.rank_words(Rank(0)), &shards)?,
            router: Router::new(device, &received, Rank(0))?,
            tasks: tasks.collect::<Result<_>>()?,
            look_up_features: Buffer::of(device, &look_up_features)?,
            received_samples: Buffer::of(device, &[received.samples as u32])?,
            sums: Buffer::filled(device, sums, POISON)?,
            routes: (0..routes).map(|_| PooledRoute::new(peers, layout, &received)).collect::<Result<_>>()?,
            received,
        };
        let bounds = layout.bounds(&layout.pooled, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe {
            pooled.rows.initialize(lane, &shards, &bounds, pooled.received.row_numbers(), weights.seed)
        }?;
        Ok(Some(pooled))
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
        let at = |of_ranks: [Pointer<u32>; RANKS_MAX], offset: usize| {
            Addresses::of_ranks(std::array::from_fn(|rank| match rank < self.ranks {
                true => of_ranks[rank].element(offset),
                false => Pointer::NULL,
            }))
        };
        kernels::Pooling {
            features: self.features.pointer(),
            ids: bags.ids,
            factors: bags.factors,
            offsets: bags.offsets,
            samples_count: bags.samples,
            starts: route.starts.pointer(),
            their_starts: at(route.their_starts.of_ranks(), starts),
            their_ids: at(route.their_ids.of_ranks(), own_ids),
            their_factors: match &route.their_factors {
                Some(factors) => at(factors.of_ranks(), own_factors),
                None => Addresses::NONE,
            },
            parts: self.landing.pointer(),
            their_gradients: at(
                self.gradients.of_ranks(),
                of_rank * sizes.width * sizes.element_bytes / size_of::<u32>(),
            ),
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
            reserved: 0,
        }
    }

    /// Enqueues splitting the rank's bags into parts and sending their ids to the owners.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::route`].
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
    /// As for [`crate::cuda::NodeTables::route`]; all ranks must have sent their parts.
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
    /// As for [`crate::cuda::NodeTables::look_up`].
    pub(crate) unsafe fn send<T: Element>(&self, lane: &Lane, batch_slot: usize) -> Result<()> {
        let (ids, samples) = (self.received_ids(batch_slot), self.received.samples);
        for turn in 1..=self.ranks {
            // Each owner starts with a different rank and ends with itself.
            let to = (self.local_rank.0 + turn) % self.ranks;
            let (tasks, counts) = &self.tasks[to];
            let look_up = LookUp::<T> {
                tables: self.rows.table.pointer(),
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

    /// Enqueues adding up what owners have pooled.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::look_up`].
    pub(crate) unsafe fn add<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        vectors: Pointer<T>,
    ) -> Result<()> {
        let of_rank = {
            let mut vectors_at = [Pointer::NULL; RANKS_MAX];
            vectors_at[0] = vectors.cast();
            Addresses::of_ranks(vectors_at)
        };
        let to = self.rails.as_ref().map_or(of_rank, BagRails::vectors);
        let kernel = kernels::Pooling { vectors: to, ..self.kernel(batch) };
        // SAFETY: the parts have arrived; the caller vouches for the rest.
        unsafe {
            kernel.add::<T>(lane, self.blocks(lane, self.topology.nodes()))?;
            let Some(rails) = &self.rails else { return Ok(()) };
            rails.add::<T>(lane, (batch, of_rank), self.blocks(lane, 1))
        }
    }

    /// Enqueues sending bags' gradients to each owner of a part, and counting what crosses links for the parts: in
    /// `counts` within the node, and in the counters after it between nodes.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::reduce`].
    pub(crate) unsafe fn send_gradients<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        gradients: Pointer<T>,
        counts: Pointer<LinkCounts>,
    ) -> Result<()> {
        let of_bags = self.rails.as_ref().map_or(gradients.cast(), BagRails::gradients);
        let kernel = kernels::Pooling { counts, gradients: of_bags, ..self.kernel(batch) };
        // SAFETY: each owner has room for the gradients of all ranks' samples; the caller vouches for the rest.
        unsafe {
            if let Some(rails) = &self.rails {
                rails.send_gradients(lane, (batch, gradients), counts.element(1), self.blocks(lane, 1))?;
            }
            Ok(kernel.send::<T>(lane, self.blocks(lane, self.topology.nodes()))?)
        }
    }

    /// Enqueues the update of this owner's rows that any part names.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::update`].
    pub(crate) unsafe fn update(&self, lane: &Lane, batch_slot: usize, inputs: UpdateInputs) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self.element {
                ElementKind::F32 => self.update_from::<f32>(lane, batch_slot, inputs),
                ElementKind::Bf16 => self.update_from::<bf16>(lane, batch_slot, inputs),
                ElementKind::F16 => self.update_from::<f16>(lane, batch_slot, inputs),
            }
        }
    }

    unsafe fn update_from<T: Element>(
        &self,
        lane: &Lane,
        batch_slot: usize,
        inputs: UpdateInputs,
    ) -> Result<()> {
        let (layout, route) = (&self.received, &self.routes[batch_slot].route);
        let update = SparseUpdate::<T> {
            pairs: route.sorted.pointer(),
            count: route.counts.pointer(),
            rows: route.rows.pointer(),
            features: self.router.features.pointer(),
            offsets: self.routes[batch_slot].their_starts.pointer(),
            factors: route.factors.pointer(),
            gradients: self.gradients.pointer().cast(),
            parts: self.sums.pointer(),
            context: self.rows.update_context(inputs, self.seed),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            keys: layout.elements() as u32,
        };
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane, layout.look_ups() as u32, layout.is_lean()) }?;
        self.rows.mark(lane, route.rows.pointer(), route.counts.pointer().element(1), inputs.stop)
    }

    /// Blocks per feature and source of bags.
    fn blocks(&self, lane: &Lane, sources: usize) -> u32 {
        blocks(lane.device()).div_ceil((sources * self.features.len()) as u32)
    }

    /// Tracks, from the work enqueued next on, which rows are updated.
    pub(crate) fn track_updates(&mut self) -> Result<()> {
        self.rows.track_updates(&self.received)
    }

    /// The rows that the rank owns, as tables on one GPU: one per pooled part of the layout.
    pub(crate) fn received(&self) -> &Layout {
        &self.received
    }

    /// These rows.
    pub(crate) fn rows(&self) -> &RowStore {
        &self.rows
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

    /// Bytes of this rank's memory that peers access.
    pub(crate) fn shared_bytes(&self) -> usize {
        let of_route = |route: &PooledRoute| {
            let factors = route.their_factors.as_ref().map_or(0, |factors| factors.bytes());
            route.their_starts.bytes() + route.their_ids.bytes() + factors
        };
        let of_routes = self.routes.iter().map(of_route);
        self.landing.bytes() + self.gradients.bytes() + of_routes.sum::<usize>()
    }
}
