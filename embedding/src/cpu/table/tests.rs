//! Tables against an oracle in f64 that shares nothing with them.

use proptest::prelude::*;

use super::*;
use crate::cpu::pool::{Bags, FeatureSlot};
use crate::dtype::Dtype;
use crate::table::Pooling;

const ROWS: usize = 9;

/// A feature's bags, and whether it pools by the mean.
#[derive(Debug, Clone)]
struct Column {
    bags: Vec<Vec<u64>>,
    mean: bool,
    offsets: Vec<u32>,
    ids: Vec<u64>,
}

impl Column {
    fn new(bags: Vec<Vec<u64>>, mean: bool) -> Self {
        let ends = bags.iter().scan(0, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        });
        let offsets = std::iter::once(0).chain(ends).collect();
        Self { offsets, ids: bags.iter().flatten().copied().collect(), bags, mean }
    }

    fn feature(&self, slot: FeatureSlot) -> Feature<'_> {
        let pooling = if self.mean { Pooling::Mean } else { Pooling::Sum };
        Feature { bags: Bags { offsets: &self.offsets, ids: &self.ids }, pooling, slot }
    }

    fn scale(&self, bag: usize) -> f64 {
        if self.mean { 1.0 / self.bags[bag].len().max(1) as f64 } else { 1.0 }
    }
}

fn columns() -> impl Strategy<Value = Vec<Column>> {
    (1..300usize, 1..4usize).prop_flat_map(|(samples, features)| {
        let bags = prop::collection::vec(prop::collection::vec(0..ROWS as u64, 0..5), samples);
        let column = (bags, any::<bool>()).prop_map(|(bags, mean)| Column::new(bags, mean));
        prop::collection::vec(column, features)
    })
}

proptest! {
    /// Look-ups, and updates from the gradients of all features that share the table, one id at a time.
    #[test]
    fn look_up_and_update_equal_the_oracle(
        columns in columns(),
        dim in 1..7usize,
        adagrad in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let rule = if adagrad {
            UpdateRule::Adagrad { initial_accumulator: 0.25, epsilon: 1e-3 }
        } else {
            UpdateRule::Sgd
        };
        let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
        let spec = TableSpec { name: "C1".into(), rows: ROWS as u64, dim, dtype: Dtype::Fp32 };
        let mut table = Table::initialized(spec, optimizer, seed, 5);
        let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let mut weights: Vec<_> = (0..ROWS).map(|row| wide(table.weights(row as u64))).collect();
        let mut state = vec![vec![0.25; dim]; ROWS];
        let samples = columns[0].bags.len();
        let stride = columns.len() * (dim + 1) + 2;
        let slot = |number: usize| FeatureSlot { stride, offset: number * (dim + 1) + 2 };
        let features: Vec<_> =
            columns.iter().enumerate().map(|(number, column)| column.feature(slot(number))).collect();
        let mut route = Route::default();

        for step in 1..=3u64 {
            let mut vectors = vec![f32::NAN; samples * stride];
            features.iter().for_each(|feature| table.pool(feature, 0, &mut vectors));
            let mut gradients = vec![f32::NAN; samples * stride];
            let mut sums = vec![vec![0.0; dim]; ROWS];
            for (number, column) in columns.iter().enumerate() {
                for (sample, bag) in column.bags.iter().enumerate() {
                    let at = sample * stride + slot(number).offset;
                    // At most 5 rows below 2 are summed: 5 roundings of at most 2^-24 x 10, and those of earlier steps.
                    for (i, &value) in vectors[at..at + dim].iter().enumerate() {
                        let sum: f64 = bag.iter().map(|&row| weights[row as usize][i]).sum();
                        let exact = sum * column.scale(sample);
                        prop_assert!((f64::from(value) - exact).abs() <= 1e-3, "{value} {exact}");
                    }
                    let gradient = &mut gradients[at..at + dim];
                    let place = step << 32 | (number as u64) << 16 | sample as u64;
                    UniformField::new(seed, 77).fill_row(place, 1.0, gradient);
                    for &row in bag {
                        for (sum, &gradient) in sums[row as usize].iter_mut().zip(&*gradient) {
                            *sum += f64::from(gradient) * column.scale(sample);
                        }
                    }
                }
            }
            route.build(&features, ROWS as u64);
            table.update(&route, &features, &gradients, Step { number: step, rate_factor: 1.0 });
            for (row, sum) in sums.iter().enumerate() {
                for i in 0..dim {
                    state[row][i] += sum[i] * sum[i];
                    let divisor = if adagrad { state[row][i].sqrt() + 1e-3 } else { 1.0 };
                    weights[row][i] -= 0.1 * sum[i] / divisor;
                }
            }
        }
        // A sum of up to 4500 gradients below 1, in runs of 64: under 140 roundings of at most 2^-24 x 4500, times the
        // learning rate, over three steps.
        for (row, exact) in weights.iter().enumerate() {
            for (value, exact) in table.weights(row as u64).iter().zip(exact) {
                prop_assert!((f64::from(*value) - exact).abs() <= 0.12 * 0.1 + 1e-5, "{value} {exact}");
            }
        }
    }
}

