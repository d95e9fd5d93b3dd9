//! The first hop of bags that owners pool, over several nodes: along a rail, between ranks of different nodes.
//!
//! A rank splits each bag into one part per node that owns some of its rows, and sends the parts along its rail. The
//! rank that receives the parts of all nodes splits them further, among the owners of its node
//! ([`super::pooled`]), and adds up the vectors that these return. So one vector per bag and node crosses the links
//! between nodes, and one gradient. The bag's rank adds up the nodes' vectors, in the order of nodes.
//!
//! Each message has room for every id of a rank's batch, with its factor if it has a weight, and for the vectors of all
//! bags: its length does not depend on the batch, so that one captured graph serves every batch.

use std::sync::Arc;

use rankine_cuda::kernels::{self, Addresses, Element, LinkCounts, PooledFeature};
use rankine_cuda::nccl::Parcel;
use rankine_cuda::{Buffer, Device, Lane, Pointer, Rail};
use rankine_topology::Node;

use crate::cuda::RoutedBatch;
use crate::cuda::error::Result;
use crate::cuda::layout::pooled::PooledSizes;
use crate::cuda::layout::{Ids, Layout};

/// Words from one source's bags to the next one's; 0 with one source.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BagSpacing {
    pub(crate) ids: u64,
    pub(crate) factors: u64,
    pub(crate) offsets: u64,
}

/// A rank's part in the exchange of bags along its rail.
#[derive(Debug)]
pub(crate) struct BagRails {
    lists: Rail,
    rows: Rail,
    sizes: PooledSizes,
    /// Ranks of a node.
    ranks: usize,
    /// Elements of a sample's vectors in the rank's batch.
    stride: usize,
    /// Features of the rank's batch, whose owners are nodes.
    features: Buffer<PooledFeature>,
    /// One per route: `[node][feature][samples + 1]`, where the parts of the rank's own bags start.
    starts: Vec<Buffer<u32>>,
    /// One per route: the same for the parts received from each node.
    their_starts: Vec<Buffer<u32>>,
    /// `[node][ids]`: the ids to send, and those received. Routes are built one after another.
    ids: Buffer<u32>,
    their_ids: Buffer<u32>,
    /// `[node][factors]`: the factors of ids with weights, to send and received.
    factors: Buffer<u32>,
    their_factors: Buffer<u32>,
    /// `[node][sample][width]`: vectors of the nodes' parts to send back, then gradients of the rank's own bags.
    sent: Buffer<u32>,
    /// The same, received: the vectors of the rank's own bags, then the gradients of the nodes' parts.
    received: Buffer<u32>,
    faults: Buffer<u32>,
}

impl BagRails {
    /// Creates it. `lists` is the rail for routes, `rows` the one for everything else.
    pub(crate) fn new(
        device: &Arc<Device>,
        layout: &Layout,
        (lists, rows): (&Rail, &Rail),
        sizes: PooledSizes,
        routes: usize,
    ) -> Result<Self> {
        let _exchange = device.purpose("exchange between nodes");
        let nodes = layout.nodes();
        let starts = || {
            let of_routes = (0..routes).map(|_| Buffer::filled(device, nodes * sizes.starts(), 0));
            of_routes.collect::<std::result::Result<Vec<_>, _>>()
        };
        let words = nodes * sizes.vector_bytes() / 4;
        Ok(Self {
            lists: lists.clone(),
            rows: rows.clone(),
            sizes,
            ranks: layout.topology().ranks_per_node(),
            stride: layout.stride,
            features: Buffer::of(device, &layout.pooled_by(|owner| layout.topology().node_of(owner).0))?,
            starts: starts()?,
            their_starts: starts()?,
            ids: Buffer::filled(device, nodes * sizes.ids, 0)?,
            their_ids: Buffer::filled(device, nodes * sizes.ids, 0)?,
            factors: Buffer::filled(device, nodes * sizes.factors, 0)?,
            their_factors: Buffer::filled(device, nodes * sizes.factors, 0)?,
            sent: Buffer::filled(device, words, 0)?,
            received: Buffer::filled(device, words, 0)?,
            faults: Buffer::filled(device, 1, 0)?,
        })
    }

