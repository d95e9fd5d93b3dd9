//! Scores rows with a trained model, in order: rows of a dataset, or raw rows, encoded with the code, vocabularies and
//! transforms that made the training's dataset.
//!
//! [`Predictions`] scores samples from either source, counts the categories that the model never learned, and writes a
//! CSV that appears only when it is complete.

mod error;
mod file;
mod rows;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rankine_base::InvalidValue;
use rankine_engine_cpu::CpuModel;
use rankine_model::logit::Correction;
use rankine_reader::convert::{KeptTexts, UnknownCategories};
use rankine_reader::schema::VocabularyKind;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, IdRules, Part, Samples, Schema, vocabulary};
use serde::{Serialize, Serializer};

use crate::training::{EvaluationOptions, IdCounts, ids};
use file::PredictionFile;

pub use crate::raw_rows::RowOptions;
pub use error::PredictError;
pub use file::STANDARD_OUTPUT;
pub use rows::predict_rows;

/// What to do with rows whose categories have no row of their own in the model, because they were rare in training or
/// absent from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// Score them with the row that all such categories share.
    #[default]
    Oov,
    /// Fail at the first one.
    Fail,
    /// Skip them.
    Skip,
}

impl OnUnknown {
    const ALL: [Self; 3] = [Self::Oov, Self::Fail, Self::Skip];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oov => "oov",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

impl fmt::Display for OnUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OnUnknown {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| InvalidValue::expected(text, "oov, fail or skip"))
    }
}

/// Predictions being written to a file.
#[derive(Debug)]
pub struct Predictions<'a> {
    model: CpuModel,
    /// One per head.
    corrections: Vec<Correction>,
    schema: &'a Schema,
    on_unknown: OnUnknown,
    /// What to do with ids of raw records that are not rows of their tables.
    ids: IdRules,
    /// The raw columns whose texts precede the predictions.
    keep: &'a [String],
    file: PredictionFile,
    counts: PredictionCounts,
    logits: Vec<f32>,
}

/// What predictions are made of rows, and what they are written with.
#[derive(Debug, Clone, Default)]
pub struct PredictionOptions<'a> {
    /// What to do with rows that have unknown categories.
    pub on_unknown: OnUnknown,
    /// What to do with ids of raw records that are not rows of their tables; a dataset has its own rules.
    pub ids: IdRules,
    /// Raw columns whose texts are written before the predictions, by their names in the files. Only raw rows have
    /// them.
    pub keep: &'a [String],
    /// Whether the output replaces any file, not only earlier predictions.
    pub force: bool,
    /// Whether probabilities are the model's own even if its training data kept only a share of the negatives.
    pub uncorrected: bool,
}

/// Counts of rows, by what was done with them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PredictionCounts {
    /// Rows that were read, bad ones included.
    pub read: u64,
    /// Rows with a prediction.
    pub predicted: u64,
    /// Rows that could not be read.
    pub bad: u64,
    /// Rows skipped because the model has no row for a category.
    pub unknown_skipped: u64,
    /// For each column with a vocabulary, in the model's order: the categories that have no row of their own. Distinct
    /// values are known only for raw rows: a dataset has one row for all of them.
    #[serde(serialize_with = "as_map")]
    pub unknown: Vec<(String, UnknownCategories)>,
    /// Ids that were not rows of their tables, by column; columns without such ids are absent.
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    pub ids_out_of_range: IdCounts,
}

