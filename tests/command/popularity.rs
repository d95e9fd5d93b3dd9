//! Which rows are hot: counted by conversion, generation and `inspect --count`, shown by `inspect` and `plan`.

use std::fs;

use rankine_reader::{BatchStream, Dataset, Part, StreamOptions};
use serde_json::Value;

use crate::support::{BAD_DATA, Place, SUCCESS, USAGE, generate, job, run};

const DLRM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlperf-dlrm.toml");

fn plan(job: &str, args: &[&str]) -> Value {
    run(["plan", job, "--json"].iter().chain(args)).with(SUCCESS).json()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn a_dataset_without_counts_is_counted_in_one_pass() {
    let place = Place::new();
    generate(
        &place,
        "name = \"r\"\ndense = 1\nrows = [4000, 30]\nhotness = [3, 1]\nragged = true\n",
        9000,
        50,
    );
    let (data, path) = (place.word("data"), place.path("data/popularity.bin"));
    let written = fs::read(&path).unwrap();
    let before = run(["inspect", &data, "--json"]).with(SUCCESS).json();
    fs::remove_file(&path).unwrap();
    run(["inspect", &data, "--count", "--threads", "2", "--verify"])
        .with(SUCCESS)
        .stdout_says("for 50%")
        .stdout_says("and 2 other files are intact");
    assert!(fs::read(&path).unwrap() == written);
    assert_eq!(run(["inspect", &data, "--json"]).with(SUCCESS).json(), before);

    // Damage is found, and counting again repairs it.
    let mut damaged = written.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, &damaged).unwrap();
    run(["inspect", &data, "--verify"]).with(BAD_DATA).says(&[
        "popularity.bin is damaged",
        "the checksum of a table's codes is wrong",
        "--count`",
    ]);
    run(["inspect", &data, "--count"]).with(SUCCESS);
    assert!(fs::read(&path).unwrap() == written);
    // A damaged block is not counted, and the counts stay as they were.
    let blocks = place.path("data/train/00000.blocks");
    let mut bytes = fs::read(&blocks).unwrap();
    bytes[5000] ^= 1;
    fs::write(&blocks, &bytes).unwrap();
    run(["inspect", &data, "--count"]).with(BAD_DATA).says(&["00000.blocks", "is damaged"]);
    assert!(fs::read(&path).unwrap() == written);

    run(["inspect", &data, "--threads", "2"]).with(USAGE);
    run(["inspect", &data, "--count", "--shape", "dlrm"]).with(USAGE);
    run(["inspect", "s3://bucket/data", "--count"]).says(&["is a url", "must be on a file system"]);
}

/// Shares of look-ups and distinct rows missed by a batch of 65536 samples, computed from the law by another program.
#[test]
fn the_hottest_rows_of_the_benchmark_serve_most_look_ups() {
    let on_gpus = ["--ranks", "8", "--machine", "h200"];
    let budgets = ["--batch", "65536", "--hottest", "0.1%,1%,5%,10%,50%,1GB"];
    let report = plan(DLRM, &[&on_gpus[..], &budgets].concat());
    let expected = [(0.926, 123e3), (0.967, 56e3), (0.983, 28e3), (0.988, 20e3), (0.997, 5e3)];
    let found = report["hottest"].as_array().unwrap();
    assert_eq!(found.len(), 6);
    for (found, (lookups, missed)) in found.iter().zip(expected) {
        assert!((number(&found["lookup_share"]) - lookups).abs() < 0.001, "{found}");
        assert!((number(&found["missed_rows"]) / missed - 1.0).abs() < 0.04, "{found}");
        // 187.8 million rows of 128 elements.
        assert!((number(&found["bytes"]) / (512.0 * number(&found["rows"])) - 1.0).abs() < 1e-6, "{found}");
        assert!(
            (number(&found["rows"]) / (187.77e6 * number(&found["share"])) - 1.0).abs() < 1e-3,
            "{found}"
        );
    }
    assert!((number(&found[5]["share"]) - 0.0104).abs() < 1e-4, "{}", found[5]);
    let text = run(["plan", DLRM].iter().chain(&on_gpus)).with(SUCCESS).stdout;
    assert!(text.contains("hottest rows of all tables") && text.contains("10.0%  18.8 M"), "{text}");
    run(["plan", DLRM, "--hottest", "150%"]).with(USAGE).says(&["150% is not a share from 0% to 100%"]);
}

/// A table with more looked-up rows than statistics list.
#[test]
fn rows_beyond_the_listed_ones_have_names() {
    const LISTED: u64 = 1 << 20;
    let place = Place::new();
    let shape = "name = \"r\"\ndense = 1\nrows = [2000000]\nhotness = [100]\nragged = false\n";
    let shape = place.file("shape.toml", shape);
    let data = place.word("data");
    run(["generate", "--shape", &shape, "--samples", "50000", "--alpha", "0.5", "--out", &data])
        .with(SUCCESS);
    let dataset = Dataset::open(&place.path("data")).unwrap();
    let mut counts = vec![0_u64; 2_000_000];
    let part = dataset.part(Part::Train).unwrap();
    for batch in BatchStream::open(part, &StreamOptions::one_epoch(4096)).unwrap() {
        batch.unwrap().samples.categorical[0].ids.iter().for_each(|&id| counts[id as usize] += 1);
    }
    counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
    let distinct = counts.iter().filter(|&&count| count > 0).count() as u64;
    assert!(distinct > 1_200_000, "{distinct}");
    let serving = |share: f64| {
        let mut served = 0;
        let is_needed = |count: &&u64| {
            let is_needed = (served as f64) < share * 5e6;
            served += **count;
            is_needed
        };
        counts.iter().take_while(is_needed).count()
    };
    let inspected = run(["inspect", &data, "--json"]).with(SUCCESS).json();
    for found in inspected["tables"][0]["rows_serving"].as_array().unwrap() {
        // Rarer rows have counts below 16, which are exact.
        assert_eq!(number(&found["rows"]), serving(number(&found["share"])) as f64, "{found}");
    }

    let job = job(&place);
    let listing = |rows: u64| {
        let rows = format!("embedding.frequent_rows={rows}");
        let args = ["--ranks", "2", "--set", "embedding.placement=hybrid", "--set", &rows];
        number(&plan(&job, &args)["tables"][0]["frequent_rows"]) as u64
    };
    let of_hottest = || plan(&job, &["--hottest", "60%"])["hottest"][0]["lookup_share"].clone();
    assert_eq!(listing(distinct), distinct);
    let share = number(&of_hottest());
    let served: u64 = counts.iter().take(1_200_000).sum();
    assert!((share - served as f64 / 5e6).abs() < 1e-6, "{share}");
    // Without the counts, only the listed rows have names.
    fs::remove_file(place.path("data/popularity.bin")).unwrap();
    assert!(listing(distinct) <= LISTED);
    run(["inspect", &data]).with(SUCCESS).stdout_says("--count` counts all");
}
