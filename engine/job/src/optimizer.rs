//! `[optimizer]`: the optimizers of dense parameters and of tables.

use rankine_embedding::UpdateRule;
use serde::Deserialize;

use super::schedule::Schedule;
use super::settings::{Kind, Settings, kinds};
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

kinds! {
    Optimizer: Sgd "sgd", Momentum "momentum", Adagrad "adagrad", RowwiseAdagrad "rowwise-adagrad", Adam "adam",
        Ftrl "ftrl";
}

/// An optimizer but for its rates, which all kinds have.
struct OptimizerParts {
    name: &'static str,
    rule: UpdateRule,
    /// The keys that only this kind has, with their values in TOML.
    own: Vec<(&'static str, String)>,
}

impl Optimizer {
    fn parts(&self) -> OptimizerParts {
        let number = |value: f64| format!("{value:?}");
        let (name, rule, own) = match *self {
            Self::Sgd(Sgd { learning_rate: _, weight_decay: _ }) => (Sgd::NAME, UpdateRule::Sgd, Vec::new()),
            Self::Momentum(Momentum { learning_rate: _, weight_decay: _, momentum, nesterov }) => {
                let rule = UpdateRule::Momentum { momentum: momentum.get() as f32, nesterov };
                let own = vec![("momentum", number(momentum.get())), ("nesterov", nesterov.to_string())];
                (Momentum::NAME, rule, own)
            }
            Self::Adagrad(Adagrad { learning_rate: _, weight_decay: _, initial_accumulator, epsilon }) => {
                let rule = UpdateRule::Adagrad {
                    initial_accumulator: initial_accumulator.get() as f32,
                    epsilon: epsilon.get() as f32,
                };
                let own = vec![
                    ("initial_accumulator", number(initial_accumulator.get())),
                    ("epsilon", number(epsilon.get())),
                ];
                (Adagrad::NAME, rule, own)
            }
            Self::RowwiseAdagrad(RowwiseAdagrad {
                learning_rate: _,
                weight_decay: _,
                initial_accumulator,
                epsilon,
            }) => {
                let rule = UpdateRule::RowwiseAdagrad {
                    initial_accumulator: initial_accumulator.get() as f32,
                    epsilon: epsilon.get() as f32,
                };
                let own = vec![
                    ("initial_accumulator", number(initial_accumulator.get())),
                    ("epsilon", number(epsilon.get())),
                ];
                (RowwiseAdagrad::NAME, rule, own)
            }
            Self::Adam(Adam { learning_rate: _, weight_decay: _, beta1, beta2, epsilon }) => {
                let rule = UpdateRule::Adam {
                    beta1: beta1.get() as f32,
                    beta2: beta2.get() as f32,
                    epsilon: epsilon.get() as f32,
                };
                let own = vec![
                    ("beta1", number(beta1.get())),
                    ("beta2", number(beta2.get())),
                    ("epsilon", number(epsilon.get())),
                ];
                (Adam::NAME, rule, own)
            }
            Self::Ftrl(Ftrl { learning_rate: _, weight_decay: _, beta, l1, l2 }) => {
                let rule =
                    UpdateRule::Ftrl { beta: beta.get() as f32, l1: l1.get() as f32, l2: l2.get() as f32 };
                let own =
                    vec![("beta", number(beta.get())), ("l1", number(l1.get())), ("l2", number(l2.get()))];
                (Ftrl::NAME, rule, own)
            }
        };
        OptimizerParts { name, rule, own }
    }

    /// Returns the name in a job file.
    pub fn name(&self) -> &'static str {
        self.parts().name
    }

    /// The learning rate and the weight decay. Each step asks for them, so nothing else is made here.
    fn rates(&self) -> [f64; 2] {
        let (Self::Sgd(Sgd { learning_rate, weight_decay })
        | Self::Momentum(Momentum { learning_rate, weight_decay, .. })
        | Self::Adagrad(Adagrad { learning_rate, weight_decay, .. })
        | Self::RowwiseAdagrad(RowwiseAdagrad { learning_rate, weight_decay, .. })
        | Self::Adam(Adam { learning_rate, weight_decay, .. })
        | Self::Ftrl(Ftrl { learning_rate, weight_decay, .. })) = self;
        [learning_rate.get(), weight_decay.get()]
    }

    /// Returns the learning rate, before the schedule.
    pub fn learning_rate(&self) -> f64 {
        self.rates()[0]
    }

    /// Returns the weight decay.
    pub fn weight_decay(&self) -> f64 {
        self.rates()[1]
    }

    /// Returns the rule of the update, with its rate and weight decay.
    pub fn rule(&self) -> rankine_embedding::Optimizer {
        let [learning_rate, weight_decay] = self.rates();
        let weight_decay = weight_decay as f32;
        rankine_embedding::Optimizer { rule: self.parts().rule, learning_rate, weight_decay }
    }

    /// Returns all keys of a job file but the kind, with their values in TOML.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'static str, String)> {
        let [learning_rate, weight_decay] = self.rates();
        let rates = [("learning_rate", learning_rate), ("weight_decay", weight_decay)];
        rates.map(|(key, value)| (key, format!("{value:?}"))).into_iter().chain(self.parts().own)
    }
}

macro_rules! rates {
    ($($kind:ident)*) => {$(
        impl $kind {
            /// Returns the settings of this optimizer with a learning rate.
            pub fn rate(learning_rate: f64) -> Settings<Self> {
                Self::settings().set("learning_rate", learning_rate)
            }
        }
    )*};
}

rates! { Sgd Momentum Adagrad RowwiseAdagrad Adam Ftrl }
