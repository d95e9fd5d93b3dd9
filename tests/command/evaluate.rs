//! `rankine eval` on raw files and on several datasets: raw rows have the numbers of their conversion, to the last
//! digit.

use std::fs;
use std::io::Write;

use serde_json::Value;

use crate::support::films::{CSV_NAMES, CSV_SCHEMA, csv_rows};
use crate::support::weights::spoil;
use crate::support::{
    self, BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, criteo_rows, generate, job, numbers, run, train,
};

/// Batches of an evaluation: several, the last one partial.
const BATCH: &str = "eval.batch_size=256";

/// A trained run, and its format on the command line.
struct Trained {
    place: Place,
    format: &'static str,
}

impl Trained {
    /// Converts a log and trains on it.
    fn new(place: Place, format: &'static str, convert: &[&str]) -> Self {
        let out = place.word("data");
        run([&["convert", format, "--out", &out], convert].concat()).with(SUCCESS);
        train(&place, &job(&place), "run", &[BATCH]).with(SUCCESS);
        Self { place, format }
    }

    fn eval(&self, args: &[&str]) -> Ended {
        run([&["eval", "--run", &self.place.word("run")], args].concat())
    }

    /// Checks that files are evaluated like a dataset that was converted from them. Returns what was printed of them.
    #[track_caller]
    fn check(&self, files: &[&str], skip: &[&str]) -> Value {
        let (run_dir, out) = (self.place.word("run"), self.place.word("converted"));
        let convert = ["convert", self.format, "--like", &run_dir, "--out", &out, "--json"];
        let report = run([&convert, files, skip].concat()).with(SUCCESS).json();
        let expected = self.eval(&["--data", &out, "--part", "train", "--json"]).with(SUCCESS).json();
        let mut found = self.eval(&[&["--json"], files, skip].concat()).with(SUCCESS).json();
        let all = found.clone();
        let counts = found.as_object_mut().expect("an object");
        for (key, of_conversion) in [("read", "read"), ("bad", "bad")] {
            assert_eq!(counts.remove(key).as_ref(), Some(&report["rows"][of_conversion]), "{key}");
        }
        for (column, of) in counts.remove("unknown").expect("it is counted").as_object().expect("an object") {
            assert_eq!(*of, report["columns"][column]["unknown_train"], "{column}");
        }
        assert_eq!(found, expected);
        fs::remove_dir_all(out).expect("it is there");
        all
    }
}

/// Two labels, of which one may be missing, weights, shared vocabularies and bags; unknown categories and bad rows.
#[test]
fn csv_is_evaluated_like_its_conversion() {
    let place = Place::new();
    let rows = csv_rows(2500, 3);
    let file = |name: &str, rows: &[String]| {
        place.file(name, format!("{}\n{}\n", CSV_NAMES.join(","), rows.join("\n")))
    };
    let (log, schema) = (file("log.csv", &rows[..1200]), place.file("schema.toml", CSV_SCHEMA));
    let mut new = rows[1200..].to_vec();
    new[7] = new[7].replace(",f", ",new");
    let (first, second) = (file("first.csv", &new[..400]), file("second.csv", &new[400..]));
    new[30] = "too,few".into();
    new[1000] = new[1000].replace(".25,", ".25x,");
    let bad = file("bad.csv", &new);
    // Columns in another order, and one that the model does not use.
    let swapped: Vec<_> = new[..20]
        .iter()
        .map(|row| row.split_once(',').expect("a label"))
        .map(|(rating, rest)| format!("{rest},{rating},x\n"))
        .collect();
    let swapped =
        place.file("swapped.csv", format!("{},rating,extra\n{}", CSV_NAMES[1..].join(","), swapped.concat()));
    let trained = Trained::new(place, "csv", &[&log, "--schema", &schema]);
    let found = trained.check(&[&first, &second], &[]);
    assert!(
        found["heads"]["rating"]["samples"].as_u64().unwrap() < 1300,
        "some labels are missing: {found:#}"
    );
    assert_eq!(found["heads"]["bought"]["samples"], 1300);
    assert_eq!(
        found["unknown"]["film"]["lookups"].as_u64().unwrap()
            + found["unknown"]["last"]["lookups"].as_u64().unwrap(),
        2
    );
    trained.check(&[&swapped], &[]);
    let skip = ["--on-bad", "skip", "--bad-limit", "2"];
    let found = trained.check(&[&bad], &skip);
    assert_eq!((&found["read"], &found["bad"]), (&1300.into(), &2.into()));

    let text = trained.eval(&[&[&*bad], &skip[..]].concat()).with(SUCCESS);
    text.stdout_says("head                bought\n")
        .stdout_says("rows read           1300\nrows bad            2\n")
        .stdout_says("unknown categories  2 distinct values, 2 look-ups\n")
        .says(&["skipped: ", "bad.csv line 32", ": unknown categories: 1 distinct value"]);
    trained
        .eval(&[&bad])
        .with(BAD_DATA)
        .says(&["bad.csv line 32: expected 7 fields", "nothing was evaluated; --on-bad skip"]);
    trained
        .eval(&[&bad, "--on-bad", "skip", "--bad-limit", "1"])
        .with(BAD_DATA)
        .says(&["2 of 1300 rows", "the limit is 1"]);
    let unlabelled =
        trained.place.file("unlabelled.csv", "rating,weight,last,film,age,tags\n5,1,f1,f2,3,t1\n");
    trained
        .eval(&[&unlabelled])
        .with(USAGE)
        .says(&["unlabelled.csv has no column `bought`", "an evaluation needs every column of the training"]);
}

