//! The input of a step: copying or unpacking batches into slots of a GPU.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::kernels::{Rate, Step, Totals};
use rankine_cuda::{Buffer, Device, Lane, Moment, PinnedBuffer, Pointer};
use rankine_embedding::cuda::{Hotness, Ids, Layout, Result};
use rankine_reader::{Bags, Samples, Schema};
use rayon::prelude::*;

use super::feed::FedPart;
use super::unpack::Unpacker;
use crate::model::ModelSpec;

/// The layout of a slot, in words of four bytes: first the step's parameters, then the rows of packed blocks that make
/// up a batch if the GPU unpacks it, then the batch.
#[derive(Debug, Clone)]
pub struct InputLayout {
    /// The categorical columns, and the number of samples that a slot holds.
    ids_layout: Layout,
    /// For each head, the number of its label column.
    labels_of: Vec<usize>,
    dense_columns: usize,
    rates: usize,
    rows: usize,
    totals: usize,
    own_totals: usize,
    labels: usize,
    weights: usize,
    dense: usize,
    offsets: usize,
    ids: usize,
    words: usize,
}

/// Words of the step's parameters.
const STEP_WORDS: usize = size_of::<Step>() / 4;
/// The word with the number of samples.
const STEP_SAMPLES: usize = offset_of!(Step, samples) / 4;
/// Every part starts at a multiple of this number of words, so that kernels may read vectors.
const ALIGNMENT: usize = 64;

impl InputLayout {
    /// The layout for a model's batches, with ids in the layout of the tables.
    pub fn new(spec: &ModelSpec, layout: &Layout) -> Self {
        let mut end = STEP_WORDS;
        let mut part = |words: usize| {
            let begin = end.next_multiple_of(ALIGNMENT);
            end = begin + words;
            begin
        };
        let (heads, samples) = (spec.heads.len(), layout.samples());
        let (rates, rows) = (part(2 * layout.tables().len()), part(2 * samples));
        let totals = part(2 * heads);
        Self {
            labels_of: spec.heads.iter().map(|head| head.label_number).collect(),
            dense_columns: spec.dense_columns,
            rates,
            rows,
            totals,
            own_totals: if layout.ranks() > 1 { part(2 * heads) } else { totals },
            labels: part(samples * heads),
            weights: part(samples),
            dense: part(samples * spec.dense_columns),
            offsets: part(layout.offsets()),
            ids: part(layout.ids()),
            words: part(0),
            ids_layout: layout.clone(),
        }
    }

    fn samples(&self) -> usize {
        self.ids_layout.samples()
    }
}

/// The addresses of a batch on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    pub(super) step: Pointer<Step>,
    /// One per table.
    pub(super) rates: Pointer<Rate>,
    /// For each head: the sum of the weights of the samples with its label, over all ranks.
    pub(super) totals: Pointer<f64>,
    /// The same for this rank's samples only.
    pub(super) own_totals: Pointer<f64>,
    /// `[head][sample]`: NaN if the label is missing, and after the batch's samples.
    pub(super) labels: Pointer<f32>,
    /// One per sample.
    pub(super) weights: Pointer<f32>,
    /// `[sample][column]`: zeros after the batch's samples.
    pub(super) dense: Pointer<f32>,
    pub(super) ids: Ids,
}

/// The buffers of a batch in host memory and on the GPU.
#[derive(Debug)]
pub struct InputSlot {
    layout: InputLayout,
    /// The step's parameters, and the rows.
    header: PinnedBuffer<u32>,
    /// The batch, if it is not unpacked on the GPU.
    staged: Option<PinnedBuffer<u32>>,
    words: Buffer<u32>,
    ready: Moment,
}

impl InputSlot {
    /// Allocates a slot on the GPU, which must be the current one of this thread.
    ///
    /// # Errors
    /// If the GPU or the host has too little memory.
    pub fn new(device: &Arc<Device>, layout: InputLayout) -> Result<Self> {
        Ok(Self {
            header: PinnedBuffer::zeroed(device, layout.totals)?,
            staged: None,
            words: Buffer::filled(device, layout.words, 0)?,
            ready: Moment::new(device)?,
            layout,
        })
    }

