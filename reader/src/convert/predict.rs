//! Raw rows for a model: read in order, in bounded memory, with the schema, vocabularies and row format that the
//! model was trained with. Rows need no labels.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::convert::formats::csv::{MissingColumn, csv_source};
use crate::convert::formats::hugectr::RecordSource;
#[cfg(feature = "parquet")]
use crate::convert::formats::parquet;
use crate::convert::pool::Pool;
use crate::convert::rows::fault::BadName;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{NamedTarget, PartRows, RequiredColumns, RowSource};
use crate::convert::text::lines::{Limits, LineRules, Source};
use crate::convert::write::encode::Encoder;
use crate::convert::write::unknown::{UnknownCategories, UnknownCounter};
use crate::convert::{CriteoParser, Progress, criteo_source};
use crate::error::{Error, Result};
use crate::ids::IdRules;
use crate::ordered::ordered_map;
use crate::origin::RowFormat;
use crate::samples::Samples;
use crate::schema::Schema;
use crate::stop::Stop;

/// Some rows of a file, as input of a model.
pub struct RawChunk<'a> {
    /// The number among all rows, from 0, of the first row of the chunk.
    pub first_row: u64,
    /// Rows read, including bad ones: a few thousand.
    pub rows: u64,
    /// The good rows, in order. A missing label is NaN; all are NaN if the file has no column for the label. Weights
    /// are 1 if the file has none.
    pub samples: Samples,
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
    /// Number of parsing threads.
    pub threads: NonZeroUsize,
}

impl RawReader<'_> {
    /// Reads the rows of `files`. `take` is called with all of them in the order of the files, on this thread, for
    /// any number of parsing threads. Label columns may be absent from a file, and labels from a row. Returns the
    /// unknown categories of the good rows, one entry per categorical column.
    ///
    /// # Errors
    /// The first error of `take`; [`crate::Error::Invalid`] for a file that lacks a column; [`crate::Error::Damaged`]
    /// for a broken compressed file; [`crate::Error::Io`].
    pub fn read(
        &self,
        files: &[PathBuf],
        progress: &dyn Progress,
        take: impl FnMut(RawChunk<'_>) -> Result<()>,
    ) -> Result<Vec<UnknownCategories>> {
        let unknown = UnknownCounter::new(self.schema.categorical.len());
        let read = OrderedRead { reader: self, unknown: &unknown, progress, take };
        let files = files.iter().map(|path| Source::new(path, true)).collect::<Result<Vec<_>>>()?;
        let input = RawInput {
            files,
            format: self.format,
            schema: self.schema,
            needed: RequiredColumns::Features,
            limits: Limits::default(),
            ids: self.ids,
            hint: "",
        };
        with_source(input, read)?;
        Ok(unknown.counts())
    }
}

/// Files of raw rows, and how to read them for samples of a schema.
pub(crate) struct RawInput<'a> {
    pub(crate) files: Vec<Source>,
    pub(crate) format: &'a RowFormat,
    pub(crate) schema: &'a Schema,
    /// The columns that the files must have.
    pub(crate) needed: RequiredColumns,
    pub(crate) limits: Limits,
    pub(crate) ids: &'a IdRules,
    /// What is appended to the error about a column that a file lacks.
    pub(crate) hint: &'a str,
}

/// Work on raw rows of any format.
pub(crate) trait SourceTask {
    /// What the work gives.
    type Output;

    /// Performs the work.
    fn run<S: RowSource>(self, source: &S) -> Result<Self::Output>;
}

/// Opens files of raw rows, and performs a task on them.
///
/// # Errors
/// Those of `task`; [`Error::Io`]; [`Error::Invalid`] if the files lack columns that are `needed`.
pub(crate) fn with_source<T: SourceTask>(input: RawInput<'_>, task: T) -> Result<T::Output> {
    let RawInput { files, format, schema, needed, limits, ids, hint } = input;
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
            let source = criteo_source(schema, files, limits, labelled)?;
            task.run(&source)
        }
        RowFormat::Csv(csv) => {
            let refuse = |missing: MissingColumn| Error::Invalid(missing.why + hint);
            let source = csv_source(csv, target, files, limits, refuse)?;
            task.run(&source)
        }
        RowFormat::HugectrRaw(raw) => {
            // Checked before columns are created, because their number comes from outside.
            raw.record_bytes()?;
            if raw.schema(schema.dense_dtype) != *schema {
                return Err(Error::invalid("records of this format do not have the columns of the schema"));
            }
            let source = RecordSource::new(raw, schema.dense_dtype, files)?.with_id_rules(ids.clone());
            task.run(&source)
        }
        #[cfg(feature = "parquet")]
        RowFormat::Parquet(sources) => {
            let refuse = |_: &str, why: String| Error::Invalid(why + hint);
            let source = parquet::parquet_source(sources, target, files, refuse)?;
            task.run(&source)
        }
        #[cfg(not(feature = "parquet"))]
        RowFormat::Parquet(_) => Err(crate::convert::no_parquet()),
    }
}

/// Reads rows in order on several threads.
struct OrderedRead<'a, T> {
    reader: &'a RawReader<'a>,
    unknown: &'a UnknownCounter,
    progress: &'a dyn Progress,
    take: T,
}

impl<T: FnMut(RawChunk<'_>) -> Result<()>> SourceTask for OrderedRead<'_, T> {
    type Output = ();

    fn run<S: RowSource>(self, source: &S) -> Result<()> {
        let Self { reader: &RawReader { schema, encoder, threads, .. }, unknown, progress, mut take } = self;
        let spare = Pool::default();
        let work = |chunk: S::Chunk| {
            let mut rows = spare.take().unwrap_or_else(|| PartRows::new(schema));
            rows.clear();
            let bad = source.read(&chunk, Selection::EVAL, &mut rows)?;
            let mut samples = Samples::new(schema);
            // As in a dataset, which is what the model was trained on.
            encoder.encode_as_stored(&rows.eval, &mut samples);
            encoder.count_unknown(&rows.eval, &samples, unknown);
            spare.put(rows);
            Ok((chunk, samples, bad))
        };
        let expects = source.expects();
        ordered_map(threads, &Stop::default(), source.chunks(), work, |(chunk, samples, bad)| {
            let (span, total) = (source.span(&chunk), source.bytes());
            progress.advance("reading", span.bytes_done.min(total), total);
            take(RawChunk {
                first_row: span.first_row,
                rows: span.rows,
                samples,
                bad_rows: bad.len() as u64,
                bad: Box::new(bad.iter().map(|bad| (u64::from(bad.row), source.name(&chunk, bad)))),
                expects: &expects,
            })
        })
    }
}
