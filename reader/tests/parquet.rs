//! Parquet files with every kind of column, compared with the same rows as CSV; and unsuitable files.

#![allow(clippy::unwrap_used, reason = "the setup of a test may panic")]

use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType,
    FloatType, Int32Type, Int64Type, Int96, Int96Type,
};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use rankine_base::Error;
use rankine_reader::block::Block;
use rankine_reader::convert::{
    BadLimit, ConvertOptions, Encoder, KeptTexts, KnownColumns, OnBad, RawReader, SchemaFile, Split,
    convert_csv, convert_like, convert_parquet, fit_parquet,
};
use rankine_reader::schema::DenseDtype;
use rankine_reader::{Dataset, Fit, IdRules, Part, Samples};
use xxhash_rust::xxh3::xxh3_64;

use files::tree;
use samples::samples_of;

#[path = "../../tests/support/files.rs"]
mod files;
#[path = "support/samples.rs"]
mod samples;

const MESSAGE: &str = "
    message rows {
        required int32 bought;
        optional double price;
        required boolean mobile;
        optional byte_array user (UTF8);
        required int64 film;
        required int32 shop (INTEGER(32, false));
        required float ratio;
        optional int64 number (INTEGER(64, false));
        optional group genres (LIST) { repeated group list { optional byte_array element (UTF8); } }
        repeated int32 seen;
    }";

