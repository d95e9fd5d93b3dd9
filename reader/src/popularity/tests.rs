//! Codes, files and sums against counts by brute force.

use std::cmp::Reverse;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use proptest::prelude::*;
use rankine_base::stop::Stop;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::counting::count;
use crate::dataset::Dataset;
use crate::generate::{GenerateSpec, Shape, generate};
use crate::merge::{merge, open_all};
use crate::part::Part;
use crate::schema::Pooling;
use crate::statistics::{RowFrequencies, TableStatistics};
use crate::stream::{BatchStream, StreamOptions};

#[test]
fn codes_are_exact_for_small_counts_and_within_an_eighth_for_others() {
    let mut next = 0_u128;
    for code in 0..=u8::MAX {
        let (lowest, highest) = counts_of(code);
        assert_eq!(u128::from(lowest), next, "codes leave no gap");
        assert_eq!([lowest, highest].map(code_of), [code; 2]);
        if code < 16 {
            assert_eq!((lowest, highest), (code.into(), code.into()));
        } else if code < u8::MAX {
            assert!(highest - lowest < lowest / 8, "{code}");
        }
        next = u128::from(highest) + 1;
    }
    assert_eq!(counts_of(255), (15 << 30, u64::MAX));
    assert_eq!([16, 17, 18, 31, 32, 36].map(code_of), [16, 16, 17, 23, 24, 25]);
}

/// Rows by descending code and ascending row.
fn sorted(counts: &[u64]) -> Vec<u64> {
    let mut rows: Vec<_> = (0..counts.len() as u64).collect();
    rows.sort_by_key(|&row| (Reverse(code_of(counts[row as usize])), row));
    rows
}

fn of(counts: &[u64]) -> Popularity {
    Popularity::of_counts(counts.iter().copied()).unwrap()
}

/// Exact statistics of which only the first `head` rows are listed.
fn statistics(counts: &[u64], head: usize) -> TableStatistics {
    let mut rows: Vec<_> =
        (0..).zip(counts).map(|(row, &count)| (row, count)).filter(|row| row.1 > 0).collect();
    rows.sort_by_key(|&(row, count)| (Reverse(count), row));
    let (lookups, distinct_rows) = (counts.iter().sum(), rows.len() as u64);
    let mut tail = [TailBucket::default(); 64];
    for (_, count) in rows.drain(head.min(rows.len())..) {
        let bucket = &mut tail[count.ilog2() as usize];
        (bucket.rows, bucket.lookups) = (bucket.rows + 1, bucket.lookups + count);
    }
    TableStatistics { bags: 1, lookups, distinct_rows, head: rows, tail }
}

fn any_counts() -> impl Strategy<Value = Vec<u64>> {
    let count = prop_oneof![Just(0_u64), 0..20_u64, (0..40_u32).prop_map(|bits| 3 << bits >> 1)];
    let runs = prop::collection::vec((count, 1..30_usize), 1..20);
    runs.prop_map(|runs| runs.into_iter().flat_map(|(count, rows)| vec![count; rows]).collect())
}

