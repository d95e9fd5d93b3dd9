//! What the GPUs of this machine do in a second, measured: what planning reckons with.
//!
//! A fraction of a second for each of some figures, each the median of some replays of a graph, by events. Ranks
//! measure at the same time, and what is told is the slowest one's: an iteration waits for it. Nothing is written but
//! memory that is given back.

mod links;
mod memory;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::Result;
use crate::graph::Graph;
use crate::lane::{Lane, Moment};
use crate::peers::Peers;

/// How long one rank waits for another.
const DEADLINE: Duration = Duration::from_secs(10);
/// Replays of which the median counts, after one that does not.
const REPLAYS: usize = 5;

/// What GPUs do in a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Bytes that a copy within a GPU's memory reads and writes.
    pub copy_bytes_per_s: f64,
    /// Bytes of rows of 512 bytes, at random places of 2 GiB, that are read, and of vectors that are written.
    pub gather_bytes_per_s: f64,
    /// Operations of products of large matrices in bf16.
    pub product_flops_per_s: f64,
    /// What a short kernel behind another takes, in a graph, in seconds.
    pub kernel_s: f64,
    /// Bytes from the host's locked memory to one GPU.
    pub upload_bytes_per_s: f64,
    /// The same to each, where all are sent some at once.
    pub upload_all_bytes_per_s: f64,
    /// Between GPUs; none where there is one.
    pub links: Option<Links>,
}

/// What GPUs that access each other's memory send to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Bytes of rows of 256 bytes that one GPU writes into one other one's memory while nobody else sends.
    pub one_bytes_per_s: f64,
    /// Bytes of them that each GPU writes into all others' while all do so.
    pub all_bytes_per_s: f64,
    /// What it takes all to wait for each other, in seconds.
    pub barrier_s: f64,
    /// Sums over all, the smallest first.
    pub sums: Vec<Sum>,
}

/// A sum over all GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// Bytes at each, of f32.
    pub bytes: u64,
    /// What it takes, in seconds.
    pub seconds: f64,
}

impl Figures {
    /// Measures GPUs, each of which must have been opened once: a rank each.
    ///
    /// # Errors
    /// Where they cannot access each other's memory, where a GiB or four of it are not free, or where something of a
    /// GPU's fails.
    pub fn measure(devices: &[Arc<Device>]) -> Result<Self> {
        let peers = Peers::in_process(devices, DEADLINE)?;
        let mut of_ranks = thread::scope(|scope| {
            let ranks: Vec<_> = peers.into_iter().map(|peers| scope.spawn(move || of_rank(peers))).collect();
            let join = |rank: thread::ScopedJoinHandle<'_, _>| {
                rank.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            ranks.into_iter().map(join).collect::<Vec<Result<Self>>>()
        });
        // A rank that fails leaves the others waiting in vain: what it says is what there is to say.
        let failed =
            of_ranks.iter().position(|of_rank| of_rank.as_ref().is_err_and(|error| !error.is_of_peers()));
        let failed = failed.or_else(|| of_ranks.iter().position(Result::is_err));
        of_ranks.swap_remove(failed.unwrap_or(0))
    }
}

/// One rank's part: all tell the same.
fn of_rank(peers: Peers) -> Result<Figures> {
    let device = Arc::clone(peers.device());
    device.bind()?;
    let rank = Rank { lane: Lane::new(&device)?, peers };
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
struct Rank {
    lane: Lane,
    peers: Peers,
}

impl Rank {
    fn device(&self) -> &Arc<Device> {
        self.lane.device()
    }

    /// The seconds that each of `count` times takes that something is enqueued, of the slowest rank. All ranks begin at
    /// once; those that do not `take_part` wait.
    fn seconds(&self, count: usize, take_part: bool, enqueue: impl Fn(&Lane) -> Result<()>) -> Result<f64> {
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
