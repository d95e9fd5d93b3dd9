//! The last layer with what goes past it to the logits, and the loss.

use std::sync::Arc;

use rankine_cuda::kernels::{self, Element, Outcome, Tally, Verdict};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::super::input::Input;
use super::super::together::GradientSums;
use super::layers::Layers;
use super::places::Places;
use super::shared::{Both, Parts, Shared};
use crate::model::ModelSpec;

/// A model's heads.
#[derive(Debug)]
pub(super) struct Head<T> {
    /// Of the last layer.
    input: Both<T>,
    /// Whether there is a ReLU before it.
    relu: bool,
    /// Where first-order terms of features lie, in the vectors' rows.
    wide: Both<T>,
    wide_features: usize,
    dense_columns: usize,
    /// What each head's loss is multiplied by.
    weights: Buffer<f64>,
    pub(super) logits: Buffer<f32>,
    /// `[piece][head]`
    losses: Buffer<f64>,
    /// Of the gradients by its parameters: those of the last layer and of the dense columns' first-order terms.
    parts: Parts,
}

impl<T: Element> Head<T> {
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        (places, layers): (&Places, &Layers),
        (input, relu): (Both<T>, bool),
        vectors: Both<T>,
    ) -> Result<Self> {
        let (samples, heads) = (vectors.values.rows, spec.heads.len());
        let weights: Vec<_> = spec.heads.iter().map(|head| head.weight).collect();
        let pieces = kernels::Head::<T>::pieces(samples as u32) as usize;
        let mut wide = vectors;
        if let Some(&first) = places.wide.first() {
            for matrix in [&mut wide.values, &mut wide.gradients] {
                matrix.pointer = matrix.pointer.element(first);
            }
        }
        let end = layers.linear.map_or(layers.head.end(), |layer| layer.end());
        Ok(Self {
            input,
            relu,
            wide,
            wide_features: places.wide.len(),
            dense_columns: layers.linear.map_or(0, |layer| layer.inputs),
            weights: Buffer::of(device, &weights)?,
            logits: Buffer::filled(device, samples * heads, 0xff)?,
            losses: Buffer::filled(device, pieces * heads, 0xff)?,
            parts: Parts::new(device, pieces as u32, end - layers.head.offset)?,
        })
    }

    fn heads(&self) -> usize {
        self.weights.len()
    }

    /// Enqueues the last layer: to logits, where `back` is false, or to losses and the gradients by its input and by
    /// what goes past it. `terms` are what the interaction adds to logits, and the gradients by it.
    ///
    /// # Safety
    /// The input must have as many samples; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        (input, samples): (Input, usize),
        [terms, term_gradients]: [Pointer<f32>; 2],
        back: bool,
    ) -> Result<()> {
        let Both { values, gradients } = self.input;
        let head = kernels::Head {
            input: values.pointer,
            weights: shared.dense.parameters.pointer().element(shared.dense.layers.head.offset),
            labels: input.labels,
            sample_weights: input.weights,
            totals: input.totals,
            head_weights: self.weights.pointer(),
            guard: shared.guard.pointer(),
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
            wide_step: Places::terms(self.heads()) as u32,
            wide_stride: self.wide.values.stride as u32,
            relu: u32::from(self.relu),
            reserved: 0,
        };
        // SAFETY: there are as many parts and losses as pieces of a batch; the caller vouches for the input.
        unsafe { lane.launch(&head, (kernels::Head::<T>::pieces(head.samples), 1)) }?;
        Ok(())
    }

    /// Enqueues adding up the gradients by the head's parameters.
    ///
    /// # Safety
    /// [`Head::enqueue`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, shared: &Shared<T>) -> Result<()> {
        // The head's parameters lie one behind the other, at the end of all.
        let sums = shared.dense.gradients.pointer().element(shared.dense.layers.head.offset);
        // SAFETY: there are as many gradients as parameters; the caller vouches for the order.
        unsafe { self.parts.add_up(lane, sums) }
    }

    /// Enqueues putting together what this rank has come to, which is added up with the gradients.
    ///
    /// # Safety
    /// [`Head::enqueue`] and all that looks at gradients must come before; see [`Lane::launch`].
    pub(super) unsafe fn tally(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        (numbers, rank): (Pointer<f64>, usize),
    ) -> Result<()> {
        let tally = Tally {
            losses: self.losses.pointer(),
            guard: shared.guard.pointer(),
            numbers,
            pieces: kernels::Head::<T>::pieces(shared.samples_count()),
            heads: self.heads() as u32,
            rank: rank as u32,
            reserved: 0,
        };
        // SAFETY: there are as many losses as pieces of a batch and heads, and as many numbers as these want; the
        // caller vouches for the order.
        unsafe { lane.launch(&tally, (1, 1)) }?;
        Ok(())
    }

    /// Enqueues the verdict on a step; what it came to goes to its place among `outcomes`.
    ///
    /// # Safety
    /// [`Head::enqueue`] and the sums of the gradients' squares must come before, and over ranks their sum; `outcomes`
    /// must have the step's place.
    pub(super) unsafe fn verdict(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        input: Input,
        outcomes: Pointer<Outcome>,
        (norm_max, scale_interval): (Option<f32>, u32),
    ) -> Result<()> {
        let sum = shared.dense.gradients.sums().map(GradientSums::numbers);
        let own = (self.losses.pointer(), kernels::Head::<T>::pieces(shared.samples_count()));
        let (of_step, pieces) = sum.map_or(own, |numbers| (numbers.pointer(), 1));
        let verdict = Verdict {
            losses: of_step,
            totals: input.totals,
            head_weights: self.weights.pointer(),
            parts: shared.dense.squares.parts().pointer(),
            step: input.step,
            outcomes,
            guard: shared.guard.pointer(),
            pieces,
            heads: self.heads() as u32,
            parts_count: shared.dense.squares.parts().len() as u32,
            norm_max: norm_max.unwrap_or(f32::INFINITY),
            scale_interval,
            together: u32::from(sum.is_some()),
        };
        // SAFETY: all other addresses are of this value's buffers; the caller vouches for the rest.
        unsafe { lane.launch(&verdict, (1, 1)) }?;
        Ok(())
    }
}
