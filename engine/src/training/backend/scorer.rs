//! What an evaluation needs of a model.

use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::{BatchStream, StreamOptions};

use super::super::TrainError;
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
