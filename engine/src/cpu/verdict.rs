//! Whether a step may be written: what its samples have come to, rank by rank, and the verdict, which is the same on
//! all of them.

use rankine_embedding::cpu::Communicator;
use rankine_embedding::vectorized;

use crate::guard::{DENSE_SQUARES_MAX, FoundOn, LeftOut, NonFinite, StepOutcome, VECTOR_GRADIENT_MAX};
use crate::model::ModelSpec;

/// What the samples of a rank, or of all of them, have come to. Each entry counts ranks.
#[derive(Debug)]
pub(super) struct Findings {
    /// One a head: the weighted sum of its losses.
    pub(super) loss_sums: Vec<f64>,
    /// One a rank: whether a loss or a gradient by a vector is no finite number there.
    ranks: Vec<f64>,
    /// Whether it is a gradient by a vector.
    vectors: f64,
    /// One a table: whether such a gradient is by a vector of it.
    tables: Vec<f64>,
}

impl Findings {
    /// What a rank finds by itself. `vector_gradients` are `[sample, vector elements]`, and `hold` where all of them
    /// are finite.
    pub(super) fn new(
        spec: &ModelSpec,
        (rank, ranks): (usize, usize),
        loss_sums: Vec<f64>,
        (vector_gradients, hold): (&[f32], bool),
    ) -> Self {
        let mut of_ranks = vec![0.0; ranks];
        if !hold || loss_sums.iter().any(|sum| !sum.is_finite()) {
            of_ranks[rank] = 1.0;
        }
        let mut tables = vec![0.0; spec.tables.len()];
        if !hold {
            mark_tables(spec, vector_gradients, &mut tables);
        }
        Self { loss_sums, ranks: of_ranks, vectors: f64::from(u8::from(!hold)), tables }
    }

    /// Adds up what all ranks have found.
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

    /// The verdict on a step with this loss and this sum of the squares of all dense gradients.
    pub(super) fn verdict(&self, spec: &ModelSpec, loss: f64, squares: f64) -> StepOutcome {
        // Of NaN neither is true.
        let dense_holds = squares <= DENSE_SQUARES_MAX;
        let vectors_hold = self.vectors == 0.0;
        if loss.is_finite() && dense_holds && vectors_hold {
            return StepOutcome { loss, left_out: None };
        }
        let found_on = self.ranks.iter().enumerate().filter(|(_, found)| **found > 0.0);
        let found_on: Vec<_> = found_on.map(|(rank, _)| rank).collect();
        let tables = spec.tables.iter().zip(&self.tables).filter(|(_, found)| **found > 0.0);
        let found = NonFinite {
            loss: !loss.is_finite(),
            dense_gradients: !dense_holds,
            vector_gradients: !vectors_hold,
            tables: tables.map(|(table, _)| table.name.clone()).collect(),
            found_on: FoundOn::of(found_on.len(), found_on.iter().sum()),
        };
        StepOutcome { loss, left_out: Some(LeftOut::NonFinite(found)) }
    }
}

/// Whether gradients by vectors are finite, and within what can be added up and squared.
pub(super) fn hold(gradients: &[f32]) -> bool {
    let mut largest = 0;
    largest_magnitude(gradients, &mut largest);
    largest <= VECTOR_GRADIENT_MAX.to_bits()
}

vectorized! {
    /// By its bits, which are in the order of magnitudes: those of infinity are behind all numbers, those of NaN behind
    /// infinity.
    fn largest_magnitude(gradients: &[f32], largest: &mut u32) {
        *largest = gradients.iter().fold(0, |largest, gradient| largest.max(gradient.abs().to_bits()));
    }
}

