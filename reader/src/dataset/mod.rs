//! A dataset on disk: either a folder whose `dataset.json` is written last and holds checksums of all other files, or
//! raw files of other programs, read as they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::error::{Error, IoContext, Malformed, Result};
use rankine_base::files::check_regular;
use rankine_base::sealed::{self, Checksum, SealedError};
use rankine_base::url::without_file_scheme;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::block::BlockId;
use crate::ids::{IdRules, OutOfRange};
use crate::io::ReadFiles;
use crate::origin::{Origin, RowFormat};
use crate::part::Part;
use crate::raw::{RawFormat, RecordDecoder};
use crate::schema::{Categorical, DenseDtype, Schema};
use crate::statistics::{self, TableStatistics};
use crate::store::{self, BlockCache, CacheOptions, Objects};

mod collection;
mod fit;
mod folder;
mod format;
mod popularity;
mod validation;

pub use collection::COLLECTION_NAME;
pub(crate) use collection::{Collection, STATISTICS_FOLDER, first_repeated, open_folders, statistics_name};
pub(crate) use fit::FitManifest;
pub use fit::{FIT_NAME, Fit};
pub(crate) use folder::{Folders, Shard};
pub use format::{FORMAT, FORMAT_DOWNSAMPLED, FORMAT_OPEN, FORMAT_SEQUENCES, FORMAT_WEIGHTED};
pub use validation::Selection;
use validation::ValidationCut;

/// The file that makes a folder a dataset.
pub const MANIFEST_NAME: &str = "dataset.json";
const KIND: &str = "rankine dataset";
/// The index of a part's blocks, in the part's folder.
pub const INDEX_NAME: &str = "index.bin";
/// Bytes of one index entry.
const INDEX_ENTRY_BYTES: usize = 16;

/// The contents of `dataset.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The columns.
    pub schema: Schema,
    /// Samples of every block except a part's last.
    pub block_samples: u32,
    /// The parts of the dataset; a part without samples is absent.
    pub parts: BTreeMap<Part, PartManifest>,
    /// Files outside the parts: statistics and vocabularies.
    pub files: Vec<FileManifest>,
    /// The source of the samples.
    pub origin: Origin,
}

/// The manifest's entry for a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartManifest {
    /// Samples in all blocks.
    pub samples: u64,
    /// Samples whose label is 1, one number per label column.
    pub positives: Vec<u64>,
    /// Samples whose label is missing, one number per label column.
    pub missing: Vec<u64>,
    /// The files of blocks, in the order of their samples.
    pub blocks: Vec<BlocksFile>,
    /// The checksum of the index.
    pub index_xxh3: Checksum,
}

/// A file of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlocksFile {
    /// The name within the part's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its number of blocks.
    pub blocks: u64,
}

/// A file that is checked as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileManifest {
    /// The path in the dataset's folder, with forward slashes.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub xxh3: Checksum,
}

impl Manifest {
    /// Returns a number that every block of the dataset carries, so that a block with another schema is rejected: the
    /// checksum of the schema as JSON.
    pub fn tag(schema: &Schema) -> u64 {
        xxh3_64(&serde_json::to_vec(schema).expect("a schema is plain data"))
    }

    /// Returns the AUC, on the evaluation part, of the teacher that made the labels, for generated data.
    pub fn auc_achievable(&self) -> Option<f64> {
        match &self.origin {
            Origin::Generated(generation) => generation.auc_achievable,
            Origin::Converted(_) => None,
        }
    }

    /// Returns the text of `dataset.json`.
    pub(crate) fn to_json(&self) -> String {
        sealed::to_json(KIND, format::of(&self.schema), self)
    }

