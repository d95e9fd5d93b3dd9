//! Averaged weights (`train.average`): what they are, when they are saved, and what is reported.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::fs;

use half::{bf16, f16};
use rankine::prelude::*;
use rankine_engine::run_paths;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::support::datasets::{copy, flip_eval_labels};
use crate::support::{
    Place, SHAPE, SUCCESS, USAGE, flip_a_bit, generate, job, json_lines, rankine, run, summary, times,
    toml_of_guide, train, weights,
};

/// 16 steps an epoch.
const NOISY: [&str; 4] = [
    "train.epochs=20",
    "optimizer.dense.learning_rate=0.2",
    "optimizer.sparse.learning_rate=0.5",
    "device.kind=cpu",
];
const RANKS: [&str; 2] = ["device.ranks=4", "device.threads=4"];

fn data() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 600);
    let job = job(&place);
    (place, job)
}

fn trained(place: &Place, job: &str, name: &str, sets: &[&str]) -> serde_json::Value {
    train(place, job, name, sets).with(SUCCESS);
    summary(place, name)
}

/// A tensor of a run: its numbers, and how much rounding to its type may change one: in proportion, and at most.
struct Tensor {
    numbers: Vec<f32>,
    rounding: f64,
    least: f64,
}

/// The weights of a run, by tensor.
fn tensors(place: &Place, name: &str) -> BTreeMap<String, Tensor> {
    let bytes = weights(place, name);
    let model = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |tensor: TensorView<'_>| {
        let bytes = tensor.data();
        let (halves, words) = (bytes.as_chunks::<2>().0.iter(), bytes.as_chunks::<4>().0.iter());
        let power = |exponent: i32| 2.0f64.powi(exponent);
        let (numbers, rounding, least) = match tensor.dtype() {
            Dtype::BF16 => (halves.map(|half| bf16::from_le_bytes(*half).to_f32()).collect(), power(-8), 0.0),
            // Subnormal numbers are 2^-24 apart.
            Dtype::F16 => {
                (halves.map(|half| f16::from_le_bytes(*half).to_f32()).collect(), power(-11), power(-25))
            }
            _ => (words.map(|word| f32::from_le_bytes(*word)).collect(), 0.0, 0.0),
        };
        Tensor { numbers, rounding, least }
    };
    model.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// Compares the weights of a run with a weighted mean of those of others.
#[track_caller]
fn is_mean_of(place: &Place, name: &str, others: &[(&str, f64)]) {
    let others: Vec<_> = others.iter().map(|&(other, weight)| (tensors(place, other), weight)).collect();
    let total: f64 = others.iter().map(|(_, weight)| weight).sum();
    let (mut untouched, mut moved) = (0, 0);
    for (tensor, Tensor { numbers, rounding, least }) in tensors(place, name) {
        for (at, &own) in numbers.iter().enumerate() {
            let value = |other: &BTreeMap<String, Tensor>| other[&tensor].numbers[at];
            let values: Vec<_> = others.iter().map(|(other, weight)| (value(other), *weight)).collect();
            let largest = values.iter().fold(0.0f32, |most, (value, _)| most.max(value.abs()));
            if values.iter().all(|(value, _)| value.to_bits() == values[0].0.to_bits()) {
                untouched += 1;
                assert_eq!(own.to_bits(), values[0].0.to_bits(), "{tensor}[{at}] is the same in all");
                continue;
            }
            moved += 1;
            let mean = values.iter().map(|&(value, weight)| f64::from(value) * weight).sum::<f64>() / total;
            // Each snapshot adds a difference of at most twice the largest value, times a step size: four roundings.
            let steps = 8.0 * values.len() as f64 / f64::from(1 << 24);
            let tolerance = f64::from(largest) * (steps + rounding) + least;
            assert!((f64::from(own) - mean).abs() <= tolerance, "{tensor}[{at}] is {own} instead of {mean}");
        }
    }
    assert!(untouched > 100 && moved > 500, "{untouched} {moved}");
}

