//! A part of a table whose rows are divided between a GPU and host memory, as one part.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rayon::prelude::*;

use crate::tier::{ColdRows, HotRows, RowSwaps, moved_places};

/// Words that one task copies.
const COPY_WORDS: usize = 1 << 18;

/// A part of a table with cold rows.
#[derive(Debug)]
pub(crate) struct DividedPart {
    pub(super) place: Place,
    /// The table's name.
    pub(super) table: String,
    hot: HotRows,
    /// By their numbers, where hot rows are among the stored ones; empty if they are in order.
    places: Vec<u32>,
    cold: RwLock<ColdRows>,
}

/// Where things of a part are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Its number.
    pub(super) part: usize,
    /// Where its cold rows start in a region's lists.
    pub(super) list: usize,
    /// The first word of its rows in staging memory.
    pub(super) staged: usize,
    /// Rows of a landing region.
    pub(super) landing: usize,
    /// The first word of its first landing region in the GPU's memory.
    pub(super) landing_words: usize,
    /// Hot rows of the parts before.
    pub(super) members: usize,
    /// The first word of its bits, and of its lines, in the set of hot rows.
    pub(super) bits: usize,
    pub(super) lines: usize,
    /// The number of its first row in the table, and the distance to the next one.
    pub(super) row: u64,
    pub(super) step: u64,
}

impl Place {
    /// The number of a row in the table.
    pub(super) fn number_in_table(&self, row: u64) -> u32 {
        (self.row + row * self.step) as u32
    }
}

impl DividedPart {
    pub(super) fn new(place: Place, table: &str, hot: HotRows, cold: ColdRows) -> Self {
        Self { place, table: table.into(), hot, places: Vec::new(), cold: RwLock::new(cold) }
    }

    /// Counts from now on which rows are looked up, so that they may change places.
    pub(super) fn counted(self) -> Self {
        let cold = self.cold.into_inner().unwrap_or_else(PoisonError::into_inner).counted();
        Self { places: (0..self.hot.len() as u32).collect(), cold: RwLock::new(cold), ..self }
    }

    /// By their numbers, where hot rows are among the stored ones; empty if they are in order.
    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }

    /// The numbers of its hot rows among the hot rows of all parts.
    pub(super) fn members(&self) -> Range<usize> {
        self.place.members..self.place.members + self.hot.len() as usize
    }

    /// See [`HotRows::words`].
    pub(super) fn hot_rows_words(&self) -> (&[u32], &[u32]) {
        self.hot.words()
    }

    /// Chooses which rows change places, by how often hot rows were looked up, and begins to count cold rows anew.
    pub(super) fn choose(&self, hot_counts: &[u16]) -> RowSwaps {
        RowSwaps::choose(&self.hot, hot_counts, &self.cold_mut().take_counts())
    }

    /// Notes that rows have changed places.
    pub(super) fn exchange(&mut self, swaps: &RowSwaps) {
        let after = self.hot.after(&swaps.leaving, &swaps.entering);
        let mut cold = self.cold_mut();
        let of_hot = |&row: &u64| self.places[self.hot.before(row) as usize];
        let of_cold = |&row: &u64| cold.places()[self.cold_number(row) as usize];
        let (left, entered): (Vec<_>, Vec<_>) =
            (swaps.leaving.iter().map(of_hot).collect(), swaps.entering.iter().map(of_cold).collect());
        let sets = (&self.hot, &after);
        let hot_places = moved_places(sets, true, &self.places, (&swaps.entering, &left));
        let cold_places = moved_places(sets, false, cold.places(), (&swaps.leaving, &entered));
        cold.set_places(cold_places);
        drop(cold);
        (self.hot, self.places) = (after, hot_places);
    }

    pub(super) fn cold(&self) -> RwLockReadGuard<'_, ColdRows> {
        self.cold.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cold_mut(&self) -> RwLockWriteGuard<'_, ColdRows> {
        self.cold.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of hot rows.
    pub(crate) fn hot_rows(&self) -> u64 {
        self.hot.len()
    }

    /// The numbers of the hot rows among some rows, which are consecutive.
    pub(crate) fn hot(&self, rows: &Range<u64>) -> Range<u64> {
        self.hot.before(rows.start)..self.hot.before(rows.end)
    }

    /// The places of hot rows, which are numbered consecutively, among the stored ones; `None` if they are in order.
    pub(crate) fn hot_places(&self, numbers: &Range<u64>) -> Option<&[u32]> {
        (!self.places.is_empty()).then(|| &self.places[numbers.start as usize..numbers.end as usize])
    }

    /// The place of a hot row among the stored ones, or `None` if host memory has the row.
    pub(crate) fn hot_place(&self, row: u64) -> Option<u64> {
        let number = self.hot.contains(row).then(|| self.hot.before(row))?;
        Some(self.places.get(number as usize).map_or(number, |&place| place.into()))
    }

    /// The number of a row that host memory has.
    pub(super) fn cold_number(&self, row: u64) -> u64 {
        row - self.hot.before(row)
    }

    /// Copies consecutive rows to `to`: the hot ones from `hot`, which has exactly these.
    pub(crate) fn join(&self, rows: Range<u64>, hot: &[f32], to: &mut [f32]) {
        let cold = self.cold();
        let (words, first_hot) = (cold.layout().words, self.hot.before(rows.start));
        let at_once = (COPY_WORDS / words).max(1);
        to.par_chunks_mut(at_once * words).enumerate().for_each(|(task, to)| {
            let first = rows.start + (task * at_once) as u64;
            let (mut next_hot, mut row) = (self.hot.before(first), first);
            for to in to.chunks_exact_mut(words) {
                if self.hot.contains(row) {
                    to.copy_from_slice(&hot[(next_hot - first_hot) as usize * words..][..words]);
                    next_hot += 1;
                } else {
                    to.copy_from_slice(cold.row(row - next_hot));
                }
                row += 1;
            }
        });
    }

    /// The opposite: copies consecutive rows from `from`, the hot ones to `hot`.
    pub(crate) fn divide(&self, rows: Range<u64>, from: &[f32], hot: &mut Vec<f32>) {
        let mut cold = self.cold_mut();
        let words = cold.layout().words;
        let mut next_hot = self.hot.before(rows.start);
        hot.clear();
        for (row, from) in rows.zip(from.chunks_exact(words)) {
            if self.hot.contains(row) {
                hot.extend_from_slice(from);
                next_hot += 1;
            } else {
                cold.row_mut(row - next_hot).copy_from_slice(from);
            }
        }
    }

    /// Copies a row of host memory.
    pub(crate) fn copy_cold(&self, row: u64, to: &mut [f32]) {
        to.copy_from_slice(self.cold().row(self.cold_number(row)));
    }
}
