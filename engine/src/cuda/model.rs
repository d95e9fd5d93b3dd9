//! A model in the memory of one GPU or several: training steps and scores.

mod processes;
mod state;

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytemuck::Pod;
use half::{bf16, f16};
use rankine_cuda::blas::{Algorithms, Compute, Tuning};
use rankine_cuda::kernels::Step;
use rankine_cuda::{Budget, Cluster, Device, Moment};
use rankine_embedding::rows::gather;
use rankine_embedding::{EmbeddingPlan, Optimizer, Topology};
use rankine_reader::Samples;
use rankine_reader::schema;

use super::batch::{GlobalBatch, chunks};
use super::error::{Error, Result};
use super::evaluation::{EvaluationResult, EvaluationShape, EvaluationSizes};
use super::feed::FedBatch;
use super::network::Products;
use super::pieces::{MISSING, pack, unpack};
use super::rank::{Rank, RankShape, SLOTS};
use super::trainer::Trainer;
use super::work::PhaseTimes;
use super::workers::Workers;
use crate::guard::StepOutcome;
use crate::job::Precision;
use crate::launch::{Phase, ProcessGroup};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::Overlaps;
use crate::saved::{self, SavedModelError, Weights};
use processes::connect_processes;

/// The settings of a model's computation.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The type of activations and of the gradients with respect to them.
    pub precision: Precision,
    /// The source of the products' algorithms.
    pub algorithms: Algorithms,
    /// The parts of an iteration that overlap.
    pub overlaps: Overlaps,
    /// Whether, with several ranks, each updates a part of the dense parameters for all.
    pub shard_dense_update: bool,
    /// How long a rank waits for another one before it fails.
    pub deadline: Duration,
}

impl From<(Precision, Algorithms)> for Execution {
    fn from((precision, algorithms): (Precision, Algorithms)) -> Self {
        let deadline = Duration::from_secs(30);
        Self { precision, algorithms, overlaps: Overlaps::ALL, shard_dense_update: false, deadline }
    }
}

/// The batches that a model is made for, and the placement of its tables.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape<'a> {
    /// The most samples of a step, over all GPUs.
    pub batch_size: usize,
    /// The most samples that are scored at a time.
    pub score_size: usize,
    /// For each categorical column, how many ids a bag may hold.
    pub hotness: &'a [schema::Hotness],
    /// The placement of tables over several GPUs: one entry per table of [`TrainingRules::all_tables`]. Without it,
    /// every table is sharded row-wise over all ranks.
    pub plan: Option<&'a EmbeddingPlan>,
    /// Whether updated rows are recorded, for incremental checkpoints.
    pub tracks_updates: bool,
}

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
    spec: ModelSpec,
    rules: TrainingRules,
    /// For each table, with those of first-order terms last.
    optimizers: Vec<Optimizer>,
    topology: Topology,
    /// The ranks of this process.
    here: Range<usize>,
    /// The group of processes that have the other ranks.
    processes: Option<ProcessGroup>,
    /// The GPUs of this process's ranks.
    devices: Vec<Arc<Device>>,
    batch_size: usize,
    score_size: usize,
    /// Steps that were started.
    steps: u64,
    ranks: Ranks,
}

#[derive(Debug)]
enum Ranks {
    One(Box<dyn Rank>),
    Several {
        workers: Workers,
        /// The outcomes of this process's first rank: all ranks have the same.
        outcomes: (Sender<StepOutcome>, Mutex<Receiver<StepOutcome>>),
    },
}

impl CudaModel {
    /// Creates a model as it is at the start of training, with the weights that [`crate::cpu::CpuModel::initialized`]
    /// gives for the seed.
    ///
    /// # Errors
    /// If the GPU has too little memory, or an operation of the GPU fails.
    pub fn initialized(
        device: &Arc<Device>,
        spec: ModelSpec,
        rules: &TrainingRules,
        execution: impl Into<Execution>,
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        device.bind()?;
        let shape = rank_shape(batches, 1);
        let rank = make((device, None), execution.into(), (&spec, rules), seed, shape)?;
        let ranks = (Topology::ONE, 0, None, Ranks::One(rank));
        Ok(Self::over((spec, rules), std::slice::from_ref(device), batches, ranks))
    }

