//! The verdict on a step: what the samples of each rank yielded, and whether the step is applied, which is the same on
//! all ranks.

use std::ops::Range;

use rankine_embedding::cpu::Communicator;
use rankine_embedding::{Pooling, vectorized};
use rankine_reader::{Bags, Samples};
use rankine_topology::Rank;

use super::positions::{Attribute, PositionSlots, SequenceKeys, features_of};
use rankine_model::guard::{
    DENSE_SQUARES_MAX, FoundOn, NonFinite, SkipReason, StepOutcome, VECTOR_GRADIENT_MAX,
};
use rankine_model::{FeatureSpec, ModelSpec};

/// The findings on the samples of one rank, or after [`Findings::add_up`] of all ranks. Each entry counts ranks.
#[derive(Debug)]
pub(super) struct Findings {
    /// The weighted sum of losses, one per head.
    pub(super) loss_sums: Vec<f64>,
    /// One per rank: whether a loss or a vector gradient is not finite there.
    ranks: Vec<f64>,
    /// Whether a vector gradient is not finite.
    vectors: f64,
    /// One per table: whether a gradient with respect to one of its vectors is not finite.
    tables: Vec<f64>,
}

impl Findings {
    /// Creates the findings of one rank on its samples. `vector_gradients` are `[sample, vector elements]`, then
    /// those with respect to keys: see [`PositionSlots`]. `finite` is whether all of them are finite and within bounds.
    pub(super) fn new(
        (spec, batch): (&ModelSpec, &Samples),
        (rank, ranks): (Rank, usize),
        loss_sums: Vec<f64>,
        (vector_gradients, finite): (&[f32], bool),
    ) -> Self {
        let mut of_ranks = vec![0.0; ranks];
        if !finite || loss_sums.iter().any(|sum| !sum.is_finite()) {
            of_ranks[rank.0] = 1.0;
        }
        let mut tables = vec![0.0; spec.tables.len()];
        if !finite {
            mark_tables(spec, batch, vector_gradients, &mut tables);
        }
        Self { loss_sums, ranks: of_ranks, vectors: f64::from(u8::from(!finite)), tables }
    }

    /// Sums the findings over all ranks.
    pub(super) fn add_up(&mut self, communicator: &Communicator) {
        let mut all = self.loss_sums.clone();
        all.extend(&self.ranks);
        all.extend(&self.tables);
        all.push(self.vectors);
        communicator.sum(&mut all);
        let (loss_sums, rest) = all.split_at(self.loss_sums.len());
        let (ranks, rest) = rest.split_at(self.ranks.len());
        let (tables, vectors) = rest.split_at(self.tables.len());
        self.loss_sums.copy_from_slice(loss_sums);
        self.ranks.copy_from_slice(ranks);
        self.tables.copy_from_slice(tables);
        self.vectors = vectors[0];
    }

    /// Returns the verdict on a step with this loss and this sum of the squares of all dense gradients.
    pub(super) fn verdict(&self, spec: &ModelSpec, loss: f64, squares: f64) -> StepOutcome {
        // NaN fails both comparisons.
        let dense_finite = squares <= DENSE_SQUARES_MAX;
        let vectors_finite = self.vectors == 0.0;
        if loss.is_finite() && dense_finite && vectors_finite {
            return StepOutcome { loss, skipped: None };
        }
        let found_on = self.ranks.iter().enumerate().filter(|(_, found)| **found > 0.0);
        let found_on: Vec<_> = found_on.map(|(rank, _)| rank).collect();
        let tables = spec.tables.iter().zip(&self.tables).filter(|(_, found)| **found > 0.0);
        let found = NonFinite {
            loss: !loss.is_finite(),
            dense_gradients: !dense_finite,
            vector_gradients: !vectors_finite,
            tables: tables.map(|(table, _)| table.name.clone()).collect(),
            found_on: FoundOn::from_ranks(found_on.len(), found_on.iter().sum()),
        };
        StepOutcome { loss, skipped: Some(SkipReason::NonFinite(found)) }
    }
}

/// Whether vector gradients are finite, and small enough to be added up and squared.
pub(super) fn all_finite(gradients: &[f32]) -> bool {
    let mut largest = 0;
    largest_magnitude(gradients, &mut largest);
    largest <= VECTOR_GRADIENT_MAX.to_bits()
}

vectorized! {
    /// Compares bits, which have the order of magnitudes: infinity is above all finite numbers, and NaN above
    /// infinity.
    fn largest_magnitude(gradients: &[f32], largest: &mut u32) {
        *largest = gradients.iter().fold(0, |largest, gradient| largest.max(gradient.abs().to_bits()));
    }
}

