//! Tables on one GPU: nothing is exchanged; rows are looked up and updated in place.

pub(crate) mod route;
pub(crate) mod tiered;

use std::sync::Arc;

use rankine_cuda::kernels::{Element, LookUp, SparseUpdate, TableRows, Vectors};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_topology::Rank;

use crate::cuda::error::{Result, check_ids};
use crate::cuda::layout::{Hotness, Ids, Layout};
use crate::cuda::local::route::{LocalRoute, LocalRouteSnapshot};
use crate::cuda::look_ups::LookUps;
use crate::cuda::membership::DynamicTables;
use crate::cuda::routing::router::{LookUpCounts, Router};
use crate::cuda::storage::RowStore;
use crate::cuda::storage::device_rows::DeviceRows;
use crate::cuda::storage::stage::StagingMemory;
use crate::cuda::{InitialWeights, POISON, UpdateInputs};
use crate::dtype::Dtype;

/// All tables of a model on one GPU, which must be current on the thread.
#[derive(Debug)]
pub struct LocalTables {
    layout: Layout,
    seed: u64,
    /// All tables, one after another.
    rows: RowStore,
    look_ups: LookUps,
    router: Router,
    route: LocalRoute,
    parts: Buffer<f32>,
    stage: StagingMemory,
}

impl LocalTables {
    /// Creates the tables with the weights of the start of training, and the matching state.
    ///
    /// # Panics
    /// If the layout has several ranks, or tables in several parts.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn initialized(
        device: &Arc<Device>,
        layout: Layout,
        lane: &Lane,
        weights: InitialWeights,
    ) -> Result<Self> {
        assert_eq!((layout.ranks, layout.parts.len()), (1, layout.tables.len()), "whole tables on one GPU");
        let _routes = device.purpose("routes");
        let parts = SparseUpdate::<f32>::parts_len(layout.look_ups(), layout.vectors());
        let shards = layout.kernel_shards(Rank(0), Pointer::NULL);
        let tables = Self {
            rows: RowStore::uninitialized(device, layout.rank_words(Rank(0)), &shards)?,
            look_ups: LookUps::new(device, &layout)?,
            router: Router::new(device, &layout, Rank(0))?,
            route: LocalRoute::new(device, &layout)?,
            parts: Buffer::filled(device, parts, POISON)?,
            stage: StagingMemory::default(),
            seed: weights.seed,
            layout,
        };
        let bounds = tables.layout.bounds(&tables.layout.parts, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe { tables.rows.initialize(lane, &shards, &bounds, tables.layout.row_numbers(), weights.seed) }?;
        Ok(tables)
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Enqueues the look-up of the first `samples` samples of a batch: writes the vector of each bag to its position.
    /// An id that is out of range is replaced by the table's last row.
    ///
    /// # Panics
    /// If the vectors are in fp8, but not [`LocalTables::pools_to_fp8`].
    ///
    /// # Safety
    /// The ids must fit the layout, which must have at least `samples` samples; `vectors` must have as many samples
    /// with the layout's stride, or in fp8 with a stride that holds all vectors; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { self.look_up_with(&self.look_ups, lane, ids, samples, vectors) }
    }

    /// The same for a batch of another size, whose look-ups were made for these tables.
    ///
    /// # Safety
    /// As for [`LocalTables::look_up`], with the layout of the look-ups.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn look_up_with<T: Element>(
        &self,
        look_ups: &LookUps,
        lane: &Lane,
        ids: Ids,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        let look_up = LookUp {
            tables: self.rows.table.pointer(),
            features: Pointer::NULL,
            tasks: Pointer::NULL,
            ids: ids.ids,
            factors: ids.factors,
            offsets: ids.offsets,
            samples_count: ids.samples,
            output: Pointer::NULL,
            keys: Pointer::NULL,
            samples: samples as u32,
            stride: self.layout.stride as u32,
        };
        // SAFETY: the tables belong to this value; the caller vouches for the rest.
        unsafe { look_ups.enqueue(lane, look_up, vectors) }
    }

    /// Enqueues setting the rows of a slot's batch that begin anew, before its look-ups.
    ///
    /// # Safety
    /// The dynamic tables must be of the layout; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn begin_rows(&self, lane: &Lane, dynamic: &DynamicTables, slot: usize) -> Result<()> {
        // SAFETY: the store has the rows of the layout; the caller vouches for the rest.
        unsafe { dynamic.begin_rows(lane, slot, &self.rows) }
    }

    /// Whether [`LocalTables::look_up`] can write vectors in fp8.
    pub fn pools_to_fp8(&self) -> bool {
        self.look_ups.fit_fp8()
    }

    /// Returns the rows of a batch for a kernel that looks them up itself; `None` unless a sample has vectors of
    /// `dim` elements, one after another, and each but the first is one f32 row.
    pub fn single_rows(&self, ids: Ids, dim: usize) -> Option<TableRows> {
        self.single_rows_with(&self.look_ups, ids, dim)
    }

    /// The same for a batch of another size, whose look-ups were made for these tables.
    pub fn single_rows_with(&self, look_ups: &LookUps, ids: Ids, dim: usize) -> Option<TableRows> {
        let layout = &self.layout;
        let single = layout.features().iter().enumerate().all(|(number, feature)| {
            let table = &layout.tables()[feature.table];
            let is_row = table.dim == dim && table.dtype == Dtype::Fp32;
            let one = layout.columns()[feature.column] == Hotness::Fixed(1);
            is_row && one && feature.vector_offset == (1 + number) * dim
        });
        single.then(|| TableRows {
            tables: self.rows.table.pointer(),
            features: look_ups.features.pointer(),
            ids: ids.ids,
            samples_count: ids.samples,
        })
    }

    /// Enqueues finding the distinct rows that a batch looks up, and the bags of each. Look-ups do not need it.
    ///
    /// # Safety
    /// The ids must fit the layout; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn route(&self, lane: &Lane, ids: Ids) -> Result<()> {
        // SAFETY: router and route were created for the layout; the caller vouches for the ids.
        unsafe { self.router.route(lane, &self.layout, ids, self.route.buffers()) }
    }

    /// Reads the route of the batch that was routed last.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn snapshot(&self, lane: &Lane) -> Result<LocalRouteSnapshot> {
        self.route.read(lane)
    }

    /// Enqueues the update of each row that the routed batch looks up, by its table's rule, from the sum of its
    /// gradients.
    ///
    /// # Safety
    /// The ids must be those of the routed batch; `gradients` must have the layout's stride for each of its samples;
    /// `inputs` must have one rate per table; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn update<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        gradients: Pointer<T>,
        inputs: UpdateInputs,
    ) -> Result<()> {
        let update = RowUpdate {
            layout: &self.layout,
            route: &self.route,
            rows: self.route.rows.pointer(),
            router: &self.router,
            parts: &self.parts,
            store: &self.rows,
            seed: self.seed,
        };
        // SAFETY: the route was built for the layout; the caller vouches for the rest.
        unsafe { update.enqueue(lane, ids, gradients, inputs) }
    }

    /// Tracks, from the work enqueued next on, which rows are updated, with one bit per row.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn track_updates(&mut self) -> Result<()> {
        self.rows.track_updates(&self.layout)
    }

    /// The rows of all tables, for reading and writing once the lane has finished all enqueued work.
    pub fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        DeviceRows::new(lane, &self.stage).with_parts(&self.layout, Rank(0), &self.rows, None)
    }

    /// Counts the look-ups of the batch that was routed last, table by table, once the lane has finished all enqueued
    /// work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn counts(&self, lane: &Lane) -> Result<Vec<LookUpCounts>> {
        self.router.count(lane, &self.layout, self.route.buffers())
    }

    /// Waits for the lane, and returns errors found on the GPU.
    ///
    /// # Errors
    /// If the lane's work failed, or if ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        check_ids(self.router.faults(lane)?)
    }
}

