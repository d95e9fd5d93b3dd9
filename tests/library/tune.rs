//! Searches for settings: which samples they use, what their result depends on, and how they continue.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rankine::job::{JobFile, StoppingMetric};
use rankine::prelude::*;
use rankine_base::publish::Lock;
use rankine_engine::tuning::{Extent, Objective, Space, TrialResult, TuneError, Tuned, Tuning, tune};
use rankine_model::evaluation::Metrics;
use serde_json::Value;

use crate::support::datasets::{copy, flip_eval_labels};
use crate::support::process::{Running, wait_until};
use crate::support::{
    Ended, FAILED, Place, RESUMABLE, SHAPE, SUCCESS, USAGE, files_below, generate, job, json_file, rankine,
    run, times, toml_of_guide, tree,
};

const SAMPLES: u64 = 3000;
const VALIDATION: &str = "train.validation='random:0.2:3'";
/// The job's own rates are far too small, so that a search must find better ones.
const SETS: [&str; 5] = [
    VALIDATION,
    "train.epochs=3",
    "optimizer.dense.learning_rate=1e-6",
    "optimizer.sparse.learning_rate=1e-6",
    "device.kind=cpu",
];
const SPACE: &str = "[optimizer.dense]\nlearning_rate = { log = [1e-6, 1.0] }\n[optimizer.sparse]\n\
                     learning_rate = { log = [1e-6, 1.0] }\n[model]\nembedding_dim = { choose = [2, 4, 8] }\n";

fn data() -> Place {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 600);
    job(&place);
    place
}

/// Searches in the folder `name`.
fn search(place: &Place, name: &str, sets: &[&str], extent: Extent) -> Result<Tuned, TuneError> {
    search_until(place, name, sets, extent, None)
}

/// Likewise; requests a stop after a number of rounds of trials.
fn search_until(
    place: &Place,
    name: &str,
    sets: &[&str],
    extent: Extent,
    stop_after: Option<usize>,
) -> Result<Tuned, TuneError> {
    let (dir, stop) = (place.path(name), Stop::default());
    let file = JobFile::read(&place.path("job.toml"), sets).unwrap();
    let space = Space::parse("space.toml", SPACE).unwrap();
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let observe = |_: &TrialResult| {
        if Some(seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1) == stop_after {
            stop.ask();
        }
    };
    tune(tuning(&file, &space, extent, &dir, &stop), &observe)
}

/// A search with seed 7, which continues what is in the folder.
fn tuning<'a>(
    file: &'a JobFile,
    space: &'a Space,
    extent: Extent,
    dir: &'a Path,
    stop: &'a Stop,
) -> Tuning<'a> {
    let objective = Objective::Quality;
    Tuning { file, space, objective, seed: 7, extent, dir, resume: dir.exists(), stop }
}

/// Trains the best job of a search, and evaluates it.
fn trained(place: &Place, name: &str, tuned: &Tuned) -> (Summary, Metrics) {
    let job = Job::from_toml("best.toml", &tuned.job, &[] as &[&str]).unwrap();
    let options = TrainOptions { run_dir: Some(&place.path(name)), ..TrainOptions::default() };
    let (summary, _) = train(&job, options, &mut ()).unwrap();
    let metrics = summary.eval.as_ref().unwrap().metrics.first.unwrap();
    (summary, metrics)
}

