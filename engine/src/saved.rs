//! A trained model on disk: `model.safetensors` with every weight, the vocabularies, and `model.json` with the rest
//! that scoring raw rows needs: the model's sizes, the columns with their transforms, the job, and the checksums of all
//! files. [`crate::source`] finds a model in a run, in a checkpoint or in an export.
//! `docs/reference/checkpoint-format.md` describes how to compute predictions from the tensors.
//!
//! Tensors are f32, those of tables what the job says, and a model has those of its parts:
//!
//! - `bottom.0.weight` `[outputs, inputs]`, `bottom.0.bias` `[outputs]`, ..., `top.0.weight`, `top.0.bias`, ...
//! - `cross.0.weight` and `cross.0.bias`, ...; with a rank `cross.0.v.weight`, `cross.0.u.weight` and `cross.0.u.bias`
//! - `linear.weight` `[heads, dense columns]`: the dense columns' first-order terms
//! - `embedding.TABLE` `[rows, dim]`
//! - `wide.COLUMN` `[rows, heads]`: the first-order terms of a categorical column

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rankine_embedding::cpu::Table;
use rankine_embedding::{Dtype, TableSpec};
use rankine_reader::Schema;
use rankine_reader::convert::{Encoder, RowFormat};
use rankine_reader::dataset::FileManifest;
use rankine_reader::publish::PartialDir;
use rankine_reader::sealed::{self, SealedError};
use rankine_reader::write::{CheckedFile, write_file};
use safetensors::tensor::{self, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::cpu::CpuModel;
use crate::model::{ModelSpec, TrainingRules};

mod columns;
mod stored;

pub use columns::Columns;
pub use stored::{StoredWeights, scoring_model};
pub use verify::Verified;

const WEIGHTS_NAME: &str = "model.safetensors";
pub(crate) const MANIFEST_NAME: &str = "model.json";
const KIND: &str = "rankine model";
const FORMAT: u32 = 3;
/// Like [`FORMAT`], without the job.
const FORMAT_WITHOUT_JOB: u32 = 2;
/// The longest header that is believed; safetensors' own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Rows are written and read in runs of about this many bytes.
const RUN_BYTES: usize = 1 << 20;
/// Bytes of rows that are collected at a time from where they lie.
const GATHER_BYTES: usize = 64 << 20;

/// What went wrong with a saved model.
#[derive(Debug, thiserror::Error)]
pub enum SavedModelError {
    /// The folder holds no model.
    #[error("no model at {}: a finished run has one in its folder `model`", .0.display())]
    Missing(PathBuf),
    /// A file is not what was saved.
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
        /// What it says of itself.
        source: SealedError,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        source: std::io::Error,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] rankine_reader::Error),
    /// There is nothing worth saving.
    #[error(
        "some of {tensor} are not numbers: training diverged, and the usual cause is a learning rate that is too \
         high; the model was not saved"
    )]
    NotFinite {
        /// The first tensor that has such weights.
        tensor: String,
    },
    /// Processes that have some of the weights are gone.
    #[error(transparent)]
    Processes(#[from] crate::launch::MeetError),
    /// The weights cannot be had from where they are.
    #[error("the weights cannot be read from the GPU: {0}; the model was not saved")]
    Gpu(String),
    /// The weights cannot be had from the checkpoint.
    #[error("the weights cannot be read from the checkpoint: {0}")]
    Source(String),
    /// The dataset's ids do not mean what the model learned.
    #[error("the dataset {} does not fit the model: {what}", dataset.display())]
    Mismatch {
        /// The dataset's folder.
        dataset: PathBuf,
        /// The first difference.
        what: String,
    },
}

/// What `model.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedModel {
    /// The model's parts and sizes.
    pub spec: ModelSpec,
    /// The columns that it was trained on, with their transforms and vocabularies.
    pub schema: Schema,
    /// How raw rows of its columns are read; absent where it was trained on generated data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<RowFormat>,
    /// Steps of training behind it.
    pub steps: u64,
    /// The effective job, as TOML: scoring takes its batch size, its threads, and what becomes of ids beyond a table.
    /// Absent in format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The checksum of the weights.
    weights: FileManifest,
    /// The vocabularies, as they lie in this folder.
    vocabularies: Vec<FileManifest>,
}

