//! What an evaluation needs of a model.

use rankine_base::StopCause;
use rankine_engine_cpu::CpuModel;
use rankine_model::evaluation::{Evaluation, HeadMetrics};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::{BatchStream, StreamOptions};

use super::error::BackendError;

/// The progress of an evaluation, after each batch.
#[derive(Debug, Clone, Copy)]
pub struct ScoringProgress<'a> {
    /// Samples scored so far.
    pub samples: u64,
    /// Bytes read so far; blocks that were kept from an earlier evaluation are not read again.
    pub bytes_read: u64,
    /// Ids outside their tables in this batch, one count per categorical column; empty if none was counted.
    pub out_of_range: &'a [u64],
}

/// A model that can be evaluated.
pub trait Scorer {
    /// Scores every sample that a stream over a part yields. Returns the metrics of each head, in the model's order,
    /// or `None` if a score is not a number. `progress` is called after each batch, and may stop the evaluation.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendError::Stopped`] if `progress` returns a cause.
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Option<Vec<HeadMetrics>>, BackendError>;
}

impl Scorer for CpuModel {
    fn judge(
        &mut self,
        part: DatasetPart,
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Option<Vec<HeadMetrics>>, BackendError> {
        let mut evaluation = Evaluation::new(&self.spec().heads);
        let mut logits = Vec::new();
        let mut batches = BatchStream::open(part, options)?;
        while let Some(batch) = batches.next().transpose()? {
            let samples = &batch.samples;
            logits.clear();
            self.logits(samples, &mut logits);
            if logits.iter().any(|logit| logit.is_nan()) {
                return Ok(None);
            }
            evaluation.add(samples, &logits);
            let progressed = progress(ScoringProgress {
                samples: evaluation.samples(),
                bytes_read: batches.bytes().get(),
                out_of_range: &batch.out_of_range,
            });
            progressed.map_err(BackendError::Stopped)?;
        }
        Ok(Some(evaluation.metrics()))
    }
}
