//! Cross layers: `x' = x0 * (W x + b) + x`, or with `W = U V`, products element by element.

use std::sync::Arc;

use rankine_cuda::blas::{Epilogue, Matrix, Product};
use rankine_cuda::kernels::{CROSS_LAYERS, CrossFirst, CrossGradient, Element};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use super::resources::{ActivationMatrices, Activations, PartialSums, Resources};
use super::rows::NetworkRows;

/// A model's cross layers.
#[derive(Debug)]
pub(super) struct CrossNetwork<T> {
    /// The input x0: the vectors.
    first: ActivationMatrices<T>,
    layers: Vec<CrossLayer<T>>,
    /// Partial sums of the last layer's bias gradients, if no product computes the gradients with respect to its
    /// result.
    bias_sums: Option<PartialSums>,
}

/// A cross layer, and the activations that it keeps for the backward pass.
#[derive(Debug)]
struct CrossLayer<T> {
    input: Matrix<T>,
    /// With low rank: V, and `V x`.
    low_rank: Option<(Layer, Activations<T>)>,
    /// W or U.
    layer: Layer,
    /// `W x` or `U V x`.
    product: Buffer<T>,
    output: Buffer<T>,
    /// With respect to the output and the product. Those of all layers are kept until the gradients with respect to x0
    /// and the weights are computed.
    gradients: Buffer<T>,
    product_gradients: Buffer<T>,
}

/// The products of a forward pass over some samples, for each layer in order.
#[derive(Debug)]
pub(super) struct Forward(Vec<Vec<Product>>);

/// The products of a backward pass over a batch, for each layer in order.
#[derive(Debug)]
pub(super) struct Backward(Vec<LayerBackward>);

/// The products of a layer: its weight gradients, and in the order in which they depend on each other the gradients
/// with respect to `V x` and to its input.
#[derive(Debug)]
struct LayerBackward {
    d_weights: Vec<Product>,
    d_input: Vec<Product>,
}

