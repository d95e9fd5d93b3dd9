//! `[optimizer]`: the optimizers of dense parameters and of tables.

use serde::Deserialize;

use super::schedule::Schedule;
use super::values::{Decay, NonNegative, Positive};

/// `[optimizer]`: the optimizers of dense parameters and of embeddings, and the learning-rate schedule.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Optimizers {
    /// Optimizer of the MLPs, the cross network and the wide part's weights of dense columns.
    pub dense: Optimizer,
    /// Optimizer of the embeddings. It changes neither the weights nor the state of rows that do not occur in the
    /// batch.
    pub sparse: Optimizer,
    /// Optimizer of the wide part's weights of categories, if the model has a wide part. Without it, `sparse`. The
    /// optimizer of a `[[table]]` applies only to its embeddings.
    pub wide: Option<Optimizer>,
    /// Clips the gradient of all dense parameters to this Euclidean norm. Without it, gradients are not clipped.
    pub dense_clip_norm: Option<Positive>,
    /// Learning-rate schedule, which scales all learning rates per step.
    #[serde(default)]
    pub schedule: Schedule,
}

impl Optimizers {
    /// Returns the optimizer of the wide part's weights of categories.
    pub fn wide(&self) -> &Optimizer {
        self.wide.as_ref().unwrap_or(&self.sparse)
    }
}

/// An optimizer, chosen by `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// `w -= rate * g`
    Sgd(Sgd),
    /// `v = momentum * v + g; w -= rate * v`, or with `nesterov` `w -= rate * (g + momentum * v)`, as in PyTorch.
    Momentum(Momentum),
    /// `a += g * g; w -= rate * g / (sqrt(a) + epsilon)`, element by element (Duchi et al., 2011).
    Adagrad(Adagrad),
    /// Adagrad with one sum per table row, to which the mean of the row's squared gradient is added. Only for tables.
    RowwiseAdagrad(RowwiseAdagrad),
    /// Adam with bias correction (Kingma and Ba, 2015). The correction uses the step of the training, also for tables.
    Adam(Adam),
    /// FTRL-Proximal (McMahan et al., 2013), whose `l1` makes weights exactly 0.
    Ftrl(Ftrl),
}

/// The settings of `kind = "sgd"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// Learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
}

/// The settings of `kind = "momentum"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Momentum {
    /// Learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Momentum: the factor of the velocity per step.
    #[serde(default = "default_momentum")]
    pub momentum: Decay,
    /// Whether to use Nesterov momentum.
    #[serde(default)]
    pub nesterov: bool,
}

/// The settings of `kind = "adagrad"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Adagrad {
    /// Learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Initial value of the sums of squares.
    #[serde(default)]
    pub initial_accumulator: NonNegative,
    /// Added to the divisor, so that the update is finite while a sum of squares is 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "rowwise-adagrad"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RowwiseAdagrad {
    /// Learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Initial value of the sums of squares.
    #[serde(default)]
    pub initial_accumulator: NonNegative,
    /// Added to the divisor, so that the update is finite while a sum of squares is 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "adam"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Adam {
    /// Learning rate, before the schedule.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Decay rate of the gradient's running mean.
    #[serde(default = "default_beta1")]
    pub beta1: Decay,
    /// Decay rate of the squared gradient's running mean.
    #[serde(default = "default_beta2")]
    pub beta2: Decay,
    /// Added to the divisor, so that the update is finite if gradients are 0.
    #[serde(default = "default_epsilon")]
    pub epsilon: Positive,
}

/// The settings of `kind = "ftrl"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Ftrl {
    /// Learning rate, before the schedule: alpha in the paper.
    pub learning_rate: NonNegative,
    /// Weight decay: this value times the weight is added to the gradient. In tables only rows of the batch decay.
    #[serde(default)]
    pub weight_decay: NonNegative,
    /// Added to the root of the sum of squared gradients, which divides the learning rate: beta in the paper. The paper
    /// uses 1 for gradients of single samples; the mean gradients of batches are smaller, and 1 would slow learning.
    #[serde(default)]
    pub beta: NonNegative,
    /// L1 penalty. It makes weights with little evidence exactly 0.
    #[serde(default)]
    pub l1: NonNegative,
    /// L2 penalty.
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
    /// Returns the name in a job file.
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

    /// Returns the learning rate, before the schedule.
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

    /// Returns the weight decay.
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
