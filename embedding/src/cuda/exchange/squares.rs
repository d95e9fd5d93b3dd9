//! Row-wise Adagrad if several ranks store some columns of rows each: the owners of a row's columns exchange squares
//! of its gradient.
//!
//! The owners of a table's columns have the same rows of it in a batch, in the same order. So each sends one number
//! per row, the sum of its squares: within the node by writing it to the others, and to other nodes along its rail.
//! There all ranks receive it, whether they need it or not: a rank has its node's squares and receives those of the
//! others.

use rankine_cuda::kernels::{RANKS_MAX, SharedSquares};
use rankine_cuda::nccl::Parcel;
use rankine_cuda::{Buffer, Lane, Peers, Pointer, SharedBuffer};
use rankine_topology::{Node, Rank};

use crate::cuda::POISON;
use crate::cuda::error::Result;
use crate::cuda::exchange::rails::Rails;
use crate::cuda::layout::Layout;
use crate::cuda::layout::parts::{Holder, Part};
use crate::placement::Owner;

/// The squares of a batch's rows.
#[derive(Debug)]
pub(crate) struct Squares {
    /// One per part.
    shared: Buffer<SharedSquares>,
    /// Per shard of the tables that share squares: one per row of the batch.
    values: SharedBuffer<f32>,
    /// These shards.
    shards: Vec<ShardSquares>,
}

/// The position of a shard's squares.
#[derive(Debug, Clone, Copy)]
struct ShardSquares {
    begin: usize,
    /// The most rows.
    rows: usize,
    /// The node that owns it.
    node: Node,
}

impl Squares {
    /// Creates it; `None` if no rows share squares. A collective call.
    pub(crate) fn new(peers: &Peers, layout: &Layout) -> Result<Option<Self>> {
        let (mut begins, mut shards, mut end) = (vec![0; layout.tables.len()], Vec::new(), 0);
        for (table, begin) in begins.iter_mut().enumerate().filter(|(table, _)| layout.shares_squares(*table))
        {
            *begin = end;
            for owner in layout.columns_of(table).filter_map(owner) {
                let (rows, node) = (layout.squares_of(table), layout.topology().node_of(owner));
                shards.push(ShardSquares { begin: end, rows, node });
                end += rows;
            }
        }
        if shards.is_empty() {
            return Ok(None);
        }
        // Over several nodes all ranks of a node need its owners' squares, since each forwards them.
        let told = |part: &Part| match layout.nodes {
            1 => owner(part).map_or(0, |rank| 1_u32 << rank.0),
            _ => (1 << layout.ranks) - 1,
        };
        let of_part = |part: &Part| {
            let columns = || layout.columns_of(part.table);
            SharedSquares {
                begin: begins[part.table] as u32,
                rows: layout.squares_of(part.table) as u32,
                shards: columns().count() as u32,
                number: columns().take_while(|other| other.columns != part.columns).count() as u32,
                owners: columns().map(told).fold(0, |owners, owner| owners | owner),
                dim: layout.tables[part.table].dim as u32,
            }
        };
        let shared: Vec<_> = layout.parts.iter().map(of_part).collect();
        let (shared, values) = (Buffer::of(peers.device(), &shared)?, peers.share(end, POISON)?);
        Ok(Some(Self { shared, values, shards }))
    }

    /// Per part, in the kernels' form.
    pub(crate) fn shared(&self) -> Pointer<SharedSquares> {
        self.shared.pointer()
    }

    /// The addresses of the squares at each rank of the node.
    pub(crate) fn of_ranks(&self) -> [Pointer<f32>; RANKS_MAX] {
        self.values.of_ranks()
    }

    /// Enqueues exchanging squares between nodes.
    ///
    /// # Safety
    /// All ranks of the node must have met since they wrote theirs; the size must be that of the batch; see
    /// [`Lane::launch`].
    pub(crate) unsafe fn exchange(&self, lane: &Lane, rails: &Rails, size: usize) -> Result<()> {
        let parcels = |owner: Node, other: Node| self.parcels(rails, size, owner, other);
        let sent: Vec<_> = rails.others().flat_map(|other| parcels(rails.node(), other)).collect();
        let received: Vec<_> = rails.others().flat_map(|other| parcels(other, other)).collect();
        // SAFETY: there are as many squares of each shard; the caller vouches for the rest.
        unsafe { rails.exchange_squares(lane, &sent, &received) }
    }

    /// The squares of the shards that a node owns, as parcels from or for another node.
    fn parcels(
        &self,
        rails: &Rails,
        size: usize,
        owner: Node,
        other: Node,
    ) -> impl Iterator<Item = Parcel<f32>> {
        let most = rails.rows_max(size);
        let own = self.shards.iter().filter(move |shard| shard.node == owner);
        own.map(move |shard| Parcel {
            rank: other.0,
            pointer: self.values.pointer().element(shard.begin),
            len: shard.rows.min(most),
        })
    }

    /// Bytes of the messages of a size that this rank sends for a batch.
    pub(crate) fn message_bytes(&self, rails: &Rails, size: usize) -> u64 {
        let sent = rails.others().flat_map(|other| self.parcels(rails, size, rails.node(), other));
        sent.map(|parcel| (parcel.len * size_of::<f32>()) as u64).sum()
    }
}

/// The rank that owns a part.
fn owner(part: &Part) -> Option<Rank> {
    match part.holder {
        Holder::Owned(Owner::Rank(rank)) => Some(rank),
        _ => None,
    }
}

impl Layout {
    fn columns_of(&self, table: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.table == table)
    }

    /// The most distinct rows of a table that all ranks can look up.
    fn squares_of(&self, table: usize) -> usize {
        let look_ups = self.columns_of(table).next().map_or(0, |part| self.part_look_ups(part));
        self.tables[table].rows.min((self.ranks() * look_ups) as u64) as usize
    }
}
