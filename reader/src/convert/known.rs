//! The columns of a dataset, a fit or a model, whose transforms and vocabularies further rows keep, and how the tables
//! of two datasets compare.

use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Result};

use crate::convert::plan::{Learning, Plan};
use crate::convert::predict::{RawInput, SourceTask, with_source};
use crate::convert::report::ConversionReport;
use crate::convert::rows::source::{RequiredColumns, RowSource};
use crate::convert::text::lines::Limits;
use crate::convert::write::encode::Encoder;
use crate::convert::{BAG_MAX, ConvertOptions, Converting, PlannedWork, Progress};
use crate::dataset::{Dataset, FileManifest, Fit};
use crate::ids::IdRules;
use crate::origin::RowFormat;
use crate::schema::{Categorical, Hotness, Pooling, Schema, VocabularyKind};
use crate::statistics::TableStatistics;
use crate::vocabulary::{COUNT_MAX, Lookup, Vocabulary};

/// The columns of a dataset or of a model trained on it, with all that turns raw rows into samples.
#[derive(Debug)]
pub struct KnownColumns {
    name: String,
    schema: Schema,
    format: Option<RowFormat>,
    encoder: Encoder,
    statistics: Option<Vec<TableStatistics>>,
    files: Option<VocabularyFiles>,
}

/// The files of vocabularies, which datasets with the same ones link to.
#[derive(Debug, Clone)]
pub(crate) struct VocabularyFiles {
    /// The folder of the fit.
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<FileManifest>,
}

/// The rows of a table in an old dataset and in a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableGrowth {
    /// The categorical column.
    pub column: String,
    /// Rows in the old dataset.
    pub old_rows: u64,
    /// Rows in the new dataset, `old_rows` or more; the first `old_rows` mean the same in both.
    pub new_rows: u64,
}

/// The first difference of a new dataset's columns from those of an old one, other than rows added at the end of a
/// table. `A` is the old dataset in messages, `B` the new one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnsDifference {
    /// Labels, dense columns or categorical columns have other names, or another order.
    #[error("{kind} {number} is {old} in A and {new} in B")]
    Name {
        /// "label", "dense column" or "categorical column".
        kind: &'static str,
        /// Its number, from 1.
        number: usize,
        /// The name in the old dataset in quotes, or "absent".
        old: String,
        /// The name in the new dataset in quotes, or "absent".
        new: String,
    },
    /// A property of a column differs.
    #[error("column {column}: {property} is {old} in A and {new} in B")]
    Property {
        /// The column.
        column: String,
        /// "transform", "vocabulary", "pooling", "shared vocabulary" or "rows".
        property: &'static str,
        /// The value in the old dataset.
        old: String,
        /// The value in the new dataset.
        new: String,
    },
    /// The new table has fewer rows.
    #[error("column {column}: the table has {old_rows} rows in A, but only {new_rows} in B")]
    FewerRows {
        /// The column.
        column: String,
        /// Rows in the old dataset.
        old_rows: u64,
        /// Rows in the new dataset.
        new_rows: u64,
    },
    /// A row stands for another category.
    #[error("column {column}: row {row} is \"{old}\" in A and \"{new}\" in B")]
    Category {
        /// The column.
        column: String,
        /// The first row that differs.
        row: u64,
        /// The category in the old dataset, escaped as in a vocabulary file.
        old: String,
        /// The category in the new dataset.
        new: String,
    },
    /// The vocabulary of a fit cannot be read.
    #[error("column {column}: {why}")]
    Unreadable {
        /// The column.
        column: String,
        /// The error.
        why: String,
    },
}

impl KnownColumns {
    /// Opens the columns of a dataset, with its vocabularies and its look-up statistics, if it has any.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] for a vocabulary or the statistics.
    pub fn of(dataset: &Dataset) -> Result<Self> {
        let name = dataset.dir().display().to_string();
        let known = Self::new(name, dataset.schema().clone(), dataset.row_format(), Encoder::open(dataset)?);
        match dataset.manifest() {
            Some(_) => known.with_statistics(dataset.statistics()?),
            None => Ok(known),
        }
    }

