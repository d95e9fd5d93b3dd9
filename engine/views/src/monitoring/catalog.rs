//! A registry that remembers what it registers, so that the reference of all metrics can be generated.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
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

impl Family {
    /// Returns its description, for a collector that reads values when they are asked for.
    pub(super) fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(self.name.to_owned(), self.meaning.to_owned(), labels, HashMap::new())
            .expect("names and labels are valid constants")
    }

    /// Returns it with values, each with those of its labels.
    pub(super) fn with_values<Labels: IntoIterator<Item = String>>(
        &self,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> MetricFamily {
        let is_counter = self.kind == "counter";
        let metric = |(labels, value): (Labels, f64)| {
            let mut metric = Metric::default();
            let labels = self.labels.iter().zip(labels);
            metric.set_label(labels.map(|(name, value)| label_pair(name, value)).collect());
            if is_counter {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            metric
        };
        let mut family = MetricFamily::default();
        family.set_name(self.name.to_owned());
        family.set_help(self.meaning.to_owned());
        family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
        family.set_metric(values.into_iter().map(metric).collect());
        family
    }
}

/// Returns a label with its value.
pub(super) fn label_pair(name: &str, value: String) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
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
