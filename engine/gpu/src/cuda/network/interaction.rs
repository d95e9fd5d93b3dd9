//! The interaction of a sample's vectors, between embeddings and top MLP.

use std::sync::Arc;

use rankine_cuda::blas::{Epilogue, Matrix};
use rankine_cuda::kernels::{
    Dot, DotFp8, Element, FiniteCheck, Fp8Vectors, Machine, MachineBackward, MachineForward, TableRows,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model as model;
use rankine_model::ModelSpec;

use super::cross::{self, CrossNetwork};
use super::fp8::{self, Fp8Cross};
use super::layers::Layouts;
use super::quantization::{Fp8Buffers, Fp8Builder};
use super::resources::{ActivationMatrices, Activations, Resources};
use super::rows::NetworkRows;

/// The bandwidth of memory, in bytes per second, from which separate look-ups are faster in training. The kernel that
/// looks up rows itself is limited by its instructions: it takes 320 µs for the 65536 samples of dlrm, on an H100 (3.35
/// TB/s) as on an H200 (4.8 TB/s). Separate look-ups and the interaction take 390 µs on the former and 305 µs on the
/// latter, where the look-ups also run beside the bottom MLP. In scoring, that kernel need not write the vectors.
const FAST_MEMORY: f64 = 4e12;

/// A model's interaction.
#[derive(Debug)]
pub(super) struct Interaction<T> {
    vectors: ActivationMatrices<T>,
    /// Vectors of a sample.
    count: usize,
    /// Elements of the first vector if it comes from the dense columns, else 0.
    first: usize,
    /// Whether a ReLU precedes the first vector.
    relu: bool,
    kind: Kind<T>,
}

#[derive(Debug)]
enum Kind<T> {
    Dot(Activations<T>),
    Fp8Dot(Fp8Dot<T>),
    Cross(CrossNetwork<T>),
    Fp8Cross(Fp8Cross),
    /// The terms, and the gradients with respect to them.
    Machine([Buffer<f32>; 2]),
    Concat,
}

/// Dot products in fp8, and the gradients with respect to them in the element type.
#[derive(Debug)]
struct Fp8Dot<T> {
    products: Arc<Fp8Buffers>,
    gradients: Buffer<T>,
}

/// The input of the top MLP.
#[derive(Debug, Clone)]
pub(super) enum TopInput<T> {
    Elements(ActivationMatrices<T>),
    /// `gradients` receives those with respect to it; `None` if they are in fp8, too.
    Fp8 {
        buffers: Arc<Fp8Buffers>,
        gradients: Option<Matrix<T>>,
    },
}

/// The epilogue of the product that computes the gradients with respect to the top MLP's input.
#[derive(Debug, Clone, Copy)]
pub(super) enum InputEpilogue<T> {
    Elements(Epilogue<T>),
    Fp8(fp8::CrossGradientOutputs),
}

/// The plan of a forward pass over some samples.
#[derive(Debug)]
pub(super) enum Forward {
    Cross(cross::Forward),
    Fp8Cross(fp8::CrossForward),
    Fp8Dot(DotFp8),
    /// All other kinds, over this number of samples; `learns` is whether a backward pass follows.
    Kernels {
        samples: usize,
        learns: bool,
    },
}

/// The plan of a backward pass over a batch.
#[derive(Debug)]
pub(super) enum Backward {
    Cross(cross::Backward),
    Fp8Cross(fp8::CrossBackward),
    Kernels,
}

impl Forward {
    /// Returns where look-ups write the vectors of the features, if in fp8.
    pub(super) fn vectors(&self) -> Option<Fp8Vectors> {
        match self {
            Self::Fp8Cross(plan) => plan.vectors(),
            Self::Cross(_) | Self::Fp8Dot(_) | Self::Kernels { .. } => None,
        }
    }
}

impl<T: Element> Fp8Dot<T> {
    fn gradients(&self) -> Matrix<T> {
        let tensor = &self.products;
        Matrix::contiguous(
            self.gradients.pointer(),
            self.gradients.len() / tensor.columns(),
            tensor.columns(),
        )
    }
}

impl<T: Element> Interaction<T> {
    /// `fp8` if its results are to be in fp8, as the layers after it; `pooled_to_fp8` is whether look-ups can write
    /// vectors in fp8.
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        spec: &ModelSpec,
        layouts: Layouts<'_>,
        vectors: ActivationMatrices<T>,
        fp8: Option<&mut Fp8Builder>,
        pooled_to_fp8: bool,
    ) -> Result<Self> {
        let Layouts { vectors: vector_layout, layers } = layouts;
        let kind = match spec.interaction {
            model::Interaction::Dot => {
                let (count, columns) = (spec.vectors(), vector_layout.products(spec).len);
                let dim = vectors.values.columns / count;
                match fp8.filter(|_| DotFp8::fits(count as u32, dim as u32, columns as u32)) {
                    Some(fp8) => Kind::Fp8Dot(Fp8Dot {
                        products: Arc::new(fp8.activations(columns)?),
                        gradients: Buffer::filled(device, rows.trained * columns, 0)?,
                    }),
                    None => Kind::Dot(Activations::new(device, rows, columns)?),
                }
            }
            model::Interaction::Cross { .. } => match fp8 {
                Some(fp8) => {
                    let pooled_from = pooled_to_fp8.then_some(vector_layout.first);
                    Kind::Fp8Cross(Fp8Cross::new(fp8, &layers.cross, vectors.cast(), pooled_from)?)
                }
                // The backward pass of the network starts with a product of the top MLP, if that has hidden layers.
                None => {
                    let fused = !layers.hidden.is_empty();
                    Kind::Cross(CrossNetwork::new((device, rows), &layers.cross, vectors, fused)?)
                }
            },
            model::Interaction::FactorizationMachine => {
                let terms = |rows: usize| Buffer::filled(device, rows, 0);
                Kind::Machine([terms(rows.values())?, terms(rows.trained)?])
            }
            model::Interaction::Concat => Kind::Concat,
        };
        let relu = !layers.bottom.is_empty();
        Ok(Self { vectors, count: spec.vectors(), first: vector_layout.first, relu, kind })
    }

    /// Returns the input of the top MLP.
    pub(super) fn output(&self) -> TopInput<T> {
        match &self.kind {
            Kind::Dot(products) => TopInput::Elements(products.matrices()),
            Kind::Cross(network) => TopInput::Elements(network.output()),
            Kind::Fp8Cross(network) => TopInput::Fp8 { buffers: network.output(), gradients: None },
            Kind::Fp8Dot(dot) => {
                TopInput::Fp8 { buffers: Arc::clone(&dot.products), gradients: Some(dot.gradients()) }
            }
            Kind::Machine(_) | Kind::Concat => TopInput::Elements(self.vectors),
        }
    }

    /// Returns the terms that bypass the top MLP, which are added to every head's logit, one number per sample, and
    /// the gradients with respect to them.
    pub(super) fn terms(&self) -> [Pointer<f32>; 2] {
        match &self.kind {
            Kind::Machine(terms) => terms.each_ref().map(Buffer::pointer),
            Kind::Dot(_) | Kind::Fp8Dot(_) | Kind::Cross(_) | Kind::Fp8Cross(_) | Kind::Concat => {
                [Pointer::NULL; 2]
            }
        }
    }

    /// Whether the backward pass of the interaction includes the ReLU of the first vector.
    pub(super) fn through_relu(&self) -> bool {
        matches!(self.kind, Kind::Dot(_) | Kind::Fp8Dot(_) | Kind::Machine(_))
    }

    /// `learns` is whether a backward pass follows.
    pub(super) fn plan_forward(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        Ok(match &self.kind {
            Kind::Cross(network) => Forward::Cross(network.plan_forward(resources, samples, learns)?),
            Kind::Fp8Cross(network) => Forward::Fp8Cross(network.plan_forward(resources, samples, learns)?),
            Kind::Fp8Dot(dot) => {
                let tensor = dot.products.tensor(resources.fp8(), samples);
                let absent = Matrix::contiguous(Pointer::NULL, samples, tensor.rows.columns);
                Forward::Fp8Dot(DotFp8 {
                    dot: self.dot(resources, self.vectors.cast(), absent, learns),
                    rows: tensor.rows.pointer,
                    turned: tensor.turned.pointer,
                    scaling: tensor.scaling,
                    turned_stride: tensor.turned.stride as u32,
                    reserved: 0,
                })
            }
            Kind::Dot(_) | Kind::Machine(_) | Kind::Concat => Forward::Kernels { samples, learns },
        })
    }

    pub(super) fn plan_backward(&self, resources: &Resources<T>) -> Result<Backward> {
        Ok(match &self.kind {
            Kind::Cross(network) => Backward::Cross(network.plan_backward(resources)?),
            Kind::Fp8Cross(network) => Backward::Fp8Cross(network.plan_backward(resources)?),
            Kind::Dot(_) | Kind::Fp8Dot(_) | Kind::Machine(_) | Kind::Concat => Backward::Kernels,
        })
    }

    /// Returns the epilogue of the product that computes the gradients with respect to the top MLP's input.
    pub(super) fn input_epilogue(&self, resources: &Resources<T>) -> InputEpilogue<T> {
        match &self.kind {
            Kind::Cross(network) => InputEpilogue::Elements(network.input_epilogue(resources)),
            Kind::Fp8Cross(network) => InputEpilogue::Fp8(network.gradient_outputs(resources)),
            Kind::Dot(_) | Kind::Fp8Dot(_) | Kind::Machine(_) | Kind::Concat => {
                InputEpilogue::Elements(Epilogue::None)
            }
        }
    }

    /// Returns the elements of a vector if the forward pass looks up all vectors but the first itself: if it can, and
    /// that takes less time. `learns` is whether a backward pass follows.
    pub(super) fn looks_up(&self, device: &Device, learns: bool) -> Option<usize> {
        if learns && !matches!(device.peak_bytes_per_s(), Ok(Some(rate)) if rate < FAST_MEMORY) {
            return None;
        }
        let dim = self.vectors.values.columns / self.count;
        let (count, elements) = (self.count as u32, dim as u32);
        let can = match &self.kind {
            Kind::Dot(products) => {
                Dot::<T>::looks_up(device, count, elements, products.matrices().values.stride as u32)
            }
            Kind::Fp8Dot(dot) => DotFp8::looks_up(device, count, elements, dot.products.columns() as u32),
            Kind::Cross(_) | Kind::Fp8Cross(_) | Kind::Machine(_) | Kind::Concat => false,
        };
        (can && self.first > 0).then_some(dim)
    }

    /// Enqueues the forward pass from the vectors to the top MLP's input, and to the terms; with `rows`, it first looks
    /// up all vectors but the first.
    ///
    /// # Safety
    /// The plan must be of this interaction and for as many samples as there are; rows are allowed if
    /// [`Interaction::looks_up`]; see [`Lane::launch`].
    pub(super) unsafe fn forward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Forward,
        rows: Option<TableRows>,
    ) -> Result<()> {
        // SAFETY: the buffers are this value's, or those that it was made for, and hold a batch; the caller vouches
        // for the order.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Dot(products), &Forward::Kernels { samples, learns }) => {
                    let products = products.matrices().values.first_rows(samples);
                    self.dot(resources, self.vectors, products, learns).enqueue_forward(lane, rows)?;
                }
                (Kind::Fp8Dot(_), Forward::Fp8Dot(dot)) => dot.enqueue(lane, rows)?,
                (Kind::Cross(network), Forward::Cross(plan)) => network.forward(lane, resources, plan)?,
                (Kind::Fp8Cross(network), Forward::Fp8Cross(plan)) => {
                    network.forward(lane, resources, plan)?
                }
                (Kind::Machine([terms, _]), &Forward::Kernels { samples, .. }) => {
                    let machine = self.machine(resources, samples, terms);
                    lane.launch(&MachineForward(machine), resources.blocks())?;
                }
                (Kind::Concat, Forward::Kernels { .. }) => {}
                _ => unreachable!("the plan is for this interaction"),
            }
        }
        Ok(())
    }

    /// Enqueues the backward pass from the gradients with respect to the top MLP's input and the terms to those with
    /// respect to the vectors.
    ///
    /// # Safety
    /// As for [`Interaction::forward`].
    pub(super) unsafe fn backward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Dot(products), Backward::Kernels) => {
                    let gradients = products.matrices().gradients;
                    self.dot(resources, self.vectors, gradients, true).enqueue_backward(lane)?;
                }
                (Kind::Fp8Dot(dot), Backward::Kernels) => {
                    self.dot(resources, self.vectors, dot.gradients(), true).enqueue_backward(lane)?;
                }
                (Kind::Cross(network), Backward::Cross(plan)) => network.backward(lane, resources, plan)?,
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => {
                    network.backward(lane, resources, plan)?;
                }
                (Kind::Machine([_, gradients]), Backward::Kernels) => {
                    let machine = self.machine(resources, resources.samples, gradients);
                    lane.launch(&MachineBackward(machine), resources.blocks())?;
                }
                (Kind::Concat, Backward::Kernels) => {
                    lane.launch(&self.finite(resources), resources.blocks())?
                }
                _ => unreachable!("the plan is for this interaction"),
            }
        }
        Ok(())
    }

    /// Enqueues the weight gradients.
    ///
    /// # Safety
    /// [`Interaction::backward`] must come before; nothing else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(super) unsafe fn weights(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Cross(network), Backward::Cross(plan)) => network.weights(lane, resources, plan),
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => network.weights(lane, resources, plan),
                _ => Ok(()),
            }
        }
    }

    /// Enqueues the bias gradients.
    ///
    /// # Safety
    /// [`Interaction::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, resources: &Resources<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Cross(network), Backward::Cross(plan)) => network.sums(lane, resources, plan),
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => network.sums(lane, plan),
                _ => Ok(()),
            }
        }
    }

    /// Returns the parameters of a dot interaction between vectors and products, or the gradients with respect to them.
    fn dot<U: Element>(
        &self,
        resources: &Resources<T>,
        vectors: ActivationMatrices<U>,
        products: Matrix<U>,
        learns: bool,
    ) -> Dot<U> {
        let ActivationMatrices { values, gradients } = vectors;
        Dot {
            vectors: values.pointer,
            products: products.pointer,
            gradients: gradients.pointer,
            guard: resources.guard.pointer(),
            samples: products.rows as u32,
            count: self.count as u32,
            dim: (values.columns / self.count) as u32,
            vectors_stride: values.stride as u32,
            passed: self.first as u32,
            stride: products.stride as u32,
            relu: u32::from(self.relu),
            learns: learns.into(),
        }
    }

    fn machine(&self, resources: &Resources<T>, samples: usize, terms: &Buffer<f32>) -> Machine<T> {
        let ActivationMatrices { values, gradients } = self.vectors;
        Machine {
            vectors: values.pointer,
            gradients: gradients.pointer,
            terms: terms.pointer(),
            guard: resources.guard.pointer(),
            samples: samples as u32,
            count: self.count as u32,
            dim: (values.columns / self.count) as u32,
            stride: values.stride as u32,
            relu: u32::from(self.relu),
            reserved: 0,
        }
    }

    /// Checks gradients with respect to the vectors that products write, which no kernel has checked yet.
    fn finite(&self, resources: &Resources<T>) -> FiniteCheck<T> {
        let gradients = self.vectors.gradients;
        FiniteCheck {
            values: gradients.pointer,
            guard: resources.guard.pointer(),
            samples: resources.samples_count(),
            columns: gradients.columns as u32,
            stride: gradients.stride as u32,
            reserved: 0,
        }
    }
}