    /// Opens the columns of a fit. Vocabularies that have an index are mapped, and loaded only to grow them.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Io`] for a vocabulary.
    pub fn of_fit(fit: &Fit) -> Result<Self> {
        let encoder = Encoder::of_fit(fit)?;
        let format = Some(fit.origin().format.clone());
        let known = Self::new(fit.dir().display().to_string(), fit.schema().clone(), format, encoder);
        let files = VocabularyFiles { dir: fit.dir().to_owned(), files: fit.vocabularies().to_vec() };
        Ok(Self { files: Some(files), ..known })
    }

    /// Returns the columns of a model, for example; `name` is for messages. `encoder` must be that of the schema.
    pub fn new(name: String, schema: Schema, format: Option<RowFormat>, encoder: Encoder) -> Self {
        Self { name, schema, format, encoder, statistics: None, files: None }
    }

    /// Sets how often rows were looked up before, one entry per stored categorical column, for [`convert_like`] to add
    /// to.
    ///
    /// # Errors
    /// [`Error::Columns`] if the number of entries differs, or a count is beyond 2^62.
    pub fn with_statistics(self, statistics: Vec<TableStatistics>) -> Result<Self> {
        let columns = self.schema.stored_categorical();
        let too_many = |table: &TableStatistics| table.lookups >= COUNT_MAX || table.bags >= COUNT_MAX;
        if statistics.len() != columns.len() || statistics.iter().any(too_many) {
            let name = &self.name;
            return Err(Error::columns(
                None,
                format!("the statistics of {name} do not fit its columns: convert it again"),
            ));
        }
        Ok(Self { statistics: Some(statistics), ..self })
    }

    /// Returns whether it is known how often rows were looked up before.
    pub fn has_statistics(&self) -> bool {
        self.statistics.is_some()
    }

    /// Returns the columns.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns whether [`convert_like`] reads rows once if it does not grow the vocabularies. If rows have any number
    /// of categories, it looks for the largest bag before it writes.
    pub fn read_rows_once(&self) -> bool {
        self.plan(false).is_ok_and(|plan| !plan.must_learn())
    }

    /// Checks that raw rows of a format, as [`RowFormat::name`] has it, can have these columns.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if rows of these columns have another format.
    pub fn check_format(&self, format: &str) -> Result<()> {
        let found = self.format.as_ref().map_or(format, |own| own.name());
        if found == format {
            return Ok(());
        }
        Err(Error::unsuitable(
            Path::new(&self.name),
            format!("{} was made from {found}, not {format}: use `rankine convert {found}`", self.name),
        ))
    }

    /// Returns the positions of the columns to read among the names of a table's columns, like
    /// [`crate::convert::SchemaFile::positions_in`].
    ///
    /// # Errors
    /// [`Error::Columns`] if the table lacks one; [`Error::Unsuitable`] if no raw rows have these columns.
    pub fn positions_in(&self, table: &str, names: &[String]) -> Result<Vec<usize>> {
        let sources = self.plan(false)?.format.sources(&self.schema);
        let refuse = |column: &str, lacks| Error::columns(Some(column), format!("{table} {lacks}"));
        sources.positions_in(names, refuse)
    }

