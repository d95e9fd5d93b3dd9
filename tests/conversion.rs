//! From raw rows to a dataset: bad rows and what becomes of them, and that nothing but the rows decides the result.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::Command;

use support::{
    BAD_DATA, Ended, Place, SUCCESS, USAGE, criteo_rows, job, json_file, json_lines, rankine, run, train,
    tree,
};

mod support;

/// Converts logs to the folder `out` of the place.
fn convert(place: &Place, out: &str, args: &[&str]) -> Ended {
    let out = place.word(out);
    run([&["convert", "criteo-tsv", "--out", &out], args].concat())
}

fn text(rows: &[String]) -> String {
    rows.join("\n") + "\n"
}

/// 300 rows, and those of them that are bad: number, text, column, and words of the reason.
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
            (17, with(17, 0, "2"), Some("label"), "'2' is no label"),
            (120, with(120, 3, "1.5"), Some("I3"), "'1.5' is no number"),
            (121, "0\tshort".into(), None, "2 fields instead of 40"),
            (300, with(300, 39, "not hex"), Some("C26"), "'not hex' is no category"),
        ];
        for (number, text, ..) in &bad {
            rows[number - 1] = text.clone();
        }
        Self { rows, bad }
    }
}

#[test]
fn bad_rows_are_refused_skipped_or_kept_aside() {
    let place = Place::new();
    let Spoilt { rows, bad } = Spoilt::new();
    let log = place.file("log.tsv", text(&rows));

    // `fail` is the default, and names the first.
    for args in [&[&*log][..], &[&log, "--on-bad", "fail", "--bad-limit", "100%"]] {
        convert(&place, "failed", args)
            .with(BAD_DATA)
            .says(&["log.tsv line 17, column label: '2' is no label", "--on-bad skip or quarantine"]);
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
    // What is left is as if the bad rows had never been there.
    let good: Vec<_> =
        rows.iter().filter(|row| bad.iter().all(|(_, text, ..)| text != *row)).cloned().collect();
    let clean = place.file("clean.tsv", text(&good));
    convert(&place, "clean", &[&clean]).with(SUCCESS);
    let (kept, clean) = (tree(&place.path("kept")), tree(&place.path("clean")));
    assert!(!clean.contains_key("bad-rows.jsonl") && !clean.contains_key("quarantine.tsv"));
    let same: Vec<_> = clean.iter().filter(|(name, bytes)| kept.get(*name) == Some(bytes)).collect();
    // All but the two files that name the source and count its rows.
    assert_eq!(same.len(), clean.len() - 2, "{same:?}");
}

#[test]
fn the_limit_of_bad_rows_is_a_number_or_a_share() {
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
                "are bad, and the limit is",
                limit,
                "line 121: ",
                "raise --bad-limit",
            ]);
        }
    }
    // The default is 1%.
    convert(&place, "default", &[&log, "--on-bad", "skip"]).with(BAD_DATA).says(&["the limit is 1%"]);
    convert(&place, "no-limit", &[&log, "--bad-limit", "many"]).with(USAGE).says(&["'many' is no limit"]);
    // Where nothing but bad rows is left, the data are wrong, not the limit.
    let nothing = place.file("nothing.tsv", "a\nb\n");
    let args = [&*nothing, "--on-bad", "skip", "--bad-limit", "100%"];
    convert(&place, "nothing", &args).with(BAD_DATA).says(&["of 2 rows 2 are bad"]);
}

