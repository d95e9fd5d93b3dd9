//! Training goes on as if it had never stopped: after kills, signals and failures, on the same ranks to the bit.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{
    BAD_DATA, Ended, FAILED, Place, RESUMABLE, SHAPE, SUCCESS, USAGE, generate, job, json_lines, rankine,
    run, summary, train, tree, weights,
};

mod support;

/// What all runs of a test have in common: two epochs with a last batch that is short, reports and evaluations that do
/// not fall on checkpoints alone, and tables whose rows are not all in every batch.
const COMMON: [&str; 7] = [
    "train.epochs=2",
    "train.batch_size=70",
    "train.log_every_steps=7",
    "train.shuffle_window_blocks=2",
    "eval.every_steps=40",
    "checkpoint.every_steps=25",
    "device.threads=2",
];
const SAMPLES: u64 = 3001;

struct Runs {
    place: Place,
    job: String,
    sets: Vec<String>,
}

impl Runs {
    /// A dataset, and a run that nothing interrupts, in the folder `whole`.
    fn new(sets: &[&str]) -> Self {
        let place = Place::new();
        generate(&place, SHAPE, SAMPLES, 500);
        let job = job(&place);
        let sets = COMMON.iter().chain(sets).map(|&set| set.to_owned()).collect();
        let runs = Self { place, job, sets };
        runs.train("whole", &[]).with(SUCCESS);
        runs
    }

    fn command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = rankine();
        command.args(["train", &self.job, "--quiet", "--run-dir", &self.place.word(name)]);
        command.args(self.sets.iter().flat_map(|set| ["--set", set]));
        command.args(more);
        command
    }

    fn train(&self, name: &str, more: &[&str]) -> Ended {
        Ended::of(self.command(name, more))
    }

    /// A run that dies at an operation of its checkpoints' files; whether it did.
    fn killed(&self, name: &str, operation: u64, more: &[&str]) -> bool {
        let mut command = self.command(name, more);
        command.env("RANKINE_TEST_FAULT", format!("{operation}:kill"));
        let output = command.output().expect("the command starts");
        assert!(output.status.code().is_none_or(|code| code == 0), "{output:?}");
        output.status.code().is_none()
    }

    /// Goes on with a run to its end, which is that of the run that nothing interrupted.
    #[track_caller]
    fn comes_to_the_same(&self, name: &str) {
        self.train(name, &["--resume"]).with(SUCCESS);
        assert!(weights(&self.place, name) == weights(&self.place, "whole"), "{name} came to another model");
        assert_eq!(self.log(name), self.log("whole"), "{name} has another log");
        let told = |name: &str| {
            let summary = summary(&self.place, name);
            let eval = &summary["eval"];
            let [steps, samples, loss, stopped] =
                ["steps", "samples", "loss", "stopped"].map(|key| summary["train"][key].clone());
            [steps, samples, loss, stopped, eval["auc"].clone(), eval["log_loss"].clone()]
        };
        assert_eq!(told(name), told("whole"));
    }

    /// The lines of a run's log, but for how long things took.
    fn log(&self, name: &str) -> Vec<Value> {
        let mut lines = json_lines(&self.place.path(name).join("metrics.jsonl"));
        for line in &mut lines {
            let line = line.as_object_mut().expect("a line is an object");
            line.remove("samples_per_second");
            line.remove("seconds");
        }
        lines
    }

    /// The steps of a run's checkpoints.
    fn steps(&self, name: &str) -> Vec<u64> {
        let entries = fs::read_dir(self.place.path(name).join("checkpoints")).expect("it has checkpoints");
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut steps: Vec<_> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
        steps.sort_unstable();
        steps
    }
}

/// Whether the long versions of tests are wanted.
fn long() -> bool {
    std::env::var_os("RANKINE_TEST_LONG").is_some()
}

#[test]
fn a_killed_run_goes_on_to_the_same_end() {
    for sets in [&[][..], &["checkpoint.incremental=true", "checkpoint.full_every=3"][..]] {
        let runs = Runs::new(sets);
        assert_eq!(runs.steps("whole"), if sets.is_empty() { vec![25, 50, 75] } else { vec![25, 50, 75] });
        // An uninterrupted run has about a hundred operations; all of them in the long version.
        let every = if long() { 1 } else { 17 };
        let mut operation = 1;
        loop {
            let name = format!("killed-{operation}");
            if !runs.killed(&name, operation, &[]) {
                break;
            }
            // Killed again on the way, it goes on all the same.
            runs.killed(&name, 5, &["--resume"]);
            runs.comes_to_the_same(&name);
            operation += every;
        }
        assert!(operation > 60, "{operation} operations");
    }
}
