//! From raw rows to samples: the same code for conversion and for scoring.

use crate::convert::moments::Tabulated;
use crate::convert::row::RowParser;
use crate::convert::rows::{RawBags, RawKeys, RawRows, RawValues};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::samples::{Bags, Samples};
use crate::schema::{DenseTransform, Schema, VocabularyKind};
use crate::vocabulary::{self, Vocabulary, hash_row};

/// Turns raw rows into samples of a schema: transforms numbers, looks up categories.
#[derive(Debug)]
pub struct Encoder {
    parser: RowParser,
    dense: Vec<DenseColumn>,
    categories: Vec<CategoryColumn>,
}

#[derive(Debug)]
struct DenseColumn {
    transform: DenseTransform,
    table: Tabulated<f32>,
}

#[derive(Debug)]
enum CategoryColumn {
    Exact(Vocabulary),
    /// Exact, by the vocabulary of an earlier column.
    Shared(usize),
    Hash {
        rows: u64,
    },
    Identity,
}

impl Encoder {
    /// An encoder for a schema, with a vocabulary for each of its exact columns that shares none, and `None` for the
    /// others.
    ///
    /// # Errors
    /// [`Error::Invalid`] where a vocabulary is missing or is not of its column's size, or where rows of text cannot
    /// give the schema's columns.
    pub fn new(schema: &Schema, vocabularies: Vec<Option<Vocabulary>>) -> Result<Self> {
        let parser = RowParser::new(schema)?;
        if vocabularies.len() != schema.categorical.len() {
            return Err(Error::invalid(format!(
                "{} vocabularies for {} categorical columns",
                vocabularies.len(),
                schema.categorical.len()
            )));
        }
        let columns = schema.categorical.iter().zip(vocabularies).enumerate();
        let categories = columns.map(|(number, (column, vocabulary))| {
            let owner = schema.vocabulary_owner(number)?;
            match (column.vocabulary, vocabulary) {
                (VocabularyKind::Exact { .. }, None) if owner != number => Ok(CategoryColumn::Shared(owner)),
                (VocabularyKind::Exact { .. }, Some(vocabulary)) if vocabulary.rows() == column.rows => {
                    Ok(CategoryColumn::Exact(vocabulary))
                }
                (VocabularyKind::Hash, None) => Ok(CategoryColumn::Hash { rows: column.rows }),
                (VocabularyKind::Identity, None) => Ok(CategoryColumn::Identity),
                (_, vocabulary) => Err(Error::invalid(format!(
                    "column {} has {} rows ({:?}), which its vocabulary of {} rows does not fit",
                    column.name,
                    column.rows,
                    column.vocabulary,
                    vocabulary.map_or(0, |vocabulary| vocabulary.rows())
                ))),
            }
        });
        let dense = schema.dense.iter().map(|column| {
            let transform = column.transform;
            DenseColumn { transform, table: Tabulated::new(|x| transform.apply(Some(x))) }
        });
        Ok(Self { parser, dense: dense.collect(), categories: categories.collect::<Result<_>>()? })
    }

    /// The encoder that made a dataset, its vocabularies read from the dataset's folder.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] for a vocabulary's file; otherwise as [`Encoder::new`].
    pub fn open(dataset: &Dataset) -> Result<Self> {
        let schema = dataset.schema();
        let vocabularies = schema.categorical.iter().map(|column| match column.vocabulary {
            VocabularyKind::Exact { .. } if column.shares.is_none() => {
                let name = vocabulary::file_name(&column.name);
                let text = dataset.checked_file(&name)?;
                let read = Vocabulary::from_tsv(&text);
                Ok(Some(read.map_err(|what| Error::damaged(&dataset.dir().join(&name), None, what))?))
            }
            _ => Ok(None),
        });
        Self::new(schema, vocabularies.collect::<Result<_>>()?)
    }

    /// What reads lines into the raw rows that this encoder takes.
    pub fn parser(&self) -> &RowParser {
        &self.parser
    }

    /// The vocabulary of a categorical column, counted from 0, where it has one of its own.
    pub fn vocabulary(&self, column: usize) -> Option<&Vocabulary> {
        match self.categories.get(column)? {
            CategoryColumn::Exact(vocabulary) => Some(vocabulary),
            CategoryColumn::Shared(_) | CategoryColumn::Hash { .. } | CategoryColumn::Identity => None,
        }
    }

