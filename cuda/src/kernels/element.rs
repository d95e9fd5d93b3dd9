//! `element.cuh`: the element types of activations and gradients, and what a step is told.

use bytemuck::{Pod, Zeroable};
use half::bf16;

/// What activations and gradients consist of.
pub trait Element: Pod + std::fmt::Debug + Send + Sync {
    /// Whether it is bf16, else f32.
    const BF16: bool;

    /// Rounds to it.
    fn of(value: f32) -> Self;

    /// Its value.
    fn value(self) -> f32;
}

impl Element for f32 {
    const BF16: bool = false;

    fn of(value: f32) -> Self {
        value
    }

    fn value(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const BF16: bool = true;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// What a step is told, beside its batch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Step {
    /// What the loss is multiplied by.
    pub head_weight: f64,
    /// What it is divided by: the sum of the weights of the samples with labels.
    pub total_weight: f64,
    /// The learning rate of the dense parameters.
    pub dense_rate: f32,
    /// Where the loss goes.
    pub loss_place: u32,
}

const _: () = assert!(size_of::<Step>() == 24);
