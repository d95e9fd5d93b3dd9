//! Bags pooled by the owners of their rows: a rank's side for the bags of its own samples, and the owner's side for
//! the parts of all ranks' bags.
//!
//! To an owner, the parts of bags that ranks send it are ragged columns, one for each rank and feature; the rows that
//! it owns are tables on one GPU. So their route, vectors and update are those of [`super::LocalTables`], except that
//! vectors are written to the ranks whose bags they belong to, and gradients come from there.

use half::{bf16, f16};
use rankine_cuda::kernels::{
    self, Element, ElementKind, Learning, LookUp, LookUpTask, PooledFeature, RANKS_MAX, SparseUpdate,
};
use rankine_cuda::{Buffer, Lane, Peers, Pointer, SharedBuffer};

use super::device_rows::{self, Store};
use super::error::{Error, Result};
use super::layout::{Feature, Hotness, Ids, Layout, VECTOR};
use super::local_route::LocalRoute;
use super::parts::{Holder, Part};
use super::router::Router;
use super::{POISON, blocks, storage};
use crate::placement::Owner;
use crate::table::{Pooling, TableSpec};

/// One rank's share of tables whose owners pool.
#[derive(Debug)]
pub(super) struct Pooled {
    rank: usize,
    ranks: usize,
    /// Elements of a sample's parts.
    width: usize,
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
    table: Buffer<f32>,
    /// Which rows have been updated, if tracked.
    touched: Option<Buffer<u32>>,
    shards: Buffer<kernels::Shard>,
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
    pub(super) fn pooled_features(&self) -> Vec<(usize, usize)> {
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
    fn received(&self, rank: usize) -> Result<Self> {
        let of_part = |part: &Part| {
            let TableSpec { name, rows, dtype, .. } = &self.tables[part.table];
            // A table needs a row, even if another rank owns all of it; then nobody names it.
            let rows = part.rows_at(rank, *rows, self.topology()).max(1);
            TableSpec { name: name.clone(), rows, dim: part.columns.len(), dtype: *dtype }
        };
        let tables: Vec<_> = self.pooled.iter().map(of_part).collect();
        let optimizers: Vec<_> = self.pooled.iter().map(|part| self.optimizers[part.table]).collect();
        let (mut columns, mut features) = (Vec::new(), Vec::new());
        let mut place = 0;
        for _ in 0..self.ranks {
            for (feature, part) in self.pooled_features() {
                let max = self.columns[self.features[feature].column].max();
                features.push(Feature { column: columns.len(), table: part, place, pooling: Pooling::Sum });
                columns.push(Hotness::Ragged { max });
                place += self.pooled_dim(part);
            }
        }
        let layout = Self::new(1, self.samples, place, &tables, &columns, &features)?;
        Ok(layout.with_optimizers(&optimizers))
    }

    /// The features of a rank's batch in the kernels' form.
    fn kernel_pooled(&self) -> Vec<PooledFeature> {
        let (mut part_place, mut part_ids) = (0, 0);
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
                    Holder::Owned(Owner::Rank(rank)) => rank as u32,
                    _ => kernels::Feature::TURNS,
                },
                dim: dim as u32,
                place: (feature.place + self.pooled[part].columns.start) as u32,
                part_place: part_place as u32,
                part_ids: part_ids as u32,
            };
            part_place += dim;
            part_ids += self.samples * hotness.max();
            of_feature
        };
        self.pooled_features().into_iter().map(of).collect()
    }
}

