//! Validation sets and early stopping: which samples are trained on, which model is kept, and what is reported.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::path::{Path, PathBuf};

use rankine::job::StoppingMetric;
use rankine::prelude::*;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{Disk, list};
use rankine_engine::run_paths;
use rankine_model::evaluation::Metrics;
use rankine_reader::{Order, Split};

use crate::support::datasets::{copy, flip_eval_labels};
use crate::support::{Place, SHAPE, SUCCESS, generate, job, json_lines, run, summary, train, tree, weights};

const SAMPLES: u64 = 2000;
/// The model overfits within a few epochs, and evaluations get worse from then on.
const OVERFITS: [&str; 4] = [
    "train.epochs=40",
    "optimizer.dense.learning_rate=0.2",
    "optimizer.sparse.learning_rate=0.5",
    "eval.every_steps=8",
];
const PATIENCE: u64 = 4;
const STOPPING: &str = "train.early_stopping={ patience = 4 }";
const VALIDATION: &str = "train.validation='random:0.2:3'";

fn data() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 600);
    let job = job(&place);
    (place, job)
}

/// An evaluation that an observer received.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    step: u64,
    part: Part,
    metrics: Metrics,
}

/// Records evaluations, and asks for a stop after a step.
#[derive(Debug, Default)]
struct Watcher {
    evaluations: Vec<Seen>,
    steps: u64,
    announced: Option<u64>,
    stop: Stop,
    stop_after: Option<u64>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Started(start) => self.announced = start.samples,
            Event::Step(progress, _) => {
                self.steps += 1;
                if self.stop_after == Some(progress.step) {
                    self.stop.ask();
                }
            }
            Event::Evaluated { step, part, heads, .. } => {
                self.evaluations.push(Seen { step, part, metrics: heads[0].metrics.unwrap() });
            }
            _ => {}
        }
    }
}

/// Trains in the folder `name` of the place; `Err` if the training was stopped.
fn train_until(
    place: &Place,
    name: &str,
    sets: &[&str],
    stop_after: Option<u64>,
) -> (Watcher, Result<Summary, TrainError>) {
    let path = place.path(name);
    let job = Job::load(&place.path("job.toml"), sets).unwrap();
    let mut watcher = Watcher { stop_after, ..Watcher::default() };
    let stop = watcher.stop.clone();
    let start = if path.exists() { Start::Resume } else { Start::New };
    let options = TrainOptions { run_dir: Some(&path), start, stop: Some(&stop), ..TrainOptions::default() };
    let trained = rankine::prelude::train(&job, options, &mut watcher);
    (watcher, trained.map(|(summary, _)| summary))
}

#[track_caller]
fn trained(place: &Place, name: &str, sets: &[&str]) -> (Watcher, Summary) {
    let (watcher, summary) = train_until(place, name, sets, None);
    (watcher, summary.unwrap())
}

/// The evaluation that early stopping with a patience chooses, by another computation: the first one that is better
/// than all before it, and that none of the next ones exceeds.
fn best_of(evaluations: &[Seen], metric: Value) -> Seen {
    let is_record = |at: usize| {
        evaluations[..at].iter().all(|seen| metric(&seen.metrics) < metric(&evaluations[at].metrics))
    };
    let records: Vec<_> = (0..evaluations.len()).filter(|&at| is_record(at)).collect();
    let holds = |&at: &usize| {
        let next = &evaluations[at + 1..evaluations.len().min(at + 1 + PATIENCE as usize)];
        next.iter().all(|seen| metric(&seen.metrics) <= metric(&evaluations[at].metrics))
    };
    evaluations[*records.iter().find(|at| holds(at)).unwrap()]
}

/// What is compared: more is better.
type Value = fn(&Metrics) -> f64;

fn auc(metrics: &Metrics) -> f64 {
    metrics.auc.unwrap()
}

