//! A rank's rows in a GPU's memory, as they are read and set from outside of training.

use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::kernels::Mark;
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::blocks;
use super::error::Result;
use super::layout::Layout;
use super::parts::{Held, Part};
use super::stage::{Lying, Stage};
use crate::placement::Owner;
use crate::rows::{RowLayout, RowPart, RowSet, Rows, RowsError, RowsMut, Touched};

/// Rows that come to the host at a time where all ranks have them.
const SHARED_ROWS: usize = 1 << 14;
/// Words that are worth the way through page-locked memory.
const STAGED_WORDS: usize = 1 << 20;
/// Words between two rows that are rather moved along than left out.
const GAP_WORDS: usize = 1 << 16;

/// What a rank has of all tables. Its operations wait for the lane, which must be that of all that changes rows.
#[derive(Debug)]
pub struct DeviceRows<'a> {
    parts: Vec<RowPart>,
    /// Of each part where it lies.
    places: Vec<Place<'a>>,
    /// The parts that all ranks have.
    everywhere: Vec<usize>,
    lane: &'a Lane,
    stage: &'a Stage,
}

/// Memory with rows, and a bit for each where book is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Store<'a> {
    pub(super) table: &'a Buffer<f32>,
    pub(super) touched: Option<&'a Buffer<u32>>,
}

/// Where a part lies.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    store: Store<'a>,
    /// The word that its first row begins with.
    words: usize,
    /// That row's number among all of the store.
    base: usize,
}

/// Keeps book of the rows that are updated, where that is wanted.
pub(super) fn mark(
    touched: Option<&Buffer<u32>>,
    lane: &Lane,
    (rows, count): (Pointer<u32>, Pointer<u32>),
    stop: Pointer<u32>,
) -> Result<()> {
    let Some(bits) = touched else { return Ok(()) };
    let mark = Mark { rows, count, stop, bits: bits.pointer() };
    // SAFETY: the rows are numbers of the layout's, for each of which there is a bit; they live as what updates them.
    unsafe { lane.launch(&mark, (blocks(lane.device()), 1)) }?;
    Ok(())
}

/// A bit for each number of a layout's rows.
pub(super) fn bits(device: &Arc<Device>, layout: &Layout) -> Result<Buffer<u32>> {
    let _tables = device.purpose("tables");
    Ok(Buffer::filled(device, layout.row_numbers().div_ceil(32), 0)?)
}

impl<'a> DeviceRows<'a> {
    /// None.
    pub(super) fn new(lane: &'a Lane, stage: &'a Stage) -> Self {
        let (parts, places, everywhere) = Default::default();
        Self { parts, places, everywhere, lane, stage }
    }

    /// With the parts of a layout that a rank has.
    pub(super) fn with_parts(mut self, layout: &Layout, rank: usize, store: Store<'a>) -> Self {
        let words = layout.words(rank);
        for (number, part) in layout.parts.iter().enumerate() {
            let place = Place { store, words: words[number] as usize, base: layout.bases[number] as usize };
            self.push(layout, (part, layout.row_layout(number)), rank, place);
        }
        self
    }

