//! A model in the memory of one GPU or several: training steps and scores.

mod pieces;
mod processes;
mod profile;
mod ranks;
mod scores;
mod weights;

use std::sync::Arc;

use bytemuck::Pod;
use rankine_backend::{
    Backend, BackendError, Batch, Batches, DeviceMemory, LookUpCount, MemoryPart, PhaseRun, Profile,
    RankVisit, ReportDetails, ResidentPart,
};
use rankine_checkpoint::{CheckpointError, DeviceState, RankState, StateSource};
use rankine_cuda::kernels::Step;
use rankine_cuda::probe::uuid_text;
use rankine_cuda::{Budget, CopyGate, Device, Part};
use rankine_embedding::cuda::LookUpCounts;
use rankine_embedding::membership::DynamicTableState;
use rankine_embedding::{Optimizer, RankTraffic, TierTraffic};
use rankine_job::{DeviceKind, Job};
use rankine_model::ModelSpec;
use rankine_model::guard::StepOutcome;
use rankine_reader::Samples;
use rankine_reader::dataset::DatasetPart;
use rankine_reader::stream::StreamOptions;
use rankine_topology::Rank;

use super::batch::GlobalBatch;
use super::error::{Error, Result};
use super::feed::{self, FeedRanks};
use super::setup::ModelSetup;
use profile::Measuring;
use ranks::GpuRanks;

/// A model on GPUs, with parts and rules that [`crate::refusals`] accepts.
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
    /// How many training batches have as many samples as are scored at a time.
    scored_batches: usize,
    /// One per GPU of this process; none if copies from the host never wait for transfers between nodes.
    gates: Vec<Arc<CopyGate>>,
    /// The part that was scored last, if its blocks fit on the GPUs: only its first evaluation reads.
    resident: ResidentPart,
    measuring: Measuring,
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
        let gates = setup.copy_gates()?;
        let ranks = GpuRanks::new(&setup, &gates)?;
        Ok(Self {
            setup,
            optimizers,
            steps: 0,
            scored_batches: ranks.call_first(|rank| Ok(rank.scored_batches()))?,
            ranks,
            gates,
            resident: ResidentPart::default(),
            measuring: Measuring::default(),
        })
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
        FeedRanks::of(&self.setup, &self.gates)
    }

    /// Starts a training step on samples that the CPU has unpacked; `rate_factor` is the schedule's factor of every
    /// learning rate. Waits only if several steps are in flight. [`Backend::take_outcomes`] returns the outcome.
    ///
    /// # Panics
    /// If the batch is empty or longer than the model was made for, or its columns do not match the model.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn train_on(&mut self, batch: &Samples, rate_factor: f64) -> Result<()> {
        self.step(GlobalBatch::unpacked(batch, 0..batch.len), rate_factor)
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

    /// Returns how full each dynamic table is, after all steps are done.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn dynamic_tables(&self) -> Result<Vec<DynamicTableState>> {
        self.ranks.call_first(|rank| rank.dynamic_tables())
    }

    /// Gathers values from all processes, in their order.
    fn of_all_processes<V: Pod>(&self, what: &str, values: Vec<V>) -> Result<Vec<Vec<V>>> {
        let Some(processes) = &self.setup.processes else { return Ok(vec![values]) };
        let all = processes.gather(what, bytemuck::cast_slice(&values))?;
        Ok(all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
    }
}

impl Backend for CudaModel {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn scored_at_a_time(&self, _: &Job) -> usize {
        self.score_size()
    }

    fn open(&self, part: DatasetPart, options: &StreamOptions) -> Result<Batches, BackendError> {
        feed::open_batches(self.feed_ranks(), part, options, false)
    }

    fn train_step(&mut self, batch: &Batch, rate_factor: f64) -> Result<(), BackendError> {
        Ok(self.step(GlobalBatch::from(batch), rate_factor)?)
    }

    fn take_outcomes(&mut self, all: bool, visit: &mut dyn FnMut(StepOutcome)) -> Result<(), BackendError> {
        Ok(self.ranks.take_outcomes(all, visit)?)
    }

