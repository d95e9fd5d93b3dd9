//! A virtual shard: some rows of a table, and the keys that have them.

use super::index::SlotIndex;
use super::sketch::Sketch;
use super::{DynamicRows, Eviction, MembershipCounts, stamp};
use crate::rows::TouchedRows;

/// The keys of a shard. A *slot* is a row of the shard.
#[derive(Debug, Clone)]
pub(super) struct Shard {
    /// One per slot; undefined where the slot is free.
    pub(super) keys: Vec<u64>,
    /// The last step in which the key was looked up, or with [`Eviction::Lfu`] its look-ups. One per slot.
    pub(super) scores: Vec<u32>,
    /// One bit per slot: whether a key has it.
    pub(super) occupancy: Vec<u64>,
    pub(super) sketch: Sketch,
    /// Derived from keys and occupancy.
    index: SlotIndex,
    occupied: u64,
    /// No free slot is below.
    first_free: u32,
}

/// What was changed in a shard.
#[derive(Debug, Clone)]
pub(super) struct Touched {
    pub(super) slots: TouchedRows,
    pub(super) sketch: bool,
}

/// What became of the look-ups of a shard's keys.
#[derive(Debug, Default)]
pub(super) struct ShardAdmission {
    /// Look-ups with their slots.
    pub(super) found: Vec<(u32, u32)>,
    /// Slots that were given to keys.
    pub(super) new: Vec<(u32, u64)>,
    /// Look-ups of keys that would have been admitted if there were a free slot.
    pub(super) refused: Vec<u32>,
    pub(super) counts: MembershipCounts,
}

/// The look-ups of a key in a batch.
struct KeyLookUps {
    key: u64,
    /// The range in the look-ups ordered by key.
    start: usize,
    end: usize,
    /// The first look-up.
    first: u32,
}

impl KeyLookUps {
    fn count(&self) -> u32 {
        (self.end - self.start) as u32
    }
}

impl Touched {
    pub(super) fn none(slots: u64) -> Self {
        Self { slots: TouchedRows::none(slots), sketch: false }
    }
}

impl Shard {
    pub(super) fn new(rows: &DynamicRows) -> Self {
        let slots = rows.shard_rows();
        Self {
            keys: vec![0; slots as usize],
            scores: vec![0; slots as usize],
            occupancy: vec![0; slots.div_ceil(64) as usize],
            sketch: Sketch::new(rows),
            index: SlotIndex::new(slots),
            occupied: 0,
            first_free: 0,
        }
    }

    pub(super) fn occupied(&self) -> u64 {
        self.occupied
    }

