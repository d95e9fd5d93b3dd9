//! The squares of the dense gradients, which give their norm and show whether all are finite.
//!
//! They are summed per slice of a rank, each in a fixed number of parts and in a fixed order: so the norm has the same
//! bits whether each rank sums all of them, or only its own and then exchanges them.

use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::{AllReduce, Buffer, Device, Lane, Peers, Pointer, kernels};
use rankine_embedding::cuda::Result;
use rankine_topology::LocalRank;

use crate::cuda::group::Gradients;

/// The approximate number of parts in which all squares are summed: the same on any GPU.
const PARTS: u32 = 1024;

/// Sums of squares.
#[derive(Debug)]
pub(super) struct Squares {
    ranges: Buffer<[u32; 2]>,
    /// Parts per range.
    each: u32,
    /// The ranges that this rank sums.
    own: Range<u32>,
    parts: SquareSums,
}

#[derive(Debug)]
enum SquareSums {
    Local(Buffer<f64>),
    /// Those of all ranks, all-reduced: each rank has zeros for the parts of the others.
    AllReduced(Box<AllReduce>),
}

impl Squares {
    /// With peers this is a collective call.
    pub(super) fn new(device: &Arc<Device>, peers: Option<&Peers>, gradients: &Gradients) -> Result<Self> {
        let range = |range: Range<usize>| [range.start as u32, range.end as u32];
        let (Some(peers), Some(sums)) = (peers, gradients.sums()) else {
            return Ok(Self {
                ranges: Buffer::of(device, &[range(0..gradients.len())])?,
                each: PARTS,
                own: 0..1,
                parts: SquareSums::Local(Buffer::filled(device, PARTS as usize, 0xff)?),
            });
        };
        let (rank, ranks) = (peers.local_rank().0 as u32, peers.ranks());
        let slices = |rank| sums.parts().map(move |part| part.slice_of(rank));
        let ranges: Vec<_> = LocalRank::first(ranks).flat_map(slices).map(range).collect();
        let of_rank = (ranges.len() / ranks) as u32;
        let each = PARTS.div_ceil(ranges.len() as u32);
        let count = ranges.len() * each as usize;
        let (own, parts) = match sums.are_sharded() {
            true => {
                let parts = AllReduce::new(peers, 0, count)?;
                (rank * of_rank..(rank + 1) * of_rank, SquareSums::AllReduced(parts.into()))
            }
            false => (0..ranges.len() as u32, SquareSums::Local(Buffer::filled(device, count, 0xff)?)),
        };
        Ok(Self { ranges: Buffer::of(device, &ranges)?, each, own, parts })
    }

    /// Returns the sums of all parts.
    pub(super) fn parts(&self) -> &Buffer<f64> {
        match &self.parts {
            SquareSums::Local(parts) => parts,
            SquareSums::AllReduced(sum) => sum.numbers(),
        }
    }

    /// Enqueues summing the squares.
    ///
    /// # Safety
    /// The gradients must be those that this was made for, all-reduced; see [`Lane::launch`] and
    /// [`AllReduce::enqueue`].
    pub(super) unsafe fn enqueue(&self, lane: &Lane, gradients: Pointer<f32>) -> Result<()> {
        let squares = kernels::Squares {
            gradients,
            ranges: self.ranges.pointer(),
            parts: self.parts().pointer(),
            first: self.own.start,
            behind: self.own.end,
        };
        // SAFETY: there are as many parts as blocks; the caller vouches for the order.
        unsafe {
            lane.launch(&squares, (self.each, self.ranges.len() as u32))?;
            if let SquareSums::AllReduced(sum) = &self.parts {
                sum.enqueue(lane)?;
            }
        }
        Ok(())
    }

    /// Returns an error if a rank has timed out waiting for another, as far as known now.
    pub(super) fn check_now(&self) -> Result<()> {
        match &self.parts {
            SquareSums::Local(_) => Ok(()),
            SquareSums::AllReduced(sum) => Ok(sum.check_now()?),
        }
    }
}
