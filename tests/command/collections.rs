//! Datasets that consist of other datasets: collections, and lists of folders.

use std::fs;

use rankine_base::sealed;
use serde_json::{Value, json};

use crate::support::{
    BAD_DATA, Ended, FAILED, Place, SUCCESS, USAGE, criteo_rows, job, json_file, run, train, weights,
};

/// Samples of a block; each shard but the last has a multiple of it, so that blocks are the same in one folder.
const BLOCK: usize = 64;

fn convert(place: &Place, rows: &[String], out: &str, args: &[&str]) -> Ended {
    let log = place.file(&format!("{}.tsv", out.replace('/', "-")), rows.join("\n") + "\n");
    let (out, block) = (place.word(out), BLOCK.to_string());
    run([&["convert", "criteo-tsv", &log, "--out", &out, "--block-samples", &block], args].concat())
}

fn merge(place: &Place, dirs: &[&str], out: &str) -> Ended {
    let dirs: Vec<_> = dirs.iter().map(|dir| place.word(dir)).collect();
    let mut words = vec!["dataset".to_owned(), "merge".into(), "--out".into(), place.word(out)];
    words.extend(dirs);
    run(words)
}

/// One dataset of all rows, and three of consecutive rows with its columns.
fn shards() -> Place {
    let place = Place::new();
    let rows = criteo_rows(10 * BLOCK + 7, 3);
    convert(&place, &rows, "whole", &[]).with(SUCCESS);
    for (name, range) in [("a", 0..4 * BLOCK), ("b", 4 * BLOCK..9 * BLOCK), ("c", 9 * BLOCK..rows.len())] {
        convert(&place, &rows[range], name, &["--like", &place.word("whole")]).with(SUCCESS);
    }
    place
}

/// What `inspect` says of a dataset, without its name and its source.
fn inspected(place: &Place, dataset: &str) -> Value {
    let text = run(["inspect", &place.word(dataset), "--json"]).with(SUCCESS).stdout;
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let Value::Object(mut report) = report else { panic!("{report}") };
    report.remove("path");
    report.remove("origin");
    report.into()
}

#[test]
fn shards_train_to_the_bits_of_one_folder() {
    let place = shards();
    let said = merge(&place, &["a", "b", "c"], "all").with(SUCCESS);
    assert!(said.stdout.contains("train      647 samples\n"), "{}", said.stdout);
    assert!(said.stdout.contains("of 3 datasets\n"), "{}", said.stdout);
    // Nothing is copied.
    let mut files: Vec<_> =
        fs::read_dir(place.path("all")).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["collection.json", "popularity.bin", "statistics.bin"]);
    // A collection of a collection has its shards.
    merge(&place, &["a", "b"], "ab").with(SUCCESS);
    let nested = merge(&place, &["ab", "c"], "nested").with(SUCCESS);
    assert!(nested.stdout.contains("of 3 datasets\n"), "{}", nested.stdout);

    let job = job(&place);
    let list = format!("data.dir=[{:?}, {:?}]", place.word("ab"), place.word("c"));
    let dirs = ["whole", "all", "nested"].map(|dir| format!("data.dir={:?}", place.word(dir)));
    for (run_dir, data) in
        ["run", "run-all", "run-nested", "run-list"].into_iter().zip(dirs.iter().chain([&list]))
    {
        // Windows cross the borders of shards.
        let sets = [data, "train.shuffle_window_blocks=3", "train.batch_size=50", "train.epochs=2"];
        train(&place, &job, run_dir, &sets).with(SUCCESS);
        assert!(weights(&place, run_dir) == weights(&place, "run"), "{run_dir}");
    }
    let mut expected = inspected(&place, "whole");
    for dataset in ["all", "nested"] {
        let mut found = inspected(&place, dataset);
        for report in [&mut expected, &mut found] {
            // Blocks carry numbers relative to their shard, and files end with it.
            report["parts"][0].as_object_mut().unwrap().remove("files");
        }
        assert_eq!(found, expected, "{dataset}");
        run(["inspect", &place.word(dataset), "--verify"]).with(SUCCESS);
    }
}

