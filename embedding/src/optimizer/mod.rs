//! The definition of the optimizers, element by element; dense parameters learn by the same rules.
//!
//! In a table the rules are lazy: a row that no id of the global batch names keeps its weights and state, so neither
//! momentum nor weight decay moves it. A row that several ids name is updated once, with the sum of their gradients.
//! Settings mean what they mean in PyTorch, and for [`UpdateRule::RowwiseAdagrad`] in FBGEMM, which stores PyTorch's
//! tables: they can be carried over unchanged.

/// A rule by which parameters learn: `w` is a parameter, `g` its gradient, summed over the global batch, `lr` the
/// learning rate of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// `w -= lr g`
    Sgd,
    /// `b = momentum b + g; w -= lr b`, with Nesterov's `w -= lr (g + momentum b)` instead (`torch.optim.SGD` with
    /// dampening 0; Sutskever et al., 2013).
    Momentum {
        /// The decay of `b`.
        momentum: f32,
        /// Whether to use Nesterov's momentum.
        nesterov: bool,
    },
    /// `a += g²; w -= lr g / (sqrt(a) + epsilon)`, element by element (`torch.optim.Adagrad`; Duchi et al., 2011).
    Adagrad {
        /// The initial value of `a`.
        initial_accumulator: f32,
        /// Keeps the first steps finite.
        epsilon: f32,
    },
    /// Adagrad with one `a` per row of a table, to which the mean of `g²` over the row is added (FBGEMM's
    /// `EXACT_ROWWISE_ADAGRAD`). Only for tables: dense parameters have no rows.
    RowwiseAdagrad {
        /// The initial value of `a`.
        initial_accumulator: f32,
        /// Keeps the first steps finite.
        epsilon: f32,
    },
    /// `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²; w -= lr m' / (sqrt(v') + epsilon)`, where
    /// `m' = m / (1 - beta1^t)` and `v' = v / (1 - beta2^t)` in step `t` of the training, counted from 1
    /// (`torch.optim.Adam`, in tables `torch.optim.SparseAdam`; Kingma and Ba, 2015).
    Adam {
        /// The decay of `m`.
        beta1: f32,
        /// The decay of `v`.
        beta2: f32,
        /// Keeps the quotient finite.
        epsilon: f32,
    },
    /// FTRL-Proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, algorithm 1), element by
    /// element: `z += lr g - (sqrt(n + g²) - sqrt(n)) w; n += g²;`
    /// `w = -sign(z) max(|z| - lr l1, 0) / (beta + sqrt(n) + lr l2)`.
    ///
    /// This `z` is the paper's times `lr`. At a constant rate that makes no difference; when a schedule changes the
    /// rate, it changes the size of later steps, as with the other rules, and not all weights at once. `z` starts as
    /// `-beta w`, so that without `l1` and `l2` the first update starts from the initial weight.
    Ftrl {
        /// Damps the first steps: the paper's β. Compared with mean gradients of a large batch, the paper's 1 damps
        /// everything.
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
    /// `weight_decay w` is added to `g` before the rule is applied, as PyTorch does; in a table only for rows that
    /// are touched.
    pub weight_decay: f32,
}

/// A training step, as far as optimizers depend on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// The schedule's factor of every learning rate.
    pub rate_factor: f64,
}

/// An optimizer at one step, ready to be applied.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    rule: UpdateRule,
    weight_decay: f32,
    /// The learning rate; divided by `1 - beta1^t` for Adam.
    rate: f32,
    /// `sqrt(1 - beta2^t)` for Adam.
    root_correction: f32,
}

impl UpdateRule {
    /// One rule of each kind; all settings are 0.
    pub const KINDS: [Self; 6] = [
        Self::Sgd,
        Self::Momentum { momentum: 0.0, nesterov: false },
        Self::Adagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        Self::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        Self::Adam { beta1: 0.0, beta2: 0.0, epsilon: 0.0 },
        Self::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    ];

    /// The rule's name in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Momentum { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::RowwiseAdagrad { .. } => "rowwise-adagrad",
            Self::Adam { .. } => "adam",
            Self::Ftrl { .. } => "ftrl",
        }
    }

    /// The names of its state, as in PyTorch.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd => &[],
            Self::Momentum { .. } => &["momentum_buffer"],
            Self::Adagrad { .. } | Self::RowwiseAdagrad { .. } => &["sum"],
            Self::Adam { .. } => &["exp_avg", "exp_avg_sq"],
            Self::Ftrl { .. } => &["z", "n"],
        }
    }

    /// Returns whether it keeps one number per row rather than one or two per element.
    pub fn is_rowwise(&self) -> bool {
        matches!(self, Self::RowwiseAdagrad { .. })
    }

    /// Elements of state for `dim` parameters; for a row if the rule keeps state per row.
    pub fn state_elements(&self, dim: usize) -> usize {
        match self {
            Self::Sgd => 0,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Momentum { .. } | Self::Adagrad { .. } => dim,
            Self::Adam { .. } | Self::Ftrl { .. } => 2 * dim,
        }
    }

    /// Sets the state of parameters that have not learned yet. If a rule keeps two numbers per parameter, all first
    /// numbers come first.
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

    /// Returns the optimizer at a step.
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
    /// The learning rate; divided by `1 - beta1^t` in step `t` for Adam.
    pub fn rate(&self) -> f32 {
        self.rate
    }

    /// `sqrt(1 - beta2^t)` in step `t` for Adam; 1 for other rules.
    pub fn root_correction(&self) -> f32 {
        self.root_correction
    }

    /// Updates `weights[i]` and its state from `gradient[i]`, the sum over the global batch. It is inlined into its
    /// callers, which are compiled for specific vector units (see [`crate::vectorized`]).
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
                    // With a gradient of 0 the quotient may be 0/0; the row must not move then.
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
                    // With no gradient so far and no damping, the weight keeps its initial value.
                    *weight = if divisor == 0.0 { *weight } else { moved };
                }
            }
        }
    }
}

impl Update {
    /// Applies [`UpdateRule::RowwiseAdagrad`] to a row, or to some of its columns; `mean_square` is over the whole
    /// row.
    ///
    /// # Panics
    /// With another rule, which does not keep one number per row.
    #[inline(always)]
    pub fn apply_rowwise(&self, weights: &mut [f32], state: &mut [f32], gradient: &[f32], mean_square: f32) {
        let UpdateRule::RowwiseAdagrad { epsilon, .. } = self.rule else {
            panic!("{:?} does not keep one number per row", self.rule);
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
    /// The sum of the squared gradients of a row's weights, or of some of its columns, including weight decay.
    pub fn row_squares(&self, weights: &[f32], gradient: &[f32]) -> f32 {
        sum_of_squares(weights, gradient, self.weight_decay)
    }
}

/// The sum of a row's squared gradients, including weight decay: first within lanes, then over the lanes.
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
