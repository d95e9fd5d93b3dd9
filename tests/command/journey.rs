//! The steps of a user: a dataset, its inspection, a training and its evaluation; and errors on the way.

use std::fs;
use std::path::{Path, PathBuf};

use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part};
use serde_json::Value;

use crate::support::{
    self, BAD_DATA, Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, json_lines,
    rankine, run, summary, train, tree, weights, word,
};

/// Several blocks, not divisible by any batch size here, and enough samples to train a model.
const SAMPLES: u64 = 150_001;
const EVAL_SAMPLES: u64 = 20_000;

/// Checks that a summary has a number, and that it is finite and above 0.
#[track_caller]
fn assert_positive(json: &Value, key: &str) {
    let number = json.pointer(&key.replace('.', "/").replacen("", "/", 1)).and_then(Value::as_f64);
    assert!(
        number.is_some_and(|number| number.is_finite() && number > 0.0),
        "{key} is {number:?} in {json:#}"
    );
}

/// Checks the scores of a run with one head and no weights against its last evaluation.
#[track_caller]
fn scores_agree(scores: &Value, eval: &Value) {
    assert_eq!(scores["bins"], serde_json::json!({"from": -16.0, "width": 0.0625}));
    assert_eq!(scores["heads"].as_array().map(Vec::len), Some(1));
    let [negatives, positives] = ["negatives", "positives"].map(|label| -> Vec<u64> {
        let sums = scores["heads"][0][label].as_array().expect("sums");
        sums.iter().map(|sum| sum.as_u64().expect("a number of samples")).collect()
    });
    assert_eq!((negatives.len(), positives.len()), (512, 512));
    let [all_negatives, all_positives] = [&negatives, &positives].map(|sums| sums.iter().sum::<u64>());
    assert_eq!(all_negatives + all_positives, eval["samples"]);
    let rate = all_positives as f64 / (all_negatives + all_positives) as f64;
    assert_eq!(rate, eval["label_rate"]);
    // The trapezoids of the ROC curve, twice: scores of a bin count as ties.
    let (mut below, mut area_twice) = (0, 0);
    for (&negative, &positive) in negatives.iter().zip(&positives) {
        area_twice += positive * (2 * below + negative);
        below += negative;
    }
    let auc = area_twice as f64 / (2 * all_negatives * all_positives) as f64;
    let exact = eval["auc"].as_f64().expect("an AUC");
    assert!((auc - exact).abs() < 0.002, "{auc} instead of {exact}");
}

