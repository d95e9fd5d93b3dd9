//! HugeCTR's raw files: direct training, conversion, and errors about unsuitable files.

use std::fs;

use crate::support::{
    self, BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, json_file, json_lines, numbers, run, summary, train,
    tree, weights,
};

/// Dense columns and rows of [`SHAPE`].
const DENSE: usize = 4;
const ROWS: [u64; 6] = [40, 30, 20, 12, 8, 3];
/// A label, the dense values and one id per table.
const FIELDS: usize = 1 + DENSE + ROWS.len();
const RECORD_BYTES: usize = 4 * FIELDS;

/// Returns records of [`SHAPE`]: labels that follow from the first table's row, dense floats or integers, ids.
fn records(count: usize, seed: u64, int: bool) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut bytes = Vec::new();
    for _ in 0..count {
        let ids = ROWS.map(|rows| (next() % rows) as u32);
        let label = u32::from(ids[0] < 15 || next().is_multiple_of(10));
        // Both encodings of a label mean the same.
        bytes.extend(if next().is_multiple_of(2) { label } else { (label as f32).to_bits() }.to_le_bytes());
        for _ in 0..DENSE {
            let value = next() % 64;
            bytes
                .extend(if int { value as u32 } else { (value as f32 / 16.0 - 2.0).to_bits() }.to_le_bytes());
        }
        ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    }
    bytes
}