impl Pooled {
    /// The pooled tables of a layout, `None` if there are none; see [`super::NodeTables::initialized`]. A collective
    /// call.
    pub(super) fn initialized<T: Element>(
        peers: &Peers,
        layout: &Layout,
        lane: &Lane,
        (seed, drawn): (u64, usize),
        routes: usize,
    ) -> Result<Option<Self>> {
        if layout.pooled.is_empty() {
            return Ok(None);
        }
        let (device, rank, ranks) = (peers.device(), peers.rank(), peers.ranks());
        let (received, width) = (layout.received(rank)?, layout.pooled_width());
        let table = {
            let _tables = device.purpose("tables");
            Buffer::uninitialized(device, received.rank_words(0))?
        };
        let (landing, gradients) = {
            let _exchange = device.purpose("exchange");
            let words = (ranks * layout.samples * width * size_of::<T>()).div_ceil(4);
            (peers.share(words, POISON)?, peers.share(words, POISON)?)
        };
        let _routes = device.purpose("routes");
        let starts = ranks * layout.pooled_features().len() * (layout.samples + 1);
        let route = || {
            Ok(PooledRoute {
                starts: Buffer::filled(device, starts, 0)?,
                their_starts: peers.share(starts, 0)?,
                their_ids: peers.share(received.ids(), 0)?,
                route: LocalRoute::new(device, &received)?,
            })
        };
        let topology = layout.topology();
        let shard = |(part, shard): (&Part, kernels::Shard)| kernels::Shard {
            table: part.table as u32,
            column: part.columns.start as u32,
            rows: part.rows_at(rank, layout.tables[part.table].rows, topology) as u32,
            row: if matches!(part.holder, Holder::Owned(Owner::EveryRank)) { rank as u32 } else { 0 },
            step: if matches!(part.holder, Holder::Owned(Owner::EveryRank)) { ranks as u32 } else { 1 },
            ..shard
        };
        let shards = layout.pooled.iter().zip(received.kernel_shards(0, Pointer::NULL));
        let shards: Vec<_> = shards.map(shard).collect();
        let bound = |part: &Part| match part.table < drawn {
            true => layout.tables[part.table].initial_bound(),
            false => 0.0,
        };
        let bounds: Vec<_> = layout.pooled.iter().map(bound).collect();
        let look_up_features: Vec<_> = received
            .kernel_features(0)
            .into_iter()
            .map(|feature| kernels::Feature { place: feature.place % width as u32, ..feature })
            .collect();
        let each = layout.pooled_features().len();
        let tasks = (0..ranks).map(|of| {
            let (tasks, counts) = received.look_up_tasks_of(&look_up_features, of * each..(of + 1) * each);
            Ok::<_, Error>((Buffer::of(device, &tasks)?, counts))
        });
        let pooled = Self {
            rank,
            ranks,
            width,
            element: T::KIND,
            features: Buffer::of(device, &layout.kernel_pooled())?,
            landing,
            faults: Buffer::filled(device, 1, 0)?,
            gradients,
            table,
            touched: None,
            shards: Buffer::of(device, &shards)?,
            router: Router::new(device, &received, 0)?,
            tasks: tasks.collect::<Result<_>>()?,
            look_up_features: Buffer::of(device, &look_up_features)?,
            samples: Buffer::of(device, &[layout.samples as u32])?,
            sums: Buffer::filled(
                device,
                SparseUpdate::<f32>::parts_len(received.look_ups(), received.vectors()),
                POISON,
            )?,
            routes: (0..routes).map(|_| route()).collect::<Result<_>>()?,
            received,
        };
        let begin = storage::InitialRows {
            shards: &shards,
            bounds: &bounds,
            rows: pooled.received.row_numbers(),
            words: pooled.table.len(),
        };
        // SAFETY: the table was just allocated with as many rows as the layout says.
        unsafe { storage::initialize(device, lane, begin, pooled.table.pointer(), seed) }?;
        Ok(Some(pooled))
    }

