//! Decodes the columns of row groups on several threads, and returns chunks of rows in the order of the files.
//!
//! A task is one chunk of one column. Each thread takes the first one, in the order of the rows, that no thread has
//! begun: so threads share the columns of a row group, and begin the next row groups before it ends. How far they may
//! be ahead of the returned chunks is limited, and so is memory.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rankine_base::error::Result;

use super::columns::Leaf;
use super::file::{OpenFile, guarded};
use super::values::{ValueReader, Values, read_rows};
use crate::convert::text::lines::Source;

/// Rows per chunk.
const CHUNK_ROWS: usize = 4096;
/// Chunks per thread that may be begun and not returned.
const AHEAD_PER_THREAD: u64 = 4;

/// A file, and which of its columns are read.
#[derive(Debug, Clone)]
pub(super) struct FileColumns {
    pub(super) source: Arc<Source>,
    pub(super) leaves: Vec<Leaf>,
}

/// Some rows of one file.
#[derive(Debug)]
pub(super) struct DecodedRows {
    pub(super) file: usize,
    /// Number of earlier rows in the file.
    pub(super) file_row: u64,
    pub(super) rows: usize,
    /// One entry per leaf.
    pub(super) columns: Vec<Values>,
}

/// The rows of several files, in order, until the first error.
pub(super) struct Decoder {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    files: Vec<FileColumns>,
    ahead: u64,
    state: Mutex<State>,
    /// A task may have become available.
    tasks: Condvar,
    /// The next chunk may have become complete.
    complete: Condvar,
}

struct State {
    /// `None` while a thread opens a row group, and at the end.
    opener: Option<Opener>,
    /// Whether all row groups were opened, or one could not be.
    all_open: bool,
    /// Why a row group could not be opened.
    failed: Option<rankine_base::Error>,
    /// The open row groups; the next chunk is in the first one.
    groups: VecDeque<Group>,
    /// Number of chunks that were returned.
    returned: u64,
    closed: bool,
}

/// Opens one row group after another.
struct Opener {
    file: usize,
    open: Option<OpenFile>,
    /// The next row group of the open file.
    group: usize,
    /// Number of earlier rows in the file.
    file_row: u64,
    /// Number of the next row group's first chunk.
    chunk: u64,
}

/// An open row group.
struct Group {
    file: usize,
    file_row: u64,
    rows: usize,
    /// Number of its first chunk.
    first_chunk: u64,
    columns: Vec<Column>,
}

struct Column {
    /// `None` while a thread reads, and after an error.
    reader: Option<Box<ValueReader>>,
    /// Number of chunks that were begun.
    begun: u64,
    /// Chunks that were read and not returned.
    read: VecDeque<Result<Values>>,
}

enum Task {
    Open(Opener),
    Read { file: usize, first_chunk: u64, column: usize, reader: Box<ValueReader>, rows: usize },
}

impl Group {
    fn chunks(&self) -> u64 {
        self.rows.div_ceil(CHUNK_ROWS) as u64
    }

    /// Returns the number of rows in the chunk with this number, from 0.
    fn rows_of(&self, chunk: u64) -> usize {
        (self.rows - chunk as usize * CHUNK_ROWS).min(CHUNK_ROWS)
    }
}

impl Opener {
    /// Opens the next row group that has rows; `None` after the last one.
    fn next(&mut self, files: &[FileColumns]) -> Result<Option<Group>> {
        while let Some(FileColumns { source, leaves }) = files.get(self.file) {
            let open = match &mut self.open {
                Some(open) => open,
                none => none.insert(OpenFile::new(source)?),
            };
            if self.group == open.metadata.num_row_groups() {
                *self = Self { file: self.file + 1, open: None, group: 0, file_row: 0, chunk: self.chunk };
                continue;
            }
            let (rows, readers) = guarded(source, || open.row_group(self.group, leaves))?;
            self.group += 1;
            if rows == 0 {
                continue;
            }
            let column = |reader| Column { reader: Some(Box::new(reader)), begun: 0, read: VecDeque::new() };
            let group = Group {
                file: self.file,
                file_row: self.file_row,
                rows,
                first_chunk: self.chunk,
                columns: readers.into_iter().map(column).collect(),
            };
            self.file_row += rows as u64;
            self.chunk += group.chunks();
            return Ok(Some(group));
        }
        Ok(None)
    }
}

