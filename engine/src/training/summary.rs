//! The contents of `summary.json`, which describes a finished run.

use std::collections::BTreeMap;

use rankine_backend::{CopiedBytes, LookUpCount, PhaseRun, ReportDetails};
use rankine_base::build::Build;
use rankine_checkpoint::InitialState;
use rankine_embedding::membership::DynamicTableState;
use rankine_embedding::plan::TierReport;
use rankine_embedding::{LinkTraffic, RankTraffic, TierTraffic, Traffic};
use rankine_job::{AverageKind, StoppingMetric};
use rankine_model::evaluation::EvalSummary;
use rankine_reader::Part;
use serde::{Deserialize, Serialize};

use crate::training::ids::IdCounts;
use crate::training::power::PowerSummary;

/// A finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The job's name.
    pub name: String,
    /// The job's seed.
    pub seed: u64,
    /// The version of Rankine.
    pub version: String,
    /// The build of Rankine; absent in the summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// The data.
    pub data: DataSummary,
    /// The model's size.
    pub model: ModelSummary,
    /// The device.
    pub device: DeviceSummary,
    /// What ranks sent each other; absent with a single rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeSummary>,
    /// Rows in host memory, and what was copied; absent if the devices store all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierSummary>,
    /// A recent iteration; absent if this process made no report, and in the summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<IterationSummary>,
    /// The power of the GPUs since this process was started or the run was resumed; absent on the CPU, without NVML,
    /// and in the summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerSummary>,
    /// Where the time went until the first step was done, since this process was started or the run was resumed; absent
    /// if no step was taken, and in the summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartSummary>,
    /// The training.
    pub train: TrainSummary,
    /// The evaluation of the saved model on the evaluation part; absent where the dataset has none.
    pub eval: Option<EvalSummary>,
    /// The same on the validation set; absent if the job holds none out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<EvalSummary>,
    /// The model that early stopping kept; absent without early stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestSummary>,
    /// The average of weights at several steps; absent without `train.average`, or if there was nothing to average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average: Option<AverageSummary>,
    /// The trained model that training started from; absent if it started from a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<InitialState>,
    /// The training without the validation set that found the number of steps; absent without
    /// `train.early_stopping.refit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Box<Summary>>,
}

impl Summary {
    /// Returns the number of steps after which the saved model was trained.
    pub fn model_steps(&self) -> u64 {
        self.best.map_or(self.train.steps, |best| best.step)
    }
}

/// The evaluation that early stopping chose, and the last one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BestSummary {
    /// Steps completed at the best evaluation. The saved model is the model of this step.
    pub step: u64,
    /// The metric that decides, of the first head.
    pub metric: StoppingMetric,
    /// Its value.
    pub value: f64,
    /// The samples that were evaluated: `validation`, or `eval` if the job holds no validation set out. The metrics of
    /// the evaluation part are then those of the evaluation that was chosen for being the best, and flatter the model.
    pub part: Part,
    /// The value after the last step; absent if it was undefined.
    pub last_value: Option<f64>,
}

/// The average of weights at several steps, compared with the model of the last of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AverageSummary {
    /// How much the steps count.
    pub kind: AverageKind,
    /// The steps. The last one is that of the model.
    pub steps: Vec<u64>,
    /// The steps whose snapshots were missing or damaged, so that the average is without them; absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u64>,
    /// The metric that decides, of the first head.
    pub metric: StoppingMetric,
    /// The samples that both were evaluated on: `validation`, or `eval` if the job holds no validation set out.
    pub part: Part,
    /// The value of the average; absent if it was undefined.
    pub value: Option<f64>,
    /// The value of the model; absent if it was undefined.
    pub model_value: Option<f64>,
    /// Whether the average became the model of the run.
    pub saved: bool,
}

/// The data of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSummary {
    /// The dataset's folder, as the job names it, or its folders, separated by commas; absent where raw files are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The raw files, as the job names them, those of the training part first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<String>,
    /// Samples of the training part, without those that are held out for validation; those trained on if a program
    /// pushed them.
    pub train_samples: u64,
    /// Samples that are held out for validation; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_samples: Option<u64>,
    /// Samples of the evaluation part.
    pub eval_samples: u64,
    /// The reading mode: the rung of the reader's ladder, or `pushed` if a program pushed batches.
    pub reader: String,
}