#[test]
fn from_nothing_to_an_evaluated_model() {
    let place = Place::new();
    let data = generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);

    let text = run(["inspect", &data]).with(SUCCESS).stdout;
    assert!(text.contains("generated, shape small, seed 1, achievable AUC 0."), "{text}");
    assert!(text.contains(&format!("\n  train  {SAMPLES} samples, label rate 0.2")), "{text}");
    assert!(!text.contains("verified"), "{text}");
    let text = run(["inspect", &data, "--verify"]).with(SUCCESS).stdout;
    assert!(text.contains("\nverified: 4 blocks, "), "{text}");
    let inspection = run(["inspect", &data, "--verify", "--json"]).with(SUCCESS).json();
    assert_eq!(inspection["parts"][0]["samples"], SAMPLES);
    assert_eq!(inspection["parts"][1]["samples"], EVAL_SAMPLES);
    assert_eq!(inspection["tables"].as_array().map(Vec::len), Some(6));
    assert_eq!(inspection["tables"][5]["rows"], 3);
    assert_eq!(inspection["tables"][5]["lookups"], SAMPLES);
    assert_eq!(inspection["verify"]["damages"].as_array().map(Vec::len), Some(0));

    let job = job(&place);
    let stdout = train(&place, &job, "run", &["eval.every_steps=500"]).with(SUCCESS).stdout;
    let names: Vec<_> = tree(&place.path("run")).into_keys().collect();
    let model = ["model/model.json", "model/model.safetensors"];
    let results = ["scores.json", "summary.json", "trained.json"];
    let expected = [&["devices.json", "job.toml", "metrics.jsonl"][..], &model, &results].concat();
    assert_eq!(names, expected);

    let summary = summary(&place, "run");
    scores_agree(&json_file(&place.path("run/scores.json")), &summary["eval"]);
    for key in [
        "eval.auc",
        "eval.log_loss",
        "eval.samples",
        "eval.auc_achievable",
        "train.samples",
        "train.loss",
        "train.samples_per_second",
        "train.ms_per_iteration",
        "train.seconds",
        "model.dense_parameters",
    ] {
        assert_positive(&summary, key);
    }
    // The last, partial batch is trained on, too.
    assert_eq!(summary["train"]["samples"], SAMPLES);
    assert_eq!(summary["train"]["steps"], SAMPLES.div_ceil(128));
    assert_eq!(summary["train"]["stopped"], "epochs");
    assert_eq!(summary["eval"]["samples"], EVAL_SAMPLES);
    // bottom 4-16-4, top 4+21 - 16 - 1 with biases; 113 rows of 4.
    assert_eq!(summary["model"]["dense_parameters"], 4 * 16 + 16 + 16 * 4 + 4 + 25 * 16 + 16 + 16 + 1);
    assert_eq!(summary["model"]["embedding_parameters"], 113 * 4);
    let auc = summary["eval"]["auc"].as_f64().unwrap();
    assert!(stdout.contains(&format!("AUC                 {auc:.5}   (achievable: 0.")), "{stdout}");

    let metrics = json_lines(&place.path("run/metrics.jsonl"));
    let of_kind = |kind: &str| metrics.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let (trained, evaluated) = (of_kind("train"), of_kind("eval"));
    assert_eq!(trained.len() + evaluated.len(), metrics.len());
    let steps: Vec<_> = trained.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=SAMPLES.div_ceil(128) / 10).map(|report| report * 10).collect::<Vec<_>>());
    assert!(trained.iter().all(|line| line["loss"].as_f64().is_some_and(|loss| loss > 0.0)));
    let times: Vec<_> = metrics.iter().map(|line| line["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let shape = |time: &str| time.replace(|char: char| char.is_ascii_digit(), "0");
    assert!(times.iter().all(|time| shape(time) == "0000-00-00T00:00:00.000Z"), "{times:?}");
    let steps: Vec<_> = evaluated.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [500, 1000, SAMPLES.div_ceil(128)]);
    assert_eq!(evaluated[2]["auc"], summary["eval"]["auc"]);

    // The effective job in the run folder repeats the training.
    let effective = place.word("run/job.toml");
    train(&place, &effective, "again", &[]).with(SUCCESS);
    assert!(weights(&place, "run") == weights(&place, "again"), "the effective job trains another model");

    let run_dir = place.word("run");
    let again = run(["eval", "--run", &run_dir, "--data", &data, "--json"]).with(SUCCESS).json();
    for (key, expected) in metrics_by_hand(&place, &run_dir, &data) {
        for (found, what) in [(&again[key], "eval"), (&summary["eval"][key], "train")] {
            let found = found.as_f64().expect("it is a number");
            // Predictions are written with nine digits; sums of 20,000 numbers are exact to far more.
            assert!((found - expected).abs() <= 1e-8 * expected, "{key} of {what}: {found}, not {expected}");
        }
    }
    let text = run(["eval", "--run", &run_dir, "--data", &data]).with(SUCCESS).stdout;
    assert!(text.starts_with(&format!("AUC                 {auc:.5}   (achievable: 0.")), "{text}");
    let on_train = run(["eval", "--run", &run_dir, "--data", &data, "--part", "train", "--json"]);
    assert_eq!(on_train.with(SUCCESS).json()["samples"], SAMPLES);
}

