//! A window of unpacked samples, laid out for access in any order.
//!
//! In column layout, a sample of a DLRM dataset occupies more than 50 cache lines on as many pages: taking samples in
//! random order then waits for memory at every id. In row layout it occupies five. Ragged columns stay columns: their
//! bags have no fixed position in a row.

use std::ops::Range;

use crate::samples::{Bags, Samples};
use crate::schema::{Hotness, Schema};

/// Samples that are transposed at a time: their rows stay in the cache.
const TILE: usize = 256;

/// The samples of several blocks, row by row.
#[derive(Debug)]
pub(super) struct RowWindow {
    len: usize,
    labels: usize,
    weighted: bool,
    dense: usize,
    /// `[sample, labels + weight + dense columns]`
    floats: Vec<f32>,
    /// For each categorical column, the range of its ids in a row, or `None` for ragged columns.
    ranges: Vec<Option<Range<usize>>>,
    /// `[sample, ids of all columns of fixed hotness]`
    ids: Vec<u64>,
    /// The ragged columns, in order.
    ragged: Vec<Bags>,
}

impl RowWindow {
    pub(super) fn new(schema: &Schema) -> Self {
        let mut end = 0;
        let mut range = |hotness| match hotness {
            Hotness::Fixed(ids) => {
                let start = end;
                end += ids as usize;
                Some(start..end)
            }
            Hotness::Ragged { .. } => None,
        };
        let ranges: Vec<_> = schema.categorical.iter().map(|column| range(column.hotness)).collect();
        Self {
            len: 0,
            labels: schema.labels.len(),
            weighted: schema.weight.is_some(),
            dense: schema.dense.len(),
            floats: Vec::new(),
            ragged: vec![Bags::default(); ranges.iter().filter(|range| range.is_none()).count()],
            ranges,
            ids: Vec::new(),
        }
    }

    /// Removes the samples and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.floats.clear();
        self.ids.clear();
        self.ragged.iter_mut().for_each(Bags::clear);
    }

    fn floats_per_row(&self) -> usize {
        self.labels + usize::from(self.weighted) + self.dense
    }

    fn ids_per_row(&self) -> usize {
        self.ranges.iter().flatten().map(|range| range.end).max().unwrap_or(0)
    }

    /// Appends samples of the window's schema.
    pub(super) fn push(&mut self, samples: &Samples) {
        let (first, floats, ids) = (self.len, self.floats_per_row(), self.ids_per_row());
        self.len += samples.len;
        self.floats.resize(self.len * floats, 0.0);
        self.ids.resize(self.len * ids, 0);
        for start in (0..samples.len).step_by(TILE) {
            let tile = start..samples.len.min(start + TILE);
            let rows = first + tile.start..first + tile.end;
            if floats > 0 {
                self.push_floats(samples, tile.clone(), rows.clone());
            }
            for (range, bags) in self.ranges.iter().zip(&samples.categorical) {
                let Some(range) = range else { continue };
                let hotness = range.len();
                let from = &bags.ids[tile.start * hotness..tile.end * hotness];
                let to = self.ids[rows.start * ids..rows.end * ids].chunks_exact_mut(ids);
                for (row, bag) in to.zip(from.chunks_exact(hotness)) {
                    row[range.clone()].copy_from_slice(bag);
                }
            }
        }
        let ragged = self.ranges.iter().zip(&samples.categorical).filter(|(range, _)| range.is_none());
        for (mine, (_, theirs)) in self.ragged.iter_mut().zip(ragged) {
            mine.append(theirs, 0..samples.len);
        }
    }

    fn push_floats(&mut self, samples: &Samples, tile: Range<usize>, rows: Range<usize>) {
        let floats = self.floats_per_row();
        let (labels, dense_at) = (self.labels, self.labels + usize::from(self.weighted));
        let rows = self.floats[rows.start * floats..rows.end * floats].chunks_exact_mut(floats);
        for (sample, row) in tile.zip(rows) {
            for (value, labels) in row.iter_mut().zip(&samples.labels) {
                *value = labels[sample];
            }
            if self.weighted {
                row[labels] = samples.weights[sample];
            }
            row[dense_at..].copy_from_slice(&samples.dense[sample * self.dense..(sample + 1) * self.dense]);
        }
    }

    /// Appends chosen samples to a batch of the same schema, in the order given.
    pub(super) fn gather(&self, rows: &[u32], out: &mut Samples) {
        let (floats, ids) = (self.floats_per_row(), self.ids_per_row());
        let float_rows = || rows.iter().map(|&row| &self.floats[row as usize * floats..][..floats]);
        for (label, labels) in out.labels.iter_mut().enumerate() {
            labels.extend(float_rows().map(|row| row[label]));
        }
        if self.weighted {
            out.weights.extend(float_rows().map(|row| row[self.labels]));
        }
        for row in float_rows() {
            out.dense.extend_from_slice(&row[floats - self.dense..]);
        }
        let mut ragged = self.ragged.iter();
        for (range, bags) in self.ranges.iter().zip(&mut out.categorical) {
            match range {
                Some(range) => {
                    let bag = |&row: &u32| &self.ids[row as usize * ids..][range.clone()];
                    if range.len() == 1 {
                        bags.extend_one_hot(rows.iter().map(|row| bag(row)[0]));
                    } else {
                        rows.iter().for_each(|row| bags.push(bag(row).iter().copied()));
                    }
                }
                None => {
                    let column = ragged.next().expect("one ragged column per column without a range");
                    rows.iter().for_each(|&row| bags.push_bag(column, row as usize));
                }
            }
        }
        out.len += rows.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gathering_returns_the_pushed_samples(
            (schema, samples) in tests::any_samples(700),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
        ) {
            let mut window = RowWindow::new(&schema);
            window.push(&samples);
            window.clear();
            window.push(&samples);
            window.push(&samples);
            prop_assert_eq!(window.len, 2 * samples.len);
            let rows: Vec<u32> = order.iter().map(|index| index.index(window.len) as u32).collect();
            let mut gathered = Samples::new(&schema);
            window.gather(&rows[..rows.len() / 2], &mut gathered);
            window.gather(&rows[rows.len() / 2..], &mut gathered);
            let mut expected = Samples::new(&schema);
            for row in rows {
                let sample = row as usize % samples.len;
                expected.append(&samples, sample..sample + 1);
            }
            prop_assert_eq!(gathered, expected);
        }
    }
}
