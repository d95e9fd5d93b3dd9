//! A run as the live page and reports show it.

use std::collections::BTreeMap;

use rankine_engine::training::{
    BestSummary, DeviceMemory, DeviceTable, DynamicTableState, EndReason, LookUpCount, PhaseRun,
    PowerSummary, RefitStage, StoppingProgress,
};
use rankine_model::ModelSpec;
use rankine_model::evaluation::HeadScores;
use rankine_topology::Process;
use serde::Serialize;

use super::bound::Bound;
use super::evaluations::Evaluations;
use super::phases::RunPhaseTimes;
use super::series::Series;

/// A run. What is unknown is null or absent in JSON, and so is a number that is not finite.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunView {
    /// The job's name.
    pub name: String,
    /// The version of Rankine that trained it; `None` if nothing recorded that.
    pub version: Option<String>,
    /// The run folder.
    pub run: Option<String>,
    /// The state.
    pub state: RunState,
    /// When training started, RFC 3339 in UTC.
    pub started: Option<String>,
    /// The work in progress, live only.
    pub task: Option<TaskView>,
    /// The device.
    pub device: DeviceView,
    /// The model.
    pub model: ModelView,
    /// The progress, at the last report.
    pub progress: ProgressView,
    /// What bounds the steps.
    pub bound: Option<Bound>,
    /// Values by step.
    pub series: RunSeries,
    /// The evaluations.
    pub evaluations: Evaluations,
    /// How the last evaluation compares with the best one, with early stopping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping: Option<StoppingProgress>,
    /// Why the training ended; `None` before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndReason>,
    /// Steps after which the saved model was trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_step: Option<u64>,
    /// The two trainings of a refit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit: Option<RefitView>,
    /// Where the time of the training went.
    #[serde(skip_serializing_if = "RunPhaseTimes::is_empty")]
    pub phases: RunPhaseTimes,
    /// How the phases of a recent step ran on the first GPU; empty on the CPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub iteration: Vec<PhaseRun>,
    /// The power of GPUs: live, those of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerSummary>,
    /// The memory of GPUs.
    pub memory: Vec<DeviceMemory>,
    /// The tables.
    pub tables: Vec<TableView>,
    /// The smaller tables that a report does not list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further_tables: Option<TablesView>,
    /// The processes, live only.
    pub processes: Vec<ProcessView>,
    /// Warnings, the oldest first.
    pub warnings: Vec<WarningView>,
    /// The effective job: the value of each setting as text, by its name, such as `train.batch_size`.
    pub settings: BTreeMap<String, String>,
    /// Settings of tables that a report does not list.
    #[serde(skip_serializing_if = "is_zero")]
    pub further_settings: usize,
    /// The scores of the last evaluation, one entry a head.
    pub scores: Vec<HeadScores>,
    /// The samples of that evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scored: Option<String>,
}

impl RunView {
    /// Sets the distinct rows per look-up of the tables, which are in the order of these counts.
    pub fn set_distinct(&mut self, look_ups: &[LookUpCount]) {
        for (table, count) in self.tables.iter_mut().zip(look_ups) {
            table.distinct_ratio = count.distinct_ratio();
        }
    }

    /// Sets the load ratios of dynamic tables.
    pub fn set_loads(&mut self, dynamic_tables: &[DynamicTableState]) {
        for state in dynamic_tables {
            let table = self.tables.iter_mut().find(|table| table.name == state.table);
            table.into_iter().for_each(|table| table.load_ratio = Some(state.load_ratio()));
        }
    }

    /// The number of curves.
    pub(super) fn curves(&self) -> usize {
        RunSeries::COUNT + self.evaluations.curves()
    }

    /// Reduces each curve to at most this number of points.
    pub(super) fn thin(&mut self, points: usize) {
        self.series.thin(points);
        self.evaluations.thin(points);
    }

    /// Keeps this number of tables, the largest ones, and adds up the others. Keeps as many settings of tables.
    pub(super) fn limit_tables(&mut self, most: usize) {
        if self.tables.len() > most {
            self.tables.sort_by_key(|table| std::cmp::Reverse(table.bytes));
            let mut others = TablesView::default();
            for table in self.tables.drain(most..) {
                others.count += 1;
                others.rows += table.rows;
                others.bytes += table.bytes;
            }
            self.further_tables = Some(others);
        }
        let mut of_tables = 0;
        let before = self.settings.len();
        self.settings.retain(|key, _| {
            of_tables += usize::from(key.starts_with("table."));
            !key.starts_with("table.") || of_tables <= most
        });
        self.further_settings = before - self.settings.len();
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The state of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Before the first step.
    #[default]
    Starting,
    /// Training.
    Training,
    /// Evaluating.
    Evaluating,
    /// The model and the summary are saved.
    Finished,
    /// The training was interrupted or failed: the folder has no summary, and no process has locked it.
    Unfinished,
}

impl RunState {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Training => "training",
            Self::Evaluating => "evaluating",
            Self::Finished => "finished",
            Self::Unfinished => "unfinished",
        }
    }
}

/// A piece of work in progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TaskView {
    /// What is done, such as `generating`.
    pub name: String,
    /// The unit of the numbers, such as `samples`.
    pub unit: String,
    /// Units done.
    pub done: u64,
    /// Units to do.
    pub total: u64,
}

