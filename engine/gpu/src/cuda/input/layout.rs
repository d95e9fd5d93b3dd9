//! The layout of a batch in a slot, and writing samples in it.

use std::mem::offset_of;
use std::ops::Range;

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{Rate, Step};
use rankine_embedding::cuda::{Hotness, Ids, Layout};
use rankine_embedding::{Pooling, cpu};
use rankine_reader::{Bags, Samples};
use rayon::prelude::*;

use rankine_model::ModelSpec;

/// The layout of a slot, in words of four bytes: first the step's parameters, then the rows of packed blocks that make
/// up a batch if the GPU unpacks it, then the batch.
#[derive(Debug, Clone)]
pub struct InputLayout {
    /// The categorical columns, and the number of samples that a slot holds.
    pub(super) ids_layout: Layout,
    /// For each head, the number of its label column.
    pub(super) labels_of: Vec<usize>,
    /// For each categorical column, how its bags are pooled if their ids have weights.
    pub(super) weighted: Vec<Option<Pooling>>,
    /// For each categorical column, whether its table is dynamic.
    pub(super) dynamic: Vec<bool>,
    pub(super) dense_columns: usize,
    pub(super) rates: usize,
    pub(super) rows: usize,
    pub(super) totals: usize,
    pub(super) own_totals: usize,
    pub(super) labels: usize,
    pub(super) weights: usize,
    pub(super) dense: usize,
    pub(super) offsets: usize,
    pub(super) ids: usize,
    pub(super) factors: usize,
    pub(super) long_ids: usize,
    pub(super) words: usize,
}

/// Words of the step's parameters.
pub(super) const STEP_WORDS: usize = size_of::<Step>() / 4;
/// The word with the number of samples.
pub(super) const STEP_SAMPLES: usize = offset_of!(Step, samples) / 4;
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
            weighted: spec
                .features
                .iter()
                .map(|feature| feature.weighted.then_some(feature.pooling))
                .collect(),
            dynamic: (0..layout.columns().len()).map(|column| layout.is_dynamic(column)).collect(),
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
            factors: part(layout.factors()),
            long_ids: part(2 * layout.long_ids()),
            words: part(0),
            ids_layout: layout.clone(),
        }
    }

    pub(super) fn samples(&self) -> usize {
        self.ids_layout.samples()
    }
}

/// The addresses of a batch on the GPU.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Input {
    pub(in crate::cuda) step: Pointer<Step>,
    /// One per table.
    pub(in crate::cuda) rates: Pointer<Rate>,
    /// For each head: the sum of the weights of the samples with its label, over all ranks.
    pub(in crate::cuda) totals: Pointer<f64>,
    /// The same for this rank's samples only.
    pub(in crate::cuda) own_totals: Pointer<f64>,
    /// `[head][sample]`: NaN if the label is missing, and after the batch's samples.
    pub(in crate::cuda) labels: Pointer<f32>,
    /// One per sample.
    pub(in crate::cuda) weights: Pointer<f32>,
    /// `[sample][column]`: zeros after the batch's samples.
    pub(in crate::cuda) dense: Pointer<f32>,
    pub(in crate::cuda) ids: Ids,
    /// The ids of dynamic tables, at [`Layout::long_ids_begin`].
    pub(in crate::cuda) long_ids: Pointer<u64>,
}

impl InputLayout {
    /// Writes samples of a batch to words that start where the batch does.
    pub(super) fn stage(&self, batch: &Samples, samples: Range<usize>, words: &mut [u32]) {
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
        let (words, long_ids) = words.split_at_mut(begin(self.long_ids));
        let mut long_ids: &mut [u64] = bytemuck::cast_slice_mut(long_ids);
        let (words, factors) = words.split_at_mut(begin(self.factors));
        let mut factors: &mut [f32] = bytemuck::cast_slice_mut(factors);
        let (before_ids, mut ids) = words.split_at_mut(begin(self.ids));
        let mut offsets = &mut before_ids[begin(self.offsets)..];
        let mut jobs = Vec::with_capacity(hotness.len());
        let columns = hotness.iter().zip(&batch.categorical).zip(&self.weighted).zip(&self.dynamic);
        for (((hotness, bags), &pooling), &is_dynamic) in columns {
            let of_ragged = if matches!(hotness, Hotness::Ragged { .. }) { room + 1 } else { 0 };
            let own = ids.split_off_mut(..room * hotness.max()).expect("the layout has room for all columns");
            let own_offsets = offsets.split_off_mut(..of_ragged).expect("as for ids");
            let of_weighted = if pooling.is_some() { room * hotness.max() } else { 0 };
            let own_factors = factors.split_off_mut(..of_weighted).expect("as for ids");
            let of_dynamic = if is_dynamic { room * hotness.max() } else { 0 };
            let own_long_ids = long_ids.split_off_mut(..of_dynamic).expect("as for ids");
            let own = if of_dynamic > 0 { ColumnIds::Long(own_long_ids) } else { ColumnIds::Rows(own) };
            jobs.push((bags, own, own_offsets, pooling.map(|pooling| (pooling, own_factors))));
        }
        jobs.into_par_iter().for_each(|(bags, ids, offsets, weighted)| {
            put_bags(bags, samples.clone(), ids, offsets);
            if let Some((pooling, factors)) = weighted {
                put_factors(bags, samples.clone(), pooling, factors);
            }
        });
    }
}

/// The buffer for a column's ids.
enum ColumnIds<'a> {
    /// Rows.
    Rows(&'a mut [u32]),
    /// Ids that are given rows.
    Long(&'a mut [u64]),
}

/// Writes the bags of some samples to a column's buffer for ids, and their offsets to that for offsets, if it has one;
/// samples after them get empty bags.
fn put_bags(bags: &Bags, samples: Range<usize>, ids: ColumnIds<'_>, offsets: &mut [u32]) {
    let first = bags.offsets[samples.start];
    let from = &bags.ids[first as usize..bags.offsets[samples.end] as usize];
    // An id that does not fit in 32 bits is out of range, which the tables report.
    let narrow = |&id: &u64| u32::try_from(id).unwrap_or(u32::MAX);
    match ids {
        ColumnIds::Rows(ids) => ids.iter_mut().zip(from).for_each(|(to, from)| *to = narrow(from)),
        ColumnIds::Long(ids) => ids[..from.len()].copy_from_slice(from),
    }
    if !offsets.is_empty() {
        let (own, after) = offsets.split_at_mut(samples.len());
        own.iter_mut().zip(&bags.offsets[samples]).for_each(|(to, from)| *to = from - first);
        after.fill(from.len() as u32);
    }
}

/// Writes the factors of the ids of some samples' bags to a column's buffer.
fn put_factors(bags: &Bags, samples: Range<usize>, pooling: Pooling, factors: &mut [f32]) {
    let bags = cpu::Bags { offsets: &bags.offsets, ids: &bags.ids, weights: Some(&bags.weights) };
    let of_sample = |sample| bags.factors(sample, pooling).expect("ids have weights");
    factors.iter_mut().zip(samples.flat_map(of_sample)).for_each(|(to, factor)| *to = factor);
}
