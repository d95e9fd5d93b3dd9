//! Compares the rules with steps computed by hand, and with the formulas of the papers in f64.

use super::*;
use crate::random::UniformField;

/// The unit roundoff of f32: each operation is off by at most this share of its result.
pub(crate) const ROUNDOFF: f64 = 1.0 / (1u64 << 24) as f64;

const RULES: [UpdateRule; 9] = [
    UpdateRule::Sgd,
    UpdateRule::Momentum { momentum: 0.9, nesterov: false },
    UpdateRule::Momentum { momentum: 0.9, nesterov: true },
    UpdateRule::Adagrad { initial_accumulator: 0.25, epsilon: 0.5 },
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.25, epsilon: 0.5 },
    UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 0.5 },
    UpdateRule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    UpdateRule::Ftrl { beta: 0.5, l1: 0.0, l2: 0.0 },
    UpdateRule::Ftrl { beta: 1.0, l1: 0.3, l2: 0.2 },
];

fn random(dim: usize, stream: u32) -> Vec<f32> {
    let mut values = vec![0.0; dim];
    UniformField::new(3, stream).fill_row(0, 1.0, &mut values);
    values
}

/// A row, or any number of parameters, that learns by the formulas of the papers in f64, at a constant rate.
pub(crate) struct F64Parameters {
    rule: UpdateRule,
    rate: f64,
    decay: f64,
    steps: i32,
    pub(crate) weights: Vec<f64>,
    /// The first state, one number per element: FTRL's `z` is the paper's.
    first: Vec<f64>,
    second: Vec<f64>,
    /// The largest magnitude of a weight so far.
    largest: f64,
}

impl F64Parameters {
    pub(crate) fn new(optimizer: Optimizer, rate_factor: f64, weights: &[f32]) -> Self {
        let Optimizer { rule, learning_rate, weight_decay } = optimizer;
        let rate = learning_rate * rate_factor;
        let weights: Vec<f64> = weights.iter().map(|&weight| f64::from(weight)).collect();
        let first = match rule {
            UpdateRule::Adagrad { initial_accumulator, .. }
            | UpdateRule::RowwiseAdagrad { initial_accumulator, .. } => {
                vec![f64::from(initial_accumulator); weights.len()]
            }
            // The paper starts from weights of 0. Here z starts with the value that yields the initial weights.
            UpdateRule::Ftrl { beta, .. } => {
                weights.iter().map(|weight| -weight * f64::from(beta) / rate).collect()
            }
            _ => vec![0.0; weights.len()],
        };
        let largest = weights.iter().fold(0.0, |most: f64, weight| most.max(weight.abs()));
        let (second, decay) = (vec![0.0; weights.len()], f64::from(weight_decay));
        Self { rule, rate, decay, steps: 0, weights, first, second, largest }
    }

    pub(crate) fn step(&mut self, gradient: &[f64]) {
        let Self { rule, rate, decay, .. } = *self;
        self.steps += 1;
        let (weights, first, second) = (&mut self.weights, &mut self.first, &mut self.second);
        let gradient: Vec<f64> = gradient.iter().zip(&*weights).map(|(g, w)| g + decay * w).collect();
        let mean_square = gradient.iter().map(|g| g * g).sum::<f64>() / gradient.len() as f64;
        for (i, &g) in gradient.iter().enumerate() {
            let w = weights[i];
            weights[i] = match rule {
                UpdateRule::Sgd => w - rate * g,
                UpdateRule::Momentum { momentum, nesterov } => {
                    let momentum = f64::from(momentum);
                    first[i] = momentum * first[i] + g;
                    w - rate * if nesterov { g + momentum * first[i] } else { first[i] }
                }
                UpdateRule::Adagrad { epsilon, .. } => {
                    first[i] += g * g;
                    w - rate * g / (first[i].sqrt() + f64::from(epsilon))
                }
                UpdateRule::RowwiseAdagrad { epsilon, .. } => {
                    first[i] += mean_square;
                    w - rate * g / (first[i].sqrt() + f64::from(epsilon))
                }
                UpdateRule::Adam { beta1, beta2, epsilon } => {
                    let (beta1, beta2) = (f64::from(beta1), f64::from(beta2));
                    first[i] = beta1 * first[i] + (1.0 - beta1) * g;
                    second[i] = beta2 * second[i] + (1.0 - beta2) * g * g;
                    let mean = first[i] / (1.0 - beta1.powi(self.steps));
                    let square = second[i] / (1.0 - beta2.powi(self.steps));
                    w - rate * mean / (square.sqrt() + f64::from(epsilon))
                }
                UpdateRule::Ftrl { beta, l1, l2 } => {
                    let (beta, l1, l2) = (f64::from(beta), f64::from(l1), f64::from(l2));
                    let sigma = ((second[i] + g * g).sqrt() - second[i].sqrt()) / rate;
                    first[i] += g - sigma * w;
                    second[i] += g * g;
                    let z = first[i];
                    if beta + second[i] + l2 == 0.0 {
                        w
                    } else if z.abs() <= l1 {
                        0.0
                    } else {
                        -(z - z.signum() * l1) / ((beta + second[i].sqrt()) / rate + l2)
                    }
                }
            };
            self.largest = self.largest.max(weights[i].abs());
        }
    }