/// The size of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSummary {
    /// The family.
    pub kind: String,
    /// Parameters of the MLPs, the cross layers and the dense columns' first-order terms.
    pub dense_parameters: u64,
    /// Parameters of the tables, those of first-order terms included.
    pub embedding_parameters: u64,
}

/// The device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// `cpu` or `cuda`.
    pub kind: String,
    /// The precision of matrix products; absent on a CPU that computes in fp32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// CPU threads.
    pub threads: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
}

/// What ranks sent each other: the mean over the iterations of the training, all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExchangeSummary {
    /// Vectors that owners of rows sent, rows or pooled bags; equally many gradients came back.
    pub rows: LinkMeans,
    /// Bytes of the requests, of those vectors and of their gradients.
    pub bytes: LinkMeans,
    /// Bytes of padding that was sent because messages have fixed sizes: those between nodes, and on GPUs those with
    /// pooled bags.
    pub padding_bytes: LinkMeans,
    /// Bytes of the all-reduces: gradients of dense parameters and of frequent rows, and the parameters if their
    /// update is sharded.
    pub reduced_bytes: LinkMeans,
}

/// One number for each kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkMeans {
    /// Between ranks of one node.
    pub within_nodes: f64,
    /// Between ranks of different nodes.
    pub between_nodes: f64,
}

impl ExchangeSummary {
    /// The mean over this many steps.
    pub(in crate::training) fn new(traffic: RankTraffic, steps: u64) -> Self {
        let RankTraffic { exchange, reduction } = traffic;
        let mean = |of: Traffic, count: fn(LinkTraffic) -> u64| LinkMeans {
            within_nodes: count(of.within_nodes) as f64 / steps as f64,
            between_nodes: count(of.between_nodes) as f64 / steps as f64,
        };
        Self {
            rows: mean(exchange, |link| link.rows),
            bytes: mean(exchange, |link| link.bytes),
            padding_bytes: mean(exchange, |link| link.padding_bytes),
            reduced_bytes: mean(reduction, |link| link.bytes),
        }
    }
}

/// Rows on a GPU and in host memory, and what was copied: means over the batches since this process was started or the
/// run was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TierSummary {
    /// Rows of tables that the GPU stored.
    pub device_rows: u64,
    /// Their bytes with optimizer state.
    pub device_bytes: u64,
    /// Rows in host memory.
    pub host_rows: u64,
    /// Their bytes with optimizer state.
    pub host_bytes: u64,
    /// The distinct rows of a batch that the GPU did not store.
    pub missed_rows: f64,
    /// How many were expected.
    pub missed_rows_expected: f64,
    /// How many of these the batch before had changed, so that they were copied on the GPU.
    pub forwarded_rows: f64,
    /// Bytes copied to the GPU.
    pub bytes_to_device: f64,
    /// Bytes copied to host memory.
    pub bytes_to_host: f64,
    /// Seconds for which steps waited for rows, in total.
    pub waited_seconds: f64,
    /// How often the GPU's rows were chosen again.
    #[serde(default)]
    pub refreshes: u64,
    /// Rows that came to the GPU by these choices, in total; as many left it.
    #[serde(default)]
    pub moved_rows: u64,
}

impl TierSummary {
    /// What was planned and what was counted.
    pub(in crate::training) fn new(report: &TierReport, traffic: TierTraffic) -> Self {
        let mean = |sum: u64| sum as f64 / traffic.batches.max(1) as f64;
        Self {
            device_rows: report.device_rows,
            device_bytes: report.device_bytes,
            host_rows: report.host_rows,
            host_bytes: report.host_bytes,
            missed_rows: mean(traffic.cold_rows),
            missed_rows_expected: report.missed_rows,
            forwarded_rows: mean(traffic.forwarded_rows),
            bytes_to_device: mean(traffic.bytes_to_device),
            bytes_to_host: mean(traffic.bytes_to_host),
            waited_seconds: traffic.waited_s,
            refreshes: traffic.refreshes,
            moved_rows: traffic.moved_rows,
        }
    }
}

/// An iteration of the first process, as of the last report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationSummary {
    /// The look-ups of the batch, table by table. On GPUs each rank's share of the batch counts by itself.
    pub look_ups: Vec<LookUpCount>,
    /// How the phases ran on the first GPU, one of some sixty iterations; absent on the CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseRun>,
    /// How full dynamic tables are; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dynamic_tables: Vec<DynamicTableState>,
}

