//! Every metric that Rankine exports, by what it describes.
//!
//! Names have the prefix `rankine_` and base units. Labels have few values, none of them an id; all values that are
//! known beforehand are exported from the start, at 0. Counters count what this process did since it started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus::{Counter, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec};
use rankine_base::build::Build;
use rankine_engine::build;
use rankine_engine::training::{DeviceTable, DynamicTableState, TierTraffic};
use rankine_model::evaluation::HeadMetrics;
use rankine_model::guard::SkipReason;
use rankine_reader::Part;
use rankine_topology::Process;

use super::catalog::Catalog;
use super::gpus::GpuCollector;

/// Tables with a label value of their own; the others share one.
const TABLES_MAX: usize = 64;

/// A command that exports metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Command {
    /// Training.
    #[default]
    Train,
    /// An evaluation.
    Eval,
    /// Scoring rows.
    Predict,
    /// Converting files to a dataset.
    Convert,
    /// Learning from files for conversions.
    Fit,
    /// Generating a dataset.
    Generate,
}

impl Command {
    /// Returns the command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Predict => "predict",
            Self::Convert => "convert",
            Self::Fit => "fit",
            Self::Generate => "generate",
        }
    }
}

/// What a process runs.
#[derive(Debug, Clone, Default)]
pub struct RunInfo {
    /// The command.
    pub command: Command,
    /// The job's name, or that of the output.
    pub name: String,
    /// This process.
    pub process: Process,
    /// All processes of the job.
    pub processes: usize,
}

/// What is known of any command.
#[derive(Debug)]
pub(super) struct Common {
    info: RunInfo,
    run_info: GaugeVec,
    task_done: IntCounterVec,
    task_progress: GaugeVec,
    /// When a task advanced last.
    pub(super) beat: Arc<Beat>,
    pub(super) gpus: GpuCollector,
}

impl Common {
    pub(super) fn new(catalog: &mut Catalog, info: RunInfo) -> Self {
        let build_info = catalog.gauges(
            "rankine_build_info",
            &["version", "commit", "dirty", "features", "target", "rustc"],
            "The build of Rankine; always 1. `commit` is empty if it is unknown; `dirty` is `true` if the sources \
             differ from it.",
        );
        let Build { version, commit, dirty, features, target, rustc, .. } = &build::compiled();
        let (commit, dirty) = (commit.as_deref().unwrap_or_default(), dirty.to_string());
        let labels = [version, commit, &dirty, &features.join(","), target, rustc];
        build_info.with_label_values(&labels).set(1.0);
        let processes = catalog.gauge("rankine_processes", "Processes of the job.");
        processes.set(info.processes as f64);
        let process = catalog.gauge("rankine_rank", "Number of this process, which launchers call its rank.");
        process.set(info.process.0 as f64);
        let common = Self {
            info,
            run_info: catalog.gauges(
                "rankine_run_info",
                &["command", "name", "device", "precision", "nodes", "ranks"],
                "What runs; always 1. Device, precision, nodes and ranks are empty until training starts.",
            ),
            task_done: catalog.counters(
                "rankine_task_done_total",
                &["task", "unit"],
                "Units of a task that are done: `generating`, `comparing`, `evaluating`, `converting` or `predicting`.",
            ),
            task_progress: catalog.gauges(
                "rankine_task_progress_ratio",
                &["task"],
                "Share of a task that is done.",
            ),
            beat: Arc::default(),
            gpus: GpuCollector::new(),
        };
        common.describe(&Started::default());
        common
    }

    /// Describes the run, once its device is known.
    pub(super) fn describe(&self, started: &Started) {
        let Started { device, precision, nodes, ranks } = started;
        let count = |count: usize| if count == 0 { String::new() } else { count.to_string() };
        self.run_info.reset();
        let labels =
            [self.info.command.name(), &self.info.name, device, precision, &count(*nodes), &count(*ranks)];
        self.run_info.with_label_values(&labels).set(1.0);
    }

