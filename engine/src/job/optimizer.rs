//! How weights change.

use serde::Deserialize;

use super::schedule::Schedule;
use super::values::{Decay, NonNegative, Positive};

/// `[optimizer]`: the rules for the MLPs and for the embeddings, and the schedule of their learning rates.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Optimizers {
    /// The rule for the MLPs, the cross network and the wide part's weights of dense columns.
    pub dense: Optimizer,
    /// The rule for the embeddings. A row that does not occur in a batch is not touched by it, weight and state.
    pub sparse: Optimizer,
    /// The rule for the wide part's weights of categories, where the model has one. Without it, `sparse`; a
    /// `[[table]]`'s own rule is for its embeddings alone.
    pub wide: Option<Optimizer>,
    /// Scales the gradient of all dense parameters down to this Euclidean norm where it is longer. Without it, nothing
    /// is clipped.
    pub dense_clip_norm: Option<Positive>,
    /// Scales all learning rates, step by step.
    #[serde(default)]
    pub schedule: Schedule,
}

impl Optimizers {
    /// The rule for the wide part's weights of categories.
    pub fn wide(&self) -> &Optimizer {
        self.wide.as_ref().unwrap_or(&self.sparse)
    }
}

/// A rule by which a gradient changes a weight, chosen by `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// `w -= rate * g`
    Sgd(Sgd),
    /// `v = momentum * v + g; w -= rate * v`, or with `nesterov` `w -= rate * (g + momentum * v)`, as PyTorch has them.
    Momentum(Momentum),
    /// `a += g * g; w -= rate * g / (sqrt(a) + epsilon)`, element by element (Duchi et al., 2011).
    Adagrad(Adagrad),
    /// Adagrad with one sum a row of a table, which grows by the mean of the row's squared gradient. For tables only.
    RowwiseAdagrad(RowwiseAdagrad),
    /// Adam with bias correction (Kingma and Ba, 2015). The step that corrects is the training's, in tables too.
    Adam(Adam),
    /// FTRL-Proximal (McMahan et al., 2013), whose `l1` makes weights exactly 0.
    Ftrl(Ftrl),
}

/// The settings of `kind = "sgd"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// The learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
}

/// The settings of `kind = "momentum"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Momentum {
    /// The learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// How much of the velocity stays from step to step.
    #[serde(default = "default_momentum")]
    pub momentum: Decay,
    /// Whether the gradient is looked at ahead of the velocity.
    #[serde(default)]
    pub nesterov: bool,
}

/// The settings of `kind = "adagrad"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Adagrad {
    /// The learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// What the sums of squares start from.
    #[serde(default)]
    pub initial_accumulator: NonNegative,
    /// Keeps the quotient finite while a sum of squares is 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "rowwise-adagrad"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RowwiseAdagrad {
    /// The learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// What the sums of squares start from.
    #[serde(default)]
    pub initial_accumulator: NonNegative,
    /// Keeps the quotient finite while a sum of squares is 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "adam"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Adam {
    /// The learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// How much of the gradient's mean stays from step to step.
    #[serde(default = "default_beta1")]
    pub beta1: Decay,
    /// How much of the squared gradient's mean stays from step to step.
    #[serde(default = "default_beta2")]
    pub beta2: Decay,
    /// Keeps the quotient finite where gradients are 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "ftrl"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ftrl {
    /// The learning rate, before the schedule: the paper's alpha.
    pub learning_rate: NonNegative,
    /// Times the weight, added to its gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Added to the root of the sum of squared gradients, which divides the learning rate: the paper's beta. The paper
    /// has 1 for gradients of single samples; those of a batch's mean are smaller, and 1 would hardly let them move.
    #[serde(default)]
    pub beta: NonNegative,
    /// The weight of the penalty on absolute values. Weights whose evidence stays below it are 0.
    #[serde(default)]
    pub l1: NonNegative,
    /// The weight of the penalty on squares.
    #[serde(default)]
    pub l2: NonNegative,
}

fn default_momentum() -> Decay {
    Decay::new(0.9).expect("a constant in range")
}

fn default_epsilon() -> Positive {
    Positive::new(1e-8).expect("a constant in range")
}

fn default_beta1() -> Decay {
    Decay::new(0.9).expect("a constant in range")
}

fn default_beta2() -> Decay {
    Decay::new(0.999).expect("a constant in range")
}

impl Optimizer {
    /// The name in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd(_) => "sgd",
            Self::Momentum(_) => "momentum",
            Self::Adagrad(_) => "adagrad",
            Self::RowwiseAdagrad(_) => "rowwise-adagrad",
            Self::Adam(_) => "adam",
            Self::Ftrl(_) => "ftrl",
        }
    }

    /// The learning rate, before the schedule.
    pub fn learning_rate(&self) -> f64 {
        let rate = match self {
            Self::Sgd(rule) => rule.learning_rate,
            Self::Momentum(rule) => rule.learning_rate,
            Self::Adagrad(rule) => rule.learning_rate,
            Self::RowwiseAdagrad(rule) => rule.learning_rate,
            Self::Adam(rule) => rule.learning_rate,
            Self::Ftrl(rule) => rule.learning_rate,
        };
        rate.get()
    }

    /// What is added to a gradient, times the weight.
    pub fn weight_decay(&self) -> f64 {
        let decay = match self {
            Self::Sgd(rule) => rule.weight_decay,
            Self::Momentum(rule) => rule.weight_decay,
            Self::Adagrad(rule) => rule.weight_decay,
            Self::RowwiseAdagrad(rule) => rule.weight_decay,
            Self::Adam(rule) => rule.weight_decay,
            Self::Ftrl(rule) => rule.weight_decay,
        };
        decay.get()
    }
}
