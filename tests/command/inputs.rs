//! The rows that commands read and write: raw columns next to predictions, standard input and output, patterns and
//! folders.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support::films::{CSV_NAMES, CSV_SCHEMA, csv_rows};
use crate::support::{
    BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, criteo_rows, generate, job, json_file, rankine, run,
    train, tree,
};

/// Returns the block of the guide that begins with these words after the line of backquotes.
fn of_the_guide(info: &str, begins: &str) -> &'static str {
    let guide = include_str!("../../docs/guide/converting.md");
    let begin = guide.find(&format!("\n```{info}\n{begins}")).expect("the guide has it") + info.len() + 5;
    let text = &guide[begin..];
    &text[..text.find("```").expect("it ends")]
}

/// A model of films, trained on CSV. Its rows have two columns more, which it does not use.
struct Films {
    place: Place,
    rows: Vec<String>,
}

impl Films {
    fn new() -> Self {
        let place = Place::new();
        let rows = csv_rows(1500, 3);
        let log = place.file("log.csv", format!("{}\n{}\n", CSV_NAMES.join(","), rows[..900].join("\n")));
        let (schema, data) = (place.file("schema.toml", CSV_SCHEMA), place.word("data"));
        run(["convert", "csv", &log, "--schema", &schema, "--out", &data]).with(SUCCESS);
        train(&place, &job(&place), "run", &["eval.batch_size=128"]).with(SUCCESS);
        Self { place, rows: rows[900..].to_vec() }
    }

    /// Returns rows with the number and a note that needs quotes.
    fn text(&self, rows: std::ops::Range<usize>) -> String {
        let row = |number: usize| format!("{number},{},\"a \"\"b\"\",\nc{number}\"", self.rows[number]);
        let rows: Vec<_> = rows.map(row).collect();
        format!("id,{},note\n{}\n", CSV_NAMES.join(","), rows.join("\n"))
    }

    fn predict(&self, out: &str, args: &[&str]) -> Ended {
        let (run_dir, out) = (self.place.word("run"), self.place.word(out));
        run([&["predict", "--run", &run_dir, "--out", &out, "--json"], args].concat())
    }

    /// Starts a prediction from standard input to standard output.
    fn piped(&self, args: &[&str]) -> Command {
        let mut command = rankine();
        command.args(["predict", "--run", &self.place.word("run"), "--out", "-"]).args(args);
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.place.path(name)).expect("there are predictions")
    }
}

/// Runs a command on bytes as its standard input.
fn with_input(mut command: Command, bytes: &[u8]) -> Ended {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("it has one");
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || {
        // A command that refuses its input does not read it.
        let _ = input.write_all(&bytes);
    });
    let output = child.wait_with_output().expect("it ends");
    writing.join().expect("it was written");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    Ended {
        code: output.status.code().expect("no signal ended it"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).expect("memory takes it");
    out.finish().expect("memory takes it")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn raw_columns_are_copied_next_to_their_predictions() {
    let films = Films::new();
    let log = films.place.file("new.csv", films.text(0..600));
    films.predict("plain.csv", &[&log]).with(SUCCESS);
    let counts = films.predict("kept.csv", &[&log, "--keep-columns", "note,id,film"]).with(SUCCESS).json();
    assert_eq!(counts["predicted"], 600);
    let (plain, kept) = (films.read("plain.csv"), films.read("kept.csv"));
    // Each record has two lines, because of the note.
    let mut expected = "row,note,id,film,rating,bought\n".to_owned();
    for (number, line) in plain.lines().skip(1).enumerate() {
        let (row, probabilities) = line.split_once(',').expect("a row has a number");
        let film = films.rows[number].split(',').nth(4).expect("it has a film");
        expected += &format!("{row},\"a \"\"b\"\",\nc{number}\",{number},{film},{probabilities}\n");
    }
    assert!(kept == expected, "{kept}");

    // The columns stay with their rows when rows are skipped, for both reasons, and in a second file whose columns are
    // in another order.
    let mut lines: Vec<_> = films.text(0..40).replace(",\n", ", ").lines().map(str::to_owned).collect();
    lines[3] = "2,too few".into();
    lines[8] = lines[8].replace(",f", ",unknown");
    let first = films.place.file("first.csv", lines.join("\n"));
    let second = films
        .place
        .file("second.csv", format!("note,film,id,last,age,tags\n{}", "n,f1,x7,f2,3,t1\n".repeat(2)));
    let args = [
        &*first,
        &second,
        "--keep-columns",
        "id",
        "--on-bad",
        "skip",
        "--bad-limit",
        "1",
        "--unknown",
        "skip",
    ];
    films.predict("skipped.csv", &args).with(SUCCESS);
    let kept: Vec<_> = films
        .read("skipped.csv")
        .lines()
        .skip(1)
        .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(":"))
        .collect();
    let mut expected: Vec<_> =
        (0..40).filter(|id| ![2, 7].contains(id)).map(|id| format!("{}:{id}", id + 1)).collect();
    expected.extend(["41:x7".into(), "42:x7".into()]);
    let unknown: Vec<_> = expected.iter().filter(|row| !kept.contains(row)).collect();
    assert!(unknown.is_empty() && kept.len() == expected.len(), "{kept:?} lacks {unknown:?}");

    // A label that is kept has a column of its own.
    films.predict("label.csv", &[&log, "--keep-columns", "bought"]).with(SUCCESS);
    let text = films.read("label.csv");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("row,bought,rating,bought_prediction"));
    let labels: Vec<_> = lines.map(|line| line.split(',').nth(1).expect("a label")).collect();
    assert!(labels.iter().zip(&films.rows).all(|(label, row)| row.split(',').nth(1) == Some(*label)));
}

