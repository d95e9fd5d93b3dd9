//! Chunks of a long local file, read by several threads at a time: only the last bytes of each decide where it ends.

use std::fs::File;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::stop::Stop;

use crate::background::Background;
use crate::convert::pool::Pool;
use crate::ordered::ordered_map;

/// Bytes at the end of a chunk in which its last line must end.
const END_BYTES: usize = 64 << 10;

/// Threads that parse for each one that reads: reading and dividing takes less than a tenth of the time of parsing.
const PARSERS_PER_READER: usize = 4;
/// More read no faster than 16 threads parse.
const READERS_MAX: usize = 4;

/// Returns the number of threads that read fast enough for this number of parsing threads.
pub(crate) fn readers_for(parsers: NonZeroUsize) -> NonZeroUsize {
    let readers = parsers.get().div_ceil(PARSERS_PER_READER).min(READERS_MAX);
    NonZeroUsize::new(readers).unwrap_or(NonZeroUsize::MIN)
}

/// Chunks that wait to be taken. With only one, two threads wait for each other at every chunk; where other programs
/// take the processors, that took a third of the time of a pass.
const READY_MAX: usize = 8;

/// Full chunks of lines of a local file, in order.
#[derive(Debug)]
pub(super) struct LineReader {
    chunks: Background<Result<Lines>, ()>,
    /// Where the next chunk starts.
    at: u64,
}

/// The bytes of a chunk, and how many lines these are.
pub(super) struct Lines {
    pub(super) bytes: Vec<u8>,
    pub(super) count: u64,
}

impl LineReader {
    /// Starts `threads` threads, which read chunks of up to `chunk_bytes` bytes after the first `at` bytes of a file.
    /// It ends before a chunk that is not full, or has a very long line at its end. Messages call the file `path`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the system cannot start a thread.
    pub(super) fn start(
        file: File,
        path: PathBuf,
        at: u64,
        chunk_bytes: usize,
        threads: NonZeroUsize,
        spare: Arc<Pool<Vec<u8>>>,
    ) -> Result<Self> {
        let chunks = Background::spawn("read lines", READY_MAX, move |out, _| {
            let ends = Ends { file: &file, at, chunk_bytes, end: Vec::new() };
            let read = |range: Range<u64>| {
                let mut bytes = spare.take().unwrap_or_default();
                bytes.resize((range.end - range.start) as usize, 0);
                file.read_exact_at(&mut bytes, range.start).context("read", &path)?;
                let count = memchr::memchr_iter(b'\n', &bytes).count() as u64;
                Ok(Lines { bytes, count })
            };
            let gone = |_| Error::refused("hand on a chunk", ErrorKind::BrokenPipe.into());
            let hand_on = |lines| out.send(Ok(lines)).map_err(gone);
            if let Err(error) = ordered_map(threads, &Stop::default(), ends.map(Ok), read, hand_on) {
                // Nobody takes it if that is the error.
                let _ = out.send(Err(error));
            }
        })?;
        Ok(Self { chunks, at })
    }

    /// Returns where the next chunk starts.
    pub(super) fn at(&self) -> u64 {
        self.at
    }
}

impl Iterator for LineReader {
    type Item = Result<Lines>;

    fn next(&mut self) -> Option<Self::Item> {
        let lines = self.chunks.next()?;
        self.at += lines.as_ref().map_or(0, |lines| lines.bytes.len() as u64);
        Some(lines)
    }
}

/// The chunks, as ranges of bytes.
struct Ends<'a> {
    file: &'a File,
    at: u64,
    chunk_bytes: usize,
    /// The last bytes of a chunk.
    end: Vec<u8>,
}

impl Iterator for Ends<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let full = self.at + self.chunk_bytes as u64;
        self.end.resize(self.chunk_bytes.min(END_BYTES), 0);
        let end_at = full - self.end.len() as u64;
        // What cannot be read here is found again by whoever reads the rest of the file.
        self.file.read_exact_at(&mut self.end, end_at).ok()?;
        // The last line of a file is always seen completely.
        let (_, before_last) = self.end.split_last()?;
        let line_end = memchr::memrchr(b'\n', before_last)?;
        let range = self.at..end_at + line_end as u64 + 1;
        self.at = range.end;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::convert::text::lines::{Chunks, Limits, LineRules, Source};

    proptest! {
        /// So nothing that is read depends on the number of readers.
        #[test]
        fn several_readers_find_the_same_chunks_as_one(
            lines in prop::collection::vec(prop_oneof![9 => 0..40usize, 1 => 0..300usize], 0..200),
            ends in any::<bool>(),
            chunk_bytes in 50..400usize,
            readers in 2..4usize,
            header in any::<bool>(),
        ) {
            let mut text: String = lines.iter().map(|&len| "x".repeat(len) + "\n").collect();
            text.truncate(text.len() - usize::from(!ends && !text.is_empty()));
            let dir = tempfile::tempdir().unwrap();
            let paths = [1, 2].map(|number| dir.path().join(number.to_string()));
            paths.iter().for_each(|path| std::fs::write(path, &text).unwrap());
            let sources = paths.map(|path| Source::new(&path, false).unwrap());
            let chunks = |readers| {
                let readers = NonZeroUsize::new(readers).unwrap();
                let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes - 2, readers };
                let rules = LineRules { header, ..LineRules::default() };
                let mut done = 0;
                let described = Chunks::new(&sources, rules, limits).map(|chunk| {
                    let chunk = chunk.unwrap();
                    assert!(chunk.bytes_done >= done && chunk.bytes_done <= 2 * text.len() as u64);
                    done = chunk.bytes_done;
                    let numbers = [chunk.first_line, chunk.first_row, chunk.rows];
                    (chunk.source, chunk.skipped_bytes, chunk.continues, numbers, chunk.bytes.to_vec())
                });
                described.collect::<Vec<_>>()
            };
            prop_assert_eq!(chunks(readers), chunks(1));
        }
    }

    /// A file of 200 chunks is read by several threads until its last ones.
    #[test]
    fn the_middle_of_a_file_is_read_at_once() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &b"0123456\n".repeat(1000)).unwrap();
        let threads = NonZeroUsize::new(3).unwrap();
        let mut reader = LineReader::start(file, "name".into(), 8, 43, threads, Arc::default()).unwrap();
        let lines: Vec<_> = reader.by_ref().map(|lines| lines.unwrap()).collect();
        assert!(lines.iter().all(|lines| lines.bytes == b"0123456\n".repeat(5) && lines.count == 5));
        assert_eq!((lines.len(), reader.at()), (199, 8 + 199 * 40));
    }
}
