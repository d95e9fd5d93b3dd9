//! `[train]`, `[eval]` and `[device]`: batches and epochs, the choice of the model, evaluations, and devices.

use std::path::PathBuf;

use rankine_reader::Split;
use serde::{Deserialize, Serialize};

use super::values::{
    AucTarget, AverageCount, BatchSize, Count, Decay, Epochs, EvalBatchSize, Folders, NonNegative, Ranks,
    ThreadCount, WindowBlocks,
};

/// `[train]`: batch size, epochs, shuffling, validation, the initial model and early stopping.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Samples per step, over all ranks.
    pub batch_size: BatchSize,
    /// Number of passes over the training part.
    #[serde(default = "default_epochs")]
    pub epochs: Count,
    /// Ends the training after this number of steps, even within an epoch.
    pub max_steps: Option<Count>,
    /// Steps between two reports of the loss.
    #[serde(default = "default_log_every_steps")]
    pub log_every_steps: Count,
    /// Whether to shuffle samples in every epoch: blocks are permuted, then samples within a window of blocks. The
    /// order depends only on the job's seed and the epoch.
    #[serde(default = "default_shuffle")]
    pub shuffle: bool,
    /// Blocks per shuffling window. The samples of a window are shuffled together, so it must fit in memory.
    #[serde(default = "default_shuffle_window_blocks")]
    pub shuffle_window_blocks: WindowBlocks,
    /// Samples of the training part that are held out as a validation set: `"last:0.1"` for the last tenth,
    /// `"random:0.1:SEED"` for a random tenth, or `"none"`. Evaluations during the training then score the validation
    /// set, and only the trained model is evaluated on the evaluation part.
    #[serde(default)]
    #[cfg_attr(test, schemars(schema_with = "super::tests::reference::split"))]
    pub validation: Split,
    /// The run, checkpoint or export whose model the training starts from, instead of a new one. The job must describe
    /// a model of the same shape, and the dataset must have the columns and vocabularies that it was trained on; they
    /// may have grown (`rankine convert --like RUN --grow`), and new rows are then initialized as in a new model.
    pub init_from: Option<PathBuf>,
    /// Whether to take the state of the optimizers, too. The model must be a checkpoint, or that of a run with a
    /// checkpoint of the same step; and its optimizers must be those of the job. Requires `init_from`.
    #[serde(default)]
    pub init_optimizer_state: bool,
    /// Ends the training when evaluations stop getting better, and keeps the best model.
    pub early_stopping: Option<EarlyStopping>,
    /// Averages the weights of several steps at the end of the training.
    pub average: Option<Average>,
}

impl Train {
    /// The samples that a training takes at most, where an epoch has `epoch` samples. The last batch of an epoch may be
    /// smaller than the others.
    pub fn samples(&self, epoch: u64) -> u64 {
        let all = epoch.saturating_mul(self.epochs.get());
        let Some(steps) = self.max_steps else { return all };
        let batch_size = u64::from(self.batch_size.get());
        let steps_an_epoch = epoch.div_ceil(batch_size).max(1);
        let (epochs, rest) = (steps.get() / steps_an_epoch, steps.get() % steps_an_epoch);
        all.min(epochs.saturating_mul(epoch).saturating_add(rest * batch_size))
    }
}

/// `[train.early_stopping]`: training ends when evaluations stop getting better, and the best model becomes the model
/// of the run. Evaluations are those of the validation set if there is one, and otherwise of the evaluation part. A
/// checkpoint is saved after each better one. Requires `eval.every_steps` or `eval.every`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// The metric of the first head that decides. An evaluation without this metric is never the best.
    #[serde(default)]
    pub metric: StoppingMetric,
    /// Evaluations in a row without a better one after which training ends.
    pub patience: Count,
    /// An evaluation is better only if its metric improves on the best one by more than this.
    #[serde(default)]
    pub min_delta: NonNegative,
    /// Whether to train the model again, on the whole training part, once the number of steps of the best one is known.
    /// The second training run starts from scratch; its number of steps grows in proportion to the number of samples.
    /// Its model is that of the run; the first training run is in the folder `search` of the run's folder. Requires
    /// `train.validation`.
    #[serde(default)]
    pub refit: bool,
}

