//! Trainings that start from a trained model (`train.init_from`): what they take over, how new rows start, and which
//! models are refused.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::fs;

use safetensors::SafeTensors;

use crate::support::{
    BAD_DATA, Ended, Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, numbers, run, summary, train,
    weights,
};

/// Two epochs in file order: the second one sees the samples that a further training of one epoch sees.
const IN_ORDER: &str = "train.shuffle=false";
const CHECKPOINTS: &str = "checkpoint.every_steps=4";
const ADAM: [&str; 2] = [
    "optimizer.dense={ kind = 'adam', learning_rate = 0.01 }",
    "optimizer.sparse={ kind = 'adam', learning_rate = 0.02 }",
];
/// Steps of an epoch of 2000 samples.
const STEPS: u64 = 16;

fn data() -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 600);
    let job = job(&place);
    (place, job)
}

fn init_from(place: &Place, run: &str) -> String {
    format!("train.init_from={}", place.word(run))
}

/// One epoch, and another one from its model, are two epochs, to the bit.
#[track_caller]
fn continues(sets: &[&str], with_state: bool) {
    let (place, job) = data();
    let sets = [sets, &[IN_ORDER, CHECKPOINTS]].concat();
    train(&place, &job, "first", &sets).with(SUCCESS);
    let (from, state) = (init_from(&place, "first"), format!("train.init_optimizer_state={with_state}"));
    train(&place, &job, "second", &[&sets[..], &[&from, &state]].concat()).with(SUCCESS);
    train(&place, &job, "both", &[&sets[..], &["train.epochs=2"]].concat()).with(SUCCESS);
    assert!(weights(&place, "second") == weights(&place, "both"), "{sets:?}");
    let init = &summary(&place, "second")["init"];
    assert_eq!((init["from"].as_str(), init["steps"].as_u64()), (Some(&*place.word("first")), Some(STEPS)));
    assert_eq!(init["optimizer_steps"].as_u64(), with_state.then_some(STEPS));

    // A third one counts the steps of both, and a checkpoint has the same state as the run.
    let from = init_from(&place, "second/checkpoints/step-16");
    train(&place, &job, "third", &[&sets[..], &[&from, &state]].concat()).with(SUCCESS);
    train(&place, &job, "all", &[&sets[..], &["train.epochs=3"]].concat()).with(SUCCESS);
    assert!(weights(&place, "third") == weights(&place, "all"), "{sets:?}");
    assert_eq!(summary(&place, "third")["init"]["optimizer_steps"].as_u64(), with_state.then_some(2 * STEPS));
}

#[test]
fn a_training_continues_with_the_state_of_another() {
    continues(&ADAM, true);
    continues(&["checkpoint.incremental=true", "embedding.dtype=bf16"], true);
    continues(&[ADAM[0], ADAM[1], "device.kind=cpu", "device.ranks=4", "device.threads=4"], true);
}

/// SGD keeps no state, so weights alone continue it; tables in other types and first-order terms, too.
#[test]
fn a_training_continues_with_the_weights_of_another() {
    let sgd = [
        "optimizer.dense={ kind = 'sgd', learning_rate = 0.1 }",
        "optimizer.sparse={ kind = 'sgd', learning_rate = 0.5 }",
    ];
    continues(&sgd, false);
    let kind = "model={ kind = 'deepfm', embedding_dim = 4, bottom_mlp = [8, 4], top_mlp = [8] }";
    continues(&[sgd[0], sgd[1], kind], false);
    continues(&[sgd[0], sgd[1], "device.kind=cpu", "device.ranks=4", "device.threads=4"], false);
}

