//! A vocabulary as look-ups need it: in memory, or in the files of a fit.

use std::borrow::Cow;

use rankine_base::error::Result;

use super::mapped::MappedVocabulary;
use super::{OUT_OF_VOCABULARY, Vocabulary};
use crate::key::ShortKey;
use crate::key::compact::CompactKey;

/// A vocabulary in which categories are looked up.
#[derive(Debug, Clone)]
pub(crate) enum Lookup {
    Loaded(Vocabulary),
    Mapped(MappedVocabulary),
}

impl From<Vocabulary> for Lookup {
    fn from(vocabulary: Vocabulary) -> Self {
        Self::Loaded(vocabulary)
    }
}

impl Lookup {
    /// Returns the rows of the table, as [`Vocabulary::rows`] does.
    pub(crate) fn rows(&self) -> u64 {
        match self {
            Self::Loaded(vocabulary) => vocabulary.rows(),
            Self::Mapped(vocabulary) => vocabulary.rows(),
        }
    }

    /// Returns the row of a category, [`OUT_OF_VOCABULARY`] if it has no row of its own.
    pub(crate) fn row(&self, category: &[u8]) -> u64 {
        match self {
            Self::Loaded(vocabulary) => vocabulary.row(category).unwrap_or(OUT_OF_VOCABULARY),
            Self::Mapped(vocabulary) => vocabulary.row(category),
        }
    }

    /// Appends the row of each compact key to `rows`, [`OUT_OF_VOCABULARY`] for categories without one.
    pub(crate) fn rows_of_compact(&self, keys: &[CompactKey], rows: &mut Vec<u64>) {
        match self {
            Self::Loaded(vocabulary) => vocabulary.rows_of_compact(keys, rows),
            Self::Mapped(vocabulary) => vocabulary.rows_of_compact(keys, rows),
        }
    }

    /// Appends the row of each short key that is not compact to `rows`, [`OUT_OF_VOCABULARY`] for categories without
    /// one.
    pub(crate) fn rows_of_other(&self, keys: &[ShortKey], rows: &mut Vec<u64>) {
        match self {
            Self::Loaded(vocabulary) => vocabulary.rows_of_other(keys, rows),
            Self::Mapped(vocabulary) => vocabulary.rows_of_other(keys, rows),
        }
    }

    /// Returns the vocabulary if it is in memory.
    pub(crate) fn loaded(&self) -> Option<&Vocabulary> {
        match self {
            Self::Loaded(vocabulary) => Some(vocabulary),
            Self::Mapped(_) => None,
        }
    }

    /// Returns the vocabulary, in memory for the time being.
    ///
    /// # Errors
    /// As [`MappedVocabulary::load`].
    pub(crate) fn to_loaded(&self) -> Result<Cow<'_, Vocabulary>> {
        match self {
            Self::Loaded(vocabulary) => Ok(Cow::Borrowed(vocabulary)),
            Self::Mapped(vocabulary) => vocabulary.load().map(Cow::Owned),
        }
    }

    /// Returns the vocabulary in memory, where it can grow.
    ///
    /// # Errors
    /// As [`MappedVocabulary::load`].
    pub(crate) fn into_loaded(self) -> Result<Vocabulary> {
        match self {
            Self::Loaded(vocabulary) => Ok(vocabulary),
            Self::Mapped(vocabulary) => vocabulary.load(),
        }
    }

    /// Passes the text of the vocabulary in pieces, as [`Vocabulary::to_tsv`] does.
    ///
    /// # Errors
    /// The errors of `put`, and of [`MappedVocabulary::copy_text`].
    pub(crate) fn to_tsv(&self, put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Self::Loaded(vocabulary) => vocabulary.to_tsv(put),
            Self::Mapped(vocabulary) => vocabulary.copy_text(put),
        }
    }
}