proptest! {
    #[test]
    fn the_hottest_rows_are_those_of_a_sort(counts in any_counts(), rows in 0..300_u64) {
        let popularity = of(&counts);
        let mut expected = sorted(&counts);
        expected.truncate(rows as usize);
        prop_assert_eq!(popularity.hottest(rows), &expected[..]);
        expected.sort_unstable();
        prop_assert_eq!(popularity.hottest_ascending(rows).collect::<Vec<_>>(), expected);
        let runs = counts.chunk_by(|a, b| code_of(*a) == code_of(*b)).count();
        prop_assert_eq!(matches!(popularity.codes, Codes::Runs(_)), 8 * runs < counts.len());
        let classes = popularity.classes();
        prop_assert_eq!(classes.rows(), counts.len() as u64);
        prop_assert_eq!(classes.lookups(), counts.iter().sum::<u64>());
    }

    /// The rows of a class count as equally frequent, so with counts that have codes of their own all is exact.
    #[test]
    fn frequencies_are_exact_where_codes_are(
        counts in prop::collection::vec(0..18_u64, 1..60), head in 0..70_usize, share in 0.0..1.0_f64,
    ) {
        let counts: Vec<_> = counts.into_iter().map(|count| count.min(16)).collect();
        let statistics = statistics(&counts, head);
        let popularity = of(&counts);
        let known = RowFrequencies::new(&statistics, Some(popularity.classes()));
        prop_assert_eq!(known.head.len(), statistics.head.len());
        let mut descending = counts.clone();
        descending.sort_unstable_by_key(|&count| Reverse(count));
        let (all, mut served) = (statistics.lookups, 0);
        let mut rows_needed = None;
        for rows in 0..=counts.len() {
            let expected = if all == 0 { 0.0 } else { served as f64 / all as f64 };
            prop_assert!((known.coverage(rows as u64) - expected).abs() < 1e-12);
            if rows_needed.is_none() && served as f64 >= share * all as f64 {
                rows_needed = Some(rows as u64);
            }
            served += descending.get(rows).unwrap_or(&0);
        }
        prop_assert_eq!(Some(known.rows_serving(share)), rows_needed);
        // Counts of other look-ups replace statistics that do not list all rows.
        let other = of(&[&counts[..], &[1]].concat());
        let replaced = RowFrequencies::new(&statistics, Some(other.classes()));
        let exact = statistics.head.len() as u64 == statistics.distinct_rows;
        prop_assert_eq!(replaced.head.len(), if exact { statistics.head.len() } else { 0 });
        prop_assert_eq!(replaced.lookups, if exact { all } else { all + 1 });
    }

    #[test]
    fn a_sum_is_within_an_eighth_whatever_the_order(
        first in any_counts(), second in any_counts(), third in any_counts(),
    ) {
        let sum = |of: &[&Popularity]| {
            let mut sum = PopularitySum::new(1).unwrap();
            of.iter().for_each(|popularity| sum.add(popularity).unwrap());
            sum.finish().unwrap()
        };
        let [a, b, c] = [&first, &second, &third].map(|counts| of(counts));
        let found = sum(&[&a, &b, &c]);
        prop_assert_eq!(&found, &sum(&[&c, &a, &b]));
        let rows = first.len().max(second.len()).max(third.len());
        prop_assert_eq!(found.classes().rows(), rows as u64);
        let mut codes = vec![0; rows];
        found.each_run(|code, first, run| codes[first as usize..(first + run) as usize].fill(code));
        for (row, code) in codes.into_iter().enumerate() {
            let exact: u64 = [&first, &second, &third].iter().filter_map(|counts| counts.get(row)).sum();
            let (lowest, highest) = counts_of(code);
            // The sum of means is within an eighth of the exact sum, and rounding them changes it less.
            prop_assert!(lowest as f64 <= exact as f64 * 1.125 && exact as f64 <= highest as f64 * 1.125);
        }
    }
}

/// Datasets of two scattered columns, one of which has repeats in its bags.
fn generated(dir: &Path, seed: u64) -> Dataset {
    let shape = Shape {
        name: "two".into(),
        dense: 1,
        rows: vec![3000, 50],
        hotness: vec![2, 3],
        ragged: true,
        pooling: Pooling::Sum,
        sequences: Vec::new(),
        churn: None,
    };
    let spec = GenerateSpec { shape, rows_cap: None, samples: 20_000, eval_samples: 10, alpha: 1.1, seed };
    generate(&spec, dir, NonZeroUsize::new(2).unwrap(), &Stop::default(), |_| ()).unwrap();
    Dataset::open(dir).unwrap()
}

/// Counts the training part row by row.
fn counts(dataset: &Dataset, column: usize) -> Vec<u64> {
    let mut counts = vec![0; dataset.schema().categorical[column].rows.unwrap() as usize];
    let options = StreamOptions::one_epoch(1000);
    for batch in BatchStream::open(dataset.part(Part::Train).unwrap(), &options).unwrap() {
        batch.unwrap().samples.categorical[column].ids.iter().for_each(|&id| counts[id as usize] += 1);
    }
    counts
}

#[test]
fn further_rows_are_listed_hottest_first_and_no_look_up_is_lost() {
    // Rows 0 to 9, of which the statistics list two. Row 6 was never looked up.
    let counts = [5, 160, 33, 5, 34, 5, 0, 35, 1, 161];
    let statistics = statistics(&counts, 2);
    assert_eq!(statistics.head, [(9, 161), (1, 160)]);
    let popularity = of(&counts);
    let listed = |rows| {
        let mut known = RowFrequencies::new(&statistics, Some(popularity.classes()));
        known.list(&popularity, rows);
        let tail: u64 = known.tail.iter().map(|class| class.lookups).sum();
        assert_eq!(known.head.iter().map(|row| row.1).sum::<u64>() + tail, known.lookups);
        known.head[2..].to_vec()
    };
    assert_eq!(listed(2), []);
    // Rows 2, 4 and 7 have one code, 32 to 35, and in total 102.
    assert_eq!(listed(4), [(2, 34), (4, 34)]);
    let all = [(2, 34), (4, 34), (7, 34), (0, 5), (3, 5), (5, 5), (8, 1)];
    assert_eq!((listed(9), listed(100)), (all.to_vec(), all.to_vec()));
    let other = of(&[&counts[..], &[1]].concat());
    let mut known = RowFrequencies::new(&statistics, Some(other.classes()));
    known.list(&other, 5);
    assert_eq!(known.head.len(), 0);
}

