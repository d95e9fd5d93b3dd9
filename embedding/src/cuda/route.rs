//! A batch's route over ranks: which rows each looks up of which owner, and which bags want them.

use std::sync::Arc;

use rankine_cuda::kernels::{KeySet, LINE_KEYS, Pair};
use rankine_cuda::{Buffer, Device, Lane, PeerBuffer};

use super::POISON;
use super::error::Result;
use super::layout::Layout;

/// What peers read of a rank's route.
#[derive(Debug)]
pub(super) struct SharedRoute {
    /// The distinct rows that the rank looks up: by owner, and ascending within an owner. A row's place in this list is
    /// its *slot*: rows land there.
    pub(super) list: PeerBuffer<u32>,
    /// Where the rows of each owner begin in `list`, and how many there are.
    pub(super) starts: PeerBuffer<u32>,
}

impl SharedRoute {
    pub(super) fn new(device: &Arc<Device>, peers: &[Arc<Device>], layout: &Layout) -> Result<Self> {
        let words = |len| PeerBuffer::filled(device, peers, len, POISON);
        Ok(Self { list: words(layout.ids())?, starts: words(layout.ranks + 1)? })
    }
}

/// What a rank keeps of a batch's route to itself.
#[derive(Debug)]
pub(super) struct OwnRoute {
    // As one that looks up:
    /// Of each id.
    pub(super) slots: Buffer<u32>,
    /// The ids' slots with their bags, ascending.
    pub(super) sorted: Buffer<Pair>,
    /// How many they are, and how many slots.
    pub(super) looked_up: Buffer<u32>,

    // As an owner:
    /// `[rank][entries_max]`: the rows that each rank looks up here.
    pub(super) entries: Buffer<u32>,
    /// Of each rank: the slot of the first of them there.
    pub(super) firsts: Buffer<u32>,
    /// Of each rank: how many they are.
    pub(super) counts: Buffer<u32>,
    /// The rows that any rank looks up here, ascending.
    pub(super) union: Buffer<u32>,
    /// 0, and how many they are.
    pub(super) union_starts: Buffer<u32>,
    /// `[row of the union][rank]`: 1 + the place of its entry, or 0.
    pub(super) sources: Buffer<u32>,
}

impl OwnRoute {
    pub(super) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, POISON);
        Ok(Self {
            slots: words(layout.ids())?,
            sorted: Buffer::filled(device, layout.ids(), POISON)?,
            looked_up: words(2)?,
            entries: words(layout.ranks * layout.entries_max())?,
            firsts: words(layout.ranks)?,
            counts: words(layout.ranks)?,
            union: words(layout.union_max())?,
            union_starts: words(2)?,
            sources: words(layout.union_max() * layout.ranks)?,
        })
    }
}

/// A route in the host's memory, for whoever wants to look at one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The distinct rows that the rank looks up: a pair of owner and row there each, ascending. Their places are slots.
    pub list: Vec<(usize, u64)>,
    /// Of each id: its slot.
    pub slots: Vec<u32>,
    /// Of each slot: its bags, ascending; a feature's number above the sample's bits.
    pub bags: Vec<Vec<u32>>,
    /// As an owner: the rows that any rank looks up here, ascending.
    pub union: Vec<u64>,
    /// Of each of these: its number among the rows that each rank looks up here.
    pub sources: Vec<Vec<Option<u32>>>,
}

impl Snapshot {
    pub(super) fn read(lane: &Lane, layout: &Layout, shared: &SharedRoute, own: &OwnRoute) -> Result<Self> {
        let (rows, starts) = (shared.list.read(lane)?, shared.starts.read(lane)?);
        let of_owner = |owner: usize| {
            let rows = &rows[starts[owner] as usize..starts[owner + 1] as usize];
            rows.iter().map(move |&row| (owner, u64::from(row)))
        };
        let list: Vec<_> = (0..layout.ranks).flat_map(of_owner).collect();
        let mut bags = vec![Vec::new(); list.len()];
        for Pair { slot, bag } in own.sorted.read(lane)? {
            bags[slot as usize].push(bag);
        }
        let count = own.union_starts.read(lane)?[1] as usize;
        let union = own.union.read(lane)?[..count].iter().map(|&row| u64::from(row)).collect();
        let sources = own.sources.read(lane)?;
        let sources = sources[..count * layout.ranks].chunks_exact(layout.ranks);
        let entry = |(rank, source): (usize, &u32)| {
            Some(source.checked_sub(1)? - (rank * layout.entries_max()) as u32)
        };
        let sources = sources.map(|of_row| of_row.iter().enumerate().map(entry).collect()).collect();
        Ok(Self { list, slots: own.slots.read(lane)?, bags, union, sources })
    }
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
        // SAFETY: the buffer has this length; the caller vouches for the rest.
        Ok(unsafe { lane.fill(self.bits.pointer(), 0, self.bits.len()) }?)
    }

    pub(super) fn set(&self) -> KeySet {
        KeySet { bits: self.bits.pointer(), groups: self.groups.pointer(), lines: self.lines.pointer() }
    }
}
