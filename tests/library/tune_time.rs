//! Searches for the least time to an AUC: what they measure, which job they choose, and how they continue.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use rankine::job::{AucTarget, JobFile, StoppingMetric};
use rankine::prelude::*;
use rankine_engine::tuning::{Basis, Extent, Objective, Space, TrialResult, TuneError, Tuned, Tuning, tune};

use crate::support::{Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, run};

const SAMPLES: u64 = 6000;
const VALIDATION: &str = "train.validation='random:0.2:3'";
/// The job learns, but slowly.
const SETS: [&str; 5] = [
    VALIDATION,
    "train.epochs=8",
    "optimizer.dense.learning_rate=0.01",
    "optimizer.sparse.learning_rate=0.02",
    "device.kind=cpu",
];
/// Higher rates, with which it needs a fraction of the steps.
const FAST: &str = "optimizer.dense.learning_rate = { choose = [0.03] }\n\
                    optimizer.sparse.learning_rate = { choose = [0.1] }\n";
/// With these rates nothing is learned.
const IDLE: &str = "optimizer.dense.learning_rate = { choose = [1e-9] }\n\
                    optimizer.sparse.learning_rate = { choose = [1e-9] }\n";

fn data() -> Place {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 600);
    job(&place);
    place
}

fn objective(target_auc: Option<f64>) -> Objective {
    Objective::Time { target_auc: target_auc.and_then(AucTarget::new) }
}

/// Searches in the folder `name`; requests a stop after a number of rounds of trials.
fn search(
    place: &Place,
    (name, space): (&str, &str),
    sets: &[&str],
    objective: Objective,
    stop_after: Option<usize>,
) -> Result<Tuned, TuneError> {
    let (dir, stop) = (place.path(name), Stop::default());
    let file = JobFile::read(&place.path("job.toml"), sets).unwrap();
    let space = &Space::parse("space.toml", space).unwrap();
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let observe = |_: &TrialResult| {
        if Some(seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1) == stop_after {
            stop.ask();
        }
    };
    let (extent, resume) = (Extent::Trials(5), dir.exists());
    let tuning = Tuning { file: &file, space, objective, seed: 7, extent, dir: &dir, resume, stop: &stop };
    tune(tuning, &observe)
}

/// The results by number.
fn by_number(tuned: &Tuned) -> Vec<&TrialResult> {
    let mut trials: Vec<_> = tuned.trials.iter().collect();
    trials.sort_by_key(|trial| trial.trial);
    trials
}

#[test]
fn a_faster_job_is_found_and_reaches_the_auc_of_the_job_itself() {
    let place = data();
    let tuned = search(&place, ("search", FAST), &SETS, objective(None), None).unwrap();
    let trials = by_number(&tuned);
    assert_eq!((tuned.metric, trials.len()), (StoppingMetric::Auc, 5));
    // The target is the best AUC of the job itself, and its time counts until then: 8 epochs of 38 steps or so.
    let (own, best) = (trials[0], trials[0].best.unwrap());
    let (time, target) = (own.time.unwrap(), tuned.target_auc.unwrap());
    assert_eq!((target, time.steps, time.basis), (best.value, Some(best.step), Basis::Measured));
    assert!(best.step > 100 && own.steps.div_ceil(27) < 20, "{own:?}");

    let chosen = trials[tuned.chosen as usize];
    assert_eq!(tuned.chosen, tuned.trials[0].trial);
    assert!(tuned.chosen > 0 && chosen.best.unwrap().value >= target, "{tuned:?}");
    let faster = chosen.time.unwrap();
    assert_eq!(faster.basis, Basis::Measured);
    let (seconds, steps) = (faster.seconds.unwrap(), faster.steps.unwrap());
    // A step takes the same time with any rate, but this machine may be busy.
    assert!(steps * 2 < best.step && seconds < time.seconds.unwrap(), "{faster:?} instead of {time:?}");
    assert!((seconds - steps as f64 * faster.ms_per_step / 1e3).abs() < 1e-9);
    // Its evaluation after these steps, and no earlier one, reaches the target.
    let log = place.path("search/trials").join(format!("{:03}/metrics.jsonl", tuned.chosen));
    let log = std::fs::read_to_string(log).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let evaluations = lines.filter(|line| line["kind"] == "eval");
    let reached = evaluations.filter(|line| line["auc"].as_f64().unwrap() >= target);
    let reached: Vec<_> = reached.map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(reached, [steps], "the trial ends there");

    // The job trains for these steps, in proportion to all samples.
    let job = Job::from_toml("best.toml", &tuned.job, &[] as &[&str]).unwrap();
    let expected = steps as f64 * 1.25;
    let trained = job.train.max_steps.unwrap().get() as f64;
    assert!((trained - expected).abs() < 0.05 * expected, "{trained} instead of about {expected} steps");
    assert!(tuned.job.contains(&format!("reached {target:.5} in {seconds:.3} s\n# after {steps} steps")));
    let options = TrainOptions { run_dir: Some(&place.path("best")), ..TrainOptions::default() };
    let (summary, _) = train(&job, options, &mut ()).unwrap();
    let auc = summary.eval.as_ref().unwrap().metrics.first.unwrap().auc.unwrap();
    assert!(auc > target - 0.05, "{auc} on the evaluation part; the target was {target}");
}

