//! Predictions on the command line: a dataset and its raw rows give the same bits, and these are the evaluated ones.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, Read};
use std::thread;
use std::time::SystemTime;

use rankine_base::sealed;
use rankine_reader::convert::RowFormat;
use rankine_saved::SavedModel;
use serde_json::Value;

use crate::support::films::{CSV_SCHEMA, csv_rows};
use crate::support::weights::spoil;
use crate::support::{
    self, BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, criteo_rows, generate, job, json_file, json_lines,
    numbers, run, summary, train,
};

/// Training rows, and the evaluation rows after them: several batches of [`BATCH`], the last one partial.
const TRAIN: usize = 3000;
const EVAL: usize = 1300;
const BATCH: &str = "eval.batch_size=512";

/// A model trained on converted rows.
struct Trained {
    place: Place,
    rows: Vec<String>,
    data: String,
    run_dir: String,
}

impl Trained {
    fn new(convert: &[&str]) -> Self {
        let place = Place::new();
        let rows = criteo_rows(TRAIN + EVAL, 5);
        let log = place.file("log.tsv", rows[..TRAIN].join("\n") + "\n");
        let eval = place.file("eval.tsv", rows[TRAIN..].join("\n") + "\n");
        let data = place.word("data");
        let args = ["convert", "criteo-tsv", &log, "--out", &data, "--eval", &eval];
        run([&args, convert].concat()).with(SUCCESS);
        train(&place, &job(&place), "run", &[BATCH]).with(SUCCESS);
        let run_dir = place.word("run");
        Self { place, rows, data, run_dir }
    }

    fn predict(&self, out: &str, args: &[&str]) -> Ended {
        let out = self.place.word(out);
        run([&["predict", "--run", &self.run_dir, "--out", &out, "--json"], args].concat())
    }

    fn text(&self, out: &str) -> String {
        fs::read_to_string(self.place.path(out)).expect("there are predictions")
    }

    /// Returns the predictions by row number.
    fn predictions(&self, out: &str) -> Vec<(u64, f64)> {
        let text = self.text(out);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("row,label"));
        let parse = |line: &str| {
            let (row, probability) = line.split_once(',').expect("there are two columns");
            (row.parse().expect("a row has a number"), probability.parse().expect("it is a number"))
        };
        lines.map(parse).collect()
    }

    fn raw(&self, name: &str, rows: &[String]) -> String {
        self.place.file(name, rows.join("\n") + "\n")
    }
}

