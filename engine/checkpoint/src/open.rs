//! An existing checkpoint: opened, verified, and read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rankine_base::sealed::{self, Checksum};
use rankine_embedding::rows::{RowPiece, RowSet, RowsMut, place};
use rankine_reader::dataset::FileManifest;
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::IoContext;
use super::files::{Files, Input};
use super::index::{self, PieceContents, SavedRows, ShardIndex};
use super::manifest::{self, Manifest, TrainState};
use super::piece::{self, Piece};
use super::{CheckpointError, DenseState, step_name};

/// No training counts further, so that adding to a count cannot overflow.
const COUNT_MAX: u64 = 1 << 60;
/// The longest manifest or index that is read.
const SEALED_BYTES_MAX: u64 = 256 << 20;

/// The most pieces that are read at a time, each by a thread.
const READ_AT_ONCE: usize = 4;

/// The first and the last row of a list.
pub(super) type Ends = (u64, u64);

/// A checkpoint whose manifest and indexes have the right checksums.
#[derive(Debug)]
pub struct Checkpoint {
    files: Arc<dyn Files>,
    path: PathBuf,
    /// The file of its manifest.
    manifest_name: &'static str,
    manifest: Manifest,
    xxh3: Checksum,
    shards: Vec<ShardIndex>,
    /// Of each shard's pieces with listed rows: the first and the last row, once they were read.
    listed: Vec<Vec<OnceLock<Ends>>>,
    /// The full checkpoint that this one builds on.
    base: Option<Box<Self>>,
}