    /// With the pooled parts of a layout: the rank's rows of each are a table of what it receives.
    pub(super) fn with_pooled(
        mut self,
        layout: &Layout,
        rank: usize,
        (received, store): (&Layout, Store<'a>),
    ) -> Self {
        let words = received.words(0);
        for (number, part) in layout.pooled.iter().enumerate() {
            let place = Place { store, words: words[number] as usize, base: received.bases[number] as usize };
            self.push(layout, (part, received.row_layout(number)), rank, place);
        }
        self
    }

    fn push(&mut self, layout: &Layout, (part, row): (&Part, RowLayout), rank: usize, place: Place<'a>) {
        if let Some(own) = row_part(layout, (part, row), rank) {
            self.everywhere.extend(part.is_everywhere().then_some(self.parts.len()));
            self.parts.push(own);
            self.places.push(place);
        }
    }

    /// Tells the words of the rows that every rank has: they are the same at all ranks.
    ///
    /// # Errors
    /// Where the lane's work failed.
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

    /// The words of some rows: where they begin, and how many they are.
    fn words(&self, part: usize, positions: &Range<u64>) -> (usize, usize) {
        let words = self.parts[part].layout.words;
        let count = (positions.end - positions.start) as usize;
        (self.places[part].words + positions.start as usize * words, count * words)
    }
}

/// What a rank has of a part of the tables, if anything.
fn row_part(layout: &Layout, (part, row): (&Part, RowLayout), rank: usize) -> Option<RowPart> {
    let count = layout.part_rows(rank, part);
    let rows = match &part.held {
        Held::Owned(Owner::EveryRank) => {
            RowSet::Every { first: rank as u64, step: layout.ranks() as u64, count }
        }
        Held::Owned(Owner::Rank(_)) => RowSet::all(count),
        Held::Everywhere(frequent) => frequent.set(),
    };
    // Of what all have, each speaks for a share.
    let own = match &part.held {
        Held::Owned(_) => 0..count,
        Held::Everywhere(_) => {
            let share = layout.topology().share(count as usize, rank);
            share.start as u64..share.end as u64
        }
    };
    (count > 0).then(|| RowPart { table: part.table, columns: part.columns.clone(), rows, own, layout: row })
}

impl Layout {
    /// How the rows of a part lie in memory.
    fn row_layout(&self, part: usize) -> RowLayout {
        let Part { table, columns, .. } = &self.parts[part];
        let weights = (columns.len(), self.tables[*table].dtype);
        let places = (self.weight_words(part), self.filled_dim(part));
        RowLayout::new(self.row_words(part), weights, self.optimizers[*table].rule, places)
    }
}

fn unreachable(error: impl std::fmt::Display) -> RowsError {
    RowsError(error.to_string())
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
        scratch.resize(self.words(part, &positions).1, 0.0);
        self.copy(part, positions, scratch)?;
        Ok(scratch)
    }

    fn copy(&self, part: usize, positions: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        let (first, len) = self.words(part, &positions);
        assert_eq!(to.len(), len, "room for the rows");
        let table = self.places[part].store.table;
        if len > STAGED_WORDS {
            return self.stage.copy(self.lane, (table, first), to).map_err(unreachable);
        }
        table.read_into(self.lane, first, to).map_err(unreachable)
    }

    fn copy_listed(&self, part: usize, positions: &[u64], to: &mut [f32]) -> Result<(), RowsError> {
        let RowPart { rows, layout, .. } = &self.parts[part];
        let Place { store, words, .. } = self.places[part];
        let from =
            Lying { table: store.table, first: words, rows: rows.len() as usize, row_words: layout.words };
        self.stage.copy_listed(self.lane, from, positions, to).map_err(unreachable)
    }

    fn touched(&self, part: usize) -> Result<Option<Touched>, RowsError> {
        let Place { store, base, .. } = self.places[part];
        let Some(bits) = store.touched else { return Ok(None) };
        let rows = self.parts[part].rows.len();
        let words = bits.read_part(self.lane, base / 32, (base % 32 + rows as usize).div_ceil(32));
        let words = words.map_err(unreachable)?;
        let shift = base % 32;
        let word = |at: usize| {
            let above = words.get(at + 1).copied().unwrap_or(0);
            (u64::from(words[at]) | u64::from(above) << 32) >> shift
        };
        let mut own: Vec<u32> = (0..Touched::words(rows)).map(|at| word(at) as u32).collect();
        // The last word has rows of the next part, too.
        if let (Some(last), 1..) = (own.last_mut(), rows % 32) {
            *last &= (1 << (rows % 32)) - 1;
        }
        Ok(Some(Touched::of(own)))
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
        let (first, len) = self.words(part, &positions);
        let mut words = vec![0.0; len];
        let table = self.places[part].store.table;
        if !whole {
            table.read_into(self.lane, first, &mut words).map_err(unreachable)?;
        }
        edit(&mut words);
        table.write_part(self.lane, first, &words).map_err(unreachable)
    }

    fn gap_words(&self) -> usize {
        GAP_WORDS
    }

    fn begin_tracking(&mut self) -> Result<(), RowsError> {
        for Place { store, .. } in &self.places {
            let Some(bits) = store.touched else {
                return Err(RowsError("the tables keep no book of the rows that are updated".into()));
            };
            // SAFETY: the words are this buffer's, and the lane is that of all that marks rows.
            unsafe { self.lane.fill(bits.pointer(), 0, bits.len()) }.map_err(unreachable)?;
        }
        Ok(())
    }
}
