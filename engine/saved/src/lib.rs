//! A trained model on disk: `model.safetensors` with every weight, the vocabularies, and `model.json` with the rest
//! that scoring raw rows needs: the model's sizes, the columns with their transforms, the job, and the checksums of all
//! files. `source` in the engine finds a model in a run folder, a checkpoint or an export.
//! `docs/reference/checkpoint-format.md` describes how to compute predictions from the tensors.
//!
//! Dense tensors are f32; those of tables have the type that the job sets. A model has the tensors of its parts:
//!
//! - `bottom.0.weight` `[outputs, inputs]`, `bottom.0.bias` `[outputs]`, ..., `top.0.weight`, `top.0.bias`, ...
//! - `cross.0.weight` and `cross.0.bias`, ...; with a rank `cross.0.v.weight`, `cross.0.u.weight` and `cross.0.u.bias`
//! - `linear.weight` `[heads, dense columns]`: the first-order terms of the dense columns
//! - `embedding.TABLE` `[rows, dim]`
//! - `wide.COLUMN` `[rows, heads]`: the first-order terms of a categorical column
//! - `keys.TABLE` `[rows]` and `has_key.TABLE` `[rows]`, if rows are given to ids as they come: the id of each row

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use rankine_base::blame::Blame;
use rankine_base::files::read_regular;
use rankine_base::publish::{PartialDir, create_folders};
use rankine_base::sealed::{self, Checksum, SealedError};
use rankine_checkpoint::STRIPE_BYTES;
use rankine_embedding::{Dtype, Membership, TableSpec};
use rankine_model::ModelSpec;
use rankine_reader::convert::{Encoder, RowFormat};
use rankine_reader::dataset::FileManifest;
use rankine_reader::write::write_file;
use rankine_reader::{Columns, Schema};
use rayon::prelude::*;
use safetensors::tensor::{self, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use rankine_engine_cpu::CpuModel;

mod keys;
mod mapped;
mod state_dict;
mod stored;
mod tensors;

pub use mapped::MappedWeights;
pub use state_dict::{
    Origin as StateDictOrigin, StateDict, StateDictError, StateDictSizes, StateDictWeights,
};
pub use stored::{StoredWeights, scoring_model};
pub use tensors::{Tensor, write_tensors};
pub use verify::VerifiedSize;

use keys::KeyTensor;
use tensors::WeightsFile;

const WEIGHTS_NAME: &str = "model.safetensors";
/// The file with all but the weights and vocabularies.
pub const MANIFEST_NAME: &str = "model.json";
const KIND: &str = "rankine model";
const FORMAT: u32 = 5;
/// Formats that are read, but no longer written. The checksum of their weights is not by stripes; format 4 is for
/// labels that state the share of negatives that were kept, and format 2 has no job.
const FORMATS_BEFORE: [u32; 3] = [2, 3, 4];
/// Lengths of stripes that are read.
const STRIPES_BYTES: RangeInclusive<usize> = 4096..=1 << 30;
/// A thread reads and writes about this many bytes of rows at a time.
const RUN_BYTES: usize = 1 << 20;
/// Bytes of rows that are gathered at a time.
const GATHER_BYTES: usize = 64 << 20;
/// The same in host memory: weights are still in the cache when they are written.
const CACHED_BYTES: usize = 8 << 20;

/// An error while saving or reading a model.
#[derive(Debug, thiserror::Error)]
pub enum SavedModelError {
    /// The folder holds no model.
    #[error("no model at {}: a finished run has one in its folder `model`", .0.display())]
    Missing(PathBuf),
    /// The content of a file differs from what was saved.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Another version of Rankine saved it.
    #[error("{} cannot be read: {source}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// How its kind or version differs.
        source: SealedError,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] rankine_base::Error),
    /// Weights are NaN or infinite.
    #[error(
        "{tensor} has non-finite values: training diverged, and the usual cause is a learning rate that is too \
         high; the model was not saved"
    )]
    NotFinite {
        /// The first tensor with such a weight.
        tensor: String,
    },
    /// Processes that store some of the weights were lost.
    #[error(transparent)]
    Processes(#[from] rankine_launch::MeetError),
    /// Weights cannot be copied from the GPU.
    #[error("the weights cannot be read from the GPU: {0}; the model was not saved")]
    Gpu(String),
    /// Weights cannot be read from the checkpoint.
    #[error("the weights cannot be read from the checkpoint: {0}")]
    Source(String),
    /// The dataset's columns or ids have another meaning than those that the model was trained on.
    #[error("the dataset {} does not fit the model: {what}", dataset.display())]
    Mismatch {
        /// The dataset's folder.
        dataset: PathBuf,
        /// The first difference.
        what: String,
    },
}

