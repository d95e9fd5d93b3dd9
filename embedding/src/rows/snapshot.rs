//! Selections of rows, and copies of them.

use std::ops::Range;
use std::sync::Arc;

use super::{RowPart, RowSet, Rows, RowsError};
use crate::memory::Memory;

/// Positions of a part that are to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSelection {
    /// The number of the part.
    pub part: usize,
    /// The positions.
    pub positions: RowSet,
}

impl RowSelection {
    /// Selects all rows that a rank is responsible for.
    pub fn all(rows: &dyn Rows) -> Vec<Self> {
        let own = |(part, of): (usize, &RowPart)| {
            let Range { start, end } = of.own;
            Self { part, positions: RowSet::Every { first: start, step: 1, count: end - start } }
        };
        rows.parts().iter().enumerate().map(own).collect()
    }

    /// Selects those of them that have been written since tracking began; `None` without tracking.
    ///
    /// # Errors
    /// If the tracking data cannot be read.
    pub fn touched(rows: &dyn Rows) -> Result<Option<Vec<Self>>, RowsError> {
        let mut chosen = Vec::new();
        for (part, of) in rows.parts().iter().enumerate() {
            let Some(touched) = rows.touched(part)? else { return Ok(None) };
            chosen.push(Self { part, positions: RowSet::from(touched.among(of.own.clone())) });
        }
        Ok(Some(chosen))
    }

    /// The size of the rows in words.
    pub fn words(&self, rows: &dyn Rows) -> u64 {
        self.positions.len() * rows.parts()[self.part].layout.words as u64
    }

    /// The words of some of the selected rows, by index; `scratch` is used if they are not contiguous.
    ///
    /// # Errors
    /// If rows cannot be accessed.
    pub fn words_of<'a>(
        &self,
        rows: &'a dyn Rows,
        numbers: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        if let RowSet::Every { first, step: 1, .. } = self.positions {
            return rows.read(self.part, first + numbers.start..first + numbers.end, scratch);
        }
        let words = rows.parts()[self.part].layout.words;
        scratch.resize((numbers.end - numbers.start) as usize * words, 0.0);
        self.copy(rows, numbers, scratch)?;
        Ok(scratch)
    }

    /// Copies the words of some of the selected rows, by index.
    ///
    /// # Errors
    /// If rows cannot be accessed.
    ///
    /// # Panics
    /// If `to` has another length.
    pub fn copy(&self, rows: &dyn Rows, numbers: Range<u64>, to: &mut [f32]) -> Result<(), RowsError> {
        match &self.positions {
            RowSet::Every { first, step: 1, .. } => {
                rows.copy(self.part, first + numbers.start..first + numbers.end, to)
            }
            RowSet::Listed(positions) => {
                rows.copy_listed(self.part, &positions[numbers.start as usize..numbers.end as usize], to)
            }
            every => {
                let positions: Vec<_> = every.part(numbers).iter().collect();
                rows.copy_listed(self.part, &positions, to)
            }
        }
    }
}

/// Copied rows: the originals may change.
#[derive(Debug, Default)]
pub struct Snapshot {
    parts: Vec<RowPart>,
    words: Vec<Memory>,
}

impl Snapshot {
    /// Creates an empty snapshot with memory for this many words of each part, which the system has allocated when
    /// this returns: the first snapshot need not wait for it.
    pub fn with_room(words: Vec<u64>) -> Self {
        let populated = |words| {
            let mut memory = Memory::zeroed(words as usize);
            memory.populate();
            memory
        };
        Self { parts: Vec::new(), words: words.into_iter().map(populated).collect() }
    }

    /// Copies the selected rows. The memory of an older snapshot is reused as far as possible.
    ///
    /// # Errors
    /// If rows cannot be accessed.
    pub fn of(rows: &dyn Rows, chosen: &[RowSelection], older: Option<Self>) -> Result<Self, RowsError> {
        let mut older = older.map(|older| older.words).unwrap_or_default().into_iter();
        let mut snapshot = Self::default();
        for choice in chosen {
            let part = &rows.parts()[choice.part];
            let len = choice.words(rows) as usize;
            let mut words = match older.next() {
                Some(words) if words.len() >= len => words,
                _ => Memory::zeroed(len),
            };
            choice.copy(rows, 0..choice.positions.len(), &mut words[..len])?;
            snapshot.parts.push(RowPart {
                rows: part.rows.at(&choice.positions),
                own: 0..choice.positions.len(),
                ..part.clone()
            });
            snapshot.words.push(words);
        }
        Ok(snapshot)
    }

    /// Bytes of memory that it holds.
    pub fn room(&self) -> u64 {
        self.words.iter().map(|words| 4 * words.len() as u64).sum()
    }

    /// Bytes of the selected rows.
    pub fn bytes(rows: &dyn Rows, chosen: &[RowSelection]) -> u64 {
        chosen.iter().map(|choice| 4 * choice.words(rows)).sum()
    }
}

impl Rows for Snapshot {
    fn parts(&self) -> &[RowPart] {
        &self.parts
    }

    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        _: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        let words = self.parts[part].layout.words;
        Ok(&self.words[part][positions.start as usize * words..positions.end as usize * words])
    }
}

/// Converts a list of positions.
impl From<Vec<u64>> for RowSet {
    fn from(rows: Vec<u64>) -> Self {
        Self::Listed(Arc::new(rows))
    }
}
