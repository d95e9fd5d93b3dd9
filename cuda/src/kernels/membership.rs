//! `membership.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// Which id loses its row to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Eviction {
    /// None.
    Keep,
    /// The one whose last look-up is the oldest.
    Lru,
    /// The one with the fewest look-ups.
    Lfu,
    /// As [`Eviction::Lru`]; ids expire.
    Ttl,
}

/// A dynamic table: which id has which row, in virtual shards of as many slots each.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Members {
    /// `[shard][slot]`: the id that has it.
    pub keys: Pointer<u64>,
    /// `[shard][slot]`
    pub scores: Pointer<u32>,
    /// `[shard][word]`: a bit per slot, whether an id has it.
    pub occupancy: Pointer<u32>,
    /// `[shard][place]`: the index, which finds the slot of an id.
    pub places: Pointer<u32>,
    /// `[shard][line][counter]`
    pub counters: Pointer<u8>,
    /// `[shard]`: look-ups that were added since the counters were halved last.
    pub added: Pointer<u64>,
    /// `[shard]`: slots that ids have.
    pub occupied: Pointer<u32>,
    /// `[shard]`: places of the index where something was.
    pub vacated: Pointer<u32>,
    /// `[shard]`: no score is below, unless scores count look-ups.
    pub floors: Pointer<u32>,
    /// `[shard][word]`: a bit per slot, whether the batch looks it up; only with [`Eviction::Lfu`].
    pub current: Pointer<u32>,
    /// `[shard][word]`: a bit per slot, whether it was changed; null if that is not recorded.
    pub touched: Pointer<u32>,
    /// `[shard]`: 1 if counters were changed; null likewise.
    pub touched_counters: Pointer<u32>,
    /// Ids that got a row, ids that lost it, look-ups of ids without a row.
    pub counts: Pointer<u64>,
    /// Steps after which an id expires.
    pub ttl_steps: u64,
    /// Its first shard among the shards of all tables.
    pub first_shard: u32,
    /// Shards.
    pub shards: u32,
    /// Slots of a shard.
    pub slots: u32,
    /// Places of a shard's index.
    pub places_count: u32,
    /// Counters per line; 0 if ids get a row at once.
    pub width: u32,
    /// Look-ups after which an id gets a row.
    pub admit_after: u32,
    /// An [`Eviction`].
    pub eviction: u32,
    /// 1 if a batch fails that has an id without a row because all rows are taken.
    pub fails: u32,
}

/// A column whose ids are given rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct MemberColumn {
    /// The number of its table among the dynamic ones.
    pub table: u32,
    /// Where its ids of 64 bits start in a batch.
    pub long_ids: u32,
    /// Where its rows start.
    pub ids: u32,
    /// Where its offsets start, if it is ragged.
    pub offsets: u32,
    /// Ids per bag; the most for a ragged column.
    pub hotness: u32,
    /// 1 if it is ragged.
    pub ragged: u32,
    /// Its first position in a sample, over the columns of its table.
    pub position: u32,
    /// Positions of a sample, over the columns of its table.
    pub positions: u32,
}

/// A row that begins anew, because a dynamic table gave it to an id.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NewRow {
    /// The id.
    pub key: u64,
    /// The row.
    pub row: u32,
    /// The number of the table among the dynamic ones.
    pub table: u32,
}

/// What is known of an id that has no row when a batch comes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Entry {
    /// The table + 1, and a look-up; 0 where there is none.
    pub owner: u64,
    /// The first position.
    pub first: u32,
    /// The number of look-ups.
    pub count: u32,
}

impl Entry {
    /// No id.
    pub const NONE: Self = Self { owner: 0, first: u32::MAX, count: 0 };
}

