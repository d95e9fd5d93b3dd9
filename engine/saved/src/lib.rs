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

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use memmap2::{Advice, Mmap};
use rankine_base::blame::Blame;
use rankine_base::error::IoContext;
use rankine_base::files::{open_regular, read_regular};
use rankine_base::publish::PartialDir;
use rankine_base::sealed::{self, Checksum, SealedError};
use rankine_checkpoint::{Disk, Files, Writer};
use rankine_embedding::cpu::Table;
use rankine_embedding::{Dtype, TableSpec, all_finite};
use rankine_model::{Model, ModelSpec};
use rankine_reader::convert::{Encoder, RowFormat};
use rankine_reader::dataset::FileManifest;
use rankine_reader::write::write_file;
use rankine_reader::{Columns, Schema};
use rayon::prelude::*;
use safetensors::tensor::{self, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use rankine_engine_cpu::CpuModel;

mod stored;

pub use stored::{StoredWeights, scoring_model};
pub use verify::VerifiedSize;

const WEIGHTS_NAME: &str = "model.safetensors";
/// The file with all but the weights and vocabularies.
pub const MANIFEST_NAME: &str = "model.json";
const KIND: &str = "rankine model";
const FORMAT: u32 = 3;
/// Like [`FORMAT`], without the job.
const FORMAT_WITHOUT_JOB: u32 = 2;
/// The maximum length of a header, which is also the limit of the safetensors library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// A thread reads and writes about this many bytes of rows at a time.
const RUN_BYTES: usize = 1 << 20;
/// Bytes of weights in memory that are written at a time.
const WRITTEN_BYTES: usize = 16 << 20;
/// Threads that read a file ahead of its checksum, and the bytes that each reads at a time.
const READERS: usize = 3;
const AHEAD_BYTES: usize = 16 << 20;
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
    let mut vocabularies = Vec::new();
    for file in &columns.vocabularies {
        let path = partial.path().join(&file.name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| rankine_base::Error::Io {
                doing: "create",
                path: folder.to_owned(),
                source,
            })?;
        }
        vocabularies.push(write_file(partial.path(), &file.name, &(metadata.vocabulary)(&file.name)?)?);
    }
    let saved = SavedModel {
        spec: model.spec().clone(),
        schema: columns.schema.clone(),
        format: columns.format.clone(),
        steps: metadata.steps,
        job: Some(metadata.job.to_owned()),
        weights: write_weights(partial.path(), model)?,
        vocabularies,
    };
    write_file(partial.path(), MANIFEST_NAME, sealed::to_json(KIND, FORMAT, &saved).as_bytes())?;
    Ok(partial.publish()?)
}

fn write_weights(dir: &Path, model: &(impl Weights + ?Sized)) -> Result<FileManifest, SavedModelError> {
    let shapes = tensor_shapes(model.spec());
    let mut tensors = Vec::new();
    let mut end = 0;
    for Tensor { name, shape, dtype } in shapes.clone() {
        let start = end;
        end += dtype.bytes() * shape.iter().product::<usize>();
        tensors
            .push((name, TensorInfo { dtype: safetensors_type(dtype), shape, data_offsets: (start, end) }));
    }
    let metadata = Metadata::new(None, tensors).expect("each tensor starts where the one before ends");
    let mut header = serde_json::to_vec(&metadata).expect("metadata is plain data");
    // The format requires its data at a multiple of eight bytes, and allows spaces after the header.
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = WeightsFile::create(dir)?;
    file.put(8, |bytes| bytes.copy_from_slice(&(header.len() as u64).to_le_bytes()))?;
    file.put(header.len(), |bytes| bytes.copy_from_slice(&header))?;
    let before = file.bytes;
    // The current tensor, and how many of its elements are missing.
    let (mut number, mut left) = (0, shapes[0].elements());
    // Dense tensors are in the order of the parameters: layer by layer, weights before bias.
    model.try_for_each_run(&mut |mut values| {
        while !values.is_empty() {
            while left == 0 {
                number += 1;
                left = shapes.get(number).expect("a model has no more weights than its spec").elements();
            }
            let Tensor { name, dtype, .. } = &shapes[number];
            let (here, behind) = values.split_at(values.len().min(left).min(WRITTEN_BYTES / 4));
            // No loss is computed after the last step's update, so nothing has checked it.
            if !file.put(here.len() * dtype.bytes(), |bytes| put_weights(here, *dtype, bytes))? {
                return Err(SavedModelError::NotFinite { tensor: name.clone() });
            }
            (left, values) = (left - here.len(), behind);
        }
        Ok(())
    })?;
    assert_eq!(file.bytes - before, end as u64, "a model has all weights of its spec");
    Ok(file.finish()?)
}

