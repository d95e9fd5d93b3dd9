//! The ranks of a model that this process has, and their threads.
//!
//! A single rank runs on the calling thread. Several have a thread each, which runs commands in order. No step is
//! waited for: commands are sent ahead, as many as the queue holds. If a rank fails, its thread ends and leaves the
//! group of peers, which then wait for it no longer than their deadline. Only the first error is reported; the others
//! follow from it.

use std::mem;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use half::{bf16, f16};
use rankine_cuda::kernels::{Rate, Step};
use rankine_cuda::{Cluster, CopyGate, Device};
use rankine_job::Precision;
use rankine_model::guard::StepOutcome;
use rankine_topology::{Rank, Topology};
use rayon::prelude::*;

use super::processes::connect_processes;
use crate::cuda::batch::GlobalBatch;
use crate::cuda::binding::near;
use crate::cuda::context::RankContext;
use crate::cuda::error::{Error, Result};
use crate::cuda::gpu_rank::GpuRank;
use crate::cuda::input::SLOTS;
use crate::cuda::rank::RankModel;
use crate::cuda::score_size;
use crate::cuda::setup::ModelSetup;

/// The ranks of this process.
#[derive(Debug)]
pub(super) struct GpuRanks {
    topology: Topology,
    /// The first of these ranks.
    first: Rank,
    /// How many there are.
    count: usize,
    threads: Threads,
}

/// Where the ranks run.
#[derive(Debug)]
enum Threads {
    /// The only rank runs on the calling thread.
    Caller(Box<dyn RankModel>),
    /// Each rank runs on its own thread.
    Workers {
        workers: Workers,
        /// The outcomes of this process's first rank: all ranks have the same.
        outcomes: (Sender<StepOutcome>, Mutex<Receiver<StepOutcome>>),
    },
}

impl GpuRanks {
    /// Creates the ranks. With several processes this is a collective call.
    pub(super) fn new(setup: &Arc<ModelSetup>, gates: &[Arc<CopyGate>]) -> Result<Self> {
        let ModelSetup { devices, nodes, processes, execution, .. } = &**setup;
        let topology = setup.topology();
        let threads = match &devices[..] {
            [device] => {
                device.bind()?;
                let mut clusters = match processes {
                    Some(processes) => connect_processes(devices, *nodes, processes, execution.deadline)?,
                    None => Vec::new(),
                };
                set_gates(&mut clusters, gates);
                Threads::Caller(create_rank(setup, device, clusters.into_iter().next())?)
            }
            _ => {
                let mut clusters = match processes {
                    None => Cluster::in_process(devices, *nodes, execution.deadline)?,
                    Some(processes) => connect_processes(devices, *nodes, processes, execution.deadline)?,
                };
                set_gates(&mut clusters, gates);
                let setup = Arc::clone(setup);
                let create = move |cluster: Cluster| {
                    let device = Arc::clone(cluster.device());
                    let binding = near(std::slice::from_ref(&device), setup.execution.binds_threads);
                    binding.map_err(Error::from)?.bind_thread();
                    create_rank(&setup, &device, Some(cluster))
                };
                let workers = Workers::start(clusters, create)?;
                let (sender, outcomes) = channel();
                Threads::Workers { workers, outcomes: (sender, Mutex::new(outcomes)) }
            }
        };
        let first = setup.first_rank();
        Ok(Self { topology, first, count: devices.len(), threads })
    }

    /// Returns the topology of all ranks.
    pub(super) fn topology(&self) -> Topology {
        self.topology
    }