#[test]
fn the_best_model_is_kept_and_training_ends_without_a_better_one() {
    let (place, _) = data();
    let loss: Value = |metrics| -metrics.log_loss;
    for (metric, value) in [(StoppingMetric::Auc, auc as Value), (StoppingMetric::LogLoss, loss)] {
        let name = metric.name();
        let (all, last) = trained(&place, &format!("{name}-all"), &OVERFITS);
        assert_eq!((last.best, last.validation), (None, None));
        let best = best_of(&all.evaluations, value);

        let stopping = format!("train.early_stopping={{ metric = '{name}', patience = {PATIENCE} }}");
        let sets = [&OVERFITS[..], &[&stopping]].concat();
        let (seen, kept) = trained(&place, name, &sets);
        let found = kept.best.unwrap();
        assert_eq!((found.step, found.metric, found.part), (best.step, metric, Part::Eval));
        assert_eq!(found.value, value(&best.metrics).abs());
        assert_eq!(kept.train.stopped, EndReason::EarlyStopping);
        assert_eq!(kept.train.steps, best.step + 8 * PATIENCE);
        // The evaluations are those of the longer training, and then that of the best model, to the bit.
        let (again, during) = seen.evaluations.split_last().unwrap();
        assert_eq!(*during, all.evaluations[..during.len()]);
        assert_eq!(*again, best);
        let last_value = found.last_value.unwrap();
        assert_eq!(last_value, value(&during.last().unwrap().metrics).abs());
        assert!(found.value != last_value, "the model of another step would not be noticed");
        assert_eq!(kept.eval.unwrap().metrics.first, Some(best.metrics));

        // The saved model is that of a training that ends there.
        let until = format!("train.max_steps={}", best.step);
        let (_, short) = trained(&place, &format!("{name}-short"), &[&OVERFITS[..], &[&until]].concat());
        assert_eq!(weights(&place, name), weights(&place, &format!("{name}-short")));
        assert_eq!(short.eval.unwrap().metrics.first, Some(best.metrics));
        let again = evaluate(place.path(name), &EvaluateOptions::default(), &mut ()).unwrap();
        assert_eq!(again.metrics.first, Some(best.metrics));
    }
}

#[test]
fn a_training_that_ends_for_another_reason_keeps_the_best_model_too() {
    let (place, _) = data();
    let patient = "train.early_stopping={ patience = 1000 }";
    // 16 steps an epoch. The last one, which is no multiple of 8, is evaluated as well.
    for (end, steps, reason) in
        [("train.epochs=40", 640, EndReason::Epochs), ("train.max_steps=301", 301, EndReason::MaxSteps)]
    {
        let (seen, kept) = trained(&place, end, &[&OVERFITS[..], &[patient, end]].concat());
        assert_eq!((kept.train.steps, kept.train.stopped), (steps, reason));
        let (again, during) = seen.evaluations.split_last().unwrap();
        assert_eq!(during.last().unwrap().step, steps);
        let best = during.iter().max_by(|one, other| auc(&one.metrics).total_cmp(&auc(&other.metrics)));
        assert_eq!(Some(again), best);
        assert_eq!(kept.best.unwrap().step, again.step);
    }
    // If the last model is the best one, it is not evaluated again.
    let short = ["train.max_steps=8", patient];
    let (seen, kept) = trained(&place, "short", &[&OVERFITS[..], &short].concat());
    assert_eq!((seen.evaluations.len(), kept.best.unwrap().step), (1, 8));
}

/// Copies a dataset, with only the samples that a split leaves to train on.
fn without_held_out(from: &Path, split: Split, to: &Path) -> Dataset {
    copy(&Dataset::open(from).unwrap().with_validation(split).unwrap(), to, |_, _| ())
}