    /// Creates this process's rank of the same model, if each process has one GPU, on `nodes` nodes. All processes
    /// call this.
    ///
    /// # Errors
    /// As [`CudaModel::over_ranks`], and if a process does not take part.
    pub fn of_processes(
        (device, nodes): (&Arc<Device>, usize),
        processes: &ProcessGroup,
        spec: ModelSpec,
        rules: &TrainingRules,
        execution: impl Into<Execution>,
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        let execution = execution.into();
        device.bind()?;
        let (rank, count) = (processes.rank(), processes.size());
        let shape = rank_shape(batches, count);
        let topology = Topology::new(count, nodes).expect("every node has the same number of processes");
        let clusters = connect_processes(std::slice::from_ref(device), nodes, processes, execution.deadline)?;
        let cluster = Arc::new(clusters.into_iter().next().expect("every GPU has a rank"));
        let make = || {
            let of = (device, Some(Arc::clone(&cluster)));
            make(of, execution.clone(), (&spec, rules), seed, shape)
        };
        device.measure(make)?;
        let ranks = (topology, rank, Some(processes.clone()), Ranks::One(make()?));
        Ok(Self::over((spec, rules), std::slice::from_ref(device), batches, ranks))
    }

    /// Creates the same model over GPUs, one rank each, on `nodes` nodes: GPUs of a node access each other's memory,
    /// and NCCL transfers data between nodes. If there are several processes, each calls this with the same number of
    /// GPUs; otherwise the GPUs of this process simulate several nodes. Each GPU is measured before any of its memory
    /// is used. For several ranks on one GPU, open it once per rank; with several nodes this is not possible.
    ///
    /// # Errors
    /// As [`CudaModel::initialized`], and if GPUs cannot access each other's memory; the error names the rank.
    ///
    /// # Panics
    /// If there is no GPU, or nodes would have unequal numbers of them.
    pub fn over_ranks(
        (devices, nodes, processes): (&[Arc<Device>], usize, Option<&ProcessGroup>),
        spec: ModelSpec,
        rules: &TrainingRules,
        execution: impl Into<Execution>,
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        let execution = execution.into();
        let deadline = execution.deadline;
        let (process, count) = processes.map_or((0, 1), |processes| (processes.rank(), processes.size()));
        if let ([device], 1) = (devices, count) {
            let make = || Self::initialized(device, spec.clone(), rules, execution.clone(), seed, batches);
            device.bind()?;
            device.measure(make)?;
            return make();
        }
        let (hotness, all_rules, of_spec) = (batches.hotness.to_vec(), rules.clone(), spec.clone());
        let (plan, shape) = (batches.plan.cloned(), rank_shape(batches, count * devices.len()));
        let (samples, score_samples, tracks_updates) =
            (shape.samples, shape.score_samples, shape.tracks_updates);
        let make = move |cluster: Cluster| {
            let cluster = Arc::new(cluster);
            let device = cluster.device();
            let shape =
                RankShape { samples, score_samples, hotness: &hotness, plan: plan.as_ref(), tracks_updates };
            let make = || {
                let of = (device, Some(Arc::clone(&cluster)));
                make(of, execution.clone(), (&of_spec, &all_rules), seed, shape)
            };
            device.measure(make)?;
            make()
        };
        let clusters = match processes {
            None => Cluster::in_process(devices, nodes, deadline)?,
            Some(processes) => connect_processes(devices, nodes, processes, deadline)?,
        };
        let workers = Workers::start(clusters, make)?;
        let (sender, outcomes) = channel();
        let ranks = Ranks::Several { workers, outcomes: (sender, Mutex::new(outcomes)) };
        let topology =
            Topology::new(count * devices.len(), nodes).expect("every node has the same number of GPUs");
        let ranks = (topology, process * devices.len(), processes.cloned(), ranks);
        Ok(Self::over((spec, rules), devices, batches, ranks))
    }