    pub(super) fn input(&self) -> Input {
        let (layout, words) = (&self.layout, self.words.pointer());
        Input {
            step: words.cast(),
            rates: words.element(layout.rates).cast(),
            totals: words.element(layout.totals).cast(),
            own_totals: words.element(layout.own_totals).cast(),
            labels: words.element(layout.labels).cast(),
            weights: words.element(layout.weights).cast(),
            dense: words.element(layout.dense).cast(),
            ids: Ids {
                ids: words.element(layout.ids),
                offsets: words.element(layout.offsets),
                samples: words.element(STEP_SAMPLES),
            },
        }
    }

    /// Returns the unpacker for batches of a schema into such slots.
    ///
    /// # Errors
    /// If the GPU has too little memory.
    pub fn unpacker(&self, device: &Arc<Device>, schema: &Schema) -> Result<Unpacker> {
        Unpacker::new(device, schema, &self.layout.labels_of, &self.layout.ids_layout)
    }

    /// Enqueues copying samples of a batch, with the step's parameters, on a lane, and makes `reader` wait for it. All
    /// work enqueued for the slot before must be done.
    ///
    /// # Panics
    /// If there are more samples than the slot holds, or their columns do not match the layout.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn send(
        &mut self,
        (lane, reader): (&Lane, &Lane),
        batch: &Samples,
        samples: Range<usize>,
        parameters: (Step, &[Rate]),
    ) -> Result<()> {
        self.write_header(samples.len(), parameters);
        let (layout, header_words) = (&self.layout, self.layout.rows);
        let staged = match &mut self.staged {
            Some(staged) => staged,
            none => none.insert(PinnedBuffer::zeroed(lane.device(), layout.words - layout.totals)?),
        };
        layout.stage(batch, samples, staged.elements_mut());
        // SAFETY: the pinned memory has these parts of the layout's words, and is not written before the reader has
        // been waited for.
        unsafe {
            lane.upload_first(&self.header, header_words, self.words.pointer())?;
            lane.upload(staged, self.words.pointer().element(layout.totals))?;
        }
        self.complete(lane, reader)
    }

    /// The same for a batch whose blocks are on the GPU or being copied there: the GPU unpacks it.
    ///
    /// # Panics
    /// If there are more samples than the slot holds.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn unpack(
        &mut self,
        (lane, reader): (&Lane, &Lane),
        batch: &FedPart,
        (unpacker, faults): (&Unpacker, Pointer<u32>),
        parameters: (Step, &[Rate]),
    ) -> Result<()> {
        self.write_header(batch.len(), parameters);
        let rows = self.layout.rows;
        let to = self.header.elements_mut()[rows..].chunks_exact_mut(2);
        to.zip(batch.rows()).for_each(|(to, row)| to.copy_from_slice(&row));
        batch.copied().try_for_each(|copied| lane.wait(copied))?;
        let rows_at = self.words.pointer().element(rows).cast();
        // SAFETY: the pinned memory has these words, and is not written before the reader has been waited for; until
        // then the batch is kept, and with it its blocks, for which the lane has just waited.
        unsafe {
            lane.upload_first(&self.header, rows + 2 * batch.len(), self.words.pointer())?;
            unpacker.enqueue(lane, batch.ring(), rows_at, self.input(), faults)?;
        }
        self.complete(lane, reader)
    }

    fn write_header(&mut self, samples: usize, (step, rates): (Step, &[Rate])) {
        let layout = &self.layout;
        assert!(samples <= layout.samples() && rates.len() == layout.ids_layout.tables().len());
        let words = self.header.elements_mut();
        let step = Step { samples: samples as u32, ..step };
        words[..STEP_WORDS].copy_from_slice(bytemuck::cast_slice(&[step]));
        words[layout.rates..][..2 * rates.len()].copy_from_slice(bytemuck::cast_slice(rates));
    }

    /// Enqueues computing the sums of weights from the batch.
    fn complete(&self, lane: &Lane, reader: &Lane) -> Result<()> {
        let (layout, input) = (&self.layout, self.input());
        let totals = Totals {
            labels: input.labels,
            weights: input.weights,
            totals: input.own_totals,
            samples: layout.samples() as u32,
            reserved: 0,
        };
        // SAFETY: all these addresses are within the slot's words, according to the layout.
        unsafe { lane.launch(&totals, (layout.labels_of.len() as u32, 1)) }?;
        lane.record(&self.ready)?;
        Ok(reader.wait(&self.ready)?)
    }
}

