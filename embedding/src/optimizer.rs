//! What the optimizers mean, element by element; dense parameters learn by the same rules.
//!
//! In a table the rules are lazy: a row that no id of the global batch names is untouched, weights and state, so that
//! neither momentum nor weight decay moves it. A row that several ids name is updated once, with the sum of their
//! gradients. Settings mean what they mean in PyTorch, and for [`UpdateRule::RowwiseAdagrad`] in FBGEMM, which keeps
//! PyTorch's tables: they can be carried over as they are.

/// A rule by which parameters learn: `w` is a parameter, `g` its gradient, summed over the global batch, `lr` the
/// learning rate of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// `w -= lr g`
    Sgd,
    /// `b = momentum b + g; w -= lr b`, with Nesterov's `w -= lr (g + momentum b)` instead (`torch.optim.SGD` with
    /// dampening 0; Sutskever et al., 2013).
    Momentum {
        /// The share of `b` that stays.
        momentum: f32,
        /// Whether the step looks ahead.
        nesterov: bool,
    },
    /// `a += g²; w -= lr g / (sqrt(a) + epsilon)`, element by element (`torch.optim.Adagrad`; Duchi et al., 2011).
    Adagrad {
        /// Where `a` starts.
        initial_accumulator: f32,
        /// Keeps the first steps finite.
        epsilon: f32,
    },
    /// Adagrad with one `a` a row of a table, to which the mean of `g²` over the row is added (FBGEMM's
    /// `EXACT_ROWWISE_ADAGRAD`). It is a rule of tables: dense parameters have no rows.
    RowwiseAdagrad {
        /// Where `a` starts.
        initial_accumulator: f32,
        /// Keeps the first steps finite.
        epsilon: f32,
    },
    /// `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²; w -= lr m' / (sqrt(v') + epsilon)`, where
    /// `m' = m / (1 - beta1^t)` and `v' = v / (1 - beta2^t)` in step `t` of the training, counted from 1
    /// (`torch.optim.Adam`, in tables `torch.optim.SparseAdam`; Kingma and Ba, 2015).
    Adam {
        /// The share of `m` that stays.
        beta1: f32,
        /// The share of `v` that stays.
        beta2: f32,
        /// Keeps the quotient finite.
        epsilon: f32,
    },
    /// FTRL-Proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, algorithm 1), element by
    /// element: `z += lr g - (sqrt(n + g²) - sqrt(n)) w; n += g²;`
    /// `w = -sign(z) max(|z| - lr l1, 0) / (beta + sqrt(n) + lr l2)`.
    ///
    /// This `z` is the paper's times `lr`. At a constant rate that makes no difference; where a schedule changes it,
    /// what changes is the length of steps, as with the other rules, and not all weights at once. `z` starts as
    /// `-beta w`, so that without `l1` and `l2` the first update begins from the initial weight.
    Ftrl {
        /// Damps the first steps: the paper's β. Beside gradients of a large batch's mean, the paper's 1 damps all.
        beta: f32,
        /// Pulls weights to exactly 0.
        l1: f32,
        /// Pulls weights towards 0.
        l2: f32,
    },
}

/// A rule with its learning rate and weight decay: all that decides how parameters learn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: UpdateRule,
    /// The learning rate, before the schedule.
    pub learning_rate: f64,
    /// `weight_decay w` is added to `g` before the rule sees it, as PyTorch does; in a table for touched rows alone.
    pub weight_decay: f32,
}

/// A step of training, as optimizers see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// What the schedule multiplies every learning rate by.
    pub rate_factor: f64,
}

/// An optimizer in one step, ready to be applied.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    rule: UpdateRule,
    weight_decay: f32,
    /// The learning rate; Adam's is divided by `1 - beta1^t`.
    rate: f32,
    /// Adam's `sqrt(1 - beta2^t)`.
    root_correction: f32,
}

impl UpdateRule {
    /// Elements of state for `dim` parameters, of a row where the rule is one of rows.
    pub fn state_elements(&self, dim: usize) -> usize {
        match self {
            Self::Sgd => 0,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Momentum { .. } | Self::Adagrad { .. } => dim,
            Self::Adam { .. } | Self::Ftrl { .. } => 2 * dim,
        }
    }

    /// Sets the state of parameters that have not learnt yet. Where a rule keeps two numbers a parameter, all first
    /// ones come first.
    pub fn initialize(&self, weights: &[f32], state: &mut [f32]) {
        match *self {
            Self::Sgd => {}
            Self::Momentum { .. } | Self::Adam { .. } => state.fill(0.0),
            Self::Adagrad { initial_accumulator, .. } | Self::RowwiseAdagrad { initial_accumulator, .. } => {
                state.fill(initial_accumulator);
            }
            Self::Ftrl { beta, .. } => {
                let (z, n) = state.split_at_mut(weights.len());
                z.iter_mut().zip(weights).for_each(|(z, weight)| *z = -beta * weight);
                n.fill(0.0);
            }
        }
    }
}

impl Optimizer {
    /// Plain gradient descent.
    pub fn sgd(learning_rate: f64) -> Self {
        Self { rule: UpdateRule::Sgd, learning_rate, weight_decay: 0.0 }
    }

    /// The optimizer in a step.
    pub fn at(&self, step: Step) -> Update {
        let rate = self.learning_rate * step.rate_factor;
        let correction =
            |beta: f32| 1.0 - f64::from(beta).powi(i32::try_from(step.number).unwrap_or(i32::MAX));
        let (rate, root_correction) = match self.rule {
            UpdateRule::Adam { beta1, beta2, .. } => (rate / correction(beta1), correction(beta2).sqrt()),
            _ => (rate, 1.0),
        };
        Update {
            rule: self.rule,
            weight_decay: self.weight_decay,
            rate: rate as f32,
            root_correction: root_correction as f32,
        }
    }
}

