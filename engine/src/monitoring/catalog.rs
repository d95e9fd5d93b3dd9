//! A registry that remembers what it registers, so that the reference of all metrics can be generated.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts,
    Registry,
};

/// Upper bounds of durations, in seconds: from a step on a GPU to an evaluation of hours.
const SECONDS: [f64; 22] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0,
];

/// A family of metrics, as the reference describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) meaning: &'static str,
}

/// The metrics of a process.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) registry: Registry,
    pub(super) families: Vec<Family>,
}

impl Catalog {
    pub(super) fn counter(&mut self, name: &'static str, meaning: &'static str) -> IntCounter {
        let made = IntCounter::with_opts(Opts::new(name, meaning));
        self.add("counter", name, &[], meaning, made)
    }

    pub(super) fn seconds_counter(&mut self, name: &'static str, meaning: &'static str) -> Counter {
        let made = Counter::with_opts(Opts::new(name, meaning));
        self.add("counter", name, &[], meaning, made)
    }

    pub(super) fn counters(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> IntCounterVec {
        let made = IntCounterVec::new(Opts::new(name, meaning), labels);
        self.add("counter", name, labels, meaning, made)
    }

    pub(super) fn gauge(&mut self, name: &'static str, meaning: &'static str) -> Gauge {
        let made = Gauge::with_opts(Opts::new(name, meaning));
        self.add("gauge", name, &[], meaning, made)
    }

    /// Gauges that are exported once they have a value. Without labels there is at most one.
    pub(super) fn gauges(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> GaugeVec {
        let made = GaugeVec::new(Opts::new(name, meaning), labels);
        self.add("gauge", name, labels, meaning, made)
    }

    pub(super) fn seconds(&mut self, name: &'static str, meaning: &'static str) -> Histogram {
        let made = Histogram::with_opts(HistogramOpts::new(name, meaning).buckets(SECONDS.to_vec()));
        self.add("histogram", name, &[], meaning, made)
    }

    pub(super) fn seconds_by(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        meaning: &'static str,
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, meaning).buckets(SECONDS.to_vec());
        self.add("histogram", name, labels, meaning, HistogramVec::new(options, labels))
    }

    /// Registers metrics that another collector reads when they are asked for.
    pub(super) fn collector(&mut self, collector: impl Collector + 'static, families: &[Family]) {
        self.families.extend(families);
        self.registry.register(Box::new(collector)).expect("no name is registered twice");
    }

    fn add<C: Collector + Clone + 'static>(
        &mut self,
        kind: &'static str,
        name: &'static str,
        labels: &'static [&'static str],
        meaning: &'static str,
        made: prometheus::Result<C>,
    ) -> C {
        let metric = made.expect("names and labels are valid constants");
        self.collector(metric.clone(), &[Family { name, kind, labels, meaning }]);
        metric
    }
}
