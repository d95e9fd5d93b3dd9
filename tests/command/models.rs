//! Everything that a job can set about a model and how it learns: each kind, rule and schedule trains as the job says.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::{
    Place, SHAPE, SUCCESS, USAGE, generate, job, json_file, json_lines, numbers, run, summary, train, weights,
};

/// The number of samples from which a small model learns the label.
const SAMPLES: u64 = 30_000;
const EVAL_SAMPLES: u64 = 5000;

/// The sizes of each kind, for [`SHAPE`].
const KINDS: [(&str, &str); 4] = [
    ("dlrm", "bottom_mlp = [16, 4]"),
    ("dcnv2", "bottom_mlp = [16, 4], cross_layers = 2, cross_rank = 8"),
    ("deepfm", "bottom_mlp = [16, 4]"),
    ("wide-deep", ""),
];

fn model(kind: &str, sizes: &str) -> String {
    let comma = if sizes.is_empty() { "" } else { ", " };
    format!("model={{ kind = '{kind}', embedding_dim = 4, top_mlp = [16]{comma}{sizes} }}")
}

/// The model has closed most of the distance between guessing and the best possible AUC.
#[track_caller]
fn assert_learnt(summary: &Value, what: &str) {
    let number = |key: &str| summary["eval"][key].as_f64().expect("it is a number");
    let (auc, best) = (number("auc"), number("auc_achievable"));
    assert!(auc - 0.5 > 0.8 * (best - 0.5), "{what}: {auc} of {best}");
}

/// The names of a run's tensors with their shapes, from the header of the file.
fn tensors(place: &Place, run_dir: &str) -> Vec<(String, Value)> {
    let bytes = weights(place, run_dir);
    let (length, rest) = bytes.split_first_chunk().expect("there is a header");
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let header: Value = serde_json::from_slice(header).expect("the header is JSON");
    let tensors = header.as_object().expect("it has names");
    tensors.iter().map(|(name, tensor)| (name.clone(), tensor["shape"].clone())).collect()
}

fn shape_of(place: &Place, run_dir: &str, name: &str) -> Option<Value> {
    tensors(place, run_dir).into_iter().find(|(tensor, _)| tensor == name).map(|(_, shape)| shape)
}

#[test]
fn every_kind_of_model_learns_and_a_second_evaluation_is_the_same() {
    let place = Place::new();
    let data = generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
    let job = job(&place);
    for (kind, sizes) in KINDS {
        let set = model(kind, sizes);
        train(&place, &job, kind, &[&set, "device.threads=2"]).with(SUCCESS);
        let summary = summary(&place, kind);
        assert_eq!(summary["model"]["kind"], kind);
        assert_learnt(&summary, kind);
        let run_dir = place.word(kind);
        let again = run(["eval", "--run", &run_dir, "--data", &data, "--json"]).with(SUCCESS).json();
        assert_eq!(again["auc"], summary["eval"]["auc"], "{kind}");
        let one = format!("{kind}-1");
        train(&place, &job, &one, &[&set, "device.threads=1"]).with(SUCCESS);
        assert!(
            weights(&place, &one) == weights(&place, kind),
            "{kind}: 2 threads train a different model than 1"
        );
    }
    // The tensors that distinguish the kinds.
    assert_eq!(shape_of(&place, "dlrm", "top.0.weight"), Some([16, 4 + 7 * 6 / 2].into()));
    assert_eq!(shape_of(&place, "dcnv2", "cross.1.v.weight"), Some([8, 28].into()));
    assert_eq!(shape_of(&place, "dcnv2", "top.0.weight"), Some([16, 28].into()));
    assert_eq!(
        shape_of(&place, "deepfm", "wide.C1.weight").or(shape_of(&place, "deepfm", "wide.C1")),
        Some([40, 1].into())
    );
    assert_eq!(shape_of(&place, "wide-deep", "top.0.weight"), Some([16, 4 + 24].into()));
    assert_eq!(shape_of(&place, "wide-deep", "linear.weight"), Some([1, 4].into()));
    assert_eq!(shape_of(&place, "dlrm", "linear.weight"), None);
}

