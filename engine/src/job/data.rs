//! Where samples come from, and how they are read.

use std::path::{Path, PathBuf};

use rankine_reader::io::{IoMode, IoOptions};
use rankine_reader::raw::{RawDense, RawIds};
use serde::Deserialize;

use super::values::{Count, NonNegative, QueueDepth, Shape};

/// `[data]`: where the samples are: a dataset's folder (`dir`), or raw files of HugeCTR and MLPerf (`raw`).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The folder of the dataset, as `convert` or `generate` wrote it. A relative path is relative to the folder in
    /// which the command runs. Either this or `raw` is there.
    pub dir: Option<PathBuf>,
    /// The columns of a dataset that is not there yet: `dlrm`, `dlrm-dcnv2`, or the path of a shape file. As long as it
    /// is not, `rankine check` and `rankine plan` go by them; once it is, its own columns count. Only with `dir`.
    pub shape: Option<Shape>,
    /// Raw files, read as they are.
    pub raw: Option<Raw>,
    /// Makes the dataset when it is not there yet. Only with `dir`.
    pub generate: Option<Generate>,
}

impl Data {
    /// The dataset's folder, where the samples are in one.
    pub fn folder(&self) -> Option<&Path> {
        self.dir.as_deref().filter(|_| self.raw.is_none())
    }
}

/// `[data.raw]`: files of fixed-size records, as HugeCTR's raw readers and MLPerf's preprocessing have them, read as
/// they are. A record is a row of little-endian fields of four bytes: labels, dense values, then the ids of every
/// categorical column, as many as its hotness. The columns are `label` (or `label1`, `label2`, ...), `I1`, `I2`, ...
/// and `C1`, `C2`, ...
///
/// A record that cannot be a sample (a label other than 0 and 1, an id that is no row of its table) ends the run with
/// an error that names it. `rankine convert hugectr-raw` can leave such records out, and what it writes takes half the
/// space.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// Dense columns, tables and hotness: `dlrm`, `dlrm-dcnv2`, or the path of a shape file.
    pub shape: Shape,
    /// Tables with more rows in the shape have this many.
    pub rows_cap: Option<Count>,
    /// The files to train on, in the order of their records.
    pub train: Vec<PathBuf>,
    /// The files to evaluate with. With none there is no evaluation.
    #[serde(default)]
    pub eval: Vec<PathBuf>,
    /// Labels of a record, 0 or 1, as integers or floats.
    #[serde(default = "one_label")]
    pub labels: Count,
    /// What dense fields are: `float`, learnt from as they are, or `int`, read as `ln(max(x, 0) + 1)`.
    #[serde(default)]
    #[cfg_attr(test, schemars(schema_with = "super::reference::raw_dense"))]
    pub dense: RawDense,
    /// What ids count from: the first row of their table (`per-table`), or of the first table, where the rows of all
    /// tables are numbered through (`global-offset`).
    #[serde(default)]
    #[cfg_attr(test, schemars(schema_with = "super::reference::raw_ids"))]
    pub ids: RawIds,
}

fn one_label() -> Count {
    Count::new(1).expect("a constant in range")
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