#[test]
fn neither_threads_nor_memory_nor_compression_change_a_byte() {
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
    for name in
        ["dataset.json", "conversion.json", "statistics.bin", "vocabulary/C26.tsv", "eval/00000.blocks"]
    {
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
fn other_logs_may_evaluate() {
    let place = Place::new();
    let (rows, eval_rows) = (criteo_rows(500, 3), criteo_rows(77, 4));
    let (log, eval) = (place.file("log.tsv", text(&rows)), place.file("eval.tsv", text(&eval_rows)));
    convert(&place, "alone", &[&log]).with(SUCCESS);
    convert(&place, "both", &[&log, "--eval", &eval]).with(SUCCESS);
    let report = json_file(&place.path("both/conversion.json"));
    assert_eq!((&report["rows"]["train"], &report["rows"]["eval"]), (&500.into(), &77.into()));
    assert_eq!(report["files"], serde_json::json!([log]));
    assert_eq!(report["eval"], serde_json::json!([eval]));
    // They teach nothing: not one category, nor a mean.
    let (alone, both) = (tree(&place.path("alone")), tree(&place.path("both")));
    for (name, bytes) in
        alone.iter().filter(|(name, _)| *name != "dataset.json" && *name != "conversion.json")
    {
        assert!(both[name] == *bytes, "{name} differs");
    }
    assert!(both.contains_key("eval/00000.blocks") && !alone.contains_key("eval/00000.blocks"));
    convert(&place, "torn", &[&log, "--split", "last:0.1", "--eval", &eval]).with(USAGE);
    convert(&place, "both", &[&log]).with(USAGE).says(&["both is there already"]);
}

#[test]
fn a_model_judges_only_what_its_ids_mean() {
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

    // One category has another name: the tables have the same sizes, and their rows mean something else.
    let renamed: Vec<_> = rows.iter().map(|row| row.replace("00000003", "deadbeef")).collect();
    let renamed = place.file("renamed.tsv", text(&renamed));
    convert(&place, "renamed", &[&renamed, "--split", "last:0.2"]).with(SUCCESS);
    let sentence = "is not the one that the model was trained with, so its ids mean other categories";
    eval("renamed").with(USAGE).says(&["does not fit the model", "vocabulary/C1.tsv", sentence]);

    for (out, args, words) in [
        ("frequent", &["--min-count", "30"][..], "column C1 has "),
        ("hashed", &["--column", "C3=hash:100"], "column C3 has 100 rows"),
        ("numbers", &["--dense", "mlperf"], "column I1 was transformed by"),
    ] {
        convert(&place, out, &[&[&*log, "--split", "last:0.2"], args].concat()).with(SUCCESS);
        eval(out).with(USAGE).says(&["does not fit the model", words]);
    }
}

/// The file of this name in the guide's worked example.
fn of_the_guide(info: &str) -> &'static str {
    let guide = include_str!("../docs/conversion.md");
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

    // A slip in the schema file is shown with its place, and a column that is not there.
    let slip = of_the_guide("toml").replace("column = \"film\"", "column = \"flim\"");
    let schema = place.file("slip.toml", slip);
    run(["convert", "csv", &ratings, "--schema", &schema, "--out", &place.word("slip")]).with(USAGE).says(&[
        "slip.toml:18:10: ",
        "no column \"flim\" (did you mean \"film\"?)",
        "^^^^^^",
    ]);
    let schema = place.file("typo.toml", of_the_guide("toml").replace("separator", "seperator"));
    run(["convert", "csv", &ratings, "--schema", &schema, "--out", &place.word("typo")])
        .with(USAGE)
        .says(&["typo.toml:24:1: unknown field `seperator`", "did you mean `separator`?"]);
}

#[test]
fn bad_rows_of_csv_are_kept_whatever_lines_they_take() {
    let place = Place::new();
    let schema = place.file("s.toml", "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"\n");
    let mut rows: Vec<String> = (0..200).map(|row| format!("{},\"a\n{}\"", row % 2, row % 7)).collect();
    rows[50] = "2,\"two\nlines\"".into();
    rows[120] = "1,\"x\" y".into();
    let log = place.file("log.csv", format!("l,c\n{}", text(&rows)));
    let args = ["convert", "csv", &log, "--schema", &schema, "--out"];
    run(args.iter().copied().chain([&*place.word("failed")]))
        .with(BAD_DATA)
        .says(&["log.csv line 102, column l: '2' is no label: 0 or 1"]);
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

/// A small gzip file that holds a line of 600 MB is one bad row, and takes memory for some chunks of it.
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
    // Address space is what a shell can limit; one arena, since malloc reserves 64 MiB of it for each.
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
