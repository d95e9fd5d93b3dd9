//! `rankine init-schema`: its files are accepted as they stand, and lead to a training.

use std::fs;
use std::io::Write;

use crate::support::films::{CSV_NAMES, csv_rows};
use crate::support::{
    Ended, Place, SUCCESS, USAGE, criteo_rows, data_folder, missing, run, summary, told, train,
};

/// Drafts a schema file, converts with it, trains with the settings of `rankine init --quick`, and returns the file.
#[track_caller]
fn drafted(place: &Place, format: &str, file: &str, args: &[&str]) -> String {
    let (schema, data, job) = (place.word("schema.toml"), place.word("data"), place.word("job.toml"));
    run([&["init-schema", file, "--out", &schema], args].concat())
        .with(SUCCESS)
        .stdout_says(&format!("next    rankine convert {format} FILE --schema {schema}"));
    run(["convert", format, file, "--schema", &schema, "--out", &data, "--split", "last:0.2"]).with(SUCCESS);
    run(["init", "--data", &data, "--quick", "--out", &job]).with(SUCCESS);
    train(place, &job, "run", &[]).with(SUCCESS);
    assert!(summary(place, "run")["eval"]["auc"].as_f64().expect("it is evaluated") > 0.4);
    fs::read_to_string(schema).expect("it was written")
}

#[track_caller]
fn has(text: &str, pieces: &[&str]) {
    for piece in pieces {
        assert!(text.contains(piece), "no `{piece}`: {text}");
    }
}

#[test]
fn a_compressed_file_with_a_header() {
    let place = Place::new();
    let row = |(number, row): (usize, String)| format!("r{number},{row}\n");
    let rows: String = csv_rows(1500, 3).into_iter().enumerate().map(row).collect();
    let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    file.write_all(format!("row,{}\n{rows}", CSV_NAMES.join(",")).as_bytes())
        .expect("a vector takes any bytes");
    let file = place.file("films.csv.gz", file.finish().expect("a vector takes any bytes"));
    let text = drafted(&place, "csv", &file, &[]);
    assert!(text.starts_with("#:schema file:///"), "{text}");
    has(
        &text,
        &[
            "# Guessed by `rankine init-schema` from all 1500 rows of ",
            "# found by its name: ",
            "[label]\ncolumn = \"bought\"\n",
            "# `row`: 100% of values distinct: probably an identifier of rows\n",
            "# `rating`: it is named like a label",
            "# 40 distinct values in 1500 rows\n[[categorical]]\ncolumn = \"film\"\n",
            "[[dense]]\ncolumn = \"age\"\ntransform = \"standardize\"\n",
            "# 9 categories, separated by \"|\" in ",
            "column = \"tags\"\nseparator = \"|\"\npooling = \"mean\"\nvocabulary = { kind = \"exact\", ",
        ],
    );
    // The file is kept, unless --force allows another one.
    let schema = place.word("schema.toml");
    let again = ["init-schema", &file, "--label", "rating", "--rows", "1000", "--out", &schema];
    run(again).with(USAGE).says(&["schema.toml already exists: replace it with --force"]);
    run([&again[..], &["--force"]].concat()).with(SUCCESS).stdout_says("label   rating\n");
    let text = fs::read_to_string(schema).expect("it was written");
    has(
        &text,
        &[
            "from the first 1000 rows only of",
            "column = \"rating\"\nat_least = 3.0\n",
            "missing = \"mask\"\n",
        ],
    );
}

#[test]
fn a_file_without_a_header() {
    let place = Place::new();
    let file = place.file("log.tsv", criteo_rows(1200, 5).join("\n"));
    let text = drafted(&place, "csv", &file, &["--rows", "1000"]);
    has(
        &text,
        &["delimiter = \"\\t\"\n", "header = false\ncolumns = [\"c1\", \"c2\"", "[label]\ncolumn = \"c1\"\n"],
    );
}

