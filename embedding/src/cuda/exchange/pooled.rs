//! Bags pooled by the owners of their rows: a rank's side for the bags of its own samples, and the owner's side for
//! the parts of all ranks' bags.
//!
//! To an owner, the parts of bags that ranks send it are ragged columns, one for each rank and feature; the rows that
//! it owns are tables on one GPU. So their route, vectors and update are those of [`crate::cuda::LocalTables`], except
//! that vectors are written to the ranks whose bags they belong to, and gradients come from there.

use half::{bf16, f16};
use rankine_cuda::kernels::{
    self, Element, ElementKind, LinkCounts, LookUp, LookUpTask, PooledFeature, RANKS_MAX, SparseUpdate,
};
use rankine_cuda::{Buffer, Lane, Peers, Pointer, SharedBuffer};
use rankine_topology::{LocalRank, Rank};

use crate::cuda::error::{Error, Result};
use crate::cuda::layout::parts::{Holder, Part};
use crate::cuda::layout::{Feature, Hotness, Ids, Layout, VECTOR};
use crate::cuda::local::route::LocalRoute;
use crate::cuda::routing::router::Router;
use crate::cuda::storage::RowStore;
use crate::cuda::{InitialWeights, POISON, RoutedBatch, UpdateInputs, blocks};
use crate::placement::Owner;
use crate::table::{Pooling, TableSpec};

/// One rank's share of tables whose owners pool.
#[derive(Debug)]
pub(crate) struct PooledTables {
    rank: Rank,
    ranks: usize,
    seed: u64,
    /// Elements of a sample's parts.
    width: usize,
    /// Elements of a sample's vectors in the rank's batch.
    stride: usize,
    element: ElementKind,
    /// Features of the rank's batch.
    features: Buffer<PooledFeature>,
    /// `[owner][sample][width]`: vectors of parts, written here by the owners.
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
    tasks: Vec<(Buffer<LookUpTask>, [u32; 3])>,
    samples: Buffer<u32>,
    sums: Buffer<f32>,
    routes: Vec<PooledRoute>,
}

/// The parts of a batch.
#[derive(Debug)]
struct PooledRoute {
    /// `[owner][feature][samples + 1]`: where the parts of the rank's own bags start.
    starts: Buffer<u32>,
    /// As an owner: `[rank][feature][samples + 1]`, and the ids.
    their_starts: SharedBuffer<u32>,
    their_ids: SharedBuffer<u32>,
    /// As an owner: the route of the rows that these name.
    route: LocalRoute,
}

impl Layout {
    /// Look-ups of tables whose owners pool: each feature, by number, for each of these parts, by number.
    pub(crate) fn pooled_features(&self) -> Vec<(usize, usize)> {
        let of_feature = |(number, feature): (usize, &Feature)| {
            let parts = self.pooled.iter().enumerate();
            let own = parts.filter(|(_, part)| part.table == feature.table);
            own.map(|(part, _)| (number, part)).collect::<Vec<_>>()
        };
        self.features.iter().enumerate().flat_map(of_feature).collect()
    }

    /// Elements of a part's row, padded.
    fn pooled_dim(&self, part: usize) -> usize {
        self.pooled[part].columns.len().next_multiple_of(VECTOR)
    }

    /// Elements of a sample's parts.
    fn pooled_width(&self) -> usize {
        self.pooled_features().into_iter().map(|(_, part)| self.pooled_dim(part)).sum()
    }

    /// What a rank receives as an owner: a column per rank and feature, and a table per part.
    fn received(&self, rank: Rank) -> Result<Self> {
        let of_part = |part: &Part| {
            let TableSpec { name, rows, dtype, .. } = &self.tables[part.table];
            // A table needs a row, even if another rank owns all of it; then nobody names it.
            let rows = part.rows_at(rank, *rows, self.topology()).max(1);
            TableSpec { name: name.clone(), rows, dim: part.columns.len(), dtype: *dtype }
        };
        let tables: Vec<_> = self.pooled.iter().map(of_part).collect();
        let optimizers: Vec<_> = self.pooled.iter().map(|part| self.optimizers[part.table]).collect();
        let (mut columns, mut features) = (Vec::new(), Vec::new());
        let mut vector_offset = 0;
        for _ in 0..self.ranks {
            for (feature, part) in self.pooled_features() {
                let max = self.columns[self.features[feature].column].max();
                features.push(Feature {
                    column: columns.len(),
                    table: part,
                    vector_offset,
                    pooling: Pooling::Sum,
                });
                columns.push(Hotness::Ragged { max });
                vector_offset += self.pooled_dim(part);
            }
        }
        let layout = Self::new(1, self.samples, vector_offset, &tables, &columns, &features)?;
        Ok(layout.with_optimizers(&optimizers))
    }

