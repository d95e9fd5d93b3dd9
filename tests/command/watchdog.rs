//! A training without progress ends, and reports what it was waiting for.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::process::{Running, Stalled, wait_until};
use crate::support::{self, Ended, LOST, Place, SHAPE, SUCCESS, USAGE, numbers, rankine, train};

const BATCH: usize = 128;

/// Returns raw records of [`SHAPE`].
fn records(count: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend(((next() % 2) as u32).to_le_bytes());
        (0..4).for_each(|_| bytes.extend(((next() % 64) as f32 / 16.0 - 2.0).to_le_bytes()));
        for rows in [40, 30, 20, 12, 8, 3] {
            bytes.extend(((next() % rows) as u32).to_le_bytes());
        }
    }
    bytes
}

/// Writes a job that trains on two files, in order; returns its path and that of the second file.
fn two_files(place: &Place) -> (String, String) {
    let (first, second) =
        (place.file("a.bin", records(6 * BATCH, 1)), place.file("b.bin", records(6 * BATCH, 2)));
    let shape = place.file("shape.toml", SHAPE);
    let text = format!(
        "\
name = \"small\"
data.raw = {{ shape = {shape:?}, train = [{first:?}, {second:?}] }}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = {BATCH}, shuffle = false }}
"
    );
    (place.file("job.toml", text), second)
}

/// Trains the job of [`two_files`] for three steps into a run with a checkpoint. A resumed run recognizes both files by
/// their times, so it opens the second one only when training reaches it.
fn trained_for_three_steps(place: &Place, job: &str, run: &str) {
    train(place, job, run, &["train.max_steps=3", "checkpoint.every_steps=3"]).with(SUCCESS);
}

/// Waits until files are old enough to be recognized by their times.
fn grow_old() {
    thread::sleep(Duration::from_millis(3500));
}

/// Returns the command that resumes a run.
fn resumed(place: &Place, job: &str, run: &str, sets: &[&str]) -> Command {
    let mut training = rankine();
    training.args(["train", job, "--quiet", "--resume", "--run-dir", &place.word(run)]);
    training.args(sets.iter().flat_map(|set| ["--set", set]));
    training
}

#[test]
fn a_stalled_read_is_reported() {
    let place = Place::new();
    let (job, second) = two_files(&place);
    train(&place, &job, "moves", &["guard.step_timeout_s=5"]).with(SUCCESS);
    grow_old();
    let modes = ["pread", "auto"];
    modes.iter().for_each(|mode| trained_for_three_steps(&place, &job, mode));
    let Some(stalled) = Stalled::new(&second) else {
        return support::skipped("this file system has no leases");
    };
    for run in modes {
        let (begun, mode) = (Instant::now(), format!("reader.mode={run}"));
        let training = resumed(&place, &job, run, &["guard.step_timeout_s=1.5", &mode]);
        Ended::of(training).with(LOST).says(&[
            "process 0 has made no progress for 2 s in training",
            "waiting for the reader's next batch: the process hangs, or waits for a file or device that does not \
             respond",
            "guard.step_timeout_s",
            "not saved",
        ]);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    drop(stalled);
    train(&place, &job, "again", &["guard.step_timeout_s=5"]).with(SUCCESS);
}

/// SIGSTOP, Ctrl-Z or `scontrol suspend` in the middle of a step, for longer than a step may take.
#[test]
fn a_step_gets_a_new_period_after_a_suspension() {
    let place = Place::new();
    let (job, second) = two_files(&place);
    grow_old();
    for repeat in 0..support::times(1) {
        let run = format!("run-{repeat}");
        trained_for_three_steps(&place, &job, &run);
        let Some(stalled) = Stalled::new(&second) else {
            return support::skipped("this file system has no leases");
        };
        let mut training =
            resumed(&place, &job, &run, &["guard.step_timeout_s=4", "guard.barrier_timeout_s=1"]);
        let mut running = Running::start(training.stdout(Stdio::null()));
        // When training resumes, it moves the result of the first three steps. A second later it waits for the second
        // file.
        let moved = place.path(&run).join("finished-step-3");
        wait_until("training resumes", || moved.exists());
        thread::sleep(Duration::from_secs(1));
        running.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_secs(5));
        running.signal(libc::SIGCONT);
        thread::sleep(Duration::from_millis(500));
        drop(stalled);
        assert_eq!(running.end(), SUCCESS);
    }
}

/// A file that does not answer while the results are written is waited for: the model is saved, and nothing hangs.
#[test]
fn writing_the_results_has_no_time_limit() {
    let place = Place::new();
    let (job, _) = two_files(&place);
    let mut training = rankine();
    training.args(["train", &job, "--quiet", "--run-dir", &place.word("run")]);
    training.args(["--set", "guard.step_timeout_s=1", "--set", "guard.barrier_timeout_s=0.5"]);
    training.args(["--set", "train.log_every_steps=1", "--set", "train.epochs=200"]);
    let mut running = Running::start(training.stdout(Stdio::null()));
    let metrics = place.path("run/metrics.jsonl");
    wait_until("training begins", || fs::metadata(&metrics).is_ok_and(|metrics| metrics.len() > 0));
    // Opening it for writing waits for a reader.
    let summary = place.path("run/summary.json");
    let made = Command::new("mkfifo").arg(&summary).status().expect("mkfifo is installed");
    assert!(made.success());
    let trained = place.path("run/trained.json");
    wait_until("only the summary is missing", || trained.exists());
    thread::sleep(Duration::from_secs(4));
    let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&summary);
    assert_eq!(running.end(), SUCCESS);
    drop(reader);
}

#[test]
fn timeouts_must_be_consistent() {
    let place = Place::new();
    support::generate(&place, SHAPE, 1000, 0);
    let job = support::job(&place);
    let refused = |sets: &[&str], words: &[&str]| {
        train(&place, &job, "run", sets).with(USAGE).says(words);
    };
    refused(
        &["guard.barrier_timeout_s=40"],
        &["40 s is not longer than guard.barrier_timeout_s", "reports the missing rank"],
    );
    refused(&["guard.step_timeout_s=0"], &["guard.step_timeout_s", "a number from 0.1 to 86400"]);
}
