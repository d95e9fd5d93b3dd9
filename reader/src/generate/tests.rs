//! Generated data: its bytes, its distributions and the AUC that it states.

use std::collections::{BTreeMap, BTreeSet};

use crate::tests::file_calls::{assert_durable, observe};

use super::*;
use crate::dataset::Dataset;
use crate::schema::Pooling;
use crate::shape::{ChurnShape, SequenceShape};
use crate::stream::{BatchStream, StreamOptions};
use crate::tests::tree;
use crate::vocabulary::hash_key;

fn small(shape: Shape, samples: u64) -> GenerateSpec {
    GenerateSpec { shape, rows_cap: Some(1000), samples, eval_samples: samples / 4, alpha: 1.1, seed: 3 }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let mut ragged = Shape::load("dlrm").unwrap();
    ragged.hotness = (0..26).map(|column| 1 + column % 3).collect();
    ragged.ragged = true;
    for shape in [ragged, Shape::load("sequences").unwrap(), Shape::load("churn").unwrap()] {
        let temp = tempfile::tempdir().unwrap();
        let spec = small(shape, 40_000);
        let trees = [1, 2, 5].map(|threads| {
            let dir = temp.path().join(format!("threads-{threads}"));
            generate(&spec, &dir, NonZeroUsize::new(threads).unwrap(), &Stop::default(), |_| ()).unwrap();
            tree(&dir)
        });
        assert!(trees[0].len() > 5);
        assert_eq!(trees[0], trees[1]);
        assert_eq!(trees[0], trees[2]);
    }
}

#[test]
fn a_full_sized_sample_takes_at_most_76_bytes() {
    let shape = Shape::load("dlrm").unwrap();
    let schema = shape.schema(None);
    let spec = GenerateSpec { rows_cap: None, ..small(shape, u64::from(schema.default_block_samples())) };
    // The counters of 188 million rows would take 1.5 GB, so only the blocks are written.
    let generator = Generator::new(&spec, schema.clone(), &Stop::default());
    let samples = generator.samples(Part::Train, 0..spec.samples, |_, _| ()).unwrap();
    let id = crate::block::BlockId { dataset: 0, part: Part::Train, index: 0 };
    let bytes = crate::block::encode(&schema, id, &samples).unwrap().len();
    let per_sample = bytes as f64 / spec.samples as f64;
    assert!(per_sample <= 76.0, "{per_sample} bytes per sample");
    let document = include_str!("../../../docs/reference/dataset-format.md");
    assert!(
        document.contains(&format!("takes {bytes} bytes:\n{per_sample:.2} bytes per sample")),
        "{bytes} bytes"
    );
}

#[test]
fn labels_follow_the_teacher() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let spec = small(Shape::load("dlrm").unwrap(), 20_000);
    let mut done = Vec::new();
    let (manifest, calls) =
        observe(|| generate(&spec, &dir, NonZeroUsize::MIN, &Stop::default(), |so_far| done.push(so_far)));
    let manifest = manifest.unwrap();
    assert_durable(&calls, &dir);
    assert_eq!(done, [20_000, 25_000]);
    let Origin::Generated(generation) = &manifest.origin else { panic!("{:?}", manifest.origin) };
    assert_eq!(generation.spec, spec);
    let auc = generation.auc_achievable.unwrap();
    assert!((0.75..0.9).contains(&auc), "{auc}");
    let train = &manifest.parts[&Part::Train];
    let rate = train.positives[0] as f64 / train.samples as f64;
    assert!((0.15..0.4).contains(&rate), "{rate}");
    let dataset = Dataset::open(&dir).unwrap();
    assert_eq!(dataset.manifest(), Some(&manifest));
    assert_eq!((dataset.samples(Part::Train), dataset.samples(Part::Eval)), (20_000, 5000));
    let statistics = dataset.statistics().unwrap();
    assert!(statistics.iter().all(|table| table.lookups == 20_000));
}

