//! The update of the dense parameters.

use rankine_embedding::{Optimizer, Step, Update, vectorized};
use rayon::prelude::*;

/// Dense parameters per task.
const PARAMETERS_PER_TASK: usize = 1 << 14;

/// The optimizer of the dense parameters, with its state.
#[derive(Debug)]
pub(super) struct DenseOptimizer {
    optimizer: Optimizer,
    /// One entry per task.
    state: Vec<Vec<f32>>,
}

impl DenseOptimizer {
    /// Creates fresh state for these parameters.
    ///
    /// # Panics
    /// If the rule is only for table rows.
    pub(super) fn new(optimizer: Optimizer, parameters: &[f32]) -> Self {
        let rule = optimizer.rule;
        assert!(!rule.is_rowwise(), "dense parameters have no rows");
        let state = parameters.chunks(PARAMETERS_PER_TASK).map(|parameters| {
            let mut state = vec![0.0; rule.state_elements(parameters.len())];
            rule.initialize(parameters, &mut state);
            state
        });
        Self { optimizer, state: state.collect() }
    }

    /// Returns the optimizer's state: for each kind, one number per parameter.
    pub(super) fn state(&self) -> Vec<Vec<f32>> {
        let kinds = self.optimizer.rule.state_names().len();
        let kind = |kind| {
            let of_task = |state: &Vec<f32>| state.chunks(state.len() / kinds).nth(kind).map(<[f32]>::to_vec);
            self.state.iter().filter_map(of_task).flatten().collect()
        };
        (0..kinds).map(kind).collect()
    }

    /// Sets the optimizer's state, in the form that [`DenseOptimizer::state`] returns.
    ///
    /// # Panics
    /// If the number of kinds or parameters differs.
    pub(super) fn set_state(&mut self, kinds: &[&[f32]]) {
        assert_eq!(kinds.len(), self.optimizer.rule.state_names().len(), "the state of this rule");
        let mut begin = 0;
        for state in &mut self.state {
            let len = state.len() / kinds.len().max(1);
            for (own, kind) in state.chunks_exact_mut(len.max(1)).zip(kinds) {
                own.copy_from_slice(&kind[begin..begin + len]);
            }
            begin += len;
        }
    }

    /// Updates the parameters from their gradients times `scale`.
    pub(super) fn update(&mut self, parameters: &mut [f32], gradients: &mut [f32], scale: f32, step: Step) {
        let update = self.optimizer.at(step);
        let parameters = parameters.par_chunks_mut(PARAMETERS_PER_TASK);
        let gradients = gradients.par_chunks_mut(PARAMETERS_PER_TASK);
        parameters.zip(gradients).zip(&mut self.state).for_each(|((parameters, gradients), state)| {
            update_piece(update, scale, parameters, state, gradients);
        });
    }
}

vectorized! {
    fn update_piece(
        update: Update,
        scale: f32,
        parameters: &mut [f32],
        state: &mut [f32],
        gradients: &mut [f32],
    ) {
        if scale != 1.0 {
            gradients.iter_mut().for_each(|gradient| *gradient *= scale);
        }
        update.apply(parameters, state, gradients);
    }
}

/// Returns the factor that limits gradients of this squared norm to the norm `longest`, as
/// `torch.nn.utils.clip_grad_norm_` does.
pub(super) fn clip_scale(squared_norm: f64, longest: f32) -> f32 {
    let scale = f64::from(longest) / (squared_norm.sqrt() + 1e-6);
    if scale >= 1.0 { 1.0 } else { scale as f32 }
}

/// Returns the sum of the gradients' squares, in f64 and in a fixed order.
pub(super) fn squared_norm(gradients: &[f32]) -> f64 {
    let of_tasks: Vec<f64> = gradients
        .par_chunks(PARAMETERS_PER_TASK)
        .map(|gradients| {
            let mut sum = 0.0;
            add_squares(gradients, &mut sum);
            sum
        })
        .collect();
    of_tasks.iter().sum()
}

vectorized! {
    /// Sums per lane first, then over the lanes.
    fn add_squares(values: &[f32], sum: &mut f64) {
        const LANES: usize = 16;
        let mut sums = [0.0; LANES];
        for values in values.chunks(LANES) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        *sum += sums.iter().sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::random::UniformField;

    use rankine_embedding::UpdateRule;

    use super::*;

    /// Three tasks, the last one short.
    const PARAMETERS: usize = 2 * PARAMETERS_PER_TASK + 77;

    fn random(stream: u32) -> Vec<f32> {
        let mut values = vec![0.0; PARAMETERS];
        UniformField::new(3, stream).fill_row(0, 1.0, &mut values);
        values
    }

    #[test]
    fn gradients_are_shortened_to_the_longest_norm_and_never_lengthened() {
        assert_eq!(clip_scale(25.0, 10.0), 1.0);
        assert_eq!(clip_scale(25.0, 5.1), 1.0);
        assert_eq!(clip_scale(25.0, 2.5), (2.5 / (5.0 + 1e-6)) as f32);
        assert_eq!(clip_scale(0.0, 1.0), 1.0);
    }

    #[test]
    fn the_norm_covers_all_gradients() {
        let gradients = random(1);
        let exact: f64 = gradients.iter().map(|&gradient| f64::from(gradient).powi(2)).sum();
        // The same additions in f64, in another order.
        assert!((squared_norm(&gradients) - exact).abs() <= 1e-11 * exact);
        assert_eq!(squared_norm(&[3.0, -4.0]), 25.0);
    }

    /// Parameters of several tasks learn as if they were one, from gradients times the scale; and from the state that
    /// another optimizer saved they continue as that one would.
    #[test]
    fn tasks_learn_as_one_and_their_state_can_be_moved() {
        for rule in [
            UpdateRule::Momentum { momentum: 0.5, nesterov: false },
            UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.5 },
            UpdateRule::Ftrl { beta: 1.0, l1: 0.1, l2: 0.1 },
            UpdateRule::Sgd,
        ] {
            let optimizer = Optimizer { rule, learning_rate: 0.125, weight_decay: 0.25 };
            let mut parameters = random(0);
            let mut own = DenseOptimizer::new(optimizer, &parameters);
            let mut expected = parameters.clone();
            let mut state = vec![f32::NAN; rule.state_elements(PARAMETERS)];
            rule.initialize(&expected, &mut state);
            for number in 1..=3u32 {
                let step = Step { number: u64::from(number), rate_factor: 0.5 };
                let gradients: Vec<f32> = random(number);
                let halves: Vec<f32> = gradients.iter().map(|gradient| 0.5 * gradient).collect();
                optimizer.at(step).apply(&mut expected, &mut state, &halves);
                own.update(&mut parameters, &mut gradients.clone(), 0.5, step);
                assert!(parameters == expected, "{rule:?}, step {number}");
                assert!(own.state().concat() == state, "{rule:?}, state of step {number}");
                let kinds = own.state();
                own = DenseOptimizer::new(optimizer, &random(9));
                own.set_state(&kinds.iter().map(Vec::as_slice).collect::<Vec<_>>());
            }
        }
    }
}
