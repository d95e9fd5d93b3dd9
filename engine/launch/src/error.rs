//! Why processes cannot start together.

use std::io;

use rankine_topology::Process;

use super::address::Address;
use super::handshake::Answer;

/// Why a process is refused. It and rank 0 print the same message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its secret differs.
    #[error(
        "its secret differs from rank 0's: all processes of a job need the same RANKINE_SECRET, RANKINE_SECRET_FILE or \
         --secret-file"
    )]
    WrongSecret,
    /// It has a secret, and rank 0 has none.
    #[error("it has a secret and rank 0 has none: give rank 0 the same RANKINE_SECRET or secret file")]
    FirstHasNoSecret,
    /// Rank 0 has a secret, and it has none.
    #[error("rank 0 has a secret and it has none: give it the same RANKINE_SECRET or secret file")]
    RankHasNoSecret,
    /// Another job meets at the same address.
    #[error(
        "its job id differs from rank 0's: two jobs use the same rendezvous address (RANKINE_JOB_ID, or the id that \
         the launcher gives)"
    )]
    OtherJob,
    /// Its number of processes differs from rank 0's.
    #[error(
        "rank 0 expects {ranks} {}: two jobs use the same rendezvous address, or launchers give their processes \
         different numbers of processes",
        if *ranks == 1 { "process" } else { "processes" }
    )]
    OtherRanks {
        /// The number of processes of rank 0.
        ranks: usize,
    },
    /// There is another process of that rank.
    #[error(
        "another process already has this rank: two jobs use the same rendezvous address, or launchers give two \
         processes the same rank"
    )]
    RankTaken,
    /// The process that answered as rank 0 does not know the secret.
    #[error("the process that listens there does not know the secret: it belongs to another job or program")]
    Unproven,
}

impl Refusal {
    /// None where the answer is none.
    pub(super) fn of(answer: Answer) -> Option<Self> {
        Some(match answer {
            Answer::Welcome => return None,
            Answer::WrongSecret => Self::WrongSecret,
            Answer::OtherJob => Self::OtherJob,
            Answer::OtherRanks(ranks) => Self::OtherRanks { ranks: ranks as usize },
            Answer::RankTaken => Self::RankTaken,
        })
    }
}

/// Processes did not meet, or one of them has ended.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen at {address}: {source}; another job may use this port: set MASTER_PORT or \
         --meet HOST:PORT to a free one"
    )]
    Listen {
        /// Where the ranks should meet.
        address: Address,
        /// The system's message.
        source: io::Error,
    },
    /// Rank 0 was not reached.
    #[error(
        "rank {rank} tried for {seconds:.1} s to reach rank 0 at {address}: {why}; does rank 0 run on that host, \
         and does a firewall allow the connection?"
    )]
    Unreached {
        /// This rank.
        rank: Process,
        /// The address of rank 0.
        address: Address,
        /// How long.
        seconds: f64,
        /// The last error.
        why: String,
    },
    /// Rank 0 refused this process.
    #[error("rank 0 at {address} refused this process, which connected as rank {rank}: {refusal}")]
    Refused {
        /// This rank.
        rank: Process,
        /// The address of rank 0.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// Ranks that were not present in time.
    #[error(
        "{} within {seconds:.1} s: see {} for the cause{}",
        missing(late, "did not connect"),
        if late.len() == 1 { "its log" } else { "their logs" },
        refused.as_ref().map(|refused| format!("; {refused}")).unwrap_or_default()
    )]
    Late {
        /// Who.
        late: Vec<Process>,
        /// How long was waited.
        seconds: f64,
        /// Why a process with one of these ranks was refused, if rank 0 knows of one.
        refused: Option<String>,
    },
    /// Ranks that have ended before the others.
    #[error("{} before the others: see {}", missing(left, "ended"), errors(left))]
    Left {
        /// Who.
        left: Vec<Process>,
    },
    /// A message is not what ranks of one job send each other.
    #[error("{0}")]
    Stray(String),
}

impl MeetError {
    /// The error of all calls after a failed one.
    pub(super) fn after_failure() -> Self {
        Self::Stray("an earlier exchange of the processes has failed".into())
    }
}

fn errors(ranks: &[Process]) -> &'static str {
    if ranks.len() == 1 { "its error" } else { "their errors" }
}

/// `rank 3 ended`, or `ranks 1, 2 ended`.
fn missing(ranks: &[Process], what: &str) -> String {
    let numbers: Vec<_> = ranks.iter().map(Process::to_string).collect();
    format!("{} {} {what}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}