impl<T: Element> CrossNetwork<T> {
    /// Creates layers over some vectors. `fused` is whether a product with the epilogue
    /// [`CrossNetwork::input_epilogue`] computes the gradients with respect to the last layer's result.
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        layers: &[Vec<Layer>],
        first: ActivationMatrices<T>,
        fused: bool,
    ) -> Result<Self> {
        let columns = first.values.columns;
        let buffer = |rows: usize| Buffer::filled(device, rows * columns, 0);
        let pieces = CrossGradient::<T>::pieces(rows.trained as u32);
        let mut input = first.values;
        let make = |layers: &Vec<Layer>| -> Result<_> {
            let (low_rank, layer) = match layers.as_slice() {
                &[v, u] => (Some((v, Activations::new(device, rows, v.outputs)?)), u),
                layers => (None, layers[0]),
            };
            let (product, output) = (buffer(rows.values())?, buffer(rows.values())?);
            let (gradients, product_gradients) = (buffer(rows.trained)?, buffer(rows.trained)?);
            let made = CrossLayer { input, low_rank, layer, product, output, gradients, product_gradients };
            input = Matrix::contiguous(made.output.pointer(), rows.trained, columns);
            Ok(made)
        };
        Ok(Self {
            first,
            layers: layers.iter().map(make).collect::<Result<_>>()?,
            bias_sums: (!fused).then(|| PartialSums::new(device, pieces, columns)).transpose()?,
        })
    }

    fn matrix(&self, buffer: &Buffer<T>) -> Matrix<T> {
        Matrix::contiguous(buffer.pointer(), self.first.values.rows, self.first.values.columns)
    }

    /// Returns the last layer's result.
    pub(super) fn output(&self) -> ActivationMatrices<T> {
        let last = self.layers.last().expect("a cross network has a layer");
        ActivationMatrices { values: self.matrix(&last.output), gradients: self.matrix(&last.gradients) }
    }

    /// `learns` is whether a backward pass follows.
    pub(super) fn plan_forward(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let rows = |matrix: Matrix<T>| matrix.first_rows(samples);
        let product = |layer: &Layer, x: Matrix<T>, out: Matrix<T>, epilogue| {
            let weights = Matrix::contiguous(
                resources.dense.weights().element(layer.offset),
                layer.outputs,
                layer.inputs,
            );
            resources.forward_product([rows(x), weights], rows(out), epilogue, learns)
        };
        let products = |cross: &CrossLayer<T>| {
            let epilogue = Epilogue::Cross {
                first: rows(self.first.values),
                input: rows(cross.input),
                bias: resources.dense.parameters.pointer().element(cross.layer.bias().start),
                product: rows(self.matrix(&cross.product)),
            };
            let out = self.matrix(&cross.output);
            match &cross.low_rank {
                None => Ok(vec![product(&cross.layer, cross.input, out, epilogue)?]),
                Some((v, low)) => {
                    let low = low.matrices().values;
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

    /// Returns the epilogue of the product that computes the gradients with respect to the last layer's result.
    pub(super) fn input_epilogue(&self, resources: &Resources<T>) -> Epilogue<T> {
        self.layers.last().map_or(Epilogue::None, |last| self.gradient(resources, last, None))
    }

    /// Returns the epilogue of the product that computes the gradients with respect to a layer's result, including
    /// those that bypass the layer after it.
    fn gradient(
        &self,
        resources: &Resources<T>,
        layer: &CrossLayer<T>,
        added: Option<Matrix<T>>,
    ) -> Epilogue<T> {
        Epilogue::CrossGradient {
            added,
            first: self.first.values,
            product: self.matrix(&layer.product_gradients),
            sums: resources.dense.gradients.pointer().element(layer.layer.bias().start),
        }
    }

    pub(super) fn plan_backward(&self, resources: &Resources<T>) -> Result<Backward> {
        let Resources { blas, weights_blas, compute, dense: parameters, .. } = resources;
        let d_weights = |layer: &Layer, dy: Matrix<T>, x: Matrix<T>| {
            let gradients = parameters.gradients.pointer().element(layer.offset);
            let gradients = Matrix::contiguous(gradients, layer.outputs, layer.inputs);
            Product::of_transposed(weights_blas, *compute, dy, x, gradients, Epilogue::None)
        };
        let d_input = |layer: &Layer, dy: Matrix<T>, dx: Matrix<T>, epilogue| {
            let weights =
                Matrix::contiguous(parameters.weights().element(layer.offset), layer.outputs, layer.inputs);
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
                    (self.matrix(&before.gradients), self.gradient(resources, before, Some(added)))
                }
            };
            before = Some(cross);
            plan.push(match low_rank {
                None => LayerBackward {
                    d_weights: vec![d_weights(layer, dy, *input)?],
                    d_input: vec![d_input(layer, dy, dx, epilogue)?],
                },
                Some((v, low)) => {
                    let low = low.matrices();
                    LayerBackward {
                        d_weights: vec![
                            d_weights(layer, dy, low.values)?,
                            d_weights(v, low.gradients, *input)?,
                        ],
                        d_input: vec![
                            d_input(layer, dy, low.gradients, Epilogue::None)?,
                            d_input(v, low.gradients, dx, epilogue)?,
                        ],
                    }
                }
            });
        }
        Ok(Backward(plan))
    }

    /// Enqueues the forward pass from the vectors to the last layer's result.
    ///
    /// # Safety
    /// The plan must be of this network, and for as many samples as there are; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, resources: &Resources<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe { plan.0.iter().flatten().try_for_each(|product| product.enqueue(&resources.blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the backward pass from the gradients with respect to the last result to those with respect to the
    /// vectors.
    ///
    /// # Safety
    /// As for [`CrossNetwork::forward`].
    pub(super) unsafe fn backward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            if let Some(parts) = &self.bias_sums {
                self.start_backward(lane, resources, parts)?;
            }
            for product in plan.0.iter().rev().flat_map(|layer| &layer.d_input) {
                product.enqueue_product(&resources.blas, lane)?;
            }
            for (number, layers) in self.layers.chunks(CROSS_LAYERS).enumerate() {
                let first = self.first_gradients(resources, layers, number == 0);
                lane.launch(&first, first.grid())?;
            }
        }
        Ok(())
    }

    /// Enqueues all weight gradients.
    ///
    /// # Safety
    /// [`CrossNetwork::backward`] must come before; nothing else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(super) unsafe fn weights(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        let mut products = plan.0.iter().rev().flat_map(|layer| &layer.d_weights);
        // SAFETY: as for `forward`.
        unsafe { products.try_for_each(|product| product.enqueue(&resources.weights_blas, lane)) }?;
        Ok(())
    }

    /// Enqueues all bias gradients, except those that the first product of the backward pass computes.
    ///
    /// # Safety
    /// [`CrossNetwork::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, resources: &Resources<T>, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe {
            if let (Some(parts), Some(last)) = (&self.bias_sums, self.layers.last()) {
                parts.add_up(lane, resources.dense.gradients.pointer().element(last.layer.bias().start))?;
            }
            let mut products = plan.0.iter().flat_map(|layer| &layer.d_input);
            products.try_for_each(|product| product.enqueue_sums(lane))?;
        }
        Ok(())
    }

    /// Enqueues the gradients with respect to the last layer's product, from those with respect to its result.
    unsafe fn start_backward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        parts: &PartialSums,
    ) -> Result<()> {
        let Some(last) = self.layers.last() else { return Ok(()) };
        let gradient = CrossGradient {
            first: self.first.values.pointer,
            added: Pointer::NULL,
            gradients: last.gradients.pointer(),
            product_gradients: last.product_gradients.pointer(),
            parts: parts.pointer(),
            samples: resources.samples_count(),
            columns: self.first.values.columns as u32,
            first_stride: self.first.values.stride as u32,
            reserved: 0,
        };
        // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns.
        unsafe { lane.launch(&gradient, gradient.grid()) }?;
        Ok(())
    }

    /// Returns the kernel that adds the shares of some layers to the gradients with respect to the vectors; `through`
    /// if they are the first layers.
    fn first_gradients(
        &self,
        resources: &Resources<T>,
        layers: &[CrossLayer<T>],
        through: bool,
    ) -> CrossFirst<T> {
        let Matrix { pointer, columns, stride, .. } = self.first.gradients;
        let mut first = CrossFirst {
            products: [Pointer::NULL; CROSS_LAYERS],
            gradients: [Pointer::NULL; CROSS_LAYERS],
            biases: [Pointer::NULL; CROSS_LAYERS],
            first_gradients: pointer,
            guard: resources.guard.pointer(),
            layers: layers.len() as u32,
            samples: resources.samples_count(),
            columns: columns as u32,
            first_stride: stride as u32,
            through: u32::from(through),
            reserved: 0,
        };
        for (number, layer) in layers.iter().enumerate() {
            first.products[number] = layer.product.pointer();
            first.gradients[number] = layer.gradients.pointer();
            first.biases[number] = resources.dense.parameters.pointer().element(layer.layer.bias().start);
        }
        first
    }
}
