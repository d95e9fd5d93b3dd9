//! `convert`: a dataset from click logs.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};
use rankine_base::publish::{PartialDir, refuse_inputs};
use rankine_base::{Stop, did_you_mean};
use rankine_engine::source::known_columns;
use rankine_reader::convert::{
    ColumnVocabulary, ConversionReport, ConvertOptions, CriteoColumns, KnownColumns, Progress, RowSplit,
    SchemaFile, convert_criteo, convert_csv, convert_hugectr_raw, convert_like, convert_parquet,
};
use rankine_reader::generate::Shape;
use rankine_reader::raw::RawFormat;
use rankine_reader::schema::DenseDtype;

use crate::error::{Given, argument_error, data_error, of_package, source_error};
use crate::job::toml_text;
use crate::rows_file::RowsFile;
use crate::value::{paths, thread_count, to_python};
use crate::worker;

/// Converts click logs to a dataset in the folder ``out``, which must not exist.
///
/// The options are those of ``rankine convert``: ``split`` is ``"last:0.2"``, ``"random:0.1:SEED"``,
/// ``"hash:COLUMN:0.1"``, ``"after:COLUMN:VALUE"`` or ``"none"``, ``memory`` is in bytes, and ``schema`` is a schema
/// file, or a mapping with the contents of one. For Criteo's logs, ``columns`` maps names to vocabularies, such as
/// ``{"C3": "hash:100000"}``.
///
/// With the format ``"arrow"``, ``train`` and ``eval`` are rows instead of files: a data frame of pandas or Polars, a
/// table, record batch or reader of PyArrow, or an iterable of these. An iterable is read once. The columns that the
/// schema or ``split`` names are written to a temporary Parquet file without a name on the disk of ``out``, since a
/// conversion reads its rows up to three times; other columns are ignored. A Parquet file with these rows gives the
/// same dataset.
///
/// ``like`` is an existing dataset, a fit or a run, whose columns, transforms and vocabularies the new dataset keeps,
/// instead of the options that describe columns. With ``grow=True``, new categories get rows after the old ones.
///
/// Ctrl-C stops the conversion, and leaves no dataset. Returns the report of the conversion, and ``dataset``. Raises
/// DataError.
#[pyfunction]
#[pyo3(signature = (format, train, out, **options))]
pub(crate) fn convert<'py>(
    py: Python<'py>,
    format: Given<String>,
    train: &Bound<'py, PyAny>,
    out: Given<PathBuf>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (format, out) = (&*format.0, out.0);
    let options = &Options::of(py, "convert", format, options)?;
    let stop = Stop::default();
    let rows = format == TABLES;
    let files = if rows { Vec::new() } else { paths(train)? };
    let mut common = ConvertOptions { stop: stop.clone(), ..ConvertOptions::new(files, out.clone()) };
    let eval = options.take("eval", Ok)?;
    if let (Some(files), false) = (&eval, rows) {
        common.eval = paths(files)?;
    }
    let samples = |samples: Bound<'py, PyAny>| Ok(samples.extract::<Given<NonZeroU32>>()?.0);
    common.block_samples = options.take("block_samples", samples)?;
    options.parse_common(&mut common)?;
    common.dense_dtype = if format == "criteo-tsv" { DenseDtype::F16 } else { DenseDtype::F32 };
    options.parse("dense_dtype", &mut common.dense_dtype)?;
    let source = Source::of(options, &mut common)?;
    options.all_are_known("")?;
    // Kept until the conversion has read them.
    let _tables = if rows {
        // An output that is refused is refused before an iterator is read.
        drop(PartialDir::create(&common.out).map_err(data_error)?);
        Some(tables(&source, train, eval.as_ref(), &mut common)?)
    } else {
        None
    };
    let mut source = Some(source);
    let convert = || source.take().expect("it is converted once").convert(&common).map_err(data_error);
    let report = worker::wait(py, &stop, convert)?;
    let dict = to_python(py, &report)?;
    dict.set_item("dataset", out.display().to_string())?;
    Ok(dict)
}

/// The format of rows that are in no file.
pub(crate) const TABLES: &str = "arrow";

/// Writes the rows of the training part, and of the evaluation part if it has its own, for a conversion to read.
fn tables(
    source: &Source,
    train: &Bound<'_, PyAny>,
    eval: Option<&Bound<'_, PyAny>>,
    common: &mut ConvertOptions,
) -> PyResult<Vec<RowsFile>> {
    let mut files = Vec::new();
    for (name, rows) in [("<train>", Some(train)), ("<eval>", eval)] {
        let Some(rows) = rows else { continue };
        let file = table(source, name, rows, &common.split, &common.out)?;
        let file =
            file.ok_or_else(|| data_error(format!("{name} has no record batch, and so no columns")))?;
        let of_part = if files.is_empty() { &mut common.files } else { &mut common.eval };
        of_part.push(file.path());
        common.names.push(name.to_owned());
        files.push(file);
    }
    Ok(files)
}

