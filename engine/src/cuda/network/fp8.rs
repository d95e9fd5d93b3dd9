//! Layers that multiply in fp8, forward and back, and the scalings of their tensors.
//!
//! Activations and gradients between such layers are in fp8 alone, each both row by row and turned: products write them
//! so. What comes in from elsewhere is rounded first, and what goes out is bf16. Weights are rounded once a step, when
//! they have learned. Every tensor has a scale of its own, which follows from its largest magnitudes in the last steps.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Epilogue, Fp8Outputs, Fp8Tensor, Matrix, Product};
use rankine_cuda::kernels::{
    Columns, Element, FP8_MULTIPLE, Fp8Check, Fp8Quantize, Fp8QuantizeWeights, Fp8Rescale, Fp8Scaling,
    Fp8Weights, Guard,
};
use rankine_cuda::{Buffer, Device, E4m3, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::shared::{Activations, Both, Parts, Shared, dense, first_rows};
use crate::model::Layer;

/// What is expected before the first step. Of activations nothing is known: their scale is 1. Gradients by a mean over
/// a batch are of the order of a sample's share of it; theirs is 16 times the batch, or somewhat less.
const ACTIVATIONS_AT_FIRST: f32 = 224.0;
const GRADIENTS_AT_FIRST: f32 = 14.0;

/// Tensors of a layer, in the order of their scalings.
const TENSORS: usize = 3;

/// Fully connected layers in fp8 with a ReLU behind each.
#[derive(Debug)]
pub(in crate::cuda) struct Fp8Mlp {
    layers: Vec<Place>,
    input: Matrix<bf16>,
    input_gradients: Option<Matrix<bf16>>,
    output: Activations<bf16>,
    /// Of the gradients by the last layer's bias.
    parts: Parts,
    /// Those of each layer's input, of its weights and of the gradients by its output.
    scalings: Buffer<Fp8Scaling>,
    weights: Buffer<Fp8Weights>,
    weights_grid: (u32, u32),
}

/// A layer's tensors.
#[derive(Debug)]
struct Place {
    layer: Layer,
    input: Room,
    weights: Room,
    /// By its output.
    gradients: Room,
    /// Which inputs are above 0, where the layer before has told.
    bits: Buffer<u32>,
}

/// Room for a tensor.
#[derive(Debug)]
struct Room {
    rows: Buffer<E4m3>,
    turned: Buffer<E4m3>,
    columns: usize,
    turned_stride: usize,
}

impl Room {
    /// Of 0.
    fn new(device: &Arc<Device>, rows: usize, columns: usize) -> Result<Self> {
        let turned_stride = rows.next_multiple_of(FP8_MULTIPLE);
        Ok(Self {
            rows: Buffer::filled(device, rows * columns, 0)?,
            turned: Buffer::filled(device, turned_stride * columns, 0)?,
            columns,
            turned_stride,
        })
    }

    /// The first rows.
    fn tensor(&self, rows: usize, scaling: Pointer<Fp8Scaling>) -> Fp8Tensor {
        Fp8Tensor {
            rows: dense(self.rows.pointer(), rows, self.columns),
            turned: dense(self.turned.pointer(), self.columns, self.turned_stride),
            scaling,
        }
    }

    /// Makes fp8 of a matrix as large.
    fn quantize(&self, from: Matrix<bf16>, scaling: Pointer<Fp8Scaling>, learns: bool) -> Fp8Quantize {
        Fp8Quantize {
            values: from.pointer,
            rows: self.rows.pointer(),
            turned: self.turned.pointer(),
            scaling,
            samples: from.rows as u32,
            columns: from.columns as u32,
            stride: from.stride as u32,
            turned_stride: self.turned_stride as u32,
            learns: u32::from(learns),
            reserved: 0,
        }
    }
}

/// What a pass forward over some samples has to do.
#[derive(Debug)]
pub(super) struct Forward(Fp8Quantize, Vec<Product>);

/// What a pass back over a batch has to do: the gradients by each layer's weights, and by its input where those are
/// wanted.
#[derive(Debug)]
pub(super) struct Backward(Fp8Quantize, Vec<(Product, Option<Product>)>);

impl Fp8Mlp {
    /// Whether layers can be in fp8, by their sizes.
    pub(in crate::cuda) fn takes(layers: &[Layer]) -> bool {
        let mut sizes = layers.iter().flat_map(|layer| [layer.inputs, layer.outputs]);
        sizes.all(|size| size.is_multiple_of(FP8_MULTIPLE))
    }

    /// One layer or more. Parameters are those of all layers, on the host and where they lie.
    pub(super) fn new(
        device: &Arc<Device>,
        layers: &[Layer],
        (input, input_gradients): (Matrix<bf16>, Option<Matrix<bf16>>),
        (parameters, parameters_at): (&[f32], Pointer<f32>),
    ) -> Result<Self> {
        let samples = input.rows;
        let outputs = layers[layers.len() - 1].outputs;
        let mut first_scalings = Vec::new();
        let mut places = Vec::new();
        for &layer in layers {
            let weights = &parameters[layer.offset..][..layer.inputs * layer.outputs];
            let largest = weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()));
            let largest = if largest > 0.0 { largest } else { 1.0 };
            let expected = [ACTIVATIONS_AT_FIRST, largest, GRADIENTS_AT_FIRST / samples as f32];
            first_scalings.extend(expected.map(Fp8Scaling::expecting));
            places.push(Place {
                layer,
                input: Room::new(device, samples, layer.inputs)?,
                weights: Room::new(device, layer.outputs, layer.inputs)?,
                gradients: Room::new(device, samples, layer.outputs)?,
                bits: Buffer::filled(device, Fp8Outputs::words(samples, layer.inputs), 0)?,
            });
        }
        let scalings = Buffer::of(device, &first_scalings)?;
        let of_layer = |(number, place): (usize, &Place)| Fp8Weights {
            values: parameters_at.element(place.layer.offset),
            rows: place.weights.rows.pointer(),
            turned: place.weights.turned.pointer(),
            scaling: scalings.pointer().element(number * TENSORS + 1),
            outputs: place.layer.outputs as u32,
            inputs: place.layer.inputs as u32,
        };
        let weights: Vec<_> = places.iter().enumerate().map(of_layer).collect();
        Ok(Self {
            input,
            input_gradients,
            output: Activations::new(device, samples, outputs)?,
            parts: Parts::new(device, Columns::<bf16>::pieces(samples as u32), outputs)?,
            layers: places,
            scalings,
            weights_grid: Fp8QuantizeWeights::grid(&weights),
            weights: Buffer::of(device, &weights)?,
        })
    }

    /// How each tensor's values become numbers of fp8.
    pub(super) fn scalings(&self) -> &Buffer<Fp8Scaling> {
        &self.scalings
    }

    /// The last layer's output.
    pub(super) fn output(&self) -> Both<bf16> {
        self.output.both()
    }

    /// A layer's input, its weights and the gradients by its output.
    fn tensors(&self, number: usize, samples: usize) -> [Fp8Tensor; TENSORS] {
        let place = &self.layers[number];
        let scaling = |tensor| self.scalings.pointer().element(number * TENSORS + tensor);
        [
            place.input.tensor(samples, scaling(0)),
            place.weights.tensor(place.layer.outputs, scaling(1)),
            place.gradients.tensor(samples, scaling(2)),
        ]
    }

    /// `learns` says whether a way back follows.
    pub(super) fn plan_forward<T: Element>(
        &self,
        shared: &Shared<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let blas = &shared.blas;
        let product = |(number, place): (usize, &Place)| {
            let [x, weights, _] = self.tensors(number, samples);
            let bias = shared.dense.parameters.pointer().element(place.layer.bias().start);
            match self.layers.get(number + 1) {
                Some(next) => {
                    let [outputs, ..] = self.tensors(number + 1, samples);
                    let out = Fp8Outputs { outputs, bits: next.bits.pointer() };
                    Product::fp8_relu(blas, x, weights, bias, out, learns)
                }
                None => Product::fp8_to_bf16(
                    blas,
                    x,
                    weights,
                    Some(bias),
                    first_rows(self.output().values, samples),
                ),
            }
        };
        let products = self.layers.iter().enumerate().map(product).collect::<Result<_, _>>()?;
        let input = first_rows(self.input, samples);
        let quantize = self.layers[0].input.quantize(input, self.scalings.pointer(), learns);
        Ok(Forward(quantize, products))
    }

    /// `entrance` is what the product does that gives the gradients by the first layer's input.
    pub(super) fn plan_backward<T: Element>(
        &self,
        shared: &Shared<T>,
        entrance: Epilogue<T>,
    ) -> Result<Backward> {
        let (blas, samples, sums) = (&shared.blas, shared.samples, shared.dense.gradients.pointer());
        let products = |(number, place): (usize, &Place)| {
            let [x, weights, dy] = self.tensors(number, samples);
            let Layer { inputs, outputs, offset, .. } = place.layer;
            let gradients = dense(sums.element(offset), outputs, inputs);
            let by_weights = Product::fp8_by_weights(&shared.beside, dy, x, gradients)?;
            // The gradients by the input are those by the output of the layer before, and by its bias.
            let by_input = match (number.checked_sub(1), self.input_gradients) {
                (Some(before), _) => {
                    let [.., out] = self.tensors(before, samples);
                    let bias = sums.element(self.layers[before].layer.bias().start);
                    Some(Product::fp8_relu_gradient(blas, dy, weights, place.bits.pointer(), out, bias)?)
                }
                (None, Some(out)) => Some(Product::fp8_by_inputs(blas, dy, weights, out.cast(), entrance)?),
                (None, None) => None,
            };
            Ok((by_weights, by_input))
        };
        let products = self.layers.iter().enumerate().map(products).collect::<Result<_>>()?;
        let last = self.layers.len() - 1;
        let [.., dy] = self.tensors(last, samples);
        let quantize = self.layers[last].gradients.quantize(self.output().gradients, dy.scaling, true);
        Ok(Backward(quantize, products))
    }

    /// Enqueues the pass from input to output.
    ///
    /// # Safety
    /// The plan must be of this and of as many samples as lie ready; see [`Lane::launch`].
    pub(super) unsafe fn forward<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Forward(quantize, products): &Forward,
    ) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe {
            lane.launch(quantize, quantize.grid())?;
            products.iter().try_for_each(|product| product.enqueue(&shared.blas, lane))?;
        }
        Ok(())
    }

    /// Enqueues the pass from the gradients by the output, which have come through its ReLU, to those by all inputs.
    ///
    /// # Safety
    /// As for [`Fp8Mlp::forward`].
    pub(super) unsafe fn backward<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Backward(quantize, products): &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            lane.launch(quantize, quantize.grid())?;
            for by_input in products.iter().rev().filter_map(|(_, by_input)| by_input.as_ref()) {
                by_input.enqueue_product(&shared.blas, lane)?;
            }
        }
        Ok(())
    }

    /// Enqueues the gradients by weights.
    ///
    /// # Safety
    /// [`Fp8Mlp::backward`] must come before; nobody else may use the second workspace meanwhile. See [`Lane::launch`].
    pub(super) unsafe fn weights<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Backward(_, products): &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            products.iter().rev().try_for_each(|(by_weights, _)| by_weights.enqueue(&shared.beside, lane))
        }?;
        Ok(())
    }

    /// Enqueues the gradients by biases.
    ///
    /// # Safety
    /// [`Fp8Mlp::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Backward(_, products): &Backward,
    ) -> Result<()> {
        let layer = self.layers[self.layers.len() - 1].layer;
        let gradients = self.output().gradients;
        let columns = Columns {
            gradients: gradients.pointer,
            outputs: Pointer::NULL,
            parts: self.parts.pointer(),
            samples: shared.samples_count(),
            columns: layer.outputs as u32,
            stride: gradients.stride as u32,
            outputs_stride: 0,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns of the layer, and a bias
        // has as many gradients as its layer has outputs.
        unsafe {
            lane.launch(&columns, columns.grid())?;
            self.parts.add_up(lane, shared.dense.gradients.pointer().element(layer.bias().start))?;
            let mut by_input = products.iter().filter_map(|(_, by_input)| by_input.as_ref());
            by_input.try_for_each(|by_input| by_input.enqueue_sums(lane))?;
        }
        Ok(())
    }

    /// Enqueues telling the guard of values that are not finite, before a step's verdict.
    ///
    /// # Safety
    /// All of the step's tensors must be there; see [`Lane::launch`].
    pub(super) unsafe fn check(&self, lane: &Lane, guard: Pointer<Guard>) -> Result<()> {
        let check = Fp8Check::new(self.scalings.pointer(), self.scalings.len(), guard);
        // SAFETY: the addresses are of this value's buffer, and of the caller's guard.
        unsafe { lane.launch(&check, (1, 1)) }?;
        Ok(())
    }

    /// Enqueues what follows the update of the parameters: the scales for the next step, and the weights by them.
    ///
    /// # Safety
    /// The guard must have its verdict; see [`Lane::launch`].
    pub(super) unsafe fn update(&self, lane: &Lane, guard: Pointer<Guard>) -> Result<()> {
        let rescale = Fp8Rescale::new(self.scalings.pointer(), self.scalings.len(), guard);
        // SAFETY: as for `check`.
        unsafe {
            lane.launch(&rescale, (1, 1))?;
            self.quantize_weights(lane)
        }
    }

    /// Enqueues making fp8 of the weights, as which products read them.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    pub(super) unsafe fn quantize_weights(&self, lane: &Lane) -> Result<()> {
        let weights = Fp8QuantizeWeights { layers: self.weights.pointer() };
        // SAFETY: the layers' addresses are of the parameters that this was made for and of this value's buffers.
        unsafe { lane.launch(&weights, self.weights_grid) }?;
        Ok(())
    }
}
