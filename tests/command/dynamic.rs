//! Dynamic tables, from conversion to scoring.

use std::fs;

use crate::support::dynamic::place;
use crate::support::exported::Exported;
use crate::support::{Ended, Place, SUCCESS, USAGE, json_file, run, summary, weights};

fn train(place: &Place, job: &str, name: &str, more: &[&str]) -> Ended {
    run([&["train", job, "--quiet", "--run-dir", &place.word(name)][..], more].concat())
}

#[test]
fn users_who_come_and_go_are_trained_saved_and_scored() {
    let (place, job) = place();
    let textfile = format!("metrics.textfile={}", place.word("rankine.prom"));
    train(&place, &job, "run", &["--set", &textfile]).with(SUCCESS);
    let whole = summary(&place, "run");
    let users = &whole["iteration"]["dynamic_tables"][0];
    let count = |key: &str| users[key].as_u64().unwrap_or_else(|| panic!("{key} is a count in {users}"));
    assert_eq!((users["table"].as_str(), count("capacity"), count("rows")), (Some("user"), 45, 45));
    // 60 users come, and as many but those at the end have gone.
    assert!(count("admitted") >= 55 && count("evicted") >= 10 && count("unadmitted_lookups") > 0, "{users}");
    assert!(whole["eval"]["auc"].as_f64().unwrap() > 0.75, "{whole:#}");
    let exported = Exported::read(&place.path("rankine.prom"), 0);
    let metric = |name: &str| exported.value(&format!("rankine_table_{name}"), "table=\"user\"");
    assert_eq!((metric("rows"), metric("load_ratio")), (45.0, 1.0));
    for name in ["admitted", "evicted", "unadmitted_lookups"] {
        assert_eq!(metric(&format!("{name}_total")), count(name) as f64, "{name}");
    }

    // On several ranks the same users have rows, and the model is nearly the same.
    train(&place, &job, "ranks", &["--set", "device.ranks=3"]).with(SUCCESS);
    let ranks = summary(&place, "ranks");
    assert_eq!(ranks["iteration"]["dynamic_tables"], whole["iteration"]["dynamic_tables"]);
    let auc = |summary: &serde_json::Value| summary["eval"]["auc"].as_f64().unwrap();
    assert!((auc(&ranks) - auc(&whole)).abs() < 1e-3);

    // Interrupted after an incremental checkpoint, and continued on the same rank: the same bits.
    train(&place, &job, "part", &["--set", "train.max_steps=45"]).with(SUCCESS);
    train(&place, &job, "part", &["--resume"]).with(SUCCESS);
    assert!(weights(&place, "part") == weights(&place, "run"), "a resumed run has another model");
    let latest = place.word("run/checkpoints/step-80");
    run(["ckpt", "verify", &latest]).with(SUCCESS);
    run(["ckpt", "inspect", &latest]).with(SUCCESS).stdout_says("embedding.user: 45 ids have rows");
    run(["ckpt", "reshard", &latest, "--ranks", "2", "--out", &place.word("resharded")]).with(SUCCESS);
    run(["ckpt", "diff", &latest, &place.word("resharded/checkpoints/step-80")])
        .with(SUCCESS)
        .stdout_says("ids of embedding.user: the same");

    // Users without a row have equal predictions; users of the end have their own.
    let unknown = "user,items,day\nnobody,i1,3\nnobody else,i1,3\nuser number 57,i1,3\nuser number 58,i1,3\n";
    let unknown = place.file("unknown.csv", unknown);
    let predict = |model: &str| -> Vec<f64> {
        let out = place.word("out.csv");
        run(["predict", "--run", &place.word(model), &unknown, "--out", &out]).with(SUCCESS);
        let text = fs::read_to_string(&out).unwrap();
        text.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().1.parse().unwrap()).collect()
    };
    let found = predict("run");
    assert!(found[0] == found[1] && found[2] > found[3] + 0.1, "{found:?}");
    run(["export", &place.word("run"), "--format", "safetensors", "--out", &place.word("export")])
        .with(SUCCESS);
    assert_eq!(predict("export"), found);
    assert_eq!(predict("resharded/checkpoints/step-80").len(), 4);
    let evaluated = run(["eval", "--run", &place.word("run"), "--json"]).with(SUCCESS).json();
    assert_eq!(evaluated["auc"], whole["eval"]["auc"], "{evaluated:#}");
    run(["export", &place.word("run"), "--format", "onnx", "--out", &place.word("onnx")])
        .with(USAGE)
        .says(&["the rows of table user are given to ids as they come"]);
    assert!(!place.path("onnx").exists());
}

