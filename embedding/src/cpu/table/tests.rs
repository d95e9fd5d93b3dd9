//! Compares tables with an independent oracle in f64.

use proptest::prelude::*;

use super::*;
use crate::cpu::{Bags, FeatureSlot, RowWeights};
use crate::dtype::Dtype;
use crate::optimizer::tests::{F64Parameters, ROUNDOFF};
use crate::random::philox4x32;
use crate::table::Pooling;

const ROWS: usize = 9;

/// A feature's bags, and whether it pools by the mean.
#[derive(Debug, Clone)]
struct Column {
    bags: Vec<Vec<u64>>,
    mean: bool,
    offsets: Vec<u32>,
    ids: Vec<u64>,
    /// The weight of each id.
    weights: Option<Vec<f32>>,
}

impl Column {
    /// `weights` has a weight for each id, and may have more.
    fn new(bags: Vec<Vec<u64>>, mean: bool, weights: Option<Vec<f32>>) -> Self {
        let ends = bags.iter().scan(0, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        });
        let offsets = std::iter::once(0).chain(ends).collect();
        let ids: Vec<_> = bags.iter().flatten().copied().collect();
        let weights = weights.map(|weights| weights[..ids.len()].to_vec());
        Self { offsets, ids, bags, mean, weights }
    }

    fn feature(&self, slot: FeatureSlot) -> Feature<'_> {
        let pooling = if self.mean { Pooling::Mean } else { Pooling::Sum };
        Feature {
            bags: Bags { offsets: &self.offsets, ids: &self.ids, weights: self.weights.as_deref() },
            pooling,
            slot,
        }
    }

    /// Each row of a bag with its factor.
    fn factors(&self, bag: usize) -> Vec<(u64, f64)> {
        let first = self.offsets[bag] as usize;
        let weight = |at: usize| self.weights.as_ref().map_or(1.0, |weights| f64::from(weights[first + at]));
        let total = match self.mean {
            true => (0..self.bags[bag].len()).map(weight).sum(),
            false => 1.0,
        };
        self.bags[bag].iter().enumerate().map(|(at, &row)| (row, weight(at) / total)).collect()
    }
}

#[test]
fn bags_are_counted_and_not_their_ids() {
    for (offsets, ids, bags) in [(&[0][..], &[][..], 0), (&[4], &[1, 2, 3, 4], 0), (&[0, 0], &[], 1)] {
        let found = Bags { offsets, ids, weights: None };
        assert_eq!((found.len(), found.is_empty()), (bags, bags == 0), "{found:?}");
    }
}

fn columns() -> impl Strategy<Value = Vec<Column>> {
    (1..300usize, 1..4usize).prop_flat_map(|(samples, features)| {
        let bags = prop::collection::vec(prop::collection::vec(0..ROWS as u64, 0..5), samples);
        let weights = prop::option::of(prop::collection::vec(0.001..8f32, 4 * samples));
        let column = (bags, any::<bool>(), weights);
        let column = column.prop_map(|(bags, mean, weights)| Column::new(bags, mean, weights));
        prop::collection::vec(column, features)
    })
}

/// The sum of some gradients in f64, with the error bound of the table's own sum in f32.
#[derive(Debug, Clone, Copy, Default)]
struct GradientSum {
    sum: f64,
    magnitudes: f64,
    terms: usize,
}

impl GradientSum {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.magnitudes += value.abs();
        self.terms += 1;
    }

    /// Each term is rounded when it is scaled, with the factor once more, in its run of up to 64, and with the run in
    /// the sum of runs.
    fn error(&self) -> f64 {
        (2 + self.terms.min(SUM_RUN) + self.terms.div_ceil(SUM_RUN)) as f64 * ROUNDOFF * self.magnitudes
    }
}

