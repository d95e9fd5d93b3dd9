//! All that converts raw rows into samples: the columns of a model with their transforms, the format of raw rows, and
//! vocabularies.

use std::fs;
use std::path::{Path, PathBuf};

use rankine_reader::convert::{Encoder, RowFormat};
use rankine_reader::dataset::FileManifest;
use rankine_reader::sealed::Checksum;
use rankine_reader::{Dataset, Schema};
use serde::{Deserialize, Serialize};

use super::SavedModelError;

/// The columns of a model. Vocabularies are listed with their checksums; their bytes are stored in other files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The columns that the model was trained on, with their transforms.
    pub schema: Schema,
    /// How raw rows of the columns are read; absent if the model was trained on generated data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<RowFormat>,
    /// The vocabularies' files, with paths relative to the folder of a dataset or a model.
    pub vocabularies: Vec<FileManifest>,
}

impl Columns {
    /// The name of their file in a checkpoint.
    pub const NAME: &str = "columns.json";

    /// Returns the columns of a dataset.
    pub fn of(dataset: &Dataset) -> Self {
        let vocabularies = dataset.files().iter().filter(|file| file.name.starts_with("vocabulary/"));
        Self {
            schema: dataset.schema().clone(),
            format: dataset.row_format(),
            vocabularies: vocabularies.cloned().collect(),
        }
    }

    /// Returns the text of the file [`Columns::NAME`].
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("columns are plain data") + "\n"
    }

    /// Parses the text that [`Columns::to_json`] returns.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let columns: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        columns.schema.validate().map_err(|error| error.to_string())?;
        Ok(columns)
    }

    /// Checks that a dataset has the columns that the model was trained on: the same names, tables, transforms and
    /// vocabularies.
    ///
    /// # Errors
    /// [`SavedModelError::Mismatch`] with the first difference.
    pub fn check(&self, dataset: &Dataset) -> Result<(), SavedModelError> {
        let other = Self::of(dataset);
        let theirs = &other.schema;
        let mismatch = |what: String| SavedModelError::Mismatch { dataset: dataset.dir().to_owned(), what };
        let (expected, names): (Vec<_>, Vec<_>) = (self.schema.names().collect(), theirs.names().collect());
        if expected != names {
            return Err(mismatch(format!("it has the columns {names:?}; the model needs {expected:?}")));
        }
        for (mine, theirs) in self.schema.dense.iter().zip(&theirs.dense) {
            if mine != theirs {
                return Err(mismatch(format!(
                    "column {} has {}, but the model was trained on {}",
                    mine.name, theirs.transform, mine.transform
                )));
            }
        }
        for (mine, theirs) in self.schema.categorical.iter().zip(&theirs.categorical) {
            if (mine.rows, mine.vocabulary, &mine.shares) != (theirs.rows, theirs.vocabulary, &theirs.shares)
            {
                return Err(mismatch(format!(
                    "column {} has {} rows ({}), but the model has {} ({})",
                    mine.name, theirs.rows, theirs.vocabulary, mine.rows, mine.vocabulary
                )));
            }
        }
        for mine in &self.vocabularies {
            if !other.vocabularies.contains(mine) {
                return Err(mismatch(format!(
                    "its {} differs from the one that the model was trained with, so its ids mean other categories",
                    mine.name
                )));
            }
        }
        Ok(())
    }

    /// Returns an encoder that converts raw rows into samples of the model. Each vocabulary is read from the first of
    /// `folders` whose file has the checksum of the one that training used.
    ///
    /// # Errors
    /// [`rankine_reader::Error::Damaged`] or [`rankine_reader::Error::Io`] if none has it.
    pub fn encoder(&self, folders: &[PathBuf]) -> Result<Encoder, rankine_reader::Error> {
        let dir = folders.first().map_or(Path::new(""), PathBuf::as_path);
        Encoder::with_files(&self.schema, dir, |name| self.vocabulary(name, folders))
    }

    /// Returns the bytes of a vocabulary, from the first of `folders` whose file has the checksum of the one that
    /// training used.
    ///
    /// # Errors
    /// The errors of [`Columns::encoder`].
    pub fn vocabulary(&self, name: &str, folders: &[PathBuf]) -> Result<Vec<u8>, rankine_reader::Error> {
        let listed = self.vocabularies.iter().find(|file| file.name == name);
        let mut errors = Vec::new();
        for path in folders.iter().map(|folder| folder.join(name)) {
            errors.push(match fs::read(&path) {
                Ok(bytes) if listed.is_some_and(|file| file.xxh3 == Checksum::of(&bytes)) => {
                    return Ok(bytes);
                }
                Ok(_) => {
                    let what =
                        "it is not the vocabulary that the model was trained with: its checksum differs";
                    rankine_reader::Error::Damaged { path, offset: None, what: what.into() }
                }
                Err(source) => rankine_reader::Error::Io { doing: "read", path, source },
            });
        }
        // A file with another content is a better hint than a missing one.
        let damaged = |error: &rankine_reader::Error| matches!(error, rankine_reader::Error::Damaged { .. });
        let best = errors.iter().position(damaged).unwrap_or(0);
        let no_folder = || rankine_reader::Error::Invalid(format!("the folder of {name} is not known"));
        Err(errors.into_iter().nth(best).unwrap_or_else(no_folder))
    }
}
