//! Cross layers in fp8: all activations passed between layers, including x0, are stored only in fp8.
//!
//! Forward and backward, cross layers are bound by memory, not by their products: they move five bytes per element and
//! layer, where bf16 moves eight.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{
    Fp8CrossGradientMatrices, Fp8CrossKept, Fp8CrossMatrices, Fp8Factors, Fp8Matrix, Fp8Tensor, Matrix,
    Product,
};
use rankine_cuda::kernels::{CROSS_LAYERS, Element, Fp8CrossFirst, Fp8Quantize, Fp8Vectors};
use rankine_cuda::{Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use crate::cuda::network::quantization::{
    ACTIVATIONS_AT_FIRST, Fp8Buffers, Fp8Builder, Fp8RowBuffer, GRADIENTS_AT_FIRST,
};
use crate::cuda::network::resources::{ActivationMatrices, Resources};

/// A model's cross layers, at least one.
#[derive(Debug)]
pub(in crate::cuda::network) struct Fp8Cross {
    /// The vectors.
    vectors: ActivationMatrices<bf16>,
    /// The column from which on look-ups write the vectors to `first`; if none, they write them in bf16.
    pooled_from: Option<usize>,
    /// x0: the vectors in fp8.
    first: Arc<Fp8Buffers>,
    layers: Vec<CrossLayer>,
}

/// A cross layer, and the activations that it keeps for the backward pass.
#[derive(Debug)]
struct CrossLayer {
    input: Arc<Fp8Buffers>,
    low_rank: Option<LowRank>,
    /// W or U.
    layer: Layer,
    weights: Fp8Buffers,
    /// `W x` or `U V x`.
    product: Fp8RowBuffer,
    output: Arc<Fp8Buffers>,
    /// With respect to the output and the product.
    gradients: Fp8RowBuffer,
    product_gradients: Fp8Buffers,
}

/// V, and `V x` with the gradients with respect to it.
#[derive(Debug)]
struct LowRank {
    layer: Layer,
    weights: Fp8Buffers,
    values: Fp8Buffers,
    gradients: Fp8Buffers,
}

/// The outputs of the product that computes the gradients with respect to a layer's result: these gradients, those
/// with respect to the layer's product, and the sums of those.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda::network) struct CrossGradientOutputs {
    pub(super) first: Fp8Matrix,
    pub(super) gradients: Fp8Matrix,
    pub(super) product: Fp8Tensor,
    pub(super) sums: Pointer<f32>,
}

/// The plan of a forward pass over some samples.
#[derive(Debug)]
pub(in crate::cuda::network) struct Forward {
    /// Where look-ups write vectors, if in fp8.
    vectors: Option<Fp8Vectors>,
    /// Rounds the other vectors, if there are any.
    quantize: Option<Fp8Quantize>,
    products: Vec<Product>,
}

/// The plan of a backward pass over a batch: for each layer in order the weight gradients, and the gradients with
/// respect to `V x` and to its input.
#[derive(Debug)]
pub(in crate::cuda::network) struct Backward {
    layers: Vec<[Vec<Product>; 2]>,
    first_gradients: Vec<Fp8CrossFirst>,
}

impl Forward {
    /// Returns where look-ups write the vectors of the features, if in fp8.
    pub(in crate::cuda::network) fn vectors(&self) -> Option<Fp8Vectors> {
        self.vectors
    }
}

impl Fp8Cross {
    /// Creates layers over some vectors, each W, or V and U; look-ups write vectors in fp8 from the column
    /// `pooled_from` on, if there is one.
    pub(in crate::cuda::network) fn new(
        builder: &mut Fp8Builder,
        layers: &[Vec<Layer>],
        vectors: ActivationMatrices<bf16>,
        pooled_from: Option<usize>,
    ) -> Result<Self> {
        let (rows, columns) = (builder.rows, vectors.values.columns);
        let first = Arc::new(builder.activations(columns)?);
        let mut input = Arc::clone(&first);
        let mut make = |layers: &Vec<Layer>| -> Result<_> {
            let (low_rank, layer) = match layers.as_slice() {
                &[v, u] => {
                    let low = LowRank {
                        layer: v,
                        weights: builder.weights(&v)?,
                        values: builder.activations(v.outputs)?,
                        gradients: builder.gradients(v.outputs)?,
                    };
                    (Some(low), u)
                }
                layers => (None, layers[0]),
            };
            let straight = |builder: &mut Fp8Builder, rows: usize, expected| {
                let scaling = builder.scaling(expected);
                Fp8RowBuffer::new(&builder.device, rows, columns, scaling)
            };
            let made = CrossLayer {
                input: Arc::clone(&input),
                low_rank,
                layer,
                weights: builder.weights(&layer)?,
                product: straight(builder, rows.values(), ACTIVATIONS_AT_FIRST)?,
                output: Arc::new(builder.activations(columns)?),
                gradients: straight(builder, rows.trained, GRADIENTS_AT_FIRST / rows.trained as f32)?,
                product_gradients: builder.gradients(columns)?,
            };
            input = Arc::clone(&made.output);
            Ok(made)
        };
        let layers = layers.iter().map(&mut make).collect::<Result<_>>()?;
        Ok(Self { vectors, pooled_from, layers, first })
    }

