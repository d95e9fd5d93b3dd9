//! Rows that cannot be read: each is named, counted, and kept or refused as requested.

use std::collections::BTreeMap;
use std::path::Path;

use rankine_base::error::{Error, Result};

use crate::convert::plan::options::{BadLimit, OnBad};
use crate::convert::rows::fault::{BadReason, BadRow};
use crate::convert::rows::source::RowSource;
use crate::write::CheckedFile;

/// The file that names every bad row, one JSON object per line.
pub const BAD_ROWS_NAME: &str = "bad-rows.jsonl";

/// What is wrong with input that has no rows.
pub(crate) const NO_ROWS: &str = "the files have no rows: check that these are the files you mean";

/// Number of bad rows that are logged; the file names all.
const LOGGED_MAX: u64 = 10;
/// Number of bad rows that are named in the error about too many.
const NAMED_MAX: usize = 5;

/// Counts bad rows against a limit, and keeps the names of the first few for the error about too many.
#[derive(Debug)]
pub struct BadTally {
    limit: BadLimit,
    rows: u64,
    bad: u64,
    first: Vec<String>,
}

impl BadTally {
    /// Creates a tally with all counts 0.
    pub fn new(limit: BadLimit) -> Self {
        Self { limit, rows: 0, bad: 0, first: Vec::new() }
    }

    /// Counts rows that were read, including bad ones.
    pub fn add_rows(&mut self, rows: u64) {
        self.rows += rows;
    }

    /// Counts a bad row. `name` is called only if its name is kept.
    pub fn add_bad(&mut self, name: impl FnOnce() -> String) {
        self.bad += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(name());
        }
    }

    /// Checks an absolute limit while rows are still being read; a percentage is checked when all rows are known.
    /// `expects` describes what the files should be.
    ///
    /// # Errors
    /// [`Error::BadRows`] if too many rows are bad.
    pub fn check_so_far(&self, expects: &str) -> Result<()> {
        match self.limit {
            BadLimit::Rows(_) => self.check("so far", expects),
            BadLimit::Percent(_) => Ok(()),
        }
    }

    /// Checks the limit after all rows were read.
    ///
    /// # Errors
    /// [`Error::BadRows`] if too many rows are bad.
    pub fn check_in_all(&self, expects: &str) -> Result<()> {
        self.check("in all", expects)
    }

    /// Checks, after all rows were read, that at least one is good.
    ///
    /// # Errors
    /// [`Error::BadRows`] if none is.
    pub fn check_any_is_good(&self, expects: &str) -> Result<()> {
        if self.bad < self.rows {
            return Ok(());
        }
        if self.rows == 0 {
            return Err(Error::bad_rows(None, None, NO_ROWS));
        }
        let all =
            if self.rows == 1 { "the only row read is" } else { &format!("all {} rows read are", self.rows) };
        let what = format!(
            "{all} bad:\n  {}\nCheck that these are the files you mean and that they are {expects}",
            self.first_names()
        );
        Err(Error::bad_rows(None, None, what))
    }

    fn check(&self, when: &str, expects: &str) -> Result<()> {
        if !self.limit.exceeded(self.bad, self.rows) {
            return Ok(());
        }
        let what = format!(
            "{} of {} {} read {when} {} bad, but the limit is {}:\n  {}\nCheck that these are the files you mean \
             and that they are {expects}; to skip such rows, raise --bad-limit",
            self.bad,
            self.rows,
            if self.rows == 1 { "row" } else { "rows" },
            if self.bad == 1 { "is" } else { "are" },
            self.limit,
            self.first_names()
        );
        Err(Error::bad_rows(None, None, what))
    }

    fn first_names(&self) -> String {
        let names = self.first.join("\n  ");
        match self.bad - self.first.len() as u64 {
            0 => names,
            more => format!("{names}\n  and {more} more"),
        }
    }
}

