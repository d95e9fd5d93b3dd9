//! Models that no memory holds are refused before anything is allocated, with the way out.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine_base::sealed;

use crate::support::{BAD_DATA, Place, SHAPE, USAGE, generate, job, json_file, run};

/// The largest number that a manifest can have instead of the rows of a table.
#[test]
fn a_dataset_with_an_impossible_table_is_refused() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 600, 200);
    let (job, path) = (job(&place), place.path("data/dataset.json"));
    let envelope = json_file(&path);
    let format = u32::try_from(envelope["format"].as_u64().unwrap()).unwrap();
    let mut content = envelope["content"].clone();
    content["schema"]["categorical"][0]["rows"] = u64::MAX.into();
    fs::write(&path, sealed::to_json(envelope["kind"].as_str().unwrap(), format, &content)).unwrap();
    for args in [
        &["train", &job, "--run-dir", &place.word("run")][..],
        &["check", &job, "--here"],
        &["plan", &job],
        &["inspect", &data],
    ] {
        let said =
            ["dataset.json is damaged", "a table of 18446744073709551615 rows; the limit is 1099511627776"];
        run(args).with(BAD_DATA).says(&said);
    }
    assert!(!place.path("run").exists());
}

/// The pairs of 10,000 vectors are 50 million inputs of the top MLP for each sample.
#[test]
fn a_batch_whose_interactions_no_memory_holds_is_refused() {
    let place = Place::new();
    let shape = format!("name = \"wide\"\ndense = 0\nrows = {:?}\n", [2; 10_000]);
    generate(&place, &shape, 64, 64);
    let (job, run_dir) = (job(&place), place.word("run"));
    let sets = ["model={ kind = 'dlrm', embedding_dim = 4, top_mlp = [1] }", "train.batch_size=65536"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    for command in [&["train", &job, "--run-dir", &run_dir][..], &["check", &job, "--here"]] {
        run(command.iter().copied().chain(sets.clone())).with(USAGE).says(&[
            "a batch takes ",
            " for activations and interactions",
            "use a smaller train.batch_size and eval.batch_size",
            "dlrm, which multiplies all 49995000 pairs of its vectors",
        ]);
    }
    assert!(!place.path("run").exists());
}
