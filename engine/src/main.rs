//! The command `rankine`. What it does is in the library; here are its arguments, its words and its exit codes.

// They panic where stderr is closed or full: `command::stderr` does not.
#![warn(clippy::print_stderr)]

mod command;

fn main() -> std::process::ExitCode {
    command::main().into()
}