    /// The shards of a rank's rows in the kernels' form, given the layout of what it receives.
    fn pooled_shards(&self, rank: Rank, received: &Self) -> Vec<kernels::Shard> {
        let topology = self.topology();
        let shard = |(part, shard): (&Part, kernels::Shard)| {
            let every_rank = matches!(part.holder, Holder::Owned(Owner::EveryRank));
            kernels::Shard {
                table: part.table as u32,
                column: part.columns.start as u32,
                rows: part.rows_at(rank, self.tables[part.table].rows, topology) as u32,
                row: if every_rank { rank.0 as u32 } else { 0 },
                step: if every_rank { self.ranks as u32 } else { 1 },
                ..shard
            }
        };
        self.pooled.iter().zip(received.kernel_shards(Rank(0), Pointer::NULL)).map(shard).collect()
    }

    /// The features of a rank's batch in the kernels' form.
    fn kernel_pooled(&self) -> Vec<PooledFeature> {
        let (mut part_offset, mut part_ids) = (0, 0);
        let of = |(number, part): (usize, usize)| {
            let (feature, dim) = (&self.features[number], self.pooled_dim(part));
            let hotness = self.columns[feature.column];
            let ragged = matches!(hotness, Hotness::Ragged { .. });
            let begin = self.offsets_begin(feature.column) as u32;
            let of_feature = PooledFeature {
                ids: self.ids_begin(feature.column) as u32,
                offsets: if ragged { begin } else { kernels::Feature::FIXED },
                hotness: hotness.max() as u32,
                mean: u32::from(feature.pooling == Pooling::Mean),
                rows: self.tables[feature.table].rows as u32,
                owner: match self.pooled[part].holder {
                    Holder::Owned(Owner::Rank(rank)) => rank.0 as u32,
                    _ => kernels::Feature::TURNS,
                },
                dim: dim as u32,
                vector_offset: (feature.vector_offset + self.pooled[part].columns.start) as u32,
                part_offset: part_offset as u32,
                part_ids: part_ids as u32,
            };
            part_offset += dim;
            part_ids += self.samples * hotness.max();
            of_feature
        };
        self.pooled_features().into_iter().map(of).collect()
    }
}

impl PooledRoute {
    fn new(peers: &Peers, layout: &Layout, received: &Layout) -> Result<Self> {
        let starts = peers.ranks() * layout.pooled_features().len() * (layout.samples + 1);
        Ok(Self {
            starts: Buffer::filled(peers.device(), starts, 0)?,
            their_starts: peers.share(starts, 0)?,
            their_ids: peers.share(received.ids(), 0)?,
            route: LocalRoute::new(peers.device(), received)?,
        })
    }
}

