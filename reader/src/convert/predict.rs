//! Raw rows for a model: read in order, in bounded memory, with the schema, vocabularies and row format that the
//! model was trained with. Rows need labels only if they are evaluated.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rankine_base::error::{Error, Result};
use rankine_base::stop::Stop;

use crate::convert::formats::csv::{MissingColumn, csv_source};
use crate::convert::formats::hugectr::RecordSource;
#[cfg(feature = "parquet")]
use crate::convert::formats::parquet;
use crate::convert::pool::Pool;
use crate::convert::rows::fault::{BadName, BadRow};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{NamedTarget, PartRows, RequiredColumns, RowSource};
use crate::convert::text::lines::{Limits, LineRules, Source};
use crate::convert::write::encode::Encoder;
use crate::convert::write::unknown::{UnknownCategories, UnknownCounter};
use crate::convert::{CriteoParser, Progress, criteo_source};
use crate::ids::IdRules;
use crate::ordered::ordered_map;
use crate::origin::RowFormat;
use crate::samples::Samples;
use crate::schema::Schema;

/// Some rows of a file, as input of a model.
pub struct RawChunk<'a> {
    /// The number among all rows, from 0, of the first row of the chunk.
    pub first_row: u64,
    /// Rows read, including bad ones: a few thousand.
    pub rows: u64,
    /// The good rows, in order. A missing label is NaN; all are NaN if the file has no column for the label. Weights
    /// are 1 if the file has none.
    pub samples: Samples,
    /// The texts of the columns to keep, of the good rows.
    pub kept: KeptTexts,
    /// Number of bad rows.
    pub bad_rows: u64,
    /// The bad rows, in order: the number in this chunk, from 0, and a description, which is formatted when
    /// requested.
    pub bad: Box<dyn Iterator<Item = (u64, BadName)> + 'a>,
    /// A description of what the files should be, for [`crate::convert::BadTally`].
    pub expects: &'a str,
}

/// Reads raw rows in the same way as those of a dataset, or of a model's training data, were read.
#[derive(Debug, Clone, Copy)]
pub struct RawReader<'a> {
    /// The format of the rows.
    pub format: &'a RowFormat,
    /// The columns of the dataset or model.
    pub schema: &'a Schema,
    /// Provides the vocabularies.
    pub encoder: &'a Encoder,
    /// Rules for ids of records that are out of range; ids with a rule are returned unchanged: see
    /// [`IdRules::apply`]. In other formats a row with such an id is bad.
    pub ids: &'a IdRules,
    /// Whether rows need their labels and weight, as for an evaluation. Otherwise label columns may be absent from a
    /// file, and labels from a row.
    pub labelled: bool,
    /// Raw columns whose texts are kept, by their names in the files; the model need not use them.
    pub keep: &'a [String],
    /// Number of parsing threads.
    pub threads: NonZeroUsize,
}

/// The path that stands for standard input.
pub const STANDARD_INPUT: &str = "-";

/// What is appended to the error about a column that a file for an evaluation lacks.
const NEEDS_ALL: &str = "; an evaluation needs every column of the training, labels and weights included (`rankine \
                         predict` does without these two)";

impl RawReader<'_> {
    /// Reads the rows of `files`, of which one may be [`STANDARD_INPUT`] if rows are text. `take` is called with all of
    /// them in the order of the files, on this thread, for any number of parsing threads. Returns the unknown
    /// categories of the good rows, one entry per categorical column.
    ///
    /// # Errors
    /// The first error of `take`; [`Error::Columns`] for a file that lacks a column; [`Error::Setting`] if standard
    /// input cannot be read in this format; [`Error::Damaged`] for a broken compressed file; [`Error::Io`].
    pub fn read<E: From<Error>>(
        &self,
        files: &[PathBuf],
        progress: &dyn Progress,
        take: impl FnMut(RawChunk<'_>) -> Result<(), E>,
    ) -> Result<Vec<UnknownCategories>, E> {
        let unknown = UnknownCounter::new(self.schema.categorical.len());
        let read = OrderedRead { reader: self, unknown: &unknown, progress, take };
        let stored = &self.schema.stored();
        let input = RawInput {
            files: self.sources(files)?,
            format: self.format,
            schema: stored,
            needed: if self.labelled { RequiredColumns::All } else { RequiredColumns::Features },
            keep: self.keep,
            limits: Limits::default(),
            ids: self.ids,
            threads: self.threads,
            hint: if self.labelled { NEEDS_ALL } else { "" },
        };
        with_source(input, read)?;
        Ok(unknown.counts())
    }

    fn sources(&self, files: &[PathBuf]) -> Result<Vec<Source>> {
        let is_standard_input = |path: &&PathBuf| **path == Path::new(STANDARD_INPUT);
        let why_not = match self.format {
            _ if files.iter().filter(is_standard_input).count() > 1 => {
                Some("standard input, -, is named twice, but it can be read only once".to_owned())
            }
            RowFormat::CriteoTsv | RowFormat::Csv(_) => None,
            RowFormat::Parquet(_) => Some(no_standard_input("Parquet", "its end is read first")),
            RowFormat::HugectrRaw(_) => {
                Some(no_standard_input("raw records", "their number follows from the length of the file"))
            }
        };
        if let Some(why_not) = why_not.filter(|_| files.iter().any(|path| is_standard_input(&path))) {
            return Err(Error::setting("files", why_not));
        }
        let open = |path: &PathBuf| match is_standard_input(&path) {
            true => Ok(Source::of_standard_input()),
            false => Source::new(path, true),
        };
        files.iter().map(open).collect()
    }
}

fn no_standard_input(format: &str, why: &str) -> String {
    format!("{format} cannot be read from standard input, -: {why}. Write it to a file, and name that")
}