/// `[train.average]`: the average of the weights at several steps, which often generalizes better than the weights of
/// one. A snapshot is a checkpoint. At the end of the training, the model and the latest snapshots before it are
/// averaged, and the average is evaluated on the same samples as the model: the validation set if there is one, and
/// otherwise the evaluation part. With early stopping, the model is the best one.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Average {
    /// How much each of the steps counts.
    pub kind: AverageKind,
    /// Steps between two snapshots.
    pub every_steps: Count,
    /// Number of models that are averaged: that of the last step, or the best one, and the snapshots before it.
    #[serde(default = "default_average_count")]
    pub count: AverageCount,
    /// With `ema`, the weight of a snapshot relative to the next one; 0.75 by default.
    pub decay: Option<Decay>,
    /// When the average becomes the model of the run.
    #[serde(default)]
    pub save: AverageSave,
}

/// How much the steps of an average count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AverageKind {
    /// An exponential moving average: recent steps count more.
    Ema,
    /// The mean: all have equal weight.
    Last,
}

/// When an average becomes the model of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AverageSave {
    /// If its metric (that of early stopping, otherwise the AUC) is better than the model's.
    #[default]
    Better,
    /// In any case.
    Always,
}

impl Average {
    /// Returns the steps of the snapshots that are averaged with the model of a step, the latest first.
    pub fn steps_before(&self, step: u64) -> impl Iterator<Item = u64> + use<> {
        let (every, most) = (self.every_steps.get(), self.count.get() as usize - 1);
        (1..step.div_ceil(every)).rev().take(most).map(move |number| number * every)
    }

    /// Returns by how much of their difference the average of some snapshots moves towards the next one, which is
    /// number `number` counted from 0.
    pub fn step_size(&self, number: usize) -> f32 {
        let number = number as i32;
        match self.kind {
            AverageKind::Last => (1.0 / f64::from(number + 1)) as f32,
            AverageKind::Ema => {
                let decay = self.decay().get();
                ((1.0 - decay) / (1.0 - decay.powi(number + 1))) as f32
            }
        }
    }

    /// Returns how much a snapshot counts in proportion to the one after it.
    pub(crate) fn decay(&self) -> Decay {
        self.decay.unwrap_or_else(|| Decay::new(0.75).expect("a constant in range"))
    }
}

impl AverageKind {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ema => "ema",
            Self::Last => "last",
        }
    }
}

impl AverageSave {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Always => "always",
        }
    }
}

/// The metric that decides which evaluation is the best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StoppingMetric {
    /// The area under the ROC curve: higher is better.
    #[default]
    Auc,
    /// The log loss: lower is better.
    LogLoss,
}

impl StoppingMetric {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auc => "auc",
            Self::LogLoss => "log_loss",
        }
    }

    /// Returns by how much a value is better than another one.
    pub fn gain(self, value: f64, other: f64) -> f64 {
        match self {
            Self::Auc => value - other,
            Self::LogLoss => other - value,
        }
    }
}

fn default_epochs() -> Count {
    Count::new(1).expect("a constant in range")
}

fn default_average_count() -> AverageCount {
    AverageCount::new(5).expect("a constant in range")
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

/// `[eval]`: when the model is evaluated. If the dataset has an evaluation part, the model is always evaluated on it at
/// the end of the training.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Eval {
    /// Steps between two evaluations, on the validation set if `train.validation` holds one out, and otherwise on the
    /// evaluation part. Without it and `every`, the model is evaluated only at the end.
    pub every_steps: Option<Count>,
    /// The same in epochs: `"epoch"`, or a number of epochs such as 0.25. Excludes `every_steps`.
    pub every: Option<Epochs>,
    /// Samples that are scored at a time: a number, or `"auto"`. It does not affect the result. By `"auto"`, CPUs score
    /// 8192, and GPUs the largest multiple of `train.batch_size` by a power of two that is at most 262144 per GPU and
    /// takes at most an eighth of the memory that training leaves free on each. GPUs round a number up to a multiple.
    /// With rows in host memory, they score at most `train.batch_size`.
    pub batch_size: EvalBatchSize,
    /// Ends the training at the first evaluation with at least this AUC, which is weighted if the dataset has sample
    /// weights. Requires `every_steps` or `every`.
    pub target_auc: Option<AucTarget>,
    /// Whether training continues while the metrics of an evaluation are computed. It waits only for the scores, whose
    /// metrics are known an eighth of the way to the next evaluation, at a checkpoint, or at the end. If they reach
    /// `target_auc`, training ends there, and the AUC of the weights that it ends with is the result. The metrics have
    /// the same bits. With `train.early_stopping`, training always waits.
    pub beside_training: bool,
    /// Further datasets.
    pub set: Vec<EvalSet>,
}

