//! A training whose steps a program requests, one after the other: see [`crate::trainer::Trainer`].

use std::path::PathBuf;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use rankine_backend::Batch;
use rankine_base::StopCause;
use rankine_base::publish::PartialDir;
use rankine_checkpoint as checkpoint;
use rankine_launch::{RunStage, StepStage};
use rankine_model::evaluation::EvalSummary;
use rankine_reader::{Part, Samples, stream};

use super::training_loop::{ReaderState, TrainingLoop};
use crate::run_paths;
use crate::training::error::TrainError;

/// What a program requests of a training.
pub(crate) enum Request {
    /// A step on these samples.
    Step {
        /// With the columns of the dataset, as many as a batch has at most.
        samples: Samples,
        /// Ids outside their tables, one count per categorical column; empty if such ids are errors.
        out_of_range: Vec<u64>,
    },
    /// An evaluation; the reply is `None` if the dataset has no evaluation part.
    Evaluate(Sender<Option<EvalSummary>>),
    /// A checkpoint; the reply is its folder.
    Checkpoint(Sender<Result<PathBuf, TrainError>>),
    /// An export of the model into this folder.
    Save(PathBuf, Sender<Result<(), TrainError>>),
    /// The end of the training.
    Finish,
}

/// The training's side of its connection to the program.
pub(crate) struct Requests {
    pub(crate) receiver: Receiver<Request>,
    /// Takes back the memory of samples.
    pub(crate) recycle: Sender<Samples>,
    /// Told once, when the training accepts requests.
    pub(crate) ready: Sender<Ready>,
}

/// A training that accepts requests.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Steps completed: 0, or those of the checkpoint that it resumed from.
    pub(crate) steps: u64,
    /// Samples trained on in those steps.
    pub(crate) samples: u64,
    pub(crate) run: PathBuf,
}

impl TrainingLoop<'_> {
    /// Does what is requested until the program ends the training.
    ///
    /// # Errors
    /// As [`super::train`]; [`TrainError::Interrupted`] if the program is gone without having ended it.
    pub(super) fn serve(&mut self, requests: &Requests) -> Result<(), TrainError> {
        let (steps, samples, run) =
            (self.state.step(), self.state.total.samples, self.folder.path().to_owned());
        // If the program is gone, there are no requests either.
        let _ = requests.ready.send(Ready { steps, samples, run });
        loop {
            let began = Instant::now();
            self.context.processes.is_at(RunStage::Training, self.state.step(), StepStage::Reading);
            match requests.receiver.recv() {
                Ok(Request::Step { samples, out_of_range }) => {
                    let recycle = requests.recycle.clone();
                    let batch = stream::Batch::new(samples, self.state.position, out_of_range, recycle);
                    let batches_ready = requests.receiver.len();
                    let source = ReaderState {
                        waited: began.elapsed(),
                        bytes_read: 0,
                        bytes_copied: None,
                        batches_ready,
                    };
                    self.step(Batch::Unpacked(batch), source)?;
                }
                // A program that is gone does not miss the reply.
                Ok(Request::Evaluate(reply)) => drop(reply.send(self.evaluate_now()?)),
                Ok(Request::Checkpoint(reply)) => drop(reply.send(self.checkpoint_now()?)),
                Ok(Request::Save(dir, reply)) => drop(reply.send(self.export(&dir)?)),
                Ok(Request::Finish) => return self.await_steps(),
                Err(_) => return Err(self.interrupt(StopCause::Program)),
            }
        }
    }

    /// Waits for all steps, and evaluates, unless the last step was evaluated.
    fn evaluate_now(&mut self) -> Result<Option<EvalSummary>, TrainError> {
        self.take_outcomes(true).map_err(|error| error.at_step(self.state.step()))?;
        if self.state.last_eval.is_none() {
            self.state.last_eval = self.evaluate(Part::Eval, self.state.step())?;
        }
        Ok(self.state.last_eval.clone())
    }

    /// The outer error ends the training.
    fn checkpoint_now(&mut self) -> Result<Result<PathBuf, TrainError>, TrainError> {
        let step = self.state.step();
        self.save_now()?;
        let path = run_paths::checkpoints(self.folder.path()).join(checkpoint::step_name(step));
        if path.is_dir() { Ok(Ok(path)) } else { Ok(Err(TrainError::NoCheckpoint { step })) }
    }

    /// The outer error ends the training.
    fn export(&mut self, dir: &std::path::Path) -> Result<Result<(), TrainError>, TrainError> {
        self.take_outcomes(true).map_err(|error| error.at_step(self.state.step()))?;
        let saved = PartialDir::create(dir).map_err(TrainError::from);
        Ok(saved.and_then(|partial| Ok(self.save_into(partial, &*self.backend, self.state.step())?)))
    }
}
