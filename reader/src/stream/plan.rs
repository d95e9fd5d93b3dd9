//! Determines which blocks are read when, and the order of their rows: arithmetic on seeds and counts, without data.

use std::sync::Arc;

use rankine_base::error::{Error, Result};

use crate::dataset::{DatasetPart, Selection};
use crate::rng::Rng;
use crate::stream::{Order, Position};

/// What is drawn: the first number that seeds a random generator.
const BLOCKS: u64 = 1;
const ROWS: u64 = 2;

/// An iterator over the windows of a stream from any position.
///
/// An epoch's permutation is drawn when the epoch starts: 4 bytes per block.
#[derive(Debug, Clone)]
pub struct Plan {
    sizes: BlockSizes,
    samples: u64,
    order: Order,
    epochs: Option<u64>,
    /// The epoch of the next window.
    epoch: u64,
    /// The number of the next window in its epoch.
    window: u64,
    /// The sample of the epoch at which the next window starts.
    first: u64,
    /// Rows of it that had been delivered before the stream's start.
    skip: u32,
    /// The places in file order of the epoch's blocks, in reading order; empty for file order.
    permutation: Vec<u32>,
}

/// The blocks of a part that have samples of it, in file order, and how many each one has.
#[derive(Debug, Clone)]
enum BlockSizes {
    /// Every stored sample belongs to the part.
    Whole {
        blocks: u32,
        /// The samples of all blocks that are not short.
        full: u32,
        /// Blocks with fewer samples, with their number, in order: a part's last, or the last of each raw file.
        short: Arc<[(u32, u32)]>,
    },
    /// Only selected samples do.
    Selected {
        selection: Selection,
        /// The numbers of the blocks that have any.
        blocks: Arc<[u32]>,
        /// The most that a block stores.
        full: u32,
    },
}

impl BlockSizes {
    /// The number of blocks.
    fn blocks(&self) -> u32 {
        match self {
            Self::Whole { blocks, .. } => *blocks,
            Self::Selected { blocks, .. } => blocks.len() as u32,
        }
    }

    /// The number in the part of the block at this place in file order.
    fn number(&self, index: u32) -> u32 {
        match self {
            Self::Whole { .. } => index,
            Self::Selected { blocks, .. } => blocks[index as usize],
        }
    }

    /// The samples of a block, by its number in the part.
    fn of(&self, block: u32) -> u32 {
        match self {
            Self::Whole { full, short, .. } => {
                let found = short.binary_search_by_key(&block, |&(block, _)| block);
                found.map_or(*full, |at| short[at].1)
            }
            Self::Selected { selection, .. } => selection.samples_of(block),
        }
    }

    /// The most samples that a block stores.
    fn full(&self) -> u32 {
        match self {
            Self::Whole { full, .. } | Self::Selected { full, .. } => *full,
        }
    }
}

/// Consecutive blocks whose rows are delivered together, in one order.
#[derive(Debug, Clone)]
pub struct Window {
    /// The epoch.
    pub epoch: u64,
    /// The window's number in its epoch.
    pub number: u64,
    /// The sample of its epoch at which the window starts.
    pub first: u64,
    /// Its number of samples that belong to the part.
    pub samples: u32,
    /// The number of rows, first in the order of delivery, that had been delivered before the stream's start.
    pub skip: u32,
    /// The numbers of its blocks in reading order. Row `i` of the window is row `i - s` of the block whose samples
    /// start at `s` when all that these blocks store is concatenated.
    pub blocks: Vec<u32>,
    seed: Option<u64>,
    selection: Option<Selection>,
}

impl Window {
    /// Returns whether all rows of its blocks are delivered, in file order.
    pub fn keeps_rows(&self) -> bool {
        self.seed.is_none() && self.selection.is_none()
    }

    /// Returns the rows of the window in the order in which batches get them, skipped ones included; `None` if they are
    /// all rows of its blocks in file order.
    pub fn rows(&self) -> Option<Vec<u32>> {
        if self.keeps_rows() {
            return None;
        }
        let mut rows = match &self.selection {
            None => (0..self.samples).collect(),
            Some(selection) => self.selected_rows(selection),
        };
        if let Some(seed) = self.seed {
            Rng::from_parts(&[ROWS, seed, self.epoch, self.number]).shuffle(&mut rows);
        }
        Some(rows)
    }