/// Rates with which each rule learns.
const RULES: [(&str, &str, &str); 6] = [
    ("sgd", "learning_rate = 0.3", "learning_rate = 10.0"),
    (
        "momentum",
        "learning_rate = 0.03, momentum = 0.9, nesterov = true",
        "learning_rate = 5.0, momentum = 0.5",
    ),
    ("adagrad", "learning_rate = 0.03", "learning_rate = 0.1, weight_decay = 1e-7"),
    ("rowwise-adagrad", "", "learning_rate = 0.1"),
    ("adam", "learning_rate = 0.003", "learning_rate = 0.01"),
    ("ftrl", "learning_rate = 0.1, beta = 1.0", "learning_rate = 0.1, l1 = 1e-6"),
];

#[test]
fn every_rule_learns_in_mlps_and_tables() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
    let job = job(&place);
    for (kind, dense, sparse) in RULES {
        for (which, settings) in [("dense", dense), ("sparse", sparse)] {
            let set = format!("optimizer.{which}={{ kind = '{kind}', {settings} }}");
            let run_dir = format!("{which}-{kind}");
            if settings.is_empty() {
                let set = format!("optimizer.{which}={{ kind = '{kind}', learning_rate = 1 }}");
                let refused = train(&place, &job, &run_dir, &[&set]).with(USAGE);
                refused.says(&["rowwise-adagrad keeps one sum per table row", "use adagrad"]);
                continue;
            }
            train(&place, &job, &run_dir, &[&set, "optimizer.dense_clip_norm=5"]).with(SUCCESS);
            assert_learnt(&summary(&place, &run_dir), &set);
            let kept = fs::read_to_string(place.path(&run_dir).join("job.toml")).unwrap();
            assert!(kept.contains(&format!("[optimizer.{which}]\nkind = \"{kind}\"")), "{kept}");
        }
    }
}