#[test]
fn without_a_faster_trial_the_job_itself_is_the_result() {
    let place = data();
    let tuned = search(&place, ("search", IDLE), &SETS, objective(Some(0.6)), None).unwrap();
    let trials = by_number(&tuned);
    assert_eq!((tuned.chosen, tuned.trials[0].trial, tuned.target_auc), (0, 0, Some(0.6)));
    assert_eq!(trials[0].time.unwrap().basis, Basis::Measured);
    let ended = trials[0].best.unwrap().step;
    assert!(ended < trials[0].steps, "it ends at the target: {ended} of {} steps", trials[0].steps);
    for idle in &trials[1..] {
        assert!(idle.time.unwrap().basis != Basis::Measured, "{idle:?}");
    }
    // Trials with the same rates take as many steps, up to the interval of evaluations: rounds end, and are evaluated,
    // at steps that depend on the time.
    let tuned = search(&place, ("same", FAST), &SETS, objective(Some(0.6)), None).unwrap();
    let steps = by_number(&tuned).into_iter().skip(1).filter_map(|trial| {
        let time = trial.time.filter(|time| time.basis == Basis::Measured)?;
        time.steps
    });
    let steps: Vec<_> = steps.collect();
    let interval = trials[0].steps / 27;
    assert!(steps.len() > 1 && steps.iter().all(|one| one.abs_diff(steps[0]) <= interval), "{steps:?}");
}

#[test]
fn a_target_that_is_out_of_reach_is_extrapolated_or_not_reached() {
    let place = data();
    let tuned = search(&place, ("search", IDLE), &SETS, objective(Some(0.99)), None).unwrap();
    assert!(tuned.trials.iter().all(|trial| trial.time.unwrap().basis != Basis::Measured), "{tuned:?}");
    assert!(tuned.job.contains("0.99000") && !tuned.job.contains(") reached"), "{}", tuned.job);
    // A job that diverges at once sets no target.
    let idle = [&SETS[..2], &["optimizer.dense.learning_rate=1e38", "device.kind=cpu"]].concat();
    let refused = search(&place, ("diverged", IDLE), &idle, objective(None), None).unwrap_err();
    assert!(matches!(refused, TuneError::NoTarget), "{refused}");
}

