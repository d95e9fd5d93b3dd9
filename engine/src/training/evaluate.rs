//! One pass of a model over a part of a dataset.

use rankine_reader::io::IoOptions;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part};

use super::{Event, Observer, TrainError};
use crate::cpu::CpuModel;
use crate::evaluation::{Evaluation, Metrics};

/// How to judge a model.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// Samples scored at a time.
    pub batch_size: usize,
    /// How to read.
    pub io: IoOptions,
}

/// Scores every sample of a part and computes the metrics. Takes 16 bytes a sample.
///
/// # Errors
/// [`TrainError::Data`]; [`TrainError::NotFinite`] where the model predicts something that is no number.
pub fn evaluate(
    model: &mut CpuModel,
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    observer: &mut dyn Observer,
) -> Result<Metrics, TrainError> {
    let total = dataset.samples(part);
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let mut evaluation = Evaluation::default();
    for batch in BatchStream::open(dataset.part(part)?, &stream)? {
        let samples = &batch?.samples;
        model.logits(samples, &mut evaluation.logits);
        evaluation.labels.extend_from_slice(&samples.labels[0]);
        evaluation.weights.extend_from_slice(&samples.weights);
        observer.observe(Event::Evaluating { samples: evaluation.labels.len() as u64, total });
    }
    evaluation.metrics().ok_or_else(|| {
        TrainError::NotFinite(format!(
            "the model's predictions on {} are not numbers",
            dataset.dir().display()
        ))
    })
}
