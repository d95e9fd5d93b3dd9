//! `optimizer.cuh` and `dtype.cuh`: update rules and storage types as plain data.

use bytemuck::{Pod, Zeroable};

/// The storage type of a table's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Dtype {
    /// f32
    Fp32,
    /// bf16
    Bf16,
    /// f16
    Fp16,
}

/// A rule with its settings; settings that it does not have are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Rule {
    /// A `RuleKind` of `optimizer.cuh`.
    pub kind: u32,
    /// Factor of the weight that is added to its gradient.
    pub weight_decay: f32,
    /// Initial value of Adagrad's accumulators.
    pub initial: f32,
    /// Decay of the first state: the momentum, or Adam's beta1.
    pub keep: f32,
    /// Decay of the second state: Adam's beta2.
    pub keep_second: f32,
    /// Added to roots: epsilon, or FTRL's beta.
    pub damping: f32,
    /// FTRL's l1.
    pub l1: f32,
    /// FTRL's l2.
    pub l2: f32,
}

impl Rule {
    /// Plain gradient descent, which is the first kind and has no settings.
    pub fn sgd() -> Self {
        Self::zeroed()
    }
}
