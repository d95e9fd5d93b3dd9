//! Training on several ranks: runs repeat with the same bits, and traffic is counted and agrees with the plan.

use serde_json::Value;

use crate::support::{Place, SUCCESS, USAGE, generate, job, run, summary, train, weights};

/// Tables of all sizes, bags with one id and with several, and rows with different frequencies.
const SHAPE: &str = "\
name = \"mixed\"
dense = 4
rows = [3, 40, 500, 6000, 20000]
hotness = [1, 1, 3, 2, 8]
";
const SAMPLES: u64 = 20_000;
const RANKS: [&str; 2] = ["device.ranks=4", "device.nodes=2"];

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is missing in {value:#}"))
}

#[test]
fn a_run_on_several_ranks_repeats_and_reports_its_traffic() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 2000);
    let job = job(&place);
    let trained = |name: &str, sets: &[&str]| {
        let common = ["train.max_steps=30", "train.batch_size=301"];
        train(&place, &job, name, &[&common, sets].concat()).with(SUCCESS);
        summary(&place, name)
    };
    let one = trained("one", &[]);
    assert_eq!((&one["device"]["ranks"], &one["exchange"]), (&Value::from(1), &Value::Null));
    let auc = number(&one, "/eval/auc");
    for (name, sets) in [
        ("auto", &[][..]),
        ("rows", &["embedding.placement='row-wise'", "embedding.exchange='rows'"][..]),
        ("pooled", &["embedding.placement='row-wise'", "embedding.exchange='pooled'"][..]),
        ("columns", &["embedding.placement='column-wise'", "device.dense_update='sharded'"][..]),
    ] {
        let sets = [&RANKS, sets].concat();
        let first = trained(name, &sets);
        assert_eq!(
            (&first["device"]["ranks"], &first["device"]["nodes"]),
            (&Value::from(4), &Value::from(2))
        );
        assert!((number(&first, "/eval/auc") - auc).abs() < 1e-4, "{name}: {first:#}, but {auc} on one rank");
        assert!(number(&first, "/exchange/reduced_bytes/between_nodes") > 0.0);
        let again = format!("{name}-again");
        trained(&again, &[&sets[..], &["device.threads=3"]].concat());
        assert!(weights(&place, name) == weights(&place, &again), "{name} trains another model each time");
    }
}

/// The planner's prediction is within 10% of a run's counters.
#[test]
fn predicted_traffic_agrees_with_counted_traffic() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 0);
    let job = job(&place);
    for (name, sets) in [
        ("auto", &[][..]),
        ("hybrid", &["embedding.placement='hybrid'"][..]),
        ("rows", &["embedding.placement='row-wise'", "embedding.exchange='rows'"][..]),
        ("pooled", &["embedding.placement='row-wise'", "embedding.exchange='pooled'"][..]),
        ("tables", &["embedding.placement='table-wise'"][..]),
        ("columns", &["embedding.placement='column-wise'", "embedding.exchange='rows'"][..]),
    ] {
        let sets = [&RANKS[..], &["train.batch_size=512", "train.epochs=1"], sets].concat();
        train(&place, &job, name, &sets).with(SUCCESS);
        let counted = summary(&place, name)["exchange"].clone();
        let planning = ["plan", &job, "--json"].into_iter().chain(sets.iter().flat_map(|set| ["--set", set]));
        let plan = run(planning).with(SUCCESS).json();
        for link in ["within_nodes", "between_nodes"] {
            let reduced = format!("/all_reduce/{}_bytes", link.trim_end_matches("_nodes"));
            for (what, predicted) in [
                ("rows", format!("/traffic/{link}/rows")),
                ("bytes", format!("/traffic/{link}/bytes")),
                ("reduced_bytes", reduced),
            ] {
                let counted = number(&counted, &format!("/{what}/{link}"));
                let predicted = number(&plan, &predicted);
                let close = (predicted - counted).abs() <= 0.1 * counted;
                assert!(close, "{name}: {what} {link}: {predicted} predicted, {counted} counted");
            }
        }
    }
}

#[test]
fn uneven_nodes_are_refused_with_the_reason() {
    let place = Place::new();
    generate(&place, SHAPE, 1000, 0);
    let ended = train(&place, &job(&place), "run", &["device.ranks=8", "device.nodes=3"]);
    ended.with(USAGE).says(&["device.nodes", "8 ranks", "3 nodes", "multiple of 3"]);
}
