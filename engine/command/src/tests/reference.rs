//! The reference of the command line, `docs/reference/command-line.md`, generated from the definitions of the
//! arguments. It is committed; a test compares it with them.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::{Cli, ENVIRONMENT, EXAMPLES, EXIT_CODES};

/// Environment variable: if it is set, the test writes the document instead of comparing it.
const BLESS: &str = "RANKINE_BLESS";

const INTRODUCTION: &str = "\
# The command line

All commands and options. This page is generated from the definitions of the arguments; `rankine COMMAND --help` prints
the same text.

Results are printed on stdout, everything else on stderr. If stderr is a terminal, commands show a progress bar.
";

/// Returns the document.
fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let mut out = INTRODUCTION.to_owned();
    out += &format!("\n```\n{EXAMPLES}\n```\n\n## Commands\n\n| command | purpose |\n|---|---|\n");
    for (name, command) in leaves(&root, "") {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        out += &format!("| [`{name}`](#{}) | {} |\n", name.replace(' ', "-"), cell(&about));
    }
    out += "\n## Options of all commands\n\n";
    let global = |arg: &&Arg| arg.is_global_set() && is_listed(arg);
    options(&mut out, root.get_arguments().filter(global));
    out += "\n`-h` prints a short help, `--help` a long one, and `rankine -V` the version and the commit.\n\
            `rankine --version` prints all of the build.\n";
    for (title, column, rows) in
        [("Environment variables", "variable", &ENVIRONMENT[..]), ("Exit codes", "code", &EXIT_CODES[..])]
    {
        out += &format!("\n## {title}\n\n| {column} | meaning |\n|---|---|\n");
        for (name, meaning) in rows {
            out += &format!("| `{name}` | {} |\n", cell(meaning));
        }
    }
    for command in listed(&root) {
        section(&mut out, command, "rankine", 2);
    }
    out
}

/// Returns the commands that have no subcommands, with their full names.
fn leaves<'a>(command: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
    let found: Vec<_> = listed(command)
        .flat_map(|subcommand| leaves(subcommand, &joined(path, command.get_name())))
        .collect();
    if found.is_empty() { vec![(joined(path, command.get_name()), command)] } else { found }
}

/// Returns the subcommands of a command, without former names.
fn listed(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set())
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }
}

/// Writes a command, then its subcommands.
fn section(out: &mut String, command: &Command, parent: &str, level: usize) {
    let name = format!("{parent} {}", command.get_name());
    write!(out, "\n{} `{name}`\n", "#".repeat(level)).expect("a string takes any text");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    // The first sentence of a help text has no full stop.
    let (first, rest) = about.split_once("\n\n").map_or((&*about, None), |(first, rest)| (first, Some(rest)));
    *out += &format!("\n{first}.\n");
    if let Some(rest) = rest {
        *out += &format!("\n{}\n", wrapped(rest));
    }
    let subcommands: Vec<_> = listed(command).collect();
    if subcommands.is_empty() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>().join(" ");
        *out += &format!("\n```\n{}\n```\n", usage);
    }
    let own: Vec<_> = command.get_arguments().filter(|arg| !arg.is_global_set() && is_listed(arg)).collect();
    if !own.is_empty() {
        *out += "\n";
        options(out, own.into_iter());
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        *out += &format!("\n```\n{}\n```\n", after.to_string().trim_end());
    }
    for subcommand in subcommands {
        section(out, subcommand, &name, level + 1);
    }
}

/// Returns whether an argument is one of the command's own, and not hidden.
fn is_listed(arg: &Arg) -> bool {
    !["help", "version"].contains(&arg.get_id().as_str()) && !arg.is_hide_set()
}

/// Writes a table of arguments.
fn options<'a>(out: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    *out += "| argument | default | meaning |\n|---|---|---|\n";
    for arg in arguments {
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let default =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>();
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        // A default that depends on something else is described at the end of the help.
        let (help, described) =
            match help.trim_end().strip_suffix(']').and_then(|help| help.split_once("[default: ")) {
                Some((help, described)) => (help.to_owned(), described.to_owned()),
                None => (help, String::new()),
            };
        let default = match default.is_empty() || !takes_value {
            true => cell(&described),
            false => format!("`{}`", default.join(" ")),
        };
        let choices: Vec<_> = arg.get_possible_values();
        let choices = match choices.is_empty() || !takes_value {
            true => String::new(),
            false => {
                let names: Vec<_> = choices.iter().map(|choice| format!("`{}`", choice.get_name())).collect();
                format!("; one of {}", names.join(", "))
            }
        };
        *out += &format!(
            "| `{}` | {default} | {}{choices} |\n",
            cell(&syntax(arg, takes_value)),
            cell(&sentences(&help))
        );
    }
}

/// Returns the help of an argument with a full stop between its first paragraph and the others.
fn sentences(help: &str) -> String {
    help.replacen("\n\n", ". ", 1)
}

/// Returns an argument as it is written: `-q, --quiet`, `--out <DIR>` or `<FILE>...`.
fn syntax(arg: &Arg, takes_value: bool) -> String {
    let names: Vec<_> = arg.get_value_names().into_iter().flatten().map(|name| format!("<{name}>")).collect();
    let mut value = if names.is_empty() {
        format!("<{}>", arg.get_id().as_str().to_uppercase())
    } else {
        names.join(" ")
    };
    if arg.get_num_args().is_some_and(|range| range.max_values() > 1) {
        value += "...";
    }
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    match arg.get_long() {
        None => value,
        Some(long) if takes_value => format!("{short}--{long} {value}"),
        Some(long) => format!("{short}--{long}"),
    }
}

/// Returns a text that fits into a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Wraps paragraphs at 120 characters.
fn wrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let mut lines = vec![String::new()];
        for word in paragraph.split_whitespace() {
            let last = lines.last_mut().expect("there is a line");
            if last.is_empty() {
                *last += word;
            } else if last.chars().count() + 1 + word.chars().count() <= 120 {
                *last += &format!(" {word}");
            } else {
                lines.push(word.to_owned());
            }
        }
        lines.join("\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[test]
fn the_document_matches_the_arguments() {
    let text = markdown();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/command-line.md");
    if env::var_os(BLESS).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/reference/command-line.md differs from the arguments: {BLESS}=1 cargo test -p rankine-command reference \
         rewrites it"
    );
}