#[test]
fn columns_that_cannot_be_kept_are_refused() {
    let films = Films::new();
    let log = films.place.file("new.csv", films.text(0..5));
    let data = films.place.word("data");
    let keep =
        |names: &str, rows: &[&str]| films.predict("out.csv", &[&["--keep-columns", names], rows].concat());
    keep("id,noet", &[&log])
        .with(USAGE)
        .says(&["new.csv has no column `noet` to keep (did you mean `note`?); it has `id`, `rating`, "]);
    keep("id", &["--data", &data]).with(USAGE).says(&["--keep-columns needs raw rows", "instead of --data"]);
    keep("id,id", &[&log]).with(USAGE).says(&["would have two columns named id"]);
    keep("id,,note", &[&log]).with(USAGE).says(&["--keep-columns has an empty name"]);
    let twice = films.place.file("twice.csv", "id,last,film,age,tags,id\n1,f1,f2,3,t1,2\n");
    keep("id", &[&twice])
        .with(USAGE)
        .says(&["twice.csv has two columns named `id`", "the second is field 6"]);
    let numbered = films.place.file("row.csv", "row,last,film,age,tags\n1,f1,f2,3,t1\n");
    keep("row", &[&numbered]).with(USAGE).says(&["would have two columns named row"]);
    assert!(!films.place.path("out.csv").exists());
}

/// Columns of Criteo's logs have the names of the guide, with and without labels.
#[test]
fn columns_of_criteo_are_kept_by_their_names() {
    let place = Place::new();
    let rows = criteo_rows(700, 9);
    let log = place.file("log.tsv", rows[..600].join("\n") + "\n");
    run(["convert", "criteo-tsv", &log, "--out", &place.word("data")]).with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (run_dir, out) = (place.word("run"), place.word("out.csv"));
    let predict = |rows: &[String], keep: &str| {
        let new = place.file("new.tsv", rows.join("\r\n"));
        run(["predict", "--run", &run_dir, &new, "--out", &out, "--keep-columns", keep])
    };
    predict(&rows[600..], "C26,label,I13").with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.starts_with("row,C26,label,I13,label_prediction\n"), "{text}");
    for (row, line) in rows[600..].iter().zip(text.lines().skip(1)) {
        let fields: Vec<_> = row.split('\t').collect();
        let expected = [fields[39], fields[0], fields[13]];
        assert_eq!(line.split(',').skip(1).take(3).collect::<Vec<_>>(), expected);
    }
    let unlabelled: Vec<_> =
        rows[600..].iter().map(|row| row.split_once('\t').expect("a label").1.to_owned()).collect();
    predict(&unlabelled, "C1").with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(text.lines().nth(1).unwrap().split(',').nth(1), unlabelled[0].split('\t').nth(13));
    predict(&unlabelled, "label").with(USAGE).says(&["new.tsv has no column `label` to keep", "it has `I1`"]);
    predict(&rows[600..], "c1").with(USAGE).says(&["(did you mean `C1`?)"]);
}

