//! Unpacking batches from packed blocks, on the GPU.

use std::sync::Arc;

use rankine_cuda::kernels::{
    IdColumn, Unpack, UnpackBags, UnpackFactors, UnpackFixed, UnpackSizes, UnpackValues, WeightedColumn,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::Pooling;
use rankine_embedding::cuda::Result;
use rankine_reader::Schema;
use rankine_reader::schema::DenseDtype;

use super::layout::{Input, InputLayout};
use crate::cuda::feed::{BlockRing, fixed_columns, ragged_columns};

/// The columns of a schema and their layout in batches, as the kernels read them.
#[derive(Debug)]
pub struct Unpacker {
    label_streams: Buffer<u32>,
    fixed: Buffer<IdColumn>,
    /// The tiles of all columns of fixed hotness.
    tiles: u32,
    ragged: Buffer<IdColumn>,
    weighted: Buffer<WeightedColumn>,
    sums: Buffer<u32>,
    samples: u32,
    dense_columns: u32,
    weight_stream: u32,
    dense_stream: u32,
    dense_f16: bool,
}

impl Unpacker {
    /// For batches of a layout.
    pub(super) fn new(device: &Arc<Device>, schema: &Schema, input: &InputLayout) -> Result<Self> {
        let (layout, samples) = (&input.ids_layout, input.samples() as u32);
        let position = |(number, column): (usize, IdColumn)| IdColumn {
            ids: layout.ids_begin(number) as u32,
            offsets: layout.offsets_begin(number) as u32,
            long_ids: match layout.is_dynamic(number) {
                true => layout.long_ids_begin(number) as u32,
                false => IdColumn::NONE,
            },
            ..column
        };
        let mut tiles = 0;
        let fixed = fixed_columns(schema).map(position).map(|column| {
            let first = tiles;
            tiles += (samples * column.hotness).div_ceil(Unpack::TILE);
            IdColumn { index: first, ..column }
        });
        let fixed = Buffer::of(device, &fixed.collect::<Vec<_>>())?;
        let ragged: Vec<_> = ragged_columns(schema).collect();
        let weighted = ragged.iter().filter_map(|&(number, IdColumn { index, .. })| {
            let pooling = input.weighted[number]?;
            Some(WeightedColumn {
                ragged: index,
                factors: layout.factors_begin(number) as u32,
                mean: u32::from(pooling == Pooling::Mean),
                reserved: 0,
            })
        });
        let weighted = Buffer::of(device, &weighted.collect::<Vec<_>>())?;
        let ragged = Buffer::of(device, &ragged.into_iter().map(position).collect::<Vec<_>>())?;
        let label_streams: Vec<_> = input.labels_of.iter().map(|&number| number as u32).collect();
        let labels = schema.labels.len() as u32;
        let weights = schema.weight.iter().len() as u32;
        Ok(Self {
            label_streams: Buffer::of(device, &label_streams)?,
            sums: Buffer::filled(device, ragged.len() * Unpack::tiles(samples) as usize, 0)?,
            fixed,
            tiles,
            ragged,
            weighted,
            samples,
            dense_columns: schema.dense.len() as u32,
            weight_stream: if weights > 0 { labels } else { Unpack::NO_STREAM },
            dense_stream: labels + weights,
            dense_f16: schema.dense_dtype == DenseDtype::F16,
        })
    }

    /// Enqueues unpacking a batch, whose rows and step are on the GPU. A value that the schema does not admit sets the
    /// entry of `faults` at the step's index of losses.
    ///
    /// # Safety
    /// The rows must name blocks in the ring, of the schema that this was made for; the input must be of the layout;
    /// see [`Lane::launch`].
    pub(super) unsafe fn enqueue(
        &self,
        lane: &Lane,
        ring: &BlockRing,
        rows: Pointer<[u32; 2]>,
        input: Input,
        faults: Pointer<u32>,
    ) -> Result<()> {
        let unpack = Unpack {
            ring: ring.addresses(),
            rows,
            step: input.step,
            label_streams: self.label_streams.pointer(),
            fixed: self.fixed.pointer(),
            ragged: self.ragged.pointer(),
            weighted: self.weighted.pointer(),
            labels: input.labels,
            weights: input.weights,
            dense: input.dense,
            ids: input.ids.ids,
            long_ids: input.long_ids,
            offsets: input.ids.offsets,
            factors: input.ids.factors,
            sums: self.sums.pointer(),
            faults,
            samples: self.samples,
            heads: self.label_streams.len() as u32,
            dense_columns: self.dense_columns,
            fixed_columns: self.fixed.len() as u32,
            weight_stream: self.weight_stream,
            dense_stream: self.dense_stream,
            dense_f16: u32::from(self.dense_f16),
            reserved: 0,
        };
        let columns = |columns: usize| (Unpack::tiles(self.samples), columns as u32);
        let (ragged, weighted) = (columns(self.ragged.len()), columns(self.weighted.len()));
        let values = UnpackValues(unpack);
        // SAFETY: this value's buffers were made for the schema and the layout; the caller vouches for the rest.
        unsafe {
            lane.launch(&values, values.grid())?;
            if self.tiles > 0 {
                lane.launch(&UnpackFixed(unpack), (self.tiles, 1))?;
            }
            if ragged.1 > 0 {
                lane.launch(&UnpackSizes(unpack), ragged)?;
                lane.launch(&UnpackBags(unpack), ragged)?;
            }
            if weighted.1 > 0 {
                lane.launch(&UnpackFactors(unpack), weighted)?;
            }
        }
        Ok(())
    }
}
