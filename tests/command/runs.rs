//! `rankine runs` lists the runs of a folder, with the results that their own files have.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use crate::support::process::Running;
use crate::support::{
    Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, rankine, run, train,
};

/// Trains two runs that differ in a learning rate and their lengths.
fn trained() -> Place {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 700);
    let job = job(&place);
    for (name, rate) in [("runs/slow", "0.0001"), ("runs/quick", "0.1")] {
        let rate = format!("optimizer.dense.learning_rate={rate}");
        train(&place, &job, name, &["train.log_every_steps=5", &rate]).with(SUCCESS);
    }
    // Neither a file nor a folder of something else is a run.
    fs::create_dir(place.path("runs/notes")).unwrap();
    place.file("runs/notes.txt", "slow is slow");
    place
}

fn runs(place: &Place, args: &[&str]) -> Ended {
    run([&["runs", &place.word("runs")], args].concat()).with(SUCCESS)
}

/// The names in a JSON list.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn runs_have_the_results_of_their_summaries() {
    let place = trained();
    let list = runs(&place, &["--json", "--sort", "name"]).json();
    assert_eq!(names(&list), ["quick", "slow"]);
    for row in list.as_array().unwrap() {
        let summary = json_file(&place.path("runs").join(row["name"].as_str().unwrap()).join("summary.json"));
        assert_eq!((&row["state"], &row["error"]), (&Value::from("finished"), &Value::Null));
        assert_eq!(row["steps"], summary["train"]["steps"]);
        assert_eq!(row["samples"], summary["train"]["samples"]);
        assert_eq!(row["samples_per_second"], summary["train"]["samples_per_second"]);
        assert_eq!(row["auc"], summary["eval"]["auc"]);
        assert_eq!(row["log_loss"], summary["eval"]["log_loss"]);
        assert!(row.get("settings").is_none(), "{row}");
    }
    // The default order has the newest run first, and the AUC's the best.
    let best =
        if list[0]["auc"].as_f64() > list[1]["auc"].as_f64() { ["quick", "slow"] } else { ["slow", "quick"] };
    assert_eq!(names(&runs(&place, &["--json", "--sort", "auc"]).json()), best);
    let table = runs(&place, &["--sort", "name"]).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("run    state     device"), "{table}");
    assert!(lines[1].starts_with("quick  finished  cpu"), "{table}");
    assert!(lines[1].contains(&format!("{:.5}", list[0]["auc"].as_f64().unwrap())), "{table}");
}

#[test]
fn settings_that_differ_are_columns() {
    let place = trained();
    let list = runs(&place, &["--json", "--sort", "name", "--settings"]).json();
    assert_eq!(list[0]["settings"]["optimizer.dense.learning_rate"], "0.1");
    assert_eq!(list[1]["settings"]["optimizer.dense.learning_rate"], "0.0001");
    assert_eq!(list[0]["settings"].as_object().unwrap().len(), 1, "{list}");
    let table = runs(&place, &["--settings"]).stdout;
    assert!(table.contains("\nsettings that differ\n"), "{table}");
    assert!(table.contains("\nquick\n  optimizer.dense.learning_rate=0.1\nslow\n"), "{table}");
    let csv = runs(&place, &["--csv", "--sort", "name", "--settings"]).stdout;
    let lines: Vec<_> = csv.lines().collect();
    let header = "run,name,state,device,precision,ranks,steps,samples,on,samples_checksum,auc,log_loss,\
                  samples_per_second,started,error,optimizer.dense.learning_rate";
    assert_eq!((lines.len(), lines[0]), (3, header));
    assert!(lines[1].contains(",quick,finished,cpu,,1,") && lines[1].ends_with(",,0.1"), "{csv}");
}

