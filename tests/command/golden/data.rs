//! Mistakes in schema files and raw rows, and damage to datasets.

use std::fs;

use super::{CSV_SCHEMA, Mistakes, csv_rows};
use crate::support::criteo_rows;

const HEADER: &str = "rating,bought,weight,last,film,age,tags";

fn films(mistakes: &Mistakes, rows: &[String]) {
    mistakes.file("films.csv", format!("{HEADER}\n{}\n", rows.join("\n")));
}

/// Schema files of `convert csv`.
#[test]
fn schema_file() {
    let mut mistakes = Mistakes::new();
    films(&mistakes, &csv_rows(20, 1));
    let convert = "rankine convert csv films.csv --out data --schema films.toml";
    mistakes.run("no such file", convert);
    let edits = [
        ("not TOML", "[weight]", "[weight"),
        ("unknown key", "at_least", "atleast"),
        ("unknown table", "[weight]", "[weights]"),
        ("no label", "[[label]]", "[[dense]]"),
        ("column that the file does not have", "column = \"film\"", "column = \"movie\""),
        ("column used twice", "column = \"age\"", "column = \"weight\""),
        ("categorical column used twice", "column = \"tags\"", "column = \"film\""),
        ("unknown kind of vocabulary", "kind = \"exact\"", "kind = \"exakt\""),
        ("hash without rows", "kind = \"hash\", rows = 50", "kind = \"hash\""),
        ("hash into no rows", "rows = 50", "rows = 0"),
        ("unknown transform", "\"log1p\"", "\"log\""),
        ("transform after standardize", "\"log1p\", \"standardize\"", "\"standardize\", \"log1p\""),
        ("vocabulary shared with no column", "with = \"film\"", "with = \"films\""),
        ("vocabulary shared with a sharing column", "with = \"film\"", "with = \"last\""),
        ("unknown pooling", "pooling = \"mean\"", "pooling = \"max\""),
        ("missing labels as something unknown", "missing = \"mask\"", "missing = \"skip\""),
    ];
    for (title, piece, replacement) in edits {
        mistakes.file("films.toml", CSV_SCHEMA);
        mistakes.edit("films.toml", piece, replacement);
        mistakes.run(title, convert);
    }
    mistakes.check("schema-file");
}

