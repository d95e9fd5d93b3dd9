//! `rankine plan`: placements, memory and predictions, with and without data.

use serde_json::Value;

use crate::support::{self, Place, SUCCESS, USAGE, generate, job, numbers, run, summary, train};

/// The model does not fit.
const DOES_NOT_FIT: i32 = 4;
const DLRM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlperf-dlrm.toml");
const DCNV2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlperf-dlrm-dcnv2.toml");

fn plan(job: &str, args: &[&str]) -> support::Ended {
    run(["plan", job].iter().chain(args))
}

#[track_caller]
fn plan_json(job: &str, args: &[&str]) -> Value {
    plan(job, &[args, &["--json"]].concat()).with(SUCCESS).json()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The placement of a table, by its name.
#[track_caller]
fn placement<'a>(report: &'a Value, table: &str) -> &'a str {
    let tables = report["tables"].as_array().expect("tables are listed");
    let found = tables.iter().find(|one| one["name"] == table).unwrap_or_else(|| panic!("no table {table}"));
    found["placement"].as_str().expect("a placement has a name")
}

#[test]
fn a_benchmark_is_planned_without_data() {
    let report = plan_json(DLRM, &["--ranks", "8", "--machine", "h200"]);
    assert_eq!((&report["statistics"]["kind"], &report["statistics"]["alpha"]), (&"law".into(), &1.1.into()));
    assert_eq!(
        (&report["ranks"], &report["nodes"], &report["batch_size"]),
        (&8.into(), &1.into(), &55296.into())
    );
    assert_eq!(report["tables"].as_array().unwrap().len(), 26);
    // Replicating 3 rows costs nothing; replicating 40 million would need 19 GiB on each rank.
    assert_eq!(placement(&report, "C6"), "replicated");
    assert_ne!(placement(&report, "C20"), "replicated");
    // 96.1 GB of tables: an eighth on each rank, except for replicated rows.
    let ranks = report["per_rank"].as_array().unwrap();
    let bytes: f64 = ranks.iter().map(|rank| number(&rank["table_bytes"])).sum();
    assert!((96.1e9..97e9).contains(&bytes), "{bytes}");
    for rank in ranks {
        let needed =
            ["table_bytes", "buffer_bytes", "rest_bytes"].map(|key| number(&rank[key])).iter().sum::<f64>();
        assert!(needed <= number(&report["memory"]["needed_bytes"]) + 2.0);
        assert!(number(&rank["seconds"]) <= number(&report["iteration"]["total_s"]));
    }
    let parts = report["iteration"].as_object().unwrap();
    let sum: f64 =
        parts.iter().map(|(key, part)| if key == "hidden_s" { -number(part) } else { number(part) }).sum();
    // The sum includes the total, so it is twice the total.
    assert!((sum / number(&parts["total_s"]) - 2.0).abs() < 1e-9, "{parts:?}");
    let of_tables = report["tables"].as_array().unwrap().iter();
    let rows: f64 = of_tables.map(|table| number(&table["traffic"]["within_nodes"]["rows"])).sum();
    assert!((rows / number(&report["traffic"]["within_nodes"]["rows"]) - 1.0).abs() < 1e-3);
    assert_eq!(number(&report["traffic"]["between_nodes"]["bytes"]), 0.0);
}