const SCHEMA: &str = "
    [label]
    column = \"bought\"
    at_least = 2

    [[dense]]
    column = \"price\"
    transform = \"log1p\"

    [[dense]]
    column = \"mobile\"

    [[categorical]]
    column = \"user\"

    [[categorical]]
    column = \"film\"
    vocabulary = { kind = \"hash\", rows = 50 }

    [[categorical]]
    column = \"shop\"
    vocabulary = { kind = \"identity\", rows = 4294967296 }

    [[categorical]]
    column = \"film\"
    name = \"film_key\"
    vocabulary = { kind = \"open\" }

    [[categorical]]
    column = \"user\"
    name = \"user_key\"
    vocabulary = { kind = \"open\" }
    ";

/// Columns that are lists in Parquet and text with a separator in CSV.
const LISTS: [&str; 2] = [
    "
    [[categorical]]
    column = \"genres\"
    vocabulary = { kind = \"exact\", min_count = 2 }
    ",
    "
    [[categorical]]
    column = \"seen\"
    pooling = \"mean\"
    vocabulary = { kind = \"identity\", rows = 1000 }
    ",
];

/// A row as in both files.
#[derive(Debug, Clone)]
struct Row {
    bought: i32,
    price: Option<f64>,
    mobile: bool,
    user: Option<String>,
    film: i64,
    shop: u32,
    ratio: f32,
    number: Option<u64>,
    genres: Option<Vec<Option<String>>>,
    seen: Vec<i32>,
}

fn rows(count: usize) -> Vec<Row> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count)
        .map(|_| Row {
            bought: (next() % 5) as i32,
            price: (next() % 4 > 0).then(|| (next() % 1000) as f64 / 10.0),
            mobile: next() % 2 == 0,
            user: (next() % 9 > 0).then(|| format!("{}user {}", "x".repeat(next() % 20), next() % 40)),
            film: next() as i64 % 300 - 100,
            shop: u32::MAX - (next() % 3) as u32,
            ratio: (next() % 1000) as f32 / 10.0,
            number: (next() % 4 > 0).then(|| u64::MAX - next() as u64 % 3),
            genres: (next() % 6 > 0).then(|| {
                (0..next() % 4).map(|_| (next() % 5 > 0).then(|| format!("g{}", next() % 7))).collect()
            }),
            seen: (0..next() % 3).map(|_| (next() % 1000) as i32).collect(),
        })
        .collect()
}

fn put<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T], levels: [&[i16]; 2]) {
    let mut column = group.next_column().unwrap().unwrap();
    let [defined, repeated] = levels.map(|levels| (!levels.is_empty()).then_some(levels));
    column.typed::<T>().write_batch(values, defined, repeated).unwrap();
    column.close().unwrap();
}

/// Writes rows in groups of `group_rows`, in pages of few rows.
fn write(path: &Path, rows: &[Row], group_rows: usize, compression: Compression) {
    // Both versions of data pages.
    let version = if group_rows < 10_000 { WriterVersion::PARQUET_1_0 } else { WriterVersion::PARQUET_2_0 };
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_writer_version(version)
        .set_data_page_row_count_limit(700)
        .set_write_batch_size(100);
    let message = Arc::new(parse_message_type(MESSAGE).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, message, Arc::new(properties.build())).unwrap();
    let bytes = |text: &String| ByteArray::from(text.as_bytes().to_vec());
    for rows in rows.chunks(group_rows) {
        let mut group = writer.next_row_group().unwrap();
        let all = |value: fn(&Row) -> i32| rows.iter().map(value).collect::<Vec<_>>();
        put::<Int32Type>(&mut group, &all(|row| row.bought), [&[], &[]]);
        let defined: Vec<_> = rows.iter().map(|row| i16::from(row.price.is_some())).collect();
        put::<DoubleType>(
            &mut group,
            &rows.iter().filter_map(|row| row.price).collect::<Vec<_>>(),
            [&defined, &[]],
        );
        put::<BoolType>(&mut group, &rows.iter().map(|row| row.mobile).collect::<Vec<_>>(), [&[], &[]]);
        let defined: Vec<_> = rows.iter().map(|row| i16::from(row.user.is_some())).collect();
        let users: Vec<_> = rows.iter().filter_map(|row| row.user.as_ref().map(bytes)).collect();
        put::<ByteArrayType>(&mut group, &users, [&defined, &[]]);
        put::<Int64Type>(&mut group, &rows.iter().map(|row| row.film).collect::<Vec<_>>(), [&[], &[]]);
        put::<Int32Type>(&mut group, &all(|row| row.shop as i32), [&[], &[]]);
        put::<FloatType>(&mut group, &rows.iter().map(|row| row.ratio).collect::<Vec<_>>(), [&[], &[]]);
        let defined: Vec<_> = rows.iter().map(|row| i16::from(row.number.is_some())).collect();
        let numbers: Vec<_> = rows.iter().filter_map(|row| Some(row.number? as i64)).collect();
        put::<Int64Type>(&mut group, &numbers, [&defined, &[]]);

        let (mut genres, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let list = row.genres.as_deref().unwrap_or(&[]);
            for (at, genre) in list.iter().enumerate() {
                genres.extend(genre.as_ref().map(bytes));
                defined.push(if genre.is_some() { 3 } else { 2 });
                repeated.push(i16::from(at > 0));
            }
            if list.is_empty() {
                defined.push(i16::from(row.genres.is_some()));
                repeated.push(0);
            }
        }
        put::<ByteArrayType>(&mut group, &genres, [&defined, &repeated]);
        let (mut defined, mut repeated) = (Vec::new(), Vec::new());
        for row in rows {
            defined.extend(vec![i16::from(!row.seen.is_empty()); row.seen.len().max(1)]);
            repeated.extend((0..row.seen.len().max(1)).map(|at| i16::from(at > 0)));
        }
        let seen: Vec<_> = rows.iter().flat_map(|row| row.seen.clone()).collect();
        put::<Int32Type>(&mut group, &seen, [&defined, &repeated]);
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Returns the same rows as text; nulls in lists are omitted.
fn csv(rows: &[Row]) -> String {
    let mut text = "bought,price,mobile,user,film,shop,genres,seen\n".to_owned();
    for row in rows {
        let price = row.price.map_or_else(String::new, |price| price.to_string());
        let genres: Vec<_> = row.genres.iter().flatten().flatten().map(String::as_str).collect();
        let seen: Vec<_> = row.seen.iter().map(i32::to_string).collect();
        text += &format!(
            "{},{price},{},{},{},{},{},{}\n",
            row.bought,
            u8::from(row.mobile),
            row.user.as_deref().unwrap_or(""),
            row.film,
            row.shop,
            genres.join("|"),
            seen.join("|")
        );
    }
    text
}

fn schema(lists: bool) -> SchemaFile {
    // Identity tables of 2^32 rows are counted in memory: reading the few rows of one shop is enough here.
    let mut text =
        SCHEMA.replace("{ kind = \"identity\", rows = 4294967296 }", "{ kind = \"hash\", rows = 1000 }");
    for list in LISTS {
        text += list;
        text += if lists { "" } else { "separator = \"|\"\n" };
    }
    SchemaFile::parse("schema.toml", &text).unwrap()
}

fn options(files: &[&Path], out: &Path) -> ConvertOptions {
    ConvertOptions {
        split: Split::Random { share: 0.2, seed: 3 }.into(),
        ..ConvertOptions::new(files.iter().map(|file| file.to_path_buf()).collect(), out.to_owned())
    }
}

/// Requires the same files in two datasets, but for those that describe the source.
#[track_caller]
fn assert_same_files(found: &Path, expected: &Path, context: &str) {
    let (found, expected) = (tree(found), tree(expected));
    for (name, bytes) in expected {
        if !["dataset.json", "conversion.json"].contains(&&*name) {
            assert!(found[&name] == bytes, "{context}: {name} differs");
        }
    }
}

/// A number that is standardized need not fit half precision before that.
#[test]
fn large_numbers_are_standardized_before_they_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut rows = rows(100);
    rows.iter_mut().enumerate().for_each(|(number, row)| row.price = Some(1e6 + number as f64));
    let file = at("rows.parquet");
    write(&file, &rows, 100, Compression::SNAPPY);
    let schema = |transform: &str| {
        let text = "[label]\ncolumn = \"bought\"\nat_least = 2\n[[dense]]\ncolumn = \"price\"\n";
        SchemaFile::parse("schema.toml", &format!("{text}transform = \"{transform}\"\n")).unwrap()
    };
    let none = |_: &'static str, _: u64, _: u64| ();
    let options = |out: &str| ConvertOptions { dense_dtype: DenseDtype::F16, ..options(&[&file], &at(out)) };
    convert_parquet(&options("standardized"), &schema("standardize"), 1, &none).unwrap();
    let report = convert_parquet(&options("as-it-is"), &schema("none"), 1, &none);
    assert!(matches!(report, Err(Error::BadRows { .. })), "1e6 does not fit half precision");
}

#[test]
fn parquet_and_csv_of_the_same_rows_give_the_same_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let rows = rows(11_000);
    let [one, two, text] = ["one.parquet", "two.parquet", "rows.csv"].map(at);
    fs::write(&text, csv(&rows)).unwrap();
    let none = |_: &'static str, _: u64, _: u64| ();
    convert_csv(&options(&[&text], &at("csv")), &schema(false), 3, &none).unwrap();
    let expected = Dataset::open(&at("csv")).unwrap();
    // Keys of integers are those of their digits.
    let number = expected.schema().categorical.iter().position(|column| column.name == "film_key").unwrap();
    let found = samples_of(&expected, Part::Train).categorical.swap_remove(number).ids;
    let mut keys = rows.iter().map(|row| xxh3_64(row.film.to_string().as_bytes()));
    assert!(found.iter().all(|id| keys.any(|key| key == *id)), "the rows of the training part, in order");
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(Default::default()),
        Compression::LZ4_RAW,
        Compression::BROTLI(Default::default()),
        Compression::GZIP(Default::default()),
    ];
    for (number, compression) in compressions.into_iter().enumerate() {
        // Group boundaries fall within chunks and blocks.
        write(&one, &rows[..6_000], 5_000, compression);
        write(&two, &rows[6_000..], 20_000, compression);
        let out = at(&number.to_string());
        let report = convert_parquet(&options(&[&one, &two], &out), &schema(true), 3, &none).unwrap();
        assert_eq!((report.conversion.rows.read, report.conversion.rows.bad), (11_000, 0));
        let made = Dataset::open(&out).unwrap();
        assert_eq!(made.schema(), expected.schema(), "{compression:?}");
        assert_same_files(&out, &at("csv"), &format!("{compression:?}"));
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let rows = rows(30_000);
    let files = ["one.parquet", "two.parquet", "three.parquet"].map(at);
    // Row groups of less than a chunk, of several, and a file with one.
    write(&files[0], &rows[..9_000], 700, Compression::SNAPPY);
    write(&files[1], &rows[9_000..21_000], 5_000, Compression::UNCOMPRESSED);
    write(&files[2], &rows[21_000..], 20_000, Compression::GZIP(Default::default()));
    let none = |_: &'static str, _: u64, _: u64| ();
    let convert = |threads: usize| {
        let out = at(&format!("{threads} threads"));
        let files = files.each_ref().map(PathBuf::as_path);
        let options =
            ConvertOptions { threads: NonZeroUsize::new(threads).unwrap(), ..options(&files, &out) };
        convert_parquet(&options, &schema(true), 2, &none).unwrap();
        tree(&out)
    };
    let one = convert(1);
    for threads in [2, 3, 8] {
        assert!(convert(threads) == one, "{threads} threads");
    }
}

#[test]
fn columns_of_parquet_and_csv_split_rows_alike() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let rows = rows(9_000);
    let [one, two, text] = ["one.parquet", "two.parquet", "rows.csv"].map(at);
    write(&one, &rows[..5_500], 5_000, Compression::SNAPPY);
    write(&two, &rows[5_500..], 5_000, Compression::SNAPPY);
    fs::write(&text, csv(&rows)).unwrap();
    let none = |_: &'static str, _: u64, _: u64| ();
    let eval = |held_out: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| held_out(row)).count() as u64;
    let is_below =
        |row: &Row| row.user.as_ref().is_some_and(|user| xxh3_64(user.as_bytes()) < u64::MAX / 10 * 3);
    for (number, (split, count)) in [
        ("hash:user:0.3", eval(&is_below)),
        ("hash:film:0.5", eval(&|row| xxh3_64(row.film.to_string().as_bytes()) < 1 << 63)),
        ("after:film:50", eval(&|row| row.film > 50)),
    ]
    .into_iter()
    .enumerate()
    {
        let split = |files: &[&Path], out: &str| ConvertOptions {
            split: split.parse().unwrap(),
            ..options(files, &at(&format!("{out}-{number}")))
        };
        let (parquet, csv) = (split(&[&one, &two], "parquet"), split(&[&text], "csv"));
        let report = convert_parquet(&parquet, &schema(true), 3, &none).unwrap();
        assert_eq!(report.conversion.rows.eval, count);
        convert_csv(&csv, &schema(false), 3, &none).unwrap();
        assert_same_files(&parquet.out, &csv.out, &report.conversion.split);
        // A shard of the second file.
        let fit = ConvertOptions { out: at(&format!("fit-{number}")), ..parquet.clone() };
        fit_parquet(&fit, &schema(true), 3, &none).unwrap();
        let known = || KnownColumns::of_fit(&Fit::open(&fit.out).unwrap()).unwrap();
        let parts = |files: &[&Path], out: &str| {
            let options = split(files, out);
            convert_like(&options, known(), false, &none).unwrap();
            let dataset = Dataset::open(&options.out).unwrap();
            Part::STORED.map(|part| samples_of(&dataset, part))
        };
        let [whole, first, second] =
            [parts(&[&one, &two], "whole"), parts(&[&one], "first"), parts(&[&two], "second")];
        for ((whole, mut both), second) in whole.into_iter().zip(first).zip(second) {
            both.append(&second, 0..second.len);
            assert!(both == whole);
        }
    }

    // The schema lacks the column `number`. A null cannot be compared.
    let bad = |split: &str, on_bad| ConvertOptions {
        split: split.parse().unwrap(),
        on_bad,
        bad_limit: BadLimit::Percent(100.0),
        ..options(&[&one], &at("bad"))
    };
    let refused = convert_parquet(&bad("after:number:5", OnBad::Fail), &schema(true), 3, &none);
    let (row, words) = (rows.iter().position(|row| row.number.is_none()).unwrap() + 1, "'' is not a number");
    let error = refused.unwrap_err().to_string();
    assert!(error.contains(&format!("one.parquet row {row}, column number: {words}")), "{error}");
    let refused = convert_parquet(&bad("hash:seen:0.1", OnBad::Fail), &schema(true), 3, &none);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("column `seen` of") && error.contains("has no text to split by"), "{error}");
    let quarantined = bad("after:number:1e30", OnBad::Quarantine);
    let report = convert_parquet(&quarantined, &schema(true), 3, &none).unwrap();
    let nulls = rows[..5_500].iter().filter(|row| row.number.is_none()).count() as u64;
    assert_eq!((report.conversion.rows.bad, report.conversion.rows.train), (nulls, 5_500 - nulls));
    let kept = fs::read_to_string(at("bad/quarantine.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(kept.lines().next().unwrap()).unwrap();
    assert_eq!((&first["number"], &first["film"]), (&serde_json::Value::Null, &rows[row - 1].film.into()));
}

#[test]
fn further_rows_of_parquet_and_csv_grow_alike() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let rows = rows(9_000);
    let none = |_: &'static str, _: u64, _: u64| ();
    let grown = |name: &str, is_parquet: bool| {
        let [old, new] = [("old", &rows[..50]), ("new", &rows[50..])].map(|(part, rows)| {
            let path = at(&format!("{part}-{name}"));
            match is_parquet {
                true => write(&path, rows, 5_000, Compression::SNAPPY),
                false => fs::write(&path, csv(rows)).unwrap(),
            }
            path
        });
        let convert = if is_parquet { convert_parquet } else { convert_csv };
        let out = at(name);
        convert(&options(&[&old], &out), &schema(is_parquet), 3, &none).unwrap();
        let known = KnownColumns::of(&Dataset::open(&out).unwrap()).unwrap();
        let out = at(&format!("grown-{name}"));
        let report = convert_like(&options(&[&new], &out), known, true, &none).unwrap();
        let new = report.columns.iter().filter_map(|(_, column)| column.exact?.new_categories);
        assert!(new.sum::<u64>() > 0, "{:?}", report.columns);
        out
    };
    assert_same_files(&grown("parquet", true), &grown("csv", false), "grown");
}

