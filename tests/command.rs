//! The command from outside: what it prints where, and how it ends.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SOUND_JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/quickstart.toml");

fn rankine() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankine"));
    command.env_remove("RANKINE_LOG").env_remove("NO_COLOR");
    command
}

/// Runs the command to its end: its exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = rankine().args(args).output().expect("the command starts");
    let code = status.code().expect("it was not killed");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    (code, text(stdout), text(stderr))
}

#[test]
fn a_sound_job_is_told_on_stdout() {
    let (code, stdout, stderr) = run(&["check", SOUND_JOB]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.ends_with("is sound: job `quickstart`\n"), "{stdout}");
}

#[test]
fn an_unsound_job_ends_with_2_and_a_caret() {
    let (code, stdout, stderr) = run(&["check", SOUND_JOB, "--set", "train.epocs=3"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.starts_with("error: --set train.epocs=3: unknown key `epocs` in [train]\n"), "{stderr}");
    assert!(stderr.contains("\n  |       ^^^^^\n"), "{stderr}");
    assert!(stderr.contains("did you mean `epochs`?"), "{stderr}");
}

#[test]
fn the_effective_job_is_a_job() {
    let (code, effective, _) = run(&["check", SOUND_JOB, "--set", "seed=5", "--effective"]);
    assert_eq!(code, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("effective.toml");
    fs::write(&path, &effective).unwrap();
    let (code, again, stderr) = run(&["check", path.to_str().unwrap(), "--effective"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(again, effective);
    assert!(effective.contains("\nseed = 5\n"), "{effective}");
}

#[test]
fn a_job_that_is_not_there_is_named() {
    let (code, _, stderr) = run(&["check", "no/such.toml"]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("error: cannot read the job file no/such.toml: No such file"), "{stderr}");
    assert!(!stderr.contains("caused by"), "the cause is told twice: {stderr}");
}

#[test]
fn bad_usage_ends_with_2() {
    assert_eq!(run(&["chekc"]).0, 2);
    assert_eq!(run(&[]).0, 2);
    let output = rankine().args(["check", SOUND_JOB]).env("RANKINE_LOG", "loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn help_lists_the_exit_codes() {
    let (code, stdout, _) = run(&["--help"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("Exit codes:\n  0   success\n"), "{stdout}");
}

#[test]
fn doctor_reports_as_text_and_as_json() {
    let (code, text, _) = run(&["doctor"]);
    assert_eq!(code, 0);
    assert!(text.contains("\ntraining  cpu, "), "{text}");
    let (code, json, _) = run(&["doctor", "--json"]);
    assert_eq!(code, 0);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let mut child = rankine().arg("doctor").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_full_stdout_is_a_failure() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = rankine().args(["check", SOUND_JOB]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write to stdout: "), "{stderr}");
}
