//! The memory of a dynamic table's membership on a GPU.

use std::sync::Arc;

use rankine_cuda::kernels::{Eviction, Members};
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use crate::cuda::error::Result;
use crate::membership::{
    DynamicRows, DynamicTableState, Eviction as Rule, IfFull, Membership, MembershipArrays, MembershipCounts,
    TouchedArrays,
};

/// A table, and which id has which of its rows.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Its number among all tables.
    pub(super) number: usize,
    name: String,
    pub(super) rows: DynamicRows,
    first_shard: usize,
    keys: Buffer<u64>,
    scores: Buffer<u32>,
    occupancy: Buffer<u32>,
    places: Buffer<u32>,
    counters: Buffer<u8>,
    added: Buffer<u64>,
    occupied: Buffer<u32>,
    vacated: Buffer<u32>,
    floors: Buffer<u32>,
    /// Empty without [`Rule::Lfu`].
    current: Buffer<u32>,
    touched: Option<Touched>,
    counts: Buffer<u64>,
}

/// What was changed.
#[derive(Debug)]
struct Touched {
    slots: Buffer<u32>,
    counters: Buffer<u32>,
    /// Whether tracking began.
    tracks: bool,
}

impl DynamicTable {
    /// Creates a table without ids.
    pub(super) fn new(
        device: &Arc<Device>,
        (number, name): (usize, String),
        rows: DynamicRows,
        first_shard: usize,
        tracks: bool,
    ) -> Result<Self> {
        let (shards, slots) = (rows.shards() as usize, rows.shard_rows() as usize);
        let (bits, all) = (shards * rows.shard_words(), shards * slots);
        let touched = || {
            let (slots, counters) = (Buffer::filled(device, bits, 0)?, Buffer::filled(device, shards, 0)?);
            Ok::<_, rankine_cuda::Error>(Touched { slots, counters, tracks: false })
        };
        Ok(Self {
            number,
            name,
            rows,
            first_shard,
            keys: Buffer::filled(device, all, 0)?,
            scores: Buffer::filled(device, all, 0)?,
            occupancy: Buffer::filled(device, bits, 0)?,
            places: Buffer::filled(device, shards * places(slots), 0)?,
            counters: Buffer::filled(device, shards * rows.sketch_bytes() as usize, 0)?,
            added: Buffer::filled(device, shards, 0)?,
            occupied: Buffer::filled(device, shards, 0)?,
            vacated: Buffer::filled(device, shards, 0)?,
            floors: Buffer::filled(device, shards, 0)?,
            current: Buffer::filled(device, if rows.evict == Rule::Lfu { bits } else { 0 }, 0)?,
            touched: tracks.then(touched).transpose()?,
            counts: Buffer::filled(device, 3, 0)?,
        })
    }

    /// Returns the table in the kernels' form.
    pub(super) fn members(&self) -> Members {
        let slots = self.rows.shard_rows();
        let pointers =
            self.touched.as_ref().map(|touched| (touched.slots.pointer(), touched.counters.pointer()));
        let (touched, touched_counters) = pointers.unwrap_or((Pointer::NULL, Pointer::NULL));
        Members {
            keys: self.keys.pointer(),
            scores: self.scores.pointer(),
            occupancy: self.occupancy.pointer(),
            places: self.places.pointer(),
            counters: self.counters.pointer(),
            added: self.added.pointer(),
            occupied: self.occupied.pointer(),
            vacated: self.vacated.pointer(),
            floors: self.floors.pointer(),
            current: self.current.pointer(),
            touched,
            touched_counters,
            counts: self.counts.pointer(),
            ttl_steps: if let Rule::Ttl { steps } = self.rows.evict { steps } else { 0 },
            first_shard: self.first_shard as u32,
            shards: self.rows.shards() as u32,
            slots: slots as u32,
            places_count: places(slots as usize) as u32,
            width: self.rows.sketch_width() as u32,
            admit_after: self.rows.admit_after.into(),
            eviction: Eviction::from(self.rows.evict) as u32,
            fails: u32::from(self.rows.evict == Rule::None { if_full: IfFull::Fail }),
        }
    }

    /// Enqueues forgetting which slots the batch before has looked up.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    pub(super) unsafe fn begin_batch(&self, lane: &Lane) -> Result<()> {
        if !self.current.is_empty() {
            // SAFETY: the words are this value's.
            unsafe { lane.fill(self.current.pointer(), 0, self.current.len()) }?;
        }
        Ok(())
    }

    fn counts(&self, lane: &Lane) -> Result<MembershipCounts> {
        let counts = self.counts.read(lane)?;
        Ok(MembershipCounts { admitted: counts[0], evicted: counts[1], unadmitted_lookups: counts[2] })
    }

    /// Returns how full the table is.
    pub(super) fn state(&self, lane: &Lane) -> Result<DynamicTableState> {
        Ok(DynamicTableState {
            table: self.name.clone(),
            rows: self.occupied.read(lane)?.into_iter().map(u64::from).sum(),
            capacity: self.rows.table_rows() - 1,
            counts: self.counts(lane)?,
        })
    }

    /// Copies the membership.
    pub(super) fn read(&self, lane: &Lane, step: u64) -> Result<Membership> {
        let touched = self.touched.as_ref().filter(|touched| touched.tracks);
        let touched = touched.map(|touched| {
            let (slots, counters) = (touched.slots.read(lane)?, touched.counters.read(lane)?);
            Ok::<_, rankine_cuda::Error>(TouchedArrays { slots, counters })
        });
        let arrays = MembershipArrays {
            keys: self.keys.read(lane)?,
            scores: self.scores.read(lane)?,
            occupancy: self.occupancy.read(lane)?,
            added: self.added.read(lane)?,
            counters: self.counters.read(lane)?,
            touched: touched.transpose()?,
            counts: self.counts(lane)?,
        };
        Ok(Membership::from_arrays(self.rows, step, &arrays))
    }

    /// Replaces the membership, but not the index.
    pub(super) fn write(&mut self, lane: &Lane, membership: &Membership) -> Result<()> {
        assert_eq!(&self.rows, membership.rows(), "the table has as many rows");
        let arrays = membership.to_arrays();
        self.keys.write(lane, &arrays.keys)?;
        self.scores.write(lane, &arrays.scores)?;
        self.occupancy.write(lane, &arrays.occupancy)?;
        self.added.write(lane, &arrays.added)?;
        self.counters.write(lane, &arrays.counters)?;
        Ok(self.counts.write(lane, &[0; 3])?)
    }

    /// Records from now on what is changed.
    pub(super) fn begin_tracking(&mut self, lane: &Lane) -> Result<()> {
        let touched = self.touched.as_mut().expect("changes are recorded");
        touched.tracks = true;
        let words = [&touched.slots, &touched.counters];
        // SAFETY: the words are this value's.
        words.into_iter().try_for_each(|words| unsafe { lane.fill(words.pointer(), 0, words.len()) })?;
        Ok(lane.synchronize()?)
    }
}

/// Returns the places of the index of a shard: a third is free, so that probes are short.
fn places(slots: usize) -> usize {
    slots + slots / 2 + 1
}
