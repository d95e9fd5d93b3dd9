//! Tables whose rows are given to ids as they come: which id has which row.
//!
//! Such a table is an ordinary table of [`DynamicRows::table_rows`] rows, with a [`Membership`] in front. Before a
//! step, [`Membership::admit`] maps the ids of the batch, here called keys, to rows; it admits new keys and evicts
//! old ones. Everything behind, such as look-ups, updates and checkpoints of rows, works with row numbers. Row 0 is
//! the shared row: keys that have no row of their own look it up.
//!
//! Keys are divided among virtual shards by their hash. Capacity, counts and evictions are per shard, and no result
//! depends on threads, ranks or devices. A shard consists of plain arrays (keys, scores and occupancy apart, so that
//! any number may be a key). Time is the number of the step.
//!
//! This module knows neither models nor where rows are stored.

#[cfg(feature = "cuda")]
mod arrays;
pub(crate) mod index;
mod shard;
mod sketch;
mod state;

#[cfg(test)]
mod tests;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::random::UniformField;
use shard::{Shard, ShardAdmission, Touched};

#[cfg(feature = "cuda")]
pub(crate) use arrays::{MembershipArrays, TouchedArrays};
pub use state::{InvalidMembership, SavedKeys, SavedMembership, SavedSketches};

/// The row of keys that have none of their own.
pub const SHARED_ROW: u64 = 0;
/// The most virtual shards of a table.
const SHARDS_MAX: u64 = 4096;
/// Fewer rows in a shard would leave many shards full while others have free rows.
const SHARD_ROWS_MIN: u64 = 1024;
/// The largest capacity, so that row numbers of a shard fit into 32 bits.
pub const CAPACITY_MAX: u64 = 100_000_000_000;

/// What happens to the look-ups of a key whose shard is full, if no key is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IfFull {
    /// Training ends with an error.
    Fail,
    /// They are removed from their bags.
    Skip,
    /// They look up the shared row.
    Shared,
}

/// Which key leaves a shard that has no free row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Eviction {
    /// None: further keys are not admitted.
    None {
        /// What happens to their look-ups.
        if_full: IfFull,
    },
    /// The key whose last look-up is the oldest.
    Lru,
    /// The key with the fewest look-ups.
    Lfu,
    /// As `Lru`. A key that was not looked up in the last `steps` steps has no row any more.
    Ttl {
        /// Steps after which a key expires, at least 1.
        steps: u64,
    },
}

/// The rows of a table that are given to keys as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicRows {
    /// The number of keys that can have a row, at least 1. It is rounded up to a multiple of the shards.
    pub capacity: u64,
    /// Look-ups after which a key gets a row, at least 1.
    pub admit_after: u8,
    /// Which key leaves if there is no free row.
    pub evict: Eviction,
}

impl DynamicRows {
    /// Returns the virtual shards: a power of two that depends on the capacity alone.
    pub fn shards(&self) -> u64 {
        1 << (self.capacity / SHARD_ROWS_MIN).clamp(1, SHARDS_MAX).ilog2()
    }

    /// Returns the rows of a shard.
    pub fn shard_rows(&self) -> u64 {
        self.capacity.div_ceil(self.shards())
    }

    /// Returns the rows of the table, the shared row included.
    pub fn table_rows(&self) -> u64 {
        1 + self.shards() * self.shard_rows()
    }

    /// Returns the bytes that the membership takes in host memory.
    pub fn bytes(&self) -> u64 {
        let rows = self.shard_rows();
        let of_shard = rows * 12 + rows.div_ceil(8) + index::bytes(rows) + sketch::bytes(self);
        self.shards() * of_shard
    }

    /// Returns the bytes of a shard's counts of keys without a row; 0 if keys are admitted at once.
    pub fn sketch_bytes(&self) -> u64 {
        sketch::bytes(self)
    }

    /// Returns the counters in each line of a shard's counts.
    #[cfg(feature = "cuda")]
    pub(crate) fn sketch_width(&self) -> u64 {
        sketch::width(self)
    }

    /// Returns whether the numbers are within bounds.
    pub fn is_valid(&self) -> bool {
        (1..=CAPACITY_MAX).contains(&self.capacity)
            && self.admit_after > 0
            && !matches!(self.evict, Eviction::Ttl { steps: 0 })
    }

    /// Returns the shard of a key.
    fn shard_of(&self, key: u64) -> usize {
        // The highest bits; one shard needs none.
        ((u128::from(mix(key)) * u128::from(self.shards())) >> 64) as usize
    }
}

