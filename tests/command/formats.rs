//! Files that earlier versions wrote (`tests/formats`) are verified, trained on, resumed and scored with, and give the
//! numbers that were recorded with them.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::support::{self, Ended, Place, SUCCESS, json_file, json_lines, rankine, root, tree};

/// The numbers of a processor that rounds products differently may differ from the recorded ones by this, relative to
/// the larger of both and 1. The trainings are short, so that rounding errors of 2^-24 grow little; but rounding to
/// bf16 and fp16 may turn one into an error of 2^-9 of a weight.
const OTHER_ROUNDING: f64 = 0.02;
/// Folders of fixtures, all below `tests/formats`. Together they are at most as large as this.
const BYTES_MAX: usize = 3 << 19;

fn formats() -> PathBuf {
    root().join("tests/formats")
}

/// A copy of a folder of fixtures, in which commands run: the files in it have relative paths.
struct Fixture {
    place: Place,
    kept: PathBuf,
}

impl Fixture {
    /// Returns copies of all folders.
    fn all() -> Vec<Self> {
        let entries = fs::read_dir(formats()).unwrap().map(|entry| entry.unwrap().path());
        let mut folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
        folders.sort();
        assert!(!folders.is_empty());
        let copy = |kept: PathBuf| {
            let place = Place::new();
            for (name, bytes) in tree(&kept) {
                fs::create_dir_all(place.path(&name).parent().unwrap()).unwrap();
                place.file(&name, bytes);
            }
            Self { place, kept }
        };
        folders.into_iter().map(copy).collect()
    }

    fn run(&self, args: &[&str]) -> Ended {
        let mut command = rankine();
        command.args(args).current_dir(self.place.path("."));
        Ended::of(command)
    }

