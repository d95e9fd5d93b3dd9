//! The contents of a checkpoint's `manifest.json`.

use std::collections::BTreeMap;

use rankine_base::sealed::Checksum;
use rankine_embedding::{Optimizer, TableSpec};
use rankine_job::StoppingMetric;
use rankine_reader::Split;
use rankine_reader::dataset::FileManifest;
use rankine_reader::raw::RawContents;
use rankine_reader::stream::Position;
use serde::{Deserialize, Serialize};

use rankine_model::evaluation::EvalSummary;
use rankine_model::{Model, ModelSpec};

/// The kind of the sealed file of a manifest.
pub const KIND: &str = "rankine checkpoint";
/// Its version.
pub const FORMAT: u32 = 1;
/// The file with the checksums of all other files of a checkpoint.
pub const NAME: &str = "manifest.json";

/// A checkpoint, except for its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of Rankine that wrote it.
    pub version: String,
    /// The state of training.
    pub train: TrainState,
    /// The job's seed.
    pub seed: u64,
    /// The order of samples.
    pub order: OrderState,
    /// The training part.
    pub data: DataIdentity,
    /// The model.
    pub spec: ModelSpec,
    /// The optimizer of the dense parameters.
    pub dense: RuleState,
    /// The optimizers of the tables, one entry each, those of first-order terms last.
    pub tables: Vec<TableState>,
    /// State of GPUs besides parameters; absent if a CPU trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceState>,
    /// The ranks and nodes that saved it; it can be loaded on any.
    pub ranks: usize,
    /// See `ranks`.
    pub nodes: usize,
    /// The base of an incremental checkpoint; absent in a full one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The indexes of the shards, one per rank.
    pub shards: Vec<FileManifest>,
    /// Other files: the effective job, the columns, and on GPUs the algorithms of matrix products and the assumed
    /// performance of the GPUs.
    pub files: Vec<FileManifest>,
}

/// The state of training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Steps completed.
    pub step: u64,
    /// Where the reader continues: after the last sample that was trained on.
    pub position: Position,
    /// Samples trained on, over all epochs.
    pub samples: u64,
    /// Seconds of training, reading included.
    pub seconds: f64,
    /// Seconds of those that training waited for the reader.
    pub waited_seconds: f64,
    /// The losses since the last report.
    pub losses: LossState,
    /// The last loss that was reported.
    pub loss: f64,
    /// Skipped steps; absent if there were none.
    #[serde(default, skip_serializing_if = "GuardState::is_empty")]
    pub guard: GuardState,
    /// Ids outside their tables so far, by column; absent if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids_out_of_range: BTreeMap<String, u64>,
    /// The evaluation of this very step, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<EvalSummary>,
    /// The evaluation that reached the target, if training goes on for some steps; otherwise absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<ReachedTarget>,
    /// The best evaluation so far, if early stopping compares them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestState>,
    /// The trained model that training started from; absent if it started from a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<InitialState>,
}

impl TrainState {
    /// Steps that the optimizers have taken: those of this training, and those of the one that their state comes from.
    pub fn optimizer_steps(&self) -> u64 {
        let before = self.init.as_ref().and_then(|init| init.optimizer_steps);
        self.step.saturating_add(before.unwrap_or(0))
    }
}

/// An evaluation that reached the target, while training went on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReachedTarget {
    /// Its AUC.
    pub auc: f64,
    /// The step after which training ends.
    pub ends_at: u64,
}

/// The trained model that a training started from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialState {
    /// Its path, as in the job.
    pub from: String,
    /// Steps that it was trained for.
    pub steps: u64,
    /// Steps of the optimizers whose state was taken over; absent if the state was fresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_steps: Option<u64>,
    /// Rows that its tables did not have, by column; columns without new rows are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub new_rows: BTreeMap<String, u64>,
}

/// The best evaluation of a training so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestState {
    /// Steps completed at it. The checkpoint of this step is kept.
    pub step: u64,
    /// The metric that decides.
    pub metric: StoppingMetric,
    /// Its value.
    pub value: f64,
    /// Evaluations since then, none of which was better.
    pub evaluations_since: u64,
}

/// Steps that were skipped because a value was not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardState {
    /// All of them so far.
    #[serde(rename = "skipped_steps")]
    pub non_finite_steps: u64,
    /// Those since the last step that was not skipped.
    pub in_a_row: u64,
}

impl GuardState {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The losses of some steps, weighted by their samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossState {
    /// The sum of loss times samples.
    pub sum: f64,
    /// The samples.
    pub samples: u64,
}

/// The samples that are trained on, and their order, which a position refers to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderState {
    /// Whether they are shuffled, by the job's seed.
    pub shuffle: bool,
    /// Blocks whose rows are shuffled together.
    pub window_blocks: u32,
    /// The samples of the training part that are held out; absent if none are.
    #[serde(default, skip_serializing_if = "is_none")]
    pub validation: Split,
}

fn is_none(split: &Split) -> bool {
    *split == Split::None
}

/// What identifies a training part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Samples of the training part.
    pub samples: u64,
    /// Samples of a block.
    pub block_samples: u32,
    /// A checksum of the columns.
    pub schema: Checksum,
    /// A checksum of the checksums of all blocks; for raw files, of the record count of each.
    pub blocks: Checksum,
    /// The vocabularies.
    pub vocabularies: Vec<FileManifest>,
    /// The contents of raw files, in the order of the job; absent if blocks have their own checksums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<RawContents>,
}

/// An optimizer, by its name in a job file, and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleState {
    /// The name.
    pub rule: String,
    /// The names of the state that it keeps for each parameter, or for each row.
    pub state: Vec<String>,
    /// Whether the state is one value per row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rowwise: bool,
}

/// A table and its optimizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableState {
    /// `embedding.TABLE`, or `wide.COLUMN` for first-order terms.
    pub tensor: String,
    /// The table.
    pub table: TableSpec,
    /// Its rule.
    pub learns: RuleState,
}

/// The base of an incremental checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The step of the full checkpoint.
    pub step: u64,
    /// The checksum of its manifest.
    pub xxh3: Checksum,
}

/// State of GPUs besides parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    /// The loss scale of fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The scales of tensors in fp8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fp8: Vec<Fp8State>,
}

/// The state of the loss scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The factor of the loss.
    pub scale: f32,
    /// Steps since it changed last.
    pub steady: u32,
    /// Steps skipped so far.
    pub skipped: u64,
}

/// How the values of a tensor are scaled to fp8.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fp8State {
    /// The factor of the values.
    pub scale: f32,
    /// The largest magnitude of the next step, as far as it is known, times the scale.
    pub largest: f32,
    /// Steps recorded so far.
    pub steps: u32,
    /// The largest magnitudes of the last steps, as a ring.
    pub history: [f32; 16],
}

impl RuleState {
    /// The state of an optimizer.
    pub fn of(optimizer: &Optimizer) -> Self {
        let rule = optimizer.rule;
        Self {
            rule: rule.name().into(),
            state: rule.state_names().iter().map(|&name| name.into()).collect(),
            rowwise: rule.is_rowwise(),
        }
    }
}

impl TableState {
    /// The tables of a model, those of first-order terms last.
    pub fn all(model: &Model) -> Vec<Self> {
        let of = |(number, (table, optimizer)): (usize, (TableSpec, Optimizer))| {
            let kind = if number < model.spec.tables.len() { "embedding" } else { "wide" };
            Self { tensor: format!("{kind}.{}", table.name), learns: RuleState::of(&optimizer), table }
        };
        model.all_tables().into_iter().enumerate().map(of).collect()
    }
}
