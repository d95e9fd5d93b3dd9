//! Sequences: columns whose bags have the same sizes.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::convert::tests::{SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::{Dataset, Fit};
use crate::part::Part;
use crate::samples::Bags;
use crate::schema::{DenseDtype, Hotness, Keep};
use crate::tests::tree;

const SCHEMA: &str = r#"
[label]
column = "click"

[[categorical]]
column = "item"
vocabulary = { kind = "exact", min_count = 1 }

[[categorical]]
column = "items"
separator = "|"
vocabulary = { kind = "shared", with = "item" }

[[categorical]]
column = "hours"
name = "when"
separator = "|"
vocabulary = { kind = "identity", rows = 24 }

[[sequence]]
name = "clicks"
columns = ["items", "when"]
max = 3
"#;

/// Four positions are one too many.
const TEXT: &str = "hours,click,item,items\n\
    5|5|23,1,a,b|b|a\n\
    ,0,a,\n\
    1|2|3|4,1,b,d|a|d|a\n\
    7,0,a,c\n";

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn options(files: Vec<PathBuf>, out: PathBuf) -> ConvertOptions {
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, out) }
}

fn convert(options: &ConvertOptions, schema: &str) -> Result<ConversionReport> {
    convert_csv_within(options, &SchemaFile::parse("s.toml", schema).unwrap(), 1, SMALL, &no_progress)
}

fn bags(offsets: &[u32], ids: &[u64]) -> Bags {
    Bags { offsets: offsets.into(), ids: ids.into(), weights: Vec::new() }
}

/// Items in the order of their frequency: a, then b, then d, which occurs twice with the position that is left out, c.
fn expected(keep: Keep) -> [Bags; 3] {
    let (items, hours) = match keep {
        Keep::Last => ([1, 3, 1], [2, 3, 4]),
        Keep::First => ([3, 1, 3], [1, 2, 3]),
    };
    [
        bags(&[0, 1, 2, 3, 4], &[1, 1, 2, 1]),
        bags(&[0, 3, 3, 6, 7], &[&[2, 2, 1][..], &items, &[4]].concat()),
        bags(&[0, 3, 3, 6, 7], &[&[5, 5, 23][..], &hours, &[7]].concat()),
    ]
}

#[test]
fn positions_stay_together_and_in_order() {
    let temp = TestFolder::new();
    for keep in [Keep::Last, Keep::First] {
        let name = if keep == Keep::Last { "last" } else { "first" };
        let schema = format!("{SCHEMA}keep = \"{name}\"\n");
        let all = options(vec![temp.file("log.csv", TEXT)], temp.path(name));
        convert(&all, &schema).unwrap();
        assert_eq!(samples_of(&all.out, Part::Train).categorical, expected(keep));
        let dataset = Dataset::open(&all.out).unwrap();
        let schema = dataset.schema();
        assert_eq!((schema.sequences[0].max, schema.sequences[0].keep), (3, keep));
        assert!(schema.categorical[1..].iter().all(|column| column.hotness == Hotness::Ragged { max: 3 }));
        // With the columns of the old dataset, longer rows are trimmed as they were.
        let again = ConvertOptions { out: temp.path(&format!("again {name}")), ..all.clone() };
        convert_like(&again, KnownColumns::of(&dataset).unwrap(), false, &no_progress).unwrap();
        assert_eq!(samples_of(&again.out, Part::Train).categorical, expected(keep));
        assert_eq!(Dataset::open(&again.out).unwrap().schema(), schema);
    }
    // The last positions are the default.
    let all = options(vec![temp.path("log.csv")], temp.path("default"));
    convert(&all, SCHEMA).unwrap();
    assert!(tree(&all.out) == tree(&temp.path("last")));
    let fit = ConvertOptions { out: temp.path("fit"), ..all.clone() };
    fit_csv(&fit, &SchemaFile::parse("s.toml", SCHEMA).unwrap(), 1, &no_progress).unwrap();
    let known = KnownColumns::of_fit(&Fit::open(&fit.out).unwrap()).unwrap();
    let encoded = ConvertOptions { out: temp.path("encoded"), ..all.clone() };
    convert_like(&encoded, known, false, &no_progress).unwrap();
    assert_eq!(samples_of(&encoded.out, Part::Train).categorical, expected(Keep::Last));

    let plain = ConvertOptions { out: temp.path("plain"), ..all.clone() };
    convert(&plain, SCHEMA.split("[[sequence]]").next().unwrap()).unwrap();
    let [old, new] =
        [&all.out, &plain.out].map(|dir| KnownColumns::of(&Dataset::open(dir).unwrap()).unwrap());
    let refused = old.growth(&new).unwrap_err().to_string();
    assert!(refused.contains("sequence") && refused.contains("clicks (items, when)"), "{refused}");
}

