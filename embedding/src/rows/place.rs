//! Writes rows from any source to a rank's parts, and collects weights of rows from them.

use std::ops::Range;

use rayon::prelude::*;

use super::format::common;
use super::{RowPart, RowSet, Rows, RowsError, RowsMut};
use crate::dtype::Dtype;

/// The most words edited at a time, if rows are apart.
const WINDOW_WORDS: usize = 1 << 23;
/// Words of rows that one thread reads or sets at a time.
const SPREAD_WORDS: usize = 1 << 16;

/// Some columns of some rows of a table, with their state, as they were saved.
#[derive(Debug, Clone)]
pub struct RowPiece<'a> {
    /// The number of the table.
    pub table: usize,
    /// The columns.
    pub columns: Range<usize>,
    /// The rows.
    pub rows: RowSet,
    /// The type of the weights.
    pub dtype: Dtype,
    /// `[row][column]`
    pub weights: &'a [u8],
    /// Per kind of state `[row][column]`, or `[row]` if it is one number per row; empty if other columns' rows have
    /// it.
    pub state: Vec<&'a [f32]>,
}

impl RowPiece<'_> {
    /// Returns whether a part has any of these columns, or takes its state from them.
    fn concerns(&self, part: &RowPart) -> bool {
        let of_rows = part.layout.rowwise && !self.state.is_empty();
        part.table == self.table && (of_rows || !common(&part.columns, &self.columns).is_empty())
    }
}

/// Writes rows to the parts of a rank that has them, and skips the others. Returns how many elements of weights were
/// set.
///
/// # Errors
/// If rows cannot be accessed.
///
/// # Panics
/// If weights or state do not have the length that rows and columns require.
pub fn place(rows: &mut dyn RowsMut, piece: &RowPiece<'_>) -> Result<u64, RowsError> {
    let mut placed = 0;
    for number in 0..rows.parts().len() {
        if piece.concerns(&rows.parts()[number]) {
            placed += place_in(rows, number, piece)?;
        }
    }
    Ok(placed)
}

fn place_in(rows: &mut dyn RowsMut, number: usize, piece: &RowPiece<'_>) -> Result<u64, RowsError> {
    let part = rows.parts()[number].clone();
    let layout = part.layout;
    let columns = common(&part.columns, &piece.columns);
    // If every number of a row is set, its current contents are not needed.
    let whole = columns == part.columns && piece.state.len() == layout.state().len();
    let near = rows.gap_words() as u64 / layout.words as u64;
    let of_piece = piece.rows.iter().enumerate();
    let mut pairs = of_piece.filter_map(|(index, row)| Some((part.rows.position(row)?, index))).peekable();
    let mut placed = 0;
    let mut window = Vec::new();
    while let Some(&(first, _)) = pairs.peek() {
        window.clear();
        let mut end = first;
        while let Some(pair) = pairs.next_if(|&(position, _)| {
            position <= end + near
                && (position + 1 - first) as usize * layout.words <= WINDOW_WORDS.max(layout.words)
        }) {
            end = pair.0 + 1;
            window.push(pair);
        }
        let all = whole && window.len() as u64 == end - first;
        rows.edit(number, first..end, all, &mut |words| {
            set_rows((first, words), &part, &columns, piece, &window);
        })?;
        placed += (window.len() * columns.len()) as u64;
    }
    Ok(placed)
}

/// Sets rows of a part, of which `words` has those from position `first` on, from a piece: `pairs` has their positions,
/// which ascend, and their places in the piece. Several threads each set a run of them.
fn set_rows(
    (first, words): (u64, &mut [f32]),
    part: &RowPart,
    columns: &Range<usize>,
    piece: &RowPiece<'_>,
    pairs: &[(u64, usize)],
) {
    let row_words = part.layout.words;
    let (mut runs, mut rest, mut begin) = (Vec::new(), words, first);
    for pairs in pairs.chunks((SPREAD_WORDS / row_words).max(1)) {
        let end = pairs[pairs.len() - 1].0 + 1;
        let (run, behind) = rest.split_at_mut((end - begin) as usize * row_words);
        runs.push((begin, run, pairs));
        (rest, begin) = (behind, end);
    }
    runs.into_par_iter().for_each(|(first, words, pairs)| {
        for &(position, index) in pairs {
            let row = &mut words[(position - first) as usize * row_words..][..row_words];
            set_row(row, part, columns, piece, index);
        }
    });
}

fn set_row(row: &mut [f32], part: &RowPart, columns: &Range<usize>, piece: &RowPiece<'_>, index: usize) {
    let layout = &part.layout;
    // Where the common columns start, in the row here and in the saved one.
    let (here, there) = (columns.start - part.columns.start, columns.start - piece.columns.start);
    let width = piece.columns.len();
    if !columns.is_empty() {
        let size = piece.dtype.bytes();
        let weights = &piece.weights[(index * width + there) * size..][..columns.len() * size];
        layout.set_weights(row, here, piece.dtype, weights);
    }
    for (&begin, state) in layout.state().iter().zip(&piece.state) {
        if layout.rowwise {
            row[begin] = state[index];
        } else if !columns.is_empty() {
            let state = &state[index * width + there..][..columns.len()];
            row[begin + here..][..columns.len()].copy_from_slice(state);
        }
    }
}

/// Collects the weights of a range of a table's rows, as far as they are stored here, into `weights`, `[row][dim]`:
/// either from parts with listed rows, or from all others. With several ranks, collect the others from all ranks
/// first.
///
/// # Errors
/// If rows cannot be accessed.
///
/// # Panics
/// If `weights` has another length.
pub fn gather(
    rows: &dyn Rows,
    table: usize,
    range: Range<u64>,
    listed: bool,
    (dim, weights): (usize, &mut [f32]),
) -> Result<(), RowsError> {
    let chosen = |part: &RowPart| part.table == table && matches!(part.rows, RowSet::Listed(_)) == listed;
    for (number, part) in rows.parts().iter().enumerate().filter(|(_, part)| chosen(part)) {
        let positions = part.rows.before(range.start)..part.rows.before(range.end);
        rows.visit(number, positions, &mut |first, words| {
            spread(part, first, words, range.start, (dim, &mut *weights));
        })?;
    }
    Ok(())
}

/// Copies the weights of consecutive rows of a part, from position `first` on, to their rows of `weights`, which
/// starts with row `begin`. Several threads each take a run of rows.
fn spread(part: &RowPart, first: u64, words: &[f32], begin: u64, (dim, weights): (usize, &mut [f32])) {
    let row_words = part.layout.words;
    let at_once = (SPREAD_WORDS / row_words).max(1);
    // Rows ascend, so runs of them are in ranges of `weights` that do not overlap.
    let (mut runs, mut rest, mut begin) = (Vec::new(), weights, begin);
    for (number, words) in words.chunks(at_once * row_words).enumerate() {
        let position = first + (number * at_once) as u64;
        let end = part.rows.row(position + (words.len() / row_words) as u64 - 1) + 1;
        let (run, behind) = rest.split_at_mut((end - begin) as usize * dim);
        runs.push((position, words, begin, run));
        (rest, begin) = (behind, end);
    }
    runs.into_par_iter().for_each(|(first, words, begin, weights)| {
        for (position, words) in (first..).zip(words.chunks_exact(row_words)) {
            let row = (part.rows.row(position) - begin) as usize;
            part.layout.read_weights(words, &mut weights[row * dim..][..dim][part.columns.clone()]);
        }
    });
}
