//! Attention in f64 as its formula says, with bounds of the errors that the kernels may make.
//!
//! Each number carries a bound of the distance to what a kernel has instead. A rounding adds its share of the result; a
//! sum of `n` terms, in whatever order, differs by at most `n` roundings of the sum of the magnitudes. Products carry
//! the errors of their factors. A ReLU passes errors on; where its input is closer to 0 than its error, the gradient
//! may be there or not, which is an error of its own size.

use crate::F32_ROUNDING;

/// A number, and how far a kernel's may be from it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Near {
    pub(super) value: f64,
    pub(super) error: f64,
}

impl Near {
    pub(super) const ONE: Self = Self::exact(1.0);

    pub(super) const fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    pub(super) fn times(self, other: Self) -> Self {
        let value = self.value * other.value;
        let of_factors =
            self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error;
        Self { value, error: of_factors + F32_ROUNDING * (value.abs() + of_factors) }
    }

    pub(super) fn negative(self) -> Self {
        Self { value: -self.value, ..self }
    }

    /// Rounds it to a type with this rounding.
    pub(super) fn rounded(self, rounding: f64) -> Self {
        Self { error: self.error + rounding * (self.value.abs() + self.error), ..self }
    }

    /// Sums terms in any order.
    pub(super) fn sum(terms: impl IntoIterator<Item = Self>) -> Self {
        let (mut sum, mut magnitudes, mut count) = (Self::default(), 0.0, 0.0);
        for term in terms {
            sum.value += term.value;
            sum.error += term.error;
            magnitudes += term.value.abs() + term.error;
            count += 1.0;
        }
        Self { error: sum.error + count * F32_ROUNDING * magnitudes, ..sum }
    }

    /// `expf` is within two units in the last place, four roundings.
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, error: value * (self.error.exp_m1() + 4.0 * F32_ROUNDING * self.error.exp()) }
    }

    fn divided_by(self, other: Self) -> Self {
        let value = self.value / other.value;
        let relative = (self.error / self.value.abs().max(f64::MIN_POSITIVE)
            + other.error / other.value.abs())
            / (1.0 - other.error / other.value.abs());
        Self { value, error: value.abs() * (relative + 4.0 * F32_ROUNDING) }
    }
}

/// How positions are weighed.
#[derive(Debug, Clone)]
pub(super) enum Unit {
    /// Layers with their W, `[outputs][inputs]`, and b.
    Din(Vec<DinLayer>),
    Dot {
        scale: f64,
    },
    Mean,
}

/// A layer of an activation unit, as the kernels have it.
#[derive(Debug, Clone)]
pub(super) struct DinLayer {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) weights: Vec<f64>,
    pub(super) bias: Vec<f64>,
}

impl DinLayer {
    fn weight(&self, output: usize, input: usize) -> Near {
        Near::exact(self.weights[output * self.inputs + input])
    }
}

/// A sample's query, keys and the gradient with respect to its sum.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) query: Vec<Near>,
    pub(super) keys: Vec<Vec<Near>>,
    pub(super) gradient: Vec<Near>,
}

/// What attention makes of a sample.
#[derive(Debug)]
pub(super) struct Attended {
    pub(super) sum: Vec<Near>,
    pub(super) d_query: Vec<Near>,
    pub(super) d_keys: Vec<Vec<Near>>,
    /// Per layer those with respect to W and b.
    pub(super) d_layers: Vec<(Vec<Near>, Vec<Near>)>,
}

fn dot<'a>(a: impl IntoIterator<Item = &'a Near>, b: impl IntoIterator<Item = &'a Near>) -> Near {
    Near::sum(a.into_iter().zip(b).map(|(a, b)| a.times(*b)))
}

