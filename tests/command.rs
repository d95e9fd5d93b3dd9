//! The command from outside: what it prints where, and how it ends.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use support::{FAILED, Place, SUCCESS, USAGE, rankine, run};

mod support;

const SOUND_JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/quickstart.toml");

#[test]
fn a_sound_job_is_told_on_stdout() {
    let ended = run(["check", SOUND_JOB]).with(SUCCESS);
    assert_eq!(ended.stderr, "");
    assert!(ended.stdout.contains("is sound: job `quickstart`\n"), "{}", ended.stdout);
}

#[test]
fn an_unsound_job_ends_with_2_and_a_caret() {
    let ended = run(["check", SOUND_JOB, "--set", "train.epocs=3"]).with(USAGE);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: --set train.epocs=3: unknown key `epocs` in [train]\n"));
    ended.says(&["\n  |       ^^^^^\n", "did you mean `epochs`?"]);
}

#[test]
fn the_effective_job_is_a_job() {
    let effective = run(["check", SOUND_JOB, "--set", "seed=5", "--effective"]).with(SUCCESS).stdout;
    let place = Place::new();
    let path = place.file("effective.toml", &effective);
    assert_eq!(run(["check", &path, "--effective"]).with(SUCCESS).stdout, effective);
    assert!(effective.contains("\nseed = 5\n"), "{effective}");
}

#[test]
fn a_job_that_is_not_there_is_named() {
    let stderr = run(["check", "no/such.toml"]).with(USAGE).stderr;
    assert!(stderr.starts_with("error: cannot read the job file no/such.toml: No such file"), "{stderr}");
    assert!(!stderr.contains("caused by"), "the cause is told twice: {stderr}");
}

#[test]
fn bad_usage_ends_with_2() {
    run(["chekc"]).with(USAGE);
    run([""; 0]).with(USAGE);
    let output = rankine().args(["check", SOUND_JOB]).env("RANKINE_LOG", "loud").output().unwrap();
    assert_eq!(output.status.code(), Some(USAGE));
}

#[test]
fn help_lists_the_exit_codes() {
    let stdout = run(["--help"]).with(SUCCESS).stdout;
    assert!(stdout.contains("Exit codes:\n  0   success\n"), "{stdout}");
}

#[test]
fn doctor_reports_as_text_and_as_json() {
    let text = run(["doctor"]).with(SUCCESS).stdout;
    assert!(text.contains("\ntraining  cpu, "), "{text}");
    assert_eq!(run(["doctor", "--json"]).with(SUCCESS).json()["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let mut child = rankine().arg("doctor").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    assert_eq!(child.wait().unwrap().code(), Some(SUCCESS));
}

#[test]
fn a_full_stdout_is_a_failure() {
    if !Path::new("/dev/full").exists() {
        println!("skipped: there is no /dev/full");
        return;
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = rankine().args(["check", SOUND_JOB]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write to stdout: "), "{stderr}");
}