impl State {
    /// Takes the first task of a chunk below `end`.
    fn task(&mut self, end: u64) -> Option<Task> {
        let columns = self.groups.iter().enumerate().flat_map(|(number, group)| {
            let ready = move |column: &Column| {
                column.reader.is_some()
                    && column.begun < group.chunks()
                    && group.first_chunk + column.begun < end
            };
            let columns = group.columns.iter().enumerate().filter(move |(_, column)| ready(column));
            columns.map(move |(at, column)| (group.first_chunk + column.begun, number, at))
        });
        if let Some((_, number, at)) = columns.min() {
            let group = &mut self.groups[number];
            let rows = group.rows_of(group.columns[at].begun);
            let column = &mut group.columns[at];
            column.begun += 1;
            let reader = column.reader.take()?;
            let (file, first_chunk) = (group.file, group.first_chunk);
            return Some(Task::Read { file, first_chunk, column: at, reader, rows });
        }
        self.opener.take_if(|opener| opener.chunk < end).map(Task::Open)
    }

    /// Takes the next chunk if it is complete; the error is the one of its first column.
    fn chunk(&mut self) -> Option<Result<DecodedRows>> {
        let Some(group) = self.groups.front_mut() else { return self.failed.take().map(Err) };
        if group.columns.iter().any(|column| column.read.is_empty()) {
            return None;
        }
        let number = self.returned - group.first_chunk;
        let columns = group.columns.iter_mut().filter_map(|column| column.read.pop_front());
        let columns = columns.collect::<Result<_>>();
        let file_row = group.file_row + number * CHUNK_ROWS as u64;
        let (file, rows) = (group.file, group.rows_of(number));
        self.returned += 1;
        if number + 1 == group.chunks() {
            self.groups.pop_front();
        }
        Some(columns.map(|columns| DecodedRows { file, file_row, rows, columns }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs tasks until there are no more.
    fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            let end = state.returned + self.ahead;
            match state.task(end) {
                Some(Task::Open(mut opener)) => {
                    drop(state);
                    let opened = opener.next(&self.files);
                    state = self.lock();
                    match opened {
                        Ok(Some(group)) => {
                            state.groups.push_back(group);
                            state.opener = Some(opener);
                        }
                        Ok(None) => state.all_open = true,
                        Err(error) => (state.all_open, state.failed) = (true, Some(error)),
                    }
                    self.tasks.notify_all();
                    self.complete.notify_one();
                }
                Some(Task::Read { file, first_chunk, column, mut reader, rows }) => {
                    drop(state);
                    let FileColumns { source, leaves } = &self.files[file];
                    let values = guarded(source, || read_rows(&mut reader, rows, &leaves[column]));
                    state = self.lock();
                    // Its group remains open until this chunk is returned.
                    let mut groups = state.groups.iter_mut();
                    if let Some(group) = groups.find(|group| group.first_chunk == first_chunk) {
                        let column = &mut group.columns[column];
                        column.reader = values.is_ok().then_some(reader);
                        column.read.push_back(values);
                    }
                    self.complete.notify_one();
                }
                None if state.all_open && state.groups.is_empty() => return,
                None => state = self.tasks.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Decoder {
    pub(super) fn new(files: Vec<FileColumns>, threads: NonZeroUsize) -> Self {
        let opener = Some(Opener { file: 0, open: None, group: 0, file_row: 0, chunk: 0 });
        let shared = Arc::new(Shared {
            files,
            ahead: threads.get() as u64 * AHEAD_PER_THREAD,
            state: Mutex::new(State {
                opener,
                all_open: false,
                failed: None,
                groups: VecDeque::new(),
                returned: 0,
                closed: false,
            }),
            tasks: Condvar::new(),
            complete: Condvar::new(),
        });
        let thread = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work())
        };
        Self { threads: (0..threads.get()).map(thread).collect(), shared }
    }

    /// Returns how many chunks of single columns are complete and not returned.
    #[cfg(test)]
    pub(super) fn values_ahead(&self) -> usize {
        let state = self.shared.lock();
        state.groups.iter().flat_map(|group| &group.columns).map(|column| column.read.len()).sum()
    }

    fn close(&mut self) {
        self.shared.lock().closed = true;
        self.shared.tasks.notify_all();
        for thread in self.threads.drain(..) {
            // Errors and panics of the decoder arrive as chunks.
            let _ = thread.join();
        }
    }
}

impl Iterator for Decoder {
    type Item = Result<DecodedRows>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.chunk() {
                Some(chunk) => {
                    drop(state);
                    self.shared.tasks.notify_all();
                    if chunk.is_err() {
                        self.close();
                    }
                    return Some(chunk);
                }
                None if state.all_open && state.groups.is_empty() => return None,
                None => state = self.shared.complete.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.close();
    }
}
