//! The command line: one file per subcommand, with its arguments and a function `run`.
//!
//! Results go to stdout and everything else to stderr, so that `rankine ... | jq` always works. Only this module prints
//! errors and chooses the exit code. Messages that stderr does not accept are dropped.

// `eprintln!` panics if stderr is closed or full; `stderr` does not.
#![warn(clippy::print_stderr)]

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use rankine_base::hooks;
use rankine_engine::build;
use rankine_engine::training::StopCause;
use rankine_launch::ProcessPlace;
use rankine_topology::Process;
use records::{LogFormat, Record};
use tracing::Level;
use tracing_subscriber::filter::LevelFilter;

mod arguments;
mod bench;
mod check;
mod ckpt;
mod completions;
mod convert;
mod dataset;
mod doctor;
mod editors;
mod error;
mod eval;
mod export;
mod fit;
mod generate;
mod import;
mod init;
mod init_schema;
mod inputs;
mod inspect;
mod job;
mod launch;
mod log;
mod metrics;
mod monitoring;
mod output;
mod plan;
mod predict;
mod progress;
mod raw;
mod records;
mod report;
mod rows;
mod runs;
mod signals;
mod stderr;
mod table;
#[cfg(test)]
mod tests;
mod tier;
mod train;
mod tune;

use error::CommandError;

/// A training engine for ranking models: DLRM and its family
#[derive(Debug, Parser)]
#[command(name = "rankine", version = version(), long_version = long_version())]
#[command(after_long_help = after_help(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    messages: Messages,
}

/// What a command prints on stderr besides errors.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Messages")]
struct Messages {
    /// Print only warnings and errors, and no progress
    #[arg(long, short, global = true, display_order = 100)]
    quiet: bool,

    /// Print debug messages as well
    #[arg(long, short, global = true, display_order = 101, conflicts_with = "quiet")]
    verbose: bool,

    /// When to use colors; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, display_order = 102, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,

    /// How to write messages: text, or json, one object per line
    #[arg(long, global = true, display_order = 103, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

const EXAMPLES: &str = "\
From click logs to predictions:
  rankine convert criteo-tsv train.txt --split last:0.1 --out data/criteo
  rankine inspect data/criteo
  rankine init --data data/criteo --out job.toml
  rankine train job.toml --run-dir runs/criteo
  rankine runs
  rankine report runs/criteo
  rankine eval --run runs/criteo
  rankine predict --run runs/criteo new.txt --out predictions.csv

Without data, on synthetic clicks:
  rankine train configs/quickstart.toml";

/// Environment variables and their meaning.
const ENVIRONMENT: [(&str, &str); 4] = [
    (log::VARIABLE, "error, warn, info, debug, trace or CRATE=LEVEL; overrides --quiet, --verbose"),
    ("NO_COLOR", "if not empty, messages have no colors, unless --color says otherwise"),
    ("RANKINE_SECRET", "the secret that the processes of a job share"),
    ("RANKINE_SECRET_FILE", "a file with that secret; --secret-file overrides it"),
];

/// Exit codes and their meaning.
const EXIT_CODES: [(&str, &str); 8] = [
    ("0", "success"),
    ("1", "the command failed; the message says why"),
    ("2", "wrong usage, or an invalid job file"),
    ("3", "invalid input data: a damaged dataset, or too many bad rows"),
    ("4", "the model does not fit into the memory of the planned ranks"),
    ("5", "a process of the job failed, exited or timed out"),
    ("75", "a signal stopped training; --resume continues it"),
    ("129, 130, 143", "SIGHUP, SIGINT or SIGTERM stopped fit, convert or generate; nothing was written"),
];

/// What `rankine -V` prints.
fn version() -> String {
    build::compiled().short()
}

/// What `rankine --version` prints. `rankine doctor` adds the checksum.
fn long_version() -> String {
    let build = build::compiled();
    let line = |(name, text)| format!("\n{name:<9} {text}");
    build.version.clone() + &build.details().map(line).concat()
}

/// What follows the list of commands in `rankine --help`.
fn after_help() -> String {
    let table = |rows: &[(&str, &str)], width: usize| {
        let line = |(name, meaning): &(&str, &str)| format!("\n  {name:<width$} {meaning}");
        rows.iter().map(line).collect::<String>()
    };
    let (environment, exit_codes) = (table(&ENVIRONMENT, 20), table(&EXIT_CODES, 14));
    format!("{EXAMPLES}\n\nEnvironment variables:{environment}\n\nExit codes:{exit_codes}")
}

/// The commands, in the order in which a user needs them.
#[derive(Debug, Subcommand)]
enum Command {
    InitSchema(init_schema::Args),
    Fit(fit::Args),
    Convert(convert::Args),
    Dataset(dataset::Args),
    Inspect(inspect::Args),
    Init(init::Args),
    Tune(tune::Args),
    Train(train::Args),
    Runs(runs::Args),
    Report(report::Args),
    Eval(eval::Args),
    Predict(predict::Args),
    Export(export::Args),
    Import(import::Args),
    Check(check::Args),
    Plan(plan::Args),
    Ckpt(ckpt::Args),
    Generate(generate::Args),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    ManPages(completions::ManPages),
}

/// Exit codes, which scripts rely on. `rankine --help` documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command succeeded.
    Success,
    /// The command failed.
    Failed,
    /// The arguments or the job file are invalid; clap exits with the same code.
    Usage,
    /// The input data are invalid.
    BadData,
    /// The model does not fit into memory.
    DoesNotFit,
    /// A process is lost or hangs.
    Lost,
    /// A signal stopped training, which can be resumed: `EX_TEMPFAIL` of `sysexits.h`, for which schedulers can be
    /// configured to restart a job.
    Resumable,
    /// This signal stopped work that must be repeated.
    Signal(u8),
}