    fn over(
        (spec, rules): (ModelSpec, &TrainingRules),
        devices: &[Arc<Device>],
        BatchShape { batch_size, score_size, .. }: BatchShape<'_>,
        (topology, first, processes, ranks): (Topology, usize, Option<ProcessGroup>, Ranks),
    ) -> Self {
        let optimizers = rules.all_tables(&spec).into_iter().map(|(_, optimizer)| optimizer).collect();
        Self {
            spec,
            rules: rules.clone(),
            optimizers,
            topology,
            here: first..first + devices.len(),
            processes,
            devices: devices.to_vec(),
            batch_size,
            score_size: score_size.min(batch_size),
            steps: 0,
            ranks,
        }
    }

    /// Returns the algorithms that its products use.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn tuning(&self) -> Result<Tuning> {
        self.call_first(|rank| Ok(rank.tuning()))
    }

    /// Returns the model's spec.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns this process's GPUs, in the order of ranks.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// Returns this process's GPUs, the topology of all ranks, and this process's first rank: they determine which
    /// shares of a batch these GPUs receive.
    pub fn shares(&self) -> (&[Arc<Device>], Topology, usize) {
        (&self.devices, self.topology, self.here.start)
    }

    /// Returns the memory budget of the GPU that uses most.
    ///
    /// # Errors
    /// If the driver does not report the free memory.
    pub fn budget(&self) -> Result<Budget> {
        let budgets = self.call_all(|rank| rank.budget())?;
        Ok(budgets.into_iter().max_by_key(Budget::bytes).expect("every model has a rank"))
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
    pub fn train_fed(&mut self, batch: &FedBatch, rate_factor: f64) -> Result<()> {
        self.step(GlobalBatch::Packed(batch), rate_factor)
    }

    fn step(&mut self, batch: GlobalBatch<'_>, rate_factor: f64) -> Result<()> {
        assert!(
            (1..=self.batch_size).contains(&batch.len()),
            "a batch has between 1 and {} samples",
            self.batch_size
        );
        let Self { rules, optimizers, topology, here, ranks, .. } = self;
        let number = self.steps + 1;
        let step = rankine_embedding::Step { number, rate_factor };
        let rates: Vec<_> = optimizers.iter().map(|optimizer| optimizer.at(step).into()).collect();
        let step = Step { number, dense: rules.dense.at(step).into(), ..Step::default() };
        match ranks {
            Ranks::One(rank) => rank.step(batch.share(*topology, here.start), step, &rates)?,
            Ranks::Several { workers, outcomes: (outcomes, _) } => {
                for (rank, batch) in batch.shares(*topology, here.clone()).into_iter().enumerate() {
                    let (rates, outcomes) = (rates.clone(), (rank == 0).then(|| outcomes.clone()));
                    workers.send(rank, move |rank| {
                        rank.step(batch, step, &rates)?;
                        for outcome in rank.take_outcomes() {
                            // If the receiver has gone, nobody needs the outcome.
                            let _ = outcomes.as_ref().map(|outcomes| outcomes.send(outcome));
                        }
                        Ok(())
                    })?;
                }
            }
        }
        self.steps = number;
        Ok(())
    }

    /// Passes the outcomes that were not taken yet to `visit`, in the order of steps: for each the value that
    /// [`crate::cpu::CpuModel::train_step`] returns. If `all` is set it waits for the last step, otherwise it passes
    /// those that are known.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or ids of the batches were out of range.
    pub fn take_outcomes(&mut self, all: bool, mut visit: impl FnMut(StepOutcome)) -> Result<()> {
        let ranks = self.here.len();
        match &mut self.ranks {
            Ranks::One(rank) => {
                if all {
                    rank.finish()?;
                }
                rank.take_outcomes().into_iter().for_each(visit);
            }
            Ranks::Several { workers, outcomes: (_, outcomes) } => {
                let finish = |rank: &mut dyn Rank| {
                    rank.finish()?;
                    Ok(rank.take_outcomes())
                };
                let last =
                    if all { workers.call_each(vec![finish; ranks])?.swap_remove(0) } else { Vec::new() };
                outcomes.get_mut().unwrap_or_else(PoisonError::into_inner).try_iter().for_each(&mut visit);
                last.into_iter().for_each(visit);
            }
        }
        Ok(())
    }

    /// Returns the number of steps skipped so far because gradients exceeded the range of f16, after all steps are
    /// done; `None` in other precisions.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn skipped_steps(&self) -> Result<Option<u64>> {
        self.call_first(|rank| rank.skipped_steps())
    }

    /// Returns the ranks whose dense parameters or frequent rows differ from those of rank 0, after all steps are
    /// done.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn diverged_ranks(&self) -> Result<Vec<usize>> {
        let sums = self.call_all(|rank| rank.checksum())?;
        let sums = self.of_all_processes("the checksums of replicas", sums)?.concat();
        Ok((1..sums.len()).filter(|&rank| sums[rank] != sums[0]).collect())
    }

    /// Returns the moment at which the started steps will be done, on the first GPU.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn mark(&self) -> Result<Moment> {
        self.call_first(|rank| rank.mark())
    }

    /// Trains `count` steps on the batches that are in the GPUs' slots, in turn, and waits for them. At least as many
    /// steps must have been done as there are slots. Their losses are not reported.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn repeat_steps(&mut self, count: usize) -> Result<()> {
        self.call_all_mut(move |rank| {
            rank.finish()?;
            rank.time_steps(SLOTS, count).map(drop)
        })?;
        Ok(())
    }

    /// Measures how long each phase of an iteration takes by itself on the first GPU, and that GPU's peak rates. At
    /// least one step must have been done. Changes the weights.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub(crate) fn time_phases(&mut self) -> Result<PhaseTimes> {
        let (spec, rules) = (self.spec.clone(), self.rules.clone());
        Ok(self.call_all_mut(move |rank| rank.time_phases(&spec, &rules))?.swap_remove(0))
    }

    /// The number of batches that can be on the GPUs at once.
    pub const RESIDENT_BATCHES: usize = SLOTS;

    /// Trains `count` steps on batches that stay on the GPUs, in turn; returns the milliseconds of each step on the
    /// GPU where it took longest. The losses are not reported.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`]; and if there are no batches, or more than [`CudaModel::RESIDENT_BATCHES`].
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn time_steps(&mut self, batches: &[Samples], rate_factor: f64, count: usize) -> Result<Vec<f64>> {
        assert!((1..=SLOTS).contains(&batches.len()), "between 1 and {SLOTS} batches fit");
        self.call_all_mut(|rank| rank.restart())?;
        for batch in batches {
            self.train_step(batch, rate_factor)?;
        }
        self.call_all_mut(|rank| rank.restart())?;
        self.take_outcomes(false, drop)?;
        let slots = batches.len();
        let of_ranks = self.call_all_mut(move |rank| rank.time_steps(slots, count))?;
        let of_processes =
            of_ranks.into_iter().map(|times| self.of_all_processes("the times of steps", times));
        let of_ranks = of_processes.collect::<Result<Vec<_>>>()?.concat();
        let longest = |step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max);
        Ok((0..count).map(longest).collect())
    }

    /// Appends the logits of each sample in the shares of this process's ranks, one per head.
    ///
    /// # Panics
    /// If the columns do not match the model.
    ///
    /// # Errors
    /// If an operation of a GPU failed, or ids were out of range.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        for samples in chunks(batch, self.score_size) {
            let batch = GlobalBatch::Unpacked(batch, samples);
            match &mut self.ranks {
                Ranks::One(rank) => {
                    out.extend(rank.logits(batch.share(self.topology, self.here.start))?);
                }
                Ranks::Several { workers, .. } => {
                    let shares = batch.shares(self.topology, self.here.clone()).into_iter();
                    let of_ranks = workers
                        .call_each(shares.map(|batch| move |rank: &mut dyn Rank| rank.logits(batch)))?;
                    of_ranks.iter().for_each(|logits| out.extend(logits));
                }
            }
        }
        self.call_all_mut(|rank| rank.finish())?;
        Ok(())
    }

    /// Starts an evaluation, after all work started before is done.
    ///
    /// # Panics
    /// If there are more samples than [`super::CudaEvaluation::fits`] allows, or none.
    ///
    /// # Errors
    /// As [`CudaModel::take_outcomes`], and if there is too little memory.
    pub fn begin_evaluation(&mut self, part: EvaluationShape) -> Result<()> {
        let EvaluationShape { samples, batch_size, weighted } = part;
        // A rank's share of each batch may be rounded up.
        let own = samples.div_ceil(batch_size) * batch_size.div_ceil(self.topology.ranks());
        let sizes = EvaluationSizes { samples, own: own.min(samples), weighted };
        self.call_all_mut(move |rank| rank.begin_evaluation(sizes))?;
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
    pub fn evaluate_fed(&mut self, batch: &FedBatch) -> Result<()> {
        self.evaluate_batch(GlobalBatch::Packed(batch))
    }

    fn evaluate_batch(&mut self, batch: GlobalBatch<'_>) -> Result<()> {
        assert!(batch.len() <= self.score_size, "at most {} samples are scored at a time", self.score_size);
        match &mut self.ranks {
            Ranks::One(rank) => rank.evaluate(batch.share(self.topology, self.here.start)),
            Ranks::Several { workers, .. } => {
                let mut shares = batch.shares(self.topology, self.here.clone()).into_iter().enumerate();
                shares.try_for_each(|(rank, batch)| workers.send(rank, move |rank| rank.evaluate(batch)))
            }
        }
    }

    /// Returns the result of an evaluation. With several processes, only the first one gets AUCs.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`], and if ids were out of range.
    pub fn finish_evaluation(&mut self) -> Result<EvaluationResult> {
        Ok(self.call_all_mut(|rank| rank.finish_evaluation())?.swap_remove(0))
    }

    /// Returns the most samples that are scored at a time.
    pub fn score_size(&self) -> usize {
        self.score_size
    }

    /// Runs the same function on all ranks of this process in parallel; returns the results in the order of ranks.
    fn call_all_mut<V: Send + 'static>(
        &mut self,
        function: impl Fn(&mut dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &mut self.ranks {
            Ranks::One(rank) => Ok(vec![function(&mut **rank)?]),
            Ranks::Several { workers, .. } => workers.call_each(vec![function; self.here.len()]),
        }
    }

    /// Gathers values from all processes, in their order.
    fn of_all_processes<V: Pod>(&self, what: &str, values: Vec<V>) -> Result<Vec<Vec<V>>> {
        let Some(processes) = &self.processes else { return Ok(vec![values]) };
        let all = processes.gather(what, bytemuck::cast_slice(&values))?;
        Ok(all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
    }

    /// Runs the same function on all ranks of this process, without changing them.
    fn call_all<V: Send + 'static>(
        &self,
        function: impl Fn(&dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &self.ranks {
            Ranks::One(rank) => Ok(vec![function(&**rank)?]),
            Ranks::Several { workers, .. } => {
                workers.call_each(vec![move |rank: &mut dyn Rank| function(rank); self.here.len()])
            }
        }
    }

    /// Runs a function on the first rank of this process.
    fn call_first<V: Send + 'static>(
        &self,
        function: impl FnOnce(&dyn Rank) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        match &self.ranks {
            Ranks::One(rank) => function(&**rank),
            Ranks::Several { workers, .. } => workers.call(0, move |rank| function(rank)),
        }
    }
}