    fn time_steps(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>, BackendError> {
        Ok(self.time_resident(batches, rate_factor, count)?)
    }

    fn diverged_ranks(&self) -> Result<Vec<Rank>, BackendError> {
        let sums = self.ranks.call_all(|rank| rank.checksum())?;
        let sums = self.of_all_processes("the checksums of replicas", sums)?.concat();
        Ok(Rank::first(sums.len()).filter(|rank| sums[rank.0] != sums[0]).collect())
    }

    fn visit_ranks(&self, visit: RankVisit) -> Result<(), CheckpointError> {
        let topology = self.ranks.topology();
        let visited = self.ranks.call_each(move |rank, model| {
            let dense = model.dense_state(topology, rank)?;
            // All ranks have the same.
            let memberships = if rank == Rank(0) { model.memberships()? } else { Vec::new() };
            let rows = model.rows();
            let memberships = memberships.iter().map(|(table, membership)| (*table, membership)).collect();
            Ok(visit(rank, RankState { dense, rows: &*rows, memberships }))
        });
        visited.map_err(unreachable)?.into_iter().collect()
    }

    fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        let begun = self.ranks.call_all_mut(|rank| rank.begin_tracking());
        begun.map(drop).map_err(unreachable)
    }

    fn restore(&mut self, from: &Arc<dyn StateSource>) -> Result<(), CheckpointError> {
        let (from, dense) = (Arc::clone(from), Arc::new(from.dense()?));
        let memberships = Arc::new(from.memberships()?);
        let steps = from.optimizer_steps();
        self.steps = steps;
        let restored = self.ranks.call_all_mut(move |rank| {
            rank.restore(&dense, from.device())?;
            rank.restore_memberships(&memberships, steps)?;
            let mut rows = rank.rows();
            Ok(from.load_rows(&mut *rows))
        });
        restored.map_err(unreachable)?.into_iter().collect()
    }

    fn device_state(&self) -> Result<Option<DeviceState>, CheckpointError> {
        // All GPUs have the same.
        self.ranks.call_first(|rank| rank.device_state()).map(Some).map_err(unreachable)
    }

    fn tuning(&self) -> Result<Option<String>, BackendError> {
        let record = self.ranks.call_first(|rank| Ok(rank.tuning()))?;
        Ok(Some(serde_json::to_string_pretty(&record).expect("a record is plain data") + "\n"))
    }

    fn memory(&self) -> Result<Vec<DeviceMemory>, BackendError> {
        let part = |part: Part| MemoryPart { purpose: part.purpose.into(), bytes: part.bytes };
        let of_gpu = |(device, budget): (&Arc<Device>, Budget)| {
            Ok(DeviceMemory {
                gpu: device.ordinal(),
                uuid: uuid_text(device.uuid().map_err(Error::from)?),
                parts: budget.parts.into_iter().map(part).collect(),
                free_bytes: budget.free_bytes,
                total_bytes: budget.total_bytes,
            })
        };
        let budgets = self.ranks.call_all(|rank| rank.budget())?;
        self.devices().iter().zip(budgets).map(of_gpu).collect()
    }

    fn overflow_steps(&self) -> Result<Option<u64>, BackendError> {
        Ok(self.ranks.call_first(|rank| rank.overflow_steps())?)
    }

    fn traffic(&self) -> Result<RankTraffic, BackendError> {
        let own = self.ranks.call_all(|rank| rank.traffic())?;
        let mut all = RankTraffic::default();
        let of_ranks = self.of_all_processes("what ranks have sent", own)?.concat();
        of_ranks.into_iter().for_each(|of_rank| all += of_rank);
        Ok(all)
    }

    fn tier_traffic(&self) -> Result<Option<TierTraffic>, BackendError> {
        let of_ranks = self.ranks.call_all(|rank| Ok(rank.tier_traffic()))?;
        Ok(of_ranks.into_iter().flatten().reduce(|mut all, of_rank| {
            all += of_rank;
            all
        }))
    }

    fn report_details(&self, _: &Batch) -> Result<ReportDetails, BackendError> {
        let tables = self.spec().tables.iter().zip(self.look_ups()?);
        let look_ups = tables.map(|(table, LookUpCounts { look_ups, distinct_rows })| LookUpCount {
            table: table.name.clone(),
            look_ups,
            distinct_rows,
        });
        let phases = self.phases()?.into_iter().map(|run| PhaseRun {
            name: run.phase.name().into(),
            begin_ms: run.begin_ms,
            ms: run.ms,
            roofline_ms: run.roofline_ms,
        });
        Ok(ReportDetails {
            loss_scale: self.loss_scale()?,
            exchanged: self.traffic()?.into(),
            look_ups: look_ups.collect(),
            phases: phases.collect(),
            dynamic_tables: self.dynamic_tables()?,
        })
    }

    fn profile(&mut self) -> Option<&mut dyn Profile> {
        Some(self)
    }
}

fn unreachable(error: Error) -> CheckpointError {
    CheckpointError::State(error.to_string())
}
