//! Rankine on real clicks: a job that ships with it reaches the AUC that it promises.
//!
//! The log is not part of the repository. `RANKINE_TEST_DATA` names the folder where it lies, in
//! `criteo-kaggle-first15k/train.tsv`: the first 15,000 rows of Criteo's Kaggle set.

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use support::{Place, SUCCESS, data_folder, root, run, summary, told, train, word};

mod support;

/// The mean over the seeds must not be below this; it is 0.744 when this is written.
const AUC_MIN: f64 = 0.722;
const SEEDS: [u64; 3] = [1, 2, 3];

fn main() -> ExitCode {
    let log = data_folder().join("criteo-kaggle-first15k/train.tsv");
    let found = log.is_file();
    if !found {
        told(&format!("skipped: {} was not found; RANKINE_TEST_DATA names its folder", log.display()));
    }
    let trial = Trial::test("criteo_15k_reaches_its_auc", move || criteo_15k_reaches_its_auc(&log));
    libtest_mimic::run(&Arguments::from_args(), vec![trial.with_ignored_flag(!found)]).exit_code()
}

fn criteo_15k_reaches_its_auc(log: &Path) -> Result<(), Failed> {
    let place = Place::new();
    let data = place.word("data");
    let args =
        ["convert", "criteo-tsv", &word(log), "--out", &data, "--split", "last:0.2", "--min-count", "2"];
    let converted = run(args).with(SUCCESS).stdout;
    if !converted.contains("(12000 train, 3000 eval)\nrows bad    0\n") {
        return Err(format!("these are not the first 15,000 rows:\n{converted}").into());
    }
    let job = word(&root().join("configs/criteo-15k.toml"));
    let aucs = SEEDS.map(|seed| {
        let run_dir = format!("seed-{seed}");
        let sets = [format!("seed={seed}"), format!("data.dir={data}")];
        train(&place, &job, &run_dir, &sets.each_ref().map(String::as_str)).with(SUCCESS);
        summary(&place, &run_dir)["eval"]["auc"].as_f64().expect("the evaluation part has both labels")
    });
    let mean = aucs.iter().sum::<f64>() / aucs.len() as f64;
    told(&format!("criteo-15k: mean AUC {mean:.5} over the seeds {SEEDS:?}: {aucs:.5?}"));
    if mean < AUC_MIN {
        return Err(format!("the mean AUC {mean:.5} is below {AUC_MIN}").into());
    }
    Ok(())
}
