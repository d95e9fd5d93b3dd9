//! The model once more, in f64 and one sample at a time, sharing nothing with what it checks; and the checks.

use proptest::prelude::*;
use rankine_embedding::random::UniformField;
use rankine_embedding::{Pooling, TableSpec, UpdateRule};
use rankine_reader::{Bags, Samples};

use super::{CpuModel, LearningRates};
use crate::model::ModelSpec;

/// A DLRM whose every parameter is an f64.
#[derive(Clone)]
struct Oracle {
    spec: ModelSpec,
    parameters: Vec<f64>,
    /// `[table][row][element]`
    tables: Vec<Vec<Vec<f64>>>,
}

impl Oracle {
    fn of(model: &CpuModel) -> Self {
        let widen = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let tables =
            model.tables().iter().map(|table| (0..table.spec().rows).map(|row| widen(table.weights(row))));
        Self {
            spec: model.spec().clone(),
            parameters: widen(model.parameters()),
            tables: tables.map(Iterator::collect).collect(),
        }
    }

    fn mlp(&self, name: &str, input: Vec<f64>) -> Vec<f64> {
        let layers = self.spec.named_layers().into_iter().filter(|(layer, _)| layer.starts_with(name));
        layers.fold(input, |x, (_, layer)| {
            let output = |i: usize| {
                let weights = &self.parameters[layer.weight()][i * layer.inputs..][..layer.inputs];
                let y = self.parameters[layer.bias()][i]
                    + weights.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>();
                if layer.relu { y.max(0.0) } else { y }
            };
            (0..layer.outputs).map(output).collect()
        })
    }

    fn logit(&self, batch: &Samples, sample: usize) -> f64 {
        let mut features = Vec::new();
        if self.spec.dense_columns > 0 {
            let dense = &batch.dense[sample * batch.dense_columns..][..batch.dense_columns];
            features.push(self.mlp("bottom", dense.iter().map(|&value| f64::from(value)).collect()));
        }
        for ((table, spec), bags) in self.tables.iter().zip(&self.spec.tables).zip(&batch.categorical) {
            let bag = bags.bag(sample);
            let mut pooled = vec![0.0; spec.dim];
            for &row in bag {
                for (sum, weight) in pooled.iter_mut().zip(&table[row as usize]) {
                    *sum += weight;
                }
            }
            if spec.pooling == Pooling::Mean && !bag.is_empty() {
                pooled.iter_mut().for_each(|sum| *sum /= bag.len() as f64);
            }
            features.push(pooled);
        }
        let mut top = if self.spec.dense_columns > 0 { features[0].clone() } else { Vec::new() };
        for i in 0..features.len() {
            for j in 0..i {
                top.push(features[i].iter().zip(&features[j]).map(|(a, b)| a * b).sum());
            }
        }
        self.mlp("top", top)[0]
    }

    fn loss(&self, batch: &Samples) -> f64 {
        let weight = |sample: usize| batch.weights.get(sample).map_or(1.0, |&weight| f64::from(weight));
        let losses = (0..batch.len).map(|sample| {
            let (logit, label) = (self.logit(batch, sample), f64::from(batch.labels[0][sample]));
            // The textbook form; test logits are small enough for it.
            let p = 1.0 / (1.0 + (-logit).exp());
            -weight(sample) * (label * p.ln() + (1.0 - label) * (1.0 - p).ln())
        });
        losses.sum::<f64>() / (0..batch.len).map(weight).sum::<f64>()
    }

    /// The slope of the loss along one parameter, by central differences.
    fn slope(&mut self, batch: &Samples, parameter: impl Fn(&mut Self) -> &mut f64) -> f64 {
        const STEP: f64 = 1e-6;
        let at = *parameter(self);
        *parameter(self) = at + STEP;
        let above = self.loss(batch);
        *parameter(self) = at - STEP;
        let below = self.loss(batch);
        *parameter(self) = at;
        (above - below) / (2.0 * STEP)
    }
}