#[test]
fn a_search_finds_better_settings_than_the_job_has() {
    let place = data();
    let tuned = search(&place, "search", &SETS, Extent::Trials(9)).unwrap();
    assert_eq!(tuned.trials.len(), 9);
    // A ninth, a third, all of the samples: 3 epochs of 2400 samples or so in batches of 128.
    let steps: Vec<_> = tuned.trials.iter().map(|trial| trial.steps).collect();
    let longest = *steps.iter().max().unwrap();
    let count = |divisor: u64| steps.iter().filter(|&&steps| steps == longest.div_ceil(divisor)).count();
    // The job itself trains on all of them as well, although others are better.
    assert_eq!((count(1), count(3) + count(9)), (2, 7), "{steps:?}");
    assert!(tuned.trials.iter().any(|trial| trial.trial == 0 && trial.steps == longest), "{tuned:?}");

    // They are ordered, and the job itself, which learns nothing, is not the best.
    let values: Vec<_> = tuned.trials.iter().map(|trial| trial.best.unwrap().value).collect();
    assert!(values.is_sorted_by(|one, other| one >= other), "{values:?}");
    let own = tuned.trials.iter().find(|trial| trial.trial == 0).unwrap();
    assert!(own.settings.is_empty() && own.best.unwrap().value < values[0] - 0.05, "{values:?}");

    // The best job trains on all samples, for as many steps in proportion.
    let best = tuned.trials[0].best.unwrap();
    let held_in = Dataset::open(&place.path("data")).unwrap();
    let held_in = held_in.with_validation("random:0.2:3".parse().unwrap()).unwrap().samples(Part::Train);
    let expected = (best.step as f64 * SAMPLES as f64 / held_in as f64).round() as u64;
    let (summary, metrics) = trained(&place, "best", &tuned);
    assert_eq!((summary.train.steps, summary.data.train_samples), (expected, SAMPLES));
    let (first, rest) = (metrics.auc.unwrap(), best.value);
    assert!(first > 0.6 && rest > 0.6, "AUC {first} on the evaluation part, {rest} on the validation set");
    for (key, value) in &tuned.trials[0].settings {
        let key = key.rsplit('.').next().unwrap();
        assert!(tuned.job.contains(&format!("{key} = {value}")), "{key} = {value}: {}", tuned.job);
    }
    // Weights of trials are gone, and their jobs, logs and summaries are there.
    for entry in std::fs::read_dir(place.path("search/trials")).unwrap() {
        let names: Vec<_> = tree(&entry.unwrap().path()).into_keys().collect();
        let has = |part: &str| names.iter().any(|name| name.contains(part));
        assert!(has("job.toml") && has("metrics.jsonl") && has("summary.json"), "{names:?}");
        assert!(!has("model/") && !has("step-"), "{names:?}");
    }
}

#[test]
fn a_number_of_trials_and_a_seed_give_one_result_however_many_run_at_once() {
    let place = data();
    let with = |name: &str, threads: &str| {
        search(&place, name, &[&SETS[..], &[threads]].concat(), Extent::Trials(4)).unwrap()
    };
    let (one, three) = (with("one", "device.threads=1"), with("three", "device.threads=3"));
    assert_eq!(one.trials, three.trials);
    // A stopped search continues, also in the middle of a round, and ends the same.
    let sets = [&SETS[..], &["device.threads=2"]].concat();
    for stop_after in [1, 2, 5] {
        let stopped = search_until(&place, "stopped", &sets, Extent::Trials(4), Some(stop_after));
        assert!(matches!(stopped, Err(TuneError::Stopped { .. })), "{stopped:?}");
    }
    let continued = search(&place, "stopped", &sets, Extent::Trials(4)).unwrap();
    assert_eq!(continued.trials, one.trials);
    // A finished search has the same result again.
    assert_eq!(search(&place, "stopped", &sets, Extent::Trials(4)).unwrap().trials, one.trials);
    let other = search(&place, "stopped", &sets, Extent::Trials(5)).unwrap_err().to_string();
    assert!(other.contains("the search in this folder has a different number of trials"), "{other}");
}

#[test]
fn the_evaluation_part_decides_nothing() {
    let place = data();
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("other"), |part, samples| {
        flip_eval_labels(part, samples);
        if part == Part::Eval {
            samples.dense.iter_mut().for_each(|value| *value = 1.0);
        }
    });
    let other = format!("data.dir={:?}", place.word("other"));
    // By default the last tenth is held out.
    let sets = &SETS[1..];
    let results = [&[][..], &[other.as_str()]].map(|more| {
        let name = format!("search-{}", more.len());
        search(&place, &name, &[sets, more].concat(), Extent::Trials(3)).unwrap()
    });
    assert_eq!(results[0].trials, results[1].trials);
    assert_eq!(results[0].validation, "last:0.1");
    let trial = std::fs::read_to_string(place.path("search-0/trials/000/metrics.jsonl")).unwrap();
    assert!(trial.contains("\"validation\"") && !trial.contains("\"auc_achievable\""));
    let evaluated = trial.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let parts = evaluated.filter(|line| line["kind"] == "eval").map(|line| line["part"].clone());
    assert!(parts.clone().count() > 0 && parts.into_iter().all(|part| part == "validation"));
}

