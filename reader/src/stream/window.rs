//! A window of unpacked samples, laid out for taking them in any order.
//!
//! Column by column, a sample of a dlrm dataset lies on more than 50 cache lines, and as many pages: taking samples in
//! random order then waits for memory at every id. Row by row it lies on five. Ragged columns stay columns: their bags
//! have no fixed place in a row.

use std::ops::Range;

use crate::samples::{Bags, Samples};
use crate::schema::{Hotness, Schema};

/// Samples that are transposed at a time: their rows stay in the cache.
const TILE: usize = 256;

/// Some blocks' samples, row by row.
#[derive(Debug)]
pub(super) struct RowWindow {
    len: usize,
    labels: usize,
    weighted: bool,
    dense: usize,
    /// `[sample, labels + weight + dense columns]`
    floats: Vec<f32>,
    /// Of each categorical column: where its ids lie in a row, or `None` for ragged ones.
    places: Vec<Option<Range<usize>>>,
    /// `[sample, ids of all columns of fixed hotness]`
    ids: Vec<u64>,
    /// The columns of no fixed hotness, in order.
    ragged: Vec<Bags>,
}

impl RowWindow {
    pub(super) fn new(schema: &Schema) -> Self {
        let mut end = 0;
        let mut place = |hotness| match hotness {
            Hotness::Fixed(ids) => {
                let start = end;
                end += ids as usize;
                Some(start..end)
            }
            Hotness::Ragged { .. } => None,
        };
        let places: Vec<_> = schema.categorical.iter().map(|column| place(column.hotness)).collect();
        Self {
            len: 0,
            labels: schema.labels.len(),
            weighted: schema.weight.is_some(),
            dense: schema.dense.len(),
            floats: Vec::new(),
            ragged: vec![Bags::default(); places.iter().filter(|place| place.is_none()).count()],
            places,
            ids: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets the samples and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.floats.clear();
        self.ids.clear();
        self.ragged.iter_mut().for_each(Bags::clear);
    }

    fn floats_a_row(&self) -> usize {
        self.labels + usize::from(self.weighted) + self.dense
    }

    fn ids_a_row(&self) -> usize {
        self.places.iter().flatten().map(|place| place.end).max().unwrap_or(0)
    }

    /// Appends samples of the window's schema.
    pub(super) fn push(&mut self, samples: &Samples) {
        let (first, floats, ids) = (self.len, self.floats_a_row(), self.ids_a_row());
        self.len += samples.len;
        self.floats.resize(self.len * floats, 0.0);
        self.ids.resize(self.len * ids, 0);
        for start in (0..samples.len).step_by(TILE) {
            let tile = start..samples.len.min(start + TILE);
            let rows = first + tile.start..first + tile.end;
            if floats > 0 {
                self.push_floats(samples, tile.clone(), rows.clone());
            }
            for (place, bags) in self.places.iter().zip(&samples.categorical) {
                let Some(place) = place else { continue };
                let hotness = place.len();
                let from = &bags.ids[tile.start * hotness..tile.end * hotness];
                let to = self.ids[rows.start * ids..rows.end * ids].chunks_exact_mut(ids);
                for (row, bag) in to.zip(from.chunks_exact(hotness)) {
                    row[place.clone()].copy_from_slice(bag);
                }
            }
        }
        let ragged = self.places.iter().zip(&samples.categorical).filter(|(place, _)| place.is_none());
        for (mine, (_, theirs)) in self.ragged.iter_mut().zip(ragged) {
            mine.append(theirs, 0..samples.len);
        }
    }

    fn push_floats(&mut self, samples: &Samples, tile: Range<usize>, rows: Range<usize>) {
        let floats = self.floats_a_row();
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
        let (floats, ids) = (self.floats_a_row(), self.ids_a_row());
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
        for (place, bags) in self.places.iter().zip(&mut out.categorical) {
            match place {
                Some(place) => {
                    let bag = |&row: &u32| &self.ids[row as usize * ids..][place.clone()];
                    if place.len() == 1 {
                        bags.extend_one_hot(rows.iter().map(|row| bag(row)[0]));
                    } else {
                        rows.iter().for_each(|row| bags.push(bag(row).iter().copied()));
                    }
                }
                None => {
                    let column = ragged.next().expect("as many as there are places without a range");
                    rows.iter().for_each(|&row| bags.push(column.bag(row as usize).iter().copied()));
                }
            }
        }
        out.len += rows.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_gathered_is_what_was_pushed(
            (schema, samples) in testing::any_samples(700),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
        ) {
            let mut window = RowWindow::new(&schema);
            window.push(&samples);
            window.clear();
            window.push(&samples);
            window.push(&samples);
            prop_assert_eq!(window.len(), 2 * samples.len);
            let rows: Vec<u32> = order.iter().map(|index| index.index(window.len()) as u32).collect();
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