/// Computes the metrics of the evaluation part from predictions and labels.
fn metrics_by_hand(place: &Place, run_dir: &str, data: &str) -> [(&'static str, f64); 6] {
    let out = place.word("predictions.csv");
    run(["predict", "--run", run_dir, "--data", data, "--out", &out]).with(SUCCESS);
    let text = fs::read_to_string(out).expect("predictions were written");
    let prediction = |line: &str| -> f64 {
        let (_, prediction) = line.split_once(',').expect("there are two columns");
        prediction.parse().expect("it is a number")
    };
    let predictions = text.lines().skip(1).map(prediction);
    let part = Dataset::open(Path::new(data)).and_then(|dataset| dataset.part(Part::Eval));
    let batches = part.and_then(|part| BatchStream::open(part, &StreamOptions::one_epoch(1000)));
    let batches = batches.expect("the evaluation part exists");
    let labels = batches.flat_map(|batch| batch.expect("it is not damaged").samples.labels[0].clone());
    let mut scored: Vec<_> = predictions.zip(labels.map(f64::from)).collect();
    let samples = scored.len() as f64;
    let positives: f64 = scored.iter().map(|(_, label)| label).sum();
    let log_loss = scored.iter().map(|(p, label)| -(label * p.ln() + (1.0 - label) * (1.0 - p).ln()));
    let log_loss = log_loss.sum::<f64>() / samples;
    let rate = positives / samples;
    let entropy = -(rate * rate.ln() + (1.0 - rate) * (1.0 - rate).ln());
    let calibration = scored.iter().map(|(p, _)| p).sum::<f64>() / positives;
    // AUC: the share of pairs of a positive and a negative that are in order; ties count half.
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut ordered, mut below) = (0.0, 0.0);
    for tied in scored.chunk_by(|a, b| a.0 == b.0) {
        let positives: f64 = tied.iter().map(|(_, label)| label).sum();
        let negatives = tied.len() as f64 - positives;
        ordered += positives * (below + negatives / 2.0);
        below += negatives;
    }
    [
        ("samples", samples),
        ("auc", ordered / (positives * (samples - positives))),
        ("log_loss", log_loss),
        ("normalized_entropy", log_loss / entropy),
        ("calibration", calibration),
        ("label_rate", rate),
    ]
}

/// The achievable AUC of generated data is known, and a model of this family comes close with enough samples.
///
/// How close: fitting p parameters to n samples leaves a mean squared error of the logit of e2 = p / (n w), where w is
/// the mean of q (1 - q) and q a label's probability (asymptotics of maximum likelihood). If logits are normal, a
/// classifier of AUC phi(z) separates the labels by d = sqrt(2) z, where d^2 is the variance of the logit, and an error
/// of e2 reduces z to z / sqrt(1 + e2 / d^2). This costs at most f(z) / (4 z) e2 of AUC, where f is the normal density:
/// at an AUC of 0.77, z = 0.739 and the factor is 0.103. With 1033 parameters, 150001 samples and w = 0.17 the gap is
/// 0.0042.
///
/// Both AUCs are of one sample, so the noise is that of a difference of two AUCs with a standard error of 0.004 (4,700
/// clicks; Hanley and McNeil, 1982) and a correlation of 0.98: 0.0008. The margin is three times that.
#[test]
fn a_model_comes_close_to_the_achievable_auc() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
    train(&place, &job(&place), "run", &[]).with(SUCCESS);
    let summary = summary(&place, "run");
    let number = |key: &str| summary.pointer(key).and_then(Value::as_f64).unwrap();
    let (auc, best) = (number("/eval/auc"), number("/eval/auc_achievable"));
    assert!((0.76..0.78).contains(&best), "{best}: the margin below is for 0.77");
    let parameters = number("/model/dense_parameters") + number("/model/embedding_parameters");
    let gap = 0.103 * parameters / (SAMPLES as f64 * 0.17);
    let noise = 3.0 * 0.0008;
    assert!(auc > best - gap - noise, "{auc} of {best}; the expected gap is {gap}");
    assert!(auc < best + noise, "{auc} of {best}: better than the model that made the labels");
}

#[test]
fn threads_do_not_change_the_model_and_the_seed_does() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 0);
    let job = job(&place);
    let trained = |name: &str, sets: &[&str]| {
        train(&place, &job, name, &[&["train.shuffle_window_blocks=2"], sets].concat()).with(SUCCESS);
        weights(&place, name)
    };
    let one = trained("one", &["device.threads=1"]);
    assert!(trained("two", &["device.threads=2"]) == one, "2 threads train another model than 1");
    assert!(trained("five", &["device.threads=5"]) == one, "5 threads train another model than 1");
    assert!(trained("seed", &["device.threads=2", "seed=2"]) != one, "the seed has no effect");
    assert_eq!(summary(&place, "five")["device"]["threads"], 5);
    // Without an evaluation part there are no metrics.
    assert_eq!(summary(&place, "one")["eval"], Value::Null);
}

