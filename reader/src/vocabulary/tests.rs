//! Vocabularies and their indexes: mapped vocabularies find what those in memory find, and damage is refused.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rankine_base::sealed::Checksum;

use super::index::HEADER_WORDS;
use super::*;

const NO_LIMIT: u64 = CompactTable::NUMBER_MAX;

fn index_of(vocabulary: &Vocabulary, compact_rows_max: u64) -> Vec<u8> {
    let mut index = Vec::new();
    let put = |piece: &[u8]| {
        index.extend_from_slice(piece);
        Ok::<_, ()>(())
    };
    index::write(vocabulary, compact_rows_max, put).unwrap();
    index
}

fn text_of(vocabulary: &Vocabulary) -> Vec<u8> {
    let mut text = Vec::new();
    let put = |piece: &[u8]| {
        text.extend_from_slice(piece);
        Ok::<_, ()>(())
    };
    vocabulary.to_tsv(put).unwrap();
    text
}

#[test]
fn rows_are_sorted_by_count_then_bytes() {
    let long = "a-category-of-more-than-15-bytes";
    let counts = [("b", 3), ("", 7), ("rare", 1), ("a", 3), (long, 3), ("\t\\", 2)];
    let vocabulary = Vocabulary::from_counts(counts, 2);
    assert_eq!(vocabulary.rows(), 6);
    let row = |key: &str| vocabulary.row(key.as_bytes());
    assert_eq!(
        [row(""), row("a"), row(long), row("b"), row("\t\\")],
        [Some(1), Some(2), Some(3), Some(4), Some(5)]
    );
    assert_eq!((row("rare"), row("never"), vocabulary.counts()[0]), (None, None, 1));
    let text = format!("\\*\t1\n\t7\na\t3\n{long}\t3\nb\t3\n\\t\\\\\t2\n");
    assert_eq!(String::from_utf8(text_of(&vocabulary)).unwrap(), text);
}

/// More text than is written at a time.
#[test]
fn a_long_vocabulary_is_written_piece_by_piece() {
    let category = |n: u64| format!("{n:05}{}", "y".repeat(n as usize % 20));
    let vocabulary = Vocabulary::from_counts((0..9000).map(|n| (category(n), 20_000 - n)), 1);
    let mut pieces = Vec::new();
    let mut put = |piece: &[u8]| pieces.push(piece.to_vec());
    vocabulary
        .to_tsv(|piece| {
            put(piece);
            Ok::<_, ()>(())
        })
        .unwrap();
    assert!(pieces.len() > 2 && pieces.iter().all(|piece| piece.len() < PIECE_BYTES + 1024));
    let lines = (0..9000).map(|n| format!("{}\t{}\n", category(n), 20_000 - n));
    let expected = std::iter::once("\\*\t0\n".to_owned()).chain(lines).collect::<String>();
    assert!(pieces.concat() == expected.into_bytes());
    // An error ends the writing.
    assert_eq!(vocabulary.to_tsv(|_| Err("full")), Err("full"));
}

#[test]
fn a_hashed_row_is_plain_xxh3() {
    // The reference value of XXH3 (64 bits, seed 0) for no bytes.
    assert_eq!(hash_row(b"", u64::MAX), 0x2d06_8005_38d3_94c2);
    assert_eq!(hash_row(b"0a1b2c3d", 1000), xxh3_64(b"0a1b2c3d") % 1000);
}

#[test]
fn invalid_vocabularies_are_refused_with_the_line() {
    for (text, what) in [
        ("", "does not end"),
        ("a\t1\n", "line 1: the first row"),
        ("\\*\t1\nb\n", "line 2: no tab"),
        ("\\*\t1\nb\t-1\n", "line 2: no count"),
        ("\\*\t1\n\\q\t1\n", "line 2: a backslash"),
        ("\\*\t1\na\t1\na\t1\n", "line 3: the category is listed twice"),
    ] {
        let refusal = Vocabulary::from_tsv(text.as_bytes()).unwrap_err();
        assert!(refusal.what.contains(what), "{text:?}: {refusal}");
    }
}

proptest! {
    #[test]
    fn parsing_restores_any_vocabulary(
        counts in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..24), 0..5u64, 0..40),
    ) {
        let vocabulary = Vocabulary::from_counts(counts, 1);
        prop_assert_eq!(Vocabulary::from_tsv(&text_of(&vocabulary)).unwrap(), vocabulary);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        text in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"\\*\t\n1x"[..])], 0..80),
    ) {
        let _ = Vocabulary::from_tsv(&text);
        let _ = Vocabulary::from_tsv(&[b"\\*\t0\n", &text[..], b"\n"].concat());
    }
}

/// Writes a file, and lists it as it is.
fn listed(dir: &Path, name: &str, bytes: &[u8]) -> ListedFile {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    ListedFile { path, bytes: bytes.len() as u64, xxh3: Checksum::of(bytes) }
}