#[test]
fn bad_rows_are_named_and_kept_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    let mut rows = rows(9_000);
    rows[4_999].price = Some(f64::INFINITY);
    rows[8_000].seen = vec![1, -1, 1000];
    write(&path, &rows, 5_000, Compression::SNAPPY);
    let out = dir.path().join("out");
    let options = ConvertOptions { on_bad: OnBad::Quarantine, ..options(&[&path], &out) };
    let report = convert_parquet(&options, &schema(true), 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
    assert_eq!(report.conversion.rows.bad, 2);
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(out.join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let named = lines("bad-rows.jsonl");
    let named_rows: Vec<_> = named.iter().map(|bad| (bad["row"].as_u64(), bad["column"].as_str())).collect();
    assert_eq!(named_rows, [(Some(5_000), Some("price")), (Some(8_001), Some("seen"))]);
    assert!(
        named[1]["why"].as_str().unwrap().contains("'-1', '1000' is not a row number below 1000"),
        "{}",
        named[1]
    );
    let kept = lines("quarantine.jsonl");
    assert_eq!((&kept[0]["price"], &kept[1]["seen"]), (&"inf".into(), &serde_json::json!([1, -1, 1000])));
    assert_eq!(kept[0]["film"], rows[4_999].film);
    assert_eq!(Dataset::open(&out).unwrap().samples(Part::Train), report.conversion.rows.train);
}

/// Writes labels and weights, which may be null, and the number of each row as its category.
fn write_weighted(path: &Path, rows: &[(Option<i32>, Option<f64>)]) {
    const MESSAGE: &str =
        "message rows { optional int32 label; optional double weight; required int32 category; }";
    let message = Arc::new(parse_message_type(MESSAGE).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, message, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let labels: Vec<i32> = rows.iter().filter_map(|row| row.0).collect();
    let defined: Vec<i16> = rows.iter().map(|row| i16::from(row.0.is_some())).collect();
    put::<Int32Type>(&mut group, &labels, [&defined, &[]]);
    let weights: Vec<f64> = rows.iter().filter_map(|row| row.1).collect();
    let defined: Vec<i16> = rows.iter().map(|row| i16::from(row.1.is_some())).collect();
    put::<DoubleType>(&mut group, &weights, [&defined, &[]]);
    let categories: Vec<i32> = (0..).take(rows.len()).collect();
    put::<Int32Type>(&mut group, &categories, [&[], &[]]);
    group.close().unwrap();
    writer.close().unwrap();
}

const WEIGHTED: &str = "label = { column = \"label\" }\nweight = { column = \"weight\" }\n\
    [[categorical]]\ncolumn = \"category\"\nvocabulary = { kind = \"identity\", rows = 100 }\n";

/// A row has a weight of its own or is bad: no weight is assumed. Rows are numbered within their file.
#[test]
fn a_row_without_a_weight_is_bad_and_numbered_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let [first, second] = ["first.parquet", "second.parquet"].map(at);
    let weighted = |weights: &[Option<f64>]| -> Vec<_> { weights.iter().map(|&w| (Some(1), w)).collect() };
    write_weighted(&first, &weighted(&[Some(1.0), Some(0.0), Some(-1.0), None, Some(0.5)]));
    write_weighted(&second, &weighted(&[Some(2.0), None, Some(f64::NAN), Some(f64::INFINITY)]));
    let options = ConvertOptions {
        split: Split::None.into(),
        on_bad: OnBad::Skip,
        bad_limit: BadLimit::Percent(100.0),
        ..options(&[&first, &second], &at("out"))
    };
    let schema = SchemaFile::parse("schema.toml", WEIGHTED).unwrap();
    let reported = std::sync::Mutex::new((0, 0));
    let progress = |_: &'static str, done: u64, total: u64| *reported.lock().unwrap() = (done, total);
    convert_parquet(&options, &schema, 1, &progress).unwrap();
    let bytes: u64 = [&first, &second].iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!(*reported.lock().unwrap(), (bytes, bytes));
    let samples = samples_of(&Dataset::open(&at("out")).unwrap(), Part::Train);
    assert_eq!(samples.weights, [1.0, 0.0, 0.5, 2.0]);
    assert_eq!(samples.categorical[0].ids, [0, 1, 4, 0]);
    let bad = fs::read_to_string(at("out/bad-rows.jsonl")).unwrap();
    let bad: Vec<serde_json::Value> = bad.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        ("first", 3, "'-1'"),
        ("first", 4, "null"),
        ("second", 2, "null"),
        ("second", 3, "'NaN'"),
        ("second", 4, "'inf'"),
    ];
    assert_eq!(bad.len(), expected.len());
    for (bad, (file, row, value)) in bad.iter().zip(expected) {
        assert!(bad["file"].as_str().unwrap().ends_with(&format!("{file}.parquet")), "{bad}");
        assert_eq!((bad["row"].as_u64(), &bad["column"]), (Some(row), &"weight".into()), "{bad}");
        let why = format!("{value} is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38");
        assert_eq!(bad["why"], why);
    }
}

