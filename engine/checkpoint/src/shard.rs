//! The shard of a rank: one file of tensors, piece by piece, and its index.

use std::collections::VecDeque;
use std::path::Path;

use rankine_base::sealed::{self, Checksum};
use rankine_embedding::all_finite;
use rankine_embedding::rows::RowSelection;
use rankine_reader::dataset::FileManifest;
use rankine_topology::Rank;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::error::IoContext;
use super::files::Files;
use super::index::{self, PieceContents, PieceEntry, ShardIndex};
use super::manifest::Manifest;
use super::writer::Writer;
use super::{CheckpointError, DenseState, RankState, piece};

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
    Rows(&'a RowSelection, std::ops::Range<u64>),
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
    (state, chosen): (&RankState<'_>, &[RowSelection]),
) -> Result<ShardFiles, CheckpointError> {
    let mut shard = ShardDraft::begin((files, dir), rank, manifest, (state, chosen))?;
    while shard.next().is_some() {
        shard.write_piece()?;
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
    let chosen: Vec<_> = states.iter().map(|state| RowSelection::all(state.rows)).collect();
    let mut shards = Vec::new();
    for (rank, (state, chosen)) in states.iter().zip(&chosen).enumerate() {
        shards.push(ShardDraft::begin((files, dir), Rank(rank), manifest, (state, chosen))?);
    }
    while let Some(next) = shards.iter().filter_map(ShardDraft::next).min() {
        for shard in shards.iter_mut().filter(|shard| shard.next() == Some(next)) {
            shard.write_piece()?;
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
    /// A buffer for rows that are not adjacent in memory.
    words: Vec<f32>,
}

impl<'a> ShardDraft<'a> {
    fn begin(
        (files, dir): (&'a dyn Files, &'a Path),
        rank: Rank,
        manifest: &'a Manifest,
        (state, chosen): (&'a RankState<'a>, &'a [RowSelection]),
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

    /// The source of the next piece: dense parameters first, then part by part; `None` after the last one.
    fn next(&self) -> Option<(usize, u64)> {
        self.sources.front().map(|(contents, source)| match (contents, source) {
            (PieceContents::Dense { dense_first, .. }, _) => (0, *dense_first),
            (_, Source::Rows(choice, numbers)) => (1 + choice.part, numbers.start),
            _ => unreachable!("pieces are planned with their sources"),
        })
    }

    /// Writes the next piece, if there is one.
    fn write_piece(&mut self) -> Result<(), CheckpointError> {
        let Some((contents, source)) = self.sources.pop_front() else { return Ok(()) };
        let len = contents.bytes(self.manifest).expect("pieces are planned from the model");
        let room = self.file.next(len as usize);
        let bytes = room.map_err(|source| CheckpointError::Io {
            doing: "write",
            path: self.dir.join(&self.index.name),
            source,
        })?;
        fill(&contents, &source, self.manifest, self.state, (&mut self.words, bytes))?;
        self.index.bytes += len;
        self.index.pieces.push(PieceEntry { contents, bytes: len, xxh3: Checksum::of(bytes) });
        Ok(())
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
    chosen: &'a [RowSelection],
) -> Vec<(PieceContents, Source<'a>)> {
    let of_dense = state.dense.iter().flat_map(|dense| {
        let kinds = 1 + dense.state.len();
        piece::cut(dense.parameters.len() as u64, 4 * kinds).map(move |range| {
            let (first, count) = (dense.first as u64 + range.start, range.end - range.start);
            (PieceContents::Dense { dense_first: first, dense_count: count }, Source::Dense(dense))
        })
    });
    let of_rows = chosen.iter().flat_map(|choice| {
        let part = &state.rows.parts()[choice.part];
        let learns = &manifest.tables[part.table].learns;
        let row_bytes = 4 * part.layout.words + 8;
        piece::cut(choice.positions.len(), row_bytes).map(move |numbers| {
            let rows = part.rows.at(&choice.positions.part(numbers.clone()));
            (piece::of_rows(part, &rows, learns), Source::Rows(choice, numbers))
        })
    });
    of_dense.chain(of_rows).collect()
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

/// Sets the bytes of a piece.
fn fill(
    contents: &PieceContents,
    source: &Source<'_>,
    manifest: &Manifest,
    state: &RankState<'_>,
    (words, bytes): (&mut Vec<f32>, &mut [u8]),
) -> Result<(), CheckpointError> {
    match (contents, source) {
        (&PieceContents::Dense { dense_first, dense_count }, Source::Dense(dense)) => {
            let range =
                dense_first as usize - dense.first..(dense_first + dense_count) as usize - dense.first;
            let kinds = std::iter::once(&dense.parameters).chain(&dense.state);
            for (numbers, bytes) in kinds.zip(bytes.chunks_exact_mut(4 * range.len())) {
                let numbers = &numbers[range.clone()];
                if !all_finite(numbers) {
                    return Err(CheckpointError::NotFinite { tensor: "the dense parameters".into() });
                }
                bytes.copy_from_slice(bytemuck::cast_slice(numbers));
            }
        }
        (&PieceContents::Rows { states, .. }, Source::Rows(choice, numbers)) => {
            let part = &state.rows.parts()[choice.part];
            let positions = choice.positions.part(numbers.clone());
            let rows = part.rows.at(&positions);
            let of_table = &manifest.tables[part.table];
            let all = choice.words_of(state.rows, numbers.clone(), words)?;
            if !piece::write_rows(part, (&rows, all), (of_table.table.dtype, states), bytes) {
                return Err(CheckpointError::NotFinite { tensor: of_table.tensor.clone() });
            }
        }
        _ => unreachable!("pieces are planned with their sources"),
    }
    Ok(())
}
