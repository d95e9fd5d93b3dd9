//! A batch's route on the GPUs: which rows each rank looks up, and which bags want them.

use std::sync::Arc;

use rankine_cuda::kernels::{
    Count, Feature, Groups, KeySet, LINE_KEYS, Locate, Mark, Number, Pair, Scatter, Sum,
};
use rankine_cuda::{Buffer, Device, Lane, PeerBuffer, Pointer};

use super::THREADS;
use super::error::{Error, Result};
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

/// Makes a GPU's routes: the distinct rows that a batch looks up, and the bags of each.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) features: Buffer<Feature>,
    /// Of each id, in the order of ids.
    bags: Buffer<u32>,
    faults: Buffer<u32>,

    // What a route is made in:
    set: Bits,
    keys: Buffer<u32>,
    counts: Buffer<u32>,
    totals: Buffer<u32>,
    sorted: Buffer<Pair>,
}

/// Where a route goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoutePlaces {
    /// The distinct rows, by owner, and ascending within an owner: one an id at most.
    pub(super) rows: Pointer<u32>,
    /// Where the rows of each owner begin, and how many there are.
    pub(super) starts: Pointer<u32>,
    /// One an id.
    pub(super) slots: Pointer<u32>,
    /// One an id: the ids' slots with their bags, ascending.
    pub(super) sorted: Pointer<Pair>,
}

impl Router {
    pub(super) fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let words = |len| Buffer::filled(device, len, Bits::POISON);
        let digits = Sum::digits(layout.ids() as u32);
        Ok(Self {
            features: Buffer::of(device, &layout.kernel_features())?,
            bags: Buffer::of(device, &layout.bags())?,
            faults: Buffer::filled(device, 1, 0)?,
            set: Bits::new(device, layout.span * layout.ranks)?,
            keys: words(layout.ids())?,
            counts: words(digits * layout.tiles())?,
            totals: words(digits)?,
            sorted: Buffer::filled(device, layout.ids(), Bits::POISON)?,
        })
    }

    /// Enqueues making a batch's route.
    ///
    /// # Safety
    /// The layout must be the one that this was made for, with as many ids behind `ids_of_batch`, and with room in `to`
    /// for as much as it says; see [`Lane::launch`].
    pub(super) unsafe fn route(
        &self,
        lane: &Lane,
        layout: &Layout,
        ids_of_batch: Pointer<u32>,
        to: RoutePlaces,
    ) -> Result<()> {
        let (ids, tiles) = (layout.ids() as u32, layout.tiles() as u32);
        let slots_count = to.starts.element(layout.ranks);
        let (set, keys, slots) = (self.set.set(), self.keys.pointer(), to.slots);
        let (counts, totals) = (self.counts.pointer(), self.totals.pointer());
        let mark = Mark {
            ids: ids_of_batch,
            features: self.features.pointer(),
            keys,
            set,
            faults: self.faults.pointer(),
            samples: layout.samples as u32,
            ranks: layout.ranks as u32,
            span: layout.span as u32,
            reserved: 0,
        };
        let number = Number {
            set,
            rows: to.rows,
            starts: to.starts,
            sources: Pointer::NULL,
            owners: layout.ranks as u32,
            span: layout.span as u32,
            sources_width: 0,
            reserved: 0,
        };
        let locate = Locate { keys, set, slots_count, slots, counts, ids, reserved: 0 };
        let sum = Sum { slots_count, counts, totals, tiles, reserved: 0 };
        let low = Scatter {
            slots,
            bags: self.bags.pointer(),
            slots_count,
            counts,
            totals,
            pairs: Pointer::NULL,
            sorted: self.sorted.pointer(),
            ids,
            pass: 0,
        };
        let count = Count { pairs: low.sorted, slots_count, counts, ids, reserved: 0 };
        let high = Scatter { pairs: low.sorted, sorted: to.sorted, pass: 1, ..low };
        let mark_blocks = (mark.samples.div_ceil(THREADS), layout.features.len() as u32);
        let groups = (self.set.groups.len() as u32, 1);
        // SAFETY: all addresses but the caller's are of this value's buffers, whose lengths follow from the same layout
        // as the counts here; the caller vouches for its own.
        unsafe {
            self.set.clear(lane)?;
            lane.launch(&mark, mark_blocks)?;
            lane.launch(&Groups(number), groups)?;
            lane.launch(&number, groups)?;
            lane.launch(&locate, (tiles, 1))?;
            lane.launch(&sum, Sum::grid(ids))?;
            lane.launch(&low, (tiles, 1))?;
            lane.launch(&count, (tiles, 1))?;
            lane.launch(&sum, Sum::grid(ids))?;
            lane.launch(&high, (tiles, 1))?;
        }
        Ok(())
    }

    /// Waits for the lane, and tells whether ids were out of range.
    pub(super) fn check(&self, lane: &Lane) -> Result<()> {
        match self.faults.read(lane)?[0] {
            0 => Ok(()),
            count => Err(Error::Ids { count }),
        }
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
    /// What fills memory at first: an index that would be far out of any buffer.
    pub(super) const POISON: u8 = 0xff;

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
