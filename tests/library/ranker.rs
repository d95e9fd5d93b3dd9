//! Scoring in the caller's process: the bits of `rankine predict`, on several threads, while models are swapped.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::thread;

use expect_test::expect;
use rankine_engine::ranker::{
    FeatureError, Features, Ids, Ranker, RawColumn, RawColumnValues, ScoreError, SwapError,
};
use rankine_reader::schema::Hotness;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part, Samples};

use crate::support::films::{CSV_NAMES, columns_of, convert, csv_rows};
use crate::support::{Place, SUCCESS, criteo_rows, generate, job, numbers, run, train};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Returns the bytes that this thread has allocated and not freed.
pub(crate) fn allocated_bytes() -> i64 {
    BYTES.with(Cell::get)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as i64));
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Columns with one id and with several.
const SHAPE: &str = "\
name = \"mixed\"
dense = 4
rows = [40, 300, 20, 12, 8, 3]
hotness = [1, 3, 1, 2, 1, 1]
";
const EVAL: usize = 700;
const DCNV2: &str =
    "model={ kind = 'dcnv2', embedding_dim = 4, bottom_mlp = [8], cross_layers = 2, top_mlp = [16] }";

/// A dataset, and the models that were trained on it.
struct Models {
    place: Place,
    samples: Samples,
}

impl Models {
    fn train(kinds: &[(&str, &[&str])]) -> Self {
        let place = Place::new();
        let data = generate(&place, SHAPE, 2000, EVAL as u64);
        let job = job(&place);
        for (name, sets) in kinds {
            train(&place, &job, name, sets).with(SUCCESS);
        }
        let dataset = Dataset::open(Path::new(&data)).unwrap();
        let mut samples = Samples::new(dataset.schema());
        for batch in
            BatchStream::open(dataset.part(Part::Eval).unwrap(), &StreamOptions::one_epoch(128)).unwrap()
        {
            let batch = batch.unwrap();
            samples.append(&batch.samples, 0..batch.samples.len);
        }
        Self { place, samples }
    }

    fn load(&self, name: &str) -> Ranker {
        Ranker::load(self.place.path(name)).unwrap()
    }

    /// Returns the scores of `rankine predict`, row by row.
    fn predicted(&self, run_dir: &str) -> Vec<f64> {
        predicted(&self.place, run_dir, &["--data", &self.place.word("data")])
    }
}

/// Returns the scores of `rankine predict`, row by row and head by head.
fn predicted(place: &Place, run_dir: &str, rows: &[&str]) -> Vec<f64> {
    let (run_dir, out) = (place.word(run_dir), place.word("predictions.csv"));
    run([&["predict", "--run", &run_dir, "--out", &out, "--quiet"], rows].concat()).with(SUCCESS);
    let text = fs::read_to_string(&out).unwrap();
    fs::remove_file(&out).unwrap();
    let scores = |line: &str| line.split(',').skip(1).map(|field| field.parse().unwrap()).collect::<Vec<_>>();
    text.lines().skip(1).flat_map(scores).collect()
}

/// The ids of each column of samples.
fn ids(samples: &Samples) -> Vec<Ids<'_>> {
    let bags = samples.categorical.iter();
    bags.map(|bags| Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }).collect()
}

fn score(ranker: &Ranker, samples: &Samples) -> Vec<f64> {
    let mut scores = vec![f64::NAN; samples.len * ranker.labels().len()];
    let features = Features { rows: samples.len, dense: &samples.dense, categorical: &ids(samples) };
    ranker.score(&features, &mut scores).unwrap();
    scores
}

#[test]
fn scores_have_the_bits_of_predictions_for_any_number_of_rows() {
    let kinds: [(&str, &[&str]); 4] = [
        ("dlrm", &[]),
        ("dcnv2", &[DCNV2]),
        ("wide", &["model={ kind = 'wide-deep', embedding_dim = 4, top_mlp = [16] }"]),
        ("bf16", &["embedding.dtype=bf16"]),
    ];
    let models = Models::train(&kinds);
    for (name, _) in kinds {
        let (ranker, expected) = (models.load(name), models.predicted(name));
        assert_eq!(expected.len(), EVAL);
        assert_eq!(score(&ranker, &models.samples), expected, "{name}: all rows");
        let threaded = [1, 2, 3, 20].map(|threads| models.load(name).with_threads(threads).unwrap());
        let mut next = numbers(7);
        for ranker in threaded.iter().chain([&ranker]) {
            for rows in [1, 2, 16, 63, 64, 65, 333, EVAL] {
                let first = next() as usize % (EVAL + 1 - rows);
                let some = models.samples.slice(first..first + rows);
                assert_eq!(score(ranker, &some), expected[first..first + rows], "{name}: {rows} rows");
            }
            assert_eq!(score(ranker, &models.samples.slice(0..0)), [0.0; 0]);
        }
    }
}

