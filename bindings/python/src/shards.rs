//! `learn`, `fit`, `encode` and `commit`: what an engine that distributes rows runs on its workers.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use arrow_array::builder::{BinaryBuilder, Int64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyMapping};
use rankine_base::Stop;
use rankine_base::publish::unique_suffix;
use rankine_engine::source::known_columns;
use rankine_reader::Part;
use rankine_reader::convert::{ConvertOptions, PartialEntry, Partials, Progress, learn_like, learn_parquet};
use rankine_reader::shards::{self, CommitMode};

use crate::arrow::{Batches, has_tables};
use crate::convert::{Options, Source, TABLES, needed_columns, text_of};
use crate::error::{Given, argument_error, data_error, source_error};
use crate::rows_file::OnceRows;
use crate::table::without_index;
use crate::value::to_python;
use crate::worker;

/// What datasets and fits call the rows that are in no file.
const ROWS: &str = "<rows>";
/// Entries of a record batch of a partial, and bytes of their values.
const BATCH_ENTRIES: usize = 1 << 16;
const BATCH_BYTES: usize = 16 << 20;
/// Record batches that wait for their reader.
const BATCHES_MAX: usize = 2;

const NO_PROGRESS: &dyn Progress = &|_: &'static str, _: u64, _: u64| {};

/// Learns from a piece of the rows: a worker calls this for each of its partitions.
///
/// ``rows`` and the options mean what they do in :func:`convert` with the format ``"arrow"``; all pieces need the same
/// options. ``split`` is ``"hash:COLUMN:0.1"``, ``"after:COLUMN:VALUE"`` or ``"none"``, since a piece does not know the
/// numbers of its rows. ``like`` is a dataset, a fit or a run whose vocabularies the fit continues. Categories beyond
/// ``memory`` bytes are counted on disk, in the folder for temporary files.
///
/// The fit does not depend on how rows are divided into pieces, nor on their order. Rows that cannot be read are
/// counted if ``on_bad`` is ``"skip"``; ``bad_limit`` applies to the piece. No rows give no entries. Raises DataError.
#[pyfunction]
#[pyo3(signature = (rows, **options))]
pub(crate) fn learn(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Partial> {
    let options = &Options::of(py, "learn", TABLES, options)?;
    let out = std::env::temp_dir().join(format!("rankine-{}", unique_suffix()));
    let mut common = ConvertOptions::new(Vec::new(), out);
    options.parse_common(&mut common)?;
    common.dense_dtype = rankine_reader::schema::DenseDtype::F32;
    options.parse("dense_dtype", &mut common.dense_dtype)?;
    let source = Source::of(options, &mut common)?;
    options.all_are_known("")?;
    let Some(rows) = OnceRows::of(ROWS, rows, &needed_columns(&source, ROWS, &common.split))? else {
        return Ok(Partial(Mutex::new(PartialState::NoRows)));
    };
    let partial = rows.read(true, common, |common| {
        let partial = match source {
            Source::Parquet(schema, min_count) => learn_parquet(common, &schema, min_count, NO_PROGRESS),
            Source::Like { known, .. } => learn_like(common, known, NO_PROGRESS),
            Source::Criteo(_) | Source::Csv(..) | Source::Raw(_) => unreachable!("these are files"),
        };
        partial.map_err(data_error)
    })?;
    Ok(Partial(Mutex::new(PartialState::Learned(Box::new(partial)))))
}

/// What :func:`learn` has learned from a piece of the rows: a table of entries for Arrow's libraries, such as
/// ``pyarrow.table(partial)``.
///
/// The columns are ``column`` (text), ``value`` (bytes) and ``count`` (64-bit integer). The counts of entries with the
/// same column and value may be added up, by an engine's group-by for example; one entry, whose column has an empty
/// name, has the statistics of the piece. A partial is read once: keep the table to use it again.
#[pyclass(module = "rankine", frozen)]
pub(crate) struct Partial(Mutex<PartialState>);

enum PartialState {
    /// There are no entries.
    NoRows,
    Learned(Box<rankine_reader::convert::Partial>),
    /// The entries were handed out.
    Read,
}

#[pymethods]
impl Partial {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The consumer casts, as the protocol allows.
        drop(requested_schema);
        let mut state = self.0.lock().expect("replacing does not panic");
        let (sender, receiver) = sync_channel(BATCHES_MAX);
        match std::mem::replace(&mut *state, PartialState::Read) {
            PartialState::NoRows => drop(sender),
            PartialState::Learned(partial) => drop(thread::spawn(move || send(*partial, &sender))),
            PartialState::Read => {
                return Err(data_error("the entries of this partial were read already: keep them"));
            }
        }
        drop(state);
        let batches = RecordBatchIterator::new(receiver.into_iter(), entry_schema());
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(batches);
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
    }
}

