//! A batch's route over ranks: which rows each rank looks up at which owner, and which bags need them.

use std::sync::Arc;

use rankine_cuda::kernels::{KeySet, LINE_KEYS, Link, Merge, Number, Pair};
use rankine_cuda::{Buffer, Device, Lane, Peers, Pointer, SharedBuffer};
use rankine_topology::LocalRank;

use crate::cuda::POISON;
use crate::cuda::error::Result;
use crate::cuda::layout::Layout;
use crate::cuda::routing::router::RouteBuffers;
use crate::cuda::tier::DistinctRows;

/// A batch's route in a rank's memory.
#[derive(Debug)]
pub(crate) struct NodeRoute {
    // As one that looks up:
    /// The distinct rows that the rank looks up: by owner, ascending within an owner, and last those that every rank
    /// stores. A row's index in this list is its *slot*, at which it is received. Owners read the list.
    pub(crate) list: SharedBuffer<u32>,
    /// Where the rows of each owner start in `list`, and the length of the list. Owners read it.
    pub(crate) starts: SharedBuffer<u32>,
    /// Slot of each look-up, feature by feature.
    pub(crate) slots: Buffer<u32>,
    /// Slot and bag of each look-up, ascending.
    pub(crate) sorted: Buffer<Pair>,
    /// The factor of each sorted look-up that has one; empty if none has.
    pub(crate) factors: Buffer<f32>,
    /// Number of look-ups, and of slots.
    pub(crate) looked_up: Buffer<u32>,

    // As an owner:
    /// `[rank][entries_max]`: the rows that each rank looks up here; those that every rank stores from `owned_max`
    /// on.
    pub(crate) entries: Buffer<u32>,
    /// Per rank the slot, at that rank, of the first of them; then of the first that every rank stores.
    pub(crate) firsts: Buffer<u32>,
    /// Likewise, their number.
    pub(crate) counts: Buffer<u32>,
    /// The rows that any rank of the node looks up here, ascending. Over several nodes those of each rank of the rail,
    /// by their numbers there, node by node; last those that every rank stores.
    pub(crate) union: Buffer<u32>,
    /// Where those of each node start; over several nodes those that every rank stores; and the total number.
    pub(crate) union_starts: Buffer<u32>,
    /// `[row of the union][rank]`: 1 + the index of its entry, or 0.
    pub(crate) sources: Buffer<u32>,
}

impl NodeRoute {
    pub(crate) fn new(peers: &Peers, layout: &Layout) -> Result<Self> {
        let (device, union) = (peers.device(), layout.union_max(peers.local_rank()));
        let words = |len| Buffer::filled(device, len, POISON);
        Ok(Self {
            list: peers.share(layout.slots_max(), POISON)?,
            starts: peers.share(layout.owners() + 1, 0)?,
            slots: words(layout.look_ups())?,
            sorted: Buffer::filled(device, layout.look_ups(), POISON)?,
            factors: Buffer::filled(device, layout.sorted_factors(), POISON)?,
            looked_up: Buffer::filled(device, 2, 0)?,
            entries: words(layout.ranks * layout.entries_max())?,
            firsts: Buffer::filled(device, layout.lists(), 0)?,
            counts: Buffer::filled(device, layout.lists(), 0)?,
            union: words(union)?,
            union_starts: Buffer::filled(device, layout.merged_spans() + 1, 0)?,
            sources: words(union * layout.ranks)?,
        })
    }

    /// The buffers that receive the route of the rank's own look-ups.
    pub(crate) fn buffers(&self) -> RouteBuffers {
        RouteBuffers {
            rows: self.list.pointer(),
            starts: Pointer::NULL,
            owner_starts: self.starts.pointer(),
            slots: Some(self.slots.pointer()),
            sorted: self.sorted.pointer(),
            factors: self.factors.pointer(),
            counts: self.looked_up.pointer(),
        }
    }

    /// The distinct rows that ranks look up at this owner, with one node.
    pub(crate) fn distinct(&self) -> DistinctRows {
        DistinctRows { rows: self.union.pointer(), count: self.union_starts.pointer().element(1) }
    }

    /// The kernels with which an owner finds which of its rows the ranks look up, in order.
    pub(crate) fn merge(&self, layout: &Layout, rank: LocalRank, set: KeySet) -> (Merge, Number, Link) {
        let merge = Merge {
            lists: self.list.of_ranks(),
            starts: self.starts.of_ranks(),
            entries: self.entries.pointer(),
            firsts: self.firsts.pointer(),
            counts: self.counts.pointer(),
            set,
            capacity: layout.entries_max() as u32,
            owned: layout.owned_max() as u32,
            rank: rank.0 as u32,
            ranks: layout.ranks as u32,
            of_all: layout.merged_of_all() as u32,
            reserved: 0,
        };
        let number = Number {
            set,
            rows: self.union.pointer(),
            starts: self.union_starts.pointer(),
            sources: self.sources.pointer(),
            owners: layout.merged_spans() as u32,
            span: layout.span as u32,
            sources_width: layout.ranks as u32,
            reserved: 0,
        };
        let link = Link {
            entries: merge.entries,
            counts: merge.counts,
            set,
            sources: number.sources,
            capacity: merge.capacity,
            owned: merge.owned,
            ranks: merge.ranks,
            of_all: merge.of_all,
        };
        (merge, number, link)
    }

