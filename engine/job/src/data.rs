//! `[data]` and `[reader]`: where samples come from, and how they are read.

use std::fmt;
use std::path::{Path, PathBuf};

use rankine_base::size::parse_size;
use rankine_reader::io::{IoMode, IoOptions};
use rankine_reader::merge::open_all;
use rankine_reader::raw::{RawDense, RawFormat, RawIds};
use rankine_reader::store::CacheOptions;
use rankine_reader::{Dataset, Fit, generate};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};

use super::values::{Count, Folders, NonNegative, QueueDepth, Shape};

/// `[data]`: where the samples are: in dataset folders (`dir`) or in raw files of HugeCTR and MLPerf (`raw`).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The dataset folder, as `rankine convert`, `rankine generate` or `rankine dataset merge` wrote it, or its url:
    /// `s3://BUCKET/PATH`, `gs://` or `az://`. A list of them is read as one dataset: its parts have the samples of all
    /// of them, in this order. A relative path is relative to the working directory of the command. Set either this or
    /// `raw`.
    pub(crate) dir: Option<Folders>,
    /// The columns of a dataset that does not exist yet: `churn`, `dlrm`, `dlrm-dcnv2`, `sequences`, or the path of a
    /// shape file. `rankine check` and `rankine plan` use it until the dataset exists, and ignore it afterwards. Only
    /// with `dir`.
    pub(crate) shape: Option<Shape>,
    /// Raw files, read without conversion.
    pub(crate) raw: Option<Raw>,
    /// Where data stay once they are read. Only with `dir`. It does not affect the result. A table names a folder:
    /// `cache = { dir = "/nvme/rankine", bytes = "200GB" }`.
    #[serde(default)]
    pub cache: DataCache,
    /// Generates the dataset if it does not exist. Only with `dir`.
    pub(crate) generate: Option<Generate>,
}

/// Where data stay once they are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DataCache {
    /// Nowhere: each epoch reads them.
    #[default]
    None,
    /// The training part in the memory of the GPUs: each GPU of a process keeps its share of the blocks, and the
    /// others copy them from there. A process reads each block once. Requires GPUs, and fails if their memory does not
    /// suffice; `rankine plan` says whether it does.
    Gpu,
    /// Blocks of datasets in object stores in a local folder.
    Folder(CacheFolder),
}

/// A local folder that keeps blocks of datasets in object stores. Each block is verified when it is read, and one that
/// is damaged is fetched again. Processes, also of several jobs, can share the folder. Blocks of local datasets are not
/// copied.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct CacheFolder {
    /// The folder, which is created if it does not exist.
    pub dir: PathBuf,
    /// The most bytes that it may hold: `"200GB"`, `"1.5TiB"`.
    pub bytes: ByteSize,
}

impl CacheFolder {
    /// Returns the options of the reader's cache.
    pub fn options(&self) -> CacheOptions {
        CacheOptions { dir: self.dir.clone(), bytes: self.bytes.get() }
    }
}

/// A size that remembers how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteSize {
    bytes: u64,
    text: String,
}

impl ByteSize {
    /// Returns the number of bytes.
    pub fn get(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = parse_size(&text).map_err(D::Error::custom)?;
        Ok(Self { bytes, text })
    }
}

#[cfg(test)]
impl serde::Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? ?([kKMGT]i?)?B?$" })
    }
}

#[cfg(test)]
impl serde::Serialize for DataCache {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => "none".serialize(serializer),
            Self::Gpu => "gpu".serialize(serializer),
            Self::Folder(folder) => folder.serialize(serializer),
        }
    }
}

#[cfg(test)]
impl schemars::JsonSchema for DataCache {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DataCache".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let folder = generator.subschema_for::<CacheFolder>();
        schemars::json_schema!({
            "oneOf": [
                { "type": "string", "const": "none", "description": "Nowhere: each epoch reads them." },
                {
                    "type": "string",
                    "const": "gpu",
                    "description": "The training part in the memory of the GPUs: each GPU of a process keeps its share \
                        of the blocks, and the others copy them from there. A process reads each block once. Requires \
                        GPUs, and fails if their memory does not suffice; `rankine plan` says whether it does."
                },
                folder
            ]
        })
    }
}