#[test]
fn a_damaged_and_an_unfinished_run_are_listed_with_the_others() {
    let place = trained();
    fs::remove_file(place.path("runs/slow/summary.json")).unwrap();
    let log = fs::read_to_string(place.path("runs/quick/metrics.jsonl")).unwrap();
    fs::write(place.path("runs/quick/metrics.jsonl"), format!("{{\"kind\n{log}")).unwrap();
    let list = runs(&place, &["--json", "--sort", "samples"]).json();
    assert_eq!(names(&list), ["slow", "quick"]);
    assert_eq!((&list[0]["state"], &list[1]["state"]), (&"unfinished".into(), &"damaged".into()));
    assert!(list[0]["auc"].is_f64() && list[1]["auc"].is_null(), "{list}");
    let error = list[1]["error"].as_str().unwrap();
    assert!(error.contains("metrics.jsonl is damaged in line 1: "), "{error}");
    runs(&place, &[]).stdout_says("\nquick: ").stdout_says("damaged in line 1");
    assert_eq!(runs(&place, &["--csv"]).stdout.lines().count(), 3);
}

/// A pipe waits for a writer forever.
#[test]
fn a_pipe_in_a_run_folder_is_not_waited_for() {
    let place = Place::new();
    generate(&place, SHAPE, 600, 200);
    train(&place, &job(&place), "runs/spoilt", &[]).with(SUCCESS);
    let out = place.word("report.html");
    let names =
        ["job.toml", "metrics.jsonl", "summary.json", "scores.json", "devices.json", "model/model.json"];
    for name in names {
        let path = place.path("runs/spoilt").join(name);
        fs::rename(&path, place.path("aside")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let said = format!("{name}: it is a pipe, not a regular file");
        for (args, code) in [
            (&["runs", &place.word("runs"), "--json"][..], SUCCESS),
            (&["report", &place.word("runs/spoilt"), "--out", &out], FAILED),
        ] {
            let mut command = rankine();
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut running = Running::start(&mut command);
            assert_eq!(running.end(), code, "{name}: {args:?}");
            let mut text = String::new();
            running.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            running.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            assert!(text.contains(&said), "`{said}` is not in:\n{text}");
        }
        fs::rename(place.path("aside"), &path).unwrap();
    }
}

/// `eval`, `report` and `runs` find a run by its folder, by a path into it, and by its name.
#[test]
fn a_run_is_named_in_the_same_way_in_all_commands() {
    let place = trained();
    let of = |run: &str| {
        let in_place = |args: &[&str]| {
            let mut command = rankine();
            command.args(args).current_dir(place.path("."));
            Ended::of(command).with(SUCCESS)
        };
        let out = format!("{}.html", run.replace('/', "-"));
        in_place(&["report", run, "--out", &out]);
        let list = in_place(&["runs", run, "--json"]).json();
        (in_place(&["eval", "--run", run, "--json"]).json(), fs::read(place.path(&out)).unwrap(), list)
    };
    let expected = of("runs/quick");
    assert_eq!(names(&expected.2), ["quick"]);
    assert_ne!(expected.0, of("runs/slow").0);
    for run in ["quick", "runs/quick/metrics.jsonl", "runs/quick/summary.json", "runs/quick/model"] {
        assert!(of(run) == expected, "{run}");
    }
    assert_eq!(names(&runs(&place, &["--json", "--sort", "name"]).json()), ["quick", "slow"]);
    run(["eval", "--run", "quik"]).with(USAGE).says(&["no model at quik: there is no such folder"]);
}

#[test]
fn a_folder_without_runs_is_empty_and_a_missing_one_an_error() {
    let place = Place::new();
    fs::create_dir(place.path("runs")).unwrap();
    assert_eq!(runs(&place, &["--json"]).json(), Value::Array(Vec::new()));
    let listed = runs(&place, &[]).says(&["no runs in ", "`rankine train` writes one"]);
    assert_eq!(listed.stdout, "");
    run(["runs", &place.word("none")])
        .with(FAILED)
        .says(&["there is no folder ", "name the folder with the runs"]);
}