/// Handles the bad rows of all chunks, in order.
pub(crate) struct BadRows<'a, S> {
    source: &'a S,
    on_bad: OnBad,
    tally: BadTally,
    /// The folder for their names and lines; `None` in passes that only read.
    dir: Option<&'a Path>,
    names: Option<CheckedFile>,
    quarantine: Option<CheckedFile>,
    /// Whether the last row of the previous chunk is bad and continues in this one.
    open_row: bool,
    copied: Vec<u8>,
    by_reason: BTreeMap<BadReason, u64>,
}

impl<'a, S: RowSource> BadRows<'a, S> {
    pub(crate) fn new(source: &'a S, (on_bad, limit): (OnBad, BadLimit), dir: Option<&'a Path>) -> Self {
        Self {
            source,
            on_bad,
            tally: BadTally::new(limit),
            dir,
            names: None,
            quarantine: None,
            open_row: false,
            copied: Vec::new(),
            by_reason: BTreeMap::new(),
        }
    }

    /// Counts a chunk's rows and handles the bad ones.
    ///
    /// # Errors
    /// [`Error::BadRows`] for the first bad row if none is allowed, and once there are more than an absolute limit;
    /// [`Error::Io`].
    pub(crate) fn take(&mut self, chunk: &S::Chunk, bad: &[BadRow]) -> Result<()> {
        self.tally.add_rows(self.source.span(chunk).rows);
        if let (true, Some(quarantine)) = (self.open_row, &mut self.quarantine) {
            self.copied.clear();
            self.open_row = self.source.copy_rest(chunk, &mut self.copied);
            quarantine.write(&self.copied)?;
        }
        for row in bad {
            self.take_row(chunk, row)?;
        }
        self.tally.check_so_far(&self.source.expects())
    }

    fn take_row(&mut self, chunk: &S::Chunk, row: &BadRow) -> Result<()> {
        *self.by_reason.entry(row.fault.reason).or_insert(0) += 1;
        self.tally.add_bad(|| self.source.name(chunk, row).to_string());
        if self.dir.is_none() && self.on_bad != OnBad::Fail {
            return Ok(());
        }
        let name = self.source.name(chunk, row);
        if self.on_bad == OnBad::Fail {
            let what = format!("{name}; correct the row, or skip it with --on-bad skip or quarantine");
            return Err(Error::bad_rows(Some(Path::new(&name.file)), Some(name.number), what));
        }
        if let Some(dir) = self.dir {
            let bad = self.tally.bad;
            if bad <= LOGGED_MAX {
                tracing::warn!(bad_rows = bad, "bad row skipped: {name}");
            }
            if bad == LOGGED_MAX {
                tracing::warn!("further bad rows are not logged; see {BAD_ROWS_NAME}");
            }
            opened(&mut self.names, dir, BAD_ROWS_NAME)?.write(&name.to_json())?;
            if self.on_bad == OnBad::Quarantine {
                self.copied.clear();
                self.open_row = self.source.copy(chunk, row, &mut self.copied);
                opened(&mut self.quarantine, dir, self.source.quarantine_name())?.write(&self.copied)?;
            }
        }
        Ok(())
    }

    /// Must be called after all rows were handled.
    ///
    /// # Errors
    /// [`Error::BadRows`] if too many rows are bad.
    pub(crate) fn finish(mut self) -> Result<BTreeMap<BadReason, u64>> {
        self.tally.check_in_all(&self.source.expects())?;
        for file in [self.names.take(), self.quarantine.take()].into_iter().flatten() {
            file.finish()?;
        }
        Ok(self.by_reason)
    }
}

/// Returns a file that is created when something is first written to it.
fn opened<'f>(file: &'f mut Option<CheckedFile>, dir: &Path, name: &str) -> Result<&'f mut CheckedFile> {
    Ok(match file {
        Some(file) => file,
        none => none.insert(CheckedFile::create(dir, name)?),
    })
}
