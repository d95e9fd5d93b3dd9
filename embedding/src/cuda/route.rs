//! A batch's route on the GPUs: which rows each rank looks up, and which bags want them.

use std::sync::Arc;

use rankine_cuda::kernels::{KeySet, LINE_KEYS, Pair, Sum};
use rankine_cuda::{Buffer, Device, Lane, PeerBuffer};

use super::layout::Layout;
use super::rank::Bits;
use crate::cuda::Result;

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
        let words = |len| PeerBuffer::filled(device, peers, len, Bits::POISON);
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
        let words = |len| Buffer::filled(device, len, Bits::POISON);
        Ok(Self {
            slots: words(layout.ids())?,
            sorted: Buffer::filled(device, layout.ids(), Bits::POISON)?,
            entries: words(layout.ranks * layout.entries_max())?,
            firsts: words(layout.ranks)?,
            counts: words(layout.ranks)?,
            union: words(layout.union_max())?,
            union_starts: words(2)?,
            sources: words(layout.union_max() * layout.ranks)?,
        })
    }
}

/// Memory that [`super::Rank::route`] works in.
#[derive(Debug)]
pub(super) struct RouteScratch {
    pub(super) set: Bits,
    pub(super) keys: Buffer<u32>,
    pub(super) counts: Buffer<u32>,
    pub(super) totals: Buffer<u32>,
    pub(super) sorted: Buffer<Pair>,
}

impl RouteScratch {
    pub(super) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, Bits::POISON);
        let digits = Sum::digits(layout.ids() as u32);
        Ok(Self {
            set: Bits::new(device, layout.span * layout.ranks)?,
            keys: words(layout.ids())?,
            counts: words(digits * layout.tiles())?,
            totals: words(digits)?,
            sorted: Buffer::filled(device, layout.ids(), Bits::POISON)?,
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

impl Bits {
    /// What fills memory at first: an index that would be far out of any buffer.
    pub(super) const POISON: u8 = 0xff;

    pub(super) fn new(device: &Arc<Device>, keys: usize) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, 0);
        let (bits, groups) = (words(keys / 32)?, words(keys / rankine_cuda::kernels::GROUP_KEYS)?);
        Ok(Self { bits, groups, lines: words(keys / LINE_KEYS)? })
    }

    pub(super) fn set(&self) -> KeySet {
        KeySet { bits: self.bits.pointer(), groups: self.groups.pointer(), lines: self.lines.pointer() }
    }
}