/// Writes rows for a conversion to read, which are called `name` in messages; `None` if there is no record batch.
fn table(
    source: &Source,
    name: &str,
    rows: &Bound<'_, PyAny>,
    split: &RowSplit,
    out: &Path,
) -> PyResult<Option<RowsFile>> {
    RowsFile::write(name, rows, out, &needed_columns(source, name, split))
}

/// Returns what finds the columns to read of rows that are called `name` in messages.
pub(crate) fn needed_columns<'a>(
    source: &'a Source,
    name: &'a str,
    split: &RowSplit,
) -> impl Fn(&[String]) -> rankine_base::Result<Vec<usize>> + Sync + 'a {
    let split = match split {
        RowSplit::ByColumn(split) => Some(split.column().to_owned()),
        RowSplit::ByNumber(_) => None,
    };
    move |names: &[String]| {
        let mut positions = match source {
            Source::Parquet(schema, _) => schema.positions_in(name, names),
            Source::Like { known, .. } => known.positions_in(name, names),
            Source::Criteo(_) | Source::Csv(..) | Source::Raw(_) => unreachable!("it reads files"),
        }?;
        // The conversion reports a column that is not there.
        positions.extend(names.iter().position(|name| split.as_ref() == Some(name)));
        positions.sort_unstable();
        positions.dedup();
        Ok(positions)
    }
}

/// The options of a call that are left to read.
pub(crate) struct Options<'a, 'py> {
    function: &'a str,
    format: &'a str,
    given: Bound<'py, PyDict>,
}

impl<'a, 'py> Options<'a, 'py> {
    /// Returns the options given to a function for a format.
    pub(crate) fn of(
        py: Python<'py>,
        function: &'a str,
        format: &'a str,
        given: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let given = given.map_or_else(|| Ok(PyDict::new(py)), |given| given.copy())?;
        Ok(Self { function, format, given })
    }

    /// Reads the options that all functions have which read rows.
    pub(crate) fn parse_common(&self, common: &mut ConvertOptions) -> PyResult<()> {
        self.parse("split", &mut common.split)?;
        self.parse("on_bad", &mut common.on_bad)?;
        self.parse("bad_limit", &mut common.bad_limit)?;
        let kept = |share: Bound<'py, PyAny>| text_of(&share)?.parse().map_err(data_error);
        common.negatives_kept.extend(self.take("negatives_kept", kept)?);
        self.parse_threads(common)
    }

    pub(crate) fn parse_threads(&self, common: &mut ConvertOptions) -> PyResult<()> {
        let threads = |threads: Bound<'py, PyAny>| thread_count(threads.extract::<Given<u32>>()?.0);
        common.threads = rankine::job::thread_count(self.take("threads", threads)?);
        Ok(())
    }

    /// Returns the call as messages name it.
    fn call(&self, with: &str) -> String {
        match self.function {
            "convert" => format!("convert({:?}{with})", self.format),
            function => format!("{function}({})", with.trim_start_matches(", ")),
        }
    }

    /// Reads an option, unless it is absent or `None`.
    pub(crate) fn take<T>(
        &self,
        name: &str,
        read: impl FnOnce(Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        let Some(value) = self.given.get_item(name)? else { return Ok(None) };
        self.given.del_item(name)?;
        if value.is_none() { Ok(None) } else { read(value).map(Some) }
    }

    /// Reads an option that is written as on the command line. Numbers are as good as their digits.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self, name: &str, to: &mut T) -> PyResult<()> {
        let parse = |value: Bound<'py, PyAny>| text_of(&value)?.parse().map_err(data_error);
        self.take(name, parse)?.into_iter().for_each(|value| *to = value);
        Ok(())
    }

    pub(crate) fn count(&self, name: &str) -> PyResult<Option<u64>> {
        self.take(name, |value| match value.extract() {
            Ok(count @ 1..) => Ok(count),
            _ => Err(argument_error(format!("{name} must be a whole number of 1 or more"))),
        })
    }

