//! One pass of a model over a part of a dataset.

use rankine_backend::{Scored, Scorer, ScoringProgress};
use rankine_base::Stop;
use rankine_model::evaluation::{HeadMetrics, JudgedHead};
use rankine_reader::io::IoOptions;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Dataset, Part};

use super::error::TrainError;
use super::event::{Event, Observer};
use super::ids::{self, IdCounts};

/// Options of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// Samples scored at a time.
    pub batch_size: usize,
    /// How samples are read.
    pub io: IoOptions,
}

/// The samples of a part that were scored.
#[derive(Debug)]
pub(super) struct ScoredPart {
    pub(super) scores: Scored,
    /// Ids outside their tables, by column.
    pub(super) ids_out_of_range: IdCounts,
}

/// Scores every sample of a part and computes the metrics of each head, in the model's order, and the counts of ids
/// outside their tables. `heads` are the model's. Takes 16 bytes per sample and head, and 4 more if samples have
/// weights. Checks `stop` after each batch.
///
/// # Errors
/// [`TrainError::Data`], [`TrainError::Gpu`]; [`TrainError::NotFinite`] if a prediction is not a number;
/// [`TrainError::EvaluationStopped`].
pub fn evaluate(
    model: &mut (impl Scorer + ?Sized),
    heads: &[JudgedHead],
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    stop: Option<&Stop>,
    observer: &mut dyn Observer,
) -> Result<(Vec<HeadMetrics>, IdCounts), TrainError> {
    let ScoredPart { scores, ids_out_of_range } =
        score(model, heads, dataset, part, options, stop, observer)?;
    Ok((finite(scores.metrics()?, dataset)?, ids_out_of_range))
}

/// The same without the metrics.
///
/// # Errors
/// As [`evaluate`].
pub(super) fn score(
    model: &mut (impl Scorer + ?Sized),
    heads: &[JudgedHead],
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    stop: Option<&Stop>,
    observer: &mut dyn Observer,
) -> Result<ScoredPart, TrainError> {
    let (total, mut ids) = (dataset.samples(part), IdCounts::new());
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let scores = model.score(dataset.part(part)?, heads, &stream, &mut |progress| {
        let ScoringProgress { samples, bytes_read, out_of_range } = progress;
        ids::add(&mut ids, dataset.schema(), out_of_range);
        observer.observe(Event::Evaluating { samples, total, bytes_read });
        stop.and_then(Stop::asked).map_or(Ok(()), Err)
    })?;
    Ok(ScoredPart { scores, ids_out_of_range: ids })
}

/// Returns the metrics of a dataset's samples.
///
/// # Errors
/// [`TrainError::NotFinite`] if a prediction is not a number.
pub(super) fn finite(
    heads: Option<Vec<HeadMetrics>>,
    dataset: &Dataset,
) -> Result<Vec<HeadMetrics>, TrainError> {
    heads.ok_or_else(|| {
        let dir = dataset.dir().display();
        TrainError::NotFinite(format!("the model's predictions on {dir} are not finite"))
    })
}
