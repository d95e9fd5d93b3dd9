//! Learning in pieces, for rows that no single process reads: each piece of the rows gives a partial, and all partials
//! together give the fit that `fit` would learn from all rows at once, to the byte.
//!
//! A partial is a list of entries: a column, a value and a count. What is counted is a sum, so entries with the same
//! column and value may be added up by whoever transports them, and entries may be in any order. One entry has what
//! is no count, the statistics of the piece; its column has an empty name.

use std::collections::{BTreeMap, HashMap};

use rankine_base::error::{Error, Result};
use rankine_base::publish::PartialDir;
use rankine_base::sealed;
use serde::{Deserialize, Serialize};

use crate::convert::bad::NO_ROWS;
use crate::convert::fit::{self, FitReport};
use crate::convert::known::{Inherited, KnownColumns, with_known};
use crate::convert::learn::columns::{Before, LearntColumns, check_trained};
use crate::convert::learn::count::CategoryCounter;
use crate::convert::learn::{CategoryCounts, CountedColumns, count};
use crate::convert::pass::Pass;
use crate::convert::plan::moments::Moments;
use crate::convert::plan::{ColumnStatistics, Learning, Plan};
use crate::convert::rows::fault::BadReason;
use crate::convert::rows::source::RowSource;
use crate::convert::rows::split::RowSplit;
use crate::convert::text::lines::Limits;
use crate::convert::{
    ConvertOptions, CriteoColumns, PlannedWork, Progress, SchemaFile, split_source, with_criteo, with_csv,
    with_parquet,
};
use crate::origin::RowCounts;
use crate::split::Split;
use crate::vocabulary::COUNT_MAX;

/// The column of the entry that has the statistics of a piece. No column of a dataset has this name.
const STATISTICS: &str = "";
const KIND: &str = "rankine partial";
/// The format version of the statistics.
const FORMAT: u32 = 1;
/// Pieces whose statistics may be equal.
const EQUAL_PIECES_MAX: u64 = 1 << 32;

/// An entry of a partial: how often a value occurs in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialEntry<'a> {
    /// The column of the dataset that owns the vocabulary; empty for statistics.
    pub column: &'a str,
    /// The category, as a vocabulary lists it before it is escaped.
    pub value: &'a [u8],
    /// The number of occurrences in the training part.
    pub count: u64,
}

/// What was learned from a piece of the rows.
pub struct Partial {
    statistics: String,
    /// The columns that own vocabularies, in the order of the counts.
    columns: Vec<String>,
    counts: CategoryCounts,
    /// Has counts that exceeded the memory.
    _dir: PartialDir,
}

impl std::fmt::Debug for Partial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partial").field("columns", &self.columns).finish_non_exhaustive()
    }
}

/// The part of a partial that is no count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PieceStatistics {
    plan: Plan,
    split: String,
    rows: RowCounts,
    bad_by_reason: BTreeMap<BadReason, u64>,
    moments: Vec<Moments>,
    largest_bags: Vec<u32>,
}

impl PieceStatistics {
    fn parse(value: &[u8]) -> Result<Self> {
        let damaged = |what: String| Error::columns(None, format!("the statistics of a partial: {what}"));
        let own: Self = sealed::from_json(KIND, FORMAT, value).map_err(|error| damaged(error.to_string()))?;
        let draft = &own.plan.draft;
        let dense = [own.moments.len(), own.plan.standardized.len()];
        if dense != [draft.dense.len(); 2] || own.largest_bags.len() != draft.categorical.len() {
            return Err(damaged("they do not fit their columns".into()));
        }
        let RowCounts { read, kept, bad, train, eval } = own.rows;
        let counts = own.moments.iter().map(Moments::count).chain(own.bad_by_reason.values().copied());
        if train.checked_add(eval) != Some(kept)
            || kept.checked_add(bad) != Some(read)
            || counts.max() > Some(read)
        {
            return Err(damaged("their numbers of rows do not add up".into()));
        }
        Ok(own)
    }