#[test]
fn the_average_is_that_of_the_model_and_the_snapshots_before_it() {
    let (place, job) = data();
    let short = |dtype: &'static str| [&RANKS[..], &[dtype]].concat();
    for (name, more) in [
        ("alone", vec![]),
        ("ranks", RANKS.to_vec()),
        ("bf16", short("embedding.dtype=bf16")),
        ("fp16", short("embedding.dtype=fp16")),
    ] {
        let fixed = [&NOISY[..], &more].concat();
        let of = |what: &str| format!("{name}-{what}");
        let until = |steps: &str| {
            let max_steps = format!("train.max_steps={steps}");
            trained(&place, &job, &of(steps), &[&fixed[..], &[&max_steps]].concat());
            of(steps)
        };
        let [first, second, last] = ["30", "40", "45"].map(until);
        for (kind, settings, counts) in [
            ("last", "kind = 'last', count = 3", [1.0, 1.0, 1.0]),
            ("ema", "kind = 'ema', count = 3, decay = 0.25", [1.0, 4.0, 16.0]),
            ("default", "kind = 'ema', count = 3", [9.0, 12.0, 16.0]),
        ] {
            let average = format!("train.average={{ {settings}, every_steps = 10, save = 'always' }}");
            let sets = [&fixed[..], &["train.max_steps=45", &average]].concat();
            let averaged = &trained(&place, &job, &of(kind), &sets)["average"];
            assert_eq!(averaged["steps"], serde_json::json!([30, 40, 45]));
            assert_eq!((&averaged["saved"], &averaged["part"]), (&true.into(), &"eval".into()));
            is_mean_of(&place, &of(kind), &[(&first, counts[0]), (&second, counts[1]), (&last, counts[2])]);
            let again = run(["eval", "--run", &place.word(&of(kind)), "--json"]).with(SUCCESS).json();
            assert_eq!(again["auc"], averaged["value"]);
            let model = run(["eval", "--run", &place.word(&last), "--json"]).with(SUCCESS).json();
            assert_eq!(model["auc"], averaged["model_value"]);
        }
    }
}

#[test]
fn the_average_is_saved_only_if_it_is_better() {
    let (place, job) = data();
    let log_loss = "train.early_stopping={ metric = 'log_loss', patience = 100 }";
    let cases = [
        // The average of the first steps lags behind, and that of late ones evens their noise out.
        (["train.max_steps=6", "train.average={ kind = 'last', every_steps = 2 }"], &[][..], false),
        (["train.max_steps=150", "train.average={ kind = 'last', every_steps = 8 }"], &[], true),
        (
            ["train.max_steps=150", "train.average={ kind = 'ema', every_steps = 8 }"],
            &["train.validation='random:0.2:3'", "eval.every_steps=150", log_loss],
            true,
        ),
    ];
    for (number, (settings, more, is_better)) in cases.into_iter().enumerate() {
        let sets = |average: bool| {
            let own = if average { &settings[..] } else { &settings[..1] };
            [&NOISY[..], own, more].concat()
        };
        let (raw, averaged) = (format!("raw-{number}"), format!("averaged-{number}"));
        let plain = trained(&place, &job, &raw, &sets(false));
        let found = trained(&place, &job, &averaged, &sets(true));
        let average = &found["average"];
        assert_eq!(average["saved"], is_better, "{average}");
        let metric = average["metric"].as_str().unwrap();
        let part = if more.is_empty() { "eval" } else { "validation" };
        assert_eq!((average["part"].as_str(), &average["model_value"]), (Some(part), &plain[part][metric]));
        assert_eq!(weights(&place, &raw) == weights(&place, &averaged), !is_better, "{settings:?}");
        let saved = if is_better { &average["value"] } else { &average["model_value"] };
        assert_eq!(&found[part][metric], saved);
        let gain = average["value"].as_f64().unwrap() - average["model_value"].as_f64().unwrap();
        assert_eq!(if metric == "auc" { gain > 0.0 } else { gain < 0.0 }, is_better);
        // The log tells the evaluations of the average from those of the model.
        let lines = json_lines(&run_paths::metrics(&place.path(&averaged)));
        let evaluations: Vec<_> = lines.iter().filter(|line| line["kind"] == "eval").collect();
        let of_average: Vec<_> = evaluations.iter().filter(|line| line["averaged"] == true).collect();
        assert_eq!(of_average.len(), if is_better && part == "validation" { 2 } else { 1 });
        assert_eq!(of_average[0][metric], average["value"]);
        assert_eq!(evaluations.last().unwrap().get("averaged").is_some(), is_better || part == "eval");
        let text = run(["train", &job, "--run-dir", &place.word(&averaged), "--resume"]
            .into_iter()
            .chain(sets(true).into_iter().flat_map(|set| ["--set", set])));
        text.with(SUCCESS).stdout_says(if is_better {
            " without it; saved"
        } else {
            " without it; not saved"
        });
    }
}

/// A training that is stopped anywhere.
struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn observe(&mut self, event: Event<'_>) {
        if matches!(event, Event::Step(progress, _) if progress.step == self.0) {
            self.1.ask();
        }
    }
}