    fn selected_rows(&self, selection: &Selection) -> Vec<u32> {
        let mut rows = Vec::with_capacity(self.samples as usize);
        let mut start = 0;
        for &block in &self.blocks {
            rows.extend(selection.rows_of(block).map(|row| start + row));
            start += selection.stored_in(block);
        }
        rows
    }
}

impl Plan {
    /// Creates the plan of a part.
    ///
    /// # Errors
    /// [`Error::Setting`] if the start is after the epoch's end, or a window would have no blocks or 2^32 rows.
    pub fn new(part: &DatasetPart, order: Order, epochs: Option<u64>, start: Position) -> Result<Self> {
        let blocks = u32::try_from(part.blocks.len()).map_err(|_| {
            Error::too_large(1 << 32, format!("the {} part has more than 2^32 blocks", part.part))
        })?;
        let full = part.block_samples;
        let sizes = match &part.selection {
            None => {
                let short = (0..).zip(&part.blocks).filter(|(_, block)| block.samples != full);
                let short = short.map(|(number, block)| (number, block.samples)).collect();
                BlockSizes::Whole { blocks, full, short }
            }
            Some(selection) => {
                let blocks = (0..blocks).filter(|&block| selection.samples_of(block) > 0).collect();
                BlockSizes::Selected { selection: selection.clone(), blocks, full }
            }
        };
        Self::over(sizes, part.samples, order, epochs, start)
    }

    fn over(
        sizes: BlockSizes,
        samples: u64,
        order: Order,
        epochs: Option<u64>,
        start: Position,
    ) -> Result<Self> {
        if let Order::Shuffled { window_blocks, .. } = order {
            let rows = u64::from(window_blocks.min(sizes.blocks())) * u64::from(sizes.full());
            if window_blocks == 0 || u32::try_from(rows).is_err() {
                let what = format!(
                    "cannot shuffle rows within {window_blocks} blocks of {} samples: use at least one block and fewer \
                     than 2^32 rows",
                    sizes.full()
                );
                return Err(Error::setting("window_blocks", what));
            }
        }
        if start.sample > samples {
            let what = format!(
                "cannot start at sample {} of an epoch of {samples}: is it the position of another dataset?",
                start.sample
            );
            return Err(Error::setting("start", what));
        }
        let (epoch, skipped) =
            if start.sample == samples { (start.epoch + 1, 0) } else { (start.epoch, start.sample) };
        let permutation = Vec::new();
        let mut plan =
            Self { sizes, samples, order, epochs, epoch, window: 0, first: 0, skip: 0, permutation };
        plan.begin_epoch();
        // Window by window instead of by division: any window may contain short blocks.
        while plan.first < skipped {
            let samples = u64::from(plan.window_samples());
            if plan.first + samples > skipped {
                plan.skip = (skipped - plan.first) as u32;
                break;
            }
            plan.first += samples;
            plan.window += 1;
        }
        Ok(plan)
    }

    fn begin_epoch(&mut self) {
        (self.window, self.first) = (0, 0);
        if let Order::Shuffled { seed, .. } = self.order
            && !self.is_over()
        {
            self.permutation.clear();
            self.permutation.extend(0..self.sizes.blocks());
            Rng::from_parts(&[BLOCKS, seed, self.epoch]).shuffle(&mut self.permutation);
        }
    }

    fn is_over(&self) -> bool {
        self.samples == 0 || self.epochs.is_some_and(|epochs| self.epoch >= epochs)
    }

    /// Returns the range, in the epoch's order of blocks, of the next window's blocks.
    fn window_range(&self) -> std::ops::Range<u64> {
        let window_blocks = self.order.window_blocks() as u64;
        let first = self.window * window_blocks;
        first..(first + window_blocks).min(u64::from(self.sizes.blocks()))
    }

