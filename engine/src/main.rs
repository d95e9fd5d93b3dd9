//! The command `rankine`: its arguments, messages and exit codes. The library does the work.

// `eprintln!` panics if stderr is closed or full; `command::stderr` does not.
#![warn(clippy::print_stderr)]

mod command;

fn main() -> std::process::ExitCode {
    command::main().into()
}