/// The size of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Files, the manifest among them.
    pub files: usize,
    /// Pieces of tensors.
    pub pieces: usize,
    /// Bytes.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a checkpoint, and the base of an incremental one: reads its manifest and its indexes.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] if there is no manifest, also if that of the base is missing;
    /// [`CheckpointError::Damaged`]; [`CheckpointError::Version`]; [`CheckpointError::Io`].
    pub fn open(files: &Arc<dyn Files>, path: &Path) -> Result<Self, CheckpointError> {
        let (checkpoint, text) = Self::open_alone(files, path)?;
        let Some(base) = &checkpoint.manifest.base else {
            checkpoint.check_complete()?;
            return Ok(checkpoint);
        };
        let damaged = |what: String| CheckpointError::damaged(&text, what);
        let dir = path.parent().unwrap_or(Path::new(""));
        let (whole, _) = Self::open_alone(files, &dir.join(step_name(base.step)))?;
        if whole.xxh3 != base.xxh3 || whole.manifest.base.is_some() {
            return Err(damaged(format!(
                "it builds on a step-{} checkpoint that is not the existing one",
                base.step
            )));
        }
        if whole.manifest.spec != checkpoint.manifest.spec
            || whole.manifest.tables != checkpoint.manifest.tables
        {
            return Err(damaged("it builds on a checkpoint of a different model".into()));
        }
        whole.check_complete()?;
        Ok(Self { base: Some(Box::new(whole)), ..checkpoint })
    }

    /// The same, and the path of its manifest, without the base.
    fn open_alone(files: &Arc<dyn Files>, path: &Path) -> Result<(Self, PathBuf), CheckpointError> {
        let at = path.join(manifest::NAME);
        let bytes = match read_whole(&**files, &at) {
            Err(CheckpointError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::Missing(path.to_owned()));
            }
            bytes => bytes?,
        };
        let manifest: Manifest = sealed::from_json(manifest::KIND, manifest::FORMAT, &bytes)
            .map_err(|error| CheckpointError::sealed(&at, error))?;
        let xxh3 = Checksum::of(&bytes);
        Ok((Self::of_manifest(files, path, manifest::NAME, (manifest, xxh3))?, at))
    }

    /// Opens the shards of a manifest, which was read from a file with this name and has this checksum.
    pub(super) fn of_manifest(
        files: &Arc<dyn Files>,
        path: &Path,
        manifest_name: &'static str,
        (manifest, xxh3): (Manifest, Checksum),
    ) -> Result<Self, CheckpointError> {
        let at = path.join(manifest_name);
        manifest.validate().map_err(|what| CheckpointError::damaged(&at, what))?;
        let mut shards = Vec::new();
        for file in &manifest.shards {
            let index: ShardIndex = read_sealed(&**files, path, file)?;
            let at = path.join(&file.name);
            let stem = file.name.strip_suffix(".json");
            let fits = stem.is_some() && stem == index.name.strip_suffix(".safetensors");
            let fits =
                if fits { index.validate(&manifest) } else { Err("it is the index of another shard".into()) };
            fits.map_err(|what| CheckpointError::damaged(&at, what))?;
            shards.push(index);
        }
        let (files, path) = (Arc::clone(files), path.to_owned());
        let listed = shards.iter().map(|shard| vec![OnceLock::new(); shard.pieces.len()]).collect();
        let checkpoint = Self { files, path, manifest_name, manifest, xxh3, shards, listed, base: None };
        // No memory is allocated for data that do not exist.
        checkpoint.shards.iter().try_for_each(|shard| checkpoint.open_shard(shard).map(drop))?;
        Ok(checkpoint)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The indexes of its shards.
    pub fn shards(&self) -> &[ShardIndex] {
        &self.shards
    }

    /// The checksum of its manifest.
    pub fn xxh3(&self) -> Checksum {
        self.xxh3
    }

    /// The full checkpoint that it builds on.
    pub fn base(&self) -> Option<&Self> {
        self.base.as_deref()
    }

    /// One of the files beside the shards, as text; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    pub fn text(&self, name: &str) -> Result<Option<String>, CheckpointError> {
        let Some(file) = self.manifest.files.iter().find(|file| file.name == name) else { return Ok(None) };
        let bytes = read_checked(&*self.files, &self.path, file)?;
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| CheckpointError::damaged(&self.path.join(name), "it is not text"))
    }

    /// Checks that every element of every table and every dense parameter is present exactly once.
    fn check_complete(&self) -> Result<(), CheckpointError> {
        let missing = |what: String| Err(CheckpointError::damaged(&self.path.join(manifest::NAME), what));
        let mut elements = vec![0u64; self.manifest.tables.len()];
        for piece in self.shards.iter().flat_map(|shard| &shard.pieces) {
            match &piece.contents {
                PieceContents::Dense { .. }
                | PieceContents::Rows { rows: SavedRows::Listed { .. }, .. }
                | PieceContents::Keys { .. }
                | PieceContents::Counts { .. } => {}
                &PieceContents::Rows { table, columns: (first, end), rows, .. } => {
                    elements[table] =
                        elements[table].saturating_add(rows.len().saturating_mul((end - first) as u64));
                }
            }
        }
        self.check_dense()?;
        for (table, elements) in self.manifest.tables.iter().zip(elements) {
            if elements != table.table.rows.saturating_mul(table.table.dim as u64) {
                return missing(format!("its shards have only {elements} elements of {}", table.tensor));
            }
        }
        Ok(())
    }

    /// Checks that every dense parameter is present exactly once.
    pub(super) fn check_dense(&self) -> Result<(), CheckpointError> {
        let pieces = self.shards.iter().flat_map(|shard| &shard.pieces);
        let counts = pieces.filter_map(|piece| match piece.contents {
            PieceContents::Dense { dense_count, .. } => Some(dense_count),
            _ => None,
        });
        let dense = counts.fold(0, u64::saturating_add);
        if dense != self.manifest.spec.dense_parameters() as u64 {
            let what = format!("its shards have {dense} dense parameters, and the model has others");
            return Err(CheckpointError::damaged(&self.path.join(self.manifest_name), what));
        }
        Ok(())
    }

    /// Reads every byte, also of the base, and checks all checksums.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] with the first wrong checksum; [`CheckpointError::Io`].
    pub fn verify(&self) -> Result<Totals, CheckpointError> {
        let mut totals = self.base.as_ref().map_or(Ok(Totals::default()), |base| base.verify())?;
        let manifest = read_whole(&*self.files, &self.path.join(self.manifest_name))?;
        totals.bytes += manifest.len() as u64;
        for file in &self.manifest.files {
            totals.bytes += read_checked(&*self.files, &self.path, file)?.len() as u64;
        }
        for (shard, file) in self.shards.iter().zip(&self.manifest.shards) {
            let reader = self.open_shard(shard)?;
            let mut header = vec![0; shard.header_bytes as usize];
            reader.input.read_exact_at(&mut header, 0).context("read", &reader.path)?;
            if Checksum::of(&header) != shard.header_xxh3 {
                let what = "the checksum of its header does not match its index";
                return Err(CheckpointError::damaged(&reader.path, what));
            }
            (0..shard.pieces.len()).into_par_iter().try_for_each_init(Vec::new, |words, piece| {
                let what = |what| CheckpointError::damaged(&reader.path, what);
                reader.read(piece, words)?;
                piece::read(&shard.pieces[piece].contents, &self.manifest, words).map(drop).map_err(what)
            })?;
            totals.bytes += file.bytes + shard.bytes;
            totals.pieces += shard.pieces.len();
        }
        totals.files += 1 + self.manifest.files.len() + 2 * self.shards.len();
        Ok(totals)
    }

    fn open_shard<'a>(&self, index: &'a ShardIndex) -> Result<ShardReader<'a>, CheckpointError> {
        let path = self.path.join(&index.name);
        let input = self.files.open(&path).context("open", &path)?;
        let bytes = input.size().context("read", &path)?;
        if bytes != index.bytes {
            let what = format!("it has {bytes} bytes but should have {}", index.bytes);
            return Err(CheckpointError::damaged(&path, what));
        }
        Ok(ShardReader { path, input, begins: index.begins(), index })
    }

    /// Passes each piece that `wanted` selects to `take`, shard by shard: those of the base first, and in each shard
    /// those last that override others. `wanted` also gets the first and the last row of a piece, once they are
    /// known.
    fn for_each_piece(
        &self,
        wanted: &dyn Fn(&PieceContents, Option<Ends>) -> bool,
        take: &mut dyn FnMut(Piece<'_>) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if let Some(base) = &self.base {
            base.for_each_piece(wanted, take)?;
        }
        self.for_each_own_piece(wanted, take)
    }

    /// The same, without the base.
    pub(super) fn for_each_own_piece(
        &self,
        wanted: &dyn Fn(&PieceContents, Option<Ends>) -> bool,
        take: &mut dyn FnMut(Piece<'_>) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let mut buffers = vec![Vec::new(); rayon::current_num_threads().min(READ_AT_ONCE)];
        for listed in [false, true] {
            for (shard, ends) in self.shards.iter().zip(&self.listed) {
                let pieces = shard.pieces.iter().zip(ends).enumerate();
                let chosen = pieces.filter(|(_, (piece, ends))| {
                    piece.contents.is_listed() == listed && wanted(&piece.contents, ends.get().copied())
                });
                let chosen: Vec<_> = chosen.collect();
                if chosen.is_empty() {
                    continue;
                }
                let reader = self.open_shard(shard)?;
                for chosen in chosen.chunks(buffers.len()) {
                    let pairs = chosen.par_iter().zip(&mut buffers);
                    let read = pairs.map(|(&(number, (piece, ends)), words)| {
                        reader.read(number, words)?;
                        let read = piece::read(&piece.contents, &self.manifest, words);
                        let read = read.map_err(|what| CheckpointError::damaged(&reader.path, what))?;
                        if let Piece::Rows(RowPiece { rows: RowSet::Listed(rows), .. }) = &read {
                            let of = rows.first().copied().zip(rows.last().copied());
                            ends.get_or_init(|| of.unwrap_or((1, 0)));
                        }
                        Ok(read)
                    });
                    let read: Vec<Result<_, CheckpointError>> = read.collect();
                    read.into_iter().try_for_each(|piece| take(piece?))?;
                }
            }
        }
        Ok(())
    }

    /// All dense parameters with their state.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    pub fn dense(&self) -> Result<DenseState, CheckpointError> {
        let len = self.manifest.spec.dense_parameters();
        let mut dense = DenseState {
            first: 0,
            parameters: vec![0.0; len],
            state: vec![vec![0.0; len]; self.manifest.dense.state.len()],
        };
        let is_dense = |contents: &PieceContents, _| matches!(contents, PieceContents::Dense { .. });
        self.for_each_piece(&is_dense, &mut |piece| {
            if let Piece::Dense(first, numbers) = piece {
                let kinds = std::iter::once(&mut dense.parameters).chain(&mut dense.state);
                for (kind, numbers) in kinds.zip(numbers) {
                    kind[first..first + numbers.len()].copy_from_slice(numbers);
                }
            }
            Ok(())
        })?;
        Ok(dense)
    }

    /// Restores the rows of all tables that a rank has. Takes the memory of some pieces.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`], and [`CheckpointError::State`] if rows cannot be
    /// reached; rows of tables are then partly set.
    pub fn load_rows(&self, rows: &mut dyn RowsMut) -> Result<(), CheckpointError> {
        let parts = rows.parts().to_vec();
        let wanted = |contents: &PieceContents, ends| match contents {
            PieceContents::Dense { .. } | PieceContents::Keys { .. } | PieceContents::Counts { .. } => false,
            &PieceContents::Rows { table, rows, .. } => {
                parts.iter().any(|part| part.table == table && may_meet((rows, ends), &part.rows))
            }
        };
        self.for_each_piece(&wanted, &mut |piece| {
            if let Piece::Rows(piece) = piece {
                place(rows, &piece)?;
            }
            Ok(())
        })
    }
}

