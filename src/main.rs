//! The command `rankine`.

fn main() -> std::process::ExitCode {
    rankine_command::main()
}
