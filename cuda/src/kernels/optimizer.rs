//! `optimizer.cuh` and `dtype.cuh`: how parameters learn, and what tables are stored as, as plain data.

use bytemuck::{Pod, Zeroable};

/// What the weights of a table are stored as.
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

/// Which rule it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RuleKind {
    /// Plain gradient descent.
    Sgd,
    /// With momentum.
    Momentum,
    /// With Nesterov's momentum.
    Nesterov,
    /// Adagrad, element by element.
    Adagrad,
    /// Adagrad with one accumulator a row.
    RowwiseAdagrad,
    /// Adam.
    Adam,
    /// FTRL-Proximal.
    Ftrl,
}

/// A rule with its settings; those that it does not have are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Rule {
    /// A [`RuleKind`].
    pub kind: u32,
    /// What of a weight is added to its gradient.
    pub weight_decay: f32,
    /// Where Adagrad's accumulators start.
    pub initial: f32,
    /// What of the first state stays: the momentum, Adam's beta1.
    pub keep: f32,
    /// What of the second state stays: Adam's beta2.
    pub keep_second: f32,
    /// What is added to roots: epsilon, or FTRL's beta.
    pub damping: f32,
    /// FTRL's l1.
    pub l1: f32,
    /// FTRL's l2.
    pub l2: f32,
}

impl Rule {
    /// A rule without settings.
    pub fn of(kind: RuleKind) -> Self {
        Self { kind: kind as u32, ..Self::zeroed() }
    }
}

const _: () = assert!(size_of::<Rule>() == 32);