fn entry_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("column", DataType::Utf8, false),
        Field::new("value", DataType::Binary, false),
        Field::new("count", DataType::Int64, false),
    ]))
}

/// Sends the entries of a partial as record batches, until nobody receives them.
fn send(partial: rankine_reader::convert::Partial, batches: &SyncSender<Result<RecordBatch, ArrowError>>) {
    let mut entries = Entries::default();
    let gone = || rankine_base::Error::refused("hand on entries", std::io::ErrorKind::BrokenPipe.into());
    let outcome = partial.put(|entry| match entries.push(entry) {
        true => batches.send(Ok(entries.take())).map_err(|_| gone()),
        false => Ok(()),
    });
    let last = match outcome {
        Ok(()) => Ok(entries.take()),
        Err(error) => Err(ArrowError::ExternalError(Box::new(error))),
    };
    // A reader that is gone needs none.
    let _ = batches.send(last);
}

#[derive(Default)]
struct Entries {
    column: StringBuilder,
    value: BinaryBuilder,
    count: Int64Builder,
    len: usize,
    bytes: usize,
}

impl Entries {
    /// Appends an entry, and returns whether these are enough for a batch.
    fn push(&mut self, PartialEntry { column, value, count }: PartialEntry<'_>) -> bool {
        self.column.append_value(column);
        self.value.append_value(value);
        self.count.append_value(i64::try_from(count).unwrap_or(i64::MAX));
        self.len += 1;
        self.bytes += value.len();
        self.len == BATCH_ENTRIES || self.bytes >= BATCH_BYTES
    }

    fn take(&mut self) -> RecordBatch {
        let Self { mut column, mut value, mut count, .. } = std::mem::take(self);
        let columns: Vec<Arc<dyn Array>> =
            vec![Arc::new(column.finish()), Arc::new(value.finish()), Arc::new(count.finish())];
        RecordBatch::try_new(entry_schema(), columns).expect("the columns have equal lengths")
    }
}

