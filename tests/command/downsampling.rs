//! Rates after downsampling: a model that was trained on a share of the negatives predicts the rates of all rows.

use std::fs;

use serde_json::Value;

use crate::support::{Place, SUCCESS, USAGE, json_file, numbers, run};

const KEPT: f64 = 0.05;
const SCHEMA: &str = "\
[label]
column = \"click\"
negatives_kept = 0.05

[[categorical]]
column = \"user\"

[[categorical]]
column = \"item\"
";

/// The rate of a pair of categories.
fn rate(user: u64, item: u64) -> f64 {
    let logit = -4.5 + 0.4 * user as f64 - 0.3 * item as f64;
    1.0 / (1.0 + (-logit).exp())
}

/// Returns rows of all samples, and those that are left after downsampling.
fn rows(count: usize, seed: u64) -> [Vec<String>; 2] {
    let mut next = numbers(seed);
    let mut rows = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let (user, item) = (next() % 6, next() % 4);
        let click = ((next() % 1_000_000) as f64) < 1e6 * rate(user, item);
        let row = format!("{},u{user},i{item}", u64::from(click));
        if click || ((next() % 1_000_000) as f64) < 1e6 * KEPT {
            rows[1].push(row.clone());
        }
        rows[0].push(row);
    }
    rows
}

