//! `element.cuh`: the element types of activations and gradients, and the parameters of a step.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::runtime::Pointer;

/// The types of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum ElementKind {
    F32,
    Bf16,
    F16,
}

/// An element type of activations and gradients.
pub trait Element: Pod + std::fmt::Debug + Send + Sync {
    /// Which type it is.
    const KIND: ElementKind;

    /// Rounds a value to this type.
    fn of(value: f32) -> Self;

    /// Its value.
    fn value(self) -> f32;
}

impl Element for f32 {
    const KIND: ElementKind = ElementKind::F32;

    fn of(value: f32) -> Self {
        value
    }

    fn value(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const KIND: ElementKind = ElementKind::Bf16;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f16 {
    const KIND: ElementKind = ElementKind::F16;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// The learning rate of a step, as the rules take it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Rate {
    /// The rate; divided by `1 - beta1^t` for Adam.
    pub rate: f32,
    /// `sqrt(1 - beta2^t)` for Adam; 1 for other rules.
    pub root_correction: f32,
}

/// What a step needs apart from its batch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct Step {
    /// Its number in the training, from 1.
    pub number: u64,
    /// Samples in the batch. Buffers have room for more; the rest is ignored.
    pub samples: u32,
    /// Index at which the loss is stored.
    pub loss_index: u32,
    /// For the dense parameters.
    pub dense: Rate,
}

impl Pointer<Step> {
    /// The address of the dense parameters' rate.
    pub fn dense_rate(self) -> Pointer<Rate> {
        self.cast::<u8>().element(std::mem::offset_of!(Step, dense)).cast()
    }
}