/// Writes weights one behind the other, on several threads. Returns whether all are finite.
fn put_weights(weights: &[f32], dtype: Dtype, bytes: &mut [u8]) -> bool {
    let elements = RUN_BYTES / 4;
    let parts = weights.par_chunks(elements).zip(bytes.par_chunks_mut(elements * dtype.bytes()));
    let put = |(weights, bytes): (&[f32], &mut [u8])| {
        dtype.put_all(weights, bytes);
        all_finite(weights)
    };
    parts.map(put).reduce(|| true, |one, other| one & other)
}

/// The file of weights, with a running checksum.
struct WeightsFile {
    path: PathBuf,
    file: Writer,
    hash: Box<Xxh3Default>,
    bytes: u64,
}

impl WeightsFile {
    fn create(dir: &Path) -> rankine_base::error::Result<Self> {
        let path = dir.join(WEIGHTS_NAME);
        let file = Disk.create(&path).and_then(Writer::new).context("create", &path)?;
        Ok(Self { path, file, hash: Box::default(), bytes: 0 })
    }

    /// Appends bytes, which `fill` sets.
    fn put<T>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> T) -> rankine_base::error::Result<T> {
        let bytes = self.file.next(len).context("write", &self.path)?;
        let filled = fill(bytes);
        self.hash.update(bytes);
        self.bytes += len as u64;
        Ok(filled)
    }

    /// Makes the file durable.
    fn finish(self) -> rankine_base::error::Result<FileManifest> {
        self.file.finish().context("write", &self.path)?;
        Ok(FileManifest { name: WEIGHTS_NAME.into(), bytes: self.bytes, xxh3: Checksum(self.hash.digest()) })
    }
}

/// Returns the checksum of a file. One thread can compute it faster than one can read, so others read ahead.
fn checksum(file: &Mmap) -> u64 {
    let next = AtomicUsize::new(0);
    let read_ahead = || {
        loop {
            let begin = next.fetch_add(AHEAD_BYTES, Ordering::Relaxed);
            if begin >= file.len() {
                break;
            }
            // The advice may be refused: it only affects speed.
            let _ = file.advise_range(Advice::PopulateRead, begin, AHEAD_BYTES.min(file.len() - begin));
        }
    };
    let threads = if file.len() < 2 * AHEAD_BYTES { 0 } else { READERS };
    thread::scope(|scope| {
        for _ in 0..threads {
            // If the system refuses a thread, the others read.
            let _ = thread::Builder::new().name("rankine-read".into()).spawn_scoped(scope, read_ahead);
        }
        xxh3_64(file)
    })
}

/// The name, shape and type of a tensor.
#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
}

impl Tensor {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

fn safetensors_type(dtype: Dtype) -> tensor::Dtype {
    match dtype {
        Dtype::Fp32 => tensor::Dtype::F32,
        Dtype::Bf16 => tensor::Dtype::BF16,
        Dtype::Fp16 => tensor::Dtype::F16,
    }
}

/// Returns all tensors, in the order of their bytes.
fn tensor_shapes(spec: &ModelSpec) -> Vec<Tensor> {
    let layers = spec.dense_layout().named_layers().into_iter().flat_map(|(name, layer)| {
        let dense = |part, shape| Tensor { name: format!("{name}.{part}"), shape, dtype: Dtype::Fp32 };
        let weight = dense("weight", vec![layer.outputs, layer.inputs]);
        let bias = layer.bias.then(|| dense("bias", vec![layer.outputs]));
        std::iter::once(weight).chain(bias).collect::<Vec<_>>()
    });
    let named = |kind: &'static str, tables: Vec<TableSpec>| {
        let tensor = move |table: TableSpec| Tensor {
            name: format!("{kind}.{}", table.name),
            shape: vec![table.rows as usize, table.dim],
            dtype: table.dtype,
        };
        tables.into_iter().map(tensor)
    };
    let tables = named("embedding", spec.tables.clone());
    layers.chain(tables).chain(named("wide", spec.wide_tables())).collect()
}

