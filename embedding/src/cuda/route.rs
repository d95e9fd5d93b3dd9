//! A batch's route over ranks: which rows each looks up of which owner, and which bags want them.

use std::sync::Arc;

use rankine_cuda::kernels::{KeySet, LINE_KEYS, Link, Merge, Number, Pair};
use rankine_cuda::{Buffer, Device, Lane, Peers, Pointer, Shared};

use super::POISON;
use super::error::Result;
use super::layout::Layout;
use super::router::RoutePlaces;

/// A batch's route in a rank's memory.
#[derive(Debug)]
pub(super) struct NodeRoute {
    // As one that looks up:
    /// The distinct rows that the rank looks up: by owner, and ascending within an owner, at last those that every rank
    /// has. A row's place in this list is its *slot*: rows land there. Owners read it.
    pub(super) list: Shared<u32>,
    /// Where the rows of each owner begin in `list`, and how many there are. Owners read it.
    pub(super) starts: Shared<u32>,
    /// Of each look-up, feature by feature.
    pub(super) slots: Buffer<u32>,
    /// The look-ups' slots with their bags, ascending.
    pub(super) sorted: Buffer<Pair>,
    /// How many they are, and how many slots.
    pub(super) looked_up: Buffer<u32>,

    // As an owner:
    /// `[rank][entries_max]`: the rows that each rank looks up here, those that every rank has from `owned_max` on.
    pub(super) entries: Buffer<u32>,
    /// Of each rank the slot of the first of them there, and then of the first that every rank has.
    pub(super) firsts: Buffer<u32>,
    /// Likewise, how many they are.
    pub(super) counts: Buffer<u32>,
    /// The rows that any rank of the node looks up here: ascending, and over nodes those of each rank of the rail, by
    /// their numbers there, one node behind the other, and at last those that every rank has.
    pub(super) union: Buffer<u32>,
    /// Where those of each node begin, over nodes those that every rank has, and how many they are.
    pub(super) union_starts: Buffer<u32>,
    /// `[row of the union][rank]`: 1 + the place of its entry, or 0.
    pub(super) sources: Buffer<u32>,
}

impl NodeRoute {
    pub(super) fn new(peers: &Peers, layout: &Layout) -> Result<Self> {
        let (device, union) = (peers.device(), layout.union_max(peers.rank()));
        let words = |len| Buffer::filled(device, len, POISON);
        Ok(Self {
            list: peers.share(layout.slots_max(), POISON)?,
            starts: peers.share(layout.owners() + 1, 0)?,
            slots: words(layout.look_ups())?,
            sorted: Buffer::filled(device, layout.look_ups(), POISON)?,
            looked_up: Buffer::filled(device, 2, 0)?,
            entries: words(layout.ranks * layout.entries_max())?,
            firsts: Buffer::filled(device, layout.lists(), 0)?,
            counts: Buffer::filled(device, layout.lists(), 0)?,
            union: words(union)?,
            union_starts: Buffer::filled(device, layout.merged_spans() + 1, 0)?,
            sources: words(union * layout.ranks)?,
        })
    }

    /// Where the route of the rank's own look-ups goes.
    pub(super) fn places(&self) -> RoutePlaces {
        RoutePlaces {
            rows: self.list.pointer(),
            starts: Pointer::NULL,
            owner_starts: self.starts.pointer(),
            slots: self.slots.pointer(),
            sorted: self.sorted.pointer(),
            counts: self.looked_up.pointer(),
        }
    }

    /// The kernels by which an owner finds which of its rows the ranks look up, in order.
    pub(super) fn merge(&self, layout: &Layout, rank: usize, set: KeySet) -> (Merge, Number, Link) {
        let merge = Merge {
            lists: self.list.of_ranks(),
            starts: self.starts.of_ranks(),
            entries: self.entries.pointer(),
            firsts: self.firsts.pointer(),
            counts: self.counts.pointer(),
            set,
            capacity: layout.entries_max() as u32,
            owned: layout.owned_max() as u32,
            rank: rank as u32,
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

    /// The route in the host's memory, once the lane has done all that was enqueued on it.
    pub(super) fn read(&self, lane: &Lane, layout: &Layout) -> Result<Snapshot> {
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
        Ok(Snapshot {
            list: (0..layout.owners()).flat_map(of_owner).collect(),
            slots: self.slots.read(lane)?,
            sorted: self.sorted.read_part(lane, 0, look_ups)?,
            union,
            sources: sources.map(|of_row| of_row.iter().enumerate().map(entry).collect()).collect(),
            named: Vec::new(),
        })
    }
}

/// A route in the host's memory, for whoever wants to look at one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The distinct rows that the rank looks up: a pair of owner and number there each, ascending; the owner of what
    /// every rank has is behind the last rank. Their places are slots.
    pub list: Vec<(usize, u32)>,
    /// Of each look-up its slot, feature by feature and as ids lie in their columns; what lies where no look-up is
    /// means nothing.
    pub slots: Vec<u32>,
    /// Of each look-up its slot and its bag, ascending: a feature's number above the sample's bits.
    pub sorted: Vec<Pair>,
    /// As an owner: the rows that any rank of the node looks up here, ascending, and of those that every rank has, at
    /// all. Over nodes these come last, as of one more node.
    pub union: Vec<u32>,
    /// Of each of these: its place among the rows that each rank looks up here, or of those that every rank has.
    pub sources: Vec<Vec<Option<u32>>>,
    /// Over nodes: the rows here that any node names, ascending, each with its place among those that each node names.
    pub named: Vec<(u32, Vec<Option<u32>>)>,
}

/// A set of keys in a GPU's memory.
#[derive(Debug)]
pub(super) struct Bits {
    bits: Buffer<u32>,
    pub(super) groups: Buffer<u32>,
    lines: Buffer<u32>,
}

impl Bits {
    pub(super) fn new(device: &Arc<Device>, keys: usize) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, 0);
        let (bits, groups) = (words(keys / 32)?, words(keys / rankine_cuda::kernels::GROUP_KEYS)?);
        Ok(Self { bits, groups, lines: words(keys / LINE_KEYS)? })
    }

    /// Enqueues emptying the set.
    ///
    /// # Safety
    /// See [`Lane::fill`].
    pub(super) unsafe fn clear(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the rest.
        unsafe { self.clear_first(lane, 32 * self.bits.len()) }
    }

    /// The same of so many first keys, for a set of those alone.
    ///
    /// # Safety
    /// There must be as many; see [`Lane::fill`].
    pub(super) unsafe fn clear_first(&self, lane: &Lane, keys: usize) -> Result<()> {
        // SAFETY: the caller vouches for it.
        Ok(unsafe { lane.fill(self.bits.pointer(), 0, keys / 32) }?)
    }

    pub(super) fn set(&self) -> KeySet {
        KeySet { bits: self.bits.pointer(), groups: self.groups.pointer(), lines: self.lines.pointer() }
    }
}
