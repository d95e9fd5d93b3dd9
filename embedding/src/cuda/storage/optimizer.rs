//! Optimizers in the kernels' form.

use rankine_cuda::kernels::{Rate, Rule, RuleKind};

use crate::optimizer::{Optimizer, Update, UpdateRule};

impl From<&Optimizer> for Rule {
    fn from(optimizer: &Optimizer) -> Self {
        let rule = match optimizer.rule {
            UpdateRule::Sgd => Self::of(RuleKind::Sgd),
            UpdateRule::Momentum { momentum, nesterov } => {
                let kind = if nesterov { RuleKind::Nesterov } else { RuleKind::Momentum };
                Self { keep: momentum, ..Self::of(kind) }
            }
            UpdateRule::Adagrad { initial_accumulator, epsilon } => {
                Self { initial: initial_accumulator, damping: epsilon, ..Self::of(RuleKind::Adagrad) }
            }
            UpdateRule::RowwiseAdagrad { initial_accumulator, epsilon } => {
                Self { initial: initial_accumulator, damping: epsilon, ..Self::of(RuleKind::RowwiseAdagrad) }
            }
            UpdateRule::Adam { beta1, beta2, epsilon } => {
                Self { keep: beta1, keep_second: beta2, damping: epsilon, ..Self::of(RuleKind::Adam) }
            }
            UpdateRule::Ftrl { beta, l1, l2 } => Self { damping: beta, l1, l2, ..Self::of(RuleKind::Ftrl) },
        };
        Self { weight_decay: optimizer.weight_decay, ..rule }
    }
}

impl From<Update> for Rate {
    fn from(update: Update) -> Self {
        Self { rate: update.rate(), root_correction: update.root_correction() }
    }
}
