//! Whole conversions.

mod csv;
mod fit;
pub(crate) mod folder;
mod inputs;
mod like;
mod open;
mod partial;
mod raw_columns;
mod results;
mod sequences;
pub(crate) mod speed;
mod weights;

pub(crate) use folder::*;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::convert::*;
use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::Samples;
use crate::tests::{skipped, tree};
use crate::vocabulary;

/// Returns lines of power-law categories with missing values.
fn good_lines(count: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let line = |_| {
        let mut fields = vec![(next() % 2).to_string()];
        for column in 0..13 {
            let value = (next() % 4096).leading_zeros() as i64 * (next() % 900) as i64 - 2;
            fields.push(if next() % 7 == column { String::new() } else { value.to_string() });
        }
        for column in 0..26 {
            let key = next() % (1 << (next() % 12));
            fields.push(match key % 11 {
                0 => String::new(),
                1 if column % 5 == 0 => format!("{key:016x}"),
                2 => format!("{key:x}"),
                _ => format!("{:08x}", key * 2_654_435_761 % (1 << 32)),
            });
        }
        fields.join("\t")
    };
    (0..count).map(line).collect()
}

fn text(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// Converts Criteo's TSV with small chunks.
fn convert_criteo_within(
    options: &ConvertOptions,
    columns: &CriteoColumns,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_criteo(options, columns, limits, Converting { options, progress })
}

/// Converts CSV with small chunks.
fn convert_csv_within(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<ConversionReport> {
    with_csv(options, schema, min_count, limits, Converting { options, progress })
}

fn convert(options: &ConvertOptions) -> Result<ConversionReport> {
    convert_with(options, &CriteoColumns::default())
}

fn convert_with(options: &ConvertOptions, columns: &CriteoColumns) -> Result<ConversionReport> {
    convert_criteo_within(options, columns, SMALL, &|_: &'static str, _: u64, _: u64| ())
}

fn with_min_count(min_count: u64) -> CriteoColumns {
    CriteoColumns { min_count, ..CriteoColumns::default() }
}

#[test]
fn output_does_not_depend_on_threads_memory_or_compression() {
    let temp = TestFolder::new();
    let mut lines = good_lines(1200, 1);
    for at in [3, 500, 501, 1100] {
        lines[at] = with_field(&lines[at], at % 40, "?");
    }
    lines[700] = "x".repeat(9000);
    let (first, second) = (text(&lines[..800]), text(&lines[800..]).replace('\n', "\r\n"));
    let (first_path, second_path) = (temp.path("a"), temp.path("b"));
    let write_plain = || {
        temp.file("a", &first);
        temp.file("b", &second);
    };
    let convert_to = |out: &str, threads: usize, memory: u64| {
        let options = ConvertOptions {
            split: Split::Random { share: 0.3, seed: 5 }.into(),
            on_bad: OnBad::Quarantine,
            threads: NonZeroUsize::new(threads).unwrap(),
            memory,
            ..ConvertOptions::new(vec![first_path.clone(), second_path.clone()], temp.path(out))
        };
        convert_with(&options, &with_min_count(2)).unwrap();
        tree(&options.out)
    };
    write_plain();
    let expected = convert_to("expected", 1, 1 << 30);
    let names: Vec<_> = expected.keys().map(String::as_str).collect();
    for name in ["conversion.json", "bad-rows.jsonl", "quarantine.tsv", "vocabulary/C26.tsv", "dataset.json"]
    {
        assert!(names.contains(&name), "{name} of {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("tmp")));
    let quarantined = [&lines[3], &lines[500], &lines[501], &lines[700], &(lines[1100].clone() + "\r")];
    let quarantined: String = quarantined.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    assert_eq!(String::from_utf8_lossy(&expected["quarantine.tsv"]), quarantined);
    for (out, threads, memory) in [("two", 2, 1 << 30), ("five", 5, 0), ("spilled", 1, 100_000)] {
        assert!(convert_to(out, threads, memory) == expected, "{out} differs");
    }
    for (path, text) in [(&first_path, &first), (&second_path, &second)] {
        let mut bytes = Vec::new();
        for member in [&text[..1000], &text[1000..]] {
            let mut out = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::fast());
            out.write_all(member.as_bytes()).unwrap();
            out.finish().unwrap();
        }
        fs::write(path, bytes).unwrap();
    }
    assert!(convert_to("gzip", 2, 1 << 30) == expected, "gzip differs");
    // Padded with zeros, as by tapes and some tools; and the other compression.
    let padded = [fs::read(&first_path).unwrap(), vec![0; 1000]].concat();
    fs::write(&first_path, padded).unwrap();
    assert!(convert_to("padded", 2, 1 << 30) == expected, "padded gzip differs");
    let level = || ruzstd::encoding::CompressionLevel::Fastest;
    for (path, text) in [(&first_path, &first), (&second_path, &second)] {
        let frames = [&text[..1000], &text[1000..]];
        let frames = frames.map(|frame| ruzstd::encoding::compress_to_vec(frame.as_bytes(), level()));
        fs::write(path, frames.concat()).unwrap();
    }
    assert!(convert_to("zstd", 2, 1 << 30) == expected, "zstd differs");
}

#[test]
fn samples_match_the_lines() {
    let temp = TestFolder::new();
    let lines = good_lines(300, 2);
    let options = ConvertOptions {
        split: Split::Last { share: 0.25 }.into(),
        dense_dtype: crate::schema::DenseDtype::F32,
        ..ConvertOptions::new(vec![temp.file("log", text(&lines))], temp.path("out"))
    };
    let columns = CriteoColumns { columns: vec!["C2=hash:100".parse().unwrap()], ..with_min_count(3) };
    let report = convert_with(&options, &columns).unwrap();
    assert_eq!(report.conversion.rows, RowCounts { read: 300, kept: 300, bad: 0, train: 225, eval: 75 });

    // Computed again from the training lines in the simplest way.
    let fields: Vec<Vec<&str>> = lines.iter().map(|line| line.split('\t').collect()).collect();
    let (train, eval) = (samples_of(&options.out, Part::Train), samples_of(&options.out, Part::Eval));
    let label = |row: usize| if row < 225 { train.labels[0][row] } else { eval.labels[0][row - 225] };
    assert!((0..300).all(|row| label(row) == fields[row][0].parse::<f32>().unwrap()));
    for column in 0..13 {
        let value = |row: usize| {
            fields[row][1 + column].parse::<f64>().ok().map(|x: f64| x.signum() * (1.0 + x.abs()).ln())
        };
        let present: Vec<f64> = (0..225).filter_map(value).collect();
        let mean = present.iter().sum::<f64>() / present.len() as f64;
        let squares = present.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        let deviation = (squares / present.len() as f64).sqrt();
        assert_eq!(report.dense[column].1.missing, 225 - present.len() as u64);
        for row in 0..300 {
            let stored = if row < 225 {
                train.dense[row * 13 + column]
            } else {
                eval.dense[(row - 225) * 13 + column]
            };
            let expected = value(row).map_or(0.0, |x| (x - mean) / deviation);
            assert!((f64::from(stored) - expected).abs() < 1e-5, "{stored} is not {expected}");
        }
    }
    for column in 0..26 {
        let key = |row: usize| fields[row][14 + column];
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        (0..225).for_each(|row| *counts.entry(key(row)).or_insert(0) += 1);
        let mut kept: Vec<_> = counts.into_iter().filter(|&(_, count)| count >= 3).collect();
        kept.sort_by_key(|&(key, count)| (std::cmp::Reverse(count), key));
        let expected = |row: usize| match column {
            1 => vocabulary::hash_row(key(row).as_bytes(), 100),
            _ => kept.iter().position(|kept| kept.0 == key(row)).map_or(0, |at| at as u64 + 1),
        };
        let found = |row: usize| match row {
            0..225 => train.categorical[column].bag(row)[0],
            _ => eval.categorical[column].bag(row - 225)[0],
        };
        (0..300).for_each(|row| assert_eq!(found(row), expected(row), "row {row} of C{}", column + 1));
        let unknown = |rows: std::ops::Range<usize>| {
            let keys: Vec<_> = rows.filter(|&row| expected(row) == 0).map(key).collect();
            let distinct_values = Some(keys.iter().collect::<BTreeSet<_>>().len() as u64);
            UnknownCategories { distinct_values, lookups: keys.len() as u64, ..Default::default() }
        };
        let exact = (column != 1).then(|| ExactReport {
            kept_categories: kept.len() as u64,
            new_categories: None,
            unknown_train: unknown(0..225),
            unknown_eval: unknown(225..300),
        });
        assert_eq!(report.columns[column].1.exact, exact);
    }

    // Prediction reads the same samples from the same rows, with and without labels.
    let dataset = Dataset::open(&options.out).unwrap();
    let encoder = Encoder::open(&dataset).unwrap();
    let unlabelled: Vec<String> = lines[225..].iter().map(|line| line[2..].to_owned()).collect();
    let files = [temp.file("rest", text(&lines[225..])), temp.file("unlabelled", text(&unlabelled))];
    let mut read = Samples::new(dataset.schema());
    let reader = RawReader {
        format: &RowFormat::CriteoTsv,
        schema: dataset.schema(),
        encoder: &encoder,
        ids: &crate::IdRules::default(),
        labelled: false,
        keep: &[],
        threads: NonZeroUsize::new(2).unwrap(),
    };
    let take = |chunk: RawChunk<'_>| -> Result<(), Error> {
        assert_eq!((chunk.first_row, chunk.rows, chunk.bad_rows), (read.len as u64, 75, 0));
        read.append(&chunk.samples, 0..chunk.samples.len);
        Ok(())
    };
    let unknown = reader.read(&files, &|_: &'static str, _: u64, _: u64| (), take).unwrap();
    let mut expected = eval.clone();
    expected.append(&eval, 0..75);
    expected.labels[0][75..].fill(f32::NAN);
    assert!(read == expected);
    for (column, (_, of)) in report.columns.iter().enumerate() {
        // The same rows twice: the same number of distinct values, and twice the number of look-ups.
        let (once, twice) = (of.exact.map(|exact| exact.unknown_eval).unwrap_or_default(), unknown[column]);
        assert_eq!(twice.lookups, 2 * once.lookups);
        assert_eq!(twice.distinct_values, Some(once.distinct_values.unwrap_or(0)));
    }
}

#[test]
fn vocabularies_are_learnt_only_from_the_training_part() {
    let temp = TestFolder::new();
    let train =
        [with_field(GOOD_LINE, 14, "aa"), with_field(GOOD_LINE, 14, ""), with_field(GOOD_LINE, 14, "")];
    let eval = [with_field(GOOD_LINE, 14, "bb"), with_field(GOOD_LINE, 14, "")];
    let base = ConvertOptions {
        eval: vec![temp.file("eval", text(&eval))],
        ..ConvertOptions::new(vec![temp.file("train", text(&train))], temp.path("out"))
    };
    let report = convert(&base).unwrap();
    assert_eq!((report.conversion.rows.train, report.conversion.rows.eval), (3, 2));
    let vocabulary = fs::read_to_string(base.out.join("vocabulary/C1.tsv")).unwrap();
    assert_eq!(vocabulary, "\\*\t0\n\t2\naa\t1\n");
    assert_eq!(samples_of(&base.out, Part::Eval).categorical[0].ids, [0, 1]);
    assert_eq!(report.columns[0].1.exact.unwrap().unknown_eval.lookups, 1);

    let frequent = ConvertOptions { out: temp.path("frequent"), ..base.clone() };
    convert_with(&frequent, &with_min_count(2)).unwrap();
    let vocabulary = fs::read_to_string(frequent.out.join("vocabulary/C1.tsv")).unwrap();
    assert_eq!(vocabulary, "\\*\t1\n\t2\n");
    assert_eq!(samples_of(&frequent.out, Part::Train).categorical[0].ids, [0, 1, 1]);

    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(base.out.join(REPORT_NAME)).unwrap()).unwrap();
    assert_eq!(json["format"], serde_json::json!({ "kind": "criteo-tsv" }));
    assert_eq!(json["rows"]["train"], 3);
    assert_eq!(json["columns"]["C1"]["kept_categories"], 2);
    let unknown = serde_json::json!({ "distinct_values": 1, "lookups": 1 });
    assert_eq!(json["columns"]["C1"]["unknown_eval"], unknown);
    assert_eq!(json["columns"]["C1"]["unknown_train"]["lookups"], 0);
    assert_eq!(json["dense"]["I12"]["missing"], 3);
    assert_eq!(json["dense"]["I12"]["deviation"], 1.0);
}

#[test]
fn hashed_and_identity_tables_with_mlperfs_numbers_need_one_pass() {
    let temp = TestFolder::new();
    let mut line = GOOD_LINE.to_owned();
    for field in 14..40 {
        line = with_field(&line, field, "17");
    }
    line = with_field(&with_field(&line, 1, "-3"), 2, "1000");
    let passes = std::sync::Mutex::new(Vec::new());
    let options = ConvertOptions { ..ConvertOptions::new(vec![temp.file("log", &line)], temp.path("out")) };
    let progress = |pass, done, total| {
        assert!(done <= total);
        passes.lock().unwrap().push(pass);
    };
    let columns = CriteoColumns {
        dense: DenseMode::Mlperf,
        vocabulary: "identity:18".parse().unwrap(),
        columns: vec!["C26=hash:5".parse().unwrap()],
        ..CriteoColumns::default()
    };
    convert_criteo_within(&options, &columns, SMALL, &progress).unwrap();
    assert_eq!(passes.into_inner().unwrap(), ["writing"]);
    let samples = samples_of(&options.out, Part::Train);
    assert_eq!(
        (samples.categorical[0].ids[0], samples.categorical[25].ids[0]),
        (17, vocabulary::hash_row(b"17", 5))
    );
    assert_eq!(samples.dense[0], 0.0);
    assert!((samples.dense[1] - 1001.0f32.ln()).abs() < 0.01);
    assert_eq!(samples.dense[11], 0.0);
    let small = ConvertOptions { out: temp.path("small"), ..options.clone() };
    let columns = CriteoColumns { vocabulary: "identity:17".parse().unwrap(), ..columns };
    let refusal = convert_with(&small, &columns).unwrap_err().to_string();
    assert!(refusal.contains("line 1, column C1: '17' is not a row number below 17"), "{refusal}");
}

#[test]
fn bad_rows_are_named_in_order_and_kept() {
    let temp = TestFolder::new();
    let bad = [
        (2, with_field(GOOD_LINE, 0, "2"), Some("label"), "'2' is not a label"),
        (
            4,
            "\tshort".to_owned(),
            None,
            "expected 40 fields (a label, 13 numbers and 26 categories, separated by tabs), found 2,",
        ),
        (5, with_field(GOOD_LINE, 3, "1.5"), Some("I3"), "'1.5' is not a 64-bit integer"),
        (6, with_field(GOOD_LINE, 20, "not\u{7}hex"), Some("C7"), "'not\\x07hex' is not a category"),
        (7, String::new(), None, "separated by tabs), found 1,"),
        (8, "y".repeat(5000), None, "longer than 2000 bytes"),
    ];
    let mut lines = vec![GOOD_LINE.to_owned(); 9];
    bad.iter().for_each(|(number, line, ..)| lines[number - 1] = line.clone());
    let base = ConvertOptions {
        on_bad: OnBad::Quarantine,
        bad_limit: BadLimit::Rows(6),
        ..ConvertOptions::new(vec![temp.file("log", lines.join("\n"))], temp.path("out"))
    };
    let report = convert(&base).unwrap();
    assert_eq!(report.conversion.rows, RowCounts { read: 9, kept: 3, bad: 6, train: 3, eval: 0 });
    assert_eq!(report.bad_by_reason[&BadReason::FieldCount], 2);
    let named = fs::read_to_string(base.out.join(BAD_ROWS_NAME)).unwrap();
    assert_eq!(named.lines().count(), bad.len());
    for (json, (number, _, column, why)) in named.lines().zip(&bad) {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["line"], *number);
        assert_eq!(json["column"].as_str(), *column);
        assert!(json["why"].as_str().unwrap().contains(why), "{json}");
        assert!(json["file"].as_str().unwrap().ends_with("log"));
    }
    let kept: String = bad.iter().flat_map(|(_, line, ..)| [line.as_str(), "\n"]).collect();
    assert_eq!(fs::read_to_string(base.out.join("quarantine.tsv")).unwrap(), kept);

    let refuse = |on_bad, bad_limit| {
        let options = ConvertOptions { on_bad, bad_limit, out: temp.path("refused"), ..base.clone() };
        let refusal = convert(&options).unwrap_err().to_string();
        assert!(!options.out.exists() && !temp.path("refused.partial").exists());
        refusal
    };
    let refusal = refuse(OnBad::Fail, BadLimit::default());
    assert!(refusal.contains("log line 2, column label: '2' is not a label"), "{refusal}");
    let refusal = refuse(OnBad::Skip, BadLimit::default());
    assert!(refusal.contains("6 of 9 rows read in all are bad, but the limit is 1%"), "{refusal}");
    assert!(refusal.contains("line 4: expected 40 fields") && refusal.contains("and 1 more"), "{refusal}");
    assert!(refuse(OnBad::Skip, BadLimit::Rows(0)).contains("but the limit is 0"));
    let skipped = ConvertOptions { on_bad: OnBad::Skip, out: temp.path("skipped"), ..base.clone() };
    convert(&skipped).unwrap();
    assert!(skipped.out.join(BAD_ROWS_NAME).exists() && !skipped.out.join("quarantine.tsv").exists());
}

#[test]
fn splits_have_the_requested_sizes() {
    let temp = TestFolder::new();
    let log = temp.file("log", text(&good_lines(1001, 3)));
    let parts = |split: &str, out: &str| {
        let options = ConvertOptions {
            split: split.parse().unwrap(),
            ..ConvertOptions::new(vec![log.clone()], temp.path(out))
        };
        convert(&options).unwrap().conversion.rows
    };
    let last = parts("last:0.1", "last");
    assert_eq!((last.train, last.eval), (901, 100));
    let (one, other) = (parts("random:0.2:1", "one"), parts("random:0.2:2", "other"));
    assert!((150..250).contains(&one.eval) && one.train + one.eval == 1001);
    assert_ne!(tree(&temp.path("one")), tree(&temp.path("other")));
    assert_eq!(other.kept, 1001);
    assert_eq!(parts("none", "none").train, 1001);
}

#[test]
fn invalid_conversions_are_refused_and_leave_nothing() {
    let temp = TestFolder::new();
    let log = temp.file("log", text(&good_lines(3, 4)));
    let base = ConvertOptions::new(vec![log.clone()], temp.path("out"));
    let refusal = |options: &ConvertOptions| {
        let refusal = convert(options).unwrap_err().to_string();
        assert!(!temp.path("out").exists() && !temp.path("out.partial").exists());
        refusal
    };
    let both =
        ConvertOptions { eval: vec![log.clone()], split: Split::Last { share: 0.5 }.into(), ..base.clone() };
    assert!(refusal(&both).contains("--split none"));
    let twice = vec!["C1=exact".parse().unwrap(), "C1=hash:3".parse().unwrap()];
    for (columns, what) in [
        (CriteoColumns { columns: twice, ..CriteoColumns::default() }, "twice for C1"),
        (with_min_count(0), "--min-count 0"),
    ] {
        assert!(convert_with(&base, &columns).unwrap_err().to_string().contains(what));
        assert!(!temp.path("out").exists() && !temp.path("out.partial").exists());
    }
    assert!(refusal(&ConvertOptions { files: vec![], ..base.clone() }).contains("at least one file"));
    assert!(refusal(&ConvertOptions { files: vec![temp.path("absent")], ..base.clone() }).contains("absent"));
    assert!(
        refusal(&ConvertOptions { files: vec![temp.file("empty", "")], ..base.clone() })
            .contains("the files have no rows")
    );
    assert!(
        refusal(&ConvertOptions { split: Split::Last { share: 0.99 }.into(), ..base.clone() })
            .contains("0 of them bad and 3 held out for evaluation (--split last:0.99); hold out fewer")
    );
    // A gzip file that is truncated after many good chunks.
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(text(&good_lines(500, 5)).as_bytes()).unwrap();
    let bytes = out.finish().unwrap();
    let broken = temp.file("broken", &bytes[..bytes.len() - 100]);
    assert!(refusal(&ConvertOptions { files: vec![broken], ..base.clone() }).contains("gzip stream"));

    convert(&base).unwrap();
    let before = tree(&base.out);
    assert!(convert(&base).unwrap_err().to_string().contains("already exists"));
    assert_eq!(tree(&base.out), before);
}

/// Returns the path of real data: see `RANKINE_TEST_DATA`.
fn real_log() -> Option<PathBuf> {
    let folder = std::env::var_os("RANKINE_TEST_DATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"));
    let log = folder.join("criteo-kaggle-first15k/train.tsv");
    if !log.exists() {
        skipped(format_args!("{} was not found; RANKINE_TEST_DATA names its folder", log.display()));
        return None;
    }
    Some(log)
}

#[test]
fn a_real_log_converts_without_a_bad_row() {
    let Some(log) = real_log() else { return };
    let temp = TestFolder::new();
    let lines = fs::read(&log).unwrap().iter().filter(|&&byte| byte == b'\n').count() as u64;
    let options = ConvertOptions {
        split: Split::Last { share: 0.2 }.into(),
        ..ConvertOptions::new(vec![log], temp.path("out"))
    };
    let report = convert_criteo(&options, &with_min_count(2), &|_: &'static str, _: u64, _: u64| ()).unwrap();
    let rows = report.conversion.rows;
    assert_eq!((rows.read, rows.bad), (lines, 0));
    assert_eq!(rows.eval, (lines as f64 * 0.2).round() as u64);
    assert_eq!(samples_of(&options.out, Part::Train).len as u64, rows.train);
    let statistics = Dataset::open(&options.out).unwrap().statistics().unwrap();
    for ((_, column), table) in report.columns.iter().zip(&statistics) {
        assert_eq!(table.lookups, rows.train);
        // Rows are sorted by frequency except row 0: the most frequent category comes first after it.
        let most = table.head.iter().find(|row| row.0 != 0).unwrap();
        assert!(column.rows <= Some(2) || table.head.iter().all(|row| row.0 == 0 || row.1 <= most.1));
        assert_eq!(most.0, 1);
    }
    for column in 0..13 {
        let DenseReport { mean, deviation, .. } = report.dense[column].1;
        assert!(mean.is_finite() && deviation > 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn arbitrary_bytes_do_not_panic(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                Just(format!("{GOOD_LINE}\n").into_bytes()),
                Just(b"\x1f\x8b\x08".to_vec()),
            ],
            0..30,
        ),
    ) {
        let temp = TestFolder::new();
        let options = ConvertOptions {
            on_bad: OnBad::Quarantine,
            bad_limit: "100%".parse().unwrap(),
            threads: NonZeroUsize::new(2).unwrap(),
            ..ConvertOptions::new(vec![temp.file("log", pieces.concat())], temp.path("out"))
        };
        if let Ok(report) = convert(&options) {
            prop_assert!(report.conversion.rows.train > 0);
            Dataset::open(&options.out).unwrap();
        } else {
            prop_assert!(!options.out.exists());
        }
    }
}

#[test]
fn a_conversion_stops_in_each_pass_and_leaves_nothing() {
    let temp = TestFolder::new();
    let source = temp.file("a", text(&good_lines(1200, 1)));
    for pass in ["counting rows", "learning", "writing"] {
        let options = ConvertOptions {
            split: Split::Last { share: 0.2 }.into(),
            ..ConvertOptions::new(vec![source.clone()], temp.path("out"))
        };
        let stop = options.stop.clone();
        let ask = |at: &'static str, _: u64, _: u64| {
            if at == pass {
                stop.ask();
            }
        };
        let stopped = convert_criteo_within(&options, &CriteoColumns::default(), SMALL, &ask);
        assert!(matches!(stopped, Err(Error::Stopped(_))), "{pass}: {stopped:?}");
        let left: Vec<_> = fs::read_dir(source.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{pass}: {left:?}");
    }
}
