//! Buckets of numbers (`[[feature]]`): what they gain, and that a number has the same bucket wherever it is read.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine::prelude::*;
use rankine_reader::schema::Categorical;
use serde_json::Value;

use crate::support::{
    Ended, Place, SUCCESS, USAGE, job, json_file, numbers, rankine, run, summary, toml_of_guide, train,
    weights,
};

const SCHEMA: &str = r#"
[label]
column = "label"

[[dense]]
column = "age"
transform = ["standardize"]

[[dense]]
column = "price"
transform = ["log1p"]

[[categorical]]
column = "site"
"#;
const HEADER: &str = "label,age,price,site";
const TRAIN: usize = 12_000;
const EVAL: usize = 4000;
const AGE: &str = "feature=[{ column = 'age', buckets = 64 }]";

/// Returns rows whose label depends on waves of the age, which is missing in some; ages begin at `youngest`.
fn rows(count: usize, seed: u64, youngest: u64) -> Vec<String> {
    let mut next = numbers(seed);
    let row = |_| {
        let age = youngest as f64 + (next() % 10_000) as f64 / 100.0;
        let positive = (next() % 1000) as f64 / 1000.0 < 0.5 + 0.35 * (age / 8.0).sin();
        let age = if next().is_multiple_of(17) { String::new() } else { age.to_string() };
        format!("{},{age},{},s{}", u8::from(positive), next() % 5000, next() % 20)
    };
    (0..count).map(row).collect()
}

fn log(place: &Place, name: &str, rows: &[String]) -> String {
    place.file(name, format!("{HEADER}\n{}\n", rows.join("\n")))
}

/// Converts rows into the dataset `data` of a place, and returns a job for it.
fn converted(place: &Place, seed: u64) -> String {
    let rows = rows(TRAIN + EVAL, seed, 0);
    let (train, eval) = (log(place, "train.csv", &rows[..TRAIN]), log(place, "eval.csv", &rows[TRAIN..]));
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    run(["convert", "csv", &train, "--schema", &schema, "--eval", &eval, "--out", &data]).with(SUCCESS);
    job(place)
}

/// Converts rows and adds the guide's features to the job.
fn with_the_guide(place: &Place) -> String {
    let job = converted(place, 1);
    let text = fs::read_to_string(&job).unwrap() + "\n" + &toml_of_guide("## Buckets of numbers")[0];
    place.file("job.toml", text)
}

fn auc(place: &Place, run_dir: &str) -> f64 {
    summary(place, run_dir)["eval"]["auc"].as_f64().unwrap()
}

/// Returns the columns of buckets of a run's model, which `model.json` has.
fn bucket_columns(place: &Place, run_dir: &str) -> Vec<Categorical> {
    let model = json_file(&place.path(run_dir).join("model/model.json"));
    let schema: Schema = serde_json::from_value(find(&model, "schema").unwrap().clone()).unwrap();
    schema.bucket_columns().to_vec()
}

fn find<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    let object = value.as_object()?;
    object.get(key).or_else(|| object.values().find_map(|value| find(value, key)))
}

#[test]
fn buckets_learn_what_rises_and_falls_with_a_number() {
    const SEEDS: [u64; 3] = [1, 2, 3];
    let mut gain = 0.0;
    for seed in SEEDS {
        let place = Place::new();
        let job = converted(&place, seed);
        let seed = format!("seed={seed}");
        for (name, sets) in [("without", &[][..]), ("with", &[AGE][..])] {
            train(&place, &job, name, &[&["train.epochs=4", &seed], sets].concat()).with(SUCCESS);
        }
        let [with, without] = ["with", "without"].map(|name| auc(&place, name));
        println!("{seed}: AUC {without:.4} without buckets, {with:.4} with them");
        gain += (with - without) / SEEDS.len() as f64;
    }
    assert!(gain >= 0.02, "the mean gain is {gain}");
}

