//! Conversion of raw rows to a dataset, in bounded memory, with output that does not depend on the number of threads.
//!
//! A conversion reads its sources up to three times: to count rows (only if the last share of them is for
//! evaluation), to learn vocabularies and means from the training part, and to write. A `plan` describes the output.
//! Formats of raw rows implement `source::RowSource`. Text formats use `text`, `lines` (dividing into chunks) and
//! `compressed`, with `criteo` and `csv` parsing the rows of a file; `hugectr` reads raw records and `parquet` typed
//! columns. All of them fill `rows`, after which the code is shared: `learn` (counting within a memory budget in
//! `count` and `spill`), `encode`, `write`. `fit` ends after learning, and
//! `partial` learns from pieces of the rows. `predict` reads further rows for a model with
//! the same code.
//! `docs/guide/converting.md` is the guide for users.

mod bad;
mod draft;
mod fit;
mod formats;
mod known;
mod learn;
mod number;
mod partial;
mod pass;
mod plan;
mod pool;
mod predict;
mod raw_columns;
mod rehearse;
mod report;
mod rows;
#[cfg(test)]
mod tests;
mod text;
mod write;

pub use crate::origin::{
    CategorySource, ColumnSources, Conversion, CsvFormat, LabelRule, LabelSource, RowCounts, RowFormat,
};
pub use crate::split::Split;
pub use bad::{BAD_ROWS_NAME, BadTally};
pub use draft::{DraftOptions, SchemaDraft, draft_schema};
pub use fit::{FitReport, FittedTable, fit_criteo, fit_csv, fit_like, fit_parquet};
pub use formats::hugectr::convert_hugectr_raw;
pub use known::{ColumnsDifference, KnownColumns, TableGrowth, convert_like};
pub(crate) use partial::check_split_of_piece;
pub use partial::{Partial, PartialEntry, Partials, learn_criteo, learn_csv, learn_like, learn_parquet};
pub use plan::options::{
    BadLimit, ColumnVocabulary, ConvertOptions, CriteoColumns, DenseMode, NegativesKept, OnBad,
    TABLE_ROWS_MAX, VocabularyChoice,
};
pub use plan::schema_file::{SCHEMA, SchemaFile};
pub use predict::{RawChunk, RawReader, STANDARD_INPUT};
pub use raw_columns::{
    RawColumn, RawColumnError, RawColumnValues, RawColumns, RawLabels, check_column_names,
};
#[doc(hidden)]
pub use rehearse::rehearse;
pub use report::{CategoricalReport, ConversionReport, DenseReport, ExactReport, REPORT_NAME};
pub use rows::RawRows;
pub use rows::fault::{BadName, BadReason};
pub use rows::kept::KeptTexts;
pub use rows::split::{ColumnSplit, RowSplit};
#[cfg(feature = "parquet")]
pub use rows::tables::{TableColumn, TableRows, TableValues, Tables};
pub use rows::value_type::{TimeUnit, ValueType, ValueUse};
pub use write::encode::Encoder;
pub use write::keys::KeyReport;
pub use write::unknown::{DISTINCT_VALUES_MAX, UnknownCategories};

use std::num::NonZeroU32;
use std::sync::Arc;

use rankine_base::error::{Error, Result};
use rankine_base::publish::{PartialDir, refuse_inputs};

use crate::origin::Origin;
use crate::schema::{DenseTransform, HOTNESS_MAX, Schema};
use crate::write::{DatasetWriter, write_file};

use formats::criteo::CriteoParser;
use known::Inherited;
use learn::columns::{LearntColumns, check_trained};
use pass::Pass;
use plan::{Learning, Plan};
use rows::source::RowSource;
use text::divide::readers_for;
use text::lines::{Limits, LineRules, Source};
use text::{LineParser, TextSource};
use write::WriteResult;