/// Marks the tables with a row whose gradient is not finite or out of bounds.
fn mark_tables(spec: &ModelSpec, batch: &Samples, gradients: &[f32], tables: &mut [f64]) {
    let (vector_gradients, _) = gradients.split_at(batch.len * spec.vector_elements());
    let sequences = SequenceKeys::all(spec);
    let slots = PositionSlots::new(&sequences, batch, vector_gradients.len());
    for (column, feature) in spec.features.iter().enumerate() {
        let Some(attribute) = Attribute::of(spec, column) else { continue };
        let own = attribute.offset..attribute.offset + spec.feature_dim(feature);
        let mut keys =
            gradients[slots.keys(attribute.sequence)].chunks_exact(sequences[attribute.sequence].elements);
        if keys.any(|key| !all_finite(&key[own.clone()])) {
            tables[feature.table] = 1.0;
        }
    }
    for (sample, row) in vector_gradients.chunks_exact(spec.vector_elements()).enumerate() {
        for (column, feature, own) in features_of(spec) {
            if !within_bounds(&row[own], largest_factor(feature, batch, column, sample)) {
                tables[feature.table] = 1.0;
            }
        }
    }
}

/// Whether the gradients of rows are finite and within bounds in features with weights, by which gradients of vectors
/// and logits are multiplied. Both are of some samples of a batch.
pub(super) fn weighted_within_bounds(
    spec: &ModelSpec,
    batch: &Samples,
    samples: Range<usize>,
    (vector_gradients, logit_gradients): (&[f32], &[f32]),
) -> bool {
    let (stride, heads) = (spec.vector_elements(), spec.heads.len());
    // Shares of a mean are at most 1.
    let mut summed = features_of(spec).filter(|(_, feature, _)| has_large_factors(feature));
    summed.all(|(column, feature, own)| {
        samples.clone().enumerate().all(|(number, sample)| {
            let factor = largest_factor(feature, batch, column, sample);
            let of_vector = &vector_gradients[number * stride..][own.clone()];
            let of_logits = &logit_gradients[number * heads..][..heads];
            within_bounds(of_vector, factor) && (!spec.wide || within_bounds(of_logits, factor))
        })
    })
}

/// Whether the factors of a feature's rows may exceed 1.
fn has_large_factors(feature: &FeatureSpec) -> bool {
    feature.weighted && feature.pooling == Pooling::Sum
}

/// The largest factor of the rows of a sample's bag; 1 if all are less.
fn largest_factor(feature: &FeatureSpec, batch: &Samples, column: usize, sample: usize) -> f32 {
    if !has_large_factors(feature) {
        return 1.0;
    }
    let Bags { offsets, weights, .. } = &batch.categorical[column];
    weights[offsets[sample] as usize..offsets[sample + 1] as usize]
        .iter()
        .fold(1.0, |most, &weight| most.max(weight))
}