    /// Starts a task of `total` units, whose progress is exported.
    pub(super) fn task(&self, task: &'static str, unit: &str, total: u64) -> Task {
        let progress = self.task_progress.with_label_values(&[task]);
        progress.set(0.0);
        let done = self.task_done.with_label_values(&[task, unit]);
        Task { done, before: 0, progress, total, beat: Arc::clone(&self.beat) }
    }
}

/// What is known of a training once it starts.
#[derive(Debug, Clone, Default)]
pub(super) struct Started {
    pub(super) device: String,
    pub(super) precision: String,
    pub(super) nodes: usize,
    pub(super) ranks: usize,
}

/// A piece of work whose progress is exported, such as a conversion.
#[derive(Debug)]
pub struct Task {
    done: IntCounter,
    /// Units done when progress was last reported.
    before: u64,
    progress: Gauge,
    total: u64,
    beat: Arc<Beat>,
}

impl Task {
    /// Reports that this number of units is done.
    pub fn at(&mut self, done: u64) {
        self.done.inc_by(done.saturating_sub(self.before));
        self.before = done;
        if self.total > 0 {
            self.progress.set(done as f64 / self.total as f64);
        }
        self.beat.mark();
    }
}

/// When work advanced last.
#[derive(Debug)]
pub(super) struct Beat {
    began: Instant,
    /// Milliseconds after `began`.
    last: AtomicU64,
}

