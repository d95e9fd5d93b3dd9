//! What a model on GPUs is created from.

use std::sync::Arc;
use std::time::Duration;

use rankine_cuda::blas::{Algorithms, Compute};
use rankine_cuda::nccl::CollNet;
use rankine_cuda::{CopyGate, Device};
use rankine_embedding::{EmbeddingPlan, TierPlan};
use rankine_job::Precision;
use rankine_launch::ProcessGroup;
use rankine_reader::schema;
use rankine_topology::{Process, Rank, Topology};

use super::delivery::Delivery;
use super::error::Result;
use rankine_model::Model;
use rankine_model::overlap::Overlaps;

/// A model that is to be created, and the GPUs for it.
#[derive(Debug, Clone)]
pub struct ModelSetup {
    /// The model, which [`crate::refusals`] must accept.
    pub model: Model,
    /// The seed of the initial weights.
    pub seed: u64,
    /// The settings of its computation.
    pub execution: Execution,
    /// The batches that it is made for.
    pub batches: BatchShape,
    /// The placement of tables over several GPUs: one entry per table of [`Model::all_tables`]. Without it,
    /// every table is sharded row-wise over all ranks.
    pub plan: Option<EmbeddingPlan>,
    /// Which rows of the tables GPUs store, one entry per table of [`Model::all_tables`], if host memory has the
    /// others; with one node.
    pub tier: Option<TierPlan>,
    /// Whether updated rows are recorded, for incremental checkpoints.
    pub tracks_updates: bool,
    /// The GPUs of this process, each with one rank. For several ranks on one GPU, open it once per rank; with several
    /// nodes this is not possible.
    pub devices: Vec<Arc<Device>>,
    /// The number of nodes. GPUs of a node access each other's memory, and NCCL transfers data between nodes. The GPUs
    /// of a single process simulate several nodes.
    pub nodes: usize,
    /// The processes, if there are several; all have the same number of GPUs.
    pub processes: Option<ProcessGroup>,
    /// Whether each GPU is measured before any of its memory is used.
    pub measures_memory: bool,
}

/// The settings of a model's computation.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The type of activations and of the gradients with respect to them.
    pub precision: Precision,
    /// The source of the products' algorithms.
    pub algorithms: Algorithms,
    /// The parts of an iteration that overlap.
    pub overlaps: Overlaps,
    /// Whether, with several ranks, each updates a part of the dense parameters for all.
    pub shard_dense_update: bool,
    /// Whether threads run on the NUMA node of their GPU.
    pub binds_threads: bool,
    /// How the blocks of the training part reach the GPUs.
    pub delivery: Delivery,
    /// Whether copies from the host wait while data is transferred between nodes.
    pub gates_copies: bool,
    /// How long a rank waits for another one before it fails.
    pub deadline: Duration,
    /// Whether the network sums dense gradients over nodes.
    pub collnet: CollNet,
}

impl Execution {
    /// Returns the default settings for a precision.
    pub fn new(precision: Precision) -> Self {
        Self {
            precision,
            algorithms: Algorithms::Known,
            overlaps: Overlaps::ALL,
            shard_dense_update: false,
            binds_threads: true,
            delivery: Delivery::Needed,
            gates_copies: false,
            deadline: Duration::from_secs(30),
            collnet: CollNet::Off,
        }
    }

    /// Returns how matrix products are computed.
    pub(super) fn compute(&self) -> Compute {
        match self.precision {
            Precision::Fp32 => Compute::F32,
            Precision::Tf32 => Compute::Tf32,
            Precision::Bf16 | Precision::Fp8 => Compute::Bf16,
            Precision::Fp16 => Compute::F16,
        }
    }
}

/// The batches that a model is made for.
#[derive(Debug, Clone)]
pub struct BatchShape {
    /// The most samples of a step, over all GPUs.
    pub batch_size: usize,
    /// The samples that are scored at a time.
    pub score_size: ScoreSize,
    /// For each categorical column, how many ids a bag may hold.
    pub hotness: Vec<schema::Hotness>,
}

/// The samples that are scored at a time, over all GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreSize {
    /// The largest multiple of the training batch by a power of two that has at most `samples_max` samples and
    /// [`ScoreSize::OF_GPU_MAX`] on each GPU, and needs at most an eighth of the memory that the training leaves free;
    /// or the training batch.
    Auto {
        /// The most samples.
        samples_max: usize,
    },
    /// This number, rounded up to whole training batches.
    Fixed(usize),
}

impl ScoreSize {
    /// The most samples that a GPU scores at a time unless a job demands more: four times as many as suffice to keep it
    /// busy, so that less time passes between batches.
    pub const OF_GPU_MAX: usize = 262_144;
}

impl ModelSetup {
    /// Creates the gates that keep copies from the host apart from transfers between nodes, one per GPU of this
    /// process; none if copies need not wait.
    pub(super) fn copy_gates(&self) -> Result<Vec<Arc<CopyGate>>> {
        if !self.execution.gates_copies || self.nodes == 1 {
            return Ok(Vec::new());
        }
        let gate = |device: &Arc<Device>| {
            device.bind()?;
            Ok(Arc::new(CopyGate::new(device)?))
        };
        self.devices.iter().map(gate).collect()
    }

    /// Returns the topology of all ranks.
    ///
    /// # Panics
    /// If there is no GPU, or nodes would have unequal numbers of them.
    pub(super) fn topology(&self) -> Topology {
        let processes = self.processes.as_ref().map_or(1, ProcessGroup::size);
        Topology::new(processes * self.devices.len(), self.nodes)
            .expect("every node has the same number of GPUs")
    }

    /// Returns this process's first rank.
    pub(super) fn first_rank(&self) -> Rank {
        let process = self.processes.as_ref().map_or(Process(0), ProcessGroup::process);
        Rank(process.0 * self.devices.len())
    }

    /// Returns the most samples of a step for one rank.
    pub(super) fn rank_samples(&self) -> usize {
        self.batches.batch_size.div_ceil(self.topology().ranks())
    }
}
