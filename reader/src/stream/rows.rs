//! The positions of a window's samples in the order of delivery.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::dataset::DatasetPart;
use crate::stream::Window;
use crate::stream::division::{self, Portion};

/// The position of a sample.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// The number of its block, counted from 0 over all blocks that the stream has yielded.
    pub block: u32,
    /// Its number in the block.
    pub row: u32,
}

/// The rows of a window in the order of delivery, and the blocks that hold them.
#[derive(Debug)]
pub(super) struct RowsOfWindow {
    pub(super) window: Window,
    /// What batches get of it.
    pub(super) portions: Vec<Portion>,
    /// The number of its first needed block.
    first_block: u32,
    /// `None` for all rows in file order.
    order: Option<Vec<u32>>,
    /// Samples of every block that is not short.
    full: Divisor,
    /// The window row at which each block starts, and the end of the last one.
    starts: Vec<u32>,
    /// How many blocks before each one are needed by the stream's share, and how many in total.
    needed: Vec<u32>,
    /// For each needed block, whether it was read before; empty if each is read again.
    was_read: Vec<bool>,
}

impl RowsOfWindow {
    /// Creates the rows of a window that is divided into these portions, and draws their order; its first needed block
    /// gets the number `first_block`.
    pub(super) fn new(part: &DatasetPart, window: Window, portions: Vec<Portion>, first_block: u32) -> Self {
        let mut starts = vec![0];
        for &block in &window.blocks {
            // Below 2^32 in total: checked by `Plan::new`.
            starts.push(starts[starts.len() - 1] + part.samples_of(u64::from(block)) as u32);
        }
        let mut rows = Self {
            first_block,
            order: division::rows(&window, &portions),
            portions,
            full: Divisor::new(part.block_samples),
            starts,
            needed: Vec::new(),
            was_read: Vec::new(),
            window,
        };
        rows.needed = rows.count_needed();
        rows
    }

    fn count_needed(&self) -> Vec<u32> {
        let mut is_needed = vec![false; self.window.blocks.len()];
        for portion in &self.portions {
            is_needed[self.indices(&portion.own)].fill(true);
        }
        let mut needed = vec![0];
        needed.extend(is_needed.iter().scan(0, |count, &is_needed| {
            *count += u32::from(is_needed);
            Some(*count)
        }));
        needed
    }

    /// Returns the numbers in the part of the blocks that the stream's share needs, in reading order.
    pub(super) fn needed_blocks(&self) -> impl Iterator<Item = u32> {
        let needed = self.needed.windows(2).map(|counts| counts[0] < counts[1]);
        self.window.blocks.iter().zip(needed).filter_map(|(&block, is_needed)| is_needed.then_some(block))
    }

    /// Leaves out of [`RowsOfWindow::blocks_to_read`] the needed blocks for which `was_read` returns true. It is called
    /// for each of them, in order.
    pub(super) fn leave_out(&mut self, was_read: impl FnMut(u32) -> bool) {
        self.was_read = self.needed_blocks().map(was_read).collect();
    }

    /// Returns the needed blocks that are to be read.
    pub(super) fn blocks_to_read(&self) -> impl Iterator<Item = u32> {
        let is_read = |number: &usize| !self.was_read(*number as u32);
        self.needed_blocks().enumerate().filter(move |(number, _)| is_read(number)).map(|(_, block)| block)
    }

    /// Returns whether a needed block, by its number among them, was read before.
    pub(super) fn was_read(&self, number: u32) -> bool {
        self.was_read.get(number as usize).is_some_and(|&was_read| was_read)
    }

    /// Returns the number in the part of a needed block, by its number among them.
    pub(super) fn needed_block(&self, number: u32) -> u32 {
        let index = self.needed.partition_point(|&before| before <= number) - 1;
        self.window.blocks[index]
    }

    /// Returns the number of blocks that the stream's share needs.
    pub(super) fn needed_len(&self) -> u32 {
        self.needed[self.window.blocks.len()]
    }

    /// Returns whether all rows are delivered in file order.
    pub(super) fn keeps_rows(&self) -> bool {
        self.order.is_none()
    }

    /// Returns whether the window is one block whose rows, complete and in file order, belong to one share.
    pub(super) fn is_whole_block(&self) -> bool {
        let whole = 0..self.window.samples;
        self.keeps_rows()
            && self.window.blocks.len() == 1
            && matches!(&self.portions[..], [portion] if portion.own == whole)
    }

