//! Where the samples of a window lie, in the order of delivery.

use std::ops::Range;
use std::sync::Arc;

use crate::dataset::DatasetPart;
use crate::stream::Window;

/// Where a sample lies.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// The number of its block, counted from 0 over all blocks that the stream has yielded.
    pub block: u32,
    /// Its number in the block.
    pub row: u32,
}

/// The rows of a window in the order of delivery, and the blocks that they lie in.
#[derive(Debug)]
pub(super) struct RowsOfWindow {
    pub(super) epoch: u64,
    /// The sample of its epoch that the window begins with.
    pub(super) first_sample: u64,
    /// Rows that had been delivered before the stream began.
    pub(super) skip: u32,
    /// The number of its first block.
    first_block: u32,
    /// None where rows stay as they are.
    shuffled: Option<Vec<u32>>,
    /// Samples of all blocks but those that are short.
    full: Divisor,
    /// Where each block's rows begin in the window, and where the last one's end.
    begins: Vec<u32>,
}

impl RowsOfWindow {
    /// Of a window whose first block has this number. Draws the order of its rows.
    pub(super) fn new(part: &DatasetPart, window: &Window, first_block: u32) -> Self {
        let mut begins = vec![0];
        for &block in &window.blocks {
            // Below 2^32 together: see `Window::samples`.
            begins.push(begins[begins.len() - 1] + part.samples_of(u64::from(block)) as u32);
        }
        Self {
            epoch: window.epoch,
            first_sample: window.first,
            skip: window.skip,
            first_block,
            shuffled: window.shuffled_rows(),
            full: Divisor::new(part.block_samples),
            begins,
        }
    }

    pub(super) fn samples(&self) -> u32 {
        self.begins[self.begins.len() - 1]
    }

    /// The first block that is needed once all rows before this place were delivered.
    pub(super) fn keep_from(&self, place: u32) -> u32 {
        let of_window = match place < self.samples() {
            true if self.shuffled.is_some() => 0,
            true => self.of(place).0,
            false => self.begins.len() as u32 - 1,
        };
        self.first_block.wrapping_add(of_window)
    }

    /// The place of a row's block in the window, and the row there.
    fn of(&self, row: u32) -> (u32, u32) {
        // Short blocks before it only move it to a later one.
        let mut place = self.full.quotient(row);
        while row >= self.begins[place as usize + 1] {
            place += 1;
        }
        (place, row - self.begins[place as usize])
    }
}

/// Rows that follow each other in the order of a window.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) window: Arc<RowsOfWindow>,
    /// Their places in that order.
    pub(super) places: Range<u32>,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Some of them.
    pub(super) fn part(&self, rows: Range<usize>) -> Self {
        let places = self.places.start + rows.start as u32..self.places.start + rows.end as u32;
        Self { window: Arc::clone(&self.window), places }
    }

    /// Where each lies.
    pub(super) fn rows(self) -> impl Iterator<Item = BlockRow> {
        let Self { window, places } = self;
        places.map(move |place| {
            let row = window.shuffled.as_ref().map_or(place, |rows| rows[place as usize]);
            let (place, row) = window.of(row);
            BlockRow { block: window.first_block.wrapping_add(place), row }
        })
    }

    /// The blocks that they may lie in.
    pub(super) fn blocks(self) -> impl Iterator<Item = u32> {
        let Self { window, places } = self;
        let blocks = match window.shuffled {
            Some(_) => 0..window.begins.len() as u32 - 1,
            None => window.of(places.start).0..window.of(places.end - 1).0 + 1,
        };
        blocks.map(move |place| window.first_block.wrapping_add(place))
    }
}

/// A number by which others are divided often: a multiplication takes a fifth of a division's time.
#[derive(Debug)]
struct Divisor(u64);

impl Divisor {
    fn new(divisor: u32) -> Self {
        assert!(divisor > 0, "nothing is divided by 0");
        // 2^64 / divisor, rounded up, has the quotients of all numbers of 32 bits in its products' upper halves
        // (Lemire, Kaser and Kurz 2019); divided by 1 it would not fit.
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
        fn quotients_are_those_of_divisions(divisor in 1..=u32::MAX, number in any::<u32>(), near in -2..=2_i64) {
            let by = Divisor::new(divisor);
            prop_assert_eq!(by.quotient(number), number / divisor);
            // Where quotients change.
            let multiple = i64::from(number / divisor) * i64::from(divisor) + near;
            let multiple = multiple.clamp(0, i64::from(u32::MAX)) as u32;
            prop_assert_eq!(by.quotient(multiple), multiple / divisor);
            prop_assert_eq!(Divisor::new(1 + divisor % 70_000).quotient(number), number / (1 + divisor % 70_000));
        }
    }
}
