//! The text that commands print agrees with their JSON and their files, and metrics agree with the predictions.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{
    Ended, FAILED, Place, SHAPE, SUCCESS, criteo_rows, generate, job, json_file, run, summary, train,
};

#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {path} in {value:#}"))
}

#[track_caller]
fn whole(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no integer {path} in {value:#}"))
}

#[track_caller]
fn words<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no text {path} in {value:#}"))
}

#[track_caller]
fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("no list {path} in {value:#}"))
}

/// Returns the text of an evaluation, from its JSON.
fn metrics_text(metrics: &Value) -> String {
    let number = |key: &str| number(metrics, key);
    format!(
        "AUC                 {:.5}   (achievable: {:.5})\nlog loss            {:.5}\nnormalized entropy  {:.5}\n\
         calibration         {:.4}\nlabel rate          {:.5}\nsamples             {}\n",
        number("/auc"),
        number("/auc_achievable"),
        number("/log_loss"),
        number("/normalized_entropy"),
        number("/calibration"),
        number("/label_rate"),
        number("/samples")
    )
}

/// Trains a run with checkpoints every 8 of its 24 steps; returns its place and stdout.
fn trained(sets: &[&str]) -> (Place, String) {
    let place = Place::new();
    generate(&place, SHAPE, 3000, 700);
    let sets = [&["checkpoint.every_steps=8", "checkpoint.incremental=true"], sets].concat();
    let printed = train(&place, &job(&place), "run", &sets).with(SUCCESS).stdout;
    (place, printed)
}

#[test]
fn a_training_prints_its_summary() {
    let ranks = ["device.ranks=4", "device.nodes=2", "embedding.placement='row-wise'"];
    for sets in [&[][..], &ranks] {
        let (place, printed) = trained(sets);
        let summary = summary(&place, "run");
        let exchanged = if sets.is_empty() {
            assert_eq!(summary["exchange"], Value::Null);
            String::new()
        } else {
            let of = |what: &str, link: &str| number(&summary, &format!("/exchange/{what}/{link}"));
            let size = |link| size(of("bytes", link).round() as u64);
            format!(
                "exchanged           {:.0} vectors per step within nodes ({}), {:.0} between nodes ({})\n",
                of("rows", "within_nodes"),
                size("within_nodes"),
                of("rows", "between_nodes"),
                size("between_nodes")
            )
        };
        let expected = format!(
            "evaluated on        the evaluation part\n\
             {}{exchanged}trained             3000 samples in {:.1} s, {:.0} samples/s\n\
             run                 {}\n",
            metrics_text(&summary["eval"]),
            number(&summary, "/train/seconds"),
            number(&summary, "/train/samples_per_second"),
            place.word("run")
        );
        assert_eq!(printed, expected);
        // `eval` prints the same metrics.
        let run_dir = place.word("run");
        assert_eq!(run(["eval", "--run", &run_dir]).with(SUCCESS).stdout, metrics_text(&summary["eval"]));
        let on_train = run(["eval", "--run", &run_dir, "--part", "train", "--json"]).with(SUCCESS).json();
        // The achievable AUC is only known for the evaluation part.
        assert_eq!((whole(&on_train, "/samples"), on_train.get("auc_achievable")), (3000, None));
    }
}

