//! The models once more, in f64 and one sample at a time, sharing no code with what they check; and the checks.

use std::cell::Cell;

use proptest::prelude::*;
use rankine_embedding::random::UniformField;
use rankine_embedding::{Dtype, Optimizer, Pooling, Step, TableSpec, UpdateRule};
use rankine_model::{
    AttentionSpec, AttentionUnit, FeatureSpec, HeadSpec, Interaction, Layer, Model, ModelSpec, TrainingRules,
};
use rankine_reader::schema::Keep;
use rankine_reader::{Bags, Samples};

use crate::model::CpuModel;

/// A model whose every parameter is an f64.
#[derive(Clone)]
struct Oracle {
    spec: ModelSpec,
    layers: Vec<(String, Layer)>,
    parameters: Vec<f64>,
    /// `[table][row][element]`: the spec's tables, then those of first-order terms.
    tables: Vec<Vec<Vec<f64>>>,
    /// The smallest distance of a ReLU's input from 0, over all samples so far.
    nearest_kink: Cell<f64>,
}

/// Returns the weights of every row of all tables.
pub(crate) fn rows_of(model: &CpuModel) -> Vec<Vec<f32>> {
    let tables = model.spec().tables.iter().cloned().chain(model.spec().wide_tables()).enumerate();
    let rows_of_table = |(number, table): (usize, TableSpec)| {
        let mut weights = vec![0.0; table.rows as usize * table.dim];
        model.gather(number, 0..table.rows, (table.dim, &mut weights));
        weights.chunks_exact(table.dim).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    tables.flat_map(rows_of_table).collect()
}

impl Oracle {
    fn of(model: &CpuModel) -> Self {
        let widen = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let mut rows = rows_of(model).into_iter().map(|row| widen(&row));
        let specs = model.spec().tables.iter().cloned().chain(model.spec().wide_tables());
        let tables = specs.map(|table| rows.by_ref().take(table.rows as usize).collect());
        let tables = tables.collect();
        Self {
            layers: model.spec().dense_layout().named_layers(),
            spec: model.spec().clone(),
            parameters: widen(model.parameters()),
            tables,
            nearest_kink: Cell::new(f64::INFINITY),
        }
    }

    /// Applies the layers whose names start with `name`, each to the output of the one before.
    fn through(&self, name: &str, input: Vec<f64>) -> Vec<f64> {
        let layers = self.layers.iter().filter(|(layer, _)| layer.starts_with(name));
        layers.fold(input, |x, (_, layer)| {
            let output = |i: usize| {
                let weights = &self.parameters[layer.weight()][i * layer.inputs..][..layer.inputs];
                let bias = self.parameters[layer.bias()].get(i).copied().unwrap_or(0.0);
                let y = bias + weights.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>();
                if layer.relu {
                    self.nearest_kink.set(self.nearest_kink.get().min(y.abs()));
                    y.max(0.0)
                } else {
                    y
                }
            };
            (0..layer.outputs).map(output).collect()
        })
    }

    /// A bag without weights is a bag whose weights are 1.
    fn pooled(&self, table: usize, bags: &Bags, sample: usize, pooling: Pooling) -> Vec<f64> {
        let table = &self.tables[table];
        let mut pooled = vec![0.0; table[0].len()];
        let mut total = 0.0;
        for at in bags.offsets[sample] as usize..bags.offsets[sample + 1] as usize {
            let factor = bags.weights.get(at).map_or(1.0, |&weight| f64::from(weight));
            for (sum, weight) in pooled.iter_mut().zip(&table[bags.ids[at] as usize]) {
                *sum += factor * weight;
            }
            total += factor;
        }
        if pooling == Pooling::Mean && total > 0.0 {
            pooled.iter_mut().for_each(|sum| *sum /= total);
        }
        pooled
    }

    /// Returns the sum of the keys of a sample's sequence, times their weights.
    fn attended(&self, attention: &AttentionSpec, batch: &Samples, sample: usize, query: &[f64]) -> Vec<f64> {
        let length = batch.categorical[attention.features[0]].bag(sample).len();
        let keys: Vec<Vec<f64>> = (0..length)
            .map(|position| {
                let row = |&feature: &usize| {
                    let id = batch.categorical[feature].bag(sample)[position];
                    self.tables[self.spec.features[feature].table][id as usize].clone()
                };
                let mut key: Vec<f64> = attention.features.iter().flat_map(row).collect();
                let vectors = self.layers.iter().find(|(name, _)| {
                    name.strip_prefix("positions.").is_some_and(|of| of == attention.sequence)
                });
                if let Some((_, layer)) = vectors {
                    let number = match attention.position_embedding {
                        Some(Keep::Last) => length - position - 1,
                        _ => position,
                    };
                    let vector = &self.parameters[layer.offset + number * key.len()..];
                    key.iter_mut().zip(vector).for_each(|(key, vector)| *key += vector);
                }
                key
            })
            .collect();
        let product = |key: &[f64]| key.iter().zip(query).map(|(key, query)| key * query).sum::<f64>();
        let weights: Vec<f64> = match &attention.unit {
            AttentionUnit::Din { .. } => keys
                .iter()
                .map(|key| {
                    let differences = query.iter().zip(key).map(|(query, key)| query - key);
                    let products = query.iter().zip(key).map(|(query, key)| query * key);
                    let input = query.iter().chain(key).copied().chain(differences).chain(products);
                    self.through(&format!("attention.{}.", attention.sequence), input.collect())[0]
                })
                .collect(),
            AttentionUnit::Dot { .. } => {
                let scores = keys.iter().map(|key| (product(key) / (key.len() as f64).sqrt()).exp());
                let scores: Vec<f64> = scores.collect();
                scores.iter().map(|score| score / scores.iter().sum::<f64>()).collect()
            }
            AttentionUnit::Mean => vec![1.0 / length as f64; length],
        };
        let width = attention.features.iter().map(|&f| self.tables[self.spec.features[f].table][0].len());
        let mut sum = vec![0.0; width.sum()];
        for (key, weight) in keys.iter().zip(&weights) {
            sum.iter_mut().zip(key).for_each(|(sum, key)| *sum += weight * key);
        }
        sum
    }

    fn logits(&self, batch: &Samples, sample: usize) -> Vec<f64> {
        let dense = &batch.dense[sample * batch.dense_columns..][..batch.dense_columns];
        let dense: Vec<f64> = dense.iter().map(|&value| f64::from(value)).collect();
        let mut vectors = Vec::new();
        if !dense.is_empty() {
            vectors.push(self.through("bottom.", dense.clone()));
        }
        for (feature, bags) in self.spec.features.iter().zip(&batch.categorical) {
            vectors.push(self.pooled(feature.table, bags, sample, feature.pooling));
        }
        let first = usize::from(!dense.is_empty());
        for attention in &self.spec.attention {
            let query: Vec<_> =
                attention.unit.query().iter().flat_map(|&query| vectors[first + query].clone()).collect();
            let mut sum = self.attended(attention, batch, sample, &query).into_iter();
            for &feature in &attention.features {
                let vector = &mut vectors[first + feature];
                *vector = sum.by_ref().take(vector.len()).collect();
            }
        }
        let mut pairs = Vec::new();
        for i in 0..vectors.len() {
            for j in 0..i {
                pairs.push(vectors[i].iter().zip(&vectors[j]).map(|(a, b)| a * b).sum::<f64>());
            }
        }
        let mut top_input = vectors.concat();
        let mut past_the_top = 0.0;
        match self.spec.interaction {
            Interaction::Dot => {
                top_input = if dense.is_empty() { Vec::new() } else { vectors[0].clone() };
                top_input.extend(pairs);
            }
            Interaction::Cross { layers, .. } => {
                let x0 = top_input.clone();
                for layer in 0..layers {
                    let y = self.through(&format!("cross.{layer}"), top_input.clone());
                    top_input = (0..x0.len()).map(|i| x0[i] * y[i] + top_input[i]).collect();
                }
            }
            Interaction::FactorizationMachine => past_the_top = pairs.iter().sum(),
            Interaction::Concat => {}
        }
        let mut logits = self.through("top.", top_input);
        let linear =
            if self.spec.wide && !dense.is_empty() { self.through("linear", dense) } else { Vec::new() };
        for (head, logit) in logits.iter_mut().enumerate() {
            *logit += past_the_top + linear.get(head).copied().unwrap_or(0.0);
            for (number, feature) in self.spec.features.iter().enumerate().filter(|_| self.spec.wide) {
                let (table, bags) = (self.spec.tables.len() + number, &batch.categorical[number]);
                *logit += self.pooled(table, bags, sample, feature.pooling)[head];
            }
        }
        logits
    }

    fn loss(&self, batch: &Samples) -> f64 {
        let weight = |sample: usize| batch.weights.get(sample).map_or(1.0, |&weight| f64::from(weight));
        let logits: Vec<_> = (0..batch.len).map(|sample| self.logits(batch, sample)).collect();
        let of_head = |(number, head): (usize, &HeadSpec)| {
            let (mut sum, mut total) = (0.0, 0.0);
            for (sample, logits) in logits.iter().enumerate() {
                let label = f64::from(batch.labels[head.label_number][sample]);
                if label.is_nan() {
                    continue;
                }
                // The logarithms of p and 1 - p; test logits are small enough for the exponentials.
                let logit = logits[number];
                let (of_one, of_zero) = (-(-logit).exp().ln_1p(), -logit.exp().ln_1p());
                sum -= weight(sample) * (label * of_one + (1.0 - label) * of_zero);
                total += weight(sample);
            }
            if total > 0.0 { head.weight * sum / total } else { 0.0 }
        };
        self.spec.heads.iter().enumerate().map(of_head).sum()
    }

    /// Returns the slope of the loss along one parameter, by central differences.
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

    /// Returns the slopes along all parameters: the dense ones, and those of the tables.
    fn slopes(&mut self, batch: &Samples) -> (Vec<f64>, Vec<Vec<Vec<f64>>>) {
        let dense = (0..self.parameters.len())
            .map(|i| self.slope(batch, |oracle| &mut oracle.parameters[i]))
            .collect();
        let mut tables = self.tables.clone();
        for (t, table) in tables.iter_mut().enumerate() {
            for (r, row) in table.iter_mut().enumerate() {
                for (e, slope) in row.iter_mut().enumerate() {
                    *slope = self.slope(batch, |oracle| &mut oracle.tables[t][r][e]);
                }
            }
        }
        (dense, tables)
    }
}

/// Returns numbers from -1 to 1.
pub(crate) fn uniform(seed: u64, stream: u32, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    UniformField::new(seed, stream).fill_row(0, 1.0, &mut values);
    values
}

/// The properties of a test's samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchShape {
    pub(crate) samples: usize,
    /// Bags of one id instead of 0 to 3.
    pub(crate) one_hot: bool,
    pub(crate) weighted: bool,
    /// A third of the labels are missing, and all of the last head's if there are several heads.
    pub(crate) missing: bool,
}

