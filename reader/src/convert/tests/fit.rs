//! Fits, conversions with them in several pieces, and splits by a column. Expected parts and counts are computed here,
//! only from the rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rankine_base::sealed;
use xxhash_rust::xxh3::xxh3_64;

use crate::convert::fit::Fitting;
use crate::convert::known::with_known;
use crate::convert::tests::{GOOD_LINE, SMALL, TestFolder, convert_csv_within, samples_of, with_field};
use crate::convert::*;
use crate::dataset::{Dataset, Fit};
use crate::merge::{merge, open_all};
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::DenseDtype;

/// The files have further columns, which it ignores.
const SCHEMA: &str = r#"
[label]
column = "bought"

[[dense]]
column = "price"
transform = ["log1p", "standardize"]

[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }

[[categorical]]
column = "seen"
vocabulary = { kind = "shared", with = "film" }
separator = "|"

[[categorical]]
column = "user"
vocabulary = { kind = "hash", rows = 13 }

[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }
"#;

/// A row: its number makes its values.
struct Row {
    number: usize,
    user: String,
    price: usize,
    day: usize,
}

impl Row {
    fn new(number: usize) -> Self {
        let user = match number % 7 {
            0 => String::new(),
            // A field in quotes: the text is without them.
            1 => format!("user, {}", number % 11),
            _ => format!("u{}", number * 13 % 41),
        };
        Self { number, user, price: number * 31 % 400, day: number % 10 }
    }

    fn line(&self) -> String {
        let &Self { number, ref user, price, day } = self;
        let film = |number: usize| format!("film {}", number * number % 29);
        let seen: Vec<_> = (0..number % 4).map(|more| film(number + more)).collect();
        let user = if user.contains(',') { format!("\"{user}\"") } else { user.clone() };
        format!(
            "{},{price},{},{},{user},{},{day},2026-11-{:02}\n",
            number % 2,
            film(number),
            seen.join("|"),
            number % 24,
            day + 1
        )
    }
}

const HEADER: &str = "bought,price,film,seen,user,hour,day,date\n";

/// Writes three files of consecutive rows, of different lengths.
fn files(temp: &TestFolder) -> Vec<PathBuf> {
    let file = |(name, rows): (&str, std::ops::Range<usize>)| {
        let lines: String = rows.map(|number| Row::new(number).line()).collect();
        temp.file(name, format!("{HEADER}{lines}"))
    };
    [("a.csv", 0..150), ("b.csv", 150..333), ("c.csv", 333..400)].into_iter().map(file).collect()
}

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn options(temp: &TestFolder, files: &[PathBuf], out: &str, split: &str) -> ConvertOptions {
    let options = ConvertOptions::new(files.to_vec(), temp.path(out));
    ConvertOptions { split: split.parse().unwrap(), dense_dtype: DenseDtype::F32, ..options }
}

fn schema() -> SchemaFile {
    SchemaFile::parse("s.toml", SCHEMA).unwrap()
}

fn convert(options: &ConvertOptions) -> Result<ConversionReport> {
    convert_csv_within(options, &schema(), 1, SMALL, &no_progress)
}

fn fit(options: &ConvertOptions) -> Result<FitReport> {
    with_csv(options, &schema(), 1, SMALL, Fitting { options, progress: &no_progress })
}

fn known(fit: &Path) -> KnownColumns {
    KnownColumns::of_fit(&Fit::open(fit).unwrap()).unwrap()
}

fn like(options: &ConvertOptions, fit: &Path) -> Result<ConversionReport> {
    with_known(options, known(fit), false, SMALL, Converting { options, progress: &no_progress })
}

/// Returns the bytes of the vocabularies in a folder, without their indexes.
fn vocabularies(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir.join("vocabulary")).unwrap().map(|file| {
        let path = file.unwrap().path();
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
    });
    files.filter(|(name, _)| name.ends_with(".tsv")).collect()
}

