//! Evaluations whose metrics are computed beside the following steps (`eval.beside_training`).

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine_engine::run_paths;
use rankine_engine::source::open_checkpoint;
use rankine_engine::training::{EndReason, Event, Progress, Start, Stop, Summary, TrainError, TrainOptions};
use serde_json::Value;

use super::training::Runs;
use crate::support::{json_lines, weights};

/// Settings with which the AUC rises from evaluation to evaluation.
const LEARNS: [&str; 3] = [
    "train.epochs=20",
    "optimizer.dense={ kind = 'adagrad', learning_rate = 0.03 }",
    "optimizer.sparse={ kind = 'adagrad', learning_rate = 0.1 }",
];
/// Metrics are taken this many steps after an evaluation: an eighth of 24 steps.
const TAKEN_AFTER: u64 = 3;

fn with<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    [&LEARNS[..], &["eval.every_steps=24"], sets].concat()
}

/// The evaluations in the log, without the times that they took and were written at.
pub(super) fn logged(runs: &Runs, name: &str) -> Vec<Value> {
    let mut lines = json_lines(&run_paths::metrics(&runs.path(name)));
    lines.retain(|line| line["kind"] == "eval");
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        line.remove("seconds").unwrap();
        line.remove("time").unwrap();
    }
    lines
}

/// Trains with events that say after which step each evaluation was reported.
fn reported(runs: &Runs, name: &str, sets: &[&str], options: TrainOptions<'_>) -> (Vec<(u64, u64)>, Summary) {
    let (mut now, mut found) = (0, Vec::new());
    let (_, trained) = runs.try_train(name, sets, options, |event| match event {
        Event::Step(Progress { step, .. }, _) => now = *step,
        Event::Evaluated { step, .. } => found.push((*step, now)),
        _ => {}
    });
    (found, trained.unwrap())
}

#[test]
fn metrics_beside_training_have_the_same_bits_and_belong_to_their_step() {
    let runs = Runs::new();
    let several = ["device.ranks=2", "embedding.placement=row-wise"];
    for (name, ranks, more) in [
        ("one", &[][..], "device.threads=1"),
        ("three", &[], "device.threads=3"),
        ("ranks", &several, "device.threads=2"),
        ("validation", &[], "train.validation=\"last:0.2\""),
    ] {
        let common = with(&[ranks, &["train.max_steps=60", more]].concat());
        let (beside, waiting) = (format!("{name}-beside"), format!("{name}-waiting"));
        let (found, summary) = reported(&runs, &beside, &common, TrainOptions::default());
        let sets = [&common[..], &["eval.beside_training=false"]].concat();
        let (expected, same) = reported(&runs, &waiting, &sets, TrainOptions::default());
        // The last evaluations, of the saved model, come after all steps.
        let during =
            |found: &[(u64, u64)]| found.iter().copied().filter(|(_, now)| *now < 60).collect::<Vec<_>>();
        assert_eq!(during(&found), [(24, 24 + TAKEN_AFTER), (48, 48 + TAKEN_AFTER)], "{name}");
        assert_eq!(during(&expected), [(24, 24), (48, 48)], "{name}");
        assert_eq!(logged(&runs, &beside), logged(&runs, &waiting), "{name}");
        assert!(weights(&runs.place, &beside) == weights(&runs.place, &waiting), "{name}");
        let metrics = |summary: &Summary| summary.eval.as_ref().map(|eval| eval.metrics.clone());
        assert_eq!(metrics(&summary), metrics(&same), "{name}");
    }
}

/// The last step has an evaluation: the model that is saved is not evaluated again.
#[test]
fn the_metrics_of_the_last_step_are_those_of_the_saved_model() {
    let runs = Runs::new();
    let (found, summary) = reported(&runs, "run", &with(&["train.max_steps=48"]), TrainOptions::default());
    assert_eq!(found, [(24, 27), (48, 48)]);
    let last = summary.eval.unwrap().metrics.first.unwrap();
    assert_eq!(logged(&runs, "run")[1]["auc"].as_f64(), last.auc);
    assert!(run_paths::scores(&runs.path("run")).exists());
}

