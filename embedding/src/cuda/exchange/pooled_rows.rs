//! The rows of tables whose owners pool: a rank owns some of them, as tables on one GPU.

use half::{bf16, f16};
use rankine_cuda::kernels::{Element, ElementKind, SparseUpdate};
use rankine_cuda::{Buffer, Lane, Peers, SharedBuffer};
use rankine_topology::Rank;

use crate::cuda::error::Result;
use crate::cuda::exchange::pooled::PooledBags;
use crate::cuda::layout::Layout;
use crate::cuda::storage::RowStore;
use crate::cuda::{InitialWeights, POISON, UpdateInputs};

/// One rank's rows of tables whose owners pool, and what updates them after a training batch.
#[derive(Debug)]
pub(crate) struct PooledRows {
    seed: u64,
    element: ElementKind,
    store: RowStore,
    /// `[sample][rank][width]`: gradients of bags, written here by the ranks.
    gradients: SharedBuffer<u32>,
    sums: Buffer<f32>,
}

impl PooledRows {
    /// The rows of a layout, which training looks up with `bags`; see [`crate::cuda::NodeTables::initialized`]. A
    /// collective call.
    pub(crate) fn initialized<T: Element>(
        peers: &Peers,
        layout: &Layout,
        bags: &PooledBags,
        lane: &Lane,
        weights: InitialWeights,
    ) -> Result<Self> {
        let (device, rank, received) = (peers.device(), peers.rank(), &bags.received);
        let gradients = {
            let _exchange = device.purpose("exchange");
            peers.share((received.elements() * size_of::<T>()).div_ceil(4), POISON)?
        };
        let shards = layout.pooled_shards(rank, received);
        let sums = SparseUpdate::<f32>::parts_len(received.look_ups(), received.vectors());
        let rows = Self {
            seed: weights.seed,
            element: T::KIND,
            store: RowStore::uninitialized(device, received.rank_words(Rank(0)), &shards)?,
            gradients,
            sums: Buffer::filled(device, sums, POISON)?,
        };
        let bounds = layout.bounds(&layout.pooled, weights);
        // SAFETY: the rows were just allocated for these shards.
        unsafe { rows.store.initialize(lane, &shards, &bounds, received.row_numbers(), weights.seed) }?;
        Ok(rows)
    }

    /// The memory of the rows.
    pub(crate) fn store(&self) -> &RowStore {
        &self.store
    }

    /// `[sample][rank][width]`: where the ranks write the gradients of bags.
    pub(crate) fn gradients(&self) -> &SharedBuffer<u32> {
        &self.gradients
    }

    /// Enqueues the update of the rows that any part of a batch's bags names.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::update`].
    pub(crate) unsafe fn update(
        &self,
        lane: &Lane,
        bags: &PooledBags,
        batch_slot: usize,
        inputs: UpdateInputs,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match self.element {
                ElementKind::F32 => self.update_from::<f32>(lane, bags, batch_slot, inputs),
                ElementKind::Bf16 => self.update_from::<bf16>(lane, bags, batch_slot, inputs),
                ElementKind::F16 => self.update_from::<f16>(lane, bags, batch_slot, inputs),
            }
        }
    }

    unsafe fn update_from<T: Element>(
        &self,
        lane: &Lane,
        bags: &PooledBags,
        batch_slot: usize,
        inputs: UpdateInputs,
    ) -> Result<()> {
        let (layout, of_batch) = (&bags.received, &bags.routes[batch_slot]);
        let route = &of_batch.route;
        let update = SparseUpdate::<T> {
            pairs: route.sorted.pointer(),
            count: route.counts.pointer(),
            rows: route.rows.pointer(),
            features: bags.router.features.pointer(),
            offsets: of_batch.their_starts.pointer(),
            factors: route.factors.pointer(),
            gradients: self.gradients.pointer().cast(),
            parts: self.sums.pointer(),
            context: self.store.update_context(inputs, self.seed),
            sample_bits: layout.sample_bits(),
            stride: layout.stride as u32,
            vectors: layout.vectors() as u32,
            keys: layout.elements() as u32,
        };
        // SAFETY: all other addresses are of these values' buffers, whose lengths follow from the layout; the caller
        // vouches for the rest.
        unsafe { update.enqueue(lane, layout.look_ups() as u32, layout.is_lean()) }?;
        self.store.mark(lane, route.rows.pointer(), route.counts.pointer().element(1), inputs.stop)
    }

    /// Tracks, from the work enqueued next on, which rows are updated.
    pub(crate) fn track_updates(&mut self, bags: &PooledBags) -> Result<()> {
        self.store.track_updates(&bags.received)
    }
}