    /// Returns the last layer's result.
    pub(in crate::cuda::network) fn output(&self) -> Arc<Fp8Buffers> {
        Arc::clone(self.layers.last().map_or(&self.first, |last| &last.output))
    }

    /// `learns` is whether a backward pass follows.
    pub(in crate::cuda::network) fn plan_forward<T: Element>(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let (blas, fp8) = (&resources.blas, resources.fp8());
        let first = self.first.tensor(fp8, samples).straight();
        let mut products = Vec::new();
        for (number, cross) in self.layers.iter().enumerate() {
            let x = cross.input.tensor(fp8, samples).straight();
            let factor = match &cross.low_rank {
                None => x,
                Some(low) => {
                    let values = low.values.tensor(fp8, samples);
                    let weights = low.weights.weights(fp8).straight();
                    products.push(Product::fp8_plain(blas, x, weights, values, learns)?);
                    values.straight()
                }
            };
            let bias = resources.dense.parameters.pointer().element(cross.layer.bias().start);
            let weights = cross.weights.weights(fp8).straight();
            let matrices = Fp8CrossMatrices {
                factors: Fp8Factors { samples: factor, weights },
                bias,
                first,
                // The first layer's input is x0.
                input: (number > 0).then_some(x),
                product: cross.product.matrix(fp8, samples),
                out: cross.output.tensor(fp8, samples),
            };
            products.push(Product::fp8_cross(blas, matrices, learns)?);
        }
        let values = self.vectors.values.first_rows(samples);
        let rounded = Matrix { columns: self.pooled_from.unwrap_or(values.columns), ..values };
        Ok(Forward {
            vectors: self.pooled_from.map(|_| self.first.vectors(fp8, learns)),
            quantize: (rounded.columns > 0).then(|| self.first.quantize(fp8, rounded, learns)),
            products,
        })
    }

    /// Returns the outputs of the product that computes the gradients with respect to the last layer's result.
    pub(in crate::cuda::network) fn gradient_outputs<T: Element>(
        &self,
        resources: &Resources<T>,
    ) -> CrossGradientOutputs {
        self.gradient(resources, self.layers.last().expect("there is a layer"))
    }

    /// Returns the outputs of the product that computes the gradients with respect to a layer's result.
    fn gradient<T: Element>(&self, resources: &Resources<T>, layer: &CrossLayer) -> CrossGradientOutputs {
        let (fp8, samples) = (resources.fp8(), resources.samples);
        CrossGradientOutputs {
            first: self.first.tensor(fp8, samples).straight(),
            gradients: layer.gradients.matrix(fp8, samples),
            product: layer.product_gradients.tensor(fp8, samples),
            sums: resources.dense.gradients.pointer().element(layer.layer.bias().start),
        }
    }

    pub(in crate::cuda::network) fn plan_backward<T: Element>(
        &self,
        resources: &Resources<T>,
    ) -> Result<Backward> {
        let (blas, fp8, samples) = (&resources.blas, resources.fp8(), resources.samples);
        let d_weights = |layer: &Layer, dy: Fp8Tensor, x: Fp8Tensor| {
            let gradients = resources.dense.gradients.pointer().element(layer.offset);
            Product::fp8_by_weights(
                &resources.weights_blas,
                dy,
                x,
                Matrix::contiguous(gradients, layer.outputs, layer.inputs),
            )
        };
        let mut before: Option<&CrossLayer> = None;
        let mut layers = Vec::new();
        for cross in &self.layers {
            let x = cross.input.tensor(fp8, samples);
            let dy = cross.product_gradients.tensor(fp8, samples);
            let mut weights = Vec::new();
            let mut inputs = Vec::new();
            let (factor, of_input) = match &cross.low_rank {
                None => {
                    weights.push(d_weights(&cross.layer, dy, x)?);
                    (dy, &cross.weights)
                }
                Some(low) => {
                    let (values, gradients) =
                        (low.values.tensor(fp8, samples), low.gradients.tensor(fp8, samples));
                    weights.push(d_weights(&cross.layer, dy, values)?);
                    weights.push(d_weights(&low.layer, gradients, x)?);
                    let u = cross.weights.weights(fp8).across();
                    inputs.push(Product::fp8_plain(blas, dy.straight(), u, gradients, true)?);
                    (gradients, &low.weights)
                }
            };
            let factors = Fp8Factors { samples: factor.straight(), weights: of_input.weights(fp8).across() };
            inputs.push(match before {
                None => {
                    let first = &self.layers[..self.layers.len().min(CROSS_LAYERS)];
                    let kept: Vec<_> = first.iter().map(|layer| layer.kept(resources)).collect();
                    let (out, guard) = (self.vectors.gradients, resources.guard.pointer());
                    Product::fp8_by_first(blas, factors, &kept, out, guard)?
                }
                Some(before) => {
                    let added = cross.gradients.matrix(fp8, samples);
                    self.gradient(resources, before).product(resources, factors, Some(added))?
                }
            });
            before = Some(cross);
            layers.push([weights, inputs]);
        }
        let others = self.layers.chunks(CROSS_LAYERS).skip(1);
        Ok(Backward {
            layers,
            first_gradients: others.map(|layers| self.first_gradients(resources, layers)).collect(),
        })
    }

