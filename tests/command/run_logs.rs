//! The logs of a run for other tools agree with `metrics.jsonl`: TensorBoard's event files and MLPerf's log, also after
//! a resume and a restart.

#![allow(clippy::unwrap_used, reason = "the parsers of a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::process::{Running, wait_until};
use crate::support::{
    self, Ended, FAILED, Place, RESUMABLE, SHAPE, SUCCESS, files_below, generate, job, json_lines, rankine,
};

const SAMPLES: u64 = 3001;
const EVAL_SAMPLES: u64 = 500;
const BATCH: u64 = 70;
const EPOCHS: u64 = 2;
/// Of both epochs.
const STEPS: u64 = EPOCHS * SAMPLES.div_ceil(BATCH);

/// Options of all runs: evaluations and reports also between checkpoints.
const COMMON: [&str; 10] = [
    "train.epochs=2",
    "train.batch_size=70",
    "train.log_every_steps=7",
    "eval.every_steps=20",
    "checkpoint.every_steps=25",
    "device.threads=2",
    "device.kind=cpu",
    "metrics.tensorboard=true",
    "metrics.mllog=true",
    "seed=11",
];

struct Runs {
    place: Place,
    job: String,
}

impl Runs {
    fn new() -> Self {
        let place = Place::new();
        generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
        let job = job(&place);
        Self { place, job }
    }

    fn command(&self, name: &str, sets: &[&str]) -> std::process::Command {
        let mut command = rankine();
        command.args(["train", &self.job, "--quiet", "--run-dir", &self.place.word(name)]);
        command.args(COMMON.iter().chain(sets).flat_map(|set| ["--set", set]));
        command
    }

    fn train(&self, name: &str, sets: &[&str]) -> Ended {
        Ended::of(self.command(name, sets))
    }

    fn train_again(&self, name: &str, sets: &[&str], how: &str) -> Ended {
        let mut command = self.command(name, sets);
        command.arg(how);
        Ended::of(command)
    }

    /// Checks that both logs have what `metrics.jsonl` has.
    #[track_caller]
    fn agree(&self, name: &str) {
        let run = self.place.path(name);
        let lines = json_lines(&run.join("metrics.jsonl"));
        assert_eq!(shown_scalars(&run.join("tensorboard")), expected_scalars(&lines), "{name}");

        // MLPerf's log has no evaluations of further datasets: they are not results of the run.
        let evaluated = lines.iter().filter(|line| line["kind"] == "eval" && line["set"].is_null());
        let evaluated: Vec<_> = evaluated
            .map(|line| (samples_after(line["step"].as_u64().unwrap()), line["auc"].as_f64().unwrap()))
            .collect();
        let log = mllog(&run);
        let accuracies = log.iter().filter(|line| line["key"] == "eval_accuracy");
        let accuracies: Vec<_> = accuracies
            .map(|line| {
                let count = line["metadata"]["samples_count"].as_u64().unwrap();
                assert_eq!(line["metadata"]["epoch_num"], count as f64 / SAMPLES as f64);
                (count, line["value"].as_f64().unwrap())
            })
            .collect();
        assert_eq!(accuracies, evaluated, "{name}");
        assert!(log.is_sorted_by_key(|line| line["time_ms"].as_u64()), "{name}");
        let keys = keys(&log);
        let of_evaluations: Vec<_> = keys.iter().filter(|key| key.starts_with("eval_")).skip(1).collect();
        for evaluation in of_evaluations.chunks(3) {
            assert_eq!(evaluation, ["eval_start", "eval_accuracy", "eval_stop"], "{name}");
        }
        for key in ["init_start", "init_stop", "run_start", "run_stop", "block_start", "block_stop"] {
            assert_eq!(keys.iter().filter(|name| *name == key).count(), 1, "{name}: {key}");
        }
        assert_eq!(keys.last().map(String::as_str), Some("run_stop"), "{name}");
    }
}

