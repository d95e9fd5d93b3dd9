//! Further datasets that a training evaluates its model on: `[[eval.set]]`.

use std::fs;

use serde_json::Value;

use crate::support::{
    Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, json_lines, run, summary, train, weights,
};

/// A place with a job, the data that it trains on, and three further datasets of the same columns.
fn place() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 1500, 300);
    let shape = place.file("shape.toml", SHAPE);
    for (name, samples, eval, seed) in
        [("other", "400", "700", "8"), ("whole", "900", "0", "9"), ("small", "10", "64", "10")]
    {
        let out = place.word(name);
        let sizes = ["--samples", samples, "--eval-samples", eval, "--seed", seed];
        run([&["generate", "--shape", &shape, "--out", &out][..], &sizes].concat()).with(SUCCESS);
    }
    let job = job(&place);
    (place, job)
}

fn with_sets(place: &Place, job: &str, sets: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(job).expect("the job is readable");
    for (name, data) in sets {
        text += &format!("[[eval.set]]\nname = {name:?}\ndata = {:?}\n", place.word(data));
    }
    place.file("with-sets.toml", text)
}

/// What `rankine eval` finds.
fn evaluated(place: &Place, data: &str, part: &str) -> Value {
    let args = ["eval", "--run", &place.word("run"), "--data", &place.word(data), "--part", part, "--json"];
    run(args).with(SUCCESS).json()
}

#[test]
fn a_training_evaluates_its_model_on_each_set() {
    let (place, job) = place();
    train(&place, &job, "without", &[]).with(SUCCESS);
    let sets = [("next day", "other"), ("all of it", "whole"), ("small", "small")];
    let job = with_sets(&place, &job, &sets);
    for (number, ranks) in [&[][..], &["device.kind=cpu", "device.ranks=4"]].into_iter().enumerate() {
        let name = format!("run-{number}");
        train(&place, &job, &name, &[&["eval.every_steps=5"], ranks].concat()).with(SUCCESS);
        if number == 0 {
            assert!(weights(&place, &name) == weights(&place, "without"));
            let [with, without] = [&name, "without"].map(|run| summary(&place, run)["eval"].clone());
            assert_eq!((&with["auc"], &with["samples"]), (&without["auc"], &without["samples"]));
            assert!(without.get("sets").is_none());
        }
        let _ = fs::remove_dir_all(place.path("run"));
        fs::rename(place.path(&name), place.path("run")).expect("a folder can be renamed");
        let eval = &summary(&place, "run")["eval"];
        assert_eq!(eval["sets"].as_object().map(serde_json::Map::len), Some(3));
        // The part that is scored is the training part where there is no other.
        for ((set, data), (part, samples)) in sets.iter().zip([("eval", 700), ("train", 900), ("eval", 64)]) {
            let (set, alone) = (&eval["sets"][*set], evaluated(&place, data, part));
            assert_eq!(set["samples"], samples);
            for metric in ["samples", "auc", "log_loss", "calibration", "auc_achievable"] {
                let near = |value: &Value| value.as_f64().map(|value| (value * 1e6).round());
                assert_eq!(near(&set[metric]), near(&alone[metric]), "{data}: {metric}");
            }
        }
        let lines = json_lines(&place.path("run/metrics.jsonl"));
        let of_sets = lines.iter().filter(|line| line["kind"] == "eval" && !line["set"].is_null());
        let names: Vec<_> = of_sets.map(|line| line["set"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["next day", "all of it", "small"]);
        // The scores that plots show are those of the evaluation part.
        let scores = json_file(&place.path("run/scores.json"));
        let sums: f64 = ["negatives", "positives"]
            .iter()
            .flat_map(|kind| scores["heads"][0][kind].as_array().into_iter().flatten())
            .filter_map(Value::as_f64)
            .sum();
        assert_eq!(sums, 300.0);
    }
}

#[test]
fn sets_are_printed_and_need_no_evaluation_part() {
    let (place, job) = place();
    let job = with_sets(&place, &job, &[("b", "whole"), ("a", "small")]);
    let shown = train(&place, &job, "run", &[&format!("data.dir={}", place.word("whole"))]).with(SUCCESS);
    let begins: Vec<_> = shown.stdout.lines().filter(|line| line.starts_with("eval set")).collect();
    assert_eq!(begins, ["eval set            a", "eval set            b"]);
    assert_eq!(shown.stdout.lines().filter(|line| line.starts_with("AUC")).count(), 2);
    let eval = &summary(&place, "run")["eval"];
    assert!(eval.get("auc").is_none() && eval["sets"]["a"]["auc"].is_f64(), "{eval}");
}

#[test]
fn sets_that_do_not_fit_are_refused_before_the_training() {
    let (place, job) = place();
    let refused = |sets: &[(&str, &str)], words: &[&str]| {
        let job = with_sets(&place, &job, sets);
        train(&place, &job, "none", &[]).with(USAGE).says(words);
        run(["check", &job, "--here"]).with(USAGE).says(words);
        assert!(!place.path("none").exists());
    };
    refused(&[("a", "other"), ("a", "whole")], &["an earlier [[eval.set]] is named \"a\", too"]);
    refused(&[(" ", "other")], &["the name is empty"]);
    refused(&[("a", "none")], &["no dataset", "data = "]);
    let shape = place.file(
        "larger.toml",
        SHAPE.replace("rows = [", "rows = [7, ").replace("hotness = [", "hotness = [1, "),
    );
    let out = place.word("larger");
    run(["generate", "--shape", &shape, "--out", &out, "--samples", "50", "--eval-samples", "0"])
        .with(SUCCESS);
    refused(
        &[("a", "other"), ("b", "larger")],
        &["larger does not fit the one that is trained on: it has `C7`, which", "--like DATASET"],
    );
}