#[test]
fn training_ends_after_its_epochs_steps_or_target() {
    let place = Place::new();
    generate(&place, SHAPE, 10_001, 2000);
    let job = job(&place);
    let trained = |name: &str, sets: &[&str]| {
        train(&place, &job, name, sets).with(SUCCESS);
        summary(&place, name)["train"].clone()
    };
    let epochs = trained("epochs", &["train.epochs=2"]);
    assert_eq!((&epochs["samples"], &epochs["stopped"]), (&20_002.into(), &"epochs".into()));
    let large = trained("large", &["train.batch_size=20000"]);
    assert_eq!((&large["samples"], &large["steps"]), (&10_001.into(), &1.into()));
    let most = trained("most", &["train.max_steps=7"]);
    assert_eq!(
        (&most["steps"], &most["samples"], &most["stopped"]),
        (&7.into(), &(7 * 128).into(), &"max_steps".into())
    );

    let target = trained("target", &["train.epochs=100", "eval.every_steps=20", "eval.target_auc=0.65"]);
    assert_eq!(target["stopped"], "target_auc");
    let metrics: Vec<_> = json_lines(&place.path("target/metrics.jsonl"));
    let aucs: Vec<_> =
        metrics.iter().filter(|line| line["kind"] == "eval").map(|line| &line["auc"]).collect();
    // The final weights are evaluated last, 3 steps after the evaluation that reached the target.
    let [before @ .., reached, _] = &aucs[..] else { panic!("{aucs:?}") };
    assert!(reached.as_f64().unwrap() >= 0.65, "{aucs:?}");
    assert!(before.iter().all(|auc| auc.as_f64().unwrap() < 0.65), "{aucs:?}");
    assert_eq!(target["steps"], 20 * (before.len() + 1) + 3);
}

#[test]
fn a_run_folder_in_use_is_not_changed() {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 0);
    let job = job(&place);
    fs::create_dir(place.path("run")).unwrap();
    train(&place, &job, "run", &[]).with(SUCCESS);
    let before = tree(&place.path("run"));
    train(&place, &job, "run", &["seed=2"]).with(USAGE).says(&["run folder", "is not empty", "--run-dir"]);
    assert!(tree(&place.path("run")) == before, "the refused run changed the folder");
}

#[test]
fn a_job_generates_its_dataset_and_refuses_another() {
    let place = Place::new();
    let shape = place.file("shape.toml", SHAPE);
    let job = job(&place);
    let made_by = |seed: u64| {
        format!("data.generate={{ shape = {shape:?}, samples = 2000, eval_samples = 500, seed = {seed} }}")
    };
    train(&place, &job, "first", &[&made_by(1)]).with(SUCCESS);
    let made = tree(&place.path("data"));
    // `rankine generate` writes the same bytes.
    let out = place.word("same");
    run(["generate", "--shape", &shape, "--samples", "2000", "--eval-samples", "500", "--out", &out])
        .with(SUCCESS);
    assert!(tree(&place.path("same")) == made, "generate writes other bytes than the job");

    train(&place, &job, "second", &[&made_by(1)]).with(SUCCESS);
    let data = place.word("data");
    train(&place, &job, "third", &[&made_by(2)]).with(USAGE).says(&[
        "data.generate",
        &data,
        "was generated with different settings",
        "choose another data.dir",
    ]);
    assert!(tree(&place.path("data")) == made && !place.path("third").exists());
}

#[test]
fn refused_trainings_are_explained() {
    let place = Place::new();
    let job = job(&place);
    train(&place, &job, "run", &[]).with(USAGE).says(&["no dataset at ", "rankine generate"]);
    generate(&place, SHAPE, 1000, 0);
    train(&place, &job, "run", &["device.kind=cuda"]).with(USAGE).says(&[
        "device.kind",
        "\"cuda\"",
        "\"cpu\"",
    ]);
    #[cfg(not(feature = "cuda"))]
    train(&place, &job, "run", &["device.kind=cuda"]).says(&["`cargo build --release --features cuda`"]);
    train(&place, &job, "run", &["model.bottom_mlp=[]"])
        .with(USAGE)
        .says(&["model.bottom_mlp", "4 dense columns"]);
    let run_dir = place.word("run");
    let no_model = run(["eval", "--run", &run_dir, "--data", &place.word("data")]);
    no_model.with(USAGE).says(&["no model at ", "a finished run"]);
    assert!(!place.path("run").exists(), "a refused run left a folder");
}

