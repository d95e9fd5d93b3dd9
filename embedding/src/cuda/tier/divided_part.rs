//! A part of a table whose rows are divided between a GPU and host memory, as one part.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rayon::prelude::*;

use crate::tier::{ColdRows, HotRows};

/// Words that one task copies.
const COPY_WORDS: usize = 1 << 18;

/// A part of a table with cold rows.
#[derive(Debug)]
pub(crate) struct DividedPart {
    pub(super) place: Place,
    /// The table's name.
    pub(super) table: String,
    hot: HotRows,
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
}

impl DividedPart {
    pub(super) fn new(place: Place, table: &str, hot: HotRows, cold: ColdRows) -> Self {
        Self { place, table: table.into(), hot, cold: RwLock::new(cold) }
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

    /// The number of a hot row, or `None` if host memory has the row.
    pub(crate) fn hot_number(&self, row: u64) -> Option<u64> {
        self.hot.contains(row).then(|| self.hot.before(row))
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
                    to.copy_from_slice(cold.words(row - next_hot..row - next_hot + 1));
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
                cold.words_mut(row - next_hot..row - next_hot + 1).copy_from_slice(from);
            }
        }
    }

    /// Copies a row of host memory.
    pub(crate) fn copy_cold(&self, row: u64, to: &mut [f32]) {
        let number = row - self.hot.before(row);
        to.copy_from_slice(self.cold().words(number..number + 1));
    }
}
