//! A model's parts on a GPU, and the work of a pass forward and of a pass back.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Blas, Compute, Epilogue, Matrix, Product};
use rankine_cuda::kernels::{
    Columns, DenseInput, DenseUpdate, Dot, DotBackward, DotForward, Element, Head, Loss, Rule, RuleKind,
    Total,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::{LocalTables, Result};

use super::input::Input;
use super::layers::{Layers, MULTIPLE};
use crate::model::{Layer, ModelSpec};

/// Blocks a multiprocessor, for kernels that loop.
const BLOCKS_EACH: u32 = 8;

/// A model's weights, and the activations of a batch.
#[derive(Debug)]
pub(super) struct Network<T> {
    device: Arc<Device>,
    blas: Blas,
    compute: Compute,
    pub(super) layers: Layers,
    sizes: Sizes,
    /// What the loss is multiplied by.
    head_weight: f64,
    /// As [`Layers`] says.
    pub(super) parameters: Buffer<f32>,
    gradients: Buffer<f32>,
    /// The parameters in bf16, where that is computed with.
    copies: Option<Buffer<bf16>>,
    activations: Activations<T>,
    /// `[piece][columns]`: of sums over the samples.
    parts: Buffer<f32>,
    /// Of each piece of the samples.
    losses: Buffer<f64>,
    pub(super) logits: Buffer<f32>,
    /// Not 0 once a loss was no finite number: from then on nothing is written.
    pub(super) stop: Buffer<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Samples of a batch.
    samples: usize,
    dense_columns: usize,
    vectors: usize,
    dim: usize,
    /// `dim`, or 0 without dense columns.
    passed: usize,
    /// Elements of a sample's products, filled up.
    products: usize,
}

#[derive(Debug)]
struct Activations<T> {
    /// `[sample][columns, filled up]`
    dense: Buffer<T>,
    /// `[sample][vectors][dim]`; the first is the bottom MLP's output.
    vectors: Buffer<T>,
    vector_gradients: Buffer<T>,
    /// `[sample][products]`
    products: Buffer<T>,
    product_gradients: Buffer<T>,
    /// Outputs of all layers but the bottom MLP's last and the head, and the gradients by them.
    bottom: Vec<[Buffer<T>; 2]>,
    hidden: Vec<[Buffer<T>; 2]>,
}

/// The products of a pass forward over some samples.
#[derive(Debug)]
pub(super) struct Forward {
    samples: usize,
    bottom: Vec<Product>,
    hidden: Vec<Product>,
}

/// The products of a pass back over a batch.
#[derive(Debug)]
pub(super) struct Backward {
    /// Of each layer: the gradients by its weights, and by its input where those are wanted.
    bottom: Vec<(Product, Option<Product>)>,
    hidden: Vec<(Product, Option<Product>)>,
}

/// Where a layer's input, its output and their gradients lie.
struct Place<T> {
    layer: Layer,
    input: Matrix<T>,
    output: Matrix<T>,
    output_gradients: Matrix<T>,
    /// None where the input is the batch's.
    input_gradients: Option<Matrix<T>>,
}

impl Forward {
    /// Samples that it goes over.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }
}

impl<T: Element> Network<T> {
    pub(super) fn new(
        device: &Arc<Device>,
        compute: Compute,
        spec: &ModelSpec,
        samples: usize,
        parameters: &[f32],
    ) -> Result<Self> {
        let layers = Layers::new(spec);
        let sizes = Sizes {
            samples,
            dense_columns: spec.dense_columns,
            vectors: spec.vectors(),
            dim: spec.tables[0].dim,
            passed: spec.bottom_outputs(),
            products: spec.top_inputs().next_multiple_of(MULTIPLE),
        };
        let buffer = |columns: usize| Buffer::<T>::filled(device, samples * columns, 0);
        let pair = |layer: &Layer| Ok([buffer(layer.outputs)?, buffer(layer.outputs)?]);
        let before_vectors = layers.bottom.len().saturating_sub(1);
        let activations = Activations {
            dense: buffer(spec.dense_columns.next_multiple_of(MULTIPLE))?,
            vectors: buffer(sizes.vectors * sizes.dim)?,
            vector_gradients: buffer(sizes.vectors * sizes.dim)?,
            products: buffer(sizes.products)?,
            product_gradients: buffer(sizes.products)?,
            bottom: layers.bottom[..before_vectors].iter().map(pair).collect::<Result<_>>()?,
            hidden: layers.hidden.iter().map(pair).collect::<Result<_>>()?,
        };
        let filled = layers.fill_up(parameters);
        let copies = T::BF16.then(|| filled.iter().map(|&value| bf16::from_f32(value)).collect::<Vec<_>>());
        let widest = layers.bottom.iter().chain(&layers.hidden).map(|layer| layer.outputs).max().unwrap_or(0);
        let pieces = (Head::<T>::pieces(samples as u32), Columns::<T>::pieces(samples as u32));
        let parts = (pieces.0 as usize * (layers.head.inputs + 1)).max(pieces.1 as usize * widest);
        Ok(Self {
            device: Arc::clone(device),
            blas: Blas::new(device)?,
            compute,
            sizes,
            head_weight: spec.heads[0].weight,
            parameters: Buffer::of(device, &filled)?,
            gradients: Buffer::filled(device, filled.len(), 0)?,
            copies: copies.map(|copies| Buffer::of(device, &copies)).transpose()?,
            activations,
            parts: Buffer::filled(device, parts, 0xff)?,
            losses: Buffer::filled(device, pieces.0 as usize, 0xff)?,
            logits: Buffer::filled(device, samples, 0xff)?,
            stop: Buffer::filled(device, 1, 0)?,
            layers,
        })
    }

    /// The parameters in the elements of activations.
    fn weights(&self) -> Pointer<T> {
        self.copies.as_ref().map_or(self.parameters.pointer().cast(), |copies| copies.pointer().cast())
    }

    fn blocks(&self) -> u32 {
        BLOCKS_EACH * self.device.multiprocessors()
    }

    /// Where the bottom MLP's layers work, for so many samples.
    fn bottom(&self, samples: usize) -> Vec<Place<T>> {
        let (sizes, activations) = (self.sizes, &self.activations);
        let matrix = |buffer: &Buffer<T>, columns| dense(buffer.pointer(), samples, columns);
        let mut input = matrix(&activations.dense, sizes.dense_columns.next_multiple_of(MULTIPLE));
        let mut input_gradients = None;
        let place = |(number, layer): (usize, &Layer)| {
            let [output, output_gradients] = match activations.bottom.get(number) {
                Some(buffers) => buffers.each_ref().map(|buffer| matrix(buffer, layer.outputs)),
                None => [&activations.vectors, &activations.vector_gradients]
                    .map(|buffer| Matrix { columns: sizes.dim, ..matrix(buffer, sizes.vectors * sizes.dim) }),
            };
            let place = Place { layer: *layer, input, output, output_gradients, input_gradients };
            (input, input_gradients) = (output, Some(output_gradients));
            place
        };
        self.layers.bottom.iter().enumerate().map(place).collect()
    }

    /// Where the top MLP's hidden layers work, for so many samples.
    fn hidden(&self, samples: usize) -> Vec<Place<T>> {
        let (products, activations) = (self.sizes.products, &self.activations);
        let mut input = dense(activations.products.pointer(), samples, products);
        let mut input_gradients = dense(activations.product_gradients.pointer(), samples, products);
        let place = |(layer, buffers): (&Layer, &[Buffer<T>; 2])| {
            let [output, output_gradients] =
                buffers.each_ref().map(|buffer| dense(buffer.pointer(), samples, layer.outputs));
            let place = Place {
                layer: *layer,
                input,
                output,
                output_gradients,
                input_gradients: Some(input_gradients),
            };
            (input, input_gradients) = (output, output_gradients);
            place
        };
        self.layers.hidden.iter().zip(&activations.hidden).map(place).collect()
    }

    /// The products of a pass forward over `samples` samples, which may be fewer than a batch has.
    pub(super) fn plan_forward(&self, samples: usize) -> Result<Forward> {
        let product = |place: &Place<T>| {
            let Layer { inputs, outputs, offset, .. } = place.layer;
            let weights = dense(self.weights().element(offset), outputs, inputs);
            let bias = self.weights().element(place.layer.bias().start);
            let epilogue = Epilogue::BiasRelu { bias };
            let (x, out) = (place.input, place.output);
            Ok(Product::by_transposed(&self.blas, self.compute, x, weights, out, epilogue)?)
        };
        let all = |places: Vec<Place<T>>| places.iter().map(product).collect::<Result<_>>();
        Ok(Forward { samples, bottom: all(self.bottom(samples))?, hidden: all(self.hidden(samples))? })
    }

    /// The products of a pass back over a batch.
    pub(super) fn plan_backward(&self) -> Result<Backward> {
        let products = |place: &Place<T>| {
            let Layer { inputs, outputs, offset, .. } = place.layer;
            let (blas, compute) = (&self.blas, self.compute);
            let (dy, x) = (place.output_gradients, place.input);
            let gradients = dense(self.gradients.pointer().element(offset), outputs, inputs);
            let by_weights = Product::of_transposed(blas, compute, dy, x, gradients)?;
            let weights = dense(self.weights().element(offset), outputs, inputs);
            let by_input = place.input_gradients;
            let by_input = by_input.map(|out| Product::straight(blas, compute, dy, weights, out));
            Ok((by_weights, by_input.transpose()?))
        };
        let all = |places: Vec<Place<T>>| places.iter().map(products).collect::<Result<_>>();
        let samples = self.sizes.samples;
        Ok(Backward { bottom: all(self.bottom(samples))?, hidden: all(self.hidden(samples))? })
    }

    /// Enqueues the bottom MLP, from a batch's dense columns to the first of the vectors.
    ///
    /// # Safety
    /// The input must have as many samples as the plan says; see [`Lane::launch`].
    pub(super) unsafe fn bottom_forward(&self, lane: &Lane, input: Input, plan: &Forward) -> Result<()> {
        let (sizes, activations) = (self.sizes, &self.activations);
        if sizes.dense_columns == 0 {
            return Ok(());
        }
        let convert = DenseInput {
            dense: input.dense,
            output: activations.dense.pointer(),
            samples: plan.samples as u32,
            columns: sizes.dense_columns as u32,
            stride: sizes.dense_columns.next_multiple_of(MULTIPLE) as u32,
            reserved: 0,
        };
        // SAFETY: all addresses but the input's are of this value's buffers, which have room for a batch; the caller
        // vouches for the input.
        unsafe {
            lane.launch(&convert, (self.blocks(), 1))?;
            plan.bottom.iter().try_for_each(|product| product.enqueue(&self.blas, lane))?;
        }
        Ok(())
    }

    /// Enqueues the look-ups, from a batch's ids to the other vectors.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn look_up(
        &self,
        lane: &Lane,
        tables: &LocalTables,
        input: Input,
        samples: usize,
    ) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { tables.look_up(lane, input.ids, samples, self.activations.vectors.pointer()) }
    }

    /// Enqueues the interaction of the vectors, once all are there.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn interact(&self, lane: &Lane, plan: &Forward) -> Result<()> {
        let dot = Dot { gradients: Pointer::NULL, ..self.dot(plan.samples) };
        // SAFETY: as for `bottom_forward`.
        unsafe { lane.launch(&DotForward(dot), dot.grid(self.device.multiprocessors())) }?;
        Ok(())
    }

    /// Enqueues the top MLP's hidden layers.
    ///
    /// # Safety
    /// As for [`Network::bottom_forward`].
    pub(super) unsafe fn hidden_forward(&self, lane: &Lane, plan: &Forward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { plan.hidden.iter().try_for_each(|product| product.enqueue(&self.blas, lane)) }?;
        Ok(())
    }

    /// Enqueues the last layer: to logits, where `back` is false, or to the loss and the gradients by its input.
    ///
    /// # Safety
    /// As for [`Network::forward`], which must come before.
    pub(super) unsafe fn head(&self, lane: &Lane, input: Input, samples: usize, back: bool) -> Result<()> {
        let (layer, activations) = (self.layers.head, &self.activations);
        let [x, gradients] = match activations.hidden.last() {
            Some(buffers) => buffers.each_ref().map(Buffer::pointer),
            None => [activations.products.pointer(), activations.product_gradients.pointer()],
        };
        let head = Head {
            input: x,
            weights: self.parameters.pointer().element(layer.offset),
            labels: input.labels,
            sample_weights: input.weights,
            total: input.totals,
            head_weight: self.head_weight,
            logits: if back { Pointer::NULL } else { self.logits.pointer() },
            gradients: if back { gradients } else { Pointer::NULL },
            parts: self.parts.pointer(),
            losses: self.losses.pointer(),
            samples: samples as u32,
            width: layer.inputs as u32,
            relu: u32::from(!activations.hidden.is_empty()),
            reserved: 0,
        };
        // SAFETY: as for `forward`; there are as many parts and losses as pieces of a batch.
        unsafe { lane.launch(&head, (Head::<T>::pieces(head.samples), 1)) }?;
        Ok(())
    }

    /// Enqueues the rest of what comes of the last layer: the loss, to its place among `losses`, and the gradients by
    /// its weights.
    ///
    /// # Safety
    /// As for [`Network::head`], which must come before; `losses` must have the step's place.
    pub(super) unsafe fn loss(&self, lane: &Lane, input: Input, losses: Pointer<f64>) -> Result<()> {
        let (samples, layer) = (self.sizes.samples, self.layers.head);
        let pieces = Head::<T>::pieces(samples as u32);
        let loss = Loss {
            losses: self.losses.pointer(),
            step: input.step,
            total: input.totals,
            head_weight: self.head_weight,
            sums: losses,
            stop: self.stop.pointer(),
            pieces,
            reserved: 0,
        };
        let sums = self.gradients.pointer().element(layer.offset);
        let total = Total { parts: self.parts.pointer(), sums, pieces, columns: layer.inputs as u32 + 1 };
        // SAFETY: as for `bottom_forward`.
        unsafe {
            lane.launch(&loss, (1, 1))?;
            lane.launch(&total, total.grid())?;
        }
        Ok(())
    }

    /// Enqueues the way back through the top MLP's hidden layers, after [`Network::loss`].
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn hidden_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.layers_back(lane, &self.hidden(self.sizes.samples), &plan.hidden) }
    }

    /// Enqueues the way back to the gradients by the vectors.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn interact_backward(&self, lane: &Lane) -> Result<()> {
        let products = self.activations.product_gradients.pointer();
        let dot = Dot { products, ..self.dot(self.sizes.samples) };
        // SAFETY: as for `bottom_forward`.
        unsafe { lane.launch(&DotBackward(dot), dot.grid(self.device.multiprocessors())) }?;
        Ok(())
    }

    /// Enqueues the way back through the bottom MLP.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn bottom_backward(&self, lane: &Lane, plan: &Backward) -> Result<()> {
        // SAFETY: as for `bottom_forward`.
        unsafe { self.layers_back(lane, &self.bottom(self.sizes.samples), &plan.bottom) }
    }

    /// Enqueues the way back through layers. The gradients by the last one's output have been taken through its ReLU.
    ///
    /// # Safety
    /// As for [`Network::head`].
    unsafe fn layers_back(
        &self,
        lane: &Lane,
        places: &[Place<T>],
        products: &[(Product, Option<Product>)],
    ) -> Result<()> {
        for (number, (place, (by_weights, by_input))) in places.iter().zip(products).enumerate().rev() {
            let Place { layer, output, output_gradients, .. } = place;
            let last = number + 1 == places.len();
            let columns = Columns {
                gradients: output_gradients.pointer,
                outputs: if last { Pointer::NULL } else { output.pointer },
                parts: self.parts.pointer(),
                samples: self.sizes.samples as u32,
                columns: layer.outputs as u32,
                stride: output_gradients.stride as u32,
                outputs_stride: output.stride as u32,
            };
            let total = Total {
                parts: columns.parts,
                sums: self.gradients.pointer().element(layer.bias().start),
                pieces: Columns::<T>::pieces(columns.samples),
                columns: columns.columns,
            };
            // SAFETY: as for `forward`; there are as many parts as pieces of a batch times columns of any layer.
            unsafe {
                lane.launch(&columns, columns.grid())?;
                lane.launch(&total, total.grid())?;
                by_weights.enqueue(&self.blas, lane)?;
                if let Some(by_input) = by_input {
                    by_input.enqueue(&self.blas, lane)?;
                }
            }
        }
        Ok(())
    }

    /// Enqueues the update of the dense parameters.
    ///
    /// # Safety
    /// As for [`Network::head`]; all gradients must be there.
    pub(super) unsafe fn update(&self, lane: &Lane, input: Input) -> Result<()> {
        let update = DenseUpdate {
            parameters: self.parameters.pointer(),
            gradients: self.gradients.pointer(),
            first: Pointer::NULL,
            second: Pointer::NULL,
            copies: self.copies.as_ref().map_or(Pointer::NULL, Buffer::pointer),
            rate: input.step.dense_rate(),
            scale: Pointer::NULL,
            stop: self.stop.pointer(),
            rule: Rule::of(RuleKind::Sgd),
            count: self.parameters.len() as u32,
            reserved: 0,
        };
        // SAFETY: as for `bottom_forward`.
        unsafe { lane.launch(&update, (self.blocks(), 1)) }?;
        Ok(())
    }

    /// Enqueues the update of the tables; the batch must be routed, and the gradients by the vectors be there.
    ///
    /// # Safety
    /// As for [`Network::head`].
    pub(super) unsafe fn update_tables(&self, lane: &Lane, tables: &LocalTables, input: Input) -> Result<()> {
        let gradients = self.activations.vector_gradients.pointer();
        // SAFETY: as for `bottom_forward`.
        unsafe { tables.descend(lane, gradients, input.rates, self.stop.pointer()) }
    }

    fn dot(&self, samples: usize) -> Dot<T> {
        let (sizes, activations) = (self.sizes, &self.activations);
        Dot {
            vectors: activations.vectors.pointer(),
            products: activations.products.pointer(),
            gradients: activations.vector_gradients.pointer(),
            samples: samples as u32,
            count: sizes.vectors as u32,
            dim: sizes.dim as u32,
            passed: sizes.passed as u32,
            stride: sizes.products as u32,
            relu: u32::from(sizes.passed > 0),
        }
    }
}

/// A matrix whose rows lie one behind the other.
fn dense<T>(pointer: Pointer<T>, rows: usize, columns: usize) -> Matrix<T> {
    Matrix { pointer, rows, columns, stride: columns }
}