impl SavedModelError {
    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing(_) | Self::Version { .. } | Self::Mismatch { .. } => Blame::Usage,
            Self::Damaged { .. } | Self::Source(_) => Blame::Data,
            Self::Read { .. } | Self::NotFinite { .. } | Self::Processes(_) | Self::Gpu(_) => Blame::System,
            Self::Write(error) => Blame::of_data(error),
        }
    }
}

/// The content of `model.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedModel {
    /// The model's parts and sizes.
    pub spec: ModelSpec,
    /// The columns that it was trained on, with their transforms and vocabularies.
    pub schema: Schema,
    /// How raw rows of its columns are read; absent if it was trained on generated data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<RowFormat>,
    /// Steps that it was trained for.
    pub steps: u64,
    /// The effective job, as TOML: it sets the batch size and threads of scoring, and how ids beyond a table are
    /// handled. Absent in format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The checksum of the weights.
    weights: FileManifest,
    /// If the checksum of the weights is by stripes, their length: see [`striped_checksum`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights_stripe_bytes: Option<usize>,
    /// The vocabularies' files in this folder.
    vocabularies: Vec<FileManifest>,
}

/// A model whose weights can be read: from host memory, GPUs or a checkpoint.
pub trait Weights {
    /// Returns the parts and sizes of the model.
    fn spec(&self) -> &ModelSpec;

    /// Calls `visit` with all weights, in runs of any length: the dense parameters in the order of
    /// [`rankine_model::DenseLayout::named_layers`], then the rows of each table, in order, with the tables of
    /// first-order terms last.
    ///
    /// # Errors
    /// The first error that `visit` returns; [`SavedModelError::Gpu`].
    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError>;

    /// Returns the memberships of dynamic tables, with the tables' numbers; none if the model has no such tables.
    ///
    /// # Errors
    /// The errors of reading them.
    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        Ok(Vec::new())
    }
}

impl Weights for CpuModel {
    fn spec(&self) -> &ModelSpec {
        self.spec()
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        visit(self.parameters())?;
        let tables = self.spec().tables.iter().cloned().chain(self.spec().wide_tables());
        for (number, table) in tables.enumerate() {
            runs_of(&table, CACHED_BYTES, |rows, weights| {
                let rows_at_once = (RUN_BYTES / (4 * table.dim)).max(1);
                let parts = weights.par_chunks_mut(rows_at_once * table.dim).enumerate();
                parts.for_each(|(part, weights)| {
                    let first = rows.start + (part * rows_at_once) as u64;
                    let rows = first..first + (weights.len() / table.dim) as u64;
                    self.gather(number, rows, (table.dim, weights));
                });
                visit(weights)
            })?;
        }
        Ok(())
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        Ok(self.memberships().map(|(table, membership)| (table, membership.clone())).collect())
    }
}

