//! Training on pushed batches: the bits of training from a dataset, resumed or not, and what is refused.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use expect_test::expect;
use rankine::job::Job;
use rankine_engine::ranker::Ranker;
use rankine_engine::trainer::{
    Features, Ids, RawColumn, RawColumnValues, Trainer, TrainerError, TrainerOptions, TrainingRows,
};
use rankine_engine::training::{Event, Observer, Start, Stop, TrainError};
use rankine_reader::{BatchStream, Dataset, Order, Part, Position, Samples, StreamOptions};

use crate::support::films::{CSV_NAMES, CSV_SETS, columns_of, convert, csv_rows};
use crate::support::{self, Place, SHAPE, SUCCESS, generate, json_file, run, summary, train, weights};

/// The job of a place with some settings.
fn job(place: &Place, sets: &[&str]) -> Job {
    Job::load(Path::new(&support::job(place)), sets).unwrap()
}

fn start(place: &Place, sets: &[&str], run_dir: &str) -> Trainer {
    Trainer::start(&job(place, sets), options(place, run_dir, Start::New), ()).unwrap()
}

fn options(place: &Place, run_dir: &str, start: Start) -> TrainerOptions {
    TrainerOptions { run_dir: Some(place.path(run_dir)), start, stop: None }
}

/// The batches that a job trains on, in its order.
fn batches(job: &Job) -> Vec<Samples> {
    let dataset = Dataset::open(job.data.folder().unwrap()).unwrap();
    let window_blocks = job.train.shuffle_window_blocks.get();
    let stream = StreamOptions {
        batch_size: job.train.batch_size.get() as usize,
        epochs: Some(job.train.epochs.get()),
        order: if job.train.shuffle {
            Order::Shuffled { seed: job.seed, window_blocks }
        } else {
            Order::File
        },
        start: Position::default(),
        ..StreamOptions::one_epoch(1)
    };
    let batches = BatchStream::open(dataset.part(Part::Train).unwrap(), &stream).unwrap();
    batches.map(|batch| std::mem::take(&mut batch.unwrap().samples)).collect()
}

fn push(trainer: &mut Trainer, samples: &Samples) -> Result<(), TrainerError> {
    let labels: Vec<_> = samples.labels.iter().map(Vec::as_slice).collect();
    let bags = samples.categorical.iter();
    let categorical: Vec<_> = bags.map(|bags| Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }).collect();
    trainer.push(&TrainingRows {
        features: Features { rows: samples.len, dense: &samples.dense, categorical: &categorical },
        labels: &labels,
        weights: Some(samples.weights.as_slice()).filter(|weights| !weights.is_empty()),
    })
}

#[test]
fn pushed_batches_give_the_bits_of_a_dataset() {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 500);
    let epochs = ["train.epochs=2", "train.shuffle_window_blocks=2"];
    let cases: [(&str, &[&str]); 4] = [
        ("one", &[]),
        ("ranks", &["device.kind=cpu", "device.ranks=4", "device.nodes=2"]),
        ("bf16", &["embedding.dtype=bf16", "train.shuffle=false"]),
        ("schedule", &["optimizer.schedule={ kind = 'cosine', warmup_steps = 5, decay_steps = 40 }"]),
    ];
    for (name, sets) in cases {
        let sets = [&epochs, sets].concat();
        train(&place, &support::job(&place), name, &sets).with(SUCCESS);
        let pushed = format!("{name}-pushed");
        let mut trainer = start(&place, &sets, &pushed);
        for batch in batches(&job(&place, &sets)) {
            push(&mut trainer, &batch).unwrap();
        }
        assert_eq!((trainer.steps(), trainer.samples()), (48, 6000));
        trainer.finish().unwrap();
        assert!(weights(&place, name) == weights(&place, &pushed), "{name}: weights differ");
        let (expected, found) = (summary(&place, name), summary(&place, &pushed));
        for key in ["/eval/auc", "/eval/log_loss", "/train/loss", "/train/steps", "/train/samples"] {
            assert_eq!(found.pointer(key), expected.pointer(key), "{name}: {key}");
        }
        assert_eq!(found["train"]["stopped"], "program");
        assert_eq!(
            (&found["data"]["reader"], &found["data"]["train_samples"]),
            (&"pushed".into(), &6000.into())
        );
    }
}

fn push_lines(trainer: &mut Trainer, rows: &[String]) -> Result<(), TrainerError> {
    let fields = columns_of(rows, ',');
    let column = |(name, values)| {
        let values: &Vec<&str> = values;
        RawColumn { name, values: RawColumnValues::Texts(values), offsets: None }
    };
    let columns: Vec<_> = CSV_NAMES.into_iter().zip(&fields).map(column).collect();
    trainer.push_raw(rows.len(), &columns)
}