/// Samples for a spec: bags of 0 to 3 ids, or of one where `one_hot`.
fn random_batch(spec: &ModelSpec, samples: usize, one_hot: bool, weighted: bool, seed: u64) -> Samples {
    let uniform = |stream: u32, len: usize| {
        let mut values = vec![0.0; len];
        UniformField::new(seed, stream).fill_row(0, 1.0, &mut values);
        values
    };
    let unit =
        |stream, len| uniform(stream, len).into_iter().map(|value| (value + 1.0) / 2.0).collect::<Vec<f32>>();
    let bags_of = |(number, table): (usize, &TableSpec)| {
        let mut bags = Bags::default();
        let sizes = unit(100 + number as u32, samples);
        for (sample, size) in sizes.iter().enumerate() {
            let size = if one_hot { 1 } else { (size * 3.999) as usize };
            let ids = unit(((1000 * (number + 1)) + sample) as u32, size);
            bags.push(ids.into_iter().map(|id| ((id * table.rows as f32) as u64).min(table.rows - 1)));
        }
        bags
    };
    Samples {
        len: samples,
        labels: vec![uniform(1, samples).into_iter().map(|value| f32::from(value > 0.0)).collect()],
        weights: if weighted {
            unit(2, samples).into_iter().map(|value| value + 0.5).collect()
        } else {
            Vec::new()
        },
        dense: uniform(3, samples * spec.dense_columns),
        dense_columns: spec.dense_columns,
        categorical: spec.tables.iter().enumerate().map(bags_of).collect(),
    }
}