#[test]
fn a_training_that_is_stopped_anywhere_ends_with_the_same_average() {
    let (place, job) = data();
    let average = "train.average={ kind = 'ema', every_steps = 7, count = 4, save = 'always' }";
    let stopping = "train.early_stopping={ patience = 4 }";
    for incremental in [false, true] {
        let incremental = format!("checkpoint.incremental={incremental}");
        let best = ["eval.every_steps=8", stopping, average, "checkpoint.keep=1", &incremental];
        let sets = [&NOISY[..], &best].concat();
        let whole = trained(&place, &job, &format!("whole-{incremental}"), &sets);
        let step = whole["best"]["step"].as_u64().unwrap();
        let before = (1..step.div_ceil(7)).rev().take(3).map(|number| 7 * number);
        let mut steps: Vec<_> = [step].into_iter().chain(before).collect();
        steps.reverse();
        assert!(steps.len() > 1 && whole["train"]["steps"].as_u64().unwrap() > step + 7, "{steps:?}");
        assert_eq!(whole["average"]["steps"], serde_json::json!(steps));
        let name = format!("stopped-{incremental}");
        for at in [3, 7, 8, 15, step, step + 1, step + 17] {
            let job = Job::load(&place.path("job.toml"), &sets).unwrap();
            let (path, stop) = (place.path(&name), Stop::default());
            let options = TrainOptions {
                run_dir: Some(&path),
                start: Start::Resume,
                stop: Some(&stop),
                ..TrainOptions::default()
            };
            let stopped = rankine::prelude::train(&job, options, &mut StopAt(at, stop.clone()));
            assert!(matches!(stopped, Err(TrainError::Interrupted { .. })), "{stopped:?}");
        }
        let arguments = ["train", &job, "--run-dir", &place.word(&name), "--resume"];
        run(arguments.into_iter().chain(sets.iter().flat_map(|set| ["--set", *set]))).with(SUCCESS);
        assert_eq!(summary(&place, &name)["average"], whole["average"]);
        assert!(weights(&place, &name) == weights(&place, &format!("whole-{incremental}")), "{name}");
    }
}

/// A damaged or missing snapshot is left out of the average, and the summary says so.
#[test]
fn an_average_without_a_snapshot_is_told() {
    let (place, job) = data();
    let average = "train.average={ kind = 'last', every_steps = 8, save = 'always' }";
    let until = |steps: u64| format!("train.max_steps={steps}");
    let end = until(44);
    let sets = [&NOISY[..], &[average, &end]].concat();
    let whole = trained(&place, &job, "run", &sets);
    assert_eq!(whole["average"]["steps"], serde_json::json!([16, 24, 32, 40, 44]));
    assert_eq!(whole["average"].get("missing"), None);
    let names = [16, 32, 40, 44].map(|steps| {
        trained(&place, &job, &format!("until-{steps}"), &[&NOISY[..], &[&until(steps)]].concat());
        format!("until-{steps}")
    });
    let resume = || {
        fs::remove_file(run_paths::summary(&place.path("run"))).unwrap();
        let arguments = ["train", &job, "--run-dir", &place.word("run"), "--resume"];
        run(arguments.into_iter().chain(sets.iter().flat_map(|set| ["--set", *set])))
    };
    let said = "there is no intact snapshot of step 24: the average is that of 4 models instead of 5";
    flip_a_bit(&place.path("run/checkpoints/step-24/shard-00000.safetensors"));
    for words in [&["step-24 is unusable and was set aside", said][..], &[said]] {
        resume().with(SUCCESS).says(words).stdout_says("of 4 steps up to 44 (1 snapshot is missing): auc ");
        assert!(place.path("run/checkpoints/step-24.damaged").is_dir());
        let average = &summary(&place, "run")["average"];
        assert_eq!((&average["steps"], &average["missing"]), (&[16, 32, 40, 44].into(), &[24].into()));
        is_mean_of(&place, "run", &names.each_ref().map(|name| (name.as_str(), 1.0)));
    }
}