#[test]
fn invalid_specs_are_refused_and_leave_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let good = small(Shape::load("dlrm").unwrap(), 100);
    for bad in [
        GenerateSpec { samples: 0, ..good.clone() },
        GenerateSpec { alpha: f64::NAN, ..good.clone() },
        GenerateSpec { alpha: -0.001, ..good.clone() },
        GenerateSpec { alpha: 10.001, ..good.clone() },
        GenerateSpec { rows_cap: Some(0), ..good.clone() },
    ] {
        assert!(generate(&bad, &dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).is_err());
    }
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    generate(&good, &dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
    let again = generate(&good, &dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap_err().to_string();
    assert!(again.contains("already exists"), "{again}");
}

#[test]
fn a_generation_that_is_stopped_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let spec = small(Shape::load("dlrm").unwrap(), 1 << 40);
    let stop = Stop::default();
    let ask = |_| stop.ask();
    let stopped = generate(&spec, &temp.path().join("data"), NonZeroUsize::MIN, &stop, ask);
    assert!(matches!(stopped, Err(Error::Stopped(_))), "{stopped:?}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

/// A part, the number of a sample, its dense values, the ids of each column, the teacher's logit, and the label.
type Expected<'a, const DENSE: usize, const COLUMNS: usize> =
    (Part, u64, [f32; DENSE], [&'a [u64]; COLUMNS], f64, f32);

/// Checks samples of a shape with the seed of [`small`].
fn assert_samples<const DENSE: usize, const COLUMNS: usize>(
    shape: Shape,
    alpha: f64,
    expected: &[Expected<'_, DENSE, COLUMNS>],
) {
    let spec = GenerateSpec { alpha, rows_cap: None, ..small(shape, 100) };
    let generator = Generator::new(&spec, spec.shape.schema(None), &Stop::default());
    for &(part, number, dense, ids, logit, label) in expected {
        let mut judged = Vec::new();
        // Not the first of its run: the start of a run changes nothing.
        let from = number.saturating_sub(1);
        let range = from..number + 1;
        let samples = generator.samples(part, range, |logit, label| judged.push((logit, label))).unwrap();
        let last = samples.len - 1;
        assert_eq!(samples.dense[DENSE * last..], dense, "{part} {number}");
        for (bags, ids) in samples.categorical.iter().zip(ids) {
            assert_eq!(bags.bag(last), ids, "{part} {number}");
        }
        assert_eq!(samples.labels[0][last], label, "{part} {number}");
        // A sum of seven terms of size 3 at most, each with a few roundings: 100 times 2^-53 times 20.
        let (judged, is_positive) = judged[last];
        assert!((judged - logit).abs() < 1e-12, "{part} {number}: {judged} for {logit}");
        assert_eq!(is_positive, label == 1.0);
    }
}

/// Expected values come from another implementation: a dataset named by a spec is the same on every machine and in
/// every version.
#[test]
fn the_samples_of_a_seed_never_change() {
    let check = |ragged, alpha, expected: &[Expected<'_, 2, 4>]| {
        let shape = Shape {
            name: "small".into(),
            dense: 2,
            rows: vec![50, 1, 1000, 7],
            hotness: vec![1, 2, 3, 1],
            ragged,
            pooling: Pooling::Sum,
            sequences: Vec::new(),
            churn: None,
        };
        assert_samples(shape, alpha, expected);
    };
    let (train, eval) = (Part::Train, Part::Eval);
    let fixed: [Expected<'_, 2, 4>; 5] = [
        (
            train,
            0,
            [4.277_343_8, 2.302_734_4],
            [&[12], &[0, 0], &[0, 596, 809], &[0]],
            -0.322_708_153_442_433_64,
            0.0,
        ),
        (train, 1, [4.625, 3.332_031_3], [&[17], &[0, 0], &[427, 809, 0], &[1]], -2.036_065_864_775_461, 0.0),
        (
            train,
            2,
            [2.398_437_5, 3.433_593_8],
            [&[27], &[0, 0], &[242, 570, 476], &[2]],
            -0.148_775_476_745_060_28,
            0.0,
        ),
        (
            eval,
            0,
            [3.583_984_4, 0.693_359_4],
            [&[10], &[0, 0], &[0, 281, 809], &[5]],
            -1.701_544_518_699_670_7,
            1.0,
        ),
        (
            eval,
            70_000,
            [1.609_375, 3.828_125],
            [&[49], &[0, 0], &[619, 571, 619], &[6]],
            -0.387_951_214_533_661_16,
            1.0,
        ),
    ];
    check(false, 1.1, &fixed);
    let ragged: [Expected<'_, 2, 4>; 5] = [
        (
            train,
            0,
            [4.277_343_8, 2.302_734_4],
            [&[], &[], &[0, 944, 857], &[]],
            -0.877_577_302_292_298_8,
            0.0,
        ),
        (train, 1, [4.625, 3.332_031_3], [&[5], &[], &[857, 0], &[0]], -1.642_914_245_313_356_5, 0.0),
        (
            train,
            2,
            [2.398_437_5, 3.433_593_8],
            [&[24], &[0], &[619, 760], &[2]],
            0.154_305_868_975_258_16,
            1.0,
        ),
        (eval, 0, [3.583_984_4, 0.693_359_4], [&[0], &[], &[], &[4]], 1.417_640_048_836_885_2, 1.0),
        (eval, 70_000, [1.609_375, 3.828_125], [&[43], &[0], &[0], &[0]], 1.257_632_860_843_944_4, 1.0),
    ];
    check(true, 1.37, &ragged);
}

#[test]
fn the_samples_of_sequences_never_change() {
    let query = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    // A sequence of two attributes, and one whose only attribute has both groups and effects.
    let sequences = vec![
        SequenceShape { query: query(&["C1", "C2"]), max: 20 },
        SequenceShape { query: query(&["C3"]), max: 3 },
    ];
    let shape = Shape {
        name: "small".into(),
        dense: 1,
        rows: vec![2000, 40, 7],
        hotness: Vec::new(),
        ragged: false,
        pooling: Pooling::Sum,
        sequences,
        churn: None,
    };
    let (train, eval) = (Part::Train, Part::Eval);
    let expected: [Expected<'_, 1, 6>; 5] = [
        (
            train,
            0,
            [4.277_343_8],
            [&[1769], &[0], &[0], &[474, 1237, 1469, 0], &[34, 14, 0, 2], &[]],
            -0.976_178_158_750_139,
            0.0,
        ),
        (
            train,
            1,
            [4.625],
            [
                &[474],
                &[0],
                &[4],
                &[659, 844, 0, 1896, 1711, 0, 1133, 474, 81, 0, 1214, 185, 0, 370],
                &[0, 0, 2, 0, 0, 27, 35, 2, 0, 0, 0, 27, 0, 32],
                &[0, 4],
            ],
            1.246_362_998_475_695_4,
            1.0,
        ),
        (
            train,
            2,
            [2.398_437_5],
            [&[1503], &[0], &[1], &[1295, 1896, 1711, 251, 659, 1237], &[17, 16, 19, 0, 14, 15], &[4]],
            -1.518_144_378_888_555_8,
            0.0,
        ),
        (
            eval,
            0,
            [3.583_984_4],
            [
                &[0],
                &[0],
                &[0],
                &[81, 0, 1237, 0, 1688, 1711, 1792, 0, 844],
                &[2, 0, 1, 0, 32, 1, 28, 27, 1],
                &[0, 1],
            ],
            0.550_481_483_508_501_2,
            1.0,
        ),
        (
            eval,
            70_000,
            [1.609_375],
            [
                &[0],
                &[16],
                &[4],
                &[810, 1422, 474, 0, 474, 0, 822, 0, 1896, 1711],
                &[0, 6, 15, 27, 27, 32, 0, 33, 27, 0],
                &[5, 0],
            ],
            1.319_698_596_473_905_4,
            0.0,
        ),
    ];
    assert_samples(shape, 1.37, &expected);
}

#[test]
fn columns_of_a_sequence_follow_the_law_of_their_query() {
    let temp = tempfile::tempdir().unwrap();
    let spec = small(Shape::load("sequences").unwrap(), 20_000);
    let manifest =
        generate(&spec, &temp.path().join("data"), NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
    let auc = manifest.auc_achievable().unwrap();
    assert!((0.7..0.9).contains(&auc), "{auc}");
    let dataset = Dataset::open(&temp.path().join("data")).unwrap();
    let names: Vec<_> = dataset.schema().categorical.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["C1", "C2", "C3", "S1_C1", "S1_C2"]);
    let [item, .., items, shops] = &dataset.statistics().unwrap()[..] else { panic!("five columns") };
    // Lengths are uniform over 0 to 50: a mean of 25, with a deviation of 14.7 / sqrt(20,000) = 0.1.
    let mean = items.lookups as f64 / 20_000.0;
    assert!((mean - 25.0).abs() < 0.5, "{mean}");
    assert_eq!(items.lookups, shops.lookups);
    // The share of the 10 most frequent rows, which both columns have: its deviation is at most 0.5 / sqrt(20,000).
    let [one, many] = [item, items].map(|column| column.coverage(10));
    assert!((one - many).abs() < 0.02, "{one} {many}");
}

/// Ten days: 2000 samples on each of nine, and 4500 on the last one, which is the evaluation part.
#[test]
fn categories_live_for_days_and_do_not_return() {
    let (days, lifetime_days) = (10, 2);
    let columns = vec!["C1".to_owned()];
    let churn = Some(ChurnShape { columns, days, lifetime_days });
    let shape = Shape { rows: vec![50, 10], churn, ..Shape::load("churn").unwrap() };
    let temp = tempfile::tempdir().unwrap();
    let spec = small(shape, 18_000);
    let manifest =
        generate(&spec, &temp.path().join("data"), NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
    let auc = manifest.auc_achievable().unwrap();
    assert!((0.7..0.95).contains(&auc), "{auc}");
    let dataset = Dataset::open(&temp.path().join("data")).unwrap();
    let mut lives = BTreeMap::<u64, (f64, f64)>::new();
    for (part, first, of_day) in [(Part::Train, 0.0, 2000.0), (Part::Eval, 9.0, 4500.0)] {
        let mut number = 0;
        for batch in BatchStream::open(dataset.part(part).unwrap(), &StreamOptions::one_epoch(500)).unwrap() {
            let samples = &batch.unwrap().samples;
            for sample in 0..samples.len {
                let day = first + f64::from(number) / of_day;
                for &key in samples.categorical[0].bag(sample) {
                    lives.entry(key).or_insert((day, day)).1 = day;
                }
                assert!(samples.categorical[1].bag(sample).iter().all(|&id| id < 10));
                number += 1;
            }
        }
    }
    let effects = effect::Effects { seed: 3, purpose: 1, kind: 0, column: 0 };
    let of = |before| effects.of(Category { rank: 0, before });
    assert!((1..6).all(|before| of(before) != of(before - 1)), "each has effects of its own");

    // A rank has a category whose life began before the first day, and five that began later.
    let categories = (0..50).flat_map(|rank| (0..=5).map(move |before| format!("C1/{rank}/{before}")));
    let keys: BTreeSet<_> = categories.map(|category| hash_key(category.as_bytes())).collect();
    assert!(lives.keys().all(|key| keys.contains(key)));
    // The first and the last category of a rank may live too briefly to be drawn.
    assert!(lives.len() > 200 && lives.len() <= 300, "{}", lives.len());
    let longest = lives.values().map(|(begin, end)| end - begin).fold(0.0, f64::max);
    assert!(longest <= 2.0 && longest > 1.9, "{longest}");
    // About a quarter of those that live at a time begin in half a day.
    let born = lives.values().filter(|(begin, _)| (4.0..4.5).contains(begin)).count();
    assert!((4..=24).contains(&born), "{born}");
}

#[test]
fn no_sample_is_repeated_in_either_part() {
    let temp = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for seed in [3, 4] {
        let dir = temp.path().join(seed.to_string());
        // Two blocks and one block.
        let spec = GenerateSpec { seed, ..small(Shape::load("dlrm").unwrap(), 40_000) };
        generate(&spec, &dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
        let dataset = Dataset::open(&dir).unwrap();
        assert_eq!(dataset.part(Part::Train).unwrap().blocks.len(), 2);
        for part in Part::STORED {
            for batch in
                BatchStream::open(dataset.part(part).unwrap(), &StreamOptions::one_epoch(1000)).unwrap()
            {
                let samples = &batch.unwrap().samples;
                for (sample, dense) in samples.dense.chunks(13).enumerate() {
                    let dense = dense.iter().map(|value| u64::from(value.to_bits()));
                    let ids = samples.categorical.iter().flat_map(|bags| bags.bag(sample).iter().copied());
                    assert!(
                        seen.insert(dense.chain(ids).collect::<Vec<_>>()),
                        "seed {seed}, {part}, {sample}"
                    );
                }
            }
        }
    }
    assert_eq!(seen.len(), 2 * (40_000 + 10_000));
}

#[test]
fn the_achievable_auc_is_the_teachers_on_the_evaluation_part() {
    let temp = tempfile::tempdir().unwrap();
    let spec = small(Shape::load("dlrm").unwrap(), 8000);
    let manifest =
        generate(&spec, &temp.path().join("data"), NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
    let generator = Generator::new(&spec, spec.shape.schema(spec.rows_cap), &Stop::default());
    let (mut positives, mut negatives) = (Vec::new(), Vec::new());
    let judge = |logit, label| if label { positives.push(logit) } else { negatives.push(logit) };
    generator.samples(Part::Eval, 0..2000, judge).unwrap();
    // Counts every pair. Logits in one bin, which is 2^-14 wide, count as ties.
    let (mut ordered, mut near) = (0, 0);
    for positive in &positives {
        ordered += negatives.iter().filter(|negative| positive > negative).count();
        near += negatives.iter().filter(|&negative| (positive - negative).abs() < 1.0 / 16384.0).count();
    }
    let pairs = (positives.len() * negatives.len()) as f64;
    let (auc, error) = (ordered as f64 / pairs, near as f64 / pairs);
    let stated = manifest.auc_achievable().unwrap();
    assert!((stated - auc).abs() <= error && error < 1e-3, "{stated} for {auc}, within {error}");
}

#[test]
fn a_score_histogram_counts_ties_half_and_scores_of_any_size() {
    let histogram = ScoreHistogram::new();
    for (logit, label) in [(-100.0, false), (0.5, false), (0.5, true)] {
        histogram.add(logit, label);
    }
    assert_eq!(histogram.auc(), Some(1.5 / 2.0));
    histogram.add(1e9, true);
    assert_eq!(histogram.auc(), Some(3.5 / 4.0));
    let one_sided = ScoreHistogram::new();
    one_sided.add(0.0, true);
    assert_eq!(one_sided.auc(), None);
}
