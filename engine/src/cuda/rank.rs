//! One rank of a model, as whoever tells it what to do sees it. A GPU that trains alone is one, too.

use std::fmt::Debug;

use rankine_cuda::blas::Tuning;
use rankine_cuda::kernels::{Rate, Step};
use rankine_cuda::{Budget, Moment};
use rankine_embedding::rows::RowsMut;
use rankine_embedding::{EmbeddingPlan, Topology};
use rankine_reader::schema;

use super::batch::Batch;
use super::error::Result;
use super::evaluation::{EvaluationRoom, Judgement};
use super::work::PhaseTimes;
use crate::checkpoint::{DenseState, DeviceState};
use crate::guard::StepOutcome;
use crate::model::{ModelSpec, TrainingRules};

/// Batches that are on the GPU at once: one that is computed, one that is ready, one that is copied.
pub(super) const SLOTS: usize = 3;

/// What a rank does, whatever its activations are kept as. Of every batch it is given its own samples alone. With
/// others, each operation is done by all ranks, in the same order. Its GPU must be the current one of the thread.
pub(super) trait Rank: Debug + Send {
    /// Begins a step of training. Waits only where several are under way.
    fn step(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<()>;

    /// Waits for all steps.
    fn finish(&mut self) -> Result<()>;

    /// What steps came to that are known to be done, and were not taken yet.
    fn take_outcomes(&mut self) -> Vec<StepOutcome>;

    /// The logits of samples that fit a slot, one a sample and head.
    fn logits(&mut self, batch: Batch<'_>) -> Result<Vec<f32>>;

    /// Begins an evaluation, once all steps are done.
    fn begin_judging(&mut self, room: EvaluationRoom) -> Result<()>;

    /// Enqueues scoring samples that fit a slot, and judging the scores.
    fn judge(&mut self, batch: Batch<'_>) -> Result<()>;

    /// What an evaluation has come to; over ranks, only the first one tells AUCs.
    fn finish_judging(&mut self) -> Result<Judgement>;

    /// Steps that were left out so far, where they can be.
    fn skipped_steps(&self) -> Result<Option<u64>>;

    /// The moment at which what was begun will be done.
    fn mark(&self) -> Result<Moment>;

    /// Waits for all steps and takes the first slot next.
    fn begin_anew(&mut self) -> Result<()>;

    /// Trains so many steps on what lies in the first `slots` slots, each in its turn; returns how long each took, in
    /// milliseconds.
    fn time_steps(&mut self, slots: usize, steps: usize) -> Result<Vec<f64>>;

    /// Times the phases of an iteration over the batch that lies in the first slot.
    fn time_phases(&mut self, spec: &ModelSpec, rules: &TrainingRules) -> Result<PhaseTimes>;

    /// The algorithms that products take.
    fn tuning(&self) -> Tuning;

    /// What its GPU's memory is for.
    fn budget(&self) -> Result<Budget>;

    /// The dense parameters, once all steps are done.
    fn parameters(&self) -> Result<Vec<f32>>;

    /// A checksum of what all ranks have.
    fn checksum(&self) -> Result<u64>;

    /// Its rows, once all steps are done.
    fn rows(&self) -> Box<dyn RowsMut + '_>;

    /// The dense parameters that it speaks for among all ranks, being this one of them, with what their optimizer
    /// keeps; once all steps are done.
    fn dense_state(&self, topology: Topology, rank: usize) -> Result<Vec<DenseState>>;

    /// What is kept beside parameters, once all steps are done.
    fn device_state(&self) -> Result<DeviceState>;

    /// Goes on with what a checkpoint has of both.
    fn restore(&mut self, dense: &DenseState, device: Option<&DeviceState>) -> Result<()>;
}

/// What a rank is made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape<'a> {
    /// Samples of a batch that come to one rank, at most.
    pub(super) samples: usize,
    /// The same of batches that are scored.
    pub(super) score_samples: usize,
    /// Of each categorical column: how many ids a bag may hold.
    pub(super) hotness: &'a [schema::Hotness],
    /// Where tables lie, unless their rows take turns.
    pub(super) plan: Option<&'a EmbeddingPlan>,
    /// Whether book is kept of the rows that are updated.
    pub(super) keeps_book: bool,
}
