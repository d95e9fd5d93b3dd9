//! Conversion of raw rows to a dataset: handling of bad rows, and results that depend only on the rows.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::Command;

use crate::support::{
    self, BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, criteo_rows, job, json_file, json_lines, rankine,
    run, train, tree,
};

/// Converts logs to the folder `out` in `place`.
fn convert(place: &Place, out: &str, args: &[&str]) -> Ended {
    let out = place.word(out);
    run([&["convert", "criteo-tsv", "--out", &out], args].concat())
}

fn text(rows: &[String]) -> String {
    rows.join("\n") + "\n"
}

/// 300 rows and the bad ones among them: number, text, column, and words of the reason.
struct Spoilt {
    rows: Vec<String>,
    bad: Vec<(usize, String, Option<&'static str>, &'static str)>,
}

impl Spoilt {
    fn new() -> Self {
        let mut rows = criteo_rows(300, 1);
        let with = |row: usize, field: usize, value: &str| {
            let mut fields: Vec<_> = rows[row - 1].split('\t').collect();
            fields[field] = value;
            fields.join("\t")
        };
        let bad = vec![
            (17, with(17, 0, "2"), Some("label"), "'2' is not a label"),
            (120, with(120, 3, "1.5"), Some("I3"), "'1.5' is not a 64-bit integer"),
            (121, "0\tshort".into(), None, "separated by tabs), found 2,"),
            (300, with(300, 39, "not hex"), Some("C26"), "'not hex' is not a category"),
        ];
        for (number, text, ..) in &bad {
            rows[number - 1] = text.clone();
        }
        Self { rows, bad }
    }
}

#[test]
fn bad_rows_are_refused_skipped_or_quarantined() {
    let place = Place::new();
    let Spoilt { rows, bad } = Spoilt::new();
    let log = place.file("log.tsv", text(&rows));

    // `fail` is the default and names the first.
    for args in [&[&*log][..], &[&log, "--on-bad", "fail", "--bad-limit", "100%"]] {
        convert(&place, "failed", args)
            .with(BAD_DATA)
            .says(&["log.tsv line 17, column label: '2' is not a label", "--on-bad skip or quarantine"]);
    }
    assert!(!place.path("failed").exists() && !place.path("failed.partial").exists());

    let skipped = convert(&place, "skipped", &[&log, "--on-bad", "skip", "--bad-limit", "4"]).with(SUCCESS);
    assert!(skipped.stdout.contains("rows read   300\nrows kept   296 (296 train, 0 eval)\nrows bad    4\n"));
    assert!(!place.path("skipped/quarantine.tsv").exists());
    convert(&place, "kept", &[&log, "--on-bad", "quarantine", "--bad-limit", "4"]).with(SUCCESS);
    let lines: String = bad.iter().map(|(_, text, ..)| format!("{text}\n")).collect();
    assert_eq!(fs::read_to_string(place.path("kept/quarantine.tsv")).unwrap(), lines);

    for out in ["skipped", "kept"] {
        let named = json_lines(&place.path(out).join("bad-rows.jsonl"));
        assert_eq!(named.len(), bad.len());
        for (json, (number, _, column, why)) in named.iter().zip(&bad) {
            assert_eq!((json["line"].as_u64(), json["column"].as_str()), (Some(*number as u64), *column));
            assert_eq!(json["file"].as_str(), Some(&*log));
            assert!(json["why"].as_str().unwrap().contains(why), "{json}");
        }
        let report = json_file(&place.path(out).join("conversion.json"));
        let expected = serde_json::json!({ "read": 300, "kept": 296, "bad": 4, "train": 296, "eval": 0 });
        assert_eq!(report["rows"], expected);
        let expected = serde_json::json!({ "label": 1, "number": 1, "field_count": 1, "category": 1 });
        assert_eq!(report["bad_by_reason"], expected);
        run(["inspect", &place.word(out), "--verify"]).with(SUCCESS);
    }
    // The rest is as if the bad rows had never existed.
    let good: Vec<_> =
        rows.iter().filter(|row| bad.iter().all(|(_, text, ..)| text != *row)).cloned().collect();
    let clean = place.file("clean.tsv", text(&good));
    convert(&place, "clean", &[&clean]).with(SUCCESS);
    let (kept, clean) = (tree(&place.path("kept")), tree(&place.path("clean")));
    assert!(!clean.contains_key("bad-rows.jsonl") && !clean.contains_key("quarantine.tsv"));
    let same: Vec<_> = clean.iter().filter(|(name, bytes)| kept.get(*name) == Some(bytes)).collect();
    // All except the two files that name the source and count its rows.
    assert_eq!(same.len(), clean.len() - 2, "{same:?}");
}

