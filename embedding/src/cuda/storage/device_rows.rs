//! A rank's rows in a GPU's memory, for reading and writing outside of training. Of tables with rows in host memory, it
//! has those, too.

use std::ops::Range;

use rankine_cuda::Lane;
use rankine_topology::Rank;

use crate::cuda::layout::Layout;
use crate::cuda::layout::parts::{Holder, Part};
use crate::cuda::storage::RowStore;
use crate::cuda::storage::stage::{PIECE_WORDS, StagingMemory, TableRows};
use crate::cuda::tier::{DeviceTier, DividedPart};
use crate::placement::Owner;
use crate::rows::{RowLayout, RowPart, RowSet, Rows, RowsError, RowsMut, TouchedRows};

/// Rows that are copied to the host at a time, for rows that all ranks have.
const SHARED_ROWS: usize = 1 << 14;
/// From this many words on, copies go through page-locked memory.
const STAGED_WORDS: usize = 1 << 20;
/// Gaps of up to this many words between two rows are copied along rather than skipped.
const GAP_WORDS: usize = 1 << 16;

/// All rows of a rank. Operations wait for the lane, which must be the one on which rows are changed.
#[derive(Debug)]
pub struct DeviceRows<'a> {
    parts: Vec<RowPart>,
    /// Per part, its location.
    locations: Vec<PartLocation<'a>>,
    /// The parts that all ranks have.
    everywhere: Vec<usize>,
    lane: &'a Lane,
    stage: &'a StagingMemory,
}

/// The location of a part.
#[derive(Debug, Clone, Copy)]
struct PartLocation<'a> {
    store: &'a RowStore,
    /// The first word of its first row.
    words: usize,
    /// The number of the part's first row among the rows that are marked when they are updated.
    base: usize,
    /// If the store has only the hot rows of the part: what has the others.
    host: Option<&'a DividedPart>,
}

impl<'a> DeviceRows<'a> {
    /// Creates it without parts.
    pub(crate) fn new(lane: &'a Lane, stage: &'a StagingMemory) -> Self {
        let (parts, locations, everywhere) = Default::default();
        Self { parts, locations, everywhere, lane, stage }
    }

    /// Adds the parts of a layout that a rank has, all of whose rows are in the store or in the tier's host memory.
    pub(crate) fn with_parts(
        mut self,
        layout: &Layout,
        rank: Rank,
        store: &'a RowStore,
        tier: Option<&'a DeviceTier>,
    ) -> Self {
        let words = layout.words(rank);
        for (number, part) in layout.parts.iter().enumerate() {
            let words = tier.map_or(words[number] as usize, |tier| tier.part_words(number));
            let host = tier.and_then(|tier| tier.divided(number));
            let location = PartLocation { store, words, base: layout.bases[number] as usize, host };
            self.push(layout, (part, layout.row_layout(number)), rank, location);
        }
        self
    }

    /// Adds the pooled parts of a layout: the rank's rows of each are a table in its layout of received bags.
    pub(crate) fn with_pooled(
        mut self,
        layout: &Layout,
        rank: Rank,
        received: &Layout,
        store: &'a RowStore,
    ) -> Self {
        let words = received.words(Rank(0));
        for (number, part) in layout.pooled.iter().enumerate() {
            let location = PartLocation {
                store,
                words: words[number] as usize,
                base: received.bases[number] as usize,
                host: None,
            };
            self.push(layout, (part, received.row_layout(number)), rank, location);
        }
        self
    }

    fn push(
        &mut self,
        layout: &Layout,
        (part, row): (&Part, RowLayout),
        rank: Rank,
        location: PartLocation<'a>,
    ) {
        if let Some(own) = row_part(layout, (part, row), rank) {
            self.everywhere.extend(part.is_everywhere().then_some(self.parts.len()));
            self.parts.push(own);
            self.locations.push(location);
        }
    }

