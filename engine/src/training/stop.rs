//! Being asked to stop, by a signal or by whoever embeds a training.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asks a training to stop: at the end of the step at hand it saves a checkpoint, and ends with
/// [`super::TrainError::Interrupted`]. Clones ask the same training.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The program that runs the training.
    Program,
    /// A signal, by its number.
    Signal(usize),
}

/// What says that the program asks: no signal has this number.
const PROGRAM: usize = usize::MAX;

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(PROGRAM, Ordering::SeqCst);
    }

    /// Where a signal's number is left by whoever handles it; 0 where there was none.
    pub fn signal(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    /// Who asked, if anybody has.
    pub fn asked(&self) -> Option<StopCause> {
        StopCause::of_number(self.0.load(Ordering::SeqCst) as u64)
    }
}

impl StopCause {
    /// What [`StopCause::of_number`] makes it again.
    pub(super) fn to_number(cause: Option<Self>) -> u64 {
        match cause {
            None => 0,
            Some(Self::Program) => PROGRAM as u64,
            Some(Self::Signal(signal)) => signal as u64,
        }
    }

    /// Who asked, by a signal's number.
    pub(super) fn of_number(number: u64) -> Option<Self> {
        match number as usize {
            0 => None,
            PROGRAM => Some(Self::Program),
            signal => Some(Self::Signal(signal)),
        }
    }
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Program => return f.write_str("the program"),
            Self::Signal(2) => "SIGINT",
            Self::Signal(10) => "SIGUSR1",
            Self::Signal(15) => "SIGTERM",
            Self::Signal(other) => return write!(f, "signal {other}"),
        };
        f.write_str(name)
    }
}
