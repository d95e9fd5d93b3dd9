//! What the optimizers mean, element by element; dense parameters learn by the same rules.
//!
//! In a table the rules are lazy: a row that no id of the global batch names is untouched, weight and state. A row that
//! several ids name is updated once, with the sum of their gradients.

/// A rule by which parameters learn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UpdateRule {
    /// `w -= lr g`
    Sgd,
    /// `a += g²; w -= lr g / (sqrt(a) + epsilon)`, element by element (Duchi et al., 2011).
    Adagrad {
        /// Where `a` starts.
        initial_accumulator: f32,
        /// Keeps the first steps finite.
        epsilon: f32,
    },
}

impl UpdateRule {
    /// Elements of state for `dim` parameters.
    pub fn state_elements(&self, dim: usize) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Adagrad { .. } => dim,
        }
    }

    /// What state starts as.
    pub fn initial_state(&self) -> f32 {
        match self {
            Self::Sgd => 0.0,
            Self::Adagrad { initial_accumulator, .. } => *initial_accumulator,
        }
    }

    /// Updates `weights[i]` and its state from `gradient[i]`, the sum over the global batch.
    pub fn update(&self, learning_rate: f32, weights: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        match *self {
            Self::Sgd => {
                for (weight, &gradient) in weights.iter_mut().zip(gradient) {
                    *weight -= learning_rate * gradient;
                }
            }
            Self::Adagrad { epsilon, .. } => {
                for ((weight, accumulator), &gradient) in weights.iter_mut().zip(state).zip(gradient) {
                    *accumulator += gradient * gradient;
                    // Where the gradient is 0 the quotient may be 0/0; the row must not move then.
                    if gradient != 0.0 {
                        *weight -= learning_rate * gradient / (accumulator.sqrt() + epsilon);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adagrad_follows_its_formula_and_survives_zeros() {
        let rule = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 0.0 };
        let (mut weights, mut state) = ([1.0, 1.0], [0.0, 0.0]);
        rule.update(0.5, &mut weights, &mut state, &[3.0, 0.0]);
        assert_eq!((weights, state), ([0.5, 1.0], [9.0, 0.0]));
        rule.update(0.5, &mut weights, &mut state, &[4.0, 0.0]);
        assert_eq!((weights, state), ([0.5 - 0.5 * 4.0 / 5.0, 1.0], [25.0, 0.0]));
    }
}