#[test]
fn the_report_for_people_has_all_parts() {
    let text = plan(DCNV2, &["--ranks", "16", "--nodes", "2", "--machine", "h200"]).with(SUCCESS).stdout;
    for words in [
        "machine      h200, 16 ranks on 2 nodes",
        "assumed to follow a power law with exponent 1.1",
        "memory per rank",
        "  their gradients and state      ",
        "exchange between nodes",
        " samples/s, limited by ",
    ] {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
    // GPUs never pool bags before sending them between nodes, not even those of 100 ids. CPU ranks do.
    let of_bags = |text: &str| text.lines().find(|line| line.starts_with("C21 ")).map(str::to_owned).unwrap();
    assert!(of_bags(&text).contains("row-wise, rows"), "{text}");
    let on_cpus = ["--ranks", "16", "--nodes", "2", "--machine", "cpu", "--memory", "2TiB"];
    let text = plan(DCNV2, &on_cpus).with(SUCCESS).stdout;
    assert!(of_bags(&text).contains("pooled"), "{text}");
}

#[test]
fn scoring_gets_an_eighth_of_what_training_leaves_on_gpus() {
    for (ranks, nodes) in [("1", "1"), ("8", "1"), ("16", "2")] {
        let gpus = ["--ranks", ranks, "--nodes", nodes, "--machine", "h200"];
        let report = plan_json(DLRM, &gpus);
        let memory = ["available_bytes", "needed_bytes"].map(|key| report["memory"][key].as_u64().unwrap());
        let scoring = report["scoring_bytes"].as_u64().unwrap();
        assert_eq!(scoring, (memory[0] - memory[1]) / 8);
        let text = plan(DLRM, &gpus).with(SUCCESS).stdout;
        assert!(text.contains("  scoring (eval.batch_size)      at most "), "{text}");
    }
    for other in [
        &["--ranks", "8", "--machine", "h200", "--set", "eval.batch_size=65536"][..],
        &["--ranks", "1", "--machine", "cpu", "--memory", "2TiB"],
    ] {
        assert_eq!(plan_json(DLRM, other)["scoring_bytes"], Value::Null, "{other:?}");
    }
}

#[test]
fn a_model_that_does_not_fit_exits_with_4_and_a_way_out() {
    let args = ["--ranks", "8", "--machine", "h200", "--memory", "20GiB"];
    let ended = plan(DCNV2, &args).with(DOES_NOT_FIT);
    assert_eq!(ended.stdout, "");
    ended.says(&[
        "with 8 ranks, a rank needs up to",
        "but has 20.00 GiB",
        "16 ranks would suffice",
        "rowwise-adagrad",
    ]);
    plan(DCNV2, &[&args[..], &["--json"]].concat()).with(DOES_NOT_FIT);
    // With one number of state per row it fits, as the error says.
    let rowwise = "optimizer.sparse={ kind = \"rowwise-adagrad\", learning_rate = 0.004 }";
    plan(DCNV2, &[&args[..], &["--set", rowwise]].concat()).with(SUCCESS);
    // It also fits on 16 ranks.
    plan(DCNV2, &["--ranks", "16", "--nodes", "2", "--machine", "h200", "--memory", "20GiB"]).with(SUCCESS);
    // If a placement that the job sets prevents a plan, the error names it.
    let forced = plan(
        DLRM,
        &[
            "--ranks",
            "8",
            "--machine",
            "h200",
            "--memory",
            "50GiB",
            "--set",
            "embedding.placement=replicated",
        ],
    );
    forced.with(DOES_NOT_FIT).says(&[
        "C20 (replicated)",
        "set their placement to \"auto\"",
        "the part that every rank needs is already too large",
    ]);
}

#[test]
fn a_table_is_explained() {
    let args = ["--ranks", "8", "--machine", "h200", "--explain", "C20"];
    let text = plan(DLRM, &args).with(SUCCESS).stdout;
    let line = |start: &str| {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no line starts with {start}:\n{text}"))
    };
    assert!(line("table ").ends_with("C20, 39979771 rows of 128 elements"), "{text}");
    assert!(line("row-wise, rows").ends_with("+0.00%  chosen"), "{text}");
    assert!(line("column-wise, rows").contains(" ms "));
    assert!(line("replicated").contains("18.") || line("replicated").contains("19."), "{text}");
    let table = plan_json(DLRM, &args);
    let alternatives = table["alternatives"].as_array().unwrap();
    assert!(alternatives.len() >= 6, "{table}");
    let times: Vec<_> = alternatives.iter().map(|one| number(&one["iteration_s"])).collect();
    assert!(times.is_sorted(), "{times:?}");
    // With less memory per rank than the table has, it does not fit when replicated.
    let tight = plan_json(DLRM, &[&args[..], &["--memory", "16GiB"]].concat());
    let replicated = |table: &Value| {
        let found =
            table["alternatives"].as_array().unwrap().iter().find(|one| one["placement"] == "replicated");
        found.unwrap()["fits"].as_bool().unwrap()
    };
    assert!(replicated(&table) && !replicated(&tight));
    let unknown = ["--ranks", "8", "--machine", "h200", "--explain", "C200"];
    plan(DLRM, &unknown).with(USAGE).says(&["the model has no table `C200`: did you mean `C20`?"]);
}

#[test]
fn a_sweep_plans_for_several_numbers_of_nodes() {
    let args = ["--ranks", "8", "--machine", "h200", "--sweep-nodes", "1,2,8"];
    let weak = plan_json(DCNV2, &args);
    let points = weak["points"].as_array().unwrap();
    let of = |key: &str| points.iter().map(|point| number(&point[key])).collect::<Vec<_>>();
    assert_eq!((of("ranks"), of("batch_size")), (vec![8.0, 16.0, 64.0], vec![65536.0, 131072.0, 524288.0]));
    assert_eq!(points[0]["efficiency"], 1.0);
    assert!(
        of("efficiency").is_sorted_by(|a, b| a > b) && of("samples_per_second").is_sorted(),
        "{points:?}"
    );
    assert_eq!(points[2]["limit"], "link-between");
    let strong = plan_json(DCNV2, &[&args[..], &["--fixed-batch"]].concat());
    assert!(strong["points"].as_array().unwrap().iter().all(|point| point["batch_size"] == 65536));
    // One node is too small, two are enough. If no number of nodes is enough, that is an error.
    let tight = [&args[..], &["--memory", "20GiB"]].concat();
    let text = plan(DCNV2, &tight).with(SUCCESS).stdout;
    assert_eq!(text.matches("memory capacity").count(), 1, "{text}");
    let none = ["--ranks", "8", "--machine", "h200", "--memory", "1GiB", "--sweep-nodes", "1,2"];
    plan(DCNV2, &none).with(DOES_NOT_FIT).says(&["does not fit on any of these numbers of nodes"]);
}

#[test]
fn a_plan_says_whether_gpus_can_keep_the_training_part() {
    let place = Place::new();
    generate(&place, "name = \"r\"\ndense = 4\nrows = [4000, 300]\n", 40_000, 0);
    let job = job(&place);
    let args = ["--ranks", "4", "--machine", "h200", "--set", "device.kind=cuda"];
    let kept = [&args[..], &["--set", "data.cache=gpu"]].concat();
    let report = plan_json(&job, &kept);
    // One block, which starts a page and ends in another one.
    let bytes = std::fs::metadata(place.path("data/train/00000.blocks")).unwrap().len();
    let of_rank = number(&report["cache"]["rank_bytes"]);
    assert!((bytes as f64 - 8192.0) / 4.0 < of_rank && of_rank <= bytes as f64 / 4.0, "{of_rank} of {bytes}");
    assert_eq!(report["cache"]["fits"], true);
    assert!(plan_json(&job, &args)["cache"].is_null());
    let text = plan(&job, &kept).with(SUCCESS).stdout;
    assert!(text.contains("training data (data.cache)") && text.contains(": fits beside"), "{text}");
    // Room for the model, but not for the data.
    let memory = ((number(&report["memory"]["needed_bytes"]) + of_rank / 2.0) as u64).to_string();
    let tight = plan(&job, &[&kept[..], &["--memory", &memory]].concat()).with(DOES_NOT_FIT);
    tight.says(&["the training part does not fit beside the model", "remove data.cache"]);
}

#[test]
fn a_dataset_is_planned_by_its_own_frequencies_or_a_sample() {
    let place = Place::new();
    generate(
        &place,
        "name = \"r\"\ndense = 4\nrows = [4000, 300, 40, 7]\nhotness = [1, 1, 9, 2]\nragged = true\n",
        40_000,
        0,
    );
    let job = job(&place);
    let args = ["--ranks", "4", "--nodes", "2", "--batch", "2000"];
    let counted = plan_json(&job, &args);
    assert_eq!(counted["statistics"], serde_json::json!({ "kind": "dataset", "samples": 40_000 }));
    assert_eq!(counted, plan_json(&job, &args), "the same job and dataset gave another plan");
    let sampled = plan_json(&job, &[&args[..], &["--sample", "10000"]].concat());
    assert_eq!(sampled["statistics"], serde_json::json!({ "kind": "sample", "samples": 10_000 }));
    let set = plan_json(&job, &[&args[..], &["--set", "embedding.sample_samples=10000"]].concat());
    assert_eq!(sampled, set);
    for (of_all, of_some) in
        counted["tables"].as_array().unwrap().iter().zip(sampled["tables"].as_array().unwrap())
    {
        let share = number(&of_some["distinct_rows"]) / number(&of_all["distinct_rows"]);
        assert!((share - 1.0).abs() < 0.05, "{of_all}\n{of_some}");
        let share = number(&of_some["lookups_per_sample"]) / number(&of_all["lookups_per_sample"]);
        assert!((share - 1.0).abs() < 0.05, "{of_all}\n{of_some}");
    }
    // The job's seed selects the samples, exactly as many as requested: one sample has a whole number of ids.
    let other = plan_json(&job, &[&args[..], &["--sample", "10000", "--set", "seed=2"]].concat());
    assert_ne!(sampled["tables"], other["tables"]);
    let of_one = plan_json(&job, &[&args[..], &["--sample", "1"]].concat());
    for (table, most) in of_one["tables"].as_array().unwrap().iter().zip([1.0, 1.0, 9.0, 2.0]) {
        let ids = number(&table["lookups_per_sample"]);
        assert!((ids - ids.round()).abs() < 1e-9 && ids <= most, "{table}");
    }
    // The plan follows the job.
    let table = "table=[{ columns = [\"C1\"], placement = \"column-wise\", exchange = \"rows\" }]";
    let set =
        plan_json(&job, &[&args[..], &["--set", "embedding.placement=row-wise", "--set", table]].concat());
    let placements: Vec<_> = ["C1", "C2", "C3", "C4"].map(|name| placement(&set, name).to_owned()).into();
    assert_eq!(placements, ["column-wise", "row-wise", "row-wise", "row-wise"]);
    assert_eq!(
        (&set["tables"][0]["exchange"], &set["tables"][0]["reason"]),
        (&"rows".into(), &"set in the job".into())
    );
}

/// The traffic that a training counts agrees with the plan, whether that is from all samples or from some.
#[test]
fn a_training_sends_the_planned_traffic() {
    let place = Place::new();
    let columns = "rows = [20000, 3000, 400, 70, 5]\nhotness = [1, 3, 10, 2, 1]\nragged = true";
    generate(&place, &format!("name = \"r\"\ndense = 4\n{columns}\n"), 30_000, 0);
    let job = job(&place);
    let of_ranks = [
        "device.ranks=4",
        "device.nodes=2",
        "train.batch_size=2000",
        "optimizer.sparse={ kind = \"rowwise-adagrad\", learning_rate = 0.1 }",
    ];
    for (placement, sample) in [
        ("auto", None),
        ("hybrid", Some("embedding.sample_samples=12000")),
        ("table-wise", Some("embedding.sample_samples=12000")),
        ("column-wise", None),
    ] {
        let placement = format!("embedding.placement={placement}");
        let sets = of_ranks.iter().copied().chain([placement.as_str()]).chain(sample).collect::<Vec<_>>();
        let args: Vec<_> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let planned = plan_json(&job, &args);
        train(&place, &job, &placement, &sets).with(SUCCESS);
        let sent = &summary(&place, &placement)["exchange"];
        for link in ["within_nodes", "between_nodes"] {
            for count in ["rows", "bytes"] {
                let (planned, sent) = (number(&planned["traffic"][link][count]), number(&sent[count][link]));
                let slack = if sample.is_some() { 0.1 } else { 0.05 };
                assert!(sent > 100.0, "{placement} {link} {count}: {sent}");
                assert!(
                    (planned / sent - 1.0).abs() < slack,
                    "{placement} {link} {count}: {planned} for {sent}"
                );
            }
        }
        let reduced = ["within_bytes", "between_bytes"].map(|key| number(&planned["all_reduce"][key]));
        let sent = ["within_nodes", "between_nodes"].map(|link| number(&sent["reduced_bytes"][link]));
        assert_eq!(reduced, sent, "{placement}");
    }
}

#[test]
fn raw_files_are_planned_by_a_sample() {
    let place = Place::new();
    let shape = place.file("shape.toml", "name = \"two\"\ndense = 1\nrows = [1000, 5]\n");
    let mut next = numbers(7);
    let mut bytes = Vec::new();
    for _ in 0..20_000 {
        // Half of the first table's look-ups are of ten rows.
        let id = if next().is_multiple_of(2) { next() % 10 } else { next() % 1000 };
        for field in [next() % 2, 0, id, next() % 5] {
            bytes.extend((field as u32).to_le_bytes());
        }
    }
    place.file("train.bin", bytes);
    let text = std::fs::read_to_string(job(&place)).unwrap();
    let data = format!("data.raw = {{ shape = {shape:?}, train = [{:?}] }}", place.word("train.bin"));
    let text = text.replace(&format!("data.dir = {:?}", place.word("data")), &data);
    let job = place.file("raw.toml", text);
    let report = plan_json(&job, &["--ranks", "2", "--sample", "4000", "--batch", "500"]);
    assert_eq!(report["statistics"], serde_json::json!({ "kind": "sample", "samples": 4000 }));
    // 250 look-ups are of 10 rows, 250 of 1000: 10 + 990 (1 - e^-0.25) distinct rows.
    let distinct = number(&report["tables"][0]["distinct_rows"]);
    assert!((215.0..245.0).contains(&distinct), "{distinct}");
    assert_eq!(number(&report["tables"][1]["distinct_rows"]), 5.0);
    let all = plan_json(&job, &["--ranks", "2", "--batch", "500"]);
    assert_eq!(all["statistics"], serde_json::json!({ "kind": "sample", "samples": 20_000 }));
}

#[test]
fn machines_are_read_from_files() {
    let place = Place::new();
    let slow = place.file("slow.toml", "base = \"h200\"\nname = \"slow\"\n[within_nodes]\ngb_per_s = 3.1\n");
    let args = ["--ranks", "8", "--machine"];
    let times = [&slow, "h200"].map(|machine| {
        let report = plan_json(DLRM, &[&args[..], &[machine]].concat());
        (report["machine"].as_str().unwrap().to_owned(), number(&report["iteration"]["total_s"]))
    });
    assert_eq!((times[0].0.as_str(), times[1].0.as_str()), ("slow", "h200"));
    assert!(times[0].1 > 3.0 * times[1].1, "{times:?}");
    // The job may name a machine, too; the argument has precedence.
    let of_job = format!("device.machine={slow:?}");
    let named = |args: &[&str]| {
        let report = plan_json(DLRM, &[&["--ranks", "8", "--memory", "2TiB"], args].concat());
        assert_eq!(report["memory"]["available_bytes"], 2u64 << 40);
        report["machine"].as_str().unwrap().to_owned()
    };
    assert_eq!(named(&["--set", &of_job]), "slow");
    assert_eq!(named(&["--set", &of_job, "--machine", "h200"]), "h200");
    assert_eq!(
        [named(&["--set", "device.kind=cuda"]), named(&["--set", "device.kind=cpu"])],
        ["h200", "cpu"]
    );
    let wrong = place.file("wrong.toml", "base = \"h200\"\ntflop = 3\n");
    let ended = plan(DLRM, &[&args[..], &[&wrong]].concat()).with(USAGE);
    ended.says(&["wrong.toml:2:1: unknown key `tflop`", "did you mean `tflops`?"]);
    plan(DLRM, &[&args[..], &["h100"]].concat()).with(USAGE).says(&["`h100` is neither cpu nor h200"]);
}

#[test]
fn a_law_has_the_exponent_of_the_data_to_generate_or_of_the_argument() {
    let alpha = |args: &[&str]| {
        let report =
            plan_json(DLRM, &[&["--ranks", "8", "--machine", "h200", "--batch", "700"], args].concat());
        assert_eq!(report["batch_size"], 700);
        number(&report["statistics"]["alpha"])
    };
    assert_eq!((alpha(&[]), alpha(&["--alpha", "0.5"])), (1.1, 0.5));
    let made = "data={ dir = 'nowhere', generate = { shape = 'dlrm', samples = 10, alpha = 0.25 } }";
    assert_eq!(alpha(&["--alpha", "0.5", "--set", made]), 0.25);
}

#[test]
fn refused_plans_are_explained() {
    plan(DLRM, &["--ranks", "8", "--nodes", "3"])
        .with(USAGE)
        .says(&["8 ranks cannot be divided evenly among 3 nodes"]);
    let place = Place::new();
    let job = job(&place);
    plan(&job, &["--ranks", "2"]).with(USAGE).says(&["no dataset at", "--set data.shape=dlrm"]);
    plan(&job, &["--ranks", "2", "--set", "data.shape=dlrm"]).with(SUCCESS);
    let shape = ["--ranks", "2", "--set", "data.shape=dlrm"];
    plan(&job, &[&shape[..], &["--sample", "9"]].concat()).with(USAGE).says(&["--sample needs a dataset"]);
    plan(&job, &["--fixed-batch"]).with(USAGE);
    plan(&job, &["--ranks", "0"]).with(USAGE).says(&["expected a whole number from 1 to 4096"]);
    // An error in the job's tables names the column.
    let conflict = ["--set", "data.shape=dlrm", "--set", "table=[{ columns = [\"C99\"] }]"];
    plan(&job, &conflict).with(USAGE).says(&["the column `C99` does not exist"]);
    // `check` takes the columns from the shape, too.
    run(["check", DLRM]).with(SUCCESS).stdout_says("its columns were taken from data.shape");
}
