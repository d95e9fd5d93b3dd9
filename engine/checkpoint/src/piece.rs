//! The bytes of a piece, written and read.

use std::ops::Range;

use rankine_embedding::Dtype;
use rankine_embedding::membership::{SavedKeys, SavedSketches};
use rankine_embedding::rows::{RowPart, RowPiece, RowSet};
use safetensors::tensor;

use super::index::{PIECE_BYTES, PieceContents, SavedRows};
use super::manifest::{Manifest, RuleState, TableState};

/// A tensor of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PieceTensor {
    pub(super) name: String,
    pub(super) dtype: tensor::Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// The tensors of piece `number` of a shard, in the order of their bytes: rows, then state, then weights, so that
/// each starts at a multiple of its element size.
pub(super) fn tensors(number: usize, contents: &PieceContents, manifest: &Manifest) -> Vec<PieceTensor> {
    let plain = |name: String, dtype: tensor::Dtype, shape: Vec<usize>, element: usize| PieceTensor {
        bytes: element * shape.iter().product::<usize>(),
        name,
        dtype,
        shape,
    };
    match *contents {
        PieceContents::Dense { dense_count, .. } => {
            let names = manifest.dense.state.iter().map(String::as_str);
            let tensor = |name| {
                plain(format!("dense/{number}.{name}"), tensor::Dtype::F32, vec![dense_count as usize], 4)
            };
            std::iter::once("parameters").chain(names).map(tensor).collect()
        }
        PieceContents::Rows { table, columns: (first, end), rows, states } => {
            let TableState { tensor, table, learns } = &manifest.tables[table];
            let (count, width) = (rows.len() as usize, end - first);
            let name = |part: &str| format!("{tensor}/{number}.{part}");
            let list = contents.is_listed().then(|| plain(name("rows"), tensor::Dtype::U64, vec![count], 8));
            let shape = if learns.rowwise { vec![count] } else { vec![count, width] };
            let state = learns.state[..states].iter();
            let state = state.map(|kept| plain(name(kept), tensor::Dtype::F32, shape.clone(), 4));
            let weights = plain(name("weight"), named(table.dtype), vec![count, width], table.dtype.bytes());
            list.into_iter().chain(state).chain([weights]).collect()
        }
        PieceContents::Keys { keys_of, count, freed } => {
            let name = |part: &str| format!("{}/{number}.{part}", manifest.tables[keys_of].tensor);
            let (count, freed) = (count as usize, freed as usize);
            vec![
                plain(name("key_rows"), tensor::Dtype::U64, vec![count], 8),
                plain(name("keys"), tensor::Dtype::U64, vec![count], 8),
                plain(name("freed_rows"), tensor::Dtype::U64, vec![freed], 8),
                plain(name("scores"), tensor::Dtype::U32, vec![count], 4),
            ]
        }
        PieceContents::Counts { counts_of, shards } => {
            let TableState { tensor, table, .. } = &manifest.tables[counts_of];
            let name = |part: &str| format!("{tensor}/{number}.{part}");
            let (shards, bytes) = (shards as usize, table.dynamic.map_or(0, |rows| rows.sketch_bytes()));
            vec![
                plain(name("count_shards"), tensor::Dtype::U64, vec![shards], 8),
                plain(name("counted"), tensor::Dtype::U64, vec![shards], 8),
                plain(name("counts"), tensor::Dtype::U8, vec![shards, bytes as usize], 1),
            ]
        }
    }
}

/// A type's name in safetensors.
pub(super) fn named(dtype: Dtype) -> tensor::Dtype {
    match dtype {
        Dtype::Fp32 => tensor::Dtype::F32,
        Dtype::Bf16 => tensor::Dtype::BF16,
        Dtype::Fp16 => tensor::Dtype::F16,
    }
}

/// Splits `len` items of this size into pieces.
pub(super) fn cut(len: u64, bytes: usize) -> impl Iterator<Item = Range<u64>> {
    let at_once = (PIECE_BYTES / bytes.max(1)).max(1) as u64;
    (0..len.div_ceil(at_once)).map(move |piece| piece * at_once..len.min((piece + 1) * at_once))
}

/// The piece that holds some rows of a part.
pub(super) fn of_rows(part: &RowPart, rows: &RowSet, learns: &RuleState) -> PieceContents {
    PieceContents::Rows {
        table: part.table,
        columns: (part.columns.start, part.columns.end),
        rows: SavedRows::of(rows),
        states: if learns.rowwise && part.columns.start > 0 { 0 } else { learns.state.len() },
    }
}

/// Sets the bytes of a piece of ids from ranges of what is saved.
pub(super) fn write_keys(
    saved: &SavedKeys,
    (present, freed): (Range<usize>, Range<usize>),
    bytes: &mut [u8],
) {
    let words = [&saved.rows[present.clone()], &saved.keys[present.clone()], &saved.freed[freed]];
    let words = words.into_iter().flatten();
    let (of_words, of_scores) = bytes.split_at_mut(8 * words.clone().count());
    of_words.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    let scores = of_scores.chunks_exact_mut(4).zip(&saved.scores[present]);
    scores.for_each(|(to, score)| to.copy_from_slice(&score.to_le_bytes()));
}