/// Returns a job on the raw files `train.bin` and `eval.bin` in `place`.
fn raw_job(place: &Place, dense: &str) -> String {
    let shape = place.file("shape.toml", SHAPE);
    let text = format!(
        "\
name = \"small\"
data.raw = {{ shape = {shape:?}, train = [{train:?}], eval = [{eval:?}], dense = \"{dense}\" }}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 128, log_every_steps = 10 }}
",
        train = place.word("train.bin"),
        eval = place.word("eval.bin"),
    );
    place.file("raw.toml", text)
}

#[test]
fn a_model_is_trained_and_evaluated_on_raw_files() {
    let place = Place::new();
    let job = raw_job(&place, "float");
    run(["check", &job]).with(SUCCESS).stdout_says("2 raw files with records of 44 bytes: not found");
    train(&place, &job, "missing", &[]).with(support::FAILED).says(&["cannot open", "train.bin"]);
    place.file("train.bin", records(5000, 1, false));
    let eval_file = place.file("eval.bin", records(700, 2, false));
    run(["check", &job]).with(SUCCESS).stdout_says("2 raw files with records of 44 bytes\n");
    train(&place, &job, "run", &[]).with(SUCCESS);
    let reported = summary(&place, "run");
    assert_eq!(
        (&reported["data"]["train_samples"], &reported["data"]["eval_samples"]),
        (&5000.into(), &700.into())
    );
    assert_eq!(reported["data"]["raw"], serde_json::json!([place.word("train.bin"), eval_file]));
    assert!(reported["data"].get("dir").is_none());
    let auc = reported["eval"]["auc"].as_f64().unwrap();
    assert!(auc > 0.7, "the first table's row tells the label: {auc}");

    // The same evaluation again, with the run's own files and with files that are named.
    let eval = |args: &[&str]| run([&["eval", "--run", &place.word("run"), "--json"], args].concat());
    for args in [&[][..], &["--raw", &eval_file]] {
        assert_eq!(eval(args).with(SUCCESS).json()["auc"], reported["eval"]["auc"], "{args:?}");
    }
    assert_eq!(eval(&["--part", "train"]).with(SUCCESS).json()["samples"], 5000);
    // A dataset folder with the same columns, whose dense values mean something else.
    support::generate(&place, SHAPE, 100, 50);
    eval(&["--data", &place.word("data")])
        .with(USAGE)
        .says(&["does not fit the model", "column I1 has mlperf-log(x), but the model was trained on x"]);

    let inspected =
        run(["inspect", &eval_file, "--shape", &place.word("shape.toml"), "--json"]).with(SUCCESS).json();
    assert_eq!(
        (&inspected["parts"][0]["samples"], &inspected["tables"][5]["rows"]),
        (&700.into(), &3.into())
    );
    let frequent = &inspected["tables"][5]["most_frequent"];
    assert_eq!(
        frequent.as_array().unwrap().iter().map(|row| row["lookups"].as_u64().unwrap()).sum::<u64>(),
        700
    );
    run(["inspect", &eval_file, &eval_file]).with(USAGE).says(&["need --shape"]);

    // The order of files is that of their records, for any number of threads.
    let bytes = records(5000, 1, false);
    let halves = bytes.split_at(2500 * RECORD_BYTES);
    let (first, second) = (place.file("first.bin", halves.0), place.file("second.bin", halves.1));
    let two = format!("data.raw.train=[{first:?}, {second:?}]");
    for (out, sets) in [
        ("one", &["train.shuffle=false"][..]),
        ("two", &["train.shuffle=false", &two, "device.threads=1", "reader.mode=pread"]),
    ] {
        train(&place, &job, out, sets).with(SUCCESS);
    }
    assert!(weights(&place, "one") == weights(&place, "two"));
}

#[test]
fn invalid_records_are_named() {
    let place = Place::new();
    let job = raw_job(&place, "float");
    let good = records(300, 3, false);
    place.file("eval.bin", &good);
    let spoilt = |record: usize, field: usize, bits: u32| {
        let mut bytes = good.clone();
        bytes[record * RECORD_BYTES + 4 * field..][..4].copy_from_slice(&bits.to_le_bytes());
        bytes
    };
    let cases = [
        (
            spoilt(117, 1 + DENSE + 5, 3),
            "record 118 (byte 5148), column C6: id 3 is out of range: its table has 3 rows",
        ),
        (spoilt(0, 0, 2), "record 1 (byte 0), column label: the label 0x00000002 is neither 0 nor 1"),
        (spoilt(299, 2, f32::NAN.to_bits()), "record 300 (byte 13156), column I2: NaN is not finite"),
        (
            records(300, 3, true),
            "column I1: 8e-44 is a subnormal number; with dense = int it would be read as the integer 57",
        ),
    ];
    for (bytes, words) in cases {
        place.file("train.bin", bytes);
        train(&place, &job, "run", &[]).with(BAD_DATA).says(&["train.bin", words, "shape small"]);
        fs::remove_dir_all(place.path("run")).unwrap();
    }
    // The same files read in another format.
    place.file("train.bin", &good);
    train(&place, &job, "global", &["data.raw.ids=global-offset"])
        .with(BAD_DATA)
        .says(&["column C2: id ", " is out of range: its table has the ids 40 to 69"]);
    train(&place, &job, "dlrm", &["data.raw.shape=dlrm"])
        .with(BAD_DATA)
        .says(&["train.bin", "13200 bytes are not a multiple of the 160 bytes of a record"]);
    train(&place, &job, "both", &["data.dir=data"]).with(USAGE).says(&["data.dir and data.raw are both set"]);
    assert!(
        !place.path("dlrm").exists() && !place.path("both").exists(),
        "no run starts with data that cannot be read"
    );
}

/// Converts raw files of [`SHAPE`] to the folder `out` in `place`.
fn convert(place: &Place, out: &str, args: &[&str]) -> Ended {
    let (out, shape) = (place.word(out), place.file("shape.toml", SHAPE));
    run([&["convert", "hugectr-raw", "--shape", &shape, "--out", &out], args].concat())
}

#[test]
fn converted_and_raw_files_train_the_same_model() {
    for dense in ["float", "int"] {
        let place = Place::new();
        let job = raw_job(&place, dense);
        // More than one block, and some numbers with two encodings.
        let mut train_records = records(70_000, 4, dense == "int");
        train_records[4..8]
            .copy_from_slice(&if dense == "int" { -7i32 as u32 } else { 0x8000_0000 }.to_le_bytes());
        let train_file = place.file("train.bin", train_records);
        let eval_file = place.file("eval.bin", records(900, 5, dense == "int"));
        let args = [&*train_file, "--eval", &eval_file, "--dense", dense, "--dense-dtype", "f32"];
        let converted = convert(&place, "data", &args).with(SUCCESS);
        assert!(
            converted.stdout.contains("rows kept   70900 (70000 train, 900 eval)"),
            "{}",
            converted.stdout
        );
        convert(&place, "alone", &[&args[..], &["--threads", "1"]].concat()).with(SUCCESS);
        assert!(tree(&place.path("data")) == tree(&place.path("alone")), "threads change the bytes");
        run(["inspect", &place.word("data"), "--verify"])
            .with(SUCCESS)
            .stdout_says("converted from hugectr-raw");

        // With shuffling: the blocks of both have the same records.
        train(&place, &job, "raw", &[]).with(SUCCESS);
        train(&place, &support::job(&place), "converted", &[]).with(SUCCESS);
        assert!(weights(&place, "raw") == weights(&place, "converted"), "{dense}");
        let auc = |run: &str| summary(&place, run)["eval"]["auc"].as_f64().unwrap();
        assert!(auc("raw") > 0.7 && auc("raw") == auc("converted"));
        // Each model evaluates the data that the other one was trained on.
        let eval = |args: &[&str]| {
            run([&["eval", "--json", "--run"], args].concat()).with(SUCCESS).json()["auc"].clone()
        };
        for (run, args) in [
            ("raw", ["--data", &place.word("data")]),
            ("raw", ["--raw", &eval_file]),
            ("converted", ["--raw", &eval_file]),
        ] {
            let run = place.word(run);
            let args = [&[&*run], &args[..]].concat();
            assert_eq!(eval(&args), eval(&[&place.word("converted")]), "{args:?}");
        }
    }
}

#[test]
fn bad_records_are_refused_skipped_or_quarantined() {
    let place = Place::new();
    let mut bytes = records(1000, 6, false);
    let mut bad = Vec::new();
    for (record, field, bits) in [(3, 0, 9), (500, 1, f32::INFINITY.to_bits()), (999, 1 + DENSE, 40)] {
        bytes[record * RECORD_BYTES + 4 * field..][..4].copy_from_slice(&u32::to_le_bytes(bits));
        bad.extend_from_slice(&bytes[record * RECORD_BYTES..][..RECORD_BYTES]);
    }
    let file = place.file("day.bin", &bytes);
    convert(&place, "failed", &[&file]).with(BAD_DATA).says(&[
        "day.bin record 4, column label: the label 0x00000009 is neither",
        "--on-bad skip or quarantine",
    ]);
    assert!(!place.path("failed").exists());
    let kept = ["--on-bad", "quarantine", "--split", "last:0.1"];
    convert(&place, "kept", &[&[&*file], &kept[..]].concat()).with(SUCCESS);
    assert!(fs::read(place.path("kept/quarantine.bin")).unwrap() == bad);
    let named = json_lines(&place.path("kept/bad-rows.jsonl"));
    let places: Vec<_> = named.iter().map(|bad| (bad["record"].as_u64(), bad["column"].as_str())).collect();
    assert_eq!(places, [(Some(4), Some("label")), (Some(501), Some("I1")), (Some(1000), Some("C1"))]);
    assert_eq!(named[2]["why"], "id 40 is out of range: its table has 40 rows");
    let report = json_file(&place.path("kept/conversion.json"));
    assert_eq!(
        report["rows"],
        serde_json::json!({ "read": 1000, "kept": 997, "bad": 3, "train": 898, "eval": 99 })
    );
    assert_eq!(report["bad_by_reason"], serde_json::json!({ "label": 1, "number": 1, "row_number": 1 }));
    assert_eq!(report["format"]["kind"], "hugectr-raw");
    convert(&place, "many", &[&file, "--on-bad", "skip", "--bad-limit", "2"])
        .with(BAD_DATA)
        .says(&["3 of 1000 rows", "raw records of the shape small (1 label, 4 dense, 6 ids, 4 bytes each)"]);
    let torn = place.file("torn.bin", &bytes[..bytes.len() - 3]);
    convert(&place, "torn", &[&torn, "--on-bad", "skip"])
        .with(BAD_DATA)
        .says(&["43997 bytes are not a multiple of the 44"]);
}

/// Raw files have no checksums, but a run that is resumed or finished still recognizes their contents.
#[test]
fn raw_files_with_other_contents_are_refused() {
    let place = Place::new();
    let job = raw_job(&place, "float");
    let [bytes, eval_bytes] = [(3000, 1), (700, 2)].map(|(count, seed)| records(count, seed, false));
    place.file("train.bin", &bytes);
    place.file("eval.bin", &eval_bytes);
    let sets = ["checkpoint.every_steps=5", "train.log_every_steps=5"];
    train(&place, &job, "whole", &sets).with(SUCCESS);
    train(&place, &job, "run", &[&sets[..], &["train.max_steps=12"]].concat()).with(SUCCESS);
    let finished = ["summary.json", "model"].map(|name| place.path("run").join(name));
    fs::remove_file(&finished[0]).unwrap();
    fs::remove_dir_all(&finished[1]).unwrap();
    let resume = |name: &str, more: &[&str]| {
        let (run_dir, sets) = (place.word(name), sets.iter().chain(more).flat_map(|set| ["--set", set]));
        let args = ["train", &job, "--quiet", "--resume", "--run-dir", &run_dir];
        run(args.into_iter().chain(sets))
    };
    for _ in 0..support::times(1) {
        for name in ["run", "whole"] {
            let before = tree(&place.path(name));
            // A bit of a dense value in the first record, in one in the middle, and in the last.
            for record in [0, 1700, 2999] {
                let mut other = bytes.clone();
                other[record * RECORD_BYTES + 4] ^= 1;
                place.file("train.bin", &other);
                // Also with the modification time of the old file.
                let modified = fs::metadata(&job).unwrap().modified().unwrap();
                fs::File::options()
                    .write(true)
                    .open(place.path("train.bin"))
                    .and_then(|file| file.set_modified(modified))
                    .unwrap();
                resume(name, &[])
                    .with(USAGE)
                    .says(&["train.bin differs from the file that was read", "--run-dir"]);
            }
            assert!(tree(&place.path(name)) == before, "{name} was changed");
            place.file("train.bin", &bytes);
        }
        // The results of a finished run were measured on the evaluation part.
        let mut other = eval_bytes.clone();
        other[4] ^= 1;
        place.file("eval.bin", &other);
        resume("whole", &[]).with(USAGE).says(&["eval.bin differs from the file that was read"]);
        place.file("eval.bin", &eval_bytes);
    }
    // The same contents, written again and elsewhere.
    let copy = place.file("copy.bin", &bytes);
    resume("whole", &[&format!("data.raw.train=[{copy:?}]")]).with(SUCCESS);
    resume("run", &[]).with(SUCCESS);
    assert!(weights(&place, "run") == weights(&place, "whole"));
}
