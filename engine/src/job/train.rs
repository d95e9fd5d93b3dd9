//! How long and on what the job trains, and how it is judged.

use std::path::PathBuf;

use serde::Deserialize;

use super::values::{AucTarget, BatchSize, Count, Ranks, ThreadCount, WindowBlocks};

/// `[train]`: batches, their order and their number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Samples of a step, over all ranks.
    pub batch_size: BatchSize,
    /// Passes over the training part.
    #[serde(default = "default_epochs")]
    pub epochs: Count,
    /// Ends the training after so many steps, whatever the epochs.
    pub max_steps: Option<Count>,
    /// Steps between two reports of the loss.
    #[serde(default = "default_log_every_steps")]
    pub log_every_steps: Count,
    /// Whether every epoch has an order of its own: blocks are permuted, and rows within a window of blocks. The order
    /// depends on the job's seed and the epoch only.
    #[serde(default = "default_shuffle")]
    pub shuffle: bool,
    /// Blocks whose rows are shuffled together, and held in memory together.
    #[serde(default = "default_shuffle_window_blocks")]
    pub shuffle_window_blocks: WindowBlocks,
}

fn default_epochs() -> Count {
    Count::new(1).expect("a constant in range")
}

fn default_log_every_steps() -> Count {
    Count::new(100).expect("a constant in range")
}

fn default_shuffle() -> bool {
    true
}

fn default_shuffle_window_blocks() -> WindowBlocks {
    WindowBlocks::new(16).expect("a constant in range")
}

/// `[eval]`: when the model is judged on the dataset's evaluation part. Where there is such a part, it is always judged
/// at the end.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Eval {
    /// Steps between two evaluations during training. Without it there is only the one at the end.
    pub every_steps: Option<Count>,
    /// Samples of a batch of the evaluation; it has no influence on the result.
    pub batch_size: BatchSize,
    /// Ends the training at the first evaluation with at least this AUC. It is weighted where the dataset has sample
    /// weights. Needs `every_steps`.
    pub target_auc: Option<AucTarget>,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            every_steps: None,
            batch_size: BatchSize::new(8192).expect("a constant in range"),
            target_auc: None,
        }
    }
}

/// `[device]`: what computes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// What GPUs compute in. Weights and sums are single precision in any case, and so is all that the CPU does.
    pub precision: Precision,
    /// Whether the algorithms of matrix products are timed at the start, and the fastest taken. Without that they are
    /// always the same with the same library on the same GPU; timed ones may differ from training to training, and then
    /// round differently. What was taken is in the run folder, as `tuning.json`.
    pub tune: bool,
    /// A `tuning.json` of another training, whose algorithms are taken: with the same GPU and library, and otherwise
    /// the same job, results are the same to the bit.
    pub tuning: Option<PathBuf>,
    /// What the ranks do in a second, for placing tables: a machine's file, such as the `machine.toml` in the folder of
    /// another training on GPUs. Without it, on GPUs what was measured of them, and on the CPU what is known of one.
    pub machine: Option<PathBuf>,
    /// CPU threads. Without it, all that this process may use. The result does not depend on it.
    pub threads: Option<ThreadCount>,
    /// Ranks in all, those of all processes together. Each takes its share of every batch and of the tables. On the CPU
    /// they are threads of one process; on GPUs each has a GPU to itself, and those of a node must access each other's
    /// memory. `"auto"` is all GPUs that the job's processes see, and 1 on the CPU.
    pub ranks: Ranks,
    /// Nodes that the ranks are spread over, as many on each. What goes from one node to another goes between ranks
    /// with the same place in their nodes. `"auto"` is the hosts that the job's processes are on.
    pub nodes: Ranks,
    /// How ranks update the parameters of the MLPs.
    pub dense_update: DenseUpdate,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            kind: DeviceKind::default(),
            precision: Precision::default(),
            tune: false,
            tuning: None,
            machine: None,
            threads: None,
            ranks: Ranks::ONE,
            nodes: Ranks::Auto,
            dense_update: DenseUpdate::default(),
        }
    }
}

/// How ranks update parameters that all of them have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum DenseUpdate {
    /// Every rank updates all of them, and keeps the optimizer's whole state.
    #[default]
    Replicated,
    /// Every rank updates a share of them, keeps the state of that share alone, and gets the others' results.
    Sharded,
}

impl DenseUpdate {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Sharded => "sharded",
        }
    }
}

/// What activations and gradients are rounded to, and how they are multiplied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Single precision throughout, as on the CPU.
    Fp32,
    /// Single precision, of which products take 11 bits.
    Tf32,
    /// bfloat16, which has 8 bits.
    #[default]
    Bf16,
    /// IEEE half precision, which has 11 bits and ends at 65504: the loss is scaled, and steps with gradients beyond
    /// that are left out.
    Fp16,
    /// bfloat16, and cross layers and the hidden layers of the top MLP multiply numbers of 8 bits
    /// (e4m3). Their tensors have scales that follow from the largest magnitudes of the last 16
    /// steps. For Hopper GPUs, and layers whose widths are multiples of 16.
    Fp8,
}

impl Precision {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
        }
    }
}

/// A kind of device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// GPUs where this build and this machine have them, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// GPUs; the job fails without them.
    Cuda,
}

impl DeviceKind {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}