#[test]
fn output_with_sequences_does_not_depend_on_threads() {
    let temp = TestFolder::new();
    let row = |number: u64| {
        let count = number * 7 % 6;
        let joined = |text: &dyn Fn(u64) -> String| {
            (0..count).map(|at| text((number * 5 + at * 3) % 24)).collect::<Vec<_>>().join("|")
        };
        let (items, hours) = (joined(&|id| format!("i{id}")), joined(&|id| id.to_string()));
        format!("{hours},{},i{},{items}\n", number % 2, number % 9)
    };
    let text = format!("hours,click,item,items\n{}", (0..3000).map(row).collect::<String>());
    let file = temp.file("log.csv", text);
    let converted = |out: &str, threads, memory| {
        let threads = NonZeroUsize::new(threads).unwrap();
        let options = ConvertOptions { threads, memory, ..options(vec![file.clone()], temp.path(out)) };
        convert(&options, SCHEMA).unwrap();
        tree(&options.out)
    };
    let one = converted("one", 1, 1 << 30);
    assert!(converted("five", 5, 0) == one);
    let samples = samples_of(&temp.path("one"), Part::Train);
    let schema = Dataset::open(&temp.path("one")).unwrap().schema().clone();
    schema.check_lengths(&samples, 0).unwrap();
    assert_eq!(samples.categorical[1].ids.len(), 3000 / 6 * (1 + 2 + 3 + 3 + 3));
}

#[test]
fn rows_with_unequal_lengths_are_bad() {
    let temp = TestFolder::new();
    let good = "1|2,1,a,b|c";
    let bad = [
        ("1,1,a,b|c", "1 category, but column items of the same sequence has 2"),
        (",1,a,b|c", "0 categories, but column items of the same sequence has 2"),
        ("1|2,1,a,", "2 categories, but column items of the same sequence has 0"),
        ("1|2|3|4,1,a,b|c|d", "4 categories, but column items of the same sequence has 3"),
    ];
    let rows: String = bad.iter().map(|(row, _)| format!("{good}\n{row}\n")).collect();
    let file = temp.file("log.csv", format!("hours,click,item,items\n{rows}"));
    let (on_bad, bad_limit) = (OnBad::Quarantine, BadLimit::Rows(100));
    let options = ConvertOptions { on_bad, bad_limit, ..options(vec![file], temp.path("out")) };
    let report = convert(&options, SCHEMA).unwrap();
    assert_eq!(report.conversion.rows.train, bad.len() as u64);
    assert_eq!(report.bad_by_reason[&BadReason::SequenceLength], 4);
    let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
    for (number, (json, (_, why))) in named.lines().zip(&bad).enumerate() {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["line"], 2 * number as u64 + 3, "{json}");
        assert_eq!((json["column"].as_str(), json["why"].as_str()), (Some("hours"), Some(*why)));
    }
    let fails = ConvertOptions { on_bad: OnBad::Fail, out: temp.path("fails"), ..options };
    let refused = convert(&fails, SCHEMA).unwrap_err().to_string();
    assert!(refused.contains("log.csv line 3, column hours: 1 category, but column items"), "{refused}");
}

