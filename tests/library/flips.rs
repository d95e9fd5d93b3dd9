//! Every flipped bit in any file of a dataset or a checkpoint is detected.
//!
//! With `RANKINE_TEST_LONG` set, ten thousand bits are flipped.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_checkpoint::{Checkpoint, Disk, Files};
use rankine_reader::{Dataset, verify};

use crate::support::{self, Place, SUCCESS, criteo_rows, files_below, numbers, run, train};

fn flips() -> usize {
    if support::is_long() { 10_000 } else { 300 }
}

/// Flips bits of files, one at a time; `is_whole` must return an error for each. The file is chosen first, so that
/// small files get as many flips as large ones.
fn every_flip_is_found(files: &[PathBuf], is_whole: impl Fn() -> Result<(), String>) {
    is_whole().unwrap();
    let mut next = numbers(files.len() as u64);
    for flip in 0..flips() {
        let path = &files[next() as usize % files.len()];
        let file = File::options().read(true).write(true).open(path).unwrap();
        let bit = next() % (8 * file.metadata().unwrap().len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
        assert!(is_whole().is_err(), "flip {flip}: bit {bit} of {} goes unnoticed", path.display());
        file.write_all_at(&byte, bit / 8).unwrap();
    }
    is_whole().unwrap();
}

/// Reads and checks every byte of a dataset.
fn verify_dataset(dir: &Path) -> Result<(), String> {
    let dataset = Dataset::open(dir).map_err(|error| error.to_string())?;
    let report = verify::verify(&dataset, NonZeroUsize::MIN).map_err(|error| error.to_string())?;
    report.damages.first().map_or(Ok(()), |damage| Err(damage.what.clone()))
}

/// A converted dataset with vocabularies, statistics, popularity and both parts.
fn converted(place: &Place) -> String {
    let (log, out) = (place.file("log.tsv", criteo_rows(400, 5).join("\n")), place.word("data"));
    let args =
        ["convert", "criteo-tsv", &log, "--out", &out, "--split", "last:0.25", "--vocabulary", "exact"];
    run(args).with(SUCCESS);
    out
}

#[test]
fn in_a_dataset() {
    let place = Place::new();
    let dir = PathBuf::from(converted(&place));
    let mut files = files_below(&dir);
    // A report for people, which the program does not read.
    files.retain(|file| !file.ends_with("conversion.json"));
    assert_eq!(files.len(), 26 + 7, "{files:?}");
    every_flip_is_found(&files, || verify_dataset(&dir));
}

#[test]
fn in_checkpoints() {
    let place = Place::new();
    converted(&place);
    let job = support::job(&place);
    let sets =
        ["train.max_steps=2", "device.threads=1", "checkpoint.every_steps=1", "checkpoint.incremental=true"];
    train(&place, &job, "run", &sets).with(SUCCESS);
    let checkpoints = place.path("run").join("checkpoints");
    let files: Arc<dyn Files> = Arc::new(Disk);
    // The second one is incremental: its base, the first one, is verified with it.
    let incremental = checkpoints.join("step-2");
    let verify = || {
        let opened = Checkpoint::open(&files, &incremental).map_err(|error| error.to_string())?;
        assert!(opened.base().is_some(), "the checkpoint is incremental");
        opened.verify().map(drop).map_err(|error| error.to_string())
    };
    let all = files_below(&checkpoints);
    assert_eq!(all.len(), 2 * 5, "{all:?}");
    every_flip_is_found(&all, verify);
}
