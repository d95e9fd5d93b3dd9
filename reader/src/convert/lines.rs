//! Sources of lines, read front to back in chunks that end where lines end, plain or gzip.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, IoContext, Result};

/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Compressed bytes read at a time.
const GZIP_BUFFER_BYTES: usize = 1 << 18;

/// What bounds memory, however long the lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of a chunk, more than `line_bytes_max`.
    pub(crate) chunk_bytes: usize,
    /// A longer line is a bad row.
    pub(crate) line_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { chunk_bytes: 2 << 20, line_bytes_max: super::LINE_BYTES_MAX }
    }
}

/// A file to convert.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Its length on disk.
    pub(crate) bytes: u64,
    /// Whether its rows are the evaluation part whatever the split.
    pub(crate) eval: bool,
}

impl Source {
    /// # Errors
    /// [`Error::Io`] where the file cannot be opened, [`Error::Invalid`] where it cannot be read twice.
    pub(crate) fn new(path: &Path, eval: bool) -> Result<Self> {
        let metadata = File::open(path).and_then(|file| file.metadata()).context("open", path)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!(
                "{} is not a regular file: conversion reads its sources more than once, so a folder, pipe or device \
                 will not do",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), bytes: metadata.len(), eval })
    }

    fn open(&self, taken: &Arc<AtomicU64>) -> Result<Input> {
        let path = &self.path;
        let mut file = File::open(path).context("open", path)?;
        let mut magic = Vec::new();
        file.by_ref().take(2).read_to_end(&mut magic).context("read", path)?;
        file.rewind().context("read", path)?;
        let file = Metered { file, taken: Arc::clone(taken) };
        if magic == GZIP_MAGIC {
            let file = BufReader::with_capacity(GZIP_BUFFER_BYTES, file);
            return Ok(Input { text: Box::new(MultiGzDecoder::new(file)), gzip: true });
        }
        Ok(Input { text: Box::new(file), gzip: false })
    }
}

/// A file that tells how much of it was read.
struct Metered {
    file: File,
    taken: Arc<AtomicU64>,
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

struct Input {
    text: Box<dyn Read + Send>,
    gzip: bool,
}

impl Input {
    fn fill(&mut self, path: &Path, bytes: &mut Vec<u8>, chunk_bytes: usize) -> Result<()> {
        bytes.reserve_exact(chunk_bytes - bytes.len());
        let missing = (chunk_bytes - bytes.len()) as u64;
        match self.text.by_ref().take(missing).read_to_end(bytes) {
            Ok(_) => Ok(()),
            Err(error)
                if self.gzip
                    && matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::InvalidInput
                            | io::ErrorKind::InvalidData
                    ) =>
            {
                Err(Error::damaged(
                    path,
                    None,
                    format!("its gzip stream breaks off ({error}): fetch or compress it again"),
                ))
            }
            Err(source) => Err(Error::Io { doing: "read", path: path.to_owned(), source }),
        }
    }
}

/// Some lines of one source. A line too long for a chunk comes in pieces: it counts as a row of the chunk in which it
/// begins.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The number of its source.
    pub(crate) source: usize,
    pub(crate) bytes: Vec<u8>,
    /// Bytes at the front that belong to a line of an earlier chunk.
    pub(crate) continued_bytes: usize,
    /// Whether the last line goes on in the next chunk.
    pub(crate) goes_on: bool,
    /// The number in its source, from 1, of the first line that begins here.
    pub(crate) first_line: u64,
    /// The number among all rows, from 0, of that line.
    pub(crate) first_row: u64,
    /// Lines that begin here.
    pub(crate) rows: u64,
    /// Bytes of all sources that had been read from disk when this chunk was whole.
    pub(crate) bytes_done: u64,
}

impl Chunk {
    /// The lines that begin here, as ranges of `bytes` without their ends (LF or CRLF).
    pub(crate) fn lines(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut from = self.continued_bytes;
        std::iter::from_fn(move || {
            let rest = self.bytes.get(from..).filter(|rest| !rest.is_empty())?;
            let bytes = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let carriage_return = usize::from(bytes > 0 && rest[bytes - 1] == b'\r');
            let line = from..from + bytes - carriage_return;
            from += bytes + 1;
            Some(line)
        })
    }
}