/// Whatever a search decides, it decides by the logs of its trials.
#[test]
fn a_search_that_was_stopped_continues_and_a_finished_one_has_the_same_times() {
    let place = data();
    let schedule = "optimizer.schedule={ kind = 'cosine', warmup_steps = 20, decay_steps = 284 }";
    for (name, sets) in [("constant", SETS.to_vec()), ("cosine", [&SETS[..], &[schedule]].concat())] {
        for stop_after in [2, 3, 6] {
            let stopped = search(&place, (name, FAST), &sets, objective(None), Some(stop_after));
            assert!(
                matches!(stopped, Err(TuneError::Stopped { .. }) | Ok(_)),
                "{name}, {stop_after}: {stopped:?}"
            );
        }
        let finished = search(&place, (name, FAST), &sets, objective(None), None).unwrap();
        let again = search(&place, (name, FAST), &sets, objective(None), None).unwrap();
        assert_eq!((&finished.trials, &finished.job), (&again.trials, &again.job), "{name}");
        assert!(finished.chosen > 0, "{name}: {finished:?}");
        let other = search(&place, (name, FAST), &sets, Objective::Quality, None).unwrap_err().to_string();
        assert!(other.contains("a different objective"), "{other}");
    }
    // The schedule of the result has the length of the trial's last round.
    let tuned = search(&place, ("cosine", FAST), &[&SETS[..], &[schedule]].concat(), objective(None), None);
    let tuned = tuned.unwrap();
    let chosen = &tuned.trials[0];
    let line = tuned.job.lines().find(|line| line.starts_with("decay_steps")).unwrap();
    let decay_steps: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    // 284 of 304 steps, in proportion to the steps of the round and to all samples.
    let expected = 284.0 / 304.0 * chosen.steps as f64 * 1.25;
    assert!((decay_steps - expected).abs() < 0.06 * expected + 2.0, "{decay_steps} instead of {expected}");
}

#[test]
fn the_command_lists_the_times_and_writes_the_chosen_job() {
    let place = data();
    let (path, out, dir) = (place.word("job.toml"), place.word("best.toml"), place.word("search"));
    let sets: Vec<_> = SETS.iter().flat_map(|set| ["--set", *set]).collect();
    let tune = |more: &[&str]| {
        run([&["tune", &path, "--trials", "4", "--run-dir", &dir, "--out", &out][..], more, &sets].concat())
    };
    tune(&["--target-auc", "0.6"]).with(USAGE).says(&["--target-auc needs --for time"]);
    tune(&["--for", "time", "--target-auc", "0.4"]).with(USAGE).says(&["0.4", "above 0.5 and at most 1"]);
    tune(&["--for", "speed"]).with(USAGE).says(&["quality, time"]);
    assert!(!place.path("search").exists());

    // Without a space, the batch size and the rates vary.
    let ended = tune(&["--for", "time", "--target-auc", "0.6"]).with(SUCCESS);
    let lines: Vec<_> = ended.stdout.lines().collect();
    for heading in ["batch", "dense rate", "sparse rate", "ms/step", "steps", "seconds", "basis", "AUC"] {
        assert!(lines[0].contains(heading), "{}", lines[0]);
    }
    let own = lines.iter().find(|line| line.ends_with("the job itself")).unwrap();
    assert!(own.contains(" 128 ") && own.contains("0.01") && own.contains("measured"), "{own}");
    let ended = ended.stdout_says("fastest  ").stdout_says("an AUC of 0.60000 in ");
    ended.stdout_says(&format!("next     rankine train {out}"));
    let plan = json_file(&place.path("search/tune.json"))["plan"].clone();
    assert!(plan["objective"].as_str().unwrap().contains("0.6"), "{plan}");
    run(["check", &out]).with(SUCCESS);

    std::fs::remove_file(place.path("best.toml")).unwrap();
    let json = tune(&["--for", "time", "--target-auc", "0.6", "--resume", "--json"]).with(SUCCESS).json();
    assert_eq!((json["target_auc"].as_f64(), json["metric"].as_str()), (Some(0.6), Some("auc")));
    let keys: Vec<_> =
        json["trials"][1]["settings"].as_array().unwrap().iter().map(|of| of[0].clone()).collect();
    let expected = ["train.batch_size", "optimizer.dense.learning_rate", "optimizer.sparse.learning_rate"];
    assert!(json["chosen"] == 0 || keys.is_empty() || keys == expected, "{keys:?}");
    let time = &json["trials"][0]["time"];
    assert!(time["basis"] == "measured" && time["ms_per_step"].as_f64() > Some(0.0), "{time}");
}
