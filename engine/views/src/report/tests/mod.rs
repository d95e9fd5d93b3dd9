//! Tests of reading run folders.

use std::fs;
use std::path::Path;

use rankine_model::evaluation::EvalSummary;

use super::*;

mod render;

fn train(step: u64, loss: &str) -> String {
    format!(
        "{{\"kind\":\"train\",\"time\":\"2026-11-24T15:00:{:02}.500Z\",\"step\":{step},\"epoch\":0,\"samples\":{},\
         \"loss\":{loss},\"dense_learning_rate\":0.5,\"seconds\":2.5,\"samples_per_second\":100.0,\
         \"phase_seconds\":{{\"reading\":0.5,\"computing\":1.25,\"awaiting\":0.25,\"checkpoint\":0.5}}}}\n",
        step % 60,
        step * 10
    )
}

fn eval(step: u64, auc: &str, heads: &str) -> String {
    format!(
        "{{\"kind\":\"eval\",\"time\":\"2026-11-24T15:01:00.000Z\",\"step\":{step},\"seconds\":0.1,\"samples\":50,\
         \"auc\":{auc},\"log_loss\":0.25,\"normalized_entropy\":0.9,\"calibration\":1.5,\"label_rate\":0.125{heads}}}\n"
    )
}

const JOB: &str = "name = \"ads\"\n[model]\nkind = \"dlrm\"\ntop_mlp = [64, 1]\n[train]\nbatch_size = 10\n\
                   [[data.tables]]\nname = \"C1\"\n[device]\nkind = \"cpu\"\nprecision = \"bf16\"\nranks = \"auto\"\n\
                   nodes = 1\n";

const SUMMARY: &str = r#"{"name": "ads", "seed": 1, "version": "0.1.0",
    "data": {"train_samples": 100, "eval_samples": 50, "reader": "pread"},
    "model": {"kind": "dlrm", "dense_parameters": 7, "embedding_parameters": 8},
    "device": {"kind": "cpu", "threads": 2, "ranks": 3, "nodes": 1},
    "train": {"stopped": "epochs", "steps": 10, "samples": 100, "loss": 0.5, "seconds": 4.0,
              "samples_per_second": 25.0, "ms_per_iteration": 400.0, "reader_wait_share": 0.25},
    "power": {"watts": 650.5, "limit_watts": 700.0, "joules_per_sample": 0.25},
    "eval": {"samples": 50, "auc": 0.75, "log_loss": 0.5, "normalized_entropy": 1.0, "calibration": 1.0,
             "label_rate": 0.5, "auc_achievable": 0.8, "seconds": 0.1}}"#;

fn run(job: &str, log: &str) -> tempfile::TempDir {
    let run = tempfile::tempdir().expect("there is room");
    write(run.path(), "job.toml", job);
    write(run.path(), "metrics.jsonl", log);
    run
}

fn write(run: &Path, name: &str, text: &str) {
    fs::write(run.join(name), text).expect("it can be written");
}

/// The last evaluation of the evaluation part.
fn heads(view: &RunView) -> &[HeadView] {
    view.evaluations.result().map_or(&[], |result| &result.heads)
}

/// The AUCs of an evaluation, by step.
fn aucs(view: &RunView, name: &str) -> Vec<(u64, f64)> {
    let one = view.evaluations.iter().find(|one| one.name == name);
    one.map(|one| one.auc.points().collect()).unwrap_or_default()
}

#[test]
fn a_run_without_a_summary_is_unfinished_and_has_the_logged_values() {
    let log = [train(4, "0.5"), eval(4, "0.75", ""), train(8, "null"), eval(8, "null", "")].concat();
    let run = run(JOB, &log);
    let view = load(run.path()).expect("it is a run");
    assert_eq!((view.name.as_str(), &view.version, view.state), ("ads", &None, RunState::Unfinished));
    assert_eq!(view.started.as_deref(), Some("2026-11-24T15:00:02Z"));
    let DeviceView { kind, precision, ranks, nodes, .. } = &view.device;
    assert_eq!((kind.as_str(), precision, ranks, nodes), ("cpu", &None, &None, &Some(1)));
    let progress = &view.progress;
    assert_eq!((progress.step, progress.samples, progress.seconds, progress.loss), (8, 80, 2.5, None));
    assert_eq!(aucs(&view, "evaluation")[0], (4, 0.75));
    assert_eq!(view.series.loss.points().map(|point| point.0).collect::<Vec<_>>(), [4, 8]);
    let [head] = heads(&view) else { panic!("one head") };
    assert_eq!((head.samples, head.auc, head.log_loss), (50, None, Some(0.25)));
    let settings: Vec<_> = view.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let expected = [
        "data.tables.0.name=C1",
        "device.kind=cpu",
        "device.nodes=1",
        "device.precision=bf16",
        "device.ranks=auto",
        "model.kind=dlrm",
        "model.top_mlp=[64, 1]",
        "name=ads",
        "train.batch_size=10",
    ];
    assert_eq!(settings, expected);
}

