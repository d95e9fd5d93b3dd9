//! Tables on one GPU: nothing is exchanged, so rows are looked up and updated where they lie.

use std::sync::Arc;

use rankine_cuda::kernels::{
    Count, Descend, DescendParts, DescendRuns, Element, Feature, Groups, Initialize, Locate, LookUp, Mark,
    Number, Pair, Scatter, Sum, Table,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::error::{Error, Result};
use super::layout::Layout;
use super::rank::Bits;
use super::route::RouteScratch;
use crate::table::TableSpec;

/// Blocks a multiprocessor, for kernels that loop: as many as it holds, with 256 threads each.
const BLOCKS_EACH: u32 = 8;
const THREADS: u32 = 256;
/// Bytes of rows that come to the host at a time.
const READ_BYTES: usize = 64 << 20;

/// All tables of a model on one GPU, which must be the current one of the thread.
#[derive(Debug)]
pub struct LocalTables {
    layout: Layout,
    device: Arc<Device>,
    /// `[row of all tables][dim]`
    table: Buffer<f32>,
    features: Buffer<Feature>,
    /// Of each id, in the order of ids.
    bags: Buffer<u32>,
    scratch: RouteScratch,
    /// The distinct rows of the batch, ascending: a row's place is its slot.
    rows: Buffer<u32>,
    /// 0, and how many they are.
    starts: Buffer<u32>,
    slots: Buffer<u32>,
    /// The ids' slots with their bags, ascending.
    sorted: Buffer<Pair>,
    parts: Buffer<f32>,
    faults: Buffer<u32>,
}

impl LocalTables {
    /// Tables whose weights are those that [`crate::cpu::Table::initialized`] gives for the seed and the tables'
    /// numbers.
    ///
    /// # Panics
    /// Where the layout is of several ranks.
    ///
    /// # Errors
    /// Where the memory does not suffice.
    pub fn initialized(device: &Arc<Device>, layout: Layout, lane: &Lane, seed: u64) -> Result<Self> {
        assert_eq!(layout.ranks, 1, "tables on one GPU");
        let words = |len| Buffer::filled(device, len, Bits::POISON);
        let runs = layout.ids().div_ceil(Descend::<f32>::RUN as usize);
        let tables = Self {
            table: Buffer::uninitialized(device, layout.rows_of(0) * layout.dim)?,
            features: Buffer::of(device, &layout.kernel_features())?,
            bags: Buffer::of(device, &layout.bags())?,
            scratch: RouteScratch::new(device, &layout)?,
            rows: words(layout.ids())?,
            starts: words(2)?,
            slots: words(layout.ids())?,
            sorted: Buffer::filled(device, layout.ids(), Bits::POISON)?,
            parts: Buffer::filled(device, runs * 2 * layout.dim, Bits::POISON)?,
            faults: Buffer::filled(device, 1, 0)?,
            device: Arc::clone(device),
            layout,
        };
        tables.initialize(lane, seed)?;
        Ok(tables)
    }

    fn initialize(&self, lane: &Lane, seed: u64) -> Result<()> {
        let layout = &self.layout;
        let tables = layout.tables.iter().zip(&layout.bases);
        let tables: Vec<_> =
            tables.map(|(table, &base)| Table { base: base as u32, bound: table.initial_bound() }).collect();
        let tables = Buffer::of(&self.device, &tables)?;
        let parameters = Initialize {
            rows: self.table.pointer(),
            tables: tables.pointer(),
            seed,
            tables_count: tables.len() as u32,
            rows_count: layout.rows_of(0) as u32,
            rank: 0,
            ranks: 1,
            dim: layout.dim as u32,
            reserved: 0,
        };
        // SAFETY: the table has `rows_count` rows; `tables` lives until the lane has been waited for.
        unsafe { lane.launch(&parameters, (self.blocks(), 1)) }?;
        Ok(lane.synchronize()?)
    }

    fn blocks(&self) -> u32 {
        BLOCKS_EACH * self.device.multiprocessors()
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Enqueues copying the rows of `samples` samples to where their vectors belong; ids lie by feature, and by sample
    /// within a feature.
    ///
    /// # Safety
    /// There must be an id for each feature of `samples` samples, and as many samples of the layout's stride in
    /// `vectors`; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn look_up<T: Element>(
        &self,
        lane: &Lane,
        ids: Pointer<u32>,
        samples: usize,
        vectors: Pointer<T>,
    ) -> Result<()> {
        let look_up = LookUp {
            table: self.table.pointer(),
            features: self.features.pointer(),
            ids,
            output: vectors,
            samples: samples as u32,
            features_count: self.layout.features.len() as u32,
            stride: self.layout.stride as u32,
            dim: self.layout.dim as u32,
        };
        let blocks = (samples as u32).div_ceil(THREADS / 32).min(self.blocks());
        // SAFETY: table and features are this value's; the caller vouches for the rest.
        unsafe { lane.launch(&look_up, (blocks, 1)) }?;
        Ok(())
    }

    /// Enqueues finding the distinct rows that a batch looks up, and the bags of each. Looking up does not need it.
    ///
    /// # Safety
    /// There must be an id for each feature of each of the layout's samples; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn route(&self, lane: &Lane, ids_of_batch: Pointer<u32>) -> Result<()> {
        let (layout, scratch) = (&self.layout, &self.scratch);
        let (ids, tiles) = (layout.ids() as u32, layout.tiles() as u32);
        let slots_count = self.starts.pointer().element(1);
        let (set, counts, totals) = (scratch.set.set(), scratch.counts.pointer(), scratch.totals.pointer());
        let (samples, span) = (layout.samples as u32, layout.span as u32);
        let (keys, features, faults) =
            (scratch.keys.pointer(), self.features.pointer(), self.faults.pointer());
        let mark =
            Mark { ids: ids_of_batch, features, keys, set, faults, samples, ranks: 1, span, reserved: 0 };
        let number = Number {
            set,
            rows: self.rows.pointer(),
            starts: self.starts.pointer(),
            sources: Pointer::NULL,
            owners: 1,
            span,
            sources_width: 0,
            reserved: 0,
        };
        let slots = self.slots.pointer();
        let locate = Locate { keys, set, slots_count, slots, counts, ids, reserved: 0 };
        let sum = Sum { slots_count, counts, totals, tiles, reserved: 0 };
        let low = Scatter {
            slots,
            bags: self.bags.pointer(),
            slots_count,
            counts,
            totals,
            pairs: Pointer::NULL,
            sorted: scratch.sorted.pointer(),
            ids,
            pass: 0,
        };
        let count = Count { pairs: low.sorted, slots_count, counts, ids, reserved: 0 };
        let high = Scatter { pairs: low.sorted, sorted: self.sorted.pointer(), pass: 1, ..low };
        let groups = (scratch.set.groups.len() as u32, 1);
        // SAFETY: all addresses but the ids' are of this value's buffers, whose lengths follow from the same layout as
        // the counts here; the caller vouches for the ids.
        unsafe {
            lane.fill(scratch.set.bits.pointer(), 0, scratch.set.bits.len())?;
            lane.launch(&mark, (samples.div_ceil(THREADS), layout.features.len() as u32))?;
            lane.launch(&Groups(number), groups)?;
            lane.launch(&number, groups)?;
            lane.launch(&locate, (tiles, 1))?;
            lane.launch(&sum, Sum::grid(ids))?;
            lane.launch(&low, (tiles, 1))?;
            lane.launch(&count, (tiles, 1))?;
            lane.launch(&sum, Sum::grid(ids))?;
            lane.launch(&high, (tiles, 1))?;
        }
        Ok(())
    }

    /// Enqueues the update by gradient descent of each row that the routed batch looks up, from the sum of its
    /// gradients; of none where `stop` is not 0.
    ///
    /// # Safety
    /// `gradients` must have the layout's stride for each of its samples, and `rates` one for each feature; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn descend<T: Element>(
        &self,
        lane: &Lane,
        gradients: Pointer<T>,
        rates: Pointer<f32>,
        stop: Pointer<u32>,
    ) -> Result<()> {
        let layout = &self.layout;
        let descend = Descend {
            pairs: self.sorted.pointer(),
            rows: self.rows.pointer(),
            features: self.features.pointer(),
            gradients,
            rates,
            stop,
            table: self.table.pointer(),
            parts: self.parts.pointer(),
            ids: layout.ids() as u32,
            features_count: layout.features.len() as u32,
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            dim: layout.dim as u32,
            reserved: 0,
        };
        // SAFETY: all other addresses are of this value's buffers; there are two parts a run. The caller vouches for
        // the rest.
        unsafe {
            lane.launch(&DescendRuns(descend), descend.runs_grid())?;
            lane.launch(&DescendParts(descend), descend.parts_grid())?;
        }
        Ok(())
    }

    /// Waits for the lane, and tells what went wrong on the GPU.
    ///
    /// # Errors
    /// Where the lane's work failed, and where ids were out of range.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        match self.faults.read(lane)?[0] {
            0 => Ok(()),
            count => Err(Error::Ids { count }),
        }
    }

    /// Tells the weights of every row of each table, in order, once the lane has done all that was enqueued on it.
    ///
    /// # Errors
    /// Where the lane's work failed.
    pub fn for_each_row(
        &self,
        lane: &Lane,
        mut tell: impl FnMut(usize, &TableSpec, u64, &[f32]),
    ) -> Result<()> {
        let dim = self.layout.dim;
        let at_once = (READ_BYTES / (4 * dim)).max(1) as u64;
        for (number, (table, &base)) in self.layout.tables.iter().zip(&self.layout.bases).enumerate() {
            for first in (0..table.rows).step_by(at_once as usize) {
                let rows = at_once.min(table.rows - first) as usize;
                let weights = self.table.read_part(lane, (base + first) as usize * dim, rows * dim)?;
                for (row, weights) in (first..).zip(weights.chunks_exact(dim)) {
                    tell(number, table, row, weights);
                }
            }
        }
        Ok(())
    }
}
