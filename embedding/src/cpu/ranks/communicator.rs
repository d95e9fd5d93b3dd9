//! Communication of ranks that are threads of one process: a channel for each pair of them, and collectives built on
//! these.
//!
//! Every sum over ranks is computed once, in the order of ranks, and then distributed: all ranks get the same bits.

use std::any::Any;
use std::sync::mpsc::{Receiver, Sender, channel};

use rankine_topology::{Rank, Topology, split_range};

use crate::traffic::{LinkTraffic, Traffic};

type Packet = Box<dyn Any + Send>;

/// One rank's end of all channels. Ranks must make the same calls in the same order, as with any collective.
///
/// If a rank is dropped early, by a panic for example, the calls of all others panic too, so no rank waits forever.
#[derive(Debug)]
pub struct Communicator {
    topology: Topology,
    rank: Rank,
    to: Vec<Sender<Packet>>,
    from: Vec<Receiver<Packet>>,
    exchange: Traffic,
    reduction: Traffic,
}

/// Some of the ranks, including this one; see [`Topology`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// In the order of local ranks.
    Node,
    /// In the order of their nodes.
    Rail,
}

/// Several lists for one rank, one per stream.
pub(super) type Lists<T> = Vec<Vec<T>>;

impl Communicator {
    /// One end for each rank, connected to all others.
    pub fn connect(topology: Topology) -> Vec<Self> {
        let ranks = topology.ranks();
        let mut ends: Vec<_> = topology
            .all_ranks()
            .map(|rank| Self {
                topology,
                rank,
                to: Vec::new(),
                from: Vec::new(),
                exchange: Traffic::default(),
                reduction: Traffic::default(),
            })
            .collect();
        for from in 0..ranks {
            for to in 0..ranks {
                let (sender, receiver) = channel();
                ends[from].to.push(sender);
                ends[to].from.push(receiver);
            }
        }
        ends
    }

    /// This end's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Bytes that this rank has sent to exchange rows.
    pub fn exchange_traffic(&self) -> Traffic {
        self.exchange
    }

    /// Bytes that this rank has sent in [`Communicator::all_reduce`], [`Communicator::reduce_scatter`] and
    /// [`Communicator::all_gather`].
    pub fn reduction_traffic(&self) -> Traffic {
        self.reduction
    }

    pub(super) fn group(&self, group: Group) -> Vec<Rank> {
        match group {
            Group::Node => self.topology.node_group(self.rank),
            Group::Rail => self.topology.rail_group(self.rank),
        }
    }

