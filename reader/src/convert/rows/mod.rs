//! Rows in columnar form, whatever their source format: counted while learning and then encoded.

pub(crate) mod fault;
pub(crate) mod kept;
pub(crate) mod raw_type;
pub(crate) mod selection;
pub(crate) mod source;
pub(crate) mod split;
#[cfg(feature = "parquet")]
pub(crate) mod tables;
pub(crate) mod value_type;
pub(crate) mod weights;

use crate::key::ShortKey;
use crate::key::compact::CompactKey;
use crate::schema::{Hotness, Schema, VocabularyKind};

/// Rows as they were read. Text parsers append row by row, column readers column by column; in both cases every
/// column must have its values of a row before `end_rows` counts it.
#[derive(Debug, Clone, Default)]
pub struct RawRows {
    len: usize,
    /// `[label][row]`: 0, 1, or NaN where the label is missing.
    pub(crate) labels: Vec<Vec<f32>>,
    /// Finite and not negative; empty if the schema has no weight.
    pub(crate) weights: Vec<f32>,
    /// `[dense column][row]`: finite, or NaN if the number is missing.
    pub(crate) dense: Vec<Vec<f64>>,
    /// One entry per stored categorical column.
    pub(crate) categories: Vec<RawCategories>,
    /// The numbers of the columns of each sequence.
    sequences: Vec<Vec<usize>>,
}

/// A column of a sequence with another number of categories in a row than the first column of the sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnequalColumn {
    /// The column's number.
    pub(crate) column: usize,
    /// Its categories.
    pub(crate) found: usize,
    /// The number of the first column.
    pub(crate) of: usize,
    /// The categories of that one.
    pub(crate) expected: usize,
}

/// The categories of one column.
#[derive(Debug, Clone)]
pub(crate) struct RawCategories {
    /// Those of all rows, concatenated.
    pub(crate) values: RawValues,
    /// How many of them belong to each row.
    pub(crate) bags: RawBags,
    /// The weight of each category: finite and not negative. Empty if the column has no weights.
    pub(crate) weights: Vec<f32>,
}

/// The number of categories in each row of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawBags {
    /// The same number in every row.
    Fixed(u32),
    /// For each row, the number of categories up to its end.
    Ends(Vec<u32>),
}

/// Categories in the form in which their column looks them up.
#[derive(Debug, Clone)]
pub(crate) enum RawValues {
    /// By their bytes.
    Keys(RawKeys),
    /// Row numbers, each below its table's rows.
    Rows(Vec<u64>),
}

/// Categories that are looked up by their bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawKeys {
    /// One per category; [`CompactKey::NONE`] for other keys.
    pub(crate) compact: Vec<CompactKey>,
    /// The short keys that are not compact.
    pub(crate) other: Vec<ShortKey>,
    /// For each of these, the number of its category.
    other_numbers: Vec<u32>,
    /// For each category that is not a short key, its number and its end in `long_bytes`.
    long: Vec<(u32, u32)>,
    long_bytes: Vec<u8>,
}