    fn from_json(text: &[u8]) -> Result<Self, Malformed> {
        let manifest = match sealed::from_json(KIND, FORMAT, text) {
            Err(SealedError::Format { found, .. }) if format::is_read(found) => {
                sealed::from_json(KIND, found, text)
            }
            read => read,
        };
        let manifest: Self = manifest?;
        manifest.schema.validate().map_err(|error| error.to_string())?;
        if !manifest.schema.bucket_columns().is_empty() {
            return Err("it lists a column of buckets, which datasets do not store".into());
        }
        if manifest.block_samples == 0 {
            return Err("its blocks have no samples".into());
        }
        if let Some(part) = manifest.parts.keys().find(|part| !Part::STORED.contains(part)) {
            return Err(format!("it lists a {part} part, which datasets do not store").into());
        }
        let blocks = manifest.parts.values().flat_map(|part| &part.blocks).map(|file| &file.name);
        if let Some(name) =
            blocks.chain(manifest.files.iter().map(|file| &file.name)).find(|name| !is_below(name))
        {
            return Err(format!("its file {name:?} is not inside the dataset's folder").into());
        }
        Ok(manifest)
    }
}

/// Returns whether a name stays inside the folder that it is joined to.
fn is_below(name: &str) -> bool {
    let mut components = Path::new(name).components();
    !name.is_empty() && components.all(|component| matches!(component, std::path::Component::Normal(_)))
}

/// A dataset that exists and is complete as far as its manifest, or the length of its raw files, shows.
#[derive(Debug, Clone)]
pub struct Dataset {
    dir: PathBuf,
    source: Source,
    ids: Arc<IdRules>,
    /// The columns, if they are not as stored: some are computed from others, or tables are as in another dataset.
    columns: Option<Arc<Schema>>,
    /// The samples of the training part that are held out.
    validation: Option<Arc<ValidationCut>>,
    /// Keeps blocks of objects.
    cache: Option<Arc<BlockCache>>,
}

#[derive(Debug, Clone)]
enum Source {
    Folders(Box<Folders>),
    Raw(Box<RawDataset>),
    Columns(Box<ColumnsOnly>),
}

/// A dataset without samples.
#[derive(Debug, Clone)]
struct ColumnsOnly {
    schema: Schema,
    format: Option<RowFormat>,
    vocabularies: Vec<FileManifest>,
}

/// Raw files used as a dataset.
#[derive(Debug, Clone)]
struct RawDataset {
    decoder: Arc<RecordDecoder>,
    schema: Schema,
    block_samples: u32,
    parts: BTreeMap<Part, Vec<RawFile>>,
}

/// A raw file with its number of records.
#[derive(Debug, Clone)]
struct RawFile {
    path: PathBuf,
    records: u64,
}

/// The position of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLocation {
    /// The number of the file in [`DatasetPart::files`].
    pub file: u32,
    /// The byte offset at which the block starts.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
    /// Its number of samples.
    pub samples: u32,
    /// The checksum that its header must state; 0 for raw records, which have none.
    pub checksum: u64,
}

/// The storage format of the samples of a block.
#[derive(Debug, Clone)]
pub enum BlockCoding {
    /// Packed by Rankine.
    Packed {
        /// The shards of the part, in order.
        shards: Vec<PackedShard>,
    },
    /// Raw records.
    Records(Arc<RecordDecoder>),
}

/// Consecutive blocks that were written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedShard {
    /// The number in the part of its first block, from which block headers count.
    pub first_block: u32,
    /// The tag that block headers must state: see [`Manifest::tag`].
    pub tag: u64,
}

/// A part of a dataset: the positions of its blocks, checked against the files on disk.
#[derive(Debug, Clone)]
pub struct DatasetPart {
    /// The name of the part.
    pub part: Part,
    /// The files of blocks.
    pub files: Vec<PathBuf>,
    /// What is known of those that are objects.
    pub objects: Objects,
    /// All blocks in sample order.
    pub blocks: Vec<BlockLocation>,
    /// Which samples of the blocks belong to the part; `None` for all of them.
    pub selection: Option<Selection>,
    /// Samples of the part.
    pub samples: u64,
    /// The most samples of a block. Only the last block of each shard or raw file has fewer, unless shards differ.
    pub block_samples: u32,
    /// The columns.
    pub schema: Arc<Schema>,
    /// The storage format of the blocks.
    pub coding: BlockCoding,
    /// The treatment of ids that are out of range.
    pub ids: Arc<IdRules>,
}

