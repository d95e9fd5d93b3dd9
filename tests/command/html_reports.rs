//! `rankine report` writes a file with the results of runs, and replaces no other file.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use serde_json::Value;

use crate::support::{BAD_DATA, Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, run, train};

/// The runs in a report.
fn embedded(html: &str) -> Value {
    let (_, data) = html.split_once(r#"<script type="application/json" id="runs">"#).unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_report_has_the_results_of_its_runs() {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 700);
    let job = job(&place);
    for name in ["one", "two"] {
        train(&place, &job, name, &["train.log_every_steps=5"]).with(SUCCESS);
    }
    let out = place.word("report.html");
    let told = run(["report", &place.word("one"), &place.word("two"), "--out", &out]).with(SUCCESS);
    assert!(told.stdout.starts_with(&format!("report {out} (")), "{}", told.stdout);
    let html = fs::read_to_string(&out).unwrap();
    let runs = embedded(&html);
    assert_eq!(runs.as_array().unwrap().len(), 2);
    for (view, name) in runs.as_array().unwrap().iter().zip(["one", "two"]) {
        let summary = json_file(&place.path(name).join("summary.json"));
        assert_eq!(view["state"], "finished");
        assert_eq!(view["progress"]["step"], summary["train"]["steps"]);
        assert_eq!(view["progress"]["samples"], summary["train"]["samples"]);
        let evaluation = &view["evaluations"][0];
        assert_eq!(
            (&evaluation["name"], &evaluation["heads"][0]["auc"]),
            (&"evaluation".into(), &summary["eval"]["auc"])
        );
        assert!(!view["series"]["loss"]["steps"].as_array().unwrap().is_empty());
    }
    assert!(html.len() < 500_000, "{}", html.len());
}

#[test]
fn only_reports_are_replaced() {
    let place = Place::new();
    generate(&place, SHAPE, 600, 200);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let (folder, out) = (place.word("run"), place.word("report.html"));
    let report = |out: &str| run(["report", &folder, "--out", out]);
    report(&out).with(SUCCESS);
    let first = fs::read_to_string(&out).unwrap();
    report(&out).with(SUCCESS);
    assert_eq!(fs::read_to_string(&out).unwrap(), first);

    let notes = place.file("notes.html", "<!DOCTYPE html><p>mine");
    let refused = report(&notes).with(USAGE);
    assert!(refused.stderr.contains("exists and is not a report"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "<!DOCTYPE html><p>mine");
    report(&format!("{folder}/job.toml")).with(USAGE);
    run(["report", &folder, "--out", &notes, "--force"]).with(SUCCESS);
    assert_eq!(fs::read_to_string(&notes).unwrap(), first);
    // As `mktemp` makes it.
    let empty = place.file("empty.html", "");
    report(&empty).with(SUCCESS);

    // An empty folder is no run, and nothing is written for it.
    fs::create_dir(place.path("empty")).unwrap();
    let other = place.word("other.html");
    run(["report", &folder, &place.word("empty"), "--out", &other]).with(USAGE);
    assert!(!place.path("other.html").exists());

    fs::write(place.path("run/summary.json"), "{").unwrap();
    report(&out).with(BAD_DATA).says(&["summary.json"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), first);
}
