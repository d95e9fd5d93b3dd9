//! The path from the ranks that name rows to the ranks that own them, and back.
//!
//! It has two hops, one within a node and one along a rail, which are set up when rows or bags are routed. A rank
//! that receives *rows* merges what its peers name, so that a row named by several is forwarded and answered once. A
//! rank that receives *bags* answers each of them, and the sender adds up the vectors of their parts. Vectors then
//! travel *down*, from the owners, and *up*, to them. Streams, one per shard of a table, travel in parallel.

use super::communicator::{Communicator, Group, Lists};
use crate::placement::Owner;

/// Returns the member of a group that a row of a stream is sent to.
type Destination<'a> = &'a dyn Fn(usize, u64) -> usize;

/// The sizes of what each stream sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamSizes<'a> {
    /// Elements per vector, for each stream.
    pub(super) dims: &'a [usize],
    /// Vectors per stream that one round carries along a rail.
    pub(super) round_vectors: &'a [usize],
    /// Ids of bags per stream and round.
    pub(super) round_ids: &'a [usize],
    /// Whether the ids of some stream's bags have factors.
    pub(super) weighted: bool,
}

impl StreamSizes<'_> {
    fn streams(&self) -> usize {
        self.dims.len()
    }

    fn exchange<T: Copy + Send + 'static>(
        &self,
        communicator: &mut Communicator,
        group: Group,
        round_items: &[usize],
        outgoing: Vec<Lists<T>>,
    ) -> Vec<Lists<T>> {
        communicator.exchange(group, round_items, &vec![1; self.streams()], outgoing)
    }
}

/// How vectors travel between the ranks of a group; set up when rows or bags were routed.
#[derive(Debug)]
struct Hop {
    group: Group,
    /// `[stream]`: how many items this rank had.
    own: Vec<usize>,
    /// `[member][stream]`: which of these, or of whose parts, were sent to the member.
    sent: Vec<Lists<u32>>,
    /// `[stream]`: how many items arrived here, with equal rows counted once.
    arrived: Vec<usize>,
    /// `[member][stream]`: the number here of each item that the member has sent.
    received: Vec<Lists<u32>>,
}

impl Hop {
    /// Takes the vectors of the items that arrived here to the ranks that sent them; vectors of parts are summed in
    /// the order of the group.
    fn down(
        &self,
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        vectors: &[Vec<f32>],
    ) -> Lists<f32> {
        communicator
            .count_rows(self.group, self.received.iter().map(|lists| lists.iter().map(Vec::len).sum()));
        self.carry(communicator, sizes, vectors, &self.received, &self.sent, &self.own)
    }

    /// Takes the gradients of the items that this rank sent to the ranks where they arrived; gradients of equal rows
    /// are summed in the order of the group.
    fn up(
        &self,
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        gradients: &[Vec<f32>],
    ) -> Lists<f32> {
        self.carry(communicator, sizes, gradients, &self.sent, &self.received, &self.arrived)
    }

    fn carry(
        &self,
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        vectors: &[Vec<f32>],
        from: &[Lists<u32>],
        to: &[Lists<u32>],
        lens: &[usize],
    ) -> Lists<f32> {
        let outgoing = gather(vectors, sizes.dims, from);
        let incoming = communicator.exchange(self.group, sizes.round_vectors, sizes.dims, outgoing);
        let mut out: Lists<f32> =
            lens.iter().zip(sizes.dims).map(|(len, dim)| vec![0.0; len * dim]).collect();
        add_at(&mut out, sizes.dims, to, &incoming);
        out
    }
}

