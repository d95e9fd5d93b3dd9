//! From click logs to a dataset: Criteo's TSV, in bounded memory, with the same bytes whatever the threads.
//!
//! [`convert_criteo`] reads its sources up to three times: to count rows (only where the last share of them evaluates),
//! to learn vocabularies and means from the training part, and to write. [`RowParser`] and [`Encoder`] turn lines into
//! samples; scoring uses the same two. Reading gzip and cutting lines is in `lines`, counting within a budget in
//! `count` and `spill`. `docs/conversion.md` is the guide for users.

mod bad;
mod count;
mod encode;
mod format;
mod learn;
mod lines;
mod moments;
mod options;
mod pass;
mod report;
mod row;
mod rows;
#[cfg(test)]
mod speed;
mod spill;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

pub use bad::{BAD_ROWS_NAME, BadReason, QUARANTINE_NAME};
pub use encode::Encoder;
pub use format::{CategorySource, ColumnSources, CsvFormat, LabelRule, LabelSource, RowFormat};
pub(crate) use moments::Tabulated;
pub use options::{
    BadLimit, ColumnVocabulary, ConvertOptions, DenseMode, OnBad, Split, TABLE_ROWS_MAX, VocabularyChoice,
};
pub use report::{
    CategoricalReport, Conversion, ConversionReport, DenseReport, ExactReport, REPORT_NAME, RowCounts,
};
pub use row::{Fault, RowParser};
pub use rows::RawRows;

use std::fs;

use crate::dataset::Origin;
use crate::error::{Error, IoContext, Result};
use crate::schema::{
    Categorical, Dense, DenseFunction, DenseTransform, Hotness, Label, Pooling, Schema, VocabularyKind,
};
use crate::vocabulary::{self, Vocabulary};
use crate::write::{CheckedFile, DatasetWriter, PartialDir, sync_dir, write_file};

use learn::Learnt;
use lines::{Limits, Source};
use pass::Pass;
use write::Written;

/// Numbers of a Criteo row.
pub const DENSE_COLUMNS: usize = 13;
/// Categories of a Criteo row.
pub const CATEGORICAL_COLUMNS: usize = 26;
/// A longer line is a bad row.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// The name of a categorical column, counted from 0.
fn categorical_name(column: usize) -> String {
    format!("C{}", column + 1)
}

/// Hears how far a conversion is; called from one thread at a time, a few times a second or more.
pub trait Progress: Sync {
    /// `bytes_done` of the `bytes_total` that the sources have on disk went through the pass of this name: "counting
    /// rows", "learning" or "writing". Each pass begins anew.
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64);
}

impl<F: Fn(&'static str, u64, u64) + Sync> Progress for F {
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64) {
        self(pass, bytes_done, bytes_total);
    }
}

/// Converts Criteo's TSV to a dataset. What is interrupted or fails leaves no dataset behind.
///
/// # Errors
/// [`Error::Invalid`] for options that contradict each other or leave nothing to train on, and a folder that is there
/// already; [`Error::BadRows`] for a bad row where none is admitted, too many of them, and nothing else;
/// [`Error::Damaged`] for a broken gzip file; [`Error::Io`].
pub fn convert_criteo(options: &ConvertOptions, progress: &dyn Progress) -> Result<ConversionReport> {
    convert_within(options, Limits::default(), progress)
}

fn convert_within(
    options: &ConvertOptions,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    options.validate()?;
    let train = options.files.iter().map(|path| Source::new(path, false));
    let eval = options.eval.iter().map(|path| Source::new(path, true));
    let sources = train.chain(eval).collect::<Result<Vec<_>>>()?;
    let dir = PartialDir::create(&options.out)?;

    let raw_schema = schema(options, &Learnt::default());
    let parser = RowParser::new(&raw_schema)?.with_line_bytes_max(limits.line_bytes_max);
    let pass = Pass::new(options, &sources, &parser, &raw_schema, limits, progress)?;
    let mut learnt = learn::learn(&pass, dir.path())?;
    let schema = schema(options, &learnt);
    let encoder = Encoder::new(&schema, std::mem::take(&mut learnt.vocabularies))?;

    let mut writer = DatasetWriter::new(&dir, schema.clone(), schema.default_block_samples())?;
    write_vocabularies(&dir, &schema, &encoder, &mut writer)?;
    let written = write::write(&pass, &encoder, &schema, dir.path(), &mut writer)?;
    if learnt.rows.is_some_and(|rows| rows != written.rows.read) {
        return Err(Error::invalid("the sources changed while they were converted: convert them again"));
    }
    if written.rows.train == 0 {
        let RowCounts { read, bad, eval, .. } = written.rows;
        let what = format!(
            "no row is left to train on: of {read} rows {bad} are bad and {eval} evaluate (--split {})",
            options.split
        );
        return Err(if bad == read { Error::BadRows(what) } else { Error::Invalid(what) });
    }
    let report = report_of(options, &schema, &encoder, &written);
    let json = serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n";
    write_file(dir.path(), REPORT_NAME, json.as_bytes())?;
    writer.finish(Origin::Converted(report.conversion.clone()))?;
    dir.publish()?;
    Ok(report)
}

