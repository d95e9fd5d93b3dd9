//! Steps that cannot be learnt from: what stops a training, what is skipped, and that nothing is harmed by it.

use std::fs;
use std::ops::Range;

use support::{FAILED, Place, SHAPE, SUCCESS, USAGE, json_lines, numbers, summary, train, weights};

mod support;

/// Dense columns and rows of [`SHAPE`].
const DENSE: usize = 4;
const ROWS: [u64; 6] = [40, 30, 20, 12, 8, 3];
const RECORD_BYTES: usize = 4 * (1 + DENSE + ROWS.len());
const BATCH: usize = 128;

/// Raw records of [`SHAPE`].
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

/// Makes a dense value of some batches, counted from 1, the largest that there is: a finite one, with an infinite loss.
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

/// A job on the raw file `train.bin` of the place, in the order of its records.
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

/// The steps that were skipped, as each line of a run's log counts them.
fn skipped(place: &Place, run: &str) -> Vec<u64> {
    let lines = json_lines(&place.path(run).join("metrics.jsonl"));
    let train = lines.iter().filter(|line| line["kind"] == "train");
    train.map(|line| line["non_finite_steps"].as_u64().expect("every report counts")).collect()
}

#[test]
fn a_step_that_is_no_number_stops_or_is_as_if_it_had_never_been() {
    let place = Place::new();
    let job = raw_job(&place);
    let good = records(12 * BATCH, 1);
    let mut bad = good.clone();
    spoil(&mut bad, [3, 7]);
    let without = [&good[bytes_of(1..3)], &good[bytes_of(4..7)], &good[bytes_of(8..13)]].concat();

    place.file("train.bin", &bad);
    for (run, ranks) in [("stops", "device.ranks=1"), ("ranks-stop", "device.ranks=3")] {
        // Record 17 of a batch is of the first rank.
        let words =
            ["at step 3: non-finite values in the loss", "on rank 0", "training diverged", "not saved"];
        train(&place, &job, run, &[ranks]).with(FAILED).says(&words);
        assert!(!place.path(run).join("model").exists());
    }
    for ranks in ["device.ranks=1", "device.ranks=3"] {
        for sharded in ["replicated", "sharded"] {
            let name = |what: &str| format!("{what}-{}-{sharded}", &ranks[13..]);
            // What is sent how must not follow from the samples.
            let placed = ["embedding.placement=row-wise", "embedding.exchange=rows"];
            let update = format!("device.dense_update={sharded}");
            let sets = [&[ranks, &update][..], &placed].concat();
            place.file("train.bin", &bad);
            let skips = [&sets[..], &["guard.non_finite=skip"]].concat();
            let words = ["skipped step 3", "skipped step 7", "2 skipped so far, 1 in a row"];
            train(&place, &job, &name("skips"), &skips).with(SUCCESS).says(&words);
            assert_eq!(skipped(&place, &name("skips")), [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
            let told = summary(&place, &name("skips"));
            assert_eq!(
                (&told["train"]["non_finite_steps"], &told["train"]["steps"]),
                (&2.into(), &12.into())
            );
            // The model is that of the same records without those batches, to the bit.
            place.file("train.bin", &without);
            train(&place, &job, &name("without"), &sets).with(SUCCESS);
            assert!(weights(&place, &name("skips")) == weights(&place, &name("without")));
            assert_eq!(told["eval"]["auc"], summary(&place, &name("without"))["eval"]["auc"]);
        }
    }
}

#[test]
fn too_many_in_a_row_end_a_training_and_counts_survive_it() {
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
    // Whoever begins again begins with what was counted: the next step is one too many, again.
    let resume = |sets: &[&str]| {
        let (run, sets) = (place.word("run"), sets.iter().flat_map(|set| ["--set", set]));
        let args = ["train", &job, "--quiet", "--resume", "--run-dir", &run];
        support::run(args.into_iter().chain(sets))
    };
    resume(&two).with(FAILED).says(&words);
    // The policy may be another one when training goes on.
    let three = [&skip[..], &["guard.skipped_in_a_row_max=3"]].concat();
    resume(&three).with(SUCCESS).says(&["skipped step 12", "4 skipped so far, 3 in a row"]);
    assert_eq!(summary(&place, "run")["train"]["non_finite_steps"], 4);
    let counted = skipped(&place, "run");
    assert_eq!((counted.len(), &counted[8..13]), (20, &[1, 2, 3, 4, 4][..]));
    // As if nothing had come between.
    train(&place, &job, "whole", &three).with(SUCCESS);
    assert!(weights(&place, "run") == weights(&place, "whole"));
}

/// Of many skipped steps the first ten are reported, and then each that doubles their number.
#[test]
fn many_skipped_steps_are_reported_ever_more_rarely() {
    let place = Place::new();
    let job = raw_job(&place);
    let mut bytes = records(20 * BATCH, 1);
    spoil(&mut bytes, 2..=19);
    place.file("train.bin", bytes);
    let sets = ["guard.non_finite=skip", "guard.skipped_in_a_row_max=18"];
    let told = train(&place, &job, "run", &sets).with(SUCCESS).stderr;
    let reported = told.lines().filter_map(|line| {
        let (_, step) = line.split_once("skipped step ")?;
        step.split_once(": ")?.0.parse::<u64>().ok()
    });
    // The sixteenth is of step 17.
    assert_eq!(reported.collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17], "{told}");
    assert_eq!(summary(&place, "run")["train"]["non_finite_steps"], 18);
}

#[test]
fn a_training_in_which_nothing_was_learnt_fails() {
    let place = Place::new();
    let job = raw_job(&place);
    let mut bytes = records(3 * BATCH, 1);
    spoil(&mut bytes, 1..=3);
    place.file("train.bin", bytes);
    let words = ["at step 3: non-finite values in the loss", "2 steps before it were skipped"];
    train(&place, &job, "run", &["guard.non_finite=skip"]).with(FAILED).says(&words);
    // Nothing is written in words that JSON has not.
    let log = fs::read_to_string(place.path("run").join("metrics.jsonl")).expect("there is a log");
    assert!(log.lines().count() == 3 && log.contains("\"loss\":null"), "{log}");
    train(&place, &job, "typo", &["guard.non_finite=ignore"])
        .with(USAGE)
        .says(&["guard.non_finite", "known values: stop, skip"]);
}
