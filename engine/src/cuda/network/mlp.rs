//! Fully connected layers with a ReLU behind each, forward and back.

use std::sync::Arc;

use rankine_cuda::blas::{Blas, Epilogue, Matrix, Product};
use rankine_cuda::kernels::{Columns, Element};
use rankine_cuda::{Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::shared::{Activations, Both, Parts, Shared, dense, first_rows};
use crate::model::Layer;

/// Layers, each fed by the one before it.
#[derive(Debug)]
pub(super) struct Mlp<T> {
    places: Vec<Place<T>>,
    /// Whether whoever gives the gradients by the output takes them through the last ReLU.
    through_last_relu: bool,
    /// Of the gradients by the last layer's bias.
    parts: Parts,
    /// Where the places' matrices lie.
    _room: Vec<Activations<T>>,
}

/// Where a layer's input, its output and their gradients lie.
#[derive(Debug, Clone, Copy)]
struct Place<T> {
    layer: Layer,
    input: Matrix<T>,
    /// None where they are not wanted.
    input_gradients: Option<Matrix<T>>,
    output: Both<T>,
}

/// The products of a pass forward over some samples.
#[derive(Debug)]
pub(super) struct Forward(Vec<Product>);

/// The products of a pass back over a batch: the gradients by each layer's weights, and by its input where those are
/// wanted.
#[derive(Debug)]
pub(super) struct Backward(Vec<(Product, Option<Product>)>);

impl<T: Element> Mlp<T> {
    /// Layers between an input and an output; where none is given, the last layer has one of its own.
    pub(super) fn new(
        device: &Arc<Device>,
        layers: &[Layer],
        (mut input, mut input_gradients): (Matrix<T>, Option<Matrix<T>>),
        output: Option<Both<T>>,
        through_last_relu: bool,
    ) -> Result<Self> {
        let (mut places, mut room) = (Vec::new(), Vec::new());
        for (number, &layer) in layers.iter().enumerate() {
            let output = match output {
                Some(output) if number + 1 == layers.len() => output,
                _ => {
                    let activations = Activations::new(device, input.rows, layer.outputs)?;
                    let both = activations.both();
                    room.push(activations);
                    both
                }
            };
            places.push(Place { layer, input, input_gradients, output });
            (input, input_gradients) = (output.values, Some(output.gradients));
        }
        let outputs = layers.last().map_or(0, |layer| layer.outputs);
        let parts = Parts::new(device, Columns::<T>::pieces(input.rows as u32), outputs)?;
        Ok(Self { places, through_last_relu, parts, _room: room })
    }

    /// The last layer's output; none without layers.
    pub(super) fn output(&self) -> Option<Both<T>> {
        self.places.last().map(|place| place.output)
    }

    pub(super) fn plan_forward(&self, shared: &Shared<T>, samples: usize) -> Result<Forward> {
        let product = |place: &Place<T>| {
            let layer = place.layer;
            let parameters = shared.dense.weights();
            let weights = dense(parameters.element(layer.offset), layer.outputs, layer.inputs);
            let epilogue = Epilogue::BiasRelu { bias: parameters.element(layer.bias().start) };
            let (x, out) = (first_rows(place.input, samples), first_rows(place.output.values, samples));
            Product::by_transposed(&shared.blas, shared.compute, x, weights, out, epilogue)
        };
        Ok(Forward(self.places.iter().map(product).collect::<Result<_, _>>()?))
    }

    /// `of_weights` is for the gradients by weights; `entrance` is what the product does that gives the gradients by
    /// the first layer's input.
    pub(super) fn plan_backward(
        &self,
        shared: &Shared<T>,
        of_weights: &Blas,
        entrance: Epilogue<T>,
    ) -> Result<Backward> {
        let Shared { blas, compute, dense: parameters, .. } = shared;
        let compute = *compute;
        let mut before: Option<&Place<T>> = None;
        let products = |place| {
            let &Place { layer, input, input_gradients, output: Both { gradients: dy, .. } } = place;
            let Layer { inputs, outputs, offset, .. } = layer;
            let gradients = dense(parameters.gradients.pointer().element(offset), outputs, inputs);
            let by_weights =
                Product::of_transposed(of_weights, compute, dy, input, gradients, Epilogue::None)?;
            let weights = dense(parameters.weights().element(offset), outputs, inputs);
            // The gradients by the input are those by the output of the layer before, and by its bias.
            let epilogue = before.map_or(entrance, |before| Epilogue::ReluGradient {
                outputs: input,
                sums: parameters.gradients.pointer().element(before.layer.bias().start),
            });
            before = Some(place);
            let by_input = |out| Product::straight(blas, compute, dy, weights, out, epilogue);
            Ok((by_weights, input_gradients.map(by_input).transpose()?))
        };
        Ok(Backward(self.places.iter().map(products).collect::<Result<_>>()?))
    }

    /// Enqueues the pass from input to output.
    ///
    /// # Safety
    /// The plan must be of this and of as many samples as lie ready; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, shared: &Shared<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe { plan.0.iter().try_for_each(|product| product.enqueue(&shared.blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the pass from the gradients by the output to those by all inputs.
    ///
    /// # Safety
    /// As for [`Mlp::forward`].
    pub(super) unsafe fn backward(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            if !self.through_last_relu {
                self.sum_last(lane, shared)?;
            }
            for by_input in plan.0.iter().rev().filter_map(|(_, by_input)| by_input.as_ref()) {
                by_input.enqueue_product(&shared.blas, lane)?;
            }
        }
        Ok(())
    }

    /// Enqueues the gradients by weights, with what they were planned with.
    ///
    /// # Safety
    /// [`Mlp::backward`] must come before; nobody else may use the workspace meanwhile. See [`Lane::launch`].
    pub(super) unsafe fn weights(&self, lane: &Lane, blas: &Blas, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe { plan.0.iter().rev().try_for_each(|(by_weights, _)| by_weights.enqueue(blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the gradients by biases.
    ///
    /// # Safety
    /// [`Mlp::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        let Some(Place { layer, .. }) = self.places.last() else { return Ok(()) };
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe {
            if self.through_last_relu {
                self.sum_last(lane, shared)?;
            }
            self.parts.add_up(lane, shared.dense.gradients.pointer().element(layer.bias().start))?;
            let mut by_input = plan.0.iter().filter_map(|(_, by_input)| by_input.as_ref());
            by_input.try_for_each(|by_input| by_input.enqueue_sums(lane))?;
        }
        Ok(())
    }

    /// Enqueues summing the gradients by the last layer's bias, in parts. Products take gradients through the ReLUs
    /// between layers; where the last one is left it is done on the way.
    unsafe fn sum_last(&self, lane: &Lane, shared: &Shared<T>) -> Result<()> {
        let Some(Place { layer, output, .. }) = self.places.last() else { return Ok(()) };
        let columns = Columns {
            gradients: output.gradients.pointer,
            outputs: if self.through_last_relu { Pointer::NULL } else { output.values.pointer },
            parts: self.parts.pointer(),
            samples: shared.samples_count(),
            columns: layer.outputs as u32,
            stride: output.gradients.stride as u32,
            outputs_stride: output.values.stride as u32,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns of the layer.
        unsafe { lane.launch(&columns, columns.grid()) }?;
        Ok(())
    }
}