/// Sends distinct rows to a group, ascending, stream by stream; returns the distinct rows that arrived here.
fn route_rows(
    communicator: &mut Communicator,
    group: Group,
    sizes: StreamSizes<'_>,
    rows: &[&[u64]],
    destination: Destination<'_>,
) -> (Hop, Lists<u64>) {
    let members = communicator.group(group).len();
    let mut sent = vec![vec![Vec::new(); sizes.streams()]; members];
    let mut outgoing = vec![vec![Vec::new(); sizes.streams()]; members];
    for (stream, rows) in rows.iter().enumerate() {
        for (position, &row) in rows.iter().enumerate() {
            let member = destination(stream, row);
            sent[member][stream].push(position as u32);
            outgoing[member][stream].push(row);
        }
    }
    let incoming = sizes.exchange(communicator, group, sizes.round_vectors, outgoing);
    let merge = |stream: usize| {
        let mut rows: Vec<_> = incoming.iter().flat_map(|lists| &lists[stream]).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    let merged: Lists<u64> = (0..sizes.streams()).map(merge).collect();
    let positions = |(list, merged): (&Vec<u64>, &Vec<u64>)| {
        let mut position = 0;
        let found = list.iter().map(|row| {
            // Both are ascending.
            position += merged[position..].partition_point(|other| other < row);
            position as u32
        });
        found.collect()
    };
    let hop = Hop {
        group,
        own: rows.iter().map(|rows| rows.len()).collect(),
        sent,
        arrived: merged.iter().map(Vec::len).collect(),
        received: incoming.iter().map(|lists| lists.iter().zip(&merged).map(positions).collect()).collect(),
    };
    (hop, merged)
}

/// Bags, or their parts for one member: bag `i` has the ids `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BagList {
    pub(super) offsets: Vec<u32>,
    pub(super) ids: Vec<u64>,
    /// The factor of each id's row; empty if no feature of the table has weights.
    pub(super) factors: Vec<f32>,
}

impl Default for BagList {
    fn default() -> Self {
        Self { offsets: vec![0], ids: Vec::new(), factors: Vec::new() }
    }
}

impl BagList {
    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn bag(&self, bag: usize) -> &[u64] {
        &self.ids[self.offsets[bag] as usize..self.offsets[bag + 1] as usize]
    }

    /// Ends a bag: it has the ids added since the last one.
    pub(super) fn end_bag(&mut self) {
        let end = u32::try_from(self.ids.len()).expect("a rank's share of a batch has fewer than 2^32 ids");
        self.offsets.push(end);
    }
}

/// Sends bags to a group, split into one part per member that has some of their rows, and skips empty ones; returns
/// the parts that arrived here, ordered by sender.
fn route_bags(
    communicator: &mut Communicator,
    group: Group,
    sizes: StreamSizes<'_>,
    bags: &[&BagList],
    destination: Destination<'_>,
) -> (Hop, Vec<BagList>) {
    let members = communicator.group(group).len();
    let mut sent: Vec<Lists<u32>> = vec![vec![Vec::new(); sizes.streams()]; members];
    let mut lengths: Vec<Lists<u32>> = vec![vec![Vec::new(); sizes.streams()]; members];
    let mut ids: Vec<Lists<u64>> = vec![vec![Vec::new(); sizes.streams()]; members];
    let mut factors: Vec<Lists<f32>> = vec![vec![Vec::new(); sizes.streams()]; members];
    for (stream, bags) in bags.iter().enumerate() {
        for bag in 0..bags.len() {
            for (at, &row) in (bags.offsets[bag] as usize..).zip(bags.bag(bag)) {
                let member = destination(stream, row);
                let (sent, lengths) = (&mut sent[member][stream], &mut lengths[member][stream]);
                if sent.last() != Some(&(bag as u32)) {
                    sent.push(bag as u32);
                    lengths.push(0);
                }
                *lengths.last_mut().expect("a part was started") += 1;
                ids[member][stream].push(row);
                factors[member][stream].extend(bags.factors.get(at));
            }
        }
    }
    let lengths = sizes.exchange(communicator, group, sizes.round_vectors, lengths);
    let ids = sizes.exchange(communicator, group, sizes.round_ids, ids);
    // Whether ids have factors follows from the model, so all ranks agree.
    let factors = match sizes.weighted {
        true => sizes.exchange(communicator, group, sizes.round_ids, factors),
        false => vec![vec![Vec::new(); sizes.streams()]; members],
    };
    let mut parts = vec![BagList::default(); sizes.streams()];
    let mut received = Vec::new();
    for ((lengths, ids), factors) in lengths.into_iter().zip(ids).zip(factors) {
        let lists = lengths.iter().zip(ids).zip(factors);
        let numbers = parts.iter_mut().zip(lists).map(|(parts, ((lengths, ids), factors))| {
            parts.factors.extend(factors);
            let first = parts.len() as u32;
            let mut ids = ids.into_iter();
            for &length in lengths {
                parts.ids.extend(ids.by_ref().take(length as usize));
                parts.end_bag();
            }
            (first..first + lengths.len() as u32).collect()
        });
        received.push(numbers.collect());
    }
    let hop = Hop {
        group,
        own: bags.iter().map(|bags| bags.len()).collect(),
        sent,
        arrived: parts.iter().map(BagList::len).collect(),
        received,
    };
    (hop, parts)
}

