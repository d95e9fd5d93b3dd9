//! Starter jobs: what their trials compare, which samples they use, and that the jobs can be trained.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::process::Stdio;

use rankine::prelude::*;

use crate::support::datasets::{copy, flip_eval_labels};
use crate::support::process::{Running, wait_until};
use crate::support::{Ended, Place, SHAPE, SUCCESS, USAGE, generate, rankine, run, summary, train};

/// Writes a job for the dataset `data` of a place. Returns its text.
fn init(place: &Place, data: &str, out: &str, more: &[&str]) -> (Ended, String) {
    let (data, path) = (place.word(data), place.word(out));
    let ended = run([&["init", "--data", &data, "--out", &path][..], more].concat()).with(SUCCESS);
    let text = std::fs::read_to_string(path).unwrap();
    (ended, text)
}

/// The line of a job that begins with these words, and the one before it.
fn line_of<'a>(text: &'a str, words: &str) -> (&'a str, &'a str) {
    let lines: Vec<_> = text.lines().collect();
    let at =
        lines.iter().position(|line| line.starts_with(words)).unwrap_or_else(|| panic!("{words}: {text}"));
    (lines[at - 1], lines[at])
}

#[test]
fn trials_explain_the_choices_of_a_job_that_trains() {
    let place = Place::new();
    generate(&place, SHAPE, 1500, 600);
    let (ended, text) = init(&place, "data", "job.toml", &["--json", "--budget", "15s"]);
    let said = ended.json();
    let auc = said["auc"].as_f64().unwrap();
    assert!(auc > 0.55 && said["trials"].as_u64().unwrap() >= 5, "{said}");
    for kind in ["wide-deep", "dlrm", "dcnv2", "deepfm", "wide-deep without buckets"] {
        assert!(
            text.lines().any(|line| line.starts_with("# AUC: ") && line.contains(&format!("{kind} 0."))),
            "{text}"
        );
    }
    ended.says(&["buckets per number: AUC 0.", " on validation"]);
    // The chosen kind is the one with the highest AUC of those that the note lists, unless the gain is small.
    let (note, line) = line_of(&text, "kind = ");
    let measured = note.trim_start_matches("# AUC: ").split(", ").map(|part| part.rsplit_once(' ').unwrap());
    let measured: Vec<(&str, f64)> = measured.map(|(kind, auc)| (kind, auc.parse().unwrap())).collect();
    let highest = measured.iter().map(|(_, auc)| *auc).fold(0.0, f64::max);
    let chosen = measured.iter().filter(|(kind, _)| line.contains(kind.split(' ').next().unwrap()));
    let chosen = chosen.map(|(_, auc)| *auc).fold(0.0, f64::max);
    assert!(highest - chosen <= 0.004, "{note}\n{line}");

    // It stops early, and trains again on all samples.
    train(&place, &place.word("job.toml"), "run", &["device.kind=cpu"]).with(SUCCESS);
    let summary = summary(&place, "run");
    assert_eq!(summary["data"]["train_samples"], 1500);
    assert_eq!(summary["search"]["data"]["train_samples"], 1380, "{summary}");
    let eval = summary["eval"]["auc"].as_f64().unwrap();
    assert!(eval > 0.55, "{eval}");
    let again = run(["init", "--data", &place.word("data"), "--out", &place.word("job.toml")]);
    again.with(USAGE).says(&["already exists and is not overwritten"]);
}

#[test]
fn a_stop_and_the_budget_end_the_trials() {
    let place = Place::new();
    generate(&place, SHAPE, 4000, 600);
    let (data, path) = (place.word("data"), place.word("job.toml"));
    let mut command = rankine();
    command.args(["init", "--data", &data, "--out", &path, "--budget", "1h"]);
    let log = place.path("log");
    let mut running =
        Running::start(command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()));
    let ended = || std::fs::read_to_string(&log).unwrap().matches(" on validation").count();
    wait_until("two trials have ended", || ended() >= 2);
    running.signal(libc::SIGINT);
    assert_eq!(running.end(), SUCCESS);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("stopped by SIGINT: the job is the best of "), "{said}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("\n# AUC: "));
    // A trial that has not ended is not compared. This one cannot end in time.
    let (ended, text) = init(&place, "data", "short.toml", &["--json", "--budget", "1ms"]);
    assert_eq!((ended.json()["auc"].as_f64(), ended.json()["trials"].as_u64()), (None, Some(0)));
    assert!(!text.contains("# AUC: ") && text.contains("\nkind = \"wide-deep\""), "{text}");
}

#[test]
fn without_trials_sizes_follow_from_the_columns_and_the_samples() {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 600);
    let (_, quick) = init(&place, "data", "quick.toml", &["--quick"]);
    assert!(quick.contains("kind = \"wide-deep\"") && !quick.contains("AUC:"), "{quick}");
    // A kind that is asked for stays.
    let (_, dcnv2) = init(&place, "data", "dcnv2.toml", &["--model", "dcnv2", "--budget", "2s"]);
    assert!(line_of(&dcnv2, "kind = ").1.contains("dcnv2"), "{dcnv2}");
    let few = Place::new();
    generate(&few, SHAPE, 500, 100);
    let (_, text) = init(&few, "data", "few.toml", &[]);
    assert!(text.contains("There were no trials: too few samples for short ones."), "{text}");
}

/// With enough time, nothing depends on the time. Neither the job nor what it trains depends on the labels of the
/// evaluation part: only the results of evaluating it do.
#[test]
fn nothing_is_chosen_on_the_evaluation_part() {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 400);
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("other"), flip_eval_labels);
    let [one, other] = ["data", "other"].map(|data| {
        let (_, text) = init(&place, data, &format!("{data}.toml"), &["--budget", "1h"]);
        let run = format!("run-{data}");
        train(&place, &place.word(&format!("{data}.toml")), &run, &["device.kind=cpu"]).with(SUCCESS);
        let model = std::fs::read(place.path(&format!("{run}/model/model.safetensors"))).unwrap();
        let summary = summary(&place, &run);
        let text = text.replace(&place.word(data), "DIR").replace(&format!("name = \"{data}\""), "name");
        (text, summary["train"]["steps"].clone(), model, summary["eval"]["auc"].clone())
    });
    assert_eq!((one.0, one.1), (other.0, other.1));
    assert!(one.2 == other.2 && one.3 != other.3, "{} {}", one.3, other.3);
}
