//! The keys of a job file.

use serde::Deserialize;

use super::attention::Attention;
use super::checkpoint::Checkpoint;
use super::data::{Data, DataCache, Reader};
use super::embedding::Embedding;
use super::feature::Feature;
use super::guard::Guard;
use super::metrics::Metrics;
use super::model::{Head, Model, Table};
use super::network::{CollNet, Network};
use super::optimizer::Optimizers;
use super::train::{Device, DeviceKind, Eval, Train};
use super::values::JobName;

/// A training job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Job {
    /// Name of the job; the folders of its runs start with it.
    pub name: JobName,
    /// Seed of the initial weights and of the order of samples.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Where the samples are.
    pub data: Data,
    /// The model.
    pub model: Model,
    /// Categorical columns that are made of the dataset's dense columns.
    #[serde(default, rename = "feature")]
    pub features: Vec<Feature>,
    /// Attention over the dataset's sequences.
    #[serde(default)]
    pub attention: Vec<Attention>,
    /// Tables that differ from the rest, or that several columns share.
    #[serde(default, rename = "table")]
    pub tables: Vec<Table>,
    /// The labels to learn.
    #[serde(default, rename = "head")]
    pub heads: Vec<Head>,
    /// How the rows of tables are distributed over ranks.
    #[serde(default)]
    pub embedding: Embedding,
    /// Optimizers and the learning-rate schedule.
    pub optimizer: Optimizers,
    /// Batch size, epochs and shuffling.
    pub train: Train,
    /// When the model is evaluated.
    #[serde(default)]
    pub eval: Eval,
    /// When checkpoints are saved.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What happens when something goes wrong during training.
    #[serde(default)]
    pub guard: Guard,
    /// How blocks are read.
    #[serde(default)]
    pub reader: Reader,
    /// The devices that train the model.
    #[serde(default)]
    pub device: Device,
    /// How nodes communicate.
    #[serde(default)]
    pub network: Network,
    /// Where the metrics of the training can be watched.
    #[serde(default)]
    pub metrics: Metrics,
}

fn default_seed() -> u64 {
    1
}

impl Job {
    /// Whether the job cannot be trained on the CPU instead of GPUs.
    #[doc(hidden)]
    pub fn requires_gpus(&self) -> bool {
        let by_network = self.network.collnet == CollNet::Require;
        self.device.kind == DeviceKind::Cuda || self.data.cache == DataCache::Gpu || by_network
    }

    /// Returns the `[[table]]` that names a column, with its index.
    #[doc(hidden)]
    pub fn table_of(&self, column: &str) -> Option<(usize, &Table)> {
        self.tables.iter().enumerate().find(|(_, table)| table.columns.iter().any(|other| other == column))
    }
}
