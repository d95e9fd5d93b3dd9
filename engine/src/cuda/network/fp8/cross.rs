//! Cross layers in fp8: what goes from layer to layer, x0 among it, is there in fp8 alone.
//!
//! By count of bytes cross layers take as long as memory does, forward and back, and not as their products: five bytes
//! an element of each layer where bf16 takes eight.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Fp8CrossKept, Fp8Matrix, Fp8Tensor, Product};
use rankine_cuda::kernels::{CROSS_LAYERS, Element, Fp8CrossFirst, Fp8Quantize};
use rankine_cuda::{Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::super::shared::{Both, Shared, dense, first_rows};
use super::{ACTIVATIONS_AT_FIRST, GRADIENTS_AT_FIRST, Making, Room, Straight};
use crate::model::Layer;

/// A model's cross layers, of which there is at least one.
#[derive(Debug)]
pub(in crate::cuda::network) struct Fp8Cross {
    /// The vectors.
    vectors: Both<bf16>,
    /// x0, which they are in fp8.
    first: Arc<Room>,
    layers: Vec<CrossLayer>,
}

/// A cross layer, and what it keeps for the way back.
#[derive(Debug)]
struct CrossLayer {
    input: Arc<Room>,
    low_rank: Option<LowRank>,
    /// W or U.
    layer: Layer,
    weights: Room,
    /// `W x` or `U V x`.
    product: Straight,
    output: Arc<Room>,
    /// By the output, and by the product.
    gradients: Straight,
    product_gradients: Room,
}

/// V, and `V x` with the gradients by it.
#[derive(Debug)]
struct LowRank {
    layer: Layer,
    weights: Room,
    values: Room,
    gradients: Room,
}

/// Where the product that gives the gradients by the last layer's result writes them, those by its product, and the
/// sums of those.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda::network) struct Entrance {
    pub(super) first: Fp8Matrix,
    pub(super) gradients: Fp8Matrix,
    pub(super) product: Fp8Tensor,
    pub(super) sums: Pointer<f32>,
}

/// What a pass forward over some samples has to do.
#[derive(Debug)]
pub(in crate::cuda::network) struct Forward(Fp8Quantize, Vec<Product>);

/// What a pass back over a batch has to do: of each layer in their order the gradients by its weights, and those by
/// `V x` and by its input.
#[derive(Debug)]
pub(in crate::cuda::network) struct Backward {
    layers: Vec<[Vec<Product>; 2]>,
    by_first: Vec<Fp8CrossFirst>,
}

impl Fp8Cross {
    /// Layers over some vectors, each W, or V and U.
    pub(in crate::cuda::network) fn new(
        making: &mut Making,
        layers: &[Vec<Layer>],
        vectors: Both<bf16>,
    ) -> Result<Self> {
        let (samples, columns) = (vectors.values.rows, vectors.values.columns);
        let first = Arc::new(making.activations(samples, columns)?);
        let mut input = Arc::clone(&first);
        let mut make = |layers: &Vec<Layer>| -> Result<_> {
            let (low_rank, layer) = match layers.as_slice() {
                &[v, u] => {
                    let low = LowRank {
                        layer: v,
                        weights: making.weights(&v)?,
                        values: making.activations(samples, v.outputs)?,
                        gradients: making.gradients(samples, v.outputs)?,
                    };
                    (Some(low), u)
                }
                layers => (None, layers[0]),
            };
            let straight = |making: &mut Making, expected| {
                let scaling = making.scaling(expected);
                Straight::new(&making.device, samples, columns, scaling)
            };
            let made = CrossLayer {
                input: Arc::clone(&input),
                low_rank,
                layer,
                weights: making.weights(&layer)?,
                product: straight(making, ACTIVATIONS_AT_FIRST)?,
                output: Arc::new(making.activations(samples, columns)?),
                gradients: straight(making, GRADIENTS_AT_FIRST / samples as f32)?,
                product_gradients: making.gradients(samples, columns)?,
            };
            input = Arc::clone(&made.output);
            Ok(made)
        };
        Ok(Self { vectors, layers: layers.iter().map(&mut make).collect::<Result<_>>()?, first })
    }

