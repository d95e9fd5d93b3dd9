//! Progress, log and summary report the same rate: samples per second of training, without evaluations, also after
//! resuming.

use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::support::process::{Running, wait_until};
use crate::support::{Place, RESUMABLE, SHAPE, SUCCESS, generate, job, json_lines, rankine, summary};

/// Trains with evaluations that take longer than the steps between them; returns stderr and the wall-clock seconds.
fn train(place: &Place, job: &str, epochs: &str, stop_at: Option<usize>) -> (String, f64) {
    let epochs = format!("train.epochs={epochs}");
    let sets = [&*epochs, "train.log_every_steps=5", "eval.every_steps=10", "checkpoint.every_steps=15"];
    let mut command = rankine();
    command.args(["train", job, "--resume", "--run-dir", &place.word("run")]);
    command.args(sets.iter().flat_map(|set| ["--set", set])).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut running = Running::start(&mut command);
    let stderr = running.0.stderr.take().expect("stderr is a pipe");
    let progress =
        std::thread::spawn(move || std::io::read_to_string(stderr).expect("the command writes UTF-8"));
    if let Some(lines) = stop_at {
        let metrics = place.path("run").join("metrics.jsonl");
        let logged = || std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= lines);
        wait_until("steps are logged", logged);
        running.signal(libc::SIGTERM);
    }
    let expected = if stop_at.is_some() { RESUMABLE } else { SUCCESS };
    let code = running.end();
    let (progress, seconds) = (progress.join().expect("stderr is read"), began.elapsed().as_secs_f64());
    assert_eq!(code, expected, "{progress}");
    (progress, seconds)
}

fn lines(place: &Place, kind: &str) -> Vec<Value> {
    let mut lines = json_lines(&place.path("run").join("metrics.jsonl"));
    lines.retain(|line| line["kind"] == kind);
    lines
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("`{key}` is a number of {line}"))
}

/// Checks that each progress line has the rate that follows from the log; returns the number of lines.
#[track_caller]
fn check_progress(progress: &str, log: &[Value]) -> usize {
    // training 640/9000 samples  12345 samples/s  step 5  loss 0.6931  ETA 1 s
    let reports = progress.lines().filter(|line| line.starts_with("training ") && line.contains("  step "));
    let mut count = 0;
    for report in reports {
        let word = |before: &str| {
            let rest = report.split_once(before).unwrap_or_else(|| panic!("no `{before}` in {report}")).1;
            rest.split_whitespace().next().expect("a word follows").parse::<f64>().expect("a number follows")
        };
        let line = log.iter().find(|line| number(line, "step") == word("  step ")).expect("it is logged");
        let rate = number(line, "samples") / number(line, "seconds");
        assert!((word(" samples  ") - rate).abs() <= 0.5 + rate * 1e-9, "{report}, but {rate} in the log");
        count += 1;
    }
    count
}

#[test]
fn progress_log_and_summary_report_one_rate() {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 60_000);
    let job = job(&place);

    let (progress, wall_seconds) = train(&place, &job, "1000", Some(12));
    let log = lines(&place, "train");
    assert!(check_progress(&progress, &log) >= 5, "{progress}");
    // The intervals between log lines add up to all training time, and so do their phases.
    let (mut samples, mut seconds, mut phases) = (0.0, 0.0, 0.0);
    for line in &log {
        seconds += (number(line, "samples") - samples) / number(line, "samples_per_second");
        samples = number(line, "samples");
        assert!((seconds - number(line, "seconds")).abs() < 1e-6 * seconds, "{seconds} s, and {line}");
        let phase = |name| number(&line["phase_seconds"], name);
        phases += ["reading", "computing", "awaiting", "checkpoint"].map(phase).iter().sum::<f64>();
        assert!((phases - seconds).abs() < 1e-6 * seconds, "{phases} s of {seconds} s, and {line}");
    }
    let eval_seconds: f64 = lines(&place, "eval").iter().map(|line| number(line, "seconds")).sum();
    assert!(eval_seconds > 0.0 && seconds + eval_seconds < wall_seconds, "{seconds} + {eval_seconds} s");

    // A resumed training continues to count samples and seconds.
    let steps = log.len() * 5;
    let (progress, _) = train(&place, &job, &(steps / 24 + 4).to_string(), None);
    let log = lines(&place, "train");
    assert!(check_progress(&progress, &log) >= 5, "{progress}");
    let seconds: Vec<_> = log.iter().map(|line| number(line, "seconds")).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    let train = &summary(&place, "run")["train"];
    let rate = number(train, "samples") / number(train, "seconds");
    assert!((number(train, "samples_per_second") - rate).abs() < 1e-6 * rate, "{train}");
    assert!(number(train, "seconds") >= *seconds.last().expect("steps are logged"), "{train}");
}