#[test]
fn mistakes_in_sequences_are_shown_with_their_position() {
    let temp = TestFolder::new();
    let file = temp.file("log.csv", TEXT);
    let sequence =
        |lines: &str| SCHEMA.replace("name = \"clicks\"\ncolumns = [\"items\", \"when\"]\nmax = 3", lines);
    for (schema, words) in [
        (sequence("name = \"\"\ncolumns = [\"items\"]"), "a sequence needs a name"),
        (sequence("name = \"a\"\ncolumns = []"), "a sequence needs a categorical column"),
        (sequence("name = \"a\"\ncolumns = [\"item\"]"), "\"item\" has one category per row: add separator"),
        (sequence("name = \"a\"\ncolumns = [\"hours\"]"), "no categorical column is named \"hours\""),
        (sequence("name = \"a\"\ncolumns = [\"items\", \"items\"]"), "\"items\" is already in a sequence"),
        (sequence("name = \"a\"\ncolumns = [\"items\"]\nmax = 0"), "max must be a number from 1 to 65536"),
        (sequence("name = \"a\"\ncolumns = [\"items\"]\nkeep = \"all\""), "keep"),
        (
            format!("{SCHEMA}[[sequence]]\nname = \"clicks\"\ncolumns = [\"items\"]"),
            "an earlier sequence is named \"clicks\", too",
        ),
        (
            format!("{SCHEMA}[[sequence]]\nname = \"b\"\ncolumns = [\"when\"]"),
            "s.toml:26:12: the column \"when\" is already in a sequence",
        ),
        (
            SCHEMA.replace("name = \"when\"", "name = \"when\"\nweights = \"hours\""),
            "the column \"when\" has weights, and columns of a sequence have none",
        ),
    ] {
        let read = || SchemaFile::parse("s.toml", &schema);
        let options = options(vec![file.clone()], temp.path("out"));
        let converted = |schema| convert_csv(&options, &schema, 1, &no_progress).map(drop);
        let refused = read().and_then(converted).unwrap_err().to_string();
        assert!(refused.starts_with("s.toml:") && refused.contains(words), "{refused}");
    }
}

/// As a program has rows, they are checked as the rows of a file are.
#[test]
fn columns_of_a_program_have_equal_lengths() {
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    let plan = schema.csv_plan(1, DenseDtype::F32).unwrap();
    let appended = |items: &[&str], hours: RawColumnValues<'_>, ends: [&[u32]; 2]| {
        let column = |name, values, offsets| RawColumn { name, values, offsets };
        let columns = [
            column("item", RawColumnValues::Texts(&["a", "a"]), None),
            column("items", RawColumnValues::Texts(items), Some(ends[0])),
            column("hours", hours, Some(ends[1])),
        ];
        let (schema, labels) = (&plan.draft, RawLabels::Ignored);
        let columns = RawColumns { schema, format: &plan.format, labels, rows: 2, columns: &columns };
        let mut rows = RawRows::new(schema);
        let appended = rows.append_columns(&columns).map_err(|error| error.to_string());
        assert_eq!(rows.len(), if appended.is_ok() { 2 } else { 0 });
        appended
    };
    let whole = RawColumnValues::Integers(&[5, 6, 7]);
    appended(&["a", "b", "c"], whole, [&[0, 1, 3], &[0, 1, 3]]).unwrap();
    let refused = appended(&["a", "b", "c"], whole, [&[0, 1, 3], &[0, 2, 3]]).unwrap_err();
    assert_eq!(refused, "column hours, row 0: 2 categories, but column items of the same sequence has 1");
    let nulls = RawColumnValues::Exact(ValueType::Integer, &[Some(5), None, Some(7)]);
    let refused = appended(&["a", "c"], nulls, [&[0, 1, 2], &[0, 1, 3]]).unwrap_err();
    let words = "column hours, row 1: null is not a category: each position of a sequence has one";
    assert_eq!(refused, words);
}

#[cfg(feature = "parquet")]
mod lists {
    use std::fs::File;
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;

    use super::*;

    type List<T> = Option<Vec<Option<T>>>;