/// `[[eval.set]]`: a further dataset that the trained model is evaluated on, such as the data of another day or of one
/// market. Its evaluation part is scored, or its training part if it has no evaluation part. The result is
/// `eval.sets.NAME` in `summary.json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct EvalSet {
    /// Name of the result, unique among the sets.
    pub name: String,
    /// The dataset folder, or a list of folders. It must have the columns and transforms of the dataset that is trained
    /// on. Vocabularies may have grown from one to the other: categories that only this dataset has are unknown.
    pub data: Folders,
}

impl Eval {
    /// Samples that a CPU scores at a time if the job leaves that to it.
    const SAMPLES_ON_CPU: usize = 8192;

    /// Samples that a CPU scores at a time.
    pub fn batch_size_on_cpu(&self) -> usize {
        self.batch_size.count().map_or(Self::SAMPLES_ON_CPU, |count| count.get() as usize)
    }

    /// Whether the model is evaluated during the training.
    pub fn is_repeated(&self) -> bool {
        self.every_steps.is_some() || self.every.is_some()
    }

    /// Steps between two evaluations, rounded down, of a training with epochs of this many steps; `None` without
    /// evaluations.
    pub fn interval_steps(&self, epoch_steps: u64) -> Option<u64> {
        let in_epochs = || Some((self.every?.get() * epoch_steps.max(1) as f64) as u64);
        self.every_steps.map(Count::get).or_else(in_epochs).map(|steps| steps.max(1))
    }

    /// Whether an evaluation is due after a step of a training with epochs of this many steps.
    pub fn is_due(&self, step: u64, epoch_steps: u64) -> bool {
        if let Some(steps) = self.every_steps {
            return step.is_multiple_of(steps.get());
        }
        let Some(epochs) = self.every else { return false };
        // Each evaluation is due at the first step that completes another part of that many epochs.
        let parts = |step: u64| (step as f64 / (epochs.get() * epoch_steps.max(1) as f64)).floor();
        parts(step) > parts(step.saturating_sub(1))
    }
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            every_steps: None,
            every: None,
            batch_size: EvalBatchSize::Auto,
            target_auc: None,
            beside_training: true,
            set: Vec::new(),
        }
    }
}