/// Dense columns of a Criteo row.
pub const DENSE_COLUMNS: usize = 13;
/// Categorical columns of a Criteo row.
pub const CATEGORICAL_COLUMNS: usize = 26;
/// Maximum length of a line; a longer one is a bad row.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of categories of one column in a row; a row with more is bad.
pub const BAG_MAX: u32 = HOTNESS_MAX;

/// Receives the progress of a conversion; called from one thread at a time, a few times per second or more.
pub trait Progress: Sync {
    /// `bytes_done` of the sources' `bytes_total` on disk have been processed by the pass with this name: "counting
    /// rows", "learning" or "writing"; "reading" for prediction. Each pass starts at 0. `bytes_total` is 0 if it is
    /// unknown, as for a pipe.
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64);
}

/// Shows nothing.
impl Progress for () {
    fn advance(&self, _: &'static str, _: u64, _: u64) {}
}

impl<F: Fn(&'static str, u64, u64) + Sync> Progress for F {
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64) {
        self(pass, bytes_done, bytes_total);
    }
}

/// Converts Criteo's TSV to a dataset. If it fails or is interrupted, no dataset remains.
///
/// # Errors
/// [`Error::Setting`] for options that contradict each other or leave no rows for training; [`Error::Exists`];
/// [`Error::Changed`]; [`Error::BadRows`] for a bad row that is not allowed, too many bad rows, or no good rows;
/// [`Error::Damaged`] for a broken compressed file; [`Error::Io`]; [`Error::Stopped`].
pub fn convert_criteo(
    options: &ConvertOptions,
    columns: &CriteoColumns,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_criteo(options, columns, Limits::default(), Converting { options, progress })
}

/// Work on raw rows for which there is a plan.
trait PlannedWork {
    /// What the work gives.
    type Report;

    /// Performs the work, with what is inherited from an old dataset, if there is one.
    fn run<S: RowSource>(self, plan: &Plan, inherited: Option<Inherited>, source: S) -> Result<Self::Report>;
}

/// Plans columns of Criteo's TSV, opens the files, and performs work on them.
fn with_criteo<W: PlannedWork>(
    options: &ConvertOptions,
    columns: &CriteoColumns,
    limits: Limits,
    work: W,
) -> Result<W::Report> {
    options.validate()?;
    columns.validate()?;
    let plan = columns.plan(options.dense_dtype);
    let limits = Limits { readers: readers_for(options.threads), ..limits };
    let source = criteo_source(&plan.draft, options.sources()?, limits, |_| Ok(true))?;
    work.run(&plan, None, source)
}

/// Converts CSV to a dataset as described by a schema file; exact columns without a minimum count use `min_count`. If
/// it fails or is interrupted, no dataset remains.
///
/// # Errors
/// As [`convert_criteo`]; also [`Error::Document`] if a file lacks a column.
pub fn convert_csv(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_csv(options, schema, min_count, Limits::default(), Converting { options, progress })
}

/// Plans the columns of a schema file, opens files of CSV, and performs work on them.
fn with_csv<W: PlannedWork>(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    limits: Limits,
    work: W,
) -> Result<W::Report> {
    options.validate()?;
    if min_count == 0 {
        return Err(plan::options::no_min_count());
    }
    let plan = schema.csv_plan(min_count, options.dense_dtype)?;
    let RowFormat::Csv(format) = &plan.format else { unreachable!("a plan for CSV reads CSV") };
    let refuse = |missing: formats::csv::MissingColumn| schema.column_problem(&missing.column, missing.why);
    let source = formats::csv::csv_source(format, plan.target(), options.sources()?, limits, refuse)?;
    work.run(&plan, None, source)
}

/// Converts Parquet to a dataset as described by a schema file, like [`convert_csv`].
///
/// # Errors
/// As [`convert_csv`]; [`Error::Damaged`] for a file that is not Parquet; [`Error::Unsupported`] if this build cannot
/// read Parquet.
pub fn convert_parquet(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_parquet(options, schema, min_count, Converting { options, progress })
}