/// Compares all metrics but the AUC, which `predict.rs` compares.
#[test]
fn metrics_agree_with_the_predictions() {
    let place = Place::new();
    let rows = criteo_rows(2100, 3);
    let log = place.file("log.tsv", rows[..1500].join("\n") + "\n");
    let eval = place.file("eval.tsv", rows[1500..].join("\n") + "\n");
    let data = place.word("data");
    run(["convert", "criteo-tsv", &log, "--out", &data, "--eval", &eval]).with(SUCCESS);
    train(&place, &job(&place), "run", &["eval.batch_size=256"]).with(SUCCESS);
    let (run_dir, out) = (place.word("run"), place.word("predictions.csv"));
    let predict = |args: &[&str]| run([&["predict", "--run", &run_dir, "--out", &out], args].concat());
    let report = predict(&[&eval, "--json"]).with(SUCCESS).json();
    let printed = predict(&[&eval]).with(SUCCESS).stdout;
    let unknown = report["unknown"].as_object().unwrap().values();
    let sum = |key: &str| unknown.clone().map(|column| column[key].as_u64().unwrap()).sum::<u64>();
    assert!(sum("lookups") > 0);
    assert_eq!(
        printed,
        format!(
            "rows read        600\nrows predicted   600\nrows bad         0\nrows skipped     0\n\
             predictions      {out}\n\
             unknown categories: {} distinct values, {} look-ups\n",
            sum("distinct_values"),
            sum("lookups")
        )
    );
    let (seconds, rate) = (number(&report, "/seconds"), number(&report, "/rows_per_second"));
    assert!((seconds * rate - 600.0).abs() < 1e-9 && words(&report, "/out") == out, "{report}");

    let text = fs::read_to_string(&out).unwrap();
    let predictions =
        text.lines().skip(1).map(|line| line.split_once(',').unwrap().1.parse::<f64>().unwrap());
    let labels = rows[1500..].iter().map(|row| f64::from(u8::from(row.starts_with('1'))));
    let (mut losses, mut predicted, mut positives) = (0.0, 0.0, 0.0);
    for (probability, label) in predictions.zip(labels) {
        losses -= if label == 1.0 { probability.ln() } else { (1.0 - probability).ln() };
        predicted += probability;
        positives += label;
    }
    let rate = positives / 600.0;
    let entropy = -(rate * rate.ln() + (1.0 - rate) * (1.0 - rate).ln());
    let metrics = run(["eval", "--run", &run_dir, "--data", &data, "--json"]).with(SUCCESS).json();
    for (key, expected) in [
        ("/log_loss", losses / 600.0),
        ("/normalized_entropy", losses / 600.0 / entropy),
        ("/calibration", predicted / positives),
        ("/label_rate", rate),
    ] {
        // Both sum 600 numbers in double precision; logarithms of probabilities above 1e-4 lose four more digits.
        let found = number(&metrics, key);
        assert!(
            (found - expected).abs() <= 1e4 * 600.0 * f64::EPSILON * expected,
            "{key}: {found}, not {expected}"
        );
    }
}

/// Returns the tensors of a model's folder as floats, by name.
fn tensors(model: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let floats =
        |data: &[u8]| data.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, tensor)| (name.to_owned(), floats(tensor.data()))).collect()
}

#[test]
fn checkpoints_are_compared_number_by_number() {
    let (place, _) = trained(&["checkpoint.keep=9"]);
    let step = |step: u32| place.word(&format!("run/checkpoints/step-{step}"));
    let export = |of: u32| {
        let name = format!("export-{of}");
        let printed = run(["ckpt", "export", &step(of), "--out", &place.word(&name)]).with(SUCCESS).stdout;
        assert_eq!(printed, format!("exported the model of step {of} to {}\n", place.word(&name)));
        tensors(&place.path(&name))
    };
    let (before, after) = (export(8), export(16));
    let exports = [place.word("export-8"), place.word("export-16")];
    let differences = run(["ckpt", "diff", &exports[0], &exports[1], "--json"]).with(FAILED).json();
    assert_eq!(differences["steps"], serde_json::json!([8, 16]));
    // By printed name: rows, rows that differ, and the largest difference.
    let mut expected = BTreeMap::<&str, (u64, u64, f64)>::new();
    for (name, ours) in &before {
        let (shown, dim) =
            if name.starts_with("embedding.") { (name.as_str(), 4) } else { ("dense parameters", 1) };
        let (rows, differ, largest) = expected.entry(shown).or_default();
        for (ours, theirs) in ours.chunks(dim).zip(after[name].chunks(dim)) {
            (*rows, *differ) = (*rows + 1, *differ + u64::from(ours != theirs));
            let distances =
                ours.iter().zip(theirs).map(|(one, other)| (f64::from(*one) - f64::from(*other)).abs());
            *largest = distances.fold(*largest, f64::max);
        }
    }
    assert_eq!(list(&differences, "/tensors").len(), expected.len());
    let mut text = "steps 8 and 16\n".to_owned();
    for tensor in list(&differences, "/tensors") {
        let (rows, differ, largest) = expected[words(tensor, "/name")];
        assert_eq!((whole(tensor, "/rows"), whole(tensor, "/rows_differ")), (rows, differ), "{tensor}");
        assert_eq!(number(tensor, "/largest"), largest, "{tensor}");
        assert!(differ > 0);
        text += &format!("  {}: {differ} of {rows} differ, by at most {largest:e}\n", words(tensor, "/name"));
    }
    let ended = run(["ckpt", "diff", &exports[0], &exports[1]]).with(FAILED);
    assert_eq!((ended.stdout, ended.stderr.as_str()), (text, "error: the checkpoints differ\n"));
    // Checkpoints also have optimizer state, which grew in every row that changed.
    let with_state = run(["ckpt", "diff", &step(8), &step(16), "--json"]).with(FAILED).json();
    for (with, without) in list(&with_state, "/tensors").iter().zip(list(&differences, "/tensors")) {
        assert_eq!((&with["name"], &with["rows"]), (&without["name"], &without["rows"]));
        assert!(whole(with, "/rows_differ") >= whole(without, "/rows_differ"), "{with} {without}");
        assert!(number(with, "/largest") >= number(without, "/largest"), "{with} {without}");
    }
    let same = run(["ckpt", "diff", &step(16), &step(16)]).with(SUCCESS).stdout;
    assert_eq!(same.lines().filter(|line| line.ends_with(": the same")).count(), expected.len(), "{same}");
}

