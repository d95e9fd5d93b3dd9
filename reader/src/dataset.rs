//! A dataset on disk: a folder whose `dataset.json` is written last and vouches for every other byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::convert::Conversion;
use crate::error::{Error, IoContext, Result};
use crate::generate::Generation;
use crate::schema::Schema;
use crate::sealed::{self, Checksum};
use crate::statistics::{self, TableStatistics};

/// The file that makes a folder a dataset.
pub const MANIFEST_NAME: &str = "dataset.json";
const KIND: &str = "rankine dataset";
/// The version of the dataset as a whole.
pub const FORMAT: u32 = 2;
/// The index of a part's blocks, in the part's folder.
pub const INDEX_NAME: &str = "index.bin";
/// Bytes of one entry of an index.
const INDEX_ENTRY_BYTES: usize = 16;

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Part {
    /// What the model learns from.
    Train = 0,
    /// What it is judged by.
    Eval = 1,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 2] = [Self::Train, Self::Eval];

    /// The part with this number in block headers.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&part| part as u8 == code)
    }

    /// The name of the part's folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What `dataset.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The columns.
    pub schema: Schema,
    /// Samples of every block but a part's last.
    pub block_samples: u32,
    /// The parts that are there; one without samples is absent.
    pub parts: BTreeMap<Part, PartManifest>,
    /// Files beside the parts: statistics and vocabularies.
    pub files: Vec<FileManifest>,
    /// Where the samples come from.
    pub origin: Origin,
}

/// Where the samples of a dataset come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Made by the generator.
    Generated(Generation),
    /// Converted from click logs.
    Converted(Conversion),
}

/// What the manifest says of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartManifest {
    /// Samples in all blocks.
    pub samples: u64,
    /// Samples whose label is 1, one number a label column.
    pub positives: Vec<u64>,
    /// Samples whose label is missing, one number a label column.
    pub missing: Vec<u64>,
    /// The files of blocks, in order.
    pub blocks: Vec<BlocksFile>,
    /// The checksum of the index.
    pub index_xxh3: Checksum,
}

/// A file of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlocksFile {
    /// The name in the part's folder.
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
    /// A number that every block of the dataset carries, so that a block of another schema is not taken for one of
    /// this one: the checksum of the schema as JSON.
    pub fn tag(schema: &Schema) -> u64 {
        xxh3_64(&serde_json::to_vec(schema).expect("a schema is plain data"))
    }

    /// For generated data: the AUC of the teacher that made the labels, on the evaluation part.
    pub fn auc_achievable(&self) -> Option<f64> {
        match &self.origin {
            Origin::Generated(generation) => generation.auc_achievable,
            Origin::Converted(_) => None,
        }
    }

    /// The text of `dataset.json`.
    pub(crate) fn to_json(&self) -> String {
        sealed::to_json(KIND, FORMAT, self)
    }

    fn from_json(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = sealed::from_json(KIND, FORMAT, text)?;
        manifest.schema.validate().map_err(|error| error.to_string())?;
        if manifest.block_samples == 0 {
            return Err("its blocks have no samples".into());
        }
        let blocks = manifest.parts.values().flat_map(|part| &part.blocks).map(|file| &file.name);
        if let Some(name) =
            blocks.chain(manifest.files.iter().map(|file| &file.name)).find(|name| !is_below(name))
        {
            return Err(format!("its file {name:?} is not below the dataset's folder"));
        }
        Ok(manifest)
    }
}

/// Whether a name stays below the folder that it is joined to.
fn is_below(name: &str) -> bool {
    let mut components = Path::new(name).components();
    !name.is_empty() && components.all(|component| matches!(component, std::path::Component::Normal(_)))
}

/// A dataset that is there and whole, as far as its manifest tells.
#[derive(Debug, Clone)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLocation {
    /// The number of the file in [`DatasetPart::files`].
    pub file: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
    /// The checksum that its header must state.
    pub checksum: u64,
}

/// A part of a dataset, its index read and checked against the files on disk.
#[derive(Debug, Clone)]
pub struct DatasetPart {
    /// Which part.
    pub part: Part,
    /// The files of blocks.
    pub files: Vec<PathBuf>,
    /// All blocks, in order: block `i` begins with sample `i * block_samples`.
    pub blocks: Vec<BlockLocation>,
    /// Samples in all blocks.
    pub samples: u64,
    /// Samples of every block but the last.
    pub block_samples: u32,
    /// The columns.
    pub schema: std::sync::Arc<Schema>,
    /// What block headers must state: see [`Manifest::tag`].
    pub tag: u64,
}

impl Dataset {
    /// Whether a folder holds a complete dataset (its manifest is written last).
    pub fn exists(dir: &Path) -> bool {
        dir.join(MANIFEST_NAME).is_file()
    }

