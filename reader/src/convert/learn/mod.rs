//! The learning pass over the training part: which categories get rows, and how numbers are standardized.

pub(crate) mod columns;
pub(crate) mod count;
pub(crate) mod spill;

use std::num::NonZeroUsize;
use std::path::Path;

use rankine_base::error::Result;
use rankine_base::stop::Stop;

use crate::convert::learn::count::CategoryCounter;
use crate::convert::pass::{Pass, chunks_in_flight};
use crate::convert::plan::moments::Moments;
use crate::convert::plan::{ColumnStatistics, Plan};
use crate::convert::pool::Pool;
use crate::convert::rows::fault::BadRow;
use crate::convert::rows::source::{PartRows, RowSource};
use crate::convert::rows::{RawKeys, RawRows, RawValues};
use crate::ordered::{ordered_map, ordered_map_within};
use crate::origin::RowCounts;
use crate::precomputed::PrecomputedFunction;
use crate::schema::{DenseFunction, VocabularyKind};
use crate::vocabulary::{Lookup, Vocabulary};

/// Reads all sources. Bad rows are already checked here, so that a conversion that cannot succeed ends early; if this
/// is the `only_pass`, they are also named and kept in `dir`. `vocabularies` has an entry for each categorical column:
/// the vocabulary that exists before. `dir` is for temporary files, too.
pub(crate) fn learn<S: RowSource>(
    pass: &Pass<'_, S>,
    plan: &Plan,
    vocabularies: Vec<Option<Lookup>>,
    dir: &Path,
    only_pass: bool,
) -> Result<ColumnStatistics> {
    let (mut statistics, counts) = count(pass, plan, dir, only_pass)?;
    statistics.vocabularies = vocabularies;
    let options = pass.options;
    counts.add_to(&mut statistics.vocabularies, options.threads, &options.stop)?;
    Ok(statistics)
}

/// Reads all sources as [`learn`] does, but leaves the categories as counts. No vocabulary is in the statistics.
pub(crate) fn count<S: RowSource>(
    pass: &Pass<'_, S>,
    plan: &Plan,
    dir: &Path,
    only_pass: bool,
) -> Result<(ColumnStatistics, CategoryCounts)> {
    let draft = &plan.draft;
    let mut statistics = ColumnStatistics::before(draft, Vec::new());
    let options = pass.options;
    let counted = CountedColumns::new(plan)?;
    let budget_bytes = usize::try_from(options.memory).unwrap_or(usize::MAX);
    let counter = CategoryCounter::new(counted.vocabularies.len(), budget_bytes, dir, &options.stop)?;
    // One table per function, since all columns are read in parallel.
    let functions: Vec<_> = draft.dense.iter().map(|column| column.transform.function).collect();
    let table = |function: DenseFunction| (function, PrecomputedFunction::new(|x| function.apply(x)));
    let tables = [DenseFunction::None, DenseFunction::SignedLog1p, DenseFunction::MlperfLog]
        .map(|function| functions.contains(&function).then(|| table(function)));
    let table_of = |number: usize| {
        let learnt = plan.learns_transforms() && plan.standardized[number];
        let mut tables = tables.iter().flatten().filter(|_| learnt);
        tables.find(|(function, _)| *function == functions[number])
    };
    let buckets = Pool::default();
    let work = |mut chunk: S::Chunk| {
        let ((moments, largest_bags, rows), bad) = pass.read(&mut chunk, |rows| {
            let mut own = buckets.take().unwrap_or_default();
            counter.add(&counted.keys_of(&rows.train), &mut own)?;
            buckets.put(own);
            let columns = rows.train.dense.iter().enumerate();
            let moments = columns.map(|(number, values)| match table_of(number) {
                Some((function, table)) => Moments::of(values, |x| table.get(x, |x| function.apply(x))),
                None => Moments::default(),
            });
            Ok((moments.collect(), largest_bags(rows), [rows.train.len() as u64, rows.eval.len() as u64]))
        })?;
        Ok(ChunkStatistics { chunk, bad, moments, largest_bags, rows })
    };

    let mut rows = RowCounts::default();
    let mut bad_rows = pass.bad_rows(only_pass.then_some(dir));
    ordered_map_within(
        chunks_in_flight(options.threads),
        options.threads,
        &options.stop,
        pass.source.chunks(),
        work,
        |looked: ChunkStatistics<S::Chunk>| -> Result<()> {
            let span = pass.source.span(&looked.chunk);
            let [train, eval] = looked.rows;
            rows.add(span.rows, train, eval);
            bad_rows.take(&looked.chunk, &looked.bad)?;
            statistics.moments.iter_mut().zip(&looked.moments).for_each(|(sum, own)| sum.merge(own));
            statistics
                .largest_bags
                .iter_mut()
                .zip(&looked.largest_bags)
                .for_each(|(max, own)| *max = (*max).max(*own));
            pass.advance("learning", span);
            Ok(())
        },
    )?;
    statistics.bad_by_reason = bad_rows.finish()?;
    statistics.rows = Some(rows);
    Ok((statistics, CategoryCounts { vocabularies: counted.vocabularies, counter }))
}