impl Sample {
    /// `rounding` is the share by which kernels round between layers: sums of the first layer's W, its matrix, outputs
    /// and their gradients. The weights of positions become sums of two rounded numbers. Gradients with respect to
    /// layers are sums over `count` positions and samples in all.
    pub(super) fn attend(&self, unit: &Unit, rounding: f64, count: usize) -> Attended {
        let width = self.query.len();
        let (weights, outputs) = match unit {
            Unit::Mean => {
                let share = Near::ONE.divided_by(Near::exact(self.keys.len() as f64));
                (vec![share; self.keys.len()], Vec::new())
            }
            Unit::Dot { scale } => {
                let scale = Near::exact(*scale).rounded(F32_ROUNDING);
                let scores: Vec<_> = self.keys.iter().map(|key| dot(&self.query, key).times(scale)).collect();
                let most = scores.iter().map(|score| score.value).fold(f64::NEG_INFINITY, f64::max);
                // The same number is subtracted from all scores: its error cancels.
                let exps: Vec<_> = scores
                    .iter()
                    .map(|score| {
                        let difference = Near { value: score.value - most, ..*score };
                        difference.rounded(F32_ROUNDING).exp()
                    })
                    .collect();
                let all = Near::sum(exps.iter().copied());
                (exps.into_iter().map(|exp| exp.divided_by(all)).collect(), Vec::new())
            }
            Unit::Din(layers) => {
                let outputs: Vec<_> =
                    self.keys.iter().map(|key| self.outputs(layers, key, rounding)).collect();
                let last = |outputs: &Vec<Vec<Near>>| outputs[layers.len() - 1][0];
                (outputs.iter().map(last).collect(), outputs)
            }
        };
        let rounded: Vec<_> = weights.iter().map(|weight| weight.rounded(rounding * rounding)).collect();
        let of_element =
            |d: usize| Near::sum(self.keys.iter().zip(&rounded).map(|(key, weight)| key[d].times(*weight)));
        let sum = (0..width).map(of_element).collect();
        let of_weights: Vec<_> = self.keys.iter().map(|key| dot(key, &self.gradient)).collect();
        let direct: Vec<Vec<_>> =
            weights.iter().map(|weight| self.gradient.iter().map(|g| g.times(*weight)).collect()).collect();
        let (mut d_query, mut d_keys, mut d_layers) = (vec![Near::default(); width], direct, Vec::new());
        match unit {
            Unit::Mean => {}
            Unit::Dot { scale } => {
                let mean = dot(&weights, &of_weights);
                let scale = Near::exact(*scale).rounded(F32_ROUNDING);
                let of_score = |(weight, gradient): (&Near, &Near)| {
                    weight.times(Near::sum([*gradient, mean.negative()])).times(scale)
                };
                let scores: Vec<_> = weights.iter().zip(&of_weights).map(of_score).collect();
                for (d, out) in d_query.iter_mut().enumerate() {
                    *out = Near::sum(self.keys.iter().zip(&scores).map(|(key, score)| key[d].times(*score)));
                }
                for (d_key, score) in d_keys.iter_mut().zip(&scores) {
                    for (out, query) in d_key.iter_mut().zip(&self.query) {
                        *out = Near::sum([*out, query.times(*score)]);
                    }
                }
            }
            Unit::Din(layers) => {
                d_layers = self.through_unit(
                    layers,
                    &outputs,
                    &of_weights,
                    (rounding, count),
                    (&mut d_query, &mut d_keys),
                );
            }
        }
        Attended { sum, d_query, d_keys, d_layers }
    }

