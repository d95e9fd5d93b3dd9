//! Rows of tables in host memory, for reading and writing outside of training.

use std::borrow::Borrow;
use std::ops::Range;

use rayon::prelude::*;

use super::Table;
use crate::rows::{RowPart, RowPiece, RowSet, Rows, RowsError, RowsMut, TouchedRows, place};

/// Words that one task copies.
const COPY_WORDS: usize = 1 << 18;

/// Parts of tables, each with the table that stores the part's rows: `&Table` for reading, `&mut Table` for writing
/// as well.
#[derive(Debug)]
pub struct HostRows<T> {
    parts: Vec<RowPart>,
    tables: Vec<T>,
}

impl RowPart {
    /// All rows and columns of a table in host memory, of which this is the only rank.
    pub fn whole(number: usize, table: &Table) -> Self {
        let rows = table.spec().rows;
        Self {
            table: number,
            columns: 0..table.spec().dim,
            rows: RowSet::all(rows),
            own: 0..rows,
            layout: table.layout(),
        }
    }
}

impl<T: Borrow<Table>> HostRows<T> {
    /// Creates it from parts and their tables.
    pub fn new(parts: impl IntoIterator<Item = (RowPart, T)>) -> Self {
        let (parts, tables) = parts.into_iter().unzip();
        Self { parts, tables }
    }

    fn table(&self, part: usize) -> &Table {
        self.tables[part].borrow()
    }
}

#[cfg(test)]
impl HostRows<&mut Table> {
    /// The tables of all parts.
    pub(crate) fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        self.tables.iter_mut().map(|table| &mut **table)
    }
}

/// Copies with all threads: a single one does not saturate the memory bandwidth.
fn copy(words: &[f32], to: &mut [f32]) {
    let pieces = to.par_chunks_mut(COPY_WORDS).zip(words.par_chunks(COPY_WORDS));
    pieces.for_each(|(to, words)| to.copy_from_slice(words));
}

impl<T: Borrow<Table>> Rows for HostRows<T> {
    fn parts(&self) -> &[RowPart] {
        &self.parts
    }

    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        _: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        Ok(self.table(part).words(positions))
    }

    fn copy(&self, part: usize, positions: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        copy(self.table(part).words(positions), to);
        Ok(())
    }

    fn copy_listed(&self, part: usize, positions: &[u64], to: &mut [f32]) -> Result<(), RowsError> {
        let (table, words) = (self.table(part), self.parts[part].layout.words);
        assert_eq!(to.len(), positions.len() * words, "room for the rows");
        let at_once = (COPY_WORDS / words).max(1);
        let pieces = to.par_chunks_mut(at_once * words).zip(positions.par_chunks(at_once));
        pieces.for_each(|(to, positions)| {
            for (to, &position) in to.chunks_exact_mut(words).zip(positions) {
                to.copy_from_slice(table.words(position..position + 1));
            }
        });
        Ok(())
    }

    fn touched(&self, part: usize) -> Result<Option<TouchedRows>, RowsError> {
        Ok(self.table(part).touched().cloned())
    }
}

impl HostRows<&mut Table> {
    /// Sets rows as [`place`] does, and marks them as updated if that is tracked.
    ///
    /// # Panics
    /// As [`place`].
    pub fn replace(&mut self, piece: &RowPiece<'_>) {
        place(self, piece).expect("host memory is always writable");
        for (part, table) in self.parts.iter().zip(&mut self.tables) {
            if part.table == piece.table {
                let positions = piece.rows.iter().filter_map(|row| part.rows.position(row));
                table.mark(&positions.collect::<Vec<_>>());
            }
        }
    }
}

impl RowsMut for HostRows<&mut Table> {
    fn edit(
        &mut self,
        part: usize,
        positions: Range<u64>,
        _: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), RowsError> {
        edit(self.tables[part].words_mut(positions));
        Ok(())
    }

    fn begin_tracking(&mut self) -> Result<(), RowsError> {
        self.tables.iter_mut().for_each(|table| table.begin_tracking());
        Ok(())
    }
}
