//! `rankine ckpt delta`: which models have a delta, and what it says of them. `outputs` tests that a delta appears
//! complete or not at all, and the library's tests that it leads to the later model.

use std::fs;

use crate::support::dynamic::place;
use crate::support::{BAD_DATA, Ended, Place, SUCCESS, USAGE, generate, job, run, train, tree};

/// Writes the delta between two models of a place.
fn delta(place: &Place, base: &str, run_dir: &str, out: &str) -> Ended {
    run(["ckpt", "delta", &place.word(base), &place.word(run_dir), "--out", &place.word(out), "--json"])
}

#[test]
fn a_delta_names_its_models_and_is_verified() {
    let (place, job) = place();
    train(&place, &job, "run", &[]).with(SUCCESS);
    let steps = ["run/checkpoints/step-40", "run/checkpoints/step-80", "run"];
    let written = delta(&place, steps[0], steps[1], "delta").with(SUCCESS).json();
    let summary = &written["summary"];
    assert_eq!(
        (summary["base"]["steps"].as_u64(), summary["result"]["steps"].as_u64()),
        (Some(40), Some(80))
    );
    let count = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("{key} is a count in {summary}"));
    // 45 users have rows at any time; some of them are others than before.
    assert!((5..=45).contains(&count("evicted")), "{summary}");
    assert!(count("admitted") >= count("evicted"), "{summary}");
    let bytes: usize = tree(&place.path("delta")).values().map(Vec::len).sum();
    assert_eq!(count("bytes"), bytes as u64);
    run(["ckpt", "verify", &place.word("delta")]).with(SUCCESS).stdout_says("3 files, ");
    run(["ckpt", "delta", &place.word(steps[1]), &place.word(steps[2]), "--out", &place.word("text")])
        .with(SUCCESS)
        .stdout_says("steps 80 to 94: ");
    // The same models, saved in another way.
    let export = place.word("export");
    run(["export", &place.word(steps[0]), "--format", "safetensors", "--out", &export]).with(SUCCESS);
    delta(&place, "export", steps[1], "same").with(SUCCESS);
    assert_eq!(tree(&place.path("same")), tree(&place.path("delta")));

    let shard = place.path("delta/shard-00000.safetensors");
    let mut damaged = fs::read(&shard).expect("it is there");
    *damaged.last_mut().expect("it has bytes") ^= 1;
    fs::write(&shard, damaged).expect("it is writable");
    run(["ckpt", "verify", &place.word("delta")])
        .with(BAD_DATA)
        .says(&["shard-00000.safetensors is damaged"]);
    run(["predict", "--run", &place.word("delta"), &place.word("eval.csv"), "--out", &place.word("x.csv")])
        .with(USAGE)
        .says(&["it is a delta, which changes a model that is loaded already"]);
    run(["ckpt", "verify", &place.word("run/model/vocabulary")]).with(USAGE);
}

#[test]
fn models_without_a_delta_are_refused_and_nothing_is_written() {
    let (place, job) = place();
    train(&place, &job, "run", &["train.max_steps=40"]).with(SUCCESS);
    train(&place, &job, "seed", &["train.max_steps=40", "seed=7"]).with(SUCCESS);
    train(&place, &job, "wider", &["train.max_steps=40", "model.embedding_dim=8"]).with(SUCCESS);
    train(&place, &job, "capacity", &["train.max_steps=40", "table.0.rows.capacity=46"]).with(SUCCESS);
    let refused = |base: &str, run_dir: &str, words: &[&str]| {
        delta(&place, base, run_dir, "delta").with(USAGE).says(words);
        assert!(!place.path("delta").exists() && !place.path("delta.partial").exists());
    };
    refused("run", "seed", &["are not models of one job: their seeds are 1 and 7", "Ranker::swap"]);
    refused("run", "wider", &["are not models of one job: they have different parts or sizes"]);
    refused("run", "capacity", &["different parts or sizes"]);
    let newer =
        ["is newer than", "it was trained for 40 steps, and the other one for 20. Name the older one first"];
    refused("run", "run/checkpoints/step-20", &newer);
    refused("run", "missing", &["there is no such folder"]);
    refused("data", "run", &["it is a dataset"]);
    delta(&place, "run/checkpoints/step-20", "run", "run/delta").with(SUCCESS);
    delta(&place, "run/checkpoints/step-20", "run", "run/checkpoints/step-20").with(USAGE);
    delta(&place, "run/checkpoints/step-20", "run", "run/model/delta").with(USAGE).says(&["is inside"]);
    refused("run/delta", "run", &["it is a delta"]);
    fs::create_dir(place.path("full")).expect("it is made");
    place.file("full/x", "x");
    delta(&place, "run/checkpoints/step-20", "run", "full").with(USAGE).says(&["full"]);
    assert_eq!(tree(&place.path("full")).len(), 1);

    // Rows that are read in another way have other ids.
    let schema = fs::read_to_string(place.path("schema.toml")).expect("it is there").replace('|', ";");
    let (schema, other) = (place.file("other.toml", schema), place.word("other data"));
    let words = ["convert", "csv", &place.word("train.csv"), "--eval", &place.word("eval.csv")];
    run([&words[..], &["--schema", &schema, "--out", &other]].concat()).with(SUCCESS);
    train(&place, &job, "other", &["train.max_steps=20", &format!("data.dir={other}")]).with(SUCCESS);
    refused("run", "other", &["they have different columns or vocabularies"]);
}

#[test]
fn tables_with_a_row_per_id_have_deltas_of_the_rows_that_were_updated() {
    let place = Place::new();
    generate(&place, "name = \"mixed\"\ndense = 2\nrows = [30000, 20]\nhotness = [1, 2]\n", 400, 100);
    let job = job(&place);
    let sets = ["train.batch_size=20", "train.max_steps=8", "checkpoint.every_steps=4"];
    train(&place, &job, "run", &sets).with(SUCCESS);
    let written = delta(&place, "run/checkpoints/step-4", "run", "delta").with(SUCCESS).json();
    let rows = written["summary"]["rows"].as_u64().expect("a count");
    // 4 steps of 20 samples look up at most 80 rows of the first table.
    assert!((20..=100).contains(&rows), "{rows}");
    assert_eq!(written["summary"]["admitted"], 0);
}
