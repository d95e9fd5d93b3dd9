//! The positions of a window's samples in the order of delivery.

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
    pub(super) epoch: u64,
    /// The sample of its epoch at which the window starts.
    pub(super) first_sample: u64,
    /// What batches get of it.
    pub(super) portions: Vec<Portion>,
    /// The number of its first block.
    first_block: u32,
    /// Samples of the window.
    samples: u32,
    /// `None` for all rows in file order.
    order: Option<Vec<u32>>,
    /// Samples of every block that is not short.
    full: Divisor,
    /// The window row at which each block starts, and the end of the last one.
    starts: Vec<u32>,
}

impl RowsOfWindow {
    /// Creates the rows of a window that is divided into these portions and whose first block has this number, and
    /// draws their order.
    pub(super) fn new(part: &DatasetPart, window: &Window, portions: Vec<Portion>, first_block: u32) -> Self {
        let mut starts = vec![0];
        for &block in &window.blocks {
            // Below 2^32 in total: checked by `Plan::new`.
            starts.push(starts[starts.len() - 1] + part.samples_of(u64::from(block)) as u32);
        }
        Self {
            epoch: window.epoch,
            first_sample: window.first,
            first_block,
            samples: window.samples,
            order: division::rows(window, &portions),
            portions,
            full: Divisor::new(part.block_samples),
            starts,
        }
    }

    /// Returns the first block that is still needed after all rows before this position were delivered.
    pub(super) fn keep_from(&self, index: u32) -> u32 {
        let of_window = match index < self.samples {
            true if self.order.is_some() => 0,
            true => self.at(index).0,
            false => self.starts.len() as u32 - 1,
        };
        self.first_block.wrapping_add(of_window)
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
}

/// Consecutive rows of a portion.
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
            BlockRow { block: window.first_block.wrapping_add(index), row }
        })
    }

    /// Returns the blocks that may hold them.
    pub(super) fn blocks(self) -> impl Iterator<Item = u32> {
        let Self { window, positions } = self;
        // They are in reading order.
        let blocks = window.at(positions.start).0..window.at(positions.end - 1).0 + 1;
        blocks.map(move |index| window.first_block.wrapping_add(index))
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