#[test]
fn pushed_raw_rows_give_the_bits_of_their_conversion() {
    let place = Place::new();
    let rows = csv_rows(2500, 3);
    convert(&place, &rows);
    train(&place, &support::job(&place), "read", &CSV_SETS).with(SUCCESS);
    // The columns of the dataset, of a run, and of an export.
    run(["ckpt", "export", &place.word("read"), "--out", &place.word("export")]).with(2);
    for (name, columns) in [("of-data", "data"), ("of-run", "read"), ("of-model", "read/model")] {
        let data = format!("data.dir={}", place.word(columns));
        let mut trainer = start(&place, &[&CSV_SETS[..], &[&data]].concat(), name);
        let read = trainer.raw_columns().unwrap();
        assert!(CSV_NAMES.iter().all(|name| read.iter().any(|column| column == name)), "{read:?}");
        for rows in rows[..2000].chunks(128) {
            push_lines(&mut trainer, rows).unwrap();
        }
        // Only a dataset has an evaluation part.
        assert_eq!(trainer.evaluate().unwrap().is_some(), columns == "data");
        trainer.finish().unwrap();
        assert!(weights(&place, name) == weights(&place, "read"), "{name}: weights differ");
        // The model has the vocabularies.
        let ranker = Ranker::load(place.path(name)).unwrap();
        let mut scores = [0.0; 2];
        let values = ["31.5", "f7", "f12", "t1|t4"];
        let columns = ["age", "film", "last", "tags"].iter().zip(&values).map(|(name, value)| {
            let values = RawColumnValues::Texts(std::slice::from_ref(value));
            RawColumn { name, values, offsets: None }
        });
        ranker.score_raw(1, &columns.collect::<Vec<_>>(), &mut scores).unwrap();
        assert!(scores.iter().all(|score| (0.0..1.0).contains(score)));
    }
}

#[test]
fn a_resumed_trainer_continues_to_the_bit() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 500);
    let sets = ["checkpoint.incremental=true"];
    train(&place, &support::job(&place), "whole", &sets).with(SUCCESS);
    let batches = batches(&job(&place, &sets));
    let mut trainer = start(&place, &sets, "run");
    let (mut pushed, mut saved) = (0, Vec::new());
    // Twice with a checkpoint and a loss of what follows it, once by a drop, which loses nothing.
    for (steps, lost) in [(5, 0), (9, 0), (12, 1)] {
        for batch in &batches[pushed..steps] {
            push(&mut trainer, batch).unwrap();
        }
        if lost == 0 {
            saved.push(trainer.checkpoint().unwrap());
            assert!(saved[saved.len() - 1].join("manifest.json").exists());
        }
        drop(trainer);
        let options = options(&place, "run", Start::Resume);
        trainer = Trainer::start(&job(&place, &sets), options, ()).unwrap();
        assert_eq!((trainer.steps(), trainer.samples()), (steps as u64, 128 * steps as u64));
        pushed = steps;
    }
    for batch in &batches[pushed..] {
        push(&mut trainer, batch).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(&place, "whole") == weights(&place, "run"), "weights differ");
    assert_eq!(summary(&place, "run")["eval"]["auc"], summary(&place, "whole")["eval"]["auc"]);

    // A finished run, and one that was read from a dataset, are not continued.
    for (name, words) in [("run", "the run is finished"), ("whole", "the run is finished")] {
        let options = options(&place, name, Start::Resume);
        let error = Trainer::start(&job(&place, &sets), options, ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let stopped = ["checkpoint.every_steps=4", "train.max_steps=6"];
    train(&place, &support::job(&place), "read", &stopped).with(SUCCESS);
    fs::remove_file(place.path("read/summary.json")).unwrap();
    let options = options(&place, "read", Start::Resume);
    let error = Trainer::start(&job(&place, &[]), options, ()).unwrap_err().to_string();
    assert!(error.contains("is pushed by a program, but was read from a dataset before"), "{error}");
}

#[test]
fn a_model_is_saved_and_evaluated_while_training_goes_on() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 500);
    let mut trainer = start(&place, &[], "run");
    assert_eq!(trainer.run_dir(), place.path("run"));
    let batches = batches(&job(&place, &[]));
    assert!(trainer.checkpoint().unwrap_err().to_string().contains("nothing was trained"));
    for batch in &batches[..8] {
        push(&mut trainer, batch).unwrap();
    }
    let early = trainer.evaluate().unwrap().unwrap().metrics.first.unwrap().auc.unwrap();
    trainer.save(place.path("early")).unwrap();
    let error = trainer.save(place.path("early")).unwrap_err();
    assert!(error.to_string().contains("early"), "{error}");
    let found = run(["eval", "--run", &place.word("early"), "--data", &place.word("data"), "--json"]);
    assert_eq!(found.with(SUCCESS).json()["auc"], early);
    for batch in &batches[8..] {
        push(&mut trainer, batch).unwrap();
    }
    let summary = trainer.finish().unwrap();
    assert_eq!(summary.train.steps, 16);
    assert!(summary.eval.unwrap().metrics.first.unwrap().auc.unwrap() != early);
    let runs = run(["runs", &place.word(""), "--json"]).with(SUCCESS).json();
    assert!(runs.to_string().contains("finished"), "{runs}");
    run(["report", &place.word("run"), "--out", &place.word("report.html")]).with(SUCCESS);
}

