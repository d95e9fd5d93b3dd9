//! The threads of a model over several GPUs, one per rank: each has its rank, and runs commands in order.
//!
//! No step is waited for: commands are sent ahead, as many as the queue holds. If a rank fails, its thread ends and
//! leaves the group of peers, which then wait for it no longer than their deadline. Only the first error is reported;
//! the others follow from it.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rankine_base::Error as DataError;
use rankine_cuda::Cluster;

use crate::cuda::error::{Error, Result};
use crate::cuda::input::SLOTS;
use crate::cuda::rank::RankModel;

/// A command to a thread.
type Command = Box<dyn FnOnce(&mut dyn RankModel) -> Result<()> + Send>;

/// The ranks of a model, each on its thread.
#[derive(Debug)]
pub(super) struct Workers {
    commands: Vec<SyncSender<Command>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    errors: Mutex<Receiver<Error>>,
}

impl Workers {
    /// Starts one thread per rank. Each creates its rank, all in parallel.
    pub(super) fn start(
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
            let refused = |error| DataError::Invalid(format!("cannot start a thread: {error}"));
            workers.threads().push(thread.map_err(refused)?);
        }
        drop(made);
        // This ends after each thread has created its rank, or failed.
        let made = all_made.iter().count();
        if made == workers.commands.len() { Ok(workers) } else { Err(workers.failure()) }
    }

    /// Sends a command to a rank, by its position among those of this process. Waits only if the queue is full.
    pub(super) fn send(
        &self,
        position: usize,
        command: impl FnOnce(&mut dyn RankModel) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.commands[position].send(Box::new(command)).map_err(|_| self.failure())
    }

    /// Runs a function on a rank, and waits for its result.
    pub(super) fn call<V: Send + 'static>(
        &self,
        position: usize,
        function: impl FnOnce(&mut dyn RankModel) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        self.start_call(position, function)?.recv().map_err(|_| self.failure())
    }

    /// Runs one function per rank, in parallel, and waits for the results, in the order of ranks.
    pub(super) fn call_each<V, F>(&self, functions: impl IntoIterator<Item = F>) -> Result<Vec<V>>
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
                return DataError::Invalid("a rank has already failed".into()).into();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.commands.clear();
        let threads = std::mem::take(&mut *self.threads());
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
