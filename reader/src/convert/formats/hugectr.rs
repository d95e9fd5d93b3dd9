//! Raw records as a source of rows: see [`crate::raw`] for their format.

use std::io::Read;

use rankine_base::error::{Error, IoContext, Result};

use crate::convert::plan::options::ConvertOptions;
use crate::convert::plan::{Learning, Plan};
use crate::convert::report::ConversionReport;
use crate::convert::rows::fault::{BadName, BadReason, BadRow, Fault};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{PartRows, RowSource, Span, largest_number};
use crate::convert::rows::split::ColumnSplit;
use crate::convert::rows::{RawRows, RawValues};
use crate::convert::text::lines::Source;
use crate::convert::text::unchanged::SourceFile;
use crate::convert::{Converting, PlannedWork, Progress};
use crate::ids::IdRules;
use crate::origin::RowFormat;
use crate::raw::{RawFormat, RecordDecoder, RecordFault, RecordFaultKind};
use crate::schema::DenseDtype;

/// Approximate size of the pieces in which records are read.
const CHUNK_BYTES: usize = 2 << 20;

/// Converts HugeCTR's and MLPerf's raw files to a dataset whose blocks have the same samples as those of a
/// [`crate::Dataset::raw`] of the same file. If it fails or is interrupted, no dataset remains.
///
/// # Errors
/// [`Error::Setting`] for options that contradict each other or a format without fixed records; [`Error::Exists`];
/// [`Error::BadRows`] for a file whose length does not match the format, and for bad records as for bad lines;
/// [`Error::Io`].
pub fn convert_hugectr_raw(
    options: &ConvertOptions,
    format: &RawFormat,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    options.validate()?;
    let source = RecordSource::new(format, options.dense_dtype, options.sources()?)?;
    let draft = format.schema(options.dense_dtype);
    let plan = Plan {
        standardized: vec![false; draft.dense.len()],
        draft,
        format: RowFormat::HugectrRaw(format.clone()),
        learning: Learning::All,
    };
    Converting { options, progress }.run(&plan, None, source)
}

/// Files of records.
#[derive(Debug)]
pub(crate) struct RecordSource {
    files: Vec<Source>,
    decoder: RecordDecoder,
    /// The maximum magnitude of a dense value that can be stored.
    largest: f64,
    /// The rules for ids that are out of range.
    ids: IdRules,
}

/// Some records of one file.
#[derive(Debug)]
pub(crate) struct RecordChunk {
    /// The number of its file.
    file: usize,
    bytes: Vec<u8>,
    /// Number of earlier records in its file.
    first_record: u64,
    /// Number of earlier records in all files.
    first_row: u64,
    bytes_done: u64,
}

impl RecordSource {
    /// # Errors
    /// [`Error::Setting`] if the format has no fixed record, [`Error::BadRows`] if a file's length does not match it.
    pub(crate) fn new(format: &RawFormat, dense_dtype: DenseDtype, files: Vec<Source>) -> Result<Self> {
        let decoder = RecordDecoder::new(format)?;
        for file in &files {
            format.records_of(file.bytes).map_err(|what| {
                let what = format!("cannot convert {}: its {what}", file.path.display());
                Error::bad_rows(Some(&file.path), None, what)
            })?;
        }
        let largest = largest_number(format.dense.function(), dense_dtype);
        Ok(Self { files, decoder, largest, ids: IdRules::default() })
    }

    /// Sets rules for ids: a record whose ids are out of range is good if there is a rule for them.
    pub(crate) fn with_id_rules(self, ids: IdRules) -> Self {
        Self { ids, ..self }
    }

    /// # Errors
    /// The first fault of a record.
    fn check(&self, record: &[u8]) -> Result<(), RecordFault> {
        self.decoder.check_under(&self.ids, record)?;
        self.decoder.check_numbers(record, self.largest)
    }

    fn push(&self, record: &[u8], rows: &mut RawRows) {
        for (number, labels) in rows.labels.iter_mut().enumerate() {
            labels.push(self.decoder.label(record, number));
        }
        for (number, values) in rows.dense.iter_mut().enumerate() {
            values.push(self.decoder.number(record, number));
        }
        for (number, column) in rows.categories.iter_mut().enumerate() {
            match &mut column.values {
                RawValues::Rows(ids) => ids.extend(self.decoder.bag(record, number)),
                RawValues::Keys(_) => unreachable!("the schema of raw files has only identity columns"),
            }
        }
        rows.end_rows(1);
    }

    fn record<'c>(&self, chunk: &'c RecordChunk, bad: &BadRow) -> &'c [u8] {
        &chunk.bytes[bad.start as usize..bad.end as usize]
    }
}