#[test]
fn a_budget_ends_a_search_and_each_trial_depends_on_the_seed_alone() {
    let place = data();
    let short = search(&place, "short", &SETS, Extent::Budget(Duration::from_millis(1500))).unwrap();
    assert!(short.trials.len() >= 9, "{}", short.trials.len());
    // A trial for which there was no time did not diverge.
    assert!(short.trials.iter().all(|trial| trial.steps > 0 || !trial.diverged), "{:?}", short.trials);
    let by_number = |tuned: &Tuned| {
        let settings = tuned.trials.iter().map(|trial| (trial.trial, trial.settings.clone()));
        settings.collect::<BTreeMap<_, _>>()
    };
    let fixed = by_number(&search(&place, "fixed", &SETS, Extent::Trials(9)).unwrap());
    for (number, settings) in by_number(&short).into_iter().filter(|&(number, _)| number < 9) {
        assert_eq!(fixed[&number], settings);
    }
    trained(&place, "best", &short);
}

#[test]
fn the_command_writes_the_best_job() {
    let place = data();
    std::fs::write(place.path("space.toml"), SPACE).unwrap();
    let (path, space, dir) = (place.word("job.toml"), place.word("space.toml"), place.word("search"));
    let out = place.word("best.toml");
    let tune = |more: &[&str]| {
        let fixed = ["tune", &path, "--trials", "3", "--space", &space, "--run-dir", &dir, "--out", &out];
        let sets: Vec<_> = SETS.iter().chain(&["seed=9"]).flat_map(|set| ["--set", *set]).collect();
        run([&fixed[..], more, &sets].concat())
    };
    let done = tune(&[]).with(SUCCESS);
    let text = done.stdout_says("the job itself").stdout_says("optimizer.dense.learning_rate=");
    text.stdout_says(&format!("next     rankine train {out}"));
    // A trial lists what it changed: what it draws as the job has it is no change.
    let same = place.file("same.toml", "[model]\nembedding_dim = { choose = [4] }\n");
    let unchanged =
        ["tune", &path, "--trials", "2", "--space", &same, "--out", &place.word("same-best.toml")];
    let unchanged = run([&unchanged[..], &["--run-dir", &place.word("same"), "--set", VALIDATION]].concat());
    assert_eq!(unchanged.with(SUCCESS).stdout.matches("  the job itself\n").count(), 2);
    let plan = |key: &str| json_file(&place.path("search/tune.json"))["plan"][key].clone();
    // That of the job, since the command names none.
    assert_eq!((plan("seed"), plan("trials")), (9.into(), 3.into()));
    run(["train", &out, "--run-dir", &place.word("run")]).with(SUCCESS);
    tune(&["--resume"]).with(USAGE).says(&["already exists and is not overwritten"]);
    std::fs::remove_file(place.path("best.toml")).unwrap();
    tune(&[]).with(USAGE).says(&["the folder has a search already"]);
    let json = tune(&["--resume", "--json"]).with(SUCCESS).json();
    assert_eq!(json["trials"].as_array().unwrap().len(), 3);
    assert_eq!(json["metric"], "auc");
}

/// A space can try buckets of numbers that the job does not have.
#[test]
fn columns_of_buckets_are_a_setting() {
    let place = data();
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let column = &dataset.schema().dense[0].name;
    let space = format!("feature = {{ choose = [[], [{{ column = {column:?}, buckets = 8 }}]] }}");
    let file = JobFile::read(&place.path("job.toml"), &SETS[..2]).unwrap();
    let (space, dir) = (Space::parse("space.toml", &space).unwrap(), place.path("search"));
    let (extent, stop) = (Extent::Trials(6), &Stop::default());
    let tuning = Tuning { seed: 3, ..tuning(&file, &space, extent, &dir, stop) };
    let tuned = tune(tuning, &|_| ()).unwrap();
    let has_buckets =
        |trial: &&TrialResult| trial.settings.iter().any(|(_, value)| value.to_string().contains('8'));
    let with = tuned.trials.iter().filter(has_buckets).count();
    assert!((1..6).contains(&with), "{:?}", tuned.trials);
    assert!(tuned.trials.iter().all(|trial| trial.best.is_some()), "{:?}", tuned.trials);
    trained(&place, "best", &tuned);
}

