//! The results of a conversion value by value: which rows are for evaluation, how numbers are standardized, the sizes
//! of bags and blocks, and what each pass reads. Expected values are computed here, only from the rows.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::convert::tests::{SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::{DenseDtype, Hotness};
use crate::tests::assert_popularity_of_samples;
use crate::vocabulary::hash_row;

/// Each row has its own number as category, which shows where it went.
const NUMBERED: &str = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"row\"\n\
    vocabulary = { kind = \"identity\", rows = 5000 }\n";

fn no_progress(_: &'static str, _: u64, _: u64) {}

fn convert_small(options: &ConvertOptions, schema: &str) -> Result<ConversionReport> {
    convert_csv_within(options, &SchemaFile::parse("s.toml", schema)?, 1, SMALL, &no_progress)
}

fn f32_options(files: Vec<PathBuf>, out: PathBuf) -> ConvertOptions {
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, out) }
}

/// Returns the numbers of the rows of a part, in order.
fn rows_of(out: &Path, part: Part) -> Vec<u64> {
    samples_of(out, part).categorical[0].ids.clone()
}

fn is_bad(row: u64) -> bool {
    row % 97 == 3
}

/// Returns rows of [`NUMBERED`] from `from` to `to`; the labels of some are bad.
fn numbered(from: u64, to: u64) -> String {
    let rows = (from..to).map(|row| format!("{},{row}\n", if is_bad(row) { 7 } else { row % 2 }));
    format!("l,row\n{}", rows.collect::<String>())
}

#[test]
fn a_random_split_is_drawn_by_its_seed_from_the_rows_numbers_in_all_files() {
    let temp = TestFolder::new();
    // Chunks have a few hundred rows, and numbering continues in the second file.
    let files = vec![temp.file("a", numbered(0, 2300)), temp.file("b", numbered(2300, 3000))];
    for (number, (share, seed)) in [(0.3, 1), (0.3, 2), (0.75, u64::MAX)].into_iter().enumerate() {
        let options = ConvertOptions {
            split: Split::Random { share, seed }.into(),
            on_bad: OnBad::Skip,
            bad_limit: BadLimit::Rows(100),
            threads: NonZeroUsize::new(3).unwrap(),
            ..f32_options(files.clone(), temp.path(&number.to_string()))
        };
        let report = convert_small(&options, NUMBERED).unwrap();
        // As specified in `docs/guide/converting.md`.
        let evaluates = |row: u64| {
            (xxh3_64_with_seed(&row.to_le_bytes(), seed) as f64) < share * 18_446_744_073_709_551_616.0
        };
        let (eval, train): (Vec<_>, Vec<_>) =
            (0..3000).filter(|&row| !is_bad(row)).partition(|&row| evaluates(row));
        assert_eq!(rows_of(&options.out, Part::Eval), eval, "{}", options.split);
        assert_eq!(rows_of(&options.out, Part::Train), train, "{}", options.split);
        let bad = (0..3000).filter(|&row| is_bad(row)).count() as u64;
        let (train, eval) = (train.len() as u64, eval.len() as u64);
        let expected = RowCounts { read: 3000, kept: 3000 - bad, bad, train, eval };
        assert_eq!(report.conversion.rows, expected);
    }
}

#[test]
fn a_last_split_takes_the_last_rows_of_all_files_bad_ones_counted() {
    let temp = TestFolder::new();
    let files = vec![temp.file("a", numbered(0, 900)), temp.file("b", numbered(900, 1005))];
    for (share, eval_rows) in [(0.1, 101), (0.2, 201), (0.0004, 0), (0.0006, 1)] {
        let options = ConvertOptions {
            split: Split::Last { share }.into(),
            on_bad: OnBad::Skip,
            bad_limit: BadLimit::Rows(100),
            ..f32_options(files.clone(), temp.path(&share.to_string()))
        };
        convert_small(&options, NUMBERED).unwrap();
        let good = |rows: std::ops::Range<u64>| rows.filter(|&row| !is_bad(row)).collect::<Vec<_>>();
        assert_eq!(rows_of(&options.out, Part::Train), good(0..1005 - eval_rows), "{share}");
        assert_eq!(rows_of(&options.out, Part::Eval), good(1005 - eval_rows..1005), "{share}");
    }
}

