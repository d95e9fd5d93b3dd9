//! How the parts of a model learn: their optimizers; and a model with these rules.

use rankine_embedding::cpu::Table;
use rankine_embedding::{Optimizer, TableSpec};

use super::ModelSpec;

/// The optimizers of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRules {
    /// For the dense parameters: MLPs, cross layers and the dense columns' first-order terms.
    pub dense: Optimizer,
    /// The largest norm of all dense gradients together; longer ones are scaled down to it before the optimizer sees
    /// them.
    pub dense_clip_norm: Option<f32>,
    /// One per table of the model.
    pub tables: Vec<Optimizer>,
    /// For all tables of first-order terms.
    pub wide: Optimizer,
}

impl TrainingRules {
    /// Plain gradient descent with one learning rate for everything. It keeps no state, so it also suits models that
    /// do not learn.
    pub fn sgd(spec: &ModelSpec, learning_rate: f64) -> Self {
        let sgd = Optimizer::sgd(learning_rate);
        Self { dense: sgd, dense_clip_norm: None, tables: vec![sgd; spec.tables.len()], wide: sgd }
    }
}

/// What a training needs to know of a model: its parts and sizes, and how these learn.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its parts and their sizes.
    pub spec: ModelSpec,
    /// Its optimizers.
    pub rules: TrainingRules,
}

impl Model {
    /// A model that learns as [`TrainingRules::sgd`] says.
    pub fn sgd(spec: ModelSpec, learning_rate: f64) -> Self {
        Self { rules: TrainingRules::sgd(&spec, learning_rate), spec }
    }

    /// Returns every table with its optimizer, those of first-order terms after the others.
    pub fn all_tables(&self) -> Vec<(TableSpec, Optimizer)> {
        let Self { spec, rules } = self;
        let tables = spec.tables.iter().cloned().zip(rules.tables.iter().copied());
        tables.chain(spec.wide_tables().into_iter().map(|table| (table, rules.wide))).collect()
    }

    /// Returns the bytes of its tables with their optimizer state, or the largest number if there are more.
    pub fn table_bytes(&self) -> u64 {
        let tables = self.all_tables();
        let bytes = tables.iter().map(|(table, optimizer)| Table::bytes(table, optimizer.rule));
        bytes.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, UpdateRule};

    use super::*;
    use crate::{FeatureSpec, HeadSpec, Interaction};

    #[test]
    fn tables_have_their_rules_and_those_of_first_order_terms_come_last() {
        let table = |name: &str, rows, dim| TableSpec {
            name: name.into(),
            rows,
            dim,
            dtype: Dtype::Bf16,
            dynamic: None,
        };
        let feature = |column: &str, table| FeatureSpec {
            column: column.into(),
            table,
            pooling: Pooling::Mean,
            weighted: false,
        };
        let head =
            |number: usize| HeadSpec { label: format!("L{number}"), label_number: number, weight: 1.0 };
        let spec = ModelSpec {
            dense_columns: 0,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: true,
            top_mlp: Vec::new(),
            heads: (0..2).map(head).collect(),
            tables: vec![table("A", 10, 4), table("B", 7, 6)],
            features: vec![feature("C1", 1), feature("C2", 0), feature("C3", 1)],
            attention: Vec::new(),
        };
        let [a, b, wide] = [1.0, 2.0, 3.0].map(Optimizer::sgd);
        let adagrad = UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 };
        let wide = Optimizer { rule: adagrad, ..wide };
        let rules = TrainingRules { tables: vec![a, b], wide, ..TrainingRules::sgd(&spec, 9.0) };
        let first_order =
            |column: &str, rows| (TableSpec { dtype: Dtype::Fp32, ..table(column, rows, 2) }, wide);
        let expected = [
            (table("A", 10, 4), a),
            (table("B", 7, 6), b),
            first_order("C1", 7),
            first_order("C2", 10),
            first_order("C3", 7),
        ];
        let model = Model { spec, rules };
        assert_eq!(model.all_tables(), expected);
        // Rows of 4 elements, of 6 in 8, and of 2 with their state.
        assert_eq!(model.table_bytes(), 4 * (10 * 4 + 7 * 8 + (7 + 10 + 7) * 4));
        assert_eq!(model.spec.embedding_parameters(), 10 * 4 + 7 * 6 + (7 + 10 + 7) * 2);
        assert_eq!((model.rules.dense, model.rules.dense_clip_norm), (Optimizer::sgd(9.0), None));
    }
}
