//! Copies rows to host memory through page-locked memory, piece by piece.
//!
//! A GPU copies to page-locked memory several times as fast as to other memory, and kernels can write there. Locking
//! as much memory as a checkpoint takes would cost more than it saves; so two pieces are locked, of which the GPU
//! fills one while the host's threads empty the other.

use std::sync::{Arc, Mutex, PoisonError};

use rankine_cuda::kernels::Pack;
use rankine_cuda::{Buffer, Device, Lane, Moment, PinnedBuffer};
use rayon::prelude::*;

use crate::cuda::blocks;
use crate::cuda::error::Result;

/// Words per piece: 32 MiB.
const PIECE_WORDS: usize = 8 << 20;
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

impl StagingPiece {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let (words, positions) =
            (PinnedBuffer::zeroed(device, PIECE_WORDS)?, PinnedBuffer::zeroed(device, PIECE_ROWS)?);
        Ok(Self { words, positions, filled: Moment::new(device)? })
    }
}

impl StagingMemory {
    /// Copies words of a table, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the table has fewer words after the first.
    pub(crate) fn copy(
        &self,
        lane: &Lane,
        (table, first): (&Buffer<f32>, usize),
        to: &mut [f32],
    ) -> Result<()> {
        assert!(first + to.len() <= table.len(), "words {first} to {} of {}", first + to.len(), table.len());
        self.by_pieces(lane, PIECE_WORDS, to, |half, number, words| {
            let from = table.pointer().element(first + number * PIECE_WORDS);
            // SAFETY: the words belong to the table, and nobody uses the memory until they have arrived.
            Ok(unsafe { lane.download(from, &mut half.words, words) }?)
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
        let TableRows { table, first, rows, row_words } = from;
        assert_eq!(to.len(), positions.len() * row_words, "room for the rows");
        assert!(first + rows * row_words <= table.len(), "the table has the rows");
        let at_once = (PIECE_WORDS / row_words).clamp(1, PIECE_ROWS);
        let mut pieces = positions.chunks(at_once);
        self.by_pieces(lane, at_once * row_words, to, |half, _, _| {
            let piece = pieces.next().unwrap_or_default();
            let to = half.positions.elements_mut()[..piece.len()].par_chunks_mut(COPY_WORDS);
            to.zip(piece.par_chunks(COPY_WORDS)).for_each(|(to, from)| {
                for (to, &from) in to.iter_mut().zip(from) {
                    assert!(from < rows as u64, "position {from} of {rows} rows");
                    *to = from as u32;
                }
            });
            let pack = Pack {
                rows: table.pointer().element(first),
                positions: half.positions.device_pointer()?,
                packed: half.words.device_pointer()?,
                count: piece.len() as u32,
                row_vectors: (row_words / Pack::VECTOR) as u32,
            };
            // SAFETY: the table has rows at all of the positions, the half has room for as many, and nobody uses it
            // until they have arrived. The layout aligns rows to whole vectors.
            Ok(unsafe { lane.launch(&pack, (blocks(lane.device()), 1)) }?)
        })
    }

    /// Fills `to` piece by piece: `enqueue` gets a half, a piece's number and its number of words, and enqueues on
    /// the lane the copy that fills the half.
    fn by_pieces(
        &self,
        lane: &Lane,
        piece_words: usize,
        to: &mut [f32],
        mut enqueue: impl FnMut(&mut StagingPiece, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = match &mut *locked {
            Some(halves) => halves,
            none => none.insert([StagingPiece::new(lane.device())?, StagingPiece::new(lane.device())?]),
        };
        lane.synchronize()?;
        let mut pieces = to.chunks_mut(piece_words).enumerate();
        let mut filled: Option<(usize, &mut [f32])> = None;
        loop {
            let next = pieces.next();
            if let Some((number, piece)) = &next {
                let half = &mut halves[number % 2];
                enqueue(half, *number, piece.len())?;
                lane.record(&half.filled)?;
            }
            if let Some((number, piece)) = filled.take() {
                let half = &halves[number % 2];
                half.filled.synchronize()?;
                let words = &half.words.elements()[..piece.len()];
                let copies = piece.par_chunks_mut(COPY_WORDS).zip(words.par_chunks(COPY_WORDS));
                copies.for_each(|(to, from)| to.copy_from_slice(from));
            }
            match next {
                Some(next) => filled = Some(next),
                None => return Ok(()),
            }
        }
    }
}