    /// Adds another piece with the same plan.
    fn add(&mut self, other: &Self) {
        self.rows.add(other.rows.read, other.rows.train, other.rows.eval);
        other
            .bad_by_reason
            .iter()
            .for_each(|(&reason, count)| *self.bad_by_reason.entry(reason).or_default() += count);
        self.moments.iter_mut().zip(&other.moments).for_each(|(sum, own)| sum.merge(own));
        let largest = self.largest_bags.iter_mut().zip(&other.largest_bags);
        largest.for_each(|(max, &own)| *max = (*max).max(own));
    }

    /// Adds itself, so that there are `times` of it, 1 or more.
    fn repeat(&mut self, times: u64) {
        let mut power = self.clone();
        let mut left = times - 1;
        while left > 0 {
            if left & 1 == 1 {
                self.add(&power);
            }
            let twice = power.clone();
            power.add(&twice);
            left >>= 1;
        }
    }
}

/// Learns from a piece of Criteo's TSV. `options.out` is a folder for temporary files, which must not exist and is
/// removed with the partial. Bad rows that are skipped are counted, and not named.
///
/// # Errors
/// As [`crate::convert::fit_criteo`]; [`Error::Setting`] for a split by the number of a row.
pub fn learn_criteo(
    options: &ConvertOptions,
    columns: &CriteoColumns,
    progress: &dyn Progress,
) -> Result<Partial> {
    with_criteo(options, columns, Limits::default(), LearningPiece { options, progress })
}

/// Learns from a piece of CSV, like [`learn_criteo`].
///
/// # Errors
/// As [`crate::convert::fit_csv`]; [`Error::Setting`] for a split by the number of a row.
pub fn learn_csv(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<Partial> {
    with_csv(options, schema, min_count, Limits::default(), LearningPiece { options, progress })
}

/// Learns from a piece of Parquet, like [`learn_criteo`].
///
/// # Errors
/// As [`crate::convert::fit_parquet`]; [`Error::Setting`] for a split by the number of a row.
pub fn learn_parquet(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<Partial> {
    with_parquet(options, schema, min_count, LearningPiece { options, progress })
}

/// Counts the categories of a piece, to continue the vocabularies of a dataset, a fit or a model.
///
/// # Errors
/// As [`crate::convert::fit_like`]; [`Error::Setting`] for a split by the number of a row.
pub fn learn_like(options: &ConvertOptions, known: KnownColumns, progress: &dyn Progress) -> Result<Partial> {
    with_known(options, known, true, Limits::default(), LearningPiece { options, progress })
}

/// Checks that the part of a row does not depend on where it is among all rows.
///
/// # Errors
/// [`Error::Setting`] if it does.
pub(crate) fn check_split_of_piece(split: &RowSplit) -> Result<()> {
    match split {
        RowSplit::ByNumber(Split::None) | RowSplit::ByColumn(_) => Ok(()),
        RowSplit::ByNumber(_) => {
            let what = format!(
                "{split} depends on the numbers of rows among all rows, which are unknown for a piece of them: split \
                 by a column, such as hash:COLUMN:0.1 or after:COLUMN:VALUE"
            );
            Err(Error::setting("--split", what))
        }
    }
}

struct LearningPiece<'a> {
    options: &'a ConvertOptions,
    progress: &'a dyn Progress,
}

impl PlannedWork for LearningPiece<'_> {
    type Report = Partial;

    fn run<S: RowSource>(self, plan: &Plan, _: Option<Inherited>, source: S) -> Result<Partial> {
        let Self { options, progress } = self;
        check_split_of_piece(&options.split)?;
        let source = &split_source(source, options)?;
        let mut plan = plan.clone();
        plan.draft.labels = options.labels(&plan.draft.labels)?;
        let dir = PartialDir::create(&options.out)?;
        let pass = source.if_unchanged(Pass::new(options, source, &plan.draft, progress))?;
        let (statistics, counts) = source.if_unchanged(count(&pass, &plan, dir.path(), false))?;
        let name = |&(owner, _): &(usize, u64)| plan.draft.categorical[owner].name.clone();
        let columns = counts.vocabularies.iter().map(name).collect();
        let statistics = PieceStatistics {
            split: options.split.to_string(),
            rows: statistics.rows.unwrap_or_default(),
            bad_by_reason: statistics.bad_by_reason,
            moments: statistics.moments,
            largest_bags: statistics.largest_bags,
            plan,
        };
        Ok(Partial { statistics: sealed::to_json(KIND, FORMAT, &statistics), columns, counts, _dir: dir })
    }
}