proptest! {
    /// Look-ups, and updates from the gradients of all features that share the table, one id at a time. Each step is
    /// computed from the table's contents before it, so that errors do not accumulate.
    #[test]
    fn look_up_and_update_equal_the_oracle(
        columns in columns(),
        dim in 1..7usize,
        adagrad in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let rule = if adagrad {
            UpdateRule::Adagrad { initial_accumulator: 0.25, epsilon: 0.25 }
        } else {
            UpdateRule::Sgd
        };
        let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
        let spec = TableSpec { name: "C1".into(), rows: ROWS as u64, dim, dtype: Dtype::Fp32, dynamic: None };
        let mut table = Table::initialized(spec, optimizer, seed, 5);
        let samples = columns[0].bags.len();
        let stride = columns.len() * (dim + 1) + 2;
        let slot = |number: usize| FeatureSlot { stride, offset: number * (dim + 1) + 2 };
        let features: Vec<_> =
            columns.iter().enumerate().map(|(number, column)| column.feature(slot(number))).collect();
        let mut route = Route::default();

        for step in 1..=3u64 {
            let before: Vec<Vec<f64>> = (0..ROWS as u64)
                .map(|row| table.row(row).iter().map(|&value| f64::from(value)).collect())
                .collect();
            let mut vectors = vec![f32::NAN; samples * stride];
            // The samples in two parts, like the tiles of a batch.
            let (first, second) = vectors.split_at_mut(samples / 2 * stride);
            for (begin, part) in [(0, first), (samples / 2, second)] {
                features.iter().for_each(|feature| table.pool(feature, begin, part));
            }
            let mut gradients = vec![f32::NAN; samples * stride];
            let mut sums = vec![vec![GradientSum::default(); dim]; ROWS];
            for (number, column) in columns.iter().enumerate() {
                for (sample, bag) in column.bags.iter().enumerate() {
                    let at = sample * stride + slot(number).offset;
                    for (i, &value) in vectors[at..at + dim].iter().enumerate() {
                        let factors = column.factors(sample);
                        let of_rows = || factors.iter().map(|(row, factor)| before[*row as usize][i] * factor);
                        let exact = of_rows().sum::<f64>();
                        // One addition per row but the first, and two roundings of the factor.
                        let largest = of_rows().map(f64::abs).sum::<f64>();
                        let tolerance = (bag.len() + 1) as f64 * ROUNDOFF * largest;
                        prop_assert!((f64::from(value) - exact).abs() <= tolerance, "{value} {exact}");
                    }
                    let gradient = &mut gradients[at..at + dim];
                    let row = step << 32 | (number as u64) << 16 | sample as u64;
                    UniformField::new(seed, 77).fill_row(row, 1.0, gradient);
                    for (row, factor) in column.factors(sample) {
                        for (sum, &gradient) in sums[row as usize].iter_mut().zip(&*gradient) {
                            sum.add(f64::from(gradient) * factor);
                        }
                    }
                }
            }
            route.build(&features, ROWS as u64);
            table.update(&route, &features, &gradients, Step { number: step, rate_factor: 1.0 });
            for ((row, before), sums) in (0..).zip(&before).zip(&sums) {
                let after = table.row(row);
                for (i, of_element) in sums.iter().enumerate() {
                    let (sum, error) = (of_element.sum, of_element.error());
                    let mut divisor = 1.0;
                    if adagrad {
                        let state = before[dim + i] + sum * sum;
                        // A square, a sum, and the error of the sum of gradients.
                        let tolerance = 2.0 * sum.abs() * error + error * error + 2.0 * ROUNDOFF * state;
                        let found = f64::from(after[dim + i]);
                        prop_assert!((found - state).abs() <= tolerance, "state {found} {state}");
                        divisor = state.sqrt() + 0.25;
                    }
                    let moved = 0.1 * sum / divisor;
                    // What is subtracted is rounded about six times, and so is the difference. The state is at least
                    // 0.25 and the divisor 0.75: the error of the sum is magnified by at most 4/3.
                    let tolerance =
                        0.1 * error * 4.0 / 3.0 + ROUNDOFF * (8.0 * moved.abs() + 2.0 * before[i].abs());
                    let (found, exact) = (f64::from(after[i]), before[i] - moved);
                    prop_assert!((found - exact).abs() <= tolerance, "{found} {exact}");
                }
            }
        }
    }
}