fn any_spec() -> impl Strategy<Value = ModelSpec> {
    let table = (1..12u64, any::<bool>());
    let mlp = || prop::collection::vec(1..9usize, 0..3);
    (0..4usize, 1..10usize, mlp(), mlp(), prop::collection::vec(table, 1..5)).prop_map(
        |(dense_columns, embedding_dim, mut bottom_mlp, top_mlp, tables)| {
            bottom_mlp.push(embedding_dim);
            // Two features at least: with one alone nothing interacts.
            let dense_columns = if tables.len() < 2 { dense_columns.max(1) } else { dense_columns };
            let table = |(number, (rows, mean)): (usize, (u64, bool))| TableSpec {
                name: format!("C{number}"),
                rows,
                dim: embedding_dim,
                pooling: if mean { Pooling::Mean } else { Pooling::Sum },
            };
            ModelSpec {
                dense_columns,
                embedding_dim,
                bottom_mlp: if dense_columns > 0 { bottom_mlp } else { Vec::new() },
                top_mlp,
                tables: tables.into_iter().enumerate().map(table).collect(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Logits, loss, and by plain SGD with rate 1 the gradient of every parameter, equal the oracle's.
    #[test]
    fn a_step_equals_the_oracle_and_its_finite_differences(
        spec in any_spec(),
        samples in 1..90usize,
        (one_hot, weighted) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let batch = random_batch(&spec, samples, one_hot, weighted, seed);
        // Biases of 0 would put units without input right on the kink of their ReLU, where there is no gradient.
        let fresh = CpuModel::initialized(spec.clone(), UpdateRule::Sgd, UpdateRule::Sgd, seed);
        let mut parameters = fresh.parameters().to_vec();
        UniformField::new(seed, 4).fill_row(0, 0.8, &mut parameters);
        let mut model = CpuModel::new(spec, UpdateRule::Sgd, parameters, fresh.tables().to_vec());
        let mut oracle = Oracle::of(&model);

        // Vectors are below 4 in length, layers below 30 wide: a few hundred roundings of 2^-24 each.
        let mut logits = Vec::new();
        model.logits(&batch, &mut logits);
        for (sample, &logit) in logits.iter().enumerate() {
            let exact = oracle.logit(&batch, sample);
            prop_assert!((f64::from(logit) - exact).abs() <= 3e-5 * (1.0 + exact.abs()), "logit {logit} {exact}");
        }
        let rates = LearningRates { dense: 1.0, sparse: 1.0 };
        let before = Oracle::of(&model);
        let loss = model.train_step(&batch, rates);
        let after = Oracle::of(&model);
        prop_assert!((loss - oracle.loss(&batch)).abs() <= 3e-5 * (1.0 + loss), "loss {loss}");

        // A ReLU's kink within the step of a difference makes that difference wrong: a few may be.
        let mut wrong = Vec::new();
        let mut checked = 0;
        let mut check = |name: String, gradient: f64, slope: f64| {
            checked += 1;
            if (gradient - slope).abs() > 1e-4 * (1.0 + slope.abs()) {
                wrong.push(format!("{name}: {gradient} {slope}"));
            }
        };
        for i in 0..before.parameters.len() {
            let gradient = before.parameters[i] - after.parameters[i];
            check(format!("dense {i}"), gradient, oracle.slope(&batch, |oracle| &mut oracle.parameters[i]));
        }
        for (t, table) in before.tables.iter().enumerate() {
            for (r, row) in table.iter().enumerate() {
                for (e, &weight) in row.iter().enumerate() {
                    let gradient = weight - after.tables[t][r][e];
                    let slope = oracle.slope(&batch, |oracle| &mut oracle.tables[t][r][e]);
                    check(format!("table {t} row {r} element {e}"), gradient, slope);
                }
            }
        }
        prop_assert!(wrong.len() <= checked / 200, "{} of {checked} gradients: {wrong:?}", wrong.len());
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let table = |number: usize| TableSpec {
        name: format!("C{number}"),
        rows: 50 * (number as u64 + 1),
        dim: 16,
        pooling: if number.is_multiple_of(2) { Pooling::Sum } else { Pooling::Mean },
    };
    let spec = ModelSpec {
        dense_columns: 5,
        embedding_dim: 16,
        bottom_mlp: vec![40, 16],
        top_mlp: vec![70, 30],
        tables: (0..7).map(table).collect(),
    };
    let adagrad = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
    let run = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let mut model = CpuModel::initialized(spec.clone(), adagrad, adagrad, 7);
            let batch = random_batch(&spec, 777, false, false, 1);
            let rates = LearningRates { dense: 0.01, sparse: 0.01 };
            let losses: Vec<f64> = (0..20).map(|_| model.train_step(&batch, rates)).collect();
            let rows =
                model.tables().iter().flat_map(|table| (0..table.spec().rows).map(|row| table.weights(row)));
            let rows: Vec<u32> = rows.flatten().map(|weight| weight.to_bits()).collect();
            (losses, model.parameters().to_vec(), rows)
        })
    };
    let one = run(1);
    assert!(one.0[19] < 0.95 * one.0[0], "{:?}", one.0);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
    assert_eq!(one, run(8));
}

/// No loss sees the last step's update, so broken weights are looked for.
#[test]
fn weights_that_the_last_step_broke_are_noticed() {
    let table = |name: &str| TableSpec { name: name.into(), rows: 5, dim: 4, pooling: Pooling::Sum };
    let spec = ModelSpec {
        dense_columns: 2,
        embedding_dim: 4,
        bottom_mlp: vec![4],
        top_mlp: vec![8],
        tables: vec![table("C0"), table("C1")],
    };
    let batch = random_batch(&spec, 50, true, false, 3);
    for rates in [
        LearningRates { dense: f32::INFINITY, sparse: 0.0 },
        LearningRates { dense: 0.0, sparse: f32::INFINITY },
    ] {
        let mut model = CpuModel::initialized(spec.clone(), UpdateRule::Sgd, UpdateRule::Sgd, 1);
        assert!(model.is_finite());
        assert!(model.train_step(&batch, rates).is_finite());
        assert!(!model.is_finite());
    }
}