    /// Exchanges whatever the buffers have, so that NCCL is connected before anything is captured.
    pub(crate) fn warm_up(&self, lane: &Lane) -> Result<()> {
        // SAFETY: all buffers belong to this value, and the caller waits for the lane.
        unsafe {
            self.exchange_parts(lane, 0)?;
            self.exchange_vectors(lane, "vectors of bags")?;
            self.exchange_vectors(lane, "gradients of bags")
        }
    }

    fn nodes(&self) -> usize {
        self.rows.nodes()
    }

    /// Where each node has data of `words` words: in one buffer, apart from this node.
    fn of_nodes(&self, others: &Buffer<u32>, own: &Buffer<u32>, words: usize) -> Addresses {
        Addresses::of_nodes(others.pointer(), own.pointer(), words * size_of::<u32>(), self.rows.node().0)
    }

    fn kernel(&self, batch: RoutedBatch) -> kernels::Pooling {
        let RoutedBatch { ids, slot, .. } = batch;
        let (sizes, starts) = (&self.sizes, &self.starts[slot]);
        kernels::Pooling {
            features: self.features.pointer(),
            ids: ids.ids,
            factors: ids.factors,
            offsets: ids.offsets,
            samples_count: ids.samples,
            starts: starts.pointer(),
            // What is sent to other nodes is sent from the starts themselves.
            their_starts: self.of_nodes(starts, &self.their_starts[slot], sizes.starts()),
            their_ids: self.of_nodes(&self.ids, &self.their_ids, sizes.ids),
            their_factors: match sizes.factors {
                0 => Addresses::NONE,
                factors => self.of_nodes(&self.factors, &self.their_factors, factors),
            },
            parts: self.received.pointer(),
            their_gradients: self.of_nodes(&self.sent, &self.received, sizes.vector_bytes() / 4),
            vectors: Addresses::NONE,
            gradients: Pointer::NULL,
            faults: self.faults.pointer(),
            counts: Pointer::NULL,
            ids_spacing: 0,
            factors_spacing: 0,
            offsets_spacing: 0,
            features_count: self.features.len() as u32,
            sources: 1,
            samples: sizes.samples as u32,
            owners: self.nodes() as u32,
            owner_rows: self.ranks as u32,
            // The owner's node divides them.
            turns: 1,
            width: sizes.width as u32,
            their_stride: sizes.width as u32,
            stride: self.stride as u32,
            rank: self.rows.node().0 as u32,
            contained: 1,
            added: sizes.samples as u32,
        }
    }

    /// Enqueues splitting the rank's bags among the nodes, and exchanging the parts along the rail.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::route`].
    pub(crate) unsafe fn cut(&self, lane: &Lane, batch: RoutedBatch) -> Result<()> {
        // SAFETY: features and starts belong to this value, and messages have room for the ids of all samples; the
        // caller vouches for the rest.
        unsafe {
            self.kernel(batch).cut(lane)?;
            self.exchange_parts(lane, batch.slot)
        }
    }

    /// The parts of bags that this rank has received for its node, and their spacing. `samples` has the number of a
    /// node's samples.
    pub(crate) fn parts(&self, slot: usize, samples: Pointer<u32>) -> (Ids, BagSpacing) {
        let ids = Ids {
            ids: self.their_ids.pointer(),
            factors: self.their_factors.pointer().cast(),
            offsets: self.their_starts[slot].pointer(),
            samples,
        };
        let spacing = BagSpacing {
            ids: self.sizes.ids as u64,
            factors: self.sizes.factors as u64,
            offsets: self.sizes.starts() as u64,
        };
        (ids, spacing)
    }