/// Predictions need no label, but a row to learn from or to judge by does.
#[test]
fn a_row_without_a_label_is_scored_but_bad_in_a_conversion() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let file = at("rows.parquet");
    write_weighted(&file, &[(Some(1), Some(2.0)), (None, Some(0.5)), (Some(0), Some(1.0))]);
    let none = |_: &'static str, _: u64, _: u64| ();
    let convert = |schema: &str, out: &str, on_bad| {
        let schema = SchemaFile::parse("schema.toml", schema).unwrap();
        let options = ConvertOptions {
            split: Split::None.into(),
            on_bad,
            bad_limit: BadLimit::Rows(1),
            ..options(&[&file], &at(out))
        };
        convert_parquet(&options, &schema, 1, &none)
    };
    let at_least = WEIGHTED.replace("\"label\" }", "\"label\", at_least = 1 }");
    for (schema, admitted) in [(WEIGHTED, "0 or 1"), (&at_least, "a number")] {
        let error = convert(schema, "refused", OnBad::Fail).unwrap_err().to_string();
        let words = format!("row 2, column label: null is not a label: it must be {admitted}");
        assert!(error.contains(&words), "{error}");
    }
    convert(WEIGHTED, "out", OnBad::Skip).unwrap();
    let dataset = Dataset::open(&at("out")).unwrap();
    assert_eq!(samples_of(&dataset, Part::Train).labels, [[1.0, 0.0]]);
    let reader = RawReader {
        format: &dataset.row_format().unwrap(),
        schema: dataset.schema(),
        encoder: &Encoder::open(&dataset).unwrap(),
        ids: &IdRules::default(),
        labelled: false,
        keep: &[],
        threads: NonZeroUsize::MIN,
    };
    let mut samples = Samples::new(dataset.schema());
    let take = |chunk: rankine_reader::convert::RawChunk<'_>| {
        samples.append(&chunk.samples, 0..chunk.samples.len);
        Ok::<_, Error>(())
    };
    reader.read(std::slice::from_ref(&file), &none, take).unwrap();
    assert_eq!(samples.weights, [2.0, 0.5, 1.0]);
    let labels = &samples.labels[0];
    assert!(labels[0] == 1.0 && labels[1].is_nan() && labels[2] == 0.0, "{labels:?}");
}

