//! Requests to stop long work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A request to stop long work: a conversion or generation soon returns [`crate::Error::Stopped`], and a training
/// ends after the current step. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

/// The origin of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The program that runs the work.
    Program,
    /// A signal, by its number.
    Signal(usize),
}

/// The stored value of [`StopCause::Program`]: no signal has this number.
const PROGRAM: usize = usize::MAX;

impl Stop {
    /// Requests a stop.
    pub fn ask(&self) {
        self.0.store(PROGRAM, Ordering::SeqCst);
    }

    /// Returns the variable in which a signal handler stores the signal's number; 0 until then.
    pub fn signal(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    /// Returns who requested a stop, or `None` if nobody has.
    pub fn asked(&self) -> Option<StopCause> {
        StopCause::of_number(self.0.load(Ordering::SeqCst) as u64)
    }
}

impl StopCause {
    /// Returns the number that [`StopCause::of_number`] reads; 0 stands for `None`.
    #[doc(hidden)]
    pub fn to_number(cause: Option<Self>) -> u64 {
        match cause {
            None => 0,
            Some(Self::Program) => PROGRAM as u64,
            Some(Self::Signal(signal)) => signal as u64,
        }
    }

    /// Returns the cause with this number: that of a signal, or one from [`StopCause::to_number`].
    #[doc(hidden)]
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
    fn the_cause_of_a_stop_is_named() {
        let stop = Stop::default();
        assert!(stop.asked().is_none() && stop.check().is_ok());
        stop.signal().store(15, Ordering::SeqCst);
        assert_eq!(stop.clone().asked(), Some(StopCause::Signal(15)), "clones share the request");
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