/// Which key has which row of a table.
#[derive(Debug, Clone)]
pub struct Membership {
    rows: DynamicRows,
    /// The last step whose batch was admitted.
    step: u64,
    shards: Vec<Shard>,
    /// What was changed since tracking began, if it did.
    touched: Option<Vec<Touched>>,
    counts: MembershipCounts,
}

/// Counts of a membership since it was created; of a resumed one, since it resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipCounts {
    /// Keys that got a row.
    pub admitted: u64,
    /// Keys that lost their row to another key, or because they expired.
    pub evicted: u64,
    /// Look-ups of keys without a row.
    pub unadmitted_lookups: u64,
}

/// How full a table is whose rows are given to keys as they come, and what happened in this training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicTableState {
    /// The table.
    pub table: String,
    /// Rows that keys have.
    pub rows: u64,
    /// Rows that keys can have.
    pub capacity: u64,
    /// Counts since training started or resumed.
    #[serde(flatten)]
    pub counts: MembershipCounts,
}

/// A table has no row for a new id, and the job says that training fails then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "table {table} has no row for id {key}: {keys} ids have its {capacity} rows, and none loses its row (evict = \
     \"none\"). Set a larger capacity or another evict for its [[table]], or ids_out_of_range = \"oov\" or \"skip\""
)]
pub struct FullTable {
    /// The table.
    pub table: String,
    /// The id.
    pub key: u64,
    /// Ids that have a row.
    pub keys: u64,
    /// Rows that ids can have.
    pub capacity: u64,
}

impl DynamicTableState {
    /// Returns the share of the rows that keys have.
    pub fn load_ratio(&self) -> f64 {
        self.rows as f64 / self.capacity.max(1) as f64
    }
}

impl MembershipCounts {
    fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.evicted += other.evicted;
        self.unadmitted_lookups += other.unadmitted_lookups;
    }
}

/// A row that was given to a key: before the step, its weights and state must be set to the initial ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewRow {
    /// The row of the table.
    pub row: u64,
    /// The key that has it now.
    pub key: u64,
}

/// The rows of the keys of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// The row of each look-up.
    pub rows: Vec<u64>,
    /// The rows that were given to new keys, ascending.
    pub new_rows: Vec<NewRow>,
    /// The look-ups, ascending, of keys that would have been admitted if their shard had a free row; only with
    /// [`Eviction::None`]. They have the shared row.
    pub refused: Vec<usize>,
}

impl Membership {
    /// Creates a membership without keys.
    ///
    /// # Panics
    /// If the numbers are out of bounds: see [`DynamicRows::is_valid`].
    pub fn new(rows: DynamicRows) -> Self {
        assert!(rows.is_valid(), "dynamic rows are checked before");
        let shards = (0..rows.shards()).map(|_| Shard::new(&rows)).collect();
        Self { rows, step: 0, shards, touched: None, counts: MembershipCounts::default() }
    }

    /// Returns its description.
    pub fn rows(&self) -> &DynamicRows {
        &self.rows
    }

    /// Returns the number of keys that have a row; expired ones count until they lose it.
    pub fn keys(&self) -> u64 {
        self.shards.iter().map(Shard::occupied).sum()
    }

    /// Returns what happened since it was created or restored.
    pub fn counts(&self) -> MembershipCounts {
        self.counts
    }

    /// Returns the row of a key; `None` if it has none, or has expired.
    pub fn find(&self, key: u64) -> Option<u64> {
        let shard = self.rows.shard_of(key);
        let slot = self.shards[shard].find(key, self.oldest(self.step))?;
        Some(self.row(shard, slot))
    }

    /// Returns the key that has each row of the table, in order; `None` where none has it, as for the shared row.
    pub fn keys_of_rows(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.keys_with_scores(0)
    }

    /// Returns the same without keys that have expired.
    pub fn live_keys_of_rows(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.keys_with_scores(self.oldest(self.step))
    }