pub(crate) fn random_batch(spec: &ModelSpec, shape: BatchShape, seed: u64) -> Samples {
    let samples = shape.samples;
    let unit = |stream, len| -> Vec<f32> {
        uniform(seed, stream, len).into_iter().map(|value| (value + 1.0) / 2.0).collect()
    };
    let bags_of = |(number, feature): (usize, &FeatureSpec)| {
        let mut bags = Bags::default();
        let rows = spec.tables[feature.table].rows;
        // Bags of a sequence have the sizes of the first.
        let sizes = spec.attention_of(number).map_or(number, |of| spec.attention[of].features[0]);
        for (sample, size) in unit(100 + sizes as u32, samples).iter().enumerate() {
            let size = if shape.one_hot { 1 } else { (size * 3.999) as usize };
            let ids = unit(((1000 * (number + 1)) + sample) as u32, size);
            bags.push(ids.into_iter().map(|id| ((id * rows as f32) as u64).min(rows - 1)));
            if feature.weighted {
                bags.weights.extend(
                    unit(((1001 * (number + 1)) + sample) as u32, size).iter().map(|unit| unit + 0.25),
                );
            }
        }
        bags
    };
    let labels = spec.heads.len();
    let label = |number: usize| {
        let values = uniform(seed, 10 + number as u32, samples).into_iter().enumerate();
        let all_missing = labels > 1 && number + 1 == labels;
        let label = move |(sample, value): (usize, f32)| match value {
            _ if shape.missing && (all_missing || (sample + number).is_multiple_of(3)) => f32::NAN,
            value => f32::from(value > 0.0),
        };
        values.map(label).collect()
    };
    Samples {
        len: samples,
        labels: (0..labels).map(label).collect(),
        weights: if shape.weighted {
            unit(2, samples).into_iter().map(|value| value + 0.5).collect()
        } else {
            Vec::new()
        },
        dense: uniform(seed, 3, samples * spec.dense_columns),
        dense_columns: spec.dense_columns,
        categorical: spec.features.iter().enumerate().map(bags_of).collect(),
    }
}