#[test]
fn unsigned_numbers_are_read_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    let mut rows = rows(3);
    for (row, number) in rows.iter_mut().zip([0, 1 << 63, u64::MAX]) {
        row.number = Some(number);
    }
    write(&path, &rows, 10, Compression::SNAPPY);
    let schema = "label = { column = \"bought\", at_least = 2 }\n\
                  dense = [{ column = \"number\" }, { column = \"shop\" }]";
    let options = ConvertOptions {
        split: Split::None.into(),
        dense_dtype: DenseDtype::F32,
        ..options(&[&path], &dir.path().join("out"))
    };
    let schema = SchemaFile::parse("schema.toml", schema).unwrap();
    convert_parquet(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
    let samples = samples_of(&Dataset::open(&options.out).unwrap(), Part::Train);
    // In single precision, the last 256 numbers of 32 bits are the number after them.
    let shop = 2f32.powi(32);
    assert_eq!(samples.dense, [0.0, shop, 2f32.powi(63), shop, 2f32.powi(64), shop]);
}

#[test]
fn values_up_to_their_limits_are_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    let mut rows = rows(6);
    let largest = f64::from(f32::MAX);
    (rows[0].price, rows[1].price) = (Some(largest), Some(largest * 1.001));
    (rows[2].user, rows[3].user) = (Some("u".repeat(65536)), Some("u".repeat(65537)));
    (rows[4].seen, rows[5].seen) = (vec![9; 65536], vec![9; 65537]);
    write(&path, &rows, 10, Compression::SNAPPY);
    let out = dir.path().join("out");
    let options = ConvertOptions {
        split: Split::None.into(),
        on_bad: OnBad::Skip,
        bad_limit: BadLimit::Percent(50.0),
        ..options(&[&path], &out)
    };
    convert_parquet(&options, &schema(true), 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
    let bad = fs::read_to_string(out.join("bad-rows.jsonl")).unwrap();
    let bad: Vec<serde_json::Value> = bad.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        (2, "price", "is outside the range that the column can store"),
        (4, "user", "the categories have more than 65536 bytes; they start with"),
        (6, "seen", "there are more than 65536 categories"),
    ];
    assert_eq!(bad.len(), expected.len(), "{bad:?}");
    for (bad, (row, column, why)) in bad.iter().zip(expected) {
        assert_eq!((bad["row"].as_u64(), &bad["column"]), (Some(row), &column.into()), "{bad}");
        assert!(bad["why"].as_str().unwrap().contains(why), "{bad}");
    }
}