#[test]
fn spaces_that_do_not_fit_are_refused() {
    let place = data();
    let refused = |space: &str, expected: &str| {
        std::fs::write(place.path("space.toml"), space).unwrap();
        let command =
            ["tune", &place.word("job.toml"), "--trials", "2", "--space", &place.word("space.toml")];
        let dir = place.word("search");
        let more = ["--run-dir", &dir, "--out", &place.word("best.toml")];
        run(command.into_iter().chain(more)).with(USAGE).says(&[expected]);
        assert!(!place.path("search/trials").exists(), "no trial has begun");
        let _ = std::fs::remove_dir_all(place.path("search"));
    };
    refused(
        "train.epochs = { choose = [1, 2] }",
        "\
a search cannot vary this setting: the search finds the number of steps by itself, up to that of the job
  |
1 | train.epochs = { choose = [1, 2] }
  |                ^^^^^^^^^^^^^^^^^^^
",
    );
    refused("[eval]\nevery_steps = { choose = [1, 2] }", "it does not change what is learned");
    refused("train.average.count = { choose = [2, 3] }", "trials are compared without averages");
    refused("data.dir = { choose = [\"a\"] }", "all trials are trained on the same samples");
    refused("optimizer.dense.learning_rat = { log = [0.1, 1.0] }", "did you mean `learning_rate`?");
    refused("[model]\nembedding_dim = 3", "3 is not a range");
    refused("[model]\nembedding_dim = { choose = [0] }", "embedding_dim");
}

/// Whatever is drawn: the only trial of these searches is the job itself.
#[test]
fn every_value_of_a_space_is_checked_before_the_first_trial() {
    let place = data();
    let (job, out, dir) = (place.word("job.toml"), place.word("best.toml"), place.word("search"));
    let file = place.path("space.toml");
    let space = place.word("space.toml");
    let command = ["tune", &job, "--trials", "1", "--space", &space, "--run-dir", &dir, "--out", &out];
    let refused = |text: &str, words: &[&str]| {
        std::fs::write(&file, text).unwrap();
        run(command).with(USAGE).says(words);
        assert!(!place.path("search").exists() && !place.path("best.toml").exists());
    };
    let at = |place: &str| format!("{space}:{place}: ");
    refused(
        "[model]\nembedding_dim = { choose = [4, 8, 0] }",
        &[&at("2:17"), "`model.embedding_dim`", "found 0"],
    );
    refused("train.batch_size = { linear = [0, 64] }", &[&at("1:20"), "`train.batch_size`"]);
    refused("train.batch_size = { log = [0.5, 64.0] }", &[&at("1:20"), "`train.batch_size`", "found 0.5"]);
    refused("optimizer.dense.learning_rat = { log = [0.1, 1.0] }", &["did you mean `learning_rate`?"]);
    refused("optimizer.dense.kind = { choose = [\"sgd\", \"sdg\"] }", &[&at("1:24"), "did you mean `sgd`?"]);
    // Each of the four values suits the job; two of them do not suit each other.
    let warmup = "[optimizer.schedule]\nkind = { choose = [\"cosine\"] }\ndecay_steps = { choose = [9] }\n\
                  decay_start_step = { choose = [20, 5] }\nwarmup_steps = { choose = [0, 10] }\n";
    refused(warmup, &[&at("4:20"), "the decay starts at step 5, before the warm-up ends at step 10"]);
    // Only the dataset tells that it has no such column.
    refused(
        "feature = { choose = [[], [{ column = \"nowhere\", buckets = 8 }]] }",
        &[&at("1:11"), "nowhere"],
    );
    std::fs::write(&file, SPACE).unwrap();
    run(command).with(SUCCESS);
}

#[test]
fn the_most_steps_of_the_job_bound_its_trials() {
    let place = data();
    // Trials are as long as the job's training: its last batch of an epoch is smaller, and five batches are not.
    let sets = [&SETS[..], &["train.max_steps=5"]].concat();
    let tuned = search(&place, "search", &sets, Extent::Trials(3)).unwrap();
    let mut steps: Vec<_> = tuned.trials.iter().map(|trial| trial.steps).collect();
    steps.sort_unstable();
    assert_eq!(steps, [2, 5, 5]);
}