#[test]
fn held_out_samples_are_not_trained_on_and_all_others_are() {
    let (place, _) = data();
    for split in ["last:0.3", "random:0.2:3"] {
        let validation = format!("train.validation='{split}'");
        let name = &split[..4];
        let rest = without_held_out(&place.path("data"), split.parse().unwrap(), &place.path(name));
        let count = rest.samples(Part::Train);
        assert!((0.6..0.85).contains(&(count as f64 / SAMPLES as f64)), "{split}: {count}");
        let sets = ["train.shuffle=false", "train.epochs=3", "eval.every_steps=10"];
        let (seen, held_out) = trained(&place, &format!("{name}-run"), &[&sets[..], &[&validation]].concat());
        assert_eq!(seen.announced, Some(3 * count));
        let data = &held_out.data;
        assert_eq!((data.train_samples, data.validation_samples), (count, Some(SAMPLES - count)));
        let dir = format!("data.dir={:?}", place.word(name));
        let (_, whole) = trained(&place, &format!("{name}-whole"), &[&sets[..], &[&dir]].concat());
        assert_eq!(weights(&place, &format!("{name}-run")), weights(&place, &format!("{name}-whole")));
        let first = |eval: &EvalSummary| eval.metrics.first;
        assert_eq!(held_out.eval.as_ref().map(first), whole.eval.as_ref().map(first));
        assert_eq!(whole.data.validation_samples, None);

        // Evaluations during the training are of the validation set; only the last one is of the evaluation part.
        let (eval, validations) = seen.evaluations.split_last().unwrap();
        assert!(validations.iter().all(|seen| seen.part == Part::Validation), "{validations:?}");
        assert_eq!(validations.last().unwrap().metrics.samples, SAMPLES - count);
        assert_eq!((eval.part, eval.step, eval.metrics.samples), (Part::Eval, held_out.train.steps, 600));
        let validation = held_out.validation.unwrap();
        assert_eq!(validation.metrics.first, Some(validations.last().unwrap().metrics));
        assert_eq!(validation.auc_achievable, None);
        let options = EvaluateOptions { part: Part::Validation, ..EvaluateOptions::default() };
        let again = evaluate(place.path(&format!("{name}-run")), &options, &mut ()).unwrap();
        assert_eq!(again.metrics, validation.metrics);
    }
}

#[test]
fn with_a_validation_set_the_evaluation_part_decides_nothing() {
    let (place, _) = data();
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("flipped"), flip_eval_labels);
    let sets = [&OVERFITS[..], &[STOPPING, VALIDATION]].concat();
    let (seen, kept) = trained(&place, "run", &sets);
    let best = kept.best.unwrap();
    let during: Vec<_> = seen.evaluations[..seen.evaluations.len() - 2].to_vec();
    let expected = best_of(&during, auc);
    assert_eq!((best.step, best.value, best.part), (expected.step, auc(&expected.metrics), Part::Validation));
    // The best model is evaluated on both.
    let [again, eval] = &seen.evaluations[during.len()..] else { panic!("{:?}", seen.evaluations) };
    assert_eq!((*again, eval.step, eval.part), (expected, best.step, Part::Eval));
    assert_eq!(kept.validation.unwrap().metrics.first, Some(expected.metrics));

    let flipped = format!("data.dir={:?}", place.word("flipped"));
    let (_, other) = trained(&place, "flipped-run", &[&sets[..], &[&flipped]].concat());
    assert_eq!(weights(&place, "run"), weights(&place, "flipped-run"));
    assert_eq!(other.best, kept.best);
    assert!(other.eval.unwrap().metrics.first != kept.eval.unwrap().metrics.first, "the labels differ");
}

/// Steps of the checkpoints of a run.
fn checkpoints(place: &Place, name: &str) -> Vec<u64> {
    let found = list(&Disk, &run_paths::checkpoints(&place.path(name))).unwrap();
    found.into_iter().map(|(step, _)| step).rev().collect()
}

/// The evaluations in the log of a run: their steps, and whether the held-out samples were evaluated.
fn evaluations_logged(place: &Place, name: &str) -> Vec<serde_json::Value> {
    let mut lines = json_lines(&run_paths::metrics(&place.path(name)));
    lines.retain(|line| line["kind"] == "eval" || line["kind"] == "early_stopping");
    for line in lines.iter_mut().filter_map(serde_json::Value::as_object_mut) {
        line.retain(|key, _| key != "time" && key != "seconds");
    }
    lines
}