#[test]
fn a_dataset_and_its_raw_rows_are_scored_alike_and_as_evaluated() {
    // Rare categories, hashed ones and half precision: everything that could cause a difference.
    let trained = Trained::new(&["--min-count", "3", "--column", "C2=hash:50"]);
    let reported = trained.predict("data.csv", &["--data", &trained.data]).with(SUCCESS).json();
    assert_eq!(
        (&reported["read"], &reported["predicted"], &reported["bad"]),
        (&EVAL.into(), &EVAL.into(), &0.into())
    );
    let [rate, seconds] = ["rows_per_second", "seconds"].map(|key| reported[key].as_f64().unwrap());
    assert!((rate * seconds / EVAL as f64 - 1.0).abs() < 1e-6, "{rate} rows/s in {seconds} s");
    assert!(reported["unknown"]["C1"]["lookups"].as_u64().unwrap() > 0, "{reported:#}");
    assert!(
        reported["unknown"]["C1"].get("distinct_values").is_none(),
        "a dataset has one row for all: {reported:#}"
    );
    assert!(reported["unknown"].get("C2").is_none(), "a hash knows all categories");
    let eval = trained.place.word("eval.tsv");
    let raw = trained.predict("raw.csv", &[&eval]).with(SUCCESS);
    assert!(raw.stderr.contains(" rows/s") && raw.stderr.contains("column C1: "), "{}", raw.stderr);
    let raw = raw.json();
    assert!(
        trained.text("data.csv") == trained.text("raw.csv"),
        "the dataset is scored differently from its raw rows"
    );
    assert_eq!(raw["predicted"], reported["predicted"]);
    for (column, of) in raw["unknown"].as_object().unwrap() {
        assert_eq!(of["lookups"], reported["unknown"][column]["lookups"], "{column}");
    }

    // Without labels, in two files, and compressed with gzip, the rows are the same.
    let unlabelled: Vec<_> =
        trained.rows[TRAIN..].iter().map(|row| row.split_once('\t').unwrap().1.to_owned()).collect();
    let (first, second) =
        (trained.raw("a.tsv", &unlabelled[..700]), trained.raw("b.tsv", &unlabelled[700..]));
    trained.predict("two.csv", &[&first, &second]).with(SUCCESS);
    assert!(trained.text("two.csv") == trained.text("raw.csv"), "labels change the predictions");

    // The AUC of the written predictions is the one that `eval` reports.
    let predictions = trained.predictions("raw.csv");
    assert!(predictions.iter().map(|(row, _)| *row).eq(1..=EVAL as u64));
    let labels: Vec<bool> = trained.rows[TRAIN..].iter().map(|row| row.starts_with('1')).collect();
    let judged =
        run(["eval", "--run", &trained.run_dir, "--data", &trained.data, "--json"]).with(SUCCESS).json();
    assert_eq!(auc(&predictions, &labels, &[1.0; EVAL]), judged["auc"].as_f64().unwrap());

    trained.predict("train.csv", &["--data", &trained.data, "--part", "train"]).with(SUCCESS);
    assert_eq!(trained.predictions("train.csv").len(), TRAIN);
}

/// Returns the share of pairs of both labels that are ordered correctly, ties counting half, pair by pair. A pair
/// counts as the product of its weights.
fn auc(predictions: &[(u64, f64)], labels: &[bool], weights: &[f64]) -> f64 {
    let of = |label: bool| {
        let scored = predictions.iter().zip(labels).zip(weights);
        scored
            .filter(move |((_, own), _)| **own == label)
            .map(|(((_, score), _), weight)| (*score, *weight))
            .collect::<Vec<_>>()
    };
    let (mut pairs, mut ordered) = (0.0, 0.0);
    for (positive, weight) in of(true) {
        for (negative, other) in of(false) {
            pairs += weight * other;
            ordered += match positive.partial_cmp(&negative).expect("no prediction is NaN") {
                Ordering::Less => 0.0,
                Ordering::Equal => weight * other / 2.0,
                Ordering::Greater => weight * other,
            };
        }
    }
    ordered / pairs
}