/// Dynamic tables and a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Membership {
    /// The tables, by their first shards.
    pub tables: Pointer<Members>,
    /// The columns of all tables.
    pub columns: Pointer<MemberColumn>,
    /// The ids of the batch, rank by rank.
    pub long_ids: Pointer<u64>,
    /// Receives the rows of this rank's ids.
    pub ids: Pointer<u32>,
    /// The offsets of ragged columns, rank by rank.
    pub offsets: Pointer<u32>,
    /// The number of samples of each rank.
    pub samples: Pointer<u32>,
    /// Ids without a row, at least twice as many as the batch has look-ups, and a power of two; none between batches.
    pub entries: Pointer<Entry>,
    /// Per entry: its row.
    pub rows: Pointer<u32>,
    /// The entries in use.
    pub created: Pointer<u32>,
    /// The same by shard, with their positions.
    pub by_shard: Pointer<u64>,
    /// Where look-ups of ids without a row have them.
    pub absent: Pointer<u32>,
    /// Per shard of all tables: entries; zeros between batches.
    pub shard_entries: Pointer<u32>,
    /// Per shard of all tables: where its entries begin and end in `by_shard`.
    pub ranges: Pointer<[u32; 2]>,
    /// The shards with entries.
    pub active: Pointer<u32>,
    /// [`MembershipTotal::COUNT`] counts.
    pub totals: Pointer<u32>,
    /// Receives the rows that begin anew.
    pub new_rows: Pointer<NewRow>,
    /// Receives their number.
    pub new_count: Pointer<u32>,
    /// Per table: the first id that makes the batch fail, as position and entry; all ones before.
    pub refused: Pointer<u64>,
    /// In page-locked memory, per table: 1 and that id if there is one.
    pub full: Pointer<[u64; 2]>,
    /// The step of the batch; for batches that are only looked up, the last one.
    pub step: u64,
    /// Number of entries less 1, which are a power of two.
    pub mask: u32,
    /// Tables.
    pub tables_count: u32,
    /// The samples that a batch has room for.
    pub room: u32,
    /// 1 if ids get rows; 0 if they are only looked up.
    pub admits: u32,
    /// Ranks whose ids the batch has.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// From the ids of one rank to the next one's.
    pub long_ids_stride: u32,
    /// From the offsets of one rank to the next one's.
    pub offsets_stride: u32,
    /// Columns.
    pub columns_count: u32,
    /// 0.
    pub reserved: u32,
}

/// What [`Membership::totals`] counts.
#[derive(Debug, Clone, Copy)]
pub struct MembershipTotal;

impl MembershipTotal {
    /// Entries, look-ups without a row, shards with entries, and entries that have a place by shard.
    pub const COUNT: usize = 4;
}

const THREADS: u32 = 256;
/// Ids that a thread of [`MembershipFind`] takes.
const LOOK_UPS: u32 = 4;

/// Finds rows of ids, and enters ids without one. Grid: see [`MembershipFind::grid`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipFind(pub Membership);

impl MembershipFind {
    /// Grid for columns with at most `ids` ids each.
    pub fn grid(&self, ids: u32) -> (u32, u32) {
        (ids.div_ceil(THREADS * LOOK_UPS), self.0.columns_count * self.0.ranks)
    }
}

/// Reserves a place for the entries of each shard, after [`MembershipFind`]. Grid: any.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipReserve(pub Membership);

/// Lists the entries of each shard, after [`MembershipReserve`]. Grid: any.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipList(pub Membership);

/// Gives rows to entries, after [`MembershipList`]. Grid: any; a block takes a shard at a time.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipAdmit(pub Membership);

/// Replaces the entries of look-ups by rows, after [`MembershipAdmit`]. Grid: any.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipResolve(pub Membership);

/// Forgets the entries of a batch. Grid: any.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipClear(pub Membership);

/// Makes the index of each shard from keys and occupancy. Grid: any; a block takes a shard at a time.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct MembershipIndex(pub Membership);

macro_rules! kernels {
    ($($kernel:ident),+) => {
        $(
            // SAFETY: `membership.cu` has the same struct.
            unsafe impl Kernel for $kernel {
                const ID: Id = Family::$kernel.variant([]);
                const THREADS: u32 = THREADS;
            }
        )+
    };
}

kernels! {
    MembershipFind, MembershipReserve, MembershipList, MembershipAdmit, MembershipResolve, MembershipClear,
    MembershipIndex
}

const _: () = assert!(size_of::<Members>() == 144 && size_of::<Membership>() == 8 * 20 + 40);