fn assert_same(found: &Dataset, expected: &Dataset) {
    for part in Part::STORED {
        let samples = |dataset: &Dataset| {
            let mut all = Samples::new(dataset.schema());
            for dir in dataset.dirs() {
                let samples = samples_of(dir, part);
                all.append(&samples, 0..samples.len);
            }
            all
        };
        assert!(found.samples(part) > 0);
        assert!(samples(found) == samples(expected), "{part}");
    }
    assert_eq!(found.schema(), expected.schema());
    assert_eq!(found.statistics().unwrap(), expected.statistics().unwrap());
}

#[test]
fn shards_with_a_fit_are_one_conversion() {
    for split in ["hash:user:0.3", "after:day:6", "after:date:2026-11-07"] {
        let temp = TestFolder::new();
        let files = files(&temp);
        convert(&options(&temp, &files, "plain", split)).unwrap();
        let report = fit(&options(&temp, &files, "fit", split)).unwrap();
        assert_eq!(report.conversion.rows.read, 400);
        let fit = temp.path("fit");
        like(&options(&temp, &files, "at-once", split), &fit).unwrap();
        let plain = Dataset::open(&temp.path("plain")).unwrap();
        assert_same(&Dataset::open(&temp.path("at-once")).unwrap(), &plain);

        let shards = ["0", "1", "2"].map(|shard| temp.path(shard));
        for (file, shard) in files.iter().zip(&shards) {
            let options = options(&temp, std::slice::from_ref(file), "", split);
            like(&ConvertOptions { out: shard.clone(), ..options }, &fit).unwrap();
        }
        merge(&shards, &temp.path("merged")).unwrap();
        assert_same(&Dataset::open(&temp.path("merged")).unwrap(), &plain);
        let expected = vocabularies(&temp.path("plain"));
        assert_eq!(expected.keys().collect::<Vec<_>>(), ["film.tsv"]);
        for dir in [&fit, &temp.path("at-once"), &shards[0], &shards[1], &shards[2]] {
            assert!(vocabularies(dir) == expected, "{}", dir.display());
        }
        // A shard whose bags are smaller, here one empty bag, has the same columns.
        let few = temp.file("few.csv", HEADER.to_owned() + &Row::new(8).line());
        like(&options(&temp, &[few], "few", split), &fit).unwrap();
        assert_eq!(Dataset::open(&temp.path("few")).unwrap().schema(), Fit::open(&fit).unwrap().schema());
        let names = |dir: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&fit), ["fit.json", "vocabulary"]);
    }
}

#[test]
fn all_rows_of_a_shard_may_be_held_out() {
    let temp = TestFolder::new();
    // A file for each day.
    let file = |day: usize| {
        let rows = (0..400).map(Row::new).filter(|row| row.day == day);
        temp.file(&format!("{day}.csv"), HEADER.to_owned() + &rows.map(|row| row.line()).collect::<String>())
    };
    let files: Vec<_> = (0..10).map(file).collect();
    let split = "after:date:2026-11-08";
    fit(&options(&temp, &files, "fit", split)).unwrap();
    let whole = options(&temp, &files, "whole", split);
    like(&whole, &temp.path("fit")).unwrap();
    let shard = |days: std::ops::Range<usize>, out: &str| {
        let options = options(&temp, &files[days], out, split);
        like(&options, &temp.path("fit")).unwrap();
        options.out
    };
    let shards = [shard(0..4, "first"), shard(4..9, "second"), shard(9..10, "last")];
    assert_eq!(Dataset::open(&shards[2]).unwrap().parts(), [Part::Eval]);
    assert_same(&merge(&shards, &temp.path("merged")).unwrap(), &Dataset::open(&whole.out).unwrap());
    // Nothing can be learned from such rows.
    let last = options(&temp, &files[9..], "no", split);
    for refused in [fit(&last).map(drop), convert(&last).map(drop)] {
        assert!(
            refused.unwrap_err().to_string().contains("no rows are left for training: 40 rows were read")
        );
    }
}