/// The parameters of a run by tensor name, row by row.
fn parameters(place: &Place, run_dir: &str) -> BTreeMap<String, Vec<Vec<f64>>> {
    let bytes = weights(place, run_dir);
    let (length, rest) = bytes.split_first_chunk().expect("there is a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).expect("the header is JSON");
    let tensors =
        header.as_object().expect("it has names").iter().filter(|(name, _)| *name != "__metadata__");
    let read = |(name, tensor): (&String, &Value)| {
        assert_eq!(tensor["dtype"], "F32", "{name}");
        let number = |value: &Value| value.as_u64().expect("it is a number") as usize;
        let [begin, end] = [0, 1].map(|end| number(&tensor["data_offsets"][end]));
        let numbers =
            data[begin..end].as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        let width =
            number(tensor["shape"].as_array().and_then(|shape| shape.last()).expect("it has a shape"));
        (name.clone(), numbers.collect::<Vec<_>>().chunks(width).map(<[f64]>::to_vec).collect())
    };
    tensors.map(read).collect()
}

/// What a rule subtracts in the first step from a weight, given the weight, its gradient, and the mean of the squared
/// gradients of its row.
type FirstStep = fn(f64, f64, f64) -> f64;

/// Settings of rules with their first step, according to the formulas of the job reference.
const FIRST_STEPS: [(&str, FirstStep); 9] = [
    ("kind = 'sgd', learning_rate = 0.5", |_, g, _| 0.5 * g),
    ("kind = 'sgd', learning_rate = 0.5, weight_decay = 0.25", |w, g, _| 0.5 * (g + 0.25 * w)),
    ("kind = 'momentum', learning_rate = 0.5, momentum = 0.5", |_, g, _| 0.5 * g),
    ("kind = 'momentum', learning_rate = 0.5, momentum = 0.5, nesterov = true", |_, g, _| 0.5 * 1.5 * g),
    ("kind = 'momentum', learning_rate = 0.5, nesterov = true", |_, g, _| 0.5 * 1.9 * g),
    ("kind = 'adagrad', learning_rate = 0.5, initial_accumulator = 0.25, epsilon = 0.5", |_, g, _| {
        0.5 * g / ((0.25 + g * g).sqrt() + 0.5)
    }),
    (
        "kind = 'rowwise-adagrad', learning_rate = 0.5, initial_accumulator = 0.25, epsilon = 0.5",
        |_, g, mean_square| 0.5 * g / ((0.25 + mean_square).sqrt() + 0.5),
    ),
    // The bias-corrected means of one gradient are the gradient and its square.
    ("kind = 'adam', learning_rate = 0.5, beta1 = 0.5, beta2 = 0.75, epsilon = 0.5", |_, g, _| {
        0.5 * g / (g.abs() + 0.5)
    }),
    // z = -w + g - |g| w / 0.5, as if the weight had not come from a gradient.
    ("kind = 'ftrl', learning_rate = 0.5, beta = 1.0, l1 = 0.001, l2 = 0.25", |w, g, _| {
        let z = -w / 0.5 + g - g.abs() / 0.5 * w;
        let shrunk = z.signum() * (z.abs() - 0.001).max(0.0);
        w + shrunk / ((1.0 + g.abs()) / 0.5 + 0.25)
    }),
];

/// One step of every rule from the same weights on the same samples: the gradient is what plain descent at a rate of
/// 2^20 subtracts, and every setting must apply its formula to it.
#[test]
fn every_setting_of_a_rule_acts_on_the_first_step() {
    const RATE: f64 = (1 << 20) as f64;
    let place = Place::new();
    generate(&place, SHAPE, 2000, 0);
    let job = job(&place);
    let sgd = |rate: f64| format!("kind = 'sgd', learning_rate = {rate:?}");
    let mut number = 0;
    let mut trained = |dense: &str, sparse: &str, more: &[&str]| {
        number += 1;
        let run_dir = format!("run-{number}");
        let [dense, sparse] = [("dense", dense), ("sparse", sparse)]
            .map(|(which, settings)| format!("optimizer.{which}={{ {settings} }}"));
        let sets = [&[dense.as_str(), sparse.as_str(), "train.max_steps=1"], more].concat();
        train(&place, &job, &run_dir, &sets).with(SUCCESS);
        parameters(&place, &run_dir)
    };
    let before = trained(&sgd(0.0), &sgd(0.0), &[]);
    let after = trained(&sgd(RATE), &sgd(RATE), &[]);
    // The rows of a tensor with their gradients.
    let gradients = |name: &str| -> Vec<(Vec<f64>, Vec<f64>)> {
        let rows = before[name].iter().zip(&after[name]);
        rows.map(|(before, after)| {
            let gradient = before.iter().zip(after).map(|(before, after)| (before - after) / RATE);
            (before.clone(), gradient.collect())
        })
        .collect()
    };
    let is_sparse = |name: &str| name.starts_with("embedding.");
    let norm = before
        .keys()
        .filter(|name| !is_sparse(name))
        .flat_map(|name| gradients(name).into_iter().flat_map(|(_, gradient)| gradient))
        .map(|gradient| gradient * gradient)
        .sum::<f64>()
        .sqrt();
    assert!(norm > 0.05, "the dense gradients have a norm of {norm}");

    let check = |found: &BTreeMap<String, Vec<Vec<f64>>>,
                 what: &str,
                 subtracted: &dyn Fn(&str) -> FirstStep| {
        for (name, found) in found {
            for (row, (found, (weights, gradient))) in found.iter().zip(gradients(name)).enumerate() {
                // No id names the row, or the embedding does not contribute to any loss.
                if is_sparse(name) && gradient.iter().all(|gradient| *gradient == 0.0) {
                    continue;
                }
                let mean_square = gradient.iter().map(|g| g * g).sum::<f64>() / gradient.len() as f64;
                for ((found, weight), gradient) in found.iter().zip(&weights).zip(&gradient) {
                    let moved = subtracted(name)(*weight, *gradient, mean_square);
                    // A dozen roundings of f32, and those of the gradient itself.
                    let tolerance = 16.0 / f64::from(1 << 24) * (weight.abs() + moved.abs() + gradient.abs());
                    let exact = weight - moved;
                    assert!(
                        (found - exact).abs() <= tolerance,
                        "{what}: {name}, row {row}: {found} instead of {exact}, from {weight} and {gradient}"
                    );
                }
            }
        }
    };
    let still: FirstStep = |_, _, _| 0.0;
    let plain: FirstStep = |_, g, _| 0.5 * g;
    for (settings, subtracted) in FIRST_STEPS {
        check(&trained(&sgd(0.0), settings, &[]), settings, &|name| {
            if is_sparse(name) { subtracted } else { still }
        });
        if !settings.contains("rowwise") {
            check(&trained(settings, &sgd(0.0), &[]), settings, &|name| {
                if is_sparse(name) { still } else { subtracted }
            });
        }
    }

    // A norm limit below the dense gradients' norm scales only those down; a higher one changes nothing.
    let clip = format!("optimizer.dense_clip_norm={:?}", norm / 4.0);
    let found = trained(&sgd(0.5), &sgd(0.5), &[&clip]);
    check(&found, &clip, &|name| if is_sparse(name) { plain } else { |_, g, _| 0.5 * g / 4.0 });
    let clip = format!("optimizer.dense_clip_norm={:?}", norm * 1.01);
    check(&trained(&sgd(0.5), &sgd(0.5), &[&clip]), &clip, &|_| plain);

    // The first of four steps of warmup, for all rates.
    let warmup = "optimizer.schedule={ kind = 'step', factor = 0.5, milestones = [9], warmup_steps = 4 }";
    check(&trained(&sgd(0.5), &sgd(0.5), &[warmup]), warmup, &|_| |_, g, _| 0.125 * g);

    // Separate tables: one with another rule, one with another rate.
    let tables = "table=[{ columns = ['C1'], optimizer = { kind = 'momentum', learning_rate = 0.25 } }, \
                  { columns = ['C3'], learning_rate_factor = 0.125 }]";
    check(&trained(&sgd(0.5), &sgd(0.5), &[tables]), tables, &|name| match name {
        "embedding.C1" => |_, g, _| 0.25 * g,
        "embedding.C3" => |_, g, _| 0.0625 * g,
        _ => plain,
    });
}

#[test]
fn the_wide_part_has_its_own_rule() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
    let job = job(&place);
    let set = model("wide-deep", "");
    // A penalty that nothing outweighs keeps all its weights at 0.
    let wide = |l1: &str| format!("optimizer.wide={{ kind = 'ftrl', learning_rate = 0.1, l1 = {l1} }}");
    train(&place, &job, "off", &[&set, &wide("1e30")]).with(SUCCESS);
    train(&place, &job, "on", &[&set, &wide("0")]).with(SUCCESS);
    let zeros = |run_dir: &str| {
        // The tables of first-order terms are the last tensors: one number for each of 113 rows.
        let bytes = weights(&place, run_dir);
        let last = &bytes[bytes.len() - 4 * 113..];
        last.chunks_exact(4).filter(|number| *number == [0; 4] || *number == (-0.0f32).to_le_bytes()).count()
    };
    assert_eq!(zeros("off"), 113);
    assert!(zeros("on") < 10, "{}", zeros("on"));
    assert_learnt(&summary(&place, "on"), "wide");
}

