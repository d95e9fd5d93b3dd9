//! Batches on their way to a GPU.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::kernels::{Rate, Step, Totals};
use rankine_cuda::{Buffer, Device, Lane, Moment, Pinned, Pointer};
use rankine_embedding::cuda::{Hotness, Ids, Layout, Result};
use rankine_reader::{Bags, Samples};
use rayon::prelude::*;

use crate::model::ModelSpec;

/// Where the parts of a batch lie in a slot, counted in words of four bytes: first what the step is told.
#[derive(Debug, Clone)]
pub(super) struct InputLayout {
    /// Of categorical columns, and samples that there is room for.
    ids_layout: Layout,
    /// Of each head: the number of its label column.
    labels_of: Vec<usize>,
    dense_columns: usize,
    rates: usize,
    totals: usize,
    labels: usize,
    weights: usize,
    dense: usize,
    offsets: usize,
    ids: usize,
    words: usize,
}

/// Words of what the step is told.
const STEP_WORDS: usize = size_of::<Step>() / 4;
/// Which of them says how many samples there are.
const STEP_SAMPLES: usize = offset_of!(Step, samples) / 4;
/// Words that a part begins at a multiple of, so that kernels may read by vectors.
const ALIGNMENT: usize = 64;

impl InputLayout {
    /// For a model's batches, whose ids lie as the tables' layout says.
    pub(super) fn new(spec: &ModelSpec, layout: &Layout) -> Self {
        let mut end = STEP_WORDS;
        let mut part = |words: usize| {
            let begin = end.next_multiple_of(ALIGNMENT);
            end = begin + words;
            begin
        };
        let (heads, samples) = (spec.heads.len(), layout.samples());
        Self {
            labels_of: spec.heads.iter().map(|head| head.label_number).collect(),
            dense_columns: spec.dense_columns,
            rates: part(2 * layout.tables().len()),
            totals: part(2 * heads),
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

/// A batch's addresses on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    pub(super) step: Pointer<Step>,
    /// One a table.
    pub(super) rates: Pointer<Rate>,
    /// Of each head: the sum of the weights of the samples that have its label.
    pub(super) totals: Pointer<f64>,
    /// `[head][sample]`: NaN where there is none, and behind the batch's samples.
    pub(super) labels: Pointer<f32>,
    /// One a sample.
    pub(super) weights: Pointer<f32>,
    /// `[sample][column]`: zeros behind the batch's samples.
    pub(super) dense: Pointer<f32>,
    pub(super) ids: Ids,
}

/// Room for a batch in the host's memory and in the GPU's.
#[derive(Debug)]
pub(super) struct InputSlot {
    layout: InputLayout,
    staging: Pinned<u32>,
    words: Buffer<u32>,
    copied: Moment,
}

impl InputSlot {
    pub(super) fn new(device: &Arc<Device>, layout: InputLayout) -> Result<Self> {
        let _input = device.purpose("input");
        Ok(Self {
            staging: Pinned::zeroed(device, layout.words)?,
            words: Buffer::filled(device, layout.words, 0)?,
            copied: Moment::new(device)?,
            layout,
        })
    }

    pub(super) fn input(&self) -> Input {
        let (layout, words) = (&self.layout, self.words.pointer());
        Input {
            step: words.cast(),
            rates: words.element(layout.rates).cast(),
            totals: words.element(layout.totals).cast(),
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

    /// Puts samples of a batch where copies start from; no copy must be under way.
    ///
    /// # Panics
    /// Where there are more samples than room, or their columns are not the layout's.
    pub(super) fn stage(&mut self, batch: &Samples, samples: Range<usize>, step: Step, rates: &[Rate]) {
        let layout = &self.layout;
        let (count, room) = (samples.len(), layout.samples());
        let (tables, hotness) = (layout.ids_layout.tables().len(), layout.ids_layout.columns());
        assert!(count <= room && rates.len() == tables);
        assert_eq!((batch.dense_columns, batch.categorical.len()), (layout.dense_columns, hotness.len()));
        let words = self.staging.elements_mut();
        let step = Step { samples: count as u32, ..step };
        words[..STEP_WORDS].copy_from_slice(bytemuck::cast_slice(&[step]));
        words[layout.rates..][..2 * tables].copy_from_slice(bytemuck::cast_slice(rates));
        for (head, &number) in layout.labels_of.iter().enumerate() {
            let labels: &mut [f32] =
                bytemuck::cast_slice_mut(&mut words[layout.labels + head * room..][..room]);
            labels[..count].copy_from_slice(&batch.labels[number][samples.clone()]);
            labels[count..].fill(f32::NAN);
        }
        let weights: &mut [f32] = bytemuck::cast_slice_mut(&mut words[layout.weights..][..room]);
        match batch.weights.get(samples.clone()) {
            Some(given) => weights[..count].copy_from_slice(given),
            None => weights[..count].fill(1.0),
        }
        weights[count..].fill(0.0);
        let (before_ids, mut ids) = words.split_at_mut(layout.ids);
        let (dense, mut offsets) = before_ids[layout.dense..].split_at_mut(layout.offsets - layout.dense);
        let columns = layout.dense_columns;
        let dense: &mut [f32] = bytemuck::cast_slice_mut(&mut dense[..room * columns]);
        dense[..count * columns]
            .copy_from_slice(&batch.dense[samples.start * columns..samples.end * columns]);
        dense[count * columns..].fill(0.0);
        let mut columns = Vec::with_capacity(hotness.len());
        for (hotness, bags) in hotness.iter().zip(&batch.categorical) {
            let has_offsets = matches!(hotness, Hotness::Ragged { .. });
            let column_offsets = if has_offsets { room + 1 } else { 0 };
            let own = ids.split_off_mut(..room * hotness.max()).expect("the layout has room for all columns");
            let own_offsets = offsets.split_off_mut(..column_offsets).expect("as for ids");
            columns.push((bags, own, own_offsets));
        }
        let put = |(bags, ids, offsets)| put_bags(bags, samples.clone(), ids, offsets);
        columns.into_par_iter().for_each(put);
    }

    /// Enqueues the copy on its lane with what follows from the batch, and lets `reader` wait for it.
    pub(super) fn send(&self, lane: &Lane, reader: &Lane) -> Result<()> {
        let (layout, input) = (&self.layout, self.input());
        let totals = Totals {
            labels: input.labels,
            weights: input.weights,
            totals: input.totals,
            samples: layout.samples() as u32,
            reserved: 0,
        };
        // SAFETY: staging and words have the layout's words, in which all these addresses lie; `stage` is not called
        // before the reader has been waited for.
        unsafe {
            lane.upload(&self.staging, self.words.pointer())?;
            lane.launch(&totals, (layout.labels_of.len() as u32, 1))?;
        }
        lane.record(&self.copied)?;
        Ok(reader.wait(&self.copied)?)
    }
}

/// Puts the bags of some samples into a column's room for ids, and where each begins into that for offsets, where there
/// is any; samples behind them have empty bags.
fn put_bags(bags: &Bags, samples: Range<usize>, ids: &mut [u32], offsets: &mut [u32]) {
    let first = bags.offsets[samples.start];
    let from = &bags.ids[first as usize..bags.offsets[samples.end] as usize];
    // What does not fit in 32 bits is out of range: the tables say so.
    let narrow = |&id: &u64| u32::try_from(id).unwrap_or(u32::MAX);
    ids.iter_mut().zip(from).for_each(|(to, from)| *to = narrow(from));
    if !offsets.is_empty() {
        let (own, behind) = offsets.split_at_mut(samples.len());
        own.iter_mut().zip(&bags.offsets[samples]).for_each(|(to, from)| *to = from - first);
        behind.fill(from.len() as u32);
    }
}
