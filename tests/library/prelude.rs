//! The library as programs use it, through the prelude alone.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use rankine::prelude::*;

use crate::support::{Ended, Place, SHAPE, SUCCESS, generate, job, json_file, run, weights};

/// The job that [`job`] writes, in code.
fn built(place: &Place) -> Settings<Job> {
    Job::builder("small")
        .data(place.path("data"))
        .model(Dlrm::new(4).bottom([16, 4]).top([16]))
        .dense(Adagrad::rate(0.03))
        .sparse(Adagrad::rate(0.1))
        .batch_size(128)
        .set("train.log_every_steps", 10)
}

/// Counts reports, and asks to stop at a step.
struct Watcher {
    reports: u64,
    stop: Stop,
    at: Option<u64>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Step(progress, _) if Some(progress.step) == self.at => self.stop.ask(),
            Event::Report(_) => self.reports += 1,
            _ => {}
        }
    }
}

#[test]
fn a_built_job_trains_the_model_of_the_file() {
    let place = Place::new();
    generate(&place, SHAPE, 4096, 1024);
    run(["train", &job(&place), "--run-dir", &place.word("file")]).with(SUCCESS);

    // Stopped on the way, and resumed.
    let (job, run_dir, stop) = (built(&place).build().unwrap(), place.path("built"), Stop::default());
    let options = TrainOptions {
        run_dir: Some(&run_dir),
        start: Start::Resume,
        stop: Some(&stop),
        ..TrainOptions::default()
    };
    let mut watcher = Watcher { reports: 0, stop: stop.clone(), at: Some(15) };
    match train(&job, options, &mut watcher) {
        Err(TrainError::Interrupted { step: 15, cause: StopCause::Program, .. }) => {}
        other => panic!("{other:?}"),
    }
    let options = TrainOptions { stop: None, ..options };
    let (summary, path) = train(&job, options, &mut ()).unwrap();
    assert_eq!((summary.train.stopped, summary.train.steps), (EndReason::Epochs, 32));
    assert_eq!((watcher.reports, path.as_deref()), (1, Some(run_dir.as_path())));
    assert!(weights(&place, "file") == weights(&place, "built"), "the weights differ");
}

/// The folder `runs` is in the current one, which all tests of a process share: this test runs itself elsewhere.
#[test]
fn a_job_trains_into_a_new_folder_below_runs() {
    const JOB: &str = "RANKINE_TEST_JOB";
    if let Some(job) = env::var_os(JOB) {
        let summary = Job::load(Path::new(&job), &[] as &[&str]).unwrap().train().unwrap();
        fs::write("trained.json", serde_json::to_vec(&summary).unwrap()).unwrap();
        return;
    }
    let place = Place::new();
    generate(&place, SHAPE, 2000, 500);
    let mut test = Command::new(env::current_exe().unwrap());
    test.args(["--exact", "prelude::a_job_trains_into_a_new_folder_below_runs"]);
    test.env(JOB, job(&place)).current_dir(place.path(""));
    Ended::of(test).with(SUCCESS);
    let runs: Vec<_> = fs::read_dir(place.path("runs")).unwrap().map(|run| run.unwrap().path()).collect();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].file_name().unwrap().to_str().unwrap().starts_with("small-"), "{runs:?}");
    assert_eq!(json_file(&runs[0].join("summary.json")), json_file(&place.path("trained.json")));
}

#[test]
fn an_evaluation_has_the_numbers_of_the_command() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 4096, 1024);
    run(["train", &job(&place), "--run-dir", &place.word("run")]).with(SUCCESS);
    for part in [Part::Train, Part::Eval] {
        let options = EvaluateOptions { part, ..EvaluateOptions::default() };
        let eval = evaluate(place.path("run"), &options, &mut ()).unwrap();
        let part = part.name();
        let json = run(["eval", "--run", &place.word("run"), "--data", &data, "--part", part, "--json"]);
        let json = json.with(SUCCESS).json();
        let metrics = eval.metrics.first.unwrap();
        assert_eq!(json["auc"].as_f64(), metrics.auc);
        assert_eq!(json["log_loss"].as_f64(), Some(metrics.log_loss));
        assert_eq!(json["samples"].as_u64(), Some(metrics.samples));
        assert_eq!(json["auc_achievable"].as_f64(), eval.auc_achievable);
    }
    let stop = Stop::default();
    stop.ask();
    let stopped = EvaluateOptions { stop: Some(&stop), ..EvaluateOptions::default() };
    let error = evaluate(place.path("run"), &stopped, &mut ()).unwrap_err();
    assert_eq!(error.to_string(), "stopped by the program: the evaluation has no result");
    let error = evaluate(place.path("data"), &EvaluateOptions::default(), &mut ()).unwrap_err();
    assert!(matches!(error, EvaluateError::Source(SourceError::Other { .. })), "{error}");
}