    /// Returns the names in a folder, without extensions.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.kept.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> =
            entries.map(|path| support::word(Path::new(path.file_stem().unwrap()))).collect();
        names.sort();
        names
    }

    /// Compares numbers with those that were recorded under a name. With `RANKINE_BLESS`, numbers that were not
    /// recorded yet are added; recorded ones never change.
    #[track_caller]
    fn check(&self, name: &str, found: &Value) {
        static FILE: Mutex<()> = Mutex::new(());
        let _alone = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.kept.join("expected.json");
        let recorded = if path.exists() { json_file(&path) } else { json!({}) };
        match &recorded[name] {
            Value::Null if std::env::var_os("RANKINE_BLESS").is_some() => {
                let mut recorded = recorded;
                recorded[name] = found.clone();
                fs::write(path, format!("{recorded:#}\n")).unwrap();
            }
            Value::Null => panic!("{} has no {name}: RANKINE_BLESS=1 adds it", path.display()),
            expected => assert!(agrees(expected, found), "{name}: {found:#} instead of {expected:#}"),
        }
    }

    /// A dataset whose every byte is verified: its parts, and how often rows of its tables are looked up.
    fn check_dataset(&self, data: &str) {
        let mut found = self.run(&["inspect", data, "--verify", "--json"]).with(SUCCESS).json();
        let mut keep = |list: &str, kept: &[&str]| {
            let mut entries = found[list].take();
            for entry in entries.as_array_mut().unwrap() {
                entry.as_object_mut().unwrap().retain(|key, _| kept.contains(&key.as_str()));
            }
            entries
        };
        let parts = keep("parts", &["part", "samples", "label_rates", "labels_missing"]);
        let tables = keep("tables", &["name", "rows", "lookups", "distinct_rows"]);
        self.check(data, &json!({ "parts": parts, "tables": tables }));
    }

    /// The model of a run, and its evaluation.
    fn check_model(&self, name: &str, run: &str) {
        let summary = json_file(&self.place.path(run).join("summary.json"));
        let steps = &summary["train"]["steps"];
        let eval = self.evaluation(run, &[]);
        self.check(name, &json!({ "steps": steps, "weights": self.weights(run), "eval": eval }));
    }

    /// Returns a checksum of the weights of a run's model: of the names and bytes of all tensors, in the order of their
    /// names.
    fn weights(&self, run: &str) -> String {
        let bytes = fs::read(self.place.path(run).join("model/model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: BTreeMap<_, _> = tensors.iter().collect();
        let mut hash = Xxh3::new();
        for (name, tensor) in tensors {
            hash.update(name.as_bytes());
            hash.update(tensor.data());
        }
        format!("{:016x}", hash.digest())
    }

    /// Returns the metrics of a model on its data, without times.
    fn evaluation(&self, model: &str, more: &[&str]) -> Value {
        let mut found = self.run(&[&["eval", "--json", "--run", model], more].concat()).with(SUCCESS).json();
        fn keep_metrics(value: &mut Value) {
            if let Value::Object(fields) = value {
                let kept = ["samples", "auc", "log_loss", "calibration", "heads", "rating", "bought"];
                fields.retain(|key, _| kept.contains(&key.as_str()));
                fields.values_mut().for_each(keep_metrics);
            }
        }
        keep_metrics(&mut found);
        found
    }

    /// Returns the predictions for the rows of a file, or of a dataset's part.
    fn predictions(&self, model: &str, rows: &[&str]) -> Value {
        self.run(&[&["predict", "--quiet", "--run", model, "--out", "predictions.csv"], rows].concat())
            .with(SUCCESS);
        let text = fs::read_to_string(self.place.path("predictions.csv")).unwrap();
        let row = |line: &str| -> Vec<f64> { line.split(',').map(|field| field.parse().unwrap()).collect() };
        json!(text.lines().skip(1).take(30).map(row).collect::<Vec<_>>())
    }
}

/// Returns whether numbers agree: exactly, unless this processor rounds products differently than the one that they
/// were recorded on. Then weights may differ, too.
fn agrees(expected: &Value, found: &Value) -> bool {
    #[cfg(target_arch = "x86_64")]
    let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let fused = false;
    fused && expected == found || !fused && close(expected, found)
}

fn close(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Number(expected), Value::Number(found)) => {
            let (expected, found) = (expected.as_f64().unwrap(), found.as_f64().unwrap());
            (expected - found).abs() <= OTHER_ROUNDING * expected.abs().max(1.0)
        }
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len() && expected.iter().zip(found).all(|(one, other)| close(one, other))
        }
        (Value::Object(expected), Value::Object(found)) => {
            expected.len() == found.len()
                && expected.iter().all(|(key, one)| {
                    key == "weights" || found.get(key).is_some_and(|other| close(one, other))
                })
        }
        (expected, found) => expected == found,
    }
}

#[test]
fn old_datasets_are_intact_and_give_the_recorded_models() {
    for fixture in Fixture::all() {
        for data in fixture.names("data") {
            fixture.check_dataset(&format!("data/{data}"));
        }
        for run in fixture.names("runs") {
            let (job, fresh) = (format!("jobs/{run}.toml"), format!("fresh/{run}"));
            fixture.run(&["train", &job, "--quiet", "--run-dir", &fresh]).with(SUCCESS);
            // Since then, buckets of numbers are divided differently.
            fixture.check_model(&format!("fresh/{run}"), &fresh);
        }
    }
}

/// A run that is resumed has the model that its version gave without an interruption.
#[test]
fn old_runs_resume_to_the_recorded_models() {
    for fixture in Fixture::all() {
        for name in fixture.names("runs") {
            let (job, run) = (format!("jobs/{name}.toml"), format!("runs/{name}"));
            fixture.run(&["ckpt", "verify", &run]).with(SUCCESS);
            fixture.run(&["train", &job, "--quiet", "--run-dir", &run, "--resume"]).with(SUCCESS);
            fixture.check_model(&format!("model/{name}"), &run);
            let first_line = |run: PathBuf| json_lines(&run.join("metrics.jsonl")).swap_remove(0);
            let [was, is] = [fixture.kept.join(&run), fixture.place.path(&run)].map(first_line);
            assert_eq!(is, was, "{name}: earlier lines stay");
        }
        let runs = fixture.run(&["runs", "runs", "--json"]).with(SUCCESS).json();
        assert_eq!(runs.as_array().map(Vec::len), Some(fixture.names("runs").len()), "{runs:#}");
    }
}

