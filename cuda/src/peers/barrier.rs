//! Barriers on the GPUs.

use bytemuck::Pod;

use super::{Peers, Shared};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::kernels::{Barrier, Flags};
use crate::lane::Lane;
use crate::pinned::Pinned;

/// A sequence of barriers among the ranks, with flags and a count of its own: sequences on different lanes do not
/// disturb each other.
///
/// No barrier waits longer than the ranks' deadline. After one that waited in vain all ranks' barriers of the sequence
/// stop waiting, and what is behind them finds whatever is there: so what was computed since the last
/// [check](Self::check) must be thrown away.
#[derive(Debug)]
pub struct PeerBarrier {
    flags: Shared<Flags>,
    #[expect(dead_code, reason = "the kernel counts there")]
    epoch: Buffer<u64>,
    /// What a barrier of this rank found, as in [`Flags::aborted`].
    told: Pinned<u64>,
    parameters: Barrier,
    deadline_ms: u128,
}

impl PeerBarrier {
    /// A sequence that nobody has come to. A collective call; the device must be the current one of this thread.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn new(peers: &Peers) -> Result<Self> {
        let flags = peers.share(1, 0)?;
        let epoch = Buffer::filled(peers.device(), 1, 0)?;
        let told = Pinned::zeroed(peers.device(), 1)?;
        let parameters = Barrier {
            flags: flags.of_ranks(),
            epoch: epoch.pointer(),
            told: told.device_pointer()?,
            deadline_ns: u64::try_from(peers.deadline().as_nanos()).unwrap_or(u64::MAX),
            rank: peers.rank() as u32,
            ranks: peers.ranks() as u32,
        };
        Ok(Self { flags, epoch, told, parameters, deadline_ms: peers.deadline().as_millis() })
    }

    /// Waits, on the GPU, until all ranks have come as far on their lanes: what they wrote before can be read after.
    /// Ranks must enqueue, or replay, the barriers of a sequence in the same order.
    ///
    /// # Safety
    /// The barrier, and those of all ranks, must live until the lane has done this; and where a graph is being captured,
    /// for as long as that is replayed.
    ///
    /// # Errors
    /// Where the driver refuses. That a rank did not come in time is what [`PeerBarrier::check`] tells.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the addresses are of this value's, whose life the caller vouches for.
        unsafe { lane.launch(&self.parameters, (1, 1)) }
    }

    /// Waits for the lane, and tells whether a rank waited in vain.
    ///
    /// # Errors
    /// Where the lane's work failed, and where a rank did not come to a barrier in time.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.judge(self.flags.read(lane)?[0].aborted)
    }

    /// As [`PeerBarrier::check`], of what this rank's barriers have found by now; without waiting.
    ///
    /// # Errors
    /// Where a rank did not come to a barrier in time.
    pub fn check_now(&self) -> Result<()> {
        self.judge(volatile(&self.told.elements()[0]))
    }

    fn judge(&self, aborted: u64) -> Result<()> {
        if aborted == 0 {
            return Ok(());
        }
        let (waiting, missing) = ((aborted >> 32) as usize - 1, (aborted as u32 - 1) as usize);
        Err(Error::PeerBarrier { waiting, missing, deadline_ms: self.deadline_ms })
    }
}

/// A word that a GPU may write at any time.
fn volatile<T: Pod>(word: &T) -> T {
    // SAFETY: the reference is valid and aligned; a GPU writes words as a whole.
    unsafe { std::ptr::from_ref(word).read_volatile() }
}
