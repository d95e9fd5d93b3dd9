//! One pass of a model over a part of a dataset.

use rankine_backend::{Scorer, ScoringProgress};
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
    let (total, mut ids) = (dataset.samples(part), IdCounts::new());
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let heads = model.judge(dataset.part(part)?, heads, &stream, &mut |progress| {
        let ScoringProgress { samples, bytes_read, out_of_range } = progress;
        ids::add(&mut ids, dataset.schema(), out_of_range);
        observer.observe(Event::Evaluating { samples, total, bytes_read });
        stop.and_then(Stop::asked).map_or(Ok(()), Err)
    })?;
    let heads = heads.ok_or_else(|| {
        let dir = dataset.dir().display();
        TrainError::NotFinite(format!("the model's predictions on {dir} are not finite"))
    })?;
    Ok((heads, ids))
}