/// Every step has an evaluation, so that each is known at the next one.
#[test]
fn metrics_are_known_before_the_next_evaluation() {
    let runs = Runs::new();
    let (found, _) =
        reported(&runs, "run", &["train.max_steps=4", "eval.every_steps=1"], TrainOptions::default());
    assert_eq!(found, [(1, 2), (2, 3), (3, 4), (4, 4)]);
}

/// The target, and the step of the evaluation that reaches it first.
fn target(runs: &Runs) -> (String, u64) {
    let (seen, _) = runs.train("untargeted", &with(&["train.max_steps=130"]));
    let evaluations = &seen.evaluations[..5];
    let is_first = |at: &usize| {
        let (step, auc) = evaluations[*at];
        step >= 48 && auc > 0.5 && evaluations[..*at].iter().all(|(_, before)| *before < auc)
    };
    let (step, auc) = evaluations[(0..5).find(is_first).unwrap()];
    (format!("eval.target_auc={auc:?}"), step)
}

#[test]
fn a_target_ends_training_soon_after_its_evaluation_and_the_final_weights_are_the_result() {
    let runs = Runs::new();
    let (target, reached) = target(&runs);
    let ends = reached + TAKEN_AFTER;
    let (found, summary) = reported(&runs, "run", &with(&[&target]), TrainOptions::default());
    assert_eq!((summary.train.stopped, summary.train.steps), (EndReason::TargetAuc, ends));
    let tail = &found[found.len() - 2..];
    assert_eq!(tail, [(reached, ends), (ends, ends)], "the final weights are evaluated");

    // A run that ends there anyway has the same weights.
    let most = format!("train.max_steps={ends}");
    let (_, other) = runs.train("other", &with(&[&most]));
    assert!(weights(&runs.place, "run") == weights(&runs.place, "other"));
    let auc = |summary: &Summary| summary.eval.as_ref().unwrap().metrics.first.unwrap().auc;
    assert_eq!(auc(&summary), auc(&other));

    // If the steps end before, the target is the reason, too.
    for most in [reached, reached + 1] {
        let (name, most) = (format!("most-{most}"), format!("train.max_steps={most}"));
        let (_, summary) = runs.train(&name, &with(&[&target, &most]));
        assert_eq!(summary.train.stopped, EndReason::TargetAuc, "{most}");
    }
}

/// Interrupted anywhere between the evaluation that reaches the target and the end, a run ends with the same bits.
#[test]
fn a_resumed_run_ends_where_the_uninterrupted_one_does() {
    let runs = Runs::new();
    let (target, reached) = target(&runs);
    let sets = with(&[&target]);
    let (_, whole) = runs.train("whole", &sets);
    for stop_at in reached - 1..=whole.train.steps - 1 {
        let (name, stop) = (format!("stop-{stop_at}"), Stop::default());
        let options = TrainOptions { stop: Some(&stop), ..TrainOptions::default() };
        let (_, ended) = runs.try_train(&name, &sets, options, |event| {
            if matches!(event, Event::Step(Progress { step, .. }, _) if *step == stop_at) {
                stop.ask();
            }
        });
        let Err(TrainError::Interrupted { step, .. }) = ended else { panic!("{ended:?}") };
        assert_eq!(step, stop_at);
        // The evaluation under way is not lost.
        let evaluated = logged(&runs, &name).iter().any(|line| line["step"] == reached);
        assert_eq!(evaluated, stop_at >= reached);
        let checkpoint = run_paths::checkpoints(&runs.path(&name)).join(format!("step-{stop_at}"));
        let found = open_checkpoint(&checkpoint).unwrap().manifest().train.reached;
        let ends_at = found.map(|found| found.ends_at);
        assert_eq!(ends_at, (stop_at >= reached).then_some(reached + TAKEN_AFTER));

        let options = TrainOptions { start: Start::Resume, ..TrainOptions::default() };
        let (_, summary) = runs.try_train(&name, &sets, options, |_| ());
        let train = summary.unwrap().train;
        assert_eq!((train.stopped, train.steps), (EndReason::TargetAuc, whole.train.steps), "{stop_at}");
        assert!(weights(&runs.place, &name) == weights(&runs.place, "whole"), "{stop_at}");
        assert_eq!(logged(&runs, &name), logged(&runs, "whole"), "{stop_at}");
    }
}