#[test]
fn the_example_of_the_guide_trains_and_raw_rows_have_the_same_buckets() {
    let place = Place::new();
    let job = with_the_guide(&place);
    run(["check", &job]).with(SUCCESS);
    run(["plan", &job, "--set", "device.ranks=4"]).with(SUCCESS);
    train(&place, &job, "run", &["checkpoint.every_steps=40"]).with(SUCCESS);
    let columns = bucket_columns(&place, "run");
    let names: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.rows.unwrap())).collect();
    let [("age_buckets", 64), ("price_buckets", logarithmic), ("age_group", 6)] = names[..] else {
        panic!("{names:?}");
    };
    // The signed logarithm of all powers of 2 and their negatives, in half precision.
    assert!((60..125).contains(&logarithmic), "{logarithmic}");

    // Rows of other ages: their quantiles are others, but the buckets are the model's.
    let (run_dir, out) = (place.word("run"), place.word("older"));
    let older = log(&place, "older.csv", &rows(3000, 9, 40));
    run(["convert", "csv", &older, "--like", &run_dir, "--out", &out]).with(SUCCESS);
    let predict = |name: &str, args: &[&str]| {
        let out = place.word(name);
        run([&["predict", "--run", &run_dir, "--out", &out], args].concat()).with(SUCCESS);
        fs::read_to_string(out).unwrap()
    };
    let of_dataset = predict("a.csv", &["--data", &out, "--part", "train"]);
    assert!(of_dataset == predict("b.csv", &[&older]), "raw rows have other predictions");
    let eval =
        |args: &[&str]| run([&["eval", "--run", &run_dir, "--json"], args].concat()).with(SUCCESS).json();
    assert_eq!(eval(&["--data", &out, "--part", "train"])["auc"], eval(&["--raw", &older])["auc"]);
    assert_eq!(eval(&[])["auc"].as_f64(), Some(auc(&place, "run")));
    // A checkpoint finds its dataset by the columns of both.
    let export = place.word("export");
    run(["ckpt", "export", &run_dir, "--out", &export, "--data", &place.word("data")]).with(SUCCESS);
    run(["eval", "--run", &export]).with(SUCCESS);

    // So are those of a training that starts from it, and of its further evaluation sets.
    let dir = format!("data.dir={out:?}");
    let from = format!("train.init_from={run_dir:?}");
    let set = format!("eval.set=[{{ name = 'first', data = {:?} }}]", place.word("data"));
    train(&place, &job, "next", &[&dir, &from, &set]).with(SUCCESS);
    assert_eq!(bucket_columns(&place, "next"), columns);
    train(&place, &job, "fresh", &[&dir]).with(SUCCESS);
    assert_ne!(bucket_columns(&place, "fresh")[0], columns[0]);
    assert_eq!(bucket_columns(&place, "fresh")[2], columns[2]);
}

#[test]
fn a_program_scores_and_pushes_rows_without_buckets() {
    let place = Place::new();
    let job = with_the_guide(&place);
    let sets = ["train.shuffle=false", "train.max_steps=20", "eval.batch_size=500"];
    train(&place, &job, "run", &sets).with(SUCCESS);
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let batches = |part, rows| {
        let batches =
            BatchStream::open(dataset.part(part).unwrap(), &StreamOptions::one_epoch(rows)).unwrap();
        batches.map(|batch| batch.unwrap().samples.clone())
    };

    let (run_dir, out) = (place.word("run"), place.word("predicted.csv"));
    run(["predict", "--run", &run_dir, "--data", &place.word("data"), "--out", &out]).with(SUCCESS);
    let predicted = fs::read_to_string(&out).unwrap();
    let mut predicted =
        predicted.lines().skip(1).map(|line| line.split_once(',').unwrap().1.parse().unwrap());
    let ranker = Ranker::load(&run_dir).unwrap();
    for samples in batches(Part::Eval, 500) {
        let categorical = [Ids::Fixed(&samples.categorical[0].ids)];
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &categorical };
        let mut scores = vec![0.0; samples.len];
        ranker.score(&features, &mut scores).unwrap();
        assert!(scores.iter().all(|score| Some(*score) == predicted.next()), "the ranker has other scores");
    }

    let job = Job::load(job.as_ref(), &sets).unwrap();
    let options = TrainerOptions { run_dir: Some(place.path("pushed")), ..TrainerOptions::default() };
    let mut trainer = Trainer::start(&job, options, ()).unwrap();
    for samples in batches(Part::Train, 128).take(20) {
        let categorical = [Ids::Fixed(&samples.categorical[0].ids)];
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &categorical };
        let rows = TrainingRows { features, labels: &[&samples.labels[0]], weights: None };
        trainer.push(&rows).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(&place, "pushed") == weights(&place, "run"), "pushed rows train another model");
}

