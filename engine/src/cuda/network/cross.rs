//! Cross layers: `x' = x0 * (W x + b) + x`, or with `W = U V`, products element by element.

use std::sync::Arc;

use rankine_cuda::blas::{Epilogue, Matrix, Product};
use rankine_cuda::kernels::{CrossBack, Element, Total};
use rankine_cuda::{Buffer, Device, Lane};
use rankine_embedding::cuda::Result;

use super::shared::{Activations, Both, Shared, dense, first_rows};
use crate::model::Layer;

/// A model's cross layers.
#[derive(Debug)]
pub(super) struct CrossNetwork<T> {
    /// x0, which are the vectors.
    first: Both<T>,
    layers: Vec<CrossLayer<T>>,
    /// By the result of the layer whose turn it is.
    gradients: Buffer<T>,
    /// By its product.
    product_gradients: Buffer<T>,
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
}

/// The products of a pass forward over some samples, of each layer in their order.
#[derive(Debug)]
pub(super) struct Forward(Vec<Vec<Product>>);

/// The products of a pass back over a batch, of each layer in their order.
#[derive(Debug)]
pub(super) struct Backward(Vec<Vec<Product>>);

impl<T: Element> CrossNetwork<T> {
    pub(super) fn new(device: &Arc<Device>, layers: &[Vec<Layer>], first: Both<T>) -> Result<Self> {
        let Matrix { rows: samples, columns, .. } = first.values;
        let buffer = || Buffer::filled(device, samples * columns, 0);
        let mut input = first.values;
        let make = |layers: &Vec<Layer>| -> Result<_> {
            let (low_rank, layer) = match layers.as_slice() {
                &[v, u] => (Some((v, Activations::new(device, samples, v.outputs)?)), u),
                layers => (None, layers[0]),
            };
            let made = CrossLayer { input, low_rank, layer, product: buffer()?, output: buffer()? };
            input = dense(made.output.pointer(), samples, columns);
            Ok(made)
        };
        Ok(Self {
            first,
            layers: layers.iter().map(make).collect::<Result<_>>()?,
            gradients: buffer()?,
            product_gradients: buffer()?,
        })
    }

    fn matrix(&self, buffer: &Buffer<T>) -> Matrix<T> {
        dense(buffer.pointer(), self.first.values.rows, self.first.values.columns)
    }

    /// The last layer's result.
    pub(super) fn output(&self) -> Both<T> {
        let last = self.layers.last().expect("a cross network has a layer");
        Both { values: self.matrix(&last.output), gradients: self.matrix(&self.gradients) }
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

    pub(super) fn plan_backward(&self, shared: &Shared<T>) -> Result<Backward> {
        let (blas, compute, parameters) = (&shared.blas, shared.compute, &shared.dense);
        let by_weights = |layer: &Layer, dy: Matrix<T>, x: Matrix<T>| {
            let gradients = parameters.gradients.pointer().element(layer.offset);
            let gradients = dense(gradients, layer.outputs, layer.inputs);
            Product::of_transposed(blas, compute, dy, x, gradients, Epilogue::None)
        };
        let by_input = |layer: &Layer, dy: Matrix<T>, dx: Matrix<T>, epilogue| {
            let weights = dense(parameters.weights().element(layer.offset), layer.outputs, layer.inputs);
            Product::straight(blas, compute, dy, weights, dx, epilogue)
        };
        let products = |(number, cross): (usize, &CrossLayer<T>)| {
            let dy = self.matrix(&self.product_gradients);
            // What does not come through the product is there already.
            let dx = if number == 0 { self.first.gradients } else { self.matrix(&self.gradients) };
            match &cross.low_rank {
                None => Ok(vec![
                    by_weights(&cross.layer, dy, cross.input)?,
                    by_input(&cross.layer, dy, dx, Epilogue::Add)?,
                ]),
                Some((v, low)) => {
                    let low = low.both();
                    Ok(vec![
                        by_weights(&cross.layer, dy, low.values)?,
                        by_input(&cross.layer, dy, low.gradients, Epilogue::None)?,
                        by_weights(v, low.gradients, cross.input)?,
                        by_input(v, low.gradients, dx, Epilogue::Add)?,
                    ])
                }
            }
        };
        Ok(Backward(self.layers.iter().enumerate().map(products).collect::<Result<_>>()?))
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

    /// Enqueues the pass from the gradients by the last result to those by all weights and by the vectors.
    ///
    /// # Safety
    /// As for [`CrossNetwork::forward`].
    pub(super) unsafe fn backward(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        let Matrix { columns, stride, .. } = self.first.values;
        for (number, (layer, products)) in self.layers.iter().zip(&plan.0).enumerate().rev() {
            let bias = layer.layer.bias().start;
            let back = CrossBack {
                first: self.first.values.pointer,
                product: layer.product.pointer(),
                bias: shared.dense.parameters.pointer().element(bias),
                gradients: self.gradients.pointer(),
                product_gradients: self.product_gradients.pointer(),
                first_gradients: self.first.gradients.pointer,
                parts: shared.parts.pointer(),
                samples: shared.samples_count(),
                columns: columns as u32,
                first_stride: stride as u32,
                add: u32::from(number + 1 < self.layers.len()),
                through: u32::from(number == 0),
                reserved: 0,
            };
            let total = Total {
                parts: back.parts,
                sums: shared.dense.gradients.pointer().element(bias),
                pieces: CrossBack::<T>::pieces(back.samples),
                columns: back.columns,
            };
            // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns.
            unsafe {
                lane.launch(&back, back.grid())?;
                lane.launch(&total, total.grid())?;
                products.iter().try_for_each(|product| product.enqueue(&shared.blas, lane))?;
            }
        }
        Ok(())
    }

    /// Parts that sums over a batch are taken in.
    pub(super) fn parts(layers: &[Vec<Layer>], samples: usize) -> usize {
        let widest = layers.iter().flatten().map(|layer| layer.outputs).max().unwrap_or(0);
        CrossBack::<T>::pieces(samples as u32) as usize * widest
    }
}
