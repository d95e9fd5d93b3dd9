//! One pass of a model over a part of a dataset.

use rankine_reader::io::IoOptions;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part, Samples};

use super::{Event, Observer, TrainError};
use crate::cpu::CpuModel;
use crate::evaluation::{Evaluation, HeadMetrics};
use crate::model::ModelSpec;

/// A model that can be judged.
pub trait Scorer {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;

    /// Appends the logits of each sample, one a head.
    ///
    /// # Errors
    /// [`TrainError::Gpu`].
    fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<(), TrainError>;
}

impl Scorer for CpuModel {
    fn spec(&self) -> &ModelSpec {
        self.spec()
    }

    fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<(), TrainError> {
        self.logits(batch, out);
        Ok(())
    }
}

/// How to judge a model.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// Samples scored at a time.
    pub batch_size: usize,
    /// How to read.
    pub io: IoOptions,
}

/// Scores every sample of a part and computes the metrics of each head, in the model's order. Takes 16 bytes a sample
/// and head, and 4 more where samples have weights.
///
/// # Errors
/// [`TrainError::Data`], [`TrainError::Gpu`]; [`TrainError::NotFinite`] where the model predicts something that is no
/// number.
pub fn evaluate(
    model: &mut impl Scorer,
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    observer: &mut dyn Observer,
) -> Result<Vec<HeadMetrics>, TrainError> {
    let total = dataset.samples(part);
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let mut evaluation = Evaluation::new(&model.spec().heads);
    let mut logits = Vec::new();
    for batch in BatchStream::open(dataset.part(part)?, &stream)? {
        let samples = &batch?.samples;
        logits.clear();
        model.logits(samples, &mut logits)?;
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(TrainError::NotFinite(format!(
                "the model's predictions on {} are not numbers",
                dataset.dir().display()
            )));
        }
        evaluation.add(samples, &logits);
        observer.observe(Event::Evaluating { samples: evaluation.samples(), total });
    }
    Ok(evaluation.metrics())
}