/// Writes the fit of all pieces to the folder ``out``, which must not exist: the files of ``rankine fit`` for the
/// same rows in Parquet.
///
/// ``partials`` are the entries of all partials, in any order and added up or not: partials, tables or record batches.
/// ``like`` is what they continue, if they were learned with it: rows keep their numbers, and new categories follow.
/// ``names`` are what the fit records as the files of its rows. Categories beyond ``memory`` bytes are counted on disk.
///
/// Returns what ``rankine fit --json`` prints, and ``fit``. Raises DataError, if pieces were learned with different
/// options, for example.
#[pyfunction]
#[pyo3(signature = (partials, out, **options))]
pub(crate) fn fit<'py>(
    py: Python<'py>,
    partials: &Bound<'py, PyAny>,
    out: Given<PathBuf>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = &Options::of(py, "fit", TABLES, options)?;
    let names = options.take("names", |names| names.try_iter()?.map(|name| text_of(&name?)).collect());
    let names: Vec<String> = names?.unwrap_or_else(|| vec![ROWS.to_owned()]);
    let files = names.into_iter().map(PathBuf::from).collect();
    let stop = Stop::default();
    let mut common = ConvertOptions { stop: stop.clone(), ..ConvertOptions::new(files, out.0.clone()) };
    common.memory = options.count("memory")?.unwrap_or(common.memory);
    options.parse_threads(&mut common)?;
    let like = options.take("like", |path| path.extract().map(|Given::<PathBuf>(path)| path))?;
    options.all_are_known("")?;
    let like = like.map(|path| py.detach(|| known_columns(&path)).map_err(source_error)).transpose()?;
    let mut all = Partials::new(common).map_err(data_error)?;
    let add = |all: &mut Partials, item: &Bound<'_, PyAny>| -> PyResult<()> {
        for batch in Batches::of(&without_index(item)?)? {
            let batch = batch.map_err(data_error)?;
            py.detach(|| add_entries(all, &batch)).map_err(data_error)?;
            py.check_signals()?;
        }
        Ok(())
    };
    if has_tables(partials)? {
        add(&mut all, partials)?;
    } else {
        let found = partials.get_type().name()?;
        let wrong = |found| {
            argument_error(format!("partials has a {found}; expected partials, tables or record batches"))
        };
        for item in partials.try_iter().map_err(|_| wrong(found))? {
            let item = item?;
            if !has_tables(&item)? {
                return Err(wrong(item.get_type().name()?));
            }
            add(&mut all, &item)?;
        }
    }
    let mut all = Some((all, like));
    let report = worker::wait(py, &stop, || {
        let (all, like) = all.take().expect("it is written once");
        all.finish(like).map_err(data_error)
    })?;
    let dict = to_python(py, &report)?;
    dict.set_item("fit", out.0.display().to_string())?;
    Ok(dict)
}

/// Adds the entries of a record batch to a fit.
fn add_entries(all: &mut Partials, batch: &RecordBatch) -> rankine_base::Result<()> {
    let refused = |what: String| rankine_base::Error::columns(None, format!("partials: {what}"));
    let column = |name: &str| {
        let column = batch.column_by_name(name).ok_or_else(|| {
            refused(format!(
                "a table has no column {name}; the columns of entries are column, value and count"
            ))
        })?;
        match column.null_count() {
            0 => Ok(column),
            nulls => Err(refused(format!("{nulls} entries have no {name}"))),
        }
    };
    let [columns, values] = ["column", "value"].map(|name| {
        let column = column(name)?;
        let found =
            || refused(format!("{name} has values of type {}; expected texts or bytes", column.data_type()));
        bytes_of(column).ok_or_else(found)
    });
    let (columns, values) = (columns?, values?);
    let counts = column("count")?;
    let count: Box<dyn Fn(usize) -> i128> = match counts.data_type() {
        DataType::Int64 => Box::new(|row| counts.as_primitive::<Int64Type>().value(row).into()),
        DataType::UInt64 => Box::new(|row| counts.as_primitive::<UInt64Type>().value(row).into()),
        other => {
            return Err(refused(format!("count has values of type {other}; expected integers of 64 bits")));
        }
    };
    let entries = (0..batch.num_rows()).map(|row| {
        let column = std::str::from_utf8(columns(row)).map_err(|_| refused("a column is no text".into()))?;
        let count = u64::try_from(count(row)).map_err(|_| refused(format!("a count is {}", count(row))))?;
        Ok(PartialEntry { column, value: values(row), count })
    });
    all.add(entries.collect::<rankine_base::Result<Vec<_>>>()?)
}

