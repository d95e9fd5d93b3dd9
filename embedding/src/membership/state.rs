//! The contents of a membership, as they are saved: all of them, or what was changed since tracking began.

use super::shard::{Shard, Touched};
use super::{DynamicRows, Eviction, Membership, stamp};

/// The keys of a table and the counts of those without a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedMembership {
    /// The keys.
    pub keys: SavedKeys,
    /// The counts.
    pub sketches: SavedSketches,
}

/// Rows with their keys and scores, and rows that are free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedKeys {
    /// Rows that keys have, ascending.
    pub rows: Vec<u64>,
    /// The key of each.
    pub keys: Vec<u64>,
    /// The score of each.
    pub scores: Vec<u32>,
    /// Rows that lost their key, ascending; none if everything is saved.
    pub freed: Vec<u64>,
}

/// Counts of some shards. Everywhere else they are 0, or as they were before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedSketches {
    /// The shards, ascending.
    pub shards: Vec<u64>,
    /// Look-ups that were added to each since its counters were halved.
    pub added: Vec<u64>,
    /// The counters of each, [`DynamicRows::sketch_bytes`] per shard.
    pub counters: Vec<u8>,
}

/// Why saved contents do not belong to a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMembership {
    /// Some rows lack a key or a score.
    #[error("it does not have one key and one score per row")]
    Incomplete,
    /// The row is the shared row, or not in the table.
    #[error("row {0} is no row of a key in its table")]
    Row(u64),
    /// The key belongs to another shard than its row.
    #[error("key {0} is in the wrong shard")]
    Shard(u64),
    /// A key has two rows, or a row two keys.
    #[error("key {0} or its row occurs twice")]
    Twice(u64),
    /// There are more or fewer counts than the shards have.
    #[error("its counts do not match its shards")]
    Counts,
    /// Counts belong to a shard that does not exist.
    #[error("there is no shard {0}")]
    NoShard(u64),
}

impl SavedKeys {
    fn push(&mut self, shard: &Shard, slot: u32, row: u64) {
        if shard.is_occupied(slot) {
            self.rows.push(row);
            self.keys.push(shard.keys[slot as usize]);
            self.scores.push(shard.scores[slot as usize]);
        } else {
            self.freed.push(row);
        }
    }
}

impl SavedSketches {
    fn push(&mut self, number: usize, shard: &Shard) {
        self.shards.push(number as u64);
        self.added.push(shard.sketch.added);
        self.counters.extend_from_slice(&shard.sketch.counters);
    }
}

impl DynamicRows {
    /// Returns the shard and the slot of a row; `None` for the shared row and rows outside the table.
    fn slot_of(&self, row: u64) -> Option<(usize, u32)> {
        let (shard, slot) = (row.checked_sub(1)? / self.shard_rows(), (row - 1) % self.shard_rows());
        (shard < self.shards()).then_some((shard as usize, slot as u32))
    }
}

impl Membership {
    /// Returns all of its contents.
    pub fn saved(&self) -> SavedMembership {
        let mut saved = SavedMembership::default();
        for (number, shard) in self.shards.iter().enumerate() {
            let slots = 0..self.rows.shard_rows() as u32;
            for slot in slots.filter(|&slot| shard.is_occupied(slot)) {
                saved.keys.push(shard, slot, self.row(number, slot));
            }
            if shard.sketch.added > 0 || shard.sketch.counters.iter().any(|&counter| counter > 0) {
                saved.sketches.push(number, shard);
            }
        }
        saved
    }

    /// Returns what was changed since [`Membership::begin_tracking`]; `None` if that was not called.
    pub fn changed(&self) -> Option<SavedMembership> {
        let touched = self.touched.as_ref()?;
        let mut changed = SavedMembership::default();
        for (number, (shard, touched)) in self.shards.iter().zip(touched).enumerate() {
            for slot in touched.slots.among(0..self.rows.shard_rows()) {
                changed.keys.push(shard, slot as u32, self.row(number, slot as u32));
            }
            if touched.sketch && !shard.sketch.counters.is_empty() {
                changed.sketches.push(number, shard);
            }
        }
        Some(changed)
    }

    /// Starts to record what is changed.
    pub fn begin_tracking(&mut self) {
        let slots = self.rows.shard_rows();
        self.touched = Some(self.shards.iter().map(|_| Touched::none(slots)).collect());
    }

    /// Applies saved contents to a new membership, or changes to the contents that they are changes of. Then
    /// [`Membership::continue_from`] sets the step.
    ///
    /// # Errors
    /// If they do not fit the table. Some of them may have been applied.
    pub fn restore(&mut self, saved: &SavedMembership) -> Result<(), InvalidMembership> {
        let SavedMembership { keys: SavedKeys { rows, keys, scores, freed }, sketches } = saved;
        if keys.len() != rows.len() || scores.len() != rows.len() {
            return Err(InvalidMembership::Incomplete);
        }
        let slot_of = |row: u64| {
            let slot = self.rows.slot_of(row);
            slot.ok_or(InvalidMembership::Row(row))
        };
        let changed: Vec<_> = rows.iter().chain(freed).map(|&row| slot_of(row)).collect::<Result<_, _>>()?;
        // Keys may have changed their rows, so that all are free before any is given away.
        for &(shard, slot) in &changed {
            if self.shards[shard].is_occupied(slot) {
                self.shards[shard].free(slot);
            }
        }
        for (&(shard, slot), (&key, &score)) in changed.iter().zip(keys.iter().zip(scores)) {
            if self.rows.shard_of(key) != shard {
                return Err(InvalidMembership::Shard(key));
            }
            let shard = &mut self.shards[shard];
            if shard.is_occupied(slot) || shard.slot_of(key).is_some() {
                return Err(InvalidMembership::Twice(key));
            }
            shard.occupy(slot, key, score);
        }
        self.restore_sketches(sketches)
    }

    /// Sets the last step whose batch was admitted. Keys that were looked up later, because optimizers start afresh and
    /// count steps from 0, count as looked up in this step.
    pub fn continue_from(&mut self, step: u64) {
        self.step = step;
        if self.rows.evict != Eviction::Lfu {
            let scores = self.shards.iter_mut().flat_map(|shard| &mut shard.scores);
            scores.for_each(|score| *score = (*score).min(stamp(step)));
        }
    }

    fn restore_sketches(&mut self, saved: &SavedSketches) -> Result<(), InvalidMembership> {
        let bytes = self.rows.sketch_bytes() as usize;
        let SavedSketches { shards, added, counters } = saved;
        if added.len() != shards.len() || counters.len() != shards.len() * bytes {
            return Err(InvalidMembership::Counts);
        }
        if bytes == 0 {
            return Ok(());
        }
        for ((&number, &added), counters) in shards.iter().zip(added).zip(counters.chunks_exact(bytes)) {
            let Some(shard) = self.shards.get_mut(usize::try_from(number).unwrap_or(usize::MAX)) else {
                return Err(InvalidMembership::NoShard(number));
            };
            shard.sketch.added = added;
            shard.sketch.counters.copy_from_slice(counters);
        }
        Ok(())
    }
}