#[test]
fn calls_share_the_threads_of_a_ranker() {
    let models = Models::train(&[("run", &[])]);
    let (ranker, expected) = (models.load("run").with_threads(3).unwrap(), models.predicted("run"));
    // Each thread that runs a tile has memory of its own, so a call whose tiles mix would show.
    thread::scope(|scope| {
        for first in 0..4 {
            let (ranker, expected, samples) = (&ranker, &expected, models.samples.slice(first..EVAL));
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(score(ranker, &samples), expected[first..]);
                }
            });
        }
    });
    let refused = models.load("run").with_threads(0).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    expect!["a ranker cannot score on 0 threads: use at least 1"].assert_eq(&refused.to_string());
}

#[test]
fn a_checkpoint_and_an_export_score_as_their_run() {
    let models = Models::train(&[("run", &["checkpoint.every_steps=10", "train.max_steps=15"])]);
    let (run_dir, export) = (models.place.word("run"), models.place.word("export"));
    run(["ckpt", "export", &run_dir, "--out", &export]).with(SUCCESS);
    let checkpoint = format!("{run_dir}/checkpoints/step-10");
    let of_run = models.predicted("run");
    assert_eq!(score(&models.load("run"), &models.samples), of_run);
    assert_eq!(models.load("run").steps(), 15);
    let ranker = Ranker::load(&checkpoint).unwrap();
    assert_eq!(ranker.steps(), 10);
    assert_ne!(score(&ranker, &models.samples), of_run);
    assert_eq!(score(&ranker, &models.samples), score(&Ranker::load(&export).unwrap(), &models.samples));
}

#[test]
fn nothing_is_allocated_once_a_thread_has_scored_as_many_rows() {
    let models = Models::train(&[("run", &[])]);
    let (ranker, ids) = (models.load("run"), ids(&models.samples));
    let features = Features { rows: EVAL, dense: &models.samples.dense, categorical: &ids };
    let some = models.samples.slice(0..5);
    let of_some = self::ids(&some);
    let few = Features { rows: 5, dense: &some.dense, categorical: &of_some };
    let mut scores = vec![0.0; EVAL];
    ranker.score(&features, &mut scores).unwrap();
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..10 {
        ranker.score(&features, &mut scores).unwrap();
        ranker.score(&few, &mut scores[..5]).unwrap();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

#[test]
fn models_are_swapped_while_threads_score() {
    let models = Models::train(&[("one", &["seed=1"]), ("two", &["seed=2"]), ("other", &[DCNV2])]);
    let (one, two) = (models.predicted("one"), models.predicted("two"));
    let ranker = models.load("one");
    let (paths, done) =
        ([models.place.path("two"), models.place.path("one")], std::sync::atomic::AtomicBool::new(false));
    thread::scope(|scope| {
        let scorers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = [0, 0];
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let scores = score(&ranker, &models.samples);
                        let which = [&one, &two].into_iter().position(|expected| scores == *expected);
                        seen[which.expect("the scores are one model's")] += 1;
                    }
                    seen
                })
            })
            .collect();
        for path in paths.iter().cycle().take(40) {
            ranker.swap(path).unwrap();
            thread::sleep(std::time::Duration::from_millis(2));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = scorers.into_iter().map(|scorer| scorer.join().unwrap());
        let all = seen.fold([0, 0], |all, seen| [all[0] + seen[0], all[1] + seen[1]]);
        assert!(all.iter().all(|&count| count > 0), "{all:?}");
    });
    // The kind may change, as long as the columns do not.
    ranker.swap(models.place.path("other")).unwrap();
    assert_eq!(score(&ranker, &models.samples), models.predicted("other"));
    assert!(ranker.swap(models.place.path("missing")).is_err());
    assert_eq!(score(&ranker, &models.samples), models.predicted("other"));

    // Callers would go on passing the old columns.
    let fewer = Place::new();
    generate(&fewer, &SHAPE.replace(", 3]\nhot", "]\nhot").replace(", 1]", "]"), 500, 100);
    train(&fewer, &job(&fewer), "fewer", &[]).with(SUCCESS);
    let refused = ranker.swap(fewer.path("fewer")).unwrap_err();
    let SwapError::Columns { expected, found } = &refused else { panic!("{refused}") };
    assert_eq!((expected.len(), found.len()), (11, 10));
    assert_eq!((expected[10].as_str(), expected[..10].to_vec()), ("C6", found.clone()));
    assert_eq!(score(&ranker, &models.samples), models.predicted("other"));
}