/// Calls `visit` with consecutive ranges of a table's rows, about 64 MiB each, and a buffer `[row][dim]` for their
/// weights.
///
/// # Errors
/// The first error that `visit` returns.
pub fn for_each_run<E>(
    table: &TableSpec,
    visit: impl FnMut(Range<u64>, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    runs_of(table, GATHER_BYTES, visit)
}

fn runs_of<E>(
    table: &TableSpec,
    bytes: usize,
    mut visit: impl FnMut(Range<u64>, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    let at_once = (bytes / (4 * table.dim)).max(1) as u64;
    let mut weights = vec![0.0; (at_once.min(table.rows) as usize) * table.dim];
    for first in (0..table.rows).step_by(at_once as usize) {
        let rows = first..table.rows.min(first + at_once);
        let len = (rows.end - first) as usize * table.dim;
        visit(rows, &mut weights[..len])?;
    }
    Ok(())
}

/// The content of a saved model apart from its weights.
#[derive(Clone, Copy)]
pub struct ModelMetadata<'a> {
    /// Steps that it was trained for.
    pub steps: u64,
    /// The effective job, as TOML.
    pub job: &'a str,
    /// The columns that it was trained on.
    pub columns: &'a Columns,
    /// Reads one of the columns' vocabularies by its file name, and checks it.
    pub vocabulary: &'a dyn Fn(&str) -> Result<Vec<u8>, rankine_base::Error>,
}

/// Saves a model into `dir`, which appears only when it is complete and durable. Weights on GPUs are copied to the file
/// piece by piece.
///
/// # Errors
/// [`SavedModelError::Write`], [`SavedModelError::NotFinite`] and [`SavedModelError::Gpu`].
pub fn save(
    dir: &Path,
    model: &(impl Weights + ?Sized),
    metadata: &ModelMetadata<'_>,
) -> Result<(), SavedModelError> {
    save_into(PartialDir::create(dir)?, model, metadata)
}

/// Does the same for a folder that was created before.
///
/// # Errors
/// The errors of [`save`].
pub fn save_into(
    partial: PartialDir,
    model: &(impl Weights + ?Sized),
    metadata: &ModelMetadata<'_>,
) -> Result<(), SavedModelError> {
    let columns = metadata.columns;
    let vocabularies = write_vocabularies(partial.path(), metadata)?;
    let saved = SavedModel {
        spec: model.spec().clone(),
        schema: columns.schema.clone(),
        format: columns.format.clone(),
        steps: metadata.steps,
        job: Some(metadata.job.to_owned()),
        weights: write_weights(partial.path(), model)?,
        weights_stripe_bytes: Some(STRIPE_BYTES),
        vocabularies,
    };
    write_file(partial.path(), MANIFEST_NAME, sealed::to_json(KIND, FORMAT, &saved).as_bytes())?;
    Ok(partial.publish()?)
}

/// Writes the vocabularies of a model's columns into a folder, under their names below it.
///
/// # Errors
/// If one cannot be read or written.
pub fn write_vocabularies(
    dir: &Path,
    metadata: &ModelMetadata<'_>,
) -> Result<Vec<FileManifest>, rankine_base::Error> {
    let write = |file: &FileManifest| {
        if let Some(folder) = dir.join(&file.name).parent() {
            create_folders(folder)?;
        }
        write_file(dir, &file.name, &(metadata.vocabulary)(&file.name)?)
    };
    metadata.columns.vocabularies.iter().map(write).collect()
}

fn write_weights(dir: &Path, model: &(impl Weights + ?Sized)) -> Result<FileManifest, SavedModelError> {
    let (bytes, xxh3) = put_file(WeightsFile::create(&dir.join(WEIGHTS_NAME))?, model)?;
    Ok(FileManifest { name: WEIGHTS_NAME.into(), bytes, xxh3 })
}

/// Returns the checksum of the file of weights that [`save`] would write. It identifies a model, wherever its weights
/// are stored.
///
/// # Errors
/// The errors of reading the weights.
pub fn weights_checksum(model: &(impl Weights + ?Sized)) -> Result<Checksum, SavedModelError> {
    Ok(put_file(WeightsFile::discarded()?, model)?.1)
}

/// Writes the file of a model's weights; returns its length and checksum.
fn put_file(
    mut file: WeightsFile,
    model: &(impl Weights + ?Sized),
) -> Result<(u64, Checksum), SavedModelError> {
    let tensors = Tensor::all_of(model.spec(), 1);
    let info = |tensor: &Tensor| {
        let Range { start, end } = tensor.bytes();
        let (dtype, shape) = (safetensors_type(tensor.dtype), tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start as usize, end as usize) })
    };
    let keys = KeyTensor::all_of(model.spec(), tensors.last().map_or(0, |last| last.bytes().end));
    let of_keys = keys.iter().map(|tensor| {
        let data_offsets = (tensor.bytes.start as usize, tensor.bytes.end as usize);
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.to_vec(), data_offsets };
        (tensor.name.clone(), info)
    });
    let metadata = Metadata::new(None, tensors.iter().map(info).chain(of_keys).collect());
    let metadata = metadata.expect("each tensor starts where the one before ends");
    let mut header = serde_json::to_vec(&metadata).expect("metadata is plain data");
    // The format requires its data at a multiple of eight bytes, and allows spaces after the header.
    header.resize(header.len().next_multiple_of(8), b' ');

    file.put(8, |bytes| bytes.copy_from_slice(&(header.len() as u64).to_le_bytes()))?;
    file.put(header.len(), |bytes| bytes.copy_from_slice(&header))?;
    file.put_tensors(model, 1)?;
    file.put_keys(model)?;
    Ok(file.finish()?)
}