#[test]
fn csv_of_several_labels_is_scored_as_its_dataset_is() {
    const HEADER: &str = "rating,bought,weight,last,film,age,tags\n";
    let place = Place::new();
    let rows = csv_rows(TRAIN + EVAL, 3);
    let log = place.file("log.csv", format!("{HEADER}{}\n", rows[..TRAIN].join("\n")));
    let eval = place.file("eval.csv", format!("{HEADER}{}\n", rows[TRAIN..].join("\n")));
    let (schema, data) = (place.file("schema.toml", CSV_SCHEMA), place.word("data"));
    let args = ["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data];
    run([&args[..], &["--dense-dtype", "f16"]].concat()).with(SUCCESS);
    // Columns that share a vocabulary share a table; other columns do not.
    let table = |columns: &str| format!("table=[{{ columns = [{columns}] }}]");
    let job = job(&place);
    train(&place, &job, "run", &[BATCH, &table("'film', 'last'")]).with(SUCCESS);
    assert_eq!(summary(&place, "run")["eval"]["heads"].as_object().map(|heads| heads.len()), Some(2));
    let refused = train(&place, &job, "refused", &[&table("'film', 'tags'")]).with(USAGE);
    refused.says(&["the columns film and tags cannot share a table"]);

    let predict = |out: &str, args: &[&str]| {
        let (run_dir, out) = (place.word("run"), place.word(out));
        run([&["predict", "--run", &run_dir, "--out", &out, "--json"], args].concat()).with(SUCCESS);
        fs::read_to_string(out).unwrap()
    };
    let expected = predict("data.csv", &["--data", &data]);
    assert!(expected.starts_with("row,rating,bought\n1,0."), "{}", &expected[..60]);
    assert_eq!(expected.lines().count(), 1 + EVAL);
    assert!(predict("raw.csv", &[&eval]) == expected, "raw rows are scored differently from their dataset");
    // The predictions in each head's column give the AUC and the log loss that training found.
    for (head, name) in ["rating", "bought"].into_iter().enumerate() {
        let (mut predictions, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (row, line) in rows[TRAIN..].iter().zip(expected.lines().skip(1)) {
            let (fields, predicted): (Vec<_>, Vec<_>) = (row.split(',').collect(), line.split(',').collect());
            // A missing rating is masked; a rating of at least 4 is a 1.
            let Ok(value) = fields[head].parse::<u64>() else { continue };
            predictions.push((0, predicted[1 + head].parse::<f64>().unwrap()));
            labels.push(value >= [4, 1][head]);
            weights.push(fields[2].parse::<f64>().unwrap());
        }
        let losses =
            predictions.iter().zip(&labels).zip(&weights).map(|(((_, probability), label), weight)| {
                -weight * if *label { probability.ln() } else { (1.0 - probability).ln() }
            });
        let log_loss = losses.sum::<f64>() / weights.iter().sum::<f64>();
        let judged = &summary(&place, "run")["eval"]["heads"][name];
        // Sums of 1300 numbers in double precision, in different orders.
        let is =
            |key: &str, found: f64| (judged[key].as_f64().unwrap() - found).abs() <= 1300.0 * f64::EPSILON;
        assert!(is("auc", auc(&predictions, &labels, &weights)), "{name}: {judged:#}");
        assert!(is("log_loss", log_loss), "{name}: {log_loss}, but {judged:#}");
    }
    // New rows have neither labels nor weights, and their columns may be in another order.
    let new = rows[TRAIN..].iter().map(|row| {
        let fields: Vec<_> = row.split(',').collect();
        format!("{},{},{},{}\n", fields[6], fields[5], fields[4], fields[3])
    });
    let new = place.file("new.csv", format!("tags,age,film,last\n{}", new.collect::<String>()));
    assert!(predict("new.csv.out", &[&new]) == expected, "labels change the predictions");
    let lacking = place.file("lacking.csv", "tags,age,film\nt1,3,f1\n");
    let (run_dir, out) = (place.word("run"), place.word("lacking.out"));
    let ended = run(["predict", "--run", &run_dir, "--out", &out, &lacking]).with(USAGE);
    ended.says(&["lacking.csv", "`last`"]);
}

/// Returns rows with a label, a weight, a number and a film. The greater a film's number, the more often people like
/// it; rows with weight 0 show the contrary.
fn weighted_rows(count: usize, seed: u64) -> Vec<(bool, f64, String)> {
    let mut next = numbers(seed);
    let row = |_| {
        let (film, weight) = (next() % 20, [0.0, 0.0, 1.0, 2.5][next() as usize % 4]);
        let liked = (next() % 20 < film) == (weight > 0.0);
        (liked, weight, format!("{},{weight},{},f{film}\n", u8::from(liked), next() % 50))
    };
    (0..count).map(row).collect()
}

#[test]
fn training_optimizes_the_weighted_auc_and_eval_prints_it() {
    const SCHEMA: &str = "\
label = { column = 'liked' }
weight = { column = 'weight' }
dense = [{ column = 'age', transform = 'standardize' }]
categorical = [{ column = 'film', vocabulary = { kind = 'exact' } }]
";
    let place = Place::new();
    let rows = weighted_rows(TRAIN + EVAL, 7);
    let file = |name: &str, rows: &[(bool, f64, String)]| {
        let rows: String = rows.iter().map(|(_, _, row)| row.as_str()).collect();
        place.file(name, format!("liked,weight,age,film\n{rows}"))
    };
    let (log, eval) = (file("log.csv", &rows[..TRAIN]), file("eval.csv", &rows[TRAIN..]));
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    run(["convert", "csv", &log, "--schema", &schema, "--eval", &eval, "--out", &data]).with(SUCCESS);

    let until = ["train.epochs=20", "eval.every_steps=20", "eval.target_auc=0.75"];
    train(&place, &job(&place), "run", &until).with(SUCCESS);
    let summary = summary(&place, "run");
    assert_eq!(summary["train"]["stopped"], "target_auc", "{summary:#}");
    let run_dir = place.word("run");
    let judged = run(["eval", "--run", &run_dir, "--json"]).with(SUCCESS).json();
    let log = json_lines(&place.path("run/metrics.jsonl"));
    let last = log.iter().rfind(|line| line["kind"] == "eval").expect("there was an evaluation");
    assert_eq!((&last["auc"], &summary["eval"]["auc"]), (&judged["auc"], &judged["auc"]));
    let reported = run(["eval", "--run", &run_dir]).with(SUCCESS).stdout;
    let judged = judged["auc"].as_f64().unwrap();
    assert!(reported.contains(&format!("AUC                 {judged:.5}")), "{reported}");

    let out = place.word("out.csv");
    run(["predict", "--run", &run_dir, "--data", &data, "--out", &out]).with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    let predictions: Vec<(u64, f64)> = text
        .lines()
        .skip(1)
        .map(|line| line.split_once(',').expect("there are two columns"))
        .map(|(row, probability)| (row.parse().unwrap(), probability.parse().unwrap()))
        .collect();
    let (labels, weights): (Vec<_>, Vec<_>) =
        rows[TRAIN..].iter().map(|(liked, weight, _)| (*liked, *weight)).unzip();
    let expected = auc(&predictions, &labels, &weights);
    assert!((judged - expected).abs() <= 1e-12, "{judged}, but the predictions give {expected}");
    assert!(auc(&predictions, &labels, &[1.0; EVAL]) < 0.6, "weights do not matter");
}

#[test]
fn bad_rows_end_a_prediction_or_are_skipped_with_their_number() {
    let trained = Trained::new(&[]);
    let mut rows = trained.rows[TRAIN..].to_vec();
    trained.predict("good.csv", &[&trained.raw("good.tsv", &rows)]).with(SUCCESS);
    rows[9] = "1\ttoo few".into();
    rows[600] = rows[600].replacen('\t', "\tx", 1);
    let bad = trained.raw("bad.tsv", &rows);
    let words =
        ["bad.tsv line 10", "separated by tabs), found 2,", "no predictions were written; --on-bad skip"];
    trained.predict("bad.csv", &[&bad]).with(BAD_DATA).says(&words);
    assert!(!trained.place.path("bad.csv").exists() && !trained.place.path("bad.csv.partial").exists());

    let ended = trained.predict("bad.csv", &[&bad, "--on-bad", "skip"]).with(SUCCESS);
    let reported = ended.json();
    assert_eq!(
        (&reported["read"], &reported["predicted"], &reported["bad"]),
        (&EVAL.into(), &(EVAL - 2).into(), &2.into())
    );
    ended.says(&["bad.tsv line 10: expected 40 fields", "bad.tsv line 601, column I1"]);
    let out = trained.place.word("text.csv");
    run(["predict", "--run", &trained.run_dir, "--out", &out, &bad, "--on-bad", "skip"])
        .with(SUCCESS)
        .stdout_says("rows predicted   1298\nrows bad         2\nrows skipped     0\n");
    // The JSON was asked for, also where stdout has the predictions.
    let good = trained.place.word("good.tsv");
    let args = ["predict", "--run", &trained.run_dir, "--out", "-", &good, "--json", "--quiet"];
    let quiet = run(args).with(SUCCESS);
    let counts: Value = serde_json::from_str(&quiet.stderr).expect("nothing else is on stderr");
    assert_eq!(counts["predicted"], EVAL);
    let (good, left) = (trained.predictions("good.csv"), trained.predictions("bad.csv"));
    let expected: Vec<u64> = (1..=EVAL as u64).filter(|row| ![10, 601].contains(row)).collect();
    assert_eq!(left.iter().map(|(row, _)| *row).collect::<Vec<_>>(), expected);
    for (row, probability) in left {
        let before = good[row as usize - 1].1;
        // Another position in a batch may round a product in another order.
        assert!((probability - before).abs() < 1e-5, "row {row}: {probability}, not {before}");
    }
}

/// Which samples the validation set has is a setting of the model's job.
#[test]
fn the_validation_set_of_the_job_is_scored() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 2000, 300);
    train(&place, &job(&place), "run", &["train.validation=last:0.1"]).with(SUCCESS);
    let out = place.word("out.csv");
    let args = ["predict", "--run", &place.word("run"), "--data", &data, "--part", "validation", "--json"];
    let reported = run(args.into_iter().chain(["--out", &out])).with(SUCCESS).json();
    assert_eq!((&reported["read"], &reported["predicted"]), (&200.into(), &200.into()));
}