/// Returns the number of samples trained on after a step: the last batch of an epoch is smaller.
fn samples_after(step: u64) -> u64 {
    let steps_per_epoch = SAMPLES.div_ceil(BATCH);
    step / steps_per_epoch * SAMPLES + step % steps_per_epoch * BATCH
}

/// Values by tag and step. TensorBoard stores single precision.
type Scalars = BTreeMap<(String, u64), f32>;

fn expected_scalars(lines: &[Value]) -> Scalars {
    const TRAIN: [&str; 4] = ["loss", "dense_learning_rate", "sparse_learning_rate", "samples_per_second"];
    const EVAL: [&str; 3] = ["auc", "log_loss", "calibration"];
    let of_line = |line: &Value| {
        let kind = line["kind"].as_str().unwrap();
        let names = if kind == "train" { &TRAIN[..] } else { &EVAL };
        let of = match (kind, line["set"].as_str()) {
            ("eval", Some(set)) => format!("eval.sets/{set}"),
            ("eval", None) => line["part"].as_str().unwrap_or("eval").to_owned(),
            _ => kind.to_owned(),
        };
        let scalar = |name| {
            let value = line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"));
            ((format!("{of}/{name}"), line["step"].as_u64().unwrap()), value as f32)
        };
        names.iter().map(scalar).collect::<Vec<_>>()
    };
    lines.iter().flat_map(of_line).collect()
}

/// Returns the scalars of a folder of event files that TensorBoard shows: a file hides the values that earlier ones
/// have for its first step and later ones.
fn shown_scalars(dir: &Path) -> Scalars {
    let mut shown = Scalars::new();
    for file in files_below(dir) {
        let events = events(&fs::read(&file).unwrap());
        assert_eq!(events[0].version.as_deref(), Some("brain.Event:2"));
        assert!(events[1].is_start, "{}", file.display());
        shown.retain(|(_, step), _| *step < events[1].step);
        for Event { step, scalars, .. } in events {
            for (tag, value) in scalars {
                assert_eq!(shown.insert((tag, step), value), None);
            }
        }
    }
    shown
}

/// Returns the first steps of a run's event files.
fn first_steps(run: &Path) -> Vec<u64> {
    let files = files_below(&run.join("tensorboard"));
    files.iter().map(|file| events(&fs::read(file).unwrap())[1].step).collect()
}

#[derive(Default)]
struct Event {
    step: u64,
    version: Option<String>,
    is_start: bool,
    scalars: Vec<(String, f32)>,
}

/// Parses an event file: records of a length, its checksum, an `Event` message and its checksum.
fn events(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        events.push(event(&bytes[12..12 + length]));
        bytes = &bytes[16 + length..];
    }
    events
}

fn event(message: &[u8]) -> Event {
    let mut event = Event::default();
    for (number, field) in fields(message) {
        match (number, field) {
            // Seconds since 1970.
            (1, Field::Eight(time)) => assert!(f64::from_le_bytes(time) > 1.6e9),
            (2, Field::Varint(step)) => event.step = step,
            (3, Field::Bytes(version)) => event.version = Some(String::from_utf8(version.to_vec()).unwrap()),
            (5, Field::Bytes(summary)) => event.scalars = fields(summary).into_iter().map(scalar).collect(),
            (7, Field::Bytes(log)) => event.is_start = log == [8, 1],
            (number, _) => panic!("field {number}"),
        }
    }
    event
}