#[test]
fn bags_are_admitted_up_to_the_largest_of_both_parts() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"x\"\nseparator = \"|\"\n\
        vocabulary = { kind = \"hash\", rows = 9 }\n[[categorical]]\ncolumn = \"y\"\nseparator = \"|\"\n\
        vocabulary = { kind = \"identity\", rows = 9 }\n";
    let file = |name: &str, rows: usize, largest: (usize, usize)| {
        let bag = |size: usize| vec!["7"; size].join("|");
        // The largest bags are in a separate chunk, neither the first nor the last.
        let size = |row: usize, largest: usize| if row == rows / 2 { largest } else { largest.min(1) };
        let rows = (0..rows)
            .map(|row| format!("{},{},{}\n", row % 2, bag(size(row, largest.0)), bag(size(row, largest.1))));
        temp.file(name, format!("l,x,y\n{}", rows.collect::<String>()))
    };
    for (name, train, eval, expected) in [
        ("eval-larger", (5, 4), (7, 2), [7, 4]),
        ("train-larger", (5, 4), (3, 1), [5, 4]),
        // A column whose bags are all empty is not possible.
        ("empty", (0, 3), (0, 0), [1, 3]),
    ] {
        let options = ConvertOptions {
            eval: vec![file("eval", 2000, eval)],
            ..f32_options(vec![file("train", 3000, train)], temp.path(name))
        };
        convert_small(&options, schema).unwrap();
        let dataset = Dataset::open(&options.out).unwrap();
        let hotness: Vec<_> = dataset.schema().categorical.iter().map(|column| column.hotness).collect();
        assert_eq!(hotness, expected.map(|max| Hotness::Ragged { max }), "{name}");
        assert!(crate::verify::verify(&dataset, NonZeroUsize::MIN).unwrap().is_whole());
    }
}

const NUMBERS: &str = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"l\"\nname = \"c\"\n\
    vocabulary = { kind = \"hash\", rows = 2 }\n\
    [[dense]]\ncolumn = \"a\"\ntransform = [\"log1p\", \"standardize\"]\n\
    [[dense]]\ncolumn = \"b\"\ntransform = [\"mlperf-log\", \"standardize\"]\n\
    [[dense]]\ncolumn = \"a\"\nname = \"c_a\"\ntransform = \"standardize\"\n\
    [[dense]]\ncolumn = \"b\"\nname = \"d\"\ntransform = \"log1p\"\n\
    [[dense]]\ncolumn = \"a\"\nname = \"e\"\ntransform = \"mlperf-log\"\n\
    [[dense]]\ncolumn = \"b\"\nname = \"f\"\n";

/// Returns numbers of all kinds: negative, fractional, missing, and integers inside and outside the precomputed range.
fn numbers(count: usize) -> Vec<[Option<f64>; 2]> {
    let number = |n: usize| match n % 7 {
        0 => None,
        1 => Some(-((n % 50) as f64)),
        2 => Some(n as f64 / 8.0),
        3 => Some(-0.375 * n as f64),
        4 => Some((16_380 + n % 9) as f64),
        _ => Some((n % 900) as f64),
    };
    (0..count).map(|row| [number(row * 5 + 2), number(row * 3 + 1)]).collect()
}

fn numbers_csv(rows: &[[Option<f64>; 2]]) -> String {
    let field = |number: &Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    let rows = rows.iter().enumerate().map(|(n, [a, b])| format!("{},{},{}\n", n % 2, field(a), field(b)));
    format!("l,a,b\n{}", rows.collect::<String>())
}

/// The functions of [`NUMBERS`]: the number's column, the function, and whether the result is standardized.
type Function = (usize, fn(f64) -> f64, bool);
const FUNCTIONS: [Function; 6] = [
    (0, |x| x.signum() * (1.0 + x.abs()).ln(), true),
    (1, |x| (x.max(0.0) + 1.0).ln(), true),
    (0, |x| x, true),
    (1, |x| x.signum() * (1.0 + x.abs()).ln(), false),
    (0, |x| (x.max(0.0) + 1.0).ln(), false),
    (1, |x| x, false),
];