    /// The last layer's result.
    pub(in crate::cuda::network) fn output(&self) -> Arc<Room> {
        Arc::clone(self.layers.last().map_or(&self.first, |last| &last.output))
    }

    /// `learns` says whether a way back follows.
    pub(in crate::cuda::network) fn plan_forward<T: Element>(
        &self,
        shared: &Shared<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        let (blas, fp8) = (&shared.blas, shared.fp8());
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
            let bias = shared.dense.parameters.pointer().element(cross.layer.bias().start);
            let weights = cross.weights.weights(fp8).straight();
            // The first layer's input is x0.
            let inputs = (first, (number > 0).then_some(x));
            let outputs = (cross.product.matrix(fp8, samples), cross.output.tensor(fp8, samples));
            products.push(Product::fp8_cross(blas, (factor, weights, bias), inputs, outputs, learns)?);
        }
        let quantize = self.first.quantize(fp8, first_rows(self.vectors.values, samples), learns);
        Ok(Forward(quantize, products))
    }

    /// What the product does that gives the gradients by the last layer's result.
    pub(in crate::cuda::network) fn entrance<T: Element>(&self, shared: &Shared<T>) -> Entrance {
        self.gradient(shared, self.layers.last().expect("there is a layer"))
    }

    /// Where the gradients by a layer's result go, and what follows from them.
    fn gradient<T: Element>(&self, shared: &Shared<T>, layer: &CrossLayer) -> Entrance {
        let (fp8, samples) = (shared.fp8(), shared.samples);
        Entrance {
            first: self.first.tensor(fp8, samples).straight(),
            gradients: layer.gradients.matrix(fp8, samples),
            product: layer.product_gradients.tensor(fp8, samples),
            sums: shared.dense.gradients.pointer().element(layer.layer.bias().start),
        }
    }

    pub(in crate::cuda::network) fn plan_backward<T: Element>(&self, shared: &Shared<T>) -> Result<Backward> {
        let (blas, fp8, samples) = (&shared.blas, shared.fp8(), shared.samples);
        let by_weights = |layer: &Layer, dy: Fp8Tensor, x: Fp8Tensor| {
            let gradients = shared.dense.gradients.pointer().element(layer.offset);
            Product::fp8_by_weights(&shared.beside, dy, x, dense(gradients, layer.outputs, layer.inputs))
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
                    weights.push(by_weights(&cross.layer, dy, x)?);
                    (dy, &cross.weights)
                }
                Some(low) => {
                    let (values, gradients) =
                        (low.values.tensor(fp8, samples), low.gradients.tensor(fp8, samples));
                    weights.push(by_weights(&cross.layer, dy, values)?);
                    weights.push(by_weights(&low.layer, gradients, x)?);
                    let u = cross.weights.weights(fp8).across();
                    inputs.push(Product::fp8_plain(blas, dy.straight(), u, gradients, true)?);
                    (gradients, &low.weights)
                }
            };
            let factors = (factor.straight(), of_input.weights(fp8).across());
            inputs.push(match before {
                None => {
                    let first = &self.layers[..self.layers.len().min(CROSS_LAYERS)];
                    let kept: Vec<_> = first.iter().map(|layer| layer.kept(shared)).collect();
                    let (out, guard) = (self.vectors.gradients, shared.guard.pointer());
                    Product::fp8_by_first(blas, factors, &kept, out, guard)?
                }
                Some(before) => {
                    let added = cross.gradients.matrix(fp8, samples);
                    self.gradient(shared, before).product(shared, factors, Some(added))?
                }
            });
            before = Some(cross);
            layers.push([weights, inputs]);
        }
        let others = self.layers.chunks(CROSS_LAYERS).skip(1);
        Ok(Backward { layers, by_first: others.map(|layers| self.by_first(shared, layers)).collect() })
    }

    /// Enqueues the pass from the vectors to the last layer's result.
    ///
    /// # Safety
    /// The plan must be of this, and of as many samples as lie ready; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn forward<T: Element>(
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

    /// Enqueues the pass from the gradients by the last product to those by the vectors.
    ///
    /// # Safety
    /// As for [`Fp8Cross::forward`].
    pub(in crate::cuda::network) unsafe fn backward<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            for product in plan.layers.iter().rev().flat_map(|[_, by_input]| by_input) {
                product.enqueue_product(&shared.blas, lane)?;
            }
            plan.by_first.iter().try_for_each(|first| lane.launch(first, first.grid()))?;
        }
        Ok(())
    }

    /// Enqueues the gradients by all weights.
    ///
    /// # Safety
    /// [`Fp8Cross::backward`] must come before; nobody else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn weights<T: Element>(
        &self,
        lane: &Lane,
        shared: &Shared<T>,
        plan: &Backward,
    ) -> Result<()> {
        let mut products = plan.layers.iter().rev().flat_map(|[by_weights, _]| by_weights);
        // SAFETY: as for `forward`.
        unsafe { products.try_for_each(|product| product.enqueue(&shared.beside, lane)) }?;
        Ok(())
    }

    /// Enqueues the gradients by all biases but the last layer's, which the product has that begins the way back.
    ///
    /// # Safety
    /// [`Fp8Cross::backward`] must come before; see [`Lane::launch`].
    pub(in crate::cuda::network) unsafe fn sums(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        let mut products = plan.layers.iter().flat_map(|[_, by_input]| by_input);
        // SAFETY: as for `forward`; a bias has as many gradients as its layer has outputs.
        unsafe { products.try_for_each(|product| product.enqueue_sums(lane)) }?;
        Ok(())
    }

    /// What layers add to the gradients by the vectors that are beyond those which the last product takes.
    fn by_first<T: Element>(&self, shared: &Shared<T>, layers: &[CrossLayer]) -> Fp8CrossFirst {
        let gradients = self.vectors.gradients;
        let mut first = Fp8CrossFirst {
            products: [Pointer::NULL; CROSS_LAYERS],
            gradients: [Pointer::NULL; CROSS_LAYERS],
            products_scalings: [Pointer::NULL; CROSS_LAYERS],
            gradients_scalings: [Pointer::NULL; CROSS_LAYERS],
            biases: [Pointer::NULL; CROSS_LAYERS],
            first_gradients: gradients.pointer,
            guard: shared.guard.pointer(),
            layers: layers.len() as u32,
            samples: shared.samples_count(),
            columns: gradients.columns as u32,
            first_stride: gradients.stride as u32,
            through: 0,
            reserved: 0,
        };
        for (place, layer) in layers.iter().enumerate() {
            let kept = layer.kept(shared);
            first.products[place] = kept.product.numbers.pointer;
            first.gradients[place] = kept.gradients.numbers.pointer;
            first.products_scalings[place] = kept.product.scaling;
            first.gradients_scalings[place] = kept.gradients.scaling;
            first.biases[place] = kept.bias;
        }
        first
    }
}

impl CrossLayer {
    /// What the gradients by x0 follow from.
    fn kept<T: Element>(&self, shared: &Shared<T>) -> Fp8CrossKept {
        Fp8CrossKept {
            product: self.product.matrix(shared.fp8(), shared.samples),
            gradients: self.gradients.matrix(shared.fp8(), shared.samples),
            bias: shared.dense.parameters.pointer().element(self.layer.bias().start),
        }
    }
}

impl Entrance {
    /// The product that gives the gradients, with what is added to it.
    pub(super) fn product<T: Element>(
        self,
        shared: &Shared<T>,
        factors: (Fp8Matrix, Fp8Matrix),
        added: Option<Fp8Matrix>,
    ) -> Result<Product> {
        let Self { first, gradients, product, sums } = self;
        let outputs = (gradients, product);
        Ok(Product::fp8_cross_gradient(&shared.blas, factors, (first, added), outputs, sums)?)
    }
}