/// A decimal of a file, in two's complement.
fn decimal(value: i128, bytes: usize) -> Vec<u8> {
    value.to_be_bytes()[16 - bytes..].to_vec()
}

/// Rows of types beyond integers, floats and strings: their texts as categories, and their numbers.
const TYPED: [[&str; 10]; 3] = [
    [
        "12.30",
        "-0.0007",
        "1.0000000001",
        "-99.5",
        "2026-02-28",
        "09:05:00.25",
        "2026-02-28T23:59:59.5",
        "9999-12-31T00:00:00.000000001",
        "",
        "1|2|3",
    ],
    [
        "0.00",
        "5.0000",
        "-0.0000000001",
        "0.0",
        "1969-12-31",
        "00:00:00",
        "1969-12-31T23:59:59.999999",
        "1970-01-01T00:00:00",
        "",
        "4",
    ],
    ["", "", "", "", "", "", "", "", "", ""],
];
/// By hand: days of a date, and seconds of a time.
const TYPED_NUMBERS: [[&str; 9]; 3] = [
    ["12.3", "-0.0007", "1.0000000001", "-99.5", "20512", "32700.25", "1772323199.5", "253402214400", "1.5"],
    ["0", "5", "-0.0000000001", "0", "-1", "0", "-0.000001", "0", "-2"],
    ["", "", "", "", "", "", "", "", ""],
];
const TYPED_NAMES: [&str; 10] =
    ["price", "amount", "exact", "any", "day", "clock", "at", "old", "half", "nested"];