    /// Starts a training step on a batch.
    pub(super) fn step(&mut self, batch: GlobalBatch<'_>, step: Step, rates: &[Rate]) -> Result<()> {
        match &mut self.threads {
            Threads::Caller(rank) => rank.step(batch.share(self.topology, self.first), step, rates),
            Threads::Workers { workers, outcomes: (outcomes, _) } => {
                let shares = batch.shares(self.topology, self.first, self.count);
                for (rank, batch) in shares.into_iter().enumerate() {
                    let (rates, outcomes) = (rates.to_vec(), (rank == 0).then(|| outcomes.clone()));
                    workers.send(rank, move |rank| {
                        rank.step(batch, step, &rates)?;
                        for outcome in rank.take_outcomes() {
                            // If the receiver has gone, nobody needs the outcome.
                            let _ = outcomes.as_ref().map(|outcomes| outcomes.send(outcome));
                        }
                        Ok(())
                    })?;
                }
                Ok(())
            }
        }
    }

    /// Passes the outcomes that were not taken yet to `visit`, in the order of steps: all of them, or those that are
    /// known.
    pub(super) fn take_outcomes(&mut self, all: bool, mut visit: impl FnMut(StepOutcome)) -> Result<()> {
        match &mut self.threads {
            Threads::Caller(rank) => {
                if all {
                    rank.finish()?;
                }
                rank.take_outcomes().into_iter().for_each(visit);
            }
            Threads::Workers { workers, outcomes: (_, outcomes) } => {
                let finish = |rank: &mut dyn RankModel| {
                    rank.finish()?;
                    Ok(rank.take_outcomes())
                };
                let last = match all {
                    true => workers.call_each(vec![finish; self.count])?.swap_remove(0),
                    false => Vec::new(),
                };
                outcomes.get_mut().unwrap_or_else(PoisonError::into_inner).try_iter().for_each(&mut visit);
                last.into_iter().for_each(visit);
            }
        }
        Ok(())
    }

    /// Returns the logits of a batch, rank by rank.
    pub(super) fn logits(&mut self, batch: GlobalBatch<'_>) -> Result<Vec<Vec<f32>>> {
        match &mut self.threads {
            Threads::Caller(rank) => Ok(vec![rank.logits(batch.share(self.topology, self.first))?]),
            Threads::Workers { workers, .. } => {
                let shares = batch.shares(self.topology, self.first, self.count).into_iter();
                workers.call_each(shares.map(|batch| move |rank: &mut dyn RankModel| rank.logits(batch)))
            }
        }
    }

    /// Enqueues scoring a batch, and adding the scores to the evaluation.
    pub(super) fn evaluate(&mut self, batch: GlobalBatch<'_>) -> Result<()> {
        match &mut self.threads {
            Threads::Caller(rank) => rank.evaluate(batch.share(self.topology, self.first)),
            Threads::Workers { workers, .. } => {
                let mut shares = batch.shares(self.topology, self.first, self.count).into_iter().enumerate();
                shares.try_for_each(|(rank, batch)| workers.send(rank, move |rank| rank.evaluate(batch)))
            }
        }
    }

