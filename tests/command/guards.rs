//! Non-finite steps: they stop a training or are skipped, and change no weights.

use std::fs;
use std::ops::Range;

use crate::support::exported::Exported;
use crate::support::{
    self, Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, json_lines, numbers, summary, train, weights,
};

/// Dense columns and rows of [`SHAPE`].
const DENSE: usize = 4;
const ROWS: [u64; 6] = [40, 30, 20, 12, 8, 3];
const RECORD_BYTES: usize = 4 * (1 + DENSE + ROWS.len());
const BATCH: usize = 128;

/// Returns raw records of [`SHAPE`].
fn records(count: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut bytes = Vec::new();
    for _ in 0..count {
        let ids = ROWS.map(|rows| (next() % rows) as u32);
        bytes.extend(u32::from(ids[0] < 15 || next().is_multiple_of(10)).to_le_bytes());
        for _ in 0..DENSE {
            bytes.extend(((next() % 64) as f32 / 16.0 - 2.0).to_le_bytes());
        }
        ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    }
    bytes
}

/// Sets the dense values of a sample to the largest finite number in some batches, counted from 1. Their loss is
/// infinite.
fn spoil(bytes: &mut [u8], batches: impl IntoIterator<Item = usize>) {
    for batch in batches {
        for column in 0..DENSE {
            let at = ((batch - 1) * BATCH + 17) * RECORD_BYTES + 4 * (1 + column);
            bytes[at..at + 4].copy_from_slice(&f32::MAX.to_le_bytes());
        }
    }
}

fn bytes_of(batches: Range<usize>) -> Range<usize> {
    (batches.start - 1) * BATCH * RECORD_BYTES..(batches.end - 1) * BATCH * RECORD_BYTES
}

/// Writes a job that trains on the raw file `train.bin` of the place, in file order.
fn raw_job(place: &Place) -> String {
    let shape = place.file("shape.toml", SHAPE);
    place.file("eval.bin", records(300, 2));
    let text = format!(
        "\
name = \"small\"
data.raw = {{ shape = {shape:?}, train = [{train:?}], eval = [{eval:?}] }}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = {BATCH}, log_every_steps = 1, shuffle = false }}
",
        train = place.word("train.bin"),
        eval = place.word("eval.bin"),
    );
    place.file("raw.toml", text)
}

/// Returns the number of skipped steps so far, from each line of a run's log.
fn skipped(place: &Place, run: &str) -> Vec<u64> {
    let lines = json_lines(&place.path(run).join("metrics.jsonl"));
    let train = lines.iter().filter(|line| line["kind"] == "train");
    train.map(|line| line["non_finite_steps"].as_u64().expect("every line has the count")).collect()
}

