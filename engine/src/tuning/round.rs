//! The trials of a round, as many at once as there are threads or GPUs for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rankine_base::{Stop, system};
use rankine_engine_gpu as gpu;
use rankine_job::{DeviceKind, Job, StoppingMetric, ThreadCount};

use super::trial::{Share, Standing, Trial};
use crate::training::TrainError;

/// The time between two looks at the clock and at requests to stop.
const PAUSE: Duration = Duration::from_millis(50);

/// The trials of a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rivals<'a> {
    pub(super) trials: &'a [Trial],
    /// The steps of each until the round ends.
    pub(super) steps: &'a [u64],
    pub(super) metric: StoppingMetric,
}

/// Why a trial has no result.
#[derive(Debug)]
pub(super) struct Failure {
    /// The trial's number.
    pub(super) trial: u64,
    pub(super) error: TrainError,
}

/// What trains trials side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workers {
    /// Trials at once.
    pub(super) at_once: usize,
    /// CPU threads of all of them.
    threads: usize,
    /// GPUs of each.
    gpus: usize,
}

impl Workers {
    /// As many as there are GPUs or CPU threads for the ranks of a job, and memory for its tables.
    pub(super) fn of(job: &Job, table_bytes: u64) -> Self {
        let threads = rankine_job::thread_count(job.device.threads).get();
        let ranks = job.device.ranks.get() as usize;
        let seen = if job.device.kind == DeviceKind::Cpu { 0 } else { gpu::gpu_count() };
        if seen > 0 {
            // With "auto" a trial takes all GPUs.
            let gpus = job.device.ranks.count().map_or(seen, |_| ranks);
            return Self { at_once: (seen / gpus).max(1), threads, gpus };
        }
        // Each trial has its tables and a copy of them for a checkpoint; half of the memory is left to others.
        let memory = system::memory().map_or(u64::MAX, |memory| memory.usable_bytes() / 2);
        let fit = memory / (2 * table_bytes).max(1);
        let at_once = (threads / ranks.max(1)).min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1);
        Self { at_once, threads, gpus: 0 }
    }

    /// One trial at a time, with everything that the others would take: none slows another one down.
    pub(super) fn one_at_a_time(self) -> Self {
        Self { at_once: 1, ..self }
    }

    /// Trains all trials of a round until it ends for each, the deadline passes, or a stop is requested. Returns how
    /// far each got; `None` if it did not begin.
    ///
    /// # Errors
    /// The first failure that is not due to a trial's settings; the other trials stop.
    pub(super) fn run(
        &self,
        rivals: Rivals<'_>,
        stop: &Stop,
        deadline: Option<Instant>,
        observe: &(dyn Fn(&Trial, &Standing) + Sync),
    ) -> Result<Vec<Option<Standing>>, Failure> {
        let Rivals { trials, steps, metric } = rivals;
        let at_once = self.at_once.min(trials.len()).max(1);
        let threads = ThreadCount::new((self.threads / at_once).max(1) as u32).expect("a number in range");
        let standings: Vec<_> = trials.iter().map(|_| Mutex::new(None)).collect();
        let (next, failed, ends) = (AtomicUsize::new(0), Mutex::new(None), Stop::default());
        let are_done = AtomicBool::new(false);
        let work = |slot: usize| {
            let share = Share { threads, gpu: slot * self.gpus };
            while ends.asked().is_none() {
                let number = next.fetch_add(1, Ordering::SeqCst);
                let Some(trial) = trials.get(number) else { break };
                match trial.train(steps[number], metric, share, &ends) {
                    Ok(standing) => {
                        observe(trial, &standing);
                        *lock(&standings[number]) = Some(standing);
                    }
                    Err(error) => {
                        lock(&failed).get_or_insert(Failure { trial: trial.number, error });
                        ends.ask();
                    }
                }
            }
        };
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !are_done.load(Ordering::SeqCst) {
                    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                    if is_late || stop.asked().is_some() {
                        ends.ask();
                    }
                    thread::park_timeout(PAUSE);
                }
            });
            let workers: Vec<_> = (0..at_once).map(|slot| scope.spawn(move || work(slot))).collect();
            let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            are_done.store(true, Ordering::SeqCst);
            watch.thread().unpark();
            ended
                .into_iter()
                .for_each(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
        match lock(&failed).take() {
            Some(failure) => Err(failure),
            None => Ok(standings.iter().map(|standing| lock(standing).take()).collect()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