impl<'de> Deserialize<'de> for DataCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CacheVisitor;

        impl<'de> Visitor<'de> for CacheVisitor {
            type Value = DataCache;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("none, gpu, or a folder: { dir = \"PATH\", bytes = \"200GB\" }")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<DataCache, E> {
                match text {
                    "none" => Ok(DataCache::None),
                    "gpu" => Ok(DataCache::Gpu),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataCache, A::Error> {
                CacheFolder::deserialize(MapAccessDeserializer::new(map)).map(DataCache::Folder)
            }
        }

        deserializer.deserialize_any(CacheVisitor)
    }
}

/// Where the samples of a job are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DataSource<'a> {
    /// In dataset folders.
    Folders(DataFolders<'a>),
    /// In raw files.
    Raw(&'a Raw),
}

/// The dataset folders of a job, which may not exist yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataFolders<'a> {
    /// The folders, which together are one dataset.
    pub dirs: &'a [PathBuf],
    /// Their columns, as long as they do not exist.
    pub shape: Option<&'a Shape>,
    /// How the dataset is generated; there is then one folder.
    pub generate: Option<&'a Generate>,
    /// Where blocks of objects are kept.
    pub cache: Option<&'a CacheFolder>,
}

impl<'a> DataFolders<'a> {
    /// Returns the first folder that holds no dataset; `None` if all of them do. A fit counts as a dataset, so that
    /// opening it reports what it is.
    pub fn missing(self) -> Option<&'a Path> {
        self.dirs.iter().map(PathBuf::as_path).find(|dir| !Dataset::exists(dir) && !Fit::exists(dir))
    }

    /// Opens the folders as one dataset.
    ///
    /// # Errors
    /// As [`open_all`] and [`Dataset::with_cache`].
    pub fn open(self) -> rankine_base::Result<Dataset> {
        with_cache(open_all(self.dirs)?, self.cache)
    }

    /// Returns the folders as messages name them.
    pub fn name(self) -> String {
        let names: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        names.join(", ")
    }
}

impl Data {
    /// Returns where the samples are. A job that was loaded has exactly one source.
    pub fn source(&self) -> DataSource<'_> {
        match &self.raw {
            Some(raw) => DataSource::Raw(raw),
            None => DataSource::Folders(DataFolders {
                dirs: self.folders(),
                shape: self.shape.as_ref(),
                generate: self.generate.as_ref(),
                cache: self.cache_folder(),
            }),
        }
    }

    /// Returns the folder that keeps blocks of objects.
    pub fn cache_folder(&self) -> Option<&CacheFolder> {
        match &self.cache {
            DataCache::Folder(folder) => Some(folder),
            DataCache::None | DataCache::Gpu => None,
        }
    }

    /// Opens further datasets as one, with the same cache.
    ///
    /// # Errors
    /// As [`open_all`] and [`Dataset::with_cache`].
    pub fn open_beside(&self, dirs: &[PathBuf]) -> rankine_base::Result<Dataset> {
        with_cache(open_all(dirs)?, self.cache_folder())
    }

    /// Returns the dataset folders; none if the samples are in raw files.
    pub fn folders(&self) -> &[PathBuf] {
        self.dir.as_ref().map_or(&[], Folders::paths)
    }

    /// Returns the dataset folder, or `None` if there are several, or the samples are in raw files.
    pub fn folder(&self) -> Option<&Path> {
        match self.folders() {
            [dir] => Some(dir),
            _ => None,
        }
    }

    /// Returns how the dataset folder is generated, if it is.
    pub fn generate(&self) -> Option<&Generate> {
        match self.source() {
            DataSource::Folders(folders) => folders.generate,
            DataSource::Raw(_) => None,
        }
    }

    /// Returns the raw files, for training and then for evaluation; none if there is a folder.
    pub fn raw_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.raw.iter().flat_map(|raw| raw.train.iter().chain(&raw.eval))
    }
}

