//! What becomes of a sample's vectors between embeddings and top MLP.

use std::sync::Arc;

use rankine_cuda::blas::{Epilogue, Matrix};
use rankine_cuda::kernels::{Dot, Element, Finite, Machine, MachineBackward, MachineForward};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;

use super::cross::{self, CrossNetwork};
use super::fp8::{self, Fp8Cross, Making, Room};
use super::layers::Layers;
use super::places::Places;
use super::shared::{Activations, Both, Shared};
use crate::model::{self, ModelSpec};

/// A model's interaction.
#[derive(Debug)]
pub(super) struct Interaction<T> {
    vectors: Both<T>,
    /// Vectors of a sample.
    count: usize,
    /// Elements of the first vector where the dense columns have one, else 0.
    first: usize,
    /// Whether there is a ReLU before the first vector.
    relu: bool,
    kind: Kind<T>,
}

#[derive(Debug)]
enum Kind<T> {
    Dot(Activations<T>),
    Cross(CrossNetwork<T>),
    Fp8Cross(Fp8Cross),
    /// The terms, and the gradients by them.
    Machine([Buffer<f32>; 2]),
    Concat,
}

/// What the top MLP sees.
#[derive(Debug, Clone)]
pub(super) enum Seen<T> {
    Elements(Both<T>),
    Fp8(Arc<Room>),
}

/// What the product does that gives the gradients by what the top MLP sees.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entrance<T> {
    Elements(Epilogue<T>),
    Fp8(fp8::Entrance),
}

/// What a pass forward over some samples has to do.
#[derive(Debug)]
pub(super) enum Forward {
    Cross(cross::Forward),
    Fp8Cross(fp8::CrossForward),
    /// All else, over so many samples.
    Kernels(usize),
}

/// What a pass back over a batch has to do.
#[derive(Debug)]
pub(super) enum Backward {
    Cross(cross::Backward),
    Fp8Cross(fp8::CrossBackward),
    Kernels,
}