#[test]
fn a_run_starts_from_the_ids_of_another_and_averages_rows_of_the_same_id() {
    let (place, job) = place();
    train(&place, &job, "first", &["--set", "train.max_steps=40"]).with(SUCCESS);
    let from = place.word("first");
    let known = summary(&place, "first")["iteration"]["dynamic_tables"][0]["rows"].as_u64().unwrap();
    assert!(known > 35);
    for (name, state) in [("fresh", "false"), ("state", "true")] {
        let sets = [format!("train.init_from={from}"), format!("train.init_optimizer_state={state}")];
        train(&place, &job, name, &["--set", &sets[0], "--set", &sets[1], "--set", "train.max_steps=10"])
            .with(SUCCESS);
        let users = &summary(&place, name)["iteration"]["dynamic_tables"][0];
        // The first batches have the users of the start, who lost their rows when `first` went on.
        assert!(users["rows"].as_u64().unwrap() >= known, "{users} after {known}");
    }
    let other = "table.0.rows.capacity=46";
    train(&place, &job, "other", &["--set", &format!("train.init_from={from}"), "--set", other])
        .with(USAGE)
        .says(&["has a different shape", "capacity"]);
    let average = "train.average={ kind = 'last', every_steps = 20, count = 3, save = 'always' }";
    train(&place, &job, "average", &["--set", average]).with(SUCCESS);
    assert_eq!(json_file(&place.path("average/summary.json"))["average"]["steps"][0].as_u64(), Some(60));
}

#[test]
fn what_a_job_may_not_say_is_refused() {
    let (place, job) = place();
    let check = |sets: &[&str]| {
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        run([&["check", &job][..], &sets].concat())
    };
    check(&[]).with(SUCCESS);
    let refused = |set: &str, words: &str| drop(check(&[set]).with(USAGE).says(&[words]));
    refused("table.0.rows.dynamic=false", "remove rows, or set dynamic = true");
    refused("table.0.rows.ttl_steps=3", "ttl_steps has no effect with evict = \"lru\"");
    refused("table.0.rows.evict=ttl", "set ttl_steps");
    refused("table.0.rows.capacity=0", "a whole number of rows from 1");
    refused("table.0.rows.capacity=5x", "a whole number of rows from 1");
    refused("table.0.rows.admit_after=256", "a whole number from 1 to 255");
    refused("table.0.oov_row=3", "remove oov_row");
    refused("table.0.placement=hybrid", "use another placement");
    refused("table.0.frequent_rows=7", "without frequent_rows");
    let on_gpus = ["device.kind=cuda", "device.ranks=4", "table.1.rows.evict=lru"];
    check(&on_gpus).with(SUCCESS);
    let nodes = [&on_gpus[..], &["device.nodes=2"]].concat();
    check(&nodes).with(USAGE).says(&["dynamic tables are supported on one node only"]);
    let skips = ["device.kind=cuda", "table.1.ids_out_of_range=skip"];
    check(&skips).with(USAGE).says(&["GPUs do not remove ids from their bags"]);
    let pooled = [&on_gpus[..], &["table.0.exchange=pooled"]].concat();
    check(&pooled).with(USAGE).says(&["owners do not pool its rows on GPUs"]);
    let plain =
        fs::read_to_string(&job).unwrap().replace("rows = { capacity = \"1k\", evict = \"none\" }", "");
    let plain = place.file("plain.toml", plain);
    run(["check", &plain]).with(USAGE).says(&["column items has an open vocabulary"]);
    // A table without room for all items ends the training, unless the job says otherwise.
    train(&place, &job, "full", &["--set", "table.1.rows.capacity=20"])
        .with(USAGE)
        .says(&["table items has no row for id", "20 ids have its 20 rows"]);
    for policy in ["skip", "oov"] {
        let set = format!("table.1.ids_out_of_range={policy}");
        train(&place, &job, policy, &["--set", "table.1.rows.capacity=20", "--set", &set]).with(SUCCESS);
        let items = &summary(&place, policy)["iteration"]["dynamic_tables"][1];
        assert!(items["unadmitted_lookups"].as_u64().unwrap() > 1000, "{items}");
    }
}
