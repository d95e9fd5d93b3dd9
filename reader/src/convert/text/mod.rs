//! Rows of text: files of lines and their parsers.

pub(crate) mod compressed;
pub(crate) mod divide;
pub(crate) mod fields;
pub(crate) mod input;
pub(crate) mod lines;
pub(crate) mod local_file;
pub(crate) mod quoting;
pub(crate) mod standard_input;
pub(crate) mod unchanged;

use std::borrow::Cow;
use std::sync::Arc;

use rankine_base::error::Result;

use crate::convert::rows::RawRows;
use crate::convert::rows::fault::{BadName, BadReason, BadRow, Fault};
use crate::convert::rows::kept::{self, KeptTexts};
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{PartRows, RowSource, Span};
use crate::convert::rows::split::ColumnSplit;
use crate::convert::text::lines::{Chunk, Chunks, Limits, LineRules, Source};
use crate::part::Part;

/// A parser for the rows of one file.
pub(crate) trait LineParser: std::fmt::Debug + Send + Sync {
    /// Parses a line (without its end) and appends its row; appends nothing if the line is bad.
    ///
    /// # Errors
    /// The first fault of the line: first its length and the number of its fields, then its fields in order.
    fn push(&self, line: &[u8], rows: &mut RawRows) -> Result<(), Fault>;

    /// Returns the names of all fields.
    fn names(&self) -> &[String];

    /// Appends the texts of some fields of a good line, counted from 0.
    fn copy_fields(&self, line: &[u8], fields: &[usize], out: &mut KeptTexts);

    /// Returns the text of a field, counted from 0; empty if the line lacks it.
    fn field<'l>(&self, line: &'l [u8], field: usize) -> Cow<'l, [u8]>;

    /// Returns the name of a field, counted from 0.
    fn name(&self, field: u32) -> &str {
        self.names().get(field as usize).map_or("", String::as_str)
    }

    /// Describes what is wrong with a line.
    fn describe(&self, fault: Fault, line: &[u8]) -> String;
}

/// Files of text.
#[derive(Debug)]
pub(crate) struct TextSource {
    pub(crate) files: Vec<Source>,
    /// One per file.
    pub(crate) parsers: Vec<Arc<dyn LineParser>>,
    /// The fields of each file to keep, or nothing.
    pub(crate) kept: Vec<Vec<usize>>,
    /// The split by a column, with the field of each file, if there is one.
    pub(crate) split: Option<(ColumnSplit, Vec<usize>)>,
    pub(crate) rules: LineRules,
    pub(crate) limits: Limits,
    /// A description of what the files should be.
    pub(crate) expects: String,
    /// The file for quarantined rows.
    pub(crate) quarantine_name: &'static str,
}

impl TextSource {
    /// Returns the numbers of some columns in each file.
    fn positions(&self, columns: &[String], purpose: &str) -> Result<Vec<Vec<usize>>> {
        let positions = |(file, parser): (&Source, &Arc<dyn LineParser>)| {
            kept::positions(&file.path, parser.names(), columns, purpose)
        };
        self.files.iter().zip(&self.parsers).map(positions).collect()
    }

    /// Appends the row of a line to the part that `selection` or the split by a column assigns to it.
    #[inline]
    fn push(
        &self,
        line: &[u8],
        source: usize,
        number: u64,
        selection: Selection,
        rows: &mut PartRows,
    ) -> Result<(), Fault> {
        let parser = &*self.parsers[source];
        let Some((split, fields)) = &self.split else {
            return parser.push(line, rows.of(selection.part(number)));
        };
        let part = split.part(&parser.field(line, fields[source]));
        let out = rows.of(part.unwrap_or(Part::Train));
        let before = out.len();
        parser.push(line, out)?;
        // A line with another fault is reported for that.
        if part.is_none() {
            out.truncate(before);
            return Err(ColumnSplit::fault(fields[source]));
        }
        Ok(())
    }
}

impl RowSource for TextSource {
    type Chunk = Chunk;
    const UNIT: &'static str = "line";

    fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(Source::check_unchanged)
    }

    fn keep(&mut self, columns: &[String]) -> Result<()> {
        self.kept = self.positions(columns, "to keep")?;
        Ok(())
    }

    fn split_by(&mut self, split: &ColumnSplit) -> Result<()> {
        let fields = self.positions(&[split.column().to_owned()], "to split by")?;
        self.split = Some((split.clone(), fields.concat()));
        Ok(())
    }

    fn copy_kept(&self, chunk: &Chunk, bad: &[BadRow], out: &mut KeptTexts) {
        let (Some(fields), parser) = (self.kept.get(chunk.source), &self.parsers[chunk.source]) else {
            return;
        };
        for line in kept::good_rows(chunk.rows(&self.limits), bad) {
            parser.copy_fields(&chunk.bytes[line.start..line.end], fields, out);
        }
    }

    fn chunks(&self) -> impl Iterator<Item = Result<Chunk>> + Send {
        Chunks::new(&self.files, self.rules, self.limits)
    }

    fn span(&self, chunk: &Chunk) -> Span {
        let &Chunk { first_row, rows, bytes_done, .. } = chunk;
        Span { first_row, rows, eval: self.files[chunk.source].eval, bytes_done }
    }

    fn read(&self, chunk: &Chunk, selection: Selection, rows: &mut PartRows) -> Result<Vec<BadRow>> {
        let mut bad = Vec::new();
        for (number, line) in chunk.rows(&self.limits).enumerate() {
            let text = &chunk.bytes[line.start..line.end];
            if let Err(fault) = self.push(text, chunk.source, number as u64, selection, rows) {
                let (start, end) = (line.start as u32, line.end as u32);
                bad.push(BadRow { row: number as u32, line: line.lines_before as u32, start, end, fault });
            }
        }
        Ok(bad)
    }

    fn release(&self, chunk: &mut Chunk) {
        // What is skipped may be the rest of a bad row.
        if chunk.skipped_bytes == 0 {
            chunk.bytes.release();
        }
    }

    fn name(&self, chunk: &Chunk, bad: &BadRow) -> BadName {
        let parser = &self.parsers[chunk.source];
        let line = &chunk.bytes[bad.start as usize..bad.end as usize];
        let why = match &self.split {
            Some((split, fields)) if bad.fault.reason == BadReason::Split => {
                split.describe(&parser.field(line, fields[chunk.source]))
            }
            _ => parser.describe(bad.fault, line),
        };
        BadName {
            file: self.files[chunk.source].path.to_string_lossy().into_owned(),
            unit: Self::UNIT,
            number: chunk.first_line + u64::from(bad.line),
            column: bad.fault.field.map(|field| parser.name(field).to_owned()),
            why,
        }
    }

    fn copy(&self, chunk: &Chunk, bad: &BadRow, out: &mut Vec<u8>) -> bool {
        let after = &chunk.bytes[bad.end as usize..];
        let continues = chunk.continues && !after.contains(&b'\n');
        out.extend_from_slice(&chunk.bytes[bad.start as usize..bad.end as usize]);
        out.extend(after.first().filter(|&&byte| byte == b'\r'));
        if !continues {
            out.push(b'\n');
        }
        continues
    }

    fn copy_rest(&self, chunk: &Chunk, out: &mut Vec<u8>) -> bool {
        let rest = &chunk.bytes[..chunk.skipped_bytes];
        out.extend_from_slice(rest);
        let ended = rest.ends_with(b"\n");
        let continues = !ended && chunk.continues && chunk.rows == 0;
        if !ended && !continues {
            out.push(b'\n');
        }
        continues
    }

    fn quarantine_name(&self) -> &'static str {
        self.quarantine_name
    }

    fn expects(&self) -> String {
        self.expects.clone()
    }

    fn bytes(&self) -> u64 {
        // The length of a pipe is unknown, and so is that of all files with it.
        let unknown = self.files.iter().any(|file| file.standard_input.is_some() && file.bytes == 0);
        if unknown { 0 } else { self.files.iter().map(|file| file.bytes).sum() }
    }
}