    /// Enqueues the forward pass from the vectors to the last layer's result.
    ///
    /// # Safety
    /// The plan must be of these layers, and for as many samples as there are; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn forward<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        Forward { quantize, products, .. }: &Forward,
    ) -> Result<()> {
        // SAFETY: the matrices are this value's, or those that it was made for; the caller vouches for the order.
        unsafe {
            quantize.iter().try_for_each(|quantize| lane.launch(quantize, quantize.grid()))?;
            products.iter().try_for_each(|product| product.enqueue(&resources.blas, lane))?;
        }
        Ok(())
    }

    /// Enqueues the backward pass from the gradients with respect to the last product to those with respect to the
    /// vectors.
    ///
    /// # Safety
    /// As for [`Fp8Cross::forward`].
    pub(in crate::cuda::network) unsafe fn backward<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            for product in plan.layers.iter().rev().flat_map(|[_, d_input]| d_input) {
                product.enqueue_product(&resources.blas, lane)?;
            }
            plan.first_gradients.iter().try_for_each(|first| lane.launch(first, first.grid()))?;
        }
        Ok(())
    }

    /// Enqueues all weight gradients.
    ///
    /// # Safety
    /// [`Fp8Cross::backward`] must come before; nothing else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn weights<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        let mut products = plan.layers.iter().rev().flat_map(|[d_weights, _]| d_weights);
        // SAFETY: as for `forward`.
        unsafe { products.try_for_each(|product| product.enqueue(&resources.weights_blas, lane)) }?;
        Ok(())
    }

    /// Enqueues all bias gradients except the last layer's, which the first product of the backward pass computes.
    ///
    /// # Safety
    /// [`Fp8Cross::backward`] must come before; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        let mut products = plan.layers.iter().flat_map(|[_, d_input]| d_input);
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe { products.try_for_each(|product| product.enqueue_sums(lane)) }?;
        Ok(())
    }

    /// Returns the kernel that adds to the gradients with respect to the vectors the shares of layers that exceed
    /// those which the last product handles.
    fn first_gradients<T: Element>(&self, resources: &Resources<T>, layers: &[CrossLayer]) -> Fp8CrossFirst {
        let gradients = self.vectors.gradients;
        let mut first = Fp8CrossFirst {
            products: [Pointer::NULL; CROSS_LAYERS],
            gradients: [Pointer::NULL; CROSS_LAYERS],
            products_scalings: [Pointer::NULL; CROSS_LAYERS],
            gradients_scalings: [Pointer::NULL; CROSS_LAYERS],
            biases: [Pointer::NULL; CROSS_LAYERS],
            first_gradients: gradients.pointer,
            guard: resources.guard.pointer(),
            layers: layers.len() as u32,
            samples: resources.samples_count(),
            columns: gradients.columns as u32,
            first_stride: gradients.stride as u32,
            through: 0,
            reserved: 0,
        };
        for (number, layer) in layers.iter().enumerate() {
            let kept = layer.kept(resources);
            first.products[number] = kept.product.numbers.pointer;
            first.gradients[number] = kept.gradients.numbers.pointer;
            first.products_scalings[number] = kept.product.scaling;
            first.gradients_scalings[number] = kept.gradients.scaling;
            first.biases[number] = kept.bias;
        }
        first
    }
}

impl CrossLayer {
    /// Returns what the gradients with respect to x0 follow from.
    fn kept<T: Element>(&self, resources: &Resources<T>) -> Fp8CrossKept {
        Fp8CrossKept {
            product: self.product.matrix(resources.fp8(), resources.samples),
            gradients: self.gradients.matrix(resources.fp8(), resources.samples),
            bias: resources.dense.parameters.pointer().element(self.layer.bias().start),
        }
    }
}

impl CrossGradientOutputs {
    /// Plans the product that computes the gradients, with the matrix to be added.
    pub(super) fn product<T: Element>(
        self,
        resources: &Resources<T>,
        factors: Fp8Factors,
        added: Option<Fp8Matrix>,
    ) -> Result<Product> {
        let Self { first, gradients, product, sums } = self;
        let matrices = Fp8CrossGradientMatrices { factors, first, added, out: gradients, product };
        Ok(Product::fp8_cross_gradient(&resources.blas, matrices, sums)?)
    }
}