fn safetensors_type(dtype: Dtype) -> tensor::Dtype {
    match dtype {
        Dtype::Fp32 => tensor::Dtype::F32,
        Dtype::Bf16 => tensor::Dtype::BF16,
        Dtype::Fp16 => tensor::Dtype::F16,
    }
}

impl SavedModel {
    /// Reads `model.json` of a folder that [`save`] wrote, and checks that its parts fit together.
    ///
    /// # Errors
    /// [`SavedModelError::Missing`], [`SavedModelError::Damaged`], [`SavedModelError::Version`] or
    /// [`SavedModelError::Read`].
    pub fn open(dir: &Path) -> Result<Self, SavedModelError> {
        let path = dir.join(MANIFEST_NAME);
        let text = match read_regular(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(SavedModelError::Missing(dir.to_owned()));
            }
            text => text.map_err(|source| SavedModelError::Read { path: path.clone(), source })?,
        };
        let damaged = |what| SavedModelError::Damaged { path: path.clone(), what };
        let saved = match sealed::from_json(KIND, FORMAT, &text) {
            Err(SealedError::Format { found, .. }) if FORMATS_BEFORE.contains(&found) => {
                sealed::from_json(KIND, found, &text)
            }
            saved => saved,
        };
        let saved: Self = saved.map_err(|error| {
            if error.is_damage() {
                return damaged(error.to_string());
            }
            SavedModelError::Version { path: path.clone(), source: error }
        })?;
        saved.validate().map_err(|what| damaged(format!("it does not describe a valid model: {what}")))?;
        Ok(saved)
    }

    /// Checks that the model is valid, and that it fits the columns.
    fn validate(&self) -> Result<(), String> {
        let Self { spec, schema, .. } = self;
        if self.weights_stripe_bytes.is_some_and(|bytes| !STRIPES_BYTES.contains(&bytes)) {
            return Err(format!(
                "stripes must have {} to {} bytes",
                STRIPES_BYTES.start(),
                STRIPES_BYTES.end()
            ));
        }
        schema.validate().map_err(|error| error.to_string())?;
        spec.validate().map_err(|error| error.what)?;
        if spec.dense_columns != schema.dense.len() {
            let columns = schema.dense.len();
            return Err(format!("it has {} dense inputs for {columns} dense columns", spec.dense_columns));
        }
        for head in &spec.heads {
            if schema.labels.get(head.label_number).is_none_or(|label| label.name != head.label) {
                return Err(format!("label {} is not number {}", head.label, head.label_number));
            }
        }
        if !spec.features.iter().map(|f| &f.column).eq(schema.categorical.iter().map(|column| &column.name)) {
            return Err("its features differ from the categorical columns".into());
        }
        for (feature, column) in spec.features.iter().zip(&schema.categorical) {
            let table = &spec.tables[feature.table];
            if let Some(rows) = column.rows.filter(|&rows| table.dynamic.is_none() && table.rows < rows) {
                return Err(format!(
                    "table {} has {} rows, and column {} needs {rows}",
                    table.name, table.rows, column.name
                ));
            }
        }
        Ok(())
    }

    /// Opens the weights that [`save`] wrote. The result has no optimizer state. Tables in fp32 are mapped into memory
    /// rather than read: processes that open the same model share them.
    ///
    /// # Errors
    /// The errors of [`SavedModel::weights`].
    pub fn load(&self, dir: &Path) -> Result<CpuModel, SavedModelError> {
        self.weights(dir)?.load()
    }

    /// Returns the columns that it was trained on.
    pub fn columns(&self) -> Columns {
        let Self { schema, format, vocabularies, .. } = self.clone();
        Columns { schema, format, vocabularies }
    }

    /// Returns an encoder that converts raw rows into samples of the model, with the vocabularies in its folder.
    ///
    /// # Errors
    /// The errors of [`Columns::vocabulary`].
    pub fn encoder(&self, dir: &Path) -> Result<Encoder, rankine_base::Error> {
        self.columns().encoder(&[dir.to_owned()])
    }

    /// Returns the [`weights_checksum`], if `model.json` has it: older formats do not.
    pub fn weights_checksum(&self) -> Option<Checksum> {
        (self.weights_stripe_bytes == Some(STRIPE_BYTES)).then_some(self.weights.xxh3)
    }

    /// Returns the files whose checksums `model.json` has.
    pub fn files(&self) -> impl Iterator<Item = &FileManifest> {
        std::iter::once(&self.weights).chain(&self.vocabularies)
    }
}

mod verify;

#[cfg(test)]
mod tests;
