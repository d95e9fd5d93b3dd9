//! Why processes cannot start together.

use std::fmt;
use std::io;

use rankine_topology::Process;

use super::address::Address;
use super::handshake::Answer;

/// Why a process is refused. It and process 0 print the same message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its secret differs.
    #[error(
        "its secret differs from process 0's: all processes of a job need the same RANKINE_SECRET, \
         RANKINE_SECRET_FILE or --secret-file"
    )]
    WrongSecret,
    /// It has a secret, and process 0 has none.
    #[error("it has a secret and process 0 has none: give process 0 the same RANKINE_SECRET or secret file")]
    FirstHasNoSecret,
    /// Process 0 has a secret, and it has none.
    #[error("process 0 has a secret and it has none: give it the same RANKINE_SECRET or secret file")]
    ProcessHasNoSecret,
    /// Another job meets at the same address.
    #[error(
        "its job id differs from process 0's: two jobs use the same rendezvous address (RANKINE_JOB_ID, or the id that \
         the launcher gives)"
    )]
    OtherJob,
    /// Its number of processes differs from process 0's.
    #[error(
        "process 0 expects {processes} {}: two jobs use the same rendezvous address, or launchers give their \
         processes different numbers of processes",
        if *processes == 1 { "process" } else { "processes" }
    )]
    OtherCount {
        /// The number of processes that process 0 expects.
        processes: usize,
    },
    /// There is another process of that number.
    #[error(
        "another process already has this number: two jobs use the same rendezvous address, or launchers give two \
         processes the same number"
    )]
    NumberTaken,
    /// The process that answered as process 0 does not know the secret.
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
            Answer::OtherCount(processes) => Self::OtherCount { processes: processes as usize },
            Answer::NumberTaken => Self::NumberTaken,
        })
    }
}

/// Processes did not meet, or one of them has ended.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// Process 0 cannot listen.
    #[error(
        "process 0 cannot listen at {address}: {source}; another job may use this port: set MASTER_PORT or \
         --meet HOST:PORT to a free one"
    )]
    Listen {
        /// Where the processes should meet.
        address: Address,
        /// The system's message.
        source: io::Error,
    },
    /// Process 0 was not reached.
    #[error(
        "process {process} tried for {seconds:.1} s to reach process 0 at {address}: {why}; does process 0 run on that \
         host, and does a firewall allow the connection?"
    )]
    Unreached {
        /// This process.
        process: Process,
        /// The address of process 0.
        address: Address,
        /// How long.
        seconds: f64,
        /// The last error.
        why: String,
    },
    /// Process 0 refused this process.
    #[error("process 0 at {address} refused this process, which connected as process {process}: {refusal}")]
    Refused {
        /// This process.
        process: Process,
        /// The address of process 0.
        address: Address,
        /// Why.
        refusal: Refusal,
    },
    /// Processes that were not present in time.
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
        /// Why a process with one of these numbers was refused, if process 0 knows of one.
        refused: Option<String>,
    },
    /// Processes that have ended before the others.
    #[error("{} before the others: see {}", missing(left, "ended"), errors(left))]
    Left {
        /// Who.
        left: Vec<Process>,
    },
    /// A message is not what processes of one job send each other.
    #[error(
        "process {0} sent an unexpected message: do all processes run the same Rankine with the same arguments?"
    )]
    Stray(Process),
    /// A process does not describe itself as processes of this build do.
    #[error(
        "process {process} sent an invalid description of itself: {source}; does it run the same build of Rankine?"
    )]
    Description {
        /// The process.
        process: Process,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A process describes itself as another one.
    #[error("process {process} on {host} describes itself as process {described}")]
    Misnumbered {
        /// The process.
        process: Process,
        /// Its host.
        host: String,
        /// The number in its description.
        described: Process,
    },
    /// Processes are of different builds, or of builds that are not known exactly.
    #[error(
        "{}, and {}: all processes of a job must run the same build. Install one build on all hosts",
        .0[0],
        .0[1]
    )]
    OtherBuild(Box<[Runs; 2]>),
    /// A value is too long to be sent.
    #[error("a value of {bytes} bytes exceeds the limit of {most}")]
    TooLong {
        /// Bytes of the value.
        bytes: usize,
        /// The most that a value may have.
        most: usize,
    },
    /// Process 0 ended the exchange.
    #[error("{words}")]
    Ended {
        /// The message of process 0.
        words: String,
    },
    /// No exchange succeeds after a failed one.
    #[error("an earlier exchange of the processes has failed")]
    AfterFailure,
    /// The operating system has no random numbers.
    #[error(transparent)]
    Random(io::Error),
    /// The operating system refuses what watching the processes needs.
    #[error("the processes cannot be watched: {0}")]
    Watch(#[source] io::Error),
}

/// Which build a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// The process.
    pub process: Process,
    /// Its host.
    pub host: String,
    /// The build, as far as it differs.
    pub build: String,
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} runs Rankine {}", self.process, self.host, self.build)
    }
}

fn errors(processes: &[Process]) -> &'static str {
    if processes.len() == 1 { "its error" } else { "their errors" }
}

/// `process 3 ended`, or `processes 1, 2 ended`.
fn missing(processes: &[Process], what: &str) -> String {
    let numbers: Vec<_> = processes.iter().map(Process::to_string).collect();
    format!("{} {} {what}", if processes.len() == 1 { "process" } else { "processes" }, numbers.join(", "))
}
