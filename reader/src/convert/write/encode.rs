//! Turns raw rows into samples with the same code for conversion and prediction.

use std::path::Path;

use rankine_base::error::{Error, Result};

use crate::buckets::append_ids;
use crate::convert::rows::{RawBags, RawKeys, RawRows, RawValues};
use crate::convert::write::keys::KeyCounter;
use crate::convert::write::unknown::UnknownCounter;
use crate::dataset::{Dataset, Fit};
use crate::precomputed::PrecomputedFunction;
use crate::samples::{Bags, Samples};
use crate::schema::{DenseTransform, Schema, VocabularyKind};
use crate::vocabulary::{self, Lookup, Vocabulary, hash_key, hash_row};

/// Counts categories while they are encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters<'a> {
    /// Counts the categories that the vocabularies do not list.
    pub(crate) unknown: &'a UnknownCounter,
    /// Counts the categories of open vocabularies.
    pub(crate) keys: Option<&'a KeyCounter>,
}

/// Turns raw rows into samples of a schema: transforms numbers and looks up categories.
#[derive(Debug)]
pub struct Encoder {
    dense: Vec<DenseColumn>,
    /// Those that raw rows have; columns of buckets follow them.
    categories: Vec<CategoryColumn>,
    schema: Schema,
}

#[derive(Debug)]
struct DenseColumn {
    transform: DenseTransform,
    table: PrecomputedFunction<f32>,
}

impl DenseColumn {
    /// Returns the stored value of a number, clamped to the range of the storage type: a standardized number can only
    /// exceed it if it is tens of thousands of deviations from the mean.
    fn stored(&self, raw: f64, largest: f32) -> f32 {
        self.transform.apply(Some(raw)).clamp(-largest, largest)
    }
}

#[derive(Debug)]
enum CategoryColumn {
    Exact(Lookup),
    /// Exact, using the vocabulary of an earlier column.
    Shared(usize),
    Hash {
        rows: u64,
    },
    Open,
    Identity,
}

impl Encoder {
    /// Creates an encoder for a schema from a vocabulary for each exact column that does not share one, and `None`
    /// for all other columns.
    ///
    /// # Errors
    /// [`Error::Columns`] if a vocabulary is missing or does not have the rows of its column.
    pub(crate) fn new(schema: &Schema, vocabularies: Vec<Option<Lookup>>) -> Result<Self> {
        if vocabularies.len() != schema.categorical.len() {
            let what = format!(
                "{} vocabularies for {} categorical columns",
                vocabularies.len(),
                schema.categorical.len()
            );
            return Err(Error::columns(None, what));
        }
        let columns = schema.stored_categorical().iter().zip(vocabularies).enumerate();
        let categories = columns.map(|(number, (column, vocabulary))| {
            let owner = schema.vocabulary_owner(number)?;
            match (&column.vocabulary, column.rows, vocabulary) {
                (VocabularyKind::Exact { .. }, _, None) if owner != number => {
                    Ok(CategoryColumn::Shared(owner))
                }
                (VocabularyKind::Exact { .. }, Some(rows), Some(vocabulary)) if vocabulary.rows() == rows => {
                    Ok(CategoryColumn::Exact(vocabulary))
                }
                (VocabularyKind::Hash, Some(rows), None) => Ok(CategoryColumn::Hash { rows }),
                (VocabularyKind::Open, None, None) => Ok(CategoryColumn::Open),
                (VocabularyKind::Identity, Some(_), None) => Ok(CategoryColumn::Identity),
                (_, _, vocabulary) => Err(Error::column(
                    &column.name,
                    format!(
                        "has {}, but its vocabulary has {} rows",
                        column.table(),
                        vocabulary.map_or(0, |vocabulary| vocabulary.rows())
                    ),
                )),
            }
        });
        let dense = schema.dense.iter().map(|column| {
            let transform = column.transform;
            let column = DenseColumn { transform, table: PrecomputedFunction::new(|_| 0.0) };
            let table = PrecomputedFunction::new(|x| column.stored(x, schema.dense_dtype.largest()));
            DenseColumn { transform, table }
        });
        Ok(Self {
            dense: dense.collect(),
            categories: categories.collect::<Result<_>>()?,
            schema: schema.clone(),
        })
    }