#[test]
fn each_column_has_its_own_function_and_the_moments_of_the_training_part() {
    let temp = TestFolder::new();
    let (train, mut eval) = (numbers(1500), numbers(300));
    // Evaluation rows do not influence the moments.
    eval.iter_mut().flatten().for_each(|number| *number = number.map(|number| number * 3.0 - 20_000.0));
    let options = ConvertOptions {
        eval: vec![temp.file("eval", numbers_csv(&eval))],
        threads: NonZeroUsize::new(3).unwrap(),
        ..f32_options(vec![temp.file("train", numbers_csv(&train))], temp.path("out"))
    };
    let report = convert_small(&options, NUMBERS).unwrap();
    let [train_samples, eval_samples] = [Part::Train, Part::Eval].map(|part| samples_of(&options.out, part));
    for (column, (of, function, standardized)) in FUNCTIONS.into_iter().enumerate() {
        let present: Vec<f64> = train.iter().filter_map(|row| row[of]).map(function).collect();
        let count = present.len() as f64;
        let (mean, deviation) = if standardized {
            let mean = present.iter().sum::<f64>() / count;
            let squares = present.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
            (mean, (squares / count).sqrt())
        } else {
            (0.0, 1.0)
        };
        let reported = &report.dense[column].1;
        // Sums of 1500 numbers up to 2^15 in double precision: 1500 * 2^15 * 2^-53 is below 1e-8.
        assert!(
            (reported.mean - mean).abs() < 1e-8 && (reported.deviation - deviation).abs() < 1e-8,
            "{reported:?}"
        );
        assert_eq!(reported.missing, (train.len() - present.len()) as u64);
        for (rows, samples) in [(&train, &train_samples), (&eval, &eval_samples)] {
            for (row, numbers) in rows.iter().enumerate() {
                let stored = f64::from(samples.dense[row * FUNCTIONS.len() + column]);
                let expected = numbers[of].map_or(0.0, |x| (function(x) - mean) / deviation);
                // One rounding to single precision, and the moments' own error.
                let tolerance = expected.abs() * 2.0_f64.powi(-24) + 1e-8;
                assert!((stored - expected).abs() <= tolerance, "{column}, row {row}: {stored} {expected}");
            }
        }
    }
}

/// Reads raw rows of a file in the same way as those of a dataset.
fn read_again(data: &Path, file: PathBuf) -> Result<(Samples, Vec<String>)> {
    let dataset = Dataset::open(data).unwrap();
    let encoder = Encoder::open(&dataset).unwrap();
    let reader = RawReader {
        format: &dataset.row_format().unwrap(),
        schema: dataset.schema(),
        encoder: &encoder,
        ids: &crate::IdRules::default(),
        labelled: false,
        keep: &[],
        threads: NonZeroUsize::new(2).unwrap(),
    };
    let (mut samples, mut bad) = (Samples::new(dataset.schema()), Vec::new());
    reader.read(&[file], &no_progress, |chunk| -> Result<()> {
        samples.append(&chunk.samples, 0..chunk.samples.len);
        bad.extend(chunk.bad.map(|(_, name)| name.to_string()));
        Ok(())
    })?;
    Ok((samples, bad))
}

#[test]
fn half_precision_bounds_what_is_stored_and_predicted_rows_are_rounded_to_it() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\ndense = [{ column = \"x\", transform = \"standardize\" }]";
    // Mean 1/2 and deviation 1/2: the stored value is 2x - 1.
    let (train, eval) = (temp.file("train", "l,x\n0,0\n1,1\n"), "l,x\n0,1e9\n1,-1e9\n1,0.3\n0,32752.5\n");
    let options = ConvertOptions {
        eval: vec![temp.file("eval", eval)],
        ..ConvertOptions::new(vec![train], temp.path("out"))
    };
    convert_small(&options, schema).unwrap();
    let stored = samples_of(&options.out, Part::Eval);
    let third = half::f16::from_f32(-0.4).to_f32();
    assert_eq!(stored.dense, [65504.0, -65504.0, third, 65504.0]);
    let (again, bad) = read_again(&options.out, temp.path("eval")).unwrap();
    assert!(bad.is_empty() && again == stored, "{:?}", again.dense);
}

#[test]
fn blocks_are_full_except_the_last_and_keep_the_row_order() {
    let temp = TestFolder::new();
    let schema = format!(
        "{NUMBERED}[[categorical]]\ncolumn = \"bag\"\nseparator = \"|\"\n\
         vocabulary = {{ kind = \"hash\", rows = 9 }}\n"
    );
    // One bag with the maximum number of categories: blocks then have the fewest samples.
    let row = |row: u64| {
        let bag = if row == 1700 { vec!["x"; BAG_MAX as usize].join("|") } else { "a|b".to_owned() };
        format!("{},{row},{bag}\n", row % 2)
    };
    let text = format!("l,row,bag\n{}", (0..3000).map(row).collect::<String>());
    let options = ConvertOptions {
        split: Split::Random { share: 0.4, seed: 9 }.into(),
        threads: NonZeroUsize::new(5).unwrap(),
        ..f32_options(vec![temp.file("rows", text)], temp.path("out"))
    };
    convert_csv(&options, &SchemaFile::parse("s.toml", &schema).unwrap(), 1, &no_progress).unwrap();
    let dataset = Dataset::open(&options.out).unwrap();
    assert_eq!(dataset.schema().categorical[1].hotness, Hotness::Ragged { max: BAG_MAX });
    let mut all = Vec::new();
    for part in Part::STORED {
        let (rows, blocks) = (rows_of(&options.out, part), dataset.part(part).unwrap());
        assert!(rows.is_sorted(), "{part}");
        assert_eq!(blocks.block_samples, 256);
        assert_eq!(blocks.blocks.len(), rows.len().div_ceil(256), "{part}");
        assert!(blocks.blocks.len() > 3);
        all.extend(rows);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..3000));
    assert!(crate::verify::verify(&dataset, NonZeroUsize::MIN).unwrap().is_whole());
}

