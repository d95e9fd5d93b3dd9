//! Messages and errors as JSON: `--log-format json`, and errors of commands with `--json`.

use serde_json::Value;

use crate::support::{BAD_DATA, Place, SHAPE, SUCCESS, USAGE, generate, job, run};

/// Parses each line of a text as an object with a time.
fn records(text: &str) -> Vec<Value> {
    let parse = |line: &str| -> Value {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let time = record["time"].as_str().expect("it has a time");
        assert!(time.starts_with("20") && time.contains('T') && time.ends_with('Z'), "{record}");
        record
    };
    text.lines().map(parse).collect()
}

#[test]
fn messages_are_objects() {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 200);
    let (job, run_dir) = (job(&place), place.word("run"));
    // What libraries log is there, too.
    let metrics = ["--metrics", "127.0.0.1:0"];
    let train = ["train", &job, "--run-dir", &run_dir, "--log-format", "json"].into_iter().chain(metrics);
    let ended = run(train.clone()).with(SUCCESS);
    let records = records(&ended.stderr);
    let says = |words: &str| records.iter().any(|record| record["message"].as_str().unwrap().contains(words));
    assert!(says("training on the CPU") && says("step 8: evaluation: AUC"), "{}", ended.stderr);
    assert!(says("metrics: http://127.0.0.1:"), "{}", ended.stderr);
    assert!(records.iter().all(|record| record["level"] == "info" && record.get("exit_code").is_none()));
    let again = self::records(&run(train).with(USAGE).stderr);
    assert_eq!(again.last().map(|record| &record["exit_code"]), Some(&USAGE.into()), "{again:?}");
}

#[test]
fn errors_are_objects_where_results_are() {
    let place = Place::new();
    let nowhere = place.word("nowhere");
    for (words, code) in [
        (vec!["inspect", &nowhere, "--json"], USAGE),
        (vec!["inspect", "--json", "--no-such-option"], USAGE),
        (vec!["inspect", &nowhere, "--log-format", "json"], USAGE),
        (vec!["inspect", &nowhere, "--log-format=json"], USAGE),
    ] {
        let ended = run(&words).with(code);
        let [error] = &records(&ended.stderr)[..] else { panic!("{words:?}: {}", ended.stderr) };
        assert_eq!((&error["level"], error["exit_code"].as_i64()), (&"error".into(), Some(code.into())));
        let message = error["message"].as_str().unwrap();
        assert!(!message.starts_with("error") && message.len() > 10, "{message}");
    }
    // After `--` it is a path.
    let text = run(["inspect", &nowhere, "--", "--json"]).with(USAGE).stderr;
    assert!(text.starts_with("error: "), "{text}");
    std::fs::create_dir(place.path("data")).unwrap();
    std::fs::write(place.path("data/dataset.json"), "{}").unwrap();
    let ended = run(["inspect", &place.word("data"), "--json"]).with(BAD_DATA);
    assert_eq!(records(&ended.stderr)[0]["exit_code"], BAD_DATA);
    assert_eq!(ended.stdout, "");
    // Help is text.
    assert!(run(["inspect", "--help", "--log-format", "json"]).with(SUCCESS).stdout.contains("Usage"));
}