fn scalar((_, value): (u64, Field<'_>)) -> (String, f32) {
    let Field::Bytes(value) = value else { panic!("a value is a message") };
    match fields(value)[..] {
        [(1, Field::Bytes(tag)), (2, Field::Four(bits))] => {
            (String::from_utf8(tag.to_vec()).unwrap(), f32::from_le_bytes(bits))
        }
        _ => panic!("a value has a tag and a number"),
    }
}

enum Field<'a> {
    Varint(u64),
    Eight([u8; 8]),
    Bytes(&'a [u8]),
    Four([u8; 4]),
}

/// Returns the numbers and values of a message's fields.
fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes.split_off_first().expect("a varint ends");
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Varint(varint(&mut message)),
            1 => Field::Eight(message.split_off(..8).unwrap().try_into().unwrap()),
            2 => {
                let length = varint(&mut message) as usize;
                Field::Bytes(message.split_off(..length).unwrap())
            }
            5 => Field::Four(message.split_off(..4).unwrap().try_into().unwrap()),
            kind => panic!("a field of kind {kind}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn mllog(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("mllog.log")).unwrap();
    let line = |line: &str| serde_json::from_str(line.strip_prefix(":::MLLOG ").unwrap()).unwrap();
    text.lines().map(line).collect()
}

fn keys(log: &[Value]) -> Vec<String> {
    log.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
}

fn value(log: &[Value], key: &str) -> Value {
    log.iter().find(|line| line["key"] == key).unwrap_or_else(|| panic!("no {key}"))["value"].clone()
}

#[test]
fn logs_have_the_metrics_and_the_settings() {
    let runs = Runs::new();
    let schedule =
        "optimizer.schedule={ kind = 'cosine', warmup_steps = 5, decay_start_step = 8, decay_steps = 70 }";
    let dense = "optimizer.dense={ kind = 'momentum', learning_rate = 0.02, weight_decay = 0.001 }";
    runs.train("run", &[schedule, dense]).with(SUCCESS);
    runs.agree("run");
    let run = runs.place.path("run");
    assert_eq!(first_steps(&run), [0]);
    let log = mllog(&run);
    let expected: [(&str, Value); 17] = [
        ("seed", 11.into()),
        ("global_batch_size", BATCH.into()),
        ("train_samples", SAMPLES.into()),
        ("eval_samples", EVAL_SAMPLES.into()),
        ("lowest_numerical_precision_in_linear", "fp32".into()),
        ("opt_name", "momentum".into()),
        ("opt_base_learning_rate", 0.02.into()),
        ("opt_weight_decay", 0.001.into()),
        ("opt_sparse_name", "adagrad".into()),
        ("opt_sparse_base_learning_rate", 0.1.into()),
        ("opt_sparse_adagrad_initial_accumulator_value", 0.0.into()),
        ("opt_sparse_adagrad_epsilon", 1e-8.into()),
        ("opt_learning_rate_decay_schedule", "cosine".into()),
        ("opt_learning_rate_warmup_steps", 5.into()),
        ("opt_learning_rate_decay_start_step", 8.into()),
        ("opt_learning_rate_decay_steps", 70.into()),
        ("submission_benchmark", "dlrm".into()),
    ];
    for (key, expected) in expected {
        assert_eq!(value(&log, key), expected, "{key}");
    }
    let block = log.iter().find(|line| line["key"] == "block_start").unwrap();
    assert_eq!(block["metadata"]["epoch_count"], EPOCHS);
    assert_eq!(log.last().unwrap()["metadata"]["status"], "success");
    assert_eq!(log.last().unwrap()["metadata"]["samples_count"], samples_after(STEPS));
}

#[test]
fn a_target_decides_how_the_run_ends() {
    let runs = Runs::new();
    // Training ends 3 steps after the evaluation that reaches the target, an eighth of the 20 to the next one.
    for (target, status, steps) in [("0.501", "success", 23), ("0.999", "aborted", STEPS)] {
        runs.train(target, &[&format!("eval.target_auc={target}")]).with(SUCCESS);
        runs.agree(target);
        let log = mllog(&runs.place.path(target));
        let last = &log.last().unwrap()["metadata"];
        assert_eq!((&last["status"], &last["samples_count"]), (&status.into(), &samples_after(steps).into()));
        let keys = keys(&log);
        assert_eq!(keys[keys.len() - 4..], ["eval_accuracy", "eval_stop", "block_stop", "run_stop"]);
    }
    // The AUC after 20 steps is not below itself.
    let reached = value(&mllog(&runs.place.path("0.501")), "eval_accuracy");
    runs.train("exact", &[&format!("eval.target_auc={reached}"), "eval.beside_training=false"]).with(SUCCESS);
    let log = mllog(&runs.place.path("exact"));
    let last = &log.last().unwrap()["metadata"];
    assert_eq!((&last["status"], &last["samples_count"]), (&"success".into(), &samples_after(20).into()));
}

#[test]
fn an_evaluation_of_a_further_dataset_is_no_result() {
    let runs = Runs::new();
    let (shape, other) = (runs.place.file("shape.toml", SHAPE), runs.place.word("other"));
    let sizes = ["--samples", "300", "--eval-samples", "200", "--seed", "8"];
    support::run([&["generate", "--shape", &shape, "--out", &other][..], &sizes].concat()).with(SUCCESS);
    let set = format!("eval.set=[{{ name = 'other', data = {other:?} }}]");
    runs.train("run", &[&set, "train.epochs=1"]).with(SUCCESS);
    let lines = json_lines(&runs.place.path("run/metrics.jsonl"));
    assert_eq!(lines.iter().filter(|line| line["set"] == "other").count(), 1);
    runs.agree("run");
}

#[test]
fn a_resumed_run_continues_its_logs() {
    let runs = Runs::new();
    // Killed while it writes the checkpoint of step 75, hence after the evaluation at step 60.
    let mut command = runs.command("run", &[]);
    let output = command.env("RANKINE_TEST_FAULT", "50:kill").output().expect("the command starts");
    assert!(output.status.code().is_none(), "{output:?}");
    let run = runs.place.path("run");
    assert!(!keys(&mllog(&run)).contains(&"run_stop".to_owned()));
    runs.train_again("run", &[], "--resume").with(SUCCESS);
    runs.agree("run");
    assert!(keys(&mllog(&run)).contains(&"training_resumed".to_owned()));
    assert_eq!(first_steps(&run).len(), 2);

    // The finished run trains on: it keeps the event files, and its log ends once.
    runs.train_again("run", &["train.epochs=3"], "--resume").with(SUCCESS);
    runs.agree("run");
    let steps = first_steps(&run);
    assert_eq!((steps.len(), steps[0], steps[2]), (3, 0, 76));
}

#[test]
fn a_restart_keeps_the_former_logs() {
    let runs = Runs::new();
    runs.train("run", &[]).with(SUCCESS);
    let run = runs.place.path("run");
    let former = support::tree(&run);
    runs.train_again("run", &[], "--restart").with(SUCCESS);
    runs.agree("run");
    assert_eq!(first_steps(&run), [0]);
    let kept = support::tree(&run.join("before-restart"));
    let is_log = |name: &&String| name.starts_with("tensorboard/") || *name == "mllog.log";
    assert_eq!(former.keys().filter(is_log).count(), 2);
    for name in former.keys().filter(is_log) {
        assert!(kept[name] == former[name], "{name}");
    }
}

#[test]
fn an_interrupted_run_has_no_end() {
    let runs = Runs::new();
    let mut command = runs.command("run", &["train.epochs=4000"]);
    let mut running = Running::start(command.stderr(Stdio::null()));
    let run = runs.place.path("run");
    wait_until("steps are logged", || {
        fs::metadata(run.join("metrics.jsonl")).is_ok_and(|metrics| metrics.len() > 0)
    });
    running.signal(libc::SIGTERM);
    assert_eq!(running.end(), RESUMABLE);
    let keys = keys(&mllog(&run));
    assert!(keys.contains(&"run_start".to_owned()) && !keys.contains(&"run_stop".to_owned()), "{keys:?}");
    let lines = json_lines(&run.join("metrics.jsonl"));
    assert_eq!(shown_scalars(&run.join("tensorboard")), expected_scalars(&lines));
}

#[test]
fn a_log_that_cannot_be_written_is_an_error() {
    let runs = Runs::new();
    for name in ["tensorboard", "mllog.log"] {
        runs.train(name, &["train.max_steps=25"]).with(SUCCESS);
        let path = runs.place.path(name).join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
            fs::write(&path, "").unwrap();
        } else {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        }
        runs.train_again(name, &[], "--resume").with(FAILED).says(&[path.to_str().unwrap()]);
    }
}