/// A model whose weights can be had, wherever they lie.
pub trait Weights {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;

    /// Tells all weights in runs of any length: dense parameters as [`crate::model::DenseLayout::named_layers`] has
    /// them, then the rows of each table, in order, those of first-order terms last.
    ///
    /// # Errors
    /// The first that `tell` returns; [`SavedModelError::Gpu`].
    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError>;
}

impl Weights for CpuModel {
    fn spec(&self) -> &ModelSpec {
        self.spec()
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        tell(self.parameters())?;
        let tables = self.spec().tables.iter().cloned().chain(self.spec().wide_tables());
        for (number, table) in tables.enumerate() {
            for_each_run(&table, |rows, weights| {
                self.gather(number, rows, (table.dim, weights));
                tell(weights)
            })?;
        }
        Ok(())
    }
}

/// Lets `run` have the rows of a table in runs of about 64 MiB, each with room for its weights, `[row][dim]`.
///
/// # Errors
/// The first that `run` returns.
pub fn for_each_run(
    table: &TableSpec,
    mut run: impl FnMut(Range<u64>, &mut [f32]) -> Result<(), SavedModelError>,
) -> Result<(), SavedModelError> {
    let at_once = (GATHER_BYTES / (4 * table.dim)).max(1) as u64;
    let mut weights = vec![0.0; (at_once.min(table.rows) as usize) * table.dim];
    for first in (0..table.rows).step_by(at_once as usize) {
        let rows = first..table.rows.min(first + at_once);
        let len = (rows.end - first) as usize * table.dim;
        run(rows, &mut weights[..len])?;
    }
    Ok(())
}

/// What a saved model has beside its weights.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// Steps of training behind it.
    pub steps: u64,
    /// The effective job, as TOML.
    pub job: &'a str,
    /// The columns that it was trained on.
    pub columns: &'a Columns,
    /// Reads one of the columns' vocabularies, and has checked it.
    pub vocabulary: &'a dyn Fn(&str) -> Result<Vec<u8>, rankine_reader::Error>,
}

/// Saves a model into `dir`, which appears only when it is complete and durable. What lies on a GPU goes to the file
/// piece by piece.
///
/// # Errors
/// [`SavedModelError::Write`], [`SavedModelError::NotFinite`] and [`SavedModelError::Gpu`].
pub fn save(dir: &Path, model: &impl Weights, beside: &Beside<'_>) -> Result<(), SavedModelError> {
    save_into(PartialDir::create(dir)?, model, beside)
}

/// The same into a folder that was begun.
///
/// # Errors
/// As [`save`].
pub fn save_into(
    partial: PartialDir,
    model: &impl Weights,
    beside: &Beside<'_>,
) -> Result<(), SavedModelError> {
    let columns = beside.columns;
    let mut vocabularies = Vec::new();
    for file in &columns.vocabularies {
        let path = partial.path().join(&file.name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| rankine_reader::Error::Io {
                doing: "create",
                path: folder.to_owned(),
                source,
            })?;
        }
        vocabularies.push(write_file(partial.path(), &file.name, &(beside.vocabulary)(&file.name)?)?);
    }
    let saved = SavedModel {
        spec: model.spec().clone(),
        schema: columns.schema.clone(),
        format: columns.format.clone(),
        steps: beside.steps,
        job: Some(beside.job.to_owned()),
        weights: write_weights(partial.path(), model)?,
        vocabularies,
    };
    write_file(partial.path(), MANIFEST_NAME, sealed::to_json(KIND, FORMAT, &saved).as_bytes())?;
    Ok(partial.publish()?)
}