    /// Copies the route to host memory, once the lane has finished all enqueued work.
    pub(crate) fn read(&self, lane: &Lane, layout: &Layout) -> Result<RouteSnapshot> {
        let starts = self.starts.read(lane)?;
        let counts = self.looked_up.read(lane)?;
        let (look_ups, slots) = (counts[0] as usize, counts[1] as usize);
        let rows = self.list.read_part(lane, 0, slots)?;
        let of_owner = |owner: usize| {
            let rows = &rows[starts[owner] as usize..starts[owner + 1] as usize];
            rows.iter().map(move |&row| (owner, row))
        };
        let union_starts = self.union_starts.read(lane)?;
        let union_count = union_starts[layout.merged_spans()] as usize;
        let mut union = self.union.read_part(lane, 0, union_count)?;
        for (node, bounds) in union_starts.windows(2).enumerate() {
            let of_node = &mut union[bounds[0] as usize..bounds[1] as usize];
            of_node.iter_mut().for_each(|row| *row += (node * layout.span) as u32);
        }
        let sources = self.sources.read_part(lane, 0, union_count * layout.ranks)?;
        let (capacity, owned) = (layout.entries_max() as u32, layout.owned_max() as u32);
        let entry = |(rank, source): (usize, &u32)| {
            let entry = source.checked_sub(1)? - rank as u32 * capacity;
            Some(entry.checked_sub(owned).unwrap_or(entry))
        };
        let sources = sources.chunks_exact(layout.ranks);
        Ok(RouteSnapshot {
            list: (0..layout.owners()).flat_map(of_owner).collect(),
            slots: self.slots.read(lane)?,
            sorted: self.sorted.read_part(lane, 0, look_ups)?,
            union,
            sources: sources.map(|of_row| of_row.iter().enumerate().map(entry).collect()).collect(),
            named: Vec::new(),
        })
    }
}

/// A route in host memory, for inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSnapshot {
    /// The distinct rows that the rank looks up: pairs of owner and number there, ascending. Rows that every rank
    /// stores have an extra owner after the last rank. Indexes in the list are slots.
    pub list: Vec<(usize, u32)>,
    /// Slot of each look-up, feature by feature, laid out as the ids in their columns; undefined where there is no
    /// look-up.
    pub slots: Vec<u32>,
    /// Slot and bag of each look-up, ascending; a bag is the feature's number above the sample's bits.
    pub sorted: Vec<Pair>,
    /// As an owner: the rows that any rank of the node looks up here, ascending; rows that every rank stores are in
    /// the union of all ranks. Over several nodes these come last, like those of an extra node.
    pub union: Vec<u32>,
    /// For each of these: its index among the rows that each rank looks up here, or among those that every rank
    /// stores.
    pub sources: Vec<Vec<Option<u32>>>,
    /// Over several nodes: the rows here that any node names, ascending, each with its index among those that each
    /// node names.
    pub named: Vec<(u32, Vec<Option<u32>>)>,
}

/// A set of keys in a GPU's memory.
#[derive(Debug)]
pub(crate) struct KeyBitmap {
    bits: Buffer<u32>,
    pub(crate) groups: Buffer<u32>,
    lines: Buffer<u32>,
}

impl KeyBitmap {
    pub(crate) fn new(device: &Arc<Device>, keys: usize) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, 0);
        let (bits, groups) = (words(keys / 32)?, words(keys / rankine_cuda::kernels::GROUP_KEYS)?);
        Ok(Self { bits, groups, lines: words(keys / LINE_KEYS)? })
    }

    /// Enqueues clearing the set.
    ///
    /// # Safety
    /// See [`Lane::fill`].
    pub(crate) unsafe fn clear(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the rest.
        unsafe { self.clear_first(lane, 32 * self.bits.len()) }
    }

    /// The same for the first `keys` keys, for a set that has only those.
    ///
    /// # Safety
    /// There must be as many keys; see [`Lane::fill`].
    pub(crate) unsafe fn clear_first(&self, lane: &Lane, keys: usize) -> Result<()> {
        // SAFETY: the caller vouches for it.
        Ok(unsafe { lane.fill(self.bits.pointer(), 0, keys / 32) }?)
    }

    pub(crate) fn set(&self) -> KeySet {
        KeySet { bits: self.bits.pointer(), groups: self.groups.pointer(), lines: self.lines.pointer() }
    }
}
