//! A training that does not move ends, and says what it waited for.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use support::process::{Running, Stalled, wait_until};
use support::{LOST, Place, SHAPE, SUCCESS, USAGE, numbers, rankine, train};

mod support;

const BATCH: usize = 128;

/// Raw records of [`SHAPE`].
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

/// A job that learns from two files, in order; returns its path and that of the second file.
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

#[test]
fn a_reader_that_hangs_is_named() {
    let place = Place::new();
    let (job, second) = two_files(&place);
    train(&place, &job, "moves", &["guard.step_timeout_s=5"]).with(SUCCESS);
    let Some(stalled) = Stalled::new(&second) else {
        support::told("skipped: this file system has no leases");
        return;
    };
    for mode in ["pread", "auto"] {
        let (begun, mode) = (Instant::now(), format!("reader.mode={mode}"));
        let ended = train(&place, &job, &mode[12..], &["guard.step_timeout_s=1.5", &mode]).with(LOST);
        ended.says(&[
            "rank 0 has made no progress for 2 s in training",
            "waiting for the reader's next batch: it hangs, or what it reads or writes does",
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
    for repeat in 0..support::times(1) {
        let Some(stalled) = Stalled::new(&second) else {
            support::told("skipped: this file system has no leases");
            return;
        };
        let run = format!("run-{repeat}");
        let mut training = rankine();
        training.args(["train", &job, "--quiet", "--run-dir", &place.word(&run)]);
        training.args(["--set", "guard.step_timeout_s=4", "--set", "guard.barrier_timeout_s=1"]);
        let mut running = Running::start(training.stdout(Stdio::null()));
        let metrics = place.path(&run).join("metrics.jsonl");
        wait_until("training begins", || metrics.exists());
        // By then it waits for the second file, which is opened with the first.
        thread::sleep(Duration::from_secs(1));
        running.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_secs(5));
        running.signal(libc::SIGCONT);
        thread::sleep(Duration::from_millis(500));
        drop(stalled);
        assert_eq!(running.end(), SUCCESS);
    }
}

#[test]
fn periods_must_follow_from_one_another() {
    let place = Place::new();
    support::generate(&place, SHAPE, 1000, 0);
    let job = support::job(&place);
    let refused = |sets: &[&str], words: &[&str]| {
        train(&place, &job, "run", sets).with(USAGE).says(words);
    };
    refused(
        &["guard.barrier_timeout_s=40"],
        &["40 s is no more than guard.barrier_timeout_s", "which rank did not come"],
    );
    refused(&["guard.step_timeout_s=0"], &["guard.step_timeout_s", "a number from 0.1 to 86400"]);
}
