//! A model in the memory of one GPU or several: training steps, and scores.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use half::{bf16, f16};
use rankine_cuda::blas::{Algorithms, Compute, Tuning};
use rankine_cuda::kernels::Step;
use rankine_cuda::{Budget, Device, Moment, Peers};
use rankine_embedding::rows::gather;
use rankine_embedding::{EmbeddingPlan, Optimizer, Topology};
use rankine_reader::Samples;
use rankine_reader::schema;

use super::batch::{Whole, parts};
use super::error::{Error, Result};
use super::evaluation::Judgement;
use super::feed::FedBatch;
use super::network::Products;
use super::rank::{Rank, SLOTS, Shape};
use super::trainer::Trainer;
use super::work::PhaseTimes;
use super::workers::Workers;
use crate::checkpoint::{Checkpoint, CheckpointError, DenseState, DeviceState, RankState};
use crate::job::Precision;
use crate::model::{ModelSpec, TrainingRules};
use crate::saved::{self, SavedModelError, Weights};

/// How long a rank waits for another one before it gives up.
const DEADLINE: Duration = Duration::from_secs(30);

/// What batches a model is made for, and where its tables lie then.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape<'a> {
    /// Samples that a step takes at most, over all GPUs.
    pub batch_size: usize,
    /// Samples that are scored at a time, at most.
    pub score_size: usize,
    /// Of each categorical column: how many ids a bag may hold.
    pub hotness: &'a [schema::Hotness],
    /// Where tables lie over several GPUs: one entry a table of [`TrainingRules::all_tables`]. Without, the rows of each
    /// take turns.
    pub plan: Option<&'a EmbeddingPlan>,
    /// Whether book is kept of the rows that are updated, for checkpoints that are additions.
    pub keeps_book: bool,
}

