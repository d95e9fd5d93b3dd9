//! An error does not throw a training away: it leaves the trained model, or a checkpoint from which it continues.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::process::{Running, limit_file_size, wait_until};
use crate::support::{
    Ended, FAILED, Place, SHAPE, SUCCESS, criteo_rows, generate, job, json_lines, rankine, run, summary,
    train, weights,
};

/// 40 epochs of 10 steps.
const SETS: [&str; 3] = ["train.batch_size=100", "train.epochs=40", "train.log_every_steps=20"];

/// A running training and how to end it.
struct Training<'a> {
    place: &'a Place,
    job: &'a str,
    sets: &'a [&'a str],
}

impl Training<'_> {
    fn args(&self, run_dir: &str, more: &[&str]) -> Vec<String> {
        let run_dir = self.place.word(run_dir);
        let sets = SETS.iter().chain(self.sets).flat_map(|set| ["--set", set]);
        let args = ["train", self.job, "--quiet", "--run-dir", &run_dir].into_iter().chain(sets);
        args.chain(more.iter().copied()).map(str::to_owned).collect()
    }

    /// Trains, and moves a path away as soon as a step is reported: it is not needed before the last step.
    fn loses(&self, run_dir: &str, path: &Path) -> Ended {
        let mut command = rankine();
        command.args(self.args(run_dir, &[]));
        let mut running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let metrics = self.place.path(run_dir).join("metrics.jsonl");
        wait_until("a step is reported", || fs::metadata(&metrics).is_ok_and(|metrics| metrics.len() > 0));
        fs::rename(path, path.with_extension("away")).expect("it exists");
        let (code, mut stderr) = (running.end(), String::new());
        let mut piped = running.0.stderr.take().expect("it is piped");
        std::io::Read::read_to_string(&mut piped, &mut stderr).expect("the command writes UTF-8");
        fs::rename(path.with_extension("away"), path).expect("it was moved");
        Ended { code, stdout: String::new(), stderr }
    }

    /// Resumes a run, and checks that it has the results of the run `whole`; if all steps were taken, none is repeated.
    #[track_caller]
    fn completes(&self, run_dir: &str, is_trained: bool) {
        let log = |run_dir: &str| json_lines(&self.place.path(run_dir).join("metrics.jsonl"));
        let before = log(run_dir).len();
        run(self.args(run_dir, &["--resume"])).with(SUCCESS);
        let added = log(run_dir).split_off(before * usize::from(is_trained));
        assert!(!is_trained || added.iter().all(|line| line["kind"] == "eval"), "{added:?}");
        assert!(weights(self.place, run_dir) == weights(self.place, "whole"));
        let results = |run_dir: &str| {
            let summary = summary(self.place, run_dir);
            let of_sets =
                |of: &Value| of.as_object().map(|sets| sets.values().map(|set| set["auc"].clone()).collect());
            let sets: Option<Vec<_>> = of_sets(&summary["eval"]["sets"]);
            (
                sets,
                summary["eval"]["auc"].clone(),
                summary["best"]["step"].clone(),
                summary["train"]["steps"].clone(),
            )
        };
        assert_eq!(results(run_dir), results("whole"));
    }
}

fn place() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 300);
    let job = job(&place);
    (place, job)
}

/// The model is saved before it is evaluated, and the checkpoint of the last step completes the run.
#[test]
fn a_training_whose_evaluation_fails_keeps_its_model_and_a_checkpoint() {
    let (place, job) = place();
    let (shape, out) = (place.word("shape.toml"), place.word("other"));
    run(["generate", "--shape", &shape, "--samples", "400", "--seed", "8", "--out", &out]).with(SUCCESS);
    let text = fs::read_to_string(&job).expect("the job is readable");
    let with_set =
        place.file("with-set.toml", text + &format!("[[eval.set]]\nname = \"other\"\ndata = {out:?}\n"));
    let best = ["eval.every_steps=100", "train.early_stopping={ patience = 100, min_delta = 0.9 }"];
    let average = ["train.average={ kind = 'last', every_steps = 100, count = 2 }"];
    for (name, sets, lost, checkpoint) in [
        ("set", &[][..], "other", 400),
        ("part", &[][..], "data/eval", 400),
        // The model is that of an earlier step, of which there is a checkpoint, and the state of the last step is gone.
        ("best", &best[..], "other", 100),
        ("average", &average[..], "other", 400),
    ] {
        let training = Training { place: &place, job: &with_set, sets };
        let _ = fs::remove_dir_all(place.path("whole"));
        run(training.args("whole", &[])).with(SUCCESS);
        training.loses(name, &place.path(lost)).with(FAILED).says(&[
            &place.word(lost),
            &format!("The trained model is saved in {}", place.word(&format!("{name}/model"))),
            &format!("The checkpoint of step {checkpoint} is saved: the same command with --run-dir "),
            &format!("--run-dir {} --resume continues from there", place.word(name)),
        ]);
        assert!(weights(&place, name) == weights(&place, "whole"));
        assert!(!place.path(name).join("summary.json").exists());
        let saved = |step| place.path(&format!("{name}/checkpoints/step-{step}/manifest.json")).is_file();
        assert!(saved(checkpoint) && (checkpoint == 400 || !saved(400)));
        training.completes(name, checkpoint == 400);
    }
}