#[test]
fn unusual_names_values_and_rows() {
    let place = Place::new();
    let row = |n: usize| {
        format!("{}; {};{};x;{};{}\n", n % 7, n % 11 * n, n % 5, 1 + n % 3, ["no", "\"ye\"\"s\""][n % 2])
    };
    let rows: String = (0..300usize).map(row).collect();
    let file = place.file("odd.csv", format!("a/b; \"c\n\"\"d\"\"\";twice;twice;.e;done\n{rows}too;few\n"));
    let schema = place.word("schema.toml");
    let Ended { stdout, .. } = run(["init-schema", &file]).with(SUCCESS);
    has(
        &stdout,
        &[
            "delimiter = \";\"\n",
            "trim = true\n",
            "# 1 further rows could not be read",
            "column = \"a/b\"\nname = \"a_b_1\"",
            "# `twice`: several columns have this name",
            "column = \"done\"\nequals = 'ye\"s'\n",
        ],
    );
    fs::write(&schema, stdout).expect("there is room");
    let out = place.word("data");
    run(["convert", "csv", &file, "--schema", &schema, "--out", &out, "--on-bad", "skip"]).with(SUCCESS);
}

#[test]
fn a_label_that_is_not_found_and_mistakes() {
    let place = Place::new();
    let rows: String = (0..30).map(|n| format!("{},x{},{}\n", n % 7, n % 4, n % 5)).collect();
    let file = place.file("log.csv", format!("a,b,c\n{rows}"));
    let drafted = run(["init-schema", &file]).with(SUCCESS).says(&["no label was found", "--label"]);
    has(&drafted.stdout, &["# No label was found: ", "# [label]\n"]);
    let schema = place.file("schema.toml", drafted.stdout);
    run(["convert", "csv", &file, "--schema", &schema, "--out", &place.word("data")])
        .with(USAGE)
        .says(&["the schema has no label"]);
    run(["init-schema", &file, "--label", "bb"]).with(USAGE).says(&["log.csv has no column `bb`"]);
    run(["init-schema", "-"]).with(USAGE).says(&["standard input"]);
    run(["init-schema", &file, "--delimiter", "::"]).with(USAGE).says(&["one ASCII character"]);
    let empty = place.file("empty.csv", "");
    run(["init-schema", &empty]).with(USAGE).says(&["empty.csv is empty"]);
    let header = place.file("header.csv", "a,b\n");
    run(["init-schema", &header]).with(USAGE).says(&["header.csv has no rows"]);
    run(["init-schema", &file, "--out", &file, "--force"]).with(USAGE).says(&["log.csv"]);
}

#[test]
fn parquet() {
    let place = Place::new();
    let file = place.file("films.parquet", include_bytes!("../support/films.parquet"));
    if cfg!(not(feature = "parquet")) {
        run(["init-schema", &file]).with(USAGE).says(&["cannot read Parquet: build it with"]);
        return;
    }
    let text = drafted(&place, "parquet", &file, &[]);
    has(
        &text,
        &[
            "[label]\ncolumn = \"bought\"\n",
            "# lists of 9 distinct categories, ",
            "column = \"tags\"\npooling",
        ],
    );
    assert!(!text.contains("[format]"), "{text}");
}

#[test]
fn movie_lens() {
    let file = data_folder().join("movielens-100k/u.data");
    if let Some(why) = missing(&file, false) {
        return told(&why);
    }
    let place = Place::new();
    let file = crate::support::word(&file);
    let text = drafted(&place, "csv", &file, &["--label", "c3"]);
    has(
        &text,
        &[
            "column = \"c3\"\nat_least = 4.0\n",
            "column = \"c1\"\nvocabulary = { kind = \"exact\", min_count = 2 }\n",
            "column = \"c2\"\nvocabulary = { kind = \"exact\", min_count = 2 }\n",
            "# `c4`: it has seconds or milliseconds since 1970",
        ],
    );
}
