//! Fully connected layers with a ReLU after each, forward and backward.

use std::sync::Arc;

use rankine_cuda::blas::{Blas, Epilogue, Matrix, Product};
use rankine_cuda::kernels::{Columns, Element};
use rankine_cuda::{Device, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use super::resources::{ActivationMatrices, Activations, PartialSums, Resources};
use super::rows::NetworkRows;

/// Layers, each fed by the one before it.
#[derive(Debug)]
pub(super) struct Mlp<T> {
    layers: Vec<LayerMatrices<T>>,
    /// Whether the gradients with respect to the output have already passed the last ReLU backward.
    through_last_relu: bool,
    /// Partial sums of the last layer's bias gradients.
    parts: PartialSums,
    /// The memory of the layers' matrices.
    _buffers: Vec<Activations<T>>,
}

/// A layer with its input, its output and the gradients with respect to them.
#[derive(Debug, Clone, Copy)]
struct LayerMatrices<T> {
    layer: Layer,
    input: Matrix<T>,
    /// `None` if they are not needed.
    input_gradients: Option<Matrix<T>>,
    output: ActivationMatrices<T>,
}

/// The products of a forward pass over some samples.
#[derive(Debug)]
pub(super) struct Forward(Vec<Product>);

/// The products of a backward pass over a batch: each layer's weight gradients, and the gradients with respect to its
/// input if they are needed.
#[derive(Debug)]
pub(super) struct Backward(Vec<(Product, Option<Product>)>);

impl<T: Element> Mlp<T> {
    /// Creates layers between an input and an output; without an output, the last layer gets its own.
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        layers: &[Layer],
        (mut input, mut input_gradients): (Matrix<T>, Option<Matrix<T>>),
        output: Option<ActivationMatrices<T>>,
        through_last_relu: bool,
    ) -> Result<Self> {
        let (mut made, mut buffers) = (Vec::new(), Vec::new());
        for (number, &layer) in layers.iter().enumerate() {
            let output = match output {
                Some(output) if number + 1 == layers.len() => output,
                _ => {
                    let activations = Activations::new(device, rows, layer.outputs)?;
                    let output = activations.matrices();
                    buffers.push(activations);
                    output
                }
            };
            made.push(LayerMatrices { layer, input, input_gradients, output });
            (input, input_gradients) = (output.values, Some(output.gradients));
        }
        let outputs = layers.last().map_or(0, |layer| layer.outputs);
        let parts = PartialSums::new(device, Columns::<T>::pieces(rows.trained as u32), outputs)?;
        Ok(Self { layers: made, through_last_relu, parts, _buffers: buffers })
    }

    /// Returns the last layer's output; `None` without layers.
    pub(super) fn output(&self) -> Option<ActivationMatrices<T>> {
        self.layers.last().map(|matrices| matrices.output)
    }

    /// `learns` is whether a backward pass follows.
    pub(super) fn plan_forward(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let product = |matrices: &LayerMatrices<T>| {
            let layer = matrices.layer;
            let parameters = resources.dense.weights();
            let weights = Matrix::contiguous(parameters.element(layer.offset), layer.outputs, layer.inputs);
            let epilogue = Epilogue::BiasRelu { bias: parameters.element(layer.bias().start) };
            let (x, out) = (matrices.input.first_rows(samples), matrices.output.values.first_rows(samples));
            resources.forward_product([x, weights], out, epilogue, learns)
        };
        Ok(Forward(self.layers.iter().map(product).collect::<Result<_, _>>()?))
    }

    /// `of_weights` computes the weight gradients; `input_epilogue` is the epilogue of the product that computes the
    /// gradients with respect to the first layer's input.
    pub(super) fn plan_backward(
        &self,
        resources: &Resources<T>,
        of_weights: &Blas,
        input_epilogue: Epilogue<T>,
    ) -> Result<Backward> {
        let Resources { blas, compute, dense: parameters, .. } = resources;
        let compute = *compute;
        let mut before: Option<&LayerMatrices<T>> = None;
        let products = |matrices| {
            let &LayerMatrices {
                layer,
                input,
                input_gradients,
                output: ActivationMatrices { gradients: dy, .. },
            } = matrices;
            let Layer { inputs, outputs, offset, .. } = layer;
            let gradients =
                Matrix::contiguous(parameters.gradients.pointer().element(offset), outputs, inputs);
            let d_weights =
                Product::of_transposed(of_weights, compute, dy, input, gradients, Epilogue::None)?;
            let weights = Matrix::contiguous(parameters.weights().element(offset), outputs, inputs);
            // The gradients with respect to the input are those with respect to the output of the layer before, and
            // give its bias gradients.
            let epilogue = before.map_or(input_epilogue, |before| Epilogue::ReluGradient {
                outputs: input,
                sums: parameters.gradients.pointer().element(before.layer.bias().start),
            });
            before = Some(matrices);
            let d_input = |out| Product::straight(blas, compute, dy, weights, out, epilogue);
            Ok((d_weights, input_gradients.map(d_input).transpose()?))
        };
        Ok(Backward(self.layers.iter().map(products).collect::<Result<_>>()?))
    }

    /// Enqueues the forward pass from input to output.
    ///
    /// # Safety
    /// The plan must be of these layers and for as many samples as there are; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, resources: &Resources<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe { plan.0.iter().try_for_each(|product| product.enqueue(&resources.blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the backward pass from the gradients with respect to the output to those with respect to all inputs.
    ///
    /// # Safety
    /// As for [`Mlp::forward`].
    pub(super) unsafe fn backward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            if !self.through_last_relu {
                self.sum_last(lane, resources)?;
            }
            for d_input in plan.0.iter().rev().filter_map(|(_, d_input)| d_input.as_ref()) {
                d_input.enqueue_product(&resources.blas, lane)?;
            }
        }
        Ok(())
    }

    /// Enqueues the weight gradients, with the cuBLASLt handle that they were planned with.
    ///
    /// # Safety
    /// [`Mlp::backward`] must come before; nothing else may use the workspace meanwhile. See [`Lane::launch`].
    pub(super) unsafe fn weights(&self, lane: &Lane, blas: &Blas, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe { plan.0.iter().rev().try_for_each(|(d_weights, _)| d_weights.enqueue(blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the bias gradients.
    ///
    /// # Safety
    /// [`Mlp::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, resources: &Resources<T>, plan: &Backward) -> Result<()> {
        let Some(LayerMatrices { layer, .. }) = self.layers.last() else { return Ok(()) };
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe {
            if self.through_last_relu {
                self.sum_last(lane, resources)?;
            }
            self.parts.add_up(lane, resources.dense.gradients.pointer().element(layer.bias().start))?;
            let mut d_input = plan.0.iter().filter_map(|(_, d_input)| d_input.as_ref());
            d_input.try_for_each(|d_input| d_input.enqueue_sums(lane))?;
        }
        Ok(())
    }

    /// Enqueues partial sums of the last layer's bias gradients. Products apply the ReLUs between layers; if the last
    /// ReLU is still to be applied, this kernel does it.
    unsafe fn sum_last(&self, lane: &Lane, resources: &Resources<T>) -> Result<()> {
        let Some(LayerMatrices { layer, output, .. }) = self.layers.last() else { return Ok(()) };
        let columns = Columns {
            gradients: output.gradients.pointer,
            outputs: if self.through_last_relu { Pointer::NULL } else { output.values.pointer },
            parts: self.parts.pointer(),
            samples: resources.samples_count(),
            columns: layer.outputs as u32,
            stride: output.gradients.stride as u32,
            outputs_stride: output.values.stride as u32,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns of the layer.
        unsafe { lane.launch(&columns, columns.grid()) }?;
        Ok(())
    }
}