#[test]
fn a_summary_takes_precedence_over_the_log() {
    let run = run(JOB, &[train(8, "0.75"), eval(8, "0.625", "")].concat());
    write(run.path(), "summary.json", SUMMARY);
    let scores = r#"{"bins": {"from": -16.0, "width": 0.0625}, "heads": [{"label": "a", "negatives": [1.0],
                    "positives": [2.5]}]}"#;
    write(run.path(), "scores.json", scores);
    let view = load(run.path()).expect("it is a run");
    assert_eq!((view.state, view.version.as_deref()), (RunState::Finished, Some("0.1.0")));
    assert_eq!((view.progress.step, view.progress.loss, view.device.ranks), (10, Some(0.5), Some(3)));
    let progress = &view.progress;
    assert_eq!((progress.samples, progress.total_samples, progress.seconds), (100, Some(100), 4.0));
    assert_eq!((progress.samples_per_second, progress.eta_seconds), (Some(25.0), None));
    assert_eq!((heads(&view)[0].auc, heads(&view)[0].auc_achievable), (Some(0.75), Some(0.8)));
    let phases = RunPhase::ALL.map(|phase| view.phases.of(phase));
    assert_eq!(phases, [0.5, 1.25, 0.25, 0.1, 0.5]);
    assert_eq!(view.scores[0].scores.positives, [2.5]);
    let json = serde_json::to_value(&view).expect("a view is plain data");
    assert_eq!((&json["state"], &json["ended"]), (&"finished".into(), &"epochs".into()));
    assert_eq!(json["evaluations"][0]["auc"]["values"][0], 0.625);
    assert_eq!((&json["power"]["watts"], &json["power"]["joules_per_sample"]), (&650.5.into(), &0.25.into()));
    let phase = &json["phases"][1];
    assert_eq!((&phase["name"], &phase["seconds"]), (&"computing".into(), &1.25.into()));
}

#[test]
fn devices_and_tables_are_those_that_trained() {
    let devices = r#"{"version": "0.1.0", "device": "2 GPUs (H200) in bf16", "ranks": 2, "nodes": 1,
        "memory": [{"gpu": 0, "uuid": "GPU-1", "parts": [{"purpose": "tables", "bytes": 600}], "free_bytes": 400,
                    "total_bytes": 1000}],
        "tables": [{"name": "C1", "rows": 10, "dim": 8, "bytes": 320, "placement": "row-wise", "top_share": 0.5},
                   {"name": "C2", "rows": 20, "dim": 8, "bytes": 640, "placement": null, "top_share": null,
                    "host_rows": 15}]}"#;
    let run = run(JOB, &train(4, "0.5"));
    write(run.path(), "devices.json", devices);
    let view = load(run.path()).expect("it is a run");
    assert_eq!((view.device.name.as_deref(), view.device.ranks), (Some("2 GPUs (H200) in bf16"), Some(2)));
    assert_eq!((view.memory[0].parts[0].bytes, view.memory[0].free_bytes), (600, 400));
    let tables: Vec<_> = view.tables.iter().map(|table| (table.bytes, table.placement.as_deref())).collect();
    assert_eq!(tables, [(320, Some("row-wise")), (640, None)]);
    assert_eq!(view.tables[0].top_share, Some(0.5));
    assert_eq!([view.tables[0].host_rows, view.tables[1].host_rows], [None, Some(15)]);
}

