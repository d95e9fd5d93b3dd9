//! Conversions with the columns of an old dataset: rows keep their numbers, and vocabularies grow at their end.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;

use crate::convert::known::with_known;
use crate::convert::tests::{
    GOOD_LINE, SMALL, TestFolder, convert_criteo_within, convert_csv_within, samples_of, with_field,
};
use crate::convert::*;
use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::{DenseDtype, Hotness};
use crate::statistics::TableStatistics;
use crate::tests::{assert_popularity_of_samples, tree};
use crate::vocabulary::hash_row;

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
column = "genres"
vocabulary = { kind = "exact", min_count = 1 }
separator = "|"
pooling = "mean"

[[categorical]]
column = "user"
vocabulary = { kind = "hash", rows = 13 }

[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }
"#;

const HEADER: &str = "bought,price,film,seen,genres,user,hour";
const LONG: &str = "a title of more than 15 bytes";

fn old_rows() -> Vec<String> {
    ["1,10,Heat,Ran|Heat,b|a,u1,3", "0,20,Heat,,a,u2,4", "1,,Ran,Heat,c,u1,3", "0,5,Rare,Ran,,u3,23"]
        .map(String::from)
        .to_vec()
}

fn new_rows() -> Vec<String> {
    let row = |n: usize| {
        let film = ["Heat", "New", LONG, "Ran", "New", "once"][n % 6];
        let film = if film == "once" { format!("once-{n}") } else { film.to_owned() };
        format!(
            "{},{},{film},{LONG}|Ran,{},u{},{}",
            n % 2,
            1000 + n,
            ["d", "a|d|e", "c"][n % 3],
            n % 5,
            n % 24
        )
    };
    (0..60).map(row).collect()
}

fn csv(rows: &[String]) -> String {
    format!("{HEADER}\n{}\n", rows.join("\n"))
}

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn options(temp: &TestFolder, name: &str, text: &str) -> ConvertOptions {
    let files = vec![temp.file(&format!("{name}.csv"), text)];
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, temp.path(name)) }
}

fn convert_old(temp: &TestFolder) -> Dataset {
    let options = options(temp, "old", &csv(&old_rows()));
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    convert_csv_within(&options, &schema, 1, SMALL, &no_progress).unwrap();
    Dataset::open(&options.out).unwrap()
}

fn like(options: &ConvertOptions, old: &Dataset, grow: bool) -> Result<ConversionReport> {
    let known = KnownColumns::of(old).unwrap();
    with_known(options, known, grow, SMALL, Converting { options, progress: &no_progress })
}

fn vocabulary(dataset: &Dataset, column: &str) -> String {
    fs::read_to_string(dataset.dir().join(format!("vocabulary/{column}.tsv"))).unwrap()
}

/// Counts the look-ups of every row in the simplest way.
fn counts(samples: &Samples) -> Vec<BTreeMap<u64, u64>> {
    let count = |ids: &Vec<u64>| {
        let mut counts = BTreeMap::new();
        ids.iter().for_each(|&id| *counts.entry(id).or_insert(0) += 1);
        counts
    };
    samples.categorical.iter().map(|bags| count(&bags.ids)).collect()
}

fn head(statistics: &TableStatistics) -> BTreeMap<u64, u64> {
    statistics.head.iter().copied().collect()
}

#[test]
fn the_same_rows_give_the_same_samples_and_vocabularies() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let again = ConvertOptions { out: temp.path("again"), ..options(&temp, "old", &csv(&old_rows())) };
    let report = like(&again, &old, false).unwrap();
    assert_eq!(report.like.as_deref(), Some(&*old.dir().display().to_string()));
    let (expected, mut found) = (tree(old.dir()), tree(&again.out));
    // It names the old dataset; all else is the same.
    found.insert(REPORT_NAME.into(), expected[REPORT_NAME].clone());
    assert!(found == expected);
    assert_eq!(report.columns[0].1.exact.unwrap().new_categories, None);
}