#[test]
fn a_refitted_model_is_averaged_if_the_first_one_was() {
    let (place, job) = data();
    copy(&Dataset::open(&place.path("data")).unwrap(), &place.path("flipped"), flip_eval_labels);
    let refit = ["train.early_stopping={ patience = 100, refit = true }", "train.validation='random:0.2:3'"];
    for (steps, average, is_better) in [
        ("train.max_steps=6", "train.average={ kind = 'last', every_steps = 2 }", false),
        ("train.max_steps=130", "train.average={ kind = 'last', every_steps = 8 }", true),
    ] {
        let end = [steps, average, if is_better { "eval.every_steps=130" } else { "eval.every_steps=6" }];
        let name = format!("run-{is_better}");
        let found = trained(&place, &job, &name, &[&NOISY[..], &refit, &end].concat());
        assert_eq!(found["search"]["average"]["saved"], is_better, "{found}");
        // The evaluation part does not decide.
        assert_eq!(found.get("average").map(|average| &average["saved"]), is_better.then_some(&true.into()));
        let until = format!("train.max_steps={}", found["train"]["steps"]);
        let always = average.replace(" }", ", save = 'always' }");
        let own = if is_better { vec![&*until, &always] } else { vec![&*until] };
        trained(&place, &job, &format!("again-{is_better}"), &[&NOISY[..], &own].concat());
        assert!(weights(&place, &name) == weights(&place, &format!("again-{is_better}")), "{name}");
        // With the labels of the evaluation part flipped, what was better there is worse.
        let flipped = format!("data.dir={:?}", place.word("flipped"));
        let name = format!("flipped-{is_better}");
        trained(&place, &job, &name, &[&NOISY[..], &refit, &end, &[&flipped]].concat());
        assert!(weights(&place, &name) == weights(&place, &format!("again-{is_better}")), "{name}");
    }
}

/// `kill -9` at any write of a checkpoint: the next start continues in the search or in the refitted training.
#[test]
fn a_training_that_is_killed_anywhere_ends_with_the_same_average() {
    let (place, job) = data();
    let sets = [
        "train.average={ kind = 'last', every_steps = 8 }",
        "train.early_stopping={ patience = 3, refit = true }",
        "train.validation='random:0.2:3'",
        "eval.every_steps=12",
        "checkpoint.incremental=true",
        "checkpoint.keep=1",
    ];
    let sets = [&NOISY[..], &sets].concat();
    let whole = trained(&place, &job, "whole", &sets);
    // Each round has other writes.
    for first in 5..5 + times(1) {
        let run = format!("killed-{first}");
        let run_dir = place.word(&run);
        let mut kills = 0;
        for write in (first..).step_by(40) {
            let mut command = rankine();
            command
                .args(["train", &job, "--quiet", "--run-dir", &run_dir])
                .args((kills > 0).then_some("--resume"));
            command.args(sets.iter().flat_map(|set| ["--set", *set]));
            let ended = command.env("RANKINE_TEST_FAULT", format!("{write}:kill")).output().unwrap();
            if ended.status.success() {
                break;
            }
            assert!(ended.status.code().is_none(), "{}", String::from_utf8_lossy(&ended.stderr));
            kills += 1;
        }
        assert!(kills > 4, "the training was killed {kills} times");
        let killed = summary(&place, &run);
        assert_eq!((&killed["average"], &killed["best"]), (&whole["average"], &whole["best"]));
        assert_eq!(killed["search"]["average"], whole["search"]["average"]);
        assert!(weights(&place, &run) == weights(&place, "whole"));
    }
}

#[test]
fn a_training_without_snapshots_or_evaluations_says_so() {
    let (place, job) = data();
    let average = "train.average={ kind = 'last', every_steps = 50 }";
    let sets = [&NOISY[..], &["train.max_steps=20", average]].concat();
    train(&place, &job, "short", &sets).with(SUCCESS).says(&["there are no snapshots to average it with"]);
    assert_eq!(summary(&place, "short").get("average"), None);

    generate_without_evaluation(&place);
    let data = format!("data.dir={:?}", place.word("unwatched"));
    let sets = [&NOISY[..], &["train.max_steps=60", average, &data]].concat();
    train(&place, &job, "refused", &sets).with(USAGE).says(&["the dataset has no evaluation part"]);
    let always = average.replace(" }", ", save = 'always' }");
    let sets = [&NOISY[..], &["train.max_steps=60", &always, &data]].concat();
    let averaged = &trained(&place, &job, "always", &sets)["average"];
    assert_eq!((&averaged["saved"], &averaged["value"]), (&true.into(), &serde_json::Value::Null));
}

fn generate_without_evaluation(place: &Place) {
    let shape = place.file("unwatched.shape", SHAPE);
    run(["generate", "--shape", &shape, "--samples", "2000", "--out", &place.word("unwatched")])
        .with(SUCCESS);
}

#[test]
fn the_example_of_the_guide_averages() {
    let (place, path) = data();
    let job = fs::read_to_string(&path).unwrap();
    let rest = job.split("train = {").next().unwrap();
    let block = &toml_of_guide("## Averaging weights")[0];
    let file = place.file("averaged.toml", format!("{rest}\n{block}"));
    let set = ["--set", "train.average.every_steps=1", "--set", "device.kind=cpu"];
    run([&["train", &file, "--run-dir", &place.word("run")][..], &set].concat())
        .with(SUCCESS)
        .stdout_says("average             of 5 steps up to ");
}
