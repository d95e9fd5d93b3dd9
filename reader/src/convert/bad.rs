//! Rows that cannot be read: each is named, counted, and kept or refused as was asked.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::convert::lines::{Chunk, Source};
use crate::convert::options::{BadLimit, OnBad};
use crate::convert::row::{Fault, RowParser};
use crate::error::{Error, Result};
use crate::write::CheckedFile;

/// Names every bad row, one JSON object a line.
pub const BAD_ROWS_NAME: &str = "bad-rows.jsonl";
/// Holds every bad row, byte for byte.
pub const QUARANTINE_NAME: &str = "quarantine.tsv";

/// So many bad rows are logged as they come; the file names all.
const LOGGED_MAX: u64 = 10;
/// So many are named by the error that there are too many.
const NAMED_MAX: usize = 5;

/// Why a line is no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadReason {
    /// It is longer than [`crate::convert::LINE_BYTES_MAX`].
    LineTooLong,
    /// It has more or fewer fields than there are columns.
    FieldCount,
    /// The label is neither 0 nor 1.
    Label,
    /// A dense value is neither empty nor an integer of 64 bits.
    Number,
    /// A category is neither empty nor up to 16 hexadecimal digits.
    Category,
    /// A category of an identity column is no number below the table's rows.
    RowNumber,
}

/// A bad row of a chunk. Small: a chunk of nothing but line feeds has as many as bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadRow {
    /// Lines before it in its chunk.
    pub(crate) line: u32,
    /// Where it lies in the chunk's bytes.
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) fault: Fault,
}

#[derive(Serialize)]
struct Named<'a> {
    file: &'a str,
    line: u64,
    column: Option<&'a str>,
    why: &'a str,
}

/// Takes the bad rows of all chunks, in order.
pub(crate) struct BadRows<'a> {
    sources: &'a [Source],
    parser: &'a RowParser,
    on_bad: OnBad,
    limit: BadLimit,
    /// Where to name and keep them; `None` where rows are only looked at.
    dir: Option<&'a Path>,
    names: Option<CheckedFile>,
    quarantine: Option<CheckedFile>,
    /// Whether the last line of the chunk before is bad and goes on in this one.
    open_line: bool,
    first: Vec<String>,
    by_reason: BTreeMap<BadReason, u64>,
    bad: u64,
    rows: u64,
}

impl<'a> BadRows<'a> {
    pub(crate) fn new(
        sources: &'a [Source],
        parser: &'a RowParser,
        (on_bad, limit): (OnBad, BadLimit),
        dir: Option<&'a Path>,
    ) -> Self {
        Self {
            sources,
            parser,
            on_bad,
            limit,
            dir,
            names: None,
            quarantine: None,
            open_line: false,
            first: Vec::new(),
            by_reason: BTreeMap::new(),
            bad: 0,
            rows: 0,
        }
    }

    /// Counts a chunk's rows and takes the bad ones.
    ///
    /// # Errors
    /// [`Error::BadRows`] for the first bad row where none is admitted, and once there are more than an absolute limit;
    /// [`Error::Io`].
    pub(crate) fn take(&mut self, chunk: &Chunk, bad: &[BadRow]) -> Result<()> {
        self.rows += chunk.rows;
        self.take_continued(chunk)?;
        for row in bad {
            self.take_row(chunk, row)?;
        }
        match self.limit {
            BadLimit::Rows(_) => self.check_limit("so far"),
            // A share is judged when all rows are known.
            BadLimit::Percent(_) => Ok(()),
        }
    }

    fn take_row(&mut self, chunk: &Chunk, row: &BadRow) -> Result<()> {
        let line = &chunk.bytes[row.start as usize..row.end as usize];
        self.bad += 1;
        *self.by_reason.entry(row.fault.reason).or_insert(0) += 1;
        if self.dir.is_none() && self.on_bad != OnBad::Fail && self.first.len() == NAMED_MAX {
            return Ok(());
        }
        let file = self.sources[chunk.source].path.to_string_lossy();
        let number = chunk.first_line + u64::from(row.line);
        let column = row.fault.field.map(|field| self.parser.name(field));
        let why = self.parser.describe(row.fault, line);
        let column_text = column.map_or_else(String::new, |column| format!(", column {column}"));
        let text = format!("{file} line {number}{column_text}: {why}");
        if self.on_bad == OnBad::Fail {
            return Err(Error::BadRows(format!(
                "{text}. Correct the row, or let --on-bad skip or quarantine leave it out"
            )));
        }
        if let Some(dir) = self.dir {
            if self.bad <= LOGGED_MAX {
                tracing::warn!(bad_rows = self.bad, "bad row left out: {text}");
            }
            if self.bad == LOGGED_MAX {
                tracing::warn!("further bad rows are not logged; {BAD_ROWS_NAME} names all");
            }
            let named = Named { file: &file, line: number, column, why: &why };
            let mut json = serde_json::to_vec(&named).expect("it is plain data");
            json.push(b'\n');
            opened(&mut self.names, dir, BAD_ROWS_NAME)?.write(&json)?;
            if self.on_bad == OnBad::Quarantine {
                let behind = &chunk.bytes[row.end as usize..];
                let goes_on = chunk.goes_on && !behind.contains(&b'\n');
                let end = behind.first().filter(|&&byte| byte == b'\r').map_or(&b""[..], |_| b"\r");
                let quarantine = opened(&mut self.quarantine, dir, QUARANTINE_NAME)?;
                quarantine.write(line)?;
                quarantine.write(end)?;
                if !goes_on {
                    quarantine.write(b"\n")?;
                }
                self.open_line = goes_on;
            }
        }
        if self.first.len() < NAMED_MAX {
            self.first.push(text);
        }
        Ok(())
    }

    /// The rest of a line that was too long for its chunk.
    fn take_continued(&mut self, chunk: &Chunk) -> Result<()> {
        let (true, Some(quarantine)) = (self.open_line, &mut self.quarantine) else { return Ok(()) };
        let rest = &chunk.bytes[..chunk.continued_bytes];
        quarantine.write(rest)?;
        let ended = rest.ends_with(b"\n");
        self.open_line = !ended && chunk.goes_on && chunk.rows == 0;
        if !ended && !self.open_line {
            quarantine.write(b"\n")?;
        }
        Ok(())
    }

    /// To be called when all rows were taken.
    ///
    /// # Errors
    /// [`Error::BadRows`] where too many rows are bad.
    pub(crate) fn finish(mut self) -> Result<BTreeMap<BadReason, u64>> {
        self.check_limit("in all")?;
        for file in [self.names.take(), self.quarantine.take()].into_iter().flatten() {
            file.finish()?;
        }
        Ok(self.by_reason)
    }

    fn check_limit(&self, when: &str) -> Result<()> {
        if !self.limit.exceeded(self.bad, self.rows) {
            return Ok(());
        }
        let more = match self.bad - self.first.len() as u64 {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        Err(Error::BadRows(format!(
            "{} of {} rows read {when} are bad, and the limit is {}:\n  {}{more}\nCheck that these are the files you \
             mean and that they are Criteo's TSV (a label, 13 integers, 26 categories); if such rows are to be left \
             out, raise --bad-limit",
            self.bad,
            self.rows,
            self.limit,
            self.first.join("\n  ")
        )))
    }
}

/// A file that is made when there is something to write to it.
fn opened<'f>(file: &'f mut Option<CheckedFile>, dir: &Path, name: &str) -> Result<&'f mut CheckedFile> {
    Ok(match file {
        Some(file) => file,
        none => none.insert(CheckedFile::create(dir, name)?),
    })
}