#[test]
fn unknown_categories_are_counted_and_tables_keep_their_rows() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let new = options(&temp, "new", &csv(&new_rows()));
    // Numbers are stored as before, whatever the options.
    let report = like(&ConvertOptions { dense_dtype: DenseDtype::F16, ..new.clone() }, &old, false).unwrap();
    let dataset = Dataset::open(&new.out).unwrap();
    // The bags of `genres` are larger than any before; nothing else of the schema differs.
    let mut schema = dataset.schema().clone();
    assert_eq!(schema.categorical[2].hotness, Hotness::Ragged { max: 3 });
    schema.categorical[2].hotness = Hotness::Ragged { max: 2 };
    assert_eq!(schema, *old.schema());
    for column in ["film", "genres"] {
        assert_eq!(vocabulary(&dataset, column), vocabulary(&old, column));
    }
    let unknown = |column: usize| {
        let unknown = report.columns[column].1.exact.unwrap().unknown_train;
        (unknown.distinct_values, unknown.lookups)
    };
    // New, the long title and ten that occur once: 20 + 10 + 10 rows; the long title in each row; d and e.
    assert_eq!((unknown(0), unknown(1), unknown(2)), ((Some(12), 40), (Some(1), 60), (Some(2), 60)));
    assert!(report.columns[3].1.exact.is_none());
    // The statistics are those of the new rows.
    let samples = samples_of(&new.out, Part::Train);
    for (table, expected) in dataset.statistics().unwrap().iter().zip(counts(&samples)) {
        assert_eq!((head(table), table.bags), (expected, 60));
    }
    assert_eq!(samples.categorical[3].ids[1], hash_row(b"u1", 13));
    assert_eq!(samples.dense[0], old.schema().dense[0].transform.apply(Some(1000.0)));
    let growth = KnownColumns::of(&old).unwrap().growth(&KnownColumns::of(&dataset).unwrap()).unwrap();
    assert!(growth.iter().all(|table| table.old_rows == table.new_rows));
}

#[test]
fn grown_tables_keep_old_rows_and_add_up_counts() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let new = options(&temp, "new", &csv(&new_rows()));
    let report = like(&new, &old, true).unwrap();
    let dataset = Dataset::open(&new.out).unwrap();
    // Heat and Ran occurred 4 and 3 times, others once, which row 0 stands for; `seen` counts, too.
    assert_eq!(vocabulary(&old, "film"), "\\*\t1\nHeat\t4\nRan\t3\n");
    assert_eq!(
        vocabulary(&dataset, "film"),
        format!("\\*\t11\nHeat\t14\nRan\t73\n{LONG}\t70\nNew\t20\n"),
        "old rows, then new ones by count; those that occur once are too rare"
    );
    assert_eq!(vocabulary(&old, "genres"), "\\*\t0\na\t2\nb\t1\nc\t1\n");
    assert_eq!(vocabulary(&dataset, "genres"), "\\*\t0\na\t22\nb\t1\nc\t21\nd\t40\ne\t20\n");
    let exact = report.columns[0].1.exact.unwrap();
    assert_eq!((exact.new_categories, exact.kept_categories), (Some(2), 4));
    assert_eq!((exact.unknown_train.distinct_values, exact.unknown_train.lookups), (Some(10), 10));
    let rows: Vec<_> = dataset.schema().categorical.iter().filter_map(|column| column.rows).collect();
    assert_eq!(rows, [5, 5, 6, 13, 24]);
    assert_eq!(dataset.schema().dense, old.schema().dense, "the model was trained on these transforms");

    let statistics = dataset.statistics().unwrap();
    let (before, after) =
        (counts(&samples_of(old.dir(), Part::Train)), counts(&samples_of(&new.out, Part::Train)));
    for ((table, mut expected), after) in statistics.iter().zip(before).zip(after) {
        after.into_iter().for_each(|(row, count)| *expected.entry(row).or_insert(0) += count);
        assert_eq!((head(table), table.bags), (expected, 64));
    }
    // Popularity counts the new samples alone.
    assert_popularity_of_samples(&new.out);

    // A second growth from the first, with rows of no new category.
    let third = options(&temp, "third", &csv(&old_rows()));
    let report = like(&third, &dataset, true).unwrap();
    assert_eq!(report.columns[0].1.exact.unwrap().new_categories, Some(0));
    let last = Dataset::open(&third.out).unwrap();
    assert!(vocabulary(&last, "film").starts_with("\\*\t12\nHeat\t18\n"));
    assert_eq!(last.statistics().unwrap()[4].bags, 68);

    // And one from a dataset whose vocabulary counts other rows than its statistics.
    let kept = options(&temp, "kept", &csv(&new_rows()));
    like(&kept, &old, false).unwrap();
    let fourth = options(&temp, "fourth", &csv(&old_rows()));
    like(&fourth, &Dataset::open(&kept.out).unwrap(), true).unwrap();
    for table in Dataset::open(&fourth.out).unwrap().statistics().unwrap().iter().take(1) {
        assert_eq!((table.bags, table.lookups), (64, 64));
    }
}