/// `[device]`: the devices that train the model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Precision of matrix products, and on GPUs of activations. Without it, `"bf16"` on GPUs and `"fp32"` on CPUs.
    /// Weights and accumulators are always single precision. CPUs compute in `"bf16"` if they have AVX512-BF16, and
    /// otherwise in single precision, as for every other value; the log says so.
    pub precision: Option<Precision>,
    /// Whether to time the algorithms of matrix products at the start and use the fastest. Without it, the choice is
    /// fixed for a GPU and a version of the library. Timed choices may differ between runs and then round differently.
    /// They are recorded in `tuning.json` in the run folder.
    pub tune: bool,
    /// The `tuning.json` of another run, whose algorithms are used. With the same GPU and library, the same job then
    /// gives bitwise identical results.
    pub tuning: Option<PathBuf>,
    /// A machine file with the speeds that the planner uses to place tables, such as the `machine.toml` in the folder
    /// of another run on GPUs. Without it, measured speeds are used for GPUs, and typical ones for CPUs.
    pub machine: Option<PathBuf>,
    /// Number of CPU threads. Without it, all that the process may use. It does not affect the result.
    pub threads: Option<ThreadCount>,
    /// Number of ranks over all processes. Each rank trains a share of every batch and stores a share of the tables. On
    /// the CPU, ranks are threads of one process. On GPUs, each rank has its own GPU, and the GPUs of a node must be
    /// able to access each other's memory. `"auto"` uses all GPUs that the job's processes see, and 1 rank on the CPU.
    pub ranks: Ranks,
    /// Number of nodes, each with the same number of ranks. Data between nodes is sent between ranks with the same
    /// local rank. `"auto"` is the number of hosts that the job's processes run on.
    pub nodes: Ranks,
    /// How ranks update the dense parameters.
    pub dense_update: DenseUpdate,
    /// Where the threads of GPUs run.
    pub bind: ThreadBinding,
    /// Which blocks of a batch each GPU of a process receives. It does not affect the result.
    pub feed: BlockFeed,
    /// When blocks are copied from the host to GPUs. It does not affect the result.
    pub copies: CopyTiming,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            kind: DeviceKind::default(),
            precision: None,
            tune: false,
            tuning: None,
            machine: None,
            threads: None,
            ranks: Ranks::ONE,
            nodes: Ranks::Auto,
            dense_update: DenseUpdate::default(),
            bind: ThreadBinding::default(),
            feed: BlockFeed::default(),
            copies: CopyTiming::default(),
        }
    }
}

impl Device {
    /// Returns the precision in which GPUs compute.
    pub fn precision_on_gpus(&self) -> Precision {
        self.precision.unwrap_or(Precision::Bf16)
    }

    /// Returns the precision that the job asks for on CPUs, which have only some.
    pub fn precision_on_cpus(&self) -> Precision {
        self.precision.unwrap_or(Precision::Fp32)
    }
}

/// Where the threads run that read data for GPUs, copy them to GPUs and enqueue their work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum ThreadBinding {
    /// On the NUMA node of their GPU, on the processors that the process may use; the buffers that GPUs copy from are
    /// in its memory. `rankine doctor` shows the nodes.
    #[default]
    Auto,
    /// On any processor.
    Off,
}

impl ThreadBinding {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

/// Which blocks of a batch each GPU of a process receives. A block that several GPUs receive is copied from the host to
/// one of them, and from there to the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum BlockFeed {
    /// The faster one: `needed`.
    #[default]
    Auto,
    /// Those that hold samples of its share.
    Needed,
    /// All: each GPU copies an equal part of them from the host.
    Broadcast,
}

impl BlockFeed {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Needed => "needed",
            Self::Broadcast => "broadcast",
        }
    }
}

/// When blocks are copied from the host to GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum CopyTiming {
    /// At any time.
    #[default]
    Any,
    /// With several nodes, only while a GPU transfers no data to or from other nodes: a network card may share PCIe
    /// with the GPU.
    BetweenExchanges,
}

impl CopyTiming {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::BetweenExchanges => "between-exchanges",
        }
    }
}

/// How ranks update the dense parameters, which all of them store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum DenseUpdate {
    /// Every rank updates all of them and stores the whole optimizer state.
    #[default]
    Replicated,
    /// Every rank updates a share of them, stores only the optimizer state of that share, and receives the others'
    /// results.
    Sharded,
}

impl DenseUpdate {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Sharded => "sharded",
        }
    }
}

/// Precision of matrix products, and on GPUs of activations and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Single precision throughout.
    Fp32,
    /// Single precision; products use TF32, with a significand of 11 bits.
    Tf32,
    /// bfloat16, with a significand of 8 bits. On CPUs only the operands of matrix products are rounded.
    Bf16,
    /// IEEE half precision, with a significand of 11 bits and a largest value of 65504. The loss is scaled, and steps
    /// whose gradients overflow are skipped.
    Fp16,
    /// bfloat16, and 8-bit floats (e4m3) in the products of the cross layers and the top MLP's hidden
    /// layers. Tensors are scaled according to their largest magnitudes in the last 16 steps. Requires
    /// a Hopper GPU, and layers whose widths are multiples of 16.
    Fp8,
}

