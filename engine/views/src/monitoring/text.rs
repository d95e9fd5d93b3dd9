//! The text format of Prometheus.

use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Registry, TextEncoder};
use rankine_topology::Process;

use super::catalog::label_pair;

/// The type of the text.
pub(super) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Writes all metrics as text.
pub(super) fn of(registry: &Registry) -> Vec<u8> {
    encode(&registry.gather())
}

/// Writes Rankine's own metrics as text for the node exporter's textfile collector. Metrics of the process are left
/// out, since the exporter has such metrics itself. The labels `name` and `rank` keep jobs and processes of one host
/// apart, which different targets do otherwise.
pub(super) fn for_textfile(registry: &Registry, name: &str, process: Process) -> Vec<u8> {
    let mut families = registry.gather();
    families.retain(|family| family.name().starts_with("rankine_"));
    for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
        let mut labels = metric.get_label().to_vec();
        if labels.iter().all(|label| label.name() != "name") {
            labels.push(label_pair("name", name.to_owned()));
        }
        labels.push(label_pair("rank", process.to_string()));
        labels.sort_by(|one, other| one.name().cmp(other.name()));
        metric.set_label(labels);
    }
    encode(&families)
}

fn encode(families: &[MetricFamily]) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory cannot fail, and families without metrics, the other error, are not gathered.
    if let Err(error) = TextEncoder::new().encode(families, &mut text) {
        tracing::warn!("metrics cannot be encoded: {error}");
    }
    text
}