/// A weight multiplies its row and the row's gradient; with the mean, its share of the bag's weights does. Weights
/// whose sum is infinite in f32, or whose reciprocal is, have shares like any others.
#[test]
fn weights_multiply_rows_and_gradients() {
    let optimizer = Optimizer { rule: UpdateRule::Sgd, learning_rate: 1.0, weight_decay: 0.0 };
    let spec = TableSpec { name: "C1".into(), rows: ROWS as u64, dim: 1, dtype: Dtype::Fp32, dynamic: None };
    let slot = FeatureSlot { stride: 1, offset: 0 };
    // The first bag has a row twice, with two weights; the third is empty.
    let bags = vec![vec![2, 3, 2], vec![3, 4], vec![], vec![5, 6]];
    let tiny = f32::from_bits(1);
    let weights = vec![0.5, 2.0, 0.25, f32::MAX, f32::MAX, tiny, tiny];
    for (mean, vectors, moved) in [
        (
            true,
            [(0.75 * 2.0 + 2.0 * 3.0) / 2.75, 3.5, 0.0, 5.5],
            [0.75 / 2.75, 2.0 / 2.75 + 5.0, 5.0, 50.0, 50.0],
        ),
        (
            false,
            [0.75 * 2.0 + 2.0 * 3.0, f32::INFINITY, 0.0, 11.0 * tiny],
            [0.75, f32::INFINITY, f32::INFINITY, 0.0, 0.0],
        ),
    ] {
        let mut table = Table::filled(spec.clone(), optimizer, |row, weights| weights.fill(row as f32));
        let column = Column::new(bags.clone(), mean, Some(weights.clone()));
        let features = [column.feature(slot)];
        let mut pooled = [f32::NAN; 4];
        table.pool(&features[0], 0, &mut pooled);
        for (found, exact) in pooled.iter().zip(vectors) {
            assert!(
                *found == exact || (found - exact).abs() <= 4.0 * ROUNDOFF as f32 * exact,
                "{found} {exact}"
            );
        }
        let mut route = Route::default();
        route.build(&features, ROWS as u64);
        assert_eq!(route.rows, [2, 3, 4, 5, 6]);
        let factors: Vec<_> = route.bags_of(0).map(|bag| (bag.sample, bag.factor.unwrap())).collect();
        let total = if mean { 2.75 } else { 1.0 };
        assert_eq!(factors, [(0, 0.5 / total), (0, 0.25 / total)]);
        table.update(&route, &features, &[1.0, 10.0, f32::NAN, 100.0], Step { number: 1, rate_factor: 1.0 });
        for (row, moved) in (2..).zip(moved) {
            let (found, exact) = (table.weights(row)[0], row as f32 - moved);
            assert!(found == exact || (found - exact).abs() <= 1e-5, "row {row}: {found} {exact}");
        }
        assert_eq!([0, 1, 7, 8].map(|row| table.weights(row)[0]), [0.0, 1.0, 7.0, 8.0]);
    }
}

/// Every rule: one update per distinct row, with the sum over the features, and no change of other rows.
#[test]
fn rows_without_an_id_are_untouched_and_others_learn_once() {
    let columns =
        [Column::new(vec![vec![2, 2], vec![5]], true, None), Column::new(vec![vec![5], vec![]], false, None)];
    let slot = |offset| FeatureSlot { stride: 6, offset };
    let features = [columns[0].feature(slot(0)), columns[1].feature(slot(3))];
    let gradients = [1.0, 2.0, -4.0, 0.5, 0.25, 8.0, 0.125, 16.0, -2.0, f32::NAN, f32::NAN, f32::NAN];
    // Row 2 is half of a bag, twice; row 5 has the second bag of one feature and the first of the other.
    let sums = [(2, [1.0, 2.0, -4.0]), (5, [0.625, 16.25, 6.0])];
    for rule in [
        UpdateRule::Sgd,
        UpdateRule::Momentum { momentum: 0.5, nesterov: false },
        UpdateRule::Momentum { momentum: 0.5, nesterov: true },
        UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 0.25 },
        UpdateRule::RowwiseAdagrad { initial_accumulator: 0.5, epsilon: 0.25 },
        UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 0.25 },
        UpdateRule::Ftrl { beta: 1.0, l1: 0.1, l2: 0.1 },
    ] {
        let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.25 };
        let spec =
            TableSpec { name: "C1".into(), rows: ROWS as u64, dim: 3, dtype: Dtype::Fp32, dynamic: None };
        let mut table = Table::initialized(spec, optimizer, 3, 0);
        table.begin_tracking();
        let mut exact: Vec<_> =
            sums.iter().map(|&(row, _)| F64Parameters::new(optimizer, 0.5, table.weights(row))).collect();
        let before = table.clone();
        let mut route = Route::default();
        route.build(&features, ROWS as u64);
        for number in 1..=3 {
            table.update(&route, &features, &gradients, Step { number, rate_factor: 0.5 });
            for ((row, sum), exact) in sums.iter().zip(&mut exact) {
                exact.step(sum);
                exact.assert_near(table.weights(*row), &format!("row {row}"));
            }
        }
        for row in (0..ROWS as u64).filter(|row| ![2, 5].contains(row)) {
            assert_eq!(table.row(row), before.row(row), "{rule:?}, row {row}");
        }
        assert_eq!(table.touched().unwrap().among(0..ROWS as u64), [2, 5]);
    }
}

