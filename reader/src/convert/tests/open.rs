//! Open vocabularies: ids are keys, hashes of 64 bits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::convert::tests::{SMALL, TestFolder, convert_csv_within, samples_of};
use crate::convert::*;
use crate::dataset::{Dataset, FORMAT_OPEN};
use crate::part::Part;
use crate::samples::{Bags, Samples};
use crate::schema::{DenseDtype, VocabularyKind};
use crate::stream::{BatchStream, StreamOptions};
use crate::tests::tree;
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
    let batch = BatchStream::open(dataset.part(Part::Train).unwrap(), &options).unwrap().next().unwrap();
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
