//! Rows as they are chosen, and as they are copied aside.

use std::ops::Range;
use std::sync::Arc;

use super::{RowPart, RowSet, Rows, RowsError, Touched};
use crate::memory::Memory;

/// Positions of a part that are to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The number of the part.
    pub part: usize,
    /// The positions.
    pub positions: RowSet,
}

impl Choice {
    /// All rows that a rank speaks for.
    pub fn all(rows: &dyn Rows) -> Vec<Self> {
        let own = |(part, of): (usize, &RowPart)| {
            let Range { start, end } = of.own;
            Self { part, positions: RowSet::Every { first: start, step: 1, count: end - start } }
        };
        rows.parts().iter().enumerate().map(own).collect()
    }

    /// Those of them that have been written since tracking began; `None` where nobody kept book.
    ///
    /// # Errors
    /// Where that cannot be read.
    pub fn touched(rows: &dyn Rows) -> Result<Option<Vec<Self>>, RowsError> {
        let mut chosen = Vec::new();
        for (part, of) in rows.parts().iter().enumerate() {
            let Some(touched) = rows.touched(part)? else { return Ok(None) };
            chosen.push(Self { part, positions: RowSet::from(touched.among(of.own.clone())) });
        }
        Ok(Some(chosen))
    }

    /// Words that the rows take where they lie.
    pub fn words(&self, rows: &dyn Rows) -> u64 {
        self.positions.len() * rows.parts()[self.part].layout.words as u64
    }

    /// The words of some of the positions, by their number among these; `scratch` serves where those do not lie
    /// together.
    ///
    /// # Errors
    /// Where rows cannot be reached.
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

    /// Copies the words of some of the positions, by their number among these.
    ///
    /// # Errors
    /// Where rows cannot be reached.
    ///
    /// # Panics
    /// Where `to` is of another length.
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

/// Rows that were copied aside: what lies where they came from may change.
#[derive(Debug, Default)]
pub struct Snapshot {
    parts: Vec<RowPart>,
    words: Vec<Memory>,
}

impl Snapshot {
    /// Nothing, with memory for so many words of each part, which the system has handed out when this returns: the
    /// first snapshot need not wait for that.
    pub fn with_room(words: Vec<u64>) -> Self {
        let populated = |words| {
            let mut memory = Memory::zeroed(words as usize);
            memory.populate();
            memory
        };
        Self { parts: Vec::new(), words: words.into_iter().map(populated).collect() }
    }

    /// Copies the chosen rows. What an older snapshot has of memory is used again, as far as it goes.
    ///
    /// # Errors
    /// Where rows cannot be reached.
    pub fn of(rows: &dyn Rows, chosen: &[Choice], older: Option<Self>) -> Result<Self, RowsError> {
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

    /// Bytes of memory that it has.
    pub fn room(&self) -> u64 {
        self.words.iter().map(|words| 4 * words.len() as u64).sum()
    }

    /// Bytes of the chosen rows.
    pub fn bytes(rows: &dyn Rows, chosen: &[Choice]) -> u64 {
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

    fn touched(&self, _: usize) -> Result<Option<Touched>, RowsError> {
        Ok(None)
    }
}

/// Rows, as a list of positions.
impl From<Vec<u64>> for RowSet {
    fn from(rows: Vec<u64>) -> Self {
        Self::Listed(Arc::new(rows))
    }
}