fn heads(count: usize) -> Vec<HeadSpec> {
    // The first head learns the last label.
    let head = |number: usize| HeadSpec {
        label: format!("L{number}"),
        label_number: count - 1 - number,
        weight: 1.0 / (1 << number) as f64,
    };
    (0..count).map(head).collect()
}

fn any_interaction() -> impl Strategy<Value = Interaction> {
    prop_oneof![
        Just(Interaction::Dot),
        (1..4usize, prop::option::of(1..6usize))
            .prop_map(|(layers, rank)| Interaction::Cross { layers, rank }),
        Just(Interaction::FactorizationMachine),
        Just(Interaction::Concat),
    ]
}

/// Any model: of every kind, with and without dense columns, bottom MLP and first-order terms; some features share a
/// table, and if the interaction allows it, tables differ in vector length.
pub(crate) fn any_spec() -> impl Strategy<Value = ModelSpec> {
    let table = (1..12u64, 1..9usize);
    let feature = (any::<prop::sample::Index>(), any::<bool>());
    let weighted = prop::collection::vec(any::<bool>(), 6);
    let mlp = || prop::collection::vec(1..9usize, 0..3);
    let parts = (any_interaction(), 0..4usize, mlp(), mlp(), 1..4usize, any::<bool>());
    let unit = (0..3u8, prop::collection::vec(1..7usize, 0..3));
    // Sequences, each with one or two attributes, which use the tables of the query.
    let sequence = (prop::collection::vec(any::<prop::sample::Index>(), 1..3), unit);
    let embeddings = (
        1..9usize,
        prop::collection::vec(table, 1..4),
        prop::collection::vec(feature, 0..3),
        prop::collection::vec(any::<bool>(), 3),
        weighted,
        prop::collection::vec(sequence, 0..3),
    );
    (parts, embeddings).prop_map(|(parts, (dim, tables, more_features, means, weighted, sequences))| {
        let (interaction, dense_columns, mut bottom_mlp, top_mlp, head_count, wide) = parts;
        let equal_lengths = matches!(interaction, Interaction::Dot | Interaction::FactorizationMachine);
        // A single vector has nothing to interact with.
        let dense_columns =
            if tables.len() + more_features.len() < 2 { dense_columns.max(1) } else { dense_columns };
        if dense_columns == 0 {
            bottom_mlp.clear();
        } else if equal_lengths {
            bottom_mlp.push(dim);
        }
        let features = (0..tables.len())
            .zip(means)
            .chain(more_features.into_iter().map(|(table, mean)| (table.index(tables.len()), mean)));
        let feature = |(number, (table, mean))| FeatureSpec {
            column: format!("C{number}"),
            table,
            pooling: if mean { Pooling::Mean } else { Pooling::Sum },
            weighted: weighted[number],
        };
        let mut features: Vec<_> = features.enumerate().map(feature).collect();
        let queries = features.clone();
        let mut attention = Vec::new();
        for (number, (query, (kind, hidden))) in sequences.into_iter().enumerate() {
            let query: Vec<_> = query.iter().map(|index| index.index(queries.len())).collect();
            let first = features.len();
            let attribute = |(position, &query): (usize, &usize)| FeatureSpec {
                column: format!("S{number}.{position}"),
                weighted: false,
                ..queries[query].clone()
            };
            features.extend(query.iter().enumerate().map(attribute));
            let position_embedding = [None, Some(Keep::Last), Some(Keep::First)][(hidden.len() + number) % 3];
            let unit = match kind {
                0 => AttentionUnit::Din { query, hidden },
                1 => AttentionUnit::Dot { query },
                _ => AttentionUnit::Mean,
            };
            let features = (first..features.len()).collect();
            attention.push(AttentionSpec {
                sequence: format!("S{number}"),
                features,
                length_max: 3,
                unit,
                position_embedding,
            });
        }
        let table = |(number, (rows, own_dim)): (usize, (u64, usize))| TableSpec {
            name: format!("T{number}"),
            rows,
            dim: if equal_lengths { dim } else { own_dim },
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        ModelSpec {
            dense_columns,
            bottom_mlp,
            interaction,
            wide,
            top_mlp,
            heads: heads(head_count),
            tables: tables.into_iter().enumerate().map(table).collect(),
            features,
            attention,
        }
    })
}

/// A model with random parameters throughout. Biases of 0 would put units without input exactly on the kink of their
/// ReLU, where the gradient is undefined.
fn random_model(model: &Model, seed: u64) -> CpuModel {
    let parameters = uniform(seed, 4, model.spec.dense_parameters()).into_iter().map(|value| 0.8 * value);
    let tables = model.all_tables().into_iter().enumerate().map(|(number, (table, optimizer))| {
        rankine_embedding::cpu::Table::initialized(table, optimizer, seed, number as u32)
    });
    CpuModel::new(model, parameters.collect(), tables.collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Logits, loss and (with plain SGD at rate 1) the gradient of every parameter equal the oracle's.
    #[test]
    fn a_step_equals_the_oracle_and_its_finite_differences(
        spec in any_spec(),
        samples in 1..90usize,
        (one_hot, weighted, missing) in any::<(bool, bool, bool)>(),
        seed in any::<u64>(),
    ) {
        prop_assert_eq!(spec.validate(), Ok(()));
        let batch = random_batch(&spec, BatchShape { samples, one_hot, weighted, missing }, seed);
        let mut model = random_model(&Model::sgd(spec.clone(), 1.0), seed);
        let mut oracle = Oracle::of(&model);

        // Each cross layer squares the effect of rounding on vectors, which start below 4 in length, and layers are
        // below 40 wide: a few hundred roundings of 2^-24 each, relative to the largest logit.
        let mut logits = Vec::new();
        model.logits(&batch, &mut logits);
        let exact: Vec<f64> = (0..batch.len).flat_map(|sample| oracle.logits(&batch, sample)).collect();
        let scale = 1.0 + exact.iter().fold(0.0, |most: f64, logit| most.max(logit.abs()));
        let tolerance = 3e-5 * scale;
        prop_assert_eq!(logits.len(), exact.len());
        for (logit, exact) in logits.iter().zip(&exact) {
            prop_assert!((f64::from(*logit) - exact).abs() <= tolerance, "logit {logit} {exact}");
        }
        // If rounding, or the step of a difference, can take the input of a ReLU across its kink, the gradients there
        // lie anywhere between those of both sides. Such a batch is skipped; for any other, all gradients are
        // compared.
        prop_assume!(oracle.nearest_kink.get() > tolerance);
        let before = Oracle::of(&model);
        let loss = model.train_step(&batch, 1.0).unwrap().loss;
        let after = Oracle::of(&model);
        prop_assert!((loss - oracle.loss(&batch)).abs() <= tolerance, "loss {loss}");

        // Gradients are rounded as often as logits; differences in f64 are exact to 1e-9.
        let (dense, tables) = oracle.slopes(&batch);
        let mut found = before.parameters.iter().zip(&after.parameters).map(|(before, after)| before - after);
        for (i, slope) in dense.into_iter().enumerate() {
            let gradient = found.next().unwrap();
            let wrong = (gradient - slope).abs();
            prop_assert!(wrong <= tolerance * (1.0 + slope.abs()), "dense {i}: {gradient} {slope}");
        }
        for (t, table) in tables.into_iter().enumerate() {
            for (r, row) in table.into_iter().enumerate() {
                for (e, slope) in row.into_iter().enumerate() {
                    let gradient = before.tables[t][r][e] - after.tables[t][r][e];
                    let wrong = (gradient - slope).abs();
                    prop_assert!(
                        wrong <= tolerance * (1.0 + slope.abs()),
                        "table {t}, row {r}, element {e}: {gradient} {slope}"
                    );
                }
            }
        }
    }
}

/// A medium-sized model of each kind, with everything that kind can have.
pub(crate) fn models() -> Vec<ModelSpec> {
    let spec = |interaction, wide: bool| {
        let equal_lengths = matches!(interaction, Interaction::Dot | Interaction::FactorizationMachine);
        let table = |number: usize| TableSpec {
            name: format!("T{number}"),
            rows: 50 * (number as u64 + 1),
            dim: if equal_lengths { 16 } else { 5 + 7 * (number % 5) },
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let feature = |number: usize| FeatureSpec {
            column: format!("C{number}"),
            table: number % 5,
            pooling: if number.is_multiple_of(2) { Pooling::Sum } else { Pooling::Mean },
            // Columns of one table with weights and without, and tables that have only one kind.
            weighted: matches!(number, 0 | 1 | 3 | 6),
        };
        // Two attributes that share the tables of their queries, and one with a table of its own.
        let attribute = |number: usize, table| FeatureSpec {
            column: format!("C{number}"),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        let attributes = [attribute(7, 2), attribute(8, 4), attribute(9, 5)];
        let over = |sequence: &str, features, unit, position_embedding| AttentionSpec {
            sequence: sequence.into(),
            features,
            length_max: 3,
            unit,
            position_embedding,
        };
        let din = AttentionUnit::Din { query: vec![2, 4], hidden: vec![36] };
        let dot = AttentionUnit::Dot { query: vec![0] };
        let attention = vec![
            over("clicks", vec![7, 8], din, Some(Keep::Last)),
            over("carts", vec![9], dot, wide.then_some(Keep::First)),
        ];
        ModelSpec {
            dense_columns: 5,
            bottom_mlp: vec![40, 16],
            interaction,
            wide,
            top_mlp: vec![70, 30],
            heads: heads(if wide { 2 } else { 1 }),
            tables: (0..6).map(table).collect(),
            features: (0..7).map(feature).chain(attributes).collect(),
            attention,
        }
    };
    vec![
        spec(Interaction::Dot, false),
        spec(Interaction::Cross { layers: 2, rank: None }, false),
        spec(Interaction::Cross { layers: 3, rank: Some(9) }, true),
        spec(Interaction::FactorizationMachine, true),
        ModelSpec { bottom_mlp: Vec::new(), ..spec(Interaction::Concat, true) },
    ]
}

fn optimizer(rule: UpdateRule, learning_rate: f64) -> Optimizer {
    Optimizer { rule, learning_rate, weight_decay: 0.0 }
}

/// A different rule for each part; `damping` is the lower bound of their divisors.
fn mixed_model(spec: &ModelSpec, damping: f32) -> Model {
    let rowwise = UpdateRule::RowwiseAdagrad { initial_accumulator: damping, epsilon: damping };
    let momentum = UpdateRule::Momentum { momentum: 0.5, nesterov: true };
    let of_table = |number: usize| optimizer(if number.is_multiple_of(2) { rowwise } else { momentum }, 0.05);
    let rules = TrainingRules {
        dense: Optimizer {
            weight_decay: 1e-3,
            ..optimizer(UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: damping }, 0.01)
        },
        dense_clip_norm: Some(0.2),
        tables: (0..spec.tables.len()).map(of_table).collect(),
        wide: optimizer(UpdateRule::Ftrl { beta: damping, l1: 1e-4, l2: 1e-3 }, 0.05),
    };
    Model { spec: spec.clone(), rules }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for spec in models() {
        let run = |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                let mut model = CpuModel::initialized(&mixed_model(&spec, 1e-6), 7);
                // Ten tiles: two rounds of them on one thread, one round on more.
                let shape = BatchShape { samples: 2500, one_hot: false, weighted: true, missing: false };
                let batch = random_batch(&spec, shape, 1);
                let losses: Vec<f64> = (0..10).map(|_| model.train_step(&batch, 1.0).unwrap().loss).collect();
                let rows: Vec<u32> =
                    rows_of(&model).iter().flatten().map(|weight| weight.to_bits()).collect();
                (losses, model.parameters().to_vec(), rows)
            })
        };
        let one = run(1);
        let least = one.0.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least < 0.995 * one.0[0], "{:?}: {:?}", spec.interaction, one.0);
        assert_eq!(one, run(2));
        assert_eq!(one, run(5));
    }
}