#[test]
fn the_limit_of_bad_rows_is_a_number_or_a_percentage() {
    let place = Place::new();
    let log = place.file("log.tsv", text(&Spoilt::new().rows));
    // 4 of 300 are bad: 1.333%.
    for (limit, code) in [
        ("4", SUCCESS),
        ("3", BAD_DATA),
        ("0", BAD_DATA),
        ("1.34%", SUCCESS),
        ("1.33%", BAD_DATA),
        ("100%", SUCCESS),
    ] {
        let ended = convert(&place, limit, &[&log, "--on-bad", "skip", "--bad-limit", limit]).with(code);
        assert_eq!(place.path(limit).exists(), code == SUCCESS, "{limit}");
        if code == BAD_DATA {
            ended.says(&[
                "4 of 300 rows",
                "are bad, but the limit is",
                limit,
                "line 121: ",
                "raise --bad-limit",
            ]);
        }
    }
    // The default is 1%.
    convert(&place, "default", &[&log, "--on-bad", "skip"]).with(BAD_DATA).says(&["the limit is 1%"]);
    convert(&place, "no-limit", &[&log, "--bad-limit", "many"]).with(USAGE).says(&["`many` is not a limit"]);
    // If all rows are bad, the error is about the data, not the limit.
    let nothing = place.file("nothing.tsv", "a\nb\n");
    let args = [&*nothing, "--on-bad", "skip", "--bad-limit", "100%"];
    convert(&place, "nothing", &args).with(BAD_DATA).says(&["all 2 rows read are bad"]);
}