#[test]
fn generating_counts_every_row_and_a_pass_over_the_dataset_gives_the_same_file() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let dataset = generated(&dir, 1);
    let classes = dataset.popularity_classes().unwrap().unwrap();
    for (column, classes) in classes.iter().enumerate() {
        let counts = counts(&dataset, column);
        let found = dataset.popularity(column).unwrap().unwrap();
        assert_eq!(found, of(&counts));
        assert_eq!(found.classes(), classes);
        assert_eq!(found.hottest(500), sorted(&counts)[..counts.len().min(500)]);
    }
    // Columns that share a table: the second one names the first rows of the first one.
    let shared = dataset.shared_popularity(&[0, 1]).unwrap().unwrap();
    let [mut sums, second] = [0, 1].map(|column| counts(&dataset, column));
    sums.iter_mut().zip(&second).for_each(|(sum, count)| *sum += count);
    shared.each_run(|code, first, rows| {
        for &sum in &sums[first as usize..(first + rows) as usize] {
            let (lowest, highest) = counts_of(code);
            assert!(lowest as f64 <= sum as f64 * 1.125 && sum as f64 <= highest as f64 * 1.125);
        }
    });
    assert_eq!(dataset.shared_popularity(&[0]).unwrap(), dataset.popularity(0).unwrap());
    let path = dir.join(FILE_NAME);
    let written = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(dataset.popularity_classes().unwrap(), None);
    assert_eq!(dataset.shared_popularity(&[0, 1]).unwrap(), None);
    for threads in [1, 3] {
        let mut read = 0;
        count(&dataset, NonZeroUsize::new(threads).unwrap(), &mut |bytes| read = bytes).unwrap();
        assert_eq!(fs::read(&path).unwrap(), written);
        let blocks = dataset.part(Part::Train).unwrap().blocks;
        assert_eq!(read, blocks.iter().map(|block| u64::from(block.bytes)).sum::<u64>());
    }
}

#[test]
fn collections_add_up_what_their_datasets_count() {
    let home = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| home.path().join(name));
    let datasets: Vec<_> = (0..).zip(&dirs).map(|(seed, dir)| generated(dir, seed)).collect();
    let [a, b, c] = &dirs;
    let merged = merge(&dirs, &home.path().join("all")).unwrap();
    let nested =
        merge(&[merge(&[c, a], &home.path().join("ca")).unwrap().dir(), b], &home.path().join("of")).unwrap();
    let listed = open_all(&dirs).unwrap();
    let mut exact_counts = Vec::new();
    for column in 0..2 {
        let found = merged.popularity(column).unwrap().unwrap();
        assert_eq!(Some(&found), nested.popularity(column).unwrap().as_ref(), "in any order");
        assert_eq!(
            Some(found.classes()),
            listed.popularity_classes().unwrap().map(|of| of[column].clone()).as_ref()
        );
        let exact: Vec<_> = datasets.iter().map(|dataset| counts(dataset, column)).collect();
        let exact: Vec<u64> = (0..exact[0].len()).map(|row| exact.iter().map(|of| of[row]).sum()).collect();
        let lookups = exact.iter().sum::<u64>() as f64;
        assert!((found.classes().lookups() as f64 / lookups - 1.0).abs() < 0.01);
        // The hottest rows by summed codes serve nearly as many look-ups as the hottest rows.
        let served = |rows: &[u64]| rows.iter().map(|&row| exact[row as usize]).sum::<u64>() as f64;
        let rows = exact.len() / 10;
        assert!(served(&found.hottest(rows as u64)) >= 0.995 * served(&sorted(&exact)[..rows]));
        exact_counts.push(exact);
    }
    // Counting the collection itself is exact.
    count(&merged, NonZeroUsize::MIN, &mut |_| ()).unwrap();
    for (column, exact) in exact_counts.iter().enumerate() {
        assert!(merged.popularity(column).unwrap() == Some(of(exact)));
    }
    assert!(crate::verify::verify(&merged, NonZeroUsize::MIN).unwrap().is_whole());
    let error = count(&listed, NonZeroUsize::MIN, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("is not a folder of one dataset"), "{error}");
    // A dataset that nobody counted leaves the sum unknown.
    fs::remove_file(b.join(FILE_NAME)).unwrap();
    assert_eq!(open_all(&dirs).unwrap().popularity_classes().unwrap(), None);
    let uncounted = merge(&dirs, &home.path().join("uncounted")).unwrap();
    assert!(!uncounted.dir().join(FILE_NAME).exists());
    // The file of another dataset is refused.
    fs::copy(a.join(FILE_NAME), b.join(FILE_NAME)).unwrap();
    let error = Dataset::open(b).unwrap().popularity_classes().unwrap_err().to_string();
    assert!(error.contains("samples of another dataset") && error.contains("rankine inspect"), "{error}");
}