/// Curves and results of different samples are kept apart: the model that early stopping restores is evaluated on the
/// evaluation part once.
#[test]
fn each_part_has_a_curve_and_a_result() {
    let validation =
        |step, auc| eval(step, auc, ",\"part\":\"validation\",\"samples_checksum\":\"00000000000000ab\"");
    let stopping = concat!(
        r#"{"kind":"early_stopping","time":"2026-11-24T15:01:00.000Z","step":8,"part":"validation","metric":"auc","#,
        r#""best_step":4,"best_value":0.75,"evaluations_since":1,"patience":3}"#,
        "\n"
    );
    let log = [train(4, "0.5"), validation(4, "0.75"), validation(8, "0.5"), stopping.into()].concat();
    let view = load(run(JOB, &log).path()).expect("it is a run");
    let result = view.evaluations.result().expect("it was evaluated");
    assert_eq!((result.name.as_str(), result.heads[0].auc), ("validation", Some(0.5)));
    assert_eq!(result.samples_checksum, Some(rankine_base::sealed::Checksum(0xab)));
    let stopping = view.stopping.expect("the log has it");
    assert_eq!((stopping.best_step, stopping.best_value, stopping.evaluations_since), (4, 0.75, 1));

    let log = [log, validation(4, "0.75"), eval(4, "0.625", "")].concat();
    let view = load(run(JOB, &log).path()).expect("it is a run");
    assert_eq!(aucs(&view, "validation"), [(4, 0.75), (8, 0.5)]);
    assert_eq!(aucs(&view, "evaluation"), [(4, 0.625)]);
    let result = view.evaluations.result().expect("it was evaluated");
    assert_eq!((result.name.as_str(), view.scored.as_deref()), ("evaluation", Some("evaluation")));
    let values: Vec<_> = view.evaluations.iter().map(|one| (one.name.as_str(), one.heads[0].auc)).collect();
    assert_eq!(values, [("evaluation", Some(0.625)), ("validation", Some(0.75))]);

    // A run of an earlier version, whose lines have no checksum, keeps its curve when it is resumed.
    let old = eval(2, "0.5", ",\"part\":\"validation\"");
    let view = load(run(JOB, &[old, log.clone()].concat()).path()).expect("it is a run");
    assert_eq!(aucs(&view, "validation"), [(2, 0.5), (4, 0.75), (8, 0.5)]);

    // After a resume with other samples, the curve has these alone.
    let other = eval(12, "0.25", ",\"part\":\"validation\",\"samples_checksum\":\"00000000000000cd\"");
    let view = load(run(JOB, &[log, other].concat()).path()).expect("it is a run");
    assert_eq!(aucs(&view, "validation"), [(12, 0.25)]);
}

/// The evaluations at the end of a run repeat a step: the curve has one point per step, and goes on with later steps.
#[test]
fn two_evaluations_of_a_step_are_one_point() {
    let evals = [(4, "0.5"), (4, "0.75"), (8, "0.625"), (8, "0.625"), (4, "0.25"), (12, "0.125")];
    let log = evals.map(|(step, auc)| eval(step, auc, "")).concat();
    let view = load(run(JOB, &log).path()).expect("it is a run");
    assert_eq!(aucs(&view, "evaluation"), [(4, 0.5), (8, 0.625), (12, 0.125)]);
    let result = view.evaluations.result().expect("it was evaluated");
    assert_eq!(result.log_loss.points().map(|point| point.0).collect::<Vec<_>>(), [4, 8, 12]);
}

