//! Tables on one GPU: nothing is exchanged, so rows are looked up and updated where they lie.

use std::sync::Arc;

use rankine_cuda::kernels::{Element, Learning, LookUp, LookUpTask, Rate, Shard, SparseUpdate, Step};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::POISON;
use super::device_rows::{self, DeviceRows, Store};
use super::error::{Result, check_ids};
use super::layout::{Ids, Layout};
use super::local_route::{LocalRoute, LocalSnapshot};
use super::router::Router;
use super::stage::Stage;
use super::storage;

/// All tables of a model on one GPU, which must be the current one of the thread.
#[derive(Debug)]
pub struct LocalTables {
    layout: Layout,
    seed: u64,
    /// All tables, one behind the other.
    table: Buffer<f32>,
    look_up_tasks: Buffer<LookUpTask>,
    /// How many are over tables of each type.
    look_up_counts: [u32; 3],
    router: Router,
    route: LocalRoute,
    /// The tables, and how their rows learn.
    shards: Buffer<Shard>,
    parts: Buffer<f32>,
    /// Which rows have been updated, where that is of interest.
    touched: Option<Buffer<u32>>,
    stage: Stage,
}

impl LocalTables {
    /// Tables as training starts with them: with the weights that [`crate::cpu::Table::initialized`] gives for the seed
    /// and the tables' numbers, and the state that goes with them; those from number `drawn` on begin with zeros, as
    /// first-order terms do.
    ///
    /// # Panics
    /// Where the layout is of several ranks, or of tables in several parts.
    ///
    /// # Errors
    /// Where the memory does not suffice.
    pub fn initialized(
        device: &Arc<Device>,
        layout: Layout,
        lane: &Lane,
        seed: u64,
        drawn: usize,
    ) -> Result<Self> {
        assert_eq!((layout.ranks, layout.parts.len()), (1, layout.tables.len()), "whole tables on one GPU");
        let table = {
            let _tables = device.purpose("tables");
            Buffer::uninitialized(device, layout.rank_words(0))?
        };
        let _routes = device.purpose("routes");
        let parts = SparseUpdate::<f32>::parts_len(layout.look_ups(), layout.vectors());
        let (look_up_tasks, look_up_counts) = layout.look_up_tasks(&layout.kernel_features(0));
        let shards = layout.kernel_shards(0, Pointer::NULL);
        let tables = Self {
            table,
            look_up_tasks: Buffer::of(device, &look_up_tasks)?,
            look_up_counts,
            router: Router::new(device, &layout, 0)?,
            route: LocalRoute::new(device, &layout)?,
            shards: Buffer::of(device, &shards)?,
            parts: Buffer::filled(device, parts, POISON)?,
            touched: None,
            stage: Stage::default(),
            seed,
            layout,
        };
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

    /// Enqueues the look-up of the first `samples` samples of a batch: of each bag the vector, to where it belongs. An
    /// id that is not below its table's rows is taken for the last row.
    ///
    /// # Safety
    /// The ids must be those of the layout, which has `samples` samples at least; there must be as many of the layout's
    /// stride in `vectors`; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        let look_up = LookUp {
            tables: self.table.pointer(),
            features: self.router.features.pointer(),
            tasks: self.look_up_tasks.pointer(),
            ids: ids.ids,
            offsets: ids.offsets,
            samples_count: ids.samples,
            output: vectors,
            samples: samples as u32,
            stride: self.layout.stride as u32,
        };
        // SAFETY: tables, features and tasks are this value's; the caller vouches for the rest.
        unsafe { look_up.enqueue(lane, self.look_up_counts) }?;
        Ok(())
    }

    /// Enqueues finding the distinct rows that a batch looks up, and the bags of each. Looking up does not need it.
    ///
    /// # Safety
    /// The ids must be those of the layout; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn route(&self, lane: &Lane, ids: Ids) -> Result<()> {
        // SAFETY: router and route were made for the layout; the caller vouches for the ids.
        unsafe { self.router.route(lane, &self.layout, ids, self.route.places()) }
    }

    /// The route of the batch that was routed last, once it is made.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn snapshot(&self, lane: &Lane) -> Result<LocalSnapshot> {
        self.route.read(lane)
    }

    /// Enqueues the update of each row that the routed batch looks up, by its table's rule and from the sum of its
    /// gradients; of none where `stop` is not 0. `rates` is one a table; of the step its number counts, where weights
    /// are rounded at random.
    ///
    /// # Safety
    /// The ids must be those of the routed batch; `gradients` must have the layout's stride for each of its samples,
    /// and `rates` one for each table; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn update<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        gradients: Pointer<T>,
        rates: Pointer<Rate>,
        step: Pointer<Step>,
        (scale, stop): (Pointer<f32>, Pointer<u32>),
    ) -> Result<()> {
        let layout = &self.layout;
        let update = SparseUpdate {
            pairs: self.route.sorted.pointer(),
            count: self.route.counts.pointer(),
            rows: self.route.rows.pointer(),
            features: self.router.features.pointer(),
            offsets: ids.offsets,
            gradients,
            parts: self.parts.pointer(),
            by: Learning {
                shards: self.shards.pointer(),
                rates,
                scale,
                stop,
                step,
                seed: self.seed,
                storage: self.table.pointer(),
            },
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            room: layout.look_ups() as u32,
        };
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane, layout.is_lean()) }?;
        let count = self.route.counts.pointer().element(1);
        device_rows::mark(self.touched.as_ref(), lane, (self.route.rows.pointer(), count), stop)
    }

    /// Keeps book of the rows that are updated by what is enqueued from now on, a bit each.
    ///
    /// # Errors
    /// Where the memory does not suffice.
    pub fn keep_book(&mut self) -> Result<()> {
        self.touched = Some(device_rows::bits(self.table.device(), &self.layout)?);
        Ok(())
    }

    /// The rows of all tables, to be read and changed once the lane has done all that was enqueued on it.
    pub fn rows<'a>(&'a self, lane: &'a Lane) -> DeviceRows<'a> {
        let store = Store { table: &self.table, touched: self.touched.as_ref() };
        DeviceRows::new(lane, &self.stage).with_parts(&self.layout, 0, store)
    }

    /// The look-ups of the batch that was routed last, and the distinct rows among them.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn counts(&self, lane: &Lane) -> Result<[u64; 2]> {
        let counts = self.route.counts.read(lane)?;
        Ok([u64::from(counts[0]), u64::from(counts[1])])
    }

    /// Waits for the lane, and tells what went wrong on the GPU.
    ///
    /// # Errors
    /// Where the lane's work failed, and where ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        check_ids(self.router.faults(lane)?)
    }
}