/// Whether a piece and a set may have common rows, as far as that is cheap to tell: for listed rows, by the first and
/// the last one.
fn may_meet((piece, ends): (SavedRows, Option<Ends>), rows: &RowSet) -> bool {
    if let (SavedRows::Listed { .. }, Some((first, last))) = (piece, ends) {
        return first <= last && rows.before(first) < rows.before(last + 1);
    }
    match (piece, rows) {
        (SavedRows::Every { count: 0, .. }, _) | (_, RowSet::Every { count: 0, .. }) => false,
        (
            SavedRows::Every { first, step, count },
            &RowSet::Every { first: own_first, step: own_step, count: own_count },
        ) => {
            let (last, own_last) = (first + step * (count - 1), own_first + own_step * (own_count - 1));
            // Of ranks whose rows are interleaved, none finds its own in the piece of another one.
            let apart = step == own_step && first % step != own_first % step;
            first <= own_last && own_first <= last && !apart
        }
        _ => true,
    }
}

/// A shard's file.
struct ShardReader<'a> {
    path: PathBuf,
    input: Box<dyn Input>,
    begins: Vec<u64>,
    index: &'a ShardIndex,
}

impl ShardReader<'_> {
    /// Reads a piece, and checks its checksum.
    fn read(&self, number: usize, words: &mut Vec<u64>) -> Result<(), CheckpointError> {
        let entry = &self.index.pieces[number];
        let len = entry.bytes as usize;
        words.clear();
        words.resize(len.div_ceil(8), 0);
        let bytes = &mut bytemuck::cast_slice_mut(words)[..len];
        self.input.read_exact_at(bytes, self.begins[number]).context("read", &self.path)?;
        if Checksum::of(bytes) != entry.xxh3 {
            let what =
                format!("the checksum of the piece at byte {} does not match its index", self.begins[number]);
            return Err(CheckpointError::damaged(&self.path, what));
        }
        Ok(())
    }
}

