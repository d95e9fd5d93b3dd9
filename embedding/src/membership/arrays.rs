//! A membership as plain arrays, as GPUs have it.

use rayon::prelude::*;

use super::shard::{Shard, Touched};
use super::{DynamicRows, Membership, MembershipCounts};
use crate::rows::TouchedRows;

/// The contents of a membership, shard by shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MembershipArrays {
    /// `[shard][slot]`; undefined where the slot is free.
    pub(crate) keys: Vec<u64>,
    /// `[shard][slot]`
    pub(crate) scores: Vec<u32>,
    /// `[shard][word]`: a bit per slot.
    pub(crate) occupancy: Vec<u32>,
    /// `[shard]`
    pub(crate) added: Vec<u64>,
    /// `[shard][line][counter]`
    pub(crate) counters: Vec<u8>,
    /// What was changed since tracking began, if it did.
    pub(crate) touched: Option<TouchedArrays>,
    pub(crate) counts: MembershipCounts,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TouchedArrays {
    /// `[shard][word]`: a bit per slot.
    pub(crate) slots: Vec<u32>,
    /// `[shard]`: not 0 if the counters changed.
    pub(crate) counters: Vec<u32>,
}

impl DynamicRows {
    /// Returns the words of 32 bits for a bit per slot of a shard.
    pub(crate) fn shard_words(&self) -> usize {
        TouchedRows::words(self.shard_rows())
    }
}

impl Membership {
    /// Creates a membership from arrays; `step` is the last step whose batch was admitted.
    ///
    /// # Panics
    /// If the arrays have other lengths than the rows need, or a key occurs twice.
    pub(crate) fn from_arrays(rows: DynamicRows, step: u64, arrays: &MembershipArrays) -> Self {
        let (slots, words) = (rows.shard_rows() as usize, rows.shard_words());
        let shard = |number: usize| {
            let mut shard = Shard::new(&rows);
            let own = slots * number..slots * (number + 1);
            let (keys, scores) = (&arrays.keys[own.clone()], &arrays.scores[own]);
            let occupancy = &arrays.occupancy[words * number..][..words];
            let occupied = (0..slots).filter(|slot| occupancy[slot / 32] >> (slot % 32) & 1 == 1);
            occupied.for_each(|slot| shard.occupy(slot as u32, keys[slot], scores[slot]));
            let bytes = shard.sketch.counters.len();
            shard.sketch.counters.copy_from_slice(&arrays.counters[bytes * number..][..bytes]);
            shard.sketch.added = arrays.added[number];
            shard
        };
        let shards = 0..rows.shards() as usize;
        let touched = arrays.touched.as_ref().map(|touched| {
            let of_shard = |number: usize| Touched {
                slots: TouchedRows::of(touched.slots[words * number..][..words].to_vec()),
                sketch: touched.counters[number] != 0,
            };
            shards.clone().map(of_shard).collect()
        });
        let shards = shards.into_par_iter().map(shard).collect();
        Self { rows, step, shards, touched, counts: arrays.counts }
    }

    /// Returns the contents as arrays, without changes and counts.
    pub(crate) fn to_arrays(&self) -> MembershipArrays {
        let words = self.rows.shard_words();
        let occupancy = self.shards.iter().flat_map(|shard| {
            shard.occupancy.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]).take(words)
        });
        MembershipArrays {
            keys: self.shards.iter().flat_map(|shard| &shard.keys).copied().collect(),
            scores: self.shards.iter().flat_map(|shard| &shard.scores).copied().collect(),
            occupancy: occupancy.collect(),
            added: self.shards.iter().map(|shard| shard.sketch.added).collect(),
            counters: self.shards.iter().flat_map(|shard| &shard.sketch.counters).copied().collect(),
            ..MembershipArrays::default()
        }
    }
}