#[test]
fn a_non_finite_step_stops_training_or_leaves_no_trace() {
    let place = Place::new();
    let job = raw_job(&place);
    let good = records(12 * BATCH, 1);
    let mut bad = good.clone();
    spoil(&mut bad, [3, 7]);
    let without = [&good[bytes_of(1..3)], &good[bytes_of(4..7)], &good[bytes_of(8..13)]].concat();

    place.file("train.bin", &bad);
    for (run, ranks) in [("stops", "device.ranks=1"), ("ranks-stop", "device.ranks=3")] {
        // The first rank trains on record 17 of a batch.
        let words =
            ["at step 3: non-finite values in the loss", "on rank 0", "training diverged", "not saved"];
        train(&place, &job, run, &[ranks]).with(FAILED).says(&words);
        assert!(!place.path(run).join("model").exists());
    }
    for ranks in ["device.ranks=1", "device.ranks=3"] {
        for sharded in ["replicated", "sharded"] {
            let name = |what: &str| format!("{what}-{}-{sharded}", &ranks[13..]);
            // The placement must not depend on the samples, which differ.
            let placed = ["embedding.placement=row-wise", "embedding.exchange=rows"];
            let update = format!("device.dense_update={sharded}");
            let sets = [&[ranks, &update][..], &placed].concat();
            place.file("train.bin", &bad);
            let skips = [&sets[..], &["guard.non_finite=skip"]].concat();
            let words = ["skipped step 3", "skipped step 7", "2 skipped so far, 1 in a row"];
            train(&place, &job, &name("skips"), &skips).with(SUCCESS).says(&words);
            assert_eq!(skipped(&place, &name("skips")), [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
            let skipping = summary(&place, &name("skips"));
            assert_eq!(
                (&skipping["train"]["non_finite_steps"], &skipping["train"]["steps"]),
                (&2.into(), &12.into())
            );
            // Training on the records without these batches gives the same bits.
            place.file("train.bin", &without);
            train(&place, &job, &name("without"), &sets).with(SUCCESS);
            assert!(weights(&place, &name("skips")) == weights(&place, &name("without")));
            assert_eq!(skipping["eval"]["auc"], summary(&place, &name("without"))["eval"]["auc"]);
        }
    }
}

#[test]
fn too_many_skipped_steps_in_a_row_stop_training_and_resuming_keeps_the_count() {
    let place = Place::new();
    let job = raw_job(&place);
    let mut bytes = records(20 * BATCH, 1);
    spoil(&mut bytes, [3, 10, 11, 12]);
    place.file("train.bin", bytes);
    let skip = ["guard.non_finite=skip", "checkpoint.every_steps=1", "checkpoint.keep=2"];
    let two = [&skip[..], &["guard.skipped_in_a_row_max=2"]].concat();
    let words =
        ["at step 12: non-finite values in", "2 steps before it were skipped", "guard.skipped_in_a_row_max"];
    train(&place, &job, "run", &two).with(FAILED).says(&words);
    // A resumed training continues the count: the next skipped step is again one too many.
    let resume = |sets: &[&str]| {
        let (run, sets) = (place.word("run"), sets.iter().flat_map(|set| ["--set", set]));
        let args = ["train", &job, "--quiet", "--resume", "--run-dir", &run];
        support::run(args.into_iter().chain(sets))
    };
    resume(&two).with(FAILED).says(&words);
    // The limit may change when resuming.
    let three = [&skip[..], &["guard.skipped_in_a_row_max=3"]].concat();
    resume(&three).with(SUCCESS).says(&["skipped step 12", "4 skipped so far, 3 in a row"]);
    assert_eq!(summary(&place, "run")["train"]["non_finite_steps"], 4);
    let counted = skipped(&place, "run");
    assert_eq!((counted.len(), &counted[8..13]), (20, &[1, 2, 3, 4, 4][..]));
    // An uninterrupted training has the same weights.
    train(&place, &job, "uninterrupted", &three).with(SUCCESS);
    assert!(weights(&place, "run") == weights(&place, "uninterrupted"));
}

/// The first ten skipped steps are reported, then each that doubles their number.
#[test]
fn many_skipped_steps_are_reported_less_and_less_often() {
    let place = Place::new();
    let job = raw_job(&place);
    let mut bytes = records(20 * BATCH, 1);
    spoil(&mut bytes, 2..=19);
    place.file("train.bin", bytes);
    let textfile = format!("metrics.textfile={}", place.word("rankine.prom"));
    let sets = ["guard.non_finite=skip", "guard.skipped_in_a_row_max=18", &textfile];
    let (run, sets) = (place.word("run"), sets.iter().flat_map(|set| ["--set", set]));
    let trained = support::run(["train", &job, "--run-dir", &run].into_iter().chain(sets));
    let Ended { stdout, stderr, .. } =
        trained.with(SUCCESS).says(&["  1 step skipped  ETA ", "  17 steps skipped  ETA "]);
    let words = "not finite          18 of 20 steps skipped: loss or gradients not finite\n";
    assert!(stdout.contains(words), "{stdout}");
    let reported = stderr.lines().filter_map(|line| {
        let (_, step) = line.split_once("skipped step ")?;
        step.split_once(": ")?.0.parse::<u64>().ok()
    });
    // Step 17 is the sixteenth.
    assert_eq!(reported.collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17], "{stderr}");
    assert_eq!(summary(&place, "run")["train"]["non_finite_steps"], 18);
    let exported = Exported::read(&place.path("rankine.prom"), 0);
    for (reason, expected) in [("loss", 18.0), ("dense_gradients", 0.0), ("loss_scale", 0.0)] {
        let label = format!("reason=\"{reason}\"");
        assert_eq!(exported.value("rankine_train_skipped_steps_total", &label), expected, "{reason}");
    }
}

#[test]
fn a_training_without_any_applied_step_fails() {
    let place = Place::new();
    let job = raw_job(&place);
    let mut bytes = records(3 * BATCH, 1);
    spoil(&mut bytes, 1..=3);
    place.file("train.bin", bytes);
    let words = ["at step 3: non-finite values in the loss", "2 steps before it were skipped"];
    train(&place, &job, "run", &["guard.non_finite=skip"]).with(FAILED).says(&words);
    // JSON has no NaN: a loss that is not finite is written as null.
    let log = fs::read_to_string(place.path("run").join("metrics.jsonl")).expect("the log exists");
    assert!(log.lines().count() == 3 && log.contains("\"loss\":null"), "{log}");
    train(&place, &job, "typo", &["guard.non_finite=ignore"])
        .with(USAGE)
        .says(&["guard.non_finite", "known values: stop, skip"]);
}
