//! The command line: one file a subcommand, each with its arguments and a `run`.
//!
//! Results go to stdout and everything else to stderr, so that `rankine ... | jq` always works. Only here are errors
//! printed, and only here does the process decide how it ends.

use std::fmt;
use std::process;

use clap::{Parser, Subcommand};
use rankine::launch::Seat;
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
  75   a signal stopped training, and a checkpoint is there: with --resume it goes on";

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
#[repr(u8)]
pub(crate) enum Exit {
    /// All is done.
    Success = 0,
    /// The work failed.
    Failed = 1,
    /// The arguments or the job file are wrong; clap exits with the same.
    Usage = 2,
    /// The input data are wrong.
    BadData = 3,
    /// The model does not fit into memory.
    DoesNotFit = 4,
    /// Another rank is lost, or one hangs.
    Lost = 5,
    /// Training was asked to stop, and can go on: `EX_TEMPFAIL` of `sysexits.h`, which schedulers may be told to
    /// repeat.
    Resumable = 75,
}

impl From<Exit> for process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Runs the command that the process was called with.
pub(crate) fn main() -> Exit {
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
    let result = log::init(level, rank).and_then(|()| match cli.command {
        Command::Train(args) => train::run(args, &seat),
        Command::Eval(args) => eval::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Ckpt(args) => ckpt::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Bench(args) => bench::run(args, &seat),
        Command::Doctor(args) => doctor::run(args),
    });
    match result {
        Ok(()) => Exit::Success,
        // Whoever reads the output has enough: `rankine doctor | head -1` is no failure.
        Err(CommandError::OutputClosed) => Exit::Success,
        Err(error) => failed(&error, rank),
    }
}

fn failed(error: &CommandError, rank: Option<usize>) -> Exit {
    print_error(error, rank);
    error.exit()
}

/// Prints an error; of one of several processes, with its rank.
#[expect(clippy::print_stderr, reason = "the one place where errors meet the user")]
fn print_error(error: &dyn fmt::Display, rank: Option<usize>) {
    match rank {
        None => eprintln!("error: {error}"),
        Some(rank) => eprintln!("error (rank {rank}): {error}"),
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
            assert!(AFTER_HELP.contains(&format!("\n  {}   ", exit as u8)), "{exit:?}");
        }
    }
}
