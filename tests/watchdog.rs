//! A training that does not move ends, and says what it waited for.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use support::{LOST, Place, SHAPE, SUCCESS, USAGE, numbers, train};

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

/// A file that nobody can open while this is there: who tries waits until the system takes the lease away, after
/// `/proc/sys/fs/lease-break-time` seconds. That is what a file server does to its readers that does not answer.
struct Stalled(File);

impl Stalled {
    /// None where the file system has no leases.
    fn new(path: &str) -> Option<Self> {
        let file = File::options().read(true).write(true).open(path).expect("the file is there");
        // SAFETY: neither call touches memory. The signal that would ask for the lease is ignored.
        let leased = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        (leased == 0).then_some(Self(file))
    }
}

#[test]
fn a_reader_that_hangs_is_named() {
    let place = Place::new();
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
    let job = place.file("job.toml", text);
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
    drop(stalled.0);
    train(&place, &job, "again", &["guard.step_timeout_s=5"]).with(SUCCESS);
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
        &["guard.silence_timeout_s", "no more than guard.barrier_timeout_s"],
    );
    refused(&["guard.step_timeout_s=0"], &["guard.step_timeout_s", "a number from 0.1 to 86400"]);
}