#[test]
fn rows_are_read_from_standard_input_and_written_to_standard_output() {
    let films = Films::new();
    let text = films.text(0..600);
    let log = films.place.file("new.csv", &text);
    films.predict("file.csv", &[&log]).with(SUCCESS);
    let expected = films.read("file.csv");
    for (name, bytes) in [
        ("plain", text.clone().into_bytes()),
        ("gzip", gzip(text.as_bytes())),
        ("zstd", zstd(text.as_bytes())),
    ] {
        let ended = with_input(films.piped(&["-"]), &bytes).with(SUCCESS);
        assert!(ended.stdout == expected, "{name}: {}", ended.stdout);
        ended.says(&[
            "rows predicted   600\n",
            "predictions      on standard output\n",
            "predicted 600 rows in ",
        ]);
    }
    let ended = with_input(films.piped(&["-", "--quiet", "--json"]), text.as_bytes()).with(SUCCESS);
    assert!(ended.stdout == expected);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ended.stderr).unwrap()["predicted"], 600);
    assert_eq!(with_input(films.piped(&["-", "--quiet"]), text.as_bytes()).with(SUCCESS).stderr, "");

    // Among files, and from a file that the shell opens.
    let first = films.place.file("first.csv", films.text(0..70));
    let rest = format!("{}\n", films.text(70..600).split_once('\n').expect("a header").1.trim_end());
    let rest = format!("id,{},note\n{rest}", CSV_NAMES.join(","));
    let ended = with_input(films.piped(&[&first, "-"]), rest.as_bytes()).with(SUCCESS);
    assert!(ended.stdout == expected);
    let mut command = films.piped(&["-"]);
    command.stdin(fs::File::open(&log).unwrap());
    assert!(Ended::of(command).with(SUCCESS).stdout == expected);

    let broken = &gzip(text.as_bytes())[..1000];
    with_input(films.piped(&["-"]), broken).with(BAD_DATA).says(&["standard input is damaged", "gzip"]);
    let bad = "last,film,age,tags\nf1,f2,3,t1\nf1,f2,old,t1\n";
    with_input(films.piped(&["-"]), bad.as_bytes())
        .with(BAD_DATA)
        .says(&["standard input line 3, column age", "no predictions were written"]);
    with_input(films.piped(&["-", "-"]), b"")
        .with(USAGE)
        .says(&["is named twice, but it can be read only once"]);
    with_input(films.piped(&["-"]), b"PAR1....").with(USAGE).says(&["standard input is a Parquet file"]);
    with_input(films.piped(&["-"]), b"").with(USAGE).says(&["standard input is empty"]);
}

/// `rankine predict ... --out - | head` is no failure.
#[test]
fn a_reader_of_predictions_may_leave() {
    let films = Films::new();
    let log = films.place.file("new.csv", films.text(0..600));
    let inputs = vec![&*log; 40];
    let mut child =
        films.piped(&inputs).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut some = [0; 16];
    let mut out = child.stdout.take().expect("it is piped");
    out.read_exact(&mut some).expect("there are predictions");
    drop(out);
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("it is text");
    assert!(output.status.success() && !stderr.contains("error"), "{:?}: {stderr}", output.status);
}

#[test]
fn standard_input_is_refused_where_rows_are_read_twice() {
    let place = Place::new();
    let schema = place.file("schema.toml", CSV_SCHEMA);
    let out = place.word("data");
    run(["convert", "csv", "-", "--schema", &schema, "--out", &out])
        .with(USAGE)
        .says(&["a conversion reads its input more than once", "write the rows to a file"]);
    let shape = place.file("shape.toml", SHAPE);
    let record = place.file("day.bin", [0; 440]);
    run(["convert", "hugectr-raw", &record, "--shape", &shape, "--out", &out]).with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (run_dir, csv) = (place.word("run"), place.word("out.csv"));
    run(["predict", "--run", &run_dir, "-", "--out", &csv])
        .with(USAGE)
        .says(&["raw records cannot be read from standard input", "Write it to a file"]);
    run(["predict", "--run", &run_dir, &record, "--out", &csv, "--keep-columns", "label"])
        .with(USAGE)
        .says(&["raw records have no columns of text to keep", "join predictions"]);
}