impl Dataset {
    /// Returns whether a folder holds a complete dataset or a collection (their manifests are written last).
    pub fn exists(dir: &Path) -> bool {
        let dir = &without_file_scheme(dir);
        is_dataset(dir) || is_collection(dir)
    }

    /// Opens a dataset or a collection: reads and checks the manifests. The path may be an url of an object store, if
    /// this build has the feature `cloud`.
    ///
    /// # Errors
    /// [`Error::Io`] if a manifest cannot be read, [`Error::Damaged`] if it is not what was written;
    /// [`Error::Unsuitable`] if there is no dataset, or a shard of a collection is missing; [`Error::Changed`] if a
    /// shard was replaced.
    pub fn open(dir: &Path) -> Result<Self> {
        let dir = &without_file_scheme(dir);
        Ok(Self::of_folders(dir, open_folders(dir)?))
    }

    /// Makes a dataset of folders. `dir` names it in messages.
    pub(crate) fn of_folders(dir: &Path, folders: Folders) -> Self {
        Self {
            dir: dir.to_owned(),
            source: Source::Folders(Box::new(folders)),
            ids: Default::default(),
            columns: None,
            validation: None,
            cache: None,
        }
    }

    /// Opens raw files as a dataset. Only their lengths are checked here. Each record is checked when it is read, and
    /// an invalid one is an error then.
    ///
    /// # Errors
    /// [`Error::Setting`] if the format has no fixed record; [`Error::BadRows`] if a part's files hold no records, or
    /// a file's length does not match the format; [`Error::Io`] if a file does not exist.
    #[doc(hidden)]
    pub fn raw(format: &RawFormat, train: &[PathBuf], eval: &[PathBuf]) -> Result<Self> {
        let decoder = RecordDecoder::new(format)?;
        let schema = format.schema(DenseDtype::F32);
        let open = |path: &PathBuf| {
            let metadata = fs::metadata(path).context("open", path)?;
            check_regular(path, &metadata)?;
            let records = format.records_of(metadata.len());
            let records = records.map_err(|what| {
                Error::bad_rows(Some(path), None, format!("cannot read {}: its {what}", path.display()))
            })?;
            Ok(RawFile { path: path.clone(), records })
        };
        let mut parts = BTreeMap::new();
        for (part, paths) in [(Part::Train, train), (Part::Eval, eval)] {
            let files = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
            if files.iter().any(|file| file.records > 0) {
                parts.insert(part, files);
            } else if let Some(first) = files.first() {
                let what = format!(
                    "the {part} part has no records: {} is empty; check that it was copied completely",
                    first.path.display()
                );
                return Err(Error::bad_rows(Some(&first.path), None, what));
            }
        }
        let block_samples = format.block_samples()?;
        let first = train.iter().chain(eval).next();
        let dir = first.and_then(|path| path.parent()).unwrap_or(Path::new("")).to_owned();
        let raw = RawDataset { decoder: decoder.into(), schema, block_samples, parts };
        let source = Source::Raw(Box::new(raw));
        Ok(Self { dir, source, ids: Default::default(), columns: None, validation: None, cache: None })
    }

    /// Makes a dataset that has columns but no samples. `dir` is the folder of the vocabularies.
    ///
    /// # Errors
    /// [`Error::Columns`] if the schema is invalid.
    pub(crate) fn without_samples(
        dir: &Path,
        schema: Schema,
        format: Option<RowFormat>,
        vocabularies: Vec<FileManifest>,
    ) -> Result<Self> {
        schema.validate()?;
        let source = Source::Columns(Box::new(ColumnsOnly { schema, format, vocabularies }));
        Ok(Self {
            dir: dir.to_owned(),
            source,
            ids: Default::default(),
            columns: None,
            validation: None,
            cache: None,
        })
    }

    /// Sets rules for ids that are out of range. Without rules, every such id is an error.
    ///
    /// # Errors
    /// As [`IdRules::new`].
    #[doc(hidden)]
    pub fn with_ids(self, rules: &[OutOfRange]) -> Result<Self> {
        let ids = Arc::new(IdRules::new(self.schema(), rules)?);
        Ok(Self { ids, ..self })
    }

