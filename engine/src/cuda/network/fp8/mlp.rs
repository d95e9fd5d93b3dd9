//! Fully connected layers in fp8, forward and back.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Fp8Outputs, Fp8Tensor, Product};
use rankine_cuda::kernels::{Columns, Element, Fp8Quantize};
use rankine_cuda::{Buffer, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::super::shared::{Activations, Both, Parts, Shared, dense, first_rows};
use super::{Entrance, Fp8, Making, Room};
use crate::model::Layer;

/// Fully connected layers in fp8 with a ReLU behind each.
#[derive(Debug)]
pub(in crate::cuda::network) struct Fp8Mlp {
    layers: Vec<Place>,
    /// Where the first layer's input is rounded from, and the gradients by it go; none where both are in fp8.
    input: Option<Both<bf16>>,
    output: Activations<bf16>,
    /// Of the gradients by the last layer's bias.
    parts: Parts,
}

/// Where the input of layers in fp8 comes from.
#[derive(Debug)]
pub(in crate::cuda::network) enum Input {
    /// From elsewhere, in bf16, where the gradients by it go.
    Elements(Both<bf16>),
    /// From layers in fp8.
    Fp8(Arc<Room>),
}

/// A layer's tensors.
#[derive(Debug)]
struct Place {
    layer: Layer,
    input: Arc<Room>,
    weights: Room,
    /// By its output.
    gradients: Room,
    /// Which inputs are above 0, where the layer before has told.
    bits: Buffer<u32>,
}

/// What a pass forward over some samples has to do.
#[derive(Debug)]
pub(in crate::cuda::network) struct Forward(Option<Fp8Quantize>, Vec<Product>);

/// What a pass back over a batch has to do: the gradients by each layer's weights and by its input.
#[derive(Debug)]
pub(in crate::cuda::network) struct Backward(Fp8Quantize, Vec<(Product, Product)>);

impl Fp8Mlp {
    /// One layer or more, for so many samples.
    pub(in crate::cuda::network) fn new(
        making: &mut Making,
        layers: &[Layer],
        input: Input,
        samples: usize,
    ) -> Result<Self> {
        let outputs = layers[layers.len() - 1].outputs;
        let (elements, mut given) = match input {
            Input::Elements(both) => (Some(both), None),
            Input::Fp8(room) => (None, Some(room)),
        };
        let mut places = Vec::new();
        for &layer in layers {
            let input = match given.take() {
                Some(room) => room,
                None => Arc::new(making.activations(samples, layer.inputs)?),
            };
            places.push(Place {
                layer,
                input,
                weights: making.weights(&layer)?,
                gradients: making.gradients(samples, layer.outputs)?,
                bits: Buffer::filled(&making.device, Fp8Outputs::words(samples, layer.inputs), 0)?,
            });
        }
        Ok(Self {
            input: elements,
            output: Activations::new(&making.device, samples, outputs)?,
            parts: Parts::new(&making.device, Columns::<bf16>::pieces(samples as u32), outputs)?,
            layers: places,
        })
    }

    /// The last layer's output.
    pub(in crate::cuda::network) fn output(&self) -> Both<bf16> {
        self.output.both()
    }

    /// A layer's input, its weights and the gradients by its output.
    fn tensors(&self, fp8: &Fp8, number: usize, samples: usize) -> [Fp8Tensor; 3] {
        let place = &self.layers[number];
        let [input, gradients] = [&place.input, &place.gradients].map(|room| room.tensor(fp8, samples));
        [input, place.weights.weights(fp8), gradients]
    }

    /// `learns` says whether a way back follows.
    pub(in crate::cuda::network) fn plan_forward<T: Element>(
        &self,
        shared: &Shared<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let (blas, fp8) = (&shared.blas, shared.fp8());
        let product = |(number, place): (usize, &Place)| {
            let [x, weights, _] = self.tensors(fp8, number, samples);
            let bias = shared.dense.parameters.pointer().element(place.layer.bias().start);
            match self.layers.get(number + 1) {
                Some(next) => {
                    let [outputs, ..] = self.tensors(fp8, number + 1, samples);
                    let out = Fp8Outputs { outputs, bits: next.bits.pointer() };
                    Product::fp8_relu(blas, x, weights, bias, out, learns)
                }
                None => {
                    let out = first_rows(self.output().values, samples);
                    Product::fp8_to_bf16(blas, x.straight(), weights.straight(), Some(bias), out)
                }
            }
        };
        let products = self.layers.iter().enumerate().map(product).collect::<Result<_, _>>()?;
        let quantize = self.input.map(|input| {
            let values = first_rows(input.values, samples);
            self.layers[0].input.quantize(fp8, values, learns)
        });
        Ok(Forward(quantize, products))
    }

    /// `entrance` is where the gradients by the first layer's input go where that is in fp8.
    pub(in crate::cuda::network) fn plan_backward<T: Element>(
        &self,
        shared: &Shared<T>,
        entrance: Option<Entrance>,
    ) -> Result<Backward> {
        let (blas, samples, sums) = (&shared.blas, shared.samples, shared.dense.gradients.pointer());
        let fp8 = shared.fp8();
        let by_input = |number: usize, place: &Place, dy: Fp8Tensor, weights: Fp8Tensor| -> Result<_> {
            let factors = (dy.straight(), weights.across());
            match (number.checked_sub(1), self.input, entrance) {
                // The gradients by the input are those by the output of the layer before, and by its bias.
                (Some(before), ..) => {
                    let [.., out] = self.tensors(fp8, before, samples);
                    let bias = sums.element(self.layers[before].layer.bias().start);
                    Ok(Product::fp8_relu_gradient(blas, dy, weights, place.bits.pointer(), out, bias)?)
                }
                (None, Some(input), _) => {
                    Ok(Product::fp8_to_bf16(blas, factors.0, factors.1, None, input.gradients)?)
                }
                (None, None, Some(entrance)) => entrance.product(shared, factors, None),
                (None, None, None) => unreachable!("layers in fp8 give their results with an entrance"),
            }
        };
        let products = |(number, place): (usize, &Place)| -> Result<_> {
            let [x, weights, dy] = self.tensors(fp8, number, samples);
            let Layer { inputs, outputs, offset, .. } = place.layer;
            let gradients = dense(sums.element(offset), outputs, inputs);
            let by_weights = Product::fp8_by_weights(&shared.beside, dy, x, gradients)?;
            Ok((by_weights, by_input(number, place, dy, weights)?))
        };
        let products = self.layers.iter().enumerate().map(products).collect::<Result<_>>()?;
        let last = &self.layers[self.layers.len() - 1];
        Ok(Backward(last.gradients.quantize(fp8, self.output().gradients, true), products))
    }

    /// Enqueues the pass from input to output.
    ///
    /// # Safety
    /// The plan must be of this and of as many samples as lie ready; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn forward<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Forward(quantize, products): &Forward,
    ) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe {
            quantize.iter().try_for_each(|quantize| lane.launch(quantize, quantize.grid()))?;
            products.iter().try_for_each(|product| product.enqueue(&shared.blas, lane))?;
        }
        Ok(())
    }

    /// Enqueues the pass from the gradients by the output, which have come through its ReLU, to those by all inputs.
    ///
    /// # Safety
    /// As for [`Fp8Mlp::forward`].
    pub(in crate::cuda::network) unsafe fn backward<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        Backward(quantize, products): &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            lane.launch(quantize, quantize.grid())?;
            for (_, by_input) in products.iter().rev() {
                by_input.enqueue_product(&shared.blas, lane)?;
            }
        }
        Ok(())
    }

    /// Enqueues the gradients by weights.
    ///
    /// # Safety
    /// [`Fp8Mlp::backward`] must come before; nobody else may use the second workspace meanwhile. See [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn weights<T: Element>(
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
    pub(in crate::cuda::network) unsafe fn sums<T: Element>(
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
            products.iter().try_for_each(|(_, by_input)| by_input.enqueue_sums(lane))?;
        }
        Ok(())
    }
}