/// A vocabulary to which the counts with this number are added.
struct OpenVocabulary {
    number: usize,
    column: usize,
    min_count: u64,
    vocabulary: Vocabulary,
}

/// Categories that were counted, but have no rows yet.
pub(crate) struct CategoryCounts {
    /// For each column of the counter, the column that owns the vocabulary, and its minimum count.
    pub(crate) vocabularies: Vec<(usize, u64)>,
    pub(crate) counter: CategoryCounter,
}

impl CategoryCounts {
    /// Adds the counted categories to the vocabularies of their columns, and makes those that do not exist yet.
    pub(crate) fn add_to(
        &self,
        vocabularies: &mut [Option<Lookup>],
        threads: NonZeroUsize,
        stop: &Stop,
    ) -> Result<()> {
        let open = |(number, &(column, min_count)): (usize, &(usize, u64))| {
            let known = vocabularies[column].take().map(Lookup::into_loaded).transpose()?;
            let vocabulary = known.unwrap_or_else(Vocabulary::empty);
            Ok(OpenVocabulary { number, column, min_count, vocabulary })
        };
        let open: Vec<_> = self.vocabularies.iter().enumerate().map(open).collect();
        let work = |mut open: OpenVocabulary| {
            self.counter.add_to(&mut open.vocabulary, open.number, open.min_count)?;
            Ok(open)
        };
        ordered_map(threads, stop, open.into_iter(), work, |open: OpenVocabulary| {
            vocabularies[open.column] = Some(open.vocabulary.into());
            Ok(())
        })
    }
}

/// Which columns are counted, and which are counted together.
pub(crate) struct CountedColumns {
    /// For each vocabulary, its owner column and minimum count.
    pub(crate) vocabularies: Vec<(usize, u64)>,
    /// Every exact column, with the number of its vocabulary.
    columns: Vec<(usize, usize)>,
}

impl CountedColumns {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let mut counted = Self { vocabularies: Vec::new(), columns: Vec::new() };
        if !plan.learns_categories() {
            return Ok(counted);
        }
        for (number, column) in plan.draft.categorical.iter().enumerate() {
            let VocabularyKind::Exact { min_count } = column.vocabulary else { continue };
            let owner = plan.draft.vocabulary_owner(number)?;
            let known = counted.vocabularies.iter().position(|&(column, _)| column == owner);
            // An owner comes before all columns that share with it.
            let vocabulary = known.unwrap_or(counted.vocabularies.len());
            if known.is_none() {
                counted.vocabularies.push((owner, min_count));
            }
            counted.columns.push((number, vocabulary));
        }
        Ok(counted)
    }

    /// Returns the keys of every exact column with the number of its vocabulary.
    fn keys_of<'a>(&self, rows: &'a RawRows) -> Vec<(usize, &'a RawKeys)> {
        let keys = |&(column, vocabulary): &(usize, usize)| match &rows.categories[column].values {
            RawValues::Keys(keys) => Some((vocabulary, keys)),
            RawValues::Rows(_) => None,
        };
        self.columns.iter().filter_map(keys).collect()
    }
}

/// What was learnt from a chunk.
struct ChunkStatistics<C> {
    chunk: C,
    bad: Vec<BadRow>,
    moments: Vec<Moments>,
    largest_bags: Vec<u32>,
    /// Good rows of the training and the evaluation part.
    rows: [u64; 2],
}

/// Returns the largest bags of all rows, including the evaluation part: no bag of the dataset may be larger.
fn largest_bags(rows: &PartRows) -> Vec<u32> {
    let columns = rows.train.categories.iter().zip(&rows.eval.categories);
    columns.map(|(train, eval)| train.largest_bag().max(eval.largest_bag())).collect()
}
