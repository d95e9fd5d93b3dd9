//! CSV: schema files, fields, whole conversions and prediction.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use proptest::prelude::*;

use crate::convert::tests::{SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::{DenseDtype, DenseFunction, Hotness, Pooling, VocabularyKind};
use crate::tests::tree;
use crate::vocabulary::hash_row;

const SCHEMA: &str = r#"
[[label]]
column = "rating"
name = "liked"
at_least = 4

[[label]]
column = "action"
equals = "buy"
missing = "mask"

[weight]
column = "w"

[[dense]]
column = "price"
transform = ["log1p", "standardize"]

[[dense]]
column = "price"
name = "price_raw"

[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }

[[categorical]]
column = "seen"
vocabulary = { kind = "shared", with = "film" }
separator = "|"
pooling = "mean"

[[categorical]]
column = "genres"
vocabulary = { kind = "hash", rows = 97 }
separator = "::"

[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }
"#;

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn convert_text(options: &ConvertOptions, schema: &str) -> Result<ConversionReport> {
    let schema = SchemaFile::parse("s.toml", schema)?;
    convert_csv_within(options, &schema, 1, SMALL, &no_progress)
}

fn f32_options(files: Vec<PathBuf>, out: PathBuf) -> ConvertOptions {
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, out) }
}

/// A row in simple form, independent of order and quoting in the file.
#[derive(Debug, Clone)]
struct Row {
    rating: String,
    action: String,
    w: String,
    price: String,
    film: String,
    seen: Vec<String>,
    genres: Vec<String>,
    hour: u64,
}

fn rows(count: u64, seed: u64) -> Vec<Row> {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let titles = ["Heat", "Big, The", "say \"hi\"", "two\nlines", "", "a title of more than 15 bytes", "Ran"];
    let title = |n: u64| titles[n as usize].to_owned();
    let row = |_| Row {
        rating: ["1", "3.5", "4", "5.0"][next(4) as usize].into(),
        action: ["buy", "view", ""][next(3) as usize].into(),
        w: ["1", "0", "2.5"][next(3) as usize].into(),
        price: if next(5) == 0 { String::new() } else { format!("{}.{}", next(1000), next(100)) },
        film: title(next(7)),
        seen: (0..next(4)).map(|_| title([0, 1, 2, 3, 5, 6][next(6) as usize])).collect(),
        genres: (0..next(3)).map(|_| format!("g{}", next(30))).collect(),
        hour: next(24),
    };
    (0..count).map(row).collect()
}