/// The dataset's schema, as far as it is known before the training part is `learnt`.
fn schema(options: &ConvertOptions, learnt: &Learnt) -> Schema {
    let dense = |column: usize| {
        let transform = match (options.dense, learnt.moments.get(column)) {
            (DenseMode::Log, Some(moments)) => moments.transform(DenseFunction::SignedLog1p),
            (DenseMode::Log, None) => DenseTransform::plain(DenseFunction::SignedLog1p),
            (DenseMode::Mlperf, _) => DenseTransform::plain(DenseFunction::MlperfLog),
        };
        Dense { name: format!("I{}", column + 1), transform }
    };
    let categorical = |column: usize| {
        let (rows, vocabulary) = match options.vocabulary_of(column) {
            VocabularyChoice::Exact => {
                let learnt = learnt.vocabularies.get(column).and_then(Option::as_ref);
                let kind = VocabularyKind::Exact { min_count: options.min_count };
                (learnt.map_or(0, Vocabulary::rows), kind)
            }
            VocabularyChoice::Hash { rows } => (rows, VocabularyKind::Hash),
            VocabularyChoice::Identity { rows } => (rows, VocabularyKind::Identity),
        };
        let name = categorical_name(column);
        Categorical {
            name,
            rows,
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary,
            shares: None,
        }
    };
    Schema {
        labels: vec![Label { name: "label".into() }],
        weight: None,
        dense: (0..DENSE_COLUMNS).map(dense).collect(),
        dense_dtype: options.dense_dtype,
        categorical: (0..CATEGORICAL_COLUMNS).map(categorical).collect(),
    }
}

fn write_vocabularies(
    dir: &PartialDir,
    schema: &Schema,
    encoder: &Encoder,
    writer: &mut DatasetWriter<'_>,
) -> Result<()> {
    let folder = dir.path().join(vocabulary::FOLDER);
    fs::create_dir(&folder).context("create", &folder)?;
    for (number, column) in schema.categorical.iter().enumerate() {
        if let Some(vocabulary) = encoder.vocabulary(number) {
            let mut file = CheckedFile::create(dir.path(), &vocabulary::file_name(&column.name))?;
            vocabulary.to_tsv(|piece| file.write(piece))?;
            writer.add_file(file.finish()?);
        }
    }
    sync_dir(&folder)
}

fn report_of(
    options: &ConvertOptions,
    schema: &Schema,
    encoder: &Encoder,
    written: &Written,
) -> ConversionReport {
    let names = |paths: &[std::path::PathBuf]| {
        paths.iter().map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let columns = schema.categorical.iter().enumerate().map(|(number, column)| {
        let exact = encoder.vocabulary(number).map(|vocabulary| ExactReport {
            kept_categories: vocabulary.rows() - 1,
            oov_lookups_train: vocabulary.counts()[0],
            oov_lookups_eval: written.oov_eval[number],
        });
        let report = CategoricalReport { vocabulary: column.vocabulary, rows: column.rows, exact };
        (column.name.clone(), report)
    });
    let dense = schema.dense.iter().zip(&written.missing_train).map(|(column, &missing)| {
        let DenseTransform { mean, deviation, .. } = column.transform;
        (column.name.clone(), DenseReport { mean, deviation, missing })
    });
    ConversionReport {
        conversion: Conversion {
            format: RowFormat::CriteoTsv,
            files: names(&options.files),
            eval: names(&options.eval),
            split: options.split.to_string(),
            rows: written.rows,
        },
        bad_by_reason: written.bad_by_reason.clone(),
        columns: columns.collect(),
        dense: dense.collect(),
    }
}