    /// The outputs of all layers for a key. The first layer's sum has a term for each product of its formula, so that
    /// its magnitudes bound the kernels' form, too: W k + c with the sample's matrix and constant.
    fn outputs(&self, layers: &[DinLayer], key: &[Near], rounding: f64) -> Vec<Vec<Near>> {
        let width = key.len();
        let mut all: Vec<Vec<Near>> = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            let last = number + 1 == layers.len();
            let output = |j: usize| {
                let bias = Near::exact(layer.bias[j]);
                let sum = match number {
                    0 => {
                        let terms = (0..width).flat_map(|d| {
                            let (query, key) = (self.query[d], key[d]);
                            let weight = |piece: usize| layer.weight(j, piece * width + d);
                            let combined = |term: Near| term.rounded(rounding);
                            let matrix = |term: Near| term.rounded(rounding + 3.0 * F32_ROUNDING);
                            [
                                combined(weight(0)).times(query),
                                matrix(combined(weight(1))).times(key),
                                combined(weight(2)).times(query),
                                matrix(combined(weight(2).negative())).times(key),
                                matrix(weight(3).times(query)).times(key),
                            ]
                        });
                        Near::sum(terms.chain([bias]))
                    }
                    _ => {
                        let terms =
                            all[number - 1].iter().enumerate().map(|(i, x)| layer.weight(j, i).times(*x));
                        Near::sum(terms.chain([bias]))
                    }
                };
                if last {
                    return sum;
                }
                match sum {
                    // Off, whatever the error.
                    Near { value, error } if value < -error => Near::default(),
                    Near { value, .. } => Near { value: value.max(0.0), ..sum }.rounded(rounding),
                }
            };
            let outputs = (0..layer.outputs).map(output).collect();
            all.push(outputs);
        }
        all
    }

    /// Returns the gradients with respect to the layers, from those with respect to the weights of positions, and adds
    /// those with respect to query and keys.
    fn through_unit(
        &self,
        layers: &[DinLayer],
        outputs: &[Vec<Vec<Near>>],
        of_weights: &[Near],
        (rounding, count): (f64, usize),
        (d_query, d_keys): (&mut [Near], &mut [Vec<Near>]),
    ) -> Vec<(Vec<Near>, Vec<Near>)> {
        let width = self.query.len();
        let of_positions: Vec<_> = of_weights
            .iter()
            .zip(outputs)
            .map(|(gradient, outputs)| deltas(layers, outputs, *gradient, rounding))
            .collect();
        let first = &layers[0];
        let mut query_terms = vec![Vec::new(); width];
        for ((deltas, key), d_key) in of_positions.iter().zip(&self.keys).zip(d_keys) {
            for d in 0..width {
                let mut terms = vec![d_key[d]];
                for (j, delta) in deltas[0].iter().enumerate() {
                    let weight = |piece: usize| first.weight(j, piece * width + d);
                    let combined = |term: Near| term.rounded(rounding);
                    let matrix = |term: Near| term.rounded(rounding + 3.0 * F32_ROUNDING);
                    terms.extend([
                        matrix(combined(weight(1))).times(*delta),
                        matrix(combined(weight(2).negative())).times(*delta),
                        matrix(weight(3).times(self.query[d])).times(*delta),
                    ]);
                    query_terms[d].extend([
                        combined(weight(0)).times(*delta),
                        combined(weight(2)).times(*delta),
                        weight(3).times(key[d].times(*delta)),
                    ]);
                }
                d_key[d] = Near::sum(terms);
            }
        }
        for (out, terms) in d_query.iter_mut().zip(query_terms) {
            *out = Near::sum(terms);
        }
        let of_layer = |(number, layer): (usize, &DinLayer)| {
            let input = |position: usize, i: usize| match number {
                0 => {
                    let (query, key) = (self.query[i % width], self.keys[position][i % width]);
                    match i / width {
                        0 => query,
                        1 => key,
                        // As large as its terms, which kernels sum apart.
                        2 => {
                            let value = query.value - key.value;
                            let magnitude = query.value.abs() + key.value.abs();
                            Near { value, error: 4.0 * F32_ROUNDING * magnitude }
                        }
                        _ => query.times(key),
                    }
                }
                _ => outputs[position][number - 1][i],
            };
            let positions = 0..self.keys.len();
            let of_all = |sum: Near, magnitudes: f64| Near {
                error: sum.error + count as f64 * F32_ROUNDING * magnitudes,
                ..sum
            };
            // The parts of a difference are summed apart, so their sums' errors follow from its terms.
            let extra = |position: usize, i: usize| match (number, i / width) {
                (0, 2) => self.query[i % width].value.abs() + self.keys[position][i % width].value.abs(),
                _ => 0.0,
            };
            let weight = |at: usize| {
                let (j, i) = (at / layer.inputs, at % layer.inputs);
                let term = |position: usize| of_positions[position][number][j].times(input(position, i));
                let apart =
                    |position: usize| of_positions[position][number][j].value.abs() * extra(position, i);
                of_all(
                    Near::sum(positions.clone().map(term)),
                    positions.clone().map(|at| term(at).value.abs() + apart(at)).sum(),
                )
            };
            let bias = |j: usize| {
                let delta = |position: usize| of_positions[position][number][j];
                of_all(
                    Near::sum(positions.clone().map(delta)),
                    positions.clone().map(|at| delta(at).value.abs()).sum(),
                )
            };
            let weights = (0..layer.outputs * layer.inputs).map(weight).collect();
            (weights, (0..layer.outputs).map(bias).collect())
        };
        layers.iter().enumerate().map(of_layer).collect()
    }
}

/// The gradients with respect to the sums of each layer.
fn deltas(layers: &[DinLayer], outputs: &[Vec<Near>], gradient: Near, rounding: f64) -> Vec<Vec<Near>> {
    let mut all = vec![vec![gradient.rounded(rounding)]];
    for number in (1..layers.len()).rev() {
        let layer = &layers[number];
        let after = &all[0];
        let of_input = |i: usize| {
            let sum = Near::sum(after.iter().enumerate().map(|(j, delta)| layer.weight(j, i).times(*delta)));
            let sum = sum.rounded(rounding);
            match outputs[number - 1][i] {
                // Either way.
                Near { value, error } if value <= error && error > 0.0 => {
                    let whole = sum.value.abs() + sum.error;
                    Near { value: if value > 0.0 { sum.value } else { 0.0 }, error: whole }
                }
                Near { value, .. } if value > 0.0 => sum,
                _ => Near::default(),
            }
        };
        let before = (0..layer.inputs).map(of_input).collect();
        all.insert(0, before);
    }
    all
}