fn write_weights(dir: &Path, model: &impl Weights) -> Result<FileManifest, SavedModelError> {
    let shapes = tensor_shapes(model.spec());
    let mut tensors = Vec::new();
    let mut end = 0;
    for Tensor { name, shape, dtype } in shapes.clone() {
        let start = end;
        end += dtype.bytes() * shape.iter().product::<usize>();
        tensors.push((name, TensorInfo { dtype: named(dtype), shape, data_offsets: (start, end) }));
    }
    let metadata = Metadata::new(None, tensors).expect("tensors lie one behind the other");
    let mut header = serde_json::to_vec(&metadata).expect("metadata is plain data");
    // The format wants its data at a multiple of eight, and allows spaces behind the header.
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = CheckedFile::create(dir, WEIGHTS_NAME)?;
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(&header)?;
    let mut run = Vec::new();
    let mut written = 0;
    // The tensor that comes next, and how many of its numbers are to come.
    let (mut number, mut left) = (0, shapes[0].elements());
    // Dense tensors come in the order of the parameters, weights before bias, layer by layer.
    model.try_for_each_run(&mut |mut values| {
        while !values.is_empty() {
            while left == 0 {
                number += 1;
                left =
                    shapes.get(number).expect("a model tells no more weights than its spec says").elements();
            }
            let Tensor { name, dtype, .. } = &shapes[number];
            let (here, behind) = values.split_at(values.len().min(left).min(RUN_BYTES / 4));
            // No loss sees the last step's update.
            if here.iter().any(|value| !value.is_finite()) {
                return Err(SavedModelError::NotFinite { tensor: name.clone() });
            }
            let (filled, size) = (run.len(), dtype.bytes());
            run.resize(filled + here.len() * size, 0);
            let rooms = run[filled..].chunks_exact_mut(size);
            rooms.zip(here).for_each(|(room, &value)| dtype.put(value, room));
            (left, values) = (left - here.len(), behind);
            if run.len() >= RUN_BYTES {
                written += run.len();
                file.write(&run)?;
                run.clear();
            }
        }
        Ok(())
    })?;
    assert_eq!(written + run.len(), end, "a model tells as many weights as its spec says");
    file.write(&run)?;
    Ok(file.finish()?)
}

/// A tensor, but for what it contains.
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

/// A type's name in safetensors.
fn named(dtype: Dtype) -> tensor::Dtype {
    match dtype {
        Dtype::Fp32 => tensor::Dtype::F32,
        Dtype::Bf16 => tensor::Dtype::BF16,
        Dtype::Fp16 => tensor::Dtype::F16,
    }
}

/// Every tensor, in the order of their bytes.
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

/// The bytes of some tensors, where those can be counted.
fn tensor_bytes(tensors: &[Tensor]) -> Option<u64> {
    tensors.iter().try_fold(0u64, |sum, Tensor { shape, dtype, .. }| {
        let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64))?;
        sum.checked_add(elements.checked_mul(dtype.bytes() as u64)?)
    })
}