fn quoted(field: &str) -> String {
    match field.contains(['"', ',', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

/// Returns the rows as a file with its columns in one of two orders.
fn csv(rows: &[Row], other_order: bool, line_end: &str) -> String {
    let mut text = String::new();
    let header = match other_order {
        false => "rating,action,w,price,film,seen,genres,hour",
        true => "hour,unused,genres,seen,film,\"price\",w,action,rating",
    };
    text += &[header, line_end].concat();
    for row in rows {
        let (seen, genres, hour) = (row.seen.join("|"), row.genres.join("::"), row.hour.to_string());
        let mut fields =
            vec![&*row.rating, &*row.action, &*row.w, &*row.price, &*row.film, &*seen, &*genres, &*hour];
        if other_order {
            fields.reverse();
            fields.insert(1, "\"not, used\"");
        }
        let fields: Vec<_> = fields
            .iter()
            .map(|field| if field.contains("not, used") { (*field).to_owned() } else { quoted(field) })
            .collect();
        text += &[&fields.join(","), line_end].concat();
    }
    text
}

fn gzip(text: &str) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(text.as_bytes()).unwrap();
    out.finish().unwrap()
}

#[test]
fn samples_match_the_rows() {
    let temp = TestFolder::new();
    let all = rows(500, 1);
    let files = vec![
        temp.file("a.csv", csv(&all[..200], false, "\n")),
        temp.file("b.csv.gz", gzip(&format!("\u{feff}{}", csv(&all[200..], true, "\r\n")))),
    ];
    let options =
        ConvertOptions { split: Split::Last { share: 0.2 }.into(), ..f32_options(files, temp.path("out")) };
    let report = convert_text(&options, SCHEMA).unwrap();
    assert_eq!(report.conversion.rows, RowCounts { read: 500, kept: 500, bad: 0, train: 400, eval: 100 });

    let dataset = Dataset::open(&options.out).unwrap();
    let schema = dataset.schema();
    let mut samples = samples_of(&options.out, Part::Train);
    samples.append(&samples_of(&options.out, Part::Eval), 0..100);
    // Films are counted in both columns that share the vocabulary, in the training part.
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &all[..400] {
        row.seen.iter().chain([&row.film]).for_each(|film| *counts.entry(film).or_insert(0) += 1);
    }
    let mut kept: Vec<_> = counts.into_iter().filter(|&(_, count)| count >= 2).collect();
    kept.sort_by_key(|&(film, count)| (std::cmp::Reverse(count), film));
    let film_row = |film: &String| kept.iter().position(|kept| kept.0 == film).map_or(0, |at| at as u64 + 1);
    assert_eq!(schema.categorical[0].rows, Some(kept.len() as u64 + 1));
    assert_eq!(schema.categorical[1].rows, schema.categorical[0].rows);
    assert_eq!(schema.categorical[1].shares.as_deref(), Some("film"));
    let poolings: Vec<_> = schema.categorical.iter().map(|column| column.pooling).collect();
    assert_eq!(poolings, [Pooling::Sum, Pooling::Mean, Pooling::Sum, Pooling::Sum]);
    assert!(!options.out.join("vocabulary/seen.tsv").exists());
    assert_eq!(
        (schema.categorical[1].hotness, schema.categorical[1].pooling),
        (Hotness::Ragged { max: 3 }, Pooling::Mean)
    );

    let logs: Vec<f64> =
        all[..400].iter().filter_map(|row| row.price.parse().ok()).map(|x: f64| x.ln_1p()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let deviation = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
    for (number, row) in all.iter().enumerate() {
        let liked = f32::from(u8::from(row.rating.parse::<f64>().unwrap() >= 4.0));
        assert_eq!(samples.labels[0][number], liked);
        let bought = samples.labels[1][number];
        assert!(if row.action.is_empty() {
            bought.is_nan()
        } else {
            (bought == 1.0) == (row.action == "buy")
        });
        assert_eq!(samples.weights[number], row.w.parse::<f32>().unwrap());
        let price: Option<f64> = row.price.parse().ok();
        let expected = price.map_or(0.0, |x| (x.ln_1p() - mean) / deviation);
        assert!((f64::from(samples.dense[2 * number]) - expected).abs() < 1e-5);
        assert_eq!(samples.dense[2 * number + 1], price.unwrap_or(0.0) as f32);
        let bag = |column: usize| samples.categorical[column].bag(number);
        assert_eq!(bag(0), [film_row(&row.film)]);
        assert!(row.seen.iter().map(film_row).eq(bag(1).iter().copied()), "{row:?}");
        assert!(row.genres.iter().map(|genre| hash_row(genre.as_bytes(), 97)).eq(bag(2).iter().copied()));
        assert_eq!(bag(3), [row.hour]);
    }
    let missing = all[..400].iter().filter(|row| row.action.is_empty()).count() as u64;
    assert_eq!(dataset.manifest().unwrap().parts[&Part::Train].missing, [0, missing]);
    assert!(crate::verify::verify(&dataset, NonZeroUsize::MIN).unwrap().is_whole());
}

#[test]
fn output_does_not_depend_on_threads_or_memory() {
    let temp = TestFolder::new();
    let mut text = csv(&rows(900, 2), false, "\n");
    text += "5,buy,1,1,\"never closed,,,3\n4,view,nan,1,Heat,,,3\n";
    let file = temp.file("a.csv", text);
    let converted = |out: &str, threads: usize, memory: u64| {
        let options = ConvertOptions {
            on_bad: OnBad::Quarantine,
            split: Split::Random { share: 0.3, seed: 5 }.into(),
            threads: NonZeroUsize::new(threads).unwrap(),
            memory,
            ..f32_options(vec![file.clone()], temp.path(out))
        };
        convert_text(&options, SCHEMA).unwrap();
        tree(&options.out)
    };
    let one = converted("one", 1, 1 << 30);
    assert!(one.contains_key("quarantine.csv") && one.contains_key("eval/index.bin"));
    assert!(converted("two", 2, 1 << 30) == one);
    assert!(converted("five", 5, 0) == one);
}

#[test]
fn bad_rows_are_named_with_their_line_and_reason() {
    let temp = TestFolder::new();
    let good = "4,buy,1,2.5,Heat,Ran|Heat,a::b,3";
    let with = |field: usize, value: &str| {
        let mut fields: Vec<_> = good.split(',').collect();
        fields[field] = value;
        fields.join(",")
    };
    let many = vec!["x"; BAG_MAX as usize + 1].join("|");
    let bad = [
        (BadReason::Label, with(0, "good"), Some("rating"), "'good' is not a label: it must be a number"),
        (BadReason::Label, with(0, ""), Some("rating"), "'' is not a label"),
        (BadReason::Weight, with(2, "-1"), Some("w"), "'-1' is not a weight"),
        (BadReason::Weight, with(2, ""), Some("w"), "'' is not a weight"),
        (
            BadReason::Weight,
            with(2, "1e-300"),
            Some("w"),
            "'1e-300' is not a weight: it must be 0, or a number from",
        ),
        (BadReason::Number, with(3, "1,2"), None, "expected 8 fields, found 9,"),
        (BadReason::Number, with(3, "cheap"), Some("price"), "'cheap' is not a number: it must be empty or"),
        (BadReason::Number, with(3, "1e300"), Some("price"), "within 3.4e38"),
        (BadReason::RowNumber, with(7, "24"), Some("hour"), "'24' is not a row number below 24"),
        (BadReason::RowNumber, with(7, ""), Some("hour"), "'' is not a row number"),
        (BadReason::FieldCount, "4,buy".into(), None, "expected 8 fields, found 2,"),
        (BadReason::Quote, with(4, "\"Heat\" 2"), None, "a quote is not closed, or text follows"),
        (BadReason::Bag, with(5, &many), Some("seen"), "more than 65536 categories"),
        (BadReason::LineTooLong, with(4, &"x".repeat(2 << 20)), None, "longer than 1048576 bytes"),
        // Last, because it would end at the next quote.
        (BadReason::Quote, with(4, "\"Heat"), None, "a quote is not closed"),
    ];
    // A good row of two lines before each bad one, so that lines and rows differ.
    let two_lines = with(4, "\"He\nat\"");
    let mut text = String::from("rating,action,w,price,film,seen,genres,hour\n");
    bad.iter().for_each(|(_, row, ..)| text += &format!("{two_lines}\n{row}\n"));
    let options = ConvertOptions {
        on_bad: OnBad::Quarantine,
        bad_limit: BadLimit::Rows(100),
        ..f32_options(vec![temp.file("a.csv", &text)], temp.path("out"))
    };
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    let report = convert_csv(&options, &schema, 1, &no_progress).unwrap();
    assert_eq!(
        (report.conversion.rows.train, report.conversion.rows.bad),
        (bad.len() as u64, bad.len() as u64)
    );
    let named = fs::read_to_string(options.out.join(BAD_ROWS_NAME)).unwrap();
    assert_eq!(named.lines().count(), bad.len());
    for (number, (json, (reason, _, column, why))) in named.lines().zip(&bad).enumerate() {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["line"], 3 * number as u64 + 4, "{json}");
        assert_eq!(json["column"].as_str(), *column);
        assert!(json["why"].as_str().unwrap().contains(why), "{json} {reason:?}");
    }
    let kept: String = bad.iter().flat_map(|(_, row, ..)| [row.as_str(), "\n"]).collect();
    assert!(fs::read_to_string(options.out.join("quarantine.csv")).unwrap() == kept);
    assert_eq!(report.bad_by_reason[&BadReason::Number], 2);

    // A number that half precision cannot store is bad if the column is not transformed.
    let schema = "label = { column = \"l\" }\ndense = [{ column = \"x\" }]";
    let options = ConvertOptions::new(vec![temp.file("f.csv", "l,x\n0,65504\n1,65505\n")], temp.path("half"));
    let refusal = convert_text(&options, schema).unwrap_err().to_string();
    assert!(
        refusal.contains("f.csv line 3, column x: '65505' is not a number that f16 can store"),
        "{refusal}"
    );
    let standardized = schema.replace("\"x\"", "\"x\", transform = \"standardize\"");
    convert_text(&options, &standardized).unwrap();
    assert_eq!(samples_of(&options.out, Part::Train).dense, [-1.0, 1.0]);
}

#[test]
fn files_need_their_columns() {
    let temp = TestFolder::new();
    let refusal = |name: &str, text: &str, schema: &str| {
        let options = f32_options(vec![temp.file(name, text)], temp.path("out"));
        let refusal = convert_text(&options, schema).unwrap_err().to_string();
        assert!(!temp.path("out").exists() && !temp.path("out.partial").exists());
        refusal
    };
    let schema = "[label]\ncolumn = \"click\"\n[[categorical]]\ncolumn = \"site\"";
    let lacks = refusal("a.csv", "click,sites\n1,a\n", schema);
    assert!(lacks.starts_with("s.toml:4:10: ") && lacks.contains("column = \"site\"\n"), "{lacks}");
    assert!(lacks.contains("a.csv has no column `site` (did you mean `sites`?)"), "{lacks}");
    let twice = refusal("b.csv", "click,site,x,site\n1,a,b,c\n", schema);
    assert!(twice.contains("has two columns named `site`; the second is field 4"), "{twice}");
    assert!(refusal("empty.csv", "", schema).contains("empty.csv is empty"));
    assert!(refusal("header.csv", "click,site\n", schema).contains("the files have no rows"));
    let long = format!("click,site,{}\n1,a,b\n", "x".repeat(SMALL.line_bytes_max));
    assert!(refusal("long.csv", &long, schema).contains("the first line of"));
    assert!(refusal("quote.csv", "click,\"site\n1,a\n", schema).contains("a quote that is not closed"));
    let no_header = format!("{schema}\n[format]\nheader = false\ncolumns = [\"click\", \"page\"]");
    assert!(refusal("c.csv", "1,a\n", &no_header).contains("s.toml:4:10"));

    // The hint about a missing header is only given if the first line may be a row.
    let hint = "If the file has no header and its first line is a row, write header = false";
    for text in ["1,a\n0,b\n", "click,7\n", "yes,a\n"] {
        let lacks = refusal("bare.csv", text, schema);
        assert!(lacks.contains("bare.csv has no column") && lacks.contains(hint), "{lacks}");
    }
    for (text, schema) in [("click,sites\n1,a\n", schema), ("1,a\n", &*no_header)] {
        let lacks = refusal("named.csv", text, schema);
        assert!(lacks.contains("has no column `site`") && !lacks.contains(hint), "{lacks}");
    }
}

#[test]
fn formats_are_read_as_the_schema_file_describes() {
    let temp = TestFolder::new();
    let columns = "[label]\ncolumn = \"l\"\n[[categorical]]\ncolumn = \"c\"\n\
        vocabulary = { kind = \"hash\", rows = 50 }\n";
    let ids = |name: &str, text: &str, format: &str| {
        let options = f32_options(vec![temp.file(name, text)], temp.path(&format!("{name}.out")));
        convert_text(&options, &format!("{columns}[format]\n{format}")).unwrap();
        samples_of(&options.out, Part::Train).categorical[0].ids.clone()
    };
    let hashed = |texts: &[&str]| texts.iter().map(|text| hash_row(text.as_bytes(), 50)).collect::<Vec<_>>();
    let plain = hashed(&["a", "b c"]);
    assert_eq!(ids("tabs", "l\tc\n0\ta\n1\tb c", "delimiter = \"\\t\""), plain);
    assert_eq!(
        ids(
            "bare",
            "0;a;x\n1;b c;y\n\n",
            "delimiter = \";\"\nheader = false\ncolumns = [\"l\", \"c\", \"d\"]"
        ),
        plain
    );
    assert_eq!(ids("trim", "l , c\n 0,\ta \n1 , \"b c\" \n", "trim = true"), plain);
    assert_eq!(ids("kept", "l,c\n0, a \n", ""), hashed(&[" a "]));
    assert_eq!(ids("loose", "l,c\n0,a\"b\"\n1,\"\"\n", ""), hashed(&["a\"b\"", ""]));
    assert_eq!(ids("literal", "l,c\n0,\"a\"\n1,\"\n", "quote = false"), hashed(&["\"a\"", "\""]));
    assert_eq!(ids("ends", "c,l\r\n\"a\r\nb\",0\r\nc,1", ""), hashed(&["a\r\nb", "c"]));
}

#[test]
fn rows_are_predicted_without_labels() {
    let temp = TestFolder::new();
    let all = rows(300, 3);
    let options = f32_options(vec![temp.file("a.csv", csv(&all, false, "\n"))], temp.path("out"));
    convert_text(&options, SCHEMA).unwrap();
    let dataset = Dataset::open(&options.out).unwrap();
    let Origin::Converted(conversion) = &dataset.manifest().unwrap().origin else {
        panic!("it was converted")
    };
    let encoder = Encoder::open(&dataset).unwrap();
    let read = |name: &str, text: &str| -> Result<(Samples, Vec<u64>, Vec<String>)> {
        let files = [temp.file(name, text)];
        let mut read = (Samples::new(dataset.schema()), Vec::new());
        let take = |chunk: RawChunk<'_>| -> Result<()> {
            read.0.append(&chunk.samples, 0..chunk.samples.len);
            read.1.extend(chunk.bad.map(|(row, name)| format!("{}: {name}", chunk.first_row + row)));
            Ok(())
        };
        let reader = RawReader {
            format: &conversion.format,
            schema: dataset.schema(),
            encoder: &encoder,
            ids: &crate::IdRules::default(),
            labelled: false,
            keep: &[],
            threads: NonZeroUsize::new(3).unwrap(),
        };
        let unknown = reader.read(&files, &no_progress, take)?;
        Ok((read.0, unknown.iter().map(|of| of.lookups).collect(), read.1))
    };
    let train = samples_of(&options.out, Part::Train);
    let (same, _, bad) = read("again.csv", &csv(&all, true, "\n")).unwrap();
    assert!(bad.is_empty() && same == train);

    // Neither labels nor weights, an unknown category, a bag larger than any in training, and a bad row.
    let text = "film,seen,genres,hour,price\nHeat,Ran,,3,1\nSolaris,a|b|c|Ran|Ran|Ran,,3,\nHeat,,,99,1\nHeat,,,4,1\n";
    let (samples, unknown, bad) = read("unlabelled.csv", text).unwrap();
    assert_eq!(samples.len, 3);
    assert!(samples.labels.iter().flatten().all(|label| label.is_nan()));
    assert_eq!((samples.weights, unknown), (vec![1.0; 3], vec![1, 3, 0, 0]));
    assert_eq!(samples.categorical[1].bag(1).len(), 6);
    let name = temp.path("unlabelled.csv");
    assert_eq!(
        bad,
        [format!("2: {} line 4, column hour: '99' is not a row number below 24", name.display())]
    );
    // An empty label is not a fault here, but a wrong one is.
    let text = "rating,film,seen,genres,hour,price\n,Heat,,,3,1\nbad,Heat,,,3,1\n";
    let (samples, _, bad) = read("partly.csv", text).unwrap();
    assert_eq!((samples.len, bad.len()), (1, 1));
    let refusal = read("lacking.csv", "film,seen,genres,price\n").unwrap_err();
    assert!(matches!(&refusal, Error::Columns { column: Some(column), .. } if column == "hour"));
    assert!(refusal.to_string().contains("lacking.csv has no column `hour`"), "{refusal}");
}

#[test]
fn mistakes_in_a_schema_file_are_shown_with_their_position() {
    let label = "[label]\ncolumn = \"l\"\n";
    let dense = |transform: &str| format!("{label}[[dense]]\ncolumn = \"x\"\ntransform = {transform}");
    let categorical = |rest: &str| format!("{label}[[categorical]]\ncolumn = \"c\"\n{rest}");
    for (text, position, what) in [
        ("", "", "the schema has no label"),
        ("[label]\ncolumn = 3", "2:10", "expected a string"),
        ("[label]\ncolum = \"l\"", "2:1", "did you mean `column`?"),
        ("[labels]\n", "1:2", "did you mean `label`?"),
        ("[label", "1:7", "invalid TOML: unclosed table"),
        ("label = 3", "1:9", "`label`: expected a table, found a number"),
        ("[label]\ncolum = \"l\"", "2:1", "unknown key `colum` in [label]\n"),
        ("[[label]]\ncolum = \"l\"", "2:1", "unknown key `colum` in [label.0]\n"),
        ("[label]\ncolumn = \"l\"\nequals = 1979-05-27", "3:10", "expected a value other than a date"),
        ("[label]\ncolumn = \"l\"\nat_least = 1\nequals = 2", "4:10", "cannot be combined"),
        ("[label]\ncolumn = \"l\"\nequals = []", "3:10", "equals must be a number or the text"),
        ("[label]\ncolumn = \"l\"\nequals = \"\"", "3:10", "equals must be a number or the text"),
        ("[label]\ncolumn = \"l\"\nequals = nan", "3:10", "equals must be a number or the text"),
        ("[label]\ncolumn = \"l\"\nat_least = inf", "3:12", "at_least must be a finite number"),
        ("[label]\ncolumn = \"l\"\nmissing = \"maks\"", "3:11", "did you mean `mask`?"),
        ("[label]\ncolumn = \"l\"\nnegatives_kept = 0", "3:18", "must be above 0 and at most 1"),
        ("[label]\ncolumn = \"l\"\nnegatives_kept = 10", "3:18", "0.1 if every tenth negative was kept"),
        ("[label]\ncolumn = \"l\"\nnegatives_kept = nan", "3:18", "must be above 0 and at most 1"),
        ("[label]\ncolumn = \"l\"\n[weight]\ncolumn = \"l\"", "4:10", "the name `l` is already used"),
        ("[label]\ncolumn = \"a/b\"", "2:10", "is not a valid file name"),
        (&dense("\"log\""), "5:13", "unknown value `log` for `dense.0.transform`"),
        (&dense("\"standardise\""), "5:13", "did you mean `standardize`?"),
        (&dense("3"), "5:13", "`dense.0.transform`: expected a name, found a number"),
        (&dense("[\"log1p\", \"none\"]"), "5:23", "none cannot be combined with other transforms"),
        (&dense("[\"standardize\", \"log1p\"]"), "5:29", "a logarithm must come before standardize"),
        (&dense("[\"log1p\", \"mlperf-log\"]"), "5:23", "only one logarithm: remove one of them"),
        (&dense("[\"none\", \"standardize\"]"), "5:14", "none cannot be combined with other transforms"),
        (&dense("[\"standardize\", \"standardize\"]"), "5:29", "twice"),
        (&categorical("separator = \"\""), "5:13", "separator must not be empty"),
        (&categorical("pooling = \"max\""), "5:11", "unknown value `max` for `categorical.0.pooling`"),
        (
            &categorical("vocabulary = { kind = \"exact\", rows = 3 }"),
            "5:32",
            "the kind `exact` has no key `rows` in [categorical.0.vocabulary]",
        ),
        (
            &categorical("vocabulary = { kind = \"exact\", min_count = 0 }"),
            "5:44",
            "use 1 to keep every category",
        ),
        (
            &categorical("vocabulary = { kind = \"hash\" }"),
            "5:14",
            "vocabulary], which the kind `hash` needs",
        ),
        (&categorical("vocabulary = { kind = \"hash\", rows = 0 }"), "5:38", "a number from 1 to"),
        (
            &categorical("vocabulary = { kind = \"hash\", rows = 4294967297 }"),
            "5:38",
            "a number from 1 to 4294967296",
        ),
        (&categorical("vocabulary = { kind = \"shared\" }"), "5:14", "missing key `with`"),
        (
            &categorical(
                "[[categorical]]\ncolumn = \"d\"\nvocabulary = { kind = \"shared\", with = \"c\" }\n\
                 [[categorical]]\ncolumn = \"e\"\nvocabulary = { kind = \"shared\", with = \"d\" }",
            ),
            "10:40",
            "that column itself shares the vocabulary of \"c\"",
        ),
        (&format!("{label}[format]\ndelimiter = \"\\n\""), "4:13", "one ASCII character"),
        (&format!("{label}[format]\ndelimiter = '\"'"), "4:13", "one ASCII character"),
        (&format!("{label}[format]\ndelimiter = \"\u{e9}\""), "4:13", "one ASCII character"),
        (
            &categorical("vocabulary = { kind = \"shared\", with = \"c\" }"),
            "5:40",
            "no earlier categorical column",
        ),
        (&format!("{label}[format]\ndelimiter = \"ab\""), "4:13", "one ASCII character"),
        (&format!("{label}[format]\nheader = false"), "3:1", "columns = [\"...\""),
        (&format!("{label}[format]\ncolumns = [\"a\"]"), "4:11", "add header = false"),
        (&format!("{label}[format]\nheader = false\ncolumns = [\"a\", \"a\"]"), "5:17", "listed twice"),
    ] {
        let refusal = SchemaFile::parse("s.toml", text).unwrap_err().to_string();
        let place = if position.is_empty() { "s.toml".into() } else { format!("s.toml:{position}") };
        assert!(refusal.starts_with(&format!("{place}: ")), "{text}\n{refusal}");
        assert!(refusal.contains(what), "{text}\n{refusal}");
    }
}

#[test]
fn a_schema_file_becomes_a_plan() {
    let text = "[[label]]\ncolumn = \"a\"\nequals = 2\n[[label]]\ncolumn = \"b\"\n\
        [[dense]]\ncolumn = \"x\"\ntransform = [\"mlperf-log\", \"standardize\"]\n[[dense]]\ncolumn = \"y\"\n\
        [[categorical]]\ncolumn = \"c\"\n[[categorical]]\ncolumn = \"d\"\n\
        vocabulary = { kind = \"shared\", with = \"c\" }\n\
        [[categorical]]\ncolumn = \"e\"\nvocabulary = { kind = \"exact\", min_count = 3 }";
    let plan = SchemaFile::parse("s.toml", text).unwrap().csv_plan(7, DenseDtype::F16).unwrap();
    assert_eq!(plan.draft.dense[0].transform.function, DenseFunction::MlperfLog);
    assert_eq!(plan.draft.dense[1].transform.function, DenseFunction::None);
    assert_eq!((&plan.standardized[..], plan.draft.dense_dtype), (&[true, false][..], DenseDtype::F16));
    let exact = |min_count| VocabularyKind::Exact { min_count };
    let kinds: Vec<_> = plan.draft.categorical.iter().map(|column| column.vocabulary.clone()).collect();
    assert_eq!(kinds, [exact(7), exact(7), exact(3)]);
    let RowFormat::Csv(format) = &plan.format else { panic!("{:?}", plan.format) };
    assert_eq!((format.delimiter, format.quote, format.trim, &format.columns), (',', true, false, &None));
    assert_eq!(format.sources.labels[0].rule, LabelRule::EqualsNumber(2.0));
    assert_eq!(format.sources.labels[1].rule, LabelRule::Binary);
    // A plan is restored from a manifest.
    let json = serde_json::to_string(&plan.format).unwrap();
    assert_eq!(serde_json::from_str::<RowFormat>(&json).unwrap(), plan.format);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any fields are restored, quoted where necessary and elsewhere.
    #[test]
    fn fields_are_restored(
        rows in prop::collection::vec((any::<bool>(), "[a-c ,\"\n\r;]{0,12}", any::<bool>()), 1..40),
        delimiter in prop::sample::select(&[',', ';', '\t'][..]),
    ) {
        let temp = TestFolder::new();
        let mut text = format!("c{delimiter}l\n");
        for (label, field, quote) in &rows {
            let needed = field.contains([delimiter, '"', '\n', '\r']);
            let field = match needed || *quote {
                true => format!("\"{}\"", field.replace('"', "\"\"")),
                false => field.clone(),
            };
            text += &format!("{field}{delimiter}{}\n", u8::from(*label));
        }
        let schema = format!(
            "label = {{ column = \"l\" }}\n[[categorical]]\ncolumn = \"c\"\n\
             vocabulary = {{ kind = \"hash\", rows = 1000000 }}\n[format]\ndelimiter = {:?}",
            delimiter.to_string()
        );
        let options = f32_options(vec![temp.file("a.csv", &text)], temp.path("out"));
        convert_text(&options, &schema).unwrap();
        let samples = samples_of(&options.out, Part::Train);
        let ids: Vec<_> = rows.iter().map(|(_, field, _)| hash_row(field.as_bytes(), 1_000_000)).collect();
        prop_assert_eq!(&samples.categorical[0].ids, &ids);
        let labels: Vec<_> = rows.iter().map(|(label, ..)| f32::from(u8::from(*label))).collect();
        prop_assert_eq!(&samples.labels[0], &labels);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                Just(b"4,buy,1,2.5,Heat,Ran|Heat,a::b,3\n".to_vec()),
                Just(b"4,buy,1,2.5,\"He\n\"\"at\",Ran|Heat,a::b,3\n".to_vec()),
                Just(b"\"".to_vec()),
                Just(b"\n\"".to_vec()),
            ],
            0..30,
        ),
        trim in any::<bool>(),
    ) {
        let temp = TestFolder::new();
        let text = [&b"rating,action,w,price,film,seen,genres,hour\n"[..], &pieces.concat()].concat();
        let options = ConvertOptions {
            on_bad: OnBad::Quarantine,
            bad_limit: "100%".parse().unwrap(),
            threads: NonZeroUsize::new(2).unwrap(),
            ..f32_options(vec![temp.file("a.csv", text)], temp.path("out"))
        };
        match convert_text(&options, &format!("format = {{ trim = {trim} }}\n{SCHEMA}")) {
            Ok(report) => {
                prop_assert!(report.conversion.rows.train > 0);
                Dataset::open(&options.out).unwrap();
            }
            Err(_) => prop_assert!(!options.out.exists()),
        }
    }
}

