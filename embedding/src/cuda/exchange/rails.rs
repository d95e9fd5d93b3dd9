//! The second hop of a node's look-ups: rows travel between nodes along rails.
//!
//! For rows at any rank of a rail, the ranks of a node ask the rank of their own node on that rail. It merges their
//! requests, as any owner does, and forwards them: a row leaves its node once and enters another one once, and so
//! does the sum of its gradients. NCCL's messages have the lengths with which they were captured, so they come in a
//! few sizes: the first has room for what is expected of a batch, the last for everything that a batch can name. The
//! length of a rail's longest list travels with the lists, to all ranks of the rail and to the host, which replays
//! what was captured with the needed size. Nothing is ever dropped.
//!
//! Rows that every rank stores come at the end of each list. These rows are not sent; but the sums of their gradients
//! go to all nodes, the same along each rail, and all ranks add up the same sums of nodes in the same order.

use rankine_cuda::kernels::{
    Addresses, Element, GROUP_KEYS, Groups, KeySet, Link, Number, RAIL_HEADER, RANKS_MAX, RailLists,
    RailMark, RailRows, Send,
};
use rankine_cuda::nccl::Parcel;
use rankine_cuda::{Buffer, Cluster, Lane, Moment, PinnedBuffer, Pointer, Rail};
use rankine_topology::{LocalRank, Node};

use crate::cuda::error::Result;
use crate::cuda::exchange::route::{KeyBitmap, NodeRoute};
use crate::cuda::exchange::sums::GradientSums;
use crate::cuda::layout::Layout;
use crate::cuda::storage::RowStore;
use crate::cuda::{POISON, RoutedBatch, blocks};

/// The most message sizes: each one is captured separately.
const SIZES_MAX: usize = 6;

/// A rank's part in its rail.
#[derive(Debug)]
pub(crate) struct Rails {
    /// On the lane of routes, and on the lane of everything else.
    lists: Rail,
    rows: Rail,
    /// Rows per message, for each size.
    sizes: Vec<usize>,
    /// The most of those that only the other node stores.
    wanted_max: usize,
    /// Distance between the rows of two nodes, and (plus the header) between their lists: the largest possible number
    /// of rows.
    stride: usize,
    routes: Vec<RailRoute>,
    /// `[node][stride]`: the lists to send.
    outgoing: Buffer<u32>,
    /// `[node][stride][width]`: at the requesting rank, the received rows, then the sums to send.
    asked: Buffer<u32>,
    /// The same at the owner: the rows to send, then the received sums.
    owned: Buffer<u32>,
    /// Where the rows of each list go: to its first position.
    firsts: Buffer<u32>,
    /// One per route: 1 + the rows of the rail's longest list.
    longest: PinnedBuffer<u32>,
}

/// A batch's route at the owners of rows.
#[derive(Debug)]
struct RailRoute {
    /// `[node][stride]`: the received lists.
    lists: Buffer<u32>,
    /// Per node: number of rows received of its list.
    counts: Buffer<u32>,
    /// Per node: how many of these are to be sent there; rows that every rank stores are not.
    wanted: Buffer<u32>,
    /// The rows here that any node names, ascending.
    union: Buffer<u32>,
    /// 0, and the number of these rows.
    union_starts: Buffer<u32>,
    /// `[row of the union][node]`: 1 + the index of its sum, or 0.
    sources: Buffer<u32>,
}

/// What an owner updates: the rows, and where their sums are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnerUpdates {
    pub(crate) rows: Pointer<u32>,
    pub(crate) rows_count: Pointer<u32>,
    pub(crate) sources: Pointer<u32>,
    pub(crate) sums: Pointer<u32>,
    /// Number of sums per row: one per rank of the node, or over several nodes one per node.
    pub(crate) ranks: usize,
}

/// Bytes per element of rows, and of the sums of their gradients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ElementBytes {
    pub(crate) row: usize,
    pub(crate) sum: usize,
}

/// Messages with rows, or with sums of their gradients: one to each other node.
struct RowMessages<'a> {
    /// What error messages call them.
    name: &'static str,
    from: &'a Buffer<u32>,
    to: &'a Buffer<u32>,
    row_bytes: usize,
    /// Number of rows in each message.
    rows: usize,
}

/// Common to all steps of the exchange: the set in which rows are marked, and this rank's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RailContext<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) set: &'a KeyBitmap,
    pub(crate) rows: &'a RowStore,
    /// This rank's number on its node.
    pub(crate) local_rank: LocalRank,
}