impl From<&ReportDetails> for IterationSummary {
    fn from(details: &ReportDetails) -> Self {
        let ReportDetails { look_ups, phases, dynamic_tables, .. } = details.clone();
        Self { look_ups, phases, dynamic_tables }
    }
}

/// Where the time went until the first step was done, on the first process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StartSummary {
    /// Seconds that the process had run before the training began: reading the job, meeting the other processes.
    pub process_seconds: f64,
    /// Seconds for opening the data or generating it, and for finding out where a resumed run continues.
    pub data_seconds: f64,
    /// Seconds for choosing the device, opening GPUs and placing tables.
    pub device_seconds: f64,
    /// Seconds for creating the model on the device with its initial weights.
    pub model_seconds: f64,
    /// Seconds for restoring the checkpoint or the trained model that training starts from.
    pub state_seconds: f64,
    /// Seconds for starting to read, and for preparing checkpoints.
    pub reader_seconds: f64,
    /// Seconds for the first step: waiting for its batch, computing, waiting for the outcome.
    pub first_step_seconds: f64,
}

/// The training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrainSummary {
    /// Why it ended.
    pub stopped: EndReason,
    /// Steps.
    pub steps: u64,
    /// Samples trained on, over all epochs.
    pub samples: u64,
    /// The mean loss since the last report.
    pub loss: f64,
    /// Seconds of training, as in [`crate::training::Progress::seconds`].
    pub seconds: f64,
    /// Samples per second; the samples and seconds before a resume included.
    pub samples_per_second: f64,
    /// Milliseconds per step.
    pub ms_per_iteration: f64,
    /// Steps that were skipped because gradients overflowed f16 under the loss scale; absent in other precisions.
    /// Earlier versions of Rankine wrote `skipped_steps`.
    #[serde(default, alias = "skipped_steps", skip_serializing_if = "Option::is_none")]
    pub overflow_steps: Option<u64>,
    /// Steps that were skipped because the loss or gradients were not finite.
    #[serde(default)]
    pub non_finite_steps: u64,
    /// Ids outside their tables, by column; the job's policy was applied to them. Absent if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids_out_of_range: IdCounts,
    /// The share of the seconds in which training waited for the reader.
    pub reader_wait_share: f64,
    /// Bytes that each process read to train, since it was started or resumed; evaluations apart. Absent in the
    /// summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes_read: Vec<u64>,
    /// Bytes that were copied to the GPUs of each process meanwhile. Absent if the CPU unpacked the batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes_copied: Vec<CopiedBytes>,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// All epochs are done.
    Epochs,
    /// `train.max_steps` is reached.
    MaxSteps,
    /// `eval.target_auc` is reached.
    TargetAuc,
    /// `train.early_stopping.patience` evaluations in a row were not better than one before.
    EarlyStopping,
    /// The program that pushed batches ended it.
    Program,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_means_over_batches_and_waits_a_sum() {
        let report = TierReport {
            device_rows: 5,
            device_bytes: 160,
            landing_bytes: 3,
            host_rows: 7,
            host_bytes: 224,
            staging_bytes: 4,
            lookup_share: 0.5,
            missed_rows: 2.5,
            missed_bytes: 80.0,
            tables: Vec::new(),
        };
        let traffic = TierTraffic {
            batches: 4,
            cold_rows: 12,
            forwarded_rows: 2,
            bytes_to_device: 320,
            bytes_to_host: 384,
            waited_s: 0.75,
            refreshes: 3,
            moved_rows: 9,
        };
        let expected = TierSummary {
            device_rows: 5,
            device_bytes: 160,
            host_rows: 7,
            host_bytes: 224,
            missed_rows: 3.0,
            missed_rows_expected: 2.5,
            forwarded_rows: 0.5,
            bytes_to_device: 80.0,
            bytes_to_host: 96.0,
            waited_seconds: 0.75,
            refreshes: 3,
            moved_rows: 9,
        };
        assert_eq!(TierSummary::new(&report, traffic), expected);
        assert_eq!(TierSummary::new(&report, TierTraffic::default()).missed_rows, 0.0);
    }
}