    /// Returns the rows at some positions of the share, counted in the needed blocks alone.
    pub(super) fn rows_in_needed(&self, positions: Range<u32>) -> Cow<'_, [u32]> {
        let order = self.order.as_ref().expect("rows are chosen or shuffled");
        if self.needed_len() as usize == self.window.blocks.len() {
            return Cow::Borrowed(&order[positions.start as usize..positions.end as usize]);
        }
        // The rows of the needed blocks before each block.
        let mut before = Vec::with_capacity(self.window.blocks.len());
        let mut rows = 0;
        for (index, counts) in self.needed.windows(2).enumerate() {
            before.push(rows);
            rows += (counts[1] - counts[0]) * (self.starts[index + 1] - self.starts[index]);
        }
        Cow::Owned(
            positions
                .map(|position| self.at(position))
                .map(|(index, row)| before[index as usize] + row)
                .collect(),
        )
    }

    /// Returns the first block that is still needed after all rows before this position were delivered.
    pub(super) fn keep_from(&self, position: u32) -> u32 {
        let before = match position < self.window.samples {
            true if self.order.is_some() => 0,
            true => self.needed[self.at(position).0 as usize],
            false => self.needed_len(),
        };
        self.first_block.wrapping_add(before)
    }

    /// Returns the indices in the window of the blocks that may hold the rows at some positions of a portion.
    fn indices(&self, positions: &Range<u32>) -> Range<usize> {
        // They are in reading order.
        match positions.is_empty() {
            true => 0..0,
            false => self.at(positions.start).0 as usize..self.at(positions.end - 1).0 as usize + 1,
        }
    }

    /// Returns the index in the window of the block that has the row at a position, and the row in that block.
    fn at(&self, position: u32) -> (u32, u32) {
        let row = self.order.as_ref().map_or(position, |rows| rows[position as usize]);
        // Short blocks before it can only move it to a later block.
        let mut index = self.full.quotient(row);
        while row >= self.starts[index as usize + 1] {
            index += 1;
        }
        (index, row - self.starts[index as usize])
    }

    /// Returns the number of a needed block.
    fn number(&self, index: u32) -> u32 {
        self.first_block.wrapping_add(self.needed[index as usize])
    }
}

/// Consecutive rows of a portion that belong to the stream's share.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) window: Arc<RowsOfWindow>,
    /// Their positions in the window's order.
    pub(super) positions: Range<u32>,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns a subrange of the rows.
    pub(super) fn part(&self, rows: Range<usize>) -> Self {
        let positions = self.positions.start + rows.start as u32..self.positions.start + rows.end as u32;
        Self { window: Arc::clone(&self.window), positions }
    }

    /// Returns the position of each row.
    pub(super) fn rows(self) -> impl Iterator<Item = BlockRow> {
        let Self { window, positions } = self;
        positions.map(move |position| {
            let (index, row) = window.at(position);
            BlockRow { block: window.number(index), row }
        })
    }

    /// Returns the blocks that may hold them.
    pub(super) fn blocks(self) -> impl Iterator<Item = u32> {
        let Self { window, positions } = self;
        window.indices(&positions).map(move |index| window.number(index as u32))
    }
}

/// A divisor that is used often: multiplying takes a fifth of the time of dividing.
#[derive(Debug)]
struct Divisor(u64);

impl Divisor {
    fn new(divisor: u32) -> Self {
        assert!(divisor > 0, "the divisor must not be 0");
        // The upper half of a 32-bit number's product with 2^64 / divisor, rounded up, is the quotient (Lemire, Kaser
        // and Kurz 2019). The factor for divisor 1 would not fit.
        Self((u64::MAX / u64::from(divisor)).wrapping_add(1))
    }

    fn quotient(&self, number: u32) -> u32 {
        match self.0 {
            0 => number,
            inverse => ((u128::from(inverse) * u128::from(number)) >> 64) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quotients_equal_those_of_divisions(divisor in 1..=u32::MAX, number in any::<u32>(), near in -2..=2_i64) {
            let by = Divisor::new(divisor);
            prop_assert_eq!(by.quotient(number), number / divisor);
            // The numbers at which quotients change.
            let multiple = i64::from(number / divisor) * i64::from(divisor) + near;
            let multiple = multiple.clamp(0, i64::from(u32::MAX)) as u32;
            prop_assert_eq!(by.quotient(multiple), multiple / divisor);
            prop_assert_eq!(Divisor::new(1 + divisor % 70_000).quotient(number), number / (1 + divisor % 70_000));
        }
    }
}
