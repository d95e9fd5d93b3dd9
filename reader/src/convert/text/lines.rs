//! Sources of lines, plain or compressed, read from start to end in chunks that end at line ends.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::file_identity::FileIdentity;
use rankine_base::url::{is_url, without_file_scheme};

use crate::convert::pool::{Pool, Pooled};
#[cfg(feature = "parquet")]
use crate::convert::rows::tables::Tables;
use crate::convert::text::compressed::Compression;
use crate::convert::text::divide::{LineReader, Lines};
use crate::convert::text::input::{Input, MeteredFile};
use crate::convert::text::quoting::Quoting;
use crate::convert::text::standard_input::StandardInput;
use crate::store::{self, Version};

/// Limits that bound memory regardless of the length of lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes per chunk, more than `line_bytes_max`.
    pub(crate) chunk_bytes: usize,
    /// Maximum length of a line; a longer one is a bad row.
    pub(crate) line_bytes_max: usize,
    /// Threads that read a local file, each with up to four chunks.
    pub(crate) readers: NonZeroUsize,
}

impl Default for Limits {
    fn default() -> Self {
        let readers = NonZeroUsize::MIN;
        Self { chunk_bytes: 2 << 20, line_bytes_max: crate::convert::LINE_BYTES_MAX, readers }
    }
}

/// A file of raw rows, or standard input.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path, or what messages call it.
    pub(crate) path: PathBuf,
    /// Where it is opened.
    pub(super) opened: PathBuf,
    /// Its length on disk; 0 if that is unknown.
    pub(crate) bytes: u64,
    /// Whether its rows are the evaluation part regardless of the split.
    pub(crate) eval: bool,
    /// The file as it was when it was first opened; `None` for a stream, which can only be read once.
    pub(super) identity: Option<FileIdentity>,
    /// The object in place of the file, as it was when it was first looked at.
    pub(super) object: Option<Version>,
    /// What is read in place of the file.
    pub(crate) standard_input: Option<StandardInput>,
    /// What is read in place of a file of Parquet.
    #[cfg(feature = "parquet")]
    pub(crate) tables: Option<Arc<Tables>>,
}

impl Source {
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened, [`Error::Unsuitable`] if it cannot be read twice.
    pub(crate) fn new(path: &Path, eval: bool) -> Result<Self> {
        let path = &without_file_scheme(path);
        if is_url(path) {
            let version = store::version(path)?;
            let (path, opened, bytes) = (path.to_owned(), path.to_owned(), version.bytes);
            let object = Some(version);
            return Ok(Self { opened, bytes, eval, object, ..Self::of_nothing(path) });
        }
        // Checked before opening because opening a pipe waits for a writer.
        let metadata = fs::metadata(path).context("open", path)?;
        if !metadata.is_file() {
            let what = format!(
                "{} is not a regular file: files of rows are opened more than once, which a folder, pipe or device \
                 does not allow; `rankine predict` and `rankine eval` read a pipe as `-`, standard input",
                path.display()
            );
            return Err(Error::unsuitable(path, what));
        }
        let metadata = File::open(path).and_then(|file| file.metadata()).context("open", path)?;
        let identity = Some(FileIdentity::of(&metadata));
        let (opened, bytes) = (path.to_owned(), metadata.len());
        Ok(Self { opened, bytes, eval, identity, ..Self::of_nothing(path.to_owned()) })
    }

    /// Returns rows of tables in memory, which messages call `path`.
    #[cfg(feature = "parquet")]
    pub(crate) fn of_tables(path: &Path, tables: &Arc<Tables>) -> Self {
        Self { tables: Some(Arc::clone(tables)), ..Self::of_nothing(path.to_owned()) }
    }

    fn of_nothing(path: PathBuf) -> Self {
        Self {
            path,
            opened: PathBuf::new(),
            bytes: 0,
            eval: false,
            identity: None,
            object: None,
            standard_input: None,
            #[cfg(feature = "parquet")]
            tables: None,
        }
    }