#[test]
fn a_table_of_a_program_is_named_and_its_columns_found() {
    let temp = TestFolder::new();
    let files = vec![temp.file("a.csv", csv(&rows(90, 2), false, "\n")), temp.file("b.csv", "5,buy\n")];
    let mut options =
        ConvertOptions { names: vec!["<train>".into()], ..f32_options(files, temp.path("out")) };
    let error = convert_text(&options, SCHEMA).unwrap_err().to_string();
    assert!(error.contains("b.csv") && !error.contains("<train>"), "{error}");
    options.eval.extend(options.files.pop());
    options.names.push("<eval>".into());
    let error = convert_text(&options, SCHEMA).unwrap_err().to_string();
    assert!(error.contains("<eval>") && !error.contains("b.csv"), "{error}");
    options.eval.clear();
    let report = convert_text(&options, SCHEMA).unwrap();
    assert_eq!((report.conversion.files, report.conversion.eval), (vec!["<train>".to_owned()], vec![]));

    let schema = "label.column = \"y\"\ndense = [{ column = \"user.age\" }]\n\
                  categorical = [{ column = \"film\" }, { column = \"film\", name = \"again\" }]\n";
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    let positions = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        schema.positions_in("<train>", &names).map_err(|error| error.to_string())
    };
    assert_eq!(positions(&["id", "film", "user", "y", "users"]), Ok(vec![1, 2, 3]));
    let error = positions(&["y", "films", "user.age"]).unwrap_err();
    assert!(error.starts_with("s.toml:3:"), "{error}");
    assert!(error.contains("<train> has no column `film` (did you mean `films`?); it has `y`, "), "{error}");
}
