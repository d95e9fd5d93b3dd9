//! What ranks that wait for each other on the GPUs tell the host.

use bytemuck::Pod;

use super::{Peers, Shared};
use crate::error::{Error, Result};
use crate::kernels::{Flags, GAVE_UP, Wait};
use crate::lane::Lane;
use crate::pinned::Pinned;

/// Flags that the ranks wait on, and what became of it.
#[derive(Debug)]
pub(super) struct Watch {
    flags: Shared<Flags>,
    /// What this rank found, as in [`Flags::aborted`].
    told: Pinned<u64>,
    wait: Wait,
    deadline_ms: u128,
    /// What is waited at, in errors.
    what: &'static str,
}

impl Watch {
    /// So many flags a rank. A collective call.
    pub(super) fn new(peers: &Peers, sequences: usize) -> Result<Self> {
        let flags = peers.share(sequences, 0)?;
        let told = Pinned::zeroed(peers.device(), 1)?;
        let wait = Wait {
            told: told.device_pointer()?,
            give_up: peers.giving_up().pointer()?,
            deadline_ns: u64::try_from(peers.deadline().as_nanos()).unwrap_or(u64::MAX),
            rank: peers.rank() as u32,
            ranks: peers.ranks() as u32,
        };
        Ok(Self { flags, told, wait, deadline_ms: peers.deadline().as_millis(), what: "a barrier" })
    }

    /// Says what is waited at.
    pub(super) fn name(&mut self, what: &'static str) {
        self.what = what;
    }

    pub(super) fn flags(&self) -> &Shared<Flags> {
        &self.flags
    }

    pub(super) fn wait(&self) -> Wait {
        self.wait
    }

    /// Waits for the lane, and tells whether a rank waited in vain.
    pub(super) fn check(&self, lane: &Lane) -> Result<()> {
        let aborted = self.flags.read_part(lane, 0, 1)?[0].aborted;
        self.check_now()?;
        self.judge(aborted)
    }

    /// As [`Watch::check`], of what this rank has found by now; without waiting.
    pub(super) fn check_now(&self) -> Result<()> {
        self.judge(volatile(&self.told.elements()[0]))
    }

    fn judge(&self, aborted: u64) -> Result<()> {
        if aborted == 0 {
            return Ok(());
        }
        let (waiting, missing) = (((aborted & !GAVE_UP) >> 32) as usize - 1, (aborted as u32 - 1) as usize);
        if aborted & GAVE_UP != 0 {
            return Err(Error::PeerGivenUp { waiting, missing, what: self.what });
        }
        Err(Error::PeerBarrier { waiting, missing, what: self.what, deadline_ms: self.deadline_ms })
    }
}

/// A word that a GPU may write at any time.
fn volatile<T: Pod>(word: &T) -> T {
    // SAFETY: the reference is valid and aligned; a GPU writes words as a whole.
    unsafe { std::ptr::from_ref(word).read_volatile() }
}
