//! Further rows of a dataset or of a run: `rankine convert --like` and `--grow`.

use std::fs;

use crate::support::{
    self, BAD_DATA, Place, SUCCESS, USAGE, criteo_rows, generate, job, json_file, run, train, tree,
};

/// Returns the block of the guide that begins with these words after the line of backquotes.
fn of_the_guide(info: &str, begins: &str) -> &'static str {
    let guide = include_str!("../../docs/guide/converting.md");
    let begin = guide.find(&format!("\n```{info}\n{begins}")).expect("the guide has it") + info.len() + 5;
    let text = &guide[begin..];
    &text[..text.find("```").expect("it ends")]
}

fn text(rows: &[String]) -> String {
    rows.join("\n") + "\n"
}

/// Returns rows with a category in the first categorical column that other rows lack.
fn rows_with_new(count: usize, seed: u64) -> Vec<String> {
    let with_new = |(number, row): (usize, String)| {
        let mut fields: Vec<_> = row.split('\t').map(str::to_owned).collect();
        if number % 10 == 0 {
            fields[14] = "abcdef".into();
        }
        fields.join("\t")
    };
    criteo_rows(count, seed).into_iter().enumerate().map(with_new).collect()
}

#[test]
fn the_example_of_the_guide_grows() {
    let place = Place::new();
    place.file("ratings.csv", of_the_guide("csv", "user,"));
    place.file("ratings.toml", of_the_guide("toml", "[label]\ncolumn = \"rating\"\nat_least"));
    place.file("new.csv", of_the_guide("csv", "film,"));
    let commands = of_the_guide("", "$ rankine convert csv new.csv");
    let convert = |args: &str| {
        let words = args.split(' ').skip(2).map(|word| match word {
            word if word.ends_with(".csv") || word.ends_with(".toml") || word.starts_with("data/") => {
                place.word(&word.replace("data/", ""))
            }
            word => word.to_owned(),
        });
        run(words)
    };
    convert("$ rankine convert csv ratings.csv --schema ratings.toml --out data/ratings").with(SUCCESS);
    let mut shown = commands.lines().peekable();
    let mut converted = 0;
    while let Some(line) = shown.next() {
        let ended = convert(line).with(SUCCESS);
        let printed = ended.stdout.replace(&place.word(""), "data/");
        while let Some(expected) = shown.next_if(|line| !line.starts_with('$')) {
            assert!(printed.lines().any(|line| line == expected), "{expected:?} is not in {printed}");
        }
        converted += 1;
    }
    assert_eq!(converted, 2);
    let film = |data: &str| fs::read_to_string(place.path(data).join("vocabulary/film.tsv")).unwrap();
    assert_eq!(film("same"), film("ratings"));
    assert_eq!(film("grown"), of_the_guide("", "\\*\t3\nHeat\t3"));
}