/// Plans the columns of a schema file, opens files of Parquet, and performs work on them.
fn with_parquet<W: PlannedWork>(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    work: W,
) -> Result<W::Report> {
    options.validate()?;
    if min_count == 0 {
        return Err(plan::options::no_min_count());
    }
    #[cfg(feature = "parquet")]
    {
        let files = options.sources()?;
        let lists = formats::parquet::lists(&files[0], schema.categories())?;
        let plan = schema.parquet_plan(min_count, options.dense_dtype, &lists)?;
        let RowFormat::Parquet(sources) = &plan.format else {
            unreachable!("a plan for Parquet reads Parquet")
        };
        let refuse = |column: &str, why| schema.column_problem(column, why);
        let source =
            formats::parquet::parquet_source(sources, plan.target(), files, options.threads, refuse)?;
        work.run(&plan, None, source)
    }
    #[cfg(not(feature = "parquet"))]
    {
        let _ = (schema, work);
        Err(no_parquet())
    }
}

/// Returns the error for reading Parquet with a build that cannot.
#[cfg(not(feature = "parquet"))]
fn no_parquet() -> Error {
    Error::Unsupported { doing: "read Parquet", feature: "parquet" }
}

/// Returns Criteo's files as a source; `labelled` states for each file whether its lines have a label.
fn criteo_source(
    schema: &Schema,
    files: Vec<Source>,
    limits: Limits,
    labelled: impl Fn(&Source) -> Result<bool>,
) -> Result<TextSource> {
    let parser = |file: &Source| -> Result<Arc<dyn LineParser>> {
        Ok(Arc::new(CriteoParser::new(schema, labelled(file)?, limits.line_bytes_max)?))
    };
    Ok(TextSource {
        parsers: files.iter().map(parser).collect::<Result<_>>()?,
        files,
        kept: Vec::new(),
        split: None,
        rules: LineRules::default(),
        limits,
        expects: "Criteo's TSV (a label, 13 integers, 26 categories)".into(),
        quarantine_name: "quarantine.tsv",
    })
}

impl ConvertOptions {
    /// Returns all files, those of the training part first.
    fn sources(&self) -> Result<Vec<Source>> {
        #[cfg(feature = "parquet")]
        if let (Some(tables), [name], []) = (&self.tables, &self.files[..], &self.eval[..]) {
            return Ok(vec![Source::of_tables(name, tables)]);
        }
        let train = self.files.iter().map(|path| Source::new(path, false));
        let eval = self.eval.iter().map(|path| Source::new(path, true));
        let mut sources: Vec<_> = train.chain(eval).collect::<Result<_>>()?;
        sources.iter_mut().zip(&self.names).for_each(|(source, name)| source.set_name(name));
        Ok(sources)
    }

    /// Returns the samples of a block of columns that admit at most this many.
    fn block_samples(&self, most: u32) -> Result<u32> {
        match self.block_samples.map(NonZeroU32::get) {
            Some(samples) if samples > most => {
                let what = format!("blocks of these columns have at most {most} samples, not {samples}");
                Err(Error::setting("block_samples", what))
            }
            Some(samples) => Ok(samples),
            None => Ok(most),
        }
    }

    /// Describes which rows were read.
    fn conversion(&self, plan: &Plan, rows: RowCounts) -> Conversion {
        let [files, eval] = self.source_names();
        Conversion { format: plan.format.clone(), files, eval, split: self.split.to_string(), rows }
    }

    /// Returns what the sources of the training part and of the evaluation part are called.
    fn source_names(&self) -> [Vec<String>; 2] {
        let paths = self.files.iter().chain(&self.eval).map(|path| path.to_string_lossy().into_owned());
        let named = self.names.iter().cloned().chain(paths.skip(self.names.len()));
        let mut train: Vec<_> = named.take(self.files.len() + self.eval.len()).collect();
        let eval = train.split_off(self.files.len());
        [train, eval]
    }
}

/// Returns a source whose rows are split as the options say.
fn split_source<S: RowSource>(mut source: S, options: &ConvertOptions) -> Result<S> {
    if let RowSplit::ByColumn(split) = &options.split {
        source.split_by(split)?;
    }
    Ok(source)
}