/// Marks the tables of which some vector has a gradient that does not hold.
fn mark_tables(spec: &ModelSpec, vector_gradients: &[f32], tables: &mut [f64]) {
    for row in vector_gradients.chunks_exact(spec.vector_elements()) {
        let mut offset = spec.bottom_outputs();
        for feature in &spec.features {
            let dim = spec.feature_dim(feature);
            if !hold(&row[offset..offset + dim]) {
                tables[feature.table] = 1.0;
            }
            offset += dim;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use rankine_embedding::cpu::Table;
    use rankine_embedding::{Dtype, Pooling, TableSpec};
    use rankine_reader::{Bags, Samples};

    use super::*;
    use crate::cpu::CpuModel;
    use crate::cpu::oracle::any_spec;
    use crate::model::{FeatureSpec, HeadSpec, Interaction, TrainingRules};

    #[test]
    fn a_gradient_by_a_vector_is_found_with_its_table_and_rank() {
        let values =
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2.0 * VECTOR_GRADIENT_MAX, -VECTOR_GRADIENT_MAX];
        let inputs =
            (any_spec(), 1..9usize, any::<prop::sample::Index>(), prop::sample::select(values.to_vec()));
        let check = |(spec, samples, place, value): (ModelSpec, usize, prop::sample::Index, f32)| {
            let elements = spec.vector_elements();
            let mut gradients = vec![VECTOR_GRADIENT_MAX; samples * elements];
            let place = place.index(gradients.len());
            gradients[place] = value;
            let holds = value == -VECTOR_GRADIENT_MAX;
            prop_assert_eq!(hold(&gradients), holds);
            let findings = Findings::new(&spec, (3, 5), vec![1.0], (&gradients, holds));
            let outcome = findings.verdict(&spec, 0.5, 7.0);
            if holds {
                prop_assert_eq!(outcome, StepOutcome { loss: 0.5, left_out: None });
                return Ok(());
            }
            let mut ends = spec.bottom_outputs();
            let of_place = spec.features.iter().find(|feature| {
                ends += spec.feature_dim(feature);
                place % elements >= spec.bottom_outputs() && place % elements < ends
            });
            let table = of_place.map(|feature| spec.tables[feature.table].name.clone());
            let expected = NonFinite {
                vector_gradients: true,
                tables: table.into_iter().collect(),
                found_on: FoundOn::Rank(3),
                ..NonFinite::default()
            };
            prop_assert_eq!(outcome.non_finite(), Some(&expected));
            Ok(())
        };
        TestRunner::default().run(&inputs, check).unwrap();
    }

    /// A batch of several tiles. In one of them the square of a gradient with respect to a vector overflows, while its
    /// loss and the dense gradients are small.
    #[test]
    fn one_tile_of_a_batch_decides_for_all() {
        let table = TableSpec { name: "C1".into(), rows: 1, dim: 1, dtype: Dtype::Fp32 };
        let spec = ModelSpec {
            dense_columns: 1,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: vec![1],
            heads: vec![HeadSpec { label: "L1".into(), label_number: 0, weight: 1.0 }],
            tables: vec![table.clone()],
            features: vec![FeatureSpec { column: "C1".into(), table: 0, pooling: Pooling::Sum }],
        };
        let rules = TrainingRules::sgd(&spec, 1.0);
        // A hidden unit of the dense column and of 2^60 times the embedding, which is 0; then the logit.
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
            let tables = vec![Table::zeroed(table.clone(), rules.tables[0])];
            let mut model = CpuModel::new(spec.clone(), &rules, parameters.clone(), tables);
            model.train_step(&of_batch(active), 1.0)
        };
        assert_eq!(step(None).left_out, None);
        for sample in [0, 70, 199] {
            let outcome = step(Some(sample));
            let expected = NonFinite {
                vector_gradients: true,
                tables: vec!["C1".into()],
                found_on: FoundOn::Rank(0),
                ..NonFinite::default()
            };
            assert_eq!(outcome.non_finite(), Some(&expected), "sample {sample}");
        }
    }

    #[test]
    fn losses_and_dense_gradients_are_judged() {
        let spec = any_spec().new_tree(&mut TestRunner::default()).unwrap().current();
        let judged = |loss_sum: f64, squares: f64| {
            let findings = Findings::new(&spec, (1, 2), vec![loss_sum], (&[], true));
            let outcome = findings.verdict(&spec, loss_sum, squares);
            outcome.non_finite().map(|found| (found.loss, found.dense_gradients, found.found_on))
        };
        assert_eq!(judged(1.0, DENSE_SQUARES_MAX), None);
        assert_eq!(judged(f64::NAN, 1.0), Some((true, false, FoundOn::Rank(1))));
        assert_eq!(judged(f64::INFINITY, f64::NAN), Some((true, true, FoundOn::Rank(1))));
        assert_eq!(judged(1.0, 2.0 * DENSE_SQUARES_MAX), Some((false, true, FoundOn::Sums)));
    }
}