/// Returns the numbers of a part with one dense column, by which its rows are recognized.
fn prices(dir: &Path, part: Part) -> Vec<f32> {
    samples_of(dir, part).dense
}

/// Whether a row is held out.
type HeldOut = fn(&Row) -> bool;

#[test]
fn a_column_decides_the_part_of_each_row() {
    let temp = TestFolder::new();
    let plain = "[label]\ncolumn = \"bought\"\n[[dense]]\ncolumn = \"price\"\n";
    let schema = SchemaFile::parse("s.toml", plain).unwrap();
    let files = files(&temp);
    fn is_below(user: &str) -> bool {
        !user.is_empty() && xxh3_64(user.as_bytes()) < (0.3 * 2f64.powi(64)) as u64
    }
    let cases: [(&str, HeldOut); 4] = [
        ("hash:user:0.3", |row| is_below(&row.user)),
        ("after:day:6", |row| row.day > 6),
        ("after:day:6.5", |row| row.day > 6),
        ("after:date:2026-11-07", |row| row.day + 1 > 7),
    ];
    for (number, (split, held_out)) in cases.into_iter().enumerate() {
        let options = options(&temp, &files, &format!("out{number}"), split);
        let report = convert_csv_within(&options, &schema, 1, SMALL, &no_progress).unwrap();
        let expected = |is_held_out: bool| {
            let rows = (0..400).map(Row::new).filter(|row| held_out(row) == is_held_out);
            rows.map(|row| row.price as f32).collect::<Vec<_>>()
        };
        assert!(prices(&options.out, Part::Train) == expected(false), "{split}");
        assert!(prices(&options.out, Part::Eval) == expected(true), "{split}");
        assert_eq!(report.conversion.split, split);
        assert_eq!(report.conversion.rows.eval, expected(true).len() as u64);
    }
}

#[test]
fn values_that_cannot_be_compared_make_bad_rows() {
    let temp = TestFolder::new();
    let rows = "1,1,x,,u,1,5,2026-11-01\n0,2,x,,u,1,six,2026-11-02\n1,3,x,,u,1,,17\n0,4,x,,u,bad,7,\n\
                1,5,x,,u,1,8,2026-11-03\n0,6,x,,u\n";
    let file = temp.file("log.csv", format!("{HEADER}{rows}"));
    let skipped = |out: &str, split: &str| {
        let options = options(&temp, std::slice::from_ref(&file), out, split);
        ConvertOptions { on_bad: OnBad::Quarantine, bad_limit: BadLimit::Rows(9), ..options }
    };
    let bad = |out: &str| fs::read_to_string(temp.path(out).join(BAD_ROWS_NAME)).unwrap();
    let by_number = skipped("number", "after:day:6");
    let report = convert(&by_number).unwrap();
    // A row with another fault is reported for that.
    assert_eq!(bad("number").matches("\"column\":\"day\"").count(), 2);
    assert!(bad("number").contains("'six' is not a number, as --split after:day:6 compares"));
    assert!(bad("number").contains("\"column\":\"hour\""));
    let reasons = [(BadReason::FieldCount, 1), (BadReason::RowNumber, 1), (BadReason::Split, 2)];
    assert_eq!(report.bad_by_reason, BTreeMap::from(reasons));
    assert_eq!((report.conversion.rows.train, report.conversion.rows.eval), (1, 1));
    let quarantined = fs::read_to_string(temp.path("number").join("quarantine.csv")).unwrap();
    assert_eq!(quarantined.lines().count(), 4);
    // A fit finds the same.
    let fitted = fit(&ConvertOptions { out: temp.path("fit"), ..by_number }).unwrap();
    assert_eq!(
        (fitted.bad_by_reason, fitted.conversion.rows),
        (report.bad_by_reason, report.conversion.rows)
    );
    assert_eq!(bad("fit"), bad("number"));

    let report = convert(&skipped("text", "after:date:2026-11-02")).unwrap();
    assert!(bad("text").contains("'17' is not a text other than a number, as --split"), "{}", bad("text"));
    // The empty date is in the row that is bad for another reason.
    assert_eq!(report.bad_by_reason[&BadReason::Split], 1);
    let failing = ConvertOptions { on_bad: OnBad::Fail, ..skipped("failing", "after:day:6") };
    let error = convert(&failing).unwrap_err().to_string();
    assert!(error.contains("log.csv line 3, column day: 'six' is not a number"), "{error}");
}