impl<T: Element> Interaction<T> {
    /// `fp8` where cross layers are to be in fp8, as those behind them.
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        (places, layers): (&Places, &Layers),
        vectors: Both<T>,
        fp8: Option<&mut Making>,
    ) -> Result<Self> {
        let samples = vectors.values.rows;
        let kind = match spec.interaction {
            model::Interaction::Dot => {
                Kind::Dot(Activations::new(device, samples, places.products(spec).len)?)
            }
            model::Interaction::Cross { .. } => match fp8 {
                Some(fp8) => Kind::Fp8Cross(Fp8Cross::new(fp8, &layers.cross, vectors.cast())?),
                // The top MLP's products, if there are any, begin its way back.
                None => {
                    let begun = !layers.hidden.is_empty();
                    Kind::Cross(CrossNetwork::new(device, &layers.cross, vectors, begun)?)
                }
            },
            model::Interaction::FactorizationMachine => {
                let terms = || Buffer::filled(device, samples, 0);
                Kind::Machine([terms()?, terms()?])
            }
            model::Interaction::Concat => Kind::Concat,
        };
        let relu = !layers.bottom.is_empty();
        Ok(Self { vectors, count: spec.vectors(), first: places.first, relu, kind })
    }

    /// What the top MLP sees.
    pub(super) fn output(&self) -> Seen<T> {
        match &self.kind {
            Kind::Dot(products) => Seen::Elements(products.both()),
            Kind::Cross(network) => Seen::Elements(network.output()),
            Kind::Fp8Cross(network) => Seen::Fp8(network.output()),
            Kind::Machine(_) | Kind::Concat => Seen::Elements(self.vectors),
        }
    }

    /// What goes past the top MLP to every head's logit, one number a sample, and the gradients by it.
    pub(super) fn terms(&self) -> [Pointer<f32>; 2] {
        match &self.kind {
            Kind::Machine(terms) => terms.each_ref().map(Buffer::pointer),
            Kind::Dot(_) | Kind::Cross(_) | Kind::Fp8Cross(_) | Kind::Concat => [Pointer::NULL; 2],
        }
    }

    /// Whether the way back takes the first vector's gradients through its ReLU.
    pub(super) fn through_relu(&self) -> bool {
        matches!(self.kind, Kind::Dot(_) | Kind::Machine(_))
    }

    /// `learns` says whether a way back follows.
    pub(super) fn plan_forward(&self, shared: &Shared<T>, samples: usize, learns: bool) -> Result<Forward> {
        Ok(match &self.kind {
            Kind::Cross(network) => Forward::Cross(network.plan_forward(shared, samples)?),
            Kind::Fp8Cross(network) => Forward::Fp8Cross(network.plan_forward(shared, samples, learns)?),
            Kind::Dot(_) | Kind::Machine(_) | Kind::Concat => Forward::Kernels(samples),
        })
    }

    pub(super) fn plan_backward(&self, shared: &Shared<T>) -> Result<Backward> {
        Ok(match &self.kind {
            Kind::Cross(network) => Backward::Cross(network.plan_backward(shared)?),
            Kind::Fp8Cross(network) => Backward::Fp8Cross(network.plan_backward(shared)?),
            Kind::Dot(_) | Kind::Machine(_) | Kind::Concat => Backward::Kernels,
        })
    }

    /// What the product does that gives the gradients by what the top MLP sees.
    pub(super) fn entrance(&self, shared: &Shared<T>) -> Entrance<T> {
        match &self.kind {
            Kind::Cross(network) => Entrance::Elements(network.entrance(shared)),
            Kind::Fp8Cross(network) => Entrance::Fp8(network.entrance(shared)),
            Kind::Dot(_) | Kind::Machine(_) | Kind::Concat => Entrance::Elements(Epilogue::None),
        }
    }

    /// Enqueues the pass from the vectors to what the top MLP sees, and to the terms.
    ///
    /// # Safety
    /// The plan must be of this and of as many samples as lie ready; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, shared: &Shared<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the buffers are this value's, or those that it was made for, with room for a batch; the caller
        // vouches for the order.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Dot(products), &Forward::Kernels(samples)) => {
                    let dot = self.dot(shared, samples, products.both().values);
                    let dot = Dot { gradients: Pointer::NULL, ..dot };
                    dot.enqueue_forward(lane)?;
                }
                (Kind::Cross(network), Forward::Cross(plan)) => network.forward(lane, shared, plan)?,
                (Kind::Fp8Cross(network), Forward::Fp8Cross(plan)) => network.forward(lane, shared, plan)?,
                (Kind::Machine([terms, _]), &Forward::Kernels(samples)) => {
                    let machine = self.machine(shared, samples, terms);
                    lane.launch(&MachineForward(machine), shared.blocks())?;
                }
                (Kind::Concat, Forward::Kernels(_)) => {}
                _ => unreachable!("the plan is of this interaction"),
            }
        }
        Ok(())
    }

    /// Enqueues the pass from the gradients by what the top MLP saw, and by the terms, to those by the vectors.
    ///
    /// # Safety
    /// As for [`Interaction::forward`].
    pub(super) unsafe fn backward(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: as for `forward`.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Dot(products), Backward::Kernels) => {
                    let dot = self.dot(shared, shared.samples, products.both().gradients);
                    dot.enqueue_backward(lane)?;
                }
                (Kind::Cross(network), Backward::Cross(plan)) => network.backward(lane, shared, plan)?,
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => {
                    network.backward(lane, shared, plan)?;
                }
                (Kind::Machine([_, gradients]), Backward::Kernels) => {
                    let machine = self.machine(shared, shared.samples, gradients);
                    lane.launch(&MachineBackward(machine), shared.blocks())?;
                }
                (Kind::Concat, Backward::Kernels) => lane.launch(&self.finite(shared), shared.blocks())?,
                _ => unreachable!("the plan is of this interaction"),
            }
        }
        Ok(())
    }

    /// Enqueues the gradients by weights.
    ///
    /// # Safety
    /// [`Interaction::backward`] must come before; nobody else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(super) unsafe fn weights(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Cross(network), Backward::Cross(plan)) => network.weights(lane, shared, plan),
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => network.weights(lane, shared, plan),
                _ => Ok(()),
            }
        }
    }

    /// Enqueues the gradients by biases.
    ///
    /// # Safety
    /// [`Interaction::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (&self.kind, plan) {
                (Kind::Cross(network), Backward::Cross(plan)) => network.sums(lane, shared, plan),
                (Kind::Fp8Cross(network), Backward::Fp8Cross(plan)) => network.sums(lane, plan),
                _ => Ok(()),
            }
        }
    }

    fn dot(&self, shared: &Shared<T>, samples: usize, products: Matrix<T>) -> Dot<T> {
        let Both { values, gradients } = self.vectors;
        Dot {
            vectors: values.pointer,
            products: products.pointer,
            gradients: gradients.pointer,
            guard: shared.guard.pointer(),
            samples: samples as u32,
            count: self.count as u32,
            dim: (values.columns / self.count) as u32,
            vectors_stride: values.stride as u32,
            passed: self.first as u32,
            stride: products.stride as u32,
            relu: u32::from(self.relu),
            reserved: 0,
        }
    }

    fn machine(&self, shared: &Shared<T>, samples: usize, terms: &Buffer<f32>) -> Machine<T> {
        let Both { values, gradients } = self.vectors;
        Machine {
            vectors: values.pointer,
            gradients: gradients.pointer,
            terms: terms.pointer(),
            guard: shared.guard.pointer(),
            samples: samples as u32,
            count: self.count as u32,
            dim: (values.columns / self.count) as u32,
            stride: values.stride as u32,
            relu: u32::from(self.relu),
            reserved: 0,
        }
    }

    /// Where products write the gradients by the vectors, nothing has looked at them yet.
    fn finite(&self, shared: &Shared<T>) -> Finite<T> {
        let gradients = self.vectors.gradients;
        Finite {
            values: gradients.pointer,
            guard: shared.guard.pointer(),
            samples: shared.samples_count(),
            columns: gradients.columns as u32,
            stride: gradients.stride as u32,
            reserved: 0,
        }
    }
}
