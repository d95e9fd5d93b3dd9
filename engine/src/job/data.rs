//! Where samples come from, and how they are read.

use std::path::PathBuf;

use rankine_reader::io::{IoMode, IoOptions};
use serde::Deserialize;

use super::values::{Count, NonNegative, QueueDepth, Shape};

/// `[data]`: where the samples are.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The folder of the dataset, as `convert` or `generate` wrote it. A relative path is relative to the folder in
    /// which the command runs.
    pub dir: PathBuf,
    /// Makes the dataset when it is not there yet.
    pub generate: Option<Generate>,
}

/// `[data.generate]`: a synthetic dataset, made in `data.dir` when nothing is there yet. The same settings give the
/// same bytes on every machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// The columns: `dlrm`, `dlrm-dcnv2`, or the path of a shape file.
    pub shape: Shape,
    /// Tables with more rows get this many. Without it tables are as large as the shape says.
    pub rows_cap: Option<Count>,
    /// Samples to train on.
    pub samples: Count,
    /// Samples to evaluate with. With 0 there is no evaluation part.
    #[serde(default)]
    pub eval_samples: u64,
    /// The exponent of the power law that ids follow: the k-th most frequent row of a table is drawn with a
    /// probability proportional to k^-alpha. 0 is uniform.
    #[serde(default = "default_alpha")]
    pub alpha: NonNegative,
    /// The seed of the samples and of the teacher that labels them.
    #[serde(default = "default_seed")]
    pub seed: u64,
}

fn default_alpha() -> NonNegative {
    NonNegative::new(1.1).expect("a constant in range")
}

fn default_seed() -> u64 {
    1
}

/// `[reader]`: how blocks are read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Reader {
    /// The way to the disk.
    #[cfg_attr(test, schemars(schema_with = "super::reference::io_mode"))]
    pub mode: IoMode,
    /// Blocks that are read at the same time.
    pub queue_depth: QueueDepth,
}

impl Reader {
    /// The same as the reader takes it.
    pub fn io_options(&self) -> IoOptions {
        IoOptions { mode: self.mode, depth: self.queue_depth.get() }
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self { mode: IoMode::default(), queue_depth: QueueDepth::new(16).expect("a constant in range") }
    }
}