/// The first ten bad rows are named, and all are counted.
#[test]
fn many_bad_rows_are_counted_and_ten_of_them_named() {
    let trained = Trained::new(&[]);
    let mut rows = trained.rows[TRAIN..].to_vec();
    (0..12).for_each(|bad| rows[100 * bad] = "1\ttoo few".into());
    let ended =
        trained.predict("out.csv", &[&trained.raw("bad.tsv", &rows), "--on-bad", "skip"]).with(SUCCESS);
    let named: Vec<_> = ended.stderr.lines().filter(|line| line.contains("skipped: ")).collect();
    assert!(named.len() == 10 && named[9].contains("bad.tsv line 901: expected 40 fields"), "{named:#?}");
    let reported = ended.json();
    assert_eq!((&reported["bad"], &reported["predicted"]), (&12.into(), &(EVAL - 12).into()));
}

#[test]
fn unknown_categories_are_scored_refused_or_skipped() {
    let trained = Trained::new(&["--min-count", "1"]);
    let mut rows = trained.rows[..3].to_vec();
    let with = |row: &str, field: usize, value: &str| {
        let mut fields: Vec<_> = row.split('\t').collect();
        fields[field] = value;
        fields.join("\t")
    };
    rows.insert(1, with(&rows[0], 16, "ffffffff"));
    rows.push(with(&rows[0], 16, "fffffffe"));
    let log = trained.raw("new.tsv", &rows);
    let counts = |reported: &Value| {
        ["read", "predicted", "unknown_skipped"].map(|key| reported[key].as_u64().unwrap())
    };
    let reported = trained.predict("oov.csv", &[&log]).with(SUCCESS).json();
    let two = serde_json::json!({ "distinct_values": 2, "lookups": 2 });
    assert_eq!((counts(&reported), &reported["unknown"]["C3"]), ([5, 5, 0], &two));
    let all = trained.predictions("oov.csv");
    assert_eq!(all[1].1, all[4].1, "all unknown categories are one");
    assert_ne!(all[0].1, all[1].1);
    let reported = trained.predict("skip.csv", &[&log, "--unknown", "skip"]).with(SUCCESS).json();
    assert_eq!((counts(&reported), &reported["unknown"]["C3"]), ([5, 3, 2], &two));
    let left: Vec<_> = trained.predictions("skip.csv").iter().map(|(row, _)| *row).collect();
    assert_eq!(left, [1, 3, 4]);
    let words = ["row 2 has an unknown category in column C3", "--unknown oov", "--unknown skip"];
    trained.predict("fail.csv", &[&log, "--unknown", "fail"]).with(BAD_DATA).says(&words);
    assert!(!trained.place.path("fail.csv").exists());
}