    /// Adds categorical columns that are computed from dense ones, in place of those that it has.
    ///
    /// # Errors
    /// [`Error::Columns`] if they do not suit the columns: see [`Schema::validate`].
    #[doc(hidden)]
    pub fn with_buckets(self, columns: &[Categorical]) -> Result<Self> {
        let mut schema = self.schema().stored();
        schema.categorical.extend_from_slice(columns);
        schema.validate()?;
        Ok(Self { columns: Some(Arc::new(schema)), ..self })
    }

    /// Adds the computed columns of another schema, such as that of a model, as far as this dataset has the numbers.
    #[doc(hidden)]
    pub fn with_buckets_of(self, schema: &Schema) -> Self {
        // Without the numbers the columns differ, which whoever compares them reports.
        match self.clone().with_buckets(schema.bucket_columns()) {
            Ok(with) => with,
            Err(_) => self,
        }
    }

    /// Gives each table the rows of its column in another schema; ids of further rows are then out of range.
    pub(crate) fn with_rows_of(self, schema: &Schema) -> Self {
        let mut own = self.schema().clone();
        for (column, other) in own.categorical.iter_mut().zip(&schema.categorical) {
            (column.rows, column.vocabulary) = (other.rows, other.vocabulary.clone());
        }
        Self { columns: Some(Arc::new(own)), ..self }
    }

    /// Keeps blocks that are fetched from object stores in a local folder; local files are read as they are.
    ///
    /// # Errors
    /// As [`BlockCache::open`].
    #[doc(hidden)]
    pub fn with_cache(self, options: &CacheOptions) -> Result<Self> {
        let cache = BlockCache::open(options.clone())?;
        Ok(Self { cache: Some(Arc::new(cache)), ..self })
    }

    /// Returns the rules for ids that are out of range.
    #[doc(hidden)]
    pub fn ids(&self) -> &IdRules {
        &self.ids
    }

    /// Returns the dataset's folder; for raw files, the folder of the first.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the folders that hold its samples: its own, or the shards of a collection; none for raw files.
    #[doc(hidden)]
    pub fn dirs(&self) -> Vec<&Path> {
        match &self.source {
            Source::Folders(folders) => folders.shards().iter().map(|shard| &*shard.dir).collect(),
            Source::Raw(_) | Source::Columns(_) => Vec::new(),
        }
    }

