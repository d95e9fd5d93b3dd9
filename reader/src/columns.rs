//! All that converts raw rows into samples: columns with their transforms, the format of raw rows, and vocabularies.

use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Malformed, Result};
use rankine_base::files::read_regular;
use rankine_base::sealed::Checksum;
use serde::{Deserialize, Serialize};

use crate::convert::Encoder;
use crate::dataset::{Dataset, FileManifest};
use crate::origin::RowFormat;
use crate::schema::{Schema, Sequence};

/// The columns of a dataset, or of a model that was trained on it. Vocabularies are listed with their checksums; their
/// bytes are stored in other files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The columns, with their transforms.
    pub schema: Schema,
    /// How raw rows of the columns are read; absent if the data was generated.
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

    /// Returns a dataset that has these columns but no samples: a program has the samples. `dir` is the folder of the
    /// vocabularies.
    ///
    /// # Errors
    /// [`Error::Columns`] if the schema is invalid.
    pub fn without_samples(self, dir: &Path) -> Result<Dataset> {
        Dataset::without_samples(dir, self.schema, self.format, self.vocabularies)
    }

    /// Returns the text of the file [`Columns::NAME`].
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("columns are plain data") + "\n"
    }

    /// Parses the text that [`Columns::to_json`] returns.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_json(text: &str) -> Result<Self, Malformed> {
        let columns: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        columns.schema.validate().map_err(|error| error.to_string())?;
        Ok(columns)
    }

    /// Returns the first difference from the columns of a dataset, in their names, tables, transforms and vocabularies,
    /// or `None`.
    pub fn difference(&self, dataset: &Dataset) -> Option<String> {
        let other = Self::of(dataset);
        let theirs = &other.schema;
        let (expected, names): (Vec<_>, Vec<_>) = (self.schema.names().collect(), theirs.names().collect());
        if expected != names {
            return Some(different_names(&expected, &names));
        }
        for (mine, theirs) in self.schema.dense.iter().zip(&theirs.dense) {
            if mine != theirs {
                return Some(format!(
                    "column {} has {}, but the model was trained on {}",
                    mine.name, theirs.transform, mine.transform
                ));
            }
        }
        for (mine, theirs) in self.schema.categorical.iter().zip(&theirs.categorical) {
            if mine.weighted != theirs.weighted {
                let with = |weighted| if weighted { "with" } else { "without" };
                return Some(format!(
                    "column {} has ids {} weights, but the model was trained on ids {} them",
                    mine.name,
                    with(theirs.weighted),
                    with(mine.weighted)
                ));
            }
            let [own, other] = [mine, theirs].map(|column| (column.rows, &column.vocabulary, &column.shares));
            if own != other {
                return Some(format!(
                    "column {} has {}, but the model has {}",
                    mine.name,
                    theirs.table(),
                    mine.table()
                ));
            }
        }
        if self.schema.sequences != theirs.sequences {
            let names = |schema: &Schema| match &schema.sequences[..] {
                [] => "no sequences".to_owned(),
                some => some.iter().map(Sequence::to_string).collect::<Vec<_>>().join(", "),
            };
            return Some(format!(
                "it has {}, but the model was trained on {}",
                names(theirs),
                names(&self.schema)
            ));
        }
        let differs = self.vocabularies.iter().find(|mine| !other.vocabularies.contains(mine))?;
        let name = &differs.name;
        Some(format!(
            "its {name} differs from the one that the model was trained with, so its ids mean different categories"
        ))
    }

    /// Returns an encoder that converts raw rows into samples of the model. Each vocabulary is read from the first of
    /// `folders` whose file has the checksum of the one that training used.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] if none has it.
    pub fn encoder(&self, folders: &[PathBuf]) -> Result<Encoder> {
        let dir = folders.first().map_or(Path::new(""), PathBuf::as_path);
        Encoder::with_files(&self.schema, dir, |name| self.vocabulary(name, folders))
    }

    /// Returns the bytes of a vocabulary, from the first of `folders` whose file has the checksum of the one that
    /// training used.
    ///
    /// # Errors
    /// The errors of [`Columns::encoder`].
    pub fn vocabulary(&self, name: &str, folders: &[PathBuf]) -> Result<Vec<u8>> {
        let listed = self.vocabularies.iter().find(|file| file.name == name);
        let mut errors = Vec::new();
        for path in folders.iter().map(|folder| folder.join(name)) {
            errors.push(match read_regular(&path) {
                Ok(bytes) if listed.is_some_and(|file| file.xxh3 == Checksum::of(&bytes)) => {
                    return Ok(bytes);
                }
                Ok(_) => {
                    let what =
                        "it is not the vocabulary that the model was trained with: its checksum differs";
                    Error::Damaged { path, offset: None, what: what.into() }
                }
                Err(source) => Error::Io { doing: "read", path, source },
            });
        }
        // A file with another content is a better hint than a missing one.
        let damaged = |error: &Error| matches!(error, Error::Damaged { .. });
        let best = errors.iter().position(damaged).unwrap_or(0);
        let no_folder = || Error::unsuitable(Path::new(name), format!("the folder of {name} is not known"));
        Err(errors.into_iter().nth(best).unwrap_or_else(no_folder))
    }
}

/// Describes how the names of columns differ from those that a model needs.
fn different_names(expected: &[&str], found: &[&str]) -> String {
    let without = |these: &[&str], those: &[&str]| -> String {
        let names = these.iter().filter(|name| !those.contains(name)).map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    match (without(expected, found), without(found, expected)) {
        (lacking, more) if lacking.is_empty() && more.is_empty() => {
            format!(
                "its columns are in the order {}; the model needs {}",
                found.join(", "),
                expected.join(", ")
            )
        }
        (lacking, more) if more.is_empty() => format!("it lacks {lacking}"),
        (lacking, more) if lacking.is_empty() => format!("it has {more}, which the model does not use"),
        (lacking, more) => format!("it lacks {lacking}, and has {more}, which the model does not use"),
    }
}
