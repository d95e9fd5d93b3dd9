//! The rows that a rank receives from their owners, and their pooling.

use rankine_cuda::kernels::{Element, Feature, LookUp, LookUpTask, RANKS_MAX};
use rankine_cuda::{Buffer, Lane, Peers, Pointer, SharedBuffer};

use crate::cuda::error::Result;
use crate::cuda::exchange::route::NodeRoute;
use crate::cuda::layout::Layout;
use crate::cuda::{POISON, RoutedBatch};

/// Memory for received rows, and the look-ups in it.
#[derive(Debug)]
pub(crate) struct Landing {
    /// `[slot][width]`, of elements.
    rows: SharedBuffer<u32>,
    /// Features that look up `rows` by slot.
    features: Buffer<Feature>,
    tasks: Buffer<LookUpTask>,
    /// Number of tasks per type of row; all tasks have the same type.
    counts: [u32; 3],
}

impl Landing {
    /// For rows that travel as `T`. A collective call.
    pub(crate) fn new<T: Element>(peers: &Peers, layout: &Layout) -> Result<Self> {
        let device = peers.device();
        let rows = {
            let _exchange = device.purpose("exchange");
            peers.share(layout.slots_max() * layout.wire_width() * size_of::<T>() / 4, POISON)?
        };
        let features = layout.landing_features::<T>();
        let (tasks, counts) = layout.look_up_tasks(&features);
        Ok(Self {
            rows,
            features: Buffer::of(device, &features)?,
            tasks: Buffer::of(device, &tasks)?,
            counts,
        })
    }

    /// The addresses to which owners write the rows of each rank of the node.
    pub(crate) fn of_ranks(&self) -> [Pointer<u32>; RANKS_MAX] {
        self.rows.of_ranks()
    }

    /// Enqueues writing the vector of each bag of the first `samples` samples of a batch with a route.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::pool`].
    pub(crate) unsafe fn pool<T: Element>(
        &self,
        lane: &Lane,
        route: &NodeRoute,
        batch: RoutedBatch,
        (samples, stride): (usize, usize),
        vectors: Pointer<T>,
    ) -> Result<()> {
        let look_up = LookUp {
            tables: self.rows.pointer().cast(),
            features: self.features.pointer(),
            tasks: self.tasks.pointer(),
            ids: route.slots.pointer(),
            offsets: batch.ids.offsets,
            samples_count: batch.ids.samples,
            output: vectors,
            samples: samples as u32,
            stride: stride as u32,
        };
        // SAFETY: rows, features and tasks belong to this value; the caller vouches for the rest.
        Ok(unsafe { look_up.enqueue(lane, self.counts) }?)
    }

    /// Bytes that peers access.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.rows.bytes()
    }
}