    /// Opens the encoder of a dataset, with the vocabularies in the dataset's folder.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] for a vocabulary file; [`Error::Columns`] if it does not have the rows of
    /// its column.
    pub fn open(dataset: &Dataset) -> Result<Self> {
        Self::with_files(dataset.schema(), dataset.dir(), |name| dataset.checked_file(name))
    }

    /// Opens the encoder of a fit. Vocabularies that have an index are mapped.
    ///
    /// # Errors
    /// As [`Encoder::open`].
    pub fn of_fit(fit: &Fit) -> Result<Self> {
        Self::with_vocabularies(fit.schema(), |column| fit.vocabulary(column))
    }

    /// Creates the encoder of a schema from the vocabularies of a dataset, or of a model trained on it. `read`
    /// returns the checked bytes of a file by its path below the folder, with forward slashes.
    ///
    /// # Errors
    /// The errors of `read`; [`Error::Damaged`] for an invalid vocabulary; [`Error::Columns`] if it does not have the
    /// rows of its column.
    pub fn with_files(
        schema: &Schema,
        dir: &Path,
        mut read: impl FnMut(&str) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        Self::with_vocabularies(schema, |column| {
            let name = vocabulary::file_name(column);
            let vocabulary = Vocabulary::from_tsv(&read(&name)?);
            vocabulary.map(Lookup::from).map_err(|what| Error::damaged(&dir.join(&name), None, what))
        })
    }

    /// Creates the encoder of a schema; `open` returns the vocabulary of a column by its name.
    fn with_vocabularies(schema: &Schema, mut open: impl FnMut(&str) -> Result<Lookup>) -> Result<Self> {
        let vocabularies = schema.categorical.iter().map(|column| match &column.vocabulary {
            VocabularyKind::Exact { .. } if column.shares.is_none() => open(&column.name).map(Some),
            _ => Ok(None),
        });
        Self::new(schema, vocabularies.collect::<Result<_>>()?)
    }

    /// Returns the vocabulary, owned or shared, of a categorical column counted from 0, or `None` if it has none.
    pub(crate) fn vocabulary(&self, column: usize) -> Option<&Lookup> {
        match self.categories.get(column)? {
            CategoryColumn::Exact(vocabulary) => Some(vocabulary),
            CategoryColumn::Shared(owner) => match &self.categories[*owner] {
                CategoryColumn::Exact(vocabulary) => Some(vocabulary),
                _ => unreachable!("an owner does not share a vocabulary, as `Encoder::new` has checked"),
            },
            CategoryColumn::Hash { .. } | CategoryColumn::Open | CategoryColumn::Identity => None,
        }
    }

    /// Returns the vocabularies, one entry per stored categorical column; `None` if it does not own one.
    pub(crate) fn into_vocabularies(self) -> Vec<Option<Lookup>> {
        let own = |column| match column {
            CategoryColumn::Exact(vocabulary) => Some(vocabulary),
            CategoryColumn::Shared(_)
            | CategoryColumn::Hash { .. }
            | CategoryColumn::Open
            | CategoryColumn::Identity => None,
        };
        self.categories.into_iter().map(own).collect()
    }

    /// Appends the samples of raw rows as a dataset would store them: numbers have its precision, and those of columns
    /// of buckets have their ids.
    pub fn encode_as_stored(&self, rows: &RawRows, out: &mut Samples) {
        self.encode_rounded(rows, out, None);
    }

