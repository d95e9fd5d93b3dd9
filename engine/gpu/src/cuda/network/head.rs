//! The last layer, the terms added to its logits, and the loss.

use std::sync::Arc;

use rankine_cuda::kernels::{self, Element, Outcome, Tally, Verdict};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::ModelSpec;
use rankine_topology::Rank;

use super::layers::Layouts;
use super::resources::{ActivationMatrices, PartialSums, Resources};
use super::rows::NetworkRows;
use super::vector_layout::VectorLayout;
use crate::cuda::group::GradientSums;
use crate::cuda::input::Input;

/// The input of the last layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadInput<T> {
    pub(super) matrices: ActivationMatrices<T>,
    /// Whether a ReLU precedes it.
    pub(super) relu: bool,
}

/// A model's heads.
#[derive(Debug)]
pub(super) struct Head<T> {
    input: HeadInput<T>,
    /// The first-order terms of features, in the vectors' rows.
    wide: ActivationMatrices<T>,
    wide_features: usize,
    dense_columns: usize,
    /// The factor of each head's loss.
    weights: Buffer<f64>,
    pub(super) logits: Buffer<f32>,
    /// `[piece][head]`
    losses: Buffer<f64>,
    /// Partial sums of its parameters' gradients: those of the last layer and of the dense columns' first-order terms.
    parts: PartialSums,
}

impl<T: Element> Head<T> {
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        spec: &ModelSpec,
        layouts: Layouts<'_>,
        input: HeadInput<T>,
        vectors: ActivationMatrices<T>,
    ) -> Result<Self> {
        let Layouts { vectors: vector_layout, layers } = layouts;
        let heads = spec.heads.len();
        let weights: Vec<_> = spec.heads.iter().map(|head| head.weight).collect();
        let pieces = kernels::Head::<T>::pieces(rows.trained as u32) as usize;
        let mut wide = vectors;
        if let Some(&first) = vector_layout.wide.first() {
            for matrix in [&mut wide.values, &mut wide.gradients] {
                matrix.pointer = matrix.pointer.element(first);
            }
        }
        let end = layers.linear.map_or(layers.head.end(), |layer| layer.end());
        Ok(Self {
            input,
            wide,
            wide_features: vector_layout.wide.len(),
            dense_columns: layers.linear.map_or(0, |layer| layer.inputs),
            weights: Buffer::of(device, &weights)?,
            logits: Buffer::filled(device, rows.values() * heads, 0xff)?,
            losses: Buffer::filled(device, pieces * heads, 0xff)?,
            parts: PartialSums::new(device, pieces as u32, end - layers.head.offset)?,
        })
    }

    pub(super) fn heads(&self) -> usize {
        self.weights.len()
    }

    /// Enqueues the last layer: to logits if `back` is false; otherwise to losses and the gradients with respect to
    /// its input and to the added terms. `terms` are what the interaction adds to logits, and `term_gradients` the
    /// gradients with respect to them.
    ///
    /// # Safety
    /// The input must have as many samples; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        input: Input,
        samples: usize,
        [terms, term_gradients]: [Pointer<f32>; 2],
        back: bool,
    ) -> Result<()> {
        let ActivationMatrices { values, gradients } = self.input.matrices;
        let head = kernels::Head {
            input: values.pointer,
            weights: resources.dense.parameters.pointer().element(resources.dense.layers.head.offset),
            labels: input.labels,
            sample_weights: input.weights,
            totals: input.totals,
            head_weights: self.weights.pointer(),
            guard: resources.guard.pointer(),
            dense: input.dense,
            wide: self.wide.values.pointer,
            wide_gradients: self.wide.gradients.pointer,
            terms,
            term_gradients,
            logits: if back { Pointer::NULL } else { self.logits.pointer() },
            gradients: if back { gradients.pointer } else { Pointer::NULL },
            parts: self.parts.pointer(),
            losses: self.losses.pointer(),
            samples: samples as u32,
            heads: self.heads() as u32,
            width: values.columns as u32,
            stride: values.stride as u32,
            dense_columns: self.dense_columns as u32,
            wide_features: self.wide_features as u32,
            wide_step: VectorLayout::terms(self.heads()) as u32,
            wide_stride: self.wide.values.stride as u32,
            relu: u32::from(self.input.relu),
            reserved: 0,
        };
        // SAFETY: there are as many parts and losses as pieces of a training batch, and logits of all samples that may
        // be scored; the caller vouches for the input.
        unsafe { lane.launch(&head, (kernels::Head::<T>::pieces(head.samples), 1)) }?;
        Ok(())
    }

    /// Enqueues summing the gradients of the head's parameters.
    ///
    /// # Safety
    /// [`Head::enqueue`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, resources: &Resources<T>) -> Result<()> {
        // The head's parameters are stored one after another, at the end of all.
        let sums = resources.dense.gradients.pointer().element(resources.dense.layers.head.offset);
        // SAFETY: there are as many gradients as parameters; the caller vouches for the order.
        unsafe { self.parts.add_up(lane, sums) }
    }

    /// Enqueues collecting this rank's losses and findings, which are all-reduced with the gradients.
    ///
    /// # Safety
    /// [`Head::enqueue`] and all kernels that check gradients must come before; see [`Lane::launch`].
    pub(super) unsafe fn tally(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        numbers: Pointer<f64>,
        rank: Rank,
    ) -> Result<()> {
        let tally = Tally {
            losses: self.losses.pointer(),
            guard: resources.guard.pointer(),
            numbers,
            pieces: kernels::Head::<T>::pieces(resources.samples_count()),
            heads: self.heads() as u32,
            rank: rank.0 as u32,
            reserved: 0,
        };
        // SAFETY: there are as many losses as pieces of a batch and heads, and as many numbers as the tally needs; the
        // caller vouches for the order.
        unsafe { lane.launch(&tally, (1, 1)) }?;
        Ok(())
    }

    /// Enqueues the verdict on a step; the outcome is written to the step's position in `outcomes`.
    ///
    /// # Safety
    /// [`Head::enqueue`] and the sums of the gradients' squares must come before, with several ranks their all-reduce,
    /// too; `outcomes` must have the step's position.
    pub(super) unsafe fn verdict(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        input: Input,
        outcomes: Pointer<Outcome>,
        norm_max: Option<f32>,
        scale_interval: u32,
    ) -> Result<()> {
        let sum = resources.dense.gradients.sums().map(GradientSums::numbers);
        let own = (self.losses.pointer(), kernels::Head::<T>::pieces(resources.samples_count()));
        let (of_step, pieces) = sum.map_or(own, |numbers| (numbers.pointer(), 1));
        let verdict = Verdict {
            losses: of_step,
            totals: input.totals,
            head_weights: self.weights.pointer(),
            parts: resources.dense.squares.parts().pointer(),
            step: input.step,
            outcomes,
            guard: resources.guard.pointer(),
            pieces,
            heads: self.heads() as u32,
            parts_count: resources.dense.squares.parts().len() as u32,
            norm_max: norm_max.unwrap_or(f32::INFINITY),
            scale_interval,
            together: u32::from(sum.is_some()),
        };
        // SAFETY: all other addresses are of this value's buffers; the caller vouches for the rest.
        unsafe { lane.launch(&verdict, (1, 1)) }?;
        Ok(())
    }
}
