//! Helpers of the integration tests: running the command, temporary folders, small datasets, jobs and logs.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use serde_json::Value;

pub(crate) mod bucket;
pub(crate) mod datasets;
pub(crate) mod durable;
pub(crate) mod dynamic;
pub(crate) mod exported;
mod files;
pub(crate) mod films;
pub(crate) mod open_vocabularies;
pub(crate) mod process;
pub(crate) mod python;
pub(crate) mod seccomp;
mod skipped;
pub(crate) mod strangers;
pub(crate) mod weights;

#[allow(unused_imports, reason = "each test file uses a part of it")]
pub(crate) use files::{files_below, tree};
pub(crate) use skipped::{skipped, skipped_test};

/// Exit codes, which `rankine --help` documents.
pub(crate) const SUCCESS: i32 = 0;
pub(crate) const FAILED: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const BAD_DATA: i32 = 3;
pub(crate) const LOST: i32 = 5;
pub(crate) const RESUMABLE: i32 = 75;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the command under test: the one that `RANKINE_BIN` names, by default the one that was built with the tests.
/// It must have the feature `test-hooks`, which `cargo test` enables.
pub(crate) fn rankine() -> Command {
    let program = std::env::var_os("RANKINE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_rankine").into());
    let mut command = Command::new(program);
    command.env_remove("RANKINE_LOG").env_remove("NO_COLOR");
    // `init` writes there; not into the home of whoever runs the tests.
    command.env("XDG_DATA_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/data"));
    // Under nohup the tests run with SIGHUP ignored, and the command would inherit that.
    process::set_signal(&mut command, libc::SIGHUP, libc::SIG_DFL);
    command
}

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Runs a command to its end.
    pub(crate) fn of(mut command: Command) -> Self {
        let Output { status, stdout, stderr } = command.output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
        let code = status.code().expect("no signal killed the command");
        Self { code, stdout: text(stdout), stderr: text(stderr) }
    }

    /// Checks the exit code. If it differs, the test fails and shows the command's output.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("stdout is one JSON value")
    }

    /// Checks that stdout contains these words.
    #[track_caller]
    pub(crate) fn stdout_says(self, words: &str) -> Self {
        assert!(self.stdout.contains(words), "`{words}` is not in:\n{}", self.stdout);
        self
    }

    /// Checks that stderr contains all of these words.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for words in words {
            assert!(self.stderr.contains(words), "`{words}` is not in:\n{}", self.stderr);
        }
        self
    }
}

/// Runs the command to its end.
pub(crate) fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ended {
    let mut command = rankine();
    command.args(args);
    Ended::of(command)
}

/// A temporary folder for the files of a test, removed when dropped.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room for temporary files"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the same path as a command-line argument.
    pub(crate) fn word(&self, name: &str) -> String {
        word(&self.path(name))
    }

    /// Writes a file, and returns its path as a command-line argument.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), bytes).expect("the file is written");
        self.word(name)
    }
}

/// Returns a path as a command-line argument.
pub(crate) fn word(path: &Path) -> String {
    path.to_str().expect("temporary folders have plain names").to_owned()
}

/// Parses a JSON file.
#[track_caller]
pub(crate) fn json_file(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Parses a file with one JSON value per line.
#[track_caller]
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a JSON value")).collect()
}

/// A small shape with dense columns: a model has so few parameters that a small dataset is enough to train it.
pub(crate) const SHAPE: &str = "\
name = \"small\"
dense = 4
rows = [40, 30, 20, 12, 8, 3]
";

/// Generates the dataset `data` of a shape in the place, and returns its folder.
pub(crate) fn generate(place: &Place, shape: &str, samples: u64, eval_samples: u64) -> String {
    let shape = place.file("shape.toml", shape);
    let (out, samples, eval) = (place.word("data"), samples.to_string(), eval_samples.to_string());
    let args = ["generate", "--shape", &shape, "--samples", &samples, "--eval-samples", &eval, "--out", &out];
    run(args).with(SUCCESS);
    out
}

/// Writes a job for [`SHAPE`] on the dataset `data` of the place. Tests change it with `--set`.
pub(crate) fn job(place: &Place) -> String {
    let text = format!(
        "\
name = \"small\"
data.dir = {data:?}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 128, log_every_steps = 10 }}
",
        data = place.word("data"),
    );
    place.file("job.toml", text)
}