/// Access to a batch for tests and tools.
impl InputSlot {
    /// Returns the batch that was sent last, after the lane has finished all work enqueued before; its labels are
    /// those of the heads.
    ///
    /// # Errors
    /// If work enqueued on the lane failed.
    pub fn samples(&self, lane: &Lane) -> Result<Samples> {
        let (layout, words) = (&self.layout, self.words.read(lane)?);
        let (len, room) = (words[STEP_SAMPLES] as usize, layout.samples());
        let floats = |begin: usize, count: usize| bytemuck::cast_slice(&words[begin..][..count]).to_vec();
        let (ids, hotness) = (&layout.ids_layout, layout.ids_layout.columns());
        let bags = |(column, hotness): (usize, &Hotness)| {
            let offsets = match hotness {
                Hotness::Fixed(ids) => (0..=len).map(|sample| (sample * ids) as u32).collect(),
                Hotness::Ragged { .. } => {
                    words[layout.offsets + ids.offsets_begin(column)..][..=len].to_vec()
                }
            };
            let ids = &words[layout.ids + ids.ids_begin(column)..][..offsets[len] as usize];
            Bags { ids: ids.iter().map(|&id| u64::from(id)).collect(), offsets }
        };
        Ok(Samples {
            len,
            labels: (0..layout.labels_of.len())
                .map(|head| floats(layout.labels + head * room, len))
                .collect(),
            weights: floats(layout.weights, len),
            dense: floats(layout.dense, len * layout.dense_columns),
            dense_columns: layout.dense_columns,
            categorical: hotness.iter().enumerate().map(bags).collect(),
        })
    }
}

impl InputLayout {
    /// Writes samples of a batch to words that start where the batch does.
    fn stage(&self, batch: &Samples, samples: Range<usize>, words: &mut [u32]) {
        let (count, room, hotness) = (samples.len(), self.samples(), self.ids_layout.columns());
        assert_eq!((batch.dense_columns, batch.categorical.len()), (self.dense_columns, hotness.len()));
        let begin = |part: usize| part - self.totals;
        for (head, &number) in self.labels_of.iter().enumerate() {
            let labels = &mut words[begin(self.labels) + head * room..][..room];
            let labels: &mut [f32] = bytemuck::cast_slice_mut(labels);
            labels[..count].copy_from_slice(&batch.labels[number][samples.clone()]);
            labels[count..].fill(f32::NAN);
        }
        let weights: &mut [f32] = bytemuck::cast_slice_mut(&mut words[begin(self.weights)..][..room]);
        match batch.weights.get(samples.clone()) {
            Some(given) => weights[..count].copy_from_slice(given),
            None => weights[..count].fill(1.0),
        }
        weights[count..].fill(0.0);
        let columns = self.dense_columns;
        let dense: &mut [f32] = bytemuck::cast_slice_mut(&mut words[begin(self.dense)..][..room * columns]);
        dense[..count * columns]
            .copy_from_slice(&batch.dense[samples.start * columns..samples.end * columns]);
        dense[count * columns..].fill(0.0);
        let (before_ids, mut ids) = words.split_at_mut(begin(self.ids));
        let mut offsets = &mut before_ids[begin(self.offsets)..];
        let mut jobs = Vec::with_capacity(hotness.len());
        for (hotness, bags) in hotness.iter().zip(&batch.categorical) {
            let of_ragged = if matches!(hotness, Hotness::Ragged { .. }) { room + 1 } else { 0 };
            let own = ids.split_off_mut(..room * hotness.max()).expect("the layout has room for all columns");
            let own_offsets = offsets.split_off_mut(..of_ragged).expect("as for ids");
            jobs.push((bags, own, own_offsets));
        }
        let put = |(bags, ids, offsets)| put_bags(bags, samples.clone(), ids, offsets);
        jobs.into_par_iter().for_each(put);
    }
}

/// Writes the bags of some samples to a column's buffer for ids, and their offsets to that for offsets, if it has one;
/// samples after them get empty bags.
fn put_bags(bags: &Bags, samples: Range<usize>, ids: &mut [u32], offsets: &mut [u32]) {
    let first = bags.offsets[samples.start];
    let from = &bags.ids[first as usize..bags.offsets[samples.end] as usize];
    // An id that does not fit in 32 bits is out of range, which the tables report.
    let narrow = |&id: &u64| u32::try_from(id).unwrap_or(u32::MAX);
    ids.iter_mut().zip(from).for_each(|(to, from)| *to = narrow(from));
    if !offsets.is_empty() {
        let (own, after) = offsets.split_at_mut(samples.len());
        own.iter_mut().zip(&bags.offsets[samples]).for_each(|(to, from)| *to = from - first);
        after.fill(from.len() as u32);
    }
}