#[test]
fn threads_memory_and_compression_do_not_change_a_byte() {
    let place = Place::new();
    // Several chunks of text.
    let rows = text(&criteo_rows(20_000, 2));
    let log = place.file("log", &rows);
    let converted = |out: &str, args: &[&str]| -> BTreeMap<String, Vec<u8>> {
        let args = [&[&*log, "--split", "random:0.2:7", "--min-count", "3"], args].concat();
        convert(&place, out, &args).with(SUCCESS);
        tree(&place.path(out))
    };
    let one = converted("one", &["--threads", "1"]);
    for name in [
        "dataset.json",
        "conversion.json",
        "statistics.bin",
        "popularity.bin",
        "vocabulary/C26.tsv",
        "eval/00000.blocks",
    ] {
        assert!(one.contains_key(name), "{name} of {:?}", one.keys());
    }
    assert!(converted("two", &["--threads", "2"]) == one, "2 threads write other bytes than 1");
    assert!(converted("five", &["--threads", "5"]) == one, "5 threads write other bytes than 1");
    assert!(converted("small", &["--memory", "64KiB"]) == one, "little memory writes other bytes than much");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(rows.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    place.file("log", &gzip);
    assert!(converted("gzip", &[]) == one, "a compressed log gives other bytes than a plain one");
    let broken = place.file("broken.gz", &gzip[..gzip.len() / 2]);
    convert(&place, "broken", &[&broken]).with(BAD_DATA).says(&["broken.gz", "is damaged"]);
}

#[test]
fn other_logs_may_be_used_for_evaluation() {
    let place = Place::new();
    let (rows, eval_rows) = (criteo_rows(500, 3), criteo_rows(77, 4));
    let (log, eval) = (place.file("log.tsv", text(&rows)), place.file("eval.tsv", text(&eval_rows)));
    convert(&place, "alone", &[&log]).with(SUCCESS);
    convert(&place, "both", &[&log, "--eval", &eval]).with(SUCCESS);
    let report = json_file(&place.path("both/conversion.json"));
    assert_eq!((&report["rows"]["train"], &report["rows"]["eval"]), (&500.into(), &77.into()));
    assert_eq!(report["files"], serde_json::json!([log]));
    assert_eq!(report["eval"], serde_json::json!([eval]));
    // Nothing is learnt from them: no category and no mean.
    let (alone, both) = (tree(&place.path("alone")), tree(&place.path("both")));
    for (name, bytes) in
        alone.iter().filter(|(name, _)| *name != "dataset.json" && *name != "conversion.json")
    {
        assert!(both[name] == *bytes, "{name} differs");
    }
    assert!(both.contains_key("eval/00000.blocks") && !alone.contains_key("eval/00000.blocks"));
    // As in the guide; another split is not allowed with separate evaluation files.
    convert(&place, "none", &["--split", "none", &log, "--eval", &eval]).with(SUCCESS);
    assert!(tree(&place.path("none")) == both);
    convert(&place, "torn", &[&log, "--split", "last:0.1", "--eval", &eval])
        .with(USAGE)
        .says(&["--split last:0.1 takes it from the other files", "with --eval use --split none"]);
    convert(&place, "both", &[&log]).with(USAGE).says(&["both already exists"]);
}

#[test]
fn a_model_only_evaluates_data_with_its_meaning_of_ids() {
    let place = Place::new();
    let rows = criteo_rows(2000, 5);
    let log = place.file("log.tsv", text(&rows));
    convert(&place, "data", &[&log, "--split", "last:0.2"]).with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (run_dir, eval) = (place.word("run"), |data: &str| {
        run(["eval", "--run", &place.word("run"), "--data", &place.word(data), "--json"])
    });
    assert!(fs::exists(format!("{run_dir}/model/vocabulary/C1.tsv")).unwrap());
    assert_eq!(eval("data").with(SUCCESS).json()["samples"], 400);

    // One category has another name: the tables have the same sizes, but their rows mean something else.
    let renamed: Vec<_> = rows.iter().map(|row| row.replace("00000003", "deadbeef")).collect();
    let renamed = place.file("renamed.tsv", text(&renamed));
    convert(&place, "renamed", &[&renamed, "--split", "last:0.2"]).with(SUCCESS);
    let sentence =
        "differs from the one that the model was trained with, so its ids mean different categories";
    eval("renamed").with(USAGE).says(&["does not fit the model", "vocabulary/C1.tsv", sentence]);

    for (out, args, words) in [
        ("frequent", &["--min-count", "30"][..], "column C1 has "),
        ("hashed", &["--column", "C3=hash:100"], "column C3 has 100 rows (hash), but the model has "),
        (
            "numbers",
            &["--dense", "mlperf"],
            "column I1 has mlperf-log(x), but the model was trained on (log1p(x) - ",
        ),
    ] {
        convert(&place, out, &[&[&*log, "--split", "last:0.2"], args].concat()).with(SUCCESS);
        eval(out).with(USAGE).says(&["does not fit the model", words]);
    }
}

/// Returns the file of this name in the guide's worked example.
fn of_the_guide(info: &str) -> &'static str {
    let guide = include_str!("../../docs/guide/converting.md");
    let begin = guide.find(&format!("\n```{info}\n")).expect("the guide has it") + info.len() + 5;
    let text = &guide[begin..];
    &text[..text.find("```").expect("it ends")]
}