fn write_typed(path: &Path) {
    let message = "message rows {
        required int32 bought;
        optional int32 price (DECIMAL(9, 2));
        optional int64 amount (DECIMAL(18, 4));
        optional fixed_len_byte_array(16) exact (DECIMAL(38, 10));
        optional byte_array any (DECIMAL(20, 1));
        optional int32 day (DATE);
        optional int32 clock (TIME(MILLIS, true));
        optional int64 at (TIMESTAMP(MICROS, true));
        optional int96 old;
        optional fixed_len_byte_array(2) half (FLOAT16);
        optional group nested (LIST) { repeated group list { optional group element (LIST) {
            repeated group list { optional int32 element; } } } }
    }";
    let message = Arc::new(parse_message_type(message).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), message, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    // The last row is null.
    let two: [&[i16]; 2] = [&[1, 1, 0], &[]];
    put::<Int32Type>(&mut group, &[0, 1, 0], [&[], &[]]);
    put::<Int32Type>(&mut group, &[1230, 0], two);
    put::<Int64Type>(&mut group, &[-7, 50_000], two);
    let fixed = [10_000_000_001, -1].map(|value| FixedLenByteArray::from(decimal(value, 16)));
    put::<FixedLenByteArrayType>(&mut group, &fixed, two);
    let any = [decimal(-995, 2), decimal(0, 1)].map(ByteArray::from);
    put::<ByteArrayType>(&mut group, &any, two);
    put::<Int32Type>(&mut group, &[20_512, -1], two);
    put::<Int32Type>(&mut group, &[32_700_250, 0], two);
    put::<Int64Type>(&mut group, &[1_772_323_199_500_000, -1], two);
    // Nanoseconds, then a Julian day: 1970-01-01 is 2440588.
    let old = [[1, 0, 2_440_588 + 2_932_896], [0, 0, 2_440_588]].map(|words| Int96::from(words.to_vec()));
    put::<Int96Type>(&mut group, &old, two);
    // 1.5 and -2 in half precision.
    let half = [[0x00, 0x3e], [0x00, 0xc0]].map(|bytes| FixedLenByteArray::from(bytes.to_vec()));
    put::<FixedLenByteArrayType>(&mut group, &half, two);
    // [[1, 2], [null], [], [3]], then [null, [4]], then null.
    let defined = [5, 5, 4, 3, 5, 2, 5, 0];
    let repeated = [0, 2, 1, 1, 1, 0, 1, 0];
    put::<Int32Type>(&mut group, &[1, 2, 3, 4], [&defined, &repeated]);
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn decimals_times_and_nested_lists_are_read_as_their_texts_and_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_typed(&at("rows.parquet"));
    // CSV has each column twice: as text and as number.
    let mut text = format!("bought,{},n{}\n", TYPED_NAMES.join(","), TYPED_NAMES[..9].join(",n"));
    for (row, (texts, numbers)) in TYPED.iter().zip(TYPED_NUMBERS).enumerate() {
        text += &format!("{},{},{}\n", row % 2, texts.join(","), numbers.join(","));
    }
    fs::write(at("rows.csv"), text).unwrap();
    let schema = |number: &str, separator: &str| {
        let mut schema = "[label]\ncolumn = \"bought\"\n".to_owned();
        for name in &TYPED_NAMES[..9] {
            schema += &format!("[[dense]]\ncolumn = \"{number}{name}\"\nname = \"{name} number\"\n");
        }
        for name in TYPED_NAMES.iter().filter(|name| **name != "half") {
            let separator = if *name == "nested" { separator } else { "" };
            schema += &format!("[[categorical]]\ncolumn = \"{name}\"\n{separator}");
        }
        SchemaFile::parse("schema.toml", &schema).unwrap()
    };
    let none = |_: &'static str, _: u64, _: u64| ();
    let options = |file: &str, out: &str| ConvertOptions {
        dense_dtype: DenseDtype::F32,
        split: Split::None.into(),
        ..ConvertOptions::new(vec![at(file)], at(out))
    };
    convert_csv(&options("rows.csv", "csv"), &schema("n", "separator = \"|\"\n"), 1, &none).unwrap();
    convert_parquet(&options("rows.parquet", "parquet"), &schema("", ""), 1, &none).unwrap();
    assert_same_files(&at("parquet"), &at("csv"), "typed columns");
    // Samples have the nearest numbers in single precision.
    let samples = samples_of(&Dataset::open(&at("parquet")).unwrap(), Part::Train);
    assert_eq!(
        samples.dense[..9],
        [12.3, -0.0007, 1.0, -99.5, 20512.0, 32700.25, 1_772_323_200.0, 253_402_214_400.0, 1.5]
    );
}

/// Files that are changed in a pass: see the tests of the other formats in the reader.
#[test]
fn a_file_that_changes_while_it_is_converted_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    let schema =
        SchemaFile::parse("schema.toml", &WEIGHTED.replace("identity\", rows = 100", "exact\"")).unwrap();
    for changed_in in ["counting rows", "learning", "writing"] {
        for renamed in [false, true] {
            write_weighted(&path, &[(Some(1), Some(1.0)); 10]);
            // The clock may not advance before the file is written again.
            let old = File::options().write(true).open(&path).unwrap();
            old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            let options = ConvertOptions {
                split: Split::Last { share: 0.2 }.into(),
                ..options(&[&path], &dir.path().join("out"))
            };
            let progress = |pass: &'static str, _: u64, _: u64| {
                if pass == changed_in && renamed {
                    write_weighted(&dir.path().join("new"), &[(Some(1), Some(2.0)); 10]);
                    fs::rename(dir.path().join("new"), &path).unwrap();
                } else if pass == changed_in {
                    write_weighted(&path, &[(Some(1), Some(2.0)); 10]);
                }
            };
            let error = convert_parquet(&options, &schema, 1, &progress).unwrap_err();
            let what =
                if renamed { "replaced by another file" } else { "changed (its length or times differ)" };
            let words = format!("{} was {what} while it was read", path.display());
            assert!(
                matches!(&error, Error::Changed { what, .. } if what.starts_with(&words)),
                "{changed_in}: {error}"
            );
            assert!(!options.out.exists());
        }
    }
}