/// Whatever ends the training of the job early, or chooses its model: a search compares trials of the same length.
#[test]
fn trials_train_all_their_steps_and_the_metric_is_that_of_the_job() {
    let place = data();
    // No evaluation is better than the first one by 100, and some of them reach the target.
    let ends = [
        "train.max_steps=5",
        "train.early_stopping={ metric = 'log_loss', patience = 1, min_delta = 100.0 }",
        "train.average={ kind = 'last', every_steps = 1 }",
        "eval.every_steps=1",
        "eval.target_auc=0.501",
    ];
    let tuned = search(&place, "search", &[&SETS[..], &ends].concat(), Extent::Trials(3)).unwrap();
    assert_eq!(tuned.metric, StoppingMetric::LogLoss);
    let values: Vec<_> = tuned.trials.iter().map(|trial| trial.best.unwrap().value).collect();
    assert!(values.is_sorted(), "{values:?}");
    let mut steps: Vec<_> = tuned.trials.iter().map(|trial| trial.steps).collect();
    steps.sort_unstable();
    assert_eq!(steps, [2, 5, 5]);
    for trial in 0..3 {
        let folder = place.path("search/trials").join(format!("{trial:03}"));
        let summary = json_file(&folder.join("summary.json"));
        assert_eq!((&summary["train"]["stopped"], &summary["average"]), (&"max_steps".into(), &Value::Null));
        // That of an earlier round is gone.
        assert!(tree(&folder).keys().all(|name| !name.starts_with("finished-step-")), "{trial}");
    }
}

#[test]
fn trials_that_diverge_do_not_go_on() {
    let place = data();
    let file = JobFile::read(&place.path("job.toml"), &[VALIDATION, "device.kind=cpu"]).unwrap();
    let space = "optimizer.dense.learning_rate = { choose = [1e38, 1e30] }";
    let space = Space::parse("space.toml", space).unwrap();
    let (dir, stop, seen) = (place.path("search"), Stop::default(), Mutex::new(Vec::new()));
    let observe = |result: &TrialResult| seen.lock().unwrap().push((result.trial, result.diverged));
    let tuned = tune(tuning(&file, &space, Extent::Trials(9), &dir, &stop), &observe).unwrap();
    assert_eq!((tuned.trials[0].trial, tuned.trials[0].diverged), (0, false));
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    // The job itself has three rounds, and the others have one.
    let expected = (1..9).map(|trial| (trial, true));
    assert_eq!(seen, [(0, false); 3].into_iter().chain(expected).collect::<Vec<_>>());
}

#[test]
fn a_search_continues_only_as_what_it_was() {
    let place = data();
    let refused = |sets: &[&str], space: &str, seed: u64, words: &str| {
        let file = JobFile::read(&place.path("job.toml"), sets).unwrap();
        let (space, dir, stop) =
            (Space::parse("space.toml", space).unwrap(), place.path("search"), Stop::default());
        let tuning = Tuning { seed, ..tuning(&file, &space, Extent::Trials(1), &dir, &stop) };
        let error = tune(tuning, &|_| ()).unwrap_err().to_string();
        let expected = format!("the search in this folder has {words}: repeat its command");
        assert!(error.contains(&expected), "{error}");
    };
    search(&place, "search", &SETS, Extent::Trials(1)).unwrap();
    refused(&SETS, SPACE, 8, "a different seed");
    refused(&SETS, "model.embedding_dim = { choose = [2, 4] }", 7, "a different space");
    refused(&[&SETS[..], &["train.batch_size=32"]].concat(), SPACE, 7, "a different job");
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("other"), |part, samples| {
        if part == Part::Train {
            samples.dense.iter_mut().for_each(|value| *value = 1.0);
        }
    });
    std::fs::rename(place.path("data"), place.path("kept")).unwrap();
    std::fs::rename(place.path("other"), place.path("data")).unwrap();
    refused(&SETS, SPACE, 7, "different training samples");
}