/// The checksums of the samples that a run was evaluated on: of the validation set, and of the evaluation part.
fn evaluated(place: &Place, name: &str) -> [Option<String>; 2] {
    let lines = evaluations_logged(place, name);
    ["validation", "eval"].map(|part| {
        let is_on = |line: &&serde_json::Value| {
            line["kind"] == "eval" && line.get("part").is_none_or(|part| part == "eval") == (part == "eval")
        };
        let found: Vec<_> = lines.iter().filter(is_on).map(|line| &line["samples_checksum"]).collect();
        assert!(found.iter().all(|one| one == &found[0] && one.is_string()), "{found:?}");
        found.first().map(|checksum| checksum.as_str().unwrap().to_owned())
    })
}

#[test]
fn evaluations_have_equal_checksums_if_and_only_if_their_samples_are_equal() {
    let (place, _) = data();
    let sets = ["train.epochs=1", VALIDATION];
    let copied = |name: &str, change: fn(Part, &mut Samples)| {
        copy(&Dataset::open(&place.path("data")).unwrap(), &place.path(name), change);
        format!("data.dir='{}'", place.word(name))
    };
    trained(&place, "first", &sets);
    let [validation, eval] = evaluated(&place, "first");
    assert!(validation.is_some() && eval.is_some() && validation != eval, "{validation:?} {eval:?}");

    // Another model, and another folder.
    let elsewhere = copied("copied", |_, _| ());
    trained(&place, "copy", &[&sets[..], &[&elsewhere, "seed=7"]].concat());
    assert_eq!(evaluated(&place, "copy"), [validation.clone(), eval.clone()]);
    // Other samples held out; none; and other labels.
    trained(&place, "split", &[&sets[..], &["train.validation='random:0.2:4'"]].concat());
    let [other, same] = evaluated(&place, "split");
    assert!(other.is_some() && other != validation && same == eval);
    trained(&place, "none", &[&sets[..], &["train.validation='none'"]].concat());
    assert_eq!(evaluated(&place, "none"), [None, eval.clone()]);
    let flipped = copied("flipped", flip_eval_labels);
    trained(&place, "flip", &[&sets[..], &[&flipped]].concat());
    let [same, other] = evaluated(&place, "flip");
    assert!(same == validation && other.is_some() && other != eval);
}

#[test]
fn a_training_that_is_stopped_anywhere_ends_with_the_same_best_model() {
    let (place, _) = data();
    for incremental in ["false", "true"] {
        let incremental = format!("checkpoint.incremental={incremental}");
        let sets = [&OVERFITS[..], &[STOPPING, VALIDATION, "checkpoint.keep=1", &incremental]].concat();
        let (_, whole) = trained(&place, &format!("whole-{incremental}"), &sets);
        let best = whole.best.unwrap();
        assert!(best.step > 8 && whole.train.steps == best.step + 8 * PATIENCE, "{best:?}");
        let name = format!("stopped-{incremental}");
        // Before the first evaluation, at one, right after the best one, and long after it.
        for step in [3, 8, best.step, best.step + 1, best.step + 17] {
            let (_, stopped) = train_until(&place, &name, &sets, Some(step));
            assert!(matches!(stopped, Err(TrainError::Interrupted { .. })), "{stopped:?}");
            let kept = checkpoints(&place, &name);
            assert_eq!(kept.last(), Some(&step));
            // `checkpoint.keep` is 1, but the best one and what that builds on are kept, too.
            assert!(step < best.step || kept.contains(&best.step), "{kept:?}");
        }
        let (seen, resumed) = train_until(&place, &name, &sets, None);
        let resumed = resumed.unwrap();
        assert_eq!(seen.steps, whole.train.steps - best.step - 17);
        assert_eq!(resumed.best, whole.best);
        assert_eq!(resumed.train.stopped, EndReason::EarlyStopping);
        assert_eq!(weights(&place, &name), weights(&place, &format!("whole-{incremental}")));
        // A finished run is complete, and one that lost its model or its summary ends in the same way again.
        assert_eq!(
            evaluations_logged(&place, &name),
            evaluations_logged(&place, &format!("whole-{incremental}"))
        );
        let before = tree(&place.path(&name).join("model"));
        let (seen, again) = train_until(&place, &name, &sets, None);
        assert_eq!((seen.steps, again.unwrap()), (0, resumed));
        std::fs::remove_file(run_paths::summary(&place.path(&name))).unwrap();
        let (seen, again) = train_until(&place, &name, &sets, None);
        assert_eq!((seen.steps, again.unwrap().best), (8 * PATIENCE - 17, whole.best));
        assert_eq!(tree(&place.path(&name).join("model")), before);
        // The evaluations at the end were logged already, and replace those.
        assert_eq!(
            evaluations_logged(&place, &name),
            evaluations_logged(&place, &format!("whole-{incremental}"))
        );
    }
}

