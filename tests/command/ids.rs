//! Ids out of range: they are errors, become the out-of-vocabulary row, or are removed from their bags, and are
//! always counted, in training, evaluation and prediction.

use std::fs;

use serde_json::json;

use crate::support::exported::Exported;
use crate::support::{
    BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, json_lines, numbers, run, summary, train, weights,
};

/// Dense columns and rows of [`SHAPE`].
const DENSE: usize = 4;
const ROWS: [u64; 6] = [40, 30, 20, 12, 8, 3];
const BATCH: usize = 128;

/// A sample whose ids may be anything.
#[derive(Clone)]
struct Record {
    label: u32,
    dense: [f32; DENSE],
    ids: [u32; ROWS.len()],
}

/// Returns records, some of which have ids of C2 and C6 that are out of range.
fn records(count: usize, seed: u64) -> Vec<Record> {
    let mut next = numbers(seed);
    let record = |number: usize| {
        let mut ids = ROWS.map(|rows| (next() % rows) as u32);
        let label = u32::from(ids[0] < 15 || next().is_multiple_of(10));
        if number % 50 == 7 {
            ids[5] = [3, 4, u32::MAX][next() as usize % 3];
        }
        if number % 90 == 30 {
            ids[1] = 30 + (next() % 1000) as u32;
        }
        Record { label, dense: [0; DENSE].map(|_: u32| (next() % 64) as f32 / 16.0 - 2.0), ids }
    };
    (0..count).map(record).collect()
}

/// Counts the ids of a column that are out of range.
fn wild(records: &[Record], column: usize) -> u64 {
    records.iter().filter(|record| u64::from(record.ids[column]) >= ROWS[column]).count() as u64
}

fn raw(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Record { label, dense, ids } in records {
        bytes.extend(label.to_le_bytes());
        dense.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    }
    bytes
}

/// Returns the same as CSV, without the ids that are out of range.
fn csv(records: &[Record]) -> String {
    let mut text = String::from("label,I1,I2,I3,I4,C1,C2,C3,C4,C5,C6\n");
    for Record { label, dense, ids } in records {
        let dense = dense.map(|value| value.to_string()).join(",");
        let ids: Vec<_> =
            ids.iter().zip(ROWS).map(|(&id, rows)| (u64::from(id) < rows).then_some(id)).collect();
        let ids: Vec<_> = ids.iter().map(|id| id.map_or(String::new(), |id| id.to_string())).collect();
        text += &format!("{label},{dense},{}\n", ids.join(","));
    }
    text
}

/// Returns the schema of those files: row numbers, of which a sample may have none.
fn csv_schema() -> String {
    let mut text = String::from("[label]\ncolumn = \"label\"\n");
    for column in 1..=DENSE {
        text += &format!("[[dense]]\ncolumn = \"I{column}\"\n");
    }
    for (column, rows) in (1..).zip(ROWS) {
        text += &format!(
            "[[categorical]]\ncolumn = \"C{column}\"\nseparator = \"|\"\n\
             vocabulary = {{ kind = \"identity\", rows = {rows} }}\n"
        );
    }
    text
}

/// Returns a job on some data, in the order of its samples.
fn job(place: &Place, name: &str, data: &str, more: &str) -> String {
    let text = format!(
        "\
name = \"small\"
{data}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = {BATCH}, log_every_steps = 2, shuffle = false }}
{more}"
    );
    place.file(name, text)
}

/// Returns a job on the raw files `NAME.bin` and `NAME-eval.bin`.
fn raw_job(place: &Place, name: &str, more: &str) -> String {
    let (shape, train) = (place.file("shape.toml", SHAPE), place.word(&format!("{name}.bin")));
    let eval = place.word(&format!("{name}-eval.bin"));
    let data = format!("data.raw = {{ shape = {shape:?}, train = [{train:?}], eval = [{eval:?}] }}");
    job(place, &format!("{name}.toml"), &data, more)
}