    /// Passes the words of the rows that every rank stores to `tell`: they are the same at all ranks.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn for_each_shared_row(&self, mut tell: impl FnMut(&[f32])) -> Result<(), RowsError> {
        let mut words = Vec::new();
        for &number in &self.everywhere {
            let part = &self.parts[number];
            for first in (0..part.rows.len()).step_by(SHARED_ROWS) {
                let last = part.rows.len().min(first + SHARED_ROWS as u64);
                self.read(number, first..last, &mut words)?
                    .chunks_exact(part.layout.words)
                    .for_each(&mut tell);
            }
        }
        Ok(())
    }

    /// Copies rows that the store has, one after another.
    fn copy_stored(&self, part: usize, positions: &Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        let rows = self.rows(part, positions);
        assert_eq!(to.len(), rows.words(), "room for the rows");
        if rows.words() == 0 {
            return Ok(());
        }
        if rows.words() > STAGED_WORDS {
            return self.stage.copy(self.lane, rows, to).map_err(unreachable);
        }
        rows.table.read_into(self.lane, rows.first, to).map_err(unreachable)
    }

    /// The same for rows at listed positions.
    fn copy_stored_list(&self, part: usize, positions: &[u64], to: &mut [f32]) -> Result<(), RowsError> {
        let location = self.locations[part];
        let rows = location.host.map_or(self.parts[part].rows.len(), DividedPart::hot_rows);
        let rows = self.rows(part, &(0..rows));
        self.stage.copy_listed(self.lane, rows, positions, to).map_err(unreachable)
    }

    /// Calls `edit` to change rows that the store has.
    fn edit_stored(
        &self,
        part: usize,
        positions: &Range<u64>,
        whole: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), RowsError> {
        let rows = self.rows(part, positions);
        if rows.words() == 0 {
            return Ok(());
        }
        if (STAGED_WORDS..=PIECE_WORDS).contains(&rows.words()) {
            return self.stage.edit(self.lane, rows, whole, edit).map_err(unreachable);
        }
        let (table, first) = (rows.table, rows.first);
        let mut words = vec![0.0; rows.words()];
        if !whole {
            table.read_into(self.lane, first, &mut words).map_err(unreachable)?;
        }
        edit(&mut words);
        table.write_part(self.lane, first, &words).map_err(unreachable)
    }

    /// The place of some rows in the GPU's memory, by their positions in the store.
    fn rows(&self, part: usize, positions: &Range<u64>) -> TableRows<'a> {
        let PartLocation { store, words: begin, .. } = self.locations[part];
        let row_words = self.parts[part].layout.words;
        let first = begin + positions.start as usize * row_words;
        let rows = (positions.end - positions.start) as usize;
        TableRows { table: &store.table, first, rows, row_words }
    }
}

/// A rank's share of a part of the tables, if any.
fn row_part(layout: &Layout, (part, row): (&Part, RowLayout), rank: Rank) -> Option<RowPart> {
    let count = layout.part_rows(rank, part);
    let rows = match &part.holder {
        Holder::Owned(Owner::EveryRank) => {
            RowSet::Every { first: rank.0 as u64, step: layout.ranks() as u64, count }
        }
        Holder::Owned(Owner::Rank(_)) => RowSet::all(count),
        Holder::Everywhere(frequent) => frequent.set(),
    };
    // Of rows that all ranks have, each rank is responsible for a share.
    let own = match &part.holder {
        Holder::Owned(_) => 0..count,
        Holder::Everywhere(_) => {
            let share = layout.topology().share(count as usize, rank);
            share.start as u64..share.end as u64
        }
    };
    (count > 0).then(|| RowPart { table: part.table, columns: part.columns.clone(), rows, own, layout: row })
}

fn unreachable(error: impl std::error::Error + Send + Sync + 'static) -> RowsError {
    RowsError::Access(error.into())
}