#[test]
fn schedules_are_followed_step_by_step() {
    let place = Place::new();
    generate(&place, SHAPE, 5000, 0);
    let job = job(&place);
    // The dense rate is 0.03; computed by hand at steps 10, 20, 30.
    let cases = [
        ("kind = 'step', factor = 0.1, every_steps = 10", [1.0, 0.1, 0.01]),
        ("kind = 'step', factor = 0.5, milestones = [19, 29], warmup_steps = 20", [0.5, 0.5, 0.25]),
        ("kind = 'cosine', decay_start_step = 10, decay_steps = 20, end_factor = 0.5", [1.0, 0.75, 0.5]),
        (
            "kind = 'warmup-polynomial', warmup_steps = 40, decay_start_step = 40, decay_steps = 9",
            [0.25, 0.5, 0.75],
        ),
    ];
    for (number, (settings, factors)) in cases.into_iter().enumerate() {
        let run_dir = format!("run-{number}");
        let set = format!("optimizer.schedule={{ {settings} }}");
        train(&place, &job, &run_dir, &[&set, "train.max_steps=30"]).with(SUCCESS);
        let lines = json_lines(&place.path(&run_dir).join("metrics.jsonl"));
        let rates: Vec<_> = lines.iter().map(|line| line["dense_learning_rate"].as_f64().unwrap()).collect();
        assert_eq!(rates.len(), 3);
        for (rate, factor) in rates.iter().zip(factors) {
            assert!((rate - 0.03 * factor).abs() < 1e-12, "{settings}: {rates:?}");
        }
    }
}