impl SavedModel {
    /// Reads `model.json` of a folder that [`save`] made, and checks that its parts fit together.
    ///
    /// # Errors
    /// [`SavedModelError::Missing`], [`SavedModelError::Damaged`], [`SavedModelError::Version`] or
    /// [`SavedModelError::Read`].
    pub fn open(dir: &Path) -> Result<Self, SavedModelError> {
        let path = dir.join(MANIFEST_NAME);
        let text = match fs::read(&path) {
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
                return damaged(error.into());
            }
            SavedModelError::Version { path: path.clone(), source: error }
        })?;
        saved.validate().map_err(|what| damaged(format!("what it describes is no model: {what}")))?;
        Ok(saved)
    }

    /// Checks that the model is one, and one of the columns.
    fn validate(&self) -> Result<(), String> {
        let Self { spec, schema, .. } = self;
        schema.validate().map_err(|error| error.to_string())?;
        spec.validate()?;
        if spec.dense_columns != schema.dense.len() {
            return Err(format!("it takes {} dense columns of {}", spec.dense_columns, schema.dense.len()));
        }
        for head in &spec.heads {
            if schema.labels.get(head.label_number).is_none_or(|label| label.name != head.label) {
                return Err(format!("label {} is not number {}", head.label, head.label_number));
            }
        }
        if !spec.features.iter().map(|f| &f.column).eq(schema.categorical.iter().map(|column| &column.name)) {
            return Err("its features are not the categorical columns".into());
        }
        for (feature, column) in spec.features.iter().zip(&schema.categorical) {
            let table = &spec.tables[feature.table];
            if table.rows < column.rows {
                return Err(format!(
                    "table {} has {} rows, and column {} counts {}",
                    table.name, table.rows, column.name, column.rows
                ));
            }
        }
        Ok(())
    }

    /// Reads the weights, as [`save`] wrote them; nothing is kept to learn with.
    ///
    /// # Errors
    /// [`SavedModelError::Damaged`] where a tensor is missing, of another shape, or of other bytes than were saved.
    pub fn load(&self, dir: &Path) -> Result<CpuModel, SavedModelError> {
        let path = dir.join(WEIGHTS_NAME);
        let damaged = |what: String| SavedModelError::Damaged { path: path.clone(), what };
        let read = |source| SavedModelError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        if bytes != self.weights.bytes {
            return Err(damaged(format!("it has {bytes} bytes and should have {}", self.weights.bytes)));
        }
        let mut input =
            HashingReader { inner: BufReader::with_capacity(RUN_BYTES, file), hash: Box::default() };
        let mut length = [0; 8];
        input.read_exact(&mut length).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX || length > bytes.saturating_sub(8) {
            return Err(damaged(format!("a header of {length} bytes is too long")));
        }
        let mut header = vec![0; length as usize];
        input.read_exact(&mut header).map_err(read)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let shapes = tensor_shapes(&self.spec);
        let expected: Vec<_> = shapes
            .iter()
            .map(|Tensor { name, shape, dtype }| (name.as_str(), shape.as_slice(), named(*dtype)))
            .collect();
        let names = metadata.offset_keys();
        let found: Vec<_> = names
            .iter()
            .filter_map(|name| Some((name.as_str(), metadata.info(name)?)))
            .map(|(name, info)| (name, info.shape.as_slice(), info.dtype))
            .collect();
        if found != expected {
            return Err(damaged("its tensors are not those of the model".into()));
        }
        // Before memory is taken for what the file does not hold.
        if tensor_bytes(&shapes) != bytes.checked_sub(8 + length) {
            return Err(damaged("its tensors have more or fewer bytes than the file".into()));
        }

        let mut bytes = Vec::new();
        let mut take = |values: &mut [f32], dtype: Dtype| -> Result<(), SavedModelError> {
            bytes.resize(values.len() * dtype.bytes(), 0);
            input.read_exact(&mut bytes).map_err(read)?;
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(dtype.bytes())) {
                *value = dtype.read(bytes);
            }
            Ok(())
        };
        let mut parameters = vec![0.0; self.spec.dense_parameters()];
        take(&mut parameters, Dtype::Fp32)?;
        let mut tables = Vec::new();
        let rules = TrainingRules::sgd(&self.spec, 0.0);
        for (spec, optimizer) in rules.all_tables(&self.spec) {
            let (rows, dtype) = (spec.rows, spec.dtype);
            let mut table = Table::zeroed(spec, optimizer);
            for row in 0..rows {
                take(table.weights_mut(row), dtype)?;
            }
            tables.push(table);
        }
        if input.hash.digest() != self.weights.xxh3.0 {
            return Err(damaged("its checksum is not the one in model.json".into()));
        }
        Ok(CpuModel::new(self.spec.clone(), &rules, parameters, tables))
    }

    /// The columns that it was trained on.
    pub fn columns(&self) -> Columns {
        let Self { schema, format, vocabularies, .. } = self.clone();
        Columns { schema, format, vocabularies }
    }

    /// What turns raw rows into samples of the model, with the vocabularies that lie in its folder.
    ///
    /// # Errors
    /// As [`Columns::encoder`].
    pub fn encoder(&self, dir: &Path) -> Result<Encoder, rankine_reader::Error> {
        self.columns().encoder(&[dir.to_owned()])
    }

    /// The files that it vouches for.
    pub fn files(&self) -> impl Iterator<Item = &FileManifest> {
        std::iter::once(&self.weights).chain(&self.vocabularies)
    }
}

/// Checksums what passes through it.
struct HashingReader<R> {
    inner: R,
    hash: Box<xxhash_rust::xxh3::Xxh3Default>,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.hash.update(&buffer[..bytes]);
        Ok(bytes)
    }
}

mod verify;

#[cfg(test)]
mod tests;