    /// Returns the manifest, taken together for the shards of a collection; raw files have none.
    #[doc(hidden)]
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.source {
            Source::Folders(folders) => Some(&folders.manifest),
            Source::Raw(_) | Source::Columns(_) => None,
        }
    }

    /// Returns the files outside the parts that the manifest lists; none for raw files.
    #[doc(hidden)]
    pub fn files(&self) -> &[FileManifest] {
        match &self.source {
            Source::Folders(folders) => &folders.manifest.files,
            Source::Columns(columns) => &columns.vocabularies,
            Source::Raw(_) => &[],
        }
    }

    /// Returns the format of the raw rows that the columns come from; `None` if the data was generated.
    #[doc(hidden)]
    pub fn row_format(&self) -> Option<RowFormat> {
        match &self.source {
            Source::Folders(folders) => match &folders.manifest.origin {
                Origin::Converted(conversion) => Some(conversion.format.clone()),
                Origin::Generated(_) => None,
            },
            Source::Raw(raw) => Some(RowFormat::HugectrRaw(raw.decoder.format().clone())),
            Source::Columns(columns) => columns.format.clone(),
        }
    }

    /// Returns [`Manifest::auc_achievable`].
    pub fn auc_achievable(&self) -> Option<f64> {
        self.manifest().and_then(Manifest::auc_achievable)
    }

    /// Returns the columns.
    pub fn schema(&self) -> &Schema {
        if let Some(schema) = &self.columns {
            return schema;
        }
        match &self.source {
            Source::Folders(folders) => &folders.manifest.schema,
            Source::Raw(raw) => &raw.schema,
            Source::Columns(columns) => &columns.schema,
        }
    }

    /// Returns the stored parts of the dataset.
    pub fn parts(&self) -> Vec<Part> {
        match &self.source {
            Source::Folders(folders) => folders.manifest.parts.keys().copied().collect(),
            Source::Raw(raw) => raw.parts.keys().copied().collect(),
            Source::Columns(_) => Vec::new(),
        }
    }

    /// Returns the number of samples of a part; 0 if the part is absent.
    pub fn samples(&self, part: Part) -> u64 {
        match &self.validation {
            Some(cut) if part != Part::Eval => cut.samples(part),
            _ => self.stored_samples(part),
        }
    }

    fn stored_samples(&self, part: Part) -> u64 {
        match &self.source {
            Source::Folders(folders) => folders.manifest.parts.get(&part).map_or(0, |part| part.samples),
            Source::Raw(raw) => raw.parts.get(&part).into_iter().flatten().map(|file| file.records).sum(),
            Source::Columns(_) => 0,
        }
    }

    /// Returns the positions of a part's blocks. For a dataset's folder, this reads the index and checks that the
    /// part's files exist with full length.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the dataset has no such part; [`Error::Damaged`] if a file is missing or truncated, or
    /// sizes do not add up.
    pub fn part(&self, part: Part) -> Result<DatasetPart> {
        match &self.validation {
            Some(cut) if part != Part::Eval => Ok(cut.apply(self.stored_part(Part::Train)?, part)),
            _ => self.stored_part(part),
        }
    }

    /// Returns a part as it is stored, with the samples that are held out for validation.
    ///
    /// # Errors
    /// As [`Dataset::part`].
    #[doc(hidden)]
    pub fn stored_part(&self, part: Part) -> Result<DatasetPart> {
        let found = match &self.source {
            Source::Folders(folders) => folders.part(part)?,
            Source::Raw(raw) => raw.parts.get(&part).map(|files| raw.part(part, files)).transpose()?,
            Source::Columns(_) => None,
        };
        let found = found.map(|found| DatasetPart {
            ids: Arc::clone(&self.ids),
            objects: Objects { cache: self.cache.clone(), ..found.objects },
            schema: self.columns.as_ref().map_or(found.schema, Arc::clone),
            ..found
        });
        found.ok_or_else(|| {
            let hint = match &self.source {
                Source::Folders(_) if part == Part::Eval => {
                    ": convert the rows with --split or --eval, or choose the part train (--part train)"
                }
                Source::Folders(_) | Source::Columns(_) => "",
                Source::Raw(_) if part == Part::Validation => "",
                Source::Raw(_) => ": name its files",
            };
            Error::unsuitable(
                &self.dir,
                format!("the dataset {} has no {part} part{hint}", self.dir.display()),
            )
        })
    }

    /// Returns the look-up statistics of the training part, one entry per stored categorical column.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the file is not what was written.
    #[doc(hidden)]
    pub fn statistics(&self) -> Result<Vec<TableStatistics>> {
        match &self.source {
            Source::Folders(folders) => folders.statistics(),
            Source::Raw(_) | Source::Columns(_) => Err(self.lists_no(statistics::FILE_NAME)),
        }
    }

    /// Checks the statistics: of a collection, they must be the sums over its shards.
    ///
    /// # Errors
    /// As [`Dataset::statistics`].
    pub(crate) fn check_statistics(&self) -> Result<()> {
        match &self.source {
            Source::Folders(folders) => folders.check_statistics(),
            Source::Raw(_) | Source::Columns(_) => Ok(()),
        }
    }

    /// Reads a file that the manifest lists, and checks its checksum.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not listed, or not what was written.
    #[doc(hidden)]
    pub fn checked_file(&self, name: &str) -> Result<Vec<u8>> {
        match &self.source {
            Source::Folders(folders) => folders.checked_file(name),
            Source::Columns(columns) => {
                folder::checked_file(&columns.vocabularies, &self.dir.join(MANIFEST_NAME), name)
            }
            Source::Raw(_) => Err(self.lists_no(name)),
        }
    }

    fn lists_no(&self, name: &str) -> Error {
        Error::damaged(&self.dir.join(MANIFEST_NAME), None, format!("it does not list {name}"))
    }
}

