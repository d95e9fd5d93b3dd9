//! Bags whose ids have weights.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::convert::tests::{SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::{Dataset, Fit};
use crate::part::Part;
use crate::samples::{Bags, Samples};
use crate::schema::DenseDtype;
use crate::tests::tree;
use crate::vocabulary::hash_row;

const SCHEMA: &str = r#"
[label]
column = "click"

[[categorical]]
column = "tags"
weights = "w"
separator = "|"
vocabulary = { kind = "exact", min_count = 1 }

[[categorical]]
column = "rows"
weights = "shares"
separator = "|"
pooling = "mean"
vocabulary = { kind = "identity", rows = 9 }

[[categorical]]
column = "tags"
name = "plain"
separator = "|"
vocabulary = { kind = "shared", with = "tags" }
"#;

use RawColumnValues::{Exact, Integers, Numbers, Texts};

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn options(files: Vec<PathBuf>, out: PathBuf) -> ConvertOptions {
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, out) }
}

fn convert(options: &ConvertOptions, schema: &str) -> Result<ConversionReport> {
    convert_csv_within(options, &SchemaFile::parse("s.toml", schema).unwrap(), 1, SMALL, &no_progress)
}

/// Weights stand before or after the categories that they belong to, and an empty bag has an empty field of weights.
const TEXT: &str = "w,click,tags,rows,shares\n\
    0.5|2,1,a|b,3|4|3,1|0|0.25\n\
    ,0,,,\n\
    1e-3|0,1,b|c,8,0\n\
    3|0|0.125,0,a|a|d,0|1|2,2|3|4\n";

fn bags(offsets: &[u32], ids: &[u64], weights: &[f32]) -> Bags {
    Bags { offsets: offsets.into(), ids: ids.into(), weights: weights.into() }
}

/// Rows are in the order of frequency: a, b, then c and d.
fn expected() -> [Bags; 3] {
    [
        bags(&[0, 2, 2, 3, 5], &[1, 2, 2, 1, 4], &[0.5, 2.0, 1e-3, 3.0, 0.125]),
        bags(&[0, 2, 2, 2, 5], &[3, 3, 0, 1, 2], &[1.0, 0.25, 2.0, 3.0, 4.0]),
        bags(&[0, 2, 2, 4, 7], &[1, 2, 2, 3, 1, 1, 4], &[]),
    ]
}

#[test]
fn categories_keep_their_weights_and_those_of_weight_0_are_left_out() {
    let temp = TestFolder::new();
    let all = options(vec![temp.file("log.csv", TEXT)], temp.path("out"));
    convert(&all, SCHEMA).unwrap();
    assert_eq!(samples_of(&all.out, Part::Train).categorical, expected());
    let dataset = Dataset::open(&all.out).unwrap();
    assert!(dataset.schema().categorical.iter().map(|column| column.weighted).eq([true, true, false]));
    // Look-ups are of ids that are stored.
    let statistics = dataset.statistics().unwrap();
    assert!(statistics.iter().map(|table| table.lookups).eq([5, 5, 7]));

    // With the columns of the old dataset, and of a fit, the same rows give the same samples.
    let fit = ConvertOptions { out: temp.path("fit"), ..all.clone() };
    fit_csv(&fit, &SchemaFile::parse("s.toml", SCHEMA).unwrap(), 1, &no_progress).unwrap();
    let known =
        [KnownColumns::of(&dataset).unwrap(), KnownColumns::of_fit(&Fit::open(&fit.out).unwrap()).unwrap()];
    for (number, known) in known.into_iter().enumerate() {
        let again = ConvertOptions { out: temp.path(&format!("again{number}")), ..all.clone() };
        convert_like(&again, known, false, &no_progress).unwrap();
        assert_eq!(samples_of(&again.out, Part::Train).categorical, expected());
        assert_eq!(Dataset::open(&again.out).unwrap().schema(), dataset.schema());
    }
    let plain = temp.file("s.toml", SCHEMA.replace("weights = \"w\"\n", ""));
    let other = ConvertOptions { out: temp.path("other"), ..all.clone() };
    convert(&other, &fs::read_to_string(plain).unwrap()).unwrap();
    let [old, new] =
        [&all.out, &other.out].map(|dir| KnownColumns::of(&Dataset::open(dir).unwrap()).unwrap());
    let refused = old.growth(&new).unwrap_err().to_string();
    assert!(refused.contains("tags") && refused.contains("weights"), "{refused}");
}