/// Whether gradients times a factor are finite and within bounds.
fn within_bounds(gradients: &[f32], factor: f32) -> bool {
    let product = |gradient: f32| f64::from(gradient.abs()) * f64::from(factor);
    all_finite(gradients)
        && (factor == 1.0
            || gradients.iter().all(|&gradient| product(gradient) <= f64::from(VECTOR_GRADIENT_MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use rankine_embedding::cpu::Table;
    use rankine_embedding::{Dtype, TableSpec};

    use super::*;
    use crate::CpuModel;
    use crate::tests::oracle::{BatchShape, any_spec, random_batch};
    use rankine_model::{AttentionSpec, AttentionUnit, HeadSpec, Interaction, Model};

    #[test]
    fn a_vector_gradient_is_found_with_its_table_and_rank() {
        let values =
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2.0 * VECTOR_GRADIENT_MAX, -VECTOR_GRADIENT_MAX];
        let inputs =
            (any_spec(), 1..9usize, any::<prop::sample::Index>(), prop::sample::select(values.to_vec()));
        let check = |(spec, samples, index, value): (ModelSpec, usize, prop::sample::Index, f32)| {
            let elements = spec.vector_elements();
            // Weights above 1 are in a test of their own.
            let shape = BatchShape { samples, one_hot: false, weighted: false, missing: false };
            let mut batch = random_batch(&spec, shape, 1);
            batch.categorical.iter_mut().for_each(|bags| bags.weights.fill(1.0));
            let (sequences, vectors) = (SequenceKeys::all(&spec), samples * elements);
            let slots = PositionSlots::new(&sequences, &batch, vectors);
            let mut gradients = vec![VECTOR_GRADIENT_MAX; slots.end()];
            let index = index.index(gradients.len());
            gradients[index] = value;
            let finite = value == -VECTOR_GRADIENT_MAX;
            prop_assert_eq!(all_finite(&gradients), finite);
            let findings = Findings::new((&spec, &batch), (Rank(3), 5), vec![1.0], (&gradients, finite));
            let outcome = findings.verdict(&spec, 0.5, 7.0);
            if finite {
                prop_assert_eq!(outcome, StepOutcome { loss: 0.5, skipped: None });
                return Ok(());
            }
            let mut ends = spec.bottom_outputs();
            let feature = spec.features.iter().enumerate().find(|(number, feature)| {
                ends += spec.feature_dim(feature);
                if index < vectors {
                    return index % elements >= spec.bottom_outputs() && index % elements < ends;
                }
                let Some(attribute) = Attribute::of(&spec, *number) else { return false };
                let keys = slots.keys(attribute.sequence);
                let at = index.wrapping_sub(keys.start) % sequences[attribute.sequence].elements;
                let own = attribute.offset..attribute.offset + spec.feature_dim(feature);
                keys.contains(&index) && own.contains(&at)
            });
            let feature = feature.map(|(_, feature)| feature);
            let table = feature.map(|feature| spec.tables[feature.table].name.clone());
            let expected = NonFinite {
                vector_gradients: true,
                tables: table.into_iter().collect(),
                found_on: FoundOn::Rank(Rank(3)),
                ..NonFinite::default()
            };
            prop_assert_eq!(outcome.non_finite(), Some(&expected));
            Ok(())
        };
        TestRunner::default().run(&inputs, check).unwrap();
    }

    /// A batch of several tiles. In one of them the square of a vector gradient overflows, while loss and dense
    /// gradients are small.
    #[test]
    fn one_tile_of_a_batch_decides_for_all() {
        let table = TableSpec { name: "C1".into(), rows: 1, dim: 1, dtype: Dtype::Fp32, dynamic: None };
        let spec = ModelSpec {
            dense_columns: 1,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: vec![1],
            heads: vec![HeadSpec { label: "L1".into(), label_number: 0, weight: 1.0 }],
            tables: vec![table.clone()],
            features: vec![FeatureSpec {
                column: "C1".into(),
                table: 0,
                pooling: Pooling::Sum,
                weighted: false,
            }],
            attention: Vec::new(),
        };
        let model = Model::sgd(spec, 1.0);
        // A hidden unit fed by the dense column and by 2^60 times the embedding, which is 0; then the logit.
        let parameters = vec![1.0, 2f32.powi(60), 0.0, 1.0, 0.0];
        let of_batch = |active: Option<usize>| {
            let mut bags = Bags::default();
            (0..200).for_each(|_| bags.push([0]));
            let mut dense = vec![-1.0; 200];
            if let Some(sample) = active {
                dense[sample] = 1.0;
            }
            Samples {
                len: 200,
                labels: vec![vec![0.0; 200]],
                weights: Vec::new(),
                dense,
                dense_columns: 1,
                categorical: vec![bags],
            }
        };
        let step = |active| {
            let tables = vec![Table::zeroed(table.clone(), model.rules.tables[0])];
            let mut model = CpuModel::new(&model, parameters.clone(), tables);
            model.train_step(&of_batch(active), 1.0).unwrap()
        };
        assert_eq!(step(None).skipped, None);
        for sample in [0, 70, 199] {
            let outcome = step(Some(sample));
            let expected = NonFinite {
                vector_gradients: true,
                tables: vec!["C1".into()],
                found_on: FoundOn::Rank(Rank(0)),
                ..NonFinite::default()
            };
            assert_eq!(outcome.non_finite(), Some(&expected), "sample {sample}");
        }
    }

    /// Keys are 0 and weights of positions are 2^60: sums and their gradients are small, and gradients with respect to
    /// keys are not.
    #[test]
    fn gradients_of_keys_are_judged() {
        let table = |number: usize| TableSpec {
            name: format!("T{number}"),
            rows: 1,
            dim: 1,
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let feature = |table: usize| FeatureSpec {
            column: format!("C{table}"),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        let unit = AttentionUnit::Din { query: vec![0], hidden: Vec::new() };
        let spec = ModelSpec {
            dense_columns: 0,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: Vec::new(),
            heads: vec![HeadSpec { label: "L1".into(), label_number: 0, weight: 1.0 }],
            tables: (0..2).map(table).collect(),
            features: (0..2).map(feature).collect(),
            attention: vec![AttentionSpec {
                sequence: "S".into(),
                features: vec![1],
                length_max: 1,
                unit,
                position_embedding: None,
            }],
        };
        let model = Model::sgd(spec, 1.0);
        // The unit's weights and bias; then the logit is the sum of the sequence.
        let parameters = vec![0.0, 0.0, 0.0, 0.0, 2f32.powi(60), 0.0, 1.0, 0.0];
        let step = |active: Option<usize>| {
            let (mut query, mut sequence) = (Bags::default(), Bags::default());
            for sample in 0..200 {
                query.push([0]);
                sequence.push((Some(sample) == active).then_some(0));
            }
            let labels = vec![vec![0.0; 200]];
            let batch =
                Samples { len: 200, labels, categorical: vec![query, sequence], ..Samples::default() };
            let tables = model.all_tables().into_iter().map(|(table, rule)| Table::zeroed(table, rule));
            CpuModel::new(&model, parameters.clone(), tables.collect()).train_step(&batch, 1.0).unwrap()
        };
        assert_eq!(step(None).skipped, None);
        for sample in [0, 70, 199] {
            let expected = NonFinite {
                vector_gradients: true,
                tables: vec!["T1".into()],
                found_on: FoundOn::Rank(Rank(0)),
                ..NonFinite::default()
            };
            assert_eq!(step(Some(sample)).non_finite(), Some(&expected), "sample {sample}");
        }
    }

    /// A gradient within bounds is beyond them once it is multiplied by a weight, of a vector or of a logit; a mean has
    /// no weights above 1.
    #[test]
    fn gradients_are_judged_with_their_weights() {
        let spec = |pooling, wide| ModelSpec {
            dense_columns: 1,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide,
            top_mlp: vec![1],
            heads: vec![HeadSpec { label: "L1".into(), label_number: 0, weight: 1.0 }],
            tables: vec![TableSpec { name: "C1".into(), rows: 2, dim: 1, dtype: Dtype::Fp32, dynamic: None }],
            features: vec![FeatureSpec { column: "C1".into(), table: 0, pooling, weighted: true }],
            attention: Vec::new(),
        };
        let mut bags = Bags::default();
        bags.push_weighted([(0, 0.5), (1, 0.25)]);
        bags.push_weighted([]);
        bags.push_weighted([(0, 0.5), (1, 1024.0)]);
        let batch = Samples { len: 3, categorical: vec![bags], ..Samples::default() };
        let (most, large) = (VECTOR_GRADIENT_MAX / 1024.0, VECTOR_GRADIENT_MAX / 512.0);
        // Gradients of a dense column and an embedding for each sample.
        let vectors = |last| [VECTOR_GRADIENT_MAX, VECTOR_GRADIENT_MAX, 0.0, VECTOR_GRADIENT_MAX, 0.0, last];
        for (pooling, wide, last, logit, admitted) in [
            (Pooling::Sum, false, most, large, true),
            (Pooling::Sum, false, large, 0.0, false),
            (Pooling::Mean, true, large, large, true),
            (Pooling::Sum, true, 0.0, most, true),
            (Pooling::Sum, true, 0.0, -large, false),
            (Pooling::Sum, true, 0.0, f32::NAN, false),
        ] {
            let spec = spec(pooling, wide);
            let within = |samples: Range<usize>| {
                let (vectors, logits) = (vectors(last), [0.0, 0.0, logit]);
                let gradients = (&vectors[2 * samples.start..], &logits[samples.start..]);
                weighted_within_bounds(&spec, &batch, samples, gradients)
            };
            assert_eq!(
                (within(0..3), within(2..3), within(0..2)),
                (admitted, admitted, true),
                "{last} {logit}"
            );
            let findings =
                Findings::new((&spec, &batch), (Rank(0), 1), vec![1.0], (&vectors(last), admitted));
            let found = findings.verdict(&spec, 1.0, 1.0).skipped.is_some();
            assert_eq!(found, !admitted);
            assert_eq!(findings.tables[0] > 0.0, pooling == Pooling::Sum && last == large);
        }
    }

    #[test]
    fn losses_and_dense_gradients_are_judged() {
        let spec = any_spec().new_tree(&mut TestRunner::default()).unwrap().current();
        let judged = |loss_sum: f64, squares: f64| {
            let findings =
                Findings::new((&spec, &Samples::default()), (Rank(1), 2), vec![loss_sum], (&[], true));
            let outcome = findings.verdict(&spec, loss_sum, squares);
            outcome.non_finite().map(|found| (found.loss, found.dense_gradients, found.found_on))
        };
        assert_eq!(judged(1.0, DENSE_SQUARES_MAX), None);
        assert_eq!(judged(f64::NAN, 1.0), Some((true, false, FoundOn::Rank(Rank(1)))));
        assert_eq!(judged(f64::INFINITY, f64::NAN), Some((true, true, FoundOn::Rank(Rank(1)))));
        assert_eq!(judged(1.0, 2.0 * DENSE_SQUARES_MAX), Some((false, true, FoundOn::SumOverRanks)));
    }
}