#[test]
fn a_row_may_be_as_long_as_the_limit() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"c\"";
    for (more, bad) in [(0, 0), (1, 1)] {
        let long = format!("1,{}", "x".repeat(SMALL.line_bytes_max - 2 + more));
        let options = ConvertOptions {
            on_bad: OnBad::Skip,
            bad_limit: BadLimit::Rows(1),
            ..f32_options(
                vec![temp.file("c.csv", format!("l,c\n0,a\n{long}\n"))],
                temp.path(&bad.to_string()),
            )
        };
        let report = convert_small(&options, schema).unwrap();
        assert_eq!(report.bad_by_reason.get(&BadReason::LineTooLong).copied().unwrap_or(0), bad);
    }
}

/// Returns the passes of a conversion, each with the bytes reported as done and in total.
fn passes(
    options: &ConvertOptions,
    schema: &str,
) -> (Result<ConversionReport>, Vec<(&'static str, u64, u64)>) {
    let reported = Mutex::new(Vec::<(&'static str, u64, u64)>::new());
    let progress = |pass: &'static str, done: u64, total: u64| {
        let mut reported = reported.lock().unwrap();
        match reported.last_mut() {
            Some(last) if last.0 == pass => {
                assert!(last.1 <= done && last.2 == total, "{pass}: {last:?}, then {done} of {total}");
                last.1 = done;
            }
            _ => reported.push((pass, done, total)),
        }
    };
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    let outcome = convert_csv_within(options, &schema, 1, SMALL, &progress);
    (outcome, reported.into_inner().unwrap())
}

#[test]
fn each_pass_reads_all_bytes_and_bad_rows_end_the_first_that_sees_them() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"row\"\n";
    let text = numbered(0, 3000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let files = vec![temp.file("plain", &text), temp.file("compressed", gzip.finish().unwrap())];
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    let options = ConvertOptions {
        split: Split::Last { share: 0.5 }.into(),
        on_bad: OnBad::Skip,
        bad_limit: BadLimit::Rows(62),
        ..f32_options(files, temp.path("out"))
    };
    let (outcome, reported) = passes(&options, schema);
    assert_eq!(outcome.unwrap().conversion.rows.bad, 62);
    assert_eq!(reported, ["counting rows", "learning", "writing"].map(|pass| (pass, bytes, bytes)));

    let fails = |on_bad, bad_limit| {
        let options = ConvertOptions { on_bad, bad_limit, split: Split::None.into(), ..options.clone() };
        let options = ConvertOptions { out: temp.path("fails"), ..options };
        let (outcome, reported) = passes(&options, schema);
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::BadRows { .. }), "{error:?}");
        assert!(reported.iter().all(|pass| pass.0 == "learning"), "{reported:?}");
        (error.to_string(), reported.first().map_or(0, |pass| pass.1))
    };
    // A number ends the pass as soon as it is exceeded, a share when all rows are known.
    let (error, done) = fails(OnBad::Skip, BadLimit::Rows(3));
    assert!(error.contains("rows read so far are bad, but the limit is 3") && done < bytes / 2, "{error}");
    let (error, done) = fails(OnBad::Skip, BadLimit::Percent(1.0));
    assert!(error.starts_with("62 of 6000 rows read in all are bad, but the limit is 1%"), "{error}");
    assert_eq!(done, bytes);
    let (error, done) = fails(OnBad::Fail, BadLimit::Percent(100.0));
    assert!(error.contains("plain line 5, column l: '7' is not a label") && done < bytes / 2, "{error}");
}