#[test]
fn the_worked_example_of_the_guide_converts() {
    let place = Place::new();
    let ratings = place.file("ratings.csv", of_the_guide("csv"));
    let schema = place.file("films.toml", of_the_guide("toml"));
    let out = place.word("films");
    let ended = run(["convert", "csv", &ratings, "--schema", &schema, "--out", &out]).with(SUCCESS);
    assert!(ended.stdout.starts_with("rows read   4\nrows kept   4 (4 train, 0 eval)\nrows bad    0\n"));
    assert!(fs::read_to_string(place.path("films/vocabulary/film.tsv")).unwrap() == "\\*\t2\nHeat\t2\n");
    assert!(fs::read_to_string(place.path("films/vocabulary/genres.tsv")).unwrap().lines().count() == 4);
    let inspected = run(["inspect", &out, "--verify"]).with(SUCCESS);
    assert!(inspected.stdout.contains("label rate 0.6667 (1 missing)"), "{}", inspected.stdout);

    // A typo in the schema file is shown with its position, and so is a missing column.
    let slip = of_the_guide("toml").replace("column = \"film\"", "column = \"flim\"");
    let schema = place.file("slip.toml", slip);
    run(["convert", "csv", &ratings, "--schema", &schema, "--out", &place.word("slip")]).with(USAGE).says(&[
        "slip.toml:18:10: ",
        "no column `flim` (did you mean `film`?)",
        "^^^^^^",
    ]);
    let schema = place.file("typo.toml", of_the_guide("toml").replace("separator", "seperator"));
    run(["convert", "csv", &ratings, "--schema", &schema, "--out", &place.word("typo")])
        .with(USAGE)
        .says(&["typo.toml:24:1: unknown key `seperator` in [categorical.2]", "did you mean `separator`?"]);
}

#[test]
fn bad_rows_of_csv_that_span_lines_are_quarantined() {
    let place = Place::new();
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    let mut rows: Vec<String> = (0..200).map(|row| format!("{},\"a\n{}\"", row % 2, row % 7)).collect();
    rows[50] = "2,\"two\nlines\"".into();
    rows[120] = "1,\"x\" y".into();
    let log = place.file("log.csv", format!("l,c\n{}", text(&rows)));
    let args = ["convert", "csv", &log, "--schema", &schema, "--out"];
    run(args.iter().copied().chain([&*place.word("failed")]))
        .with(BAD_DATA)
        .says(&["log.csv line 102, column l: '2' is not a label: it must be 0 or 1"]);
    let out = place.word("out");
    run(args.iter().copied().chain([&*out, "--on-bad", "quarantine", "--split", "last:0.1"])).with(SUCCESS);
    let kept = fs::read_to_string(place.path("out/quarantine.csv")).unwrap();
    assert_eq!(kept, "2,\"two\nlines\"\n1,\"x\" y\n");
    let report = json_file(&place.path("out/conversion.json"));
    let expected = serde_json::json!({ "read": 200, "kept": 198, "bad": 2, "train": 178, "eval": 20 });
    assert_eq!(report["rows"], expected);
    assert_eq!(report["bad_by_reason"], serde_json::json!({ "label": 1, "quote": 1 }));
    run(["inspect", &out, "--verify"]).with(SUCCESS);
}

/// A small gzip file with a line of 600 MB has one bad row and takes memory for a few chunks of it.
#[test]
fn an_endless_line_takes_little_memory() {
    let place = Place::new();
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"l,c\n1,a\n0,\"").unwrap();
    let zeros = vec![b'0'; 1 << 20];
    (0..600).for_each(|_| gzip.write_all(&zeros).unwrap());
    gzip.write_all(b"\n1,b\n").unwrap();
    let log = place.file("bomb.csv.gz", gzip.finish().unwrap());
    let program = rankine().get_program().to_owned();
    // A shell can only limit address space; one arena, since malloc reserves 64 MiB of it for each.
    let ended = Command::new("sh")
        .env("MALLOC_ARENA_MAX", "1")
        .args(["-c", "ulimit -v 450000 && exec \"$0\" \"$@\""])
        .arg(program)
        .args(["convert", "csv", &log, "--schema", &schema, "--out", &place.word("out"), "--threads", "1"])
        .args(["--on-bad", "skip", "--bad-limit", "1"])
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    assert!(
        stdout.contains("rows read   3\nrows kept   2 (2 train, 0 eval)\nrows bad    1\n"),
        "{stdout}{stderr}"
    );
}

