//! All tables of a model on one GPU that stores their hot rows.

use std::sync::Arc;

use rankine_cuda::kernels::{Element, LookUp, SparseUpdate, Vectors};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_topology::Rank;

use super::RowUpdate;
use super::route::LocalRoute;
use crate::cuda::error::{Result, check_ids};
use crate::cuda::layout::Layout;
use crate::cuda::look_ups::LookUps;
use crate::cuda::routing::router::{LookUpCounts, RouteBuffers, Router};
use crate::cuda::storage::RowStore;
use crate::cuda::storage::device_rows::DeviceRows;
use crate::cuda::storage::stage::StagingMemory;
use crate::cuda::tier::{DeviceTier, DistinctRows};
use crate::cuda::{InitialWeights, POISON, RoutedBatch, UpdateInputs};
use crate::tier::{TierPlan, TierTraffic};

/// All tables of a model on one GPU, which must be current on the thread: the hot rows in its memory, the others in
/// host memory.
///
/// Batches have slots, and follow each other from slot to slot. For each batch: [`TieredTables::route`], beside the
/// step before; [`TieredTables::land`], once the route is built; then its step, with [`TieredTables::look_up`] and
/// [`TieredTables::update`]; and [`TieredTables::learned`] if it has updated rows.
#[derive(Debug)]
pub struct TieredTables {
    layout: Layout,
    seed: u64,
    /// Hot rows and landing regions.
    rows: RowStore,
    look_ups: LookUps,
    router: Router,
    /// One per slot.
    routes: Vec<SlotRoute>,
    parts: Buffer<f32>,
    stage: StagingMemory,
    tier: DeviceTier,
}

/// The route of a slot's batch.
#[derive(Debug)]
struct SlotRoute {
    route: LocalRoute,
    /// Per look-up, in the order of features: the number of its row among the stored ones of its table.
    ids: Buffer<u32>,
}

impl SlotRoute {
    fn distinct(&self) -> DistinctRows {
        DistinctRows { rows: self.route.rows.pointer(), count: self.route.counts.pointer().element(1) }
    }

    fn buffers(&self) -> RouteBuffers {
        RouteBuffers { slots: Some(self.ids.pointer()), ..self.route.buffers() }
    }
}

impl TieredTables {
    /// Creates the tables with the weights of the start of training, and the matching state, for batches in `slots`
    /// slots.
    ///
    /// # Panics
    /// If the layout has several ranks, the plan is for other tables, or there are fewer than three slots.
    ///
    /// # Errors
    /// If there is not enough memory, or there are too many rows or look-ups for kernels to number.
    pub fn initialized(
        device: &Arc<Device>,
        layout: Layout,
        lane: &Lane,
        weights: InitialWeights,
        (plan, slots): (&TierPlan, usize),
    ) -> Result<Self> {
        assert_eq!((layout.ranks, layout.parts.len()), (1, layout.tables.len()), "whole tables on one GPU");
        layout.check_positions()?;
        let (rank, distinct_max) = (Rank(0), layout.look_ups().min(layout.row_numbers()));
        let tier = DeviceTier::new(device, (&layout, rank), plan, weights, (slots, distinct_max))?;
        let _routes = device.purpose("routes");
        let shards = tier.shards(layout.kernel_shards(rank, Pointer::NULL));
        let features = tier.features(layout.kernel_features(rank));
        let route = || {
            let ids = Buffer::filled(device, layout.look_ups(), POISON)?;
            Ok(SlotRoute { route: LocalRoute::new(device, &layout)?, ids })
        };
        let parts = SparseUpdate::<f32>::parts_len(layout.look_ups(), layout.vectors());
        let tables = Self {
            rows: RowStore::uninitialized(device, tier.words(), &shards)?,
            look_ups: LookUps::of_features(device, &layout, &features)?,
            router: Router::new(device, &layout, rank)?,
            routes: (0..slots).map(|_| route()).collect::<Result<_>>()?,
            parts: Buffer::filled(device, parts, POISON)?,
            stage: StagingMemory::default(),
            seed: weights.seed,
            tier,
            layout,
        };
        let bounds = tables.layout.bounds(&tables.layout.parts, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe { tables.rows.initialize(lane, &shards, &bounds, tables.tier.row_numbers(), weights.seed) }?;
        Ok(tables)
    }

    /// The layout of batches, and of all rows.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Enqueues finding the distinct rows that a slot's batch looks up, and where they are.
    ///
    /// # Safety
    /// The ids must fit the layout; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn route(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        let RoutedBatch { ids, slot, .. } = batch;
        let route = &self.routes[slot];
        // SAFETY: router and routes were created for the layout; the caller vouches for the ids.
        unsafe {
            self.router.route(lane, &self.layout, ids, route.buffers())?;
            self.tier.locate(lane, route.distinct(), slot)?;
            self.tier.replace_ids(lane, route.distinct(), slot, &route.ids)
        }
    }