/// The update of rows on this GPU.
pub(crate) struct RowUpdate<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) route: &'a LocalRoute,
    /// Per distinct row of the route: its number in the store.
    pub(crate) rows: Pointer<u32>,
    /// The router that built the route.
    pub(crate) router: &'a Router,
    /// Memory for the sums of parts of runs.
    pub(crate) parts: &'a Buffer<f32>,
    pub(crate) store: &'a RowStore,
    pub(crate) seed: u64,
}

impl RowUpdate<'_> {
    /// Enqueues it.
    ///
    /// # Safety
    /// The route must be built from the ids, and the store have its rows; see [`LocalTables::update`].
    pub(crate) unsafe fn enqueue<T: Element>(
        self,
        lane: &Lane,
        ids: Ids,
        gradients: Pointer<T>,
        inputs: UpdateInputs,
    ) -> Result<()> {
        let Self { layout, route, .. } = self;
        let update = SparseUpdate {
            pairs: route.sorted.pointer(),
            count: route.counts.pointer(),
            rows: self.rows,
            features: self.router.features.pointer(),
            offsets: ids.offsets,
            factors: route.factors.pointer(),
            gradients,
            parts: self.parts.pointer(),
            context: self.store.update_context(inputs, self.seed),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            keys: layout.elements() as u32,
        };
        // SAFETY: the lengths of all buffers follow from the layout; the caller vouches for the rest.
        unsafe { update.enqueue(lane, layout.look_ups() as u32, layout.is_lean()) }?;
        // Marks have one bit per row of the tables, wherever it is stored.
        let count = route.counts.pointer().element(1);
        self.store.mark(lane, route.rows.pointer(), count, inputs.stop)
    }
}
