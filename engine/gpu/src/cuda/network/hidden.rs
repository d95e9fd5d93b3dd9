//! The hidden layers of the top MLP: in the element type of activations, or in fp8.

use std::sync::Arc;

use rankine_cuda::blas::Matrix;
use rankine_cuda::kernels::Element;
use rankine_cuda::{Device, Lane};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use super::fp8::{self, Fp8Mlp};
use super::interaction::{InputEpilogue, TopInput};
use super::mlp::{self, Mlp};
use super::quantization::Fp8Builder;
use super::resources::{ActivationMatrices, Resources};
use super::rows::NetworkRows;

/// Hidden layers.
#[derive(Debug)]
pub(super) enum Hidden<T> {
    Elements(Mlp<T>),
    Fp8(Box<Fp8Mlp>),
}

/// The plan of a forward pass over some samples.
#[derive(Debug)]
pub(super) enum Forward {
    Elements(mlp::Forward),
    Fp8(fp8::Forward),
}

/// The plan of a backward pass over a batch.
#[derive(Debug)]
pub(super) enum Backward {
    Elements(mlp::Backward),
    Fp8(fp8::Backward),
}

impl<T: Element> Hidden<T> {
    /// Creates layers after `input`, for batches of `samples` samples: in fp8 if there is a builder of fp8 tensors.
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        layers: &[Layer],
        input: TopInput<T>,
        builder: Option<&mut Fp8Builder>,
    ) -> Result<Self> {
        Ok(match (builder, input) {
            (Some(builder), input) => {
                let input = match input {
                    TopInput::Elements(matrices) => fp8::Input::Elements(matrices.cast()),
                    TopInput::Fp8 { buffers, gradients } => {
                        fp8::Input::Fp8 { buffers, gradients: gradients.map(Matrix::cast) }
                    }
                };
                Self::Fp8(Fp8Mlp::new(builder, layers, input)?.into())
            }
            (None, TopInput::Elements(ActivationMatrices { values, gradients })) => {
                Self::Elements(Mlp::new((device, rows), layers, (values, Some(gradients)), None, true)?)
            }
            (None, TopInput::Fp8 { .. }) => {
                unreachable!("an interaction in fp8 implies hidden layers in fp8")
            }
        })
    }

    /// Returns the last layer's output; `None` without layers.
    pub(super) fn output(&self) -> Option<ActivationMatrices<T>> {
        match self {
            Self::Elements(mlp) => mlp.output(),
            Self::Fp8(mlp) => Some(mlp.output().cast()),
        }
    }

    /// `learns` is whether a backward pass follows.
    pub(super) fn plan_forward(
        &self,
        resources: &Resources<T>,
        samples: usize,
        learns: bool,
    ) -> Result<Forward> {
        Ok(match self {
            Self::Elements(mlp) => Forward::Elements(mlp.plan_forward(resources, samples, learns)?),
            Self::Fp8(mlp) => Forward::Fp8(mlp.plan_forward(resources, samples, learns)?),
        })
    }

    /// `input_epilogue` is that of the product that computes the gradients with respect to the first layer's input.
    pub(super) fn plan_backward(
        &self,
        resources: &Resources<T>,
        input_epilogue: InputEpilogue<T>,
    ) -> Result<Backward> {
        Ok(match (self, input_epilogue) {
            (Self::Elements(mlp), InputEpilogue::Elements(input_epilogue)) => {
                Backward::Elements(mlp.plan_backward(resources, &resources.weights_blas, input_epilogue)?)
            }
            (Self::Fp8(mlp), InputEpilogue::Elements(_)) => {
                Backward::Fp8(mlp.plan_backward(resources, None)?)
            }
            (Self::Fp8(mlp), InputEpilogue::Fp8(outputs)) => {
                Backward::Fp8(mlp.plan_backward(resources, Some(outputs))?)
            }
            (Self::Elements(_), InputEpilogue::Fp8(_)) => {
                unreachable!("after an interaction in fp8, hidden layers are in fp8, too")
            }
        })
    }

    /// Enqueues the forward pass from input to output.
    ///
    /// # Safety
    /// The plan must be of these layers and for as many samples as there are; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, resources: &Resources<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Forward::Elements(plan)) => mlp.forward(lane, resources, plan),
                (Self::Fp8(mlp), Forward::Fp8(plan)) => mlp.forward(lane, resources, plan),
                _ => unreachable!("the plan is for these layers"),
            }
        }
    }

    /// Enqueues the backward pass from the gradients with respect to the output to those with respect to all inputs.
    ///
    /// # Safety
    /// As for [`Hidden::forward`].
    pub(super) unsafe fn backward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => mlp.backward(lane, resources, plan),
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.backward(lane, resources, plan),
                _ => unreachable!("the plan is for these layers"),
            }
        }
    }

    /// Enqueues the weight gradients.
    ///
    /// # Safety
    /// [`Hidden::backward`] must come before; nothing else may use the second workspace meanwhile. See
    /// [`Lane::launch`].
    pub(super) unsafe fn weights(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        plan: &Backward,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => {
                    mlp.weights(lane, &resources.weights_blas, plan)
                }
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.weights(lane, resources, plan),
                _ => unreachable!("the plan is for these layers"),
            }
        }
    }

    /// Enqueues the bias gradients.
    ///
    /// # Safety
    /// [`Hidden::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, resources: &Resources<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => mlp.sums(lane, resources, plan),
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.sums(lane, resources, plan),
                _ => unreachable!("the plan is for these layers"),
            }
        }
    }
}
