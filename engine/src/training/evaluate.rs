//! One pass of a model over a part of a dataset.

use rankine_reader::dataset::DatasetPart;
use rankine_reader::io::IoOptions;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part};

use super::ids::{self, IdCounts};
use super::{Event, Observer, TrainError};
use crate::cpu::CpuModel;
use crate::evaluation::{Evaluation, HeadMetrics};

/// A model that can be evaluated.
pub trait Scorer {
    /// Scores every sample that a stream over a part yields. Returns the metrics of each head, in the model's order,
    /// or `None` if a score is not a number. `progress` is called with the number of samples scored and, for each
    /// batch, the number of ids outside their tables: one count per categorical column, or empty.
    ///
    /// # Errors
    /// [`TrainError::Data`], [`TrainError::Gpu`].
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64, &[u64]),
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError>;
}

impl Scorer for CpuModel {
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(u64, &[u64]),
    ) -> Result<Option<Vec<HeadMetrics>>, TrainError> {
        let mut evaluation = Evaluation::new(&self.spec().heads);
        let mut logits = Vec::new();
        for batch in BatchStream::open(part, options)? {
            let batch = batch?;
            let samples = &batch.samples;
            logits.clear();
            self.logits(samples, &mut logits);
            if logits.iter().any(|logit| logit.is_nan()) {
                return Ok(None);
            }
            evaluation.add(samples, &logits);
            progress(evaluation.samples(), &batch.out_of_range);
        }
        Ok(Some(evaluation.metrics()))
    }
}

/// Options of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// Samples scored at a time.
    pub batch_size: usize,
    /// How samples are read.
    pub io: IoOptions,
}

/// Scores every sample of a part and computes the metrics of each head, in the model's order, and the counts of ids
/// outside their tables. Takes 16 bytes per sample and head, and 4 more if samples have weights.
///
/// # Errors
/// [`TrainError::Data`], [`TrainError::Gpu`]; [`TrainError::NotFinite`] if a prediction is not a number.
pub fn evaluate(
    model: &mut (impl Scorer + ?Sized),
    dataset: &Dataset,
    part: Part,
    options: &EvaluationOptions,
    observer: &mut dyn Observer,
) -> Result<(Vec<HeadMetrics>, IdCounts), TrainError> {
    let (total, mut ids) = (dataset.samples(part), IdCounts::new());
    let stream = StreamOptions { io: options.io, ..StreamOptions::one_epoch(options.batch_size) };
    let heads = model.judge(dataset.part(part)?, &stream, &mut |samples, out_of_range| {
        ids::add(&mut ids, dataset.schema(), out_of_range);
        observer.observe(Event::Evaluating { samples, total });
    })?;
    let heads = heads.ok_or_else(|| {
        let dir = dataset.dir().display();
        TrainError::NotFinite(format!("the model's predictions on {dir} are not finite"))
    })?;
    Ok((heads, ids))
}
