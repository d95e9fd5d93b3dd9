//! The shard of a rank: one file of tensors, piece by piece, and its index.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::thread;

use rankine_base::sealed::{self, Checksum};
use rankine_embedding::all_finite;
use rankine_embedding::membership::{SavedKeys, SavedMembership, SavedSketches};
use rankine_embedding::rows::{RowPart, RowSelection, RowSet};
use rankine_reader::dataset::FileManifest;
use rankine_topology::Rank;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::error::IoContext;
use super::files::{Files, processors};
use super::index::{self, KEY_BYTES, PieceContents, PieceEntry, ShardIndex};
use super::keys::{Chosen, TableKeys};
use super::manifest::{Manifest, TableState};
use super::writer::Writer;
use super::{CheckpointError, DenseState, RankState, piece};

/// The most pieces that are filled at a time, each by a thread, if there are as many processors.
const FILLED_AT_ONCE: usize = 4;

/// The name of a rank's shard; its index has the same with `.json`.
pub(super) fn file_name(rank: Rank) -> String {
    format!("shard-{rank:05}.safetensors")
}

/// The result of writing a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFiles {
    /// Its index.
    pub index: FileManifest,
    /// Bytes in all.
    pub bytes: u64,
}

/// The source of a piece that is to be written.
enum Source<'a> {
    Dense(&'a DenseState),
    /// A range of the chosen rows.
    Rows(&'a RowSelection, Range<u64>),
    /// Ranges of the chosen ids, and of the rows that lost theirs.
    Keys(&'a SavedKeys, Range<usize>, Range<usize>),
    /// A range of the chosen shards' counts.
    Counts(&'a SavedSketches, Range<usize>),
}

/// Writes the shard of a rank into a folder, durably: its parts of the dense parameters, and the chosen rows. Besides
/// its input, it takes the memory of some pieces.
///
/// # Errors
/// See [`CheckpointError`].
pub fn write_shard(
    files: &dyn Files,
    dir: &Path,
    rank: Rank,
    manifest: &Manifest,
    (state, chosen): (&RankState<'_>, &Chosen),
) -> Result<ShardFiles, CheckpointError> {
    let mut shard = ShardDraft::begin((files, dir), rank, manifest, (state, chosen))?;
    let at_once = processors().min(FILLED_AT_ONCE);
    while shard.next().is_some() {
        let written = fill(shard.next_pieces(at_once)?)?;
        shard.index.add(written);
    }
    shard.finish()
}

/// Writes one shard per rank, in the order of ranks: of each part first the rows that all ranks have at the same
/// positions, then those at the next ones. So interleaved rows at the same positions are read at the same time.
///
/// # Errors
/// See [`CheckpointError`].
pub fn write_shards(
    files: &dyn Files,
    dir: &Path,
    manifest: &Manifest,
    states: &[RankState<'_>],
) -> Result<Vec<ShardFiles>, CheckpointError> {
    let chosen: Vec<_> = states.iter().map(Chosen::all).collect();
    let mut shards = Vec::new();
    for (rank, (state, chosen)) in states.iter().zip(&chosen).enumerate() {
        shards.push(ShardDraft::begin((files, dir), Rank(rank), manifest, (state, chosen))?);
    }
    while let Some(next) = shards.iter().filter_map(ShardDraft::next).min() {
        let mut with_next: Vec<_> = shards.iter_mut().filter(|shard| shard.next() == Some(next)).collect();
        let mut pieces = Vec::new();
        for shard in &mut with_next {
            pieces.extend(shard.next_pieces(1)?);
        }
        let written = fill(pieces)?;
        for (shard, written) in with_next.into_iter().zip(written) {
            shard.index.add([written]);
        }
    }
    shards.into_iter().map(ShardDraft::finish).collect()
}

/// A shard that is being written.
struct ShardDraft<'a> {
    files: &'a dyn Files,
    dir: &'a Path,
    manifest: &'a Manifest,
    state: &'a RankState<'a>,
    file: Writer,
    /// The pieces to write.
    sources: VecDeque<(PieceContents, Source<'a>)>,
    /// The pieces written.
    index: ShardIndex,
    /// Buffers for the rows of pieces that are not adjacent in memory.
    words: Vec<Vec<f32>>,
}

/// A piece whose bytes are to be set.
struct Filling<'a> {
    contents: PieceContents,
    values: Values<'a>,
    bytes: &'a mut [u8],
}

/// What a piece holds.
enum Values<'a> {
    /// Numbers of dense parameters: the parameters, and each kind of their state.
    Dense(Vec<&'a [f32]>),
    /// Rows of a part, with their words.
    Rows { part: &'a RowPart, rows: RowSet, words: &'a [f32], table: &'a TableState },
    /// Ranges of ids, and of rows that lost theirs.
    Keys(&'a SavedKeys, Range<usize>, Range<usize>),
    /// A range of counts.
    Counts(&'a SavedSketches, Range<usize>),
}

impl<'a> ShardDraft<'a> {
    fn begin(
        (files, dir): (&'a dyn Files, &'a Path),
        rank: Rank,
        manifest: &'a Manifest,
        (state, chosen): (&'a RankState<'a>, &'a Chosen),
    ) -> Result<Self, CheckpointError> {
        let sources = plan(manifest, state, chosen);
        let name = file_name(rank);
        let path = dir.join(&name);
        let header = header(manifest, &sources);
        let mut file = files.create(&path).and_then(Writer::new).context("create", &path)?;
        file.next(header.len()).context("write", &path)?.copy_from_slice(&header);
        let index = ShardIndex {
            name,
            bytes: header.len() as u64,
            header_bytes: header.len() as u64,
            header_xxh3: Checksum::of(&header),
            pieces: Vec::new(),
        };
        Ok(Self { files, dir, manifest, state, file, sources: sources.into(), index, words: Vec::new() })
    }

    /// The source of the next piece: dense parameters first, then part by part, then ids; `None` after the last one.
    fn next(&self) -> Option<(usize, u64)> {
        self.sources.front().map(|(contents, source)| match (contents, source) {
            (PieceContents::Dense { dense_first, .. }, _) => (0, *dense_first),
            (_, Source::Rows(choice, numbers)) => (1 + choice.part, numbers.start),
            (_, Source::Keys(..) | Source::Counts(..)) => (usize::MAX, 0),
            _ => unreachable!("pieces are planned with their sources"),
        })
    }

    /// Returns the next pieces, `most` at most, to be filled; [`ShardIndex::add`] follows.
    fn next_pieces(&mut self, most: usize) -> Result<Vec<Filling<'_>>, CheckpointError> {
        let Self { dir, manifest, state, file, sources, index, words, .. } = self;
        let pieces: Vec<_> = sources.drain(..sources.len().min(most)).collect();
        words.resize_with(words.len().max(pieces.len()), Vec::new);
        let lens = pieces.iter().map(|(contents, _)| {
            contents.bytes(manifest).expect("pieces are planned from the model") as usize
        });
        let lens: Vec<_> = lens.collect();
        let mut room = file.next(lens.iter().sum()).context("write", &dir.join(&index.name))?;
        let mut fillings = Vec::new();
        for (((contents, source), len), words) in pieces.into_iter().zip(lens).zip(words) {
            let (bytes, behind) = mem::take(&mut room).split_at_mut(len);
            room = behind;
            let values = values(&contents, &source, manifest, state, words)?;
            fillings.push(Filling { contents, values, bytes });
        }
        Ok(fillings)
    }

    /// Makes it durable, with its index.
    fn finish(self) -> Result<ShardFiles, CheckpointError> {
        let Self { files, dir, file, index, .. } = self;
        file.finish().context("sync", &dir.join(&index.name))?;
        let text = sealed::to_json(index::KIND, index::FORMAT, &index);
        let written = write_file(files, dir, &index.name.replace(".safetensors", ".json"), text.as_bytes())?;
        Ok(ShardFiles { bytes: index.bytes + written.bytes, index: written })
    }
}

/// Writes a whole file, durably.
pub(super) fn write_file(
    files: &dyn Files,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<FileManifest, CheckpointError> {
    let path = dir.join(name);
    let file = files.create(&path).context("create", &path)?;
    file.write_all_at(bytes, 0).context("write", &path)?;
    file.sync().context("sync", &path)?;
    Ok(FileManifest { name: name.into(), bytes: bytes.len() as u64, xxh3: Checksum::of(bytes) })
}

/// The pieces of a shard, each with its source.
fn plan<'a>(
    manifest: &Manifest,
    state: &'a RankState<'_>,
    chosen: &'a Chosen,
) -> Vec<(PieceContents, Source<'a>)> {
    let of_dense = state.dense.iter().flat_map(|dense| {
        let kinds = 1 + dense.state.len();
        piece::cut(dense.parameters.len() as u64, 4 * kinds).map(move |range| {
            let (first, count) = (dense.first as u64 + range.start, range.end - range.start);
            (PieceContents::Dense { dense_first: first, dense_count: count }, Source::Dense(dense))
        })
    });
    let of_rows = chosen.rows.iter().flat_map(|choice| {
        let part = &state.rows.parts()[choice.part];
        let learns = &manifest.tables[part.table].learns;
        let row_bytes = 4 * part.layout.words + 8;
        piece::cut(choice.positions.len(), row_bytes).map(move |numbers| {
            let rows = part.rows.at(&choice.positions.part(numbers.clone()));
            (piece::of_rows(part, &rows, learns), Source::Rows(choice, numbers))
        })
    });
    let of_keys = chosen.keys.iter().flat_map(keys_of);
    of_dense.chain(of_rows).chain(of_keys).collect()
}

/// The pieces of the ids of a table.
fn keys_of(TableKeys { table, saved }: &TableKeys) -> impl Iterator<Item = (PieceContents, Source<'_>)> {
    let SavedMembership { keys, sketches } = saved;
    let of_keys = move |present: Range<usize>, freed: Range<usize>| {
        let (count, freed_count) = (present.len() as u64, freed.len() as u64);
        let contents = PieceContents::Keys { keys_of: *table, count, freed: freed_count };
        (contents, Source::Keys(keys, present, freed))
    };
    let indices = |range: Range<u64>| range.start as usize..range.end as usize;
    let present = piece::cut(keys.rows.len() as u64, KEY_BYTES as usize);
    let present = present.map(move |range| of_keys(indices(range), 0..0));
    let freed = piece::cut(keys.freed.len() as u64, 8).map(move |range| of_keys(0..0, indices(range)));
    let each = 16 + sketches.counters.len() / sketches.shards.len().max(1);
    let counts = piece::cut(sketches.shards.len() as u64, each).map(move |range| {
        let contents = PieceContents::Counts { counts_of: *table, shards: range.end - range.start };
        (contents, Source::Counts(sketches, indices(range)))
    });
    present.chain(freed).chain(counts)
}

/// The safetensors header.
fn header(manifest: &Manifest, sources: &[(PieceContents, Source<'_>)]) -> Vec<u8> {
    let (mut tensors, mut end) = (Vec::new(), 0);
    for (number, (contents, _)) in sources.iter().enumerate() {
        for tensor in piece::tensors(number, contents, manifest) {
            let start = end;
            end += tensor.bytes;
            let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape, data_offsets: (start, end) };
            tensors.push((tensor.name, info));
        }
    }
    let metadata = Metadata::new(None, tensors).expect("tensors lie one behind the other");
    let mut text = serde_json::to_vec(&metadata).expect("metadata is plain data");
    // The format requires data at a multiple of eight, and allows spaces after the header.
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// Reads what a piece holds; `words` is used if rows are not adjacent in memory.
fn values<'a>(
    contents: &PieceContents,
    source: &Source<'a>,
    manifest: &'a Manifest,
    state: &'a RankState<'_>,
    words: &'a mut Vec<f32>,
) -> Result<Values<'a>, CheckpointError> {
    match (contents, source) {
        (&PieceContents::Dense { dense_first, dense_count }, Source::Dense(dense)) => {
            let first = dense_first as usize - dense.first;
            let kinds = std::iter::once(&dense.parameters).chain(&dense.state);
            Ok(Values::Dense(kinds.map(|kind| &kind[first..first + dense_count as usize]).collect()))
        }
        (PieceContents::Rows { .. }, Source::Rows(choice, numbers)) => {
            let part = &state.rows.parts()[choice.part];
            let rows = part.rows.at(&choice.positions.part(numbers.clone()));
            let words = choice.words_of(state.rows, numbers.clone(), words)?;
            Ok(Values::Rows { part, rows, words, table: &manifest.tables[part.table] })
        }
        (PieceContents::Keys { .. }, Source::Keys(saved, present, freed)) => {
            Ok(Values::Keys(saved, present.clone(), freed.clone()))
        }
        (PieceContents::Counts { .. }, Source::Counts(saved, range)) => {
            Ok(Values::Counts(saved, range.clone()))
        }
        _ => unreachable!("pieces are planned with their sources"),
    }
}

/// Sets the bytes of some pieces, one thread each; returns their entries in the index.
fn fill(pieces: Vec<Filling<'_>>) -> Result<Vec<PieceEntry>, CheckpointError> {
    let mut pieces = pieces.into_iter();
    let Some(first) = pieces.next() else { return Ok(Vec::new()) };
    thread::scope(|scope| {
        // The threads of the training must not wait for a checkpoint.
        let threads: Vec<_> = pieces.map(|piece| scope.spawn(|| piece.fill())).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)));
        std::iter::once(first.fill()).chain(joined).collect()
    })
}

impl Filling<'_> {
    fn fill(self) -> Result<PieceEntry, CheckpointError> {
        let Self { contents, values, bytes } = self;
        match values {
            Values::Dense(kinds) => {
                let len = bytes.len() / kinds.len();
                for (numbers, bytes) in kinds.into_iter().zip(bytes.chunks_exact_mut(len)) {
                    if !all_finite(numbers) {
                        return Err(CheckpointError::NotFinite { tensor: "the dense parameters".into() });
                    }
                    bytes.copy_from_slice(bytemuck::cast_slice(numbers));
                }
            }
            Values::Rows { part, rows, words, table } => {
                let PieceContents::Rows { states, .. } = contents else { unreachable!("a piece of rows") };
                if !piece::write_rows(part, (&rows, words), (table.table.dtype, states), bytes) {
                    return Err(CheckpointError::NotFinite { tensor: table.tensor.clone() });
                }
            }
            Values::Keys(saved, present, freed) => piece::write_keys(saved, (present, freed), bytes),
            Values::Counts(saved, range) => piece::write_counts(saved, range, bytes),
        }
        Ok(PieceEntry { contents, bytes: bytes.len() as u64, xxh3: Checksum::of(bytes) })
    }
}