#[test]
fn input_that_does_not_fit_the_model_is_refused_by_column_and_row() {
    let models = Models::train(&[("run", &[])]);
    let ranker = models.load("run");
    let (samples, mut scores) = (models.samples.slice(0..3), [7.0; 3]);
    let (dense, all) = (&samples.dense[..], ids(&samples));
    let refusal = |rows: usize, dense: &[f32], ids: &[Ids<'_>], scores: &mut [f64]| {
        ranker.score(&Features { rows, dense, categorical: ids }, scores).unwrap_err().to_string()
    };
    let mut refused = vec![
        refusal(70_000, dense, &all, &mut scores),
        refusal(3, &dense[1..], &all, &mut scores),
        refusal(3, dense, &all[1..], &mut scores),
        refusal(3, dense, &all, &mut [0.0; 2]),
        refusal(3, &[f32::MAX; 12], &all, &mut scores),
    ];
    let mut nan = dense.to_vec();
    nan[6] = f32::NAN;
    refused.push(refusal(3, &nan, &all, &mut scores));
    let columns = [
        (0, Ids::Fixed(&[0, 1])),
        (0, Ids::Fixed(&[0, 40, 1])),
        (1, Ids::Fixed(&[0; 8])),
        (1, Ids::Bags { offsets: &[0, 3, 6], ids: &[0; 6] }),
        (1, Ids::Bags { offsets: &[1, 3, 6, 9], ids: &[0; 9] }),
        (1, Ids::Bags { offsets: &[0, 6, 3, 9], ids: &[0; 9] }),
        (1, Ids::Bags { offsets: &[0, 3, 6, 9], ids: &[0; 8] }),
        (1, Ids::Bags { offsets: &[0, 2, 6, 9], ids: &[0; 9] }),
        (1, Ids::Bags { offsets: &[0, 3, 6, 9], ids: &[0, 0, 0, 0, 0, 300, 0, 0, 0] }),
    ];
    for (column, ids) in columns {
        let mut changed = all.clone();
        changed[column] = ids;
        refused.push(refusal(3, dense, &changed, &mut scores));
    }
    assert_eq!(scores, [7.0; 3], "nothing was written");
    expect![[r#"
        at most 65536 rows can be scored per call, not 70000: score them in several calls
        dense features: 11 numbers for 3 rows of 4 columns; expected 12
        5 categorical columns, but the model has 6
        the output has room for 2 scores, but 3 are needed (rows times heads)
        the score of row 0 is not a number: numbers of the row are too large for the model
        column I3, row 1: NaN is not finite; mapped features have no missing numbers
        column C1: 2 ids for 3 rows of 1; expected 3
        column C1, row 1: id 40 is out of range: its table has 40 rows
        column C2: 8 ids for 3 rows of 3; expected 9
        column C2: 3 offsets; expected 4, one per row and the end of the last one
        column C2: the first offset is 1; expected 0
        column C2, row 1: the offsets decrease from 6 to 3
        column C2: the last offset is 9, but there are 8 ids
        column C2, row 0: 2 ids; expected 3, as in training
        column C2, row 1: id 300 is out of range: its table has 300 rows"#]]
    .assert_eq(&refused.join("\n"));
    assert!(matches!(
        ranker.score(&Features { rows: 3, dense: &[], categorical: &all }, &mut scores),
        Err(ScoreError::Features(FeatureError::DenseShape { rows: 3, columns: 4, found: 0 }))
    ));
    let hotness = |number: usize| ranker.schema().categorical[number].hotness;
    assert_eq!((hotness(0), hotness(1)), (Hotness::Fixed(1), Hotness::Fixed(3)));
}

/// Arrays of any lengths with any numbers are scored or refused.
#[test]
fn random_features_are_scored_or_refused() {
    let models = Models::train(&[("fail", &[]), ("skip", &["guard.ids_out_of_range=skip"])]);
    let (mut next, mut outcomes) = (numbers(23), [0, 0]);
    for ranker in [models.load("fail"), models.load("skip")] {
        for _ in 0..4000 {
            let mut below = |limit: u64| next() % limit;
            let rows = below(4) as usize;
            // Most lengths fit, and most numbers are valid.
            let near = |count: usize, choice: u64| if choice == 0 { count + 1 } else { count };
            let dense = vec![[0.5, f32::NAN][usize::from(below(40) == 0)]; near(4 * rows, below(40))];
            let columns = if below(40) == 0 { &[1, 3, 1, 2, 1][..] } else { &[1, 3, 1, 2, 1, 1] };
            let columns = columns.iter().map(|&count| {
                let ids: Vec<_> = (0..near(count * rows, below(60))).map(|_| below(4)).collect();
                let mut offsets: Vec<_> =
                    (0..near(rows + 1, below(60))).map(|row| (count * row) as u32).collect();
                if below(60) == 0 {
                    let at = below(offsets.len() as u64) as usize;
                    offsets[at] = below(9) as u32;
                }
                (offsets, ids, below(2) == 0)
            });
            let columns: Vec<_> = columns.collect();
            let ids = columns.iter().map(|(offsets, ids, fixed)| match fixed {
                true => Ids::Fixed(ids),
                false => Ids::Bags { offsets, ids },
            });
            let ids: Vec<_> = ids.collect();
            let mut scores = vec![-1.0; rows];
            let scored = ranker.score(&Features { rows, dense: &dense, categorical: &ids }, &mut scores);
            match scored {
                Ok(()) => assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}"),
                Err(_) => assert_eq!(scores, vec![-1.0; rows]),
            }
            outcomes[usize::from(scored.is_err())] += 1;
        }
    }
    assert!(outcomes.iter().all(|&count| count > 1000), "{outcomes:?}");
}

fn score_raw(ranker: &Ranker, rows: usize, columns: &[RawColumn<'_>]) -> Result<Vec<f64>, String> {
    let mut scores = vec![f64::NAN; rows * ranker.labels().len()];
    ranker.score_raw(rows, columns, &mut scores).map_err(|error| error.to_string())?;
    Ok(scores)
}

fn texts<'a>(name: &'a str, values: &'a [&'a str]) -> RawColumn<'a> {
    RawColumn { name, values: RawColumnValues::Texts(values), offsets: None }
}

