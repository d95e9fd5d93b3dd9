//! Finds the slot of a key: an open-addressing table of slot numbers, derived from the keys. Memberships find the slots
//! of ids with it, and patched tables the places of replaced rows.

use super::mix;

/// Slots by the hash of their keys. The keys themselves are in the shard.
#[derive(Debug, Clone)]
pub(crate) struct SlotIndex {
    /// Slot + 1, or 0 where there is none. The length is a power of two, and at least a quarter is free, so that
    /// probes are short.
    places: Vec<u32>,
}

/// Returns the places for some slots.
fn places(slots: u64) -> u64 {
    (slots + slots / 3 + 1).next_power_of_two()
}

/// Returns the size of an index for `slots` slots, in bytes.
pub(super) fn bytes(slots: u64) -> u64 {
    4 * places(slots)
}

impl SlotIndex {
    pub(crate) fn new(slots: u64) -> Self {
        Self { places: vec![0; places(slots) as usize] }
    }

    /// Returns the first place of a key. The highest bits of the hash are those that chose the shard.
    fn home(&self, key: u64) -> usize {
        mix(key) as usize & (self.places.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Returns the place of a key, or the free place where it would be.
    fn place(&self, key: u64, keys: &[u64]) -> usize {
        let mut place = self.home(key);
        while self.places[place] != 0 && keys[self.places[place] as usize - 1] != key {
            place = self.next(place);
        }
        place
    }

    /// Returns the slot of a key; `keys` has the key of each slot.
    pub(crate) fn find(&self, key: u64, keys: &[u64]) -> Option<u32> {
        self.places[self.place(key, keys)].checked_sub(1)
    }

    /// Adds a key that is not present. If it is, its slot is replaced.
    pub(crate) fn insert(&mut self, slot: u32, keys: &[u64]) {
        let place = self.place(keys[slot as usize], keys);
        self.places[place] = slot + 1;
    }

    /// Removes a key that is present. Those behind it move up, so that no place is wasted.
    pub(super) fn remove(&mut self, key: u64, keys: &[u64]) {
        let mut hole = self.place(key, keys);
        let mut place = self.next(hole);
        while self.places[place] != 0 {
            let home = self.home(keys[self.places[place] as usize - 1]);
            // Whether its home is not between the hole and its place, around the end.
            let mask = self.places.len() - 1;
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.places[hole] = 0;
    }
}