/// Saving the model needs the vocabularies of the dataset.
#[test]
fn a_training_whose_vocabulary_is_gone_leaves_a_checkpoint() {
    let place = Place::new();
    let rows = place.file("log.tsv", criteo_rows(1000, 5).join("\n") + "\n");
    let out = place.word("data");
    run(["convert", "criteo-tsv", &rows, "--split", "last:0.2", "--out", &out]).with(SUCCESS);
    let job = job(&place);
    let training = Training { place: &place, job: &job, sets: &[] };
    run(training.args("whole", &[])).with(SUCCESS);
    let ended = training.loses("run", &place.path("data/vocabulary")).with(FAILED);
    ended.says(&[
        "vocabulary/C1.tsv",
        "The checkpoint of step 320 is saved: the same command with --run-dir ",
    ]);
    assert!(!place.path("run/model").exists());
    training.completes("run", true);
}

/// An evaluation that was due after the step of the checkpoint is made up for: it may decide about the end.
#[test]
fn a_failed_evaluation_during_the_training_is_made_up_for() {
    let (place, job) = place();
    let sets = ["eval.every_steps=300", "train.early_stopping.patience=2", "train.log_every_steps=10"];
    let training = Training { place: &place, job: &job, sets: &sets };
    run(training.args("whole", &[])).with(SUCCESS);
    training
        .loses("run", &place.path("data/eval"))
        .with(FAILED)
        .says(&["The checkpoint of step 300 is saved"]);
    run(training.args("run", &["--resume"])).with(SUCCESS);
    let evaluations = |run_dir: &str| {
        let lines = json_lines(&place.path(run_dir).join("metrics.jsonl")).into_iter();
        let evaluations = lines.filter(|line| line["kind"] == "eval");
        evaluations.map(|line| (line["step"].clone(), line["auc"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(evaluations("run"), evaluations("whole"));
    assert_eq!(summary(&place, "run")["best"], summary(&place, "whole")["best"]);
    assert!(weights(&place, "run") == weights(&place, "whole"));
}

/// There is no room for a log line, but for a checkpoint.
#[test]
fn a_log_that_cannot_grow_leaves_a_checkpoint() {
    let (place, job) = place();
    let training = Training { place: &place, job: &job, sets: &["train.log_every_steps=1"] };
    run(training.args("whole", &[])).with(SUCCESS);
    let mut command = rankine();
    command.args(training.args("run", &[]));
    // A checkpoint has files of 20 KB at most.
    limit_file_size(&mut command, 65_536);
    let stderr =
        Ended::of(command).with(FAILED).says(&["metrics.jsonl", "--resume continues from there"]).stderr;
    let step = stderr.split("The checkpoint of step ").nth(1).and_then(|rest| rest.split(' ').next());
    let step = step.expect("the error names the step");
    assert!(place.path(&format!("run/checkpoints/step-{step}/manifest.json")).is_file());
    run(training.args("run", &["--resume"])).with(SUCCESS);
    assert!(weights(&place, "run") == weights(&place, "whole"));
}

/// The state of a training that diverged is not worth saving.
#[test]
fn a_training_that_diverges_leaves_no_checkpoint() {
    let (place, job) = place();
    let sets = [&SETS[..], &["optimizer.dense={ kind = 'sgd', learning_rate = 1e30 }"]].concat();
    train(&place, &job, "run", &sets).with(FAILED).says(&["training diverged"]);
    assert!(!place.path("run/checkpoints").exists() && !place.path("run/model").exists());
}

/// The last step spoils the weights after its own loss was computed: only the evaluation of the saved model shows it.
#[test]
fn a_model_whose_predictions_are_not_finite_is_removed() {
    let (place, job) = place();
    let sets = [&SETS[..], &["train.max_steps=1", "optimizer.dense={ kind = 'sgd', learning_rate = 1e30 }"]]
        .concat();
    train(&place, &job, "run", &sets).with(FAILED).says(&["training diverged"]);
    assert!(place.path("run/metrics.jsonl").exists());
    assert!(!place.path("run/model").exists() && !place.path("run/summary.json").exists());
}