    /// Like [`Encoder::encode_as_stored`], and counts the categories that the vocabularies do not list.
    pub(crate) fn encode_as_stored_and_count(
        &self,
        rows: &RawRows,
        out: &mut Samples,
        unknown: &UnknownCounter,
    ) {
        self.encode_rounded(rows, out, Some(Counters { unknown, keys: None }));
    }

    fn encode_rounded(&self, rows: &RawRows, out: &mut Samples, counters: Option<Counters<'_>>) {
        let before = out.dense.len();
        self.encode(rows, out, counters);
        self.schema.dense_dtype.round(&mut out.dense[before..]);
        append_ids(&self.schema, out);
    }

    /// Appends the samples of raw rows, which must have the same schema, without categories whose weight is 0 and
    /// positions of sequences that are too many; columns of buckets remain as they are. Counts the categories if there
    /// are counters.
    pub(crate) fn encode(&self, rows: &RawRows, out: &mut Samples, counters: Option<Counters<'_>>) {
        if rows.is_empty() {
            return;
        }
        // Column by column, so that a small vocabulary stays in the cache while it is used.
        let first = out.len;
        out.len += rows.len();
        for (labels, raw) in out.labels.iter_mut().zip(&rows.labels) {
            labels.extend_from_slice(raw);
        }
        out.weights.extend_from_slice(&rows.weights);
        let columns = self.dense.len();
        let largest = self.schema.dense_dtype.largest();
        out.dense.resize(out.len * columns, 0.0);
        for (number, (column, values)) in self.dense.iter().zip(&rows.dense).enumerate() {
            let stored = out.dense[first * columns + number..].iter_mut().step_by(columns);
            for (stored, raw) in stored.zip(values) {
                *stored = match raw.is_nan() {
                    true => column.transform.apply(None),
                    false => column.table.get(*raw, |x| column.stored(x, largest)),
                };
            }
        }
        let columns = self.categories.iter().zip(&rows.categories).zip(&mut out.categorical);
        for (number, ((column, raw), bags)) in columns.enumerate() {
            let before = bags.ids.len();
            match (self.vocabulary(number), column, &raw.values) {
                (Some(vocabulary), _, RawValues::Keys(keys)) => {
                    vocabulary.rows_of_compact(&keys.compact, &mut bags.ids);
                    let mut rows = Vec::new();
                    vocabulary.rows_of_other(&keys.other, &mut rows);
                    for ((number, _), row) in keys.other().zip(rows) {
                        bags.ids[before + number] = row;
                    }
                    put_long(keys, &mut bags.ids[before..], |category| vocabulary.row(category));
                }
                (_, &CategoryColumn::Hash { rows }, RawValues::Keys(keys)) => {
                    put_hashes(keys, &mut bags.ids, |category| hash_row(category, rows));
                }
                (_, CategoryColumn::Open, RawValues::Keys(keys)) => {
                    put_hashes(keys, &mut bags.ids, hash_key);
                }
                (_, _, RawValues::Rows(ids)) => bags.ids.extend_from_slice(ids),
                (None, _, RawValues::Keys(_)) => {
                    unreachable!("identity columns are read as row numbers")
                }
            }
            if let (Some(counters), RawValues::Keys(keys)) = (counters, &raw.values) {
                if self.vocabulary(number).is_some() {
                    counters.unknown.add(number, keys, &bags.ids[before..]);
                }
                if let Some(counter) = counters.keys {
                    counter.add(number, keys, &bags.ids[before..]);
                }
            }
            close_bags(&raw.bags, rows.len(), bags, before);
            if self.schema.categorical[number].weighted {
                bags.weights.extend_from_slice(&raw.weights);
                bags.remove_zero_weights(first);
            }
        }
        self.schema.trim_sequences(out, first);
    }
}

/// Appends the hash of each category.
fn put_hashes(keys: &RawKeys, ids: &mut Vec<u64>, hash: impl Fn(&[u8]) -> u64 + Copy) {
    let before = ids.len();
    ids.extend(keys.compact.iter().map(|key| key.to_short().with_bytes(hash)));
    keys.other().for_each(|(number, key)| ids[before + number] = key.with_bytes(hash));
    put_long(keys, &mut ids[before..], hash);
}

