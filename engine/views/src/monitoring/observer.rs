//! Turns the events of a run into metrics.

use std::time::SystemTime;

use rankine_engine::training::{
    DeviceMemory, DeviceTable, Event, IdCounts, Observer, PhaseRun, Progress, Report, ReportDetails,
    RunStart, StepDetails,
};
use rankine_job::Precision;
use rankine_model::{FeatureSpec, ModelSpec};
use rankine_reader::{Dataset, OutOfRange};

use super::families::{Common, Evaluating, Started, TableLabels, Task, Training, raise};
use super::live::LiveRun;

/// Records the events of a run as metrics and for the live page, and passes them on.
pub struct TrainingObserver<'a> {
    common: &'a Common,
    metrics: &'a Training,
    live: LiveRun,
    inner: &'a mut dyn Observer,
    tables: TableLabels,
    columns: Vec<Column>,
    /// Samples of the whole run.
    samples: u64,
    /// Ids outside their tables before this process started.
    ids_before: IdCounts,
    /// Bytes that earlier evaluations read.
    eval_bytes_before: u64,
    /// The task in progress, and its name.
    task: Option<(&'static str, Task)>,
}

/// A categorical column.
struct Column {
    name: String,
    /// The label value of its table.
    table: String,
    policy: &'static str,
}

impl<'a> TrainingObserver<'a> {
    pub(super) fn new(
        common: &'a Common,
        metrics: &'a Training,
        live: LiveRun,
        inner: &'a mut dyn Observer,
    ) -> Self {
        Self {
            common,
            metrics,
            live,
            inner,
            tables: TableLabels::default(),
            columns: Vec::new(),
            samples: 0,
            ids_before: IdCounts::new(),
            eval_bytes_before: 0,
            task: None,
        }
    }

    fn started(&mut self, start: &RunStart<'_>) {
        let RunStart { spec, dataset, devices, samples, samples_done, step, ids_out_of_range, .. } = *start;
        self.task = None;
        self.common.describe(&Started {
            device: start.kind.name().into(),
            precision: start.precision.map_or("fp32", Precision::name).into(),
            nodes: devices.nodes,
            ranks: devices.ranks,
        });
        self.samples = samples.unwrap_or(0);
        if self.samples > 0 {
            self.metrics.train.progress.set(samples_done as f64 / self.samples as f64);
        }
        self.metrics.train.step.set(step as f64);
        self.ids_before.clone_from(ids_out_of_range);
        self.tables = TableLabels::new(spec.tables.iter().map(|table| table.name.as_str()));
        self.columns = columns(spec, dataset, &self.tables);
        for Column { table, policy, .. } in &self.columns {
            // Exported at 0 from the start.
            self.metrics.reader.rejected.with_label_values(&[table.as_str(), policy]);
        }
        self.tables(&devices.tables);
        devices.memory.iter().for_each(|gpu| self.gpu_memory(gpu));
        self.common.gpus.watch(devices.memory.iter().map(|gpu| (gpu.gpu, gpu.uuid.clone())).collect());
    }

    pub(super) fn tables(&self, tables: &[DeviceTable]) {
        self.metrics.train.tier.set_rows(tables);
    }

    pub(super) fn gpu_memory(&self, memory: &DeviceMemory) {
        let DeviceMemory { gpu, uuid, parts, free_bytes, .. } = memory;
        let gpu = gpu.to_string();
        let parts = parts.iter().map(|part| (part.purpose.as_str(), part.bytes));
        for (purpose, bytes) in parts.chain([("free", *free_bytes)]) {
            self.metrics.gpu_memory.with_label_values(&[gpu.as_str(), uuid, purpose]).set(bytes as f64);
        }
    }

    fn step(&mut self, progress: &Progress, details: &StepDetails) {
        let Training { train, reader, .. } = self.metrics;
        let StepDetails { samples, times, bytes_read, batches_ready, skipped, .. } = *details;
        train.samples.inc_by(samples);
        train.steps.inc();
        train.step.set(progress.step as f64);
        train.loss.with_label_values::<&str>(&[]).set(progress.loss);
        train.dense_rate.set(progress.dense_learning_rate);
        train.sparse_rate.set(progress.sparse_learning_rate);
        train.step_seconds.observe(times.total().as_secs_f64());
        train.reading.observe(times.reading.as_secs_f64());
        train.computing.observe(times.computing.as_secs_f64());
        train.awaiting.observe(times.awaiting.as_secs_f64());
        for (reason, count) in skipped.iter().filter(|(_, count)| *count > 0) {
            raise(&train.skipped[reason], count);
        }
        if self.samples > 0 {
            train.progress.set(progress.samples as f64 / self.samples as f64);
        }
        raise(&reader.train_bytes, bytes_read);
        reader.waited.inc_by(times.reading.as_secs_f64());
        reader.queue.set(batches_ready as f64);
    }