/// Every rule: one update a distinct row, with the sum over the features, and none of any other row.
#[test]
fn rows_without_an_id_are_untouched_and_others_learn_once() {
    let columns = [Column::new(vec![vec![2, 2], vec![5]], true), Column::new(vec![vec![5], vec![]], false)];
    let slot = |offset| FeatureSlot { stride: 6, offset };
    let features = [columns[0].feature(slot(0)), columns[1].feature(slot(3))];
    let gradients = [1.0, 2.0, -4.0, 0.5, 0.25, 8.0, 0.125, 16.0, -2.0, f32::NAN, f32::NAN, f32::NAN];
    // Row 2 is half of a bag, twice; row 5 has the second bag of one feature and the first of the other.
    let sums = [(2, [1.0, 2.0, -4.0]), (5, [0.625, 16.25, 6.0])];
    for rule in [
        UpdateRule::Sgd,
        UpdateRule::Momentum { momentum: 0.9, nesterov: false },
        UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
        UpdateRule::RowwiseAdagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
        UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-3 },
        UpdateRule::Ftrl { beta: 1.0, l1: 0.1, l2: 0.1 },
    ] {
        let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.01 };
        let spec = TableSpec { name: "C1".into(), rows: ROWS as u64, dim: 3, dtype: Dtype::Fp32 };
        let mut table = Table::initialized(spec, optimizer, 3, 0);
        let mut route = Route::default();
        route.build(&features, ROWS as u64);
        for number in 1..=3 {
            let step = Step { number, rate_factor: 0.5 };
            let mut expected = table.data.to_vec();
            for (row, sum) in sums {
                let row = &mut expected[row * table.stride..][..3 + rule.state_elements(3)];
                let (weights, state) = row.split_at_mut(3);
                optimizer.at(step).apply(weights, state, &sum);
            }
            assert_ne!(*table.data, *expected);
            table.update(&route, &features, &gradients, step);
            assert_eq!(*table.data, *expected, "{rule:?}");
        }
    }
}

#[test]
fn zeroed_tables_have_the_state_of_zeros() {
    let spec = TableSpec { name: "C1".into(), rows: 2, dim: 2, dtype: Dtype::Fp32 };
    let rule = UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 1e-3 };
    let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
    assert_eq!(*Table::zeroed(spec, optimizer).data, [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let spec = TableSpec { name: "C1".into(), rows: 1000, dim: 8, dtype: Dtype::Fp32 };
    let rule = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
    let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
    let bags = |factor: u64| (0..2000).map(|i| vec![i * i * factor % 1000, i * factor % 1000]).collect();
    let columns = [Column::new(bags(2_654_435_761), true), Column::new(bags(40_503), false)];
    let slot = |offset| FeatureSlot { stride: 16, offset };
    let features = [columns[0].feature(slot(0)), columns[1].feature(slot(8))];
    let mut gradients = vec![0.0; 2000 * 16];
    UniformField::new(9, 0).fill_row(0, 1.0, &mut gradients);
    let run = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let mut table = Table::initialized(spec.clone(), optimizer, 3, 0);
            let mut route = Route::default();
            route.build(&features, 1000);
            table.update(&route, &features, &gradients, Step { number: 1, rate_factor: 1.0 });
            table.data.to_vec()
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}

#[test]
fn weights_are_rounded_to_the_tables_type() {
    let rule = UpdateRule::Momentum { momentum: 0.5, nesterov: false };
    let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.01 };
    let spec = |dtype| TableSpec { name: "C1".into(), rows: 100, dim: 6, dtype };
    let offsets: Vec<_> = (0..=70).collect();
    let ids: Vec<_> = (0..70).map(|sample| sample * sample % 100).collect();
    let slot = FeatureSlot { stride: 6, offset: 0 };
    let features = [Feature { bags: Bags { offsets: &offsets, ids: &ids }, pooling: Pooling::Sum, slot }];
    let mut gradients = vec![0.0; 70 * 6];
    UniformField::new(9, 0).fill_row(0, 1.0, &mut gradients);
    let mut route = Route::default();
    route.build(&features, 100);
    for dtype in [Dtype::Bf16, Dtype::Fp16] {
        let mut table = Table::initialized(spec(dtype), optimizer, 3, 4);
        let first = |row: u64, weights: &mut [f32]| weights.copy_from_slice(table.weights(row));
        let mut exact = Table::filled(spec(Dtype::Fp32), optimizer, first);
        let step = Step { number: 7, rate_factor: 1.0 };
        table.update(&route, &features, &gradients, step);
        exact.update(&route, &features, &gradients, step);
        let rounding = Rounding::new(dtype, Some(UniformField::new(3, 4)), 7).unwrap();
        for &row in &route.rows {
            rounding.round(row, 0, exact.weights_mut(row));
        }
        for row in 0..100 {
            assert_eq!(table.weights(row), exact.weights(row), "{dtype:?}, row {row}");
            let stored = |weight: &f32| dtype.nearest(*weight) == *weight;
            assert!(table.weights(row).iter().all(stored), "{dtype:?}, row {row}");
        }
    }
}