    /// Sets what messages call it, in place of its path.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.path = name.into();
    }

    /// Returns the standard input of the process, whose rows are the evaluation part. It can be read once.
    pub(crate) fn of_standard_input() -> Self {
        let file = StandardInput::file_of_process();
        Self {
            bytes: file.as_ref().map_or(0, Metadata::len),
            eval: true,
            identity: file.as_ref().map(FileIdentity::of),
            standard_input: Some(StandardInput::of_process()),
            ..Self::of_nothing("standard input".into())
        }
    }

    /// Returns the first row of the source without its line end; `None` if the source is empty.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::TooLarge`] if it is longer than allowed.
    pub(crate) fn first_row(&self, rules: LineRules, limits: Limits) -> Result<Option<Vec<u8>>> {
        let rules = LineRules { header: false, ..rules };
        let mut chunks = Chunks { peek: true, ..Chunks::new(std::slice::from_ref(self), rules, limits) };
        let Some(chunk) = chunks.next().transpose()? else { return Ok(None) };
        let Some(line) = chunk.rows(&limits).next() else { return Ok(None) };
        if line.end - line.start > limits.line_bytes_max {
            let what = format!(
                "the first line of {} is longer than {} bytes: is it a text file with one row per line?",
                self.path.display(),
                limits.line_bytes_max
            );
            return Err(Error::too_large(limits.line_bytes_max as u64, what));
        }
        Ok(Some(chunk.bytes[line.start..line.end].to_vec()))
    }

    /// Opens it at its start. `peek` leaves standard input as it was.
    fn open(&self, taken: &Arc<AtomicU64>, peek: bool) -> Result<Input> {
        let path = &self.path;
        let mut magic = Vec::new();
        let front = |file: &mut dyn Read, magic: &mut Vec<u8>| {
            file.take(Compression::MAGIC_BYTES as u64).read_to_end(magic).context("read", path)
        };
        let taken = Arc::clone(taken);
        if let Some(input) = &self.standard_input {
            front(&mut input.reader(true), &mut magic)?;
            return Input::new(path, &magic, MeteredFile { file: input.reader(peek), taken });
        }
        let mut file = self.open_file()?;
        front(&mut file, &mut magic)?;
        let file = io::Cursor::new(magic.clone()).chain(file);
        Input::new(path, &magic, MeteredFile { file, taken })
    }
}

/// What counts as a row of text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LineRules {
    /// If a row may span several lines within quotes, how quotes are recognized.
    pub(crate) quoting: Option<Quoting>,
    /// Whether the first row of each source names its columns.
    pub(crate) header: bool,
    /// Whether a source may start with UTF-8's byte order mark.
    pub(crate) byte_order_mark: bool,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Some rows of one source. A line too long for a chunk comes in pieces: it counts as a row of the chunk in which it
/// starts.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The number of its source.
    pub(crate) source: usize,
    pub(crate) bytes: Pooled<Vec<u8>>,
    /// Bytes at the front that belong to no row that starts here: the rest of an earlier chunk's line, or a header.
    pub(crate) skipped_bytes: usize,
    /// How its rows are separated: at line ends if `None`.
    quoting: Option<Quoting>,
    /// Whether the last line continues in the next chunk.
    pub(crate) continues: bool,
    /// The number in its source, from 1, of the first line of the first row that starts here.
    pub(crate) first_line: u64,
    /// The number among all rows, from 0, of that row.
    pub(crate) first_row: u64,
    /// Rows that start here.
    pub(crate) rows: u64,
    /// Bytes of all sources that had been read from disk when this chunk was complete.
    pub(crate) bytes_done: u64,
}

/// The position of a row in its chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    /// Its bytes without the line end (LF or CRLF).
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Lines of the chunk before it.
    pub(crate) lines_before: usize,
}

impl Chunk {
    /// Returns the rows that start here.
    pub(crate) fn rows(&self, limits: &Limits) -> impl Iterator<Item = Line> {
        let mut at = self.skipped_bytes;
        let mut lines_before = 0;
        let quoting = self.quoting;
        let line_bytes_max = limits.line_bytes_max;
        std::iter::from_fn(move || {
            let rest = self.bytes.get(at..).filter(|rest| !rest.is_empty())?;
            let with_end = match quoting {
                None => memchr::memchr(b'\n', rest).map(|at| at + 1),
                Some(quoting) => quoting.row_bytes(rest, line_bytes_max, true),
            };
            let bytes = &rest[..with_end.unwrap_or(rest.len())];
            let line = Line { start: at, end: at + without_line_end(bytes).len(), lines_before };
            lines_before += if quoting.is_some() { count_lines(bytes) } else { 1 };
            at += bytes.len();
            Some(line)
        })
    }
}

fn without_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn count_lines(bytes: &[u8]) -> usize {
    let unfinished = !bytes.is_empty() && !bytes.ends_with(b"\n");
    memchr::memchr_iter(b'\n', bytes).count() + usize::from(unfinished)
}

