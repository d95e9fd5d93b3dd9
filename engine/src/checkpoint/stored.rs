//! The rows of a checkpoint as rows that can be read like a rank's, a window at a time.

use std::ops::Range;

use rankine_embedding::cpu::{HostRows, Table};
use rankine_embedding::rows::{RowPart, RowSet, Rows, RowsError, Touched};
use rankine_embedding::{Optimizer, TableSpec, UpdateRule};

use super::manifest::{RuleState, TableState};
use super::{Checkpoint, CheckpointError};

/// All tables of a checkpoint, as one of some ranks would have them whose rows take turns. What is read comes from disk
/// each time.
#[derive(Debug)]
pub struct StoredRows<'a> {
    checkpoint: &'a Checkpoint,
    parts: Vec<RowPart>,
    rules: Vec<Optimizer>,
}

impl<'a> StoredRows<'a> {
    /// What rank `rank` of `ranks` would have.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] where a rule is none of Rankine's.
    pub fn new(checkpoint: &'a Checkpoint, rank: u64, ranks: u64) -> Result<Self, CheckpointError> {
        let tables = &checkpoint.manifest().tables;
        let rules = tables.iter().map(|table| {
            let rule = rule(&table.learns).ok_or_else(|| {
                let what = format!("{} learns by a rule that this program does not know", table.tensor);
                CheckpointError::damaged(checkpoint.path(), what)
            })?;
            Ok::<_, CheckpointError>(Optimizer { rule, ..Optimizer::sgd(0.0) })
        });
        let rules: Vec<_> = rules.collect::<Result<_, _>>()?;
        let part = |(number, (table, &optimizer)): (usize, (&TableState, &Optimizer))| {
            let rows = table.table.rows;
            let count = (rows + ranks - 1).saturating_sub(rank) / ranks;
            let one = Table::zeroed(TableSpec { rows: 1, ..table.table.clone() }, optimizer);
            RowPart {
                table: number,
                columns: 0..table.table.dim,
                rows: RowSet::Every { first: rank, step: ranks, count },
                own: 0..count,
                layout: one.layout(),
            }
        };
        let parts = tables.iter().zip(&rules).enumerate().map(part).collect();
        Ok(Self { checkpoint, parts, rules })
    }
}

/// A rule that keeps what a manifest says, whatever its settings.
fn rule(state: &RuleState) -> Option<UpdateRule> {
    let rules = [
        UpdateRule::Sgd,
        UpdateRule::Momentum { momentum: 0.0, nesterov: false },
        UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        UpdateRule::RowwiseAdagrad { initial_accumulator: 0.0, epsilon: 0.0 },
        UpdateRule::Adam { beta1: 0.0, beta2: 0.0, epsilon: 0.0 },
        UpdateRule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    ];
    let of = |rule: &UpdateRule| RuleState::of(&Optimizer { rule: *rule, ..Optimizer::sgd(0.0) });
    rules.into_iter().find(|rule| of(rule) == *state)
}

impl Rows for StoredRows<'_> {
    fn parts(&self) -> &[RowPart] {
        &self.parts
    }

    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        let of = &self.parts[part];
        let count = positions.end - positions.start;
        let spec = TableSpec { rows: count, ..self.checkpoint.manifest().tables[part].table.clone() };
        let mut table = Table::zeroed(spec, self.rules[part]);
        let window = RowPart { rows: of.rows.part(positions), own: 0..count, ..of.clone() };
        let read = self.checkpoint.load_rows(&mut HostRows::new([(window, &mut table)]));
        read.map_err(|error| RowsError(error.to_string()))?;
        scratch.clear();
        scratch.extend_from_slice(table.words(0..count));
        Ok(scratch)
    }

    fn touched(&self, _: usize) -> Result<Option<Touched>, RowsError> {
        Ok(None)
    }
}
