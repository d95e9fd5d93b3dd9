//! Samples from which a metric is not defined, or nothing can be learnt, are refused with the way out.

use std::fmt::Write;

use crate::support::{BAD_DATA, Ended, Place, SUCCESS, USAGE, run, summary, train};

const SCHEMA: &str = "\
label = { column = \"clicked\" }
weight = { column = \"weight\" }
[[categorical]]
column = \"user\"
[[categorical]]
column = \"item\"
";
const ROWS: u32 = 600;

/// Converts rows, and writes a job for them. Of each row, `values` returns the label and the weight.
fn convert(place: &Place, name: &str, values: impl Fn(u32) -> (u32, &'static str)) -> (Ended, String) {
    let mut text = "user,item,clicked,weight\n".to_owned();
    for row in 0..ROWS {
        let (label, weight) = values(row);
        writeln!(text, "u{},i{},{label},{weight}", row % 7, row % 11).expect("text is written to memory");
    }
    let (rows, schema) = (place.file(&format!("{name}.csv"), text), place.file("schema.toml", SCHEMA));
    let data = place.word(name);
    let converted = run(["convert", "csv", &rows, "--schema", &schema, "--out", &data]);
    let job = format!(
        "\
name = \"one-class\"
data.dir = {data:?}
model = {{ kind = \"wide-deep\", embedding_dim = 4, top_mlp = [4] }}
optimizer.dense = {{ kind = \"sgd\", learning_rate = 0.05 }}
optimizer.sparse = {{ kind = \"sgd\", learning_rate = 0.1 }}
train = {{ batch_size = 60, validation = \"last:0.1\" }}
eval.every_steps = 4
"
    );
    (converted, place.file(&format!("{name}.toml"), job))
}

/// The class of the held-out samples is the same after every step: nothing would ever be better.
#[test]
fn a_metric_that_decides_must_be_defined() {
    const AUC: &str = "train.early_stopping={ patience = 2 }";
    const LOG_LOSS: &str = "train.early_stopping={ patience = 2, metric = 'log_loss' }";
    let place = Place::new();
    for class in [0, 1] {
        let name = format!("only-{class}");
        let (converted, job) =
            convert(&place, &name, |row| (if row < ROWS / 10 * 9 { row % 2 } else { class }, "1"));
        converted.with(SUCCESS);
        let lacks = format!("the validation set has no sample with `clicked` = {}", 1 - class);
        for (number, (set, key)) in
            [(AUC, "train.early_stopping.metric"), ("eval.target_auc=0.9", "eval.target_auc")]
                .iter()
                .enumerate()
        {
            train(&place, &job, &format!("{name}-{number}"), &[set]).with(USAGE).says(&[
                key,
                &lacks,
                "train.validation",
            ]);
        }
        train(&place, &job, &format!("{name}-ranks"), &[AUC, "device.kind=cpu", "device.ranks=2"])
            .with(USAGE)
            .says(&[&lacks]);
        // The log loss needs one class only, and so does a training in which no metric decides.
        let trained = format!("{name}-trained");
        train(&place, &job, &trained, &[LOG_LOSS]).with(SUCCESS);
        assert!(summary(&place, &trained)["best"]["step"].is_u64());
        train(&place, &job, &format!("{name}-plain"), &[]).with(SUCCESS);
    }
}

#[test]
fn a_weight_that_would_become_0_is_a_bad_row() {
    let place = Place::new();
    let (converted, _) = convert(&place, "tiny", |row| (row % 2, if row == 41 { "1e-300" } else { "1" }));
    converted.with(BAD_DATA).says(&["'1e-300' is not a weight: it must be 0, or a number from 1.5e-45"]);
}

#[test]
fn a_part_whose_samples_all_weigh_0_is_refused_before_training() {
    let place = Place::new();
    let held_out = ROWS / 10 * 9;
    for (name, part, weighs) in [
        ("train", "train", Box::new(|row: u32| row >= held_out) as Box<dyn Fn(u32) -> bool>),
        ("validation", "validation", Box::new(|row| row < held_out)),
    ] {
        let (converted, job) = convert(&place, name, |row| (row % 2, if weighs(row) { "2" } else { "0" }));
        converted.with(SUCCESS);
        let run_dir = format!("{name}-run");
        let said = format!("all samples of the {part} part of {} weigh 0", place.word(name));
        train(&place, &job, &run_dir, &[]).with(BAD_DATA).says(&[&said, "convert its rows again"]);
        assert!(!place.path(&run_dir).exists());
        run(["check", &job, "--here"]).with(BAD_DATA).says(&[&said]);
    }
    // One that weighs something is enough, wherever it is.
    let (converted, job) =
        convert(&place, "one", |row| (row % 2, if row == 533 || row >= held_out { "2" } else { "0" }));
    converted.with(SUCCESS);
    train(&place, &job, "one-run", &[]).with(SUCCESS);
}