const REFIT: &str = "train.early_stopping={ patience = 4, refit = true }";

#[test]
fn a_refitted_model_is_trained_on_all_samples_for_as_many_steps_in_proportion() {
    let (place, _) = data();
    let ranks = ["device.kind=cpu", "device.ranks=4", "device.threads=4"];
    for (name, more) in [("alone", &[][..]), ("ranks", &ranks)] {
        let of = |what: &str| format!("{name}-{what}");
        let fixed = [&OVERFITS[..], more].concat();
        let sets = |more: &[&'static str]| [&fixed[..], more].concat();
        let (_, searched) = trained(&place, &of("searched"), &sets(&[STOPPING, VALIDATION]));
        let (seen, refitted) = trained(&place, &of("refit"), &sets(&[REFIT, VALIDATION]));
        let found = refitted.search.unwrap();
        let metrics = |summary: &Summary| summary.validation.as_ref().unwrap().metrics.clone();
        assert_eq!((found.best, metrics(&found)), (searched.best, metrics(&searched)));
        assert_eq!(weights(&place, &of("refit/search")), weights(&place, &of("searched")));
        assert!(run_paths::summary(&run_paths::search(&place.path(&of("refit")))).exists());

        let (best, held_in) = (found.best.unwrap().step, found.data.train_samples);
        assert!(held_in < SAMPLES);
        let steps = (best as f64 * SAMPLES as f64 / held_in as f64).round() as u64;
        assert!(steps > best);
        let train = &refitted.train;
        assert_eq!((train.steps, train.stopped), (steps, EndReason::MaxSteps));
        assert_eq!((refitted.data.train_samples, refitted.best), (SAMPLES, None));
        assert_eq!(seen.steps, found.train.steps + steps);
        let until = format!("train.max_steps={steps}");
        let (_, whole) = trained(&place, &of("whole"), &[&fixed[..], &[&until]].concat());
        assert_eq!(weights(&place, &of("refit")), weights(&place, &of("whole")));
        assert_eq!(refitted.eval.unwrap().metrics.first, whole.eval.unwrap().metrics.first);
    }
}

#[test]
fn a_refitted_training_resumes_in_both_of_its_trainings() {
    let (place, job) = data();
    let sets = [&OVERFITS[..], &[REFIT, VALIDATION]].concat();
    let (_, whole) = trained(&place, "whole", &sets);
    let found = whole.search.as_ref().unwrap().train.steps;
    // A watcher stops at a step of either training: the first time in the search, then behind its last step.
    let (_, stopped) = train_until(&place, "run", &sets, Some(5));
    let Err(TrainError::Interrupted { run: path, step, .. }) = stopped else { panic!("{stopped:?}") };
    assert_eq!((path, step), (place.path("run"), 5));
    assert!(!run_paths::metrics(&place.path("run")).exists());
    let (seen, stopped) = train_until(&place, "run", &sets, Some(3));
    assert!(matches!(stopped, Err(TrainError::Interrupted { step: 3, .. })), "{stopped:?}");
    assert_eq!(seen.steps, found - 5 + 3);
    let (seen, resumed) = train_until(&place, "run", &sets, None);
    assert_eq!(seen.steps, whole.train.steps - 3);
    let resumed = resumed.unwrap();
    assert_eq!(resumed.search.as_ref().unwrap().best, whole.search.as_ref().unwrap().best);
    assert_eq!(weights(&place, "run"), weights(&place, "whole"));
    // A finished run is complete.
    let (seen, again) = train_until(&place, "run", &sets, None);
    assert_eq!((seen.steps, again.unwrap()), (0, resumed));
    let text = run(["train", &job, "--run-dir", &place.word("run"), "--resume"]
        .into_iter()
        .chain(sets.iter().flat_map(|set| ["--set", *set])));
    text.with(SUCCESS).stdout_says(&format!(
        "trained again       for {} steps on {SAMPLES} samples instead of",
        whole.train.steps
    ));
    // A run without a search is another one.
    trained(&place, "single", &[&OVERFITS[..], &[STOPPING, VALIDATION]].concat());
    let refused = train_until(&place, "single", &sets, None).1.unwrap_err().to_string();
    assert!(refused.contains("was trained without train.early_stopping.refit"), "{refused}");
}

#[test]
fn ranks_keep_the_best_model() {
    let (place, _) = data();
    let ranks = ["device.kind=cpu", "device.ranks=4", "device.threads=4"];
    let sets = [&OVERFITS[..], &[STOPPING, VALIDATION], &ranks].concat();
    let (seen, kept) = trained(&place, "ranks", &sets);
    let best = kept.best.unwrap();
    let during = &seen.evaluations[..seen.evaluations.len() - 2];
    assert_eq!((best.step, best.value), (best_of(during, auc).step, auc(&best_of(during, auc).metrics)));
    assert_eq!(seen.evaluations[during.len()], best_of(during, auc));
    let until = format!("train.max_steps={}", best.step);
    trained(&place, "short", &[&OVERFITS[..], &[VALIDATION, &until], &ranks].concat());
    assert_eq!(weights(&place, "ranks"), weights(&place, "short"));
}

/// The best model cannot be kept without its checkpoint: the last one is saved instead, and no other is reported.
#[test]
fn without_its_checkpoint_the_best_model_is_not_kept() {
    let (place, _) = data();
    let sets = [&OVERFITS[..], &[STOPPING]].concat();
    let (_, kept) = trained(&place, "kept", &sets);
    let best = kept.best.unwrap().step;
    let folder = run_paths::checkpoints(&place.path("lost")).join(checkpoint::step_name(best));
    let job = Job::load(&place.path("job.toml"), &sets).unwrap();
    let options = TrainOptions { run_dir: Some(&place.path("lost")), ..TrainOptions::default() };
    let mut lose = Loser { step: best, folder };
    let (lost, _) = rankine::prelude::train(&job, options, &mut lose).unwrap();
    assert_eq!((lost.best, lost.train.steps), (None, kept.train.steps));
    let until = format!("train.max_steps={}", kept.train.steps);
    let (_, last) = trained(&place, "last", &[&OVERFITS[..], &[&until]].concat());
    assert_eq!(weights(&place, "lost"), weights(&place, "last"));
    assert_eq!(lost.eval.unwrap().metrics, last.eval.unwrap().metrics);
}

/// Removes the checkpoint of a step.
struct Loser {
    step: u64,
    folder: PathBuf,
}

impl Observer for Loser {
    fn observe(&mut self, event: Event<'_>) {
        if matches!(event, Event::Checkpointed { step, .. } if step == self.step) {
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

#[test]
fn the_log_and_the_command_say_which_samples_were_evaluated() {
    let (place, job) = data();
    let sets = [&OVERFITS[..], &[STOPPING, VALIDATION, "metrics.tensorboard=true"]].concat();
    train(&place, &job, "run", &sets).with(SUCCESS);
    let summary = summary(&place, "run");
    let lines = json_lines(&run_paths::metrics(&place.path("run")));
    let evaluations: Vec<_> = lines.iter().filter(|line| line["kind"] == "eval").collect();
    let (last, others) = evaluations.split_last().unwrap();
    assert!(others.iter().all(|line| line["part"] == "validation"));
    assert_eq!((&last["step"], last.get("part")), (&summary["best"]["step"], None));
    assert_eq!(last["auc"], summary["eval"]["auc"]);
    assert_eq!(summary["best"]["metric"], "auc");
    assert_eq!(summary["best"]["part"], "validation");
    assert_eq!(summary["best"]["value"], summary["validation"]["auc"]);
    let eval = run(["eval", "--run", &place.word("run"), "--part", "validation", "--json"]).with(SUCCESS);
    assert_eq!(eval.json()["auc"], summary["validation"]["auc"]);
    let (run_dir, data, out) = (place.word("run"), place.word("data"), place.word("out.csv"));
    run(["predict", "--run", &run_dir, "--data", &data, "--part", "validation", "--out", &out]).with(SUCCESS);
    let rows = std::fs::read_to_string(out).unwrap().lines().count() as u64 - 1;
    assert_eq!(Some(rows), summary["data"]["validation_samples"].as_u64());
    let text = run(["train", &job, "--run-dir", &place.word("run"), "--resume"]
        .into_iter()
        .chain(sets.iter().flat_map(|set| ["--set", *set])));
    let step = &summary["best"]["step"];
    text.with(SUCCESS).stdout_says(&format!("best model          of step {step}: auc "));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (place, _) = data();
    let refused =
        |name: &str, sets: &[&str]| train_until(&place, name, sets, None).1.unwrap_err().to_string();
    let few = refused("few", &["train.validation='last:0.0001'"]);
    assert!(few.starts_with("train.validation: ") && few.contains("holds out no sample"), "{few}");
    let most = refused("most", &["train.validation='last:0.9999'"]);
    assert!(most.contains("leaves no sample to train on"), "{most}");
    // A checkpoint's position is that of other samples.
    let stopped = train_until(&place, "run", &[&OVERFITS[..], &[VALIDATION]].concat(), Some(5)).1;
    assert!(matches!(stopped, Err(TrainError::Interrupted { .. })));
    let other = refused("run", &[&OVERFITS[..], &["train.validation='random:0.2:4'"]].concat());
    assert!(other.contains("train.validation is \"random:0.2:4\" but was \"random:0.2:3\""), "{other}");
    // Whoever asks for more patience after the end asks for another result.
    let sets = [&OVERFITS[..], &[VALIDATION, STOPPING]].concat();
    trained(&place, "stopped", &sets);
    let patient = [&OVERFITS[..], &[VALIDATION, "train.early_stopping={ patience = 5 }"]].concat();
    let other = refused("stopped", &patient);
    assert!(other.contains("train.early_stopping.patience is 5 but was 4"), "{other}");

    let bare = Place::new();
    generate(&bare, SHAPE, 500, 0);
    job(&bare);
    let sets = ["train.early_stopping={ patience = 1 }", "eval.every_steps=1"];
    let error = train_until(&bare, "run", &sets, None).1.unwrap_err().to_string();
    assert!(error.contains("the dataset has no evaluation part: set train.validation"), "{error}");
    let (seen, kept) = trained(&bare, "run", &[&sets[..], &[VALIDATION]].concat());
    assert!(kept.eval.is_none() && kept.validation.is_some());
    assert!(seen.evaluations.iter().all(|seen| seen.part == Part::Validation));
}

/// The held-out samples stay the same in any order of samples, so that shuffled trainings hold out the same ones.
#[test]
fn shuffled_trainings_hold_out_the_same_samples() {
    let (place, _) = data();
    let split = "random:0.2:3".parse().unwrap();
    let cut = Dataset::open(&place.path("data")).unwrap().with_validation(split).unwrap();
    let sum = |order| {
        let options = StreamOptions { order, ..StreamOptions::one_epoch(64) };
        let batches = BatchStream::open(cut.part(Part::Validation).unwrap(), &options).unwrap();
        let mut rows: Vec<_> = batches
            .flat_map(|batch| batch.unwrap().samples.dense.chunks(4).map(<[f32]>::to_vec).collect::<Vec<_>>())
            .collect();
        rows.sort_by(|one, other| one.partial_cmp(other).unwrap());
        rows
    };
    assert_eq!(sum(Order::File), sum(Order::Shuffled { seed: 5, window_blocks: 2 }));
}