/// Creates a rank for a precision.
fn make(
    of: (&Arc<Device>, Option<Arc<Cluster>>),
    Execution { precision, algorithms, overlaps, shard_dense_update, .. }: Execution,
    parts: (&ModelSpec, &TrainingRules),
    seed: u64,
    shape: RankShape<'_>,
) -> Result<Box<dyn Rank>> {
    let fp8 = precision == Precision::Fp8;
    let products = |compute| (Products { compute, fp8, algorithms, shard_dense_update }, overlaps);
    Ok(match precision {
        Precision::Fp32 => Box::new(Trainer::<f32>::new(of, products(Compute::F32), parts, seed, shape)?),
        Precision::Tf32 => Box::new(Trainer::<f32>::new(of, products(Compute::Tf32), parts, seed, shape)?),
        Precision::Bf16 | Precision::Fp8 => {
            Box::new(Trainer::<bf16>::new(of, products(Compute::Bf16), parts, seed, shape)?)
        }
        Precision::Fp16 => Box::new(Trainer::<f16>::new(of, products(Compute::F16), parts, seed, shape)?),
    })
}

/// Returns the sizes for each of `ranks` ranks.
fn rank_shape(batches: BatchShape<'_>, ranks: usize) -> RankShape<'_> {
    let BatchShape { batch_size, score_size, hotness, plan, tracks_updates } = batches;
    let score_samples = score_size.min(batch_size).div_ceil(ranks);
    RankShape { samples: batch_size.div_ceil(ranks), score_samples, hotness, plan, tracks_updates }
}

/// With several processes, all of them call [`Weights::try_for_each_run`]. The others send their weights to the first
/// process, and only that one calls `visit`.
impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let is_first = self.processes.as_ref().is_none_or(ProcessGroup::is_first);
        if is_first {
            visit(&self.call_first(|rank| rank.parameters()).map_err(of_gpu)?)?;
        }
        for (number, (table, _)) in self.rules.all_tables(&self.spec).into_iter().enumerate() {
            saved::for_each_run(&table, |rows, weights| {
                weights.fill(MISSING);
                self.fill((number, rows.clone(), false), (table.dim, weights)).map_err(of_gpu)?;
                if let Some(processes) = &self.processes {
                    send_weights(processes, weights)?;
                    processes.does(Phase::Saving, self.steps);
                }
                // Listed rows are on every process; they replace what others have at their position.
                self.fill((number, rows, true), (table.dim, weights)).map_err(of_gpu)?;
                if is_first { visit(weights) } else { Ok(()) }
            })?;
        }
        Ok(())
    }
}