#[test]
fn files_may_have_the_column_of_a_split_in_different_places() {
    let temp = TestFolder::new();
    let first = temp.file("first.csv", "l,x,day\n1,1,5\n0,2,7\n");
    let second = temp.file("second.csv", "day,l,x\n9,1,3\n1,0,4\n");
    let schema =
        SchemaFile::parse("s.toml", "label = { column = \"l\" }\ndense = [{ column = \"x\" }]").unwrap();
    let options = options(&temp, &[first, second.clone()], "out", "after:day:6");
    convert_csv_within(&options, &schema, 1, SMALL, &no_progress).unwrap();
    assert_eq!(prices(&options.out, Part::Train), [1.0, 4.0]);
    assert_eq!(prices(&options.out, Part::Eval), [2.0, 3.0]);
    fs::write(&second, "l,x,dya\n1,3,9\n").unwrap();
    let error = convert_csv_within(&options, &schema, 1, SMALL, &no_progress).unwrap_err().to_string();
    assert!(error.contains("second.csv has no column `day` to split by (did you mean `dya`?)"), "{error}");
}

#[test]
fn columns_of_criteo_split_its_rows() {
    let temp = TestFolder::new();
    let lines: Vec<_> = (0..50).map(|n| with_field(GOOD_LINE, 14, &format!("{n:x}"))).collect();
    let file = temp.file("log.tsv", lines.join("\n") + "\n");
    let options = options(&temp, &[file], "out", "hash:C1:0.5");
    convert_criteo(&options, &CriteoColumns::default(), &no_progress).unwrap();
    let held_out = (0..50).filter(|n| xxh3_64(format!("{n:x}").as_bytes()) < 1 << 63).count();
    assert_eq!(samples_of(&options.out, Part::Eval).len, held_out);
    assert_eq!(samples_of(&options.out, Part::Train).len, 50 - held_out);
    let refused = ConvertOptions { split: "hash:C0:0.5".parse().unwrap(), out: temp.path("no"), ..options };
    let error = convert_criteo(&refused, &CriteoColumns::default(), &no_progress).unwrap_err().to_string();
    assert!(error.contains("log.tsv has no column `C0` to split by (did you mean `C"), "{error}");
}

#[test]
fn a_fit_is_continued_like_a_dataset() {
    let temp = TestFolder::new();
    let files = files(&temp);
    let [old, new] = [&files[..1], &files[1..]];
    convert(&options(&temp, old, "data", "none")).unwrap();
    fit(&options(&temp, old, "fit", "none")).unwrap();
    let of_data = options(&temp, new, "data-2", "after:day:7");
    let data = KnownColumns::of(&Dataset::open(&temp.path("data")).unwrap()).unwrap();
    with_known(&of_data, data, true, SMALL, Converting { options: &of_data, progress: &no_progress })
        .unwrap();
    let of_fit = ConvertOptions { out: temp.path("fit-2"), ..of_data.clone() };
    let continued = Fitting { options: &of_fit, progress: &no_progress };
    let report = with_known(&of_fit, known(&temp.path("fit")), true, SMALL, continued).unwrap();
    assert!(vocabularies(&of_fit.out) == vocabularies(&of_data.out));
    assert!(vocabularies(&of_fit.out) != vocabularies(&temp.path("fit")), "there are new categories");
    let [old, new] = ["fit", "fit-2"].map(|dir| Fit::open(&temp.path(dir)).unwrap());
    assert_eq!(new.schema().dense, old.schema().dense, "transforms are kept");
    let rows = |fit: &Fit| fit.schema().categorical[0].rows.unwrap();
    let film = &report.columns[0].1;
    assert_eq!((film.rows.unwrap(), film.new_categories), (rows(&new), Some(rows(&new) - rows(&old))));
    assert_eq!(report.columns[2].1.new_categories, None, "a hashed table has its rows");
    // Statistics count the rows of the dataset only: a fit has none.
    let all = options(&temp, &files, "all", "none");
    like(&all, new.dir()).unwrap();
    assert_eq!(Dataset::open(&all.out).unwrap().statistics().unwrap()[0].bags, 400);
}