#[test]
fn vocabularies_of_shards_may_have_grown() {
    let place = Place::new();
    let days: Vec<_> = (0..3).map(|day| criteo_rows(2 * BLOCK, day)).collect();
    convert(&place, &days[0], "day0", &["--min-count", "1"]).with(SUCCESS);
    for (day, rows) in days.iter().enumerate().skip(1) {
        let before = place.word(&format!("day{}", day - 1));
        convert(&place, rows, &format!("day{day}"), &["--like", &before, "--grow"]).with(SUCCESS);
    }
    merge(&place, &["day0", "day1", "day2"], "days").with(SUCCESS);
    let (days, last) = (inspected(&place, "days"), inspected(&place, "day2"));
    assert_eq!(days["schema"], last["schema"]);
    assert_eq!(days["parts"][0]["samples"], json!(6 * BLOCK));
    let job = job(&place);
    let list = format!("data.dir=[{:?}, {:?}]", place.word("day2"), place.word("day0"));
    train(&place, &job, "run", &[&list]).with(SUCCESS);
    // Rows that were learnt separately are numbered differently.
    convert(&place, &criteo_rows(2 * BLOCK, 7), "other", &["--min-count", "1"]).with(SUCCESS);
    merge(&place, &["days", "other"], "mixed").with(USAGE).says(&[
        "do not fit together: column I1: transform is",
        "--like",
        &place.word("day2"),
    ]);
    assert!(!place.path("mixed").exists());
    train(
        &place,
        &job,
        "mixed",
        &[&format!("data.dir=[{:?}, {:?}]", place.word("day0"), place.word("other"))],
    )
    .with(USAGE)
    .says(&["do not fit together"]);
}

