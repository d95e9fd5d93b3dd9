//! Fully connected layers in fp8, forward and backward.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Fp8Factors, Fp8Outputs, Fp8Tensor, Matrix, Product};
use rankine_cuda::kernels::{Columns, Element, Fp8Quantize};
use rankine_cuda::{Buffer, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use super::cross::CrossGradientOutputs;
use crate::cuda::network::quantization::{Fp8, Fp8Buffers, Fp8Builder};
use crate::cuda::network::resources::{ActivationMatrices, Activations, PartialSums, Resources};

/// Fully connected layers in fp8 with a ReLU after each.
#[derive(Debug)]
pub(in crate::cuda::network) struct Fp8Mlp {
    layers: Vec<LayerTensors>,
    /// The first layer's input in bf16, if these layers round it to fp8.
    input: Option<Matrix<bf16>>,
    /// The gradients with respect to the first layer's input, unless they are in fp8.
    input_gradients: Option<Matrix<bf16>>,
    output: Activations<bf16>,
    /// Partial sums of the last layer's bias gradients.
    parts: PartialSums,
}

/// The input of layers in fp8.
#[derive(Debug)]
pub(in crate::cuda::network) enum Input {
    /// From other parts in bf16, which also receive the gradients with respect to it.
    Elements(ActivationMatrices<bf16>),
    /// From other parts in fp8. `gradients` receives those with respect to it, unless they are in fp8.
    Fp8 { buffers: Arc<Fp8Buffers>, gradients: Option<Matrix<bf16>> },
}

/// A layer's tensors.
#[derive(Debug)]
struct LayerTensors {
    layer: Layer,
    input: Arc<Fp8Buffers>,
    weights: Fp8Buffers,
    /// With respect to its output.
    gradients: Fp8Buffers,
    /// Which inputs are above 0, if the layer before has recorded it.
    bits: Buffer<u32>,
}

/// The plan of a forward pass over some samples.
#[derive(Debug)]
pub(in crate::cuda::network) struct Forward(Option<Fp8Quantize>, Vec<Product>);

/// The plan of a backward pass over a batch: each layer's weight gradients, and the gradients with respect to its
/// input.
#[derive(Debug)]
pub(in crate::cuda::network) struct Backward(Fp8Quantize, Vec<(Product, Product)>);

impl Fp8Mlp {
    /// Creates layers, at least one.
    pub(in crate::cuda::network) fn new(
        builder: &mut Fp8Builder,
        layers: &[Layer],
        input: Input,
    ) -> Result<Self> {
        let rows = builder.rows;
        let outputs = layers[layers.len() - 1].outputs;
        let (elements, mut given, input_gradients) = match input {
            Input::Elements(ActivationMatrices { values, gradients }) => {
                (Some(values), None, Some(gradients))
            }
            Input::Fp8 { buffers, gradients } => (None, Some(buffers), gradients),
        };
        let mut made = Vec::new();
        for &layer in layers {
            let input = match given.take() {
                Some(buffers) => buffers,
                None => Arc::new(builder.activations(layer.inputs)?),
            };
            made.push(LayerTensors {
                layer,
                input,
                weights: builder.weights(&layer)?,
                gradients: builder.gradients(layer.outputs)?,
                bits: Buffer::filled(&builder.device, Fp8Outputs::words(rows.trained, layer.inputs), 0)?,
            });
        }
        Ok(Self {
            input: elements,
            input_gradients,
            output: Activations::new(&builder.device, rows, outputs)?,
            parts: PartialSums::new(&builder.device, Columns::<bf16>::pieces(rows.trained as u32), outputs)?,
            layers: made,
        })
    }

    /// Returns the last layer's output.
    pub(in crate::cuda::network) fn output(&self) -> ActivationMatrices<bf16> {
        self.output.matrices()
    }

    /// Returns a layer's input, its weights and the gradients with respect to its output.
    fn tensors(&self, fp8: &Fp8, number: usize, samples: usize) -> [Fp8Tensor; 3] {
        let tensors = &self.layers[number];
        let [input, gradients] =
            [&tensors.input, &tensors.gradients].map(|buffers| buffers.tensor(fp8, samples));
        [input, tensors.weights.weights(fp8), gradients]
    }

    /// `learns` is whether a backward pass follows.
    pub(in crate::cuda::network) fn plan_forward<T: Element>(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let (blas, fp8) = (&resources.blas, resources.fp8());
        let product = |(number, tensors): (usize, &LayerTensors)| {
            let [x, weights, _] = self.tensors(fp8, number, samples);
            let bias = resources.dense.parameters.pointer().element(tensors.layer.bias().start);
            match self.layers.get(number + 1) {
                Some(next) => {
                    let [outputs, ..] = self.tensors(fp8, number + 1, samples);
                    let out = Fp8Outputs { outputs, bits: next.bits.pointer() };
                    Product::fp8_relu(blas, x, weights, bias, out, learns)
                }
                None => {
                    let out = self.output().values.first_rows(samples);
                    Product::fp8_to_bf16(blas, x.straight(), weights.straight(), Some(bias), out)
                }
            }
        };
        let products = self.layers.iter().enumerate().map(product).collect::<Result<_, _>>()?;
        let first = &self.layers[0].input;
        let quantize = self.input.map(|input| first.quantize(fp8, input.first_rows(samples), learns));
        Ok(Forward(quantize, products))
    }

    /// `gradient_outputs` has the outputs of the gradients with respect to the first layer's input if those are in fp8.
    pub(in crate::cuda::network) fn plan_backward<T: Element>(
        &self,
        resources: &Resources<T>,
        gradient_outputs: Option<CrossGradientOutputs>,
    ) -> Result<Backward> {
        let (blas, samples, sums) = (&resources.blas, resources.samples, resources.dense.gradients.pointer());
        let fp8 = resources.fp8();
        let d_input =
            |number: usize, tensors: &LayerTensors, dy: Fp8Tensor, weights: Fp8Tensor| -> Result<_> {
                let factors = Fp8Factors { samples: dy.straight(), weights: weights.across() };
                match (number.checked_sub(1), self.input_gradients, gradient_outputs) {
                    // The gradients with respect to the input are those with respect to the output of the layer before,
                    // and give its bias gradients.
                    (Some(before), ..) => {
                        let [.., out] = self.tensors(fp8, before, samples);
                        let bias = sums.element(self.layers[before].layer.bias().start);
                        Ok(Product::fp8_relu_gradient(blas, dy, weights, tensors.bits.pointer(), out, bias)?)
                    }
                    (None, Some(gradients), _) => {
                        let Fp8Factors { samples, weights } = factors;
                        Ok(Product::fp8_to_bf16(blas, samples, weights, None, gradients)?)
                    }
                    (None, None, Some(gradient_outputs)) => {
                        gradient_outputs.product(resources, factors, None)
                    }
                    (None, None, None) => {
                        unreachable!("an input in fp8 comes with the outputs of its gradients")
                    }
                }
            };
        let products = |(number, tensors): (usize, &LayerTensors)| -> Result<_> {
            let [x, weights, dy] = self.tensors(fp8, number, samples);
            let Layer { inputs, outputs, offset, .. } = tensors.layer;
            let gradients = Matrix::contiguous(sums.element(offset), outputs, inputs);
            let d_weights = Product::fp8_by_weights(&resources.weights_blas, dy, x, gradients)?;
            Ok((d_weights, d_input(number, tensors, dy, weights)?))
        };
        let products = self.layers.iter().enumerate().map(products).collect::<Result<_>>()?;
        let last = &self.layers[self.layers.len() - 1];
        Ok(Backward(last.gradients.quantize(fp8, self.output().gradients, true), products))
    }

    /// Enqueues the forward pass from input to output.
    ///
    /// # Safety
    /// The plan must be of these layers and for as many samples as there are; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn forward<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        Forward(quantize, products): &Forward,
    ) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe {
            quantize.iter().try_for_each(|quantize| lane.launch(quantize, quantize.grid()))?;
            products.iter().try_for_each(|product| product.enqueue(&resources.blas, lane))?;
        }
        Ok(())
    }

    /// Enqueues the backward pass from the gradients with respect to the output, which have already passed its ReLU
    /// backward, to those with respect to all inputs.
    ///
    /// # Safety
    /// As for [`Fp8Mlp::forward`].
    pub(in crate::cuda::network) unsafe fn backward<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        Backward(quantize, products): &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            lane.launch(quantize, quantize.grid())?;
            for (_, d_input) in products.iter().rev() {
                d_input.enqueue_product(&resources.blas, lane)?;
            }
        }
        Ok(())
    }

    /// Enqueues the weight gradients.
    ///
    /// # Safety
    /// [`Fp8Mlp::backward`] must come before; nothing else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn weights<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        Backward(_, products): &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            products
                .iter()
                .rev()
                .try_for_each(|(d_weights, _)| d_weights.enqueue(&resources.weights_blas, lane))
        }?;
        Ok(())
    }

    /// Enqueues the bias gradients.
    ///
    /// # Safety
    /// [`Fp8Mlp::backward`] must come before; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn sums<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        Backward(_, products): &Backward,
    ) -> Result<()> {
        let layer = self.layers[self.layers.len() - 1].layer;
        let gradients = self.output().gradients;
        let columns = Columns {
            gradients: gradients.pointer,
            outputs: Pointer::NULL,
            parts: self.parts.pointer(),
            samples: resources.samples_count(),
            columns: layer.outputs as u32,
            stride: gradients.stride as u32,
            outputs_stride: 0,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns of the layer, and a bias
        // has as many gradients as its layer has outputs.
        unsafe {
            lane.launch(&columns, columns.grid())?;
            self.parts.add_up(lane, resources.dense.gradients.pointer().element(layer.bias().start))?;
            products.iter().try_for_each(|(_, d_input)| d_input.enqueue_sums(lane))?;
        }
        Ok(())
    }
}
