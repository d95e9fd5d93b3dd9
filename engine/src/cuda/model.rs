//! A model in the memory of one GPU or several: training steps, and scores.

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

use super::batch::{Whole, parts};
use super::error::{Error, Result};
use super::evaluation::{EvaluationRoom, JudgedPart, Judgement};
use super::feed::FedBatch;
use super::network::Products;
use super::pieces::{MISSING, pack, unpack};
use super::rank::{Rank, SLOTS, Shape};
use super::trainer::Trainer;
use super::work::PhaseTimes;
use super::workers::Workers;
use crate::guard::StepOutcome;
use crate::job::Precision;
use crate::launch::{Phase, ProcessGroup};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::Overlaps;
use crate::saved::{self, SavedModelError, Weights};
use processes::of_processes;

/// How a model is computed.
#[derive(Debug, Clone)]
pub struct Execution {
    /// What activations and the gradients by them are.
    pub precision: Precision,
    /// Where the algorithms of products come from.
    pub algorithms: Algorithms,
    /// What an iteration does at the same time.
    pub overlaps: Overlaps,
    /// Whether, over ranks, each updates a part of the dense parameters for all.
    pub shard_dense_update: bool,
    /// How long a rank waits for another one before it gives up.
    pub deadline: Duration,
}

impl From<(Precision, Algorithms)> for Execution {
    fn from((precision, algorithms): (Precision, Algorithms)) -> Self {
        let deadline = Duration::from_secs(30);
        Self { precision, algorithms, overlaps: Overlaps::ALL, shard_dense_update: false, deadline }
    }
}

/// What batches a model is made for, and where its tables lie then.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape<'a> {
    /// Samples that a step takes at most, over all GPUs.
    pub batch_size: usize,
    /// Samples that are scored at a time, at most.
    pub score_size: usize,
    /// Of each categorical column: how many ids a bag may hold.
    pub hotness: &'a [schema::Hotness],
    /// Where tables lie over several GPUs: one entry a table of [`TrainingRules::all_tables`]. Without, the rows of
    /// each take turns.
    pub plan: Option<&'a EmbeddingPlan>,
    /// Whether book is kept of the rows that are updated, for checkpoints that are additions.
    pub keeps_book: bool,
}

/// A model whose parts and rules [`super::refusals`] does not refuse.
///
/// On one GPU all is done by the calling thread. Over several each has a thread, its *rank*, which has a replica of the
/// dense parts and its part of the tables, and takes a run of the samples of every batch. What training comes to is the
/// same but for the rounding of sums over samples, which are taken rank by rank.
///
/// Ranks may be spread over processes, of which each has some. All of them are told the same steps, with the whole of
/// each batch; each takes the shares of its own ranks.
#[derive(Debug)]
pub struct CudaModel {
    spec: ModelSpec,
    rules: TrainingRules,
    /// Of each table, those of first-order terms behind the others.
    optimizers: Vec<Optimizer>,
    topology: Topology,
    /// The ranks that are here.
    here: Range<usize>,
    /// Those that have the other ranks.
    processes: Option<ProcessGroup>,
    /// Of the ranks that are here.
    devices: Vec<Arc<Device>>,
    batch_size: usize,
    score_size: usize,
    /// Steps that were begun.
    steps: u64,
    ranks: Ranks,
}

#[derive(Debug)]
enum Ranks {
    One(Box<dyn Rank>),
    Several {
        workers: Workers,
        /// Of the first rank here: all have the same.
        outcomes: (Sender<StepOutcome>, Mutex<Receiver<StepOutcome>>),
    },
}

impl CudaModel {
    /// A model as training starts with it, with the weights that [`crate::cpu::CpuModel::initialized`] gives for the
    /// seed.
    ///
    /// # Errors
    /// Where the GPU's memory does not suffice, or where something of the GPU's fails.
    pub fn initialized(
        device: &Arc<Device>,
        spec: ModelSpec,
        rules: &TrainingRules,
        execution: impl Into<Execution>,
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        device.bind()?;
        let shape = shape_of(batches, 1);
        let rank = make((device, None), execution.into(), (&spec, rules), seed, shape)?;
        let ranks = (Topology::ONE, 0, None, Ranks::One(rank));
        Ok(Self::over((spec, rules), std::slice::from_ref(device), batches, ranks))
    }