#[test]
fn collections_that_are_not_what_was_merged_are_refused() {
    let place = shards();
    let list = |dirs: &[&str]| merge(&place, dirs, "refused");
    list(&["a", "b", "a"]).with(USAGE).says(&["is listed twice"]);
    list(&["a", "nowhere"]).with(USAGE).says(&["no dataset at", "nowhere"]);
    merge(&place, &["a", "b"], "b").with(USAGE);
    merge(&place, &["a", "b"], "all").with(SUCCESS);
    let path = place.path("all/collection.json");
    let good = fs::read(&path).unwrap();
    let refusal = || run(["inspect", &place.word("all")]);

    // Changes that keep the checksum right.
    let content: Value = sealed::from_json("rankine collection", 1, &good).unwrap();
    let change = |change: &dyn Fn(&mut Value)| {
        let mut content = content.clone();
        change(&mut content);
        fs::write(&path, sealed::to_json("rankine collection", 1, &content)).unwrap();
        refusal()
    };
    let (a, b) = (json!(place.word("a")), json!(place.word("b")));
    for (wrong, said) in [
        (json!("../a"), "is neither absolute nor below its folder"),
        (json!(format!("{}/../a", place.word("b"))), "is neither absolute nor below its folder"),
        (json!(""), "is neither absolute nor below its folder"),
        (b.clone(), "it lists a shard twice"),
    ] {
        change(&|content| content["shards"][0]["path"] = wrong.clone()).with(BAD_DATA).says(&[said]);
    }
    // Twice, however the path is written.
    std::os::unix::fs::symlink(place.path("b"), place.path("all/link")).unwrap();
    let again = ["/", "/.", "//"].map(|end| json!(place.word("b") + end));
    for other in again.into_iter().chain([json!(place.word("./b")), json!("link"), json!("link/.")]) {
        change(&|content| content["shards"][0]["path"] = other.clone())
            .with(BAD_DATA)
            .says(&["all/collection.json is damaged", "it lists a shard twice"]);
    }
    change(&|content| {
        let entry = content["shards"][0].clone();
        content["shards"] = (0..=1 << 16).map(|_| entry.clone()).collect();
    })
    .with(BAD_DATA)
    .says(&["it lists 65537 shards"]);
    // Shards that lead back to themselves.
    std::os::unix::fs::symlink("round", place.path("all/round")).unwrap();
    change(&|content| content["shards"][0]["path"] = json!("round"))
        .with(FAILED)
        .says(&["all/round/dataset.json", "Too many levels of symbolic links"]);
    change(&|content| content["reference"] = json!(2)).with(BAD_DATA).says(&["the vocabularies of shard 2"]);
    change(&|content| content["shards"] = json!([])).with(BAD_DATA).says(&["it lists 0 shards"]);
    change(&|content| content["shards"][1]["samples"]["train"] = json!(999))
        .with(USAGE)
        .says(&["is not the one that the collection", "merge the shards again"]);
    change(&|content| content["shards"][0]["path"] = json!(place.word("all")))
        .with(USAGE)
        .says(&["its shard", "is not there"]);
    change(&|content| content["statistics"]["xxh3"] = json!("00000000000000aa"))
        .with(BAD_DATA)
        .says(&["its checksum does not match"]);
    change(&|content| (content["shards"][0]["path"], content["shards"][1]["path"]) = (b.clone(), a.clone()))
        .with(USAGE)
        .says(&["is not the one that the collection"]);
    // Statistics of one shard, which are intact but not the sums.
    let sums = fs::read(place.path("all/statistics.bin")).unwrap();
    let of_b = fs::read(place.path("b/statistics.bin")).unwrap();
    fs::write(place.path("all/statistics.bin"), &of_b).unwrap();
    change(&|content| {
        content["statistics"]["bytes"] = json!(of_b.len());
        content["statistics"]["xxh3"] = json!(sealed::Checksum::of(&of_b).to_string());
    })
    .with(SUCCESS);
    run(["inspect", &place.word("all"), "--verify"])
        .with(BAD_DATA)
        .says(&["all/statistics.bin is damaged", "its counts are not the sums over the shards"]);
    fs::write(place.path("all/statistics.bin"), sums).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    fs::write(&path, flipped).unwrap();
    refusal().with(BAD_DATA);

    // Shards that changed.
    fs::write(&path, &good).unwrap();
    refusal().with(SUCCESS);
    fs::rename(place.path("b"), place.path("moved")).unwrap();
    refusal().with(USAGE).says(&["its shard", "is not there: put it back, or merge"]);
    fs::rename(place.path("c"), place.path("b")).unwrap();
    refusal().with(USAGE).says(&["is not the one that the collection", "merge the shards again"]);
    // As many samples of other rows.
    fs::rename(place.path("b"), place.path("c")).unwrap();
    let like = place.word("whole");
    convert(&place, &criteo_rows(5 * BLOCK, 8), "b", &["--like", &like]).with(SUCCESS);
    refusal().with(USAGE).says(&["is not the one that the collection", "merge the shards again"]);
}

#[test]
fn a_list_of_folders_is_checked() {
    let place = shards();
    let job = job(&place);
    let data = |dirs: &[&str]| {
        let dirs: Vec<_> = dirs.iter().map(|dir| format!("{:?}", place.word(dir))).collect();
        format!("data.dir=[{}]", dirs.join(", "))
    };
    train(&place, &job, "run", &["data.dir=[]"])
        .with(USAGE)
        .says(&["a path, or a list of at least one path"]);
    train(&place, &job, "run", &[&data(&["a", "nowhere"])]).with(USAGE).says(&["no dataset at", "nowhere"]);
    train(&place, &job, "run", &[&data(&["a", "a"])]).with(USAGE).says(&["is listed twice"]);
    let generate = "data.generate={shape=\"dlrm\", samples=9}";
    train(&place, &job, "run", &[&data(&["a", "b"]), generate])
        .with(USAGE)
        .says(&["a dataset is generated in one folder"]);
    let sets = [
        &*data(&["a", "b", "c"]),
        &format!("eval.set=[{{name=\"days\", data=[{:?}, {:?}]}}]", place.word("a"), place.word("c")),
    ];
    train(&place, &job, "run", &sets).with(SUCCESS);
    let summary = json_file(&place.path("run/summary.json"));
    assert_eq!(summary["data"]["train_samples"], json!(10 * BLOCK + 7));
    assert_eq!(summary["eval"]["sets"]["days"]["samples"], json!(5 * BLOCK + 7));
}