#[test]
fn a_learning_rate_that_is_too_high_is_named_as_the_cause() {
    let place = Place::new();
    generate(&place, SHAPE, 10_000, 0);
    let job = job(&place);
    let refused = |name: &str, sets: &[&str]| {
        let words = ["training diverged", "learning rate", "not saved"];
        train(&place, &job, name, sets).with(FAILED).says(&words);
        let left: Vec<_> = tree(&place.path(name)).into_keys().collect();
        assert_eq!(left, ["devices.json", "job.toml", "metrics.jsonl"]);
    };
    // With each of these rates, weights overflow in the first steps.
    refused("dense", &["optimizer.dense={ kind = \"sgd\", learning_rate = 1e30 }"]);
    refused("sparse", &["optimizer.sparse={ kind = \"sgd\", learning_rate = 1e12 }"]);
    // A rate that is infinite in single precision is refused before training.
    let huge = "optimizer.dense={ kind = \"sgd\", learning_rate = 1e39 }";
    train(&place, &job, "infinite", &[huge]).with(USAGE).says(&["within single precision", "--set"]);
}

#[test]
fn a_dataset_without_dense_columns_trains() {
    let place = Place::new();
    generate(&place, &SHAPE.replace("dense = 4", "dense = 0"), 30_000, 5000);
    let job = job(&place);
    train(&place, &job, "refused", &[]).with(USAGE).says(&["no dense columns", "remove the bottom MLP"]);
    train(&place, &job, "run", &["model.bottom_mlp=[]"]).with(SUCCESS);
    assert_trained(&summary(&place, "run"));
}

#[test]
fn ragged_bags_with_mean_pooling_train() {
    let place = Place::new();
    let shape = format!("{SHAPE}hotness = [5, 1, 3, 2, 8, 1]\nragged = true\npooling = \"mean\"\n");
    let data = generate(&place, &shape, 30_000, 5000);
    let inspection = run(["inspect", &data, "--json"]).with(SUCCESS).json();
    let hotness = inspection["tables"][4]["hotness_mean"].as_f64().unwrap();
    // Bags of 0 to 8 ids: 4 on average, with a standard error of 2.6 / sqrt(30000).
    assert!((hotness - 4.0).abs() < 0.06, "{hotness}");
    let job = job(&place);
    train(&place, &job, "one", &["device.threads=1"]).with(SUCCESS);
    train(&place, &job, "three", &["device.threads=3"]).with(SUCCESS);
    assert!(weights(&place, "one") == weights(&place, "three"), "3 threads train another model than 1");
    assert_trained(&summary(&place, "one"));
}

/// Checks that the AUC is above the middle between 0.5 and the achievable AUC.
#[track_caller]
fn assert_trained(summary: &Value) {
    let number = |key: &str| summary["eval"][key].as_f64().expect("it is a number");
    let (auc, best) = (number("auc"), number("auc_achievable"));
    assert!(auc - 0.5 > (best - 0.5) / 2.0, "{auc} of {best}");
}

#[test]
fn every_reader_mode_gives_the_same_model() {
    let place = Place::new();
    let data = generate(&place, SHAPE, SAMPLES, 1000);
    let job = job(&place);
    let report = run(["doctor", "--dir", &data, "--json"]).with(SUCCESS).json();
    let modes = report["reading"]["modes"].as_array().unwrap();
    let names: Vec<_> = modes.iter().map(|mode| mode["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uring-direct", "uring-buffered", "pread", "mmap"]);
    let mut models = Vec::new();
    for (mode, name) in modes.iter().zip(names) {
        let set = format!("reader.mode={name}");
        let ended = train(&place, &job, name, &[&set, "reader.queue_depth=3"]);
        if let Some(why) = mode["refused"].as_str() {
            assert!(name.starts_with("uring"), "{name} is refused, but works everywhere: {why}");
            ended.with(USAGE).says(&[name, "is refused"]);
            support::skipped(format_args!("{name} is refused: {why}"));
            continue;
        }
        ended.with(SUCCESS);
        assert_eq!(summary(&place, name)["data"]["reader"], name);
        models.push((name, weights(&place, name)));
    }
    for (name, model) in &models {
        assert!(*model == models[0].1, "{name} gives another model than {}", models[0].0);
    }
}