    /// Runs the same function on all ranks in parallel; returns the results in the order of ranks.
    pub(super) fn call_each<V: Send + 'static>(
        &self,
        function: impl Fn(Rank, &dyn RankModel) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &self.threads {
            Threads::Caller(rank) => Ok(vec![function(self.first, &**rank)?]),
            Threads::Workers { workers, .. } => workers.call_each((0..self.count).map(|index| {
                let (function, rank) = (function.clone(), self.first.plus(index));
                move |model: &mut dyn RankModel| function(rank, model)
            })),
        }
    }

    /// The same for functions that need not know the rank.
    pub(super) fn call_all<V: Send + 'static>(
        &self,
        function: impl Fn(&dyn RankModel) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        self.call_each(move |_, rank| function(rank))
    }

    /// The same for functions that change their rank.
    pub(super) fn call_all_mut<V: Send + 'static>(
        &mut self,
        function: impl Fn(&mut dyn RankModel) -> Result<V> + Clone + Send + 'static,
    ) -> Result<Vec<V>> {
        match &mut self.threads {
            Threads::Caller(rank) => Ok(vec![function(&mut **rank)?]),
            Threads::Workers { workers, .. } => workers.call_each(vec![function; self.count]),
        }
    }

    /// Runs a function on the first rank.
    pub(super) fn call_first<V: Send + 'static>(
        &self,
        function: impl FnOnce(&dyn RankModel) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        match &self.threads {
            Threads::Caller(rank) => function(&**rank),
            Threads::Workers { workers, .. } => workers.call(0, move |rank| function(rank)),
        }
    }

    /// Lets all ranks fill in the weights that they have of some rows, `[row][dim]`: `fill` gets some of the rows and
    /// their weights. Each rank fills in another part of the rows at a time, so that all GPUs copy.
    pub(super) fn fill(
        &self,
        (rows, dim): (Range<u64>, usize),
        weights: &mut [f32],
        fill: impl Fn(&dyn RankModel, Range<u64>, &mut [f32]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let workers = match &self.threads {
            Threads::Caller(rank) => return fill(&**rank, rows, weights),
            Threads::Workers { workers, .. } => workers,
        };
        let rows_at_once = (rows.end - rows.start).div_ceil(self.count as u64).max(1);
        let len = rows_at_once as usize * dim;
        let mut parts: Vec<Vec<f32>> =
            weights.chunks(len).map(|part| part.par_iter().copied().collect()).collect();
        // With fewer rows than ranks, some parts are empty.
        parts.resize(self.count, Vec::new());
        for turn in 0..self.count {
            let calls = parts.into_iter().enumerate().map(|(rank, mut part)| {
                let number = (rank + turn) % self.count;
                let first = rows.end.min(rows.start + number as u64 * rows_at_once);
                let (fill, part_rows) = (fill.clone(), first..first + (part.len() / dim) as u64);
                move |model: &mut dyn RankModel| {
                    fill(model, part_rows, &mut part)?;
                    Ok(part)
                }
            });
            parts = workers.call_each(calls)?;
            parts.rotate_left(1);
        }
        // After as many turns, each part is at its rank again.
        for (weights, part) in weights.chunks_mut(len).zip(&parts) {
            weights.par_iter_mut().zip(part).for_each(|(weight, filled)| *weight = *filled);
        }
        Ok(())
    }
}

/// Lets the rails of ranks pass the gates of their GPUs, if there are gates.
fn set_gates(clusters: &mut [Cluster], gates: &[Arc<CopyGate>]) {
    for (cluster, gate) in clusters.iter_mut().zip(gates) {
        cluster.set_gate(Arc::clone(gate));
    }
}

/// Creates the rank of a GPU, which must be current on this thread. With several ranks this is a collective call.
fn create_rank(
    setup: &Arc<ModelSetup>,
    device: &Arc<Device>,
    cluster: Option<Cluster>,
) -> Result<Box<dyn RankModel>> {
    let cluster = cluster.map(Arc::new);
    let create = |scored: usize| -> Result<Box<dyn RankModel>> {
        let context = RankContext::new(device, cluster.as_ref(), setup.execution.collnet)?;
        let setup = Arc::clone(setup);
        Ok(match setup.execution.precision {
            Precision::Fp32 | Precision::Tf32 => Box::new(GpuRank::<f32>::new(context, setup, scored)?),
            Precision::Bf16 | Precision::Fp8 => Box::new(GpuRank::<bf16>::new(context, setup, scored)?),
            Precision::Fp16 => Box::new(GpuRank::<f16>::new(context, setup, scored)?),
        })
    };
    create(score_size::choose(setup, device, cluster.as_deref(), create)?)
}

/// A command to a thread.
type Command = Box<dyn FnOnce(&mut dyn RankModel) -> Result<()> + Send>;

/// The ranks of a model, each on its thread.
#[derive(Debug)]
struct Workers {
    commands: Vec<SyncSender<Command>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    errors: Mutex<Receiver<Error>>,
}