impl RawRows {
    /// Returns an empty set of rows with a schema's stored columns.
    pub fn new(schema: &Schema) -> Self {
        let column = |column: &crate::schema::Categorical| RawCategories {
            values: match column.vocabulary {
                VocabularyKind::Exact { .. } | VocabularyKind::Hash | VocabularyKind::Open => {
                    RawValues::Keys(RawKeys::default())
                }
                VocabularyKind::Identity | VocabularyKind::Buckets { .. } => RawValues::Rows(Vec::new()),
            },
            bags: match column.hotness {
                Hotness::Fixed(count) => RawBags::Fixed(count),
                Hotness::Ragged { .. } => RawBags::Ends(Vec::new()),
            },
            weights: Vec::new(),
        };
        Self {
            len: 0,
            labels: vec![Vec::new(); schema.labels.len()],
            weights: Vec::new(),
            dense: vec![Vec::new(); schema.dense.len()],
            categories: schema.stored_categorical().iter().map(column).collect(),
            sequences: schema.columns_of_sequences(),
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Returns the numbers of the columns of all sequences.
    #[cfg(feature = "parquet")]
    pub(crate) fn columns_of_sequences(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().flatten().copied()
    }

    /// Returns the first column that has more or fewer categories in a row than the first column of its sequence has.
    /// Every column must have the row.
    #[inline]
    pub(crate) fn unequal_column(&self, row: usize) -> Option<UnequalColumn> {
        self.sequences.iter().find_map(|columns| {
            let (&of, others) = columns.split_first()?;
            let count = |number: usize| {
                let column = &self.categories[number];
                column.end_of(row + 1) - column.end_of(row)
            };
            let column = others.iter().copied().find(|&column| count(column) != count(of))?;
            Some(UnequalColumn { column, found: count(column), of, expected: count(of) })
        })
    }

    /// Counts rows whose values were appended to every column.
    #[inline]
    pub(crate) fn end_rows(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.labels.iter().all(|labels| labels.len() == self.len));
        debug_assert!(self.weights.is_empty() || self.weights.len() == self.len);
        debug_assert!(self.dense.iter().all(|values| values.len() == self.len));
        debug_assert!(self.categories.iter().all(|column| column.values.len() == column.end_of(self.len)));
        debug_assert!(self.categories.iter().all(|column| column.weights.is_empty() || column.is_weighted()));
    }

    /// Removes what was appended after the first `rows` rows, including parts of a row.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.len = rows;
        self.labels.iter_mut().for_each(|labels| labels.truncate(rows));
        self.weights.truncate(rows);
        self.dense.iter_mut().for_each(|values| values.truncate(rows));
        for column in &mut self.categories {
            let end = column.end_of(rows);
            column.values.truncate(end);
            column.weights.truncate(end);
            if let RawBags::Ends(ends) = &mut column.bags {
                ends.truncate(rows);
            }
        }
    }
}

impl RawCategories {
    /// Returns the end of the categories of the first `rows` rows.
    fn end_of(&self, rows: usize) -> usize {
        match &self.bags {
            RawBags::Fixed(count) => rows * *count as usize,
            RawBags::Ends(ends) => rows.checked_sub(1).map_or(0, |last| ends[last] as usize),
        }
    }

    /// Ends a row's bag after the categories appended so far; does nothing if all rows have the same number.
    #[inline]
    pub(crate) fn end_bag(&mut self) {
        if let RawBags::Ends(ends) = &mut self.bags {
            ends.push(u32::try_from(self.values.len()).expect("a chunk has fewer than 2^32 categories"));
        }
    }

    /// Returns whether each category appended so far has a weight.
    #[inline]
    pub(crate) fn is_weighted(&self) -> bool {
        self.weights.len() == self.values.len()
    }

    /// Returns the maximum number of categories in a row.
    pub(crate) fn largest_bag(&self) -> u32 {
        match &self.bags {
            RawBags::Fixed(count) => *count,
            RawBags::Ends(ends) => {
                let starts = std::iter::once(&0).chain(ends);
                ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
            }
        }
    }
}

impl RawValues {
    fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.compact.len(),
            Self::Rows(ids) => ids.len(),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Self::Keys(keys) => keys.truncate(len),
            Self::Rows(ids) => ids.truncate(len),
        }
    }
}

impl RawKeys {
    /// Appends a category.
    #[inline]
    pub(crate) fn push(&mut self, category: &[u8]) {
        let number = self.compact.len() as u32;
        let short = ShortKey::new(category);
        let compact = short.and_then(CompactKey::of_short);
        self.compact.push(compact.unwrap_or(CompactKey::NONE));
        match (compact, short) {
            (Some(_), _) => {}
            (None, Some(short)) => {
                self.other.push(short);
                self.other_numbers.push(number);
            }
            (None, None) => {
                self.long_bytes.extend_from_slice(category);
                let end = u32::try_from(self.long_bytes.len()).expect("a chunk has fewer than 2^32 bytes");
                self.long.push((number, end));
            }
        }
    }