/// Reads the head and all codes.
fn read(dataset: &Dataset) -> Result<()> {
    dataset.popularity_classes()?.expect("it is there");
    (0..2).try_for_each(|column| dataset.popularity(column).map(drop))
}

#[test]
fn a_file_that_is_not_as_it_was_written_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let dataset = generated(&dir, 1);
    let path = dir.join(FILE_NAME);
    let whole = fs::read(&path).unwrap();
    let refusal = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = read(&dataset).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        let report = crate::verify::verify(&dataset, NonZeroUsize::MIN).unwrap();
        assert_eq!(report.damages[0].what, error.to_string(), "--verify reports it");
        error.to_string()
    };
    for at in (0..whole.len()).step_by(37).chain(0..64) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        refusal(&bytes);
    }
    for len in (0..whole.len()).step_by(101) {
        refusal(&whole[..len]);
    }
    assert!(refusal(&[&whole[..], &[0]].concat()).contains("length does not match"));

    // Wrong contents under right checksums. The first table starts at byte 56: rows, kind, bytes, checksum, number of
    // classes, then code, rows, look-ups of each class.
    let field = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let head_bytes = field(&whole, 32) as usize;
    let sealed = |changes: &[(usize, u64)]| {
        let mut bytes = whole.clone();
        changes.iter().for_each(|&(at, value)| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes()));
        let checksum = xxh3_64(&[&bytes[..40], &bytes[48..head_bytes]].concat());
        bytes[40..48].copy_from_slice(&checksum.to_le_bytes());
        bytes
    };
    let (first_code, first_rows) = (field(&whole, 96), field(&whole, 104));
    for (changes, says) in [
        (&[(8, 2)][..], "version 2, but this program reads 1"),
        (&[(16, 0)], "another dataset"),
        (&[(24, 0)], "another dataset"),
        (&[(32, u64::MAX)], "head cannot have"),
        (&[(48, 1)], "one table per categorical column"),
        (&[(56, 2999)], "does not count the 3000 rows"),
        (&[(64, 2)], "of kind 2"),
        (&[(72, 2999)], "2999 bytes of kind 0"),
        (&[(72, u64::MAX - 7), (64, 1)], "of kind 1"),
        (&[(80, 0)], "checksum of a table's codes"),
        (&[(88, 300)], "popularity.bin is damaged"),
        (&[(88, u64::MAX)], "popularity.bin is damaged"),
        (&[(96, 256)], "no code 256"),
        (&[(120, first_code)], "or has it twice"),
        (&[(104, 0)], "cannot have"),
        (&[(104, first_rows - 1)], "does not count the 3000 rows"),
        (&[(112, u64::MAX)], "cannot have"),
    ] {
        let found = refusal(&sealed(changes));
        assert!(found.contains(says) && found.contains("rankine inspect"), "{changes:?}: {found}");
    }
    // Codes that the head does not state.
    let mut swapped = whole.clone();
    let other = (head_bytes..head_bytes + 3000).find(|&at| whole[at] != whole[head_bytes]).unwrap();
    swapped[other] = whole[head_bytes];
    let changed = sealed(&[(80, xxh3_64(&swapped[head_bytes..head_bytes + 3000]))]);
    swapped[..head_bytes].copy_from_slice(&changed[..head_bytes]);
    assert!(refusal(&swapped).contains("each code as often"));

    fs::write(&path, &whole).unwrap();
    read(&dataset).unwrap();
}

/// A table that is stored as runs, whose lengths are beyond it.
#[test]
fn runs_longer_than_the_table_are_refused() {
    let dataset = crate::tests::dataset(1000, 64);
    let opened = Dataset::open(&dataset.dir()).unwrap();
    let manifest = opened.manifest().unwrap();
    let columns = &manifest.schema.categorical;
    let counted = manifest.counted().unwrap();
    let path = dataset.dir().join(FILE_NAME);
    let with = |runs: Vec<u64>| {
        let ones = |rows: u64| Popularity::of_counts((0..rows).map(|_| 1)).unwrap();
        let mut tables: Vec<_> = columns.iter().map(|column| ones(column.rows.unwrap())).collect();
        tables[0].codes = Codes::Runs(runs);
        let mut bytes = Vec::new();
        write(counted, &tables, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        fs::write(&path, bytes).unwrap();
        opened.popularity(0)
    };
    let rows = columns[0].rows.unwrap();
    assert!(with(vec![rows << 8 | 1]).is_ok());
    for runs in
        [vec![(rows + 1) << 8 | 1], vec![1, rows << 8 | 1], vec![u64::MAX; 300], vec![(rows - 1) << 8 | 1]]
    {
        let error = with(runs).unwrap_err().to_string();
        assert!(error.contains("the runs of a table's codes do not have its rows"), "{error}");
    }
}
