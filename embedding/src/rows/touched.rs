//! Which rows have been written.

use std::ops::Range;

use rayon::prelude::*;

/// Words whose rows one thread lists.
const LIST_WORDS: usize = 1 << 12;

/// One bit per row, by position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TouchedRows {
    words: Vec<u32>,
}

impl TouchedRows {
    /// No marks, for `rows` rows.
    pub fn none(rows: u64) -> Self {
        Self { words: vec![0; Self::words(rows)] }
    }

    /// Words of 32 bits for this many rows.
    pub fn words(rows: u64) -> usize {
        rows.div_ceil(32) as usize
    }

    /// From words of 32 bits, lowest bit first.
    pub fn of(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Marks rows.
    ///
    /// # Panics
    /// If a row is out of range.
    pub fn mark(&mut self, rows: &[u64]) {
        for row in rows {
            self.words[(row / 32) as usize] |= 1 << (row % 32);
        }
    }

    /// Returns whether a row is marked.
    pub fn has(&self, row: u64) -> bool {
        self.words.get((row / 32) as usize).is_some_and(|word| word >> (row % 32) & 1 == 1)
    }

    /// The marked rows in a range, ascending. Listed by all threads, since training waits for it.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn among(&self, rows: Range<u64>) -> Vec<u64> {
        let words = &self.words[(rows.start / 32) as usize..rows.end.div_ceil(32) as usize];
        let begin = rows.start / 32 * 32;
        let first_of = |run: usize| begin + 32 * (run * LIST_WORDS) as u64;
        let runs = words.par_chunks(LIST_WORDS).enumerate();
        let runs = runs.map(|(run, words)| of_words(words, first_of(run)).filter(|row| rows.contains(row)));
        let counts: Vec<_> = runs.clone().map(Iterator::count).collect();
        let mut listed = vec![0; counts.iter().sum()];
        let mut rest = &mut listed[..];
        let slices: Vec<_> = counts.into_iter().filter_map(|count| rest.split_off_mut(..count)).collect();
        runs.zip(slices).for_each(|(run, slice)| {
            slice.iter_mut().zip(run).for_each(|(to, row)| *to = row);
        });
        listed
    }
}

/// The rows that are marked in some words, the first of which has the bit of row `first`.
fn of_words(words: &[u32], first: u64) -> impl Iterator<Item = u64> + '_ {
    words.iter().enumerate().flat_map(move |(at, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(first + at as u64 * 32 + u64::from(bit))
        })
    })
}