/// Converts rows to a dataset.
struct Converting<'a> {
    options: &'a ConvertOptions,
    progress: &'a dyn Progress,
}

impl PlannedWork for Converting<'_> {
    type Report = ConversionReport;

    fn run<S: RowSource>(
        self,
        plan: &Plan,
        inherited: Option<Inherited>,
        source: S,
    ) -> Result<ConversionReport> {
        let Self { options, progress } = self;
        let source = &split_source(source, options)?;
        refuse_inputs(&options.out, options.files.iter().chain(&options.eval))?;
        let dir = PartialDir::create(&options.out)?;
        let pass = source.if_unchanged(Pass::new(options, source, &plan.draft, progress))?;
        let mut learnt = LearntColumns::learn(&pass, plan, inherited, dir.path(), false)?;
        let schema = &learnt.schema;

        let block_samples = options.block_samples(plan.format.block_samples(schema)?)?;
        let mut writer = DatasetWriter::new(&dir, schema.clone(), block_samples)?;
        learnt.known_counts().for_each(|(column, counts)| writer.set_known_counts(column, counts));
        if let Some(earlier) = learnt.earlier.take() {
            writer.set_earlier_statistics(earlier)?;
        }
        // The vocabularies of large tables take as long to write as a part of the rows.
        let (vocabularies, written) = std::thread::scope(|scope| {
            let vocabularies = scope.spawn(|| learnt.write_vocabularies(&dir, &options.stop));
            let written = write::write(&pass, &learnt.encoder, &learnt.schema, dir.path(), &mut writer);
            (vocabularies.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), written)
        });
        let written = source.if_unchanged(written)?;
        vocabularies?.into_iter().for_each(|file| writer.add_file(file));
        let LearntColumns { schema, encoder, statistics, old, .. } = learnt;
        if statistics.rows.is_some_and(|rows| rows.read != written.rows.read) {
            let what = "the input files changed during the conversion: run it again".into();
            return Err(Error::Changed { path: None, what });
        }
        // All rows of a shard may be held out, if nothing is learned from it.
        let by_column = matches!(options.split, RowSplit::ByColumn(_));
        if written.rows.eval == 0 || plan.learning != Learning::Nothing || !by_column {
            check_trained(&written.rows, options)?;
        }
        let mut report = report_of(options, plan, &schema, &encoder, &written);
        if let Some((name, old)) = old {
            report.set_like(name, &old, plan.learns_categories());
        }
        let json = serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n";
        write_file(dir.path(), REPORT_NAME, json.as_bytes())?;
        writer.finish(Origin::Converted(report.conversion.clone()))?;
        options.stop.check()?;
        dir.publish()?;
        Ok(report)
    }
}

fn report_of(
    options: &ConvertOptions,
    plan: &Plan,
    schema: &Schema,
    encoder: &Encoder,
    written: &WriteResult,
) -> ConversionReport {
    let columns = schema.categorical.iter().enumerate().map(|(number, column)| {
        let exact = encoder.vocabulary(number).map(|vocabulary| ExactReport {
            kept_categories: vocabulary.rows() - 1,
            new_categories: None,
            unknown_train: written.unknown_train[number],
            unknown_eval: written.unknown_eval[number],
        });
        let report = CategoricalReport {
            vocabulary: column.vocabulary.clone(),
            rows: column.rows,
            exact,
            keys: written.keys.get(number).copied().flatten(),
        };
        (column.name.clone(), report)
    });
    let dense = schema.dense.iter().zip(&written.missing_train).map(|(column, &missing)| {
        let DenseTransform { mean, deviation, .. } = column.transform;
        (column.name.clone(), DenseReport { mean, deviation, missing })
    });
    ConversionReport {
        conversion: options.conversion(plan, written.rows),
        like: None,
        bad_by_reason: written.bad_by_reason.clone(),
        columns: columns.collect(),
        dense: dense.collect(),
    }
}