/// Half precision, hashed and rare categories, a compressed file, and standard input.
#[test]
fn criteo_is_evaluated_like_its_conversion() {
    let place = Place::new();
    let rows = criteo_rows(3000, 5);
    let log = place.file("log.tsv", rows[..2000].join("\n") + "\n");
    let text = rows[2000..].join("\n") + "\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let new = place.file("new.tsv.gz", gzip.finish().unwrap());
    let trained = Trained::new(place, "criteo-tsv", &[&log, "--min-count", "3", "--column", "C2=hash:50"]);
    let found = trained.check(&[&new], &[]);
    assert_eq!((&found["samples"], &found["read"]), (&1000.into(), &1000.into()));
    assert!(found["unknown"]["C1"]["lookups"].as_u64().unwrap() > 0 && found["unknown"].get("C2").is_none());
    assert!(found["auc"].as_f64().unwrap() > 0.5 && found.get("ids_out_of_range").is_none());
    let mut command = support::rankine();
    command.args(["eval", "--run", &trained.place.word("run"), "-", "--json"]);
    command.stdin(fs::File::open(&new).unwrap());
    assert_eq!(Ended::of(command).with(SUCCESS).json(), found);
    let unlabelled: Vec<_> = rows[..5].iter().map(|row| row.split_once('\t').unwrap().1).collect();
    let unlabelled = trained.place.file("unlabelled.tsv", unlabelled.join("\n"));
    trained.eval(&[&unlabelled]).with(BAD_DATA).says(&["expected 40 fields", "found 39"]);
}

#[test]
fn raw_records_are_evaluated_like_their_conversion() {
    let place = Place::new();
    let mut next = numbers(8);
    let mut record = |bad: bool| {
        let ids = [40, 30, 20, 12, 8, 3].map(|rows| (next() % rows) as u32);
        let label = if bad { 7 } else { u32::from(ids[0] < 15 || next().is_multiple_of(10)) };
        let dense = [(); 4].map(|()| ((next() % 64) as f32 / 16.0 - 2.0).to_bits());
        [&[label], &dense[..], &ids].concat().into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
    };
    let mut records = |count: usize| (0..count).flat_map(|_| record(false)).collect::<Vec<_>>();
    let (log, new) = (place.file("log.bin", records(2000)), place.file("new.bin", records(700)));
    let rest = records(300);
    let bad = place.file("bad.bin", [&rest[..], &record(true), &rest].concat());
    let shape = place.file("shape.toml", SHAPE);
    let trained = Trained::new(place, "hugectr-raw", &[&log, "--shape", &shape]);
    let found = trained.check(&[&new, &new], &[]);
    assert_eq!((&found["samples"], &found["unknown"]), (&1400.into(), &serde_json::json!({})));
    // The option of earlier versions.
    assert_eq!(trained.eval(&["--json", "--raw", &new, &new]).with(SUCCESS).json(), found);
    trained.eval(&[&bad]).with(BAD_DATA).says(&["bad.bin record 301, column label", "--on-bad skip"]);
    assert_eq!(trained.check(&[&bad], &["--on-bad", "skip"])["bad"], 1);
}