impl Rails {
    /// Creates a rank's part. `lists` is for routes, `rows` for everything else.
    pub(crate) fn new(
        cluster: &Cluster,
        layout: &Layout,
        (lists, rows): (&Rail, &Rail),
        bytes: ElementBytes,
        routes: usize,
    ) -> Result<Self> {
        let device = cluster.device();
        let capacity = layout.node_max().max(1);
        let (nodes, stride) = (cluster.nodes(), layout.list_words());
        let union = layout.rank_max(cluster.rank());
        let route = || {
            Ok::<_, crate::cuda::Error>(RailRoute {
                lists: Buffer::filled(device, nodes * stride, 0)?,
                counts: Buffer::filled(device, nodes, 0)?,
                wanted: Buffer::filled(device, nodes, 0)?,
                union: Buffer::filled(device, union, POISON)?,
                union_starts: Buffer::filled(device, 2, 0)?,
                sources: Buffer::filled(device, union * nodes, POISON)?,
            })
        };
        let _exchange = device.purpose("exchange between nodes");
        let words = nodes * stride * layout.wire_width() * bytes.row.max(bytes.sum) / 4;
        Ok(Self {
            lists: lists.clone(),
            rows: rows.clone(),
            sizes: sizes(layout.round_rows(), capacity),
            wanted_max: layout.wanted_max(),
            stride,
            routes: (0..routes).map(|_| route()).collect::<Result<_>>()?,
            outgoing: Buffer::filled(device, nodes * stride, 0)?,
            asked: Buffer::filled(device, words, 0)?,
            owned: Buffer::filled(device, words, 0)?,
            firsts: Buffer::filled(device, nodes, 0)?,
            longest: PinnedBuffer::zeroed(device, routes)?,
        })
    }

    /// Exchanges zeros in every size, so that NCCL has its connections before anything is captured.
    pub(crate) fn warm_up(&self, lane: &Lane, layout: &Layout, bytes: ElementBytes) -> Result<()> {
        // SAFETY: all buffers belong to this value, and the caller waits for the lane.
        unsafe {
            self.exchange_lists(lane, 0, 0..RAIL_HEADER + self.sizes[0])?;
            for (size, pair) in self.sizes.windows(2).enumerate() {
                debug_assert!(pair[0] < pair[1]);
                self.exchange_lists(lane, 0, self.rest_of_lists(size + 1))?;
            }
            for &size in &self.sizes {
                for (bytes, rows) in [(bytes.row, size.min(self.wanted_max)), (bytes.sum, size)] {
                    let row_bytes = layout.wire_width() * bytes;
                    let (from, to) = (&self.owned, &self.asked);
                    self.exchange_rows(lane, RowMessages { name: "rows", from, to, row_bytes, rows })?;
                }
            }
        }
        Ok(())
    }

    /// The rails of lists, and of rows.
    pub(crate) fn of_messages(&self) -> (&Rail, &Rail) {
        (&self.lists, &self.rows)
    }

    /// Waits for the work enqueued on a lane, and fails if another node does not take part.
    pub(crate) fn wait(&self, lane: &Lane) -> Result<()> {
        let moment = Moment::new(lane.device())?;
        lane.record(&moment)?;
        Ok(Rail::wait_for(&moment, &[&self.lists, &self.rows])?)
    }

    /// Enqueues exchanging squares of gradients.
    ///
    /// # Safety
    /// See [`Rail::exchange`].
    pub(crate) unsafe fn exchange_squares(
        &self,
        lane: &Lane,
        sent: &[Parcel<f32>],
        received: &[Parcel<f32>],
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        Ok(unsafe { self.rows.exchange(lane, "squares of gradients", sent, received) }?)
    }

    /// This node.
    pub(crate) fn node(&self) -> Node {
        self.rows.node()
    }

    /// As [`Rail::others`].
    pub(crate) fn others(&self) -> impl Iterator<Item = Node> + use<> {
        self.rows.others()
    }

    /// The most rows of a rank that all nodes together can name with messages of a size.
    pub(crate) fn rows_max(&self, size: usize) -> usize {
        self.rows.nodes() * self.sizes[size]
    }

    /// Bytes of the messages of a size that this rank sends for a batch, without squares.
    pub(crate) fn message_bytes(&self, layout: &Layout, bytes: ElementBytes, size: usize) -> u64 {
        let rows = self.sizes[size];
        let list = (RAIL_HEADER + rows) * size_of::<u32>();
        let elements = layout.wire_width() * (rows.min(self.wanted_max) * bytes.row + rows * bytes.sum);
        ((self.rows.nodes() - 1) * (list + elements)) as u64
    }