/// A place with a dataset `data` of downsampled rows, one `all` of all rows, and a run `run` on the first one.
fn trained() -> Place {
    let place = Place::new();
    let [_, train] = rows(150_000, 1);
    let [all, eval] = rows(60_000, 2);
    for (name, rows) in [("train", &train), ("all", &all), ("eval", &eval)] {
        place.file(&format!("{name}.csv"), format!("click,user,item\n{}\n", rows.join("\n")));
    }
    let (schema, data) = (place.file("schema.toml", SCHEMA), place.word("data"));
    let (train, eval, all) = (place.word("train.csv"), place.word("eval.csv"), place.word("all.csv"));
    run(["convert", "csv", &train, "--eval", &eval, "--schema", &schema, "--out", &data]).with(SUCCESS);
    let like = ["--like", &data, "--negatives-kept", "1"];
    let args = ["convert", "csv", &train, "--eval", &all, "--out", &place.word("all")];
    run([&args[..], &like].concat()).with(SUCCESS);
    let text = format!(
        "\
name = \"small\"
data.dir = {data:?}
model = {{ kind = \"dlrm\", embedding_dim = 4, top_mlp = [16] }}
optimizer.dense = {{ kind = \"adagrad\", learning_rate = 0.05 }}
optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 0.1 }}
train = {{ batch_size = 64, epochs = 4 }}
checkpoint.every_steps = 500
[[eval.set]]
name = \"all\"
data = {all:?}
",
        all = place.word("all"),
    );
    let job = place.file("job.toml", text);
    run(["train", &job, "--quiet", "--run-dir", &place.word("run")]).with(SUCCESS);
    place
}

#[track_caller]
fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or_else(|| panic!("{key} is a number in {of}"))
}

fn evaluate(place: &Place, more: &[&str]) -> Value {
    run([&["eval", "--run", &place.word("run"), "--json"][..], more].concat()).with(SUCCESS).json()
}

#[test]
fn predictions_are_the_rates_of_all_rows() {
    let place = trained();
    let pairs = (0..24).map(|pair| format!("u{},i{}\n", pair / 4, pair % 4)).collect::<String>();
    let pairs = place.file("pairs.csv", format!("user,item\n{pairs}"));
    let predict = |model: &str, more: &[&str]| -> Vec<f64> {
        let out = place.word("out.csv");
        run([&["predict", "--run", &place.word(model), &pairs, "--out", &out][..], more].concat())
            .with(SUCCESS);
        let text = fs::read_to_string(&out).unwrap();
        text.lines().skip(1).map(|line| line.split_once(',').unwrap().1.parse().unwrap()).collect()
    };
    let (found, own) = (predict("run", &[]), predict("run", &["--no-correction"]));
    let (mut errors, mut own_errors) = (0.0, 0.0);
    for (pair, (found, own)) in (0..).zip(found.iter().zip(&own)) {
        let expected = rate(pair / 4, pair % 4);
        errors += (found / expected).ln().abs() / 24.0;
        own_errors += (own / expected).ln().abs() / 24.0;
    }
    // Some 4000 clicks determine nine numbers; a rate without the correction is up to 20 times as high.
    assert!(errors < 0.15 && own_errors > 2.0, "{errors}, {own_errors}: {found:?}");
    // Checkpoints know the share from their columns, and exports from their model.json.
    let latest = fs::read_dir(place.path("run/checkpoints")).unwrap().next().unwrap().unwrap().file_name();
    let checkpoint = format!("run/checkpoints/{}", latest.to_str().unwrap());
    let of_checkpoint = predict(&checkpoint, &[]);
    assert_eq!(predict(&checkpoint, &["--no-correction"]).len(), of_checkpoint.len());
    assert!(of_checkpoint.iter().all(|&rate| rate < 0.2), "{of_checkpoint:?}");
    let (model, export) = (place.word("run"), place.word("export"));
    run(["export", &model, "--format", "safetensors", "--out", &export]).with(SUCCESS);
    assert_eq!(predict("export", &[]), found);
    run(["export", &model, "--format", "safetensors", "--no-correction", "--out", &place.word("other")])
        .with(USAGE)
        .says(&["--no-correction needs --format onnx or triton"]);
}

#[test]
fn evaluations_are_against_the_rates_of_all_rows() {
    let place = trained();
    let (sampled, all) = (evaluate(&place, &[]), evaluate(&place, &["--data", &place.word("all")]));
    let own = evaluate(&place, &["--no-correction"]);
    // Some 1500 clicks: their number has a deviation of 3 %.
    for evaluated in [&sampled, &all] {
        let calibration = number(evaluated, "calibration");
        assert!((calibration - 1.0).abs() < 0.12, "{evaluated}");
    }
    assert!((number(&sampled, "calibration_uncorrected") - 1.0).abs() < 0.12, "{sampled}");
    assert!(number(&all, "calibration_uncorrected") > 5.0, "{all}");
    for key in ["log_loss", "label_rate", "normalized_entropy"] {
        let (sampled, all, own) = (number(&sampled, key), number(&all, key), number(&own, key));
        assert!((sampled / all - 1.0).abs() < 0.1, "{key}: {sampled}, {all}");
        assert!(key == "normalized_entropy" || own > 2.0 * all, "{key}: {own}, {all}");
    }
    assert_eq!((own["auc"].clone(), own.get("calibration_uncorrected")), (sampled["auc"].clone(), None));
    assert_eq!(own["calibration"], sampled["calibration_uncorrected"]);
    // Files are taken to be downsampled as the training data were, as a dataset that is made of them is.
    let mut of_files = evaluate(&place, &[&place.word("eval.csv")]);
    of_files.as_object_mut().unwrap().retain(|key, _| sampled.get(key).is_some());
    assert_eq!(of_files, sampled);
    // A run evaluates in the same way, and on further datasets with their own share.
    let summary = crate::support::summary(&place, "run");
    for key in ["calibration", "calibration_uncorrected", "log_loss", "label_rate"] {
        assert!((number(&summary["eval"], key) / number(&sampled, key) - 1.0).abs() < 1e-9, "{key}");
        assert!(
            (number(&summary["eval"]["sets"]["all"], key) / number(&all, key) - 1.0).abs() < 1e-9,
            "{key}"
        );
    }
    let text = run(["eval", "--run", &place.word("run"), "--data", &place.word("all")]).with(SUCCESS);
    let shown = format!(
        "calibration         {:.4}   (uncorrected: {:.4})\n",
        number(&all, "calibration"),
        number(&all, "calibration_uncorrected")
    );
    text.stdout_says(&shown);
}

#[test]
fn datasets_of_different_shares_are_not_merged() {
    let place = Place::new();
    let csv = place.file("rows.csv", "click,user,item\n1,a,x\n0,b,y\n");
    let schema = place.file("schema.toml", SCHEMA);
    let convert = |out: &str, more: &[&str]| {
        let args = ["convert", "csv", &csv, "--schema", &schema, "--out", &place.word(out)];
        run([&args[..], more].concat())
    };
    convert("a", &[]).with(SUCCESS);
    convert("b", &["--negatives-kept", "click=0.5"]).with(SUCCESS);
    convert("c", &["--negatives-kept", "0.05"]).with(SUCCESS);
    // Earlier versions of Rankine must refuse a dataset whose predictions need a correction, and no other one.
    convert("all", &["--negatives-kept", "1"]).with(SUCCESS);
    let format = |data: &str| json_file(&place.path(data).join("dataset.json"))["format"].clone();
    assert_eq!(["a", "b", "all"].map(format), [3, 3, 2]);
    let inspected = run(["inspect", &place.word("b")]).with(SUCCESS);
    inspected.stdout_says("\n  negatives kept: 0.5 of label click\n");
    let merge = |other: &str| {
        run(["dataset", "merge", &place.word("a"), &place.word(other), "--out", &place.word("merged")])
    };
    merge("b")
        .with(USAGE)
        .says(&["negatives_kept of label click is 0.5 in A and 0.05 in B", "Keep the same share"]);
    merge("c").with(SUCCESS);
    convert("d", &["--negatives-kept", "buy=0.5"])
        .with(USAGE)
        .says(&["no label has that name; the labels are click"]);
    for wrong in ["0", "1.5", "click=", "x"] {
        convert("e", &["--negatives-kept", wrong]).with(USAGE).says(&["a share above 0 and at most 1"]);
    }
}