impl Precision {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
        }
    }

    /// Returns the size, in bytes, of an element of the vectors and activations that GPUs store in this precision.
    #[doc(hidden)]
    pub fn vector_element_bytes(self) -> u64 {
        match self {
            Self::Fp32 | Self::Tf32 => 4,
            Self::Bf16 | Self::Fp16 | Self::Fp8 => 2,
        }
    }
}

/// A kind of device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// GPUs if this build supports them and this machine has any, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// GPUs. Without a GPU the job fails.
    Cuda,
}

impl DeviceKind {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn average(kind: AverageKind, count: u32) -> Average {
        let count = AverageCount::new(count).unwrap();
        let decay = (kind == AverageKind::Ema).then(|| Decay::new(0.5).unwrap());
        Average { kind, every_steps: Count::new(10).unwrap(), count, decay, save: AverageSave::Better }
    }

    #[test]
    fn evaluations_are_due_by_steps_or_by_epochs() {
        let due = |eval: &str, epoch_steps: u64| {
            let eval: Eval = toml::from_str(eval).unwrap();
            (1..=24).filter(|&step| eval.is_due(step, epoch_steps)).collect::<Vec<_>>()
        };
        assert_eq!(due("every_steps = 10", 7), [10, 20]);
        assert_eq!(due("every = \"epoch\"", 8), [8, 16, 24]);
        assert_eq!(due("every = 2", 5), [10, 20]);
        // 10 steps: the thirds of an epoch are 3.3 steps long, and the last one ends with the epoch.
        assert_eq!(due("every = 0.3333333333333333", 10), [4, 7, 10, 14, 17, 20, 24]);
        assert_eq!(due("every = 0.001", 10).len(), 24);
        assert_eq!(due("", 10), [0; 0]);
    }

    #[test]
    fn steps_between_evaluations_are_rounded_down_but_never_to_none() {
        let interval =
            |eval: &str, epoch_steps: u64| toml::from_str::<Eval>(eval).unwrap().interval_steps(epoch_steps);
        assert_eq!(interval("every_steps = 10", 7), Some(10));
        assert_eq!((interval("every = 2", 5), interval("every = 0.33", 10)), (Some(10), Some(3)));
        assert_eq!((interval("every = 0.001", 10), interval("", 10)), (Some(1), None));
    }

    #[test]
    fn epochs_and_steps_bound_the_samples() {
        let samples = |more: &str| {
            let train: Train = toml::from_str(&format!("batch_size = 128\nepochs = 3\n{more}")).unwrap();
            // 18 batches of 128 samples, and one of 96.
            train.samples(2400)
        };
        assert_eq!(samples(""), 7200);
        assert_eq!(samples("max_steps = 5"), 640);
        assert_eq!(samples("max_steps = 19"), 2400);
        assert_eq!(samples("max_steps = 43"), 2 * 2400 + 640);
        assert_eq!(samples("max_steps = 1000"), 7200);
    }

    #[test]
    fn the_latest_snapshots_before_a_step_are_averaged_with_it() {
        let before = |count, step| average(AverageKind::Last, count).steps_before(step).collect::<Vec<_>>();
        assert_eq!(before(3, 45), [40, 30]);
        assert_eq!(before(3, 40), [30, 20]);
        assert_eq!(before(5, 21), [20, 10]);
        assert_eq!(before(2, 10), [0; 0]);
        assert_eq!(before(2, 0), [0; 0]);
    }

    #[test]
    fn snapshots_count_as_their_kind_says() {
        let of = |kind, values: &[f32]| {
            let average = average(kind, 5);
            values.iter().enumerate().fold(f32::NAN, |mean, (number, value)| match number {
                0 => *value,
                _ => mean + average.step_size(number) * (value - mean),
            })
        };
        let near = |one: f32, other: f32| assert!((one - other).abs() < 1e-6, "{one} {other}");
        near(of(AverageKind::Last, &[1.0, 2.0, 6.0]), 3.0);
        // (1 * 1 + 2 * 2 + 4 * 6) / 7
        near(of(AverageKind::Ema, &[1.0, 2.0, 6.0]), 29.0 / 7.0);
        assert_eq!(of(AverageKind::Ema, &[0.1; 5]), 0.1);
    }
}
