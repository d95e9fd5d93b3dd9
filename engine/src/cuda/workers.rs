//! The threads of a model over several GPUs, one a rank: each has its rank, and does in order what it is told.
//!
//! Nobody waits for a step: commands are sent ahead, as many as there is room for. Where a rank fails its thread ends,
//! and with it its membership among the peers, which then wait for it no longer than their deadline. The first error is
//! the one that is told; the others follow from it.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rankine_cuda::Cluster;
use rankine_reader::Error as DataError;

use super::error::{Error, Result};
use super::rank::{Rank, SLOTS};

/// What a thread is told to do.
type Command = Box<dyn FnOnce(&mut dyn Rank) -> Result<()> + Send>;

/// The ranks of a model, each on its thread.
#[derive(Debug)]
pub(super) struct Workers {
    commands: Vec<SyncSender<Command>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    errors: Mutex<Receiver<Error>>,
}

impl Workers {
    /// Starts a thread a rank, each of which makes its rank, all at once.
    pub(super) fn start(
        ranks: Vec<Cluster>,
        make: impl Fn(Cluster) -> Result<Box<dyn Rank>> + Send + Sync + 'static,
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
                    // Where nobody is there any more to be told, nobody misses it.
                    let _ = failed.send(error.of_rank(rank, device));
                }
            });
            let refused = |error| DataError::Invalid(format!("cannot start a thread: {error}"));
            workers.threads().push(thread.map_err(refused)?);
        }
        drop(made);
        // This ends once each thread has made its rank, or failed.
        let made = all_made.iter().count();
        if made == workers.commands.len() { Ok(workers) } else { Err(workers.failure()) }
    }

    /// Tells a rank to do something, without waiting for it unless there is much to do already.
    pub(super) fn tell(
        &self,
        rank: usize,
        command: impl FnOnce(&mut dyn Rank) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.commands[rank].send(Box::new(command)).map_err(|_| self.failure())
    }

    /// Has a rank do something, and waits for what comes of it.
    pub(super) fn ask<V: Send + 'static>(
        &self,
        rank: usize,
        question: impl FnOnce(&mut dyn Rank) -> Result<V> + Send + 'static,
    ) -> Result<V> {
        self.send(rank, question)?.recv().map_err(|_| self.failure())
    }

    /// Has all ranks do something at once, each what comes for it, and waits for what comes of it, in the order of
    /// ranks.
    pub(super) fn ask_each<V, F>(&self, questions: impl IntoIterator<Item = F>) -> Result<Vec<V>>
    where
        V: Send + 'static,
        F: FnOnce(&mut dyn Rank) -> Result<V> + Send + 'static,
    {
        let sent = questions.into_iter().enumerate().map(|(rank, question)| self.send(rank, question));
        let answers = sent.collect::<Result<Vec<_>>>()?;
        answers.iter().map(|answer| answer.recv().map_err(|_| self.failure())).collect()
    }

    fn send<V: Send + 'static>(
        &self,
        rank: usize,
        question: impl FnOnce(&mut dyn Rank) -> Result<V> + Send + 'static,
    ) -> Result<Receiver<V>> {
        let (sender, answer) = sync_channel(1);
        self.tell(rank, move |model| {
            // Where nobody waits for the answer any more, nobody misses it.
            let _ = sender.send(question(model)?);
            Ok(())
        })?;
        Ok(answer)
    }

    /// Why a thread has ended, or is about to.
    fn failure(&self) -> Error {
        loop {
            let error = self.errors.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
            let ended = match error {
                Ok(error) => return error,
                Err(_) => self.threads().iter().position(JoinHandle::is_finished),
            };
            if let Some(place) = ended {
                let thread = self.threads().swap_remove(place);
                if let Err(panic) = thread.join() {
                    resume_unwind(panic);
                }
            } else if self.threads().is_empty() {
                return DataError::Invalid("a rank has failed before".into()).into();
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

/// What a thread does, until it is told nothing more.
fn run(
    cluster: Cluster,
    make: &dyn Fn(Cluster) -> Result<Box<dyn Rank>>,
    made: Sender<()>,
    commands: &Receiver<Command>,
) -> Result<()> {
    cluster.device().bind()?;
    let mut rank = make(cluster)?;
    // Nobody waits for this but while the ranks are made.
    let _ = made.send(());
    drop(made);
    commands.iter().try_for_each(|command| command(&mut *rank))
}
