//! A run whose folder is removed, moved or replaced while it trains stops, and leaves alone what is there then.

use std::fs;
use std::process::Stdio;

use crate::support::process::{Running, wait_until};
use crate::support::{
    FAILED, Place, SHAPE, SUCCESS, files_below, generate, job, json_lines, rankine, run, summary, times,
    train, tree, weights,
};

/// Checkpoints that follow each other closely; each removes the one before it.
const SETS: [&str; 3] = ["checkpoint.every_steps=5", "checkpoint.keep=1", "train.batch_size=100"];

fn place() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 300);
    let job = job(&place);
    (place, job)
}

/// Starts to train the run `run` for some seconds, and waits until something is in its folder.
fn started(place: &Place, job: &str, sets: &[&str], appears: &str) -> Running {
    let mut command = rankine();
    command.args(["train", job, "--quiet", "--run-dir", &place.word("run"), "--set", "train.epochs=60"]);
    command.args(SETS.iter().chain(sets).flat_map(|set| ["--set", set]));
    let running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let appears = place.path("run").join(appears);
    wait_until("the run trains", || fs::read_dir(&appears).is_ok_and(|mut entries| entries.next().is_some()));
    running
}

/// Waits for a run to end, and checks what it says.
#[track_caller]
fn ends_for_its_folder(running: &mut Running) {
    let code = running.end();
    let mut said = String::new();
    let stderr = running.0.stderr.as_mut().expect("it is piped");
    std::io::Read::read_to_string(stderr, &mut said).expect("the command writes UTF-8");
    assert_eq!(code, FAILED, "{said}");
    for words in ["was removed, moved or replaced while the run trained", "put its folder back", "--run-dir"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// The lock of a run goes with its folder, so another run can start at its path. The first one neither removes the
/// checkpoints of that run nor adds its own.
#[test]
fn a_run_whose_folder_was_replaced_leaves_the_new_one_alone() {
    let (place, job) = place();
    for repeat in 0..times(1) {
        let mut first = started(&place, &job, &["seed=7"], "checkpoints");
        let moved = place.path(&format!("moved-{repeat}"));
        fs::rename(place.path("run"), &moved).expect("a folder can be renamed");
        let second = ["train.max_steps=20", "checkpoint.every_steps=5", "checkpoint.keep=100"];
        train(&place, &job, "run", &second).with(SUCCESS);
        let before = tree(&place.path("run"));
        ends_for_its_folder(&mut first);
        assert!(tree(&place.path("run")) == before, "the first run changed the folder of the second one");
        let model = weights(&place, "run");
        // It continues from its own state, and the first run from its own, once its folder is back.
        fs::remove_file(place.path("run/summary.json")).expect("it is finished");
        let resume = |sets: &[&str]| {
            let mut command = vec!["train", &job, "--quiet", "--resume", "--run-dir"];
            let path = place.word("run");
            command.push(&path);
            command.extend(sets.iter().flat_map(|set| ["--set", set]));
            run(command).with(SUCCESS);
        };
        resume(&second);
        assert!(weights(&place, "run") == model);
        fs::remove_dir_all(place.path("run")).expect("the files of a test can be removed");
        fs::rename(&moved, place.path("run")).expect("a folder can be renamed");
        resume(&["train.batch_size=100", "seed=7", "train.epochs=60"]);
        assert_eq!(summary(&place, "run")["train"]["samples"], 60_000);
        fs::rename(place.path("run"), moved).expect("a folder can be renamed");
    }
}

/// Nothing is made again where the folder was.
#[test]
fn a_run_whose_folder_is_gone_stops() {
    let (place, job) = place();
    for (name, sets) in [
        ("checkpoints", &[][..]),
        ("model", &["checkpoint.on_failure=continue"][..]),
        // Without checkpoints, it notices when it reports a loss.
        ("none", &["checkpoint.every_steps=1000000"][..]),
    ] {
        let mut running = started(&place, &job, sets, "");
        wait_until("a step is reported", || {
            fs::metadata(place.path("run/metrics.jsonl")).is_ok_and(|metrics| metrics.len() > 0)
        });
        let gone = place.path(name);
        fs::rename(place.path("run"), &gone).expect("a folder can be renamed");
        let reported = || json_lines(&gone.join("metrics.jsonl")).len();
        let before = reported();
        ends_for_its_folder(&mut running);
        // A line may have been on its way.
        assert!(reported() <= before + 1, "it went on for more than a report");
        assert!(!place.path("run").exists(), "{:?}", files_below(&place.path("run")));
        assert!(!gone.join("summary.json").exists());
    }
    // While files appear in it, removing it may take several attempts.
    let mut running = started(&place, &job, &[], "checkpoints");
    wait_until("it is removed", || {
        let _ = fs::remove_dir_all(place.path("run"));
        !place.path("run").exists()
    });
    ends_for_its_folder(&mut running);
    assert!(!place.path("run").exists());
}