    /// Where the vectors of the parts of each node's bags are to be written.
    pub(crate) fn vectors(&self) -> Addresses {
        self.of_nodes(&self.sent, &self.received, self.sizes.vector_bytes() / 4)
    }

    /// `[node][sample][width]`: the received gradients of the nodes' bags.
    pub(crate) fn gradients(&self) -> Pointer<u32> {
        self.received.pointer()
    }

    /// Enqueues exchanging the vectors of parts, and adding up the vectors of the first `samples` samples.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::look_up`]; the vectors of all nodes' parts must have been written.
    pub(crate) unsafe fn add<T: Element>(
        &self,
        lane: &Lane,
        (batch, samples): (RoutedBatch, usize),
        vectors: Addresses,
        blocks: u32,
    ) -> Result<()> {
        let kernel = kernels::Pooling { vectors, added: samples as u32, ..self.kernel(batch) };
        // SAFETY: as for `cut`.
        unsafe {
            self.exchange_vectors(lane, "vectors of bags")?;
            Ok(kernel.add::<T>(lane, blocks)?)
        }
    }

    /// Enqueues sending bags' gradients to each node that has a part, and counting what is sent between nodes.
    ///
    /// # Safety
    /// As for [`crate::cuda::NodeTables::reduce`].
    pub(crate) unsafe fn send_gradients<T: Element>(
        &self,
        lane: &Lane,
        (batch, gradients): (RoutedBatch, Pointer<T>),
        counts: Pointer<LinkCounts>,
        blocks: u32,
    ) -> Result<()> {
        let kernel = kernels::Pooling { counts, gradients: gradients.cast(), ..self.kernel(batch) };
        // SAFETY: as for `cut`.
        unsafe {
            kernel.send::<T>(lane, blocks)?;
            self.exchange_vectors(lane, "gradients of bags")
        }
    }

    unsafe fn exchange_parts(&self, lane: &Lane, slot: usize) -> Result<()> {
        let PooledSizes { ids, factors, .. } = self.sizes;
        let lens = [self.sizes.starts(), ids, factors];
        let parcels = |buffers: [&Buffer<u32>; 3]| -> Vec<_> {
            let of_node = |other: Node| {
                let lens = buffers.into_iter().zip(lens).filter(|&(_, len)| len > 0);
                lens.map(move |(of, len)| Parcel {
                    rank: other.0,
                    pointer: of.pointer().element(other.0 * len),
                    len,
                })
            };
            self.lists.others().flat_map(of_node).collect()
        };
        let sent = parcels([&self.starts[slot], &self.ids, &self.factors]);
        let received = parcels([&self.their_starts[slot], &self.their_ids, &self.their_factors]);
        // SAFETY: all buffers have room for each node's.
        Ok(unsafe { self.lists.exchange(lane, "parts of bags", &sent, &received) }?)
    }

    unsafe fn exchange_vectors(&self, lane: &Lane, name: &'static str) -> Result<()> {
        let len = self.sizes.vector_bytes() / 4;
        let parcels = |of: &Buffer<u32>| -> Vec<_> {
            let parcel =
                |other: Node| Parcel { rank: other.0, pointer: of.pointer().element(other.0 * len), len };
            self.rows.others().map(parcel).collect()
        };
        // SAFETY: both buffers have room for each node's.
        Ok(unsafe { self.rows.exchange(lane, name, &parcels(&self.sent), &parcels(&self.received)) }?)
    }

    /// Bytes that this rank sends to other nodes in a step, whatever the batch.
    pub(crate) fn message_bytes(&self) -> u64 {
        let words = self.sizes.starts() + self.sizes.ids + self.sizes.factors;
        ((self.nodes() - 1) * (words * size_of::<u32>() + 2 * self.sizes.vector_bytes())) as u64
    }

    /// Waits for the lane, and returns how many ids were out of range.
    pub(crate) fn faults(&self, lane: &Lane) -> Result<u32> {
        Ok(self.faults.read(lane)?[0])
    }
}