    /// Returns the short keys that are not compact, with their numbers among all categories.
    pub(crate) fn other(&self) -> impl Iterator<Item = (usize, ShortKey)> {
        self.other_numbers.iter().zip(&self.other).map(|(&number, &key)| (number as usize, key))
    }

    /// Returns all short keys, in any order, with their numbers among all categories.
    pub(crate) fn short(&self) -> impl Iterator<Item = (usize, ShortKey)> {
        let compact = self.compact.iter().enumerate().filter(|&(_, key)| *key != CompactKey::NONE);
        compact.map(|(number, key)| (number, key.to_short())).chain(self.other())
    }

    /// Returns the categories that are not short keys, with their numbers among all.
    pub(crate) fn long(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let starts = std::iter::once(0).chain(self.long.iter().map(|&(_, end)| end));
        let bytes = |(&(number, end), start): (&(u32, u32), u32)| {
            (number as usize, &self.long_bytes[start as usize..end as usize])
        };
        self.long.iter().zip(starts).map(bytes)
    }

    fn truncate(&mut self, len: usize) {
        self.compact.truncate(len);
        while self.other_numbers.pop_if(|number| *number as usize >= len).is_some() {}
        self.other.truncate(self.other_numbers.len());
        while self.long.pop_if(|&mut (number, _)| number as usize >= len).is_some() {}
        self.long_bytes.truncate(self.long.last().map_or(0, |&(_, end)| end as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests;

    #[test]
    fn truncation_removes_later_values_from_every_column() {
        let mut schema = tests::schema();
        schema.dense.truncate(1);
        schema.categorical.truncate(2);
        schema.categorical[0].hotness = Hotness::Ragged { max: 9 };
        schema.categorical[1].vocabulary = VocabularyKind::Identity;
        schema.categorical[1].hotness = Hotness::Fixed(2);
        let mut rows = RawRows::new(&schema);
        let long = b"a category of more than fifteen bytes";
        let other = b"ten bytes.";
        let push = |rows: &mut RawRows, keys: &[&[u8]]| {
            rows.labels[0].push(1.0);
            rows.dense[0].push(f64::NAN);
            let [tags, pairs] = &mut rows.categories[..] else { panic!("two columns") };
            let (RawValues::Keys(tag_keys), RawValues::Rows(ids)) = (&mut tags.values, &mut pairs.values)
            else {
                panic!("one hashed, one identity")
            };
            keys.iter().for_each(|key| tag_keys.push(key));
            ids.extend([7, 8]);
            tags.end_bag();
            pairs.end_bag();
        };
        push(&mut rows, &[other, b"a", long]);
        rows.end_rows(1);
        let one = format!("{rows:?}");
        push(&mut rows, &[long, b"b", other, b"c"]);
        rows.end_rows(1);
        assert_eq!(
            (rows.len(), rows.categories[0].largest_bag(), rows.categories[1].largest_bag()),
            (2, 4, 2)
        );
        let RawValues::Keys(keys) = &rows.categories[0].values else { panic!("keys") };
        assert_eq!(keys.long().collect::<Vec<_>>(), [(2, &long[..]), (3, &long[..])]);
        let short = |bytes: &[u8]| ShortKey::new(bytes).unwrap();
        let [ten, a, b, c] = [&other[..], b"a", b"b", b"c"].map(short);
        assert_eq!(keys.short().collect::<Vec<_>>(), [(1, a), (4, b), (6, c), (0, ten), (5, ten)]);
        // An incomplete row.
        rows.labels[0].push(0.0);
        rows.truncate(1);
        assert_eq!(format!("{rows:?}"), one);
        rows.clear();
        assert!(rows.is_empty());
        assert_eq!(rows.categories[0].largest_bag(), 0);
    }
}
