//! The rows that a rank receives from their owners, and their pooling.

use rankine_cuda::kernels::{Element, LookUp, RANKS_MAX, Vectors};
use rankine_cuda::{Lane, Peers, Pointer, SharedBuffer};

use crate::cuda::error::Result;
use crate::cuda::exchange::route::NodeRoute;
use crate::cuda::layout::Layout;
use crate::cuda::look_ups::LookUps;
use crate::cuda::{POISON, RoutedBatch};

/// Memory for received rows, and the look-ups in it.
#[derive(Debug)]
pub(crate) struct Landing {
    /// `[slot][width]`, of elements.
    rows: SharedBuffer<u32>,
    /// Which look up `rows` by slot.
    look_ups: LookUps,
}

impl Landing {
    /// For rows that travel as `T`. A collective call.
    pub(crate) fn new<T: Element>(peers: &Peers, layout: &Layout) -> Result<Self> {
        let device = peers.device();
        let rows = {
            let _exchange = device.purpose("exchange");
            peers.share(layout.slots_max() * layout.wire_width() * size_of::<T>() / 4, POISON)?
        };
        Ok(Self { rows, look_ups: LookUps::of_features(device, layout, &layout.landing_features::<T>())? })
    }

    /// The addresses to which owners write the rows of each rank of the node.
    pub(crate) fn of_ranks(&self) -> [Pointer<u32>; RANKS_MAX] {
        self.rows.of_ranks()
    }

    /// Enqueues writing the vector of each bag of the first `samples` samples of a batch with a route.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::pool`].
    pub(crate) unsafe fn pool<T: Element>(
        &self,
        lane: &Lane,
        route: &NodeRoute,
        batch: RoutedBatch,
        (samples, stride): (usize, usize),
        vectors: Vectors<T>,
    ) -> Result<()> {
        let look_up = LookUp {
            tables: self.rows.pointer().cast(),
            features: Pointer::NULL,
            tasks: Pointer::NULL,
            ids: route.slots.pointer(),
            factors: batch.ids.factors,
            offsets: batch.ids.offsets,
            samples_count: batch.ids.samples,
            output: Pointer::NULL,
            keys: Pointer::NULL,
            samples: samples as u32,
            stride: stride as u32,
        };
        // SAFETY: the rows belong to this value; the caller vouches for the rest.
        unsafe { self.look_ups.enqueue(lane, look_up, vectors) }
    }

    /// Whether [`Landing::pool`] can write vectors in fp8.
    pub(crate) fn pools_to_fp8(&self) -> bool {
        self.look_ups.fit_fp8()
    }

    /// Bytes that peers access.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.rows.bytes()
    }
}