#[test]
fn labels_follow_their_rules() {
    let temp = TestFolder::new();
    for (name, rule, fields, labels) in [
        ("binary", "", "0 1 1.0 0e3 -0", &[0.0, 1.0, 1.0, 0.0, 0.0][..]),
        ("at-least", "at_least = 2.5", "2.5 2.49 3 -9 1e9", &[1.0, 0.0, 1.0, 0.0, 1.0]),
        ("number", "equals = 5", "5 5.0 50e-1 -5 4", &[1.0, 1.0, 1.0, 0.0, 0.0]),
        ("float", "equals = 0.5", ".5 0.5 5", &[1.0, 1.0, 0.0]),
        ("text", "equals = \"5\"", "5 5.0 buy", &[1.0, 0.0, 0.0]),
        ("case", "equals = \"Buy\"", "Buy buy Buy2", &[1.0, 0.0, 0.0]),
    ] {
        let text =
            format!("l,x\n{}", fields.split(' ').map(|field| format!("{field},1\n")).collect::<String>());
        let options = f32_options(vec![temp.file(name, text)], temp.path(&format!("{name}.out")));
        convert_small(&options, &format!("dense = [{{ column = \"x\" }}]\n[label]\ncolumn = \"l\"\n{rule}"))
            .unwrap();
        assert_eq!(samples_of(&options.out, Part::Train).labels[0], labels, "{name}");
    }
}

#[test]
fn fields_become_bags_of_the_text_between_separators() {
    let temp = TestFolder::new();
    let bags = |name: &str, format: &str, field: &str| {
        let schema = format!(
            "{format}label = {{ column = \"l\" }}\n[[categorical]]\ncolumn = \"c\"\nseparator = \"||\"\n\
             vocabulary = {{ kind = \"hash\", rows = 100000 }}\n"
        );
        let file = temp.file(name, format!("l,c\n1,{field}\n"));
        let options = f32_options(vec![file], temp.path(&format!("{name}.out")));
        convert_small(&options, &schema).unwrap();
        samples_of(&options.out, Part::Train).categorical[0].bag(0).to_vec()
    };
    let hashed = |categories: &[&str]| -> Vec<u64> {
        categories.iter().map(|category| hash_row(category.as_bytes(), 100_000)).collect()
    };
    assert_eq!(bags("plain", "", "a|| b||||c|"), hashed(&["a", " b", "", "c|"]));
    assert_eq!(bags("trimmed", "format = { trim = true }\n", " a|| b ||\tc "), hashed(&["a", "b", "c"]));
    assert_eq!(bags("one", "", "a"), hashed(&["a"]));
    assert_eq!(bags("ends", "", "||"), hashed(&["", ""]));
    assert!(bags("none", "", "").is_empty());
}

#[test]
fn unknown_categories_are_counted_by_column_part_and_look_up() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"film\"\n\
        vocabulary = { kind = \"exact\", min_count = 3 }\n[[categorical]]\ncolumn = \"seen\"\nseparator = \"|\"\n\
        vocabulary = { kind = \"shared\", with = \"film\" }\n[[categorical]]\ncolumn = \"other\"\n\
        vocabulary = { kind = \"exact\", min_count = 2 }\n";
    // Heat occurs three times in both columns together, Ran and Big twice.
    let train = "l,film,seen,other\n1,Heat,Ran|Ran|Heat,x\n0,Heat,Big|Big,x\n";
    let eval = "l,film,seen,other\n1,Ran,Ran|Solaris|Ran|Heat,x\n0,Heat,,y\n";
    let options = ConvertOptions {
        eval: vec![temp.file("eval", eval)],
        ..f32_options(vec![temp.file("train", train)], temp.path("out"))
    };
    let report = convert_small(&options, schema).unwrap();
    let unknown = |distinct: u64, lookups: u64| UnknownCategories {
        distinct_values: Some(distinct),
        lookups,
        ..UnknownCategories::default()
    };
    let exact: Vec<_> = report.columns.iter().map(|(_, column)| column.exact.unwrap()).collect();
    let expected = [
        (1, unknown(0, 0), unknown(1, 1)),
        (1, unknown(2, 4), unknown(2, 3)),
        (1, unknown(0, 0), unknown(1, 1)),
    ];
    for (found, (kept_categories, unknown_train, unknown_eval)) in exact.into_iter().zip(expected) {
        assert_eq!(found, ExactReport { kept_categories, new_categories: None, unknown_train, unknown_eval });
    }
}