impl PooledTables {
    /// The pooled tables of a layout, `None` if there are none; see [`crate::cuda::NodeTables::initialized`]. A
    /// collective call.
    pub(crate) fn initialized<T: Element>(
        peers: &Peers,
        layout: &Layout,
        lane: &Lane,
        weights: InitialWeights,
        routes: usize,
    ) -> Result<Option<Self>> {
        if layout.pooled.is_empty() {
            return Ok(None);
        }
        let (device, rank, ranks) = (peers.device(), peers.rank(), peers.ranks());
        let (received, width) = (layout.received(rank)?, layout.pooled_width());
        let (landing, gradients) = {
            let _exchange = device.purpose("exchange");
            let words = (ranks * layout.samples * width * size_of::<T>()).div_ceil(4);
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
        let pooled = Self {
            rank,
            ranks,
            seed: weights.seed,
            width,
            stride: layout.stride,
            element: T::KIND,
            features: Buffer::of(device, &layout.kernel_pooled())?,
            landing,
            faults: Buffer::filled(device, 1, 0)?,
            gradients,
            rows: RowStore::uninitialized(device, received.rank_words(Rank(0)), &shards)?,
            router: Router::new(device, &received, Rank(0))?,
            tasks: tasks.collect::<Result<_>>()?,
            look_up_features: Buffer::of(device, &look_up_features)?,
            samples: Buffer::of(device, &[layout.samples as u32])?,
            sums: Buffer::filled(device, sums, POISON)?,
            routes: (0..routes).map(|_| PooledRoute::new(peers, layout, &received)).collect::<Result<_>>()?,
            received,
        };
        let bounds = layout.bounds(&layout.pooled, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe { pooled.rows.initialize(lane, &shards, &bounds, &pooled.received, weights.seed) }?;
        Ok(Some(pooled))
    }

    fn kernel(&self, batch: RoutedBatch, vectors: Pointer<u32>, gradients: Pointer<u32>) -> kernels::Pooling {
        let RoutedBatch { ids, slot, .. } = batch;
        let route = &self.routes[slot];
        let samples = self.received.samples;
        // This rank's region at each owner.
        let starts = self.rank.0 * self.features.len() * (samples + 1);
        let own_ids = self.rank.0 * (self.received.ids() / self.ranks);
        let at = |of_ranks: [Pointer<u32>; RANKS_MAX], offset: usize| {
            std::array::from_fn(|rank| match rank < self.ranks {
                true => of_ranks[rank].element(offset),
                false => Pointer::NULL,
            })
        };
        let element_bytes = self.element_bytes();
        kernels::Pooling {
            features: self.features.pointer(),
            ids: ids.ids,
            offsets: ids.offsets,
            samples_count: ids.samples,
            starts: route.starts.pointer(),
            their_starts: at(route.their_starts.of_ranks(), starts),
            their_ids: at(route.their_ids.of_ranks(), own_ids),
            parts: self.landing.pointer(),
            their_gradients: at(self.gradients.of_ranks(), self.rank.0 * self.width * element_bytes / 4),
            vectors,
            gradients,
            faults: self.faults.pointer(),
            counts: Pointer::NULL,
            features_count: self.features.len() as u32,
            samples: samples as u32,
            ranks: self.ranks as u32,
            width: self.width as u32,
            their_stride: (self.ranks * self.width) as u32,
            stride: self.stride as u32,
            rank: self.rank.0 as u32,
            reserved: 0,
        }
    }

    fn element_bytes(&self) -> usize {
        if self.element == ElementKind::F32 { 4 } else { 2 }
    }

    /// Enqueues splitting the rank's bags into parts and sending their ids to the owners.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::route`].
    pub(crate) unsafe fn cut(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        let kernel = self.kernel(batch, Pointer::NULL, Pointer::NULL);
        // SAFETY: features and starts belong to this value, and owners have room for the ids of all samples; the
        // caller vouches for the rest.
        Ok(unsafe { kernel.cut(lane) }?)
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
            offsets: route.their_starts.pointer(),
            samples: self.samples.pointer(),
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
            let to = (self.rank.0 + turn) % self.ranks;
            let (tasks, counts) = &self.tasks[to];
            let look_up = LookUp::<T> {
                tables: self.rows.table.pointer(),
                features: self.look_up_features.pointer(),
                tasks: tasks.pointer(),
                ids: ids.ids,
                offsets: ids.offsets,
                samples_count: ids.samples,
                output: self
                    .landing
                    .of(LocalRank(to))
                    .cast::<T>()
                    .element(self.rank.0 * samples * self.width),
                samples: samples as u32,
                stride: self.width as u32,
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
        let kernel = self.kernel(batch, vectors.cast(), Pointer::NULL);
        // SAFETY: the parts have arrived; the caller vouches for the rest.
        Ok(unsafe { kernel.add::<T>(lane, self.blocks(lane)) }?)
    }

    /// Enqueues sending bags' gradients to each owner of a part, and counting what crosses links for the parts.
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
        let kernel = kernels::Pooling { counts, ..self.kernel(batch, Pointer::NULL, gradients.cast()) };
        // SAFETY: each owner has room for the gradients of all ranks' samples; the caller vouches for the rest.
        Ok(unsafe { kernel.send::<T>(lane, self.blocks(lane)) }?)
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
            gradients: self.gradients.pointer().cast(),
            parts: self.sums.pointer(),
            context: self.rows.update_context(inputs, self.seed),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            reserved: 0,
        };
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane, layout.look_ups() as u32, layout.is_lean()) }?;
        self.rows.mark(lane, route.rows.pointer(), route.counts.pointer().element(1), inputs.stop)
    }

    /// Blocks per feature.
    fn blocks(&self, lane: &Lane) -> u32 {
        blocks(lane.device()).div_ceil(self.features.len() as u32)
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
        Ok(self.faults.read(lane)?[0])
    }

    /// Bytes that this rank sends to others in a step whatever the batch: lengths of its bags' parts, and vectors of
    /// theirs.
    pub(crate) fn message_bytes(&self) -> u64 {
        let samples = self.received.samples;
        let lengths = self.features.len() * (samples + 1) * size_of::<u32>();
        ((self.ranks - 1) * (lengths + samples * self.width * self.element_bytes())) as u64
    }

    /// Bytes of this rank's memory that peers access.
    pub(crate) fn shared_bytes(&self) -> usize {
        let of_routes = self.routes.iter().map(|route| route.their_starts.bytes() + route.their_ids.bytes());
        self.landing.bytes() + self.gradients.bytes() + of_routes.sum::<usize>()
    }
}