    /// Compares the columns with those of a new dataset, column by column: a model trained on these fits the new
    /// dataset once its tables have as many rows. Returns the rows of every table. Transforms and vocabularies must be
    /// the same, but new categories, or rows of identity columns, may follow the old ones. The weight, the sizes of
    /// bags, the storage type of numbers and `min_count` are not compared, since no row depends on them.
    ///
    /// # Errors
    /// The first difference.
    pub fn growth(&self, new: &Self) -> Result<Vec<TableGrowth>, ColumnsDifference> {
        let (old, theirs) = (&self.schema, &new.schema);
        same_names(
            "label",
            old.labels.iter().map(|label| &label.name),
            theirs.labels.iter().map(|l| &l.name),
        )?;
        same_names("dense column", old.dense.iter().map(|c| &c.name), theirs.dense.iter().map(|c| &c.name))?;
        let categorical = |schema: &'_ Schema| -> Vec<String> {
            schema.categorical.iter().map(|column| column.name.clone()).collect()
        };
        same_names("categorical column", categorical(old).iter(), categorical(theirs).iter())?;
        for (mine, theirs) in old.dense.iter().zip(&theirs.dense) {
            if mine.transform != theirs.transform {
                let values = [mine, theirs].map(|column| column.transform.to_string());
                return Err(property(&mine.name, "transform", values));
            }
        }
        // Positions that are too many may be left out in another way, but the columns must be the same.
        let columns = |schema: &'_ Schema| -> Vec<String> {
            schema.sequences.iter().map(|one| format!("{} ({})", one.name, one.columns.join(", "))).collect()
        };
        same_names("sequence", columns(old).iter(), columns(theirs).iter())?;
        (0..old.categorical.len()).map(|number| self.table_growth(new, number)).collect()
    }

    fn table_growth(&self, new: &Self, number: usize) -> Result<TableGrowth, ColumnsDifference> {
        let columns = [&self.schema.categorical[number], &new.schema.categorical[number]];
        let [old, theirs] = columns;
        let column = old.name.clone();
        let kinds = columns.map(|column| match &column.vocabulary {
            VocabularyKind::Exact { .. } => "exact".to_owned(),
            other => other.to_string(),
        });
        // The description of buckets does not show all boundaries.
        if kinds[0] != kinds[1] || columns[0].buckets() != columns[1].buckets() {
            return Err(property(&column, "vocabulary", kinds));
        }
        if old.shares != theirs.shares {
            let shared =
                |with: &Option<String>| with.as_ref().map_or("none".into(), |with| format!("{with:?}"));
            return Err(property(&column, "shared vocabulary", columns.map(|column| shared(&column.shares))));
        }
        if old.pooling != theirs.pooling {
            let name = |pooling| if pooling == Pooling::Sum { "sum" } else { "mean" }.to_owned();
            return Err(property(&column, "pooling", columns.map(|column| name(column.pooling))));
        }
        if old.weighted != theirs.weighted {
            let has = |column: &Categorical| if column.weighted { "with" } else { "without" }.to_owned();
            return Err(property(&column, "weights of ids", columns.map(has)));
        }
        // Both or none are open.
        let [old_rows, new_rows] = columns.map(|column| column.rows.unwrap_or(0));
        let has_fixed_rows = old.vocabulary == VocabularyKind::Hash || old.buckets().is_some();
        if has_fixed_rows && old_rows != new_rows {
            return Err(property(&column, "rows", [old_rows, new_rows].map(|rows| rows.to_string())));
        }
        if let (Some(mine), Some(theirs)) = (self.encoder.vocabulary(number), new.encoder.vocabulary(number))
        {
            let unreadable =
                |why: Error| ColumnsDifference::Unreadable { column: column.clone(), why: why.to_string() };
            let [mine, theirs] =
                [mine.to_loaded().map_err(unreadable)?, theirs.to_loaded().map_err(unreadable)?];
            if let Some((row, [old, new])) = mine.first_difference(&theirs) {
                return Err(ColumnsDifference::Category { column, row, old, new });
            }
        }
        if new_rows < old_rows {
            return Err(ColumnsDifference::FewerRows { column, old_rows, new_rows });
        }
        Ok(TableGrowth { column, old_rows, new_rows })
    }

    /// Returns the plan for further rows, and what they inherit.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the old dataset was generated; [`Error::TooLarge`] for counts of its vocabularies.
    pub(crate) fn planned(self, grow: bool) -> Result<(Plan, Inherited)> {
        let plan = self.plan(grow)?;
        let Self { name, schema, encoder, statistics, files, .. } = self;
        let schema = schema.stored();
        let vocabularies = encoder.into_vocabularies();
        for (column, vocabulary) in schema.categorical.iter().zip(&vocabularies) {
            let loaded = vocabulary.as_ref().and_then(Lookup::loaded);
            let counts = loaded.into_iter().flat_map(Vocabulary::counts);
            let sum = counts.copied().try_fold(0, u64::checked_add);
            if sum.is_none_or(|sum| sum >= COUNT_MAX) {
                let what = format!(
                    "the counts in the vocabulary of column {} of {name} are too large: convert that dataset again",
                    column.name
                );
                return Err(Error::too_large(COUNT_MAX, what));
            }
        }
        let statistics = statistics.filter(|_| grow);
        let files = files.filter(|_| !grow);
        Ok((plan, Inherited { name, vocabularies, statistics, schema, files }))
    }

    fn plan(&self, grow: bool) -> Result<Plan> {
        let format = self.format.clone().ok_or_else(|| {
            let what = format!(
                "{} was generated, so no raw rows have its columns: --like needs a dataset that `rankine convert` \
                 wrote, or a run trained on one",
                self.name
            );
            Error::unsuitable(Path::new(&self.name), what)
        })?;
        // Buckets are computed from the numbers of the new dataset.
        let mut draft = self.schema.stored();
        for column in &mut draft.categorical {
            if let Hotness::Ragged { max } = &mut column.hotness {
                *max = BAG_MAX;
            }
        }
        Ok(Plan {
            standardized: draft.dense.iter().map(|column| column.transform.standardizes()).collect(),
            draft,
            format,
            learning: if grow { Learning::NewCategories } else { Learning::Nothing },
        })
    }
}