/// `[data.raw]`: files of fixed-size records in the format of HugeCTR's raw reader and MLPerf's preprocessing, read
/// without conversion. A record consists of little-endian fields of four bytes: labels, dense values, then the ids of
/// each categorical column (as many as its hotness). The columns are named `label` (or `label1`, `label2`, ...), `I1`,
/// `I2`, ... and `C1`, `C2`, ...
///
/// A bad record (a label other than 0 and 1, or an id outside of its table) ends the run with an error that names
/// the record. `rankine convert hugectr-raw` can skip such records, and its output takes half the space.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// The columns, table sizes and hotness: `dlrm`, `dlrm-dcnv2`, or the path of a shape file.
    pub shape: Shape,
    /// Limits tables to this number of rows. Without it, tables are as large as the shape states.
    pub rows_cap: Option<Count>,
    /// The files to train on, in order.
    pub train: Vec<PathBuf>,
    /// The files to evaluate on. Without them the model is not evaluated.
    #[serde(default)]
    pub eval: Vec<PathBuf>,
    /// Number of labels per record. A label is 0 or 1, as an integer or a float.
    #[serde(default = "one_label")]
    pub labels: Count,
    /// Type of the dense fields: `float`, used unchanged, or `int`, transformed to `ln(max(x, 0) + 1)`.
    #[serde(default)]
    #[cfg_attr(test, schemars(schema_with = "super::tests::reference::raw_dense"))]
    pub dense: RawDense,
    /// How ids are numbered: from 0 in each table (`per-table`), or consecutively over the rows of all tables
    /// (`global-offset`).
    #[serde(default)]
    #[cfg_attr(test, schemars(schema_with = "super::tests::reference::raw_ids"))]
    pub ids: RawIds,
}

impl Raw {
    /// Returns the format of the records.
    ///
    /// # Errors
    /// [`rankine_base::Error`] if the shape's file cannot be read, or is not a shape.
    pub fn format(&self) -> rankine_base::Result<RawFormat> {
        Ok(RawFormat {
            rows_cap: self.rows_cap.map(Count::get),
            // The check of the record's length refuses more.
            labels: self.labels.get().try_into().unwrap_or(u32::MAX),
            dense: self.dense,
            ids: self.ids,
            ..RawFormat::new(generate::Shape::load(&self.shape.to_string())?)
        })
    }
}

fn with_cache(dataset: Dataset, cache: Option<&CacheFolder>) -> rankine_base::Result<Dataset> {
    match cache {
        Some(cache) => dataset.with_cache(&cache.options()),
        None => Ok(dataset),
    }
}

fn one_label() -> Count {
    Count::new(1).expect("a constant in range")
}

/// `[data.generate]`: a synthetic dataset, generated in `data.dir` if that folder does not exist. The same settings
/// give the same bytes on every machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// The columns: `churn`, `dlrm`, `dlrm-dcnv2`, `sequences`, or the path of a shape file.
    pub shape: Shape,
    /// Limits tables to this number of rows. Without it, tables are as large as the shape states.
    pub rows_cap: Option<Count>,
    /// Samples to train on.
    pub samples: Count,
    /// Samples to evaluate on; 0 for a dataset without an evaluation part.
    #[serde(default)]
    pub eval_samples: u64,
    /// Exponent of the power law that ids follow: the k-th most frequent row of a table is drawn with a probability
    /// proportional to k^-alpha. 0 is uniform.
    #[serde(default = "default_alpha")]
    pub alpha: NonNegative,
    /// Seed of the samples and of the hidden model that labels them.
    #[serde(default = "default_seed")]
    pub seed: u64,
}

fn default_alpha() -> NonNegative {
    NonNegative::new(1.1).expect("a constant in range")
}

fn default_seed() -> u64 {
    1
}

/// `[reader]`: how blocks are read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Reader {
    /// How blocks are read from disk. `auto` uses the fastest mode that works; `rankine doctor` lists them.
    #[cfg_attr(test, schemars(schema_with = "super::tests::reference::io_mode"))]
    pub mode: IoMode,
    /// Number of blocks in flight.
    pub queue_depth: QueueDepth,
}

impl Reader {
    /// Returns these settings as the reader's options.
    pub fn io_options(&self) -> IoOptions {
        IoOptions { mode: self.mode, depth: self.queue_depth.get() }
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self { mode: IoMode::default(), queue_depth: QueueDepth::new(16).expect("a constant in range") }
    }
}