#[test]
fn a_signal_stops_a_search_which_can_be_continued() {
    let place = data();
    let (job, out, dir) = (place.word("job.toml"), place.word("best.toml"), place.word("search"));
    let space = place.file("space.toml", SPACE);
    let mut command = rankine();
    command.args(["tune", &job, "--trials", "2", "--space", &space, "--run-dir", &dir, "--out", &out]);
    command.args(["--set", "train.epochs=100000", "--set", "device.kind=cpu"]);
    let mut running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    wait_until("a trial has begun", || place.path("search/trials/000/job.toml").exists());
    running.signal(libc::SIGTERM);
    let (code, mut stderr) = (running.end(), String::new());
    running.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let words =
        format!("stopped by SIGTERM; the same command with --run-dir {dir} --resume continues the search");
    assert!(code == RESUMABLE && stderr.contains(&words), "{code}: {stderr}");
    assert!(!place.path("best.toml").exists());
}

/// The options of `rankine train` would not help.
#[test]
fn a_trial_that_cannot_be_resumed_is_trained_again_once_its_folder_is_removed() {
    let place = data();
    let extent = Extent::Trials(3);
    let whole = search(&place, "whole", &SETS, extent).unwrap();
    // All trials end their first round, and two have another one: the best, and the job itself.
    let stopped = search_until(&place, "search", &SETS, extent, Some(3));
    assert!(matches!(stopped, Err(TuneError::Stopped { .. })), "{stopped:?}");
    for shard in files_below(&place.path("search")) {
        if shard.file_name().unwrap().to_string_lossy().starts_with("shard-") {
            let mut bytes = std::fs::read(&shard).unwrap();
            let at = bytes.len() - 100;
            bytes[at] ^= 4;
            std::fs::write(&shard, bytes).unwrap();
        }
    }
    let mut removed = 0;
    let result = loop {
        let error = match search(&place, "search", &SETS, extent) {
            Err(error @ TuneError::Trial { .. }) => error,
            ended => break ended.unwrap(),
        };
        let words = error.to_string();
        let TuneError::Trial { number, trial, .. } = error else { unreachable!("it is that") };
        assert_eq!(trial, place.path("search/trials").join(format!("{number:03}")));
        let dir = place.word("search");
        let expected = [
            format!(
                "trial {number} cannot continue: no checkpoint in {}",
                trial.join("checkpoints").display()
            ),
            format!(
                "remove its folder {} and repeat the command with --run-dir {dir} --resume",
                trial.display()
            ),
        ];
        assert!(expected.iter().all(|part| words.contains(part)) && !words.contains("--restart"), "{words}");
        std::fs::remove_dir_all(&trial).unwrap();
        removed += 1;
    };
    assert_eq!((result.trials, removed), (whole.trials, 2));
}

#[test]
fn a_budget_is_a_time_above_0() {
    let refused = |budget: &str| run(["tune", "job.toml", "--budget", budget]).with(USAGE);
    refused("0s").says(&["invalid value '0s' for '--budget <TIME>': expected a time above 0, such as 10m"]);
    refused("x").says(&["invalid value 'x' for '--budget <TIME>': ", "to start with a unit value"]);
    run(["tune", "job.toml", "--budget=-5s"])
        .with(USAGE)
        .says(&["invalid value '-5s' for '--budget <TIME>': negative"]);
}

#[test]
fn the_command_searches_for_as_long_as_its_budget() {
    let place = data();
    let (out, dir) = (place.word("best.toml"), place.word("search"));
    let mut command = rankine();
    command.args(["tune", &place.word("job.toml"), "--budget", "2s", "--run-dir", &dir, "--out", &out]);
    command.args(SETS.iter().flat_map(|set| ["--set", *set]));
    let begun = Instant::now();
    let ended = Ended::of(command).with(SUCCESS).stdout_says("the job itself");
    // A search begins nine trials at a time.
    assert!(
        ended.stdout.lines().count() >= 9 && begun.elapsed() > Duration::from_secs(2),
        "{}",
        ended.stdout
    );
    run(["check", &out]).with(SUCCESS);
}