/// Maps an index whose manifest lists it as it is.
fn mapped(index: &[u8], text: &[u8]) -> rankine_base::Result<MappedVocabulary> {
    let dir = tempfile::tempdir().unwrap();
    MappedVocabulary::open(&listed(dir.path(), "c.index", index), listed(dir.path(), "c.tsv", text))
}

/// Looks keys up in every way there is for them.
fn rows_in(vocabulary: &MappedVocabulary, categories: &[Vec<u8>]) -> Vec<Vec<u64>> {
    let short: Vec<_> = categories.iter().filter_map(|category| ShortKey::new(category)).collect();
    let compact: Vec<_> = short.iter().filter_map(|&key| CompactKey::of_short(key)).collect();
    let other: Vec<_> = short.iter().copied().filter(|&key| CompactKey::of_short(key).is_none()).collect();
    let (mut of_compact, mut of_other) = (vec![77], vec![77]);
    vocabulary.rows_of_compact(&compact, &mut of_compact);
    vocabulary.rows_of_other(&other, &mut of_other);
    let one_by_one = categories.iter().map(|category| vocabulary.row(category));
    vec![one_by_one.collect(), of_compact, of_other]
}

/// Returns what [`rows_in`] must find.
fn expected_rows(vocabulary: &Vocabulary, categories: &[Vec<u8>]) -> Vec<Vec<u64>> {
    let row = |category: &Vec<u8>| vocabulary.row(category).unwrap_or(OUT_OF_VOCABULARY);
    let is_compact =
        |category: &Vec<u8>| ShortKey::new(category).is_some_and(|key| CompactKey::of_short(key).is_some());
    let compact = categories.iter().filter(|category| is_compact(category)).map(row);
    let is_other = |category: &&Vec<u8>| category.len() <= ShortKey::BYTES_MAX && !is_compact(category);
    let other = categories.iter().filter(is_other).map(row);
    vec![
        categories.iter().map(row).collect(),
        [77].into_iter().chain(compact).collect(),
        [77].into_iter().chain(other).collect(),
    ]
}

/// Categories of all kinds, which begin alike.
fn any_categories(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let category = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..5),
        "[0-3]{8}".prop_map(String::into_bytes),
        "[a-b]{5,17}".prop_map(String::into_bytes),
        prop::collection::vec(0..2u8, 0..40),
    ];
    prop::collection::vec(category, 0..most)
}

proptest! {
    #[test]
    fn a_mapped_vocabulary_finds_the_rows_of_the_loaded_one(
        categories in any_categories(300),
        others in any_categories(100),
        compact_rows_max in prop::sample::select(&[NO_LIMIT, 20, 0][..]),
    ) {
        let counts: std::collections::BTreeMap<_, _> = categories.iter().cloned().zip(1..).collect();
        let vocabulary = Vocabulary::from_counts(counts, 1);
        let (index, text) = (index_of(&vocabulary, compact_rows_max), text_of(&vocabulary));
        let dir = tempfile::tempdir().unwrap();
        let text = listed(dir.path(), "c.tsv", &text);
        let mapped = MappedVocabulary::open(&listed(dir.path(), "c.index", &index), text).unwrap();
        let asked = [categories, others].concat();
        prop_assert_eq!(rows_in(&mapped, &asked), expected_rows(&vocabulary, &asked));
        prop_assert_eq!(mapped.rows(), vocabulary.rows());
        let mut none = Vec::new();
        mapped.rows_of_compact(&[CompactKey::NONE], &mut none);
        prop_assert_eq!(none, [0]);
        prop_assert_eq!(mapped.load().unwrap(), vocabulary);
    }

    /// The manifest lists the file as it is, so that only the bounds of what it says are checked.
    #[test]
    fn an_index_that_lies_gives_rows_of_the_table_or_is_refused(
        categories in any_categories(60),
        lies in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u64>(), 0..40u64, (0..400u64).prop_map(|position| position << 24), Just(u64::MAX)
        ]), 1..20),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let counts: std::collections::BTreeMap<_, _> = categories.iter().cloned().zip(1..).collect();
        let vocabulary = Vocabulary::from_counts(counts, 1);
        let mut index = index_of(&vocabulary, 20);
        for (at, lie) in &lies {
            let at = 8 * at.index(index.len() / 8);
            index[at..at + 8].copy_from_slice(&lie.to_le_bytes());
        }
        if is_cut {
            index.truncate(length.index(index.len()));
        }
        if let Ok(mapped) = mapped(&index, &text_of(&vocabulary)) {
            let [one_by_one, compact, other] = &rows_in(&mapped, &categories)[..] else { panic!("three ways") };
            let mut rows = one_by_one.iter().chain(&compact[1..]).chain(&other[1..]);
            prop_assert!(rows.all(|&row| row < mapped.rows()));
        }
    }
}

