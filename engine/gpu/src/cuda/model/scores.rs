//! Scores of a model, and their evaluation.

use rankine_reader::Samples;

use super::CudaModel;
use crate::cuda::batch::{GlobalBatch, chunks};
use crate::cuda::error::Result;
use crate::cuda::evaluation::{EvaluationResult, EvaluationShape, EvaluationSizes};
use crate::cuda::feed::FeedBatch;

impl CudaModel {
    /// Appends the logits of each sample in the shares of this process's ranks, one per head.
    ///
    /// # Panics
    /// If the columns do not match the model.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or ids were out of range.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        for samples in chunks(batch, self.score_size()) {
            let of_ranks = self.ranks.logits(GlobalBatch::Unpacked(batch, samples))?;
            of_ranks.iter().for_each(|logits| out.extend(logits));
        }
        self.ranks.call_all_mut(|rank| rank.finish())?;
        Ok(())
    }

    /// Starts an evaluation, after all work started before is done.
    ///
    /// # Panics
    /// If there are more samples than [`crate::cuda::CudaEvaluation::fits`] allows, or none.
    ///
    /// # Errors
    /// As [`CudaModel::take_outcomes`], and if there is too little memory.
    pub fn begin_evaluation(&mut self, part: EvaluationShape) -> Result<()> {
        let EvaluationShape { samples, batch_size, weighted } = part;
        // A rank's share of each batch may be rounded up.
        let own = samples.div_ceil(batch_size) * batch_size.div_ceil(self.ranks.topology().ranks());
        let sizes = EvaluationSizes { samples, own: own.min(samples), weighted };
        self.ranks.call_all_mut(move |rank| rank.begin_evaluation(sizes))?;
        Ok(())
    }

    /// Enqueues scoring samples and adding the scores to the evaluation.
    ///
    /// # Panics
    /// If there are more samples than [`CudaModel::score_size`], if their columns do not match the model, or if no
    /// evaluation was started.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn evaluate(&mut self, batch: &Samples) -> Result<()> {
        self.evaluate_batch(GlobalBatch::Unpacked(batch, 0..batch.len))
    }

    /// The same for a batch that the GPUs unpack, each its part. The batch is kept until its scores are added.
    ///
    /// # Panics
    /// As [`CudaModel::evaluate`], and if the batch is for another number of GPUs.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`].
    pub fn evaluate_fed(&mut self, batch: &FeedBatch) -> Result<()> {
        self.evaluate_batch(GlobalBatch::Packed(batch))
    }

    fn evaluate_batch(&mut self, batch: GlobalBatch<'_>) -> Result<()> {
        let most = self.score_size();
        assert!(batch.len() <= most, "at most {most} samples are scored at a time");
        self.ranks.evaluate(batch)
    }

    /// Returns the result of an evaluation. With several processes, only the first one gets AUCs and
    /// histograms of scores.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`], and if ids were out of range.
    pub fn finish_evaluation(&mut self) -> Result<EvaluationResult> {
        Ok(self.ranks.call_all_mut(|rank| rank.finish_evaluation())?.swap_remove(0))
    }

    /// Returns the most samples that are scored at a time.
    pub fn score_size(&self) -> usize {
        self.setup.score_size()
    }
}