/// Returns the total bytes of the tensors, unless that overflows.
fn tensor_bytes(tensors: &[Tensor]) -> Option<u64> {
    tensors.iter().try_fold(0u64, |sum, Tensor { shape, dtype, .. }| {
        let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64))?;
        sum.checked_add(elements.checked_mul(dtype.bytes() as u64)?)
    })
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
            Err(SealedError::Format { found: FORMAT_WITHOUT_JOB, .. }) => {
                sealed::from_json(KIND, FORMAT_WITHOUT_JOB, &text)
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
            if table.rows < column.rows {
                return Err(format!(
                    "table {} has {} rows, and column {} needs {}",
                    table.name, table.rows, column.name, column.rows
                ));
            }
        }
        Ok(())
    }

    /// Opens the weights that [`save`] wrote. The result has no optimizer state. Tables in fp32 are mapped into memory
    /// rather than read: processes that open the same model share them.
    ///
    /// # Errors
    /// [`SavedModelError::Damaged`] if a tensor is missing, or has another shape or other bytes than were saved.
    pub fn load(&self, dir: &Path) -> Result<CpuModel, SavedModelError> {
        let path = dir.join(WEIGHTS_NAME);
        let damaged = |what: String| SavedModelError::Damaged { path: path.clone(), what };
        let read = |source| SavedModelError::Read { path: path.clone(), source };
        let file = open_regular(&path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        if bytes != self.weights.bytes {
            return Err(damaged(format!("it has {bytes} bytes but should have {}", self.weights.bytes)));
        }
        // SAFETY: nothing changes the files of a saved model; a new one replaces the folder.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let mut offset = self.tensors_begin(&map).map_err(damaged)?;
        if checksum(&map) != self.weights.xxh3.0 {
            return Err(damaged("its checksum does not match model.json".into()));
        }
        let mut take = |elements: usize, dtype: Dtype| {
            let begin = offset;
            offset += elements * dtype.bytes();
            (begin, &map[begin..offset])
        };
        let (_, dense) = take(self.spec.dense_parameters(), Dtype::Fp32);
        let parameters = dense.chunks_exact(4).map(|bytes| Dtype::Fp32.read(bytes)).collect();
        let mut tables = Vec::new();
        let model = Model::sgd(self.spec.clone(), 0.0);
        for (spec, optimizer) in model.all_tables() {
            let (dim, dtype) = (spec.dim, spec.dtype);
            let (begin, rows) = take(spec.rows as usize * dim, dtype);
            tables.push(match dtype {
                // SAFETY: as above.
                Dtype::Fp32 => unsafe { Table::mapped(spec, &file, begin as u64) }.map_err(read)?,
                Dtype::Bf16 | Dtype::Fp16 => Table::filled(spec, optimizer, |row, weights| {
                    let row = &rows[row as usize * dim * dtype.bytes()..];
                    let elements = weights.iter_mut().zip(row.chunks_exact(dtype.bytes()));
                    elements.for_each(|(weight, bytes)| *weight = dtype.read(bytes));
                }),
            });
        }
        Ok(CpuModel::new(&model, parameters, tables))
    }

    /// Checks the header of the weights; returns where the tensors begin.
    fn tensors_begin(&self, file: &[u8]) -> Result<usize, String> {
        let (length, rest) = file.split_first_chunk().ok_or("it has no header")?;
        let length = u64::from_le_bytes(*length);
        if length > HEADER_BYTES_MAX || length > rest.len() as u64 {
            return Err(format!("a header of {length} bytes is too long"));
        }
        let (header, tensors) = rest.split_at(length as usize);
        let metadata: Metadata = serde_json::from_slice(header).map_err(|error| error.to_string())?;
        let shapes = tensor_shapes(&self.spec);
        let expected: Vec<_> = shapes
            .iter()
            .map(|Tensor { name, shape, dtype }| (name.as_str(), shape.as_slice(), safetensors_type(*dtype)))
            .collect();
        let names = metadata.offset_keys();
        let found: Vec<_> = names
            .iter()
            .filter_map(|name| Some((name.as_str(), metadata.info(name)?)))
            .map(|(name, info)| (name, info.shape.as_slice(), info.dtype))
            .collect();
        if found != expected {
            return Err("its tensors differ from those of the model".into());
        }
        // Checked before memory is allocated for tensors that the file does not have.
        if tensor_bytes(&shapes) != Some(tensors.len() as u64) {
            return Err("its length does not fit its tensors".into());
        }
        // The format requires this, and rows are used where they are.
        let begin = file.len() - tensors.len();
        if begin.is_multiple_of(8) { Ok(begin) } else { Err("its tensors are not aligned".into()) }
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

    /// Returns the files whose checksums `model.json` has.
    pub fn files(&self) -> impl Iterator<Item = &FileManifest> {
        std::iter::once(&self.weights).chain(&self.vocabularies)
    }
}

mod verify;

#[cfg(test)]
mod tests;
