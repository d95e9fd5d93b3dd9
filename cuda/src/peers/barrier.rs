//! Barriers on the GPUs.

use super::Peers;
use super::watch::Watch;
use crate::buffer::Buffer;
use crate::error::Result;
use crate::kernels::Barrier;
use crate::lane::Lane;

/// A sequence of barriers among the ranks, with flags and a count of its own: sequences on different lanes do not
/// disturb each other.
///
/// No barrier waits longer than the ranks' deadline. After one that waited in vain all ranks' barriers of the sequence
/// stop waiting, and what is behind them finds whatever is there: so what was computed since the last
/// [check](Self::check) must be thrown away.
#[derive(Debug)]
pub struct PeerBarrier {
    watch: Watch,
    epoch: Buffer<u64>,
}

impl PeerBarrier {
    /// A sequence that nobody has come to. A collective call; the device must be the current one of this thread.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn new(peers: &Peers) -> Result<Self> {
        let watch = Watch::new(peers, 1)?;
        Ok(Self { watch, epoch: Buffer::filled(peers.device(), 1, 0)? })
    }

    /// The same, by what it is for in errors: `the barrier of ...`.
    #[must_use]
    pub fn named(mut self, what: &'static str) -> Self {
        self.watch.name(what);
        self
    }

    /// Waits, on the GPU, until all ranks have come as far on their lanes: what they wrote before can be read after.
    /// Ranks must enqueue, or replay, the barriers of a sequence in the same order.
    ///
    /// # Safety
    /// The barrier, and those of all ranks, must live until the lane has done this; and where a graph is being
    /// captured, for as long as that is replayed.
    ///
    /// # Errors
    /// Where the driver refuses. That a rank did not come in time is what [`PeerBarrier::check`] tells.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        let barrier = Barrier {
            flags: self.watch.flags().of_ranks(),
            epoch: self.epoch.pointer(),
            wait: self.watch.wait(),
        };
        // SAFETY: the addresses are of this value's, whose life the caller vouches for.
        unsafe { lane.launch(&barrier, (1, 1)) }
    }

    /// Waits for the lane, and tells whether a rank waited in vain.
    ///
    /// # Errors
    /// Where the lane's work failed, and where a rank did not come to a barrier in time.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.watch.check(lane)
    }

    /// As [`PeerBarrier::check`], of what this rank's barriers have found by now; without waiting.
    ///
    /// # Errors
    /// Where a rank did not come to a barrier in time.
    pub fn check_now(&self) -> Result<()> {
        self.watch.check_now()
    }
}