impl Partial {
    /// Passes the entries to `put`, each value of a column once.
    ///
    /// # Errors
    /// The errors of `put`; [`Error::Io`]; [`Error::Stopped`].
    pub fn put(self, mut put: impl FnMut(PartialEntry<'_>) -> Result<()>) -> Result<()> {
        put(PartialEntry { column: STATISTICS, value: self.statistics.as_bytes(), count: 1 })?;
        for (number, column) in self.columns.iter().enumerate() {
            self.counts.counter.take(number, |key, count| {
                key.with_bytes(|value| put(PartialEntry { column, value, count }))
            })?;
        }
        Ok(())
    }
}

/// Partials that become a fit. If they are dropped before [`Partials::finish`], no folder remains.
#[derive(Debug)]
pub struct Partials {
    options: ConvertOptions,
    counter: CategoryCounter,
    columns: HashMap<String, CountedColumn>,
    statistics: Option<PieceStatistics>,
    dir: PartialDir,
}

/// The counts of a column.
#[derive(Debug)]
struct CountedColumn {
    /// The number of its counter.
    number: usize,
    total: u64,
}

impl Partials {
    /// Starts a fit in the folder `options.out`. `options.files` are what the fit calls the sources of the rows;
    /// `options.memory` limits the counts in memory. Other options are not used, except for `threads` and `stop`.
    ///
    /// # Errors
    /// As [`PartialDir::create`].
    pub fn new(options: ConvertOptions) -> Result<Self> {
        let dir = PartialDir::create(&options.out)?;
        let budget_bytes = usize::try_from(options.memory).unwrap_or(usize::MAX);
        let counter = CategoryCounter::new(0, budget_bytes, dir.path(), &options.stop)?;
        Ok(Self { options, counter, columns: HashMap::new(), statistics: None, dir })
    }

    /// Adds entries of any partials, in any order.
    ///
    /// # Errors
    /// [`Error::Columns`] for an entry that no partial has, and if pieces were learned with different columns or
    /// settings; [`Error::Io`]; [`Error::Stopped`].
    pub fn add<'a>(&mut self, entries: impl IntoIterator<Item = PartialEntry<'a>>) -> Result<()> {
        let mut counts: Vec<Vec<(&[u8], u64)>> = Vec::new();
        for PartialEntry { column, value, count } in entries {
            if column == STATISTICS {
                self.add_statistics(value, count)?;
                continue;
            }
            let known = self.columns.get_mut(column);
            let of_column = match known {
                Some(known) => known,
                None => {
                    let number = self.counter.add_column();
                    self.columns.entry(column.to_owned()).or_insert(CountedColumn { number, total: 0 })
                }
            };
            of_column.total = of_column.total.saturating_add(count);
            if count == 0 {
                return Err(Error::column(column, "has an entry with a count of 0 in a partial"));
            }
            if of_column.total >= COUNT_MAX {
                return Err(Error::column(column, "has counts in partials that add up to 2^62 or more"));
            }
            counts.resize_with(counts.len().max(of_column.number + 1), Vec::new);
            counts[of_column.number].push((value, count));
        }
        let mut counts = counts.iter().enumerate().filter(|(_, counts)| !counts.is_empty());
        counts.try_for_each(|(number, counts)| self.counter.add_counts(number, counts))?;
        self.options.stop.check()
    }

