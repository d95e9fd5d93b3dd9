//! The index of a shard: the pieces, what each holds, and its checksum.

use rankine_base::sealed::Checksum;
use rankine_embedding::rows::RowSet;
use serde::{Deserialize, Serialize};

use super::manifest::{Manifest, RuleState};

/// The kind of the sealed file of an index.
pub const KIND: &str = "rankine checkpoint shard";
/// Its version.
pub const FORMAT: u32 = 1;

/// Most bytes of a piece, unless it is a single row.
pub(super) const PIECE_BYTES: usize = 8 << 20;
/// The largest accepted length of a piece: more than any row takes, and little memory.
const PIECE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a row that an id has: the row, the id and its score.
pub(super) const KEY_BYTES: u64 = 20;

/// The pieces of a shard's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardIndex {
    /// The file, in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes of the safetensors header before the tensors.
    pub header_bytes: u64,
    /// The checksum of the header.
    pub header_xxh3: Checksum,
    /// The pieces, one after the other up to the end of the file.
    pub pieces: Vec<PieceEntry>,
}

/// A piece: some tensors, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceEntry {
    /// What it holds.
    #[serde(flatten)]
    pub contents: PieceContents,
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub xxh3: Checksum,
}

/// The contents of a piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PieceContents {
    /// Dense parameters: `count` of them from `first` on, followed by as many values of each kind of state.
    Dense {
        /// The first parameter.
        dense_first: u64,
        /// How many.
        dense_count: u64,
    },
    /// Rows of a table.
    Rows {
        /// The number of the table.
        table: usize,
        /// The first column, and the one after the last.
        columns: (usize, usize),
        /// The rows.
        rows: SavedRows,
        /// Kinds of state: those of the optimizer, or none if rows of other columns have them.
        states: usize,
    },
    /// Rows that ids have, with the ids, and rows that lost theirs.
    Keys {
        /// The number of the table.
        keys_of: usize,
        /// Rows that ids have.
        count: u64,
        /// Rows that lost their ids since the base.
        freed: u64,
    },
    /// Counts of ids without a row.
    Counts {
        /// The number of the table.
        counts_of: usize,
        /// How many of its shards.
        shards: u64,
    },
}

/// Rows of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedRows {
    /// `count` rows from `first` on, each `step` after the one before.
    Every {
        /// The first.
        first: u64,
        /// From one to the next.
        step: u64,
        /// How many.
        count: u64,
    },
    /// `count` rows, whose numbers are the piece's first tensor. They override those of other pieces.
    Listed {
        /// How many.
        count: u64,
    },
}

impl SavedRows {
    /// How many there are.
    pub fn len(self) -> u64 {
        match self {
            Self::Every { count, .. } | Self::Listed { count } => count,
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The piece of some rows.
    pub fn of(rows: &RowSet) -> Self {
        match *rows {
            RowSet::Every { first, step, count } => Self::Every { first, step, count },
            RowSet::Listed(ref rows) => Self::Listed { count: rows.len() as u64 },
        }
    }
}

impl PieceContents {
    /// Whether it overrides other pieces.
    pub fn is_listed(&self) -> bool {
        matches!(self, Self::Rows { rows: SavedRows::Listed { .. }, .. })
    }

    /// Whether it holds ids or their counts.
    pub fn is_of_keys(&self) -> bool {
        matches!(self, Self::Keys { .. } | Self::Counts { .. })
    }

    /// The bytes that it must have; `None` if it cannot be a piece of this checkpoint.
    pub(super) fn bytes(&self, manifest: &Manifest) -> Option<u64> {
        match *self {
            Self::Dense { dense_first, dense_count } => {
                let parameters = manifest.spec.dense_parameters() as u64;
                if dense_first.checked_add(dense_count)? > parameters {
                    return None;
                }
                dense_count.checked_mul(4 * (1 + manifest.dense.state.len() as u64))
            }
            Self::Rows { table, columns: (first, end), rows, states } => {
                let of = manifest.tables.get(table)?;
                let last = match rows {
                    SavedRows::Every { first, step, count: 1.. } => {
                        if step == 0 {
                            return None;
                        }
                        first.checked_add(step.checked_mul(rows.len() - 1)?)?
                    }
                    _ => 0,
                };
                if last >= of.table.rows
                    || first >= end
                    || end > of.table.dim
                    || !states_fit(&of.learns, first, states)
                {
                    return None;
                }
                let list = if self.is_listed() { 8 } else { 0 };
                let columns = (end - first) as u64;
                let state = if of.learns.rowwise { 1 } else { columns };
                let row = columns * of.table.dtype.bytes() as u64 + 4 * state * states as u64 + list;
                rows.len().checked_mul(row)
            }
            Self::Keys { keys_of, count, freed } => {
                let rows = manifest.tables.get(keys_of)?.table.dynamic?.table_rows();
                let most = |count: u64| (count < rows).then_some(count);
                Some(KEY_BYTES * most(count)? + 8 * most(freed)?)
            }
            Self::Counts { counts_of, shards } => {
                let rows = manifest.tables.get(counts_of)?.table.dynamic?;
                (shards <= rows.shards()).then(|| shards * (16 + rows.sketch_bytes()))
            }
        }
    }
}

/// Whether a piece that starts at a column has the state that it should: row-wise state is stored with the first
/// columns only.
fn states_fit(learns: &RuleState, first_column: usize, states: usize) -> bool {
    states == if learns.rowwise && first_column > 0 { 0 } else { learns.state.len() }
}

impl ShardIndex {
    /// Adds the next pieces.
    pub(super) fn add(&mut self, pieces: impl IntoIterator<Item = PieceEntry>) {
        for piece in pieces {
            self.bytes += piece.bytes;
            self.pieces.push(piece);
        }
    }

    /// Checks that it can be the index of a shard of this checkpoint.
    pub(super) fn validate(&self, manifest: &Manifest) -> Result<(), String> {
        let mut end = self.header_bytes;
        for (number, piece) in self.pieces.iter().enumerate() {
            if piece.contents.bytes(manifest) != Some(piece.bytes) {
                return Err(format!("piece {number} does not belong to this model"));
            }
            if piece.bytes > PIECE_BYTES_MAX {
                return Err(format!("piece {number} is too long"));
            }
            end = end.checked_add(piece.bytes).ok_or("its pieces are too long")?;
        }
        if end != self.bytes || self.header_bytes > self.bytes {
            return Err(format!("its pieces have {end} bytes, but the file has {}", self.bytes));
        }
        Ok(())
    }

    /// The offset of each piece in the file.
    pub fn begins(&self) -> Vec<u64> {
        let begin = |end: &mut u64, piece: &PieceEntry| {
            let begin = *end;
            *end += piece.bytes;
            Some(begin)
        };
        self.pieces.iter().scan(self.header_bytes, begin).collect()
    }
}