    /// The error bound of f32 after the steps so far. A step rounds about ten times: a weight relative to its size,
    /// and what is subtracted from it, which is at most twice the largest weight. Momentum and decay propagate
    /// earlier errors, at most tenfold with the settings of these tests.
    pub(crate) fn tolerance(&self) -> f64 {
        f64::from(self.steps) * 30.0 * ROUNDOFF * self.largest.max(1.0)
    }

    #[track_caller]
    pub(crate) fn assert_near(&self, weights: &[f32], what: &str) {
        assert_eq!(weights.len(), self.weights.len());
        for (weight, exact) in weights.iter().zip(&self.weights) {
            let difference = (f64::from(*weight) - exact).abs();
            let (rule, steps) = (self.rule, self.steps);
            assert!(
                difference <= self.tolerance(),
                "{rule:?}, {what}, step {steps}: {weight} instead of {exact}, off by {difference:e}"
            );
        }
    }
}

/// The weight and state that a rule yields in each of some steps.
struct HandCase {
    rule: UpdateRule,
    weight_decay: f32,
    /// The initial weights.
    weights: &'static [f32],
    /// Per step: the gradients, and the weights and state that they yield.
    steps: &'static [(&'static [f32], &'static [f32], &'static [f32])],
}

/// Every number is exact in f32, and so is every result: nothing is rounded. The learning rate is 1/2.
const BY_HAND: [HandCase; 10] = [
    // With decay the gradient is 1 + 2/4; then 4 + 1.25/4.
    HandCase {
        rule: UpdateRule::Sgd,
        weight_decay: 0.25,
        weights: &[2.0],
        steps: &[(&[1.0], &[1.25], &[]), (&[4.0], &[1.25 - 2.15625], &[])],
    },
    // b = 2, then 2/2 + 1.5.
    HandCase {
        rule: UpdateRule::Momentum { momentum: 0.5, nesterov: false },
        weight_decay: 0.5,
        weights: &[2.0],
        steps: &[(&[1.0], &[1.0], &[2.0]), (&[1.0], &[-0.25], &[2.5])],
    },
    // b = 2, a step of 2 + 2/2; then b = 2/2 + 1.25, a step of 1.25 + 2.25/2.
    HandCase {
        rule: UpdateRule::Momentum { momentum: 0.5, nesterov: true },
        weight_decay: 0.5,
        weights: &[2.0],
        steps: &[(&[1.0], &[0.5], &[2.0]), (&[1.0], &[-0.6875], &[2.25])],
    },
    // a = 9 + 4², a step of 4 / (5 + 3); then a = 25 + 12², a step of 12 / (13 + 3).
    HandCase {
        rule: UpdateRule::Adagrad { initial_accumulator: 9.0, epsilon: 3.0 },
        weight_decay: 0.5,
        weights: &[2.0, -2.0],
        steps: &[
            (&[3.0, -3.0], &[1.75, -1.75], &[25.0, 25.0]),
            (&[11.125, -11.125], &[1.375, -1.375], &[169.0, 169.0]),
        ],
    },
    // Gradients with decay are 8, 0, 0, 0: their mean square is 16, a = 9 + 16, a step of 8 / (5 + 3). Then they are
    // all 12: a = 25 + 144, steps of 12 / (13 + 3).
    HandCase {
        rule: UpdateRule::RowwiseAdagrad { initial_accumulator: 9.0, epsilon: 3.0 },
        weight_decay: 0.5,
        weights: &[2.0, 0.0, -2.0, 4.0],
        steps: &[
            (&[7.0, 0.0, 1.0, -2.0], &[1.5, 0.0, -2.0, 4.0], &[25.0]),
            (&[11.25, 12.0, 13.0, 10.0], &[1.125, -0.375, -2.375, 3.625], &[169.0]),
        ],
    },
    // m = 2/2, v = 4/4; corrected they are 2 and 4: a step of 2 / (2 + 2).
    HandCase {
        rule: UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 2.0 },
        weight_decay: 0.5,
        weights: &[2.0, 0.0],
        steps: &[(&[1.0, 0.0], &[1.75, 0.0], &[1.0, 0.0, 1.0, 0.0])],
    },
    // z = 3/2, n = 9: -(1.5 - 0.75) / (1 + 3 + 2); z = 1.5 + 4/2 + (5 - 3)/8, n = 25: -(3.75 - 0.75) / (1 + 5 + 2).
    HandCase {
        rule: UpdateRule::Ftrl { beta: 1.0, l1: 1.5, l2: 4.0 },
        weight_decay: 0.0,
        weights: &[0.0, 0.0],
        steps: &[
            (&[3.0, -3.0], &[-0.125, 0.125], &[1.5, -1.5, 9.0, 9.0]),
            (&[4.0, -4.0], &[-0.375, 0.375], &[3.75, -3.75, 25.0, 25.0]),
        ],
    },
    // z starts as -5 · 2, and the step is Adagrad's: 3 / (5 + 3), 3 being the gradient with decay.
    HandCase {
        rule: UpdateRule::Ftrl { beta: 5.0, l1: 0.0, l2: 0.0 },
        weight_decay: 0.5,
        weights: &[2.0],
        steps: &[(&[2.0], &[2.0 - 0.1875], &[-10.0 + 1.5 - 6.0, 9.0])],
    },
    // |z| is 0.75 and at most lr l1: exactly 0.
    HandCase {
        rule: UpdateRule::Ftrl { beta: 1.0, l1: 1.5, l2: 0.0 },
        weight_decay: 0.0,
        weights: &[0.0, 0.0],
        steps: &[(&[1.5, -1.5], &[0.0, 0.0], &[0.75, -0.75, 2.25, 2.25])],
    },
    // Division by zero: parameters without a gradient stay.
    HandCase {
        rule: UpdateRule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
        weight_decay: 0.0,
        weights: &[3.0],
        steps: &[(&[0.0], &[3.0], &[0.0, 0.0])],
    },
];