#[test]
fn columns_share_a_table() {
    let place = Place::new();
    let shape = SHAPE.replace("[40, 30, 20, 12, 8, 3]", "[40, 40, 20, 20, 8, 3]");
    generate(&place, &shape, SAMPLES, EVAL_SAMPLES);
    let job = job(&place);
    let sets = [
        "table=[{ columns = ['C1', 'C2'] }, { columns = ['C3', 'C4'], name = 'pair' }]",
        "table.1.learning_rate_factor=0",
    ];
    train(&place, &job, "shared", &sets).with(SUCCESS);
    train(&place, &job, "own", &[]).with(SUCCESS);
    let parameters = |run_dir: &str| summary(&place, run_dir)["model"]["embedding_parameters"].clone();
    assert_eq!((parameters("own"), parameters("shared")), ((131 * 4).into(), (71 * 4).into()));
    assert_eq!(shape_of(&place, "shared", "embedding.C1+C2"), Some([40, 4].into()));
    assert_eq!(shape_of(&place, "shared", "embedding.pair"), Some([20, 4].into()));
    assert_eq!(shape_of(&place, "shared", "embedding.C2"), None);
    let printed = run(["check", &job, "--set", sets[0]]).with(SUCCESS).stdout;
    assert!(printed.contains(": 4 tables with 71 rows"), "{printed}");

    // A table's own vector length and rule, if the kind allows them.
    let set = model("dcnv2", "bottom_mlp = [4], cross_layers = 1");
    let table = "table=[{ columns = ['C1'], dim = 6, optimizer = { kind = 'adam', learning_rate = 0.01 } }]";
    train(&place, &job, "dims", &[&set, table]).with(SUCCESS);
    assert_eq!(shape_of(&place, "dims", "embedding.C1"), Some([40, 6].into()));
    assert_eq!(shape_of(&place, "dims", "top.0.weight"), Some([16, 4 + 6 + 5 * 4].into()));
    assert_learnt(&summary(&place, "dims"), "dims");

    let refused = |set: &str, words: &[&str]| {
        train(&place, &job, "refused", &[set]).with(USAGE).says(words);
    };
    refused(
        "table=[{ columns = ['C1', 'C3'] }]",
        &["cannot share a table: they have 40 and 20 rows", "--set"],
    );
    refused("table=[{ columns = ['c1'] }]", &["the column `c1` does not exist: did you mean `C1`?"]);
    refused(
        "table=[{ columns = ['C1'], dim = 8 }]",
        &["dim must equal model.embedding_dim (4), not 8: dlrm multiplies"],
    );
    assert!(!place.path("refused").exists());
}