    pub(crate) fn required<T>(
        &self,
        name: &str,
        read: impl FnOnce(Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<T> {
        let missing = || argument_error(format!("{} needs {name}", self.call("")));
        self.take(name, read)?.ok_or_else(missing)
    }

    /// Refuses an option that nothing has read; `with` says which options are there in its place.
    pub(crate) fn all_are_known(&self, with: &str) -> PyResult<()> {
        let Some(name) = self.given.keys().iter().next() else { return Ok(()) };
        Err(argument_error(format!("{} has no option {name}", self.call(with))))
    }
}

/// The format of the source, and the columns to make of it.
pub(crate) enum Source {
    Criteo(CriteoColumns),
    Csv(SchemaFile, u64),
    Parquet(SchemaFile, u64),
    Raw(RawFormat),
    /// Rows of any of them, with the columns of an old dataset or of a model.
    Like {
        known: KnownColumns,
        grow: bool,
    },
}

impl Source {
    pub(crate) fn of(options: &Options<'_, '_>, common: &mut ConvertOptions) -> PyResult<Self> {
        let counting = |common: &mut ConvertOptions| -> PyResult<u64> {
            common.memory = options.count("memory")?.unwrap_or(common.memory);
            Ok(options.count("min_count")?.unwrap_or(1))
        };
        if let Some(path) = options.take("like", |path| path.extract().map(|Given::<PathBuf>(path)| path))? {
            let known = known_columns(&path).map_err(source_error)?;
            known
                .check_format(if options.format == TABLES { "parquet" } else { options.format })
                .map_err(data_error)?;
            common.memory = options.count("memory")?.unwrap_or(common.memory);
            let grow = options.take("grow", |grow| grow.extract())?.is_some_and(|Given(grow)| grow);
            options.all_are_known(", like=...")?;
            return Ok(Self::Like { known, grow });
        }
        match options.format {
            "criteo-tsv" => {
                let mut columns = CriteoColumns { min_count: counting(common)?, ..Default::default() };
                options.parse("dense", &mut columns.dense)?;
                options.parse("vocabulary", &mut columns.vocabulary)?;
                columns.columns =
                    options.take("columns", |columns| column_vocabularies(&columns))?.unwrap_or_default();
                Ok(Self::Criteo(columns))
            }
            "csv" => Ok(Self::Csv(
                options.required("schema", |schema| schema_file(&schema, common))?,
                counting(common)?,
            )),
            "parquet" | TABLES => Ok(Self::Parquet(
                options.required("schema", |schema| schema_file(&schema, common))?,
                counting(common)?,
            )),
            "hugectr-raw" => {
                let shape: String = options.required("shape", |shape| text_of(&shape))?;
                refuse_inputs(&common.out, [&shape]).map_err(data_error)?;
                let mut format = RawFormat::new(Shape::load(&shape).map_err(data_error)?);
                format.rows_cap = options.count("rows_cap")?;
                format.labels =
                    options.take("labels", |labels| labels.extract())?.map_or(1, |Given(labels)| labels);
                options.parse("dense", &mut format.dense)?;
                options.parse("ids", &mut format.ids)?;
                Ok(Self::Raw(format))
            }
            other => {
                let formats = [TABLES, "criteo-tsv", "csv", "hugectr-raw", "parquet"];
                let hint = did_you_mean(other, formats);
                Err(argument_error(format!(
                    "`{other}` is not a format: choose one of {}{hint}",
                    formats.join(", ")
                )))
            }
        }
    }

    fn convert(self, options: &ConvertOptions) -> rankine_base::Result<ConversionReport> {
        let progress: &dyn Progress = &|_: &'static str, _: u64, _: u64| {};
        match self {
            Self::Criteo(columns) => convert_criteo(options, &columns, progress),
            Self::Csv(schema, min_count) => convert_csv(options, &schema, min_count, progress),
            Self::Parquet(schema, min_count) => convert_parquet(options, &schema, min_count, progress),
            Self::Raw(format) => convert_hugectr_raw(options, &format, progress),
            Self::Like { known, grow } => convert_like(options, known, grow, progress),
        }
    }
}

/// Returns the text of a word, a path or a number.
pub(crate) fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = value.str().and_then(|text| text.extract());
    text.map_err(|error| of_package(value.py(), error, argument_error))
}

/// Reads a schema: a file, or a mapping with the contents of one.
fn schema_file(schema: &Bound<'_, PyAny>, common: &ConvertOptions) -> PyResult<SchemaFile> {
    if let Ok(mapping) = schema.cast::<PyMapping>() {
        return SchemaFile::parse("schema", &toml_text(mapping)?).map_err(data_error);
    }
    let Given(path): Given<PathBuf> = schema.extract()?;
    refuse_inputs(&common.out, [&path]).map_err(data_error)?;
    SchemaFile::load(&path).map_err(data_error)
}

/// Reads a mapping such as `{"C3": "hash:100000"}`.
fn column_vocabularies(columns: &Bound<'_, PyAny>) -> PyResult<Vec<ColumnVocabulary>> {
    let wrong = |error: PyErr| of_package(columns.py(), error, argument_error);
    let items = columns.cast::<PyMapping>().map_err(PyErr::from).and_then(|columns| columns.items());
    let vocabulary = |item: Bound<'_, PyAny>| {
        let (name, kind): (Bound<'_, PyString>, Bound<'_, PyString>) = item.extract().map_err(wrong)?;
        format!("{name}={kind}").parse().map_err(data_error)
    };
    items.map_err(wrong)?.iter().map(vocabulary).collect()
}
