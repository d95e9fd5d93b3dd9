//! A rank's shard: one file of tensors, piece by piece, and its index.

use std::path::Path;

use rankine_embedding::rows::Choice;
use rankine_reader::dataset::FileManifest;
use rankine_reader::sealed::{self, Checksum};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::error::Doing;
use super::files::{Files, Output};
use super::index::{self, PieceEntry, PieceOf, ShardIndex};
use super::manifest::Manifest;
use super::{CheckpointError, DenseState, RankState, piece};

/// The name of a rank's shard; its index has the same with `.json`.
pub(super) fn file_name(rank: usize) -> String {
    format!("shard-{rank:05}.safetensors")
}

/// What was written of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFiles {
    /// Its index.
    pub index: FileManifest,
    /// Bytes in all.
    pub bytes: u64,
}

/// What a piece to be written is of.
enum Source<'a> {
    Dense(&'a DenseState),
    /// Some numbers of a choice of rows.
    Rows(&'a Choice, std::ops::Range<u64>),
}

/// Writes a rank's shard into a folder, durably: its part of the dense parameters, and the chosen ones of its rows.
/// Besides its input, it takes the memory of a piece.
///
/// # Errors
/// See [`CheckpointError`].
pub fn write_shard(
    files: &dyn Files,
    dir: &Path,
    rank: usize,
    manifest: &Manifest,
    (state, chosen): (&RankState<'_>, &[Choice]),
) -> Result<ShardFiles, CheckpointError> {
    let sources = plan(manifest, state, chosen);
    let name = file_name(rank);
    let path = dir.join(&name);
    let header = header(manifest, &sources);
    let mut file = files.create(&path).doing("create", &path)?;
    let file: &mut dyn Output = &mut *file;
    file.write_all(&header).doing("write", &path)?;
    let (mut pieces, mut end) = (Vec::new(), header.len() as u64);
    let (mut bytes, mut words) = (Vec::new(), Vec::new());
    for (of, source) in sources {
        bytes.clear();
        fill(&of, &source, manifest, state, (&mut words, &mut bytes))?;
        assert_eq!(
            of.bytes(manifest),
            Some(bytes.len() as u64),
            "a piece has as many bytes as its index says"
        );
        file.write_all(&bytes).doing("write", &path)?;
        end += bytes.len() as u64;
        pieces.push(PieceEntry { of, bytes: bytes.len() as u64, xxh3: Checksum::of(&bytes) });
    }
    file.sync().doing("make durable", &path)?;
    let index = ShardIndex {
        name: name.clone(),
        bytes: end,
        header_bytes: header.len() as u64,
        header_xxh3: Checksum::of(&header),
        pieces,
    };
    let text = sealed::to_json(index::KIND, index::FORMAT, &index);
    let index = write_file(files, dir, &name.replace(".safetensors", ".json"), text.as_bytes())?;
    Ok(ShardFiles { bytes: end + index.bytes, index })
}

/// Writes a whole file, durably.
pub(super) fn write_file(
    files: &dyn Files,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<FileManifest, CheckpointError> {
    let path = dir.join(name);
    let mut file = files.create(&path).doing("create", &path)?;
    let file: &mut dyn Output = &mut *file;
    file.write_all(bytes).doing("write", &path)?;
    file.sync().doing("make durable", &path)?;
    Ok(FileManifest { name: name.into(), bytes: bytes.len() as u64, xxh3: Checksum::of(bytes) })
}

/// The pieces of a shard, each with what it is of.
fn plan<'a>(
    manifest: &Manifest,
    state: &'a RankState<'_>,
    chosen: &'a [Choice],
) -> Vec<(PieceOf, Source<'a>)> {
    let dense = &state.dense;
    let kinds = 1 + dense.state.len();
    let of_dense = piece::cut(dense.parameters.len() as u64, 4 * kinds).map(|range| {
        let (first, count) = (dense.first as u64 + range.start, range.end - range.start);
        (PieceOf::Dense { dense_first: first, dense_count: count }, Source::Dense(dense))
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

/// What safetensors puts before the tensors.
fn header(manifest: &Manifest, sources: &[(PieceOf, Source<'_>)]) -> Vec<u8> {
    let (mut tensors, mut end) = (Vec::new(), 0);
    for (number, (of, _)) in sources.iter().enumerate() {
        for tensor in piece::tensors(number, of, manifest) {
            let start = end;
            end += tensor.bytes;
            let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape, data_offsets: (start, end) };
            tensors.push((tensor.name, info));
        }
    }
    let metadata = Metadata::new(None, tensors).expect("tensors lie one behind the other");
    let mut text = serde_json::to_vec(&metadata).expect("metadata is plain data");
    // The format wants its data at a multiple of eight, and allows spaces behind the header.
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// Makes the bytes of a piece.
fn fill(
    of: &PieceOf,
    source: &Source<'_>,
    manifest: &Manifest,
    state: &RankState<'_>,
    (words, bytes): (&mut Vec<f32>, &mut Vec<u8>),
) -> Result<(), CheckpointError> {
    match (of, source) {
        (&PieceOf::Dense { dense_first, dense_count }, Source::Dense(dense)) => {
            let range =
                dense_first as usize - dense.first..(dense_first + dense_count) as usize - dense.first;
            for numbers in std::iter::once(&dense.parameters).chain(&dense.state) {
                let numbers = &numbers[range.clone()];
                if numbers.iter().any(|number| !number.is_finite()) {
                    return Err(CheckpointError::NotFinite { tensor: "the dense parameters".into() });
                }
                bytes.extend_from_slice(bytemuck::cast_slice(numbers));
            }
        }
        (&PieceOf::Rows { states, .. }, Source::Rows(choice, numbers)) => {
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