    /// Sends each of some ranks, including this one, its packet, and returns the packets that they sent to this one.
    ///
    /// # Panics
    /// If a rank has gone, or has made a different call.
    pub(super) fn swap<T: Send + 'static>(&self, ranks: &[Rank], packets: Vec<T>) -> Vec<T> {
        for (&rank, packet) in ranks.iter().zip(packets) {
            self.to[rank.0].send(Box::new(packet)).unwrap_or_else(|_| panic!("rank {rank} has gone"));
        }
        let receive = |&rank: &Rank| -> T {
            let packet = self.from[rank.0].recv().unwrap_or_else(|_| panic!("rank {rank} has gone"));
            *packet
                .downcast()
                .unwrap_or_else(|_| panic!("rank {rank} made a different call from rank {}", self.rank))
        };
        ranks.iter().map(receive).collect()
    }

    /// The maximum of a value over the ranks of a group.
    fn max(&self, ranks: &[Rank], value: usize) -> usize {
        self.swap(ranks, vec![value; ranks.len()]).into_iter().fold(0, usize::max)
    }

    /// Replaces each value by its sum over all ranks. For a few numbers; not counted as traffic.
    pub fn sum(&self, values: &mut [f64]) {
        let ranks: Vec<_> = self.topology.all_ranks().collect();
        let of_ranks = self.swap(&ranks, vec![values.to_vec(); ranks.len()]);
        values.fill(0.0);
        for theirs in of_ranks {
            values.iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
        }
    }

    /// Exchanges lists between the ranks of a group; `widths` are the elements per item of each stream. Along a rail
    /// the lists are sent in rounds of at most `round_items` items per stream, padded to that length.
    pub(super) fn exchange<T: Copy + Send + 'static>(
        &mut self,
        group: Group,
        round_items: &[usize],
        widths: &[usize],
        mut outgoing: Vec<Lists<T>>,
    ) -> Vec<Lists<T>> {
        let ranks = self.group(group);
        let bytes = |items: usize, width: usize| (items * width * size_of::<T>()) as u64;
        let mut rounds = 1;
        if group == Group::Rail {
            let items = outgoing.iter().flat_map(|lists| lists.iter().zip(widths).zip(round_items));
            let rounds_of = |((list, width), of_round): ((&Vec<T>, &usize), &usize)| {
                (list.len() / width).div_ceil(*of_round)
            };
            rounds = self.max(&ranks, items.map(rounds_of).max().unwrap_or(0));
        }
        for (&rank, lists) in ranks.iter().zip(&outgoing).filter(|&(&rank, _)| rank != self.rank) {
            for ((list, &width), of_round) in lists.iter().zip(widths).zip(round_items) {
                let sent = bytes(list.len() / width, width);
                let padded = if group == Group::Rail { bytes(rounds * of_round, width) } else { sent };
                let link = link_to(self.topology, self.rank, rank, &mut self.exchange);
                link.bytes += sent;
                link.padding_bytes += padded - sent;
            }
        }
        if rounds == 1 {
            return self.swap(&ranks, outgoing);
        }
        let mut incoming = vec![vec![Vec::new(); widths.len()]; ranks.len()];
        for _ in 0..rounds {
            let round = outgoing.iter_mut().map(|lists| -> Lists<T> {
                let of_round = |((list, width), items): ((&mut Vec<T>, &usize), &usize)| {
                    let rest = list.split_off(list.len().min(items * width));
                    std::mem::replace(list, rest)
                };
                lists.iter_mut().zip(widths).zip(round_items).map(of_round).collect()
            });
            for (lists, more) in incoming.iter_mut().zip(self.swap(&ranks, round.collect())) {
                lists.iter_mut().zip(more).for_each(|(list, more): (&mut Vec<T>, _)| list.extend(more));
            }
        }
        incoming
    }

    /// Counts vectors that are sent to the ranks of a group.
    pub(super) fn count_rows(&mut self, group: Group, rows: impl Iterator<Item = usize>) {
        for (rank, rows) in self.group(group).into_iter().zip(rows) {
            if rank != self.rank {
                link_to(self.topology, self.rank, rank, &mut self.exchange).rows += rows as u64;
            }
        }
    }

    /// Exchanges lists between ranks that need not form a group, and counts their bytes.
    pub(super) fn swap_counted(&mut self, ranks: &[Rank], lists: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        for (&rank, list) in ranks.iter().zip(&lists).filter(|&(&rank, _)| rank != self.rank) {
            let link = link_to(self.topology, self.rank, rank, &mut self.exchange);
            link.bytes += size_of_val(list.as_slice()) as u64;
        }
        self.swap(ranks, lists)
    }

    /// Replaces each element by its sum over all ranks, in f32: within each node in the order of ranks, then over the
    /// nodes.
    pub fn all_reduce(&mut self, data: &mut [f32]) {
        self.reduce_scatter(data);
        self.all_gather(data);
    }

    /// Sums as [`Communicator::all_reduce`] does, but only this rank's [`Topology::part`] has the result; the other
    /// elements are undefined afterwards.
    pub fn reduce_scatter(&mut self, data: &mut [f32]) {
        let of_rail = self.topology.rail_part(data.len(), self.rank);
        self.reduce_scatter_in(Group::Node, data);
        self.reduce_scatter_in(Group::Rail, &mut data[of_rail]);
    }

    /// Gives every rank the parts of all ranks.
    pub fn all_gather(&mut self, data: &mut [f32]) {
        let of_rail = self.topology.rail_part(data.len(), self.rank);
        self.all_gather_in(Group::Rail, &mut data[of_rail]);
        self.all_gather_in(Group::Node, data);
    }

    fn reduce_scatter_in(&mut self, group: Group, data: &mut [f32]) {
        let ranks = self.group(group);
        let whole = 0..data.len();
        let piece = |number| split_range(whole.clone(), ranks.len(), number);
        let pieces: Vec<_> = (0..ranks.len()).map(|number| data[piece(number)].to_vec()).collect();
        self.count_reduction(&ranks, pieces.iter().map(Vec::len));
        let own = ranks.iter().position(|&rank| rank == self.rank).expect("a rank is in its own groups");
        let of_ranks = self.swap(&ranks, pieces);
        let sums = &mut data[piece(own)];
        sums.fill(0.0);
        for theirs in of_ranks {
            sums.iter_mut().zip(theirs).for_each(|(sum, value)| *sum += value);
        }
    }

    fn all_gather_in(&mut self, group: Group, data: &mut [f32]) {
        let ranks = self.group(group);
        let own = ranks.iter().position(|&rank| rank == self.rank).expect("a rank is in its own groups");
        let whole = 0..data.len();
        let piece = data[split_range(whole.clone(), ranks.len(), own)].to_vec();
        self.count_reduction(&ranks, ranks.iter().map(|_| piece.len()));
        let pieces = self.swap(&ranks, vec![piece; ranks.len()]);
        for (number, piece) in pieces.into_iter().enumerate() {
            data[split_range(whole.clone(), ranks.len(), number)].copy_from_slice(&piece);
        }
    }

    fn count_reduction(&mut self, ranks: &[Rank], elements: impl Iterator<Item = usize>) {
        for (&rank, elements) in ranks.iter().zip(elements).filter(|&(&rank, _)| rank != self.rank) {
            let link = link_to(self.topology, self.rank, rank, &mut self.reduction);
            link.bytes += (elements * size_of::<f32>()) as u64;
        }
    }
}