/// Sets the bytes of a piece of counts from a range of what is saved.
pub(super) fn write_counts(saved: &SavedSketches, range: Range<usize>, bytes: &mut [u8]) {
    let words = saved.shards[range.clone()].iter().chain(&saved.added[range.clone()]);
    let (of_words, counters) = bytes.split_at_mut(16 * range.len());
    of_words.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    let each = counters.len() / range.len().max(1);
    counters.copy_from_slice(&saved.counters[range.start * each..range.end * each]);
}

/// Sets the bytes of a piece of rows from their words in memory; `false` if some of them are not finite.
///
/// # Panics
/// If the buffer is not [`PieceContents::bytes`] long.
pub(super) fn write_rows(
    part: &RowPart,
    (rows, words): (&RowSet, &[f32]),
    (dtype, states): (Dtype, usize),
    bytes: &mut [u8],
) -> bool {
    let mut rest = bytes;
    let mut next = |count: usize, size: usize| {
        let (section, behind) = std::mem::take(&mut rest).split_at_mut(count * size);
        rest = behind;
        section.chunks_exact_mut(size)
    };
    if let RowSet::Listed(rows) = rows {
        let numbers = next(rows.len(), 8);
        numbers.zip(rows.iter()).for_each(|(to, row)| to.copy_from_slice(&row.to_le_bytes()));
    }
    let (layout, count) = (&part.layout, rows.len() as usize);
    let rows = || words.chunks_exact(layout.words);
    for &begin in &layout.state()[..states] {
        let width = layout.state_words();
        for (to, row) in next(count, 4 * width).zip(rows()) {
            to.copy_from_slice(bytemuck::cast_slice(&row[begin..begin + width]));
        }
    }
    let mut finite = true;
    for (to, row) in next(count, dtype.bytes() * layout.dim).zip(rows()) {
        finite &= layout.is_finite(row);
        layout.write_weights(row, dtype, to);
    }
    assert!(rest.is_empty(), "a piece has as many bytes as its index says");
    finite
}

/// The contents of a piece that was read.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// Dense parameters from an index on, and each kind of their state.
    Dense(usize, Vec<&'a [f32]>),
    /// Rows.
    Rows(RowPiece<'a>),
    /// Rows of a table that ids have.
    Keys(usize, SavedKeys),
    /// Counts of ids of a table without a row.
    Counts(usize, SavedSketches),
}

/// Reads a piece whose length is [`PieceContents::bytes`]. The words keep values aligned to their size.
///
/// # Errors
/// What is wrong with it: rows that are not in order, or not in the table.
pub(super) fn read<'a>(
    contents: &PieceContents,
    manifest: &Manifest,
    words: &'a [u64],
) -> Result<Piece<'a>, String> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    match *contents {
        PieceContents::Dense { dense_first, dense_count } => {
            let numbers: &[f32] = bytemuck::cast_slice(bytes);
            let kinds = 1 + manifest.dense.state.len();
            let count = dense_count as usize;
            let kinds = (0..kinds).map(|kind| &numbers[kind * count..][..count]);
            Ok(Piece::Dense(dense_first as usize, kinds.collect()))
        }
        PieceContents::Rows { table, columns: (first, end), rows, states } => {
            let of_table = &manifest.tables[table];
            let count = rows.len() as usize;
            let (set, mut begin) = match rows {
                SavedRows::Every { first, step, count } => {
                    (RowSet::Every { first, step: step.max(1), count }, 0)
                }
                SavedRows::Listed { .. } => {
                    let listed = words[..count].to_vec();
                    let ascend = listed.is_sorted_by(|one, next| one < next);
                    if !ascend || listed.last().is_some_and(|&last| last >= of_table.table.rows) {
                        return Err("its rows are not in order, or not in the table".into());
                    }
                    (RowSet::from(listed), 8 * count)
                }
            };
            let width = end - first;
            let numbers = count * if of_table.learns.rowwise { 1 } else { width };
            let mut state = Vec::new();
            for _ in 0..states {
                state.push(bytemuck::cast_slice(&bytes[begin..begin + 4 * numbers]));
                begin += 4 * numbers;
            }
            let dtype = of_table.table.dtype;
            let weights = &bytes[begin..begin + count * width * dtype.bytes()];
            Ok(Piece::Rows(RowPiece { table, columns: first..end, rows: set, dtype, weights, state }))
        }
        PieceContents::Keys { keys_of, count, freed } => {
            let (count, freed) = (count as usize, freed as usize);
            let words_end = 2 * count + freed;
            let scores = &bytes[8 * words_end..8 * words_end + 4 * count];
            let keys = SavedKeys {
                rows: words[..count].to_vec(),
                keys: words[count..2 * count].to_vec(),
                scores: bytemuck::cast_slice(scores).to_vec(),
                freed: words[2 * count..words_end].to_vec(),
            };
            Ok(Piece::Keys(keys_of, keys))
        }
        PieceContents::Counts { counts_of, shards } => {
            let shards = shards as usize;
            let each = manifest.tables[counts_of].table.dynamic.map_or(0, |rows| rows.sketch_bytes());
            let counters = &bytes[16 * shards..16 * shards + shards * each as usize];
            let sketches = SavedSketches {
                shards: words[..shards].to_vec(),
                added: words[shards..2 * shards].to_vec(),
                counters: counters.to_vec(),
            };
            Ok(Piece::Counts(counts_of, sketches))
        }
    }
}
