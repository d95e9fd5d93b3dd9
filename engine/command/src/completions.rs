//! `rankine completions`: prints a script with which a shell completes commands and options; and `rankine man-pages`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, CommandError, Exit, output};

/// Print a script with which a shell completes commands, options and their values
///
/// Packages install it where the shell finds it. Otherwise, put it there yourself, or load it at the start of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine completions bash > ~/.local/share/bash-completion/completions/rankine
  rankine completions fish > ~/.config/fish/completions/rankine.fish
  rankine completions zsh > ~/.zfunc/_rankine        # with fpath+=~/.zfunc before compinit in ~/.zshrc
  source <(rankine completions bash)                 # for this shell only")]
pub(crate) struct Args {
    /// Shell
    shell: Shell,
}

/// Write a manual page for each command, for packages
#[derive(Debug, clap::Args)]
pub(crate) struct ManPages {
    /// Folder for the pages; it is created if it does not exist, and pages in it are replaced
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let all = Cli::command();
    // The scripts would propose hidden commands, too.
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut command = Command::new("rankine")
        .args(all.get_arguments())
        .subcommands(visible)
        .version(env!("CARGO_PKG_VERSION"));
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "rankine", &mut script);
    output::text(String::from_utf8_lossy(&script))
}

pub(crate) fn write_man_pages(args: ManPages) -> Result<(), CommandError> {
    // The long version has several lines, and differs between builds of the same sources.
    let command = Cli::command().version(env!("CARGO_PKG_VERSION")).long_version(None::<&str>);
    let write = |dir: &Path| {
        fs::create_dir_all(dir)?;
        clap_mangen::generate_to(command, dir)
    };
    let dir = args.dir.as_path();
    write(dir).map_err(|error| {
        CommandError::new(Exit::Failed, format!("cannot write to {}: {error}", dir.display()))
    })
}
