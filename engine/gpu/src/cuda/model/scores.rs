//! Scores of a model, and their evaluation.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use rankine_backend::{BackendError, Batch, Scored, Scorer, ScoringProgress};
use rankine_base::StopCause;
use rankine_model::evaluation::JudgedHead;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;

use super::CudaModel;
use crate::cuda::batch::{GlobalBatch, chunks, feed_batch};
use crate::cuda::error::{Error, Result};
use crate::cuda::evaluation::{
    CudaEvaluation, EvaluationResult, EvaluationShape, EvaluationSizes, ScoresToRank,
};
use crate::cuda::feed::{self, Feed, FeedBatch, FeedRanks};

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
            let of_ranks = self.ranks.logits(GlobalBatch::unpacked(batch, samples))?;
            of_ranks.iter().for_each(|logits| out.extend(logits));
        }
        self.ranks.call_all_mut(|rank| rank.finish())?;
        Ok(())
    }

    /// Starts an evaluation, after all work started before is done.
    ///
    /// # Panics
    /// If there are more samples than [`crate::cuda::CudaEvaluation::fits`] allows, or none; or if the scores of the
    /// last evaluation are neither ranked nor dropped.
    ///
    /// # Errors
    /// If an operation of a GPU failed, ids of earlier batches were out of range, or there is too little memory.
    pub fn begin_evaluation(&mut self, part: EvaluationShape) -> Result<()> {
        let EvaluationShape { samples, batch_size, weighted } = part;
        // A rank's share of each batch may be rounded up.
        let own = samples.div_ceil(batch_size) * batch_size.div_ceil(self.ranks.topology().ranks());
        let sizes = EvaluationSizes { samples, own: own.min(samples), weighted };
        self.ranks.call_all_mut(move |rank| rank.begin_evaluation(sizes))?;
        Ok(())
    }

    /// Enqueues scoring samples that the CPU has unpacked, and adding the scores to the evaluation.
    ///
    /// # Panics
    /// If there are more samples than [`CudaModel::score_size`], if their columns do not match the model, or if no
    /// evaluation was started.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn evaluate(&mut self, batch: &Samples) -> Result<()> {
        self.score_batch(GlobalBatch::unpacked(batch, 0..batch.len))
    }

    /// The same for any batch. A packed one is kept until its scores are added.
    ///
    /// # Panics
    /// As [`CudaModel::evaluate`].
    ///
    /// # Errors
    /// If an operation of a GPU failed, or an earlier batch has values that its schema does not admit.
    pub fn evaluate_batch(&mut self, batch: &Batch) -> Result<()> {
        self.score_batch(batch.into())
    }

    fn score_batch(&mut self, batch: GlobalBatch<'_>) -> Result<()> {
        let most = self.score_size();
        assert!(batch.len() <= most, "at most {most} samples are scored at a time");
        self.ranks.evaluate(batch)
    }

    /// Enqueues scoring batches together, and forgets them.
    fn score_group(&mut self, group: &mut Vec<FeedBatch>) -> Result<()> {
        match group.is_empty() {
            true => Ok(()),
            false => self.score_batch(GlobalBatch::Packed(std::mem::take(group).iter().collect())),
        }
    }

    /// Returns the result of an evaluation, whose predictions are not corrected. With several processes, only the
    /// first one gets AUCs and histograms of scores.
    ///
    /// # Errors
    /// If an operation of a GPU failed, ids were out of range, or a batch has values that its schema does not admit.
    pub fn finish_evaluation(&mut self) -> Result<EvaluationResult> {
        self.finish_judged(&JudgedHead::of_heads_uncorrected(&self.setup.model.spec.heads))
    }

    /// The same for heads whose predictions may be corrected; they are the model's.
    ///
    /// # Errors
    /// As [`CudaModel::finish_evaluation`].
    pub fn finish_judged(&mut self, heads: &[JudgedHead]) -> Result<EvaluationResult> {
        Ok(self.finish_scores(heads)?.rank()?)
    }

    /// Returns the scores of this process's first rank, once all ranks have sent their scores. The next evaluation may
    /// begin when they are ranked.
    fn finish_scores(&mut self, heads: &[JudgedHead]) -> Result<ScoresToRank> {
        let heads: Arc<[JudgedHead]> = heads.into();
        Ok(self.ranks.call_all_mut(move |rank| rank.finish_evaluation(&heads))?.swap_remove(0))
    }

    /// Returns the most samples that are scored at a time.
    pub fn score_size(&self) -> usize {
        self.scored_batches * self.setup.batches.batch_size
    }
}

impl Scorer for CudaModel {
    fn score(
        &mut self,
        part: DatasetPart,
        judged: &[JudgedHead],
        options: &StreamOptions,
        progress: &mut dyn FnMut(ScoringProgress<'_>) -> Result<(), StopCause>,
    ) -> Result<Scored, BackendError> {
        if !CudaEvaluation::fits(part.samples) {
            return Err(BackendError::TooManySamples { samples: part.samples });
        }
        // Scored together, training batches leave the scores of all samples in the same order as if each were scored
        // alone.
        let options =
            StreamOptions { batch_size: options.batch_size.min(self.setup.batches.batch_size), ..*options };
        let of_rank = self.scored_batches * self.setup.rank_samples();
        let grouped = of_rank / options.batch_size.div_ceil(self.ranks.topology().ranks());
        self.begin_evaluation(EvaluationShape {
            samples: part.samples as usize,
            batch_size: options.batch_size,
            weighted: part.schema.weight.is_some(),
        })?;
        // The memory of another part is free before it is decided whether this one fits.
        let mut resident = std::mem::take(&mut self.resident);
        resident.keep_only(&part, options.batch_size);
        let (setup, gates, fits) = (Arc::clone(&self.setup), self.gates.clone(), Cell::new(false));
        let open = || {
            let ranks = FeedRanks::for_evaluation(&setup, &gates, grouped);
            fits.set(Feed::fits(ranks, &part, &options)?);
            feed::open_batches(ranks, part, &options, fits.get())
        };
        let stays = |batch: &Batch| fits.get() && matches!(batch, Batch::Packed(_));
        let (mut samples, mut group) = (0, Vec::new());
        let score = |batch: &Batch, bytes_read| {
            match batch {
                Batch::Packed(packed) => {
                    group.push(feed_batch(&**packed).clone());
                    if group.len() == grouped {
                        self.score_group(&mut group)?;
                    }
                }
                Batch::Unpacked(_) => self.evaluate_batch(batch)?,
            }
            samples += batch.samples() as u64;
            let scored = ScoringProgress { samples, bytes_read, out_of_range: batch.out_of_range() };
            progress(scored).map(ControlFlow::Continue).map_err(BackendError::Stopped)
        };
        // Kept until all samples are scored.
        let (_, opened) = resident.score(open, stays, score)?;
        self.score_group(&mut group)?;
        self.resident = resident;
        let scores = self.finish_scores(judged)?;
        drop(opened);
        let rank = move || match scores.are_numbers() {
            true => Ok(Some(scores.rank().map_err(Error::from)?.heads)),
            false => Ok(None),
        };
        // The GPU sorts and counts.
        Ok(Scored::new(1, rank))
    }
}