    const MESSAGE: &str = "message rows {
        required int32 click;
        required byte_array item (UTF8);
        optional group items (LIST) { repeated group list { optional byte_array element (UTF8); } }
        optional group hours (LIST) { repeated group list { optional int64 element; } }
    }";

    fn put<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, lists: &[List<T::T>])
    where
        T::T: Clone,
    {
        let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
        for list in lists {
            let elements = list.as_deref().unwrap_or_default();
            if elements.is_empty() {
                defined.push(i16::from(list.is_some()));
                repeated.push(0);
            }
            for (at, element) in elements.iter().enumerate() {
                defined.push(if element.is_some() { 3 } else { 2 });
                repeated.push(i16::from(at > 0));
                values.extend(element.clone());
            }
        }
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<T>().write_batch(&values, Some(&defined), Some(&repeated)).unwrap();
        column.close().unwrap();
    }

    /// Writes rows with an item and the lists of a sequence.
    fn write(path: &std::path::Path, rows: &[(&str, List<&str>, List<i64>)]) {
        let message = Arc::new(parse_message_type(MESSAGE).unwrap());
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, message, Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let clicks: Vec<i32> = (1..=rows.len() as i32).map(|row| row % 2).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&clicks, None, None).unwrap();
        column.close().unwrap();
        let items: Vec<_> = rows.iter().map(|row| ByteArray::from(row.0)).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&items, None, None).unwrap();
        column.close().unwrap();
        let texts = |list: &List<&str>| -> List<ByteArray> {
            list.as_ref().map(|list| list.iter().map(|text| text.map(ByteArray::from)).collect())
        };
        put::<ByteArrayType>(&mut group, &rows.iter().map(|row| texts(&row.1)).collect::<Vec<_>>());
        put::<Int64Type>(&mut group, &rows.iter().map(|row| row.2.clone()).collect::<Vec<_>>());
        group.close().unwrap();
        writer.close().unwrap();
    }

    fn some<T: Copy>(values: &[T]) -> List<T> {
        Some(values.iter().copied().map(Some).collect())
    }

    #[test]
    fn lists_of_parquet_are_sequences() {
        let temp = TestFolder::new();
        let schema = SchemaFile::parse("s.toml", &SCHEMA.replace("separator = \"|\"\n", "")).unwrap();
        let path = temp.path("log.parquet");
        write(
            &path,
            &[
                ("a", some(&["b", "b", "a"]), some(&[5, 5, 23])),
                ("a", None, some(&[])),
                ("b", some(&["d", "a", "d", "a"]), some(&[1, 2, 3, 4])),
                ("a", some(&["c"]), some(&[7])),
            ],
        );
        let all = options(vec![path], temp.path("out"));
        convert_parquet(&all, &schema, 1, &no_progress).unwrap();
        assert_eq!(samples_of(&all.out, Part::Train).categorical, expected(Keep::Last));

        let path = temp.path("bad.parquet");
        let null = "a category is null, so that it is unclear which ones of the sequence belong together";
        let bad = [
            (
                some(&["b"]),
                some(&[1, 2]),
                "hours",
                "2 categories, but column items of the same sequence has 1",
            ),
            (None, some(&[1]), "hours", "1 category, but column items of the same sequence has 0"),
            (Some(vec![Some("b"), None]), some(&[1]), "items", null),
            (Some(vec![Some("b"), None]), Some(vec![None, Some(3)]), "items", null),
            (some(&["b"]), Some(vec![None, Some(3)]), "hours", null),
        ];
        let rows: Vec<_> = bad.iter().map(|(items, hours, ..)| ("a", items.clone(), hours.clone())).collect();
        write(&path, &[&rows[..], &[("a", some(&["b"]), some(&[3]))]].concat());
        let (on_bad, bad_limit) = (OnBad::Skip, BadLimit::Rows(100));
        let options = ConvertOptions { on_bad, bad_limit, ..options(vec![path], temp.path("skipped")) };
        let report = convert_parquet(&options, &schema, 1, &no_progress).unwrap();
        assert_eq!(report.bad_by_reason[&BadReason::SequenceLength], bad.len() as u64);
        let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
        for (json, (.., column, why)) in named.lines().zip(&bad) {
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!((json["column"].as_str(), json["why"].as_str()), (Some(*column), Some(*why)));
        }
    }
}