/// Raw rows and the arguments of `convert`.
#[test]
fn convert() {
    let mut mistakes = Mistakes::new();
    mistakes.file("films.toml", CSV_SCHEMA);
    let csv = "rankine convert csv films.csv --out data --schema films.toml";
    mistakes.run("no such file", csv);
    mistakes.file("films.csv", "");
    mistakes.run("an empty file", csv);
    films(&mistakes, &[]);
    mistakes.run("a header without rows", csv);
    let sound = csv_rows(20, 1);
    let with = |row: &str| [&sound[..10], &[row.to_owned()], &sound[10..]].concat();
    let rows = [
        ("a field too few", "4,1,1.25,f1,f2,3.5"),
        ("a field too many", "4,1,1.25,f1,f2,3.5,t1,"),
        ("a quote that is not closed", "4,1,1.25,f1,\"f2,3.5,t1"),
        ("a label that is not 0 or 1", "4,2,1.25,f1,f2,3.5,t1"),
        ("a label that is not there", "4,,1.25,f1,f2,3.5,t1"),
        ("a number with a unit", "4,1,1.25,f1,f2,3.5 years,t1"),
        ("a number that is not finite", "4,1,1.25,f1,f2,inf,t1"),
        ("a negative weight", "4,1,-1.25,f1,f2,3.5,t1"),
    ];
    for (title, row) in rows {
        films(&mistakes, &with(row));
        mistakes.run(title, csv);
    }
    let bad = [&with("4,1")[..], &with("4,1")[..]].concat();
    films(&mistakes, &bad);
    mistakes.run("too many bad rows", &format!("{csv} --on-bad skip --bad-limit 1"));
    films(&mistakes, &sound);
    mistakes.run("all rows for evaluation", &format!("{csv} --split last:1"));
    mistakes.run("unknown split", &format!("{csv} --split first:0.2"));
    mistakes.run("share above all", &format!("{csv} --bad-limit 200%"));
    mistakes.run("memory with an unknown unit", &format!("{csv} --memory 2GX"));
    mistakes.file("films.csv.gz", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    mistakes.run("a truncated gzip file", "rankine convert csv films.csv.gz --out data --schema films.toml");
    mistakes.run("output over an input", "rankine convert csv films.csv --out films.csv --schema films.toml");
    mistakes.prepare("convert csv films.csv --out data --schema films.toml");
    mistakes.run("a folder that exists", csv);

    let tsv = "rankine convert criteo-tsv log.tsv --out criteo";
    let sound = criteo_rows(20, 1);
    let fields = [
        ("a Criteo label that is not 0 or 1", 0, "2"),
        ("a Criteo number with a fraction", 3, "3.5"),
        ("a Criteo category that is not hexadecimal", 20, "blue"),
    ];
    for (title, column, field) in fields {
        let mut row: Vec<&str> = sound[0].split('\t').collect();
        row[column] = field;
        mistakes.file("log.tsv", format!("{}\n{}\n{}\n", sound[1], row.join("\t"), sound[2]));
        mistakes.run(title, tsv);
    }
    mistakes.run("a column that Criteo does not have", &format!("{tsv} --column C27=hash:100"));
    mistakes.run("an unknown vocabulary", &format!("{tsv} --vocabulary hashed:100"));
    mistakes.file("log.tsv", sound.join("\n").replace('\t', ","));
    mistakes.run("commas for tabs", tsv);
    mistakes.file("log.bin", [0; 161]);
    let raw = "rankine convert hugectr-raw log.bin --out raw";
    mistakes.run("a raw file that ends within a record", &format!("{raw} --shape dlrm"));
    mistakes.run("an unknown shape of raw records", &format!("{raw} --shape mlperf"));
    mistakes.check("convert");
}

/// Datasets that are not what was written.
#[test]
fn dataset() {
    let mut mistakes = Mistakes::new();
    films(&mistakes, &csv_rows(300, 1));
    mistakes.file("films.toml", CSV_SCHEMA);
    mistakes.prepare("convert csv films.csv --out sound --schema films.toml --split last:0.2");
    mistakes.run("no such folder", "rankine inspect data");
    mistakes.run("a folder that is not a dataset", "rankine inspect .");
    mistakes.run("a file", "rankine inspect films.csv");
    mistakes.run("two datasets", "rankine inspect sound sound");
    let inspect = "rankine inspect data --verify";
    let mut damage = |title: &str, act: &dyn Fn(&Mistakes)| {
        let data = mistakes.place.path("data");
        if data.exists() {
            fs::remove_dir_all(data).expect("the files of a test can be changed");
        }
        mistakes.copy("sound", "data");
        act(&mistakes);
        mistakes.run(title, inspect);
    };
    damage("a manifest that is cut off", &|mistakes| cut(mistakes, "data/dataset.json", 100));
    damage("a manifest that was edited", &|mistakes| {
        mistakes.edit("data/dataset.json", "\"film\"", "\"movie\"")
    });
    damage("a flipped bit", &|mistakes| mistakes.flip("data/train/00000.blocks", 200));
    damage("a file that is cut off", &|mistakes| cut(mistakes, "data/train/00000.blocks", 50));
    damage("a missing file", &|mistakes| {
        fs::remove_file(mistakes.place.path("data/train/00000.blocks")).expect("it is there");
    });
    damage("a missing index", &|mistakes| {
        fs::remove_file(mistakes.place.path("data/train/index.bin")).expect("it is there");
    });
    damage("an edited vocabulary", &|mistakes| mistakes.edit("data/vocabulary/film.tsv", "f1", "f2"));
    mistakes.check("dataset");
}

/// Cuts off the end of a file.
fn cut(mistakes: &Mistakes, name: &str, bytes: usize) {
    let whole = fs::read(mistakes.place.path(name)).expect("the file is readable");
    mistakes.file(name, &whole[..whole.len() - bytes]);
}