/// However a vocabulary came to have its categories, its index has the same bytes.
#[test]
fn an_index_depends_on_the_categories_only() {
    let category = |number: u64| match number % 3 {
        0 => format!("{number:08x}"),
        1 => format!("category {number}"),
        _ => format!("a category with a longer name, {number}"),
    };
    let all: Vec<_> = (0..5000).map(|number| (category(number), 10_000 - number)).collect();
    let at_once = Vocabulary::from_counts(all.clone(), 1);
    let read = Vocabulary::from_tsv(&text_of(&at_once)).unwrap();
    let mut grown = Vocabulary::from_counts(all[..2000].to_vec(), 1);
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for (category, count) in &all[2000..] {
        match ShortKey::new(category.as_bytes()) {
            Some(key) => short.push((key, *count)),
            None => long.push((category.as_bytes().into(), *count)),
        }
    }
    grown.append(short, long);
    let expected = index_of(&at_once, NO_LIMIT);
    assert!(index_of(&read, NO_LIMIT) == expected && index_of(&grown, NO_LIMIT) == expected);
    // Counts are in the vocabulary only.
    let fewer = all.into_iter().map(|(category, count)| (category, count - 3));
    assert!(index_of(&Vocabulary::from_counts(fewer, 1), NO_LIMIT) == expected);
}

/// A row that the table does not have would be no row of the column.
#[test]
fn an_entry_with_a_row_beyond_the_table_is_not_found() {
    let categories = ["five5", "longer than fifteen"].map(|text| text.as_bytes().to_vec());
    let counts = categories.iter().zip([2, 1]);
    let vocabulary = Vocabulary::from_counts(counts, 1);
    let mut index = index_of(&vocabulary, NO_LIMIT);
    // Both tables have 16 slots.
    for (word, row, category) in
        [(HEADER_WORDS + 32, 1, &categories[0]), (HEADER_WORDS + 34, 2, &categories[1])]
    {
        let head = |row: u64| (row << 32 | category.len() as u64).to_le_bytes();
        assert_eq!(index[8 * word..8 * word + 8], head(row));
        index[8 * word..8 * word + 8].copy_from_slice(&head(3));
    }
    let mapped = mapped(&index, &text_of(&vocabulary)).unwrap();
    assert_eq!(rows_in(&mapped, &categories), [vec![0, 0], vec![77], vec![77, 0]]);
}

#[test]
fn damage_names_the_file_and_the_way_out() {
    let vocabulary = Vocabulary::from_counts([("b", 3), ("longer than four", 2), ("five5", 1)], 1);
    let (good, text) = (index_of(&vocabulary, NO_LIMIT), text_of(&vocabulary));
    let dir = tempfile::tempdir().unwrap();
    let index = listed(dir.path(), "c.index", &good);
    let tsv = listed(dir.path(), "c.tsv", &text);
    let refused = || MappedVocabulary::open(&index, tsv.clone()).unwrap_err().to_string();
    let assert_says = |error: &str, file: &str, what: &str| {
        let way_out = "copy the fit again, or make it again with `rankine fit`";
        assert!(error.contains(file) && error.contains(what) && error.ends_with(way_out), "{error}");
    };
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&index.path, bad).unwrap();
        assert_says(&refused(), "c.index", "its checksum does not match fit.json");
    }
    for bytes in [0, 7, 64, good.len() - 1] {
        fs::write(&index.path, &good[..bytes]).unwrap();
        assert_says(&refused(), "c.index", &format!("it has {bytes} bytes but should have {}", good.len()));
    }
    fs::write(&index.path, &good).unwrap();
    fs::write(&tsv.path, [&text[..text.len() - 2], b"7\n"].concat()).unwrap();
    assert_says(&refused(), "c.tsv", "its checksum does not match fit.json");
    fs::remove_file(&index.path).unwrap();
    fs::write(&tsv.path, &text).unwrap();
    assert!(refused().contains("c.index"));
    // A manifest that lists such files as they are.
    let of_word = |word: usize, value: u64| {
        let mut bad = good.clone();
        bad[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
        mapped(&bad, &text).map(drop).unwrap_err().to_string()
    };
    assert_says(&of_word(0, 1), "c.index", "it does not start with RKNVOCAB");
    assert_says(&of_word(1, 2), "c.index", "it has version 2, but this program reads 1");
    assert_says(&of_word(2, 1), "c.index", "has rows beyond the last one");
    assert_says(&of_word(4, 3), "c.index", "its length does not fit its header");
    assert_says(&of_word(6, u64::MAX), "c.index", "its length does not fit its header");
    assert_says(&mapped(&good[..good.len() - 3], &text).unwrap_err().to_string(), "c.index", "within a word");
    assert_says(&mapped(&good[..8], &text).unwrap_err().to_string(), "c.index", "shorter than its header");
    let mut full = good.clone();
    full[8 * HEADER_WORDS..][..16 * 8].copy_from_slice(&1_u64.to_le_bytes().repeat(16));
    assert_says(&mapped(&full, &text).map(drop).unwrap_err().to_string(), "c.index", "a table is full");
    // The index of another vocabulary.
    let other = text_of(&Vocabulary::from_counts([("b", 3)], 1));
    assert_says(
        &mapped(&good, &other).unwrap().load().unwrap_err().to_string(),
        "c.tsv",
        "its index has other rows",
    );
}