#[test]
fn unknown_categories_are_counted_as_distinct_values_and_as_lookups() {
    let trained = Trained::new(&["--min-count", "1"]);
    let row = |value: &str| {
        let mut fields: Vec<_> = trained.rows[0].split('\t').collect();
        fields[14] = value;
        fields.join("\t")
    };
    let rows: Vec<_> = ["fffffffe", "ffffffff", "fffffffe", "fffffffe"].into_iter().map(row).collect();
    let (run_dir, out) = (trained.run_dir.clone(), trained.place.word("text.csv"));
    let log = trained.raw("two.tsv", &rows);
    let ended = run(["predict", "--run", &run_dir, "--out", &out, &log]).with(SUCCESS);
    assert!(
        ended.stdout.ends_with("unknown categories: 2 distinct values, 4 look-ups\n"),
        "{}",
        ended.stdout
    );
    ended.says(&["column C1: unknown categories: 2 distinct values, 4 look-ups"]);
    let json = trained.predict("json.csv", &[&log]).with(SUCCESS).json();
    assert_eq!(json["unknown"]["C1"], serde_json::json!({ "distinct_values": 2, "lookups": 4 }), "{json:#}");
    assert_eq!(json["unknown"]["C2"], serde_json::json!({ "distinct_values": 0, "lookups": 0 }), "{json:#}");

    // A conversion counts them in both parts, with the same names.
    let (train, eval) = (trained.raw("train.tsv", &[row("a"), row("a"), row("b"), row("c")]), log);
    let out = trained.place.word("converted");
    let ended = run(["convert", "criteo-tsv", &train, "--eval", &eval, "--min-count", "2", "--out", &out]);
    let ended = ended.with(SUCCESS);
    let report = json_file(&trained.place.path("converted/conversion.json"));
    let of_column = &report["columns"]["C1"];
    let expected = |lookups: u64| serde_json::json!({ "distinct_values": 2, "lookups": lookups });
    assert_eq!((&of_column["unknown_train"], &of_column["unknown_eval"]), (&expected(2), &expected(4)));
    let words =
        "unknown categories: in train 2 distinct values, 2 look-ups; in eval 2 distinct values, 4 look-ups\n";
    assert!(ended.stdout.ends_with(words), "{}", ended.stdout);
}