#[test]
fn output_with_weights_does_not_depend_on_threads() {
    let temp = TestFolder::new();
    let row = |number: u64| {
        let bag: Vec<_> = (0..number % 4).map(|at| (number * 7 + at) % 9).collect();
        let joined =
            |text: &dyn Fn(u64) -> String| bag.iter().map(|&id| text(id)).collect::<Vec<_>>().join("|");
        let (ids, weights) = (joined(&|id| id.to_string()), joined(&|id| format!("{}", id as f64 / 4.0)));
        format!("{weights},{},{ids},{ids},{weights}\n", number % 2)
    };
    let text = format!("w,click,tags,rows,shares\n{}", (0..3000).map(row).collect::<String>());
    let file = temp.file("log.csv", text);
    let converted = |out: &str, threads, memory| {
        let threads = NonZeroUsize::new(threads).unwrap();
        let split = Split::Random { share: 0.3, seed: 5 }.into();
        let options =
            ConvertOptions { threads, memory, split, ..options(vec![file.clone()], temp.path(out)) };
        convert(&options, SCHEMA).unwrap();
        tree(&options.out)
    };
    let one = converted("one", 1, 1 << 30);
    assert!(converted("five", 5, 0) == one);
    let train = samples_of(&temp.path("one"), Part::Train);
    let weights: f64 = train.categorical[1].weights.iter().map(|&weight| f64::from(weight)).sum();
    let ids: f64 = train.categorical[1].ids.iter().map(|&id| id as f64 / 4.0).sum();
    assert_eq!(weights, ids);
}

#[test]
fn bad_weights_are_named_with_their_column_and_reason() {
    let temp = TestFolder::new();
    let good = "1|1,1,a|b,3,1";
    let with = |field: usize, value: &str| {
        let mut fields: Vec<_> = good.split(',').collect();
        fields[field] = value;
        fields.join(",")
    };
    let many = vec!["1"; BAG_MAX as usize + 1].join("|");
    let not = "is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38";
    let bad = [
        (with(0, "1|-1"), "w", format!("'-1' {not}")),
        (with(0, "nan|1"), "w", format!("'nan' {not}")),
        (with(0, "1|inf"), "w", format!("'inf' {not}")),
        (with(0, "1|4e38"), "w", format!("'4e38' {not}")),
        (with(0, "1|1e-60"), "w", format!("'1e-60' {not}")),
        (with(0, "1|"), "w", format!("'' {not}")),
        (with(0, "1"), "w", "1 weight for 2 categories of tags: each category needs one".into()),
        (with(0, "1|2|3"), "w", "3 weights for 2 categories of tags".into()),
        (with(0, ""), "w", "0 weights for 2 categories of tags".into()),
        (with(2, ""), "w", "2 weights for 0 categories of tags".into()),
        (with(4, "1|2"), "shares", "2 weights for 1 category of rows".into()),
        (with(4, &many), "shares", "more than 65536 categories".into()),
    ];
    let rows: String = bad.iter().map(|(row, ..)| format!("{good}\n{row}\n")).collect();
    let file = temp.file("log.csv", format!("w,click,tags,rows,shares\n{rows}"));
    let (on_bad, bad_limit) = (OnBad::Quarantine, BadLimit::Rows(100));
    let options = ConvertOptions { on_bad, bad_limit, ..options(vec![file], temp.path("out")) };
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    let report = convert_csv(&options, &schema, 1, &no_progress).unwrap();
    assert_eq!(report.conversion.rows.train, bad.len() as u64);
    let counts =
        [BadReason::BagWeight, BadReason::WeightCount, BadReason::Bag].map(|of| report.bad_by_reason[&of]);
    assert_eq!(counts, [6, 5, 1]);
    let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
    assert_eq!(named.lines().count(), bad.len());
    for (number, (json, (_, column, why))) in named.lines().zip(&bad).enumerate() {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["line"], 2 * number as u64 + 3, "{json}");
        assert_eq!(json["column"], *column, "{json}");
        assert!(json["why"].as_str().unwrap().contains(why), "{json} {why}");
    }
    let fails = ConvertOptions { on_bad: OnBad::Fail, out: temp.path("fails"), ..options };
    let refused = convert_csv(&fails, &schema, 1, &no_progress).unwrap_err().to_string();
    assert!(refused.contains("log.csv line 3, column w: '-1' is not a weight"), "{refused}");
}