/// Files of raw rows, and how to read them for samples of a schema.
pub(crate) struct RawInput<'a> {
    pub(crate) files: Vec<Source>,
    pub(crate) format: &'a RowFormat,
    pub(crate) schema: &'a Schema,
    /// The columns that the files must have.
    pub(crate) needed: RequiredColumns,
    /// Columns whose texts are kept.
    pub(crate) keep: &'a [String],
    pub(crate) limits: Limits,
    pub(crate) ids: &'a IdRules,
    /// Threads that decode Parquet; rows of other formats are read by one.
    pub(crate) threads: NonZeroUsize,
    /// What is appended to the error about a column that a file lacks.
    pub(crate) hint: &'a str,
}

/// Work on raw rows of any format.
pub(crate) trait SourceTask: Sized {
    /// What the work gives.
    type Output;
    /// Why the work fails.
    type Error: From<Error>;

    /// Performs the work.
    fn run<S: RowSource>(self, source: S) -> Result<Self::Output, Self::Error>;

    /// Performs the work on rows with the texts of some columns.
    fn run_keeping<S: RowSource>(self, keep: &[String], mut source: S) -> Result<Self::Output, Self::Error> {
        source.keep(keep)?;
        self.run(source)
    }
}

/// Opens files of raw rows, and performs a task on them.
///
/// # Errors
/// Those of `task`; [`Error::Io`]; [`Error::Columns`] if the files lack columns that are `needed` or to be kept.
pub(crate) fn with_source<T: SourceTask>(input: RawInput<'_>, task: T) -> Result<T::Output, T::Error> {
    let RawInput { files, format, schema, needed, keep, limits, ids, threads, hint } = input;
    let standardized: Vec<bool> = schema.dense.iter().map(|column| column.transform.standardizes()).collect();
    let target = NamedTarget { schema, standardized: &standardized, needed };
    match format {
        RowFormat::CriteoTsv => {
            let labelled = |file: &Source| {
                if needed == RequiredColumns::All {
                    return Ok(true);
                }
                let first = file.first_row(LineRules::default(), limits)?;
                Ok(!first.is_some_and(|line| CriteoParser::lacks_label(schema, &line)))
            };
            task.run_keeping(keep, criteo_source(schema, files, limits, labelled)?)
        }
        RowFormat::Csv(csv) => {
            let refuse = |missing: MissingColumn| Error::columns(Some(&missing.column), missing.why + hint);
            task.run_keeping(keep, csv_source(csv, target, files, limits, refuse)?)
        }
        RowFormat::HugectrRaw(raw) => {
            // Checked before columns are created, because their number comes from outside.
            raw.record_bytes()?;
            if raw.schema(schema.dense_dtype) != *schema {
                let what = "records of this format do not have the columns of the schema";
                return Err(Error::columns(None, what).into());
            }
            let source = RecordSource::new(raw, schema.dense_dtype, files)?.with_id_rules(ids.clone());
            task.run_keeping(keep, source)
        }
        #[cfg(feature = "parquet")]
        RowFormat::Parquet(sources) => {
            let refuse = |column: &str, why: String| Error::columns(Some(column), why + hint);
            task.run_keeping(keep, parquet::parquet_source(sources, target, files, threads, refuse)?)
        }
        #[cfg(not(feature = "parquet"))]
        RowFormat::Parquet(_) => {
            let _ = threads;
            Err(crate::convert::no_parquet().into())
        }
    }
}

/// A chunk whose rows were read.
struct ReadChunk<C> {
    chunk: C,
    samples: Samples,
    kept: KeptTexts,
    bad: Vec<BadRow>,
}

/// Reads rows in order on several threads.
struct OrderedRead<'a, T> {
    reader: &'a RawReader<'a>,
    unknown: &'a UnknownCounter,
    progress: &'a dyn Progress,
    take: T,
}

impl<E: From<Error>, T: FnMut(RawChunk<'_>) -> Result<(), E>> SourceTask for OrderedRead<'_, T> {
    type Output = ();
    type Error = E;

    fn run<S: RowSource>(self, source: S) -> Result<(), E> {
        let source = &source;
        let Self { reader: &RawReader { schema, encoder, keep, threads, .. }, unknown, progress, mut take } =
            self;
        let spare = Pool::default();
        let work = |chunk: S::Chunk| {
            let mut rows = spare.take().unwrap_or_else(|| PartRows::new(schema));
            rows.clear();
            let bad = source.read(&chunk, Selection::EVAL, &mut rows)?;
            let mut samples = Samples::new(schema);
            // As in a dataset, which is what the model was trained on.
            encoder.encode_as_stored_and_count(&rows.eval, &mut samples, unknown);
            spare.put(rows);
            let mut kept = KeptTexts::new(keep.len());
            if !keep.is_empty() {
                source.copy_kept(&chunk, &bad, &mut kept);
            }
            Ok(ReadChunk { chunk, samples, kept, bad })
        };
        let expects = source.expects();
        let read = ordered_map(threads, &Stop::default(), source.chunks(), work, |read| {
            let ReadChunk { chunk, samples, kept, bad } = read;
            let (span, total) = (source.span(&chunk), source.bytes());
            let done = if total > 0 { span.bytes_done.min(total) } else { span.bytes_done };
            progress.advance("reading", done, total);
            take(RawChunk {
                first_row: span.first_row,
                rows: span.rows,
                samples,
                kept,
                bad_rows: bad.len() as u64,
                bad: Box::new(bad.iter().map(|bad| (u64::from(bad.row), source.name(&chunk, bad)))),
                expects: &expects,
            })
        });
        // An error such as a bad row says nothing about a file that was changed.
        source.check_unchanged()?;
        read
    }
}