/// Checkpoints, full and incremental, finished runs and exports score as they did.
#[test]
fn old_models_give_the_recorded_predictions() {
    for fixture in Fixture::all() {
        let models = |folder: &str, below: &str| {
            let models =
                fixture.names(folder).into_iter().map(move |name| (format!("{folder}/{name}{below}"), name));
            models.collect::<Vec<_>>()
        };
        let mut all = models("exports", "");
        for (checkpoints, run) in models("runs", "/checkpoints") {
            all.extend(
                fixture
                    .names(&checkpoints)
                    .into_iter()
                    .map(|step| (format!("{checkpoints}/{step}"), run.clone())),
            );
            if fixture.kept.join("runs").join(&run).join("model").exists() {
                all.push((format!("runs/{run}"), run));
            }
        }
        for (model, run) in all {
            let rows: &[&str] = match run.as_str() {
                "criteo" => &["inputs/new.tsv"],
                "films" => &["inputs/new.csv"],
                "raw" => &["inputs/eval.bin"],
                _ => &["--data", &format!("data/{run}"), "--part", "eval"],
            };
            let found =
                json!({ "eval": fixture.evaluation(&model, &[]), "rows": fixture.predictions(&model, rows) });
            fixture.check(&model, &found);
        }
    }
}

/// Rows of text are converted with an old schema file, and like an old dataset.
#[test]
fn old_schemas_and_datasets_convert_new_rows() {
    for fixture in Fixture::all() {
        let schema: [(&str, &[&str]); 2] = [
            ("new/films", &["csv", "inputs/new.csv", "--schema", "inputs/schema.toml"]),
            ("new/films-like", &["csv", "inputs/new.csv", "--like", "data/films"]),
        ];
        let criteo: (&str, &[&str]) =
            ("new/criteo-like", &["criteo-tsv", "inputs/new.tsv", "--like", "data/criteo"]);
        for (out, words) in schema.into_iter().chain([criteo]) {
            fixture.run(&[&["convert"], words, &["--quiet", "--out", out]].concat()).with(SUCCESS);
            fixture.check_dataset(out);
        }
    }
}

/// Every key that an old job had means what it meant: the job with all defaults has the recorded values, and perhaps
/// keys that are new.
#[test]
fn old_job_files_mean_what_they_meant() {
    fn check(name: &str, expected: &toml::Value, found: &toml::Value) {
        match (expected, found) {
            (toml::Value::Table(expected), toml::Value::Table(found)) => {
                for (key, expected) in expected {
                    let name = format!("{name}: {key}");
                    check(&name, expected, found.get(key).unwrap_or_else(|| panic!("{name} is gone")));
                }
            }
            (toml::Value::Array(expected), toml::Value::Array(found)) => {
                assert_eq!(found.len(), expected.len(), "{name}");
                std::iter::zip(expected, found).for_each(|(expected, found)| check(name, expected, found));
            }
            // With "auto", CPUs score as many samples at a time; the number changes no result.
            (toml::Value::Integer(8192), toml::Value::String(auto)) if name.ends_with("eval: batch_size") => {
                assert_eq!(auto, "auto", "{name}");
            }
            (expected, found) => assert_eq!(found, expected, "{name}"),
        }
    }
    for fixture in Fixture::all() {
        for name in fixture.names("jobs") {
            let found =
                fixture.run(&["check", &format!("jobs/{name}.toml"), "--effective"]).with(SUCCESS).stdout;
            let expected = fs::read_to_string(fixture.kept.join(format!("effective/{name}.toml"))).unwrap();
            check(&name, &toml::from_str(&expected).unwrap(), &toml::from_str(&found).unwrap());
        }
    }
}

#[test]
fn fixtures_are_small() {
    let bytes: usize = tree(&formats()).values().map(Vec::len).sum();
    assert!(bytes <= BYTES_MAX, "{bytes} bytes");
}
