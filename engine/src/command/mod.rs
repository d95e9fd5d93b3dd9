//! The command line: one file a subcommand, each with its arguments and a `run`.
//!
//! Results go to stdout and everything else to stderr, so that `rankine ... | jq` always works. Only here are errors
//! printed, and only here does the process decide how it ends. What stderr does not take is dropped.

use std::fmt;
use std::process;

use clap::{Parser, Subcommand};
use rankine::hooks;
use rankine::launch::Seat;
use rankine::training::StopCause;
use tracing_subscriber::filter::LevelFilter;

mod arguments;
mod bench;
mod check;
mod ckpt;
mod convert;
mod doctor;
mod error;
mod eval;
mod generate;
mod init;
mod inspect;
mod job;
mod launch;
mod log;
mod metrics;
mod output;
mod plan;
mod predict;
mod progress;
mod raw;
mod signals;
mod stderr;
mod train;

use error::CommandError;

/// A training engine for ranking models: DLRM and its family
#[derive(Debug, Parser)]
#[command(name = "rankine", version, after_long_help = AFTER_HELP, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
A first run, from nothing:
  rankine doctor                           what this machine offers
  rankine train configs/quickstart.toml    makes its own data, trains, evaluates

Environment:
  RANKINE_LOG   error, warn, info (the default), debug or trace: how much is told on stderr
  NO_COLOR      set to anything, there are no colors

Exit codes:
  0   success
  1   the work failed, and the message says why
  2   bad usage, or a bad job file
  3   bad input data: a damaged dataset, or too many bad rows
  4   the model does not fit into the memory of the ranks it was planned for
  5   another rank of the job failed, ended or did not come, or one hung, this one included
  75   a signal stopped training after it saved a checkpoint, from which --resume continues
  129, 130, 143   SIGHUP 129, SIGINT 130 or SIGTERM 143 stopped convert or generate, which left nothing";

#[derive(Debug, Subcommand)]
enum Command {
    Train(train::Args),
    Eval(eval::Args),
    Predict(predict::Args),
    Init(init::Args),
    Check(check::Args),
    Plan(plan::Args),
    Ckpt(ckpt::Args),
    Generate(generate::Args),
    Convert(convert::Args),
    Inspect(inspect::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
}

/// How the process ends. The numbers are documented in `rankine --help`, and scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is done.
    Success,
    /// The work failed.
    Failed,
    /// The arguments or the job file are wrong; clap exits with the same.
    Usage,
    /// The input data are wrong.
    BadData,
    /// The model does not fit into memory.
    DoesNotFit,
    /// Another rank is lost, or one hangs.
    Lost,
    /// Training was asked to stop, and can go on: `EX_TEMPFAIL` of `sysexits.h`, which schedulers may be told to
    /// repeat.
    Resumable,
    /// A signal of this number stopped work that has to be done again.
    Signal(u8),
}

impl Exit {
    /// The process's exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::BadData => 3,
            Self::DoesNotFit => 4,
            Self::Lost => 5,
            Self::Resumable => 75,
            // As shells report a command that a signal killed.
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Of work that was asked to stop.
    pub(crate) fn of_stop(cause: StopCause) -> Self {
        let signal = match cause {
            StopCause::Signal(signal) => u8::try_from(signal).ok().filter(|signal| *signal < 128),
            StopCause::Program => None,
        };
        signal.map_or(Self::Failed, Self::Signal)
    }

    /// Ends the process at once: other threads may wait for what will never come, or for a GPU.
    pub(crate) fn now(self) -> ! {
        // SAFETY: the call has no precondition; what was written to files is in the system's hands already.
        unsafe { libc::_exit(i32::from(self.code())) }
    }
}

impl From<Exit> for process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Runs the command that the process was called with.
pub(crate) fn main() -> Exit {
    signals::survive_file_size_limit();
    let cli = Cli::parse();
    let launch = match &cli.command {
        Command::Train(args) => Some(&args.launch),
        Command::Bench(args) => args.launch(),
        _ => None,
    };
    let seat = match launch.map_or_else(|| Ok(Seat::alone()), launch::Args::seat) {
        Ok(seat) => seat,
        Err(error) => return failed(&error.into(), None),
    };
    let rank = (seat.ranks > 1).then_some(seat.rank);
    let quiet =
        matches!(&cli.command, Command::Train(args) if args.quiet) || rank.is_some_and(|rank| rank > 0);
    let level = if quiet { LevelFilter::WARN } else { LevelFilter::INFO };
    let result = log::init(level, rank).and_then(|()| {
        hooks::ignored().for_each(|name| {
            tracing::warn!("{name} is ignored: it acts in builds with the feature `test-hooks`, for tests");
        });
        run(cli.command, &seat)
    });
    match result {
        Ok(()) => Exit::Success,
        // Whoever reads the output has enough: `rankine doctor | head -1` is no failure.
        Err(CommandError::OutputClosed) => Exit::Success,
        Err(error) => failed(&error, rank),
    }
}

fn run(command: Command, seat: &Seat) -> Result<(), CommandError> {
    match command {
        Command::Train(args) => train::run(args, seat),
        Command::Eval(args) => eval::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Ckpt(args) => ckpt::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args, seat),
        Command::Doctor(args) => doctor::run(args),
    }
}

fn failed(error: &CommandError, rank: Option<usize>) -> Exit {
    print_error(error, rank);
    error.exit()
}

/// Prints an error; of one of several processes, with its rank.
fn print_error(error: &dyn fmt::Display, rank: Option<usize>) {
    match rank {
        None => stderr::line(format_args!("error: {error}")),
        Some(rank) => stderr::line(format_args!("error (rank {rank}): {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_documents_every_exit_code() {
        let all = [
            Exit::Success,
            Exit::Failed,
            Exit::Usage,
            Exit::BadData,
            Exit::DoesNotFit,
            Exit::Lost,
            Exit::Resumable,
        ];
        for exit in all {
            assert!(AFTER_HELP.contains(&format!("\n  {}   ", exit.code())), "{exit:?}");
        }
        assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4, 5, 75]);
        assert_eq!(Exit::of_stop(StopCause::Signal(2)).code(), 130);
        let stopped = Exit::of_stop(StopCause::Signal(15)).code();
        assert!(AFTER_HELP.contains(&format!("SIGTERM {stopped}")), "{stopped}");
    }
}
