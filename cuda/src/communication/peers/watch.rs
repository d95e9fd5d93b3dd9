//! Reports to the host on ranks that wait for each other on the GPUs.

use bytemuck::Pod;
use rankine_topology::{LocalRank, NodeRanks};

use super::{Peers, SharedBuffer};
use crate::kernels::{Flags, GAVE_UP, Wait};
use crate::runtime::{Error, Lane, PinnedBuffer, Result};

/// Flags that the ranks wait on, and the outcome of waiting.
#[derive(Debug)]
pub(super) struct Watch {
    flags: SharedBuffer<Flags>,
    /// The failure that this rank saw, as in [`Flags::aborted`].
    told: PinnedBuffer<u64>,
    wait: Wait,
    ranks: NodeRanks,
    deadline_ms: u128,
    /// What is waited at, for errors.
    what: &'static str,
}

impl Watch {
    /// Creates `sequences` flags per rank. A collective call.
    pub(super) fn new(peers: &Peers, sequences: usize) -> Result<Self> {
        // Before the ranks meet: allocating waits for the GPU, on which another rank may soon wait for this one.
        let told = PinnedBuffer::zeroed(peers.device(), 1)?;
        let flags = peers.share(sequences, 0)?;
        let wait = Wait {
            told: told.device_pointer()?,
            give_up: peers.give_up_flag().pointer()?,
            deadline_ns: u64::try_from(peers.deadline().as_nanos()).unwrap_or(u64::MAX),
            rank: peers.local_rank().0 as u32,
            ranks: peers.ranks() as u32,
        };
        let (ranks, deadline_ms) = (peers.ranks, peers.deadline().as_millis());
        Ok(Self { flags, told, wait, ranks, deadline_ms, what: "a barrier" })
    }

    /// Sets what is waited at, for errors.
    pub(super) fn name(&mut self, what: &'static str) {
        self.what = what;
    }

    pub(super) fn flags(&self) -> &SharedBuffer<Flags> {
        &self.flags
    }

    pub(super) fn wait(&self) -> Wait {
        self.wait
    }

    /// Waits for the lane, and returns an error if a rank timed out waiting.
    pub(super) fn check(&self, lane: &Lane) -> Result<()> {
        let aborted = self.flags.read_part(lane, 0, 1)?[0].aborted;
        self.check_now()?;
        self.judge(aborted)
    }

    /// As [`Watch::check`] for what this rank has found so far; without waiting.
    pub(super) fn check_now(&self) -> Result<()> {
        self.judge(volatile(&self.told.elements()[0]))
    }

    fn judge(&self, aborted: u64) -> Result<()> {
        if aborted == 0 {
            return Ok(());
        }
        let [waiting, missing] = [(aborted & !GAVE_UP) >> 32, u64::from(aborted as u32)]
            .map(|number| self.ranks.rank(LocalRank(number as usize - 1)));
        if aborted & GAVE_UP != 0 {
            return Err(Error::PeerGivenUp { waiting, missing, what: self.what });
        }
        Err(Error::PeerBarrier { waiting, missing, what: self.what, deadline_ms: self.deadline_ms })
    }
}

/// Reads a word that a GPU may write at any time.
fn volatile<T: Pod>(word: &T) -> T {
    // SAFETY: the reference is valid and aligned; a GPU writes words as a whole.
    unsafe { std::ptr::from_ref(word).read_volatile() }
}
