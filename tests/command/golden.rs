//! What users read, kept as text: the `--help` of every command, and the messages of likely mistakes.
//!
//! A change of wording shows in the golden files that it changes. `UPDATE_EXPECT=1 cargo test --test command golden::`
//! rewrites them. Each file of mistakes is one test: the commands run in a temporary folder, one after another, and the
//! file holds each command line, its exit code and what it printed on stderr.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use expect_test::expect_file;

use crate::support::films::{CSV_SCHEMA, csv_rows};
use crate::support::{Ended, Place, SHAPE, SUCCESS, files_below, generate, job, rankine, root};

mod data;
mod jobs;
mod models;

/// Mistakes of one area and what the command says to them.
struct Mistakes {
    place: Place,
    text: String,
    /// Titles of mistakes that the command did not report.
    unnoticed: Vec<String>,
}

impl Mistakes {
    fn new() -> Self {
        Self { place: Place::new(), text: String::new(), unnoticed: Vec::new() }
    }

    /// Runs a command line, as a shell would, in the temporary folder. It must fail.
    ///
    /// Words are separated by blanks and may be in single quotes; those before `rankine` are environment variables.
    fn run(&mut self, title: &str, line: &str) {
        if self.record(title, line) == SUCCESS {
            self.unnoticed.push(title.to_owned());
        }
    }

    /// Runs a command line that warns and succeeds.
    fn warn(&mut self, title: &str, line: &str) {
        if self.record(title, line) != SUCCESS {
            self.unnoticed.push(title.to_owned());
        }
    }

    fn record(&mut self, title: &str, line: &str) -> i32 {
        let mut command = bare();
        command.current_dir(self.place.path(""));
        let mut words = shell_words(line).into_iter();
        for word in words.by_ref().take_while(|word| word != "rankine") {
            let (name, value) = word.split_once('=').expect("a variable has a value");
            command.env(name, value);
        }
        let Ended { code, stderr, .. } = Ended::of({
            command.args(words);
            command
        });
        let stderr = self.normalized(&stderr);
        write!(self.text, "## {title}\n$ {line}\n[exit code {code}]\n{stderr}\n")
            .expect("a string takes any text");
        code
    }

    /// Writes a file in the temporary folder.
    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) {
        self.place.file(name, bytes);
    }

    /// Replaces a piece of a text file, which must be in it.
    #[track_caller]
    fn edit(&self, name: &str, piece: &str, replacement: &str) {
        let text = fs::read_to_string(self.place.path(name)).expect("the file is readable");
        assert!(text.contains(piece), "{name} has no `{piece}`: {text}");
        self.file(name, text.replacen(piece, replacement, 1));
    }

    /// Flips the lowest bit of a byte; a negative offset counts from the end.
    #[track_caller]
    fn flip(&self, name: &str, offset: isize) {
        let mut bytes = fs::read(self.place.path(name)).expect("the file is readable");
        let offset = if offset < 0 { bytes.len() - offset.unsigned_abs() } else { offset.unsigned_abs() };
        bytes[offset] ^= 1;
        self.file(name, bytes);
    }

    /// Copies a file.
    fn copy_file(&self, from: &str, to: &str) {
        fs::copy(self.place.path(from), self.place.path(to)).expect("there is room");
    }

    /// Copies a folder.
    fn copy(&self, from: &str, to: &str) {
        let from = self.place.path(from);
        for path in files_below(&from) {
            let target =
                self.place.path(to).join(path.strip_prefix(&from).expect("it lies below the folder"));
            fs::create_dir_all(target.parent().expect("it has a folder")).expect("there is room");
            fs::copy(&path, target).expect("there is room");
        }
    }

    /// Runs a command that prepares a mistake.
    #[track_caller]
    fn prepare(&self, line: &str) {
        let mut command = bare();
        command.current_dir(self.place.path("")).args(shell_words(line));
        Ended::of(command).with(SUCCESS);
    }

    /// Compares the messages with the golden file.
    #[track_caller]
    fn check(self, name: &str) {
        let text = self.text.trim_end().to_owned() + "\n";
        expect_file![golden(&format!("mistakes/{name}.txt"))].assert_eq(&text);
        assert!(self.unnoticed.is_empty(), "another exit code was expected: {:?}", self.unnoticed);
    }

    /// Replaces what differs between machines and runs.
    fn normalized(&self, text: &str) -> String {
        let folder = self.place.path("");
        let real = folder.canonicalize().expect("the folder is there");
        let text = text.replace(real.to_str().expect("it has a plain name"), "TMP");
        let text = text.replace(folder.to_str().expect("it has a plain name").trim_end_matches('/'), "TMP");
        text.lines().map(|line| without_measurements(line) + "\n").collect()
    }
}