/// Trains a job with `--set` options into the folder `run_dir` of the place.
pub(crate) fn train(place: &Place, job: &str, run_dir: &str, sets: &[&str]) -> Ended {
    let run_dir = place.word(run_dir);
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    run(["train", job, "--quiet", "--run-dir", &run_dir].into_iter().chain(sets))
}

/// Returns the summary of a run in the place.
#[track_caller]
pub(crate) fn summary(place: &Place, run_dir: &str) -> Value {
    json_file(&place.path(run_dir).join("summary.json"))
}

/// Changes a bit near the end of a file.
pub(crate) fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).expect("the files of a test can be changed");
    let at = bytes.len() - 100;
    bytes[at] ^= 4;
    fs::write(path, bytes).expect("the files of a test can be changed");
}

/// Returns the bytes of the weights file of a run in the place.
pub(crate) fn weights(place: &Place, run_dir: &str) -> Vec<u8> {
    fs::read(place.path(run_dir).join("model/model.safetensors")).expect("the run has saved a model")
}

/// Returns a generator of pseudo-random numbers: the upper bits of Knuth's MMIX generator.
pub(crate) fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// Returns rows in Criteo's TSV format, with missing values, and with frequent and infrequent categories.
pub(crate) fn criteo_rows(count: usize, seed: u64) -> Vec<String> {
    let mut next = numbers(seed);
    let row = |_| {
        let mut fields = vec![(next() % 2).to_string()];
        for _ in 0..13 {
            fields.push(if next().is_multiple_of(7) { String::new() } else { (next() % 900).to_string() });
        }
        for _ in 0..26 {
            let category = next() % (1 + next() % 50);
            fields.push(if category == 0 { String::new() } else { format!("{category:08x}") });
        }
        fields.join("\t")
    };
    (0..count).map(row).collect()
}

/// Returns the folder of real data: the one that `RANKINE_TEST_DATA` names, by default `shared/data` next to the
/// repository.
pub(crate) fn data_folder() -> PathBuf {
    let named = std::env::var_os("RANKINE_TEST_DATA").map(PathBuf::from);
    named.unwrap_or_else(|| root().join("../shared/data"))
}

/// Returns the number of GPUs that this build can use on this machine.
pub(crate) fn gpus() -> usize {
    #[cfg(feature = "cuda")]
    let count = rankine_cuda::Device::count().unwrap_or(0);
    #[cfg(not(feature = "cuda"))]
    let count = 0;
    count
}

/// Returns a test for a suite without the standard harness. If something is missing, the test is ignored and reported
/// as skipped.
pub(crate) fn trial(
    name: &str,
    missing: Option<&str>,
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    if let Some(missing) = missing {
        skipped_test(name, missing);
    }
    Trial::test(name, body).with_ignored_flag(missing.is_some())
}

/// Returns why a test that needs a file of [`data_folder`], and perhaps a GPU, cannot run.
pub(crate) fn missing(path: &Path, gpu: bool) -> Option<String> {
    if !path.is_file() {
        return Some(format!("{} was not found; RANKINE_TEST_DATA names its folder", path.display()));
    }
    (gpu && gpus() == 0).then(|| "there is no GPU, or the build lacks the feature cuda".to_owned())
}

/// Returns whether to run the long versions of tests.
pub(crate) fn is_long() -> bool {
    std::env::var_os("RANKINE_TEST_LONG").is_some()
}

/// Returns how often a test repeats what may pass by chance, such as a race or a kill: `usual` times, or 50 times in
/// the long version.
pub(crate) fn times(usual: usize) -> usize {
    if is_long() { 50 } else { usual }
}

/// Prints a line for the person who runs the tests.
#[expect(clippy::print_stdout, reason = "the output is for the person who runs the tests")]
pub(crate) fn told(text: &str) {
    println!("{text}");
}

/// Returns the blocks of TOML below a heading of the guide to training.
pub(crate) fn toml_of_guide(heading: &str) -> Vec<String> {
    let guide = fs::read_to_string(root().join("docs/guide/training.md")).expect("the guide is there");
    let (_, rest) = guide.split_once(&format!("\n{heading}\n")).expect("the guide has the heading");
    let section = rest.split("\n## ").next().unwrap_or(rest).split("\n### ").next().unwrap_or(rest);
    let blocks = section.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or(block).to_owned()).collect()
}
