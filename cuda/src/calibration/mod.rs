//! Measures the speed of this machine's GPUs, as input for planning.
//!
//! Each figure takes a fraction of a second: the median over replays of a graph, timed by events. All ranks measure
//! at the same time, and the slowest rank's figure is reported, since an iteration waits for it. All memory is freed
//! afterwards.

mod links;
mod memory;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rankine_topology::Node;
use serde::{Deserialize, Serialize};

use crate::communication::Peers;
use crate::runtime::{Device, Graph, Lane, Moment, Result};

/// How long one rank waits for another.
const DEADLINE: Duration = Duration::from_secs(10);
/// Replays whose median is taken, after one warm-up.
const REPLAYS: usize = 5;

/// Measured speeds of GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Copy within a GPU's memory: bytes read and written per second.
    pub copy_bytes_per_s: f64,
    /// Gathering rows of 512 bytes at random positions in 2 GiB: bytes read and written per second.
    pub gather_bytes_per_s: f64,
    /// Products of large bf16 matrices: operations per second.
    pub product_flops_per_s: f64,
    /// Time per kernel of a sequence of short kernels in a graph, in seconds.
    pub kernel_s: f64,
    /// Copy from page-locked host memory to one GPU: bytes per second.
    pub upload_bytes_per_s: f64,
    /// The same to each GPU, while all receive.
    pub upload_all_bytes_per_s: f64,
    /// Links between GPUs; none with one GPU.
    pub links: Option<Links>,
}

/// Measured speeds between GPUs that access each other's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Rows of 256 bytes that one GPU writes to one other, while nobody else sends: bytes per second.
    pub one_bytes_per_s: f64,
    /// Rows of 256 bytes that each GPU writes to all others, while all do so: bytes per second.
    pub all_bytes_per_s: f64,
    /// A barrier over all GPUs, in seconds.
    pub barrier_s: f64,
    /// All-reduces over all GPUs, the smallest first.
    pub sums: Vec<Sum>,
}

/// An all-reduce over all GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// Bytes of f32 per GPU.
    pub bytes: u64,
    /// Its duration in seconds.
    pub seconds: f64,
}

impl Figures {
    /// Measures GPUs, one rank on each. Each device must have been opened exactly once.
    ///
    /// # Errors
    /// If the GPUs cannot access each other's memory, if they have less than 1 to 4 GiB free, or if an operation
    /// fails.
    pub fn measure(devices: &[Arc<Device>]) -> Result<Self> {
        let peers = Peers::in_process(devices, Node(0), DEADLINE)?;
        let mut of_ranks = thread::scope(|scope| {
            let ranks: Vec<_> = peers.into_iter().map(|peers| scope.spawn(move || of_rank(peers))).collect();
            let join = |rank: thread::ScopedJoinHandle<'_, _>| {
                rank.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            ranks.into_iter().map(join).collect::<Vec<Result<Self>>>()
        });
        // If a rank fails, the others time out waiting for it, so its error is the one to report.
        let failed =
            of_ranks.iter().position(|of_rank| of_rank.as_ref().is_err_and(|error| !error.is_of_peers()));
        let failed = failed.or_else(|| of_ranks.iter().position(Result::is_err));
        of_ranks.swap_remove(failed.unwrap_or(0))
    }
}

/// One rank's part. All ranks return the same.
fn of_rank(peers: Peers) -> Result<Figures> {
    let device = Arc::clone(peers.device());
    device.bind()?;
    let rank = MeasuringRank { lane: Lane::new(&device)?, peers };
    Ok(Figures {
        copy_bytes_per_s: memory::copy(&rank)?,
        gather_bytes_per_s: memory::gather(&rank)?,
        product_flops_per_s: memory::product(&rank)?,
        kernel_s: memory::kernel(&rank)?,
        upload_bytes_per_s: memory::upload(&rank, 1)?,
        upload_all_bytes_per_s: memory::upload(&rank, rank.peers.ranks())?,
        links: (rank.peers.ranks() > 1).then(|| links::measure(&rank)).transpose()?,
    })
}

/// A rank that measures.
struct MeasuringRank {
    lane: Lane,
    peers: Peers,
}

impl MeasuringRank {
    fn device(&self) -> &Arc<Device> {
        self.lane.device()
    }

    /// Returns the seconds per enqueued operation out of `count`, of the slowest rank. All ranks start at once; those
    /// that do not `take_part` wait.
    fn seconds(&self, count: usize, take_part: bool, enqueue: impl Fn(&Lane) -> Result<()>) -> Result<f64> {
        // Ranks on one GPU: freeing memory or closing a library on another thread would break the capture.
        self.peers.gather(0_u8)?;
        let mut graph = Graph::capture(&self.lane, || {
            if take_part { (0..count).try_for_each(|_| enqueue(&self.lane)) } else { Ok(()) }
        })?;
        let (begin, end) = (Moment::new(self.device())?, Moment::new(self.device())?);
        let mut times = Vec::new();
        for replay in 0..=REPLAYS {
            self.peers.gather(0_u8)?;
            self.lane.record(&begin)?;
            // SAFETY: what was enqueued lives until the lane has been waited for.
            unsafe { graph.replay(&self.lane) }?;
            self.lane.record(&end)?;
            self.lane.synchronize()?;
            let own = if take_part { end.ms_since(&begin)? } else { 0.0 };
            let slowest = self.peers.gather(own)?.into_iter().fold(0.0, f64::max);
            if replay > 0 {
                times.push(slowest);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[REPLAYS / 2] / 1e3 / count as f64)
    }
}
