//! What this process did with object stores, read when metrics are asked for.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use rankine_reader::store::{StoreCounts, counts};

use super::catalog::Family;

const fn family(name: &'static str, labels: &'static [&'static str], meaning: &'static str) -> Family {
    Family { name, kind: "counter", labels, meaning }
}

/// What the collector exports.
pub(super) const FAMILIES: [Family; 4] = [
    family("rankine_store_bytes_total", &[], "Bytes of objects that were fetched from object stores."),
    family(
        "rankine_store_requests_total",
        &["status"],
        "Requests to object stores by the status of the answer; `none` if there was no answer. Absent before the first \
         request.",
    ),
    family("rankine_store_retries_total", &[], "Attempts at object stores that failed and were repeated."),
    family(
        "rankine_store_cache_reads_total",
        &["outcome"],
        "Blocks of objects that the folder of `data.cache` had (`hit`) or lacked (`miss`).",
    ),
];

/// Reads the counts of the process when metrics are asked for.
#[derive(Debug)]
pub(super) struct StoreCollector(Vec<Desc>);

impl StoreCollector {
    pub(super) fn new() -> Self {
        Self(FAMILIES.iter().map(Family::desc).collect())
    }
}

impl Collector for StoreCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        families(&counts())
    }
}

fn families(counts: &StoreCounts) -> Vec<MetricFamily> {
    let StoreCounts { bytes, requests, retries, cache_hits, cache_misses } = counts;
    let status = |status: u16| if status == 0 { "none".to_owned() } else { status.to_string() };
    let requests = requests.iter().map(|(&of, &count)| ([status(of)], count as f64));
    let reads = [("hit", *cache_hits), ("miss", *cache_misses)];
    let reads = reads.map(|(outcome, count)| ([outcome.to_owned()], count as f64));
    let [bytes_family, requests_family, retries_family, reads_family] = &FAMILIES;
    let mut families = vec![
        bytes_family.with_values([([], *bytes as f64)]),
        retries_family.with_values([([], *retries as f64)]),
        reads_family.with_values(reads),
    ];
    if requests.len() > 0 {
        families.push(requests_family.with_values(requests));
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_labels() {
        let counts = StoreCounts {
            bytes: 7,
            requests: [(0, 1), (206, 5)].into(),
            retries: 2,
            cache_hits: 3,
            cache_misses: 4,
        };
        let mut text = Vec::new();
        prometheus::Encoder::encode(&prometheus::TextEncoder::new(), &families(&counts), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "rankine_store_bytes_total 7",
                "rankine_store_retries_total 2",
                "rankine_store_cache_reads_total{outcome=\"hit\"} 3",
                "rankine_store_cache_reads_total{outcome=\"miss\"} 4",
                "rankine_store_requests_total{status=\"none\"} 1",
                "rankine_store_requests_total{status=\"206\"} 5",
            ]
        );
        assert_eq!(families(&StoreCounts::default()).len(), 3, "there was no request");
    }
}