/// Every look-up counts, also several in one bag; the first row with an unknown category is named, in any column.
#[test]
fn unknown_categories_of_a_bag_are_counted_one_by_one() {
    const SCHEMA: &str = "\
label = { column = 'liked' }
categorical = [
    { column = 'shop', vocabulary = { kind = 'exact' } },
    { column = 'tags', separator = '|', vocabulary = { kind = 'exact' } },
]
";
    let place = Place::new();
    let known: String =
        (0..200).map(|row| format!("{},s{},t{}|t{}\n", row % 2, row % 3, row % 4, row % 5)).collect();
    let log = place.file("log.csv", format!("liked,shop,tags\n{known}"));
    let new = place.file("new.csv", "liked,shop,tags\n1,s0,t0\n0,s1,x|t0|y|x\n1,z,t1|t2\n0,s2,y|x\n");
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    run(["convert", "csv", &log, "--schema", &schema, "--eval", &new, "--out", &data]).with(SUCCESS);
    train(&place, &job(&place), "run", &["model.bottom_mlp=[]"]).with(SUCCESS);
    let run_dir = place.word("run");
    let predict = |args: &[&str]| {
        let out = place.word("out.csv");
        run([&["predict", "--run", &run_dir, "--out", &out, "--json"], args].concat())
    };
    let reported = predict(&[&new]).with(SUCCESS).json();
    let expected = serde_json::json!({
        "shop": { "distinct_values": 1, "lookups": 1 },
        "tags": { "distinct_values": 2, "lookups": 5 },
    });
    assert_eq!(reported["unknown"], expected);
    let reported = predict(&["--data", &data]).with(SUCCESS).json();
    assert_eq!(
        (&reported["unknown"]["shop"]["lookups"], &reported["unknown"]["tags"]["lookups"]),
        (&1.into(), &5.into())
    );
    let reported = predict(&[&new, "--unknown", "skip"]).with(SUCCESS).json();
    assert_eq!(
        (&reported["read"], &reported["predicted"], &reported["unknown_skipped"]),
        (&4.into(), &1.into(), &3.into())
    );
    let words = ["row 2 has an unknown category in column tags"];
    predict(&[&new, "--unknown", "fail"]).with(BAD_DATA).says(&words);
}