    fn report(&mut self, report: &Report<'_>) {
        for Column { name, table, policy } in &self.columns {
            let count = |counts: &IdCounts| counts.get(name).copied().unwrap_or(0);
            let (before, now) = (count(&self.ids_before), count(report.ids_out_of_range));
            self.metrics
                .reader
                .rejected
                .with_label_values(&[table.as_str(), policy])
                .inc_by(now.saturating_sub(before));
        }
        self.ids_before.clone_from(report.ids_out_of_range);
        let ReportDetails { loss_scale, exchanged, look_ups, phases, dynamic_tables } = report.details;
        let train = &self.metrics.train;
        loss_scale.iter().for_each(|&scale| train.loss_scale.with_label_values::<&str>(&[]).set(scale));
        raise(&train.exchanged_within, exchanged.within_nodes);
        raise(&train.exchanged_between, exchanged.between_nodes);
        report.tier.iter().for_each(|traffic| train.tier.copied(traffic));
        let mut others = (0, 0);
        for count in look_ups {
            let table = self.tables.of(&count.table);
            if table == TableLabels::OTHER {
                others = (others.0 + count.look_ups, others.1 + count.distinct_rows);
            } else {
                train.set_distinct(table, count.look_ups, count.distinct_rows);
            }
        }
        train.set_distinct(TableLabels::OTHER, others.0, others.1);
        for state in dynamic_tables {
            let table = self.tables.of(&state.table);
            // Values of several tables cannot be added up in a gauge.
            if table != TableLabels::OTHER {
                train.dynamic.record(table, state);
            }
        }
        for PhaseRun { name, ms, .. } in phases {
            train.gpu_phases.with_label_values(&[label_of(name).as_str()]).set(ms / 1e3);
        }
    }

    fn task(&mut self, name: &'static str, unit: &str, done: u64, total: u64) {
        if self.task.as_ref().is_none_or(|(current, _)| *current != name) {
            self.task = Some((name, self.common.task(name, unit, total)));
        }
        if let Some((_, task)) = &mut self.task {
            task.at(done);
        }
    }

    fn evaluated(&mut self) {
        self.task = None;
        self.eval_bytes_before = self.metrics.reader.eval_bytes.get();
    }
}

impl Observer for TrainingObserver<'_> {
    fn observe(&mut self, event: Event<'_>) {
        self.live.observe(&event);
        match &event {
            Event::Generating { samples, total } => self.task("generating", "samples", *samples, *total),
            Event::Checksumming { bytes, total } => self.task("comparing", "bytes", *bytes, *total),
            Event::Generated => self.task = None,
            Event::Started(start) => self.started(start),
            Event::Step(progress, details) => self.step(progress, details),
            Event::Report(report) => self.report(report),
            Event::Evaluating { samples, total, bytes_read } => {
                raise(&self.metrics.reader.eval_bytes, self.eval_bytes_before + bytes_read);
                self.task("evaluating", "samples", *samples, *total);
            }
            Event::Evaluated { part, set, seconds, heads, .. } => {
                // Labels are bounded, and names of sets are not.
                if set.is_none() {
                    self.metrics.eval.record(*part, *seconds, heads);
                }
                self.metrics.train.evaluation.observe(*seconds);
                self.evaluated();
            }
            Event::Checkpointed { bytes, seconds, waited_seconds, .. } => {
                let checkpoints = &self.metrics.checkpoints;
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                checkpoints.last_success.set(now.as_secs_f64());
                checkpoints.seconds.observe(*seconds);
                checkpoints.bytes.inc_by(*bytes);
                self.metrics.train.checkpoint.observe(*waited_seconds);
            }
            Event::CheckpointFailed { .. } => self.metrics.checkpoints.failures.inc(),
            // A target may have ended it before all samples.
            Event::Finished { .. } => self.metrics.train.progress.set(1.0),
            _ => {}
        }
        self.inner.observe(event);
    }
}

/// Records evaluations, one after another, as metrics, and passes their events on.
pub struct EvaluationObserver<'a> {
    metrics: &'a Evaluating,
    common: &'a Common,
    inner: &'a mut dyn Observer,
    /// Bytes that earlier evaluations read.
    bytes_before: u64,
    task: Option<Task>,
}

impl<'a> EvaluationObserver<'a> {
    pub(super) fn new(common: &'a Common, metrics: &'a Evaluating, inner: &'a mut dyn Observer) -> Self {
        Self { metrics, common, inner, bytes_before: 0, task: None }
    }
}

impl Observer for EvaluationObserver<'_> {
    fn observe(&mut self, event: Event<'_>) {
        match &event {
            Event::Evaluating { samples, total, bytes_read } => {
                raise(&self.metrics.reader.eval_bytes, self.bytes_before + bytes_read);
                let task = || self.common.task("evaluating", "samples", *total);
                self.task.get_or_insert_with(task).at(*samples);
            }
            Event::Evaluated { part, set: None, seconds, heads, .. } => {
                self.metrics.eval.record(*part, *seconds, heads);
                self.bytes_before = self.metrics.reader.eval_bytes.get();
                self.task = None;
            }
            _ => {}
        }
        self.inner.observe(event);
    }
}

/// A phase's label value: words separated by underscores.
fn label_of(phase: &str) -> String {
    phase.replace(',', "").replace([' ', '-'], "_")
}

/// The categorical columns of a dataset, with the tables that a model looks them up in.
fn columns(spec: &ModelSpec, dataset: &Dataset, tables: &TableLabels) -> Vec<Column> {
    let features = spec.features.iter().enumerate();
    let column = |(number, feature): (usize, &FeatureSpec)| Column {
        name: feature.column.clone(),
        table: tables.of(&spec.tables[feature.table].name).to_owned(),
        policy: match dataset.ids().of(number) {
            OutOfRange::Fail => "fail",
            OutOfRange::Row(_) => "oov",
            OutOfRange::Leave => "skip",
        },
    };
    features.map(column).collect()
}
