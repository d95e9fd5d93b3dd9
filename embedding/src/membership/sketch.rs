//! Counts look-ups of keys that have no row: a count-min sketch of saturating counters, which age.
//!
//! Cormode and Muthukrishnan, "An improved data stream summary" (2005), with conservative updates; ageing as in
//! Einziger, Friedman and Manes, `TinyLFU` (2017). A count may be too high, if keys collide, and never too low, except
//! by ageing and saturation.

use super::{DynamicRows, mix};

/// Counters of each key.
const DEPTH: usize = 4;
/// The most counters in a line, so that a shard's counts fit into a piece of a checkpoint.
const WIDTH_MAX: u64 = 1 << 20;
/// Look-ups per counter of a line after which all counters are halved.
const AGE_LOOK_UPS: u64 = 8;

/// The counts of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sketch {
    /// `[line][counter]`, one byte each; empty if keys are admitted at once.
    pub(super) counters: Vec<u8>,
    /// Look-ups that were added since the counters were halved last.
    pub(super) added: u64,
}

/// Returns the counters of a line: one for each row, whose number is rounded up to a power of two; none if keys are
/// admitted at once.
pub(super) fn width(rows: &DynamicRows) -> u64 {
    if rows.admit_after == 1 { 0 } else { rows.shard_rows().next_power_of_two().min(WIDTH_MAX) }
}

/// Returns the bytes of a shard's counters.
pub(super) fn bytes(rows: &DynamicRows) -> u64 {
    DEPTH as u64 * width(rows)
}

impl Sketch {
    pub(super) fn new(rows: &DynamicRows) -> Self {
        Self { counters: vec![0; bytes(rows) as usize], added: 0 }
    }

    /// Adds look-ups of a key, and returns its count with them.
    pub(super) fn add(&mut self, key: u64, look_ups: u32) -> u32 {
        if self.counters.is_empty() {
            return look_ups;
        }
        let places = self.places(key);
        let before = places.iter().map(|&place| self.counters[place]).min().unwrap_or(0);
        let count = u32::from(before).saturating_add(look_ups);
        let stored = count.min(u32::from(u8::MAX)) as u8;
        for place in places {
            self.counters[place] = self.counters[place].max(stored);
        }
        self.added = self.added.saturating_add(u64::from(look_ups));
        if self.added >= AGE_LOOK_UPS * (self.counters.len() / DEPTH) as u64 {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.added = 0;
        }
        count
    }

    /// Returns the counters of a key, one in each line.
    fn places(&self, key: u64) -> [usize; DEPTH] {
        // Another hash than the one that chose the shard: of its keys, the highest bits are equal.
        let hash = mix(mix(key) ^ 0xA24B_AED4_963E_E407);
        let (first, step) = (hash as usize, (hash >> 32) as usize | 1);
        let width = self.counters.len() / DEPTH;
        std::array::from_fn(|line| line * width + (first.wrapping_add(line.wrapping_mul(step)) & (width - 1)))
    }
}