/// Weights that are NaN, sealed as if they had been saved so: nothing is published or evaluated.
#[test]
fn predictions_that_are_not_numbers_are_refused() {
    let trained = Trained::new(&[]);
    spoil(&trained.place.path("run"), "top.1.bias", 0..1);
    let ended = trained.predict("out.csv", &["--data", &trained.data]).with(support::FAILED);
    ended.says(&["the prediction of row 1 is not a number"]);
    assert!(!trained.place.path("out.csv").exists());
    let judged = run(["eval", "--run", &trained.run_dir, "--data", &trained.data]).with(support::FAILED);
    judged.says(&["predictions on", "are not finite"]);
}

/// Predictions that fill a pipe wait until it is read, and meanwhile the file is written again.
#[test]
fn rows_that_change_while_they_are_scored_are_refused() {
    let trained = Trained::new(&[]);
    let rows: Vec<_> = trained.rows.iter().cycle().take(6000).cloned().collect();
    let pipe = trained.place.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    for (input, name) in [("log.tsv", "log.tsv was changed"), ("-", "standard input was changed")] {
        let log = trained.raw("log.tsv", &rows);
        let file = File::options().read(true).write(true).open(&log).unwrap();
        // The clock may not advance before the file is written again.
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let mut command = support::rankine();
        command.args(["predict", "--run", &trained.run_dir, "--out"]).arg(&pipe).stdin(file);
        command.arg(if input == "-" { input } else { &log });
        let predicting = thread::spawn(|| Ended::of(command));
        let mut predictions = File::open(&pipe).unwrap();
        predictions.read_exact(&mut [0]).unwrap();
        trained.raw("log.tsv", &rows);
        io::copy(&mut predictions, &mut io::sink()).unwrap();
        let ended = predicting.join().unwrap().with(USAGE);
        ended.says(&[name, "while it was read", "run the command again"]);
    }
}

#[test]
fn files_without_a_good_row_are_refused() {
    let trained = Trained::new(&[]);
    let bad = trained.raw("bad.tsv", &["no".to_owned(), "row".to_owned(), "at all".to_owned()]);
    let empty = trained.place.file("empty.tsv", "");
    let skip = ["--on-bad", "skip", "--bad-limit", "100%"];
    let words = ["all 3 rows read are bad", "bad.tsv line 1: expected 40 fields", "Criteo's TSV"];
    trained.predict("none.csv", &[&[bad.as_str()], &skip[..]].concat()).with(BAD_DATA).says(&words);
    let ended = trained.predict("none.csv", &[&[empty.as_str()], &skip[..]].concat()).with(BAD_DATA);
    ended.says(&["the files have no rows"]);
    assert!(!trained.place.path("none.csv").exists(), "predictions without rows were published");
}