impl Default for Beat {
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Beat {
    /// Work that began and last advanced this long ago.
    #[cfg(test)]
    pub(super) fn of(began: Duration, advanced: Duration) -> Self {
        let beat = Self { began: Instant::now() - (began - advanced), last: AtomicU64::new(0) };
        beat.mark();
        Self { began: Instant::now() - began, ..beat }
    }

    fn mark(&self) {
        self.last.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the time since then.
    pub(super) fn still(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }
}

/// The course of a training.
#[derive(Debug)]
pub(super) struct Train {
    pub(super) samples: IntCounter,
    pub(super) steps: IntCounter,
    pub(super) step: Gauge,
    pub(super) loss: GaugeVec,
    pub(super) dense_rate: Gauge,
    pub(super) sparse_rate: Gauge,
    pub(super) step_seconds: Histogram,
    pub(super) reading: Histogram,
    pub(super) computing: Histogram,
    pub(super) awaiting: Histogram,
    pub(super) evaluation: Histogram,
    pub(super) checkpoint: Histogram,
    pub(super) skipped: BTreeMap<&'static str, IntCounter>,
    pub(super) loss_scale: GaugeVec,
    pub(super) progress: Gauge,
    pub(super) exchanged_within: IntCounter,
    pub(super) exchanged_between: IntCounter,
    pub(super) gpu_phases: GaugeVec,
    pub(super) tier: Tier,
    distinct: GaugeVec,
    pub(super) dynamic: Dynamic,
}

impl Train {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        let rate = catalog.gauges(
            "rankine_train_learning_rate",
            &["optimizer"],
            "Learning rate of the last step: `dense` of the MLPs, `sparse` of the embeddings.",
        );
        let phase = catalog.seconds_by(
            "rankine_train_phase_seconds",
            &["phase"],
            "Where training's time goes: `reading` waits for the reader, `computing` computes a step or enqueues it on \
             GPUs, `awaiting` waits for outcomes of steps, `evaluation` evaluates, `checkpoint` waits for the copy of \
             the state.",
        );
        let phase = |name| phase.with_label_values(&[name]);
        let skipped = catalog.counters(
            "rankine_train_skipped_steps_total",
            &["reason"],
            "Skipped steps. `loss`, `dense_gradients`, `vector_gradients`: not finite, the first that holds; \
             `loss_scale`: scaled gradients overflowed fp16.",
        );
        let scope = catalog.counters(
            "rankine_exchange_bytes_total",
            &["scope"],
            "Bytes that all ranks of the job sent each other in training, `within_nodes` and `between_nodes`, as of \
             the last report: requests, vectors, gradients, padding and all-reduces, in the types in which they are \
             sent.",
        );
        let (reading, computing, awaiting) = (phase("reading"), phase("computing"), phase("awaiting"));
        Self {
            samples: catalog.counter("rankine_train_samples_total", "Samples trained on, over all ranks of the job."),
            steps: catalog.counter("rankine_train_steps_total", "Steps of training."),
            step: catalog.gauge("rankine_train_step", "Steps completed by the run, those before a resume included."),
            loss: catalog.gauges(
                "rankine_train_loss",
                &[],
                "Mean loss since the last report; NaN if all those steps were skipped. Absent before the first step.",
            ),
            dense_rate: rate.with_label_values(&["dense"]),
            sparse_rate: rate.with_label_values(&["sparse"]),
            step_seconds: catalog.seconds("rankine_train_step_seconds", "Seconds per step, evaluations excluded."),
            reading,
            computing,
            awaiting,
            evaluation: phase("evaluation"),
            checkpoint: phase("checkpoint"),
            skipped: SkipReason::NAMES.map(|name| (name, skipped.with_label_values(&[name]))).into(),
            loss_scale: catalog.gauges(
                "rankine_train_loss_scale",
                &[],
                "Factor of the gradients in fp16, as of the last report. Absent in other precisions.",
            ),
            progress: catalog.gauge(
                "rankine_train_progress_ratio",
                "Share of the run's samples that were trained on, those before a resume included.",
            ),
            exchanged_within: scope.with_label_values(&["within_nodes"]),
            exchanged_between: scope.with_label_values(&["between_nodes"]),
            distinct: catalog.gauges(
                "rankine_embedding_distinct_ratio",
                &["table"],
                "Distinct rows per look-up in a batch, as of the last report. On GPUs, each rank's share of the batch \
                 counts by itself, and tables whose owners pool are not counted.",
            ),
            dynamic: Dynamic::new(catalog),
            tier: Tier::new(catalog),
            gpu_phases: catalog.gauges(
                "rankine_gpu_phase_seconds",
                &["phase"],
                "Seconds that a phase of a step took on the first GPU of this process, among the phases that overlap \
                 with it; one of 192 steps is timed. Absent on the CPU.",
            ),
        }
    }

    /// Sets the share of distinct rows of a table.
    pub(super) fn set_distinct(&self, table: &str, look_ups: u64, distinct_rows: u64) {
        if look_ups > 0 {
            self.distinct.with_label_values(&[table]).set(distinct_rows as f64 / look_ups as f64);
        }
    }
}

/// Dynamic tables.
#[derive(Debug)]
pub(super) struct Dynamic {
    rows: GaugeVec,
    load: GaugeVec,
    admitted: IntCounterVec,
    evicted: IntCounterVec,
    unadmitted: IntCounterVec,
}

impl Dynamic {
    fn new(catalog: &mut Catalog) -> Self {
        Self {
            rows: catalog.gauges(
                "rankine_table_rows",
                &["table"],
                "Rows of a dynamic table that are assigned to ids, as of the last report. Absent for other tables.",
            ),
            load: catalog.gauges(
                "rankine_table_load_ratio",
                &["table"],
                "Assigned rows of a dynamic table divided by its capacity, as of the last report.",
            ),
            admitted: catalog.counters(
                "rankine_table_admitted_total",
                &["table"],
                "Ids that were admitted to a dynamic table.",
            ),
            evicted: catalog.counters(
                "rankine_table_evicted_total",
                &["table"],
                "Ids that were evicted from a dynamic table, by another id or because they expired.",
            ),
            unadmitted: catalog.counters(
                "rankine_table_unadmitted_lookups_total",
                &["table"],
                "Look-ups during training whose id had no row in a dynamic table.",
            ),
        }
    }