/// Replaces the words of a line that differ between machines and runs: times, free memory and checksums.
fn without_measurements(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let replaced = words.iter().enumerate().map(|(at, word)| {
        let following = words[at + 1..].join(" ");
        let number = word.parse::<f64>().is_ok();
        let time = word.len() == 27 && word.starts_with("20") && word.ends_with('Z');
        let checksum = word.trim_end_matches([',', ';', ':']);
        if time {
            "TIME".into()
        } else if number
            && (following.starts_with("GiB of memory are free") || following.starts_with("s to reach"))
        {
            "N".into()
        } else if checksum.len() == 16 && checksum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            word.replace(checksum, "CHECKSUM")
        } else {
            (*word).to_owned()
        }
    });
    replaced.collect::<Vec<_>>().join(" ")
}

/// The words of a command line.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None, false);
    for char in line.chars() {
        match char {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_with(String::new);
            }
            ' ' if !quoted => words.extend(word.take()),
            _ => word.get_or_insert_with(String::new).push(char),
        }
    }
    words.extend(word);
    words
}

fn golden(name: &str) -> PathBuf {
    root().join("tests/golden").join(name)
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// The command without any variable that could change its messages.
fn bare() -> Command {
    const COUNTS: &str = "LLVM_PROFILE_FILE";
    let mut command = rankine();
    // `.ci/uncovered` counts what the command runs in this file.
    command.env_clear().envs(env::var_os(COUNTS).map(|file| (COUNTS, file)));
    command
}

/// Checks the help of a command and of all its subcommands, and collects the names of their files.
fn check_help(command: &[&str], files: &mut BTreeSet<String>) {
    let mut shown = bare();
    shown.args(command).arg("--help");
    let help = Ended::of(shown).with(SUCCESS).stdout;
    let name = if command.is_empty() { "rankine".to_owned() } else { command.join("-") };
    expect_file![golden(&format!("help/{name}.txt"))].assert_eq(&help);
    files.insert(name + ".txt");
    for subcommand in subcommands(&help) {
        check_help(&[command, &[subcommand]].concat(), files);
    }
}

#[test]
fn every_command_has_its_help() {
    let mut files = BTreeSet::new();
    check_help(&[], &mut files);
    let kept = files_below(&golden("help"));
    let kept: BTreeSet<_> =
        kept.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    assert_eq!(kept, files, "a golden file without its command");
}

#[test]
fn command_lines_are_split_as_a_shell_does() {
    assert_eq!(shell_words("A=b rankine  'c d' e'f g'"), ["A=b", "rankine", "c d", "ef g"]);
}

#[test]
fn measurements_are_replaced() {
    let replaced = [
        ("5 GiB, and 3.25 GiB of memory are free", "5 GiB, and N GiB of memory are free"),
        ("2026-11-23T10:21:07.120929Z  WARN tried for 0.3 s to reach", "TIME  WARN tried for N s to reach"),
        ("is 0123456789abcdef, not 0123", "is CHECKSUM, not 0123"),
    ];
    for (line, expected) in replaced {
        assert_eq!(without_measurements(line), expected);
    }
}