#[test]
fn patterns_and_folders_stand_for_their_files() {
    let films = Films::new();
    let place = &films.place;
    fs::create_dir(place.path("days")).unwrap();
    for (name, rows) in [("day_1.csv", 0..200), ("day_2.csv", 200..500), ("day_3.csv", 500..600)] {
        place.file(&format!("days/{name}"), films.text(rows));
    }
    place.file("days/_SUCCESS", "");
    place.file("days/.day_4.csv", "not,a,header\n");
    let log = place.file("all.csv", films.text(0..600));
    let (folder, pattern) = (place.word("days"), place.word("days/day_[1-3].csv"));
    films.predict("all-out.csv", &[&log]).with(SUCCESS);
    for files in [&folder, &pattern] {
        films.predict("out.csv", &[files]).with(SUCCESS);
        assert!(films.read("out.csv") == films.read("all-out.csv"), "{files}");
    }
    // The order of the arguments, and of the names within each.
    let second = place.word("days/*_2.csv");
    films.predict("out.csv", &[&second, &place.word("days/day_1.csv"), "--keep-columns", "id"]).with(SUCCESS);
    let ids: Vec<_> = films
        .read("out.csv")
        .lines()
        .skip(1)
        .filter_map(|line| line.split(',').nth(1)?.parse::<usize>().ok())
        .collect();
    assert_eq!(ids, (200..500).chain(0..200).collect::<Vec<_>>());

    let schema = place.word("schema.toml");
    let convert = |out: &str, args: &[&str]| {
        run([&["convert", "csv", "--schema", &schema, "--out", &place.word(out)][..], args].concat())
    };
    convert(
        "of-files",
        &[
            &place.word("days/day_1.csv"),
            "--eval",
            &place.word("days/day_2.csv"),
            &place.word("days/day_3.csv"),
        ],
    )
    .with(SUCCESS);
    convert("of-patterns", &[&place.word("days/*_1.csv"), "--eval", &place.word("days/*[23].csv")])
        .with(SUCCESS);
    assert!(tree(&place.path("of-files")) == tree(&place.path("of-patterns")));
    let report = json_file(&place.path("of-patterns/conversion.json"));
    assert_eq!(
        report["eval"],
        serde_json::json!([place.word("days/day_2.csv"), place.word("days/day_3.csv")])
    );
    let eval = |args: &[&str]| run([&["eval", "--run", &place.word("run"), "--json"], args].concat());
    assert_eq!(eval(&[&folder]).with(SUCCESS).json(), eval(&[&log]).with(SUCCESS).json());

    // What stands for no file, and outputs that would be inputs.
    let nothing = place.word("days/night_*.csv");
    films
        .predict("none.csv", &[&nothing])
        .with(USAGE)
        .says(&["night_*.csv, and none matches it as a pattern"]);
    convert("none", &[&nothing]).with(USAGE).says(&["none matches it as a pattern"]);
    eval(&[&place.word("data")])
        .with(USAGE)
        .says(&["data is a dataset, not a folder of raw files", "--data"]);
    films
        .predict("days/out.csv", &[&folder])
        .with(USAGE)
        .says(&["is inside", "days, which is read as an input"]);
    convert("days/out", &[&folder]).with(USAGE).says(&["is inside", "days, which is read as an input"]);
    fs::create_dir(place.path("empty")).unwrap();
    films.predict("none.csv", &[&place.word("empty")]).with(USAGE).says(&["empty has no files"]);
    let generated = Place::new();
    generate(&generated, SHAPE, 300, 50);
    eval(&[&generated.word("data")]).with(USAGE).says(&["is a dataset"]);
}

#[test]
fn the_example_of_the_guide_scores_rows_with_their_columns() {
    let place = Place::new();
    place.file("ratings.csv", of_the_guide("csv", "user,"));
    let schema = place.file("ratings.toml", of_the_guide("toml", "[label]\ncolumn = \"rating\"\nat_least"));
    let (log, data) = (place.word("ratings.csv"), place.word("data"));
    run(["convert", "csv", &log, "--schema", &schema, "--out", &data]).with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    place.file("new.csv", of_the_guide("csv", "film,"));
    let shown = of_the_guide("", "$ rankine predict --run runs/films new.csv");
    let (command, expected) = shown.split_once('\n').expect("there is output");
    let words = command.split(' ').skip(2).map(|word| match word {
        "runs/films" => place.word("run"),
        "new.csv" => place.word("new.csv"),
        word => word.to_owned(),
    });
    let printed = run(words).with(SUCCESS).stdout;
    // The last column is the model's.
    let without_last = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.rsplit_once(',').expect("a prediction").0.to_owned()).collect()
    };
    assert_eq!(without_last(&printed), without_last(expected));
    assert_eq!(printed.lines().next(), expected.lines().next());
}