/// Tables in another type start from the numbers of the trained ones: here, those of bf16 are read into fp32 and back.
#[test]
fn tables_may_have_another_type() {
    let (place, job) = data();
    let still = [
        "optimizer.dense={ kind = 'sgd', learning_rate = 1e-30 }",
        "optimizer.sparse={ kind = 'sgd', learning_rate = 1e-30 }",
    ];
    train(&place, &job, "first", &["embedding.dtype=bf16", CHECKPOINTS]).with(SUCCESS);
    for (name, from) in [("run", "first"), ("checkpoint", "first/checkpoints/step-16")] {
        let (wider, back) = (format!("{name}-wider"), format!("{name}-back"));
        let from = init_from(&place, from);
        train(&place, &job, &wider, &[still[0], still[1], "embedding.dtype=fp32", &from]).with(SUCCESS);
        let from = init_from(&place, &wider);
        train(&place, &job, &back, &[still[0], still[1], "embedding.dtype=bf16", &from]).with(SUCCESS);
        assert!(weights(&place, &wider) != weights(&place, "first"));
        assert!(weights(&place, &back) == weights(&place, "first"), "{name}");
    }
}

/// Without it, state starts as that of a new model: an export and a checkpoint give the same model, which is not that
/// of a training that continues.
#[test]
fn optimizer_state_is_fresh_unless_it_is_asked_for() {
    let (place, job) = data();
    for (number, kind) in ["adagrad", "rowwise-adagrad", "adam", "momentum", "ftrl"].into_iter().enumerate() {
        let dense = if kind == "rowwise-adagrad" { "adagrad" } else { kind };
        let optimizers = [("dense", dense), ("sparse", kind)]
            .map(|(part, kind)| format!("optimizer.{part}={{ kind = '{kind}', learning_rate = 0.05 }}"));
        let sets = [&optimizers[0], &optimizers[1], IN_ORDER, CHECKPOINTS];
        let name = |what: &str| format!("{what}-{number}");
        train(&place, &job, &name("first"), &sets).with(SUCCESS);
        let second = |what: &str, from: &str, more: &[&str]| {
            let from = init_from(&place, &name(from));
            train(&place, &job, &name(what), &[&sets[..], &[&from], more].concat()).with(SUCCESS);
            weights(&place, &name(what))
        };
        let fresh = second("run", "first", &[]);
        assert!(fresh == second("ranks", "first", &["device.kind=cpu"]));
        let checkpoint = init_from(&place, &format!("{}/checkpoints/step-16", name("first")));
        train(&place, &job, &name("checkpoint"), &[&sets[..], &[&checkpoint]].concat()).with(SUCCESS);
        assert!(fresh == weights(&place, &name("checkpoint")), "{kind}");
        assert!(fresh != second("state", "first", &["train.init_optimizer_state=true"]), "{kind}");
    }
}

/// FTRL computes weights from its state. With the least learning rate they stay those of the model that training starts
/// from, except for rounding, only if its state is initialized from them.
#[test]
fn fresh_state_of_ftrl_keeps_the_weights() {
    let (place, job) = data();
    train(&place, &job, "first", &[IN_ORDER, CHECKPOINTS]).with(SUCCESS);
    let still = [
        "optimizer.dense={ kind = 'ftrl', learning_rate = 1e-30, beta = 1.0 }",
        "optimizer.sparse={ kind = 'ftrl', learning_rate = 1e-30, beta = 1.0 }",
    ];
    let before = tensors(&weights(&place, "first"));
    for (name, from) in [("run", "first"), ("checkpoint", "first/checkpoints/step-16")] {
        let from = init_from(&place, from);
        train(&place, &job, name, &[IN_ORDER, still[0], still[1], &from]).with(SUCCESS);
        for (tensor, after) in tensors(&weights(&place, name)) {
            // Each of 16 steps rounds a few times.
            let is_near =
                |(before, after): (&f32, &f32)| (before - after).abs() <= 100.0 * f32::EPSILON * before.abs();
            assert!(before[&tensor].iter().zip(&after).all(is_near), "{name}: {tensor}");
        }
    }
}