/// The path to the owners: two hops, one of which may stay on this rank.
#[derive(Debug)]
pub(super) struct Path {
    first: Hop,
    second: Hop,
}

impl Path {
    /// Sends distinct rows to their owners: first within the node to the rank on the owner's rail, so that a row
    /// named by several ranks of a node leaves it once, then along the rail. Returns the distinct rows that this rank
    /// owns and some rank names, ascending.
    pub(super) fn of_rows(
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        rows: &[&[u64]],
        owners: &[Owner],
    ) -> (Self, Lists<u64>) {
        let topology = communicator.topology();
        let owner = |stream: usize, row| owners[stream].of(row, topology);
        let local_rank = |stream: usize, row| topology.local_rank(owner(stream, row)).0;
        let node = |stream: usize, row| topology.node_of(owner(stream, row)).0;
        let (first, named) = route_rows(communicator, Group::Node, sizes, rows, &local_rank);
        let named: Vec<_> = named.iter().map(Vec::as_slice).collect();
        let (second, owned) = route_rows(communicator, Group::Rail, sizes, &named, &node);
        (Self { first, second }, owned)
    }

    /// Sends bags to the owners of their rows: first along the rail to each node that owns some, so that each node
    /// answers once per bag, then within the node. Returns the parts whose rows this rank owns.
    pub(super) fn of_bags(
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        bags: &[&BagList],
        owners: &[Owner],
    ) -> (Self, Vec<BagList>) {
        let topology = communicator.topology();
        let owner = |stream: usize, row| owners[stream].of(row, topology);
        let node = |stream: usize, row| topology.node_of(owner(stream, row)).0;
        let local_rank = |stream: usize, row| topology.local_rank(owner(stream, row)).0;
        let (first, parts) = route_bags(communicator, Group::Rail, sizes, bags, &node);
        let parts: Vec<_> = parts.iter().collect();
        let (second, owned) = route_bags(communicator, Group::Node, sizes, &parts, &local_rank);
        (Self { first, second }, owned)
    }

    /// Takes the vectors of what this rank owns to the ranks that named it, stream by stream.
    pub(super) fn down(
        &self,
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        vectors: &[Vec<f32>],
    ) -> Lists<f32> {
        let passed_on = self.second.down(communicator, sizes, vectors);
        self.first.down(communicator, sizes, &passed_on)
    }

    /// Takes the gradients of what this rank named to the owners, stream by stream.
    pub(super) fn up(
        &self,
        communicator: &mut Communicator,
        sizes: StreamSizes<'_>,
        gradients: &[Vec<f32>],
    ) -> Lists<f32> {
        let passed_on = self.first.up(communicator, sizes, gradients);
        self.second.up(communicator, sizes, &passed_on)
    }
}

/// The vectors with some numbers, member by member and stream by stream.
fn gather(vectors: &[Vec<f32>], dims: &[usize], numbers: &[Lists<u32>]) -> Vec<Lists<f32>> {
    let of_stream = |((vectors, &dim), numbers): ((&Vec<f32>, &usize), &Vec<u32>)| {
        let mut out = Vec::with_capacity(numbers.len() * dim);
        for &number in numbers {
            out.extend_from_slice(&vectors[number as usize * dim..][..dim]);
        }
        out
    };
    let of_member = |numbers: &Lists<u32>| vectors.iter().zip(dims).zip(numbers).map(of_stream).collect();
    numbers.iter().map(of_member).collect()
}

/// Adds what each member sent to the vectors with the agreed numbers, in the order of the group.
fn add_at(out: &mut [Vec<f32>], dims: &[usize], numbers: &[Lists<u32>], incoming: &[Lists<f32>]) {
    for (numbers, incoming) in numbers.iter().zip(incoming) {
        for (stream, (numbers, vectors)) in numbers.iter().zip(incoming).enumerate() {
            let (out, dim) = (&mut out[stream], dims[stream]);
            for (&number, vector) in numbers.iter().zip(vectors.chunks_exact(dim)) {
                let sum = &mut out[number as usize * dim..][..dim];
                sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}
