//! Rows of tables on a GPU and in host memory: shown by `plan` and `check`, and refused where they are not supported.

use std::fs;

use serde_json::Value;

use crate::support::{Place, SUCCESS, USAGE, generate, job, run, summary, train};

/// The model does not fit.
const DOES_NOT_FIT: i32 = 4;
const DCNV2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlperf-dlrm-dcnv2.toml");
/// Rows of four elements with as many sums take 32 bytes.
const SHAPE: &str = "name = \"large\"\ndense = 1\nrows = [30000, 8]\nhotness = [2, 1]\n";

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn on_one_gpu<'a>(job: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    ["plan", job, "--machine", "h200", "--ranks", "1"].into_iter().chain(sets).collect()
}

#[test]
fn a_plan_and_a_check_show_the_rows_of_each_tier() {
    let place = Place::new();
    generate(&place, SHAPE, 20_000, 50);
    let job = job(&place);
    let sets = ["embedding.device_memory=250kB", "embedding.host_memory=2MB"];
    let args = on_one_gpu(&job, &sets);
    let report = run(args.iter().copied().chain(["--json"])).with(SUCCESS).json();
    let tier = &report["tier"];
    let [large, small] = [0, 1].map(|table| &tier["tables"][table]);
    assert_eq!((&small["device_rows"], &small["host_rows"]), (&8.into(), &0.into()));
    assert_eq!(number(&large["device_rows"]) + number(&large["host_rows"]), 30_000.0);
    assert_eq!(number(&large["host_bytes"]), 32.0 * number(&large["host_rows"]));
    // Two look-ups for each of 128 samples.
    assert_eq!(large["landing_rows"], 256);
    assert_eq!(number(&tier["landing_bytes"]), 4.0 * 256.0 * 32.0);
    let on_device = number(&tier["device_bytes"]) + number(&tier["landing_bytes"]);
    assert!((249_900.0..=250_000.0).contains(&on_device), "{tier}");
    let share = number(&tier["lookup_share"]);
    assert!(share > 0.8 && share < 1.0 && number(&large["lookup_share"]) < share, "{tier}");
    assert_eq!(number(&tier["missed_bytes"]), 32.0 * number(&tier["missed_rows"]));
    assert!(number(&tier["missed_rows"]) > 1.0 && number(&tier["missed_rows"]) < 256.0, "{tier}");
    // The rank needs memory for its part only.
    assert_eq!(number(&report["per_rank"][0]["table_bytes"]), on_device);

    let text = run(args).with(SUCCESS).stdout;
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).map(str::to_owned).unwrap();
    assert!(line("all tables ").contains(&format!(" {:.1}% ", share * 100.0)), "{text}");
    for words in ["rows on the GPU and in host memory", "copied for a batch", "landing regions on the GPU"] {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }

    let checked = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        let args = ["check", &job, "--json"].into_iter().chain(sets);
        run(args).with(SUCCESS).json()
    };
    assert_eq!(&checked(&sets)["model"]["tier"], tier);
    // Otherwise it depends on the GPU's memory, or the CPU has all rows.
    assert_eq!(checked(&["embedding.device_memory=auto"])["model"]["tier"], Value::Null);
    let on_cpu = [sets[0], sets[1], "device.kind=cpu"];
    assert_eq!(checked(&on_cpu)["model"]["tier"], Value::Null);
    let text = run(["check", &job, "--set", sets[0]]).with(SUCCESS).stdout;
    assert!(text.contains("C1     ") && text.contains("all tables"), "{text}");

    // If all rows fit, all are on the GPU.
    let all = run(on_one_gpu(&job, &["embedding.device_memory=auto"]).into_iter().chain(["--json"]));
    assert_eq!(all.with(SUCCESS).json()["tier"], Value::Null);
}

