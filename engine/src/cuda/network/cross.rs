//! Cross layers: `x' = x0 * (W x + b) + x`, or with `W = U V`, products element by element.

use std::sync::Arc;

use rankine_cuda::blas::{Epilogue, Matrix, Product};
use rankine_cuda::kernels::{CROSS_LAYERS, CrossFirst, CrossGradient, Element};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::shared::{Activations, Both, Parts, Shared, dense, first_rows};
use crate::model::Layer;

/// A model's cross layers.
#[derive(Debug)]
pub(super) struct CrossNetwork<T> {
    /// x0, which are the vectors.
    first: Both<T>,
    layers: Vec<CrossLayer<T>>,
    /// Where no product gives the gradients by the last layer's result: of those by its bias.
    begin: Option<Parts>,
}

/// A cross layer, and what it keeps for the way back.
#[derive(Debug)]
struct CrossLayer<T> {
    input: Matrix<T>,
    /// Of low rank: V, and `V x`.
    low_rank: Option<(Layer, Activations<T>)>,
    /// W or U.
    layer: Layer,
    /// `W x` or `U V x`.
    product: Buffer<T>,
    output: Buffer<T>,
    /// By the output, and by the product. All layers' are kept until those by x0 and by weights are computed.
    gradients: Buffer<T>,
    product_gradients: Buffer<T>,
}

/// The products of a pass forward over some samples, of each layer in their order.
#[derive(Debug)]
pub(super) struct Forward(Vec<Vec<Product>>);

/// The products of a pass back over a batch, of each layer in their order.
#[derive(Debug)]
pub(super) struct Backward(Vec<LayerBackward>);

/// Those of a layer: the gradients by its weights, and in the order in which they follow each other those by `V x` and
/// by its input.
#[derive(Debug)]
struct LayerBackward {
    by_weights: Vec<Product>,
    by_input: Vec<Product>,
}

impl<T: Element> CrossNetwork<T> {
    /// Layers over some vectors; `begun` where a product gives the gradients by the last one's result, and does what
    /// [`CrossNetwork::entrance`] says.
    pub(super) fn new(
        device: &Arc<Device>,
        layers: &[Vec<Layer>],
        first: Both<T>,
        begun: bool,
    ) -> Result<Self> {
        let Matrix { rows: samples, columns, .. } = first.values;
        let buffer = || Buffer::filled(device, samples * columns, 0);
        let pieces = CrossGradient::<T>::pieces(samples as u32);
        let mut input = first.values;
        let make = |layers: &Vec<Layer>| -> Result<_> {
            let (low_rank, layer) = match layers.as_slice() {
                &[v, u] => (Some((v, Activations::new(device, samples, v.outputs)?)), u),
                layers => (None, layers[0]),
            };
            let (product, output) = (buffer()?, buffer()?);
            let (gradients, product_gradients) = (buffer()?, buffer()?);
            let made = CrossLayer { input, low_rank, layer, product, output, gradients, product_gradients };
            input = dense(made.output.pointer(), samples, columns);
            Ok(made)
        };
        Ok(Self {
            first,
            layers: layers.iter().map(make).collect::<Result<_>>()?,
            begin: (!begun).then(|| Parts::new(device, pieces, columns)).transpose()?,
        })
    }

    fn matrix(&self, buffer: &Buffer<T>) -> Matrix<T> {
        dense(buffer.pointer(), self.first.values.rows, self.first.values.columns)
    }

    /// The last layer's result.
    pub(super) fn output(&self) -> Both<T> {
        let last = self.layers.last().expect("a cross network has a layer");
        Both { values: self.matrix(&last.output), gradients: self.matrix(&last.gradients) }
    }

    pub(super) fn plan_forward(&self, shared: &Shared<T>, samples: usize) -> Result<Forward> {
        let rows = |matrix| first_rows(matrix, samples);
        let product = |layer: &Layer, x: Matrix<T>, out: Matrix<T>, epilogue| {
            let weights = dense(shared.dense.weights().element(layer.offset), layer.outputs, layer.inputs);
            Product::by_transposed(&shared.blas, shared.compute, rows(x), weights, rows(out), epilogue)
        };
        let products = |cross: &CrossLayer<T>| {
            let epilogue = Epilogue::Cross {
                first: rows(self.first.values),
                input: rows(cross.input),
                bias: shared.dense.parameters.pointer().element(cross.layer.bias().start),
                product: rows(self.matrix(&cross.product)),
            };
            let out = self.matrix(&cross.output);
            match &cross.low_rank {
                None => Ok(vec![product(&cross.layer, cross.input, out, epilogue)?]),
                Some((v, low)) => {
                    let low = low.both().values;
                    let products = [
                        product(v, cross.input, low, Epilogue::None)?,
                        product(&cross.layer, low, out, epilogue)?,
                    ];
                    Ok(products.into())
                }
            }
        };
        Ok(Forward(self.layers.iter().map(products).collect::<Result<_>>()?))
    }

    /// What the product does that gives the gradients by the last layer's result.
    pub(super) fn entrance(&self, shared: &Shared<T>) -> Epilogue<T> {
        self.layers.last().map_or(Epilogue::None, |last| self.gradient(shared, last, None))
    }

    /// What the product does that gives the gradients by a layer's result, together with what comes past the layer
    /// behind it.
    fn gradient(&self, shared: &Shared<T>, layer: &CrossLayer<T>, added: Option<Matrix<T>>) -> Epilogue<T> {
        Epilogue::CrossGradient {
            added,
            first: self.first.values,
            product: self.matrix(&layer.product_gradients),
            sums: shared.dense.gradients.pointer().element(layer.layer.bias().start),
        }
    }

