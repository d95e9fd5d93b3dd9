//! The interface of one rank of a model. A single GPU is one rank, too.

use std::fmt::Debug;

use rankine_checkpoint::{DenseState, DeviceState};
use rankine_cuda::blas::Tuning;
use rankine_cuda::kernels::{Rate, Step};
use rankine_cuda::{Budget, Moment};
use rankine_embedding::Membership;
use rankine_embedding::cuda::LookUpCounts;
use rankine_embedding::membership::DynamicTableState;
use rankine_embedding::rows::RowsMut;
use rankine_embedding::{RankTraffic, TierTraffic};
use rankine_model::evaluation::JudgedHead;
use rankine_model::guard::StepOutcome;
use rankine_topology::{Rank, Topology};

use super::batch::Batch;
use super::error::Result;
use super::evaluation::{EvaluationSizes, ScoresToRank};
use super::phase_timer::TimedPhase;
use super::phase_work::PhaseTimes;

/// One rank, for any type of activations. It receives only its own samples of every batch. With several ranks, all of
/// them call each operation, in the same order. The rank's GPU must be the current one of the thread.
pub(super) trait RankModel: Debug + Send {
    /// Starts a training step. Waits only if several are in flight.
    fn step(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<()>;

    /// Waits for all steps.
    fn finish(&mut self) -> Result<()>;

    /// Returns the outcomes of finished steps that were not taken yet.
    fn take_outcomes(&mut self) -> Vec<StepOutcome>;

    /// Returns how many training batches have as many samples as are scored at a time.
    fn scored_batches(&self) -> usize;

    /// Returns the logits of samples that fit a slot, one per sample and head.
    fn logits(&mut self, batch: Batch<'_>) -> Result<Vec<f32>>;

    /// Starts an evaluation, after all steps are done. The scores of the last one must be ranked, or dropped.
    fn begin_evaluation(&mut self, sizes: EvaluationSizes) -> Result<()>;

    /// Enqueues scoring samples that fit a slot, and adding the scores to the evaluation.
    fn evaluate(&mut self, batch: Batch<'_>) -> Result<()>;

    /// Returns the scores of an evaluation, which may be ranked beside other work; with several ranks, only the first
    /// one gets AUCs and histograms of scores.
    fn finish_evaluation(&mut self, heads: &[JudgedHead]) -> Result<ScoresToRank>;

    /// Returns the number of steps skipped so far, if the precision can skip steps.
    fn overflow_steps(&self) -> Result<Option<u64>>;

    /// Returns the factor of the gradients, if the precision scales them.
    fn loss_scale(&self) -> Result<Option<f64>>;

    /// Counts the look-ups of its share of the batch in the first slot, table by table, those of first-order terms
    /// last, after all steps are done.
    fn look_ups(&self) -> Result<Vec<LookUpCounts>>;

    /// Returns what it has exchanged in training, after all steps are done; only the sum over all ranks is meaningful.
    fn traffic(&self) -> Result<RankTraffic>;

    /// Returns what was copied between its GPU and host memory, if the GPU stores the hot rows only; after all steps
    /// are done.
    fn tier_traffic(&self) -> Option<TierTraffic>;

    /// Returns how many slots must have batches to be trained on in turn.
    fn slots_needed(&self) -> usize;

    /// Returns how the phases of a recent iteration ran, in the order in which they were enqueued, after all steps are
    /// done; nothing if none was timed yet.
    fn phases(&self) -> Result<Vec<TimedPhase>>;

    /// Returns the moment at which all started work will be done.
    fn mark(&self) -> Result<Moment>;

    /// Waits for all steps, and continues with the first slot.
    fn restart(&mut self) -> Result<()>;

    /// Trains `steps` steps on the batches in the first `slots` slots, in turn; returns the milliseconds of each.
    fn time_steps(&mut self, slots: usize, steps: usize) -> Result<Vec<f64>>;

    /// Times the phases of an iteration over the batch in the first slot.
    fn time_phases(&mut self) -> Result<PhaseTimes>;

    /// Returns the algorithms that products use.
    fn tuning(&self) -> Tuning;

    /// Returns its GPU's memory budget.
    fn budget(&self) -> Result<Budget>;

    /// Returns the dense parameters, after all steps are done.
    fn parameters(&self) -> Result<Vec<f32>>;

    /// Returns a checksum of the replicated state.
    fn checksum(&self) -> Result<u64>;

    /// Returns its rows, after all steps are done.
    fn rows(&self) -> Box<dyn RowsMut + '_>;

    /// Starts to record which rows, and which ids of dynamic tables, are changed, after all steps are done.
    fn begin_tracking(&mut self) -> Result<()>;

    /// Returns the memberships of dynamic tables, with the tables' numbers, after all steps are done.
    fn memberships(&self) -> Result<Vec<(usize, Membership)>>;

    /// Returns how full each dynamic table is, after all steps are done.
    fn dynamic_tables(&self) -> Result<Vec<DynamicTableState>>;

    /// Returns the dense parameters that this rank saves, as rank `rank` of all ranks, with their optimizer state;
    /// after all steps are done.
    fn dense_state(&self, topology: Topology, rank: Rank) -> Result<Vec<DenseState>>;

    /// Returns the device's state besides parameters, after all steps are done.
    fn device_state(&self) -> Result<DeviceState>;

    /// Restores both from a checkpoint.
    fn restore(&mut self, dense: &DenseState, device: Option<&DeviceState>) -> Result<()>;

    /// Restores the memberships of dynamic tables, given with the tables' numbers, after `steps` steps.
    fn restore_memberships(&mut self, memberships: &[(usize, Membership)], steps: u64) -> Result<()>;
}