    /// Number of message sizes.
    pub(crate) fn sizes(&self) -> usize {
        self.sizes.len()
    }

    /// The size that the messages of a batch need, once the first part of its route is built.
    pub(crate) fn size_needed(&self, batch_slot: usize) -> usize {
        let word = &self.longest.elements()[batch_slot];
        // SAFETY: the reference is valid and aligned; a GPU writes words as a whole.
        let longest = unsafe { std::ptr::from_ref(word).read_volatile() } as usize;
        let needed = self.sizes.partition_point(|&size| size + 1 < longest);
        assert!(needed < self.sizes.len(), "the last size has room for all");
        needed
    }

    /// Enqueues forwarding what the ranks of the node look up here, up to the first size, and finding which of its
    /// own rows the nodes name.
    ///
    /// # Safety
    /// The route of the first hop must be built; see [`Lane::launch`].
    pub(crate) unsafe fn route(
        &self,
        lane: &Lane,
        own: RailContext<'_>,
        route: &NodeRoute,
        batch_slot: usize,
    ) -> Result<()> {
        let node = self.lists.node();
        let own_lists = &self.routes[batch_slot].lists;
        let lists = RailLists {
            named: route.union.pointer(),
            starts: route.union_starts.pointer(),
            lists: self.of_nodes(&self.outgoing, own_lists, self.stride * size_of::<u32>()),
            node: node.0 as u32,
            nodes: self.lists.nodes() as u32,
            of_all: of_all(own.layout),
            reserved: 0,
        };
        // SAFETY: lists have room for all rows of a rank that its node can name; the caller vouches for the rest.
        unsafe {
            lane.launch(&lists, self.grid(lane))?;
            self.exchange_lists(lane, batch_slot, 0..RAIL_HEADER + self.sizes[0])?;
            self.merge(lane, own, batch_slot, 0)
        }
    }

