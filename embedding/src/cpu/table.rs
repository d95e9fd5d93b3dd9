//! A table's rows in host memory, and their update.

use rayon::prelude::*;

use super::deduplicate::Route;
use super::pool::Feature;
use crate::optimizer::{Optimizer, Step, Update, UpdateRule};
use crate::random::UniformField;
use crate::table::TableSpec;

/// Rows start at multiples of 16 bytes.
const ALIGN_ELEMENTS: usize = 4;
/// Gradients of one row are summed in runs of this many, and the runs' sums in order: a row that every sample of a
/// large batch names would otherwise lose the small gradients to rounding.
const SUM_RUN: usize = 64;
/// Distinct rows that one task updates; it does not depend on the number of threads, nor does any result.
const ROWS_PER_TASK: usize = 128;

/// An embedding table in host memory: each row's optimizer state lies right behind its weights.
#[derive(Debug, Clone)]
pub struct Table {
    spec: TableSpec,
    optimizer: Optimizer,
    stride: usize,
    data: Vec<f32>,
}

impl Table {
    /// A table of zeros, with the state that zeros start with. Elements are counted in 64 bits; memory is
    /// rows x (weights + state), 4 bytes each.
    pub fn zeroed(spec: TableSpec, optimizer: Optimizer) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = vec![0.0; spec.rows as usize * stride];
        let mut table = Self { spec, optimizer, stride, data };
        let mut state = vec![0.0; optimizer.rule.state_elements(table.spec.dim)];
        optimizer.rule.initialize(&vec![0.0; table.spec.dim], &mut state);
        // Memory that was never written takes none.
        if state.iter().any(|state| *state != 0.0) {
            table.fill(|_, _| {});
        }
        table
    }

    /// A table as training starts with it: uniform weights within [`TableSpec::initial_bound`], a function of seed,
    /// table number, row and column alone.
    pub fn initialized(spec: TableSpec, optimizer: Optimizer, seed: u64, number: u32) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = vec![0.0; spec.rows as usize * stride];
        let (field, bound) = (UniformField::new(seed, number), spec.initial_bound());
        let mut table = Self { spec, optimizer, stride, data };
        table.fill(|row, weights| field.fill_row(row, bound, weights));
        table
    }

    /// Lets `fill` set the weights of every row, and sets the state that goes with them.
    fn fill(&mut self, fill: impl Fn(u64, &mut [f32]) + Sync) {
        let (dim, rule) = (self.spec.dim, self.optimizer.rule);
        self.data.par_chunks_exact_mut(self.stride).enumerate().for_each(|(row, data)| {
            let (weights, state) = data.split_at_mut(dim);
            fill(row as u64, weights);
            rule.initialize(weights, &mut state[..rule.state_elements(dim)]);
        });
    }

    /// Bytes that a table takes.
    pub fn bytes(spec: &TableSpec, rule: UpdateRule) -> u64 {
        spec.rows * (stride(spec, rule) * size_of::<f32>()) as u64
    }

    /// What the table is.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The weights of a row.
    pub fn weights(&self, row: u64) -> &[f32] {
        let start = row as usize * self.stride;
        &self.data[start..start + self.spec.dim]
    }

    /// The weights of a row, to be set; its state is not.
    pub fn weights_mut(&mut self, row: u64) -> &mut [f32] {
        let start = row as usize * self.stride;
        &mut self.data[start..start + self.spec.dim]
    }

    /// Updates every distinct row of a batch once, from the gradients of the pooled vectors.
    ///
    /// `route` was built from `features`; in `gradients` each feature's lie where its slot says.
    pub fn update(&mut self, route: &Route, features: &[Feature<'_>], gradients: &[f32], step: Step) {
        let task = UpdateTask {
            dim: self.spec.dim,
            state_elements: self.optimizer.rule.state_elements(self.spec.dim),
            stride: self.stride,
            update: self.optimizer.at(step),
            route,
            features,
            gradients,
        };
        task.run(0..route.rows.len(), 0, &mut self.data);
    }
}

