//! What `manifest.json` of a checkpoint says.

use std::collections::BTreeMap;

use rankine_embedding::{Optimizer, TableSpec};
use rankine_reader::dataset::FileManifest;
use rankine_reader::raw::RawContents;
use rankine_reader::sealed::Checksum;
use rankine_reader::stream::Position;
use serde::{Deserialize, Serialize};

use crate::evaluation::EvalSummary;
use crate::model::{ModelSpec, TrainingRules};

/// The kind of sealed file that a manifest is, and its version.
pub(super) const KIND: &str = "rankine checkpoint";
pub(super) const FORMAT: u32 = 1;
/// The file that vouches for all others of a checkpoint.
pub const NAME: &str = "manifest.json";

/// A checkpoint, but for its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of Rankine that wrote it.
    pub version: String,
    /// Where training was.
    pub train: TrainState,
    /// The job's seed.
    pub seed: u64,
    /// The order of samples.
    pub order: OrderState,
    /// What was read.
    pub data: DataIdentity,
    /// The model.
    pub spec: ModelSpec,
    /// How the dense parameters learn.
    pub dense: RuleState,
    /// How the tables learn, one entry each, those of first-order terms behind the others.
    pub tables: Vec<TableState>,
    /// What GPUs keep beside parameters; absent where a CPU trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceState>,
    /// Ranks that it was saved on, and nodes; it loads on any.
    pub ranks: usize,
    /// See `ranks`.
    pub nodes: usize,
    /// What this one is an addition to; absent where it is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The indexes of the shards, one a rank.
    pub shards: Vec<FileManifest>,
    /// Other files: the effective job, and the algorithms of products where a GPU chose them.
    pub files: Vec<FileManifest>,
}

/// Where training was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Steps done.
    pub step: u64,
    /// Where the reader goes on: behind the last sample that was learnt from.
    pub position: Position,
    /// Samples learnt from, over all epochs.
    pub samples: u64,
    /// Seconds that took, reading included.
    pub seconds: f64,
    /// Seconds of those in which training waited for the reader.
    pub waited_seconds: f64,
    /// The losses since the last report.
    pub losses: LossState,
    /// The last loss that was told.
    pub loss: f64,
    /// Steps that were skipped; absent where none was.
    #[serde(default, skip_serializing_if = "GuardState::is_empty")]
    pub guard: GuardState,
    /// Ids that were no rows of their tables so far, by column; absent where there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids_out_of_range: BTreeMap<String, u64>,
    /// The evaluation of this very step, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<EvalSummary>,
}

/// Steps that were skipped since something was no finite number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardState {
    /// All of them so far.
    pub skipped_steps: u64,
    /// Those since the last step that was written.
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

/// The order of samples, which a position is one in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderState {
    /// Whether they are shuffled, by the job's seed.
    pub shuffle: bool,
    /// Blocks whose rows are shuffled together.
    pub window_blocks: u32,
}

/// What tells one training part from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Samples of the training part.
    pub samples: u64,
    /// Samples of a block.
    pub block_samples: u32,
    /// A checksum of the columns.
    pub schema: Checksum,
    /// A checksum of the checksums of all blocks; of raw files, of how many records each has.
    pub blocks: Checksum,
    /// The vocabularies.
    pub vocabularies: Vec<FileManifest>,
    /// The contents of raw files, in the order of the job; absent where blocks have checksums of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<RawContents>,
}

/// A rule, by its name in a job file, and what it keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleState {
    /// The name.
    pub rule: String,
    /// The names of what it keeps of each parameter, or of each row.
    pub state: Vec<String>,
    /// Whether that is one number a row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rowwise: bool,
}

/// A table and its rule.
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

/// What a checkpoint is an addition to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The step of the whole one.
    pub step: u64,
    /// The checksum of its manifest.
    pub xxh3: Checksum,
}

/// What GPUs keep beside parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    /// What the loss is multiplied by, in fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The scales of tensors in fp8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fp8: Vec<Fp8State>,
}

/// The state of a loss's scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// What the loss is multiplied by.
    pub scale: f32,
    /// Steps since it changed last.
    pub steady: u32,
    /// Steps that were left out so far.
    pub skipped: u64,
}

/// How a tensor's values become numbers of fp8.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fp8State {
    /// What values are multiplied by.
    pub scale: f32,
    /// The largest magnitude of the step that comes, as far as it is known, times the scale.
    pub largest: f32,
    /// Steps that were kept so far.
    pub steps: u32,
    /// The largest magnitudes of the last steps, each in its turn.
    pub history: [f32; 16],
}

impl RuleState {
    /// Of an optimizer.
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
    /// Of all tables of a model, those of first-order terms behind the others.
    pub fn all(spec: &ModelSpec, rules: &TrainingRules) -> Vec<Self> {
        let of = |(number, (table, optimizer)): (usize, (TableSpec, Optimizer))| {
            let kind = if number < spec.tables.len() { "embedding" } else { "wide" };
            Self { tensor: format!("{kind}.{}", table.name), learns: RuleState::of(&optimizer), table }
        };
        rules.all_tables(spec).into_iter().enumerate().map(of).collect()
    }
}