/// Raw records with two labels: the first follows from `C1`, the second from `C2`.
fn records(count: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut bytes = Vec::new();
    for _ in 0..count {
        let ids = [next() % 40, next() % 30].map(|id| id as u32);
        let labels = [u32::from(ids[0].is_multiple_of(3)), u32::from(ids[1] < 10)];
        let noisy = labels.map(|label| if next().is_multiple_of(10) { 1 - label } else { label });
        for field in noisy.into_iter().chain([1.0f32.to_bits()]).chain(ids) {
            bytes.extend(field.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn labels_are_learnt_together_and_evaluated_separately() {
    let place = Place::new();
    let shape = place.file("shape.toml", "name = \"pair\"\ndense = 1\nrows = [40, 30]\n");
    let (train_file, eval_file) =
        (place.file("train.bin", records(20_000, 1)), place.file("eval.bin", records(3000, 2)));
    let text = format!(
        "\
name = \"pair\"
data.raw = {{ shape = {shape:?}, train = [{train_file:?}], eval = [{eval_file:?}], labels = 2 }}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 128 }}
"
    );
    let job = place.file("pair.toml", text);
    train(&place, &job, "both", &[]).with(SUCCESS);
    let eval = summary(&place, "both")["eval"].clone();
    let auc = |label: &str| eval["heads"][label]["auc"].as_f64().unwrap();
    // A tenth of the labels is flipped, so about 0.9 is the best possible AUC.
    assert!(auc("label1") > 0.85 && auc("label2") > 0.85, "{eval:#}");
    assert_eq!(eval["auc"], eval["heads"]["label1"]["auc"]);

    // `init` writes a job for the records, after trials on them if they are few.
    let begun = place.word("begun.toml");
    let init = |records: &str, more: &[&str]| {
        let args = ["init", "--raw", records, "--eval", &eval_file, "--shape", &shape, "--labels", "2"];
        run([&args[..], more].concat()).with(SUCCESS)
    };
    let tried = init(&eval_file, &["--json", "--out", &place.word("tried.toml")]).json();
    assert!(tried["auc"].as_f64().unwrap() > 0.6, "{tried:#}");
    init(&train_file, &["--quick", "--out", &begun]);
    train(&place, &begun, "begun", &[]).with(SUCCESS);
    assert_eq!(summary(&place, "begun")["name"], "train");
    assert!(summary(&place, "begun")["eval"]["heads"]["label2"]["auc"].as_f64().unwrap() > 0.8);

    // One probability per head, and the same ones for the same records in any form.
    let data = place.word("data");
    let args =
        ["convert", "hugectr-raw", &train_file, "--eval", &eval_file, "--shape", &shape, "--labels", "2"];
    run([&args[..], &["--dense-dtype", "f32", "--out", &data]].concat()).with(SUCCESS);
    let predict = |out: &str, rows: &[&str]| {
        let (run_dir, out) = (place.word("both"), place.word(out));
        run([&["predict", "--run", &run_dir, "--out", &out], rows].concat()).with(SUCCESS);
        fs::read_to_string(out).unwrap()
    };
    let predicted = predict("raw.csv", &[&eval_file]);
    assert!(predicted.starts_with("row,label1,label2\n1,0."), "{}", &predicted[..60]);
    assert!(
        predicted == predict("data.csv", &["--data", &data]),
        "records and their dataset have different scores"
    );

    // Only the named heads are learnt, in their order and with their weights.
    let heads = "head=[{ label = 'label2' }, { label = 'label1', weight = 1e-6 }]";
    train(&place, &job, "named", &[heads]).with(SUCCESS);
    let eval = summary(&place, "named")["eval"].clone();
    assert_eq!(eval["auc"], eval["heads"]["label2"]["auc"]);
    let auc = |label: &str| eval["heads"][label]["auc"].as_f64().unwrap();
    assert!(auc("label2") > 0.85 && auc("label1") < 0.8, "{eval:#}");
    train(&place, &job, "one", &["head=[{ label = 'label2' }]"]).with(SUCCESS);
    let eval = summary(&place, "one")["eval"].clone();
    assert!(eval["auc"].as_f64().unwrap() > 0.85 && eval.get("heads").is_none(), "{eval:#}");
    let refused = train(&place, &job, "refused", &["head=[{ label = 'lable2' }]"]).with(USAGE);
    refused.says(&["the dataset has no label `lable2`: did you mean `label2`?"]);
}

#[test]
fn init_writes_a_job_that_trains() {
    let place = Place::new();
    let data = generate(&place, SHAPE, SAMPLES, EVAL_SAMPLES);
    for kind in ["dlrm", "dcnv2", "deepfm", "wide-deep"] {
        let (out, run_dir) = (place.word(&format!("{kind}.toml")), format!("run-{kind}"));
        let args = ["init", "--data", &data, "--model", kind, "--quick", "--out", &out];
        run(args).with(SUCCESS).stdout_says(&out);
        run(["check", &out]).with(SUCCESS);
        train(&place, &out, &run_dir, &[]).with(SUCCESS);
        let summary = summary(&place, &run_dir);
        assert_eq!((&summary["name"], &summary["model"]["kind"]), (&"data".into(), &kind.into()));
        assert_learnt(&summary, kind);
    }
    let out = place.word("dlrm.toml");
    let before = fs::read(&out).unwrap();
    // Editors find the schema of this version by the first line.
    let text = String::from_utf8(before.clone()).unwrap();
    let schema = text.lines().next().and_then(|line| line.strip_prefix("#:schema file://")).unwrap();
    let expected = fs::read(crate::support::root().join("docs/reference/job.schema.json")).unwrap();
    assert!(fs::read(schema).unwrap() == expected, "{schema}");
    run(["init", "--data", &data, "--out", &out])
        .with(USAGE)
        .says(&["already exists and is not overwritten"]);
    assert_eq!(fs::read(&out).unwrap(), before);
    let refused =
        run(["init", "--data", &data, "--model", "dlmr", "--out", &place.word("x.toml")]).with(USAGE);
    refused.says(&["dlrm"]);
    run(["init", "--data", &place.word("nothing"), "--out", &place.word("x.toml")])
        .with(USAGE)
        .says(&["no dataset at"]);
    assert!(!place.path("x.toml").exists());
}

#[test]
fn a_model_keeps_its_settings() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 0);
    let job = job(&place);
    let set = model("dcnv2", "bottom_mlp = [4], cross_layers = 3, cross_rank = 2");
    train(&place, &job, "run", &[&set]).with(SUCCESS);
    let kept = json_file(&place.path("run/model/model.json"));
    let interaction = &kept["content"]["spec"]["interaction"];
    assert_eq!(*interaction, serde_json::json!({ "kind": "cross", "layers": 3, "rank": 2 }));
}