/// Statistics of exact columns come from their vocabularies, others are counted: both must match the samples.
#[test]
fn statistics_are_those_of_the_training_samples() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\n\
        [[categorical]]\ncolumn = \"a\"\nvocabulary = { kind = \"exact\", min_count = 3 }\n\
        [[categorical]]\ncolumn = \"b\"\nseparator = \"|\"\nvocabulary = { kind = \"shared\", with = \"a\" }\n\
        [[categorical]]\ncolumn = \"b\"\nname = \"own\"\nseparator = \"|\"\n\
        vocabulary = { kind = \"exact\", min_count = 9 }\n\
        [[categorical]]\ncolumn = \"a\"\nname = \"hashed\"\nvocabulary = { kind = \"hash\", rows = 7 }\n";
    let row = |n: u64| format!("{},x{},x{}|x{}|\n", n % 2, n * n % 31, n % 17, n * 5 % 23);
    let text = format!("l,a,b\n{}", (0..900).map(row).collect::<String>());
    let options = ConvertOptions {
        split: Split::Random { share: 0.25, seed: 4 }.into(),
        ..f32_options(vec![temp.file("rows", text)], temp.path("out"))
    };
    convert_small(&options, schema).unwrap();
    let train = samples_of(&options.out, Part::Train);
    let statistics = Dataset::open(&options.out).unwrap().statistics().unwrap();
    assert_eq!(statistics.len(), 4);
    for (number, (found, bags)) in statistics.iter().zip(&train.categorical).enumerate() {
        let mut counts = BTreeMap::new();
        bags.ids.iter().for_each(|&id| *counts.entry(id).or_insert(0_u64) += 1);
        let mut head: Vec<_> = counts.into_iter().collect();
        head.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        assert_eq!((found.bags, found.lookups), (train.len as u64, bags.ids.len() as u64), "{number}");
        assert_eq!((found.distinct_rows, &found.head), (head.len() as u64, &head), "{number}");
    }
    assert_popularity_of_samples(&options.out);
}

#[test]
fn files_without_a_header_are_predicted_with_their_labels_and_without() {
    let temp = TestFolder::new();
    let schema = "label = { column = \"l\" }\nweight = { column = \"w\" }\ndense = [{ column = \"x\" }]\n\
        [[categorical]]\ncolumn = \"c\"\n[format]\nheader = false\ncolumns = [\"c\", \"l\", \"unused\", \"w\", \"x\"]";
    let options =
        f32_options(vec![temp.file("train", "a,1,u,2,3\nb,0,u,4,5\na,1,u,0,6\n")], temp.path("out"));
    convert_small(&options, schema).unwrap();
    let stored = samples_of(&options.out, Part::Train);
    assert_eq!((&stored.weights[..], &stored.dense[..]), (&[2.0, 4.0, 0.0][..], &[3.0, 5.0, 6.0][..]));
    let (again, bad) = read_again(&options.out, temp.path("train")).unwrap();
    assert!(bad.is_empty() && again == stored);
    // Neither label nor weight: the other three columns keep their order.
    let (bare, bad) = read_again(&options.out, temp.file("bare", "a,u,3\nb,u,5\na,u,6\n")).unwrap();
    assert!(bad.is_empty() && bare.labels[0].iter().all(|label| label.is_nan()), "{bad:?}");
    assert_eq!(bare.weights, [1.0; 3]);
    assert_eq!((bare.dense, bare.categorical), (stored.dense, stored.categorical));
    // One of both is missing: the rows are not of any known form.
    let (none, bad) = read_again(&options.out, temp.file("some", "a,u,2,3\n")).unwrap();
    assert_eq!((none.len, bad.len()), (0, 1));
    assert!(bad[0].contains("expected 5 fields, found 4,"), "{bad:?}");
}

#[test]
fn defaults_are_as_documented() {
    let options = ConvertOptions::new(Vec::new(), "out".into());
    assert_eq!((&options.split, options.on_bad), (&RowSplit::default(), OnBad::Fail));
    assert_eq!((options.bad_limit, options.dense_dtype), (BadLimit::Percent(1.0), DenseDtype::F16));
    assert_eq!((options.memory, options.with_memory(7).memory), (2 << 30, 7));
    let columns = CriteoColumns::default();
    assert_eq!((columns.min_count, columns.dense), (1, DenseMode::Log));
    assert_eq!((columns.vocabulary, columns.columns.len()), (VocabularyChoice::Exact, 0));
}