/// Rows that a batch of the benchmark misses, computed from the law by another program.
#[test]
fn a_model_larger_than_a_gpu_fits_with_rows_in_host_memory() {
    let batch = ["--batch", "65536"];
    let whole = on_one_gpu(DCNV2, &[]);
    run(whole.into_iter().chain(batch)).with(DOES_NOT_FIT).says(&["the model does not fit"]);
    let sets = ["embedding.device_memory=117.7GB"];
    let json = on_one_gpu(DCNV2, &sets).into_iter().chain(batch).chain(["--json"]);
    let report = run(json).with(SUCCESS).json();
    let tier = &report["tier"];
    assert!(number(&report["memory"]["needed_bytes"]) < number(&report["memory"]["available_bytes"]));
    assert!(number(&tier["device_bytes"]) + number(&tier["landing_bytes"]) <= 117.7e9);
    // 204 million rows of a kilobyte; a batch misses 54,000 if half of them are on the GPU.
    assert!((number(&tier["device_bytes"]) / 104.5e9 - 1.0).abs() < 0.01, "{tier}");
    let bytes = number(&tier["device_bytes"]) + number(&tier["host_bytes"]);
    assert!((bytes / 209e9 - 1.0).abs() < 0.01, "{bytes}");
    assert!((number(&tier["missed_rows"]) / 54e3 - 1.0).abs() < 0.1, "{tier}");
    assert!((number(&tier["lookup_share"]) - 0.996).abs() < 0.002, "{tier}");
    // Most memory of a GPU is for rows.
    let auto = on_one_gpu(DCNV2, &["embedding.device_memory=auto"]).into_iter().chain(batch);
    let auto = run(auto.chain(["--json"])).with(SUCCESS).json();
    let on_device = number(&auto["tier"]["device_bytes"]) + number(&auto["tier"]["landing_bytes"]);
    assert!(on_device > 110e9 && on_device < 140e9, "{on_device}");
}

#[test]
fn what_is_not_supported_is_refused_with_a_way_out() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 20_000, 50);
    let job = job(&place);
    let budget = "embedding.device_memory=500kB";
    let refused = |args: Vec<&str>, expected: &[&str]| {
        run(args).with(USAGE).says(expected);
    };
    // Several nodes, and tables whose rows no GPU stores by itself.
    let on_two = |args: &[&'static str]| -> Vec<String> {
        let plan = ["plan", job.as_str(), "--machine", "h200", "--ranks", "2"];
        plan.iter().chain(args).map(ToString::to_string).collect()
    };
    run(on_two(&["--set", budget])).with(SUCCESS);
    let host = "table=[{ columns = [\"C1\"], tier = \"host\" }]";
    for sets in [budget, host] {
        let ended = run(on_two(&["--nodes", "2", "--set", sets])).with(USAGE);
        ended.says(&["supported on one node only", "set device.nodes to 1"]);
    }
    for sets in ["embedding.placement=replicated", "embedding.exchange=pooled"] {
        let ended = run(on_two(&["--set", budget, "--set", sets])).with(USAGE);
        ended.says(&["not supported for tables that are replicated or column-wise", "set tier = \"device\""]);
    }
    // Too little memory, of the GPU and of the host.
    refused(
        on_one_gpu(&job, &["embedding.device_memory=1kB"]),
        &["embedding.device_memory is 1000", "take at least", "use a smaller train.batch_size"],
    );
    refused(
        on_one_gpu(&job, &[budget, "embedding.host_memory=100kB"]),
        &[
            "embedding.host_memory=100kB",
            "the rows in host memory take",
            "raise it, or embedding.device_memory",
        ],
    );
    // A dataset whose rows nobody counted.
    fs::remove_file(place.path("data/popularity.bin")).unwrap();
    let count = format!("count them with `rankine inspect {data} --count`");
    refused(on_one_gpu(&job, &[budget]), &["which rows are hot is not known of", &count]);
    refused(
        vec!["check", &job, "--set", budget, "--set", "device.kind=cuda"],
        &["which rows are hot is not known of", &count],
    );
    run(["inspect", &data, "--count"]).with(SUCCESS);
    run(on_one_gpu(&job, &[budget])).with(SUCCESS);
}

/// On the CPU all rows are in host memory; budgets may change when a run is resumed.
#[test]
fn the_cpu_ignores_the_budgets() {
    let place = Place::new();
    generate(&place, SHAPE, 2000, 50);
    let job = job(&place);
    let table = |tier: &str| format!("table=[{{ columns = [\"C1\"], tier = \"{tier}\" }}]");
    train(&place, &job, "plain", &["device.kind=cpu"]).with(SUCCESS);
    let sets = ["device.kind=cpu", "embedding.device_memory=1kB", &table("host")];
    train(&place, &job, "divided", &sets).with(SUCCESS);
    let model = |run: &str| fs::read(place.path(run).join("model/model.safetensors")).unwrap();
    assert!(model("plain") == model("divided"));
    assert_eq!(summary(&place, "divided")["train"]["steps"], 16);
    // A finished run is what the job asks for, whatever the budgets.
    let again =
        ["device.kind=cpu", "embedding.device_memory=2kB", "embedding.host_memory=1GB", &table("device")];
    let run_dir = place.word("divided");
    let sets = again.iter().flat_map(|set| ["--set", *set]);
    run(["train", &job, "--run-dir", &run_dir, "--resume"].into_iter().chain(sets)).with(SUCCESS);
    assert_eq!(summary(&place, "divided")["train"]["steps"], 16);
}