    pub(super) fn plan_backward(&self, shared: &Shared<T>) -> Result<Backward> {
        let Shared { blas, beside, compute, dense: parameters, .. } = shared;
        let by_weights = |layer: &Layer, dy: Matrix<T>, x: Matrix<T>| {
            let gradients = parameters.gradients.pointer().element(layer.offset);
            let gradients = dense(gradients, layer.outputs, layer.inputs);
            Product::of_transposed(beside, *compute, dy, x, gradients, Epilogue::None)
        };
        let by_input = |layer: &Layer, dy: Matrix<T>, dx: Matrix<T>, epilogue| {
            let weights = dense(parameters.weights().element(layer.offset), layer.outputs, layer.inputs);
            Product::straight(blas, *compute, dy, weights, dx, epilogue)
        };
        let mut before: Option<&CrossLayer<T>> = None;
        let mut plan = Vec::new();
        for cross in &self.layers {
            let CrossLayer { input, low_rank, layer, .. } = cross;
            let dy = self.matrix(&cross.product_gradients);
            let (dx, epilogue) = match before {
                None => (self.first.gradients, Epilogue::None),
                Some(before) => {
                    let added = self.matrix(&cross.gradients);
                    (self.matrix(&before.gradients), self.gradient(shared, before, Some(added)))
                }
            };
            before = Some(cross);
            plan.push(match low_rank {
                None => LayerBackward {
                    by_weights: vec![by_weights(layer, dy, *input)?],
                    by_input: vec![by_input(layer, dy, dx, epilogue)?],
                },
                Some((v, low)) => {
                    let low = low.both();
                    LayerBackward {
                        by_weights: vec![
                            by_weights(layer, dy, low.values)?,
                            by_weights(v, low.gradients, *input)?,
                        ],
                        by_input: vec![
                            by_input(layer, dy, low.gradients, Epilogue::None)?,
                            by_input(v, low.gradients, dx, epilogue)?,
                        ],
                    }
                }
            });
        }
        Ok(Backward(plan))
    }

    /// Enqueues the pass from the vectors to the last layer's result.
    ///
    /// # Safety
    /// The plan must be of this, and of as many samples as lie ready; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, shared: &Shared<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe { plan.0.iter().flatten().try_for_each(|product| product.enqueue(&shared.blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the pass from the gradients by the last result to those by the vectors.
    ///
    /// # Safety
    /// As for [`CrossNetwork::forward`].
    pub(super) unsafe fn backward(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            if let Some(parts) = &self.begin {
                self.begin(lane, shared, parts)?;
            }
            for product in plan.0.iter().rev().flat_map(|layer| &layer.by_input) {
                product.enqueue_product(&shared.blas, lane)?;
            }
            for (number, layers) in self.layers.chunks(CROSS_LAYERS).enumerate() {
                let first = self.by_first(shared, layers, number == 0);
                lane.launch(&first, first.grid())?;
            }
        }
        Ok(())
    }

    /// Enqueues the gradients by all weights.
    ///
    /// # Safety
    /// [`CrossNetwork::backward`] must come before; nobody else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(super) unsafe fn weights(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        let mut products = plan.0.iter().rev().flat_map(|layer| &layer.by_weights);
        // SAFETY: as for `forward`.
        unsafe { products.try_for_each(|product| product.enqueue(&shared.beside, lane)) }?;
        Ok(())
    }

    /// Enqueues the gradients by all biases, as far as the product that begins the way back does not have them.
    ///
    /// # Safety
    /// [`CrossNetwork::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe {
            if let (Some(parts), Some(last)) = (&self.begin, self.layers.last()) {
                parts.add_up(lane, shared.dense.gradients.pointer().element(last.layer.bias().start))?;
            }
            let mut products = plan.0.iter().flat_map(|layer| &layer.by_input);
            products.try_for_each(|product| product.enqueue_sums(lane))?;
        }
        Ok(())
    }

    /// Enqueues the last layer's gradients by its product, from those by its result.
    unsafe fn begin(&self, lane: &Lane, shared: &Shared<T>, parts: &Parts) -> Result<()> {
        let Some(last) = self.layers.last() else { return Ok(()) };
        let gradient = CrossGradient {
            first: self.first.values.pointer,
            added: Pointer::NULL,
            gradients: last.gradients.pointer(),
            product_gradients: last.product_gradients.pointer(),
            parts: parts.pointer(),
            samples: shared.samples_count(),
            columns: self.first.values.columns as u32,
            first_stride: self.first.values.stride as u32,
            reserved: 0,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns.
        unsafe { lane.launch(&gradient, gradient.grid()) }?;
        Ok(())
    }

    /// What some layers add to the gradients by the vectors; `through` where they are the first ones.
    fn by_first(&self, shared: &Shared<T>, layers: &[CrossLayer<T>], through: bool) -> CrossFirst<T> {
        let Matrix { pointer, columns, stride, .. } = self.first.gradients;
        let mut first = CrossFirst {
            products: [Pointer::NULL; CROSS_LAYERS],
            gradients: [Pointer::NULL; CROSS_LAYERS],
            biases: [Pointer::NULL; CROSS_LAYERS],
            first_gradients: pointer,
            guard: shared.guard.pointer(),
            layers: layers.len() as u32,
            samples: shared.samples_count(),
            columns: columns as u32,
            first_stride: stride as u32,
            through: u32::from(through),
            reserved: 0,
        };
        for (place, layer) in layers.iter().enumerate() {
            first.products[place] = layer.product.pointer();
            first.gradients[place] = layer.gradients.pointer();
            first.biases[place] = shared.dense.parameters.pointer().element(layer.layer.bias().start);
        }
        first
    }
}