    /// Records how full a table is; `table` is its label.
    pub(super) fn record(&self, table: &str, state: &DynamicTableState) {
        self.rows.with_label_values(&[table]).set(state.rows as f64);
        self.load.with_label_values(&[table]).set(state.load_ratio());
        raise(&self.admitted.with_label_values(&[table]), state.counts.admitted);
        raise(&self.evicted.with_label_values(&[table]), state.counts.evicted);
        raise(&self.unadmitted.with_label_values(&[table]), state.counts.unadmitted_lookups);
    }
}

/// Rows on a GPU and in host memory.
#[derive(Debug)]
pub(super) struct Tier {
    rows: GaugeVec,
    host_rows: IntCounter,
    forwarded_rows: IntCounter,
    moved_rows: IntCounter,
    bytes_to_gpu: IntCounter,
    bytes_to_host: IntCounter,
    waited: Counter,
}

impl Tier {
    fn new(catalog: &mut Catalog) -> Self {
        let copied_rows = catalog.counters(
            "rankine_tier_copied_rows_total",
            &["from"],
            "Distinct rows of batches that the GPU did not store, as of the last report: copied from `host` memory, or \
             from the `batch` before.",
        );
        let copied_bytes = catalog.counters(
            "rankine_tier_copied_bytes_total",
            &["to"],
            "Bytes of these rows that were copied to the `gpu` and to `host` memory, as of the last report.",
        );
        Self {
            rows: catalog.gauges(
                "rankine_tier_rows",
                &["memory"],
                "Rows of tables that the `gpu` stores, and rows in `host` memory. Absent if GPUs store all rows.",
            ),
            host_rows: copied_rows.with_label_values(&["host"]),
            forwarded_rows: copied_rows.with_label_values(&["batch"]),
            bytes_to_gpu: copied_bytes.with_label_values(&["gpu"]),
            bytes_to_host: copied_bytes.with_label_values(&["host"]),
            moved_rows: catalog.counter(
                "rankine_tier_moved_rows_total",
                "Rows that came to the GPUs when their rows were chosen again (`embedding.refresh_steps`), as of the \
                 last report; as many left them.",
            ),
            waited: catalog.seconds_counter(
                "rankine_tier_wait_seconds_total",
                "Seconds for which steps waited for rows from host memory, as of the last report.",
            ),
        }
    }

    /// Sets how many rows each memory has, if host memory has some.
    pub(super) fn set_rows(&self, tables: &[DeviceTable]) {
        let all: u64 = tables.iter().map(|table| table.rows).sum();
        let host: u64 = tables.iter().filter_map(|table| table.host_rows).sum();
        if host > 0 {
            self.rows.with_label_values(&["gpu"]).set((all - host) as f64);
            self.rows.with_label_values(&["host"]).set(host as f64);
        }
    }

    /// Sets what was copied since the process started.
    pub(super) fn copied(&self, traffic: &TierTraffic) {
        let raise = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        raise(&self.host_rows, traffic.cold_rows - traffic.forwarded_rows);
        raise(&self.forwarded_rows, traffic.forwarded_rows);
        raise(&self.bytes_to_gpu, traffic.bytes_to_device);
        raise(&self.bytes_to_host, traffic.bytes_to_host);
        raise(&self.moved_rows, traffic.moved_rows);
        self.waited.inc_by((traffic.waited_s - self.waited.get()).max(0.0));
    }
}

/// Names of tables with a label value of their own.
#[derive(Debug, Default)]
pub(super) struct TableLabels(Vec<String>);

impl TableLabels {
    /// The label value that further tables share.
    pub(super) const OTHER: &str = "other";

    pub(super) fn new<'a>(tables: impl Iterator<Item = &'a str>) -> Self {
        Self(tables.take(TABLES_MAX).map(str::to_owned).collect())
    }

    /// Returns the label value of a table.
    pub(super) fn of<'a>(&self, table: &'a str) -> &'a str {
        if self.0.iter().any(|name| name == table) { table } else { Self::OTHER }
    }
}

/// The reader.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) train_bytes: IntCounter,
    pub(super) eval_bytes: IntCounter,
    pub(super) waited: Counter,
    pub(super) queue: Gauge,
    pub(super) rejected: IntCounterVec,
}

