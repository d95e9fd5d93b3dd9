//! How weights change.

use serde::Deserialize;

use super::schedule::Schedule;
use super::values::{LearningRate, NonNegative, Positive};

/// `[optimizer]`: the rules for the MLPs and for the embeddings, and the schedule of their learning rates.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizers {
    /// The rule for the MLPs.
    pub dense: Optimizer,
    /// The rule for the embeddings. A row that does not occur in a batch is not touched by it.
    pub sparse: Optimizer,
    /// Scales both learning rates, step by step. Default `constant`.
    #[serde(default)]
    pub schedule: Schedule,
}

/// A rule by which a gradient changes a weight, chosen by `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// `kind = "sgd"`
    Sgd(Sgd),
    /// `kind = "adagrad"`
    Adagrad(Adagrad),
}

/// `w -= rate * g`
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// The learning rate, before the schedule.
    pub learning_rate: LearningRate,
}

/// `a += g * g; w -= rate * g / (sqrt(a) + epsilon)`, element by element (Duchi et al., 2011).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adagrad {
    /// The learning rate, before the schedule.
    pub learning_rate: LearningRate,
    /// What the sums of squares start from. Default 0, MLPerf's.
    #[serde(default = "default_initial_accumulator")]
    pub initial_accumulator: NonNegative,
    /// Keeps the quotient finite while a sum of squares is 0. Default 1e-8, MLPerf's.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

fn default_initial_accumulator() -> NonNegative {
    NonNegative::new(0.0).expect("a constant in range")
}

fn default_epsilon() -> Positive {
    Positive::new(1e-8).expect("a constant in range")
}

impl Optimizer {
    /// The name in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd(_) => "sgd",
            Self::Adagrad(_) => "adagrad",
        }
    }

    /// The learning rate, before the schedule.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Sgd(sgd) => sgd.learning_rate.get(),
            Self::Adagrad(adagrad) => adagrad.learning_rate.get(),
        }
    }
}