fn as_map<S: Serializer>(columns: &[(String, UnknownCategories)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(columns.iter().map(|(name, count)| (name, count)))
}

impl<'a> Predictions<'a> {
    /// Creates a file of predictions at `out`, from a model of samples of a schema. If `out` is [`STANDARD_OUTPUT`],
    /// predictions are written to standard output as they are made.
    ///
    /// # Errors
    /// [`PredictError::Write`]; [`PredictError::Column`] if two columns would have one name.
    pub fn create(
        model: CpuModel,
        schema: &'a Schema,
        options: PredictionOptions<'a>,
        out: &Path,
    ) -> Result<Self, PredictError> {
        let PredictionOptions { on_unknown, ids, keep, force, uncorrected } = options;
        let heads = &model.spec().heads;
        let corrections = match uncorrected {
            true => vec![Correction::NONE; heads.len()],
            false => Correction::of_heads(heads, schema),
        };
        let labels = heads.iter().map(|head| head.label.as_str());
        let file = PredictionFile::create(out, force, keep, labels)?;
        let unknown = exact_columns(schema).map(|(_, name)| (name.to_owned(), UnknownCategories::default()));
        let counts = PredictionCounts { unknown: unknown.collect(), ..PredictionCounts::default() };
        Ok(Self { model, corrections, schema, on_unknown, ids, keep, file, counts, logits: Vec::new() })
    }

    /// Scores samples, whose rows have the numbers `rows`, without texts of raw columns.
    ///
    /// # Errors
    /// [`PredictError::Unknown`] if such rows are not to be scored, [`PredictError::NotFinite`],
    /// [`PredictError::Write`].
    ///
    /// # Panics
    /// If raw columns are to be kept, which only raw rows have.
    pub fn add(&mut self, samples: &Samples, rows: &[u64]) -> Result<(), PredictError> {
        assert!(self.keep.is_empty(), "samples have no raw columns to keep");
        self.add_with(samples, rows, &KeptTexts::new(0))
    }

    /// Scores samples with the texts of their raw columns.
    fn add_with(&mut self, samples: &Samples, rows: &[u64], kept: &KeptTexts) -> Result<(), PredictError> {
        assert_eq!(samples.len, rows.len(), "one row number per sample");
        if rows.is_empty() {
            return Ok(());
        }
        self.counts.read += rows.len() as u64;
        let skipped = self.count_unknown(samples, rows)?;
        self.logits.clear();
        self.model.logits(samples, &mut self.logits);
        let heads = self.model.spec().heads.len();
        let logits = self.logits.chunks_exact(heads);
        for (sample, (&row, logits)) in rows.iter().zip(logits).enumerate() {
            if skipped[sample] {
                self.counts.unknown_skipped += 1;
                continue;
            }
            if logits.iter().any(|logit| logit.is_nan()) {
                return Err(PredictError::NotFinite { row });
            }
            let corrected = logits.iter().zip(&self.corrections);
            let probabilities = corrected.map(|(&logit, correction)| correction.probability(logit));
            self.file.write(row, kept.row(sample), probabilities)?;
            self.counts.predicted += 1;
        }
        Ok(())
    }

    /// Counts categories without a row of their own; returns which samples are skipped for them.
    fn count_unknown(&mut self, samples: &Samples, rows: &[u64]) -> Result<Vec<bool>, PredictError> {
        let mut skipped = vec![false; samples.len];
        // The first sample that has one, and its column.
        let mut first: Option<(usize, &str)> = None;
        for ((number, name), count) in exact_columns(self.schema).zip(&mut self.counts.unknown) {
            let bags = &samples.categorical[number];
            for (sample, skipped) in skipped.iter_mut().enumerate() {
                let unknown =
                    bags.bag(sample).iter().filter(|&&id| id == vocabulary::OUT_OF_VOCABULARY).count();
                if unknown == 0 {
                    continue;
                }
                count.1.lookups += unknown as u64;
                *skipped = self.on_unknown == OnUnknown::Skip;
                if first.is_none_or(|(earliest, _)| sample < earliest) {
                    first = Some((sample, name));
                }
            }
        }
        match first {
            Some((sample, column)) if self.on_unknown == OnUnknown::Fail => {
                Err(PredictError::Unknown { row: rows[sample], column: column.to_owned() })
            }
            _ => Ok(skipped),
        }
    }

    /// Records how many distinct categories the counted look-ups have; one entry per categorical column.
    fn set_distinct(&mut self, unknown: &[UnknownCategories]) {
        for ((number, _), (_, count)) in exact_columns(self.schema).zip(&mut self.counts.unknown) {
            *count = UnknownCategories { lookups: count.lookups, ..unknown[number] };
        }
    }

    /// Counts ids that were not rows of their tables: one number per categorical column, or an empty slice.
    fn count_ids(&mut self, out_of_range: &[u64]) {
        ids::add(&mut self.counts.ids_out_of_range, self.schema, out_of_range);
    }

    /// Counts rows that could not be read.
    fn add_bad(&mut self, rows: u64) {
        self.counts.read += rows;
        self.counts.bad += rows;
    }

    /// Completes the file, which then appears.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub fn finish(self) -> Result<PredictionCounts, PredictError> {
        self.file.publish()?;
        Ok(self.counts)
    }
}

/// The columns whose row 0 stands for every category without a row of its own, with their numbers.
fn exact_columns(schema: &Schema) -> impl Iterator<Item = (usize, &str)> {
    let columns = schema.categorical.iter().enumerate();
    let exact = columns.filter(|(_, column)| matches!(column.vocabulary, VocabularyKind::Exact { .. }));
    exact.map(|(number, column)| (number, column.name.as_str()))
}

/// Scores a part of a dataset, in file order. Its rows are numbered from 1. `progress` receives the number of samples
/// scored.
///
/// # Errors
/// As [`Predictions::add`], and [`PredictError::Data`].
pub fn predict_part(
    predictions: &mut Predictions<'_>,
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<(), PredictError> {
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let mut rows = Vec::new();
    for batch in BatchStream::open(dataset.part(part)?, &stream)? {
        let batch = batch?;
        let samples = &batch.samples;
        predictions.count_ids(&batch.out_of_range);
        let first = predictions.counts.read + 1;
        rows.clear();
        rows.extend(first..first + samples.len as u64);
        predictions.add(samples, &rows)?;
        progress(predictions.counts.read);
    }
    Ok(())
}
