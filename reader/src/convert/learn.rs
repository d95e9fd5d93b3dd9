//! The pass that learns from the training part: which categories get rows, and how numbers are standardized.

use std::path::Path;

use crate::convert::bad::BadRow;
use crate::convert::count::CategoryCounter;
use crate::convert::lines::Chunk;
use crate::convert::moments::{Moments, Tabulated};
use crate::convert::options::{DenseMode, VocabularyChoice};
use crate::convert::pass::{Pass, Pool};
use crate::convert::rows::{RawKeys, RawRows, RawValues};
use crate::convert::{CATEGORICAL_COLUMNS, DENSE_COLUMNS};
use crate::error::Result;
use crate::ordered::ordered_map;
use crate::schema::DenseFunction;
use crate::vocabulary::Vocabulary;

/// What the training part taught.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// One entry a categorical column; `None` where it is not exact.
    pub(crate) vocabularies: Vec<Option<Vocabulary>>,
    /// One entry a dense column, of its logarithms; none where they are not standardized.
    pub(crate) moments: Vec<Moments>,
    /// Rows of all sources, where they had to be read.
    pub(crate) rows: Option<u64>,
}

/// Reads all sources, if there is anything to learn. Bad rows are judged here already, so that a conversion that cannot
/// succeed ends early.
pub(crate) fn learn(pass: &Pass<'_>, dir: &Path) -> Result<Learnt> {
    let options = pass.options;
    let exact_columns: Vec<usize> = (0..CATEGORICAL_COLUMNS)
        .filter(|&column| options.vocabulary_of(column) == VocabularyChoice::Exact)
        .collect();
    let standardized = options.dense == DenseMode::Log;
    let mut vocabularies = vec![None; CATEGORICAL_COLUMNS];
    if exact_columns.is_empty() && !standardized {
        return Ok(Learnt { vocabularies, moments: Vec::new(), rows: None });
    }

    let budget_bytes = usize::try_from(options.memory).unwrap_or(usize::MAX);
    let counter = CategoryCounter::new(exact_columns.len(), budget_bytes, dir)?;
    let buckets = Pool::default();
    let function = DenseFunction::SignedLog1p;
    let table = Tabulated::new(|x| function.apply(x));
    let work = |chunk: Chunk| {
        let (outcome, bad) = pass.read_rows(&chunk, |rows| {
            let mut own = buckets.take().unwrap_or_default();
            let counted = counter.add(&keys_of(&rows.train, &exact_columns), &mut own);
            buckets.put(own);
            counted
                .map(|()| if standardized { moments_of(&rows.train, &table, function) } else { Vec::new() })
        });
        Ok(Looked { chunk, bad, moments: outcome? })
    };

    let mut rows = 0;
    let mut moments = vec![Moments::default(); if standardized { DENSE_COLUMNS } else { 0 }];
    let mut bad_rows = pass.bad_rows(None);
    ordered_map(options.threads, pass.chunks(), work, |looked: Looked| {
        let chunk = &looked.chunk;
        rows += chunk.rows;
        bad_rows.take(chunk, &looked.bad)?;
        moments.iter_mut().zip(&looked.moments).for_each(|(sum, own)| sum.merge(own));
        pass.advance("learning", chunk);
        Ok(())
    })?;
    bad_rows.finish()?;

    let numbers = (0..exact_columns.len()).map(Ok);
    let work = |number| Ok((number, counter.vocabulary(number, options.min_count)?));
    ordered_map(options.threads, numbers, work, |(number, vocabulary): (usize, _)| {
        vocabularies[exact_columns[number]] = Some(vocabulary);
        Ok(())
    })?;
    Ok(Learnt { vocabularies, moments, rows: Some(rows) })
}

/// What a chunk taught.
struct Looked {
    chunk: Chunk,
    bad: Vec<BadRow>,
    moments: Vec<Moments>,
}

fn keys_of<'a>(rows: &'a RawRows, columns: &[usize]) -> Vec<&'a RawKeys> {
    let keys = |&column: &usize| match &rows.categories[column].values {
        RawValues::Keys(keys) => Some(keys),
        RawValues::Rows(_) => None,
    };
    columns.iter().filter_map(keys).collect()
}

fn moments_of(rows: &RawRows, table: &Tabulated<f64>, function: DenseFunction) -> Vec<Moments> {
    let of = |values: &Vec<f64>| {
        let present = values.iter().filter(|x| !x.is_nan());
        Moments::of(present.map(|&x| table.get(x, |x| function.apply(x))))
    };
    rows.dense.iter().map(of).collect()
}
