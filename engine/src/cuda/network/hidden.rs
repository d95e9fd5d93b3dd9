//! The hidden layers of the top MLP: in the elements of activations, or in fp8.

use rankine_cuda::Lane;
use rankine_cuda::kernels::Element;
use rankine_embedding::cuda::Result;

use super::fp8::{self, Fp8Mlp};
use super::interaction::Entrance;
use super::mlp::{self, Mlp};
use super::shared::{Both, Shared};

/// Hidden layers.
#[derive(Debug)]
pub(super) enum Hidden<T> {
    Elements(Mlp<T>),
    Fp8(Box<Fp8Mlp>),
}

/// What a pass forward over some samples has to do.
#[derive(Debug)]
pub(super) enum Forward {
    Elements(mlp::Forward),
    Fp8(fp8::Forward),
}

/// What a pass back over a batch has to do.
#[derive(Debug)]
pub(super) enum Backward {
    Elements(mlp::Backward),
    Fp8(fp8::Backward),
}

impl<T: Element> Hidden<T> {
    /// The last layer's output; none without layers.
    pub(super) fn output(&self) -> Option<Both<T>> {
        match self {
            Self::Elements(mlp) => mlp.output(),
            Self::Fp8(mlp) => Some(mlp.output().cast()),
        }
    }

    /// `learns` says whether a way back follows.
    pub(super) fn plan_forward(&self, shared: &Shared<T>, samples: usize, learns: bool) -> Result<Forward> {
        Ok(match self {
            Self::Elements(mlp) => Forward::Elements(mlp.plan_forward(shared, samples)?),
            Self::Fp8(mlp) => Forward::Fp8(mlp.plan_forward(shared, samples, learns)?),
        })
    }

    /// `entrance` is what the product does that gives the gradients by the first layer's input.
    pub(super) fn plan_backward(&self, shared: &Shared<T>, entrance: Entrance<T>) -> Result<Backward> {
        Ok(match (self, entrance) {
            (Self::Elements(mlp), Entrance::Elements(entrance)) => {
                Backward::Elements(mlp.plan_backward(shared, &shared.beside, entrance)?)
            }
            (Self::Fp8(mlp), Entrance::Elements(_)) => Backward::Fp8(mlp.plan_backward(shared, None)?),
            (Self::Fp8(mlp), Entrance::Fp8(entrance)) => {
                Backward::Fp8(mlp.plan_backward(shared, Some(entrance))?)
            }
            (Self::Elements(_), Entrance::Fp8(_)) => {
                unreachable!("behind an interaction in fp8 hidden layers are, too")
            }
        })
    }

    /// Enqueues the pass from input to output.
    ///
    /// # Safety
    /// The plan must be of this and of as many samples as lie ready; see [`Lane::launch`].
    pub(super) unsafe fn forward(&self, lane: &Lane, shared: &Shared<T>, plan: &Forward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Forward::Elements(plan)) => mlp.forward(lane, shared, plan),
                (Self::Fp8(mlp), Forward::Fp8(plan)) => mlp.forward(lane, shared, plan),
                _ => unreachable!("the plan is of these layers"),
            }
        }
    }

    /// Enqueues the pass from the gradients by the output to those by all inputs.
    ///
    /// # Safety
    /// As for [`Hidden::forward`].
    pub(super) unsafe fn backward(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => mlp.backward(lane, shared, plan),
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.backward(lane, shared, plan),
                _ => unreachable!("the plan is of these layers"),
            }
        }
    }

    /// Enqueues the gradients by weights.
    ///
    /// # Safety
    /// [`Hidden::backward`] must come before; nobody else may use the second workspace meanwhile. See [`Lane::launch`].
    pub(super) unsafe fn weights(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => mlp.weights(lane, &shared.beside, plan),
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.weights(lane, shared, plan),
                _ => unreachable!("the plan is of these layers"),
            }
        }
    }

    /// Enqueues the gradients by biases.
    ///
    /// # Safety
    /// [`Hidden::backward`] must come before; see [`Lane::launch`].
    pub(super) unsafe fn sums(&self, lane: &Lane, shared: &Shared<T>, plan: &Backward) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match (self, plan) {
                (Self::Elements(mlp), Backward::Elements(plan)) => mlp.sums(lane, shared, plan),
                (Self::Fp8(mlp), Backward::Fp8(plan)) => mlp.sums(lane, shared, plan),
                _ => unreachable!("the plan is of these layers"),
            }
        }
    }
}