fn put_long(keys: &RawKeys, ids: &mut [u64], row: impl Fn(&[u8]) -> u64) {
    for (number, category) in keys.long() {
        ids[number] = row(category);
    }
}

/// Appends bags of the ids after the first `before`.
fn close_bags(raw: &RawBags, rows: usize, bags: &mut Bags, before: usize) {
    let first = before as u32;
    match raw {
        RawBags::Fixed(count) => bags.offsets.extend((1..=rows as u32).map(|row| first + row * count)),
        RawBags::Ends(ends) => bags.offsets.extend(ends.iter().map(|end| first + end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::LINE_BYTES_MAX;
    use crate::convert::formats::criteo::CriteoParser;
    use crate::convert::tests::{GOOD_LINE, schema, with_field};
    use crate::convert::text::LineParser;

    #[test]
    fn numbers_are_transformed_and_categories_looked_up() {
        let mut schema = schema();
        schema.dense[0].transform.mean = 1.5;
        schema.dense[0].transform.deviation = 2.0;
        schema.categorical[0].vocabulary = VocabularyKind::Hash;
        schema.categorical[0].rows = Some(1000);
        schema.categorical[1].vocabulary = VocabularyKind::Identity;
        schema.categorical[1].rows = Some(77);
        let vocabulary = Vocabulary::from_counts([("0123456789abcdef", 3), ("", 2)], 1);
        let mut vocabularies = vec![None; 26];
        vocabularies[2..].fill(Some(vocabulary.into()));
        schema.categorical[2..].iter_mut().for_each(|column| column.rows = Some(3));
        let encoder = Encoder::new(&schema, vocabularies).unwrap();
        let parser = CriteoParser::new(&schema, true, LINE_BYTES_MAX).unwrap();

        let mut rows = RawRows::new(&schema);
        let mut line = with_field(GOOD_LINE, 0, "1");
        for (field, value) in
            [(1, "-100"), (2, "3000000"), (3, ""), (15, "76"), (16, "0123456789abcdef"), (17, "")]
        {
            line = with_field(&line, field, value);
        }
        parser.push(line.as_bytes(), &mut rows).unwrap();
        let mut samples = Samples::new(&schema);
        encoder.encode(&rows, &mut samples, None);
        encoder.encode(&rows, &mut samples, None);
        assert_eq!((samples.len, &samples.labels[0][..]), (2, &[1.0, 1.0][..]));
        let expected = |number: usize, raw| schema.dense[number].transform.apply(raw);
        assert_eq!(samples.dense[13], expected(0, Some(-100.0)));
        assert_eq!(samples.dense[14], expected(1, Some(3e6)));
        assert_eq!(samples.dense[15], 0.0);
        let category = GOOD_LINE.split('\t').nth(14).unwrap();
        assert_eq!(samples.categorical[0].bag(1), [hash_row(category.as_bytes(), 1000)]);
        assert_eq!(samples.categorical[1].bag(1), [76]);
        assert_eq!(samples.categorical[2].bag(1), [1]);
        assert_eq!(samples.categorical[3].bag(1), [2]);
        assert_eq!(samples.categorical[4].bag(1), [vocabulary::OUT_OF_VOCABULARY]);
    }

    #[test]
    fn vocabularies_must_fit_the_schema() {
        let mut schema = schema();
        assert!(Encoder::new(&schema, vec![]).is_err());
        assert!(Encoder::new(&schema, vec![None; 26]).unwrap_err().to_string().contains("column C1"));
        schema.categorical[0].hotness = crate::schema::Hotness::Fixed(3);
        assert!(CriteoParser::new(&schema, true, LINE_BYTES_MAX).is_err());
    }
}