#[test]
fn runs_resume_to_the_same_bits_with_the_same_buckets() {
    let place = Place::new();
    let job = converted(&place, 1);
    let sets = [AGE, "train.validation='random:0.2:3'", "checkpoint.every_steps=10"];
    train(&place, &job, "whole", &sets).with(SUCCESS);
    let (run_dir, sets) = (place.word("killed"), sets.into_iter().flat_map(|set| ["--set", set]));
    let command = |more: &[&str]| {
        let mut command = rankine();
        command.args(["train", &job, "--quiet", "--run-dir", &run_dir]).args(sets.clone()).args(more);
        command
    };
    let mut killed = command(&[]);
    killed.env("RANKINE_TEST_FAULT", "60:kill");
    assert!(killed.output().unwrap().status.code().is_none(), "the run was not killed");
    let other = ["--resume", "--set", "feature.0.buckets=[20]"];
    Ended::of(command(&other)).with(USAGE).says(&["different columns"]);
    Ended::of(command(&["--resume"])).with(SUCCESS);
    assert!(weights(&place, "killed") == weights(&place, "whole"), "the resumed run has another model");

    // Quantiles are those of the samples to train on: without the validation set they are others.
    train(&place, &job, "all", &[AGE, "train.max_steps=1"]).with(SUCCESS);
    assert_ne!(bucket_columns(&place, "all"), bucket_columns(&place, "whole"));
}

#[test]
fn several_ranks_learn_what_one_learns() {
    let place = Place::new();
    let job = with_the_guide(&place);
    for (name, sets) in [
        // A bucket is always a row of its table, so no policy for ids concerns it.
        ("one", &["guard.ids_out_of_range='oov'"][..]),
        ("four", &["device.ranks=4", "device.nodes=2"][..]),
        ("again", &["device.ranks=4", "device.nodes=2", "device.threads=3"][..]),
    ] {
        train(&place, &job, name, sets).with(SUCCESS);
    }
    assert!((auc(&place, "one") - auc(&place, "four")).abs() < 1e-4);
    assert!(weights(&place, "four") == weights(&place, "again"), "threads change the model");
    assert_eq!(bucket_columns(&place, "one"), bucket_columns(&place, "four"));
}

#[test]
fn wrong_features_are_refused_with_their_place() {
    let place = Place::new();
    let job = fs::read_to_string(converted(&place, 1)).unwrap();
    let refused = |feature: &str, words: &[&str]| {
        let job = place.file("wrong.toml", format!("{job}\n[[feature]]\n{feature}\n"));
        run(["check", &job]).with(USAGE).says(words);
    };
    let marked = |line: &str, word: &str| {
        let carets = "^".repeat(word.len());
        [format!("| {line}\n"), format!("  | {}{carets}\n", " ".repeat(line.find(word).unwrap()))]
    };
    for (feature, line, word, says) in [
        ("column = \"agee\"\nbuckets = 8", 0, "\"agee\"", "no column `agee`: did you mean `age`?"),
        ("column = \"site\"\nbuckets = 8", 0, "\"site\"", "the column `site` is not a dense column"),
        ("column = \"zzzz\"\nbuckets = 8", 0, "\"zzzz\"", "its dense columns are: `age`, `price`"),
        ("column = \"age\"\nbuckets = 1", 1, "1", "from 2 to 65536, \"log\", or a list"),
        ("column = \"age\"\nbuckets = 70000", 1, "70000", "from 2 to 65536, \"log\", or a list"),
        ("column = \"age\"\nbuckets = \"lin\"", 1, "\"lin\"", "from 2 to 65536, \"log\", or a list"),
        ("column = \"age\"\nbuckets = []", 1, "[]", "a list needs at least one boundary"),
        ("column = \"age\"\nbuckets = [2, 1]", 1, "[2, 1]", "must ascend, but 1 comes after 2"),
        ("column = \"age\"\nbuckets = [1, 1]", 1, "[1, 1]", "must ascend, but 1 comes after 1"),
        ("column = \"age\"\nbuckets = [1, inf]", 1, "[1, inf]", "a finite number, not inf"),
        ("column = \"age\"\nname = \"site\"\nbuckets = 8", 1, "\"site\"", "already has a column site"),
        ("column = \"age\"\nname = \"a/b\"\nbuckets = 8", 1, "\"a/b\"", "is not a column's name"),
    ] {
        let line = feature.lines().nth(line).unwrap();
        let [quoted, carets] = marked(line, word);
        refused(feature, &[says, &quoted, &carets]);
    }
    let twice = "column = \"age\"\nbuckets = 8\n[[feature]]\ncolumn = \"age\"\nbuckets = 9";
    refused(twice, &["an earlier [[feature]] is named `age_buckets`", "^^^^^"]);
    refused("column = \"age\"\nbucket = 8", &["unknown key `bucket`", "did you mean `buckets`?"]);
    refused("buckets = 8", &["missing key `column`"]);
}