impl RowSource for RecordSource {
    type Chunk = RecordChunk;
    const UNIT: &'static str = "record";

    fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(Source::check_unchanged)
    }

    fn keep(&mut self, columns: &[String]) -> Result<()> {
        if columns.is_empty() {
            return Ok(());
        }
        Err(Error::setting(
            "keep",
            "raw records have no columns of text to keep, only the numbers that the model reads: join predictions to \
             other data by the number of the row, the first column",
        ))
    }

    fn split_by(&mut self, split: &ColumnSplit) -> Result<()> {
        let what = format!(
            "--split {split} needs columns of text, which raw records do not have: use last or random, or --eval"
        );
        Err(Error::setting("--split", what))
    }

    fn copy_kept(&self, _: &RecordChunk, _: &[BadRow], _: &mut KeptTexts) {}

    fn chunks(&self) -> impl Iterator<Item = Result<RecordChunk>> + Send {
        RecordChunks { source: self, file: 0, open: None, first_record: 0, first_row: 0, bytes_done: 0 }
    }

    fn span(&self, chunk: &RecordChunk) -> Span {
        Span {
            first_row: chunk.first_row,
            rows: (chunk.bytes.len() / self.decoder.record_bytes()) as u64,
            eval: self.files[chunk.file].eval,
            bytes_done: chunk.bytes_done,
        }
    }

    fn read(&self, chunk: &RecordChunk, selection: Selection, rows: &mut PartRows) -> Result<Vec<BadRow>> {
        let record_bytes = self.decoder.record_bytes();
        let mut bad = Vec::new();
        for (number, record) in (0..).zip(chunk.bytes.chunks_exact(record_bytes)) {
            match self.check(record) {
                Ok(()) => self.push(record, rows.of(selection.part(u64::from(number)))),
                Err(fault) => {
                    let start = number * record_bytes as u32;
                    let fault = Fault { reason: fault.kind.into(), field: Some(fault.column as u32) };
                    bad.push(BadRow {
                        row: number,
                        line: number,
                        start,
                        end: start + record_bytes as u32,
                        fault,
                    });
                }
            }
        }
        Ok(bad)
    }

    fn name(&self, chunk: &RecordChunk, bad: &BadRow) -> BadName {
        let fault = self.check(self.record(chunk, bad)).err();
        let describe = |fault: &RecordFault| self.decoder.describe(fault);
        BadName {
            file: self.files[chunk.file].path.to_string_lossy().into_owned(),
            unit: Self::UNIT,
            number: chunk.first_record + u64::from(bad.row) + 1,
            column: bad.fault.field.map(|column| self.decoder.name(column as usize).to_owned()),
            why: fault.as_ref().map_or_else(String::new, describe),
        }
    }

    fn copy(&self, chunk: &RecordChunk, bad: &BadRow, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(self.record(chunk, bad));
        false
    }

    fn quarantine_name(&self) -> &'static str {
        "quarantine.bin"
    }

    fn expects(&self) -> String {
        let format = self.decoder.format();
        format!("raw records of the shape {} ({format})", format.shape.name)
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl From<RecordFaultKind> for BadReason {
    fn from(kind: RecordFaultKind) -> Self {
        match kind {
            RecordFaultKind::Label => Self::Label,
            RecordFaultKind::Number | RecordFaultKind::Large => Self::Number,
            RecordFaultKind::Id => Self::RowNumber,
        }
    }
}

/// All chunks of several files, in order.
struct RecordChunks<'a> {
    source: &'a RecordSource,
    file: usize,
    open: Option<SourceFile>,
    first_record: u64,
    first_row: u64,
    bytes_done: u64,
}

impl RecordChunks<'_> {
    fn read(&mut self) -> Result<Option<RecordChunk>> {
        let record_bytes = self.source.decoder.record_bytes();
        while let Some(file) = self.source.files.get(self.file) {
            let left = file.bytes - self.first_record * record_bytes as u64;
            if left == 0 {
                (self.file, self.open, self.first_record) = (self.file + 1, None, 0);
                continue;
            }
            let input = match &mut self.open {
                Some(input) => input,
                none => none.insert(file.open_file()?),
            };
            let most = (CHUNK_BYTES / record_bytes).max(1) * record_bytes;
            let mut bytes = vec![0; left.min(most as u64) as usize];
            input.read_exact(&mut bytes).context("read", &file.path)?;
            let records = (bytes.len() / record_bytes) as u64;
            self.bytes_done += bytes.len() as u64;
            let chunk = RecordChunk {
                file: self.file,
                bytes,
                first_record: self.first_record,
                first_row: self.first_row,
                bytes_done: self.bytes_done,
            };
            self.first_record += records;
            self.first_row += records;
            return Ok(Some(chunk));
        }
        Ok(None)
    }
}

