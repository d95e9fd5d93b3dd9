//! A set of rows of a table.

use std::ops::Range;

/// Rows per line.
const LINE_ROWS: usize = 256;
/// Rows of a task that goes through a table: whole lines.
const TASK_ROWS: u64 = 1 << 18;
/// Words per line.
const LINE_WORDS: usize = LINE_ROWS / 32;

/// The rows of a table that a device stores, numbered in ascending order: one bit per row, and a word per 256 rows.
#[derive(Clone, PartialEq, Eq)]
pub struct HotRows {
    table_rows: u64,
    len: u64,
    /// One bit per row, in whole lines.
    bits: Vec<u32>,
    /// How many rows are members before each line.
    lines: Vec<u32>,
}

impl HotRows {
    /// The set of some rows of a table, in any order.
    ///
    /// # Panics
    /// If the table has no such row, or more than 2^32 - 1 rows.
    pub fn of(table_rows: u64, hot: impl IntoIterator<Item = u64>) -> Self {
        assert!(u32::try_from(table_rows).is_ok(), "a table has at most 2^32 - 1 rows");
        let mut bits = vec![0; (table_rows as usize).div_ceil(LINE_ROWS) * LINE_WORDS];
        for row in hot {
            assert!(row < table_rows, "row {row} of {table_rows}");
            bits[row as usize / 32] |= 1 << (row % 32);
        }
        Self::of_bits(table_rows, bits)
    }

    fn of_bits(table_rows: u64, bits: Vec<u32>) -> Self {
        let mut len = 0;
        let before = |line: &[u32]| {
            let before = len;
            len += line.iter().map(|word| word.count_ones()).sum::<u32>();
            before
        };
        let lines = bits.chunks(LINE_WORDS).map(before).collect();
        Self { table_rows, len: len.into(), bits, lines }
    }

    /// The set after some members have left it, and other rows have entered it.
    pub fn after(&self, leaving: &[u64], entering: &[u64]) -> Self {
        let mut bits = self.bits.clone();
        for row in leaving.iter().chain(entering) {
            bits[*row as usize / 32] ^= 1 << (row % 32);
        }
        Self::of_bits(self.table_rows, bits)
    }

    /// Divides the table into ranges of rows, one per task.
    pub fn tasks(&self) -> impl Iterator<Item = Range<u64>> {
        let rows = self.table_rows;
        (0..rows).step_by(TASK_ROWS as usize).map(move |first| first..rows.min(first + TASK_ROWS))
    }

    /// Number of rows of the table.
    pub fn table_rows(&self) -> u64 {
        self.table_rows
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a row is a member.
    pub fn contains(&self, row: u64) -> bool {
        self.bits[row as usize / 32] >> (row % 32) & 1 == 1
    }

    /// How many members come before a row, which may be the number of rows.
    pub fn before(&self, row: u64) -> u64 {
        let row = row as usize;
        let Some(&before) = self.lines.get(row / LINE_ROWS) else { return self.len };
        let line = row / LINE_ROWS * LINE_WORDS;
        let whole: u32 = self.bits[line..row / 32].iter().map(|word| word.count_ones()).sum();
        let last = self.bits.get(row / 32).map_or(0, |word| word & ((1 << (row % 32)) - 1));
        u64::from(before + whole + last.count_ones())
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let of_word = |(number, &word): (usize, &u32)| {
            let bits = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            bits.take_while(|&word| word != 0)
                .map(move |word| number as u64 * 32 + u64::from(word.trailing_zeros()))
        };
        self.bits.iter().enumerate().flat_map(of_word)
    }

    /// The bits, in whole lines of eight words, and how many rows are members before each line.
    pub fn words(&self) -> (&[u32], &[u32]) {
        (&self.bits, &self.lines)
    }
}

impl std::fmt::Debug for HotRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HotRows({} of {})", self.len, self.table_rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::HotRows;

    proptest! {
        #[test]
        fn members_are_numbered_in_order(rows in 1_u64..1200, picks in prop::collection::vec(any::<u64>(), 0..300)) {
            let picked: std::collections::BTreeSet<u64> = picks.iter().map(|pick| pick % rows).collect();
            let hot = HotRows::of(rows, picks.iter().map(|pick| pick % rows));
            prop_assert_eq!(hot.len(), picked.len() as u64);
            prop_assert_eq!(hot.iter().collect::<Vec<_>>(), picked.iter().copied().collect::<Vec<_>>());
            for row in 0..=rows {
                prop_assert_eq!(hot.before(row), picked.range(..row).count() as u64);
            }
            prop_assert!((0..rows).all(|row| hot.contains(row) == picked.contains(&row)));
        }
    }
}
