//! Fits: the columns, transforms and vocabularies that were learned from raw rows, without samples.
//!
//! `fit.json` is written last, and lists the vocabularies with their checksums.

use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Result};
use rankine_base::sealed;
use rankine_base::url::is_url;
use serde::{Deserialize, Serialize};

use super::folder::checked_file;
use super::{FileManifest, is_below};
use crate::origin::Conversion;
use crate::schema::Schema;
use crate::store;
use crate::vocabulary::{self, ListedFile, Lookup, MappedVocabulary, Vocabulary};

/// The file that makes a folder a fit.
pub const FIT_NAME: &str = "fit.json";
const KIND: &str = "rankine fit";
/// The format version of fits.
const FORMAT: u32 = 1;

/// The contents of `fit.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FitManifest {
    /// The columns of the datasets to convert with the fit.
    pub(crate) schema: Schema,
    /// The files of the vocabularies.
    pub(crate) vocabularies: Vec<FileManifest>,
    /// The files of their indexes, in which categories are looked up without loading the vocabulary; older fits have
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) indexes: Vec<FileManifest>,
    /// The rows that the columns were learned from.
    pub(crate) origin: Conversion,
}

/// A folder with the columns, transforms and vocabularies that were learned from raw rows, without samples.
#[derive(Debug, Clone)]
pub struct Fit {
    dir: PathBuf,
    manifest: FitManifest,
}

impl Fit {
    /// Returns whether a folder holds a complete fit.
    pub fn exists(dir: &Path) -> bool {
        store::exists(&dir.join(FIT_NAME)).unwrap_or(false)
    }

    /// Opens a fit: reads and checks its manifest.
    ///
    /// # Errors
    /// [`Error::Io`] if the manifest cannot be read, [`Error::Damaged`] if it is not what was written.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FIT_NAME);
        let text = store::read(&path)?;
        let damaged = |what: String| Error::damaged(&path, None, what);
        let manifest: FitManifest =
            sealed::from_json(KIND, FORMAT, &text).map_err(|error| damaged(error.to_string()))?;
        manifest.schema.validate().map_err(|error| damaged(error.to_string()))?;
        let mut files = manifest.vocabularies.iter().chain(&manifest.indexes);
        if let Some(file) = files.find(|file| !is_below(&file.name)) {
            return Err(damaged(format!("its file {:?} is not inside its folder", file.name)));
        }
        Ok(Self { dir: dir.to_owned(), manifest })
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the columns of the datasets to convert with the fit.
    pub fn schema(&self) -> &Schema {
        &self.manifest.schema
    }

    /// Returns the rows that the columns were learned from, and their format.
    pub fn origin(&self) -> &Conversion {
        &self.manifest.origin
    }

    /// Returns the manifest entries of the vocabularies.
    pub(crate) fn vocabularies(&self) -> &[FileManifest] {
        &self.manifest.vocabularies
    }

    /// Reads a vocabulary by its path below the folder, and checks its checksum.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not listed, or not what was written.
    pub fn checked_file(&self, name: &str) -> Result<Vec<u8>> {
        checked_file(&self.manifest.vocabularies, &self.dir.join(FIT_NAME), name)
    }

    /// Checks the checksums of the indexes of all vocabularies.
    ///
    /// # Errors
    /// [`Error::Damaged`]; [`Error::Io`].
    pub fn check_indexes(&self) -> Result<()> {
        let Self { dir, manifest: FitManifest { indexes, .. } } = self;
        indexes.iter().try_for_each(|file| checked_file(indexes, &dir.join(FIT_NAME), &file.name).map(drop))
    }

    /// Opens the vocabulary of a column: maps its index if the folder has one and is in a file system, and loads the
    /// vocabulary otherwise.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not listed, or a file is not what was written; [`Error::Io`].
    pub(crate) fn vocabulary(&self, column: &str) -> Result<Lookup> {
        let (name, index) = (vocabulary::file_name(column), vocabulary::index_name(column));
        let of = |files: &[FileManifest], name: &str| {
            let file = files.iter().find(|file| file.name == name && !is_url(&self.dir))?;
            Some(ListedFile { path: self.dir.join(name), bytes: file.bytes, xxh3: file.xxh3 })
        };
        if let (Some(index), Some(text)) =
            (of(&self.manifest.indexes, &index), of(self.vocabularies(), &name))
        {
            return MappedVocabulary::open(&index, text).map(Lookup::Mapped);
        }
        let vocabulary = Vocabulary::from_tsv(&self.checked_file(&name)?);
        vocabulary.map(Lookup::from).map_err(|what| Error::damaged(&self.dir.join(&name), None, what))
    }
}

impl FitManifest {
    pub(crate) fn to_json(&self) -> String {
        sealed::to_json(KIND, FORMAT, self)
    }
}

/// Returns the error for a fit that is used as a dataset.
pub(super) fn is_fit(dir: &Path) -> Error {
    let name = dir.display();
    let what = format!(
        "{name} is a fit: it has no samples; convert rows with its columns and vocabularies by `rankine convert ... \
         --like {name}`, and name that dataset"
    );
    Error::unsuitable(dir, what)
}