/// Fits had no indexes once.
#[test]
fn a_fit_without_indexes_gives_the_same_samples() {
    let temp = TestFolder::new();
    let files = files(&temp);
    fit(&options(&temp, &files[..2], "fit", "none")).unwrap();
    let path = temp.path("fit");
    let mapped = options(&temp, &files, "mapped", "after:day:7");
    like(&mapped, &path).unwrap();
    let manifest = path.join("fit.json");
    let mut envelope: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let mut content = envelope["content"].take();
    content.as_object_mut().unwrap().remove("indexes").expect("a fit has them");
    fs::write(&manifest, sealed::to_json("rankine fit", 1, &content)).unwrap();
    fs::remove_file(path.join("vocabulary/film.index")).unwrap();
    let loaded = ConvertOptions { out: temp.path("loaded"), ..mapped.clone() };
    like(&loaded, &path).unwrap();
    let [mapped, loaded] = [&mapped, &loaded].map(|options| Dataset::open(&options.out).unwrap());
    assert_same(&mapped, &loaded);
}

#[test]
fn a_fit_is_no_dataset_and_must_be_whole() {
    let temp = TestFolder::new();
    let files = files(&temp);
    fit(&options(&temp, &files, "fit", "none")).unwrap();
    convert(&options(&temp, &files, "data", "none")).unwrap();
    let path = temp.path("fit");
    let name = path.display();
    let words = format!(
        "{name} is a fit: it has no samples; convert rows with its columns and vocabularies by `rankine convert ... \
         --like {name}`"
    );
    let both = [temp.path("data"), path.clone()];
    for error in [
        Dataset::open(&path).unwrap_err(),
        open_all(&both).unwrap_err(),
        merge(&both, &temp.path("merged")).unwrap_err(),
    ] {
        assert!(error.to_string().starts_with(&words), "{error}");
    }
    assert!(!Dataset::exists(&path) && Fit::exists(&path));
    // All good rows are held out, and there is no row at all.
    let held_out = fit(&options(&temp, &files, "none", "after:day:-1")).unwrap_err();
    assert!(
        held_out.to_string().contains("400 held out for evaluation (--split after:day:-1)"),
        "{held_out}"
    );
    let empty = temp.file("empty.csv", HEADER);
    assert!(fit(&options(&temp, &[empty], "none", "none")).unwrap_err().to_string().contains("no rows"));
    assert!(!temp.path("none").exists());

    let index = path.join("vocabulary/film.index");
    let good = fs::read(&index).unwrap();
    fs::write(&index, &good[8..]).unwrap();
    let error = KnownColumns::of_fit(&Fit::open(&path).unwrap()).unwrap_err().to_string();
    assert!(error.contains("film.index") && error.contains("make it again with `rankine fit`"), "{error}");
    fs::write(&index, &good).unwrap();
    let vocabulary = path.join("vocabulary/film.tsv");
    let good = fs::read_to_string(&vocabulary).unwrap();
    fs::write(&vocabulary, good.replace("film 1\t", "film X\t")).unwrap();
    let error = KnownColumns::of_fit(&Fit::open(&path).unwrap()).unwrap_err().to_string();
    assert!(error.contains("film.tsv") && error.contains("does not match fit.json"), "{error}");
    let manifest = path.join("fit.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("a.csv", "x.csv")).unwrap();
    assert!(Fit::open(&path).unwrap_err().to_string().contains("its checksum is"));
}
