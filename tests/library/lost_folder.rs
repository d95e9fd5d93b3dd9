//! A run whose folder is replaced at any operation on its checkpoints leaves alone what is there then.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rankine::job::Job;
use rankine_checkpoint::{Disk, Files, Input, Output};
use rankine_engine::run_paths;
use rankine_engine::training::{TrainError, TrainOptions, train};

use crate::support::{Place, SHAPE, generate, job, times, tree};

/// A disk on which the folder `run` is replaced by the folder `other` right before an operation.
#[derive(Debug)]
struct Replacing {
    place: PathBuf,
    at: u64,
    done: AtomicU64,
}

impl Replacing {
    fn count(&self) -> Disk {
        if self.done.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            fs::rename(self.place.join("run"), self.place.join("moved")).unwrap();
            fs::rename(self.place.join("other"), self.place.join("run")).unwrap();
        }
        Disk
    }
}

impl Files for Replacing {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.count().create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.count().create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.count().sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count().rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.count().remove_dir(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        self.count().names(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        self.count().open(path)
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        self.count().tree_bytes(path)
    }
}

#[test]
fn a_folder_that_is_replaced_at_any_operation_is_left_alone() {
    let place = Place::new();
    generate(&place, SHAPE, 600, 0);
    let path = job(&place);
    let job = |sets: &[&str]| Job::load(Path::new(&path), sets).unwrap();
    let common = ["train.batch_size=100", "train.max_steps=3", "checkpoint.every_steps=1"];
    // The run that takes the place has checkpoints of the same steps.
    let all = job(&[&common[..], &["checkpoint.keep=100", "seed=7"]].concat());
    let other = place.path("other");
    train(&all, TrainOptions { run_dir: Some(&other), ..TrainOptions::default() }, &mut ()).unwrap();
    // Also empty folders.
    let checkpoints = |run: &Path| {
        let entries = fs::read_dir(run_paths::checkpoints(run)).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>()
    };
    let before = (tree(&other), checkpoints(&other));
    for keep in ["checkpoint.keep=1", "checkpoint.incremental=true"] {
        let job = job(&[&common[..], &[keep]].concat());
        // The long version replaces it at each operation.
        let every = if times(1) > 1 { 1 } else { 3 };
        for at in (1..).step_by(every) {
            let files = Replacing { place: place.path(""), at, done: AtomicU64::new(0) };
            let files: Arc<Replacing> = Arc::new(files);
            let as_files: Arc<dyn Files> = files.clone();
            let run = place.path("run");
            let options =
                TrainOptions { run_dir: Some(&run), files: Some(&as_files), ..TrainOptions::default() };
            let trained = train(&job, options, &mut ());
            if files.done.load(Ordering::SeqCst) < at {
                trained.unwrap();
                assert!(at > 30, "{at} operations");
                fs::remove_dir_all(&run).unwrap();
                break;
            }
            let lost = trained.unwrap_err();
            assert!(matches!(&lost, TrainError::FolderLost(path) if *path == run), "{at}: {lost}");
            assert!(
                (tree(&run), checkpoints(&run)) == before,
                "the other run was changed after operation {at}"
            );
            fs::rename(&run, &other).unwrap();
            fs::remove_dir_all(place.path("moved")).unwrap();
        }
    }
}