impl Workers {
    /// Starts one thread per rank. Each creates its rank, all in parallel.
    fn start(
        ranks: Vec<Cluster>,
        make: impl Fn(Cluster) -> Result<Box<dyn RankModel>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (make, (failed, errors), (made, all_made)) = (Arc::new(make), channel(), channel());
        let mut workers =
            Self { commands: Vec::new(), threads: Mutex::default(), errors: Mutex::new(errors) };
        for cluster in ranks {
            let (sender, commands) = sync_channel(SLOTS);
            workers.commands.push(sender);
            let (make, failed, made) = (Arc::clone(&make), failed.clone(), made.clone());
            let thread = thread::Builder::new().name(format!("rankine-gpu-{}", cluster.rank()));
            let thread = thread.spawn(move || {
                let (rank, device) = (cluster.rank(), cluster.device().ordinal());
                if let Err(error) = run(cluster, &*make, made, &commands) {
                    // If the receiver has gone, nobody needs the error.
                    let _ = failed.send(error.on_rank(rank, device));
                }
            });
            workers.threads().push(thread.map_err(Error::Thread)?);
        }
        drop(made);
        // This ends after each thread has created its rank, or failed.
        let made = all_made.iter().count();
        if made == workers.commands.len() { Ok(workers) } else { Err(workers.failure()) }
    }

    /// Sends a command to a rank, by its position among those of this process. Waits only if the queue is full.
    fn send(
        &self,
        position: usize,
        command: impl FnOnce(&mut dyn RankModel) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.commands[position].send(Box::new(command)).map_err(|_| self.failure())
    }

    /// Runs a function on a rank, and waits for its result.
    fn call<V: Send + 'static>(
        &self,
        position: usize,
        function: impl FnOnce(&mut dyn RankModel) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        self.start_call(position, function)?.recv().map_err(|_| self.failure())
    }

    /// Runs one function per rank, in parallel, and waits for the results, in the order of ranks.
    fn call_each<V, F>(&self, functions: impl IntoIterator<Item = F>) -> Result<Vec<V>>
    where
        V: Send + 'static,
        F: FnOnce(&mut dyn RankModel) -> Result<V> + Send + 'static,
    {
        let sent =
            functions.into_iter().enumerate().map(|(position, function)| self.start_call(position, function));
        let results = sent.collect::<Result<Vec<_>>>()?;
        results.iter().map(|result| result.recv().map_err(|_| self.failure())).collect()
    }

    fn start_call<V: Send + 'static>(
        &self,
        position: usize,
        function: impl FnOnce(&mut dyn RankModel) -> Result<V> + Send + 'static,
    ) -> Result<Receiver<V>> {
        let (sender, result) = sync_channel(1);
        self.send(position, move |model| {
            // If the receiver has gone, nobody needs the result.
            let _ = sender.send(function(model)?);
            Ok(())
        })?;
        Ok(result)
    }

    /// Returns why a thread has ended, or is about to end.
    fn failure(&self) -> Error {
        loop {
            let error = self.errors.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
            let ended = match error {
                Ok(error) => return error,
                Err(_) => self.threads().iter().position(JoinHandle::is_finished),
            };
            if let Some(index) = ended {
                let thread = self.threads().swap_remove(index);
                if let Err(panic) = thread.join() {
                    resume_unwind(panic);
                }
            } else if self.threads().is_empty() {
                return Error::RankEnded;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.commands.clear();
        let threads = mem::take(&mut *self.threads());
        for thread in threads {
            if let Err(panic) = thread.join()
                && !thread::panicking()
            {
                resume_unwind(panic);
            }
        }
    }
}

/// Runs the commands of a thread until the sender has gone.
fn run(
    cluster: Cluster,
    make: &dyn Fn(Cluster) -> Result<Box<dyn RankModel>>,
    made: Sender<()>,
    commands: &Receiver<Command>,
) -> Result<()> {
    cluster.device().bind()?;
    let mut rank = make(cluster)?;
    // Only the start of the ranks waits for this.
    let _ = made.send(());
    drop(made);
    commands.iter().try_for_each(|command| command(&mut *rank))
}