    fn block_at(&self, index: u64) -> u32 {
        let index = self.permutation.get(index as usize).map_or(index as u32, |&index| index);
        self.sizes.number(index)
    }

    fn window_samples(&self) -> u32 {
        // Below 2^32: checked for the maximum that a window can have.
        self.window_range().map(|index| self.sizes.of(self.block_at(index))).sum()
    }
}

impl Iterator for Plan {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        if self.is_over() {
            return None;
        }
        let window = Window {
            epoch: self.epoch,
            number: self.window,
            first: self.first,
            samples: self.window_samples(),
            skip: std::mem::take(&mut self.skip),
            blocks: self.window_range().map(|index| self.block_at(index)).collect(),
            seed: match self.order {
                Order::File => None,
                Order::Shuffled { seed, .. } => Some(seed),
            },
            selection: match &self.sizes {
                BlockSizes::Whole { .. } => None,
                BlockSizes::Selected { selection, .. } => Some(selection.clone()),
            },
        };
        self.first += u64::from(window.samples);
        self.window += 1;
        if self.first == self.samples {
            self.epoch += 1;
            self.begin_epoch();
        }
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns blocks of one size except for some short ones, and their total number of samples.
    fn sizes(blocks: u32, full: u32, short: &[(u32, u32)]) -> (BlockSizes, u64) {
        let sizes = BlockSizes::Whole { blocks, full, short: short.into() };
        let samples = (0..blocks).map(|block| u64::from(sizes.of(block))).sum();
        (sizes, samples)
    }

    /// Returns the samples of a plan in the order of delivery, with their epochs.
    fn deliver(plan: Plan) -> Vec<(u64, u64)> {
        let sizes = plan.sizes.clone();
        plan.flat_map(|window| {
            let samples: Vec<u64> = window
                .blocks
                .iter()
                .flat_map(|&block| {
                    let first: u64 = (0..block).map(|block| u64::from(sizes.of(block))).sum();
                    first..first + u64::from(sizes.of(block))
                })
                .collect();
            assert_eq!(samples.len(), window.samples as usize);
            let rows = window.rows().unwrap_or_else(|| (0..window.samples).collect());
            let epoch = window.epoch;
            rows.into_iter()
                .skip(window.skip as usize)
                .map(move |row| (epoch, samples[row as usize]))
                .collect::<Vec<_>>()
        })
        .collect()
    }

    proptest! {
        #[test]
        fn every_sample_is_delivered_once_per_epoch_from_any_start(
            blocks in 1..20u32,
            block_samples in 1..9u32,
            short in prop::collection::btree_map(0..20u32, 1..9u32, 0..4),
            window_blocks in 1..25u32,
            file in any::<bool>(),
            seed in any::<u64>(),
            epoch in 0..3u64,
            sample in any::<prop::sample::Index>(),
        ) {
            let short = short.into_iter().filter(|&(block, size)| block < blocks && size < block_samples);
            let (sizes, samples) = sizes(blocks, block_samples, &short.collect::<Vec<_>>());
            let order = if file { Order::File } else { Order::Shuffled { seed, window_blocks } };
            let plan = |start| Plan::over(sizes.clone(), samples, order, Some(3), start).unwrap();
            let whole = deliver(plan(Position::default()));
            for (number, delivered) in whole.chunks(samples as usize).enumerate() {
                let mut sorted = delivered.to_vec();
                sorted.sort_unstable();
                prop_assert!(sorted.into_iter().eq((0..samples).map(|sample| (number as u64, sample))));
            }
            prop_assert_eq!(whole.len() as u64, 3 * samples);
            let sample = sample.index(samples as usize + 1) as u64;
            let start = Position { epoch, sample };
            // The first window contains the start: no block is read of which nothing is delivered.
            prop_assert!(plan(start).next().is_none_or(|window| window.skip < window.samples));
            let rest = deliver(plan(start));
            prop_assert_eq!(&whole[(epoch * samples + sample) as usize..], &rest[..]);
        }
    }

