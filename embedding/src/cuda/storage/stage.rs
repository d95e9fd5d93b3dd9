//! Copies rows to host memory through page-locked memory, piece by piece.
//!
//! A GPU copies to page-locked memory several times as fast as to other memory, and kernels can write there. Locking
//! as much memory as a checkpoint takes would cost more than it saves; so two pieces are locked, of which the GPU
//! fills one while the host's threads empty the other.

use std::sync::{Arc, Mutex, PoisonError};

use rankine_cuda::kernels::Pack;
use rankine_cuda::{Buffer, Device, Lane, Moment, PinnedBuffer, Pointer};
use rayon::prelude::*;

use crate::cuda::blocks;
use crate::cuda::error::Result;

/// Words per piece: 32 MiB.
pub(crate) const PIECE_WORDS: usize = 8 << 20;
/// The most selected rows per piece: 2 MiB of positions.
const PIECE_ROWS: usize = 1 << 19;
/// Words, or positions, that one thread copies.
const COPY_WORDS: usize = 1 << 18;

/// Host memory that is page-locked at first use, and then kept: 68 MiB.
#[derive(Debug, Default)]
pub(crate) struct StagingMemory(Mutex<Option<[StagingPiece; 2]>>);

/// One of the two pieces.
#[derive(Debug)]
struct StagingPiece {
    words: PinnedBuffer<f32>,
    positions: PinnedBuffer<u32>,
    /// The moment when it is filled.
    filled: Moment,
}

/// Consecutive rows of one table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableRows<'a> {
    pub(crate) table: &'a Buffer<f32>,
    /// The first word of the first row.
    pub(crate) first: usize,
    /// The number of rows.
    pub(crate) rows: usize,
    /// Words from one row to the next.
    pub(crate) row_words: usize,
}

impl TableRows<'_> {
    pub(crate) fn words(&self) -> usize {
        self.rows * self.row_words
    }

    /// Where the rows begin in the GPU's memory.
    ///
    /// # Panics
    /// If the table has fewer rows.
    fn begin(&self) -> Pointer<f32> {
        let (first, end) = (self.first, self.first + self.words());
        assert!(end <= self.table.len(), "words {first} to {end} of {}", self.table.len());
        self.table.pointer().element(first)
    }
}

impl StagingPiece {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let (words, positions) =
            (PinnedBuffer::zeroed(device, PIECE_WORDS)?, PinnedBuffer::zeroed(device, PIECE_ROWS)?);
        Ok(Self { words, positions, filled: Moment::new(device)? })
    }
}

impl StagingMemory {
    /// Copies rows one after another, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the table has fewer rows, or `to` has another length.
    pub(crate) fn copy(&self, lane: &Lane, from: TableRows<'_>, to: &mut [f32]) -> Result<()> {
        assert_eq!(to.len(), from.words(), "room for the rows");
        self.visit(lane, from, &mut |number, words| {
            copy(words, &mut to[number * from.row_words..][..words.len()]);
        })
    }

    /// Passes rows to `visit`, once the lane has finished all enqueued work: some at a time, with the number of the
    /// first of them. Meanwhile the next ones are copied.
    ///
    /// # Panics
    /// If the table has fewer rows.
    pub(crate) fn visit(
        &self,
        lane: &Lane,
        from: TableRows<'_>,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (begin, words, row_words) = (from.begin(), from.words(), from.row_words);
        let at_once = (PIECE_WORDS / row_words).max(1);
        let download = |half: &mut StagingPiece, number: usize, words: usize| {
            let from = begin.element(number * at_once * row_words);
            // SAFETY: the words belong to the table, and nobody uses the memory until they have arrived.
            Ok(unsafe { lane.download(from, &mut half.words, words) }?)
        };
        self.by_pieces(lane, (words, at_once * row_words), download, |number, words| {
            visit(number * at_once, words);
        })
    }