    /// Opens a dataset: reads and checks its manifest.
    ///
    /// # Errors
    /// [`Error::Io`] where the folder has no readable manifest, [`Error::Damaged`] where it is not what was written.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST_NAME);
        if !path.exists() {
            let why = if dir.with_added_extension("partial").exists() {
                "a conversion to it has not finished, or was interrupted: run it again"
            } else if dir.exists() {
                "the folder is there, but has no dataset.json: is it the folder that convert or generate wrote?"
            } else {
                "there is no such folder: make it with `rankine convert` or `rankine generate`"
            };
            return Err(Error::invalid(format!("no dataset at {}: {why}", dir.display())));
        }
        let text = fs::read(&path).context("read", &path)?;
        let manifest = Manifest::from_json(&text).map_err(|what| Error::damaged(&path, None, what))?;
        Ok(Self { dir: dir.to_owned(), manifest })
    }

    /// The dataset's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What its manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The columns.
    pub fn schema(&self) -> &Schema {
        &self.manifest.schema
    }

    /// Samples of a part; 0 where the part is absent.
    pub fn samples(&self, part: Part) -> u64 {
        self.manifest.parts.get(&part).map_or(0, |part| part.samples)
    }

    /// Reads a part's index and checks that its files are there in full length.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the dataset has no such part; [`Error::Damaged`] where a file is missing, cut short or
    /// does not add up.
    pub fn part(&self, part: Part) -> Result<DatasetPart> {
        let Some(manifest) = self.manifest.parts.get(&part) else {
            return Err(Error::invalid(format!("the dataset {} has no {part} part", self.dir.display())));
        };
        let dir = self.dir.join(part.name());
        let index_path = dir.join(INDEX_NAME);
        let index = fs::read(&index_path).context("read", &index_path)?;
        let damaged = |what: String| Error::damaged(&index_path, None, what);
        if xxh3_64(&index) != manifest.index_xxh3.0 || !index.len().is_multiple_of(INDEX_ENTRY_BYTES) {
            return Err(damaged("its checksum is not the one in dataset.json".into()));
        }
        let mut entries = index.chunks_exact(INDEX_ENTRY_BYTES);
        let mut blocks = Vec::with_capacity(entries.len());
        let mut files = Vec::with_capacity(manifest.blocks.len());
        for (number, file) in manifest.blocks.iter().enumerate() {
            let path = dir.join(&file.name);
            let bytes = fs::metadata(&path).context("open", &path)?.len();
            if bytes != file.bytes {
                return Err(Error::damaged(
                    &path,
                    bytes.min(file.bytes),
                    format!("it has {bytes} bytes and should have {}: was it copied to the end?", file.bytes),
                ));
            }
            let mut offset = 0;
            for entry in entries.by_ref().take(file.blocks as usize) {
                let bytes = u32::from_le_bytes(entry[0..4].try_into().expect("four bytes"));
                let checksum = u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes"));
                blocks.push(BlockLocation { file: number as u32, offset, bytes, checksum });
                offset += u64::from(bytes);
            }
            if offset != file.bytes {
                return Err(damaged(format!("its blocks of {} do not sum to the file's length", file.name)));
            }
            files.push(path);
        }
        let block_samples = self.manifest.block_samples;
        let expected_blocks = manifest.samples.div_ceil(u64::from(block_samples));
        if entries.len() > 0 || blocks.len() as u64 != expected_blocks {
            return Err(damaged(format!(
                "it lists {} blocks, and {} samples make {expected_blocks}",
                blocks.len() + entries.len(),
                manifest.samples
            )));
        }
        Ok(DatasetPart {
            part,
            files,
            blocks,
            samples: manifest.samples,
            block_samples,
            schema: std::sync::Arc::new(self.manifest.schema.clone()),
            tag: Manifest::tag(&self.manifest.schema),
        })
    }

    /// The frequency statistics of the training part, one entry a categorical column.
    ///
    /// # Errors
    /// [`Error::Damaged`] where the file is not what was written.
    pub fn statistics(&self) -> Result<Vec<TableStatistics>> {
        let path = self.dir.join(statistics::FILE_NAME);
        let bytes = self.checked_file(statistics::FILE_NAME)?;
        let tables = statistics::from_bytes(&bytes).map_err(|what| Error::damaged(&path, None, what))?;
        if tables.len() != self.manifest.schema.categorical.len() {
            return Err(Error::damaged(&path, None, "it does not have a table a categorical column"));
        }
        Ok(tables)
    }

    /// Reads a file that the manifest lists, and checks it.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it is not listed, or not what was written.
    pub fn checked_file(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.dir.join(name);
        let Some(listed) = self.manifest.files.iter().find(|file| file.name == name) else {
            return Err(Error::damaged(
                &self.dir.join(MANIFEST_NAME),
                None,
                format!("it does not list {name}"),
            ));
        };
        let bytes = fs::read(&path).context("read", &path)?;
        if bytes.len() as u64 != listed.bytes || xxh3_64(&bytes) != listed.xxh3.0 {
            return Err(Error::damaged(&path, None, "its checksum is not the one in dataset.json"));
        }
        Ok(bytes)
    }
}

impl DatasetPart {
    /// Checks that a decoded block is the one that should be there.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_block(&self, index: u64, block: &crate::block::Block<'_>) -> Result<(), String> {
        let id = block.id();
        let expected = crate::block::BlockId { dataset: self.tag, part: self.part, index };
        if id != expected {
            return Err(format!("it is block {} of the {} part of another place", id.index, id.part));
        }
        let samples = self.samples_of(index);
        if block.samples() as u64 != samples {
            return Err(format!("it has {} samples and should have {samples}", block.samples()));
        }
        Ok(())
    }

    /// The samples of a block: as many as every other one, or what is left for the last.
    pub fn samples_of(&self, block: u64) -> u64 {
        let first = block * u64::from(self.block_samples);
        u64::from(self.block_samples).min(self.samples.saturating_sub(first))
    }
}

/// An entry of the index.
pub(crate) fn index_entry(bytes: u32, checksum: u64) -> [u8; INDEX_ENTRY_BYTES] {
    let mut entry = [0; INDEX_ENTRY_BYTES];
    entry[0..4].copy_from_slice(&bytes.to_le_bytes());
    entry[8..16].copy_from_slice(&checksum.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_folder() {
        assert!(is_below("00000.blocks") && is_below("vocabulary/C1.tsv"));
        for name in ["", "/etc/passwd", "../other", "train/../../x", "./x"] {
            assert!(!is_below(name), "{name}");
        }
    }
}
