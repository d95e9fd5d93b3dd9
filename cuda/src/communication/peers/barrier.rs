//! Barriers on the GPUs.

use super::Peers;
use super::watch::Watch;
use crate::kernels::Barrier;
use crate::runtime::{Buffer, Lane, Result};

/// A sequence of barriers among the ranks, with its own flags and count: sequences on different lanes are
/// independent.
///
/// No barrier waits longer than the ranks' deadline. After one has timed out, the barriers of the sequence stop
/// waiting at all ranks, and work after them sees incomplete data: what was computed since the last
/// [check](Self::check) must be discarded.
#[derive(Debug)]
pub struct PeerBarrier {
    watch: Watch,
    epoch: Buffer<u64>,
}

impl PeerBarrier {
    /// Creates a sequence that no rank has used yet. A collective call; the device must be current on this thread.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn new(peers: &Peers) -> Result<Self> {
        // First, as in `Watch::new`.
        let epoch = Buffer::filled(peers.device(), 1, 0)?;
        Ok(Self { watch: Watch::new(peers, 1)?, epoch })
    }

    /// Sets the name used in errors: `the barrier of ...`.
    #[must_use]
    pub fn named(mut self, what: &'static str) -> Self {
        self.watch.name(what);
        self
    }

    /// Waits, on the GPU, until all ranks have reached this point on their lanes: what they wrote before can be read
    /// after it. All ranks must enqueue, or replay, the barriers of a sequence in the same order.
    ///
    /// # Safety
    /// The barrier, and those of all ranks, must live until the lane has finished; if a graph is being captured, for
    /// as long as it is replayed.
    ///
    /// # Errors
    /// If the driver reports an error. [`PeerBarrier::check`] returns an error if a rank timed out.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        let barrier = Barrier {
            flags: self.watch.flags().of_ranks(),
            epoch: self.epoch.pointer(),
            wait: self.watch.wait(),
        };
        // SAFETY: the addresses are of this value's, whose life the caller vouches for.
        unsafe { lane.launch(&barrier, (1, 1)) }
    }

    /// Waits for the lane, and returns an error if a rank timed out waiting.
    ///
    /// # Errors
    /// If the lane's work failed, or if a rank did not reach a barrier in time.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.watch.check(lane)
    }

    /// As [`PeerBarrier::check`] for what this rank's barriers have found so far; without waiting.
    ///
    /// # Errors
    /// If a rank did not reach a barrier in time.
    pub fn check_now(&self) -> Result<()> {
        self.watch.check_now()
    }
}
