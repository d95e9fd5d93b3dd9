//! Completions of shells, and manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Ended, FAILED, Place, SUCCESS, USAGE, files_below, root, run, skipped};

/// The commands that have a help text in `tests/golden`, such as `rankine` and `rankine-bench-eval`.
fn commands() -> BTreeSet<String> {
    let names = files_below(&root().join("tests/golden/help"));
    let names = names.iter().filter_map(|path| path.file_stem()?.to_str());
    names.map(|name| if name == "rankine" { name.to_owned() } else { format!("rankine-{name}") }).collect()
}

fn completions(place: &Place, shell: &str) -> String {
    let ended = run(["completions", shell]).with(SUCCESS);
    assert_eq!(ended.stderr, "");
    place.file(shell, &ended.stdout)
}

/// Returns what bash proposes for the last word of a command line.
fn proposed(script: &str, line: &str) -> Vec<String> {
    let words: Vec<_> = line.split(' ').collect();
    let (last, before) = (words.len() - 1, words[words.len() - 2]);
    let code = format!(
        "source '{script}'; COMP_WORDS=({line}); [[ '{line}' == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD={last}; \
         _rankine rankine '{}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words[last]
    );
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &code]);
    let ended = Ended::of(bash).with(SUCCESS);
    assert_eq!(ended.stderr, "");
    ended.stdout.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let place = Place::new();
    let script = completions(&place, "bash");
    assert_eq!(proposed(&script, "rankine tr"), ["train"]);
    assert_eq!(proposed(&script, "rankine train --res"), ["--resume", "--restart"]);
    assert_eq!(proposed(&script, "rankine ckpt ve"), ["verify"]);
    assert_eq!(proposed(&script, "rankine export --format o"), ["onnx"]);
    let all = proposed(&script, "rankine ");
    let of_root = commands().into_iter().filter_map(|name| name.strip_prefix("rankine-").map(str::to_owned));
    let top: BTreeSet<_> =
        of_root.map(|name| if name == "init-schema" { name } else { word(&name) }).collect();
    for command in &top {
        assert!(all.contains(command), "{command} is not among {all:?}");
    }
    assert!(!all.iter().any(|word| word == "man-pages"), "a hidden command is proposed");
}

/// The first word of a name with hyphens.
fn word(name: &str) -> String {
    name.split('-').next().unwrap_or_default().to_owned()
}

#[test]
fn other_shells_accept_their_scripts() {
    let place = Place::new();
    for (shell, check) in [("zsh", "-n"), ("fish", "--no-execute")] {
        let script = completions(&place, shell);
        let text = fs::read_to_string(&script).expect("the script is readable");
        for command in ["init-schema", "reshard", "criteo-tsv", "completions"] {
            assert!(text.contains(command), "{shell} does not complete {command}");
        }
        match Command::new(shell).args([check, &script]).stderr(Stdio::piped()).output() {
            Ok(output) => {
                assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Err(_) => skipped(format!("{shell} is not installed")),
        }
    }
    run(["completions", "csh"]).with(USAGE).says(&["invalid value 'csh'", "bash", "zsh", "fish"]);
}

/// Returns the text of a manual page, as `man` shows it; `None` if it is not installed.
fn rendered(page: &Path) -> Option<String> {
    let mut man = Command::new("man");
    man.args(["--warnings=w", "-l"])
        .arg(page)
        .env("MANWIDTH", "100")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null());
    let output = man.output().ok()?;
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn each_command_has_a_manual_page() {
    let place = Place::new();
    let folder = place.path("man/man1");
    run(["man-pages", folder.to_str().expect("a plain name")]).with(SUCCESS);
    let pages = files_below(&folder);
    let names = pages.iter().filter_map(|path| path.file_name()?.to_str()?.strip_suffix(".1"));
    assert_eq!(names.map(str::to_owned).collect::<BTreeSet<_>>(), commands());

    let train = fs::read_to_string(folder.join("rankine-train.1")).expect("the page is readable");
    assert!(train.contains("\\-\\-resume") && train.contains("rankine\\-train"), "{train}");
    let (Some(main), Some(train)) =
        (rendered(&folder.join("rankine.1")), rendered(&folder.join("rankine-train.1")))
    else {
        return skipped("man is not installed");
    };
    assert!(main.contains("rankine-train(1)") && main.contains("Exit codes"), "{main}");
    assert!(train.contains("--run-dir") && train.contains("a second SIGINT"), "{train}");
    for page in pages {
        assert!(rendered(&page).is_some_and(|text| text.contains("SYNOPSIS")), "{}", page.display());
    }

    let file = place.file("file", "");
    run(["man-pages", &file]).with(FAILED).says(&["cannot write to "]);
}