/// A dataset of several blocks, to be damaged, and a model that was trained on it.
struct DamagedDataset {
    place: Place,
    job: String,
    data: String,
}

impl DamagedDataset {
    fn new() -> Self {
        let place = Place::new();
        let data = generate(&place, SHAPE, SAMPLES, 70_000);
        let job = job(&place);
        train(&place, &job, "good", &["train.max_steps=3"]).with(SUCCESS);
        Self { place, job, data }
    }

    /// Returns the file of a part, and the offset of its second block.
    fn second_block(&self, part: Part) -> (PathBuf, u64) {
        let opened = Dataset::open(Path::new(&self.data))
            .and_then(|data| data.part(part))
            .expect("it is not damaged yet");
        (opened.files[0].clone(), opened.blocks[1].offset)
    }

    fn train(&self) -> Ended {
        train(&self.place, &self.job, "run", &[])
    }

    fn verify(&self) -> Ended {
        run(["inspect", &self.data, "--verify"])
    }

    fn eval(&self) -> Ended {
        run(["eval", "--run", &self.place.word("good"), "--data", &self.data])
    }
}

#[test]
fn a_flipped_bit_is_reported_with_file_and_offset() {
    let train: fn(&DamagedDataset) -> Ended = DamagedDataset::train;
    for (part, command) in [(Part::Train, train), (Part::Eval, DamagedDataset::eval)] {
        let damaged = DamagedDataset::new();
        let (path, offset) = damaged.second_block(part);
        command(&damaged).with(SUCCESS);
        damaged.verify().with(SUCCESS);
        let _ = fs::remove_dir_all(damaged.place.path("run"));

        let mut bytes = fs::read(&path).unwrap();
        bytes[offset as usize + 5000] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        let place = format!("{} at byte {offset} is damaged", word(&path));
        command(&damaged).with(BAD_DATA).says(&[&place]);
        assert!(!damaged.place.path("run/model").exists(), "a model of damaged data was saved");
        damaged.verify().with(BAD_DATA).says(&[&place]);
        let report = run(["inspect", &damaged.data, "--verify", "--json"]).with(BAD_DATA).json();
        assert_eq!(report["verify"]["damages"][0]["offset"], offset);
        assert_eq!(report["verify"]["damages"][0]["path"], word(&path));
    }
}

#[test]
fn a_truncated_file_is_reported_with_file_and_offset() {
    let damaged = DamagedDataset::new();
    let train: fn(&DamagedDataset) -> Ended = DamagedDataset::train;
    for (part, command) in [(Part::Train, train), (Part::Eval, DamagedDataset::eval)] {
        let (path, offset) = damaged.second_block(part);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..offset as usize + 100]).unwrap();
        let place = format!("{} at byte {} is damaged: it has", word(&path), offset + 100);
        command(&damaged).with(BAD_DATA).says(&[&place, "was it copied completely?"]);
        let _ = fs::remove_dir_all(damaged.place.path("run"));
        damaged.verify().with(BAD_DATA).says(&[&place]);
        fs::write(&path, &whole).unwrap();
    }
    fs::write(Path::new(&damaged.data).join("dataset.json"), "{}").unwrap();
    damaged.train().with(BAD_DATA).says(&["dataset.json", "is damaged"]);
}

#[test]
fn a_damaged_model_is_not_evaluated() {
    let damaged = DamagedDataset::new();
    let path = damaged.place.path("good/model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    damaged.eval().with(BAD_DATA).says(&["model.safetensors is damaged", "checksum"]);
}

#[test]
fn without_run_dir_each_run_gets_a_new_folder() {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 0);
    let job = job(&place);
    for _ in 0..2 {
        let output = rankine().args(["train", &job, "-q"]).current_dir(place.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(SUCCESS), "{output:?}");
    }
    let runs: Vec<_> = fs::read_dir(place.path("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    for run in runs {
        assert!(run.file_name().unwrap().to_str().unwrap().starts_with("small-"), "{run:?}");
        assert_eq!(json_file(&run.join("summary.json"))["name"], "small");
    }
}