    fn add_statistics(&mut self, value: &[u8], count: u64) -> Result<()> {
        let mut piece = PieceStatistics::parse(value)?;
        let before = self.statistics.as_ref().map_or(0, |all| all.rows.read);
        let rows = piece.rows.read.saturating_mul(count).saturating_add(before);
        if !(1..EQUAL_PIECES_MAX).contains(&count) || rows >= COUNT_MAX {
            let what =
                format!("the statistics of a partial have a count of {count}, or its rows are too many");
            return Err(Error::columns(None, what));
        }
        piece.repeat(count);
        match &mut self.statistics {
            None => self.statistics = Some(piece),
            Some(all) if all.plan == piece.plan && all.split == piece.split => all.add(&piece),
            Some(_) => {
                let what = "partials were learned with different schemas, columns, splits or options: learn all with \
                            the same ones";
                return Err(Error::columns(None, what));
            }
        }
        Ok(())
    }

    /// Writes the fit. `like` has the columns that are continued, if the partials were learned by [`learn_like`].
    ///
    /// # Errors
    /// [`Error::BadRows`] if there are no good rows; [`Error::Columns`] if the partials do not fit together or do not
    /// continue `like`; otherwise as [`crate::convert::fit_csv`].
    pub fn finish(mut self, like: Option<KnownColumns>) -> Result<FitReport> {
        let Some(statistics) = self.statistics.take() else {
            return Err(match self.columns.is_empty() {
                true => Error::bad_rows(None, None, NO_ROWS),
                false => {
                    Error::columns(None, "partials have counts but no statistics: add all their entries")
                }
            });
        };
        let PieceStatistics { plan, split, rows, bad_by_reason, moments, largest_bags } = statistics;
        self.options.split = split.parse().map_err(|error| Error::columns(None, format!("{error}")))?;
        let inherited = inherited(&plan, like)?;
        let before = Before::of(&plan, inherited);
        let counts = counts_of(&plan, self.counter, self.columns)?;
        let mut statistics = ColumnStatistics {
            vocabularies: before.vocabularies,
            moments,
            largest_bags,
            rows: Some(rows),
            bad_by_reason,
        };
        counts.add_to(&mut statistics.vocabularies, self.options.threads, &self.options.stop)?;
        // Its file of counts must not be in the fit.
        drop(counts);
        let labels = plan.draft.labels.clone();
        let learnt = LearntColumns::of(&plan, labels, before.columns, statistics)?;
        check_trained(&rows, &self.options)?;
        fit::write(self.dir, &self.options, &plan, learnt)
    }
}

/// Returns what a fit inherits from the columns that it continues.
fn inherited(plan: &Plan, like: Option<KnownColumns>) -> Result<Option<Inherited>> {
    let Some(known) = like else {
        return match plan.learning {
            Learning::All => Ok(None),
            Learning::NewCategories | Learning::Nothing => {
                let what = "the partials continue the vocabularies of a dataset, a fit or a run: name it with `like`";
                Err(Error::columns(None, what))
            }
        };
    };
    let (mut expected, inherited) = known.planned(true)?;
    expected.draft.labels.clone_from(&plan.draft.labels);
    if *plan != expected {
        let name = &inherited.name;
        let what = format!("the partials do not continue {name}: learn them with like={name:?}");
        return Err(Error::columns(None, what));
    }
    Ok(Some(inherited))
}

/// Returns the counts of a plan's vocabularies.
fn counts_of(
    plan: &Plan,
    mut counter: CategoryCounter,
    mut columns: HashMap<String, CountedColumn>,
) -> Result<CategoryCounts> {
    let vocabularies = CountedColumns::new(plan)?.vocabularies;
    let mut order = Vec::with_capacity(vocabularies.len());
    for &(owner, _) in &vocabularies {
        let known = columns.remove(&plan.draft.categorical[owner].name);
        order.push(known.map_or_else(|| counter.add_column(), |column| column.number));
    }
    if let Some(column) = columns.keys().min() {
        let what = "is counted in a partial, but the schema learns no vocabulary of it";
        return Err(Error::column(column, what));
    }
    counter.select(&order);
    Ok(CategoryCounts { vocabularies, counter })
}