#[test]
fn steps_are_those_computed_by_hand() {
    for HandCase { rule, weight_decay, weights, steps } in BY_HAND {
        let optimizer = Optimizer { rule, learning_rate: 2.0, weight_decay };
        let mut weights = weights.to_vec();
        let mut state = vec![f32::NAN; rule.state_elements(weights.len())];
        rule.initialize(&weights, &mut state);
        for (number, &(gradient, learnt, kept)) in (1..).zip(steps) {
            let step = Step { number, rate_factor: 0.25 };
            optimizer.at(step).apply(&mut weights, &mut state, gradient);
            assert_eq!(weights, learnt, "{rule:?}, step {number}");
            assert_eq!(state, kept, "{rule:?}, state of step {number}");
        }
    }
}

#[test]
fn adam_corrects_by_the_number_of_the_step() {
    let rule = UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.0 };
    let optimizer = Optimizer { rule, learning_rate: 3.5, weight_decay: 0.0 };
    // 1 - 0.5^3 = 7/8 and 1 - 0.75^2 = 7/16.
    assert_eq!(optimizer.at(Step { number: 3, rate_factor: 0.5 }).rate(), 2.0);
    let root = optimizer.at(Step { number: 2, rate_factor: 1.0 }).root_correction();
    assert_eq!(root, 0.4375f64.sqrt() as f32);
    let sgd = Optimizer::sgd(3.0).at(Step { number: 3, rate_factor: 0.5 });
    assert_eq!((sgd.rate(), sgd.root_correction()), (1.5, 1.0));
}