    /// Copies the rows of a slot's batch that are in host memory to the GPU, and makes the lane of steps wait for them.
    /// The batch's route must be built.
    ///
    /// # Errors
    /// If the batch has more of these rows than the GPU has room for, or the driver reports an error.
    pub fn land(&mut self, main: &Lane, slot: usize) -> Result<()> {
        self.tier.land(main, slot, self.rows.table.pointer())
    }

    /// Notes that the step of a slot's batch was enqueued, which updates rows: cold rows return to host memory.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn learned(&mut self, main: &Lane, slot: usize) -> Result<()> {
        self.tier.learned(main, slot)
    }

    /// Whether [`TieredTables::refresh`] is due before a step, which are numbered from 1.
    pub fn refreshes_before(&self, step: u64) -> bool {
        self.tier.refreshes_before(step)
    }

    /// Chooses again which rows the GPU stores: those that most batches have looked up since the last time. Must follow
    /// [`TieredTables::finish`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn refresh(&mut self, main: &Lane) -> Result<()> {
        self.tier.refresh(main, self.rows.table.pointer())
    }

    /// Waits for all steps, and until all rows that they have changed are back in host memory. No batch may be routed
    /// whose step was not enqueued.
    ///
    /// # Errors
    /// If work of the GPU failed.
    pub fn finish(&mut self, main: &Lane) -> Result<()> {
        self.tier.finish(main, self.rows.table.pointer())
    }

    /// Enqueues the look-up of the first `samples` samples of a slot's batch, whose rows have landed; see
    /// [`crate::cuda::LocalTables::look_up`].
    ///
    /// # Panics
    /// If the vectors are in fp8, but not [`TieredTables::pools_to_fp8`].
    ///
    /// # Safety
    /// As for [`crate::cuda::LocalTables::look_up`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        samples: usize,
        vectors: Vectors<T>,
    ) -> Result<()> {
        let RoutedBatch { ids, slot, .. } = batch;
        let look_up = LookUp {
            tables: self.rows.table.pointer(),
            features: Pointer::NULL,
            tasks: Pointer::NULL,
            ids: self.routes[slot].ids.pointer(),
            factors: ids.factors,
            offsets: ids.offsets,
            samples_count: ids.samples,
            output: Pointer::NULL,
            keys: Pointer::NULL,
            samples: samples as u32,
            stride: self.layout.stride as u32,
        };
        // SAFETY: the tables belong to this value; the caller vouches for the rest.
        unsafe {
            self.tier.forward(lane, self.routes[slot].distinct(), slot, self.rows.table.pointer())?;
            self.look_ups.enqueue(lane, look_up, vectors)
        }
    }

    /// Whether [`TieredTables::look_up`] can write vectors in fp8.
    pub fn pools_to_fp8(&self) -> bool {
        self.look_ups.fit_fp8()
    }

    /// Enqueues the update of each row that a slot's batch looks up, by its table's rule, from the sum of its
    /// gradients.
    ///
    /// # Safety
    /// As for [`crate::cuda::LocalTables::update`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn update<T: Element>(
        &self,
        lane: &Lane,
        batch: RoutedBatch,
        gradients: Pointer<T>,
        inputs: UpdateInputs,
    ) -> Result<()> {
        let RoutedBatch { ids, slot, .. } = batch;
        let update = RowUpdate {
            layout: &self.layout,
            route: &self.routes[slot].route,
            rows: self.tier.rows(slot),
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

    /// The rows of all tables, for reading and writing after [`TieredTables::finish`].
    pub fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        DeviceRows::new(lane, &self.stage).with_parts(&self.layout, Rank(0), &self.rows, Some(&self.tier))
    }

    /// Counts the look-ups of a slot's batch, table by table, once the lane has finished all enqueued work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn counts(&self, lane: &Lane, slot: usize) -> Result<Vec<LookUpCounts>> {
        self.router.count(lane, &self.layout, self.routes[slot].buffers())
    }

    /// Waits for the lane, and returns errors found on the GPU.
    ///
    /// # Errors
    /// If the lane's work failed, or if ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        check_ids(self.router.faults(lane)?)
    }

    /// What was copied between the GPU and host memory since the tables were created.
    pub fn traffic(&self) -> TierTraffic {
        self.tier.traffic()
    }
}