    fn kernel(
        &self,
        (ids, batch_slot, stride): (Ids, usize, usize),
        vectors: Pointer<u32>,
        gradients: Pointer<u32>,
    ) -> kernels::Pooling {
        let route = &self.routes[batch_slot];
        let samples = self.received.samples;
        // This rank's region at each owner.
        let starts = self.rank * self.features.len() * (samples + 1);
        let own_ids = self.rank * (self.received.ids() / self.ranks);
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
            their_gradients: at(self.gradients.of_ranks(), self.rank * self.width * element_bytes / 4),
            vectors,
            gradients,
            faults: self.faults.pointer(),
            features_count: self.features.len() as u32,
            samples: samples as u32,
            ranks: self.ranks as u32,
            width: self.width as u32,
            their_stride: (self.ranks * self.width) as u32,
            stride: stride as u32,
        }
    }

    fn element_bytes(&self) -> usize {
        if self.element == ElementKind::F32 { 4 } else { 2 }
    }

    /// Enqueues splitting the rank's bags into parts and sending their ids to the owners.
    ///
    /// # Safety
    /// As for [`super::NodeTables::route`].
    pub(super) unsafe fn cut(&self, lane: &Lane, ids: Ids, batch_slot: usize) -> Result<()> {
        let kernel = self.kernel((ids, batch_slot, 0), Pointer::NULL, Pointer::NULL);
        // SAFETY: features and starts belong to this value, and owners have room for the ids of all samples; the
        // caller vouches for the rest.
        Ok(unsafe { kernel.cut(lane) }?)
    }

    /// Enqueues building the route of the parts that this owner has received.
    ///
    /// # Safety
    /// As for [`super::NodeTables::route`]; all ranks must have sent their parts.
    pub(super) unsafe fn route(&self, lane: &Lane, batch_slot: usize) -> Result<()> {
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
    /// As for [`super::NodeTables::look_up`].
    pub(super) unsafe fn send<T: Element>(&self, lane: &Lane, batch_slot: usize) -> Result<()> {
        let (ids, samples) = (self.received_ids(batch_slot), self.received.samples);
        for turn in 1..=self.ranks {
            // Each owner starts with a different rank and ends with itself.
            let to = (self.rank + turn) % self.ranks;
            let (tasks, counts) = &self.tasks[to];
            let look_up = LookUp::<T> {
                tables: self.table.pointer(),
                features: self.look_up_features.pointer(),
                tasks: tasks.pointer(),
                ids: ids.ids,
                offsets: ids.offsets,
                samples_count: ids.samples,
                output: self.landing.of(to).cast::<T>().element(self.rank * samples * self.width),
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
    /// As for [`super::NodeTables::look_up`].
    pub(super) unsafe fn add<T: Element>(
        &self,
        lane: &Lane,
        batch: (Ids, usize, usize),
        vectors: Pointer<T>,
    ) -> Result<()> {
        let kernel = self.kernel(batch, vectors.cast(), Pointer::NULL);
        // SAFETY: the parts have arrived; the caller vouches for the rest.
        Ok(unsafe { kernel.add::<T>(lane, self.blocks(lane)) }?)
    }

    /// Enqueues sending bags' gradients to each owner of a part.
    ///
    /// # Safety
    /// As for [`super::NodeTables::reduce`].
    pub(super) unsafe fn send_gradients<T: Element>(
        &self,
        lane: &Lane,
        batch: (Ids, usize, usize),
        gradients: Pointer<T>,
    ) -> Result<()> {
        let kernel = self.kernel(batch, Pointer::NULL, gradients.cast());
        // SAFETY: each owner has room for the gradients of all ranks' samples; the caller vouches for the rest.
        Ok(unsafe { kernel.send::<T>(lane, self.blocks(lane)) }?)
    }

    /// Enqueues the update of this owner's rows that any part names.
    ///
    /// # Safety
    /// As for [`super::NodeTables::update`].
    pub(super) unsafe fn update(&self, lane: &Lane, batch_slot: usize, by: Learning) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self.element {
                ElementKind::F32 => self.update_from::<f32>(lane, batch_slot, by),
                ElementKind::Bf16 => self.update_from::<bf16>(lane, batch_slot, by),
                ElementKind::F16 => self.update_from::<f16>(lane, batch_slot, by),
            }
        }
    }

    unsafe fn update_from<T: Element>(&self, lane: &Lane, batch_slot: usize, by: Learning) -> Result<()> {
        let (layout, route) = (&self.received, &self.routes[batch_slot].route);
        let update = SparseUpdate::<T> {
            pairs: route.sorted.pointer(),
            count: route.counts.pointer(),
            rows: route.rows.pointer(),
            features: self.router.features.pointer(),
            offsets: self.routes[batch_slot].their_starts.pointer(),
            gradients: self.gradients.pointer().cast(),
            parts: self.sums.pointer(),
            by: Learning { shards: self.shards.pointer(), storage: self.table.pointer(), ..by },
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            reserved: 0,
        };
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane, layout.look_ups() as u32, layout.is_lean()) }?;
        let rows = (route.rows.pointer(), route.counts.pointer().element(1));
        device_rows::mark(self.touched.as_ref(), lane, rows, by.stop)
    }

    /// Blocks per feature.
    fn blocks(&self, lane: &Lane) -> u32 {
        blocks(lane.device()).div_ceil(self.features.len() as u32)
    }

    /// Tracks, from the work enqueued next on, which rows are updated.
    pub(super) fn track_updates(&mut self) -> Result<()> {
        self.touched = Some(device_rows::bits(self.table.device(), &self.received)?);
        Ok(())
    }

    /// The rows that the rank owns, as tables on one GPU: one per pooled part of the layout.
    pub(super) fn received(&self) -> &Layout {
        &self.received
    }

    /// Their buffers.
    pub(super) fn store(&self) -> Store<'_> {
        Store { table: &self.table, touched: self.touched.as_ref() }
    }

    /// Waits for the lane, and returns how many ids were out of range.
    pub(super) fn faults(&self, lane: &Lane) -> Result<u32> {
        Ok(self.faults.read(lane)?[0])
    }

    /// Bytes of this rank's memory that peers access.
    pub(super) fn shared_bytes(&self) -> usize {
        let of_routes = self.routes.iter().map(|route| route.their_starts.bytes() + route.their_ids.bytes());
        self.landing.bytes() + self.gradients.bytes() + of_routes.sum::<usize>()
    }
}