    /// This process's rank of the same over processes, each with a GPU, on so many nodes. They all call this.
    ///
    /// # Errors
    /// As [`CudaModel::over_ranks`], and where a process does not come.
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
        let shape = shape_of(batches, count);
        let topology = Topology::new(count, nodes).expect("as many processes a node");
        let clusters = of_processes(std::slice::from_ref(device), nodes, processes, execution.deadline)?;
        let cluster = Arc::new(clusters.into_iter().next().expect("a GPU has a rank"));
        let make = || {
            let of = (device, Some(Arc::clone(&cluster)));
            make(of, execution.clone(), (&spec, rules), seed, shape)
        };
        device.measure(make)?;
        let ranks = (topology, rank, Some(processes.clone()), Ranks::One(make()?));
        Ok(Self::over((spec, rules), std::slice::from_ref(device), batches, ranks))
    }

    /// The same over GPUs, a rank each, on so many nodes: those of a node access each other's memory, and between nodes
    /// NCCL carries. Where there are several processes, each calls this with as many GPUs; else several nodes
    /// are simulated by the GPUs of this one. Each GPU is measured before anything of it is taken. Where a GPU is to
    /// have several ranks it must be opened once for each; over nodes none can.
    ///
    /// # Errors
    /// As [`CudaModel::initialized`], and where GPUs cannot access each other's memory; the rank is named.
    ///
    /// # Panics
    /// Where there is no GPU, or nodes would have unequal numbers of them.
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
        let (plan, shape) = (batches.plan.cloned(), shape_of(batches, count * devices.len()));
        let (samples, score_samples, keeps_book) = (shape.samples, shape.score_samples, shape.keeps_book);
        let make = move |cluster: Cluster| {
            let cluster = Arc::new(cluster);
            let device = cluster.device();
            let shape = Shape { samples, score_samples, hotness: &hotness, plan: plan.as_ref(), keeps_book };
            let make = || {
                let of = (device, Some(Arc::clone(&cluster)));
                make(of, execution.clone(), (&of_spec, &all_rules), seed, shape)
            };
            device.measure(make)?;
            make()
        };
        let clusters = match processes {
            None => Cluster::in_process(devices, nodes, deadline)?,
            Some(processes) => of_processes(devices, nodes, processes, deadline)?,
        };
        let workers = Workers::start(clusters, make)?;
        let (sender, outcomes) = channel();
        let ranks = Ranks::Several { workers, outcomes: (sender, Mutex::new(outcomes)) };
        let topology = Topology::new(count * devices.len(), nodes).expect("as many GPUs a node");
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

    /// The algorithms that its products take.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn tuning(&self) -> Result<Tuning> {
        self.ask_first(|rank| Ok(rank.tuning()))
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The GPUs here that it lies on, in the order of ranks.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// The GPUs here, among how many ranks they are, and the first of theirs: whose shares of a batch come to them.
    pub fn shares(&self) -> (&[Arc<Device>], Topology, usize) {
        (&self.devices, self.topology, self.here.start)
    }

    /// What its memory is for, on the GPU where it takes most.
    ///
    /// # Errors
    /// Where the driver does not say how much is free.
    pub fn budget(&self) -> Result<Budget> {
        let budgets = self.ask_all(|rank| rank.budget())?;
        Ok(budgets.into_iter().max_by_key(Budget::bytes).expect("there is a rank"))
    }

    /// Begins a step of training on a batch; `rate_factor` is what the schedule multiplies every learning rate by.
    /// Waits only where several steps are under way. What they come to is told by [`CudaModel::take_outcomes`].
    ///
    /// # Panics
    /// Where the batch is empty or longer than the model was made for, or its columns are not the model's.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> Result<()> {
        self.step(Whole::Unpacked(batch, 0..batch.len), rate_factor)
    }

    /// The same on a batch that the GPUs unpack, each its part. It is kept until the step is done.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`], and where the batch is of another number of GPUs.
    ///
    /// # Errors
    /// Where something of a GPU's failed, or a batch before has values that its schema does not admit.
    pub fn train_fed(&mut self, batch: &FedBatch, rate_factor: f64) -> Result<()> {
        self.step(Whole::Packed(batch), rate_factor)
    }

    fn step(&mut self, batch: Whole<'_>, rate_factor: f64) -> Result<()> {
        assert!(
            (1..=self.batch_size).contains(&batch.len()),
            "a batch has samples, and no more than there is room for"
        );
        let Self { rules, optimizers, topology, here, ranks, .. } = self;
        let number = self.steps + 1;
        let step = rankine_embedding::Step { number, rate_factor };
        let rates: Vec<_> = optimizers.iter().map(|optimizer| optimizer.at(step).into()).collect();
        let step = Step { number, dense: rules.dense.at(step).into(), ..Step::default() };
        match ranks {
            Ranks::One(rank) => rank.step(batch.only(*topology, here.start), step, &rates)?,
            Ranks::Several { workers, outcomes: (outcomes, _) } => {
                for (rank, batch) in batch.shares(*topology, here.clone()).into_iter().enumerate() {
                    let (rates, outcomes) = (rates.clone(), (rank == 0).then(|| outcomes.clone()));
                    workers.tell(rank, move |rank| {
                        rank.step(batch, step, &rates)?;
                        for outcome in rank.take_outcomes() {
                            // Where nobody takes them any more, nobody misses it.
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

    /// Takes what steps came to that was not taken yet, in their order: what [`crate::cpu::CpuModel::train_step`]
    /// returns for each. Where `all` is set it waits for the last step, and else tells what is known.
    ///
    /// # Errors
    /// Where something of a GPU's failed, and where ids of the batches were out of range.
    pub fn take_outcomes(&mut self, all: bool, mut tell: impl FnMut(StepOutcome)) -> Result<()> {
        let ranks = self.here.len();
        match &mut self.ranks {
            Ranks::One(rank) => {
                if all {
                    rank.finish()?;
                }
                rank.take_outcomes().into_iter().for_each(tell);
            }
            Ranks::Several { workers, outcomes: (_, outcomes) } => {
                let finish = |rank: &mut dyn Rank| {
                    rank.finish()?;
                    Ok(rank.take_outcomes())
                };
                let last =
                    if all { workers.ask_each(vec![finish; ranks])?.swap_remove(0) } else { Vec::new() };
                outcomes.get_mut().unwrap_or_else(PoisonError::into_inner).try_iter().for_each(&mut tell);
                last.into_iter().for_each(tell);
            }
        }
        Ok(())
    }

    /// Steps that were left out so far since gradients were beyond the range of f16, once all steps are done; none in
    /// other precisions.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn skipped_steps(&self) -> Result<Option<u64>> {
        self.ask_first(|rank| rank.skipped_steps())
    }

    /// The ranks whose dense parameters and frequent rows are not those of the first one, once all steps are done.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn diverged_ranks(&self) -> Result<Vec<usize>> {
        let sums = self.ask_all(|rank| rank.checksum())?;
        let sums = self.of_all_processes("the checksums of replicas", sums)?.concat();
        Ok((1..sums.len()).filter(|&rank| sums[rank] != sums[0]).collect())
    }

    /// The moment at which the steps that were begun will be done, on the first GPU.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn mark(&self) -> Result<Moment> {
        self.ask_first(|rank| rank.mark())
    }

    /// Trains so many steps on the batches that lie on the GPUs, each in its turn, and waits for them. As many steps
    /// must have been done as there are places. Their losses are not told.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn repeat_steps(&mut self, count: usize) -> Result<()> {
        self.on_all(move |rank| {
            rank.finish()?;
            rank.time_steps(SLOTS, count).map(drop)
        })?;
        Ok(())
    }

    /// How long each phase of an iteration takes alone on the first GPU, and what that one reaches at most. A step must
    /// have been done. Weights change.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub(crate) fn time_phases(&mut self) -> Result<PhaseTimes> {
        let (spec, rules) = (self.spec.clone(), self.rules.clone());
        Ok(self.on_all(move |rank| rank.time_phases(&spec, &rules))?.swap_remove(0))
    }

    /// Batches that can be on the GPUs at once.
    pub const RESIDENT_BATCHES: usize = SLOTS;

    /// Trains on batches that stay on the GPUs, each in its turn, so often that `count` steps are done; returns how
    /// long each took there, in milliseconds, on the GPU where it took longest. The losses are not told.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`]; and where there are no batches, or more than [`CudaModel::RESIDENT_BATCHES`].
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn time_steps(&mut self, batches: &[Samples], rate_factor: f64, count: usize) -> Result<Vec<f64>> {
        assert!((1..=SLOTS).contains(&batches.len()), "as many batches as there is room for");
        self.on_all(|rank| rank.begin_anew())?;
        for batch in batches {
            self.train_step(batch, rate_factor)?;
        }
        self.on_all(|rank| rank.begin_anew())?;
        self.take_outcomes(false, drop)?;
        let slots = batches.len();
        let of_ranks = self.on_all(move |rank| rank.time_steps(slots, count))?;
        let of_processes =
            of_ranks.into_iter().map(|times| self.of_all_processes("the times of steps", times));
        let of_ranks = of_processes.collect::<Result<Vec<_>>>()?.concat();
        let longest = |step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max);
        Ok((0..count).map(longest).collect())
    }

    /// Appends the logits of each sample that comes to a rank here, one a head.
    ///
    /// # Panics
    /// Where the columns are not the model's.
    ///
    /// # Errors
    /// Where something of a GPU's failed, and where ids were out of range.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        for samples in parts(batch, self.score_size) {
            let batch = Whole::Unpacked(batch, samples);
            match &mut self.ranks {
                Ranks::One(rank) => {
                    out.extend(rank.logits(batch.only(self.topology, self.here.start))?);
                }
                Ranks::Several { workers, .. } => {
                    let shares = batch.shares(self.topology, self.here.clone()).into_iter();
                    let of_ranks = workers
                        .ask_each(shares.map(|batch| move |rank: &mut dyn Rank| rank.logits(batch)))?;
                    of_ranks.iter().for_each(|logits| out.extend(logits));
                }
            }
        }
        self.on_all(|rank| rank.finish())?;
        Ok(())
    }

    /// Begins an evaluation, once all that was begun before is done.
    ///
    /// # Panics
    /// If there are more samples than [`super::CudaEvaluation::fits`] allows, or none.
    ///
    /// # Errors
    /// As [`CudaModel::take_outcomes`], and where memory does not suffice.
    pub fn begin_judging(&mut self, part: JudgedPart) -> Result<()> {
        let JudgedPart { samples, batch_size, weighted } = part;
        // Of each batch a rank has its share, which may be rounded up.
        let own = samples.div_ceil(batch_size) * batch_size.div_ceil(self.topology.ranks());
        let room = EvaluationRoom { samples, own: own.min(samples), weighted };
        self.on_all(move |rank| rank.begin_judging(room))?;
        Ok(())
    }

    /// Enqueues scoring samples and judging the scores.
    ///
    /// # Panics
    /// Where there are more samples than [`CudaModel::score_size`], their columns are not the model's, or no evaluation
    /// was begun.
    ///
    /// # Errors
    /// Where something of a GPU's failed.
    pub fn judge(&mut self, batch: &Samples) -> Result<()> {
        self.judge_whole(Whole::Unpacked(batch, 0..batch.len))
    }

    /// The same of a batch that the GPUs unpack, each its part. It is kept until its scores are judged.
    ///
    /// # Panics
    /// As [`CudaModel::judge`], and where the batch is of another number of GPUs.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`].
    pub fn judge_fed(&mut self, batch: &FedBatch) -> Result<()> {
        self.judge_whole(Whole::Packed(batch))
    }

    fn judge_whole(&mut self, batch: Whole<'_>) -> Result<()> {
        assert!(batch.len() <= self.score_size, "as many samples as are scored at a time");
        match &mut self.ranks {
            Ranks::One(rank) => rank.judge(batch.only(self.topology, self.here.start)),
            Ranks::Several { workers, .. } => {
                let mut shares = batch.shares(self.topology, self.here.clone()).into_iter().enumerate();
                shares.try_for_each(|(rank, batch)| workers.tell(rank, move |rank| rank.judge(batch)))
            }
        }
    }

    /// What an evaluation has come to. Over processes only the first one tells AUCs.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`], and where ids were out of range.
    pub fn finish_judging(&mut self) -> Result<Judgement> {
        Ok(self.on_all(|rank| rank.finish_judging())?.swap_remove(0))
    }

    /// Samples that are scored at a time, at most.
    pub fn score_size(&self) -> usize {
        self.score_size
    }

    /// Has all ranks here do the same at once; what comes of it is in the order of ranks.
    fn on_all<V: Send + 'static>(
        &mut self,
        question: impl Fn(&mut dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &mut self.ranks {
            Ranks::One(rank) => Ok(vec![question(&mut **rank)?]),
            Ranks::Several { workers, .. } => workers.ask_each(vec![question; self.here.len()]),
        }
    }

    /// Values of all processes, in their order, beside those of this one.
    fn of_all_processes<V: Pod>(&self, what: &str, values: Vec<V>) -> Result<Vec<Vec<V>>> {
        let Some(processes) = &self.processes else { return Ok(vec![values]) };
        let all = processes.gather(what, bytemuck::cast_slice(&values))?;
        Ok(all.iter().map(|bytes| bytemuck::pod_collect_to_vec(bytes)).collect())
    }

    /// Asks all ranks here the same.
    fn ask_all<V: Send + 'static>(
        &self,
        question: impl Fn(&dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &self.ranks {
            Ranks::One(rank) => Ok(vec![question(&**rank)?]),
            Ranks::Several { workers, .. } => {
                workers.ask_each(vec![move |rank: &mut dyn Rank| question(rank); self.here.len()])
            }
        }
    }

    /// Asks the first rank here.
    fn ask_first<V: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Rank) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        match &self.ranks {
            Ranks::One(rank) => question(&**rank),
            Ranks::Several { workers, .. } => workers.ask(0, move |rank| question(rank)),
        }
    }
}