#[test]
fn several_datasets_are_evaluated_one_after_another() {
    let place = Place::new();
    let rows = criteo_rows(2600, 5);
    let log = place.file("log.tsv", rows[..2000].join("\n") + "\n");
    let days =
        [place.file("1.tsv", rows[2000..2200].join("\n")), place.file("2.tsv", rows[2200..].join("\n"))];
    let trained = Trained::new(place, "criteo-tsv", &[&log]);
    let (run_dir, mut sets) = (trained.place.word("run"), Vec::new());
    for (number, day) in days.iter().enumerate() {
        let out = trained.place.word(&format!("day-{number}"));
        run(["convert", "criteo-tsv", &log, "--eval", day, "--like", &run_dir, "--out", &out]).with(SUCCESS);
        sets.push(out);
    }
    // In the order given, not in that of the names.
    let named = ["--data", &sets[1], "--data", &sets[0]];
    let each = |args: &[&str]| {
        [1, 0].map(|set| trained.eval(&[&["--data", &sets[set]], args].concat()).with(SUCCESS))
    };
    let found = trained.eval(&[&named[..], &["--json"]].concat()).with(SUCCESS).json();
    assert_eq!(found.as_object().unwrap().keys().collect::<Vec<_>>(), ["sets"]);
    let of_sets = found["sets"].as_object().unwrap();
    assert_eq!(of_sets.keys().collect::<Vec<_>>(), [&sets[1], &sets[0]]);
    assert_eq!(of_sets.values().cloned().collect::<Vec<_>>(), each(&["--json"]).map(|ended| ended.json()));
    assert_eq!((&of_sets[&sets[1]]["samples"], &of_sets[&sets[0]]["samples"]), (&400.into(), &200.into()));
    let text = trained.eval(&named).with(SUCCESS).stdout;
    let [first, second] = each(&[]).map(|ended| ended.stdout);
    assert_eq!(
        text,
        format!("dataset             {}\n{first}\ndataset             {}\n{second}", sets[1], sets[0])
    );
    let of_parts = trained.eval(&[&named[..], &["--part", "train", "--json"]].concat()).with(SUCCESS).json();
    assert_eq!(of_parts["sets"][&sets[0]], of_parts["sets"][&sets[1]]);

    // All are checked before the first is evaluated.
    let other = Place::new();
    let generated = generate(&other, SHAPE, 300, 50);
    let ended = trained.eval(&["--data", &sets[0], "--data", &generated]).with(USAGE);
    assert_eq!(ended.stdout, "");
    ended.says(&["does not fit the model"]);
    trained.eval(&["--data", &sets[0], "--data", &sets[0]]).with(USAGE).says(&["is given twice"]);
}

#[test]
fn what_cannot_be_evaluated_is_explained() {
    let place = Place::new();
    let rows = criteo_rows(600, 5);
    let log = place.file("log.tsv", rows.join("\n") + "\n");
    let trained = Trained::new(place, "criteo-tsv", &[&log]);
    let data = trained.place.word("data");
    for (args, words) in [
        (&[&*log, "--data", &data][..], "cannot be used with"),
        (&[&log, "--part", "train"], "cannot be used with"),
        (&[&log, "--raw", &log], "cannot be used with"),
        (&["--on-bad", "skip"], "required arguments"),
    ] {
        trained.eval(args).with(USAGE).says(&[words]);
    }
    trained.eval(&["none.tsv"]).with(support::FAILED).says(&["cannot open none.tsv"]);
    let empty = trained.place.file("empty.tsv", "");
    trained.eval(&[&empty]).with(BAD_DATA).says(&["the files have no rows"]);
    let place = Place::new();
    generate(&place, SHAPE, 1000, 300);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    run(["eval", "--run", &place.word("run"), &log])
        .with(USAGE)
        .says(&["was trained on generated data", "use --data"]);
}