/// A run that is resumed with a higher target, or without one, does not end because of the old one.
#[test]
fn a_target_that_is_raised_while_training_goes_on_is_not_reached() {
    let runs = Runs::new();
    let (target, reached) = target(&runs);
    for (name, other) in [("none", None), ("higher", Some("eval.target_auc=0.9999"))] {
        let stop = Stop::default();
        let options = TrainOptions { stop: Some(&stop), ..TrainOptions::default() };
        let (_, ended) = runs.try_train(name, &with(&[&target]), options, |event| {
            if matches!(event, Event::Step(Progress { step, .. }, _) if *step == reached + 1) {
                stop.ask();
            }
        });
        assert!(matches!(ended, Err(TrainError::Interrupted { .. })), "{ended:?}");
        let most = format!("train.max_steps={}", reached + 10);
        let sets: Vec<_> = with(&[&most]).into_iter().chain(other).collect();
        let (_, summary) = runs.resume(name, &sets);
        assert_eq!(
            (summary.train.stopped, summary.train.steps),
            (EndReason::MaxSteps, reached + 10),
            "{name}"
        );
    }
}

/// Between the evaluation that reaches the target and the end, the AUC may fall. Nothing is left to do all the same.
#[test]
fn a_run_whose_final_weights_miss_the_target_is_finished() {
    let runs = Runs::new();
    let sets = [&LEARNS[..], &["train.max_steps=120", "eval.every_steps=1"]].concat();
    let aucs = runs.train("each", &sets).0.evaluations;
    let auc = |step: u64| aucs[step as usize - 1].1;
    // With 8 steps between evaluations, training ends a step after the one that reaches the target.
    let falls = |&step: &u64| {
        let is_first = (8..step).step_by(8).all(|before| auc(before) < auc(step));
        is_first && auc(step) > 0.5 && auc(step + 1) < auc(step)
    };
    let step = (8..120).step_by(8).find(falls).unwrap();
    let target = format!("eval.target_auc={:?}", auc(step));
    let sets = [&LEARNS[..], &["eval.every_steps=8", &target]].concat();
    let (_, summary) = runs.train("run", &sets);
    assert_eq!((summary.train.stopped, summary.train.steps), (EndReason::TargetAuc, step + 1));
    let found = summary.eval.as_ref().unwrap().metrics.first.unwrap().auc;
    assert_eq!(found, Some(auc(step + 1)), "below the target");
    let (seen, again) = runs.resume("run", &sets);
    assert!(seen.steps.is_empty() && again == summary);
    // A higher target is more to do.
    let higher = format!("eval.target_auc={:?}", auc(step).next_up());
    let sets = [&LEARNS[..], &["eval.every_steps=8", &higher, "train.max_steps=120"]].concat();
    let continued = runs.try_train(
        "run",
        &sets,
        TrainOptions { start: Start::Resume, ..TrainOptions::default() },
        |_| (),
    );
    assert!(!matches!(&continued.1, Ok(found) if *found == summary));
}

#[test]
fn early_stopping_waits_for_each_evaluation() {
    let runs = Runs::new();
    let sets = with(&["train.early_stopping={ metric = 'auc', patience = 1 }", "train.max_steps=72"]);
    let (found, _) = reported(&runs, "run", &sets, TrainOptions::default());
    assert!(found.starts_with(&[(24, 24), (48, 48)]), "{found:?}");
}

/// Whether metrics are computed beside training changes nothing that a finished run has without a target.
#[test]
fn a_finished_run_may_differ_in_the_switch_unless_there_is_a_target() {
    let runs = Runs::new();
    let sets = with(&["train.max_steps=30"]);
    runs.train("run", &sets);
    let other = [&sets[..], &["eval.beside_training=false"]].concat();
    let (seen, _) = runs.resume("run", &other);
    assert!(seen.steps.is_empty());
    let text = fs::read_to_string(run_paths::job(&runs.path("run"))).unwrap();
    assert!(text.contains("beside_training = true"), "{text}");
}
