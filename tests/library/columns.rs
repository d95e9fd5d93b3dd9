//! What kinds of columns have in common: the samples of their datasets, their texts, and that pushed and resumed
//! trainings have the bits of whole ones.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::path::Path;

use rankine::job::Job;
use rankine_engine::ranker::{Features, Ids, RawColumn, RawColumnValues};
use rankine_engine::trainer::{Trainer, TrainerOptions, TrainingRows};
use rankine_engine::training::Start;
use rankine_reader::{BatchStream, Dataset, Part, Samples, StreamOptions};

use crate::support::films::columns_of;
use crate::support::{self, Place, SUCCESS, run, train, weights};

/// The batch size of the trainings.
const BATCH: usize = 128;

/// Returns the batches of a part of the dataset `data`, in the order of the file.
pub(crate) fn samples(place: &Place, part: Part) -> Vec<Samples> {
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let stream = StreamOptions::one_epoch(BATCH);
    let batches = BatchStream::open(dataset.part(part).unwrap(), &stream).unwrap();
    batches.map(|batch| std::mem::take(&mut batch.unwrap().samples)).collect()
}

pub(crate) fn texts<'a>(name: &'a str, values: &'a [&'a str]) -> RawColumn<'a> {
    RawColumn { name, values: RawColumnValues::Texts(values), offsets: None }
}

/// The tables of a saved model are compared as numbers: other ranks sum in another order.
pub(crate) fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Trains on the dataset `data` as a whole; on its samples and on the rows of its file, pushed by a program; and with a
/// stop after 7 steps. `names` are the columns of `rows`; `ids` lends the ids of samples.
pub(crate) fn pushed_and_resumed_trainings_give_the_bits_of_a_whole_one(
    place: &Place,
    (names, rows): (&[&str], &[String]),
    sets: &[&str],
    ids: impl Fn(&Samples) -> Vec<Ids<'_>>,
) {
    let job = support::job(place);
    let saving = [sets, &["checkpoint.every_steps=5"]].concat();
    train(place, &job, "whole", &saving).with(SUCCESS);
    let expected = weights(place, "whole");
    let start = |run_dir: &str| {
        let options = TrainerOptions { run_dir: Some(place.path(run_dir)), start: Start::New, stop: None };
        Trainer::start(&Job::load(Path::new(&job), sets).unwrap(), options, ()).unwrap()
    };
    let mut trainer = start("mapped");
    for samples in samples(place, Part::Train) {
        let labels: Vec<_> = samples.labels.iter().map(Vec::as_slice).collect();
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &ids(&samples) };
        trainer.push(&TrainingRows { features, labels: &labels, weights: None }).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(place, "mapped") == expected);

    let mut trainer = start("raw");
    for rows in rows.chunks(BATCH) {
        let fields = columns_of(rows, ',');
        let columns: Vec<_> = names.iter().zip(&fields).map(|(name, values)| texts(name, values)).collect();
        trainer.push_raw(rows.len(), &columns).unwrap();
    }
    trainer.finish().unwrap();
    assert!(weights(place, "raw") == expected);

    train(place, &job, "half", &[&saving[..], &["train.max_steps=7"]].concat()).with(SUCCESS);
    let run_dir = place.word("half");
    run(["train", &job, "--quiet", "--run-dir", &run_dir, "--resume"]
        .into_iter()
        .chain(saving.iter().flat_map(|set| ["--set", *set])))
    .with(SUCCESS);
    assert!(weights(place, "half") == expected);
}
