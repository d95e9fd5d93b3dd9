//! Optimizers in the kernels' form.

use rankine_cuda::kernels::{Rate, Rule};

use crate::optimizer::{Optimizer, Update, UpdateRule};

/// The kinds of update rules, as in `optimizer.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum RuleKind {
    Sgd,
    Momentum,
    Nesterov,
    Adagrad,
    RowwiseAdagrad,
    Adam,
    Ftrl,
}

impl RuleKind {
    /// A rule without settings.
    fn rule(self) -> Rule {
        Rule { kind: self as u32, ..Rule::sgd() }
    }
}

impl From<&Optimizer> for Rule {
    fn from(optimizer: &Optimizer) -> Self {
        let rule = match optimizer.rule {
            UpdateRule::Sgd => RuleKind::Sgd.rule(),
            UpdateRule::Momentum { momentum, nesterov } => {
                let kind = if nesterov { RuleKind::Nesterov } else { RuleKind::Momentum };
                Self { keep: momentum, ..kind.rule() }
            }
            UpdateRule::Adagrad { initial_accumulator, epsilon } => {
                Self { initial: initial_accumulator, damping: epsilon, ..RuleKind::Adagrad.rule() }
            }
            UpdateRule::RowwiseAdagrad { initial_accumulator, epsilon } => {
                Self { initial: initial_accumulator, damping: epsilon, ..RuleKind::RowwiseAdagrad.rule() }
            }
            UpdateRule::Adam { beta1, beta2, epsilon } => {
                Self { keep: beta1, keep_second: beta2, damping: epsilon, ..RuleKind::Adam.rule() }
            }
            UpdateRule::Ftrl { beta, l1, l2 } => Self { damping: beta, l1, l2, ..RuleKind::Ftrl.rule() },
        };
        Self { weight_decay: optimizer.weight_decay, ..rule }
    }
}

impl From<Update> for Rate {
    fn from(update: Update) -> Self {
        Self { rate: update.rate(), root_correction: update.root_correction() }
    }
}