fn same_names<'a>(
    kind: &'static str,
    old: impl Iterator<Item = &'a String>,
    new: impl Iterator<Item = &'a String>,
) -> Result<(), ColumnsDifference> {
    let (old, new): (Vec<_>, Vec<_>) = (old.collect(), new.collect());
    let name =
        |names: &[&String], at: usize| names.get(at).map_or("absent".into(), |name| format!("{name:?}"));
    match (0..old.len().max(new.len())).find(|&at| old.get(at) != new.get(at)) {
        Some(at) => {
            let (old, new) = (name(&old, at), name(&new, at));
            Err(ColumnsDifference::Name { kind, number: at + 1, old, new })
        }
        None => Ok(()),
    }
}

fn property(column: &str, property: &'static str, [old, new]: [String; 2]) -> ColumnsDifference {
    ColumnsDifference::Property { column: column.to_owned(), property, old, new }
}

/// What a conversion takes over from an old dataset.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The name of the old dataset.
    pub(crate) name: String,
    /// One entry per categorical column.
    pub(crate) vocabularies: Vec<Option<Lookup>>,
    /// How often rows were looked up, one entry per categorical column; `None` if only the new rows are counted.
    pub(crate) statistics: Option<Vec<TableStatistics>>,
    /// The schema of the old dataset.
    pub(crate) schema: Schema,
    /// The files of the vocabularies, if these are kept as they are.
    pub(crate) files: Option<VocabularyFiles>,
}

/// Converts raw files with the columns, transforms and vocabularies of an old dataset or of a model. With `grow`,
/// categories that an exact vocabulary lacks, and which occur as often in the training part as its `min_count` asks,
/// get rows after the old ones, and statistics are the sum of the old and the new ones if `known` has them. Without it,
/// such categories look up row 0, and the tables have the same rows. Old rows keep their numbers in both cases.
/// [`ConvertOptions::dense_dtype`] is not used: numbers are stored as in the old dataset. If it fails or is
/// interrupted, no dataset remains.
///
/// # Errors
/// As [`crate::convert::convert_csv`]; also [`Error::Unsuitable`] if the old dataset was generated.
pub fn convert_like(
    options: &ConvertOptions,
    known: KnownColumns,
    grow: bool,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_known(options, known, grow, Limits::default(), Converting { options, progress })
}

/// Plans the columns of an old dataset or of a model, opens files, and performs work on them.
pub(crate) fn with_known<W: PlannedWork>(
    options: &ConvertOptions,
    known: KnownColumns,
    grow: bool,
    limits: Limits,
    work: W,
) -> Result<W::Report> {
    options.validate()?;
    let (plan, inherited) = known.planned(grow)?;
    let name = &inherited.name;
    let input = RawInput {
        files: options.sources()?,
        format: &plan.format,
        schema: &plan.draft,
        needed: RequiredColumns::All,
        keep: &[],
        limits,
        ids: &IdRules::default(),
        threads: options.threads,
        hint: &format!(
            "; files need the raw columns of {name} (--like): rename them, or convert with --schema"
        ),
    };
    with_source(input, Planned { plan: &plan, inherited, work })
}

/// Work on rows of any format.
struct Planned<'a, W> {
    plan: &'a Plan,
    inherited: Inherited,
    work: W,
}

impl<W: PlannedWork> SourceTask for Planned<'_, W> {
    type Output = W::Report;
    type Error = Error;

    fn run<S: RowSource>(self, source: S) -> Result<W::Report> {
        self.work.run(self.plan, Some(self.inherited), source)
    }
}