#[test]
fn neither_order_nor_threads_nor_memory_change_a_grown_dataset() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let new = options(&temp, "one", &csv(&new_rows()));
    let grown = |out: &str, threads: usize, memory: u64| {
        let threads = NonZeroUsize::new(threads).unwrap();
        let options = ConvertOptions { out: temp.path(out), threads, memory, ..new.clone() };
        like(&options, &old, true).unwrap();
        tree(&options.out)
    };
    let expected = grown("one", 1, 1 << 30);
    for (out, threads, memory) in [("three", 3, 1 << 30), ("spilled", 1, 0), ("both", 4, 0)] {
        assert!(grown(out, threads, memory) == expected, "{out} differs");
    }
    let mut reversed = new_rows();
    reversed.reverse();
    let reversed = options(&temp, "reversed", &csv(&reversed));
    like(&reversed, &old, true).unwrap();
    let found = tree(&reversed.out);
    for name in ["vocabulary/film.tsv", "vocabulary/genres.tsv", "statistics.bin"] {
        assert!(found[name] == expected[name], "{name} depends on the order");
    }
}

#[test]
fn rows_of_criteo_grow_too() {
    let temp = TestFolder::new();
    let log =
        |keys: &[&str]| keys.iter().map(|key| with_field(GOOD_LINE, 14, key) + "\n").collect::<String>();
    let old = ConvertOptions::new(vec![temp.file("old.tsv", log(&["aa", "bb", "bb"]))], temp.path("old"));
    let no_progress = |_: &'static str, _: u64, _: u64| ();
    convert_criteo_within(&old, &CriteoColumns::default(), SMALL, &no_progress).unwrap();
    let old = Dataset::open(&old.out).unwrap();
    let files = vec![temp.file("new.tsv", log(&["cc", "", "", "aa"]))];
    let new = ConvertOptions {
        split: Split::Last { share: 0.25 }.into(),
        ..ConvertOptions::new(files, temp.path("new"))
    };
    like(&new, &old, true).unwrap();
    let dataset = Dataset::open(&new.out).unwrap();
    // The last row is for evaluation: it is not counted, but has its old row.
    assert_eq!(vocabulary(&dataset, "C1"), "\\*\t0\nbb\t2\naa\t1\n\t2\ncc\t1\n");
    assert_eq!(samples_of(&new.out, Part::Train).categorical[0].ids, [4, 3, 3]);
    assert_eq!(samples_of(&new.out, Part::Eval).categorical[0].ids, [2]);
    assert_eq!(dataset.schema().dense, old.schema().dense);
}