impl Reader {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        let bytes = catalog.counters(
            "rankine_reader_bytes_total",
            &["part"],
            "Bytes of blocks read from the `train` part and the `eval` part.",
        );
        Self {
            train_bytes: bytes.with_label_values(&["train"]),
            eval_bytes: bytes.with_label_values(&["eval"]),
            waited: catalog
                .seconds_counter("rankine_reader_wait_seconds_total", "Seconds that training waited for the reader."),
            queue: catalog.gauge("rankine_reader_queue_batches", "Batches that are ready for the next steps."),
            rejected: catalog.counters(
                "rankine_reader_rejected_ids_total",
                &["table", "policy"],
                "Ids outside their tables, as of the last report, by what happened to them: `oov` or `skip`. With the \
                 policy `fail`, training ends at the first one.",
            ),
        }
    }
}

/// Evaluations.
#[derive(Debug)]
pub(super) struct Eval {
    auc: GaugeVec,
    log_loss: GaugeVec,
    calibration: GaugeVec,
    seconds: Histogram,
}

impl Eval {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        let labels = &["head", "part"];
        Self {
            auc: catalog.gauges("rankine_eval_auc", labels, "Area under the ROC curve, weighted."),
            log_loss: catalog.gauges(
                "rankine_eval_log_loss",
                labels,
                "Mean binary cross-entropy in nats, weighted.",
            ),
            calibration: catalog.gauges(
                "rankine_eval_calibration_ratio",
                labels,
                "Sum of predicted probabilities over sum of labels.",
            ),
            seconds: catalog.seconds("rankine_eval_seconds", "Seconds per evaluation."),
        }
    }

    /// Records an evaluation of a part. Metrics that are undefined keep their last value.
    pub(super) fn record(&self, part: Part, seconds: f64, heads: &[HeadMetrics]) {
        self.seconds.observe(seconds);
        for HeadMetrics { label, metrics, .. } in heads {
            let Some(metrics) = metrics else { continue };
            let labels = [label.as_str(), part.name()];
            self.log_loss.with_label_values(&labels).set(metrics.log_loss);
            for (gauges, value) in [(&self.auc, metrics.auc), (&self.calibration, metrics.calibration)] {
                value.iter().for_each(|&value| gauges.with_label_values(&labels).set(value));
            }
        }
    }
}

/// Checkpoints.
#[derive(Debug)]
pub(super) struct Checkpoints {
    pub(super) last_success: Gauge,
    pub(super) seconds: Histogram,
    pub(super) bytes: IntCounter,
    pub(super) failures: IntCounter,
}

impl Checkpoints {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            last_success: catalog.gauge(
                "rankine_checkpoint_last_success_timestamp_seconds",
                "Unix time of the last checkpoint; 0 before the first one.",
            ),
            seconds: catalog.seconds(
                "rankine_checkpoint_seconds",
                "Seconds per checkpoint, most of them while training continues.",
            ),
            bytes: catalog
                .counter("rankine_checkpoint_bytes_total", "Bytes of the checkpoints that were saved."),
            failures: catalog
                .counter("rankine_checkpoint_failures_total", "Checkpoints that could not be saved."),
        }
    }
}

/// The metrics of a training.
#[derive(Debug)]
pub(super) struct Training {
    pub(super) train: Train,
    pub(super) reader: Reader,
    pub(super) eval: Eval,
    pub(super) checkpoints: Checkpoints,
    pub(super) gpu_memory: GaugeVec,
}

impl Training {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self {
            train: Train::new(catalog),
            reader: Reader::new(catalog),
            eval: Eval::new(catalog),
            checkpoints: Checkpoints::new(catalog),
            gpu_memory: catalog.gauges(
                "rankine_gpu_memory_bytes",
                &["gpu", "uuid", "purpose"],
                "Memory of each GPU of this process by purpose, and what remains `free`, when training starts.",
            ),
        }
    }
}

/// The metrics of a single evaluation.
#[derive(Debug)]
pub(super) struct Evaluating {
    pub(super) reader: Reader,
    pub(super) eval: Eval,
}

impl Evaluating {
    pub(super) fn new(catalog: &mut Catalog) -> Self {
        Self { reader: Reader::new(catalog), eval: Eval::new(catalog) }
    }
}

/// Raises a counter to a total that is counted elsewhere.
pub(super) fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
