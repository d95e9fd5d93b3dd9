//! What GPUs do not support is refused by `plan`, `check` and `train` alike, and nothing else is refused for a limit.

use crate::support::{Place, SUCCESS, USAGE, generate, job, run, train};

const SHAPE: &str = "\
name = \"limits\"
dense = 2
rows = [40, 5000, 20000]
hotness = [1, 3, 1]
";
const COMMON: [&str; 2] = ["device.kind='cuda'", "train.batch_size=8192"];

/// Settings that GPUs support.
const SUPPORTED: [&[&str]; 7] = [
    &["device.ranks=8"],
    &["device.ranks=16", "device.nodes=16"],
    &["device.ranks=128", "device.nodes=16"],
    &["device.ranks=512", "device.nodes=64"],
    &["device.ranks=16", "device.nodes=2", "embedding.exchange='pooled'", "embedding.placement='row-wise'"],
    &["device.ranks=4", "embedding.exchange='pooled'", "embedding.placement='column-wise'"],
    &["device.tune=true"],
];

/// Settings that they do not, with the key that the error names, and what it says.
const REFUSED: [(&[&str], &str, &str); 5] = [
    (&["device.ranks=9", "device.nodes=1"], "device.ranks", "at most 8 GPUs per node are supported, not 9"),
    (
        &["device.ranks=144", "device.nodes=16"],
        "device.ranks",
        "at most 8 GPUs per node are supported, not 9",
    ),
    (
        &["device.ranks=4", "embedding.exchange='pooled'", "embedding.placement='hybrid'"],
        "embedding.exchange",
        "exchange = \"pooled\" is not supported on GPUs for table",
    ),
    (
        &[
            "device.ranks=4",
            "embedding.exchange='pooled'",
            "embedding.placement='column-wise'",
            "optimizer.sparse={ kind = 'rowwise-adagrad', learning_rate = 0.01 }",
        ],
        "embedding.exchange",
        "exchange = \"pooled\" is not supported on GPUs for table",
    ),
    (&["device.ranks=2", "device.tune=true"], "device.tune", "device.tune is not supported on several GPUs"),
];

/// Numbers of tables and rows of each, and elements of a row, with what the error says if they are refused.
const TABLES: [(usize, u64, usize, Option<&str>); 6] = [
    (512, 5, 4, None),
    (513, 5, 4, Some("at most 512 features, not 513")),
    (2, 5, 1024, None),
    (2, 5, 1028, Some("at most 1024 elements per row, not 1028")),
    (3, 1 << 30, 4, None),
    (4, 1 << 30, 4, Some("at most 4294967295 rows, not 4294967296")),
];

#[test]
fn tables_that_gpus_cannot_number_are_refused_without_data() {
    let place = Place::new();
    for (tables, rows, dim, refused) in TABLES {
        let (rows, hotness) = (vec![rows; tables], vec![1; tables]);
        let shape = format!("name = \"tables\"\ndense = 2\nrows = {rows:?}\nhotness = {hotness:?}\n");
        let shape = place.file("shape.toml", shape);
        let job = job(&place);
        let model = format!(
            "model={{ kind = 'dcnv2', embedding_dim = {dim}, bottom_mlp = [4], cross_layers = 1, cross_rank = 4, \
             top_mlp = [4] }}"
        );
        let sets = [format!("data.shape={shape:?}"), model];
        let sets: Vec<_> = sets.iter().map(String::as_str).collect();
        for command in [&["plan", "--machine", "h200"][..], &["check"]] {
            let ended = with(command, &job, &sets);
            match refused {
                Some(what) => drop(ended.with(USAGE).says(&[what])),
                None => drop(ended.with(SUCCESS)),
            }
        }
    }
}

fn with(command: &[&str], job: &str, sets: &[&str]) -> crate::support::Ended {
    let sets = COMMON.iter().chain(sets).flat_map(|set| ["--set", set]);
    run(command[..1].iter().copied().chain([job]).chain(command[1..].iter().copied()).chain(sets))
}

#[test]
fn plan_check_and_train_agree_on_what_gpus_support() {
    let place = Place::new();
    generate(&place, SHAPE, 300, 0);
    let job = job(&place);
    for sets in SUPPORTED {
        with(&["plan", "--machine", "h200"], &job, sets).with(SUCCESS);
        with(&["check"], &job, sets).with(SUCCESS);
        // There may be too few GPUs, or none, but the job is not at fault.
        let trained = train(&place, &job, "run", &[&COMMON, sets].concat());
        let refused = REFUSED.iter().find(|(.., what)| trained.stderr.contains(what));
        assert_eq!(refused, None, "{sets:?}: {}", trained.stderr);
    }
    for (sets, key, what) in REFUSED {
        for command in [&["plan", "--machine", "h200"][..], &["check"]] {
            with(command, &job, sets).with(USAGE).says(&[key, what]);
        }
        let trained = train(&place, &job, "run", &[&COMMON, sets].concat()).with(USAGE);
        // A build without CUDA trains no such job at all.
        let expected = if cfg!(feature = "cuda") { [key, what] } else { ["device.kind", "only on the CPU"] };
        trained.says(&expected);
    }
    // Elsewhere, the job can be trained on the CPU, whose ranks have no such limit.
    for kind in ["auto", "cpu"] {
        let kind = format!("device.kind='{kind}'");
        run(["check", &job, "--set", "device.ranks=9", "--set", &kind]).with(SUCCESS);
        run(["plan", &job, "--machine", "cpu", "--ranks", "9", "--set", &kind]).with(SUCCESS);
    }
    // Training may count more nodes than one. A plan assumes one, and no more GPUs than training supports.
    with(&["check"], &job, &["device.ranks=9"]).with(SUCCESS);
    run(["plan", &job, "--machine", "h200", "--ranks", "9"]).with(USAGE).says(&["at most 8 GPUs per node"]);
    let sweep = ["plan", &job, "--machine", "h200", "--ranks", "8", "--sweep-nodes"];
    run(sweep.into_iter().chain(["16,64"])).with(SUCCESS);
    run(sweep.into_iter().chain(["513"])).with(USAGE).says(&["at most 4096 ranks, so 512 nodes, not 513"]);
}