impl Rows for DeviceRows<'_> {
    fn parts(&self) -> &[RowPart] {
        &self.parts
    }

    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        scratch.resize((positions.end - positions.start) as usize * self.parts[part].layout.words, 0.0);
        self.copy(part, positions, scratch)?;
        Ok(scratch)
    }

    fn copy(&self, part: usize, positions: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        let Some(host) = self.locations[part].host else { return self.copy_stored(part, &positions, to) };
        let hot = host.hot(&positions);
        let mut words = vec![0.0; (hot.end - hot.start) as usize * self.parts[part].layout.words];
        match host.hot_places(&hot) {
            None => self.copy_stored(part, &hot, &mut words)?,
            Some(places) => {
                let places: Vec<u64> = places.iter().map(|&place| place.into()).collect();
                self.copy_stored_list(part, &places, &mut words)?;
            }
        }
        host.join(positions, &words, to);
        Ok(())
    }

    fn visit(
        &self,
        part: usize,
        positions: Range<u64>,
        visit: &mut dyn FnMut(u64, &[f32]),
    ) -> Result<(), RowsError> {
        let row_words = self.parts[part].layout.words;
        let words = (positions.end - positions.start) as usize * row_words;
        let is_divided = self.locations[part].host.is_some();
        if words > STAGED_WORDS && !is_divided {
            let rows = self.rows(part, &positions);
            let mut tell = |number: usize, words: &[f32]| visit(positions.start + number as u64, words);
            return self.stage.visit(self.lane, rows, &mut tell).map_err(unreachable);
        }
        let (at_once, mut scratch) = ((PIECE_WORDS / row_words).max(1), Vec::new());
        for first in positions.clone().step_by(at_once) {
            let last = positions.end.min(first + at_once as u64);
            visit(first, self.read(part, first..last, &mut scratch)?);
        }
        Ok(())
    }

    fn copy_listed(&self, part: usize, positions: &[u64], to: &mut [f32]) -> Result<(), RowsError> {
        let Some(host) = self.locations[part].host else {
            return self.copy_stored_list(part, positions, to);
        };
        let row_words = self.parts[part].layout.words;
        let hot: Vec<u64> = positions.iter().filter_map(|&row| host.hot_place(row)).collect();
        let mut words = vec![0.0; hot.len() * row_words];
        self.copy_stored_list(part, &hot, &mut words)?;
        let mut stored = words.chunks_exact(row_words);
        for (&row, to) in positions.iter().zip(to.chunks_exact_mut(row_words)) {
            match host.hot_place(row).and_then(|_| stored.next()) {
                Some(stored) => to.copy_from_slice(stored),
                None => host.copy_cold(row, to),
            }
        }
        Ok(())
    }

    fn touched(&self, part: usize) -> Result<Option<TouchedRows>, RowsError> {
        let PartLocation { store, base, .. } = self.locations[part];
        let Some(bits) = &store.touched else { return Ok(None) };
        let rows = self.parts[part].rows.len();
        let words = bits.read_part(self.lane, base / 32, (base % 32 + rows as usize).div_ceil(32));
        let words = words.map_err(unreachable)?;
        let shift = base % 32;
        let word = |at: usize| {
            let above = words.get(at + 1).copied().unwrap_or(0);
            (u64::from(words[at]) | u64::from(above) << 32) >> shift
        };
        let mut own: Vec<u32> = (0..TouchedRows::words(rows)).map(|at| word(at) as u32).collect();
        // The last word also has bits of the next part.
        if let (Some(last), 1..) = (own.last_mut(), rows % 32) {
            *last &= (1 << (rows % 32)) - 1;
        }
        Ok(Some(TouchedRows::of(own)))
    }
}

impl RowsMut for DeviceRows<'_> {
    fn edit(
        &mut self,
        part: usize,
        positions: Range<u64>,
        whole: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), RowsError> {
        let Some(host) = self.locations[part].host else {
            return self.edit_stored(part, &positions, whole, edit);
        };
        let mut words = vec![0.0; (positions.end - positions.start) as usize * self.parts[part].layout.words];
        if !whole {
            self.copy(part, positions.clone(), &mut words)?;
        }
        edit(&mut words);
        let (hot, mut stored) = (host.hot(&positions), Vec::new());
        host.divide(positions, &words, &mut stored);
        let Some(places) = host.hot_places(&hot) else {
            return self.edit_stored(part, &hot, true, &mut |words| words.copy_from_slice(&stored));
        };
        let mut left = &stored[..];
        for run in places.chunk_by(|place, next| place + 1 == *next) {
            let first = u64::from(run[0]);
            let (own, behind) = left.split_at(run.len() * self.parts[part].layout.words);
            let run = first..first + run.len() as u64;
            self.edit_stored(part, &run, true, &mut |words| words.copy_from_slice(own))?;
            left = behind;
        }
        Ok(())
    }

    fn gap_words(&self) -> usize {
        GAP_WORDS
    }

    fn begin_tracking(&mut self) -> Result<(), RowsError> {
        for PartLocation { store, .. } in &self.locations {
            let Some(bits) = &store.touched else {
                return Err(RowsError::Untracked);
            };
            // SAFETY: the words are this buffer's, and the lane is that of all that marks rows.
            unsafe { self.lane.fill(bits.pointer(), 0, bits.len()) }.map_err(unreachable)?;
        }
        Ok(())
    }
}