/// Returns how many bytes of a full buffer make complete rows; the last byte is never among them, so that the last
/// line of a source is always seen completely. Returns `None` if no row ends.
fn whole_rows(quoting: Option<Quoting>, bytes: &[u8], line_bytes_max: usize) -> Option<usize> {
    let last = bytes.len().checked_sub(1)?;
    let Some(quoting) = quoting else {
        return memchr::memrchr(b'\n', &bytes[..last]).map(|at| at + 1);
    };
    let mut at = 0;
    while let Some(row) = quoting.row_bytes(&bytes[at..], line_bytes_max, false) {
        if at + row > last {
            break;
        }
        at += row;
    }
    (at > 0).then_some(at)
}

fn count_rows(quoting: Option<Quoting>, bytes: &[u8], line_bytes_max: usize) -> usize {
    let Some(quoting) = quoting else { return count_lines(bytes) };
    let (mut at, mut rows) = (0, 0);
    while at < bytes.len() {
        at += quoting.row_bytes(&bytes[at..], line_bytes_max, true).unwrap_or(bytes.len() - at);
        rows += 1;
    }
    rows
}

/// All chunks of several sources, in order.
pub(crate) struct Chunks<'a> {
    sources: &'a [Source],
    rules: LineRules,
    limits: Limits,
    source: usize,
    input: Option<Input>,
    /// The reader of the chunks in the middle of the source, if several threads read it.
    middle: Option<LineReader>,
    /// Whether standard input is left as it was.
    peek: bool,
    /// Bytes that were read after the last chunk's end.
    carry: Vec<u8>,
    /// Whether they belong to a line whose first piece was returned.
    within_line: bool,
    next_line: u64,
    next_row: u64,
    taken: Arc<AtomicU64>,
    spare: Arc<Pool<Vec<u8>>>,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(sources: &'a [Source], rules: LineRules, limits: Limits) -> Self {
        debug_assert!(limits.line_bytes_max < limits.chunk_bytes);
        Self {
            sources,
            rules,
            limits,
            source: 0,
            input: None,
            middle: None,
            peek: false,
            carry: Vec::new(),
            within_line: false,
            next_line: 1,
            next_row: 0,
            taken: Arc::default(),
            spare: Arc::default(),
        }
    }

    /// Returns the next chunk; `None` after the last source.
    fn read(&mut self) -> Result<Option<Chunk>> {
        while let Some(source) = self.sources.get(self.source) {
            if let Some(chunk) = self.read_middle(source)? {
                return Ok(Some(chunk));
            }
            let at_front = self.input.is_none();
            let input = match &mut self.input {
                Some(input) => input,
                none => none.insert(source.open(&self.taken, self.peek)?),
            };
            let mut bytes = self.spare.take().unwrap_or_default();
            bytes.resize(self.limits.chunk_bytes, 0);
            bytes[..self.carry.len()].copy_from_slice(&self.carry);
            let end = input.fill(&source.path, &mut bytes, self.carry.len())?;
            self.carry.clear();
            bytes.truncate(end);
            let at_end = end < self.limits.chunk_bytes;
            let chunk = self.chunk(bytes, at_front, at_end);
            if at_front && !at_end {
                self.start_middle(source, chunk.bytes.len() as u64)?;
            }
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

    /// Starts to read the chunks after the first one by several threads, if that is allowed and possible.
    fn start_middle(&mut self, source: &Source, at: u64) -> Result<()> {
        let is_divided = self.limits.readers.get() > 1 && self.rules.quoting.is_none();
        let is_plain = self.input.as_ref().is_some_and(|input| !input.is_compressed());
        let is_other = self.peek || self.within_line || source.standard_input.is_some();
        if !is_divided || !is_plain || is_other {
            return Ok(());
        }
        if let Some(file) = source.open_local()? {
            let Limits { chunk_bytes, readers, .. } = self.limits;
            let (path, spare) = (source.path.clone(), Arc::clone(&self.spare));
            self.middle = Some(LineReader::start(file.into_file(), path, at, chunk_bytes, readers, spare)?);
            self.taken.fetch_sub(self.carry.len() as u64, Ordering::Relaxed);
            self.carry.clear();
        }
        Ok(())
    }

    /// Returns the next chunk that several threads read; after the last one, opens the source at the rest.
    fn read_middle(&mut self, source: &Source) -> Result<Option<Chunk>> {
        let Some(middle) = &mut self.middle else { return Ok(None) };
        let Some(Lines { bytes, count }) = middle.next().transpose()? else {
            if let Some(mut file) = source.open_local()? {
                file.skip_to(middle.at());
                let text = Box::new(MeteredFile { file, taken: Arc::clone(&self.taken) });
                self.input = Some(Input::plain(text));
            }
            self.middle = None;
            return Ok(None);
        };
        self.taken.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(Some(self.numbered(bytes, 0, count, None)))
    }

    fn chunk(&mut self, mut bytes: Vec<u8>, at_front: bool, at_end: bool) -> Chunk {
        let line_bytes_max = self.limits.line_bytes_max;
        let skipped_bytes = match self.within_line {
            true => memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |at| at + 1),
            false if at_front => self.front_bytes(&bytes),
            false => 0,
        };
        let has_quote = || memchr::memchr(b'"', &bytes[skipped_bytes..]).is_some();
        let quoting = self.rules.quoting.filter(|_| has_quote());
        if at_end {
            let kept = skipped_bytes + without_empty_last_line(&bytes[skipped_bytes..]).len();
            bytes.truncate(kept);
        } else {
            // If no row ends, return only the skipped bytes, or the line in pieces.
            let whole = whole_rows(quoting, &bytes[skipped_bytes..], line_bytes_max);
            let no_row = if skipped_bytes > 0 { skipped_bytes } else { bytes.len() };
            let cut = whole.map_or(no_row, |whole| skipped_bytes + whole);
            self.carry.extend_from_slice(&bytes[cut..]);
            bytes.truncate(cut);
        }
        let rows = count_rows(quoting, &bytes[skipped_bytes..], line_bytes_max) as u64;
        let holds_line = skipped_bytes < bytes.len() || self.within_line || (at_front && self.rules.header);
        self.within_line = holds_line && !bytes.ends_with(b"\n") && !at_end;
        self.numbered(bytes, skipped_bytes, rows, quoting)
    }

    /// Returns a chunk with the next numbers of lines and rows.
    fn numbered(
        &mut self,
        bytes: Vec<u8>,
        skipped_bytes: usize,
        rows: u64,
        quoting: Option<Quoting>,
    ) -> Chunk {
        let chunk = Chunk {
            source: self.source,
            skipped_bytes,
            quoting,
            continues: self.within_line,
            first_line: self.next_line,
            first_row: self.next_row,
            rows,
            bytes: Pooled::new(bytes, &self.spare),
            bytes_done: self.taken.load(Ordering::Relaxed),
        };
        let lines = match quoting {
            Some(_) => count_lines(&chunk.bytes[skipped_bytes..]) as u64,
            None => rows,
        };
        self.next_line += lines;
        self.next_row += rows;
        chunk
    }

    /// Returns the bytes at the front of a source that are not rows: a byte order mark and a header.
    fn front_bytes(&mut self, bytes: &[u8]) -> usize {
        let mark = match self.rules.byte_order_mark && bytes.starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        };
        if !self.rules.header {
            return mark;
        }
        let rest = &bytes[mark..];
        let line_bytes_max = self.limits.line_bytes_max;
        let header = match self.rules.quoting {
            Some(quoting) => quoting.row_bytes(rest, line_bytes_max, true),
            None => memchr::memchr(b'\n', rest).map(|at| at + 1),
        };
        let header = header.unwrap_or(rest.len());
        self.next_line += count_lines(&rest[..header]) as u64;
        mark + header
    }
}