/// Stopped at some steps and resumed, a training ends with the same model, also when the model that it started from is
/// gone by then.
#[test]
fn a_training_that_started_from_a_model_is_resumed() {
    let (place, job) = data();
    let sets = [ADAM[0], ADAM[1], IN_ORDER, CHECKPOINTS];
    train(&place, &job, "first", &sets).with(SUCCESS);
    let from = init_from(&place, "first");
    let state = "train.init_optimizer_state=true";
    let sets = [&sets[..], &[&from, state]].concat();
    train(&place, &job, "whole", &sets).with(SUCCESS);
    let resume = |more: &[&str]| {
        let run_dir = place.word("parts");
        let sets = sets.iter().chain(more).flat_map(|set| ["--set", set]);
        run(["train", &job, "--quiet", "--run-dir", &run_dir, "--resume"].into_iter().chain(sets))
    };
    resume(&["train.max_steps=6"]).with(SUCCESS);
    resume(&["train.max_steps=9"]).with(SUCCESS);
    let other = init_from(&place, "whole");
    resume(&["train.max_steps=12", &other]).with(USAGE).says(&["train.init_from is ", "whole", "but was"]);
    resume(&["train.max_steps=12", "train.init_optimizer_state=false"])
        .with(USAGE)
        .says(&["but was", "with its optimizer state"]);
    fs::rename(place.path("first"), place.path("moved")).expect("a folder can be renamed");
    resume(&[]).with(SUCCESS);
    assert!(weights(&place, "parts") == weights(&place, "whole"));
    assert_eq!(summary(&place, "parts")["init"], summary(&place, "whole")["init"]);
    // From the beginning, it is needed.
    train(&place, &job, "again", &sets).with(USAGE).says(&["train.init_from", "there is no such folder"]);
    assert!(!place.path("again").exists());
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let (place, job) = data();
    train(&place, &job, "first", &[CHECKPOINTS, "checkpoint.keep=1"]).with(SUCCESS);
    let from = init_from(&place, "first");
    let refused = |sets: &[&str], words: &[&str]| {
        train(&place, &job, "none", sets).with(USAGE).says(words);
        assert!(!place.path("none").exists());
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        run(["check", &job, "--here"].into_iter().chain(sets)).with(USAGE).says(words);
    };
    refused(
        &[&from, "model.top_mlp=[8]"],
        &["train.init_from", "has a different shape: top_mlp.0 is 8 but was 16"],
    );
    let wider = ["model.embedding_dim=8", "model.bottom_mlp=[16, 8]"];
    refused(&[&from, wider[0], wider[1]], &["has a different shape: bottom_mlp.1 is 8 but was 4"]);
    let state = "train.init_optimizer_state=true";
    refused(&[state], &["train.init_optimizer_state", "set train.init_from"]);
    refused(
        &[&init_from(&place, "first/model"), state],
        &["it is an export, which has weights but no optimizer"],
    );
    refused(
        &[&from, state, "optimizer.sparse.kind=sgd"],
        &["the optimizer of embedding.", "is \"sgd\" but was \"adagrad\"", "use the same optimizers"],
    );
    refused(&[&init_from(&place, "data")], &["train.init_from", "it is a dataset"]);
    fs::remove_dir_all(place.path("first/checkpoints")).expect("a folder can be removed");
    refused(&[&from, state], &["it is a run without checkpoints"]);
}

/// A damaged model is no mistake in the job: whoever repeats the command gets the same error until it is restored.
#[test]
fn a_damaged_model_is_unusable_data() {
    let (place, job) = data();
    train(&place, &job, "first", &[CHECKPOINTS, "checkpoint.keep=1"]).with(SUCCESS);
    let state = "train.init_optimizer_state=true";
    for (from, file, sets) in [
        ("first", "first/model/model.json", &[][..]),
        ("first", "first/model/model.safetensors", &[]),
        ("first", "first/checkpoints/step-16/manifest.json", &[state]),
        ("first/checkpoints/step-16", "first/checkpoints/step-16/manifest.json", &[]),
    ] {
        let path = place.path(file);
        let intact = fs::read(&path).expect("the file is there");
        let mut bytes = intact.clone();
        let at = bytes.len() - 100;
        bytes[at] ^= 4;
        fs::write(&path, bytes).expect("the file is writable");
        let from = init_from(&place, from);
        let sets = [sets, &[&from]].concat();
        train(&place, &job, "none", &sets).with(BAD_DATA).says(&["train.init_from: ", &place.word(file)]);
        assert!(!place.path("none").exists());
        fs::write(&path, intact).expect("the file is writable");
    }
    train(&place, &job, "second", &[&init_from(&place, "first")]).with(SUCCESS);
}