#[test]
fn a_schema_file_gives_weights_to_bags_only() {
    let temp = TestFolder::new();
    let refused = |schema: &str, text: &str| {
        let options = options(vec![temp.file("log.csv", text)], temp.path("out"));
        convert(&options, schema).unwrap_err().to_string()
    };
    let schema = "[label]\ncolumn = \"click\"\n[[categorical]]\ncolumn = \"tags\"\nweights = \"w\"\n";
    let no_bag = refused(schema, "w,click,tags\n1,0,a\n");
    assert!(
        no_bag.starts_with("s.toml:5:11: ") && no_bag.contains("one category per row: add separator"),
        "{no_bag}"
    );
    let lacks = refused(&format!("{schema}separator = \"|\""), "weight,click,tags\n1,0,a\n");
    assert!(lacks.starts_with("s.toml:5:11: ") && lacks.contains("has no column `w`"), "{lacks}");
}

/// As a program has rows, they give the samples that a file of them gives.
#[test]
fn columns_of_a_program_have_weights() {
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    let plan = schema.csv_plan(1, DenseDtype::F32).unwrap();
    let mut draft = plan.draft;
    // Without vocabularies to learn.
    for column in &mut draft.categorical {
        if column.name != "rows" {
            (column.rows, column.vocabulary) = (Some(50), crate::schema::VocabularyKind::Hash);
        }
    }
    let encoder = Encoder::new(&draft, vec![None; 3]).unwrap();
    let encode = |columns: &[RawColumn<'_>], rows| {
        let mut raw = RawRows::new(&draft);
        let columns =
            RawColumns { schema: &draft, format: &plan.format, labels: RawLabels::Ignored, rows, columns };
        raw.append_columns(&columns)?;
        let mut samples = Samples::new(&draft);
        encoder.encode_as_stored(&raw, &mut samples);
        Ok::<_, RawColumnError>(samples.categorical)
    };
    let column = |name, values, offsets| RawColumn { name, values, offsets };
    let texts = |name, texts| column(name, Texts(texts), None);
    let found = encode(
        &[
            texts("tags", &["a|b", "", "b|c", "a|a|d"]),
            texts("w", &["0.5|2", "", "1e-3|0", "3|0|0.125"]),
            texts("rows", &["3|4|3", "", "8", "0|1|2"]),
            texts("shares", &["1|0|0.25", "", "0", "2|3|4"]),
        ],
        4,
    );
    let expected = expected();
    let hashed = |number: u64| hash_row([&b""[..], b"a", b"b", b"c", b"d"][number as usize], 50);
    let with_hashes =
        |bags: &Bags| Bags { ids: bags.ids.iter().map(|&id| hashed(id)).collect(), ..bags.clone() };
    let [tags, rows, plain] = &expected;
    let expected = [with_hashes(tags), rows.clone(), with_hashes(plain)];
    assert_eq!(found.unwrap(), expected);

    let tags = || column("tags", Texts(&["a", "b", "b"]), Some(&[0, 2, 3]));
    let rows = || column("rows", Integers(&[3]), Some(&[0, 1, 1]));
    let shares = || column("shares", Numbers(&[0.5]), Some(&[0, 1, 1]));
    let weights = |values, offsets| {
        encode(&[tags(), rows(), shares(), column("w", values, offsets)], 2)
            .map_err(|error| error.to_string())
    };
    for values in [
        Numbers(&[1.0, 0.0, 2.0]),
        Integers(&[1, 0, 2]),
        Exact(ValueType::Decimal { scale: 1 }, &[Some(10), Some(0), Some(20)]),
    ] {
        let found = weights(values, Some(&[0, 2, 3])).unwrap();
        assert_eq!(found[0], bags(&[0, 1, 2], &[hashed(1), hashed(2)], &[1.0, 2.0]));
        assert_eq!(found[1], bags(&[0, 1, 1], &[3], &[0.5]));
    }
    for (values, offsets, words) in [
        (Numbers(&[1.0, -1.0, 2.0]), &[0, 2, 3][..], "column w, row 0: -1 is not a weight"),
        (Numbers(&[1.0, 1.0, f64::NAN]), &[0, 2, 3], "column w, row 1: NaN is not a weight"),
        (
            Exact(ValueType::Integer, &[Some(1), Some(1), None]),
            &[0, 2, 3],
            "column w, row 1: null is not a weight",
        ),
        (Numbers(&[1.0, 1.0, 1.0]), &[0, 1, 3], "column w, row 0: 1 weight for 2 categories of tags"),
        (Numbers(&[1.0, 1.0]), &[0, 2, 2], "column w, row 1: 0 weights for 1 category of tags"),
        (Texts(&["1", "1", "1"]), &[0, 2, 3], "column w has"),
        (Numbers(&[1.0]), &[0, 1], "column w has 1 row; expected 2"),
    ] {
        let refused = weights(values, Some(offsets)).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[cfg(feature = "parquet")]
mod lists {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;

    use super::*;

    type List<T> = Option<Vec<Option<T>>>;

    const MESSAGE: &str = "message rows {
        required int32 click;
        optional group tags (LIST) { repeated group list { optional byte_array element (UTF8); } }
        optional group w (LIST) { repeated group list { optional double element; } }
        optional group rows (LIST) { repeated group list { optional int64 element; } }
        optional group shares (LIST) { repeated group list { optional double element; } }
    }";

    fn write<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, lists: &[List<T::T>])
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

    /// Rows of categories with their weights, twice.
    struct Rows {
        tags: Vec<List<ByteArray>>,
        w: Vec<List<f64>>,
        rows: Vec<List<i64>>,
        shares: Vec<List<f64>>,
    }

    fn some<T: Copy>(values: &[T]) -> List<T> {
        Some(values.iter().copied().map(Some).collect())
    }

    fn tags(tags: &[&str]) -> List<ByteArray> {
        Some(tags.iter().map(|&tag| Some(ByteArray::from(tag))).collect())
    }

    impl Rows {
        fn write(&self, path: &Path) {
            let message = Arc::new(parse_message_type(MESSAGE).unwrap());
            let mut writer =
                SerializedFileWriter::new(File::create(path).unwrap(), message, Arc::default()).unwrap();
            let mut group = writer.next_row_group().unwrap();
            let labels: Vec<i32> = (0..self.tags.len() as i32).map(|row| (row + 1) % 2).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int32Type>().write_batch(&labels, None, None).unwrap();
            column.close().unwrap();
            write::<ByteArrayType>(&mut group, &self.tags);
            write::<DoubleType>(&mut group, &self.w);
            write::<Int64Type>(&mut group, &self.rows);
            write::<DoubleType>(&mut group, &self.shares);
            group.close().unwrap();
            writer.close().unwrap();
        }
    }

    fn schema() -> String {
        SCHEMA.replace("separator = \"|\"\n", "")
    }

    /// The files of a dataset that its rows decide.
    fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = tree(dir).into_iter().collect();
        files.retain(|(name, _)| name.contains('/'));
        assert!(files.iter().any(|(name, _)| name.ends_with("index.bin")), "{files:?}");
        files
    }

    #[test]
    fn lists_give_the_bytes_of_text() {
        let temp = TestFolder::new();
        let text = options(vec![temp.file("log.csv", TEXT)], temp.path("text"));
        convert(&text, SCHEMA).unwrap();
        let rows = Rows {
            tags: vec![tags(&["a", "b"]), None, tags(&["b", "c"]), tags(&["a", "a", "d"])],
            w: vec![some(&[0.5, 2.0]), Some(vec![]), some(&[1e-3, 0.0]), some(&[3.0, 0.0, 0.125])],
            rows: vec![some(&[3, 4, 3]), Some(vec![]), some(&[8]), some(&[0, 1, 2])],
            shares: vec![some(&[1.0, 0.0, 0.25]), None, some(&[0.0]), some(&[2.0, 3.0, 4.0])],
        };
        rows.write(&temp.path("log.parquet"));
        let lists = options(vec![temp.path("log.parquet")], temp.path("lists"));
        let schema = SchemaFile::parse("s.toml", &schema()).unwrap();
        convert_parquet(&lists, &schema, 1, &no_progress).unwrap();
        assert_eq!(samples_of(&lists.out, Part::Train).categorical, expected());
        assert!(contents(&lists.out) == contents(&text.out));
    }

    #[test]
    fn lists_that_do_not_fit_their_weights_are_bad_rows() {
        let temp = TestFolder::new();
        let null = |list: List<f64>| list.map(|list| [&[None], &list[1..]].concat());
        let not = "it must be 0, or a number from";
        let bad: Vec<(List<ByteArray>, List<f64>, String)> = vec![
            (tags(&["a", "b"]), some(&[1.0]), "1 weight for 2 categories of tags".into()),
            (tags(&["a", "b"]), None, "0 weights for 2 categories of tags".into()),
            (None, some(&[1.0]), "1 weight for 0 categories of tags".into()),
            (tags(&["a"]), some(&[-1.0]), format!("'-1' is not a weight: {not}")),
            (tags(&["a"]), some(&[f64::INFINITY]), format!("'inf' is not a weight: {not}")),
            (tags(&["a"]), some(&[f64::NAN]), format!("'NaN' is not a weight: {not}")),
            (tags(&["a", "b"]), null(some(&[1.0, 2.0])), format!("a null is not a weight: {not}")),
            // Both have one value, but it is unclear whether they belong together.
            (
                Some(vec![None, Some(ByteArray::from("a"))]),
                Some(vec![Some(1.0), None]),
                format!("a null is not a weight: {not}"),
            ),
            (Some(vec![None, Some(ByteArray::from("a"))]), some(&[1.0]), "a category of tags is null".into()),
        ];
        let count = bad.len();
        let rows = Rows {
            tags: bad.iter().map(|(tags, ..)| tags.clone()).chain([tags(&["a"])]).collect(),
            w: bad.iter().map(|(_, w, _)| w.clone()).chain([some(&[1.0])]).collect(),
            rows: vec![some(&[]); count + 1],
            shares: vec![None; count + 1],
        };
        rows.write(&temp.path("log.parquet"));
        let (on_bad, bad_limit) = (OnBad::Quarantine, BadLimit::Rows(100));
        let options =
            ConvertOptions { on_bad, bad_limit, ..options(vec![temp.path("log.parquet")], temp.path("out")) };
        let file = SchemaFile::parse("s.toml", &schema()).unwrap();
        let report = convert_parquet(&options, &file, 1, &no_progress).unwrap();
        assert_eq!((report.conversion.rows.train, report.conversion.rows.bad), (1, count as u64));
        let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
        for (number, (json, (.., why))) in named.lines().zip(&bad).enumerate() {
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!((&json["row"], &json["column"]), (&(number + 1).into(), &"w".into()), "{json}");
            assert!(json["why"].as_str().unwrap().contains(why), "{json} {why}");
        }

        // A column of one category per row has no bags.
        let scalar = "[label]\ncolumn = \"click\"\n[[categorical]]\ncolumn = \"click\"\nname = \"one\"\n\
                      weights = \"w\"\nvocabulary = { kind = \"hash\", rows = 3 }";
        let scalar = SchemaFile::parse("s.toml", scalar).unwrap();
        let refused = convert_parquet(&options, &scalar, 1, &no_progress).unwrap_err().to_string();
        assert!(refused.contains("one category per row: write it as a list"), "{refused}");
    }
}
