//! Samples that are scored at a time (`eval.batch_size`).

use super::beside::logged;
use super::training::Runs;
use crate::support::weights;

/// Sums over samples follow the order of the samples, whatever the batches.
#[test]
fn metrics_have_the_same_bits_for_any_number_of_samples_scored_at_a_time() {
    let runs = Runs::new();
    let common = ["train.epochs=2", "train.max_steps=20", "eval.every_steps=10"];
    for (kind, more) in [
        ("threads", &["device.threads=3"][..]),
        ("ranks", &["device.ranks=2", "embedding.placement=row-wise", "device.threads=2"]),
        ("pooled", &["device.ranks=3", "embedding.placement=row-wise", "embedding.exchange=pooled"]),
        (
            "nodes",
            &[
                "device.ranks=4",
                "device.nodes=2",
                "embedding.placement=row-wise",
                "embedding.exchange=pooled",
            ],
        ),
        ("validation", &["train.validation=\"last:0.2\""]),
    ] {
        let sizes = ["\"auto\"", "7", "16777216"];
        let of_size = |size: &str| {
            let name = format!("{kind}-{}", size.trim_matches('"'));
            let set = format!("eval.batch_size={size}");
            let (_, summary) = runs.train(&name, &[&common[..], more, &[&set]].concat());
            let scored = summary.eval.and_then(|eval| eval.batch_size);
            assert_eq!(scored, Some(size.parse().unwrap_or(8192)), "{kind}, {size}");
            (logged(&runs, &name), weights(&runs.place, &name))
        };
        let expected = of_size(sizes[0]);
        let evaluations = if kind == "validation" { 3 } else { 2 };
        assert!(
            expected.0.len() >= evaluations && expected.0[0]["auc"].is_number(),
            "{kind}: {:?}",
            expected.0
        );
        for size in &sizes[1..] {
            let found = of_size(size);
            assert_eq!(found.0, expected.0, "{kind}, {size}");
            assert!(found.1 == expected.1, "{kind}, {size}: the evaluations change the training");
        }
    }
}