/// Rows of clicks with the columns `user`, `item` and `clicked`: users and items `first..first + 60`, each with a taste
/// of its own that is the same on all days.
fn clicks(seed: u64, first: u64, rows: usize) -> String {
    let mut next = numbers(seed);
    let mut text = "user,item,clicked\n".to_owned();
    // Of an id, from -1.5 to 1.5, whatever the day.
    let taste = |kind: u64, id: u64| {
        let mut of_id = numbers(kind * 1_000_003 + id * 7919);
        of_id();
        of_id();
        (of_id() % 3001) as f64 / 1000.0 - 1.5
    };
    for _ in 0..rows {
        // Products of uniform numbers, so that some ids are frequent.
        let mut id = || first + (next() % 60).min(next() % 60);
        let (user, item) = (id(), id());
        let probability = 1.0 / (1.0 + (-taste(1, user) - taste(2, item)).exp());
        let clicked = u8::from((next() % 10_000) as f64 / 10_000.0 < probability);
        text += &format!("u{user},i{item},{clicked}\n");
    }
    text
}

const CLICKS_SCHEMA: &str = "\
[label]
column = \"clicked\"
[[categorical]]
column = \"user\"
[[categorical]]
column = \"item\"
";

/// The job of a day's clicks.
fn clicks_job(place: &Place, data: &str) -> String {
    let text = format!(
        "\
name = \"clicks\"
data.dir = {data:?}
model = {{ kind = \"wide-deep\", embedding_dim = 4, top_mlp = [8] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.05 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 64, epochs = 2 }}
",
        data = place.word(data),
    );
    place.file(&format!("{data}.toml"), text)
}

fn convert(place: &Place, day: &str, out: &str, args: &[&str]) -> Ended {
    let (file, out) = (place.word(&format!("{day}.csv")), place.word(out));
    run([&["convert", "csv", &file, "--out", &out], args].concat())
}

/// Two days of clicks, with new ids on the second one, and the evaluation of three models on a third: that of the first
/// day, that of the second day alone, and that of the second day which starts from the first.
fn aucs_of_the_third_day(seed: u64) -> [f64; 3] {
    let place = Place::new();
    place.file("schema.toml", CLICKS_SCHEMA);
    for (number, (first, rows)) in [(0, 6000), (30, 3000), (15, 3000)].into_iter().enumerate() {
        place.file(&format!("day-{}.csv", number + 1), clicks(seed * 10 + number as u64, first, rows));
    }
    let schema = place.word("schema.toml");
    convert(&place, "day-1", "data-1", &["--schema", &schema]).with(SUCCESS);
    train(&place, &clicks_job(&place, "data-1"), "run-1", &[]).with(SUCCESS);
    convert(&place, "day-2", "data-2", &["--like", &place.word("run-1"), "--grow"]).with(SUCCESS);
    let from = init_from(&place, "run-1");
    train(&place, &clicks_job(&place, "data-2"), "warm", &[&from]).with(SUCCESS);
    convert(&place, "day-2", "alone-2", &["--schema", &schema]).with(SUCCESS);
    train(&place, &clicks_job(&place, "alone-2"), "alone", &[]).with(SUCCESS);
    ["run-1", "alone", "warm"].map(|model| {
        let (model, data) = (place.word(model), format!("data-3-{model}"));
        convert(&place, "day-3", &data, &["--like", &model, "--split", "last:0.999"]).with(SUCCESS);
        let ended = run(["eval", "--run", &model, "--data", &place.word(&data), "--json"]).with(SUCCESS);
        ended.json()["auc"].as_f64().expect("an evaluation has an AUC")
    })
}

#[test]
fn a_warm_start_on_grown_data_beats_both_days_alone() {
    let of_seeds = [1, 2, 3].map(aucs_of_the_third_day);
    let [first, alone, warm] =
        [0, 1, 2].map(|model| of_seeds.iter().map(|aucs| aucs[model]).sum::<f64>() / 3.0);
    assert!(warm > first + 0.01 && warm > alone + 0.01, "{of_seeds:?}");
}

/// The values of all tensors, by name.
fn tensors(bytes: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let tensors = SafeTensors::deserialize(bytes).expect("it is a model");
    let mut found = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        let values = tensor.data().chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap()));
        // First-order terms start as zeros, and the least step moves them.
        let values = values.map(|value| if value.abs() < 1e-25 { 0.0 } else { value });
        found.insert(name.to_owned(), values.collect());
    }
    found
}