/// All chunks of some sources, in order.
pub(crate) struct Chunks<'a> {
    sources: &'a [Source],
    limits: Limits,
    source: usize,
    input: Option<Input>,
    /// What was read behind the last chunk's end.
    carry: Vec<u8>,
    /// Whether that belongs to a line whose first piece was handed out.
    within_line: bool,
    next_line: u64,
    next_row: u64,
    taken: Arc<AtomicU64>,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(sources: &'a [Source], limits: Limits) -> Self {
        debug_assert!(limits.line_bytes_max < limits.chunk_bytes);
        Self {
            sources,
            limits,
            source: 0,
            input: None,
            carry: Vec::new(),
            within_line: false,
            next_line: 1,
            next_row: 0,
            taken: Arc::default(),
        }
    }

    /// The next chunk; `None` behind the last source.
    fn read(&mut self) -> Result<Option<Chunk>> {
        while let Some(source) = self.sources.get(self.source) {
            let input = match &mut self.input {
                Some(input) => input,
                none => none.insert(source.open(&self.taken)?),
            };
            let mut bytes = std::mem::take(&mut self.carry);
            input.fill(&source.path, &mut bytes, self.limits.chunk_bytes)?;
            let at_end = bytes.len() < self.limits.chunk_bytes;
            if !at_end {
                // The last byte is left out of the search: so the carry is never empty, and the end of a source always
                // sees its last line whole.
                let cut = memchr::memrchr(b'\n', &bytes[..bytes.len() - 1]).map_or(bytes.len(), |at| at + 1);
                self.carry = bytes.split_off(cut);
            }
            let chunk = self.chunk(bytes, at_end);
            if at_end {
                self.source += 1;
                self.input = None;
                self.within_line = false;
                self.next_line = 1;
            }
            if !chunk.bytes.is_empty() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    fn chunk(&mut self, mut bytes: Vec<u8>, at_end: bool) -> Chunk {
        let continued_bytes = match self.within_line {
            true => memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |at| at + 1),
            false => 0,
        };
        if at_end {
            let kept = continued_bytes + without_empty_last_line(&bytes[continued_bytes..]).len();
            bytes.truncate(kept);
        }
        let own = &bytes[continued_bytes..];
        let unfinished = !own.is_empty() && !own.ends_with(b"\n");
        let rows = memchr::memchr_iter(b'\n', own).count() as u64 + u64::from(unfinished);
        self.within_line = !bytes.ends_with(b"\n") && !at_end;
        let chunk = Chunk {
            source: self.source,
            continued_bytes,
            goes_on: self.within_line,
            first_line: self.next_line,
            first_row: self.next_row,
            rows,
            bytes,
            bytes_done: self.taken.load(Ordering::Relaxed),
        };
        self.next_line += rows;
        self.next_row += rows;
        chunk
    }
}

/// An empty line at the very end is no row.
fn without_empty_last_line(lines: &[u8]) -> &[u8] {
    let rest = lines.strip_suffix(b"\n").unwrap_or(lines);
    let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
    if rest.is_empty() || rest.ends_with(b"\n") { rest } else { lines }
}

impl Iterator for Chunks<'_> {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// All lines, with their numbers, cut to `line_bytes_max`.
    fn lines_of(files: &[Vec<u8>], gzip: bool, limits: Limits) -> Vec<(usize, u64, u64, Vec<u8>)> {
        let dir = tempfile::tempdir().unwrap();
        let mut sources = Vec::new();
        for (number, text) in files.iter().enumerate() {
            let path = dir.path().join(number.to_string());
            if gzip {
                // Two members, as `cat a.gz b.gz` gives.
                let mut out = File::create(&path).unwrap();
                for piece in [&text[..text.len() / 2], &text[text.len() / 2..]] {
                    let mut member = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
                    member.write_all(piece).unwrap();
                    member.finish().unwrap();
                }
            } else {
                std::fs::write(&path, text).unwrap();
            }
            sources.push(Source::new(&path, false).unwrap());
        }
        let mut lines = Vec::new();
        let mut done = 0;
        for chunk in Chunks::new(&sources, limits) {
            let chunk = chunk.unwrap();
            assert_eq!(chunk.lines().count() as u64, chunk.rows);
            assert!(chunk.bytes.len() <= limits.chunk_bytes && chunk.bytes_done >= done);
            done = chunk.bytes_done;
            for (number, range) in chunk.lines().enumerate() {
                let mut line = chunk.bytes[range].to_vec();
                line.truncate(limits.line_bytes_max);
                let number = number as u64;
                lines.push((chunk.source, chunk.first_line + number, chunk.first_row + number, line));
            }
        }
        assert!(done <= sources.iter().map(|source| source.bytes).sum());
        lines
    }

    fn expected(files: &[Vec<u8>], limits: Limits) -> Vec<(usize, u64, u64, Vec<u8>)> {
        let mut lines = Vec::new();
        for (source, text) in files.iter().enumerate() {
            let text = text.strip_suffix(b"\n").unwrap_or(text);
            let mut own: Vec<Vec<u8>> = text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            own.iter_mut().for_each(|line| {
                line.pop_if(|last| *last == b'\r');
                line.truncate(limits.line_bytes_max);
            });
            own.pop_if(|line| line.is_empty());
            for (number, line) in own.into_iter().enumerate() {
                lines.push((source, number as u64 + 1, lines.len() as u64, line));
            }
        }
        lines
    }

    proptest! {
        #[test]
        fn chunks_hold_every_line_once(
            files in prop::collection::vec(
                prop::collection::vec(prop::sample::select(&b"ab\r\n"[..]), 0..120), 0..4),
            chunk_bytes in 5..40usize,
            gzip in any::<bool>(),
        ) {
            // Lines are compared up to a length below that at which they come in pieces.
            let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes - 2 };
            prop_assert_eq!(lines_of(&files, gzip, limits), expected(&files, limits));
        }
    }

    #[test]
    fn a_broken_gzip_file_is_called_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("day.gz");
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&b"some line\n".repeat(1000)).unwrap();
        let bytes = out.finish().unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let sources = [Source::new(&path, false).unwrap()];
        let outcome: Result<Vec<_>> = Chunks::new(&sources, Limits::default()).collect();
        assert!(outcome.unwrap_err().to_string().contains("gzip stream breaks off"));
    }

    #[test]
    fn a_folder_is_no_source() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Source::new(dir.path(), false).unwrap_err().to_string().contains("regular file"));
    }
}