    /// Returns the key that has each row, if its score is at least `least`.
    fn keys_with_scores(&self, least: u32) -> impl Iterator<Item = Option<u64>> + '_ {
        let of_shards = self.shards.iter().flat_map(move |shard| {
            let has_key = move |slot: usize| shard.is_occupied(slot as u32) && shard.scores[slot] >= least;
            (0..shard.keys.len()).map(move |slot| has_key(slot).then(|| shard.keys[slot]))
        });
        std::iter::once(None).chain(of_shards)
    }

    /// Frees the rows of keys that have expired. The other keys never expire, whatever is [restored](Self::restore)
    /// later: time stands still in a model that scores.
    pub fn freeze(&mut self) {
        let oldest = self.oldest(self.step);
        for shard in &mut self.shards {
            for slot in 0..shard.keys.len() as u32 {
                if shard.is_occupied(slot) && shard.scores[slot as usize] < oldest {
                    shard.free(slot);
                }
            }
        }
        self.step = 0;
    }

    /// Maps the keys of a step's batch to rows: the keys of all look-ups of the table, of the global batch, in order.
    /// Keys are admitted in the order of their first look-up. All look-ups of a key get the same row.
    pub fn admit(&mut self, step: u64, keys: &[u64]) -> Admission {
        self.step = step;
        let oldest = self.oldest(step);
        let (order, starts) = self.by_shard(keys);
        let mut touched: Vec<_> = match &mut self.touched {
            Some(touched) => touched.iter_mut().map(Some).collect(),
            None => self.shards.iter().map(|_| None).collect(),
        };
        let shards = self.shards.par_iter_mut().zip(&mut touched).enumerate();
        let rows = self.rows;
        let admitted: Vec<ShardAdmission> = shards
            .map(|(number, (shard, touched))| {
                let own = &order[starts[number]..starts[number + 1]];
                if own.is_empty() {
                    return ShardAdmission::default();
                }
                shard.admit(&rows, (step, oldest), keys, own, touched.as_deref_mut())
            })
            .collect();
        let mut admission = Admission { rows: vec![SHARED_ROW; keys.len()], ..Admission::default() };
        for (number, of_shard) in admitted.into_iter().enumerate() {
            for &(look_up, slot) in &of_shard.found {
                admission.rows[look_up as usize] = self.row(number, slot);
            }
            let new = of_shard.new.iter().map(|&(slot, key)| NewRow { row: self.row(number, slot), key });
            admission.new_rows.extend(new);
            admission.refused.extend(of_shard.refused.iter().map(|&look_up| look_up as usize));
            self.counts.add(&of_shard.counts);
        }
        admission.new_rows.sort_unstable();
        admission.refused.sort_unstable();
        admission
    }

    /// Returns the look-ups ordered by shard, in each shard in their order, and where each shard's start.
    ///
    /// # Panics
    /// If there are 2^32 look-ups.
    fn by_shard(&self, keys: &[u64]) -> (Vec<u32>, Vec<usize>) {
        assert!(u32::try_from(keys.len()).is_ok(), "a batch has fewer than 2^32 look-ups of a table");
        let shards: Vec<u16> = keys.par_iter().map(|&key| self.rows.shard_of(key) as u16).collect();
        let mut starts = vec![0; self.shards.len() + 1];
        shards.iter().for_each(|&shard| starts[usize::from(shard) + 1] += 1);
        (1..starts.len()).for_each(|shard| starts[shard] += starts[shard - 1]);
        let mut next = starts.clone();
        let mut order = vec![0; keys.len()];
        for (look_up, &shard) in shards.iter().enumerate() {
            order[next[usize::from(shard)]] = look_up as u32;
            next[usize::from(shard)] += 1;
        }
        (order, starts)
    }

    /// Returns the oldest last look-up, by its step, of a key that has not expired at a step.
    fn oldest(&self, step: u64) -> u32 {
        match self.rows.evict {
            Eviction::Ttl { steps } => stamp(step.saturating_sub(steps)),
            Eviction::None { .. } | Eviction::Lru | Eviction::Lfu => 0,
        }
    }

    fn row(&self, shard: usize, slot: u32) -> u64 {
        1 + shard as u64 * self.rows.shard_rows() + u64::from(slot)
    }
}

/// The weights of rows that are given to keys: a function of seed, table and key.
#[derive(Debug, Clone, Copy)]
pub struct InitialRows {
    /// `None` for a table of zeros.
    field: Option<UniformField>,
    bound: f32,
}

impl InitialRows {
    /// Creates the initial rows of a table that is the stream `number` of a seed. `bound` is its
    /// [`crate::TableSpec::initial_bound`].
    pub fn new(bound: f32, seed: u64, number: u32) -> Self {
        Self { field: Some(UniformField::of_keys(seed, number)), bound }
    }

    /// Creates the initial rows of a table of zeros.
    pub fn zeros() -> Self {
        Self { field: None, bound: 0.0 }
    }

    /// Sets the weights of a key's row, all columns, before they are rounded to the table's type.
    pub fn fill(&self, key: u64, weights: &mut [f32]) {
        match self.field {
            Some(field) => field.fill_row(key, self.bound, weights),
            None => weights.fill(0.0),
        }
    }
}

/// Returns the step as it is stored with a key.
fn stamp(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

/// Returns a hash of a key whose bits all depend on all bits of the key: the finalizer of `SplitMix64`, as Steele, Lea
/// and Flood published it (OOPSLA 2014). It is a bijection, so different keys have different hashes.
fn mix(key: u64) -> u64 {
    let mut hash = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}