/// The device of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceView {
    /// `cpu` or `cuda`.
    pub kind: String,
    /// Its name.
    pub name: Option<String>,
    /// The precision of matrix products; `None` on a CPU that computes in fp32.
    pub precision: Option<String>,
    /// Number of ranks; `None` if it depends on the machine and nothing recorded it.
    pub ranks: Option<usize>,
    /// Number of nodes, likewise.
    pub nodes: Option<usize>,
}

/// The model of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelView {
    /// The family.
    pub kind: String,
    /// Parameters of the MLPs, the cross layers and the dense columns' first-order terms.
    pub dense_parameters: Option<u64>,
    /// Parameters of the tables.
    pub embedding_parameters: Option<u64>,
}

impl ModelView {
    /// The size of a model of a family.
    pub fn new(kind: &str, spec: &ModelSpec) -> Self {
        Self {
            kind: kind.to_owned(),
            dense_parameters: Some(spec.dense_parameters() as u64),
            embedding_parameters: Some(spec.embedding_parameters()),
        }
    }
}

/// The progress of a training.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProgressView {
    /// Steps completed.
    pub step: u64,
    /// Epochs completed.
    pub epoch: u64,
    /// The epochs of the job; `None` if a program decides.
    pub total_epochs: Option<u64>,
    /// Samples trained on.
    pub samples: u64,
    /// Samples that the whole run trains on.
    pub total_samples: Option<u64>,
    /// Seconds of training, as in [`rankine_engine::training::Progress::seconds`].
    pub seconds: f64,
    /// Samples per second: since the last report, and for a finished run over the whole training.
    pub samples_per_second: Option<f64>,
    /// Seconds left at this rate.
    pub eta_seconds: Option<f64>,
    /// The mean loss since the last report.
    pub loss: Option<f64>,
}

impl ProgressView {
    /// Sets the seconds left, from the samples left and the rate, if both are known.
    pub fn estimate(&mut self) {
        let left = self.total_samples.map(|total| total.saturating_sub(self.samples));
        let rate = self.samples_per_second.filter(|rate| *rate > 0.0);
        self.eta_seconds = left.zip(rate).map(|(left, rate)| left as f64 / rate);
    }
}

/// Values by step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunSeries {
    /// The mean loss since the report before.
    #[serde(skip_serializing_if = "Series::is_empty")]
    pub loss: Series,
    /// The rate since the report before.
    #[serde(skip_serializing_if = "Series::is_empty")]
    pub samples_per_second: Series,
    /// The learning rate of the MLPs.
    #[serde(skip_serializing_if = "Series::is_empty")]
    pub dense_learning_rate: Series,
}

impl RunSeries {
    const COUNT: usize = 3;

    /// Reduces each series to at most this number of points.
    fn thin(&mut self, points: usize) {
        let Self { loss, samples_per_second, dense_learning_rate } = self;
        let all: [_; Self::COUNT] = [loss, samples_per_second, dense_learning_rate];
        all.into_iter().for_each(|series| series.thin(points));
    }
}

/// The two trainings of `train.early_stopping.refit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum RefitView {
    /// This is the first one, which finds the number of steps.
    Search,
    /// This is the second one, on all samples.
    Refit {
        /// The best evaluation of the first one.
        best: Option<BestSummary>,
        /// Its steps.
        searched_steps: u64,
        /// Its samples of an epoch.
        searched_samples: u64,
        /// Why it ended.
        ended: EndReason,
    },
}

impl From<RefitStage<'_>> for RefitView {
    fn from(stage: RefitStage<'_>) -> Self {
        match stage {
            RefitStage::Search => Self::Search,
            RefitStage::Refit(search) => Self::Refit {
                best: search.best,
                searched_steps: search.train.steps,
                searched_samples: search.data.train_samples,
                ended: search.train.stopped,
            },
        }
    }
}

/// An embedding table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TableView {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Bytes of its weights.
    pub bytes: u64,
    /// How it is placed on the ranks.
    pub placement: Option<String>,
    /// Rows in host memory, if a GPU does not store all.
    pub host_rows: Option<u64>,
    /// Distinct rows per look-up.
    pub distinct_ratio: Option<f64>,
    /// The share of the rows that ids have, if rows are given to ids as they come.
    pub load_ratio: Option<f64>,
    /// The share of the look-ups that the most frequent 1% of the rows have.
    pub top_share: Option<f64>,
}

impl From<&DeviceTable> for TableView {
    fn from(table: &DeviceTable) -> Self {
        Self {
            name: table.name.clone(),
            rows: table.rows,
            dim: table.dim,
            bytes: table.bytes,
            placement: table.placement.map(|placement| placement.name().to_owned()),
            host_rows: table.host_rows,
            distinct_ratio: None,
            load_ratio: None,
            top_share: table.top_share,
        }
    }
}

/// Several tables.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TablesView {
    /// How many.
    pub count: u64,
    /// Rows of all of them.
    pub rows: u64,
    /// Bytes of all weights.
    pub bytes: u64,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProcessView {
    /// Its number.
    pub process: Process,
    /// Its host.
    pub host: String,
    /// Whether it is known to be well.
    pub healthy: bool,
    /// What it does, such as `training`.
    pub activity: String,
    /// Seconds since its last sign of progress.
    pub still_seconds: f64,
}

/// A warning.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WarningView {
    /// When it was given, RFC 3339 in UTC.
    pub time: String,
    /// What it says.
    pub text: String,
}
