//! Sums of the gradients of rows, on their way from the ranks that look rows up to the rows' owners.

use rankine_cuda::kernels::{Dtype, Element, Feature, Reduce};
use rankine_cuda::{Buffer, Lane, Peers, Pointer, SharedBuffer};
use rankine_topology::LocalRank;

use crate::cuda::error::Result;
use crate::cuda::exchange::route::NodeRoute;
use crate::cuda::layout::Layout;
use crate::cuda::{POISON, RoutedBatch};

/// The sums that a rank receives as an owner, and what it needs to compute those that it sends.
#[derive(Debug)]
pub(crate) struct GradientSums {
    /// `[rank][entries_max][width]`: each rank's sums for this owner's rows.
    received: SharedBuffer<u32>,
    /// Partial sums.
    parts: Buffer<f32>,
    dtype: Dtype,
    local_rank: LocalRank,
}

impl GradientSums {
    /// For gradients of type `T`. A collective call.
    pub(crate) fn new<T: Element>(peers: &Peers, layout: &Layout) -> Result<Self> {
        let device = peers.device();
        let dtype = Reduce::<T>::SUMS;
        let received = {
            let _exchange = device.purpose("exchange");
            let elements = layout.ranks * layout.entries_max() * layout.wire_width();
            peers.share(elements * bytes_of(dtype) / 4, POISON)?
        };
        let parts = Reduce::<T>::parts_len(layout.look_ups(), layout.vectors());
        Ok(Self {
            received,
            parts: Buffer::filled(device, parts, POISON)?,
            dtype,
            local_rank: peers.local_rank(),
        })
    }

    /// Enqueues computing this rank's sums for a batch with a route, and writing them to the owners.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::reduce`]; `features` must be those of the layout.
    pub(crate) unsafe fn reduce<T: Element>(
        &self,
        lane: &Lane,
        layout: &Layout,
        route: &NodeRoute,
        features: Pointer<Feature>,
        batch: RoutedBatch,
        gradients: Pointer<T>,
    ) -> Result<()> {
        let reduce = Reduce {
            pairs: route.sorted.pointer(),
            count: route.looked_up.pointer(),
            features,
            offsets: batch.ids.offsets,
            factors: route.factors.pointer(),
            gradients,
            parts: self.parts.pointer(),
            starts: route.starts.pointer(),
            sums: self.received.of_ranks(),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            width: layout.wire_width() as u32,
            capacity: layout.entries_max() as u32,
            rank: self.local_rank.0 as u32,
            ranks: layout.ranks as u32,
            dtype: self.dtype as u32,
            owners: layout.owners() as u32,
            owned: layout.owned_max() as u32,
            keys: layout.elements() as u32,
            reserved: 0,
        };
        // SAFETY: the addresses are of this rank's buffers, whose lengths follow from the layout, and of sums, with
        // one for each row that a rank can look up at an owner; the caller vouches for the rest.
        Ok(unsafe { reduce.enqueue(lane, layout.look_ups() as u32) }?)
    }

    /// The received sums.
    pub(crate) fn pointer(&self) -> Pointer<u32> {
        self.received.pointer()
    }

    /// The type in which sums travel: bf16 for gradients in bf16, otherwise f32.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes per element of a sum.
    pub(crate) fn element_bytes(&self) -> usize {
        bytes_of(self.dtype)
    }

    /// Bytes that peers access.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.received.bytes()
    }
}

fn bytes_of(dtype: Dtype) -> usize {
    if matches!(dtype, Dtype::Fp32) { 4 } else { 2 }
}