/// Blocks at each step until it is released.
struct Gate {
    open: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
}

impl Observer for Gate {
    fn observe(&mut self, event: Event<'_>) {
        if matches!(event, Event::Step(..)) {
            self.steps.fetch_add(1, Ordering::SeqCst);
            while !self.open.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn pushes_wait_for_a_slow_training() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 0);
    let (open, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let gate = Gate { open: Arc::clone(&open), steps: Arc::clone(&steps) };
    let job = job(&place, &[]);
    let mut trainer = Trainer::start(&job, options(&place, "run", Start::New), gate).unwrap();
    let pushed = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&pushed);
    let pusher = thread::spawn(move || {
        for batch in batches(&job).iter().cycle().take(40) {
            push(&mut trainer, batch).unwrap();
            *counted.lock().unwrap() += 1;
        }
        trainer.finish().unwrap()
    });
    while steps.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // The first step is stuck with its batch, and four wait.
    while *pushed.lock().unwrap() < 5 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!((*pushed.lock().unwrap(), steps.load(Ordering::SeqCst)), (5, 1));
    open.store(true, Ordering::SeqCst);
    assert_eq!(pusher.join().unwrap().train.steps, 40);
}

#[test]
fn rows_that_do_not_fit_are_refused_and_change_nothing() {
    let place = Place::new();
    let rows = csv_rows(2500, 3);
    convert(&place, &rows);
    let sets = [&CSV_SETS[..], &["train.max_steps=2"]].concat();
    let mut trainer = start(&place, &sets, "run");
    assert!(matches!(trainer.push_raw(0, &[]), Err(TrainerError::Rows(_))), "columns are missing");
    let good = |trainer: &mut Trainer| push_lines(trainer, &rows[..128]);
    good(&mut trainer).unwrap();

    let mut said = Vec::new();
    let mut refused = |error: Result<(), TrainerError>| said.push(error.unwrap_err().to_string());
    refused(push_lines(&mut trainer, &rows[..129]));
    let mut changed = rows[..3].to_vec();
    for (at, line) in [(1, "5,2,1.25,f1,f2,1.5,t1"), (2, "5,1,-1,f1,f2,1.5,t1"), (0, "x,1,1,f1,f2,1.5,t1")] {
        changed[at] = line.into();
        refused(push_lines(&mut trainer, &changed));
        changed[at].clone_from(&rows[at]);
    }
    let text = |name, values| RawColumn { name, values: RawColumnValues::Texts(values), offsets: None };
    refused(trainer.push_raw(1, &[text("age", &["1"]), text("film", &["f1"]), text("bought", &["1"])]));
    let dense = [1.0, 2.0];
    let categorical =
        [Ids::Fixed(&[1, 2]), Ids::Fixed(&[1, 2]), Ids::Bags { offsets: &[0, 1, 1], ids: &[3] }];
    let features = Features { rows: 2, dense: &dense, categorical: &categorical };
    let labels: [&[f32]; 2] = [&[1.0, f32::NAN], &[0.0, 1.0]];
    let rows_of = TrainingRows { features, labels: &labels, weights: Some(&[1.0, 0.5]) };
    refused(trainer.push(&TrainingRows { weights: None, ..rows_of }));
    refused(trainer.push(&TrainingRows { weights: Some(&[1.0, f32::INFINITY]), ..rows_of }));
    refused(trainer.push(&TrainingRows { weights: Some(&[1.0]), ..rows_of }));
    refused(trainer.push(&TrainingRows { labels: &labels[..1], ..rows_of }));
    refused(trainer.push(&TrainingRows { labels: &[&[1.0, 0.5], &[0.0, 1.0]], ..rows_of }));
    refused(trainer.push(&TrainingRows { labels: &[&[1.0], &[0.0, 1.0]], ..rows_of }));
    refused(
        trainer.push(&TrainingRows { features: Features { dense: &[1.0, f32::NAN], ..features }, ..rows_of }),
    );
    let wild = [categorical[0], Ids::Fixed(&[1, 1000]), categorical[2]];
    refused(trainer.push(&TrainingRows { features: Features { categorical: &wild, ..features }, ..rows_of }));
    let large = [categorical[0], categorical[1], Ids::Bags { offsets: &[0, 1, 9], ids: &[3; 9] }];
    refused(
        trainer.push(&TrainingRows { features: Features { categorical: &large, ..features }, ..rows_of }),
    );
    // Nothing of all that was trained on.
    assert_eq!(trainer.steps(), 1);
    good(&mut trainer).unwrap();
    said.push(good(&mut trainer).unwrap_err().to_string());
    trainer.finish().unwrap();
    train(&place, &support::job(&place), "read", &[&CSV_SETS[..], &["train.max_steps=1"]].concat())
        .with(SUCCESS);
    assert_eq!(summary(&place, "run")["train"]["steps"], 2);

    let mut with_target = job(&place, &["eval.target_auc=0.7", "eval.every_steps=2"]);
    with_target.name = "target".parse().unwrap();
    let fails = |job: &Job, name: &str| {
        Trainer::start(job, options(&place, name, Start::New), ()).unwrap_err().to_string()
    };
    said.push(fails(&with_target, "target"));
    said.push(start(&place, &CSV_SETS, "empty").finish().unwrap_err().to_string());
    said.push(fails(&job(&place, &["data.dir=nowhere"]), "nowhere"));
    expect![[r#"
        a push has at most train.batch_size (128) rows, not 129: push them in several calls
        column bought, row 1: "2" is not a label: it must be 0 or 1
        column weight, row 2: "-1" is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38
        column rating, row 0: "x" is not a label: it must be a number
        there is no column last
        no weights were given, but the dataset has the weight column `weight`: pass them
        column weight, row 1: inf is not a weight: it must be 0, or a number from 1.5e-45 to 3.4e38
        column weight has 1 row; expected 2
        1 label; expected 2
        column rating, row 1: 0.5 is not a label: it must be 0 or 1, or NaN if it is missing
        column rating has 1 row; expected 2
        column age, row 1: NaN is not finite; mapped features have no missing numbers
        column last, row 1: id 1000 is out of range: its table has 41 rows
        column tags, row 1: 8 ids; expected at most 3, the maximum in the dataset
        training ended at train.max_steps, after 2 steps: raise it to continue
        eval.target_auc is set, but the program that pushes rows decides when training ends: remove it
        no rows were pushed, so there is no model to save
        no dataset at nowhere: the folder does not exist; create it with `rankine convert` or `rankine generate`"#]]
    .assert_eq(&said.join("\n"));
}

#[test]
fn a_failure_reaches_the_next_call() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 500);
    let sets = ["optimizer.dense={ kind = 'sgd', learning_rate = 1e38 }"];
    let mut trainer = start(&place, &sets, "run");
    let batches = batches(&job(&place, &sets));
    let failed = batches.iter().cycle().find_map(|batch| push(&mut trainer, batch).err()).unwrap();
    assert!(matches!(failed, TrainerError::Train(TrainError::Diverged { .. })), "{failed}");
    assert!(matches!(push(&mut trainer, &batches[0]), Err(TrainerError::Over)));
    assert!(matches!(trainer.evaluate(), Err(TrainerError::Over)));
    assert!(matches!(trainer.finish(), Err(TrainerError::Over)));
    assert!(!place.path("run/model").exists());
}

#[test]
fn a_request_to_stop_saves_a_checkpoint() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 500);
    let stop = Stop::default();
    let options = TrainerOptions { stop: Some(stop.clone()), ..options(&place, "run", Start::New) };
    let mut trainer = Trainer::start(&job(&place, &[]), options, ()).unwrap();
    let batches = batches(&job(&place, &[]));
    // Two steps: the second one starts where the first one ended.
    batches[..2].iter().for_each(|batch| push(&mut trainer, batch).unwrap());
    stop.ask();
    let failed = batches.iter().cycle().find_map(|batch| push(&mut trainer, batch).err()).unwrap();
    let TrainerError::Train(TrainError::Interrupted { step, run, .. }) = failed else { panic!("{failed}") };
    let state = json_file(&run.join(format!("checkpoints/step-{step}/manifest.json")));
    let saved = &state["content"]["train"];
    assert_eq!((&saved["step"], &saved["position"]["sample"]), (&step.into(), &(128 * step).into()));
}