const REPLACED: &str = "\
[[table]]
columns = [\"C2\"]
oov_row = 29
[[table]]
columns = [\"C6\"]
ids_out_of_range = \"oov\"
oov_row = 1
";

struct Files {
    place: Place,
    train: Vec<Record>,
    eval: Vec<Record>,
}

impl Files {
    fn new() -> Self {
        let (place, train, eval) = (Place::new(), records(10 * BATCH, 1), records(400, 2));
        place.file("wild.bin", raw(&train));
        place.file("wild-eval.bin", raw(&eval));
        Self { place, train, eval }
    }

    /// Returns counts by column in the form of the logs.
    fn counts(records: &[Record]) -> serde_json::Value {
        json!({ "C2": wild(records, 1), "C6": wild(records, 5) })
    }

    /// Checks the counts in a run's log, summary and evaluation.
    fn assert_counted(&self, run: &str) {
        let reported = summary(&self.place, run);
        assert_eq!(reported["train"]["ids_out_of_range"], Self::counts(&self.train));
        assert_eq!(reported["eval"]["ids_out_of_range"], Self::counts(&self.eval));
        let lines = json_lines(&self.place.path(run).join("metrics.jsonl"));
        for line in lines {
            let expected = match line["kind"].as_str() {
                Some("eval") => Self::counts(&self.eval),
                _ => Self::counts(&self.train[..BATCH * line["step"].as_u64().expect("a step") as usize]),
            };
            assert_eq!(line["ids_out_of_range"], expected, "{line}");
        }
    }

    fn eval(&self, run_dir: &str) -> serde_json::Value {
        run(["eval", "--run", &self.place.word(run_dir), "--json"]).with(SUCCESS).json()
    }

    fn predict(&self, run_dir: &str, file: &str, out: &str) -> Ended {
        let (run_dir, file, out) = (self.place.word(run_dir), self.place.word(file), self.place.word(out));
        run(["predict", &file, "--run", &run_dir, "--out", &out, "--json"])
    }
}

#[test]
fn without_a_policy_ids_out_of_range_are_errors_that_name_it() {
    let files = Files::new();
    let place = &files.place;
    let plain = raw_job(place, "wild", "");
    train(place, &plain, "fails", &[]).with(BAD_DATA).says(&[
        "record 8 (byte 308), column C6",
        "is out of range: its table has 3 rows",
        "guard.ids_out_of_range",
    ]);
    // Columns of row numbers have no out-of-vocabulary row unless one is named.
    let words = [
        "guard.ids_out_of_range",
        "columns C1, C2, C3, C4, C5, C6 have no exact vocabulary",
        "oov_row",
        "\"skip\"",
    ];
    train(place, &plain, "oov", &["guard.ids_out_of_range=oov"]).with(USAGE).says(&words);
    run(["check", &plain, "--set", "guard.ids_out_of_range=oov"]).with(USAGE).says(&words);
    let beyond =
        raw_job(place, "wild", "[[table]]\ncolumns = [\"C6\"]\noov_row = 3\nids_out_of_range = \"oov\"\n");
    train(place, &beyond, "beyond", &[])
        .with(USAGE)
        .says(&["oov_row = 3", "oov_row 3 is out of range: the table of "]);
    // A policy of one table applies only to that table.
    let one = raw_job(place, "wild", "[[table]]\ncolumns = [\"C6\"]\nids_out_of_range = \"skip\"\n");
    train(place, &one, "one", &[]).with(BAD_DATA).says(&["record 31 (byte 1320), column C2"]);
    train(place, &plain, "typo", &["guard.ids_out_of_range=zero"])
        .with(USAGE)
        .says(&["known values: fail, oov, skip"]);
}

#[test]
fn ids_replaced_by_a_row_train_like_that_row() {
    let files = Files::new();
    let place = &files.place;
    let replaced = |records: &[Record]| {
        let mut records = records.to_vec();
        for record in &mut records {
            for (column, row) in [(1, 29), (5, 1)] {
                if u64::from(record.ids[column]) >= ROWS[column] {
                    record.ids[column] = row;
                }
            }
        }
        raw(&records)
    };
    place.file("tame.bin", replaced(&files.train));
    place.file("tame-eval.bin", replaced(&files.eval));
    // A policy for one table, and the job's policy for another.
    let wild = raw_job(place, "wild", REPLACED);
    let sets = ["guard.ids_out_of_range=fail", "table.0.ids_out_of_range=oov"];
    let tame = raw_job(place, "tame", "");
    // The exchange must not depend on the samples.
    let placed = ["embedding.placement=row-wise", "embedding.exchange=rows"];
    for ranks in ["device.ranks=1", "device.ranks=2"] {
        let (found, expected) = (format!("wild-{}", &ranks[13..]), format!("tame-{}", &ranks[13..]));
        let words = ["column C2: ", "they are mapped to row 29", "column C6: ", "they are mapped to row 1"];
        train(place, &wild, &found, &[&sets[..], &[ranks], &placed].concat()).with(SUCCESS).says(&words);
        train(place, &tame, &expected, &[&[ranks][..], &placed].concat()).with(SUCCESS);
        assert!(weights(place, &found) == weights(place, &expected));
        assert_eq!(summary(place, &found)["eval"]["auc"], summary(place, &expected)["eval"]["auc"]);
        files.assert_counted(&found);
        assert!(summary(place, &expected)["train"].get("ids_out_of_range").is_none());
    }
    // The run's own policy applies to its evaluation and prediction.
    let judged = files.eval("wild-1");
    assert_eq!(judged["auc"], files.eval("tame-1")["auc"]);
    assert_eq!(judged["ids_out_of_range"], Files::counts(&files.eval));
    let printed = run(["eval", "--run", &place.word("wild-1")]).with(SUCCESS);
    let counts = Files::counts(&files.eval);
    let line = |column: &str| format!("ids out of range    {} in column {column}\n", counts[column]);
    printed.stdout_says(&line("C2")).stdout_says(&line("C6"));
    let counts = files.predict("wild-1", "wild-eval.bin", "wild.csv").with(SUCCESS).json();
    assert_eq!((&counts["predicted"], &counts["bad"]), (&400.into(), &0.into()));
    assert_eq!(counts["ids_out_of_range"], Files::counts(&files.eval));
    files.predict("tame-1", "tame-eval.bin", "tame.csv").with(SUCCESS);
    let read = |name: &str| fs::read(place.path(name)).expect("there are predictions");
    assert!(read("wild.csv") == read("tame.csv"));
    files.predict("tame-1", "wild-eval.bin", "none.csv").with(BAD_DATA).says(&["column C6"]);
}

/// What was counted before the resume is in the checkpoint, and was exported by the process before.
#[test]
fn a_resumed_training_exports_the_ids_of_its_own_steps() {
    let files = Files::new();
    let job = raw_job(&files.place, "wild", REPLACED);
    let textfile = format!("metrics.textfile={}", files.place.word("rankine.prom"));
    let policy = "table.0.ids_out_of_range=oov";
    let train = |sets: &[&str], more: &[&str]| {
        let run_dir = files.place.word("run");
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let args = ["train", &job, "--quiet", "--run-dir", &run_dir, "--set", policy, "--set", &textfile];
        run([&args[..], &sets, more].concat()).with(SUCCESS);
    };
    train(&["train.max_steps=4", "checkpoint.every_steps=4", "device.kind=cpu"], &[]);
    train(&["checkpoint.every_steps=4", "device.kind=cpu"], &["--resume"]);
    let exported = Exported::read(&files.place.path("rankine.prom"), 0);
    for (column, number) in [("C2", 1), ("C6", 5)] {
        let labels = format!("policy=\"oov\",table=\"{column}\"");
        let count = exported.value("rankine_reader_rejected_ids_total", &labels);
        assert_eq!(count, wild(&files.train[4 * BATCH..], number) as f64, "{column}");
    }
}

#[test]
fn removed_ids_may_leave_their_bag_empty() {
    let files = Files::new();
    let place = &files.place;
    let (all, schema) = (place.file("train.csv", csv(&files.train)), place.file("schema.toml", csv_schema()));
    let (eval, data) = (place.file("eval.csv", csv(&files.eval)), place.word("data"));
    let args = ["--schema", &schema, "--eval", &eval, "--dense-dtype", "f32", "--out", &data];
    run(["convert", "csv", &all].into_iter().chain(args)).with(SUCCESS);
    let empty = job(place, "empty.toml", &format!("data.dir = {data:?}"), "");
    let skips = raw_job(place, "wild", "guard.ids_out_of_range = \"skip\"\n");
    for (name, shuffle) in [("file", "train.shuffle=false"), ("shuffled", "train.shuffle=true")] {
        let found = format!("skips-{name}");
        let words = ["column C6: ", "they are skipped"];
        let trained = train(place, &skips, &found, &[shuffle]).with(SUCCESS).says(&words);
        for (column, number) in [("C2", 1), ("C6", 5)] {
            let counted = format!("ids out of range    {} in column {column}\n", wild(&files.train, number));
            assert!(trained.stdout.contains(&counted), "{counted} in\n{}", trained.stdout);
        }
        let reported = summary(place, &found);
        assert_eq!(reported["train"]["ids_out_of_range"], Files::counts(&files.train));
        assert_eq!(reported["eval"]["ids_out_of_range"], Files::counts(&files.eval));
    }
    // Like samples without such ids.
    train(place, &empty, "empty", &[]).with(SUCCESS);
    assert!(weights(place, "skips-file") == weights(place, "empty"));
    assert_eq!(summary(place, "skips-file")["eval"]["auc"], summary(place, "empty")["eval"]["auc"]);
    files.assert_counted("skips-file");

    // Counts continue when a training resumes.
    let saves = ["checkpoint.every_steps=4", "train.max_steps=6"];
    train(place, &skips, "resumed", &saves).with(SUCCESS);
    fs::remove_file(place.path("resumed").join("summary.json")).expect("the run was complete");
    let args = ["train", &skips, "--quiet", "--resume", "--run-dir", &place.word("resumed")];
    let textfile = format!("metrics.textfile={}", place.word("resumed.prom"));
    let sets = ["--set", "checkpoint.every_steps=4", "--set", &textfile];
    run(args.into_iter().chain(sets)).with(SUCCESS);
    files.assert_counted("resumed");
    // The metrics of a process count what it has seen itself.
    let exported = Exported::read(&place.path("resumed.prom"), 0);
    for (table, column) in [("C2", 1), ("C6", 5), ("C1", 0)] {
        let labels = format!("policy=\"skip\",table=\"{table}\"");
        let expected = wild(&files.train[4 * BATCH..], column) as f64;
        assert_eq!(exported.value("rankine_reader_rejected_ids_total", &labels), expected, "{table}");
    }
    for (series, expected) in [("steps_total", 6.0), ("step", 10.0), ("progress_ratio", 1.0)] {
        assert_eq!(exported.value(&format!("rankine_train_{series}"), ""), expected, "{series}");
    }
    assert!(weights(place, "resumed") == weights(place, "skips-file"));
}
