//! Batches on their way to a GPU.

use std::sync::Arc;

use rankine_cuda::kernels::Step;
use rankine_cuda::{Buffer, Device, Lane, Moment, Pinned, Pointer, Result};
use rankine_reader::Samples;
use rayon::prelude::*;

/// Where the parts of a batch lie in a slot, counted in words of four bytes: first what the step is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputLayout {
    pub(super) samples: usize,
    pub(super) dense_columns: usize,
    pub(super) features: usize,
    rates: usize,
    labels: usize,
    weights: usize,
    dense: usize,
    ids: usize,
    words: usize,
}

/// Words of what the step is told.
const STEP_WORDS: usize = size_of::<Step>() / 4;
/// Words that a part begins at a multiple of, so that kernels may read by vectors.
const ALIGNMENT: usize = 64;

impl InputLayout {
    pub(super) fn new(samples: usize, dense_columns: usize, features: usize) -> Self {
        let mut end = STEP_WORDS;
        let mut part = |words: usize| {
            let begin = end.next_multiple_of(ALIGNMENT);
            end = begin + words;
            begin
        };
        Self {
            samples,
            dense_columns,
            features,
            rates: part(features),
            labels: part(samples),
            weights: part(samples),
            dense: part(samples * dense_columns),
            ids: part(samples * features),
            words: part(0),
        }
    }
}

/// A batch's addresses on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    pub(super) step: Pointer<Step>,
    /// Of each feature: its table's learning rate.
    pub(super) rates: Pointer<f32>,
    /// One a head: the sum of the weights of the samples whose label is there.
    pub(super) totals: Pointer<f64>,
    /// One a sample.
    pub(super) labels: Pointer<f32>,
    /// One a sample.
    pub(super) weights: Pointer<f32>,
    /// `[sample][column]`
    pub(super) dense: Pointer<f32>,
    /// `[feature][sample]`
    pub(super) ids: Pointer<u32>,
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
        Ok(Self {
            layout,
            staging: Pinned::zeroed(device, layout.words)?,
            words: Buffer::filled(device, layout.words, 0)?,
            copied: Moment::new(device)?,
        })
    }

    pub(super) fn input(&self) -> Input {
        let (layout, words) = (self.layout, self.words.pointer());
        Input {
            step: words.cast(),
            totals: words.cast::<f64>().element(1),
            rates: words.element(layout.rates).cast(),
            labels: words.element(layout.labels).cast(),
            weights: words.element(layout.weights).cast(),
            dense: words.element(layout.dense).cast(),
            ids: words.element(layout.ids),
        }
    }

    /// Puts samples of a batch where copies start from; no copy must be under way.
    pub(super) fn stage(
        &mut self,
        batch: &Samples,
        samples: std::ops::Range<usize>,
        label_number: usize,
        step: Step,
        rates: &[f32],
    ) {
        let layout = self.layout;
        let count = samples.len();
        assert!(count <= layout.samples && rates.len() == layout.features);
        let words = self.staging.elements_mut();
        words[..STEP_WORDS].copy_from_slice(bytemuck::cast_slice(&[step]));
        words[layout.rates..][..layout.features].copy_from_slice(bytemuck::cast_slice(rates));
        let labels: &mut [f32] = bytemuck::cast_slice_mut(&mut words[layout.labels..][..layout.samples]);
        labels[..count].copy_from_slice(&batch.labels[label_number][samples.clone()]);
        labels[count..].fill(f32::NAN);
        let weights: &mut [f32] = bytemuck::cast_slice_mut(&mut words[layout.weights..][..layout.samples]);
        match batch.weights.get(samples.clone()) {
            Some(given) => weights[..count].copy_from_slice(given),
            None => weights[..count].fill(1.0),
        }
        let (dense, ids) = words[layout.dense..].split_at_mut(layout.ids - layout.dense);
        let columns = layout.dense_columns;
        let dense: &mut [f32] = bytemuck::cast_slice_mut(&mut dense[..layout.samples * columns]);
        dense[..count * columns]
            .copy_from_slice(&batch.dense[samples.start * columns..samples.end * columns]);
        dense[count * columns..].fill(0.0);
        let ids = ids[..layout.samples * layout.features].par_chunks_exact_mut(layout.samples);
        ids.zip(&batch.categorical).for_each(|(to, column)| {
            // One id a sample: a sample's number is its id's place.
            let from = &column.ids[samples.clone()];
            // What does not fit in 32 bits is out of range: the tables say so.
            let narrow = |&id: &u64| u32::try_from(id).unwrap_or(u32::MAX);
            to[..count].iter_mut().zip(from).for_each(|(to, from)| *to = narrow(from));
            to[count..].fill(0);
        });
    }

    /// Enqueues the copy on its lane, and lets `reader` wait for it.
    pub(super) fn send(&self, lane: &Lane, reader: &Lane) -> Result<()> {
        // SAFETY: both have the layout's words; `stage` is not called before the reader has been waited for.
        unsafe { lane.upload(&self.staging, self.words.pointer()) }?;
        lane.record(&self.copied)?;
        reader.wait(&self.copied)
    }
}