/// Returns the texts or bytes of a column by row; `None` if it has other values.
fn bytes_of<'a>(column: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> &'a [u8] + 'a>> {
    Some(match column.data_type() {
        DataType::Utf8 => Box::new(|row| column.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => Box::new(|row| column.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => Box::new(|row| column.as_string_view().value(row).as_bytes()),
        DataType::Binary => Box::new(|row| column.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Box::new(|row| column.as_binary::<i64>().value(row)),
        DataType::BinaryView => Box::new(|row| column.as_binary_view().value(row)),
        _ => return None,
    })
}

/// Converts a piece of the rows to a shard of the collection in the folder ``out``: a worker calls this for each of
/// its partitions.
///
/// ``fit`` is a fit, or a dataset or a run whose columns and vocabularies the shard has. ``name`` is the piece's own:
/// its folder is ``out/shards/NAME-CHECKSUM``, so that the same piece gives the same folder again, and processes that
/// encode it at the same time do not disturb each other. The shard has no effect until it is committed.
///
/// Returns the report of the conversion, and ``dataset``, the shard; ``None`` if there are no rows. Raises DataError.
#[pyfunction]
#[pyo3(signature = (rows, fit, out, **options))]
pub(crate) fn encode<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    fit: Given<PathBuf>,
    out: Given<PathBuf>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let options = &Options::of(py, "encode", TABLES, options)?;
    let name = options.required("name", |name| text_of(&name))?;
    let mut common = ConvertOptions::new(Vec::new(), out.0);
    options.parse_common(&mut common)?;
    let samples = |samples: Bound<'py, PyAny>| Ok(samples.extract::<Given<std::num::NonZeroU32>>()?.0);
    common.block_samples = options.take("block_samples", samples)?;
    options.all_are_known("")?;
    let known = py.detach(|| known_columns(&fit.0)).map_err(source_error)?;
    known.check_format("parquet").map_err(data_error)?;
    let once = known.read_rows_once();
    let source = Source::Like { known, grow: false };
    let Some(rows) = OnceRows::of(ROWS, rows, &needed_columns(&source, ROWS, &common.split))? else {
        return Ok(None);
    };
    let shard = rows.read(once, common, |common| {
        let Source::Like { known, .. } = source else { unreachable!("it was made above") };
        shards::encode(common, known, &name, NO_PROGRESS).map_err(data_error)
    })?;
    let dict = to_python(py, &shard.report)?;
    dict.set_item("dataset", shard.path.display().to_string())?;
    Ok(Some(dict))
}

/// Lists shards in the collection in the folder ``out``, all at once, in this order: what :func:`encode` has
/// returned, or paths of datasets and collections.
///
/// If there is a collection, ``"append"`` adds the shards that it does not list, ``"overwrite"`` lists only the new
/// ones, and ``"new"`` raises DataError unless it lists these. A commit that is repeated changes nothing. Shards that
/// no collection lists can be removed by ``rankine dataset gc``.
///
/// Returns ``dataset``, the number of ``datasets``, and ``samples`` of each part. Raises DataError.
#[pyfunction]
#[pyo3(signature = (shards, out, **options))]
pub(crate) fn commit<'py>(
    py: Python<'py>,
    shards: &Bound<'py, PyAny>,
    out: Given<PathBuf>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = &Options::of(py, "commit", TABLES, options)?;
    let mode = match options.take("mode", |mode| text_of(&mode))?.as_deref() {
        None | Some("new") => CommitMode::New,
        Some("append") => CommitMode::Append,
        Some("overwrite") => CommitMode::Overwrite,
        Some(other) => {
            return Err(argument_error(format!("mode is {other:?}: choose new, append or overwrite")));
        }
    };
    options.all_are_known("")?;
    let mut dirs = Vec::new();
    for shard in shards.try_iter()? {
        let shard = shard?;
        if shard.is_none() {
            continue;
        }
        let path = match shard.cast::<PyMapping>() {
            Ok(shard) => shard.get_item("dataset")?,
            Err(_) => shard,
        };
        dirs.push(path.extract::<Given<PathBuf>>()?.0);
    }
    let dataset = py.detach(|| shards::commit(&dirs, &out.0, mode)).map_err(data_error)?;
    let samples = PyDict::new(py);
    Part::STORED.into_iter().try_for_each(|part| samples.set_item(part.name(), dataset.samples(part)))?;
    let dict = PyDict::new(py);
    dict.set_item("dataset", out.0.display().to_string())?;
    dict.set_item("datasets", dataset.dirs().len())?;
    dict.set_item("samples", samples)?;
    Ok(dict)
}
