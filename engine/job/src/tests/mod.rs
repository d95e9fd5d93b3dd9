//! The job file from outside: what is read, what is refused and in which words.

use std::fs;
use std::path::{Path, PathBuf};

use rankine_reader::io::IoMode;
use rankine_reader::raw::{RawDense, RawIds};
use rankine_topology::Topology;

use super::*;

mod contradictions;
mod random;
mod reading;
pub(super) mod reference;
mod refusals;
mod settings;

const NO_SETS: [&str; 0] = [];

pub(crate) const SOUND: &str = r#"name = "criteo"
seed = 7

[data]
dir = "data/criteo"

[model]
kind = "dlrm"
embedding_dim = 16
bottom_mlp = [64, 16]
top_mlp = [128, 64]

[optimizer.dense]
kind = "sgd"
learning_rate = 24

[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.02
epsilon = 1e-6

[train]
batch_size = 512
"#;

fn errors(text: &str, sets: &[&str]) -> String {
    Job::from_toml("job.toml", text, sets).unwrap_err().to_string()
}

/// The errors of the sound job with a piece of its text replaced.
fn errors_with(piece: &str, replacement: &str) -> String {
    assert!(SOUND.contains(piece), "{piece}");
    errors(&SOUND.replacen(piece, replacement, 1), &[])
}

/// The errors of the sound job with some lines more.
#[track_caller]
fn assert_refused(lines: &str, sets: &[&str], expected: &str) {
    let actual = errors(&format!("{SOUND}{lines}"), sets);
    assert!(actual.contains(expected), "{lines}\n{actual}");
}

/// The jobs that ship with Rankine. Their folder also has schema files.
pub(super) fn jobs_in_configs() -> Vec<PathBuf> {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let paths = fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    paths.retain(|path| {
        path.to_str().is_some_and(|path| path.ends_with(".toml") && !path.ends_with("-schema.toml"))
    });
    assert!(paths.len() >= 4, "{paths:?}");
    paths
}