/// A training without effect shows what it starts from: old rows are those of the old model, and new ones those of a
/// new model.
#[test]
fn old_rows_are_kept_and_new_rows_start_as_fresh_ones() {
    let place = Place::new();
    place.file("schema.toml", CLICKS_SCHEMA);
    place.file("day-1.csv", clicks(5, 0, 500));
    place.file("day-2.csv", clicks(6, 30, 500));
    let schema = place.word("schema.toml");
    convert(&place, "day-1", "data-1", &["--schema", &schema]).with(SUCCESS);
    train(&place, &clicks_job(&place, "data-1"), "run-1", &[]).with(SUCCESS);
    let grown =
        convert(&place, "day-2", "data-2", &["--like", &place.word("data-1"), "--grow"]).with(SUCCESS);
    grown.stdout_says("new categories: ");
    let job = clicks_job(&place, "data-2");
    let still = [
        "optimizer.dense={ kind = 'sgd', learning_rate = 1e-30 }",
        "optimizer.sparse={ kind = 'sgd', learning_rate = 1e-30 }",
    ];
    let from = init_from(&place, "run-1");
    let of_ranks = ["device.kind=cpu", "device.ranks=4", "device.threads=4"];
    for (name, more) in [("one", &[][..]), ("ranks", &of_ranks)] {
        train(&place, &job, &format!("new-{name}"), &[&still[..], more].concat()).with(SUCCESS);
        train(&place, &job, name, &[&still[..], &[&from], more].concat()).with(SUCCESS);
        let tensors = |run: &str| tensors(&weights(&place, run));
        let (old, new, warm) = (tensors("run-1"), tensors(&format!("new-{name}")), tensors(name));
        let mut new_rows = 0;
        for (tensor, values) in &warm {
            let (before, fresh) = (&old[tensor], &new[tensor]);
            assert_eq!(values.len(), fresh.len(), "{tensor}");
            assert_eq!(values[..before.len()], before[..], "{tensor}");
            assert_eq!(values[before.len()..], fresh[before.len()..], "{tensor}");
            new_rows += values.len() - before.len();
        }
        assert!(new_rows > 0);
    }
    // What is reported: rows that the data gained.
    let rows = |data: &str, column: &str| {
        let text = fs::read_to_string(place.path(data).join(format!("vocabulary/{column}.tsv")));
        text.expect("a vocabulary can be read").lines().count() as u64
    };
    let init = &summary(&place, "one")["init"];
    for column in ["user", "item"] {
        let gained = rows("data-2", column) - rows("data-1", column);
        assert_eq!(init["new_rows"][column].as_u64(), Some(gained));
    }

    let shown = run(["train", &job, "--run-dir", &place.word("shown"), "--set", &from]).with(SUCCESS);
    shown.says(&[
        "training starts from the model of ",
        "run-1",
        "with fresh optimizer state; ",
        " rows of 2 tables are new",
    ]);

    // A dataset of its own has other rows for its categories.
    convert(&place, "day-2", "other", &["--schema", &schema]).with(SUCCESS);
    let refused = train(&place, &clicks_job(&place, "other"), "none", &[&from]).with(USAGE);
    refused.says(&["train.init_from", "column user: row 1 is \"", "--like", "--grow"]);
    assert!(json_file(&place.path("one/summary.json"))["init"].is_object());
}