#[test]
fn every_head_of_the_last_evaluation_is_read() {
    let first = r#"{"samples":50,"auc":0.5,"log_loss":0.25,"normalized_entropy":0.9,"calibration":1.5,"#;
    let logged = format!(r#","heads":{{"buy":null,"click":{first}"label_rate":0.125}}}}"#);
    let log = [eval(4, "0.5", ""), eval(8, "0.5", &logged)].concat();
    let view = load(run(JOB, &log).path()).expect("it is a run");
    let read: Vec<_> = heads(&view).iter().map(|head| (head.label.as_deref(), head.samples)).collect();
    // The log sorts heads by label, and repeats the metrics of the first.
    assert_eq!(read, [(Some("click"), 50), (Some("buy"), 0)]);

    // The summary does not say of which head the achievable AUC is.
    let folder = run(JOB, &log);
    let several =
        format!("\"label_rate\": 0.5, \"heads\":{{\"buy\":null,\"click\":{first}\"label_rate\":0.125}}}}, ");
    write(folder.path(), "summary.json", &SUMMARY.replace("\"label_rate\": 0.5, ", &several));
    let view = load(folder.path()).expect("it is a run");
    let achievable: Vec<_> = heads(&view).iter().map(|head| head.auc_achievable).collect();
    assert_eq!(achievable, [None, None]);
}

#[test]
fn evaluations_of_further_datasets_are_no_results_of_the_run() {
    let set = |heads: &str| format!(",\"set\":\"next day\"{heads}");
    let buy = ",\"heads\":{\"buy\":null}";
    let log = [train(8, "0.5"), eval(8, "0.5", ""), eval(8, "0.9", &set("")), eval(9, "0.9", &set(buy))];
    let folder = run(JOB, &log.concat());
    let view = load(folder.path()).expect("it is a run");
    let shown: Vec<_> = heads(&view).iter().map(|head| (head.label.as_deref(), head.auc)).collect();
    assert_eq!(shown, [(None, Some(0.5))]);
    assert_eq!(aucs(&view, "evaluation"), [(8, 0.5)]);
    assert_eq!(aucs(&view, "eval set next day"), [(8, 0.9), (9, 0.9)]);
    assert!((view.phases.of(RunPhase::Evaluation) - 0.3).abs() < 1e-9);

    // The summary of a run without an evaluation part has them alone.
    let eval = serde_json::to_value(EvalSummary::default()).expect("it is plain data");
    let mut summary: serde_json::Value = serde_json::from_str(SUMMARY).expect("it is JSON");
    summary["eval"] = eval;
    write(folder.path(), "summary.json", &summary.to_string());
    let view = load(folder.path()).expect("it is a run");
    assert_eq!(heads(&view).iter().map(|head| head.auc).collect::<Vec<_>>(), [Some(0.5)]);
}

#[test]
fn a_last_line_that_is_cut_off_is_ignored_and_a_damaged_one_is_named() {
    let whole = train(4, "0.5");
    for cut in [1, whole.len() / 2, whole.len() - 2] {
        let view = load(run(JOB, &[&whole, &train(8, "0.5")[..cut]].concat()).path());
        assert_eq!(view.expect("the line is being written").progress.step, 4, "{cut}");
    }
    // Only the line feed is missing.
    let view = load(run(JOB, whole.trim_end()).path());
    assert_eq!(view.expect("the line is complete").progress.step, 4);
    let damaged = run(JOB, &[&whole, "{\"kind\":\"tra\n", &whole].concat());
    let error = load(damaged.path()).expect_err("a line is torn");
    assert!(matches!(error, ReportError::Damaged { line: Some(2), .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("metrics.jsonl is damaged in line 2: ") && text.contains("Remove that line"),
        "{text}"
    );
}

#[test]
fn errors_name_the_file_and_the_way_out() {
    let empty = tempfile::tempdir().expect("there is room");
    let text = load(empty.path()).expect_err("it is empty").to_string();
    assert!(text.contains("has no job.toml: name a folder that `rankine train` wrote"), "{text}");
    for name in ["job.toml", "summary.json", "scores.json", "devices.json"] {
        let run = run(JOB, "");
        write(run.path(), name, "{ no");
        let text = load(run.path()).expect_err("it is damaged").to_string();
        assert!(text.contains(&format!("{name} is damaged: ")), "{text}");
    }
    // A job alone is a run that has not reported anything.
    let view = load(run(JOB, "").path()).expect("it is a run");
    assert!(view.started.is_some() && view.series.loss.is_empty());
}

/// A run that a process holds is training; the first training of a refit has its folder in that of the run.
#[test]
fn a_run_whose_folder_is_locked_is_training() {
    let run = run(JOB, &train(4, "0.5"));
    let lock = rankine_base::publish::Lock::within(run.path()).expect("nobody else locks it");
    assert_eq!(load(run.path()).expect("it is a run").state, RunState::Training);
    drop(lock);
    assert_eq!(load(run.path()).expect("it is a run").state, RunState::Unfinished);

    let refit = tempfile::tempdir().expect("there is room");
    fs::create_dir(refit.path().join("search")).expect("there is room");
    write(&refit.path().join("search"), "job.toml", JOB);
    write(&refit.path().join("search"), "metrics.jsonl", &train(4, "0.5"));
    let view = load(refit.path()).expect("it is a run");
    assert_eq!((view.refit, view.progress.step), (Some(RefitView::Search), 4));
    assert_eq!(view.run, Some(refit.path().display().to_string()));
}
