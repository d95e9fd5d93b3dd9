//! Asking long work to stop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asks long work to stop: a conversion or a generation soon gives [`crate::Error::Stopped`], and a training ends after
/// the current step. Clones ask the same work.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The program that runs the work.
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

    /// Where a signal handler leaves the signal's number; 0 until then.
    pub fn signal(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    /// Who asked, if anybody has.
    pub fn asked(&self) -> Option<StopCause> {
        StopCause::of_number(self.0.load(Ordering::SeqCst) as u64)
    }
}

impl StopCause {
    /// What [`StopCause::of_number`] reads; 0 for none.
    pub fn to_number(cause: Option<Self>) -> u64 {
        match cause {
            None => 0,
            Some(Self::Program) => PROGRAM as u64,
            Some(Self::Signal(signal)) => signal as u64,
        }
    }

    /// Who asked, by a signal's number.
    pub fn of_number(number: u64) -> Option<Self> {
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
            Self::Signal(1) => "SIGHUP",
            Self::Signal(2) => "SIGINT",
            Self::Signal(10) => "SIGUSR1",
            Self::Signal(15) => "SIGTERM",
            Self::Signal(other) => return write!(f, "signal {other}"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asked_is_named() {
        let stop = Stop::default();
        assert!(stop.asked().is_none() && stop.check().is_ok());
        stop.signal().store(15, Ordering::SeqCst);
        assert_eq!(stop.clone().asked(), Some(StopCause::Signal(15)), "clones ask the same work");
        assert!(matches!(stop.check(), Err(crate::Error::Stopped(StopCause::Signal(15)))));
        stop.ask();
        assert_eq!(stop.asked(), Some(StopCause::Program));
        let names = [1, 2, 10, 15, 12].map(|signal| StopCause::Signal(signal).to_string());
        assert_eq!(names, ["SIGHUP", "SIGINT", "SIGUSR1", "SIGTERM", "signal 12"]);
        assert_eq!(StopCause::Program.to_string(), "the program");
        for cause in [None, Some(StopCause::Program), Some(StopCause::Signal(2))] {
            assert_eq!(StopCause::of_number(StopCause::to_number(cause)), cause);
        }
    }
}
