//! How the parts of a model learn.

use rankine_embedding::cpu::Table;
use rankine_embedding::{Optimizer, TableSpec};

use super::ModelSpec;

/// The optimizers of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRules {
    /// Of the dense parameters: MLPs, cross layers and the dense columns' first-order terms.
    pub dense: Optimizer,
    /// Dense gradients whose norm, over all of them, is longer than this are shortened to it before the optimizer sees
    /// them.
    pub dense_clip_norm: Option<f32>,
    /// One a table of the model.
    pub tables: Vec<Optimizer>,
    /// Of all tables of first-order terms.
    pub wide: Optimizer,
}

impl TrainingRules {
    /// Plain gradient descent with one learning rate for everything. It keeps no state, so it also serves models that
    /// do not learn.
    pub fn sgd(spec: &ModelSpec, learning_rate: f64) -> Self {
        let sgd = Optimizer::sgd(learning_rate);
        Self { dense: sgd, dense_clip_norm: None, tables: vec![sgd; spec.tables.len()], wide: sgd }
    }

    /// Every table of a model with its optimizer, those of first-order terms behind the others.
    pub fn all_tables(&self, spec: &ModelSpec) -> Vec<(TableSpec, Optimizer)> {
        let tables = spec.tables.iter().cloned().zip(self.tables.iter().copied());
        tables.chain(spec.wide_tables().into_iter().map(|table| (table, self.wide))).collect()
    }

    /// Bytes that the tables of a model take with their optimizer state.
    pub fn table_bytes(&self, spec: &ModelSpec) -> u64 {
        self.all_tables(spec).iter().map(|(table, optimizer)| Table::bytes(table, optimizer.rule)).sum()
    }
}