/// Runs a command that must end soon.
#[track_caller]
fn soon(args: &[&str]) -> Ended {
    let mut command = Command::new("timeout");
    command.arg("20").arg(rankine().get_program()).args(args);
    let ended = Ended::of(command);
    assert_ne!(ended.code, 124, "{args:?} hangs");
    ended
}

#[test]
fn pipes_and_devices_are_refused_for_all_files() {
    let place = Place::new();
    let (pipe, out) = (place.word("pipe"), place.word("out"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let csv = place.file("log.csv", "l,c\n0,a\n1,b\n");
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    for (file, kind) in [(&*pipe, "a pipe"), ("/dev/zero", "a device")] {
        let refusal = format!("{file} is {kind}, not a regular file");
        for args in [
            &["convert", "csv", &csv, "--schema", file, "--out", &out][..],
            &["convert", "hugectr-raw", &csv, "--shape", file, "--out", &out],
            &["generate", "--shape", file, "--samples", "1", "--out", &out],
            &["inspect", file, "--shape", "dlrm"],
        ] {
            soon(args).with(USAGE).says(&[&refusal]);
        }
        for args in [
            &["convert", "csv", file, "--schema", &schema, "--out", &out][..],
            &["convert", "csv", &csv, "--eval", file, "--schema", &schema, "--out", &out],
            &["convert", "criteo-tsv", file, "--out", &out],
            &["convert", "hugectr-raw", file, "--shape", "dlrm", "--out", &out],
        ] {
            soon(args).with(USAGE).says(&[file, "is not a regular file"]);
        }
    }
}

#[test]
fn a_file_instead_of_a_folder_is_reported_as_a_file() {
    let place = Place::new();
    let data = support::generate(&place, SHAPE, 400, 100);
    let job = job(&place);
    train(&place, &job, "run", &[]).with(SUCCESS);
    let (file, run_dir, free) = (place.file("file", "text"), place.word("run"), place.word("free"));
    let csv = place.file("log.csv", "l,c\n0,a\n1,b\n");
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    let shape = place.word("shape.toml");
    for path in [&file, &format!("{file}/below")] {
        let set = format!("data.dir={path:?}");
        for (what, args) in [
            ("a dataset is", &["inspect", path][..]),
            ("a dataset is", &["bench", "read", path]),
            ("a dataset is", &["eval", "--run", &run_dir, "--data", path]),
            ("a dataset is", &["train", &job, "--run-dir", &free, "--set", &set]),
            ("a dataset is", &["plan", &job, "--set", &set]),
            ("a dataset is", &["check", &job, "--set", &set]),
            ("a run is", &["train", &job, "--run-dir", path]),
            ("a run is", &["train", &job, "--resume", "--run-dir", path]),
            ("the output is", &["generate", "--shape", &shape, "--samples", "1", "--out", path]),
            ("the output is", &["convert", "csv", &csv, "--schema", &schema, "--out", path]),
        ] {
            let words = format!("{file} is a file, but {what} a folder");
            run(args).with(USAGE).says(&[&words]);
        }
        for args in [
            &["eval", "--run", path, "--data", &data][..],
            &["predict", "--run", path, "--data", &data, "--out", &free],
            &["ckpt", "verify", path],
            &["ckpt", "inspect", path],
        ] {
            let which = if *path == file { "it" } else { &file };
            run(args).with(USAGE).says(&[&format!("at {path}: {which} is a file")]);
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

#[test]
fn tables_too_large_to_count_in_memory_are_refused() {
    let place = Place::new();
    let log = place.file("log.tsv", text(&criteo_rows(5, 1)));
    // In case the machine has enough memory, the process's memory is limited.
    let ended = Command::new("sh")
        .args(["-c", "ulimit -v 4000000 && exec \"$0\" \"$@\""])
        .arg(rankine().get_program())
        .args(["convert", "criteo-tsv", &log, "--vocabulary", "hash:4294967296", "--threads", "1"])
        .args(["--out", &place.word("out")])
        .output()
        .unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    // 26 tables of 2^32 rows of 9 bytes.
    assert!(
        stderr.contains("936 GiB for these tables") && stderr.contains("reduce the tables' rows"),
        "{stderr}"
    );
    assert_eq!(ended.status.code(), Some(USAGE));
    assert!(!place.path("out").exists() && !place.path("out.partial").exists());
}

#[test]
fn ten_bad_rows_are_logged_and_the_file_names_all_bad_rows() {
    let place = Place::new();
    let mut rows = criteo_rows(100, 6);
    rows[20..35].fill("?".into());
    let log = place.file("log.tsv", text(&rows));
    let ended = convert(&place, "out", &[&log, "--on-bad", "skip", "--bad-limit", "15"]).with(SUCCESS);
    assert_eq!(ended.stderr.matches("bad row skipped: ").count(), 10, "{}", ended.stderr);
    assert!(ended.stderr.contains("line 30: ") && !ended.stderr.contains("line 31: "), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("see bad-rows.jsonl").count(), 1);
    let named = json_lines(&place.path("out/bad-rows.jsonl"));
    let lines: Vec<_> = named.iter().filter_map(|row| row["line"].as_u64()).collect();
    assert_eq!(lines, (21..36).collect::<Vec<_>>());
}

#[test]
fn each_argument_takes_effect_and_has_its_documented_default() {
    let place = Place::new();
    let log = place.file("log.tsv", text(&criteo_rows(200, 8)));
    convert(&place, "tsv", &[&log]).with(SUCCESS);
    let inspect = |name: &str| run(["inspect", &place.word(name), "--json"]).with(SUCCESS).json();
    let inspected = inspect("tsv");
    assert_eq!(inspected["schema"]["dense_dtype"], "f16");
    assert_eq!(inspected["schema"]["dense"][0]["transform"]["function"], "signed_log1p");
    let exact = |min_count: u64| serde_json::json!({ "kind": "exact", "min_count": min_count });
    assert_eq!(inspected["schema"]["categorical"][25]["vocabulary"], exact(1));
    assert_eq!(inspected["origin"]["converted"]["split"], "none");

    let asked = ["--min-count", "4", "--dense", "mlperf", "--dense-dtype", "f32", "--column", "C3=hash:7"];
    convert(
        &place,
        "asked",
        &[&[&*log, "--vocabulary", "exact", "--split", "last:0.3"], &asked[..]].concat(),
    )
    .with(SUCCESS);
    let inspected = inspect("asked");
    assert_eq!(inspected["schema"]["dense_dtype"], "f32");
    assert_eq!(inspected["schema"]["dense"][12]["transform"]["function"], "mlperf_log");
    assert_eq!(inspected["schema"]["categorical"][1]["vocabulary"], exact(4));
    assert_eq!(inspected["schema"]["categorical"][2]["vocabulary"]["kind"], "hash");
    assert_eq!(inspected["schema"]["categorical"][2]["rows"], 7);
    assert_eq!(inspected["origin"]["converted"]["split"], "last:0.3");

    let csv = place.file("log.csv", "l,c\n0,a\n1,b\n0,a\n");
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    for (name, more, dtype, min_count) in
        [("csv", &[][..], "f32", 1), ("half", &["--dense-dtype", "f16", "--min-count", "2"], "f16", 2)]
    {
        let args = ["convert", "csv", &csv, "--schema", &schema, "--out", &place.word(name)];
        run([&args[..], more].concat()).with(SUCCESS);
        let inspected = inspect(name);
        assert_eq!(inspected["schema"]["dense_dtype"], dtype);
        assert_eq!(inspected["schema"]["categorical"][0]["vocabulary"], exact(min_count));
    }

    let shape = place.file("shape.toml", SHAPE);
    let generate = |name: &str, more: &[&str]| {
        let args = ["generate", "--shape", &shape, "--samples", "300", "--out", &place.word(name)];
        run([&args[..], more].concat()).with(SUCCESS);
        inspect(name)
    };
    let is_made_by = |inspected: &serde_json::Value, spec: &serde_json::Value| {
        let found = &inspected["origin"]["generated"]["spec"];
        for key in ["samples", "eval_samples", "alpha", "seed", "rows_cap"] {
            assert_eq!(found[key], spec[key], "{key}");
        }
    };
    let inspected = generate("default", &[]);
    is_made_by(
        &inspected,
        &serde_json::json!({ "samples": 300, "eval_samples": 0, "alpha": 1.1, "seed": 1 }),
    );
    let more = ["--eval-samples", "20", "--alpha", "0.5", "--seed", "9", "--rows-cap", "11"];
    let inspected = generate("generated", &more);
    is_made_by(
        &inspected,
        &serde_json::json!({ "samples": 300, "eval_samples": 20, "alpha": 0.5, "seed": 9, "rows_cap": 11 }),
    );
    // Five rows of a table are listed, or all if there are fewer.
    let named = |table: usize| inspected["tables"][table]["most_frequent"].as_array().map(Vec::len);
    assert_eq!((named(0), named(5)), (Some(5), Some(3)));
    let rows: Vec<_> = (0..6).filter_map(|table| inspected["tables"][table]["rows"].as_u64()).collect();
    assert_eq!(rows, [11, 11, 11, 11, 8, 3]);
}

/// With min_count = 1 no training row has an unknown category, so the row for these, which the evaluation part looks
/// up, stays as it was drawn.
#[test]
fn a_row_for_unknown_categories_that_is_never_trained_is_told() {
    let place = Place::new();
    let train = place.file("train.csv", "a,c,d\n1,x,u\n0,y,u\n1,x,v\n");
    let eval = place.file("eval.csv", "a,c,d\n0,z,u\n1,x,w\n1,w,u\n");
    let convert = |out: &str, counts: [u32; 2]| {
        let [c, d] = counts;
        let column = |name, count| {
            format!(
                "[[categorical]]\ncolumn = \"{name}\"\nvocabulary = {{ kind = \"exact\", min_count = {count} }}\n"
            )
        };
        let schema = ["[label]\ncolumn = \"a\"\n".into(), column("c", c), column("d", d)].concat();
        let schema = place.file(&format!("{out}.toml"), schema);
        let args =
            ["convert", "csv", &train, "--eval", &eval, "--schema", &schema, "--out", &place.word(out)];
        run(args).with(SUCCESS).stderr
    };
    let warned = "the row for unknown categories is never trained, but the evaluation part looks it up";
    let both = convert("both", [1, 1]);
    assert!(both.contains(&format!("column c and 1 other: {warned} 3 times")), "{both}");
    let one = convert("one", [2, 1]);
    assert!(one.contains(&format!("column d: {warned} 1 time;")), "{one}");
    assert_eq!(convert("none", [2, 2]), "");
}

/// Checks every number of an inspection against counts by hand.
#[test]
fn an_inspection_counts_the_rows() {
    let place = Place::new();
    let schema = "[[label]]\ncolumn = \"a\"\n[[label]]\ncolumn = \"b\"\nmissing = \"mask\"\n\
        [[categorical]]\ncolumn = \"c\"\nvocabulary = { kind = \"exact\", min_count = 2 }\n\
        [[categorical]]\ncolumn = \"d\"\nseparator = \"|\"\nvocabulary = { kind = \"identity\", rows = 250 }\n";
    let schema = place.file("s.toml", schema);
    // Four training rows: label a has 3 of 4, b 1 of 3 present; c: x twice, the empty category and y once each; d: 9
    // five times, 8 twice, 7 once.
    let train = place.file("train.csv", "a,b,c,d\n1,1,x,9|9|9\n1,,x,\n0,0,y,9|8|7\n1,0,,9|8\n");
    let eval = place.file("eval.csv", "a,b,c,d\n0,,z,9\n");
    let data = place.word("data");
    let args = ["convert", "csv", &train, "--eval", &eval, "--schema", &schema, "--out", &data];
    run(args).with(SUCCESS).stdout_says(
        "unknown categories: in train 2 distinct values, 2 look-ups; in eval 1 distinct value, 1 look-up",
    );
    let inspected = run(["inspect", &data, "--verify", "--json"]).with(SUCCESS).json();
    let blocks = |part: &str| fs::metadata(place.path(&format!("data/{part}/00000.blocks"))).unwrap().len();
    let part = |part: &str, samples: u64, rates: serde_json::Value, missing: [u64; 2]| {
        let bytes = blocks(part);
        serde_json::json!({
            "part": part, "samples": samples, "label_rates": rates, "labels_missing": missing, "blocks": 1,
            "files": 1, "bytes": bytes, "bytes_per_sample": bytes as f64 / samples as f64,
        })
    };
    let expected = [
        part("train", 4, serde_json::json!([0.75, 1.0 / 3.0]), [0, 1]),
        part("eval", 1, serde_json::json!([0.0, null]), [0, 1]),
    ];
    assert_eq!(inspected["parts"], serde_json::json!(expected));
    assert_eq!(inspected["verify"]["damages"], serde_json::json!([]));
    let row = |row: u64, category: Option<&str>, lookups: u64, of: f64| {
        let mut frequent =
            serde_json::json!({ "row": row, "lookups": lookups, "share": lookups as f64 / of });
        if let Some(category) = category {
            frequent["category"] = category.into();
        }
        frequent
    };
    let serving = |rows: [u64; 3]| {
        let serving = |(share, rows)| serde_json::json!({ "share": share, "rows": rows });
        std::iter::zip([0.5, 0.9, 0.99], rows).map(serving).collect::<Vec<_>>()
    };
    let c = serde_json::json!({
        "name": "c", "rows": 2, "hotness": { "fixed": 1 }, "vocabulary": { "kind": "exact", "min_count": 2 },
        "lookups": 4, "distinct_rows": 2, "hotness_mean": 1.0, "top_1_percent_share": 0.5,
        "rows_serving": serving([1, 2, 2]), "all_rows_counted": true,
        "most_frequent": [row(0, Some("\\*"), 2, 4.0), row(1, Some("x"), 2, 4.0)],
    });
    // The most frequent hundredth of 250 rows is three rows.
    let d = serde_json::json!({
        "name": "d", "rows": 250, "hotness": { "ragged": { "max": 3 } }, "vocabulary": { "kind": "identity" },
        "lookups": 8, "distinct_rows": 3, "hotness_mean": 2.0, "top_1_percent_share": 1.0,
        "rows_serving": serving([1, 3, 3]), "all_rows_counted": true,
        "most_frequent": [row(9, None, 5, 8.0), row(8, None, 2, 8.0), row(7, None, 1, 8.0)],
    });
    assert_eq!(inspected["tables"], serde_json::json!([c, d]));
    let reported = run(["inspect", &data]).with(SUCCESS).stdout;
    for words in [
        "converted from csv, split none: 5 rows read, 5 kept, 0 bad\n",
        "  train  4 samples, label rate 0.7500, 0.3333 (1 missing), ",
        "  eval   1 sample, label rate 0.0000, undefined (1 missing), ",
        "  columns: 2 label, 0 dense (f32), 2 categorical\n",
        "\\* 50.0%, x 50.0%\n",
        "     2.00  100.0%        1    3    3  9 62.5%, 8 25.0%, 7 12.5%\n",
    ] {
        assert!(reported.contains(words), "`{words}` is not in:\n{reported}");
    }
}