#[test]
fn raw_rows_of_criteo_are_scored_as_their_lines() {
    let place = Place::new();
    let rows = criteo_rows(2500, 11);
    let log = place.file("log.tsv", rows[..2000].join("\n") + "\n");
    let eval = place.file("eval.tsv", rows[2000..].join("\n") + "\n");
    let convert = ["convert", "criteo-tsv", &log, "--eval", &eval, "--out", &place.word("data")];
    run([&convert[..], &["--min-count", "3", "--column", "C2=hash:50", "--dense-dtype", "f16"]].concat())
        .with(SUCCESS);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (ranker, expected) = (Ranker::load(place.path("run")).unwrap(), predicted(&place, "run", &[&eval]));

    let fields = columns_of(&rows[2000..], '\t');
    let number = |field: &&str| if field.is_empty() { f64::NAN } else { field.parse().unwrap() };
    let numbers: Vec<Vec<f64>> =
        fields[1..14].iter().map(|column| column.iter().map(number).collect()).collect();
    let dense_names: Vec<_> = (1..=13).map(|number| format!("I{number}")).collect();
    let names: Vec<_> = (1..=26).map(|number| format!("C{number}")).collect();
    let mut columns: Vec<_> =
        names.iter().zip(&fields[14..]).map(|(name, values)| texts(name, values)).collect();
    columns.extend(dense_names.iter().zip(&numbers).map(|(name, values)| RawColumn {
        name,
        values: RawColumnValues::Numbers(values),
        offsets: None,
    }));
    assert_eq!(ranker.raw_columns().unwrap(), [&dense_names[..], &names].concat());
    assert_eq!(score_raw(&ranker, 500, &columns).unwrap(), expected);

    let refused = |columns: &[RawColumn<'_>]| score_raw(&ranker, 500, columns).unwrap_err();
    let mut without = columns.clone();
    without.remove(3);
    let mut misnamed = columns.clone();
    misnamed[0].name = "c1";
    let mut twice = columns.clone();
    twice.push(columns[0]);
    let mut short = columns.clone();
    short[1] = texts("C2", &fields[15][1..]);
    let mut changed = fields[15].clone();
    changed[7] = "not hex";
    let mut wild = columns.clone();
    wild[1] = texts("C2", &changed);
    let mut typed = columns.clone();
    typed[1].values = RawColumnValues::Integers(&[5; 500]);
    let mut large = columns.clone();
    large[26].values = RawColumnValues::Numbers(&[f64::INFINITY; 500]);
    let all =
        [without, misnamed, twice, short, wild, typed, large].map(|columns| refused(&columns)).join("\n");
    expect![[r#"
        there is no column C4
        the model has no column c1: did you mean `C1`?
        column C1 is given twice
        column C2 has 499 rows; expected 500
        column C2, row 7: "not hex" is not a category of at most 16 hexadecimal digits
        column C2 has integers, but the model needs strings of hexadecimal digits
        column I1, row 0: inf is not a 64-bit integer"#]]
    .assert_eq(&all);
}

#[test]
fn raw_rows_of_named_columns_are_scored_as_their_lines() {
    let place = Place::new();
    let rows = csv_rows(2500, 3);
    convert(&place, &rows);
    let eval = place.word("eval.csv");
    let sets = ["table=[{ columns = ['film', 'last'] }]"];
    train(&place, &job(&place), "run", &sets).with(SUCCESS);
    let (ranker, expected) = (Ranker::load(place.path("run")).unwrap(), predicted(&place, "run", &[&eval]));
    assert_eq!((ranker.labels(), expected.len()), (vec!["rating".to_owned(), "bought".to_owned()], 1000));
    assert_eq!(ranker.raw_columns().unwrap(), ["age", "film", "last", "tags"]);

    let fields = columns_of(&rows[2000..], ',');
    let columns: Vec<_> = CSV_NAMES.iter().zip(&fields).map(|(name, values)| texts(name, values)).collect();
    // All as text, labels and weight among them, and only the features.
    assert_eq!(score_raw(&ranker, 500, &columns).unwrap(), expected);
    assert_eq!(score_raw(&ranker, 500, &columns[3..]).unwrap(), expected);

    let bags: Vec<Vec<_>> =
        fields[6].iter().map(|tags| tags.split('|').filter(|tag| !tag.is_empty()).collect()).collect();
    let (mut offsets, tags) = (vec![0], bags.concat());
    bags.iter().for_each(|bag| offsets.push(offsets[offsets.len() - 1] + bag.len() as u32));
    let with_offsets = RawColumn { offsets: Some(&offsets), ..texts("tags", &tags) };
    let typed = [columns[3], columns[4], columns[5], with_offsets];
    assert_eq!(score_raw(&ranker, 500, &typed).unwrap(), expected);

    offsets[9] = 70_000;
    let with_offsets = RawColumn { offsets: Some(&offsets), ..texts("tags", &tags) };
    let mut ages = fields[5].clone();
    ages[3] = "old";
    let refused = [
        [columns[3], columns[4], columns[5], with_offsets],
        [columns[3], columns[4], texts("age", &ages), columns[6]],
        [columns[3], texts("films", &fields[4]), columns[5], columns[6]],
    ];
    let refused = refused.map(|columns| score_raw(&ranker, 500, &columns).unwrap_err()).join("\n");
    expect![[r#"
        column tags: its offsets must rise from 0 to the number of values, 735
        column age, row 3: "old" is not a number of at most 3.4028235e38
        the model has no column films: did you mean `film`?"#]]
    .assert_eq(&refused);
}