/// An empty line at the very end is not a row.
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

    const PIECES: &[&[u8]] = &[b"a", b",", b"\"", b"\n", b"\n", b" ", b"\r\n", b",\"", b"\",", b"\"\n"];

    /// Every row: its source, the number of its first line, its number among all, and its text, truncated to
    /// `line_bytes_max`.
    type Row = (usize, u64, u64, Vec<u8>);

    fn rows_of(files: &[Vec<u8>], gzip: bool, rules: LineRules, limits: Limits) -> Vec<Row> {
        let dir = tempfile::tempdir().unwrap();
        let mut sources = Vec::new();
        for (number, text) in files.iter().enumerate() {
            let path = dir.path().join(number.to_string());
            if gzip {
                // Two members, as written by `cat a.gz b.gz`.
                let mut out = File::create(&path).unwrap();
                for piece in [&text[..text.len() / 2], &text[text.len() / 2..]] {
                    let mut member = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
                    member.write_all(piece).unwrap();
                    member.finish().unwrap();
                }
            } else {
                fs::write(&path, text).unwrap();
            }
            sources.push(Source::new(&path, false).unwrap());
        }
        let mut rows = Vec::new();
        let mut done = 0;
        for chunk in Chunks::new(&sources, rules, limits) {
            let chunk = chunk.unwrap();
            assert_eq!(chunk.rows(&limits).count() as u64, chunk.rows);
            assert!(chunk.bytes.len() <= limits.chunk_bytes && chunk.bytes_done >= done);
            done = chunk.bytes_done;
            for (number, line) in chunk.rows(&limits).enumerate() {
                let mut text = chunk.bytes[line.start..line.end].to_vec();
                text.truncate(limits.line_bytes_max);
                let first_line = chunk.first_line + line.lines_before as u64;
                rows.push((chunk.source, first_line, chunk.first_row + number as u64, text));
            }
        }
        assert!(done <= sources.iter().map(|source| source.bytes).sum());
        rows
    }

    /// Computes the same from the whole text at once, byte by byte.
    fn expected(files: &[Vec<u8>], rules: LineRules, limits: Limits) -> Vec<Row> {
        let mut rows = Vec::new();
        for (source, text) in files.iter().enumerate() {
            let mut at = 0;
            if rules.byte_order_mark && text.starts_with(BYTE_ORDER_MARK) {
                at = 3;
            }
            let mut own = Vec::new();
            while at < text.len() {
                let end = rules.quoting.map(|quoting| quoted_row_end(&text[at..], quoting, limits));
                let line_end = text[at..].iter().position(|&byte| byte == b'\n');
                let end = at + end.flatten().or(line_end).unwrap_or(text.len() - at);
                let line = text[..at].iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
                own.push((line, without_line_end(&text[at..end]).to_vec(), end < text.len()));
                at = end + 1;
            }
            if own.last().is_some_and(|(_, text, _)| text.is_empty()) {
                own.pop();
            }
            for (line, mut text, _) in own.into_iter().skip(usize::from(rules.header)) {
                text.truncate(limits.line_bytes_max);
                rows.push((source, line, rows.len() as u64, text));
            }
        }
        rows
    }

    /// Returns the end of the row that starts with `text`, following the rules literally.
    fn quoted_row_end(text: &[u8], quoting: Quoting, limits: Limits) -> Option<usize> {
        let (mut quoted, mut field) = (false, 0);
        let mut at = 0;
        while at < text.len().min(limits.line_bytes_max) {
            match text[at] {
                b'"' if quoted && text.get(at + 1) == Some(&b'"') => at += 1,
                b'"' if quoted => quoted = false,
                b'"' => {
                    let before = &text[field..at];
                    quoted = before.is_empty() || quoting.trim && before.iter().all(|&byte| byte == b' ');
                }
                b'\n' if !quoted => return Some(at),
                byte if !quoted && byte == quoting.delimiter => field = at + 1,
                _ => {}
            }
            at += 1;
        }
        None
    }

    proptest! {
        #[test]
        fn chunks_hold_every_row_once(
            files in prop::collection::vec(
                prop::collection::vec(prop::sample::select(&b"ab\r\n"[..]), 0..120), 0..4),
            chunk_bytes in 5..40usize,
            gzip in any::<bool>(),
            readers in 1..4usize,
        ) {
            // Lines are compared up to a length below that at which they come in pieces.
            let readers = NonZeroUsize::new(readers).unwrap();
            let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes - 2, readers };
            let rules = LineRules::default();
            prop_assert_eq!(rows_of(&files, gzip, rules, limits), expected(&files, rules, limits));
        }

        #[test]
        fn quoted_rows_may_span_lines(
            files in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(PIECES),
                    0..80).prop_map(|pieces| pieces.concat()),
                0..3),
            chunk_bytes in 8..60usize,
            trim in any::<bool>(),
            header in any::<bool>(),
            mark in any::<bool>(),
        ) {
            let readers = NonZeroUsize::new(2).unwrap();
            let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes - 5, readers };
            let quoting = Some(Quoting { delimiter: b',', trim });
            let rules = LineRules { quoting, header, byte_order_mark: true };
            let mark = if mark { BYTE_ORDER_MARK } else { b"" };
            let files: Vec<Vec<u8>> = files.iter().map(|text| [mark, text].concat()).collect();
            prop_assert_eq!(rows_of(&files, false, rules, limits), expected(&files, rules, limits));
        }
    }

    #[test]
    fn a_broken_gzip_file_is_reported_as_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("day.gz");
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&b"some line\n".repeat(1000)).unwrap();
        let bytes = out.finish().unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let sources = [Source::new(&path, false).unwrap()];
        let outcome: Result<Vec<_>> =
            Chunks::new(&sources, LineRules::default(), Limits::default()).collect();
        assert!(outcome.unwrap_err().to_string().contains("gzip stream is truncated or corrupt"));
    }

    #[test]
    fn a_folder_is_not_a_source() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Source::new(dir.path(), false).unwrap_err().to_string().contains("regular file"));
    }
}