    /// Enqueues forwarding the rest, if a batch needs more than the first size.
    ///
    /// # Safety
    /// The first part of the same route must be the last one that was enqueued; see [`Lane::launch`].
    pub(crate) unsafe fn route_rest(
        &self,
        lane: &Lane,
        own: RailContext<'_>,
        batch_slot: usize,
        size: usize,
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.exchange_lists(lane, batch_slot, self.rest_of_lists(size))?;
            self.merge(lane, own, batch_slot, size)
        }
    }

    /// The words of lists after those of the first size.
    fn rest_of_lists(&self, size: usize) -> std::ops::Range<usize> {
        RAIL_HEADER + self.sizes[0]..RAIL_HEADER + self.sizes[size]
    }

    unsafe fn exchange_lists(
        &self,
        lane: &Lane,
        batch_slot: usize,
        words: std::ops::Range<usize>,
    ) -> Result<()> {
        let parcels = |of: &Buffer<u32>| -> Vec<_> {
            let parcel = |other: Node| Parcel {
                rank: other.0,
                pointer: of.pointer().element(other.0 * self.stride + words.start),
                len: words.len(),
            };
            self.lists.others().map(parcel).collect()
        };
        let (sent, received) = (parcels(&self.outgoing), parcels(&self.routes[batch_slot].lists));
        // SAFETY: both buffers have room for whole lists.
        Ok(unsafe { self.lists.exchange(lane, "lists of rows", &sent, &received) }?)
    }

    /// Finds which rows the nodes name here, as far as their lists have been received.
    unsafe fn merge(&self, lane: &Lane, own: RailContext<'_>, batch_slot: usize, size: usize) -> Result<()> {
        let (route, set, nodes) = (&self.routes[batch_slot], own.set.set(), self.lists.nodes() as u32);
        let mark = RailMark {
            lists: route.lists.pointer(),
            counts: route.counts.pointer(),
            wanted: route.wanted.pointer(),
            most: self.longest.device_pointer()?.element(batch_slot),
            set,
            stride: self.stride as u32,
            there: self.sizes[size] as u32,
            node: self.lists.node().0 as u32,
            nodes,
        };
        let (number, link) = self.number(route, own.layout, set);
        let groups = ((own.layout.span / GROUP_KEYS) as u32, 1);
        // SAFETY: all buffers belong to this value; the set has room for a node's rows of each rank of the rail, and
        // so for one rank's.
        unsafe {
            own.set.clear_first(lane, own.layout.span)?;
            lane.launch(&mark, self.grid(lane))?;
            lane.launch(&Groups(number), groups)?;
            lane.launch(&number, groups)?;
            lane.launch(&link, self.grid(lane))?;
        }
        Ok(())
    }

    fn number(&self, route: &RailRoute, layout: &Layout, set: KeySet) -> (Number, Link) {
        let nodes = self.lists.nodes() as u32;
        let number = Number {
            set,
            rows: route.union.pointer(),
            starts: route.union_starts.pointer(),
            sources: route.sources.pointer(),
            owners: 1,
            span: layout.span as u32,
            sources_width: nodes,
            reserved: 0,
        };
        let link = Link {
            entries: route.lists.pointer().element(RAIL_HEADER),
            counts: route.counts.pointer(),
            set,
            sources: route.sources.pointer(),
            capacity: self.stride as u32,
            owned: 0,
            ranks: nodes,
            of_all: 0,
        };
        (number, link)
    }

    /// Enqueues sending this rank's rows to the nodes that name them, and the rows received from other nodes to the
    /// ranks of this node, at the positions of their routes.
    ///
    /// # Safety
    /// As for [`crate::cuda::BatchExchange::send`], with a size not above the one that the batch needs; see
    /// [`Lane::launch`].
    pub(crate) unsafe fn send<T: Element>(
        &self,
        lane: &Lane,
        own: RailContext<'_>,
        route: &NodeRoute,
        batch: RoutedBatch,
        landings: [Pointer<u32>; RANKS_MAX],
    ) -> Result<()> {
        let (layout, of_nodes, nodes) = (own.layout, &self.routes[batch.slot], self.rows.nodes());
        let row_bytes = layout.wire_width() * size_of::<T>();
        let send = Send {
            storage: own.rows.table.pointer(),
            shards: own.rows.shards.pointer(),
            entries: of_nodes.lists.pointer().element(RAIL_HEADER),
            firsts: self.firsts.pointer(),
            counts: of_nodes.wanted.pointer(),
            landings: self.rows_of(&self.owned, &self.asked, row_bytes),
            shards_count: own.rows.shards.len() as u32,
            capacity: self.stride as u32,
            rank: self.rows.node().0 as u32,
            ranks: nodes as u32,
            width: layout.wire_width() as u32,
            owned: 0,
        };
        let blocks = ((4 * lane.device().multiprocessors() / nodes as u32).max(1), nodes as u32);
        let spread = RailRows {
            firsts: route.firsts.pointer(),
            rows: self.rows_of(&self.asked, &self.asked, row_bytes),
            landings,
            element: size_of::<T>() as u32,
            ..self.rail_rows(own, route)
        };
        // SAFETY: the buffers have room for all rows of a rank that a node can name; landings have a row for each
        // slot; the caller vouches for the peers'.
        unsafe {
            send.enqueue::<T>(lane, blocks)?;
            let rows = self.sizes[batch.size].min(self.wanted_max);
            let (from, to) = (&self.owned, &self.asked);
            self.exchange_rows(lane, RowMessages { name: "rows", from, to, row_bytes, rows })?;
            spread.spread(lane, blocks_of(lane))
        }?;
        Ok(())
    }

    /// Enqueues adding up the sums of the node's ranks, and sending the result to the rows' owners.
    ///
    /// # Safety
    /// All ranks of the node must have met since they reduced; as for [`Rails::send`].
    pub(crate) unsafe fn carry_back(
        &self,
        lane: &Lane,
        own: RailContext<'_>,
        route: &NodeRoute,
        size: usize,
        sums: &GradientSums,
    ) -> Result<()> {
        let row_bytes = own.layout.wire_width() * sums.element_bytes();
        let gather = RailRows {
            rows: self.rows_of(&self.asked, &self.owned, row_bytes),
            sums: sums.pointer(),
            element: sums.dtype() as u32,
            ..self.rail_rows(own, route)
        };
        // SAFETY: as for `send`.
        unsafe {
            gather.gather(lane, blocks_of(lane))?;
            let (from, to, rows) = (&self.asked, &self.owned, self.sizes[size]);
            self.exchange_rows(lane, RowMessages { name: "gradients of rows", from, to, row_bytes, rows })
        }
    }

    /// What is to be updated here once gradients have arrived.
    pub(crate) fn owned(&self, batch_slot: usize) -> OwnerUpdates {
        let route = &self.routes[batch_slot];
        OwnerUpdates {
            rows: route.union.pointer(),
            rows_count: route.union_starts.pointer().element(1),
            sources: route.sources.pointer(),
            sums: self.owned.pointer(),
            ranks: self.rows.nodes(),
        }
    }

    /// The rows here that any node names, each with its index among those that each node names, once the lane has
    /// finished all enqueued work.
    pub(crate) fn read(&self, lane: &Lane, batch_slot: usize) -> Result<Vec<(u32, Vec<Option<u32>>)>> {
        let (route, nodes) = (&self.routes[batch_slot], self.rows.nodes());
        let count = route.union_starts.read(lane)?[1] as usize;
        let rows = route.union.read_part(lane, 0, count)?;
        let sources = route.sources.read_part(lane, 0, count * nodes)?;
        let index_in =
            |(node, &source): (usize, &u32)| Some(source.checked_sub(1)? - (node * self.stride) as u32);
        let of_row = |sources: &[u32]| sources.iter().enumerate().map(index_in).collect();
        Ok(rows.into_iter().zip(sources.chunks_exact(nodes).map(of_row)).collect())
    }

    fn rail_rows(&self, own: RailContext<'_>, route: &NodeRoute) -> RailRows {
        RailRows {
            named: route.union.pointer(),
            starts: route.union_starts.pointer(),
            sources: route.sources.pointer(),
            firsts: Pointer::NULL,
            shards: own.rows.shards.pointer(),
            rows: Addresses::NONE,
            landings: [Pointer::NULL; RANKS_MAX],
            sums: Pointer::NULL,
            shards_count: own.rows.shards.len() as u32,
            nodes: self.rows.nodes() as u32,
            ranks: own.layout.ranks as u32,
            rank: own.local_rank.0 as u32,
            capacity: own.layout.entries_max() as u32,
            width: own.layout.wire_width() as u32,
            element: 0,
            of_all: of_all(own.layout),
        }
    }

    /// The rows of each node, of which this one has a separate buffer.
    fn rows_of(&self, others: &Buffer<u32>, own: &Buffer<u32>, row_bytes: usize) -> Addresses {
        self.of_nodes(others, own, self.stride * row_bytes)
    }

    fn of_nodes(&self, others: &Buffer<u32>, own: &Buffer<u32>, bytes: usize) -> Addresses {
        // If all tables are pooled by their owners, rows have no elements, and none is sent.
        let bytes = bytes.max(size_of::<u32>());
        Addresses::of_nodes(others.pointer(), own.pointer(), bytes, self.rows.node().0)
    }

    unsafe fn exchange_rows(&self, lane: &Lane, messages: RowMessages<'_>) -> Result<()> {
        let RowMessages { name, from, to, row_bytes, rows } = messages;
        let row_words = row_bytes / 4;
        if rows * row_words == 0 {
            // No rank of the rail has rows of its own.
            return Ok(());
        }
        let parcels = |of: &Buffer<u32>| -> Vec<_> {
            let parcel = |other: Node| Parcel {
                rank: other.0,
                pointer: of.pointer().element(other.0 * self.stride * row_words),
                len: rows * row_words,
            };
            self.rows.others().map(parcel).collect()
        };
        // SAFETY: both buffers have room for as many rows of each node.
        Ok(unsafe { self.rows.exchange(lane, name, &parcels(from), &parcels(to)) }?)
    }

    /// Grid with one row of blocks per node.
    fn grid(&self, lane: &Lane) -> (u32, u32) {
        let nodes = self.rows.nodes() as u32;
        (blocks_of(lane).div_ceil(nodes), nodes)
    }
}

/// Whether there are rows that every rank stores, in the kernels' form.
fn of_all(layout: &Layout) -> u32 {
    u32::from(layout.merged_spans() > layout.nodes())
}

fn blocks_of(lane: &Lane) -> u32 {
    blocks(lane.device())
}

/// Sizes of messages: `first` rows, then twice as many each time, and finally the largest possible number.
fn sizes(first: usize, capacity: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut size = first.max(1);
    while size < capacity && sizes.len() + 1 < SIZES_MAX {
        sizes.push(size);
        size *= 2;
    }
    sizes.push(capacity);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_size_has_room_for_all() {
        assert_eq!(sizes(100, 100), [100]);
        assert_eq!(sizes(300, 100), [100]);
        assert_eq!(sizes(30, 100), [30, 60, 100]);
        assert_eq!(sizes(0, 1000), [1, 2, 4, 8, 16, 1000]);
    }
}