/// Reads a short file.
pub(super) fn read_whole(files: &dyn Files, path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let input = files.open(path).context("open", path)?;
    let len = input.size().context("read", path)?;
    if len > SEALED_BYTES_MAX {
        return Err(CheckpointError::damaged(path, "it is too long"));
    }
    let mut bytes = vec![0; len as usize];
    input.read_exact_at(&mut bytes, 0).context("read", path)?;
    Ok(bytes)
}

/// Reads a file whose checksum is in a manifest.
fn read_checked(files: &dyn Files, dir: &Path, file: &FileManifest) -> Result<Vec<u8>, CheckpointError> {
    let path = dir.join(&file.name);
    let bytes = read_whole(files, &path)?;
    if bytes.len() as u64 != file.bytes || Checksum::of(&bytes) != file.xxh3 {
        return Err(CheckpointError::damaged(&path, "its length or checksum does not match manifest.json"));
    }
    Ok(bytes)
}

fn read_sealed<T: DeserializeOwned>(
    files: &dyn Files,
    dir: &Path,
    file: &FileManifest,
) -> Result<T, CheckpointError> {
    let bytes = read_checked(files, dir, file)?;
    let read = sealed::from_json(index::KIND, index::FORMAT, &bytes);
    read.map_err(|error| CheckpointError::sealed(&dir.join(&file.name), error))
}

