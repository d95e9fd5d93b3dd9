//! The ids of all ranks' samples, at each rank.

use rankine_cuda::kernels::Membership;
use rankine_cuda::{Lane, Peers, SharedBuffer};
use rankine_topology::LocalRank;

use super::LongIds;
use crate::cuda::error::Result;
use crate::cuda::layout::Layout;

/// The ids of a batch for dynamic tables, rank by rank.
#[derive(Debug)]
pub(super) struct SharedIds {
    long_ids: SharedBuffer<u64>,
    offsets: SharedBuffer<u32>,
    samples: SharedBuffer<u32>,
    /// Ids and offsets of a rank.
    sizes: (usize, usize),
    own: LocalRank,
    ranks: usize,
}

impl SharedIds {
    /// Allocates memory for the ids of all ranks. A collective call.
    pub(super) fn new(peers: &Peers, layout: &Layout) -> Result<Self> {
        let (ids, offsets, ranks) = (layout.long_ids(), layout.offsets(), peers.ranks());
        Ok(Self {
            long_ids: peers.share(ranks * ids, 0)?,
            offsets: peers.share(ranks * offsets, 0)?,
            samples: peers.share(ranks, 0)?,
            sizes: (ids, offsets),
            own: peers.local_rank(),
            ranks,
        })
    }

    /// Enqueues sending a rank's ids to all ranks.
    ///
    /// # Safety
    /// See [`super::DynamicTables::share`].
    pub(super) unsafe fn send(&self, lane: &Lane, batch: LongIds) -> Result<()> {
        let ((ids, offsets), own) = (self.sizes, self.own.0);
        // SAFETY: each rank has room for the ids of all; the caller vouches for the rest.
        unsafe {
            for rank in (0..self.ranks).map(LocalRank) {
                lane.copy(batch.ids, self.long_ids.of(rank).element(own * ids), ids)?;
                if offsets > 0 {
                    lane.copy(batch.rows.offsets, self.offsets.of(rank).element(own * offsets), offsets)?;
                }
                lane.copy(batch.rows.samples, self.samples.of(rank).element(own), 1)?;
            }
        }
        Ok(())
    }

    /// Returns a task over the ids of all ranks, made from a task over this rank's ids.
    pub(super) fn task(&self, own: Membership) -> Membership {
        let ((ids, offsets), rank) = (self.sizes, self.own);
        Membership {
            long_ids: self.long_ids.of(rank),
            offsets: self.offsets.of(rank),
            samples: self.samples.of(rank),
            ranks: self.ranks as u32,
            rank: rank.0 as u32,
            long_ids_stride: ids as u32,
            offsets_stride: offsets as u32,
            ..own
        }
    }
}