    /// Appends the samples of raw rows, which were made with [`Encoder::parser`].
    pub fn encode(&self, rows: &RawRows, out: &mut Samples) {
        if rows.is_empty() {
            return;
        }
        // Column by column: a small vocabulary then stays in the cache while it is used.
        let first = out.len;
        out.len += rows.len();
        for (labels, raw) in out.labels.iter_mut().zip(&rows.labels) {
            labels.extend_from_slice(raw);
        }
        out.weights.extend_from_slice(&rows.weights);
        let columns = self.dense.len();
        out.dense.resize(out.len * columns, 0.0);
        for (number, (column, values)) in self.dense.iter().zip(&rows.dense).enumerate() {
            let stored = out.dense[first * columns + number..].iter_mut().step_by(columns);
            for (stored, raw) in stored.zip(values) {
                *stored = match raw.is_nan() {
                    true => column.transform.apply(None),
                    false => column.table.get(*raw, |x| column.transform.apply(Some(x))),
                };
            }
        }
        let exact = |number: usize| match &self.categories[number] {
            CategoryColumn::Exact(vocabulary) => vocabulary,
            _ => unreachable!("`Encoder::new` has checked which column is shared"),
        };
        let columns = self.categories.iter().zip(&rows.categories).zip(&mut out.categorical);
        for (number, ((column, raw), bags)) in columns.enumerate() {
            let before = bags.ids.len();
            match (column, &raw.values) {
                (CategoryColumn::Exact(_) | CategoryColumn::Shared(_), RawValues::Keys(keys)) => {
                    let vocabulary = match column {
                        &CategoryColumn::Shared(owner) => exact(owner),
                        _ => exact(number),
                    };
                    bags.ids.extend(keys.short.iter().map(|key| vocabulary.row_of_short(key)));
                    put_long(keys, &mut bags.ids[before..], |category| {
                        vocabulary.row(category).unwrap_or(vocabulary::OUT_OF_VOCABULARY)
                    });
                }
                (&CategoryColumn::Hash { rows }, RawValues::Keys(keys)) => {
                    let row = |category: &[u8]| hash_row(category, rows);
                    bags.ids.extend(keys.short.iter().map(|key| key.with_bytes(row)));
                    put_long(keys, &mut bags.ids[before..], row);
                }
                (_, RawValues::Rows(ids)) => bags.ids.extend_from_slice(ids),
                (CategoryColumn::Identity, RawValues::Keys(_)) => {
                    unreachable!("the parser reads this column as row numbers")
                }
            }
            close_bags(&raw.bags, rows.len(), bags, before);
        }
    }
}

fn put_long(keys: &RawKeys, ids: &mut [u64], row: impl Fn(&[u8]) -> u64) {
    for (number, category) in keys.long() {
        ids[number] = row(category);
    }
}

/// Makes bags of the ids behind the first `before`.
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
    use crate::convert::testing::{GOOD_LINE, schema, with_field};

    #[test]
    fn numbers_are_transformed_and_categories_looked_up() {
        let mut schema = schema();
        schema.dense[0].transform.mean = 1.5;
        schema.dense[0].transform.deviation = 2.0;
        schema.categorical[0].vocabulary = VocabularyKind::Hash;
        schema.categorical[0].rows = 1000;
        schema.categorical[1].vocabulary = VocabularyKind::Identity;
        schema.categorical[1].rows = 77;
        let vocabulary = Vocabulary::from_counts([("0123456789abcdef", 3), ("", 2)], 1);
        let mut vocabularies = vec![None; 26];
        vocabularies[2..].fill(Some(vocabulary));
        schema.categorical[2..].iter_mut().for_each(|column| column.rows = 3);
        let encoder = Encoder::new(&schema, vocabularies).unwrap();

        let mut rows = RawRows::new(&schema);
        let mut line = with_field(GOOD_LINE, 0, "1");
        for (field, value) in
            [(1, "-100"), (2, "3000000"), (3, ""), (15, "76"), (16, "0123456789abcdef"), (17, "")]
        {
            line = with_field(&line, field, value);
        }
        encoder.parser().push(line.as_bytes(), &mut rows).unwrap();
        let mut samples = Samples::new(&schema);
        encoder.encode(&rows, &mut samples);
        encoder.encode(&rows, &mut samples);
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
        assert!(RowParser::new(&schema).is_err());
    }
}