impl Manifest {
    /// Checks that its parts are consistent.
    fn validate(&self) -> Result<(), String> {
        self.spec.validate().map_err(|error| error.what)?;
        let tables = self.spec.tables.iter().cloned().chain(self.spec.wide_tables());
        if !tables.eq(self.tables.iter().map(|table| table.table.clone())) {
            return Err("its tables are not those of the model".into());
        }
        let TrainState { step, position, samples, .. } = self.train;
        if [step, position.epoch, position.sample, samples].iter().any(|&count| count > COUNT_MAX) {
            return Err(format!(
                "step {step}, the samples or the epochs exceed what a training run can count"
            ));
        }
        if self.dense.state.len() > 2 || self.tables.iter().any(|table| table.learns.state.len() > 2) {
            return Err("no optimizer keeps that much state".into());
        }
        let names = self.shards.iter().chain(&self.files).map(|file| file.name.as_str());
        if let Some(name) = names.into_iter().find(|name| name.contains('/') || name.starts_with('.')) {
            return Err(format!("its file {name:?} is not in the checkpoint's folder"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that are in both must be read; pieces with interleaved or disjoint rows need not be.
    #[test]
    fn pieces_with_a_row_in_common_may_meet() {
        let each = |first| (1..4).flat_map(move |step| (0..4).map(move |count| (first, step, count)));
        let all: Vec<(u64, u64, u64)> = (0..5).flat_map(each).collect();
        let rows = |(first, step, count)| (0..count).map(move |number| first + step * number);
        for &one in &all {
            for &other in &all {
                let (first, step, count) = other;
                let set = RowSet::Every { first, step, count };
                let common = rows(one).any(|row| rows(other).any(|own| own == row));
                let (first, step, count) = one;
                let saved = SavedRows::Every { first, step, count };
                assert!(may_meet((saved, None), &set) || !common, "{one:?} and {other:?}");
                let ends = rows(one).next().zip(rows(one).next_back());
                let listed = SavedRows::Listed { count };
                assert!(may_meet((listed, ends), &set) || !common, "{one:?} and {other:?}");
            }
        }
        let every = |first, step, count| SavedRows::Every { first, step, count };
        let own = RowSet::Every { first: 1, step: 2, count: 3 };
        for apart in [every(0, 2, 9), every(6, 1, 5), every(0, 1, 1), every(1, 2, 0)] {
            assert!(!may_meet((apart, None), &own), "{apart:?}");
        }
        assert!(!may_meet((SavedRows::Listed { count: 2 }, Some((6, 9))), &own));
    }
}
