//! Open vocabularies: ids are keys, hashes of 64 bits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::convert::known::with_known;
use crate::convert::tests::{GOOD_LINE, SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::{Dataset, FORMAT_OPEN, Fit};
use crate::merge::merge;
use crate::part::Part;
use crate::samples::{Bags, Samples};
use crate::schema::{DenseDtype, VocabularyKind};
use crate::stream::{BatchStream, StreamOptions};
use crate::tests::{assert_popularity_of_samples, tree};
use crate::verify::verify;
use crate::vocabulary::hash_key;

const SCHEMA: &str = r#"
[label]
column = "click"

[[categorical]]
column = "user"
vocabulary = { kind = "open" }

[[categorical]]
column = "friends"
separator = "|"
vocabulary = { kind = "shared", with = "user" }

[[categorical]]
column = "tags"
separator = "|"
weights = "scores"
vocabulary = { kind = "open" }

[[categorical]]
column = "items"
separator = "|"
vocabulary = { kind = "open" }

[[categorical]]
column = "hours"
separator = "|"
vocabulary = { kind = "identity", rows = 24 }

[[sequence]]
name = "visits"
columns = ["items", "hours"]
max = 2
"#;

const TEXT: &str = "\
    click,user,friends,tags,scores,items,hours\n\
    1,u1,u1|7,a|b,0.5|2,i|j|k,1|2|3\n\
    0,,,,,,\n\
    1,a category of more than 15 bytes,18446744073709551615,b,0,i,5\n\
    0,7,\u{e9}|u1,c,1,,\n";

/// XXH3 of these categories, with seed 0, as another implementation computes it (version 0.8.3, in C).
const KEYS: [(&str, u64); 6] = [
    ("", 0x2d06_8005_38d3_94c2),
    ("u1", 0x9dc0_2546_854d_5df1),
    ("a category of more than 15 bytes", 0x88a2_b61a_5dc4_033b),
    ("7", 0x06ee_d105_b822_85fa),
    ("18446744073709551615", 0x9131_ab72_96c2_3377),
    ("\u{e9}", 0xf794_0a00_6cf1_0cb3),
];

fn key(category: &str) -> u64 {
    KEYS.iter().find(|known| known.0 == category).unwrap().1
}

fn options(files: Vec<PathBuf>, out: PathBuf) -> ConvertOptions {
    ConvertOptions { dense_dtype: DenseDtype::F32, ..ConvertOptions::new(files, out) }
}

fn convert(options: &ConvertOptions, schema: &str) -> Result<ConversionReport> {
    let schema = SchemaFile::parse("s.toml", schema)?;
    convert_csv_within(options, &schema, 1, SMALL, &|_: &'static str, _: u64, _: u64| ())
}

fn bags(offsets: &[u32], ids: &[u64]) -> Bags {
    Bags { offsets: offsets.into(), ids: ids.into(), weights: Vec::new() }
}

#[test]
fn keys_are_hashes_of_all_bits_of_a_category() {
    for (category, key) in KEYS {
        assert_eq!(hash_key(category.as_bytes()), key, "{category}");
    }
    let temp = TestFolder::new();
    let options = options(vec![temp.file("a.csv", TEXT)], temp.path("data"));
    let report = convert(&options, SCHEMA).unwrap();
    assert_eq!((report.columns[0].1.rows, &report.columns[0].1.vocabulary), (None, &VocabularyKind::Open));
    assert_eq!(report.columns[4].1.rows, Some(24));

    let Samples { categorical: found, .. } = samples_of(&options.out, Part::Train);
    let users = ["u1", "", "a category of more than 15 bytes", "7"].map(key);
    assert_eq!(found[0], bags(&[0, 1, 2, 3, 4], &users), "a missing category is the empty one");
    let friends = ["u1", "7", "18446744073709551615", "\u{e9}", "u1"].map(key);
    assert_eq!(found[1], bags(&[0, 2, 2, 3, 5], &friends), "one key in both columns");
    let [a, b, c, j, k, i] = [b"a", b"b", b"c", b"j", b"k", b"i"].map(|category| hash_key(category));
    let weights = vec![0.5, 2.0, 1.0];
    assert_eq!(found[2], Bags { weights, ..bags(&[0, 2, 2, 2, 3], &[a, b, c]) }, "weight 0 is not stored");
    assert_eq!(found[3], bags(&[0, 2, 2, 3, 3], &[j, k, i]), "the last two positions");
    assert_eq!(found[4], bags(&[0, 2, 2, 3, 3], &[2, 3, 5]));
}

#[test]
fn datasets_state_their_open_columns_and_count_no_keys() {
    let temp = TestFolder::new();
    let options = options(vec![temp.file("a.csv", TEXT)], temp.path("data"));
    convert(&options, SCHEMA).unwrap();
    let dataset = Dataset::open(&options.out).unwrap();
    let manifest = std::fs::read_to_string(options.out.join("dataset.json")).unwrap();
    assert!(manifest.contains(&format!("\"format\": {FORMAT_OPEN},")), "{manifest}");
    assert_eq!(manifest.matches("\"rows\": 24").count(), 1, "only the table of hours has rows: {manifest}");
    let kinds: Vec<_> = dataset.schema().categorical.iter().map(|column| column.table()).collect();
    assert_eq!(kinds, ["keys (open)", "keys (open)", "keys (open)", "keys (open)", "24 rows (identity)"]);

    let statistics = dataset.statistics().unwrap();
    let counted: Vec<_> = statistics
        .iter()
        .map(|table| (table.bags, table.lookups, table.distinct_rows, table.head.len()))
        .collect();
    assert_eq!(counted, [(4, 4, 0, 0), (4, 5, 0, 0), (4, 3, 0, 0), (4, 3, 0, 0), (4, 3, 3, 3)]);
    let classes = dataset.popularity_classes().unwrap().unwrap();
    let counted: Vec<_> = classes.iter().map(|classes| (classes.rows(), classes.lookups())).collect();
    assert_eq!(counted, [(0, 0), (0, 0), (0, 0), (0, 0), (24, 3)]);
    verify(&dataset, NonZeroUsize::MIN).unwrap();

    let options = StreamOptions::one_epoch(4);
    let part = dataset.part(Part::Train).unwrap();
    assert_eq!(part.why_unpacked(), None);
    let batch = BatchStream::open(part, &options).unwrap().next().unwrap();
    assert_eq!(batch.unwrap().samples.categorical[0].ids[1], key(""));
}

#[test]
fn keys_do_not_depend_on_threads() {
    let temp = TestFolder::new();
    let rows = (0..3000_u64).map(|row| {
        let user = row * row % 997;
        format!("{},u{user},u{}|{row},t{row},1,i{user}|{row},1|2\n", row % 2, user + 1)
    });
    let text = TEXT.lines().next().unwrap().to_owned() + "\n" + &rows.collect::<String>();
    let file = temp.file("a.csv", text);
    let with = |threads: usize| {
        let out = temp.path(&format!("data-{threads}"));
        let threads = NonZeroUsize::new(threads).unwrap();
        let options = ConvertOptions {
            threads,
            split: Split::Random { share: 0.25, seed: 3 }.into(),
            ..options(vec![file.clone()], out)
        };
        convert(&options, SCHEMA).unwrap();
        tree(&options.out)
    };
    assert!(with(1) == with(3));
}

/// Keys need no old vocabulary, and datasets that were converted separately have the same ones.
#[test]
fn further_rows_and_collections_have_the_same_keys() {
    let temp = TestFolder::new();
    let file = temp.file("a.csv", TEXT);
    let old = options(vec![file.clone()], temp.path("old"));
    convert(&old, SCHEMA).unwrap();
    let expected = samples_of(&old.out, Part::Train).categorical;
    let looked_up = |dir: &str| {
        let statistics = Dataset::open(&temp.path(dir)).unwrap().statistics().unwrap();
        statistics.iter().map(|table| (table.bags, table.lookups, table.distinct_rows)).collect::<Vec<_>>()
    };
    for (name, grow) in [("kept", false), ("grown", true)] {
        let known = KnownColumns::of(&Dataset::open(&old.out).unwrap()).unwrap();
        let further = options(vec![file.clone()], temp.path(name));
        let progress = &|_: &'static str, _: u64, _: u64| ();
        let work = Converting { options: &further, progress };
        let report = with_known(&further, known, grow, SMALL, work).unwrap();
        assert_eq!(report.columns[0].1.keys.unwrap().distinct_categories, 6);
        assert_eq!(samples_of(&further.out, Part::Train).categorical, expected);
        assert_popularity_of_samples(&further.out);
    }
    assert_eq!(looked_up("kept"), [(4, 4, 0), (4, 5, 0), (4, 3, 0), (4, 3, 0), (4, 3, 3)]);
    assert_eq!(looked_up("grown"), [(8, 8, 0), (8, 10, 0), (8, 6, 0), (8, 6, 0), (8, 6, 3)]);

    merge(&[temp.path("old"), temp.path("kept"), temp.path("grown")], &temp.path("all")).unwrap();
    assert_eq!(looked_up("all"), [(16, 16, 0), (16, 20, 0), (16, 12, 0), (16, 12, 0), (16, 12, 3)]);
    let all = Dataset::open(&temp.path("all")).unwrap();
    assert_eq!(all.samples(Part::Train), 12);
    let classes = all.popularity_classes().unwrap().unwrap();
    assert_eq!([classes[0].rows(), classes[4].rows(), classes[4].lookups()], [0, 24, 9]);
    verify(&all, NonZeroUsize::MIN).unwrap();
}

#[test]
fn fits_learn_nothing_of_open_columns() {
    let temp = TestFolder::new();
    let file = temp.file("a.csv", TEXT);
    let fit = options(vec![file.clone()], temp.path("fit"));
    let report = fit_csv(&fit, &SchemaFile::parse("s.toml", SCHEMA).unwrap(), 1, &()).unwrap();
    let rows: Vec<_> = report.columns.iter().map(|(_, table)| table.rows).collect();
    assert_eq!(rows, [None, None, None, None, Some(24)]);
    let direct = options(vec![file.clone()], temp.path("direct"));
    convert(&direct, SCHEMA).unwrap();
    let fitted = options(vec![file], temp.path("fitted"));
    let known = KnownColumns::of_fit(&Fit::open(&fit.out).unwrap()).unwrap();
    convert_like(&fitted, known, false, &()).unwrap();
    assert_eq!(samples_of(&fitted.out, Part::Train), samples_of(&direct.out, Part::Train));
}

#[test]
fn reports_estimate_the_categories_of_each_vocabulary() {
    let temp = TestFolder::new();
    let options = options(vec![temp.file("a.csv", TEXT)], temp.path("data"));
    let report = convert(&options, SCHEMA).unwrap();
    let counted = report.columns.iter().map(|(_, column)| Some(column.keys?.distinct_categories));
    // Of `user` and `friends` together: "", u1, the long one, 7, 18446744073709551615 and é.
    assert_eq!(counted.collect::<Vec<_>>(), [Some(6), None, Some(3), Some(3), None]);
    let json = serde_json::to_value(&report).unwrap();
    let expected = serde_json::json!({
        "vocabulary": { "kind": "open" },
        "keys": {
            "distinct_categories": 3,
            "is_estimate": false,
            "expected_collisions": 9.0 / 2.0_f64.powi(65),
            "sampled_categories": 3,
            "sampled_collisions": 0,
        },
    });
    assert_eq!(json["columns"]["tags"], expected);
}

/// Texts and integers of a program have the keys that a file of them has.
#[test]
fn columns_of_a_program_have_the_same_keys() {
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    let plan = schema.csv_plan(1, DenseDtype::F32).unwrap();
    let mut schema = plan.draft.clone();
    schema.categorical[4].hotness = crate::schema::Hotness::Ragged { max: 2 };
    let encoder = Encoder::new(&schema, vec![None; 5]).unwrap();
    let text = |name, values| RawColumn { name, values: RawColumnValues::Texts(values), offsets: None };
    let columns = [
        RawColumn { name: "user", values: RawColumnValues::Integers(&[7, -3]), offsets: None },
        text("friends", &["u1|7", ""]),
        RawColumn { name: "tags", values: RawColumnValues::Integers(&[7]), offsets: Some(&[0, 1, 1]) },
        RawColumn { name: "scores", values: RawColumnValues::Numbers(&[1.5]), offsets: Some(&[0, 1, 1]) },
        text("items", &["u1|7", ""]),
        text("hours", &["1|2", ""]),
    ];
    let columns = RawColumns {
        schema: &schema,
        format: &plan.format,
        labels: RawLabels::Ignored,
        rows: 2,
        columns: &columns,
    };
    let mut raw = RawRows::new(&schema);
    raw.append_columns(&columns).unwrap();
    let mut samples = Samples::new(&schema);
    encoder.encode_as_stored(&raw, &mut samples);
    let found = samples.categorical;
    assert_eq!(found[0], bags(&[0, 1, 2], &[key("7"), hash_key(b"-3")]));
    assert_eq!(found[1], bags(&[0, 2, 2], &[key("u1"), key("7")]));
    assert_eq!(found[2], Bags { weights: vec![1.5], ..bags(&[0, 1, 1], &[key("7")]) });
    assert_eq!(found[3], bags(&[0, 2, 2], &[key("u1"), key("7")]));
}

#[test]
fn criteo_columns_have_keys() {
    let temp = TestFolder::new();
    let options = options(vec![temp.file("a", GOOD_LINE.to_owned() + "\n")], temp.path("data"));
    let columns = CriteoColumns {
        vocabulary: "open".parse().unwrap(),
        columns: vec!["C2=hash:100".parse().unwrap()],
        ..CriteoColumns::default()
    };
    convert_criteo(&options, &columns, &()).unwrap();
    let found = samples_of(&options.out, Part::Train).categorical;
    let fields: Vec<_> = GOOD_LINE.split('\t').skip(14).collect();
    assert_eq!(found.len(), 26);
    for (number, (bags, field)) in found.iter().zip(fields).enumerate() {
        let id = hash_key(field.as_bytes());
        assert_eq!(bags.ids, [if number == 1 { id % 100 } else { id }], "C{}", number + 1);
    }
}

#[test]
fn mistakes_in_schema_files_are_named() {
    let refused = |vocabulary: &str| {
        let schema = format!(
            "[label]\ncolumn = \"click\"\n[[categorical]]\ncolumn = \"user\"\nvocabulary = {vocabulary}"
        );
        SchemaFile::parse("s.toml", &schema).map(drop).map_err(|error| error.to_string())
    };
    refused("{ kind = \"open\" }").unwrap();
    refused("\"open\"").unwrap();
    let rows = refused("{ kind = \"open\", rows = 10 }").unwrap_err();
    assert!(rows.starts_with("s.toml:5:") && rows.contains("rows"), "{rows}");
}
