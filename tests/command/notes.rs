//! What a training says on standard error while it runs.

use std::fs;

use crate::support::{Ended, Place, SHAPE, SUCCESS, generate, job, rankine, summary};

/// Trains into the folder `run` of the place, without `--quiet`.
fn train(place: &Place, job: &str, more: &[&str]) -> Ended {
    let mut command = rankine();
    command.args(["train", job, "--run-dir", &place.word("run"), "--set", "checkpoint.every_steps=4"]);
    command.args(more);
    Ended::of(command)
}

#[test]
fn a_training_says_what_it_trains_and_saves_and_where_it_resumes() {
    let place = Place::new();
    generate(&place, SHAPE, 1300, 400);
    let job = job(&place);
    let sets = ["--set", "train.log_every_steps=2", "--set", "eval.every_steps=6", "--set", "device.ranks=2"];
    let first = train(&place, &job, &[&sets[..], &["--set", "train.max_steps=6"]].concat()).with(SUCCESS);
    // The AUC is that of the last evaluation.
    let eval = &summary(&place, "run")["eval"];
    let [auc, log_loss] = ["auc", "log_loss"].map(|key| eval[key].as_f64().expect("a number"));
    let evaluated = format!("\nstep 6: evaluation: AUC {auc:.5}, log loss {log_loss:.5}\n");
    // 113 rows of 4 numbers. Layers of 4 to 16 to 4, and, from 21 products of 7 vectors and the dense vector, of 25 to
    // 16 to 1, with biases.
    first.says(&[
        "with 2 ranks on 1 node: 6 tables with 452 parameters, 581 dense parameters; reading with ",
        "\ntraining 256/768 samples  ",
        " samples/s  step 2  loss 0.",
        "\nstep 4: checkpoint saved, ",
        " s; training waited for 0.",
        &evaluated,
    ]);

    // As if the process had been killed after step 6.
    fs::remove_file(place.path("run/summary.json")).expect("the run was complete");
    let resumed = train(&place, &job, &[&sets[..], &["--resume"]].concat()).with(SUCCESS);
    let from = format!("resuming after step 4 from {}", place.word("run/checkpoints/step-4"));
    let shown = format!("  evaluation AUC {auc:.5}  ");
    resumed.says(&[
        &*from,
        "\ntraining 768/1300 samples  ",
        &*evaluated,
        "\ntraining 1280/1300 samples  ",
        &*shown,
    ]);

    // An epoch of 11 steps, and two more.
    let more = ["--restart", "--set", "train.epochs=2", "--set", "train.max_steps=13"];
    let again = train(&place, &job, &[&sets[..], &more].concat()).with(SUCCESS);
    again.says(&["starting over at step 0", "\ntraining 256/1556 samples  "]);
}

#[test]
fn a_quiet_training_says_nothing() {
    let place = Place::new();
    generate(&place, SHAPE, 1300, 400);
    let said = train(&place, &job(&place), &["--quiet"]).with(SUCCESS).stderr;
    assert_eq!(said, "");
}