    /// Copies rows at some positions, one after another, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If there is no such position, or `to` has another length.
    pub(crate) fn copy_listed(
        &self,
        lane: &Lane,
        from: TableRows<'_>,
        positions: &[u64],
        to: &mut [f32],
    ) -> Result<()> {
        let TableRows { rows, row_words, .. } = from;
        assert_eq!(to.len(), positions.len() * row_words, "room for the rows");
        let begin = from.begin();
        let at_once = (PIECE_WORDS / row_words).clamp(1, PIECE_ROWS);
        let mut pieces = positions.chunks(at_once);
        let pack = |half: &mut StagingPiece, _: usize, _: usize| {
            let piece = pieces.next().unwrap_or_default();
            let to = half.positions.elements_mut()[..piece.len()].par_chunks_mut(COPY_WORDS);
            to.zip(piece.par_chunks(COPY_WORDS)).for_each(|(to, from)| {
                for (to, &from) in to.iter_mut().zip(from) {
                    assert!(from < rows as u64, "position {from} of {rows} rows");
                    *to = from as u32;
                }
            });
            let pack = Pack {
                rows: begin,
                positions: half.positions.device_pointer()?,
                packed: half.words.device_pointer()?,
                count: piece.len() as u32,
                row_vectors: (row_words / Pack::VECTOR) as u32,
            };
            // SAFETY: the table has rows at all of the positions, the half has room for as many, and nobody uses it
            // until they have arrived. The layout aligns rows to whole vectors.
            Ok(unsafe { lane.launch(&pack, (blocks(lane.device()), 1)) }?)
        };
        let piece_words = at_once * row_words;
        self.by_pieces(lane, (to.len(), piece_words), pack, |number, words| {
            copy(words, &mut to[number * piece_words..][..words.len()]);
        })
    }

    /// Calls `edit` to change rows, once the lane has finished all enqueued work; if it sets `whole` rows, they are not
    /// copied to the host before.
    ///
    /// # Panics
    /// If they have more than [`PIECE_WORDS`], or the table has fewer rows.
    pub(crate) fn edit(
        &self,
        lane: &Lane,
        rows: TableRows<'_>,
        whole: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<()> {
        let (begin, words) = (rows.begin(), rows.words());
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [half, _] = self.halves(lane, &mut locked)?;
        lane.synchronize()?;
        if !whole {
            // SAFETY: the words belong to the table, and nobody uses the memory until they have arrived.
            unsafe { lane.download(begin, &mut half.words, words) }?;
            lane.synchronize()?;
        }
        let words = &mut half.words.elements_mut()[..words];
        edit(words);
        // SAFETY: the words belong to the table, and the memory is not changed before the lane has been waited for.
        unsafe { lane.upload_bytes(bytemuck::cast_slice(words), begin.cast()) }?;
        Ok(lane.synchronize()?)
    }

    /// Returns the two pieces.
    fn halves<'a>(
        &self,
        lane: &Lane,
        locked: &'a mut Option<[StagingPiece; 2]>,
    ) -> Result<&'a mut [StagingPiece; 2]> {
        match locked {
            Some(halves) => Ok(halves),
            none => Ok(none.insert([StagingPiece::new(lane.device())?, StagingPiece::new(lane.device())?])),
        }
    }

    /// Passes words to `take` piece by piece, with each piece's number. `enqueue` gets a half, a piece's number and its
    /// number of words, and enqueues on the lane the copy that fills the half.
    fn by_pieces(
        &self,
        lane: &Lane,
        (all_words, piece_words): (usize, usize),
        mut enqueue: impl FnMut(&mut StagingPiece, usize, usize) -> Result<()>,
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = self.halves(lane, &mut locked)?;
        lane.synchronize()?;
        let mut pieces = (0..all_words).step_by(piece_words).enumerate();
        let mut filled: Option<(usize, usize)> = None;
        loop {
            let next = pieces.next().map(|(number, first)| (number, piece_words.min(all_words - first)));
            if let Some((number, words)) = next {
                let half = &mut halves[number % 2];
                enqueue(half, number, words)?;
                lane.record(&half.filled)?;
            }
            if let Some((number, words)) = filled.take() {
                let half = &halves[number % 2];
                half.filled.synchronize()?;
                take(number, &half.words.elements()[..words]);
            }
            match next {
                Some(next) => filled = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// Copies with all threads.
fn copy(words: &[f32], to: &mut [f32]) {
    let copies = to.par_chunks_mut(COPY_WORDS).zip(words.par_chunks(COPY_WORDS));
    copies.for_each(|(to, from)| to.copy_from_slice(from));
}
