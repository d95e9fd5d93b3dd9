//! How the raw categories of a column become ids.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How raw categories become ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum VocabularyKind {
    /// A list of the categories that occur `min_count` times or more in training, in `vocabulary/COLUMN.tsv`; row 0
    /// stands for all others.
    Exact {
        /// The number of occurrences from which a category has its own row.
        min_count: u64,
    },
    /// A hash of the category, modulo the table's rows.
    Hash,
    /// A hash of 64 bits of the category. The id is the key of a row, not its number: see
    /// [`hash_key`](crate::vocabulary::hash_key). Categories come and go, and their number is not known.
    Open,
    /// The category is the row number itself.
    Identity,
    /// The column is not stored: its ids are computed from those of a dense column. The id is the number of
    /// boundaries that are not above the stored number.
    Buckets {
        /// The dense column.
        of: String,
        /// Ascending, in the units of stored numbers, that is, after the column's transform.
        boundaries: Vec<f32>,
    },
}

/// Boundaries that a description shows one by one.
const BOUNDARIES_SHOWN: usize = 4;

impl fmt::Display for VocabularyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact { min_count } => write!(f, "exact with min_count {min_count}"),
            Self::Hash => f.write_str("hash"),
            Self::Open => f.write_str("open"),
            Self::Identity => f.write_str("identity"),
            Self::Buckets { of, boundaries } => {
                let shown: Vec<_> =
                    boundaries.iter().take(BOUNDARIES_SHOWN).map(|boundary| boundary.to_string()).collect();
                let more = if boundaries.len() > BOUNDARIES_SHOWN { ", ..." } else { "" };
                write!(f, "buckets of {of} at {}{more}", shown.join(", "))
            }
        }
    }
}