/// Several steps with the oracle's gradients, each part by its rule, as [`Optimizer`] applies it. Dense gradients are
/// clipped together, and rows that the batch does not name keep their values.
#[test]
fn every_part_learns_by_its_own_rule() {
    let dims = [3, 4];
    let table = |number: usize| TableSpec {
        name: format!("T{number}"),
        rows: 6,
        dim: dims[number],
        dtype: Dtype::Fp32,
        dynamic: None,
    };
    let feature = |number: usize| FeatureSpec {
        column: format!("C{number}"),
        table: number % 2,
        pooling: Pooling::Sum,
        weighted: false,
    };
    let spec = ModelSpec {
        dense_columns: 2,
        bottom_mlp: vec![3],
        interaction: Interaction::Cross { layers: 1, rank: Some(2) },
        wide: true,
        top_mlp: vec![4],
        heads: heads(2),
        tables: (0..2).map(table).collect(),
        features: (0..3).map(feature).collect(),
        attention: Vec::new(),
    };
    let learning = mixed_model(&spec, 0.1);
    let rules = &learning.rules;
    let mut model = random_model(&learning, 5);
    let mut oracle = Oracle::of(&model);
    let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
    let state_of = |rule: UpdateRule, weights: &[f64]| {
        let mut state = vec![0.0; rule.state_elements(weights.len())];
        rule.initialize(&narrow(weights), &mut state);
        state
    };
    let optimizers: Vec<Optimizer> = learning.all_tables().into_iter().map(|(_, of)| of).collect();
    let mut dense_state = state_of(rules.dense.rule, &oracle.parameters);
    let mut table_states: Vec<Vec<_>> = oracle
        .tables
        .iter()
        .zip(&optimizers)
        .map(|(rows, of)| rows.iter().map(|row| state_of(of.rule, row)).collect())
        .collect();

    let mut clipped = 0;
    for number in 1..=4 {
        let shape = BatchShape { samples: 5, one_hot: true, weighted: true, missing: false };
        let batch = random_batch(&spec, shape, number);
        let step = Step { number, rate_factor: 0.5 + number as f64 / 4.0 };
        let (mut dense, tables) = oracle.slopes(&batch);
        model.train_step(&batch, step.rate_factor).unwrap();

        let norm = dense.iter().map(|slope| slope * slope).sum::<f64>().sqrt();
        if norm > 0.2 {
            clipped += 1;
            dense.iter_mut().for_each(|slope| *slope *= 0.2 / norm);
        }
        let mut parameters = narrow(&oracle.parameters);
        rules.dense.at(step).apply(&mut parameters, &mut dense_state, &narrow(&dense));
        oracle.parameters = parameters.iter().map(|&value| f64::from(value)).collect();
        for (t, table) in tables.iter().enumerate() {
            let features =
                spec.features.iter().enumerate().filter(|(number, feature)| match t.checked_sub(2) {
                    None => feature.table == t,
                    Some(column) => *number == column,
                });
            let columns: Vec<_> = features.map(|(number, _)| &batch.categorical[number]).collect();
            for (r, slopes) in table.iter().enumerate() {
                if !columns.iter().any(|bags| bags.ids.contains(&(r as u64))) {
                    continue;
                }
                let mut row = narrow(&oracle.tables[t][r]);
                optimizers[t].at(step).apply(&mut row, &mut table_states[t][r], &narrow(slopes));
                oracle.tables[t][r] = row.iter().map(|&value| f64::from(value)).collect();
            }
        }
        // Gradients differ by some 1e-6, rounding and difference quotients together; rates are below 0.1 and divisors
        // above 0.1, over four steps.
        let found = Oracle::of(&model);
        for (found, expected) in found.parameters.iter().zip(&oracle.parameters) {
            assert!((found - expected).abs() <= 1e-5, "step {number}: {found} {expected}");
        }
        for (t, (found, expected)) in found.tables.iter().zip(&oracle.tables).enumerate() {
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!((found - expected).abs() <= 1e-5, "step {number} table {t}: {found} {expected}");
            }
        }
    }
    assert!(clipped > 0);
}
