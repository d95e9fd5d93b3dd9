//! Starter jobs: what their trials compare, which samples they use, and that the jobs can be trained.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use rankine::prelude::*;

use crate::support::datasets::{copy, flip_eval_labels};
use crate::support::{Ended, Place, SHAPE, SUCCESS, USAGE, generate, run, summary, train};

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
    generate(&place, SHAPE, 3000, 600);
    let (ended, text) = init(&place, "data", "job.toml", &["--json"]);
    let auc = ended.json()["auc"].as_f64().unwrap();
    assert!(auc > 0.55, "{auc}");
    for (words, values) in [
        ("kind = ", &["dlrm", "wide-deep", "dcnv2", "deepfm"][..]),
        ("embedding_dim = ", &["8", "16"]),
        ("learning_rate = ", &["0.02", "0.008", "0.05"]),
        ("epochs = ", &["after", "of 6 epochs"]),
    ] {
        let (note, line) = line_of(&text, words);
        let is_said = values.iter().filter(|value| note.contains(*value)).count();
        assert!(note.starts_with("# ") && is_said >= values.len() - 1, "{note}\n{line}\n{text}");
    }
    // The chosen kind is the one with the highest AUC of those that the note lists, unless the gain is small.
    let (note, line) = line_of(&text, "kind = ");
    let measured = note.trim_start_matches("# AUC: ").split(", ").map(|part| part.split_once(' ').unwrap());
    let measured: Vec<(&str, f64)> = measured.map(|(kind, auc)| (kind, auc.parse().unwrap())).collect();
    let highest = measured.iter().map(|(_, auc)| *auc).fold(0.0, f64::max);
    let chosen = measured.iter().find(|(kind, _)| line.contains(&format!("\"{kind}\""))).unwrap().1;
    assert!(highest - chosen <= 0.001, "{note}\n{line}");

    train(&place, &place.word("job.toml"), "run", &["device.kind=cpu"]).with(SUCCESS);
    let eval = summary(&place, "run")["eval"]["auc"].as_f64().unwrap();
    assert!(eval > 0.55, "{eval}");
    let again = run(["init", "--data", &place.word("data"), "--out", &place.word("job.toml")]);
    again.with(USAGE).says(&["already exists and is not overwritten"]);
}

#[test]
fn without_trials_sizes_follow_from_the_columns_and_the_samples() {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 600);
    let (_, quick) = init(&place, "data", "quick.toml", &["--quick"]);
    assert!(quick.contains("kind = \"dlrm\"") && !quick.contains("AUC"), "{quick}");
    // A kind that is asked for stays.
    let (_, wide) = init(&place, "data", "wide.toml", &["--model", "wide-deep"]);
    assert!(line_of(&wide, "kind = ").1.contains("wide-deep"), "{wide}");
    let few = Place::new();
    generate(&few, SHAPE, 500, 100);
    let (_, text) = init(&few, "data", "few.toml", &[]);
    assert!(text.contains("There were no trials: too few samples for short ones."), "{text}");
}

#[test]
fn trials_do_not_depend_on_the_evaluation_part() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 400);
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("other"), flip_eval_labels);
    let [one, other] = ["data", "other"].map(|data| init(&place, data, &format!("{data}.toml"), &[]).1);
    let own = |text: &str, name: &str| {
        let named = text.replace(&place.word(name), "DIR");
        named.replace(&format!("name = \"{name}\""), "name")
    };
    assert_eq!(own(&one, "data"), own(&other, "other"));
}
