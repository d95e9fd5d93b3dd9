//! Tables on one GPU: nothing is exchanged, so rows are looked up and updated where they lie.

use std::sync::Arc;

use half::{bf16, f16};
use rankine_cuda::kernels::{BeginState, Element, LookUp, LookUpTask, Rate, SparseUpdate, Step, TableRule};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::POISON;
use super::error::{Error, Result};
use super::layout::{Ids, Layout};
use super::local_route::{LocalRoute, LocalSnapshot};
use super::router::Router;
use crate::dtype::Dtype;

/// Bytes of rows that come to the host at a time.
const READ_BYTES: usize = 64 << 20;

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
    /// How each table's rows learn.
    rules: Buffer<TableRule>,
    parts: Buffer<f32>,
}

impl LocalTables {
    /// Tables as training starts with them: with the weights that [`crate::cpu::Table::initialized`] gives for the seed
    /// and the tables' numbers, and the state that goes with them; those from number `drawn` on begin with zeros, as
    /// first-order terms do.
    ///
    /// # Panics
    /// Where the layout is of several ranks.
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
        assert_eq!(layout.ranks, 1, "tables on one GPU");
        let table = {
            let _tables = device.purpose("tables");
            Buffer::uninitialized(device, layout.owner_words())?
        };
        let _routes = device.purpose("routes");
        let parts = SparseUpdate::<f32>::parts_len(layout.look_ups(), layout.vectors());
        let (look_up_tasks, look_up_counts) = layout.look_up_tasks();
        let tables = Self {
            table,
            look_up_tasks: Buffer::of(device, &look_up_tasks)?,
            look_up_counts,
            router: Router::new(device, &layout)?,
            route: LocalRoute::new(device, &layout)?,
            rules: Buffer::of(device, &layout.kernel_rules())?,
            parts: Buffer::filled(device, parts, POISON)?,
            seed,
            layout,
        };
        // SAFETY: the table was just made with as many rows as the layout says.
        unsafe { super::initialize(device, lane, &tables.layout, 0, tables.table.pointer(), seed, drawn) }?;
        tables.begin_state(lane)?;
        Ok(tables)
    }

    /// Sets the state that rows begin with.
    fn begin_state(&self, lane: &Lane) -> Result<()> {
        let layout = &self.layout;
        for (number, rule) in layout.kernel_rules().into_iter().enumerate() {
            let begin = BeginState {
                rows: self.table.pointer().element(layout.words[number] as usize),
                rows_count: layout.tables[number].rows,
                rule: rule.rule,
                words: layout.row_words(number) as u32,
                weights: rule.first,
                dim: rule.second - rule.first,
                dtype: rule.dtype,
            };
            if begin.words > begin.weights {
                // SAFETY: the table lies there, with as many rows and words each.
                unsafe { lane.launch(&begin, (super::blocks(lane.device()), 1)) }?;
            }
        }
        Ok(lane.synchronize()?)
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
            tables: self.rules.pointer(),
            rates,
            gradients,
            scale,
            stop,
            storage: self.table.pointer(),
            step,
            seed: self.seed,
            parts: self.parts.pointer(),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            room: layout.look_ups() as u32,
        };
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane) }?;
        Ok(())
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
        self.router.check(lane)
    }

    /// Tells the weights of each table's rows, in order and row by row, once the lane has done all that was
    /// enqueued on it.
    ///
    /// # Errors
    /// The first that `tell` returns; what `failed` makes of an error where the lane's work failed.
    pub fn try_for_each_row<E>(
        &self,
        lane: &Lane,
        mut tell: impl FnMut(&[f32]) -> Result<(), E>,
        failed: impl Fn(Error) -> E,
    ) -> Result<(), E> {
        for (number, (table, &begin)) in self.layout.tables.iter().zip(&self.layout.words).enumerate() {
            let words = self.layout.row_words(number);
            let mut weights_of_row = vec![0.0; table.dim];
            let at_once = (READ_BYTES / (4 * words)).max(1) as u64;
            for first in (0..table.rows).step_by(at_once as usize) {
                let rows = at_once.min(table.rows - first) as usize;
                let first_word = begin as usize + first as usize * words;
                let weights = self.table.read_part(lane, first_word, rows * words);
                let weights = weights.map_err(|error| failed(error.into()))?;
                for row in weights.chunks_exact(words) {
                    read_weights(table.dtype, row, &mut weights_of_row);
                    tell(&weights_of_row)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads weights as they lie in a row.
fn read_weights(dtype: Dtype, row: &[f32], weights: &mut [f32]) {
    let halves: &[u16] = bytemuck::cast_slice(row);
    let halves = weights.iter_mut().zip(halves);
    match dtype {
        Dtype::Fp32 => weights.copy_from_slice(&row[..weights.len()]),
        Dtype::Bf16 => halves.for_each(|(weight, &bits)| *weight = bf16::from_bits(bits).to_f32()),
        Dtype::Fp16 => halves.for_each(|(weight, &bits)| *weight = f16::from_bits(bits).to_f32()),
    }
}