#[test]
fn a_search_without_data_or_without_its_folder_does_not_begin() {
    let place = data();
    let (job, out, file) = (place.word("job.toml"), place.word("best.toml"), place.file("file", ""));
    let tune = |more: &[&str]| run([&["tune", &job, "--trials", "1", "--out", &out], more].concat());
    let missing = format!("data.dir={}", place.word("missing"));
    let dir = place.word("search");
    tune(&["--run-dir", &dir, "--set", &missing]).with(USAGE).says(&["no dataset at "]);
    assert!(!place.path("search").exists());

    tune(&["--run-dir", &format!("{file}/search")])
        .with(FAILED)
        .says(&["cannot create ", "file: File exists"]);
    // Another process searches in the folder.
    std::fs::create_dir(&dir).unwrap();
    let _lock = Lock::within(&place.path("search")).unwrap();
    tune(&["--run-dir", &dir]).with(USAGE).says(&["another process is writing"]);
    assert!(!place.path("best.toml").exists() && !place.path("search/trials").exists());
}

#[test]
fn the_examples_of_the_guide_run() {
    let place = data();
    let space = toml_of_guide("## Finding settings").pop().unwrap();
    std::fs::write(place.path("space.toml"), space).unwrap();
    let (path, space, out) = (place.word("job.toml"), place.word("space.toml"), place.word("best.toml"));
    let more = ["--run-dir", &place.word("search"), "--out", &out, "--trials", "2"];
    let tune = ["tune", &path, "--space", &space, "--set", "device.kind=cpu"];
    run([&tune[..], &more].concat()).with(SUCCESS).stdout_says("optimizer.sparse.weight_decay=");
    run(["train", &out, "--run-dir", &place.word("best")]).with(SUCCESS);

    // The job of the guide, with the rest of a job for this dataset.
    let refit = toml_of_guide("## Early stopping");
    let again = toml_of_guide("### Training again on all samples").pop().unwrap();
    assert_eq!(refit.len(), 1);
    let job = std::fs::read_to_string(&path).unwrap();
    let rest = job.split("train = {").next().unwrap();
    for (name, block) in [("stopping", &refit[0]), ("refit", &again)] {
        let file = place.file(&format!("{name}.toml"), format!("{rest}\n{block}"));
        let set = ["--set", "eval.every_steps=2", "--set", "device.kind=cpu"];
        run([&["train", &file, "--run-dir", &place.word(name)][..], &set].concat())
            .with(SUCCESS)
            .stdout_says("best model          of step ");
    }
    assert!(place.path("refit/search/summary.json").exists());
}

/// `kill -9` at any moment: the next start continues each trial from its last checkpoint.
#[test]
fn a_search_that_is_killed_anywhere_finds_the_same() {
    let place = data();
    let job = place.word("job.toml");
    let space = place.file("space.toml", SPACE);
    let command = |name: &str, resumes: bool| {
        let mut command = rankine();
        command.args(["tune", &job, "--trials", "9", "--space", &space, "--run-dir", &place.word(name)]);
        command.args(["--out", &place.word(&format!("{name}.toml"))]).args(resumes.then_some("--resume"));
        command.args(SETS.iter().flat_map(|set| ["--set", *set]));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    assert!(command("whole", false).status().unwrap().success());
    let result = |name: &str| -> Value {
        let text = std::fs::read_to_string(place.path(name).join("tune.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["result"].take()
    };
    for round in 0..times(1) {
        let run = format!("killed-{round}");
        // As a kill leaves it that comes before the plan has its name.
        std::fs::create_dir(place.path(&run)).unwrap();
        let leftover = place.path(&run).join(".tune.json.28593-3-31e69b4c.partial");
        std::fs::write(&leftover, "{").unwrap();
        let mut kills = 0;
        for milliseconds in std::iter::successors(Some(10), |previous| Some(previous * 3 / 2)) {
            let mut child = command(&run, place.path(&run).exists()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "after {kills} kills: {status}");
                break;
            }
            child.kill().unwrap();
            kills += 1;
            child.wait().unwrap();
            // The kill came after the best job was written: nothing is left to resume.
            if place.path(&format!("{run}.toml")).exists() {
                break;
            }
        }
        assert!(kills > 2, "the search was killed {kills} times");
        assert_eq!(result(&run), result("whole"));
        assert!(!leftover.exists());
        let out = |name: &str| std::fs::read(place.path(&format!("{name}.toml"))).unwrap();
        assert!(out(&run) == out("whole"));
    }
}
