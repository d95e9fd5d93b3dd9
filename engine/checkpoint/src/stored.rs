//! The tables of a checkpoint, readable like those of a rank, a window at a time.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use rankine_embedding::cpu::{HostRows, Table};
use rankine_embedding::rows::{RowPart, RowSet, Rows, RowsError};
use rankine_embedding::{Optimizer, TableSpec, UpdateRule};

use super::manifest::{RuleState, TableState};
use super::{Checkpoint, CheckpointError};

/// All tables of a checkpoint, as one of several ranks with interleaved rows would have them. Rows are read from disk
/// each time, except for the last window of each table, which serves all ranks.
#[derive(Debug)]
pub struct StoredRows<'a> {
    checkpoint: &'a Checkpoint,
    rank: u64,
    ranks: u64,
    parts: Vec<RowPart>,
    rules: Vec<Optimizer>,
    last: Rc<RefCell<Option<Window>>>,
}

/// Rows of a table that were read.
#[derive(Debug)]
struct Window {
    table: usize,
    rows: Range<u64>,
    words: Table,
}

impl<'a> StoredRows<'a> {
    /// The tables of a single rank: all rows.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if an optimizer is unknown.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self, CheckpointError> {
        Ok(Self::of_ranks(checkpoint, 1)?.remove(0))
    }

    /// The tables of each of several ranks.
    ///
    /// # Errors
    /// As [`StoredRows::new`].
    pub fn of_ranks(checkpoint: &'a Checkpoint, ranks: u64) -> Result<Vec<Self>, CheckpointError> {
        let tables = &checkpoint.manifest().tables;
        let rules = tables.iter().map(|table| {
            let rule = rule(&table.learns).ok_or_else(|| {
                let what = format!("{} has an optimizer that this version does not know", table.tensor);
                CheckpointError::damaged(checkpoint.path(), what)
            })?;
            Ok::<_, CheckpointError>(Optimizer { rule, ..Optimizer::sgd(0.0) })
        });
        let rules: Vec<_> = rules.collect::<Result<_, _>>()?;
        let part = |rank: u64, (number, (table, &optimizer)): (usize, (&TableState, &Optimizer))| {
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
        let last = Rc::default();
        let of_rank = |rank| {
            let parts = tables.iter().zip(&rules).enumerate().map(|of| part(rank, of)).collect();
            Self { checkpoint, rank, ranks, parts, rules: rules.clone(), last: Rc::clone(&last) }
        };
        Ok((0..ranks).map(of_rank).collect())
    }

    /// Reads some rows of a table, into the memory of an older window of it if that has as many.
    fn window(&self, table: usize, rows: Range<u64>, older: Option<Window>) -> Result<Window, RowsError> {
        let count = rows.end - rows.start;
        let mut words = match older {
            // A checkpoint has every row of every table, so that all are set.
            Some(older) if older.table == table && older.rows.end - older.rows.start == count => older.words,
            _ => {
                let of_table = &self.checkpoint.manifest().tables[table].table;
                Table::zeroed(TableSpec { rows: count, ..of_table.clone() }, self.rules[table])
            }
        };
        let of = RowSet::Every { first: rows.start, step: 1, count };
        let part = RowPart { rows: of, own: 0..count, ..self.parts[table].clone() };
        let read = self.checkpoint.load_rows(&mut HostRows::new([(part, &mut words)]));
        read.map_err(|error| RowsError::Access(error.into()))?;
        Ok(Window { table, rows, words })
    }
}

/// The optimizer with the state that a manifest describes, whatever its settings.
fn rule(state: &RuleState) -> Option<UpdateRule> {
    let of = |rule: &UpdateRule| RuleState::of(&Optimizer { rule: *rule, ..Optimizer::sgd(0.0) });
    UpdateRule::KINDS.into_iter().find(|rule| of(rule) == *state)
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
        // The rows of all ranks at these positions are adjacent.
        let most = self.checkpoint.manifest().tables[part].table.rows;
        let rows = positions.start * self.ranks..most.min(positions.end * self.ranks);
        let mut last = self.last.borrow_mut();
        let window = match last.take() {
            Some(window) if window.table == part && window.rows == rows => window,
            older => self.window(part, rows, older)?,
        };
        let own = positions.map(|position| position * self.ranks + self.rank - window.rows.start);
        scratch.clear();
        own.for_each(|row| scratch.extend_from_slice(window.words.words(row..row + 1)));
        *last = Some(window);
        Ok(scratch)
    }
}
