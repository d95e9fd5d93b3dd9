//! Why processes do not come together.

use std::io;

use super::address::Address;
use super::source::Launcher;

/// Who this process is cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Something of the environment or of the command line that cannot be read.
    #[error("{name} is `{value}`: {why}")]
    Invalid {
        /// The variable, or the argument.
        name: String,
        /// What it is.
        value: String,
        /// What it should be.
        why: String,
    },
    /// One of two things is said that belong together.
    #[error("{there} is set and {missing} is not: {there} alone does not say which of the processes this is")]
    Half {
        /// What is set.
        there: String,
        /// What is not.
        missing: String,
    },
    /// Two launchers say different things.
    #[error(
        "{first} says rank {} of {} ({}), and {second} says rank {} of {} ({}): say which of the two is meant, with \
         --launcher {first} or --launcher {second}",
        first_says.0, first_says.1, first.variables(), second_says.0, second_says.1, second.variables()
    )]
    Contradiction {
        /// The one that would be believed.
        first: Launcher,
        /// Its rank and its number of ranks.
        first_says: (usize, usize),
        /// The other one.
        second: Launcher,
        /// Its rank and its number of ranks.
        second_says: (usize, usize),
    },
    /// The launcher that was asked for did not start this process.
    #[error("--launcher {launcher}: it did not start this process: {} are not set", launcher.variables())]
    Absent {
        /// Which.
        launcher: Launcher,
    },
    /// Nobody says where to meet.
    #[error(
        "{launcher} says that there are {ranks} processes, and not where they meet: set MASTER_ADDR (and MASTER_PORT) \
         to a host where rank 0 runs, or give --meet HOST:PORT"
    )]
    Nowhere {
        /// Who says so.
        launcher: Launcher,
        /// The processes.
        ranks: usize,
    },
}

/// Processes did not meet, or one of them is gone.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at port {}: {source}; another job may have it: set MASTER_PORT or --meet HOST:PORT to \
         a free one",
        address.port
    )]
    Listen {
        /// Where the ranks should meet.
        address: Address,
        /// The system's words.
        source: io::Error,
    },
    /// Rank 0 was not reached.
    #[error(
        "rank {rank} tried for {seconds:.1} s to reach rank 0 at {address}: {why}; is that a host where rank 0 runs, \
         and does a firewall let it be reached?"
    )]
    Unreached {
        /// This rank.
        rank: usize,
        /// Where rank 0 should be.
        address: Address,
        /// How long.
        seconds: f64,
        /// What went wrong the last time.
        why: String,
    },
    /// Ranks that did not come in time.
    #[error(
        "{}, after {seconds:.1} s: look at the logs there for what stopped them",
        missing(late, "did not come")
    )]
    Late {
        /// Who.
        late: Vec<usize>,
        /// How long was waited.
        seconds: f64,
    },
    /// Ranks that have ended before the others.
    #[error("{} before the others: look at the error there", missing(left, "ended"))]
    Left {
        /// Who.
        left: Vec<usize>,
    },
    /// What was received is not what ranks of one job send each other.
    #[error("{0}")]
    Stray(String),
}

impl MeetError {
    /// Of whatever comes after an error.
    pub(super) fn after_failure() -> Self {
        Self::Stray("what the processes did together before has failed".into())
    }
}

/// `rank 3 ended`, or `ranks 1, 2 ended`.
fn missing(ranks: &[usize], what: &str) -> String {
    let numbers: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("{} {} {what}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}