fn link_to(topology: Topology, from: Rank, to: Rank, traffic: &mut Traffic) -> &mut LinkTraffic {
    if topology.node_of(from) == topology.node_of(to) {
        &mut traffic.within_nodes
    } else {
        &mut traffic.between_nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Runs a function on every rank and returns the results.
    fn on_all<T: Send>(topology: Topology, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let ranks: Vec<_> = Communicator::connect(topology)
                .into_iter()
                .map(|communicator| scope.spawn(|| run(communicator)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_are_complete_and_the_same_everywhere() {
        for (ranks, nodes) in [(1, 1), (3, 1), (4, 2), (6, 3), (3, 3)] {
            let topology = Topology::new(ranks, nodes).unwrap();
            for len in [0, 1, 5, 100] {
                let value = |rank: Rank, i: usize| (rank.0 * 7 + i) as f32 / 3.0;
                let results = on_all(topology, |mut communicator| {
                    let rank = communicator.rank();
                    let mut data: Vec<_> = (0..len).map(|i| value(rank, i)).collect();
                    let mut scattered = data.clone();
                    communicator.all_reduce(&mut data);
                    communicator.reduce_scatter(&mut scattered);
                    let part = topology.part(len, rank);
                    assert_eq!(scattered[part.clone()], data[part]);
                    (data, communicator.reduction_traffic())
                });
                for (data, _) in &results {
                    assert_eq!(data, &results[0].0);
                    for (i, sum) in data.iter().enumerate() {
                        let exact = topology.all_ranks().map(|rank| f64::from(value(rank, i))).sum::<f64>();
                        // Positive numbers: each addition is off by at most the roundoff of the sum.
                        let tolerance = ranks as f64 * exact / f64::from(1 << 24);
                        assert!((f64::from(*sum) - exact).abs() <= tolerance);
                    }
                }
                // For the sum, every element crosses between nodes once per other node, and once on its way back.
                // Here it went there twice.
                let between: u64 = results.iter().map(|(_, sent)| sent.between_nodes.bytes).sum();
                assert_eq!(between, 3 * 4 * len as u64 * (nodes as u64 - 1));
                // Within each node every element crosses once per other rank of the node, each way.
                let within: u64 = results.iter().map(|(_, sent)| sent.within_nodes.bytes).sum();
                assert_eq!(within, 3 * 4 * (len * (ranks - nodes)) as u64);
            }
        }
    }

    #[test]
    fn long_lists_go_in_rounds_and_arrive_whole() {
        let topology = Topology::new(4, 2).unwrap();
        let results = on_all(topology, |mut communicator| {
            let rank = communicator.rank().0;
            let list =
                |to: usize, stream: usize| vec![(rank * 10 + to) as u32; (rank + 3 * to) * (stream + 1)];
            let outgoing =
                communicator.group(Group::Rail).iter().map(|to| vec![list(to.0, 0), list(to.0, 1)]).collect();
            let incoming = communicator.exchange(Group::Rail, &[2, 3], &[1, 2], outgoing);
            (incoming, communicator.exchange_traffic())
        });
        for (rank, (incoming, sent)) in results.into_iter().enumerate() {
            let rail: Vec<_> = topology.rail_group(Rank(rank)).into_iter().map(|rank| rank.0).collect();
            for (from, lists) in rail.iter().zip(incoming) {
                for (stream, list) in lists.into_iter().enumerate() {
                    assert_eq!(list, vec![(from * 10 + rank) as u32; (from + 3 * rank) * (stream + 1)]);
                }
            }
            let other = rail[1 - topology.node_of(Rank(rank)).0];
            // Per item, one element of 4 bytes in the first stream, two in the second.
            let bytes = 12 * (rank + 3 * other) as u64;
            let longest =
                rail.iter().flat_map(|from| rail.iter().map(move |to| from + 3 * to)).max().unwrap();
            let padded = (longest.div_ceil(2) * (2 * 4 + 3 * 8)) as u64;
            let expected = LinkTraffic { rows: 0, bytes, padding_bytes: padded - bytes };
            assert_eq!(sent, Traffic { within_nodes: LinkTraffic::default(), between_nodes: expected });
        }
    }

    #[test]
    #[should_panic(expected = "has gone")]
    fn nobody_waits_for_a_rank_that_has_gone() {
        let mut ends = Communicator::connect(Topology::new(2, 1).unwrap());
        drop(ends.pop());
        ends[0].sum(&mut [1.0]);
    }
}
