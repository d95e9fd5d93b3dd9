//! Models that no memory holds are refused before anything is allocated, with the way out.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;

use rankine_reader::sealed;

use crate::support::{BAD_DATA, Place, SHAPE, generate, job, json_file, run};

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
