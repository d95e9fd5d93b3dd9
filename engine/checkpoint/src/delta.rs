//! A delta: what changes a model that scores into a later one of the same training.
//!
//! It is a folder with the files of a checkpoint, but [`DELTA_NAME`] in place of the manifest: one shard with all dense
//! parameters, the rows of tables that differ, and the ids that got or lost a row. It has no optimizer state.

use std::path::Path;
use std::sync::Arc;

use rankine_base::sealed::{self, Checksum};
use rankine_embedding::Optimizer;
use rankine_embedding::cpu::ChangedRows;
use rankine_embedding::membership::SavedMembership;
use rankine_embedding::rows::{RowPiece, RowSelection};
use rankine_model::{Model, ModelSpec};
use rankine_reader::Split;
use rankine_reader::dataset::FileManifest;
use rankine_topology::Rank;
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::index::PieceContents;
use super::keys::{Chosen, TableKeys};
use super::manifest::{DataIdentity, Manifest, OrderState, RuleState, TableState, TrainState};
use super::open::read_whole;
use super::piece::Piece;
use super::shard::{write_file, write_shard};
use super::{Checkpoint, CheckpointError, RankState, Totals};

/// The file with the checksums of a delta's other files; it is written last.
pub const DELTA_NAME: &str = "delta.json";
const KIND: &str = "rankine delta";
const FORMAT: u32 = 1;

/// What identifies a trained model, wherever it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Steps that it was trained for.
    pub steps: u64,
    /// The checksum of the file of weights that an export of it has.
    pub weights: Checksum,
}

/// Two models, and what they have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaHeader {
    /// The model that the delta changes.
    pub base: ModelIdentity,
    /// The model that it becomes.
    pub result: ModelIdentity,
    /// The checksum of the columns' description, `columns.json` of a checkpoint.
    pub columns: Checksum,
    /// The parts and sizes of both.
    pub spec: ModelSpec,
}

/// The content of [`DELTA_NAME`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaManifest {
    /// The version of Rankine that wrote it.
    version: String,
    /// The two models.
    models: DeltaHeader,
    /// The index of the shard.
    shards: Vec<FileManifest>,
}

/// The parts of a model that a delta replaces.
#[derive(Debug, Clone, Default)]
pub struct ModelChanges {
    /// All dense parameters.
    pub parameters: Vec<f32>,
    /// Rows, with the numbers of their tables.
    pub rows: Vec<(usize, ChangedRows)>,
    /// Ids that got a row, and rows that lost their id, with the numbers of the tables.
    pub keys: Vec<(usize, SavedMembership)>,
}

/// A delta whose index has the right checksums.
#[derive(Debug)]
pub struct Delta {
    header: DeltaHeader,
    pieces: Checkpoint,
}

impl DeltaHeader {
    /// Returns the manifest of a checkpoint that has the delta's pieces. No optimizer keeps state.
    fn manifest(&self, version: String, shards: Vec<FileManifest>) -> Manifest {
        let none = Checksum(0);
        Manifest {
            version,
            train: TrainState { step: self.result.steps, ..TrainState::default() },
            seed: 0,
            order: OrderState { shuffle: false, window_blocks: 0, validation: Split::None },
            data: DataIdentity {
                samples: 0,
                block_samples: 0,
                schema: none,
                blocks: none,
                vocabularies: Vec::new(),
                raw: Vec::new(),
            },
            dense: RuleState::of(&Optimizer::sgd(0.0)),
            tables: TableState::all(&Model::sgd(self.spec.clone(), 0.0)),
            spec: self.spec.clone(),
            device: None,
            ranks: 1,
            nodes: 1,
            base: None,
            shards,
            files: Vec::new(),
        }
    }
}

