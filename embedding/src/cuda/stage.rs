//! The way of rows to the host's memory: through page-locked memory, piece by piece.
//!
//! A GPU copies to page-locked memory several times as fast as to other memory, and kernels write there. Locking as
//! much as a checkpoint takes would cost more than it saves; so two pieces are locked, of which the GPU fills one while
//! the host's threads empty the other.

use std::sync::{Arc, Mutex, PoisonError};

use rankine_cuda::kernels::Pack;
use rankine_cuda::{Buffer, Device, Lane, Moment, Pinned};
use rayon::prelude::*;

use super::blocks;
use super::error::Result;

/// Words of a piece: 32 MiB.
const PIECE_WORDS: usize = 8 << 20;
/// Rows of a piece that are chosen, at most: 2 MiB of their positions.
const PIECE_ROWS: usize = 1 << 19;
/// Words, and positions, that one thread copies.
const COPY_WORDS: usize = 1 << 18;

/// Memory of the host that is locked when it is needed first, and then kept: 68 MiB.
#[derive(Debug, Default)]
pub(super) struct Stage(Mutex<Option<[Half; 2]>>);

/// One of the two pieces.
#[derive(Debug)]
struct Half {
    words: Pinned<f32>,
    positions: Pinned<u32>,
    /// When it is filled.
    filled: Moment,
}

/// Rows of one table, as they lie behind each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lying<'a> {
    pub(super) table: &'a Buffer<f32>,
    /// The word that the first one begins with.
    pub(super) first: usize,
    /// How many there are.
    pub(super) rows: usize,
    /// From one to the next.
    pub(super) row_words: usize,
}

impl Half {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let (words, positions) = (Pinned::zeroed(device, PIECE_WORDS)?, Pinned::zeroed(device, PIECE_ROWS)?);
        Ok(Self { words, positions, filled: Moment::new(device)? })
    }
}

impl Stage {
    /// Copies words of a table, once the lane has done all that was enqueued on it.
    ///
    /// # Panics
    /// Where the table has not as many from the first on.
    pub(super) fn copy(
        &self,
        lane: &Lane,
        (table, first): (&Buffer<f32>, usize),
        to: &mut [f32],
    ) -> Result<()> {
        assert!(first + to.len() <= table.len(), "words {first} to {} of {}", first + to.len(), table.len());
        self.by_pieces(lane, PIECE_WORDS, to, |half, number, words| {
            let from = table.pointer().element(first + number * PIECE_WORDS);
            // SAFETY: the words are the table's, and nobody uses the memory until they are there.
            Ok(unsafe { lane.download(from, &mut half.words, words) }?)
        })
    }

    /// Copies rows at some positions, one behind the other, once the lane has done all that was enqueued on it.
    ///
    /// # Panics
    /// Where there is no such position, or `to` has room for more or fewer rows.
    pub(super) fn copy_listed(
        &self,
        lane: &Lane,
        from: Lying<'_>,
        positions: &[u64],
        to: &mut [f32],
    ) -> Result<()> {
        let Lying { table, first, rows, row_words } = from;
        assert_eq!(to.len(), positions.len() * row_words, "room for the rows");
        assert!(first + rows * row_words <= table.len(), "the table has the rows");
        let at_once = (PIECE_WORDS / row_words).clamp(1, PIECE_ROWS);
        let mut pieces = positions.chunks(at_once);
        self.by_pieces(lane, at_once * row_words, to, |half, _, _| {
            let piece = pieces.next().unwrap_or_default();
            let to = half.positions.elements_mut()[..piece.len()].par_chunks_mut(COPY_WORDS);
            to.zip(piece.par_chunks(COPY_WORDS)).for_each(|(to, from)| {
                for (to, &from) in to.iter_mut().zip(from) {
                    assert!(from < rows as u64, "position {from} of {rows}");
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
            // until they are there. Rows and their beginnings are whole vectors, as the layout makes them.
            Ok(unsafe { lane.launch(&pack, (blocks(lane.device()), 1)) }?)
        })
    }

    /// Fills `to` piece by piece: `enqueue` is given a half, a piece's number and how many words it has, and enqueues
    /// on the lane what fills the half with them.
    fn by_pieces(
        &self,
        lane: &Lane,
        piece_words: usize,
        to: &mut [f32],
        mut enqueue: impl FnMut(&mut Half, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = match &mut *locked {
            Some(halves) => halves,
            none => none.insert([Half::new(lane.device())?, Half::new(lane.device())?]),
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