/// Elements from one row to the next.
fn stride(spec: &TableSpec, rule: UpdateRule) -> usize {
    (spec.dim + rule.state_elements(spec.dim)).next_multiple_of(ALIGN_ELEMENTS)
}

/// All that updating a range of distinct rows takes, but the rows.
struct UpdateTask<'a> {
    dim: usize,
    state_elements: usize,
    stride: usize,
    update: Update,
    route: &'a Route,
    features: &'a [Feature<'a>],
    gradients: &'a [f32],
}

impl UpdateTask<'_> {
    /// Updates the distinct rows `range`; `data` holds the table from row `first_row` on. Distinct rows ascend, so that
    /// halves of a range lie in disjoint pieces of the table, which threads own one each.
    fn run(&self, range: std::ops::Range<usize>, first_row: u64, data: &mut [f32]) {
        if range.len() <= ROWS_PER_TASK {
            let mut sums = vec![0.0; 2 * self.dim];
            for index in range {
                let start = (self.route.rows[index] - first_row) as usize * self.stride;
                self.update_row(index, &mut data[start..start + self.stride], &mut sums);
            }
            return;
        }
        let middle = range.start + range.len() / 2;
        let row = self.route.rows[middle];
        let (low, high) = data.split_at_mut((row - first_row) as usize * self.stride);
        rayon::join(
            || self.run(range.start..middle, first_row, low),
            || self.run(middle..range.end, row, high),
        );
    }

    fn update_row(&self, index: usize, row: &mut [f32], sums: &mut [f32]) {
        let (total, run_sum) = sums.split_at_mut(self.dim);
        total.fill(0.0);
        let mut bags = self.route.bags_of(index);
        while bags.len() > 0 {
            run_sum.fill(0.0);
            for bag in bags.by_ref().take(SUM_RUN) {
                let Feature { bags, pooling, slot } = &self.features[bag.feature];
                let start = bag.sample * slot.stride + slot.offset;
                let scale = pooling.scale(bags.bag(bag.sample).len());
                let gradient = &self.gradients[start..start + self.dim];
                run_sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient * scale);
            }
            total.iter_mut().zip(&*run_sum).for_each(|(total, sum)| *total += sum);
        }
        let (weights, state) = row.split_at_mut(self.dim);
        self.update.apply(weights, &mut state[..self.state_elements], total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Pooling;
    use proptest::prelude::*;

    /// Look-up and update of one table in f64, one id at a time: nothing shared with what is tested.
    fn oracle_step(
        weights: &mut [Vec<f64>],
        bags: &[Vec<u64>],
        gradients: &[Vec<f64>],
        mean: bool,
        learning_rate: f64,
        adagrad: Option<&mut [Vec<f64>]>,
    ) -> Vec<Vec<f64>> {
        let dim = weights[0].len();
        let scale = |bag: &Vec<u64>| if mean { 1.0 / bag.len().max(1) as f64 } else { 1.0 };
        let pooled = bags
            .iter()
            .map(|bag| {
                (0..dim)
                    .map(|i| bag.iter().map(|&row| weights[row as usize][i]).sum::<f64>() * scale(bag))
                    .collect()
            })
            .collect();
        let mut sums = vec![vec![0.0; dim]; weights.len()];
        for (bag, gradient) in bags.iter().zip(gradients) {
            for &row in bag {
                for i in 0..dim {
                    sums[row as usize][i] += gradient[i] * scale(bag);
                }
            }
        }
        let mut state = adagrad;
        for (row, sum) in sums.iter().enumerate() {
            for i in 0..dim {
                if let Some(state) = &mut state {
                    state[row][i] += sum[i] * sum[i];
                    if sum[i] != 0.0 {
                        weights[row][i] -= learning_rate * sum[i] / (state[row][i].sqrt() + 1e-3);
                    }
                } else {
                    weights[row][i] -= learning_rate * sum[i];
                }
            }
        }
        pooled
    }

    proptest! {
        #[test]
        fn look_up_and_update_equal_the_oracle(
            bags in prop::collection::vec(prop::collection::vec(0..9u64, 0..5), 1..300),
            dim in 1..7usize,
            mean in any::<bool>(),
            adagrad in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let pooling = if mean { Pooling::Mean } else { Pooling::Sum };
            let spec = TableSpec { name: "C1".into(), rows: 9, dim, pooling };
            let optimizer = if adagrad {
                UpdateRule::Adagrad { initial_accumulator: 0.25, epsilon: 1e-3 }
            } else {
                UpdateRule::Sgd
            };
            let mut table = Table::initialized(spec, optimizer, seed, 5);
            let mut weights: Vec<Vec<f64>> =
                (0..9).map(|row| table.weights(row).iter().map(|&weight| f64::from(weight)).collect()).collect();
            let mut state = vec![vec![0.25; dim]; 9];
            let ids: Vec<u64> = bags.iter().flatten().copied().collect();
            let mut offsets = vec![0];
            offsets.extend(bags.iter().scan(0, |end, bag| { *end += bag.len() as u32; Some(*end) }));
            let batch = Bags { offsets: &offsets, ids: &ids };
            let slot = FeatureSlot { stride: dim + 3, offset: 2 };
            let mut route = Route::default();

            for step in 0..3u64 {
                let mut features = vec![f32::NAN; bags.len() * slot.stride];
                table.pool(batch, 0, slot, &mut features);
                let mut gradients = vec![f32::NAN; bags.len() * slot.stride];
                for bag in 0..bags.len() {
                    let gradient = &mut gradients[bag * slot.stride + 2..][..dim];
                    UniformField::new(seed, 77).fill_row(step << 32 | bag as u64, 1.0, gradient);
                }
                route.build(batch, 9);
                table.update(&route, batch, &gradients, slot, 0.1);

                let wide = |bag: usize, of: &[f32]| -> Vec<f64> {
                    of[bag * slot.stride + 2..][..dim].iter().map(|&value| f64::from(value)).collect()
                };
                let expected_gradients: Vec<_> = (0..bags.len()).map(|bag| wide(bag, &gradients)).collect();
                let state = adagrad.then_some(state.as_mut_slice());
                let pooled = oracle_step(&mut weights, &bags, &expected_gradients, mean, 0.1, state);
                // At most 5 rows below 2 are summed: 5 roundings of at most 2^-24 x 10, and those of earlier steps.
                for (bag, pooled) in pooled.iter().enumerate() {
                    for (value, expected) in wide(bag, &features).iter().zip(pooled) {
                        prop_assert!((value - expected).abs() <= 1e-4, "{value} {expected}");
                    }
                }
            }
            // A sum of up to 1500 gradients below 1, in runs of 64: under 88 roundings of at most 2^-24 x 1500, times
            // the learning rate, over three steps.
            for row in 0..9 {
                for (value, expected) in table.weights(row).iter().zip(&weights[row as usize]) {
                    prop_assert!((f64::from(*value) - expected).abs() <= 3e-3 * 0.1 + 1e-5, "{value} {expected}");
                }
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let spec = TableSpec { name: "C1".into(), rows: 1000, dim: 8, pooling: Pooling::Mean };
        let optimizer = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
        let ids: Vec<u64> = (0..4000u64).map(|i| i * i * 2_654_435_761 % 1000).collect();
        let offsets: Vec<u32> = (0..=2000).map(|i| i * 2).collect();
        let bags = Bags { offsets: &offsets, ids: &ids };
        let slot = FeatureSlot { stride: 8, offset: 0 };
        let mut gradients = vec![0.0; 2000 * 8];
        UniformField::new(9, 0).fill_row(0, 1.0, &mut gradients);
        let run = |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                let mut table = Table::initialized(spec.clone(), optimizer, 3, 0);
                let mut route = Route::default();
                route.build(bags, 1000);
                table.update(&route, bags, &gradients, slot, 0.1);
                table.data
            })
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(5));
    }
}