impl Update {
    /// The learning rate; Adam's is divided by `1 - beta1^t` in step `t`.
    pub fn rate(&self) -> f32 {
        self.rate
    }

    /// Adam's `sqrt(1 - beta2^t)` in step `t`; 1 for other rules.
    pub fn root_correction(&self) -> f32 {
        self.root_correction
    }

    /// Updates `weights[i]` and its state from `gradient[i]`, the sum over the global batch. It is compiled into its
    /// callers, which know for which vector units they are (see [`crate::vectorized`]).
    #[inline(always)]
    pub fn apply(&self, weights: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        let Self { rule, weight_decay, rate, root_correction } = *self;
        let decayed = |gradient: f32, weight: f32| gradient + weight_decay * weight;
        let (first, second) = state.split_at_mut(weights.len().min(state.len()));
        match rule {
            UpdateRule::Sgd => {
                for (weight, &gradient) in weights.iter_mut().zip(gradient) {
                    *weight -= rate * decayed(gradient, *weight);
                }
            }
            UpdateRule::Momentum { momentum, nesterov } => {
                for ((weight, velocity), &gradient) in weights.iter_mut().zip(first).zip(gradient) {
                    let gradient = decayed(gradient, *weight);
                    *velocity = momentum * *velocity + gradient;
                    *weight -= rate * if nesterov { gradient + momentum * *velocity } else { *velocity };
                }
            }
            UpdateRule::Adagrad { epsilon, .. } => {
                for ((weight, accumulator), &gradient) in weights.iter_mut().zip(first).zip(gradient) {
                    let gradient = decayed(gradient, *weight);
                    *accumulator += gradient * gradient;
                    // Where the gradient is 0 the quotient may be 0/0; the row must not move then.
                    let step = rate * gradient / (accumulator.sqrt() + epsilon);
                    *weight -= if gradient == 0.0 { 0.0 } else { step };
                }
            }
            UpdateRule::RowwiseAdagrad { .. } => {
                let squares = sum_of_squares(weights, gradient, weight_decay);
                self.apply_rowwise(weights, first, gradient, squares / weights.len() as f32);
            }
            UpdateRule::Adam { beta1, beta2, epsilon } => {
                let (rest1, rest2) = (1.0 - beta1, 1.0 - beta2);
                let states = first.iter_mut().zip(second);
                for ((weight, (mean, square)), &gradient) in weights.iter_mut().zip(states).zip(gradient) {
                    let gradient = decayed(gradient, *weight);
                    *mean = beta1 * *mean + rest1 * gradient;
                    *square = beta2 * *square + rest2 * (gradient * gradient);
                    let step = rate * *mean / (square.sqrt() / root_correction + epsilon);
                    *weight -= if *mean == 0.0 { 0.0 } else { step };
                }
            }
            UpdateRule::Ftrl { beta, l1, l2 } => {
                let (l1, l2) = (rate * l1, rate * l2);
                let states = first.iter_mut().zip(second);
                for ((weight, (z, n)), &gradient) in weights.iter_mut().zip(states).zip(gradient) {
                    let gradient = decayed(gradient, *weight);
                    let squares = *n + gradient * gradient;
                    *z += rate * gradient - (squares.sqrt() - n.sqrt()) * *weight;
                    *n = squares;
                    let (pulled, divisor) = (z.abs() - l1, beta + squares.sqrt() + l2);
                    let moved = if pulled <= 0.0 { 0.0 } else { -pulled.copysign(*z) / divisor };
                    // Where there was no gradient yet, and nothing damps, there is nothing to begin with.
                    *weight = if divisor == 0.0 { *weight } else { moved };
                }
            }
        }
    }
}

impl Update {
    /// [`UpdateRule::RowwiseAdagrad`] for a row, or for some of its columns: `mean_square` is over the whole row.
    ///
    /// # Panics
    /// With another rule: it has no one number a row.
    #[inline(always)]
    pub fn apply_rowwise(&self, weights: &mut [f32], state: &mut [f32], gradient: &[f32], mean_square: f32) {
        let UpdateRule::RowwiseAdagrad { epsilon, .. } = self.rule else {
            panic!("{:?} keeps no number a row", self.rule);
        };
        let accumulator = &mut state[0];
        *accumulator += mean_square;
        let rate = if mean_square == 0.0 { 0.0 } else { self.rate / (accumulator.sqrt() + epsilon) };
        for (weight, &gradient) in weights.iter_mut().zip(gradient) {
            *weight -= rate * (gradient + self.weight_decay * *weight);
        }
    }
}

impl Optimizer {
    /// The sum of the squared gradients of a row's weights, or of some of its columns, weight decay included.
    pub fn row_squares(&self, weights: &[f32], gradient: &[f32]) -> f32 {
        sum_of_squares(weights, gradient, self.weight_decay)
    }
}

/// The sum of a row's squared gradients, weight decay included: in lanes, and then over the lanes.
#[inline(always)]
fn sum_of_squares(weights: &[f32], gradient: &[f32], weight_decay: f32) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    for (weights, gradient) in weights.chunks(LANES).zip(gradient.chunks(LANES)) {
        for ((sum, weight), gradient) in sums.iter_mut().zip(weights).zip(gradient) {
            let gradient = gradient + weight_decay * weight;
            *sum += gradient * gradient;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
pub(crate) mod tests;