impl CudaModel {
    /// Fills in the rows of a table, `[row][dim]`, that this process's ranks have: of parts whose rows are listed, or
    /// of all others.
    fn fill(
        &self,
        (table, rows, listed): (usize, Range<u64>, bool),
        (dim, weights): (usize, &mut [f32]),
    ) -> Result<()> {
        let fill = move |rank: &dyn Rank, weights: &mut [f32]| {
            gather(&*rank.rows(), table, rows.clone(), listed, (dim, weights)).map_err(Error::State)
        };
        let workers = match &self.ranks {
            Ranks::One(rank) => return fill(&**rank, weights),
            Ranks::Several { workers, .. } => workers,
        };
        let mut passed = weights.to_vec();
        for rank in 0..self.here.len() {
            let fill = fill.clone();
            passed = workers.call(rank, move |rank| {
                fill(rank, &mut passed)?;
                Ok(passed)
            })?;
        }
        weights.copy_from_slice(&passed);
        Ok(())
    }
}

fn of_gpu(error: Error) -> SavedModelError {
    SavedModelError::Gpu(error.to_string())
}

/// Sends this process's weights to the first process, which fills in the others'.
fn send_weights(processes: &ProcessGroup, weights: &mut [f32]) -> Result<(), SavedModelError> {
    let own = if processes.is_first() { Vec::new() } else { pack(weights) };
    for (sender, piece) in processes.collect("the rows of tables", &own)?.iter().enumerate() {
        unpack(piece, weights)
            .ok_or_else(|| SavedModelError::Gpu(format!("rank {} sent rows of another table", sender + 1)))?;
    }
    Ok(())
}