#[test]
fn the_first_difference_of_two_datasets_is_named() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let new = options(&temp, "new", &csv(&new_rows()));
    like(&new, &old, true).unwrap();
    let (old_columns, new_columns) =
        (KnownColumns::of(&old).unwrap(), KnownColumns::of(&Dataset::open(&new.out).unwrap()).unwrap());
    let growth = old_columns.growth(&new_columns).unwrap();
    let rows: Vec<_> = growth.iter().map(|table| (&*table.column, table.old_rows, table.new_rows)).collect();
    assert_eq!(rows, [("film", 3, 5), ("seen", 3, 5), ("genres", 4, 6), ("user", 13, 13), ("hour", 24, 24)]);
    let refused = new_columns.growth(&old_columns).unwrap_err();
    assert_eq!(
        refused,
        ColumnsDifference::FewerRows { column: "film".into(), old_rows: 5, new_rows: 3 },
        "{refused}"
    );

    let differs = |name: &str, schema: &str, rows: &[String]| {
        let options = options(&temp, name, &csv(rows));
        let schema = SchemaFile::parse("s.toml", schema).unwrap();
        convert_csv_within(&options, &schema, 1, SMALL, &no_progress).unwrap();
        let other = KnownColumns::of(&Dataset::open(&options.out).unwrap()).unwrap();
        old_columns.growth(&other).unwrap_err().to_string()
    };
    let renamed: Vec<_> = old_rows().iter().map(|row| row.replace("Ran", "Big")).collect();
    assert_eq!(differs("renamed", SCHEMA, &renamed), "column film: row 2 is \"Ran\" in A and \"Big\" in B");
    for (name, from, to, message) in [
        ("hash", "rows = 13", "rows = 14", "column user: rows is 13 in A and 14 in B"),
        ("pooling", "pooling = \"mean\"", "", "column genres: pooling is mean in A and sum in B"),
        (
            "name",
            "\"hour\"",
            "\"hour\"\nname = \"h\"",
            "categorical column 5 is \"hour\" in A and \"h\" in B",
        ),
        (
            "kind",
            "kind = \"hash\", rows = 13",
            "kind = \"exact\"",
            "column user: vocabulary is hash in A and exact in B",
        ),
        ("transform", "\"log1p\", \"standardize\"", "\"log1p\"", "column price: transform is "),
    ] {
        let schema = SCHEMA.replace(from, to);
        let found = differs(name, &schema, &old_rows());
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn generated_data_and_missing_columns_are_refused() {
    let temp = TestFolder::new();
    let old = convert_old(&temp);
    let fewer = options(&temp, "fewer", "bought,price,film,seen,genre,user,hour\n1,1,Heat,,a,u,1\n");
    let refusal = like(&fewer, &old, false).unwrap_err().to_string();
    assert!(refusal.contains("fewer.csv has no column `genres` (did you mean `genre`?)"), "{refusal}");
    assert!(refusal.contains("--like"), "{refusal}");
    assert!(!fewer.out.exists());
    let range = options(&temp, "range", &csv(&["1,1,Heat,,a,u,24".into()]));
    let refusal = like(&range, &old, true).unwrap_err().to_string();
    assert!(refusal.contains("column hour: '24' is not a row number below 24"), "{refusal}");

    let known = KnownColumns::of(&old).unwrap();
    let names = |names: [&str; 8]| names.map(ToOwned::to_owned);
    let all = names(["hour", "other", "bought", "price", "film", "seen", "genres", "user"]);
    assert_eq!(known.positions_in("a table", &all).unwrap(), [0, 2, 3, 4, 5, 6, 7]);
    let fewer = names(["hour", "other", "bought", "price", "film", "seen", "genre", "user"]);
    let refusal = known.positions_in("a table", &fewer).unwrap_err().to_string();
    assert!(refusal.contains("a table has no column `genres` (did you mean `genre`?)"), "{refusal}");
    let known = KnownColumns::new("gen".into(), known.schema().clone(), None, Encoder::open(&old).unwrap());
    let options = options(&temp, "any", &csv(&new_rows()));
    let refusal = convert_like(&options, known, false, &no_progress).unwrap_err().to_string();
    assert!(
        refusal.starts_with("gen was generated, so no raw rows have its columns: --like needs"),
        "{refusal}"
    );
}
