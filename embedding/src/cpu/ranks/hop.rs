//! The way from those who name rows to those who own them, and back.
//!
//! It has two hops, one within a node and one along a rail, which agree on what travels when rows or bags are routed.
//! Whoever receives *rows* merges what its peers name, so that a row that several name is answered, and goes on, once.
//! Whoever receives *bags* answers each of them, and whoever sent them adds up what becomes of their parts. Vectors
//! then travel along: *down*, from the owners, and *up*, to them. Streams, one a shard of a table, go side by side.

use super::communicator::{Communicator, Group, Lists};
use crate::placement::Owner;

/// Which place of a group a row of a stream goes to.
type PlaceOf<'a> = &'a dyn Fn(usize, u64) -> usize;

/// How vectors of each stream are sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wires<'a> {
    /// Elements of a vector, stream by stream.
    pub(super) dims: &'a [usize],
    /// Vectors of each that one round carries along a rail.
    pub(super) round_vectors: &'a [usize],
    /// Ids of bags of each.
    pub(super) round_ids: &'a [usize],
}

impl Wires<'_> {
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

/// How vectors travel between the ranks of a group: agreed on when rows or bags were routed.
#[derive(Debug)]
struct Hop {
    group: Group,
    /// `[stream]`: how many items this rank had.
    own: Vec<usize>,
    /// `[place][stream]`: which of them, or of which a part, went there.
    sent: Vec<Lists<u32>>,
    /// `[stream]`: how many items came here, equal rows counted once.
    arrived: Vec<usize>,
    /// `[place][stream]`: which of them each item that a rank has sent became.
    received: Vec<Lists<u32>>,
}

impl Hop {
    /// From the vectors of what came here to those of what this rank sent; what went in parts is summed over them in
    /// the order of places.
    fn down(&self, communicator: &mut Communicator, wires: Wires<'_>, vectors: &[Vec<f32>]) -> Lists<f32> {
        communicator
            .count_rows(self.group, self.received.iter().map(|lists| lists.iter().map(Vec::len).sum()));
        self.carry(communicator, wires, vectors, &self.received, &self.sent, &self.own)
    }

    /// From the gradients of what this rank sent to those of what came here; those of equal rows are summed in the
    /// order of places.
    fn up(&self, communicator: &mut Communicator, wires: Wires<'_>, gradients: &[Vec<f32>]) -> Lists<f32> {
        self.carry(communicator, wires, gradients, &self.sent, &self.received, &self.arrived)
    }

    fn carry(
        &self,
        communicator: &mut Communicator,
        wires: Wires<'_>,
        vectors: &[Vec<f32>],
        from: &[Lists<u32>],
        to: &[Lists<u32>],
        lens: &[usize],
    ) -> Lists<f32> {
        let outgoing = gather(vectors, wires.dims, from);
        let incoming = communicator.exchange(self.group, wires.round_vectors, wires.dims, outgoing);
        let mut out: Lists<f32> =
            lens.iter().zip(wires.dims).map(|(len, dim)| vec![0.0; len * dim]).collect();
        add_at(&mut out, wires.dims, to, &incoming);
        out
    }
}

