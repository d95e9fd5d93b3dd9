//! The command `rankine`. What it does is in the library; here are its arguments, its words and its exit codes.

mod command;

fn main() -> std::process::ExitCode {
    command::main().into()
}
