//! A model in the memory of one GPU or several: training steps and scores.

mod pieces;
mod processes;
mod ranks;
mod scores;
mod state;
mod timing;
mod weights;
mod workers;

use std::sync::Arc;

use bytemuck::Pod;
use rankine_cuda::blas::Tuning;
use rankine_cuda::kernels::Step;
use rankine_cuda::{Budget, Device};
use rankine_embedding::cuda::LookUpCounts;
use rankine_embedding::{Optimizer, RankTraffic};
use rankine_model::ModelSpec;
use rankine_model::guard::StepOutcome;
use rankine_reader::Samples;
use rankine_topology::Rank;

use super::batch::GlobalBatch;
use super::error::Result;
use super::feed::{FeedBatch, FeedRanks};
use super::setup::ModelSetup;
use ranks::GpuRanks;

/// A model on GPUs, with parts and rules that [`super::refusals`] accepts.
///
/// On one GPU the calling thread does everything. With several, each GPU has a thread, its *rank*, with a replica of
/// the dense parts and its part of the tables, and takes a range of every batch's samples. The result of training is
/// the same except for the rounding of sums over samples, which are taken rank by rank.
///
/// Ranks may be distributed over processes, each of which has some. All processes call the same steps with the whole
/// of each batch, and each takes the shares of its own ranks.
#[derive(Debug)]
pub struct CudaModel {
    setup: Arc<ModelSetup>,
    /// For each table, with those of first-order terms last.
    optimizers: Vec<Optimizer>,
    /// Steps that were started.
    steps: u64,
    ranks: GpuRanks,
}

impl CudaModel {
    /// Creates a model as it is at the start of training, with the weights that
    /// [`rankine_engine_cpu::CpuModel::initialized`] gives for the seed. With several processes, all of them call this.
    ///
    /// # Errors
    /// If a GPU has too little memory, an operation of a GPU fails, GPUs cannot access each other's memory, or a
    /// process does not take part. With several ranks here, the error names the rank.
    ///
    /// # Panics
    /// If there is no GPU, or nodes would have unequal numbers of them.
    pub fn initialized(setup: ModelSetup) -> Result<Self> {
        let optimizers = setup.model.all_tables().into_iter().map(|(_, optimizer)| optimizer).collect();
        let setup = Arc::new(setup);
        Ok(Self { ranks: GpuRanks::new(&setup)?, setup, optimizers, steps: 0 })
    }

    /// Returns the algorithms that its products use.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn tuning(&self) -> Result<Tuning> {
        self.ranks.call_first(|rank| Ok(rank.tuning()))
    }

    /// Returns the model's spec.
    pub fn spec(&self) -> &ModelSpec {
        &self.setup.model.spec
    }

    /// Returns this process's GPUs, in the order of ranks.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.setup.devices
    }

    /// Returns the ranks of this process, to open their feed.
    pub fn feed_ranks(&self) -> FeedRanks<'_> {
        let (devices, ranks) = (&self.setup.devices, &self.ranks);
        FeedRanks { devices, topology: ranks.topology(), first: ranks.first() }
    }

    /// Returns the memory budgets of this process's GPUs, in the order of ranks.
    ///
    /// # Errors
    /// If the driver does not report the free memory.
    pub fn budgets(&self) -> Result<Vec<Budget>> {
        self.ranks.call_all(|rank| rank.budget())
    }

    /// Starts a training step on a batch; `rate_factor` is the schedule's factor of every learning rate. Waits only if
    /// several steps are in flight. [`CudaModel::take_outcomes`] returns the outcome.
    ///
    /// # Panics
    /// If the batch is empty or longer than the model was made for, or its columns do not match the model.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> Result<()> {
        self.step(GlobalBatch::Unpacked(batch, 0..batch.len), rate_factor)
    }

    /// The same for a batch that the GPUs unpack, each its part. The batch is kept until the step is done.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`], and if the batch is for another number of GPUs.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or an earlier batch has values that its schema does not admit.
    pub fn train_fed(&mut self, batch: &FeedBatch, rate_factor: f64) -> Result<()> {
        self.step(GlobalBatch::Packed(batch), rate_factor)
    }

    fn step(&mut self, batch: GlobalBatch<'_>, rate_factor: f64) -> Result<()> {
        let batch_size = self.setup.batches.batch_size;
        assert!((1..=batch_size).contains(&batch.len()), "a batch has between 1 and {batch_size} samples");
        let number = self.steps + 1;
        let step = rankine_embedding::Step { number, rate_factor };
        let rates: Vec<_> = self.optimizers.iter().map(|optimizer| optimizer.at(step).into()).collect();
        let step = Step { number, dense: self.setup.model.rules.dense.at(step).into(), ..Step::default() };
        self.ranks.step(batch, step, &rates)?;
        self.steps = number;
        Ok(())
    }

    /// Passes the outcomes that were not taken yet to `visit`, in the order of steps: for each the value that
    /// [`rankine_engine_cpu::CpuModel::train_step`] returns. If `all` is set it waits for the last step, otherwise it
    /// passes those that are known.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or ids of the batches were out of range.
    pub fn take_outcomes(&mut self, all: bool, visit: impl FnMut(StepOutcome)) -> Result<()> {
        self.ranks.take_outcomes(all, visit)
    }

    /// Returns the number of steps skipped so far because gradients exceeded the range of f16, after all steps are
    /// done; `None` in other precisions.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn overflow_steps(&self) -> Result<Option<u64>> {
        self.ranks.call_first(|rank| rank.overflow_steps())
    }

    /// Returns the factor of the gradients in fp16, after all steps are done; `None` in other precisions.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn loss_scale(&self) -> Result<Option<f64>> {
        self.ranks.call_first(|rank| rank.loss_scale())
    }

    /// Counts the look-ups of the ranks of this process in a recent batch, table by table, each rank's share by itself,
    /// after all steps are done. Tables whose owners pool have none.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn look_ups(&self) -> Result<Vec<LookUpCounts>> {
        let of_ranks = self.ranks.call_all(|rank| rank.look_ups())?;
        let mut all = vec![LookUpCounts::default(); self.spec().tables.len()];
        for of_rank in of_ranks {
            all.iter_mut().zip(of_rank).for_each(|(all, of_rank)| *all += of_rank);
        }
        Ok(all)
    }

    /// Returns what all ranks, those of other processes too, have sent each other in the training steps of this model,
    /// after all steps are done; zero with one rank. With several processes, all of them call this.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or a process does not take part.
    pub fn traffic(&self) -> Result<RankTraffic> {
        let own = self.ranks.call_all(|rank| rank.traffic())?;
        let mut all = RankTraffic::default();
        let of_ranks = self.of_all_processes("what ranks have sent", own)?.concat();
        of_ranks.into_iter().for_each(|of_rank| all += of_rank);
        Ok(all)
    }

    /// Returns the ranks whose dense parameters or frequent rows differ from those of rank 0, after all steps are
    /// done.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn diverged_ranks(&self) -> Result<Vec<Rank>> {
        let sums = self.ranks.call_all(|rank| rank.checksum())?;
        let sums = self.of_all_processes("the checksums of replicas", sums)?.concat();
        Ok(Rank::first(sums.len()).filter(|rank| sums[rank.0] != sums[0]).collect())
    }

    /// Gathers values from all processes, in their order.
    fn of_all_processes<V: Pod>(&self, what: &str, values: Vec<V>) -> Result<Vec<Vec<V>>> {
        let Some(processes) = &self.setup.processes else { return Ok(vec![values]) };
        let all = processes.gather(what, bytemuck::cast_slice(&values))?;
        Ok(all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
    }
}