#[test]
fn tables_begin_with_the_numbers_of_their_seed_and_rows_with_their_state() {
    let rule = UpdateRule::Ftrl { beta: 2.0, l1: 0.0, l2: 0.0 };
    let optimizer = Optimizer { rule, ..Optimizer::sgd(0.1) };
    let spec = TableSpec { name: "C1".into(), rows: 16, dim: 6, dtype: Dtype::Fp32, dynamic: None };
    let table = Table::initialized(spec, optimizer, 0x5_0000_0009, 3);
    for row in 0..16 {
        for (column, &weight) in (0..).zip(table.weights(row)) {
            let word = philox4x32([row as u32, 0, column / 4, 3], [9, 5])[column as usize % 4];
            // Uniform within 1 / sqrt(rows), here a quarter: a power of two, so nothing is rounded.
            let expected = (2.0 * f64::from(word >> 8) / f64::from(1 << 24) - 1.0) / 4.0;
            assert_eq!(f64::from(weight), expected, "row {row}, column {column}");
            let state = &table.row(row)[6..];
            assert_eq!((state[column as usize], state[6 + column as usize]), (-2.0 * weight, 0.0));
        }
    }
}

#[test]
fn rows_with_their_state_take_multiples_of_16_bytes() {
    let spec = |dim| TableSpec { name: "C1".into(), rows: 3, dim, dtype: Dtype::Bf16, dynamic: None };
    let adam = UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 0.1 };
    let rowwise = UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 0.1 };
    assert_eq!(Table::bytes(&spec(5), adam), 3 * 4 * 16);
    assert_eq!(Table::bytes(&spec(4), adam), 3 * 4 * 12);
    assert_eq!(Table::bytes(&spec(4), rowwise), 3 * 4 * 8);
    assert_eq!(Table::bytes(&spec(7), rowwise), 3 * 4 * 8);
    assert_eq!(Table::bytes(&spec(7), UpdateRule::Sgd), 3 * 4 * 8);
}

#[test]
fn zeroed_tables_have_the_state_of_zeros() {
    let spec = TableSpec { name: "C1".into(), rows: 2, dim: 2, dtype: Dtype::Fp32, dynamic: None };
    let rule = UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 1e-3 };
    let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
    assert_eq!(*Table::zeroed(spec, optimizer).data, [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let spec = TableSpec { name: "C1".into(), rows: 1000, dim: 8, dtype: Dtype::Fp32, dynamic: None };
    let rule = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
    let optimizer = Optimizer { rule, learning_rate: 0.1, weight_decay: 0.0 };
    let bags = |factor: u64| (0..2000).map(|i| vec![i * i * factor % 1000, i * factor % 1000]).collect();
    let columns = [Column::new(bags(2_654_435_761), true, None), Column::new(bags(40_503), false, None)];
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

/// One id per sample and plain SGD, so that the expected rounded number can be computed here.
#[test]
fn weights_are_rounded_to_the_tables_type() {
    let optimizer = Optimizer::sgd(0.5);
    let offsets: Vec<_> = (0..=70).collect();
    let ids: Vec<_> = (0..70).map(|sample| sample * 7 % 100).collect();
    let slot = FeatureSlot { stride: 6, offset: 0 };
    let features =
        [Feature { bags: Bags { offsets: &offsets, ids: &ids, weights: None }, pooling: Pooling::Sum, slot }];
    let mut gradients = vec![0.0; 70 * 6];
    UniformField::new(9, 0).fill_row(0, 1.0, &mut gradients);
    let mut route = Route::default();
    route.build(&features, 100);
    let (seed, number, step) = (3, 4, Step { number: 7, rate_factor: 0.25 });
    let [first, second, ..] = philox4x32([7, 0, 0x726f_756e, 0], [3, 0]);
    for dtype in [Dtype::Bf16, Dtype::Fp16] {
        let spec = TableSpec { name: "C1".into(), rows: 100, dim: 6, dtype, dynamic: None };
        let mut table = Table::initialized(spec, optimizer, seed, number);
        let before = table.clone();
        table.update(&route, &features, &gradients, step);
        for row in 0..100u64 {
            let sample = ids.iter().position(|&id| id == row);
            for column in 0..6 {
                let weight = before.weights(row)[column];
                assert_eq!(dtype.nearest(weight), weight, "{dtype:?}, row {row}");
                let expected = sample.map_or(weight, |sample| {
                    let moved = weight - 0.125 * gradients[sample * 6 + column];
                    let counter = [row as u32, 0, column as u32 / 4, number];
                    dtype.at_random(moved, philox4x32(counter, [first, second])[column % 4])
                });
                assert_eq!(table.weights(row)[column], expected, "{dtype:?}, row {row}, column {column}");
            }
        }
    }
}