#[test]
fn checkpoints_are_described_as_on_disk() {
    let (place, _) = trained(&["device.ranks=2", "seed=5"]);
    let run_dir = place.word("run");
    let step = |step: u32| place.path(&format!("run/checkpoints/step-{step}"));
    let bytes = |dir: &Path| {
        let sizes = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        let sizes: Vec<_> = sizes.collect();
        (sizes.len() as u64, sizes.iter().sum::<u64>())
    };
    let inspect = |dir: &Path| {
        let dir = dir.to_str().unwrap();
        let text = run(["ckpt", "inspect", dir]).with(SUCCESS).stdout;
        (run(["ckpt", "inspect", dir, "--json"]).with(SUCCESS).json(), text)
    };
    for at in [8, 24] {
        let (json, text) = inspect(&step(at));
        let train = &json["manifest"]["train"];
        let shards = list(&json, "/shards");
        let of_shards: u64 = shards.iter().map(|shard| whole(shard, "/bytes")).sum();
        for shard in shards {
            let file = step(at).join(words(shard, "/name"));
            assert_eq!(file.metadata().unwrap().len(), whole(shard, "/bytes"));
        }
        assert_eq!((whole(&json, "/bytes"), shards.len()), (of_shards, 2));
        // 23 batches of 128 samples, and one of 56.
        let samples = if at == 8 { 8 * 128 } else { 3000 };
        assert_eq!((whole(train, "/step"), whole(train, "/samples")), (at.into(), samples));
        // All 113 rows are looked up within 8 steps; only an incremental checkpoint has their number.
        let rows_added = if at == 8 { 0 } else { 113 };
        assert_eq!(whole(&json, "/rows_added"), rows_added);
        let incremental = format!("  incremental, based on step 8: {rows_added} rows updated since\n");
        let position = &train["position"];
        let mut expected = format!(
            "{}: {}, saved by Rankine {}\n  step {at}, {samples} samples; continues in epoch {} at sample {}; \
             loss {:.5}, seed 5\n{}  saved on 2 ranks and 1 node\n  581 dense parameters, \
             optimizer adagrad with sum\n",
            step(at).display(),
            size(of_shards),
            env!("CARGO_PKG_VERSION"),
            whole(position, "/epoch"),
            whole(position, "/sample"),
            number(train, "/loss"),
            if at == 8 { "" } else { &incremental }
        );
        for (table, rows) in [40, 30, 20, 12, 8, 3].iter().enumerate() {
            expected +=
                &format!("  embedding.C{}: {rows} rows of 4 fp32, optimizer adagrad with sum\n", table + 1);
        }
        for shard in shards {
            let (name, bytes) = (words(shard, "/name"), whole(shard, "/bytes"));
            expected += &format!("  {name}: {} pieces, {bytes} bytes\n", whole(shard, "/pieces"));
        }
        assert_eq!(text, expected);
    }
    // `verify` reads every file, also those of the base of an incremental checkpoint.
    let pieces =
        |at| list(&inspect(&step(at)).0, "/shards").iter().map(|one| whole(one, "/pieces")).sum::<u64>();
    let line = |at: u32, with_base: bool| {
        let of: Vec<_> = if with_base { vec![at, 8] } else { vec![at] };
        let (files, all) = of.iter().map(|&at| bytes(&step(at))).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let pieces: u64 = of.iter().map(|&at| pieces(at)).sum();
        format!("{}: {files} files, {pieces} pieces and {all} bytes are intact\n", step(at).display())
    };
    let verified = run(["ckpt", "verify", &run_dir]).with(SUCCESS).stdout;
    assert_eq!(verified, [line(24, true), line(16, true), line(8, false)].concat());
    let model = place.word("run/model");
    let verified = run(["ckpt", "verify", &model]).with(SUCCESS).stdout;
    let (files, all) = bytes(model.as_ref());
    assert_eq!(verified, format!("{model}: {files} files and {all} bytes are intact\n"));

    // Resharding writes the full checkpoint that another number of ranks would have saved.
    let out = place.word("resharded");
    let printed = run(["ckpt", "reshard", &run_dir, "--ranks", "3", "--out", &out]).with(SUCCESS).stdout;
    let resharded = place.path("resharded/checkpoints/step-24");
    let (_, all) = bytes(&resharded);
    assert_eq!(printed, format!("{}: {all} bytes in 3 shards\n", resharded.display()));
    let (json, _) = inspect(&resharded);
    let manifest = &json["manifest"];
    assert_eq!(
        (whole(manifest, "/ranks"), whole(manifest, "/nodes"), &manifest["base"]),
        (3, 1, &Value::Null)
    );
    assert_eq!(json_file(&step(24).join("manifest.json"))["content"]["train"], manifest["train"]);
}