impl Exit {
    /// Returns the exit code of the process.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::BadData => 3,
            Self::DoesNotFit => 4,
            Self::Lost => 5,
            Self::Resumable => 75,
            // The convention of shells for a command that a signal killed.
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Returns the exit code of work that was stopped.
    pub(crate) fn of_stop(cause: StopCause) -> Self {
        let signal = match cause {
            StopCause::Signal(signal) => u8::try_from(signal).ok().filter(|signal| *signal < 128),
            StopCause::Program => None,
        };
        signal.map_or(Self::Failed, Self::Signal)
    }

    /// Ends the process at once, even if other threads wait for something that never happens, or for a GPU.
    pub(crate) fn now(self) -> ! {
        // SAFETY: the call has no precondition; the system already has what was written to files.
        unsafe { libc::_exit(i32::from(self.code())) }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Parses the command line of this process and runs the command.
pub fn main() -> ExitCode {
    command().into()
}

fn command() -> Exit {
    signals::survive_file_size_limit();
    let cli = parse();
    let launch = match &cli.command {
        Command::Train(args) => Some(&args.launch),
        Command::Bench(args) => args.launch(),
        _ => None,
    };
    let place = match launch.map_or_else(|| Ok(ProcessPlace::alone()), launch::Args::place) {
        Ok(place) => place,
        Err(error) => return failed(&error.into(), None),
    };
    let process = (place.processes > 1).then_some(place.process);
    let Messages { quiet, verbose, color, log_format } = cli.messages;
    let level = match (quiet, verbose) {
        (_, true) => LevelFilter::DEBUG,
        (true, _) => LevelFilter::WARN,
        // Process 0 reports for all.
        _ if process.is_some_and(|process| process > Process(0)) => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    };
    let result = log::init(level, (log_format, color), process).and_then(|()| {
        hooks::ignored().for_each(|name| {
            tracing::warn!("{name} is ignored: only test builds (feature `test-hooks`) use it");
        });
        run(cli.command, &place, quiet)
    });
    match result {
        Ok(()) => Exit::Success,
        // The reader of the output has left: `rankine doctor | head -1` is not a failure.
        Err(CommandError::OutputClosed) => Exit::Success,
        Err(error) => failed(&error, process),
    }
}

/// Parses the command line; exits on `--help` and on errors.
fn parse() -> Cli {
    let command = Cli::command().color(color_of_help(env::args_os().skip(1)));
    let parsed = command.try_get_matches_from(env::args_os());
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(env::args_os().skip(1)) => {
            let text = error.render().to_string();
            let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
            let record = Record::new(Level::ERROR, message, None).with_exit_code(Exit::Usage.code());
            stderr::write(record.to_line().as_bytes());
            Exit::Usage.now()
        }
        Err(error) => error.exit(),
    }
}

/// Returns whether errors are to be JSON: with `--log-format json`, and with the `--json` of a command.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let words = arguments.take_while(|word| word != "--").filter_map(|word| word.into_string().ok());
    let words: Vec<_> = words.collect();
    words.iter().any(|word| word == "--json" || word == "--log-format=json")
        || words.windows(2).any(|pair| pair == ["--log-format", "json"])
}

/// Finds `--color` before the arguments are parsed: help and errors of the parser use it, too.
fn color_of_help(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
    let arguments: Vec<_> =
        arguments.take_while(|argument| argument != "--").filter_map(|one| one.into_string().ok()).collect();
    let split = arguments.windows(2).filter(|pair| pair[0] == "--color").map(|pair| pair[1].as_str());
    let joined = arguments.iter().filter_map(|argument| argument.strip_prefix("--color="));
    let parsed = split.chain(joined).find_map(|choice| choice.parse().ok());
    parsed.unwrap_or_default()
}

fn run(command: Command, place: &ProcessPlace, quiet: bool) -> Result<(), CommandError> {
    match command {
        Command::InitSchema(args) => init_schema::run(args),
        Command::Fit(args) => fit::run(args, quiet),
        Command::Convert(args) => convert::run(args, quiet),
        Command::Dataset(args) => dataset::run(args),
        Command::Inspect(args) => inspect::run(args, quiet),
        Command::Init(args) => init::run(args, quiet),
        Command::Tune(args) => tune::run(args),
        Command::Train(args) => train::run(args, place, quiet),
        Command::Runs(args) => runs::run(args),
        Command::Report(args) => report::run(args),
        Command::Eval(args) => eval::run(args, quiet),
        Command::Predict(args) => predict::run(args, quiet),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Check(args) => check::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Ckpt(args) => ckpt::run(args),
        Command::Generate(args) => generate::run(args, quiet),
        Command::Bench(args) => bench::run(args, place),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args),
        Command::ManPages(args) => completions::write_man_pages(args),
    }
}

fn failed(error: &CommandError, process: Option<Process>) -> Exit {
    let exit = error.exit();
    print_error(error, process, exit);
    exit
}

/// Prints the error that ends a command, with the process if there are several.
fn print_error(error: &dyn fmt::Display, process: Option<Process>, exit: Exit) {
    if asks_for_json(env::args_os().skip(1)) {
        let message = error.to_string();
        let record = Record::new(Level::ERROR, &message, process).with_exit_code(exit.code());
        return stderr::write(record.to_line().as_bytes());
    }
    match process {
        None => stderr::line(format_args!("error: {error}")),
        Some(process) => stderr::line(format_args!("error (process {process}): {error}")),
    }
}