#[test]
fn unsuitable_columns_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    write(&path, &rows(10), 10, Compression::SNAPPY);
    let refusal = |path: &Path, schema: &str| {
        let schema = SchemaFile::parse("schema.toml", schema).unwrap();
        let out = dir.path().join("out");
        let options = ConvertOptions::new(vec![path.to_owned()], out);
        let outcome = convert_parquet(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ());
        outcome.unwrap_err()
    };
    let label = "[label]\ncolumn = \"bought\"\n";
    for (schema, words) in [
        (
            format!("{label}[[dense]]\ncolumn = \"prise\""),
            "has no column `prise` (did you mean `price`?); it has `bought`",
        ),
        (format!("{label}[[dense]]\ncolumn = \"user\""), "column `user` has strings in"),
        (format!("{label}[[dense]]\ncolumn = \"seen\""), "rows.parquet, but must have one value per row"),
        (
            format!("{label}[[categorical]]\ncolumn = \"price\""),
            "rows.parquet, but must have categories (strings, integers, decimals, dates or times)",
        ),
        ("[label]\ncolumn = \"bought\"\nequals = \"yes\"".into(), "column `bought` has integers in"),
        (
            format!("{label}[[categorical]]\ncolumn = \"genres\"\nseparator = \"|\""),
            "the column is already a list: remove its separator",
        ),
        (format!("{label}[format]\ndelimiter = \";\""), "Parquet needs no [format]: remove it"),
    ] {
        let error = refusal(&path, &schema);
        assert!(matches!(error, Error::Document(_)) && error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("schema.toml:"), "{error}");
    }
    let whole = fs::read(&path).unwrap();
    let torn: PathBuf = dir.path().join("torn.parquet");
    fs::write(&torn, &whole[..whole.len() - 20]).unwrap();
    let error = refusal(&torn, label);
    assert!(matches!(error, Error::Damaged { .. }) && error.to_string().contains("torn.parquet"), "{error}");
}

/// Rows with labels are those of a conversion, and columns that the model does not use are kept as text.
#[test]
fn labelled_rows_are_those_of_a_conversion_and_texts_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (old, new) = (at("old.parquet"), at("new.parquet"));
    let mut rows = rows(9_000);
    write(&old, &rows[..3_000], 5_000, Compression::SNAPPY);
    // A bad row in the second chunk.
    rows[8_000].seen = vec![1000];
    write(&new, &rows[3_000..], 4_000, Compression::SNAPPY);
    let none = |_: &'static str, _: u64, _: u64| ();
    let all = |files: &[&Path], out: &str| ConvertOptions {
        split: Split::None.into(),
        on_bad: OnBad::Skip,
        ..options(files, &at(out))
    };
    // The model uses neither users nor shops.
    let text = format!("{}{}", &SCHEMA[..SCHEMA.find("[[categorical]]").unwrap()], LISTS.concat());
    let schema = SchemaFile::parse("schema.toml", &text).unwrap();
    convert_parquet(&all(&[&old], "old"), &schema, 2, &none).unwrap();
    let dataset = Dataset::open(&at("old")).unwrap();
    convert_like(&all(&[&new], "new"), KnownColumns::of(&dataset).unwrap(), false, &none).unwrap();

    let encoder = Encoder::open(&dataset).unwrap();
    let read = |files: &[PathBuf], keep: &[&str]| {
        let keep: Vec<_> = keep.iter().map(|name| (*name).to_owned()).collect();
        let reader = RawReader {
            format: &dataset.row_format().unwrap(),
            schema: dataset.schema(),
            encoder: &encoder,
            ids: &IdRules::default(),
            labelled: true,
            keep: &keep,
            threads: NonZeroUsize::MIN,
        };
        let (mut samples, mut kept) = (Samples::new(dataset.schema()), KeptTexts::new(keep.len()));
        reader.read(files, &none, |chunk| {
            samples.append(&chunk.samples, 0..chunk.samples.len);
            kept.append(&chunk.kept, 0..chunk.samples.len);
            Ok::<_, Error>(())
        })?;
        Ok::<_, Error>((samples, kept))
    };
    let keep = ["shop", "user", "price", "mobile", "ratio", "number"];
    let (samples, kept) = read(std::slice::from_ref(&new), &keep).unwrap();
    assert!(samples == samples_of(&Dataset::open(&at("new")).unwrap(), Part::Train));
    let text = |row: &Row| {
        let user = row.user.clone().unwrap_or_default();
        let price = row.price.map_or_else(String::new, |price| price.to_string());
        // It has the digits of a FLOAT: as a double, 0.1 would have others.
        let ratio = row.ratio.to_string();
        let number = row.number.map_or_else(String::new, |number| number.to_string());
        [row.shop.to_string(), user, price, row.mobile.to_string(), ratio, number]
    };
    rows.remove(8_000);
    assert_eq!(samples.len, rows.len() - 3_000);
    for (number, row) in rows[3_000..].iter().enumerate() {
        let found: Vec<_> = kept.row(number).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
        assert_eq!(found, text(row), "row {number}");
    }
    for (column, words) in [
        ("genres", "column `genres` of"),
        ("seen", "is a list, which has no text to keep"),
        ("usr", "new.parquet has no column `usr` (did you mean `user`?)"),
    ] {
        let error = read(std::slice::from_ref(&new), &[column]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = read(&["-".into()], &[]).unwrap_err().to_string();
    assert!(error.starts_with("Parquet cannot be read from standard input"), "{error}");
}