#[test]
fn every_rule_equals_its_formula_over_many_steps() {
    for rule in RULES {
        for (dim, weight_decay) in [(1, 0.0), (5, 0.0), (16, 0.01), (37, 0.01)] {
            let mut weights = random(dim, 0);
            let mut state = vec![f32::NAN; rule.state_elements(dim)];
            rule.initialize(&weights, &mut state);
            let optimizer = Optimizer { rule, learning_rate: 0.125, weight_decay };
            let mut exact = F64Parameters::new(optimizer, 1.0, &weights);
            for number in 1..=20 {
                let gradient = random(dim, number);
                let step = Step { number: u64::from(number), rate_factor: 1.0 };
                optimizer.at(step).apply(&mut weights, &mut state, &gradient);
                exact.step(&gradient.iter().map(|&g| f64::from(g)).collect::<Vec<_>>());
                exact.assert_near(&weights, &format!("{dim} elements, decay {weight_decay}"));
            }
        }
    }
}

/// Without regularization FTRL takes Adagrad's steps, with `beta` for epsilon, whatever the schedule does.
#[test]
fn a_schedule_changes_the_steps_of_ftrl_and_not_its_weights() {
    let rule = UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 };
    let (mut weights, mut state) = (random(8, 0), vec![0.0; 16]);
    rule.initialize(&weights, &mut state);
    let mut exact: Vec<f64> = weights.iter().map(|&weight| f64::from(weight)).collect();
    let mut squares = [0.0; 8];
    for number in 1..=20u32 {
        let (gradient, rate_factor) = (random(8, number), f64::from(number % 7) / 3.0);
        let step = Step { number: u64::from(number), rate_factor };
        Optimizer { rule, learning_rate: 0.125, weight_decay: 0.0 }.at(step).apply(
            &mut weights,
            &mut state,
            &gradient,
        );
        for ((exact, square), &gradient) in exact.iter_mut().zip(&mut squares).zip(&gradient) {
            let gradient = f64::from(gradient);
            *square += gradient * gradient;
            *exact -= 0.125 * rate_factor * gradient / (1.0 + square.sqrt());
        }
    }
    for (weight, exact) in weights.iter().zip(exact) {
        // 20 steps of about ten roundings of numbers below 5.
        assert!((f64::from(*weight) - exact).abs() <= 1000.0 * ROUNDOFF, "{weight} {exact}");
    }
}

#[test]
fn zeros_and_broken_numbers() {
    for rule in [
        UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 0.0 },
        UpdateRule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    ] {
        let optimizer = Optimizer { rule, learning_rate: 0.125, weight_decay: 0.0 };
        let update = optimizer.at(Step { number: 1, rate_factor: 1.0 });
        let mut state = vec![0.0; rule.state_elements(2)];
        let mut weights = [0.0, 0.0];
        update.apply(&mut weights, &mut state, &[0.0, 0.0]);
        assert_eq!(weights, [0.0, 0.0], "{rule:?}");
        update.apply(&mut weights, &mut state, &[f32::NAN, f32::NAN]);
        assert!(weights.iter().all(|weight| weight.is_nan()), "{rule:?}");
    }
}

/// A row whose columns several ranks own: its parts learn as the whole does, from the mean square over the whole row.
#[test]
fn parts_of_a_row_learn_with_the_mean_square_of_all_of_it() {
    let rule = UpdateRule::RowwiseAdagrad { initial_accumulator: 9.0, epsilon: 3.0 };
    let optimizer = Optimizer { rule, learning_rate: 0.5, weight_decay: 0.5 };
    let (weights, gradient) = ([2.0, 0.0, -2.0, 4.0], [7.0, 0.0, 1.0, 6.0]);
    // With decay 8, 0, 0, 8.
    assert_eq!(optimizer.row_squares(&weights[..3], &gradient[..3]), 64.0);
    assert_eq!(optimizer.row_squares(&weights[3..], &gradient[3..]), 64.0);
    let update = optimizer.at(Step { number: 1, rate_factor: 1.0 });
    // If the mean square of the whole were 16, a = 25 and steps are 8 / (5 + 3) of the rate.
    let (mut part, mut state) = ([-2.0, 4.0], [9.0]);
    update.apply_rowwise(&mut part, &mut state, &gradient[2..], 16.0);
    assert_eq!((part, state), ([-2.0, 3.5], [25.0]));
}
