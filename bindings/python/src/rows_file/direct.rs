//! Rows that are handed to a conversion as they come.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use arrow_array::RecordBatch;
use parquet::arrow::ArrowSchemaConverter;
use parquet::schema::types::SchemaDescPtr;
use pyo3::prelude::*;
use rankine_base::{Error, Stop};
use rankine_reader::convert::{ConvertOptions, TableRows, Tables};

use super::pieces::StartedRows;
use super::{Needed, RowsFile, values};
use crate::error::data_error;
use crate::worker;

/// Rows that one thread processes at a time, as many as of a file.
const CHUNK_ROWS: usize = 4096;
/// How often a conversion that waits for rows looks whether it should stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Rows, at least one, for a conversion that reads them once, as most do.
pub(crate) struct OnceRows<'a, 'py>(StartedRows<'a, 'py>);

impl<'a, 'py> OnceRows<'a, 'py> {
    /// Reads the first rows of a table, a stream of record batches, or an iterable of these; `None` if there are none.
    pub(crate) fn of(what: &'a str, rows: &Bound<'py, PyAny>, needed: &Needed<'_>) -> PyResult<Option<Self>> {
        let Some(mut rows) = StartedRows::of(what, rows, needed)? else { return Ok(None) };
        let Some(first) = rows.next_rows()? else { return Ok(None) };
        rows.put_back(first);
        Ok(Some(Self(rows)))
    }

    /// Does work that reads the rows, by options in which they are the only source; `once` unless it may read them
    /// several times.
    pub(crate) fn read<R: Send>(
        self,
        once: bool,
        common: ConvertOptions,
        work: impl FnOnce(&ConvertOptions) -> PyResult<R> + Send,
    ) -> PyResult<R> {
        let Self(mut rows) = self;
        let (py, stop) = (rows.py(), common.stop.clone());
        let mut common =
            ConvertOptions { files: vec![rows.what.into()], names: vec![rows.what.to_owned()], ..common };
        let are_direct = rows.columns().fields().iter().all(|field| values::is_direct(field.data_type()));
        if !(once && are_direct) {
            let file = RowsFile::write_started(rows, &common.out)?;
            common.files = vec![file.path()];
            let mut work = Some(work);
            return worker::wait(py, &stop, || work.take().expect("it is done once")(&common));
        }
        let columns: SchemaDescPtr = match ArrowSchemaConverter::new().convert(rows.columns()) {
            Ok(columns) => Arc::new(columns),
            Err(error) => return Err(data_error(format!("{}: {error}", rows.what))),
        };
        let (answer, answers) = sync_channel(1);
        let asked = stop.clone();
        let work = move |requests: &SyncSender<()>| {
            let incoming = Incoming { requests: requests.clone(), answers, stop: asked, batch: None, at: 0 };
            let mut common = common;
            common.tables = Some(Arc::new(Tables::new(columns, incoming.start())));
            work(&common)
        };
        // Objects of Python are used on this thread only.
        let (mut answer, mut raised) = (Some(answer), None);
        let outcome = worker::run(py, &stop, work, |()| {
            // Without an answer to its request, the work fails.
            let Some(to) = answer.take() else { return Ok(()) };
            match rows.next_rows() {
                Ok(batch) => {
                    // The work may have failed before.
                    let _ = to.send(batch);
                    answer = Some(to);
                }
                Err(error) => raised = Some(error),
            }
            Ok(())
        });
        raised.map_or(outcome, Err)
    }
}

/// Rows that arrive from the thread that has the interpreter. It is asked for the next batch while one is read.
struct Incoming {
    requests: SyncSender<()>,
    /// `None` after the last batch.
    answers: Receiver<Option<RecordBatch>>,
    stop: Stop,
    batch: Option<RecordBatch>,
    /// Rows of the batch that were returned.
    at: usize,
}

impl Incoming {
    fn start(self) -> Self {
        self.request();
        self
    }

    fn request(&self) {
        // If nobody receives it, nobody will answer, which is an error there.
        let _ = self.requests.send(());
    }

    /// Waits for the next batch.
    fn receive(&mut self) -> rankine_base::Result<Option<RecordBatch>> {
        loop {
            match self.answers.recv_timeout(STOP_CHECK_INTERVAL) {
                Ok(batch) => return Ok(batch),
                Err(RecvTimeoutError::Timeout) => self.stop.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    self.stop.check()?;
                    return Err(Error::refused("receive rows", std::io::ErrorKind::BrokenPipe.into()));
                }
            }
        }
    }
}

impl Iterator for Incoming {
    type Item = rankine_base::Result<TableRows>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.batch.as_ref().filter(|batch| self.at < batch.num_rows()) {
                let rows = (batch.num_rows() - self.at).min(CHUNK_ROWS);
                let slice = batch.slice(self.at, rows);
                self.at += rows;
                return Some(Ok(values::table_rows(&slice)));
            }
            self.batch = match self.receive() {
                Ok(None) => return None,
                Ok(batch) => batch,
                Err(error) => return Some(Err(error)),
            };
            self.at = 0;
            self.request();
        }
    }
}