/// Sends distinct rows to a group, ascending, stream by stream; returns the distinct ones of those that came here.
fn route_rows(
    communicator: &mut Communicator,
    group: Group,
    wires: Wires<'_>,
    rows: &[&[u64]],
    place_of: PlaceOf<'_>,
) -> (Hop, Lists<u64>) {
    let places = communicator.group(group).len();
    let mut sent = vec![vec![Vec::new(); wires.streams()]; places];
    let mut outgoing = vec![vec![Vec::new(); wires.streams()]; places];
    for (stream, rows) in rows.iter().enumerate() {
        for (position, &row) in rows.iter().enumerate() {
            let place = place_of(stream, row);
            sent[place][stream].push(position as u32);
            outgoing[place][stream].push(row);
        }
    }
    let incoming = wires.exchange(communicator, group, wires.round_vectors, outgoing);
    let merge = |stream: usize| {
        let mut rows: Vec<_> = incoming.iter().flat_map(|lists| &lists[stream]).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    let merged: Lists<u64> = (0..wires.streams()).map(merge).collect();
    let positions = |(list, merged): (&Vec<u64>, &Vec<u64>)| {
        let mut position = 0;
        let found = list.iter().map(|row| {
            // Both ascend.
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

/// Bags, or what of them belongs to one place: bag `i` has the ids `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BagList {
    pub(super) offsets: Vec<u32>,
    pub(super) ids: Vec<u64>,
}

impl Default for BagList {
    fn default() -> Self {
        Self { offsets: vec![0], ids: Vec::new() }
    }
}

impl BagList {
    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn bag(&self, bag: usize) -> &[u64] {
        &self.ids[self.offsets[bag] as usize..self.offsets[bag + 1] as usize]
    }

    /// Makes a bag of the ids behind the last one.
    pub(super) fn end_bag(&mut self) {
        let end = u32::try_from(self.ids.len()).expect("a rank's share of a batch has fewer than 2^32 ids");
        self.offsets.push(end);
    }
}

/// Sends bags to a group, each in as many parts as there are places for its rows, and empty ones nowhere; returns the
/// parts that came here, those of the first place first.
fn route_bags(
    communicator: &mut Communicator,
    group: Group,
    wires: Wires<'_>,
    bags: &[&BagList],
    place_of: PlaceOf<'_>,
) -> (Hop, Vec<BagList>) {
    let places = communicator.group(group).len();
    let mut sent: Vec<Lists<u32>> = vec![vec![Vec::new(); wires.streams()]; places];
    let mut lengths: Vec<Lists<u32>> = vec![vec![Vec::new(); wires.streams()]; places];
    let mut ids: Vec<Lists<u64>> = vec![vec![Vec::new(); wires.streams()]; places];
    for (stream, bags) in bags.iter().enumerate() {
        for bag in 0..bags.len() {
            for &row in bags.bag(bag) {
                let place = place_of(stream, row);
                let (sent, lengths) = (&mut sent[place][stream], &mut lengths[place][stream]);
                if sent.last() != Some(&(bag as u32)) {
                    sent.push(bag as u32);
                    lengths.push(0);
                }
                *lengths.last_mut().expect("a part was begun") += 1;
                ids[place][stream].push(row);
            }
        }
    }
    let lengths = wires.exchange(communicator, group, wires.round_vectors, lengths);
    let ids = wires.exchange(communicator, group, wires.round_ids, ids);
    let mut parts = vec![BagList::default(); wires.streams()];
    let mut received = Vec::new();
    for (lengths, ids) in lengths.into_iter().zip(ids) {
        let numbers = parts.iter_mut().zip(lengths.iter().zip(ids)).map(|(parts, (lengths, ids))| {
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

/// The whole way to the owners, two hops of which one may lead nowhere else.
#[derive(Debug)]
pub(super) struct Path {
    first: Hop,
    second: Hop,
}

impl Path {
    /// Sends distinct rows to their owners: within the node to whoever is on the owner's rail, so that what several
    /// ranks of a node name leaves it once, then along the rail. Returns the distinct rows that this rank owns and
    /// anybody names, ascending.
    pub(super) fn of_rows(
        communicator: &mut Communicator,
        wires: Wires<'_>,
        rows: &[&[u64]],
        owners: &[Owner],
    ) -> (Self, Lists<u64>) {
        let topology = communicator.topology();
        let owner = |stream: usize, row| owners[stream].of(row, topology);
        let place = |stream: usize, row| topology.place_of(owner(stream, row));
        let node = |stream: usize, row| topology.node_of(owner(stream, row));
        let (first, named) = route_rows(communicator, Group::Node, wires, rows, &place);
        let named: Vec<_> = named.iter().map(Vec::as_slice).collect();
        let (second, owned) = route_rows(communicator, Group::Rail, wires, &named, &node);
        (Self { first, second }, owned)
    }

    /// Sends bags to the owners of their rows: along the rail to each node that owns some, so that of a bag each node
    /// answers once, then within the node. Returns the parts whose rows this rank owns.
    pub(super) fn of_bags(
        communicator: &mut Communicator,
        wires: Wires<'_>,
        bags: &[&BagList],
        owners: &[Owner],
    ) -> (Self, Vec<BagList>) {
        let topology = communicator.topology();
        let owner = |stream: usize, row| owners[stream].of(row, topology);
        let node = |stream: usize, row| topology.node_of(owner(stream, row));
        let place = |stream: usize, row| topology.place_of(owner(stream, row));
        let (first, parts) = route_bags(communicator, Group::Rail, wires, bags, &node);
        let parts: Vec<_> = parts.iter().collect();
        let (second, owned) = route_bags(communicator, Group::Node, wires, &parts, &place);
        (Self { first, second }, owned)
    }

    /// From the vectors of what this rank owns to those of what it named, stream by stream.
    pub(super) fn down(
        &self,
        communicator: &mut Communicator,
        wires: Wires<'_>,
        vectors: &[Vec<f32>],
    ) -> Lists<f32> {
        let passed_on = self.second.down(communicator, wires, vectors);
        self.first.down(communicator, wires, &passed_on)
    }

    /// From the gradients of what this rank named to those of what it owns, stream by stream.
    pub(super) fn up(
        &self,
        communicator: &mut Communicator,
        wires: Wires<'_>,
        gradients: &[Vec<f32>],
    ) -> Lists<f32> {
        let passed_on = self.first.up(communicator, wires, gradients);
        self.second.up(communicator, wires, &passed_on)
    }
}

/// The vectors with some numbers, place by place and stream by stream.
fn gather(vectors: &[Vec<f32>], dims: &[usize], numbers: &[Lists<u32>]) -> Vec<Lists<f32>> {
    let of_stream = |((vectors, &dim), numbers): ((&Vec<f32>, &usize), &Vec<u32>)| {
        let mut out = Vec::with_capacity(numbers.len() * dim);
        for &number in numbers {
            out.extend_from_slice(&vectors[number as usize * dim..][..dim]);
        }
        out
    };
    let of_place = |numbers: &Lists<u32>| vectors.iter().zip(dims).zip(numbers).map(of_stream).collect();
    numbers.iter().map(of_place).collect()
}

/// Adds what came from each place to the vectors with the numbers that were agreed on, in the order of places.
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
