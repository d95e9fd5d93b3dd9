//! What an evaluation needs of a model.

use std::ops::ControlFlow;

use rankine_base::StopCause;
use rankine_engine_cpu::CpuModel;
use rankine_model::evaluation::{Evaluation, JudgedHead};
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;

use super::batches::Batch;
use super::error::BackendError;
use super::resident::ResidentPart;
use super::scored::Scored;

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
    /// Scores every sample that a stream over a part yields; the model may be trained as soon as this returns. Before
    /// another call, the metrics must be computed, or dropped. `heads` are the model's. `progress` is called after
    /// each batch, and may stop the evaluation.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendError::Stopped`] if `progress` returns a cause.
    fn score(
        &mut self,
        part: DatasetPart,
        heads: &[JudgedHead],
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Scored, BackendError>;
}

impl Scorer for CpuModel {
    fn score(
        &mut self,
        part: DatasetPart,
        heads: &[JudgedHead],
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Scored, BackendError> {
        score_on_cpu(self, &mut ResidentPart::default(), 0, (part, heads), options, progress)
    }
}

/// As [`Scorer::score`], with the part that was scored last. The part stays resident if its samples take at most
/// `resident_bytes`.
///
/// # Errors
/// As [`Scorer::score`].
pub fn score_on_cpu(
    model: &mut CpuModel,
    resident: &mut ResidentPart,
    mut resident_bytes: usize,
    (part, heads): (DatasetPart, &[JudgedHead]),
    options: &StreamOptions,
    progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
) -> Result<Scored, BackendError> {
    let mut evaluation = Evaluation::new(heads);
    let mut logits = Vec::new();
    resident.keep_only(&part, options.batch_size);
    let stays = |batch: &Batch| {
        let left = resident_bytes.checked_sub(batch.as_unpacked().samples.bytes());
        resident_bytes = left.unwrap_or(0);
        left.is_some()
    };
    let score = |batch: &Batch, bytes_read| {
        let batch = batch.as_unpacked();
        logits.clear();
        model.logits(&batch.samples, &mut logits);
        if logits.iter().any(|logit| logit.is_nan()) {
            return Ok(ControlFlow::Break(()));
        }
        evaluation.add(&batch.samples, &logits);
        let (samples, out_of_range) = (evaluation.samples(), batch.out_of_range.as_slice());
        let progressed = progress(ScoringProgress { samples, bytes_read, out_of_range });
        progressed.map(ControlFlow::Continue).map_err(BackendError::Stopped)
    };
    let (scored, _) = resident.score(|| Batch::unpacked(part, options), stays, score)?;
    let metrics = move || Ok(scored.is_continue().then(|| evaluation.metrics()));
    Ok(Scored::new(rayon::current_num_threads(), metrics))
}