impl RawDataset {
    /// Returns the blocks of a part: each file's records, divided into blocks of [`RawDataset::block_samples`].
    fn part(&self, part: Part, files: &[RawFile]) -> Result<DatasetPart> {
        let record_bytes = self.decoder.record_bytes() as u64;
        let mut blocks = Vec::new();
        for (number, file) in (0..).zip(files) {
            let starts = (0..file.records).step_by(self.block_samples as usize);
            blocks.extend(starts.map(|first| {
                let samples = (file.records - first).min(u64::from(self.block_samples));
                BlockLocation {
                    file: number,
                    offset: first * record_bytes,
                    bytes: (samples * record_bytes) as u32,
                    samples: samples as u32,
                    checksum: 0,
                }
            }));
        }
        Ok(DatasetPart {
            part,
            files: files.iter().map(|file| file.path.clone()).collect(),
            objects: Objects::default(),
            samples: blocks.iter().map(|block| u64::from(block.samples)).sum(),
            blocks,
            block_samples: self.block_samples,
            schema: Arc::new(self.schema.clone()),
            coding: BlockCoding::Records(Arc::clone(&self.decoder)),
            selection: None,
            ids: Default::default(),
        })
    }
}

impl DatasetPart {
    /// Returns the files of blocks for a reader.
    pub(crate) fn read_files(&self) -> ReadFiles {
        ReadFiles::new(&self.files, &self.objects)
    }

    /// Returns why its samples can only be read as unpacked batches; `None` if they can be read packed, too.
    pub fn why_unpacked(&self) -> Option<&'static str> {
        if let BlockCoding::Records(_) = self.coding {
            return Some("raw records are not packed");
        }
        if !self.ids.all_fail() {
            return Some("rules for ids are applied to unpacked batches");
        }
        (!self.schema.bucket_columns().is_empty()).then_some("buckets are computed from unpacked numbers")
    }

    /// Checks that a packed block is the one expected at this position.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn check_block(&self, index: u64, block: &crate::block::Block<'_>) -> Result<(), Malformed> {
        let BlockCoding::Packed { shards } = &self.coding else {
            return Err("the part has raw records, not packed blocks".into());
        };
        let shard = shards.partition_point(|shard| u64::from(shard.first_block) <= index).checked_sub(1);
        let shard = shard.map(|at| shards[at]).ok_or("it belongs to no shard")?;
        let id = block.id();
        let index_in_shard = index - u64::from(shard.first_block);
        let expected = BlockId { dataset: shard.tag, part: self.part, index: index_in_shard };
        if id != expected {
            return Err(format!(
                "it is block {} of the {} part, from another position or dataset",
                id.index, id.part
            )
            .into());
        }
        let samples = self.samples_of(index);
        if block.samples() as u64 != samples {
            return Err(format!("it has {} samples but should have {samples}", block.samples()).into());
        }
        Ok(())
    }

    /// Returns the number of samples that are stored in a block.
    pub fn samples_of(&self, block: u64) -> u64 {
        self.blocks.get(block as usize).map_or(0, |block| u64::from(block.samples))
    }
}

/// Returns whether a folder has the manifest of a dataset. If that cannot be found out, opening it says why.
fn is_dataset(dir: &Path) -> bool {
    store::exists(&dir.join(MANIFEST_NAME)).unwrap_or(true)
}

/// Returns whether a folder has the manifest of a collection.
fn is_collection(dir: &Path) -> bool {
    store::exists(&dir.join(COLLECTION_NAME)).unwrap_or(true)
}

/// Returns an entry of the index.
pub(crate) fn index_entry(bytes: u32, checksum: u64) -> [u8; INDEX_ENTRY_BYTES] {
    let mut entry = [0; INDEX_ENTRY_BYTES];
    entry[0..4].copy_from_slice(&bytes.to_le_bytes());
    entry[8..16].copy_from_slice(&checksum.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests;