impl Delta {
    /// Writes a delta into an empty folder, file by file and durably: the dense parameters and the rows of `state`, and
    /// changes of ids. Returns its bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]; [`CheckpointError::NotFinite`].
    pub fn write(
        files: &dyn Files,
        dir: &Path,
        header: &DeltaHeader,
        state: &RankState<'_>,
        keys: Vec<TableKeys>,
    ) -> Result<u64, CheckpointError> {
        let chosen = Chosen { rows: RowSelection::all(state.rows), keys: Arc::new(keys) };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = header.manifest(version.clone(), Vec::new());
        let shard = write_shard(files, dir, Rank(0), &manifest, (state, &chosen))?;
        let manifest = DeltaManifest { version, models: header.clone(), shards: vec![shard.index] };
        let text = sealed::to_json(KIND, FORMAT, &manifest);
        let written = write_file(files, dir, DELTA_NAME, text.as_bytes())?;
        Ok(shard.bytes + written.bytes)
    }

    /// Opens a delta: reads its manifest and its index.
    ///
    /// # Errors
    /// [`CheckpointError::NoDelta`]; [`CheckpointError::Damaged`]; [`CheckpointError::Version`];
    /// [`CheckpointError::Io`].
    pub fn open(files: &Arc<dyn Files>, path: &Path) -> Result<Self, CheckpointError> {
        let at = path.join(DELTA_NAME);
        let bytes = match read_whole(&**files, &at) {
            Err(CheckpointError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::NoDelta(path.to_owned()));
            }
            bytes => bytes?,
        };
        let manifest: DeltaManifest =
            sealed::from_json(KIND, FORMAT, &bytes).map_err(|error| CheckpointError::sealed(&at, error))?;
        let DeltaManifest { version, models: header, shards } = manifest;
        header.spec.validate().map_err(|error| CheckpointError::damaged(&at, error.what))?;
        let manifest = header.manifest(version, shards);
        let pieces = Checkpoint::of_manifest(files, path, DELTA_NAME, (manifest, Checksum::of(&bytes)))?;
        pieces.check_dense()?;
        Ok(Self { header, pieces })
    }

    /// Returns the models that it is a delta of.
    pub fn header(&self) -> &DeltaHeader {
        &self.header
    }

    /// Reads every byte and checks all checksums.
    ///
    /// # Errors
    /// As [`Checkpoint::verify`].
    pub fn verify(&self) -> Result<Totals, CheckpointError> {
        self.pieces.verify()
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::Io`].
    pub fn read(&self) -> Result<ModelChanges, CheckpointError> {
        let tables = &self.pieces.manifest().tables;
        let mut rows = vec![ChangedRows::default(); tables.len()];
        let is_of_rows = |contents: &PieceContents, _| matches!(contents, PieceContents::Rows { .. });
        self.pieces.for_each_own_piece(&is_of_rows, &mut |piece| {
            let Piece::Rows(RowPiece { table, columns, rows: set, dtype, weights, .. }) = piece else {
                return Ok(());
            };
            let of = &tables[table];
            if columns != (0..of.table.dim) {
                let what = format!("it has only some columns of {}", of.tensor);
                return Err(CheckpointError::damaged(&self.pieces.path().join(DELTA_NAME), what));
            }
            let changed = &mut rows[table];
            let begin = changed.weights.len();
            changed.rows.extend(set.iter());
            changed.weights.resize(begin + weights.len() / dtype.bytes(), 0.0);
            dtype.read_all(weights, &mut changed.weights[begin..]);
            Ok(())
        })?;
        let rows = rows.into_iter().enumerate().filter(|(_, changed)| !changed.rows.is_empty()).collect();
        let dynamic = tables.iter().enumerate().filter(|(_, table)| table.table.dynamic.is_some());
        let dynamic: Vec<_> = dynamic.map(|(number, _)| number).collect();
        let mut keys: Vec<_> = Vec::new();
        if !dynamic.is_empty() {
            let saved = self.pieces.saved_memberships(&dynamic)?;
            let differ = |saved: &SavedMembership| *saved != SavedMembership::default();
            keys.extend(dynamic.into_iter().zip(saved).filter(|(_, saved)| differ(saved)));
        }
        Ok(ModelChanges { parameters: self.pieces.dense()?.parameters, rows, keys })
    }
}