#[test]
fn a_model_fits_further_rows_of_its_run() {
    let place = Place::new();
    let log = place.file("log.tsv", text(&criteo_rows(2000, 5)));
    let data = place.word("data");
    let split = ["--split", "last:0.2"];
    run([&["convert", "criteo-tsv", &log, "--out", &data][..], &split].concat()).with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let new = place.file("new.tsv", text(&rows_with_new(500, 6)));
    let convert = |out: &str, like: &str, more: &[&str]| {
        let args = ["convert", "criteo-tsv", &new, "--out", &place.word(out), "--like", &place.word(like)];
        run([&args, &split[..], more].concat())
    };
    let ended = convert("of-data", "data", &["--verbose"]).with(SUCCESS);
    let ended = ended.says(&["column C1: unknown categories in train: "]);
    assert!(!ended.stdout.contains("new categories"), "{}", ended.stdout);
    let brief = convert("of-run", "run", &[]).with(SUCCESS);
    assert!(!brief.stderr.contains("column C1"), "{}", brief.stderr);
    let report = json_file(&place.path("of-run/conversion.json"));
    assert_eq!(report["like"], place.word("run"));
    assert!(report["columns"]["C1"]["unknown_train"]["lookups"].as_u64().unwrap() >= 40);
    let (mut of_data, mut of_run) = (tree(&place.path("of-data")), tree(&place.path("of-run")));
    for tree in [&mut of_data, &mut of_run] {
        tree.remove("conversion.json").unwrap();
    }
    assert!(of_data == of_run, "a run keeps what its dataset says of raw rows");
    // The model evaluates the new rows, with the numbers of raw rows of the same part.
    let eval = ["eval", "--run", &place.word("run"), "--data", &place.word("of-run"), "--json"];
    assert_eq!(run(eval).with(SUCCESS).json()["samples"], 100);

    // Sums of old and new rows, from the dataset and from the run.
    let grown = convert("grown", "data", &["--grow", "--verbose"]).with(SUCCESS);
    grown.stdout_says("new categories: ").says(&["column C1: 1 new categories, "]);
    convert("grown-of-run", "run", &["--grow"]).with(SUCCESS);
    let statistics = |data: &str| fs::read(place.path(data).join("statistics.bin")).unwrap();
    assert!(statistics("grown") == statistics("grown-of-run"));
    let lines = |data: &str| fs::read_to_string(place.path(data).join("vocabulary/C1.tsv")).unwrap();
    let names = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_once('\t').expect("a count").0.to_owned()).collect()
    };
    let (old, new) = (names(&lines("data")), names(&lines("grown")));
    assert_eq!(new[..old.len()], old);
    assert!(new[old.len()..].contains(&"abcdef".to_owned()));

    // A run without its dataset has vocabularies, but no statistics.
    fs::rename(place.path("data"), place.path("moved")).unwrap();
    convert("gone", "run", &["--grow"]).with(SUCCESS).says(&[
        "the statistics of the new dataset count only the new rows",
        "name that dataset with --like",
    ]);
    assert!(lines("gone") == lines("grown"));
    assert!(statistics("gone") != statistics("grown"));
}

#[test]
fn contradictions_are_refused() {
    let place = Place::new();
    let log = place.file("log.tsv", text(&criteo_rows(100, 5)));
    let (data, out) = (place.word("data"), place.word("out"));
    run(["convert", "criteo-tsv", &log, "--out", &data]).with(SUCCESS);
    let convert =
        |format: &str, args: &[&str]| run([&["convert", format, &log, "--out", &out][..], args].concat());
    convert("criteo-tsv", &["--grow"]).with(USAGE).says(&["--like <DATASET|FIT|RUN>"]);
    for (format, option, value) in [
        ("criteo-tsv", "--min-count", "2"),
        ("criteo-tsv", "--vocabulary", "hash:5"),
        ("criteo-tsv", "--column", "C1=exact"),
        ("criteo-tsv", "--dense", "log"),
        ("criteo-tsv", "--dense-dtype", "f32"),
        ("csv", "--schema", "s.toml"),
        ("parquet", "--schema", "s.toml"),
        ("csv", "--min-count", "2"),
        ("hugectr-raw", "--shape", "dlrm"),
        ("hugectr-raw", "--labels", "2"),
    ] {
        let ended = convert(format, &["--like", &data, option, value]).with(USAGE);
        ended.says(&["cannot be used with", option, "--like <DATASET|FIT|RUN>"]);
    }
    convert("csv", &["--like", &data])
        .with(USAGE)
        .says(&["was made from criteo-tsv, not csv", "use `rankine convert criteo-tsv`"]);
    convert("criteo-tsv", &["--like", &place.word("none")])
        .with(USAGE)
        .says(&["--like ", "there is no such folder; expected the folder of a dataset, of a finished run"]);
    let other = Place::new();
    let generated = generate(&other, support::SHAPE, 100, 0);
    convert("criteo-tsv", &["--like", &generated]).with(USAGE).says(&["was generated, so no raw rows"]);
    let short = place.file("short.tsv", "1\t2\n");
    run(["convert", "criteo-tsv", &short, "--out", &out, "--like", &data])
        .with(BAD_DATA)
        .says(&["expected 40 fields"]);
    fs::remove_file(place.path("data/vocabulary/C3.tsv")).unwrap();
    convert("criteo-tsv", &["--like", &data]).says(&["vocabulary/C3.tsv"]);
    assert!(!place.path("out").exists());
}