    /// Returns an epoch's windows: their blocks, and their samples in the order of delivery.
    fn windows(seed: u64, epoch: u64) -> Vec<(Vec<u32>, Vec<u64>)> {
        let (sizes, samples) = sizes(5, 4, &[(4, 2)]);
        let order = Order::Shuffled { seed, window_blocks: 2 };
        let start = Position { epoch, sample: 0 };
        let plan = Plan::over(sizes, samples, order, Some(epoch + 1), start).unwrap();
        let samples_of = |window: &Window| {
            let first = |block: u32| u64::from(block) * 4;
            let of_block = |&block: &u32| first(block)..(first(block) + 4).min(18);
            let samples: Vec<u64> = window.blocks.iter().flat_map(of_block).collect();
            window.rows().unwrap().into_iter().map(|row| samples[row as usize]).collect()
        };
        plan.map(|window| (window.blocks.clone(), samples_of(&window))).collect()
    }

    /// Expected values come from another implementation of the documented generators: a run resumed by a later
    /// version continues with the samples that it would have seen.
    #[test]
    fn the_order_of_a_seed_never_changes() {
        let expected = |windows: [(&[u32], &[u64]); 3]| {
            windows.map(|(blocks, samples)| (blocks.to_vec(), samples.to_vec())).to_vec()
        };
        assert_eq!(
            windows(7, 0),
            expected([
                (&[4, 2], &[9, 11, 17, 10, 8, 16]),
                (&[1, 3], &[12, 13, 15, 14, 5, 4, 7, 6]),
                (&[0], &[1, 2, 3, 0]),
            ])
        );
        assert_eq!(
            windows(7, 1),
            expected([
                (&[1, 0], &[1, 7, 4, 0, 5, 2, 6, 3]),
                (&[3, 2], &[14, 12, 11, 8, 13, 15, 10, 9]),
                (&[4], &[17, 16]),
            ])
        );
    }

    /// Any two differ in both the order of blocks and the order of rows, so that neither hides that the other one
    /// does not depend on the seed, the epoch or the window.
    #[test]
    fn seeds_epochs_and_windows_each_have_an_order_of_blocks_and_of_rows() {
        let mut orders_of_blocks = std::collections::BTreeSet::new();
        let mut orders_of_rows = std::collections::BTreeSet::new();
        for (seed, epoch) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            let (sizes, samples) = sizes(32, 64, &[]);
            let order = Order::Shuffled { seed, window_blocks: 4 };
            let start = Position { epoch, sample: 0 };
            let plan: Vec<Window> =
                Plan::over(sizes, samples, order, Some(epoch + 1), start).unwrap().collect();
            assert_eq!(plan.len(), 8);
            let blocks: Vec<u32> = plan.iter().flat_map(|window| window.blocks.clone()).collect();
            assert!(orders_of_blocks.insert(blocks), "the blocks of seed {seed}, epoch {epoch} are not new");
            for window in plan {
                let rows = window.rows().unwrap();
                assert!(orders_of_rows.insert(rows), "the rows of {window:?} are not new");
            }
        }
    }

    #[test]
    fn invalid_plans_are_refused() {
        let plan = |block_samples, order, sample| {
            let sizes = BlockSizes::Whole { blocks: 10, full: block_samples, short: [].into() };
            Plan::over(sizes, 10, order, None, Position { epoch: 0, sample })
        };
        assert!(plan(1, Order::File, 10).is_ok());
        assert!(plan(1, Order::File, 11).is_err());
        assert!(plan(1, Order::Shuffled { seed: 0, window_blocks: 0 }, 0).is_err());
        // A window has at most 2^32 - 1 rows.
        assert!(plan(1 << 31, Order::Shuffled { seed: 0, window_blocks: 2 }, 0).is_err());
        assert!(plan((1 << 31) - 1, Order::Shuffled { seed: 0, window_blocks: 2 }, 0).is_ok());
        let window_blocks = u32::MAX;
        assert!(
            plan(1 << 28, Order::Shuffled { seed: 0, window_blocks }, 0).is_ok(),
            "one window for the epoch"
        );
    }
}