    pub(super) fn is_occupied(&self, slot: u32) -> bool {
        self.occupancy[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    /// Returns the slot of a key, whether it has expired or not.
    pub(super) fn slot_of(&self, key: u64) -> Option<u32> {
        self.index.find(key, &self.keys)
    }

    /// Returns the slot of a key that was looked up in step `oldest` or later.
    pub(super) fn find(&self, key: u64, oldest: u32) -> Option<u32> {
        self.slot_of(key).filter(|&slot| self.scores[slot as usize] >= oldest)
    }

    /// Gives a free slot to a key without one.
    pub(super) fn occupy(&mut self, slot: u32, key: u64, score: u32) {
        self.keys[slot as usize] = key;
        self.scores[slot as usize] = score;
        self.occupancy[slot as usize / 64] |= 1 << (slot % 64);
        self.index.insert(slot, &self.keys);
        self.occupied += 1;
    }

    /// Takes the slot from its key.
    pub(super) fn free(&mut self, slot: u32) {
        self.index.remove(self.keys[slot as usize], &self.keys);
        self.occupancy[slot as usize / 64] &= !(1 << (slot % 64));
        self.occupied -= 1;
        self.first_free = self.first_free.min(slot);
    }

    /// Returns the lowest free slot.
    fn free_slot(&mut self) -> Option<u32> {
        if self.occupied == self.keys.len() as u64 {
            return None;
        }
        let first_word = self.first_free as usize / 64;
        let words = self.occupancy[first_word..].iter();
        let skipped = words.take_while(|&&word| word == u64::MAX).count();
        let word = first_word + skipped;
        let slot = word as u32 * 64 + self.occupancy[word].trailing_ones();
        self.first_free = slot;
        Some(slot)
    }

    /// Admits the keys of some look-ups, given by their numbers among `keys`. See [`super::Membership::admit`].
    /// `oldest` is the first step of a look-up that has not expired.
    pub(super) fn admit(
        &mut self,
        rows: &DynamicRows,
        (step, oldest): (u64, u32),
        keys: &[u64],
        look_ups: &[u32],
        mut touched: Option<&mut Touched>,
    ) -> ShardAdmission {
        let mut ordered = look_ups.to_vec();
        ordered.sort_unstable_by_key(|&look_up| (keys[look_up as usize], look_up));
        let groups = groups(keys, &ordered);
        let mut out = ShardAdmission::default();
        // The slot of each group, once it has one.
        let mut slots = vec![None; groups.len()];
        let mut absent = Vec::new();
        let mut mark = |slot: u32| {
            if let Some(touched) = &mut touched {
                touched.slots.mark(&[u64::from(slot)]);
            }
        };
        for (number, group) in groups.iter().enumerate() {
            let present = self.slot_of(group.key);
            if let Some(slot) = present {
                mark(slot);
                if self.scores[slot as usize] >= oldest {
                    let score = &mut self.scores[slot as usize];
                    *score = match rows.evict {
                        Eviction::Lfu => score.saturating_add(group.count()),
                        Eviction::None { .. } | Eviction::Lru | Eviction::Ttl { .. } => stamp(step),
                    };
                    slots[number] = Some(slot);
                    continue;
                }
                self.free(slot);
                out.counts.evicted += 1;
            }
            absent.push(number);
        }
        absent.sort_unstable_by_key(|&number| groups[number].first);
        let mut leaving = None;
        for (done, &number) in absent.iter().enumerate() {
            let group = &groups[number];
            let count = self.sketch.add(group.key, group.count());
            if count < u32::from(rows.admit_after) {
                continue;
            }
            let slot = self.free_slot().or_else(|| {
                if matches!(rows.evict, Eviction::None { .. }) {
                    out.refused.extend_from_slice(&ordered[group.start..group.end]);
                    return None;
                }
                let leaving = leaving.get_or_insert_with(|| self.leaving(&slots, absent.len() - done));
                let slot = leaving.pop()?;
                self.free(slot);
                out.counts.evicted += 1;
                Some(slot)
            });
            let Some(slot) = slot else { continue };
            let score = if rows.evict == Eviction::Lfu { count } else { stamp(step) };
            self.occupy(slot, group.key, score);
            mark(slot);
            slots[number] = Some(slot);
            out.new.push((slot, group.key));
            out.counts.admitted += 1;
        }
        if let Some(touched) = touched {
            touched.sketch |= !absent.is_empty();
        }
        for (group, slot) in groups.iter().zip(slots) {
            match slot {
                Some(slot) => {
                    out.found.extend(ordered[group.start..group.end].iter().map(|&look_up| (look_up, slot)));
                }
                None => out.counts.unadmitted_lookups += u64::from(group.count()),
            }
        }
        out
    }

    /// Returns the slots that leave first, `most` at most, the first one last: by the smallest score, then key,
    /// among keys that have none of the slots of this batch. All slots are occupied.
    fn leaving(&self, of_batch: &[Option<u32>], most: usize) -> Vec<u32> {
        let mut stays = vec![false; self.keys.len()];
        of_batch.iter().flatten().for_each(|&slot| stays[slot as usize] = true);
        let others = (0..self.keys.len() as u32).filter(|&slot| !stays[slot as usize]);
        let mut others: Vec<u32> = others.collect();
        let order = |&slot: &u32| (self.scores[slot as usize], self.keys[slot as usize]);
        if most < others.len() {
            others.select_nth_unstable_by_key(most, order);
            others.truncate(most);
        }
        others.sort_unstable_by_key(order);
        others.reverse();
        others
    }
}

/// Returns the look-ups of each key, from look-ups that are ordered by key.
fn groups(keys: &[u64], ordered: &[u32]) -> Vec<KeyLookUps> {
    let mut start = 0;
    let chunks = ordered.chunk_by(|&one, &other| keys[one as usize] == keys[other as usize]);
    let group = chunks.map(|look_ups| {
        let end = start + look_ups.len();
        let group = KeyLookUps { key: keys[look_ups[0] as usize], start, end, first: look_ups[0] };
        start = end;
        group
    });
    group.collect()
}