/// A rank of a precision.
fn make(
    of: (&Arc<Device>, Option<Arc<Cluster>>),
    Execution { precision, algorithms, overlaps, shard_dense_update, .. }: Execution,
    parts: (&ModelSpec, &TrainingRules),
    seed: u64,
    shape: Shape<'_>,
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

/// What each of so many ranks is made for.
fn shape_of(batches: BatchShape<'_>, ranks: usize) -> Shape<'_> {
    let BatchShape { batch_size, score_size, hotness, plan, keeps_book } = batches;
    let score_samples = score_size.min(batch_size).div_ceil(ranks);
    Shape { samples: batch_size.div_ceil(ranks), score_samples, hotness, plan, keeps_book }
}

/// Over processes, all of them call [`Weights::try_for_each_run`]. The first one is told the weights, to which the
/// others hand what they have; these are told nothing.
impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let is_first = self.processes.as_ref().is_none_or(ProcessGroup::is_first);
        if is_first {
            tell(&self.ask_first(|rank| rank.parameters()).map_err(of_gpu)?)?;
        }
        for (number, (table, _)) in self.rules.all_tables(&self.spec).into_iter().enumerate() {
            saved::for_each_run(&table, |rows, weights| {
                weights.fill(MISSING);
                self.fill((number, rows.clone(), false), (table.dim, weights)).map_err(of_gpu)?;
                if let Some(processes) = &self.processes {
                    hand_in(processes, weights)?;
                    processes.does(Phase::Saving, self.steps);
                }
                // What is listed every process has, and it goes before what others have in its place.
                self.fill((number, rows, true), (table.dim, weights)).map_err(of_gpu)?;
                if is_first { tell(weights) } else { Ok(()) }
            })?;
        }
        Ok(())
    }
}

impl CudaModel {
    /// Fills in what the ranks here have of some rows of a table, `[row][dim]`: of parts whose rows are listed, or of
    /// all others.
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
            passed = workers.ask(rank, move |rank| {
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

/// Hands the weights that are here to the first process, and fills in the others' there.
fn hand_in(processes: &ProcessGroup, weights: &mut [f32]) -> Result<(), SavedModelError> {
    let own = if processes.is_first() { Vec::new() } else { pack(weights) };
    for (place, piece) in processes.collect("the rows of tables", &own)?.iter().enumerate() {
        unpack(piece, weights).ok_or_else(|| {
            SavedModelError::Gpu(format!("rank {} hands in rows of another table", place + 1))
        })?;
    }
    Ok(())
}