#[test]
fn a_check_prints_the_size_of_a_model() {
    let place = Place::new();
    let data = generate(&place, SHAPE, 500, 0);
    let job = job(&place);
    let text = run([
        "check",
        &job,
        "--set",
        "optimizer.sparse.kind=adam",
        "--set",
        "model.embedding_dim=8192",
        "--set",
        "model.bottom_mlp=[8192]",
    ])
    .with(SUCCESS)
    .stdout;
    // The bottom MLP has 4 inputs; the top MLP has 8192 units and the dot products of 21 pairs.
    let dense = (4 * 8192 + 8192) + ((8192 + 21) * 16 + 16) + (16 + 1);
    let memory = size(113 * 8192 * 4 * 3);
    let expected = format!(
        "{job} is valid: job `small`\ndataset   {data}\n\
         model     dlrm: 6 tables with 113 rows, {} embedding and {dense} dense parameters\n\
         memory    {memory} for the tables and their optimizer state\n\
         here      the job would be trained on the CPU\n",
        113 * 8192
    );
    assert!(text.starts_with(&expected), "{text}");
}

/// Formats bytes with a binary unit.
fn size(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let decimals = usize::from(unit > 0);
    format!("{value:.decimals$} {}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

fn many(count: f64) -> String {
    let (mut value, mut unit) = (count, 0);
    while value.round() >= 1000.0 {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$}{}", ["", " k", " M", " G"][unit])
}

fn ms(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

fn placed(table: &Value) -> String {
    let placement = words(table, "/placement");
    table["exchange"].as_str().map_or(placement.into(), |exchange| format!("{placement}, {exchange}"))
}

const DCNV2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlperf-dlrm-dcnv2.toml");
const H200: [&str; 2] = ["--machine", "h200"];

/// Returns the text of a plan, and its JSON.
fn plan(args: &[&str]) -> (String, Value) {
    let plan =
        |more: &[&str]| -> Ended { run([&["plan", DCNV2], &H200[..], args, more].concat()).with(SUCCESS) };
    (plan(&[]).stdout, plan(&["--json"]).json())
}

/// The fields of each line: two spaces or more stand between them.
fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(fields).collect()
}

fn fields(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|field| !field.is_empty()).collect()
}

#[test]
fn a_plan_is_printed_in_full() {
    let (text, json) = plan(&["--ranks", "16", "--nodes", "2"]);
    let mut expected =
        "job          mlperf-dlrm-dcnv2, batches of 65536\nmachine      h200, 16 ranks on 2 nodes\n\
                        frequencies  assumed to follow a power law with exponent 1.1\n\n"
            .to_owned();
    expected +=
        "table      rows  dim  placement            frequent  of ids  on a rank     within    between  why\n";
    for table in list(&json, "/tables") {
        expected += &format!(
            "{}  {}  {}  {}  {}  {:.1}%  {}  {}  {}  {}\n",
            words(table, "/name"),
            many(number(table, "/rows")),
            whole(table, "/dim"),
            placed(table),
            many(number(table, "/frequent_rows")),
            number(table, "/frequent_share") * 100.0,
            size(whole(table, "/rank_bytes")),
            size(whole(table, "/traffic/within_nodes/bytes")),
            size(whole(table, "/traffic/between_nodes/bytes")),
            words(table, "/reason")
        );
    }
    let spread = |key: &str| {
        let of_ranks: Vec<_> = list(&json, "/per_rank").iter().map(|rank| whole(rank, key)).collect();
        let (least, most) = (size(*of_ranks.iter().min().unwrap()), size(*of_ranks.iter().max().unwrap()));
        if least == most { most } else { format!("{least} to {most}") }
    };
    let rest = |key: &str| whole(&json, &format!("/memory/rest/{key}"));
    let (needed, available) = (whole(&json, "/memory/needed_bytes"), whole(&json, "/memory/available_bytes"));
    expected += &format!(
        "\nmemory per rank\n  tables and optimizer state     {}\n  messages and frequent rows     {}\n  \
         dense parameters               {}\n  their gradients and state      {}\n  \
         activations                    {}\n  \
         batches                        {}\n  fullest rank                   {} of {} ({:.1}%)\n  \
         scoring (eval.batch_size)      at most {} of the rest\n",
        spread("/table_bytes"),
        spread("/buffer_bytes"),
        size(rest("parameter_bytes")),
        size(rest("gradient_bytes") + rest("state_bytes")),
        size(rest("activation_bytes")),
        size(rest("batch_bytes")),
        size(needed),
        size(available),
        needed as f64 / available as f64 * 100.0,
        size(whole(&json, "/scoring_bytes"))
    );
    expected += "\nhottest rows of all tables with optimizer state, and what a batch misses of its distinct rows\n\
         of all bytes  rows  bytes  look-ups  missed rows  missed bytes\n";
    for hottest in list(&json, "/hottest") {
        expected += &format!(
            "{:.1}%  {}  {}  {:.1}%  {}  {}\n",
            number(hottest, "/share") * 100.0,
            many(number(hottest, "/rows")),
            size(whole(hottest, "/bytes")),
            number(hottest, "/lookup_share") * 100.0,
            many(number(hottest, "/missed_rows")),
            size(number(hottest, "/missed_bytes").round() as u64)
        );
    }
    expected += "\ntraffic per step, over all ranks\n";
    for (name, key) in [("within nodes ", "within_nodes"), ("between nodes", "between_nodes")] {
        let of = |what: &str| whole(&json, &format!("/traffic/{key}/{what}"));
        let padding = match of("padding_bytes") {
            0 => String::new(),
            padding => format!(", and {} of padding", size(padding)),
        };
        let rows = many(of("rows") as f64);
        expected += &format!("  {name}                  {} in {rows} vectors{padding}\n", size(of("bytes")));
    }
    let all_reduce = |key: &str| whole(&json, &format!("/all_reduce/{key}"));
    expected += &format!(
        "  all-reduce                     {} within nodes, {} between nodes ({} elements, {} of frequent rows)\n",
        size(all_reduce("within_bytes")),
        size(all_reduce("between_bytes")),
        many(all_reduce("elements") as f64),
        many(all_reduce("frequent_elements") as f64)
    );
    expected += "\ntime per step, on the slowest rank\n";
    for (name, key, sign) in [
        ("dense compute", "dense_s", 1.0),
        ("memory traffic", "memory_s", 1.0),
        ("exchange within nodes", "exchange_within_s", 1.0),
        ("exchange between nodes", "exchange_between_s", 1.0),
        ("all-reduce within nodes", "all_reduce_within_s", 1.0),
        ("all-reduce between nodes", "all_reduce_between_s", 1.0),
        ("latencies", "latency_s", 1.0),
        ("overlapped", "hidden_s", -1.0),
        ("total", "total_s", 1.0),
    ] {
        expected += &format!("  {name:<30} {:>12}\n", ms(sign * number(&json, &format!("/iteration/{key}"))));
    }
    let limit = words(&json, "/limit");
    assert_eq!(limit, "link-between");
    expected += &format!(
        "\n{} samples/s, limited by link between nodes; the mean load is {:.1}% of that of the slowest rank\n",
        many(number(&json, "/samples_per_second")),
        number(&json, "/balance") * 100.0
    );
    assert_eq!(cells(&text), cells(&expected));
    let rate = whole(&json, "/batch_size") as f64 / number(&json, "/iteration/total_s");
    assert!((number(&json, "/samples_per_second") / rate - 1.0).abs() < 1e-12);
}

#[test]
fn a_sweep_and_an_explanation_are_printed_in_full() {
    let sweep = ["--ranks", "8", "--sweep-nodes", "1,2,4", "--memory", "20GiB"];
    let (text, json) = plan(&sweep);
    let mut expected = "job          mlperf-dlrm-dcnv2, same batch size per rank\n\
                        machine      h200, 8 ranks per node\n\
                        frequencies  assumed to follow a power law with exponent 1.1\n\n\
                        nodes  ranks  batch  step  samples/s  efficiency  on a rank  within  between  \
                        limited by\n"
        .to_owned();
    let points = list(&json, "/points");
    assert_eq!((points.len(), &points[0]["iteration"]), (3, &Value::Null));
    let first = &points[1];
    for point in points {
        let (nodes, ranks, batch) =
            (whole(point, "/nodes"), whole(point, "/ranks"), whole(point, "/batch_size"));
        assert_eq!((ranks, batch), (8 * nodes, 65_536 * nodes));
        expected += &format!("{nodes}  {ranks}  {batch}");
        let on_a_rank = size(whole(point, "/needed_bytes"));
        if point["iteration"].is_null() {
            expected += &format!("  -  -  -  {on_a_rank}  -  -  memory capacity\n");
            continue;
        }
        let rate = number(point, "/samples_per_second");
        let per_rank = |point: &Value| number(point, "/samples_per_second") / number(point, "/ranks");
        let efficiency = number(point, "/efficiency");
        assert!((efficiency - per_rank(point) / per_rank(first)).abs() < 1e-12, "{point}");
        assert!((rate * number(point, "/iteration/total_s") / batch as f64 - 1.0).abs() < 1e-12, "{point}");
        expected += &format!(
            "  {}  {}  {:.1}%  {on_a_rank}  {}  {}  link between nodes\n",
            ms(number(point, "/iteration/total_s")),
            many(rate),
            efficiency * 100.0,
            size(whole(point, "/traffic/within_nodes/bytes")),
            size(whole(point, "/traffic/between_nodes/bytes"))
        );
        assert_eq!(list(point, "/placements").iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 26);
    }
    assert_eq!(cells(&text), cells(&expected));

    let (text, table) = plan(&["--ranks", "8", "--batch", "40000", "--explain", "C20"]);
    let (lookups, distinct) = (number(&table, "/lookups_per_sample"), number(&table, "/distinct_rows"));
    let head = format!(
        "job          mlperf-dlrm-dcnv2, batches of 40000\nmachine      h200, 8 ranks on one node\n\
         frequencies  assumed to follow a power law with exponent 1.1\n\
         table        C20, 40000000 rows of 128 elements\n\
         look-ups     12.00 per sample; {} distinct rows per batch ({:.1}%)\n\
         placement    {}: {}\n\n",
        many(distinct),
        distinct / (lookups * 40_000.0) * 100.0,
        placed(&table),
        words(&table, "/reason")
    );
    assert!(text.starts_with(&head), "{text}\n{head}");
    let lines: Vec<_> = text.lines().skip(8).collect();
    let alternatives = list(&table, "/alternatives");
    assert_eq!(lines.len(), 1 + alternatives.len());
    assert!(lines[0].ends_with("+0.00%  chosen"), "{text}");
    for (line, alternative) in lines[1..].iter().zip(alternatives) {
        let owners = match whole(alternative, "/owners") {
            0 => "all".to_owned(),
            owners => owners.to_string(),
        };
        let expected = [
            placed(alternative),
            owners,
            many(number(alternative, "/frequent_rows")),
            size(whole(alternative, "/rank_bytes")),
            size(whole(alternative, "/within_bytes")),
            size(whole(alternative, "/between_bytes")),
            size(whole(alternative, "/all_reduce_bytes")),
            ms(number(alternative, "/iteration_s")),
        ];
        assert_eq!(fields(line)[..8], expected, "{line}");
    }
}