impl Iterator for RecordChunks<'_> {
    type Item = Result<RecordChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::convert::tests::{TestFolder, samples_of};
    use crate::convert::{BAD_ROWS_NAME, OnBad, RowCounts, Split};
    use crate::generate::Shape;
    use crate::part::Part;

    /// Files of several chunks: records are numbered within their file, and drawn by their number in all files.
    #[test]
    fn records_are_numbered_across_chunks_and_files() {
        let temp = TestFolder::new();
        let text = "name = \"numbered\"\ndense = 1\nrows = [400000, 3]\n";
        let shape = Shape::load(temp.file("shape.toml", text).to_str().unwrap()).unwrap();
        let format = RawFormat::new(shape);
        // A label, a number and two ids.
        let record_bytes = 16;
        let (first, all) = (300_000_u32, 350_000_u32);
        let is_bad = |row: u32| row % 50_021 == 50_020;
        let record = |row: u32| {
            let fields = [row % 2, (row as f32).to_bits(), row, if is_bad(row) { 3 } else { row % 3 }];
            fields.into_iter().flat_map(u32::to_le_bytes)
        };
        let bytes: Vec<u8> = (0..all).flat_map(record).collect();
        assert!(first as usize * record_bytes > 2 * CHUNK_BYTES);
        let (front, back) = bytes.split_at(first as usize * record_bytes);
        let options = ConvertOptions {
            split: Split::Last { share: 0.5 }.into(),
            on_bad: OnBad::Quarantine,
            dense_dtype: DenseDtype::F32,
            ..ConvertOptions::new(vec![temp.file("a.bin", front), temp.file("b.bin", back)], temp.path("out"))
        };
        let reported = std::sync::Mutex::new((0, 0));
        let progress = |_: &'static str, done: u64, total: u64| *reported.lock().unwrap() = (done, total);
        let report = convert_hugectr_raw(&options, &format, &progress).unwrap();
        assert_eq!(*reported.lock().unwrap(), (bytes.len() as u64, bytes.len() as u64));
        let bad: Vec<_> = (0..all).filter(|&row| is_bad(row)).collect();
        let (half, count) = (all / 2, bad.len() as u64);
        for (part, rows) in [(Part::Train, 0..half), (Part::Eval, half..all)] {
            let samples = samples_of(&options.out, part);
            let rows: Vec<_> = rows.filter(|&row| !is_bad(row)).collect();
            assert!(rows.iter().map(|&row| u64::from(row)).eq(samples.categorical[0].ids.iter().copied()));
            assert!(rows.iter().map(|&row| row as f32).eq(samples.dense.iter().copied()));
            assert!(rows.iter().map(|&row| (row % 2) as f32).eq(samples.labels[0].iter().copied()));
        }
        let RowCounts { read, bad: reported, .. } = report.conversion.rows;
        assert_eq!((read, reported), (u64::from(all), count));
        let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
        assert_eq!(named.lines().count(), bad.len());
        for (line, &row) in named.lines().zip(&bad) {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let (file, number) = if row < first { ("a.bin", row + 1) } else { ("b.bin", row - first + 1) };
            assert!(json["file"].as_str().unwrap().ends_with(file), "{json}");
            assert_eq!((json["record"].as_u64(), json["column"].as_str()), (Some(number.into()), Some("C2")));
        }
        let kept: Vec<u8> = bad.iter().flat_map(|&row| record(row)).collect();
        assert!(fs::read(options.out.join("quarantine.bin")).unwrap() == kept);
    }

    #[test]
    fn numbers_must_fit_their_storage_type() {
        let temp = TestFolder::new();
        let shape =
            Shape::load(temp.file("s.toml", "name = \"x\"\ndense = 1\nrows = [2]\n").to_str().unwrap());
        let format = RawFormat::new(shape.unwrap());
        for (name, number, dense_dtype, fits) in [
            ("largest", 65504.0_f32, DenseDtype::F16, true),
            ("half", -65505.0, DenseDtype::F16, false),
            ("single", 65505.0, DenseDtype::F32, true),
        ] {
            let bytes: Vec<u8> = [1, number.to_bits(), 0].into_iter().flat_map(u32::to_le_bytes).collect();
            let options = ConvertOptions {
                dense_dtype,
                ..ConvertOptions::new(vec![temp.file(name, bytes)], temp.path(&format!("{name}.out")))
            };
            let outcome = convert_hugectr_raw(&options, &format, &|_: &'static str, _: u64, _: u64| ());
            match fits {
                true => assert_eq!(outcome.unwrap().conversion.rows.train, 1),
                false => {
                    assert!(outcome.unwrap_err().to_string().contains("record 1, column I1: "), "{name}")
                }
            }
        }
    }
}