#[test]
fn too_many_bad_rows_end_a_prediction_like_a_conversion() {
    let trained = Trained::new(&[]);
    let mut rows = trained.rows[..200].to_vec();
    for row in [3, 50, 120] {
        rows[row] = "1\ttoo few".into();
    }
    let bad = trained.raw("bad.tsv", &rows);
    let skip = |limit: &[&str]| trained.predict("out.csv", &[&[&bad, "--on-bad", "skip"], limit].concat());
    let share =
        ["3 of 200 rows read in all are bad, but the limit is 1%", "bad.tsv line 4", "raise --bad-limit"];
    skip(&[]).with(BAD_DATA).says(&share);
    skip(&["--bad-limit", "2"])
        .with(BAD_DATA)
        .says(&["3 of 200 rows read so far are bad, but the limit is 2"]);
    assert!(!trained.place.path("out.csv").exists(), "refused predictions were published");
    // The same message for a conversion of the same rows.
    let out = trained.place.word("converted");
    let convert = ["convert", "criteo-tsv", &bad, "--out", &out, "--on-bad", "skip"];
    run(convert).with(BAD_DATA).says(&share);
    let words = ["3 of 200 rows read so far are bad, but the limit is 2"];
    run([&convert[..], &["--bad-limit", "2"]].concat()).with(BAD_DATA).says(&words);
    for limit in ["3", "1.5%"] {
        let reported = skip(&["--bad-limit", limit]).with(SUCCESS).json();
        assert_eq!((&reported["predicted"], &reported["bad"]), (&197.into(), &3.into()));
    }
    let ended = skip(&["--bad-limit", "many"]).with(USAGE);
    ended.says(&["`many` is not a limit"]);
}

#[test]
fn impossible_predictions_are_explained() {
    let trained = Trained::new(&[]);
    let log = trained.raw("good.tsv", &trained.rows[..5]);
    trained.predict("out.csv", &[]).with(USAGE).says(&["--data"]);
    trained.predict("out.csv", &[&log, "--data", &trained.data]).with(USAGE).says(&["cannot be used with"]);
    trained.predict("out.csv", &["no/such.tsv"]).with(support::FAILED).says(&["no/such.tsv"]);
    trained
        .predict("no/such/out.csv", &[&log])
        .with(support::FAILED)
        .says(&["cannot write", "no/such/out.csv"]);

    // A row format that does not match the columns, sealed as if it did.
    let path = trained.place.path("run/model/model.json");
    let whole = fs::read(&path).unwrap();
    let envelope: Value = serde_json::from_slice(&whole).unwrap();
    let mut content = envelope["content"].clone();
    let format = rankine_reader::raw::RawFormat::new(rankine_reader::generate::Shape::load("dlrm").unwrap());
    content["format"] = serde_json::to_value(RowFormat::HugectrRaw(format)).unwrap();
    let version = envelope["format"].as_u64().unwrap() as u32;
    fs::write(&path, sealed::to_json("rankine model", version, &content)).unwrap();
    let record = trained.place.file("record.bin", [0; 160]);
    trained.predict("out.csv", &[&record]).with(USAGE).says(&["do not have the columns of the schema"]);
    fs::write(&path, whole).unwrap();

    // A vocabulary that is not that of the training.
    let path = trained.place.path("run/model/vocabulary/C5.tsv");
    let mut text = fs::read(&path).unwrap();
    text.truncate(text.len() - 1);
    fs::write(&path, text).unwrap();
    trained.predict("out.csv", &[&log]).with(BAD_DATA).says(&["C5.tsv is damaged", "checksum"]);
    let error = SavedModel::verify(&trained.place.path("run/model")).unwrap_err().to_string();
    assert!(error.contains("C5.tsv is damaged"), "{error}");

    let place = Place::new();
    let data = generate(&place, SHAPE, 1000, 300);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (run_dir, out) = (place.word("run"), place.word("out.csv"));
    let ended = run(["predict", "--run", &run_dir, "--out", &out, &log]).with(USAGE);
    ended.says(&["was trained on generated data", "--data"]);
    let reported = run(["predict", "--run", &run_dir, "--out", &out, "--data", &data]).with(SUCCESS).stdout;
    assert!(reported.contains("rows predicted   300\n"), "{reported}");
    assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 301);
}