/// Rows are counted over all files, bad ones included, and each has a prediction per head.
#[test]
fn a_prediction_that_is_not_finite_is_named_by_its_row() {
    let place = Place::new();
    let rows = csv_rows(1200, 3);
    let file = |name: &str, rows: &[String]| {
        place.file(name, format!("{}\n{}\n", CSV_NAMES.join(","), rows.join("\n")))
    };
    let (log, schema) = (file("log.csv", &rows), place.file("schema.toml", CSV_SCHEMA));
    let mut new = csv_rows(500, 4);
    // The only unknown film, in the second batch and the second file, after a bad row.
    new[10] = "too,few".into();
    let fields: Vec<_> = new[320].split(',').collect();
    new[320] = [&fields[..4], &["unknown"], &fields[5..]].concat().join(",");
    let (first, second) = (file("first.csv", &new[..300]), file("second.csv", &new[300..]));
    let trained = Trained::new(place, "csv", &[&log, "--schema", &schema]);
    let run_dir = trained.place.path("run");
    // Row 0 of the table, which all unknown films share.
    spoil(&run_dir, "embedding.film", 0..4);
    let files = [&*first, &second, "--on-bad", "skip"];
    let judged = trained.eval(&files).with(support::FAILED);
    judged.says(&["the model's prediction of row 321 is not finite"]);
    let (run_dir, out) = (trained.place.word("run"), trained.place.word("out.csv"));
    let predicted = run([&["predict", "--run", &run_dir, "--out", &out], &files[..]].concat());
    predicted.with(support::FAILED).says(&["the prediction of row 321 is not a number"]);
}

/// `support/films.parquet` has the columns of [`csv_rows`], with lists of tags, and a column `id`.
#[cfg(feature = "parquet")]
#[test]
fn parquet_is_evaluated_like_its_conversion() {
    let place = Place::new();
    let file = place.file("films.parquet", include_bytes!("../support/films.parquet"));
    let schema = place.file("schema.toml", CSV_SCHEMA.replace("separator = \"|\"\n", ""));
    let trained = Trained::new(place, "parquet", &[&file, "--schema", &schema, "--split", "last:0.6"]);
    let found = trained.check(&[&file, &file], &[]);
    assert_eq!((&found["read"], &found["heads"]["bought"]["samples"]), (&2000.into(), &2000.into()));
    let (run_dir, out) = (trained.place.word("run"), trained.place.word("out.csv"));
    let args = ["predict", "--run", &run_dir, &file, "--out", &out, "--keep-columns", "id,weight,rating"];
    run(args).with(SUCCESS);
    let text = fs::read_to_string(out).unwrap();
    assert!(text.starts_with("row,id,weight,rating,rating_prediction,bought\n1,u0000,"), "{text}");
    assert!(
        text.lines().skip(1).all(|line| line.split(',').nth(2).is_some_and(|weight| weight.ends_with(".25")))
    );
    trained.eval(&["-"]).with(USAGE).says(&["Parquet cannot be read from standard input"]);
}

/// A model of Parquet, in a build without Parquet.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_names_the_feature() {
    use rankine_reader::convert::RowFormat;

    let place = Place::new();
    let (log, schema) = (
        place.file("log.csv", format!("{}\n{}\n", CSV_NAMES.join(","), csv_rows(300, 3).join("\n"))),
        place.file("schema.toml", CSV_SCHEMA),
    );
    let trained = Trained::new(place, "csv", &[&log, "--schema", &schema]);
    let path = trained.place.path("run/model/model.json");
    let envelope = support::json_file(&path);
    let mut content = envelope["content"].clone();
    let RowFormat::Csv(csv) = serde_json::from_value(content["format"].clone()).unwrap() else {
        panic!("the model is one of CSV")
    };
    content["format"] = serde_json::to_value(RowFormat::Parquet(csv.sources)).unwrap();
    let version = envelope["format"].as_u64().unwrap() as u32;
    fs::write(&path, rankine_base::sealed::to_json("rankine model", version, &content)).unwrap();
    let file = trained.place.file("films.parquet", include_bytes!("../support/films.parquet"));
    let (run_dir, out) = (trained.place.word("run"), trained.place.word("out.csv"));
    let words = ["cannot read Parquet: build it with `cargo build --release --features parquet`"];
    trained.eval(&[&file]).with(USAGE).says(&words);
    run(["predict", "--run", &run_dir, &file, "--out", &out]).with(USAGE).says(&words);
}