/// A model whose parts and rules [`super::refusals`] does not refuse.
///
/// On one GPU all is done by the calling thread. Over several each has a thread, its *rank*, which has a replica of the
/// dense parts and its part of the tables, and takes a run of the samples of every batch. What training comes to is the
/// same but for the rounding of sums over samples, which are taken rank by rank.
#[derive(Debug)]
pub struct CudaModel {
    spec: ModelSpec,
    rules: TrainingRules,
    /// Of each table, those of first-order terms behind the others.
    optimizers: Vec<Optimizer>,
    topology: Topology,
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
        /// Of the first rank: all have the same.
        losses: (Sender<f64>, Mutex<Receiver<f64>>),
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
        (precision, algorithms): (Precision, Algorithms),
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        device.bind()?;
        let shape = shape_of(batches, 1);
        let rank = make((device, None), (precision, algorithms), (&spec, rules), seed, shape)?;
        Ok(Self::over((spec, rules), std::slice::from_ref(device), batches, Ranks::One(rank)))
    }

    /// The same over GPUs that access each other's memory, a rank each. Each is measured before anything of it is
    /// taken. Where a GPU is to have several ranks it must be opened once for each.
    ///
    /// # Errors
    /// As [`CudaModel::initialized`], and where GPUs cannot access each other's memory; the rank is named.
    ///
    /// # Panics
    /// Where there is no GPU.
    pub fn over_ranks(
        devices: &[Arc<Device>],
        spec: ModelSpec,
        rules: &TrainingRules,
        (precision, algorithms): (Precision, Algorithms),
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        if let [device] = devices {
            let make = || {
                let products = (precision, algorithms.clone());
                Self::initialized(device, spec.clone(), rules, products, seed, batches)
            };
            device.bind()?;
            device.measure(make)?;
            return make();
        }
        let (hotness, all_rules, of_spec) = (batches.hotness.to_vec(), rules.clone(), spec.clone());
        let (plan, shape) = (batches.plan.cloned(), shape_of(batches, devices.len()));
        let (samples, score_samples, keeps_book) = (shape.samples, shape.score_samples, shape.keeps_book);
        let make = move |peers: Peers| {
            let peers = Arc::new(peers);
            let device = peers.device();
            let shape = Shape { samples, score_samples, hotness: &hotness, plan: plan.as_ref(), keeps_book };
            let make = || {
                let of = (device, Some(Arc::clone(&peers)));
                make(of, (precision, algorithms.clone()), (&of_spec, &all_rules), seed, shape)
            };
            device.measure(make)?;
            make()
        };
        let workers = Workers::start(Peers::in_process(devices, DEADLINE)?, make)?;
        let (sender, losses) = channel();
        let ranks = Ranks::Several { workers, losses: (sender, Mutex::new(losses)) };
        Ok(Self::over((spec, rules), devices, batches, ranks))
    }

    fn over(
        (spec, rules): (ModelSpec, &TrainingRules),
        devices: &[Arc<Device>],
        BatchShape { batch_size, score_size, .. }: BatchShape<'_>,
        ranks: Ranks,
    ) -> Self {
        let optimizers = rules.all_tables(&spec).into_iter().map(|(_, optimizer)| optimizer).collect();
        Self {
            spec,
            rules: rules.clone(),
            optimizers,
            topology: Topology::new(devices.len(), 1).expect("there is a GPU"),
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

    /// The GPUs that it lies on, in the order of ranks.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
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
    /// Waits only where several steps are under way. Losses come by [`CudaModel::take_losses`].
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
        let Self { rules, optimizers, topology, ranks, .. } = self;
        let number = self.steps + 1;
        let step = rankine_embedding::Step { number, rate_factor };
        let rates: Vec<_> = optimizers.iter().map(|optimizer| optimizer.at(step).into()).collect();
        let step = Step { number, dense: rules.dense.at(step).into(), ..Step::default() };
        match ranks {
            Ranks::One(rank) => rank.step(batch.only(), step, &rates)?,
            Ranks::Several { workers, losses: (losses, _) } => {
                for (rank, batch) in batch.shares(*topology).into_iter().enumerate() {
                    let (rates, losses) = (rates.clone(), (rank == 0).then(|| losses.clone()));
                    workers.tell(rank, move |rank| {
                        rank.step(batch, step, &rates)?;
                        for loss in rank.take_losses() {
                            // Where nobody takes losses any more, nobody misses it.
                            let _ = losses.as_ref().map(|losses| losses.send(loss));
                        }
                        Ok(())
                    })?;
                }
            }
        }
        self.steps = number;
        Ok(())
    }

    /// Takes the losses of steps whose losses were not taken yet, in their order: what
    /// [`crate::cpu::CpuModel::train_step`] returns for each. Where `all` is set it waits for the last step, and else
    /// tells those alone that are known.
    ///
    /// # Errors
    /// Where something of a GPU's failed, and where ids of the batches were out of range.
    pub fn take_losses(&mut self, all: bool, mut tell: impl FnMut(f64)) -> Result<()> {
        let ranks = self.topology.ranks();
        match &mut self.ranks {
            Ranks::One(rank) => {
                if all {
                    rank.finish()?;
                }
                rank.take_losses().into_iter().for_each(tell);
            }
            Ranks::Several { workers, losses: (_, losses) } => {
                let finish = |rank: &mut dyn Rank| {
                    rank.finish()?;
                    Ok(rank.take_losses())
                };
                let last =
                    if all { workers.ask_each(vec![finish; ranks])?.swap_remove(0) } else { Vec::new() };
                losses.get_mut().unwrap_or_else(PoisonError::into_inner).try_iter().for_each(&mut tell);
                last.into_iter().for_each(tell);
            }
        }
        Ok(())
    }

    /// Steps that were left out so far since gradients were beyond the range of f16, once all steps are done; none in
    /// other precisions, in which such a step is the last one.
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
        self.take_losses(false, drop)?;
        let slots = batches.len();
        let of_ranks = self.on_all(move |rank| rank.time_steps(slots, count))?;
        let longest = |step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max);
        Ok((0..count).map(longest).collect())
    }

    /// Appends the logits of each sample, one a head.
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
                Ranks::One(rank) => out.extend(rank.logits(batch.only())?),
                Ranks::Several { workers, .. } => {
                    let shares = batch.shares(self.topology).into_iter();
                    let of_ranks = workers
                        .ask_each(shares.map(|batch| move |rank: &mut dyn Rank| rank.logits(batch)))?;
                    of_ranks.iter().for_each(|logits| out.extend(logits));
                }
            }
        }
        self.on_all(|rank| rank.finish())?;
        Ok(())
    }

    /// Begins an evaluation, once all that was begun before is done: of so many samples, in batches of one size but for
    /// the last of them.
    ///
    /// # Panics
    /// Where there are more samples than [`super::CudaEvaluation::fits`] allows, or none.
    ///
    /// # Errors
    /// As [`CudaModel::take_losses`], and where memory does not suffice.
    pub fn begin_judging(&mut self, samples: usize, batch_size: usize) -> Result<()> {
        // Of each batch a rank has its share, which may be rounded up.
        let own = samples.div_ceil(batch_size) * batch_size.div_ceil(self.topology.ranks());
        self.on_all(move |rank| rank.begin_judging(samples, own.min(samples)))?;
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
            Ranks::One(rank) => rank.judge(batch.only()),
            Ranks::Several { workers, .. } => {
                let mut shares = batch.shares(self.topology).into_iter().enumerate();
                shares.try_for_each(|(rank, batch)| workers.tell(rank, move |rank| rank.judge(batch)))
            }
        }
    }

    /// What an evaluation has come to.
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

    /// Collects the weights of some rows of a table, `[row][dim]`, from all ranks.
    fn gather(&self, table: usize, rows: Range<u64>, (dim, weights): (usize, &mut [f32])) -> Result<()> {
        let fill = |rank: &dyn Rank, rows: Range<u64>, listed, weights: &mut [f32]| {
            gather(&*rank.rows(), table, rows, listed, (dim, weights)).map_err(Error::State)
        };
        for listed in [false, true] {
            match &self.ranks {
                Ranks::One(rank) => fill(&**rank, rows.clone(), listed, weights)?,
                Ranks::Several { workers, .. } => {
                    let mut passed = weights.to_vec();
                    for rank in 0..self.topology.ranks() {
                        let rows = rows.clone();
                        passed = workers.ask(rank, move |rank| {
                            fill(rank, rows, listed, &mut passed)?;
                            Ok(passed)
                        })?;
                    }
                    weights.copy_from_slice(&passed);
                }
            }
        }
        Ok(())
    }

    /// Lets `visit` see what each rank has, all at once, once all steps are done; returns what it returns, in the order
    /// of ranks.
    ///
    /// # Errors
    /// The first that `visit` returns; [`CheckpointError::State`] where something of a GPU's failed.
    pub(crate) fn on_each_rank<V: Send + 'static>(
        &self,
        visit: impl Fn(usize, RankState<'_>) -> Result<V, CheckpointError> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<V>, CheckpointError> {
        let topology = self.topology;
        let question = |number| {
            let visit = visit.clone();
            move |rank: &dyn Rank| {
                let dense = rank.dense_state()?;
                let own = topology.part(dense.parameters.len(), number);
                let state = dense.state.iter().map(|kind| kind[own.clone()].to_vec()).collect();
                let parameters = dense.parameters[own.clone()].to_vec();
                let rows = rank.rows();
                let dense = DenseState { first: own.start, parameters, state };
                Ok(visit(number, RankState { dense, rows: &*rows }))
            }
        };
        let found = match &self.ranks {
            Ranks::One(rank) => question(0)(&**rank).map(|found| vec![found]),
            Ranks::Several { workers, .. } => {
                let questions = (0..topology.ranks()).map(question);
                workers.ask_each(questions.map(|question| move |rank: &mut dyn Rank| question(rank)))
            }
        };
        found.map_err(unreachable)?.into_iter().collect()
    }

    /// What is kept beside parameters, on the first GPU: all have the same.
    ///
    /// # Errors
    /// [`CheckpointError::State`].
    pub(crate) fn device_state(&self) -> Result<DeviceState, CheckpointError> {
        self.ask_first(|rank| rank.device_state()).map_err(unreachable)
    }

    /// Keeps book, from now on, of which rows are updated.
    ///
    /// # Errors
    /// [`CheckpointError::State`], also where the model was not made for it.
    pub(crate) fn begin_tracking(&mut self) -> Result<(), CheckpointError> {
        let begun = self.on_all(|rank| rank.rows().begin_tracking().map_err(Error::State));
        begun.map(drop).map_err(unreachable)
    }

    /// Goes on where a checkpoint was, which has these dense parameters.
    ///
    /// # Errors
    /// [`CheckpointError`]; the model is of no use then.
    pub(crate) fn restore(
        &mut self,
        from: &Arc<Checkpoint>,
        dense: &Arc<DenseState>,
    ) -> Result<(), CheckpointError> {
        self.steps = from.manifest().train.step;
        let (from, dense) = (Arc::clone(from), Arc::clone(dense));
        let loaded = self.on_all(move |rank| {
            rank.restore(&dense, from.manifest().device.as_ref())?;
            let mut rows = rank.rows();
            Ok(from.load_rows(&mut *rows))
        });
        loaded.map_err(unreachable)?.into_iter().collect()
    }

    /// Has all ranks do the same at once; what comes of it is in the order of ranks.
    fn on_all<V: Send + 'static>(
        &mut self,
        question: impl Fn(&mut dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &mut self.ranks {
            Ranks::One(rank) => Ok(vec![question(&mut **rank)?]),
            Ranks::Several { workers, .. } => workers.ask_each(vec![question; self.topology.ranks()]),
        }
    }

    /// Asks all ranks the same.
    fn ask_all<V: Send + 'static>(
        &self,
        question: impl Fn(&dyn Rank) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &self.ranks {
            Ranks::One(rank) => Ok(vec![question(&**rank)?]),
            Ranks::Several { workers, .. } => {
                workers.ask_each(vec![move |rank: &mut dyn Rank| question(rank); self.topology.ranks()])
            }
        }
    }

    /// Asks the first rank.
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
    of: (&Arc<Device>, Option<Arc<Peers>>),
    (precision, algorithms): (Precision, Algorithms),
    parts: (&ModelSpec, &TrainingRules),
    seed: u64,
    shape: Shape<'_>,
) -> Result<Box<dyn Rank>> {
    let products = |compute| Products { compute, fp8: precision == Precision::Fp8, algorithms };
    Ok(match precision {
        Precision::Fp32 => Box::new(Trainer::<f32>::new(of, products(Compute::F32), parts, seed, shape)?),
        Precision::Tf32 => Box::new(Trainer::<f32>::new(of, products(Compute::Tf32), parts, seed, shape)?),
        Precision::Bf16 | Precision::Fp8 => {
            Box::new(Trainer::<bf16>::new(of, products(Compute::Bf16), parts, seed, shape)?)
        }
        Precision::Fp16 => Box::new(Trainer::<f16>::new(of, products(Compute::F16), parts, seed, shape)?),
    })
}

fn unreachable(error: Error) -> CheckpointError {
    CheckpointError::State(error.to_string())
}

/// What each of so many ranks is made for.
fn shape_of(batches: BatchShape<'_>, ranks: usize) -> Shape<'_> {
    let BatchShape { batch_size, score_size, hotness, plan, keeps_book } = batches;
    let score_samples = score_size.min(batch_size).div_ceil(ranks);
    Shape { samples: batch_size.div_ceil(ranks), score_samples, hotness, plan, keeps_book }
}

impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let failed = |error: super::Error| SavedModelError::Gpu(error.to_string());
        tell(&self.ask_first(|rank| rank.parameters()).map_err(failed)?)?;
        for (number, (table, _)) in self.rules.all_tables(&self.spec).into_iter().enumerate() {
            saved::for_each_run(&table, |rows, weights| {
                self.gather(number, rows, (table.dim, weights)).map_err(failed)?;
                tell(weights)
            })?;
        }
        Ok(())
    }
}
