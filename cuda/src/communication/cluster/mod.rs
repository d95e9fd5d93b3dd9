//! Ranks of one or more nodes. Ranks of a node access each other's memory; between nodes, NCCL carries data along a
//! *rail*, the ranks with the same local rank on every node.

mod gate;
mod rail;
mod sum;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytemuck::Pod;

use rankine_topology::{Node, Rank};

use super::nccl::{CollNet, NcclId};
use super::peers::{GatherError, Peers};
use super::rendezvous::Rendezvous;
use crate::probe::CollNetMissing;
use crate::runtime::{Device, Error, Result};

pub use gate::CopyGate;
pub use rail::Rail;
pub use sum::ClusterSum;

/// Sends a value to the other callers and returns the values of all, in their order; or returns why it failed.
pub type GatherNodes = Box<dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, GatherError> + Send>;

/// A rank's membership in the ranks of all nodes; moved to the rank's thread. All nodes have the same number of
/// ranks, and ranks are numbered node by node.
///
/// Collective calls are as for [`Peers`], but over the ranks of all nodes.
#[derive(Debug)]
pub struct Cluster {
    transport: NodeTransport,
    peers: Peers,
    nodes: usize,
    gate: Option<Arc<CopyGate>>,
}

/// How ranks of several nodes exchange values.
enum NodeTransport {
    /// There is only one node.
    Nobody,
    /// All ranks are threads of this process.
    Threads(Arc<Rendezvous>),
    /// The first rank of each process exchanges values for its node; the other ranks have none.
    Processes(Option<Mutex<GatherNodes>>),
}

impl fmt::Debug for NodeTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::Threads(_) => "Threads",
            Self::Processes(_) => "Processes",
        })
    }
}

impl Cluster {
    /// A cluster of one node.
    pub fn of_node(peers: Peers) -> Self {
        Self { transport: NodeTransport::Nobody, peers, nodes: 1, gate: None }
    }

    /// Ranks of one process, rank `r` on `devices[r]`, split evenly into `nodes` nodes. Several nodes are simulated,
    /// each by some GPUs of this machine; then no GPU may have more than one rank.
    ///
    /// # Panics
    /// If nodes would have unequal numbers of ranks, or none.
    ///
    /// # Errors
    /// As [`Peers::in_process`].
    pub fn in_process(devices: &[Arc<Device>], nodes: usize, deadline: Duration) -> Result<Vec<Self>> {
        assert!(nodes > 0 && devices.len().is_multiple_of(nodes), "nodes have equal numbers of ranks");
        if nodes == 1 {
            return Ok(Peers::in_process(devices, Node(0), deadline)?
                .into_iter()
                .map(Self::of_node)
                .collect());
        }
        let rendezvous = Arc::new(Rendezvous::new(Rank(0), devices.len(), deadline));
        let mut ranks = Vec::new();
        for (node, devices) in devices.chunks(devices.len() / nodes).enumerate() {
            let of_node = Peers::in_process(devices, Node(node), deadline)?.into_iter();
            ranks.extend(of_node.map(|peers| {
                let transport = NodeTransport::Threads(Arc::clone(&rendezvous));
                Self { transport, peers, nodes, gate: None }
            }));
        }
        Ok(ranks)
    }

    /// The ranks of a node that belong to this process. The first of them exchanges values with other processes
    /// through `gather`, which sends a value and returns one per process. All nodes have the same number of
    /// processes, and processes of a node send the same value. So a process may be one rank, some ranks or a node.
    ///
    /// # Panics
    /// If there is no rank.
    pub fn of_process(peers: Vec<Peers>, nodes: usize, gather: GatherNodes) -> Vec<Self> {
        if nodes == 1 {
            return peers.into_iter().map(Self::of_node).collect();
        }
        let mut gather = Some(Mutex::new(gather));
        let rank = |peers: Peers| Self {
            transport: NodeTransport::Processes(gather.take()),
            peers,
            nodes,
            gate: None,
        };
        let ranks: Vec<_> = peers.into_iter().map(rank).collect();
        assert!(!ranks.is_empty(), "a node has at least one rank");
        ranks
    }

    /// Makes copies that pass the gate wait for the collectives of rails that are joined from now on.
    pub fn set_gate(&mut self, gate: Arc<CopyGate>) {
        self.gate = Some(gate);
    }

    /// Returns the gate for copies from the host, if they wait for collectives of rails.
    pub fn gate(&self) -> Option<&CopyGate> {
        self.gate.as_deref()
    }

    /// The ranks of this node.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// This rank's GPU.
    pub fn device(&self) -> &Arc<Device> {
        self.peers.device()
    }

    /// This rank. Ranks are numbered node by node, in the order of local ranks.
    pub fn rank(&self) -> Rank {
        self.peers.rank()
    }

    /// Number of ranks of all nodes.
    pub fn ranks(&self) -> usize {
        self.nodes * self.peers.ranks()
    }

    /// This rank's node.
    pub fn node(&self) -> Node {
        self.peers.node()
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How long a rank waits for another one.
    pub fn deadline(&self) -> Duration {
        self.peers.deadline()
    }

    /// Sends a small value to all ranks and returns the values of all, in their order. A collective call.
    ///
    /// # Errors
    /// If a rank does not call it in time, or has ended.
    pub fn gather<V: Pod>(&self, value: V) -> Result<Vec<V>> {
        let values = self.gather_bytes(bytemuck::bytes_of(&value))?;
        if values.len() != self.ranks() {
            return Err(self.apart(format!("{} ranks answered instead of {}", values.len(), self.ranks())));
        }
        let read = |(other, bytes): (usize, &Vec<u8>)| {
            let stray = Error::PeersStray { rank: self.rank(), other: Rank(other) };
            bytemuck::try_pod_read_unaligned(bytes).map_err(|_| stray)
        };
        values.iter().enumerate().map(read).collect()
    }

    fn gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.device().ledger().measures() {
            return Ok(vec![own.to_vec(); self.ranks()]);
        }
        let hand = |gather: &Mutex<GatherNodes>, own: &[u8]| {
            let mut gather = gather.lock().unwrap_or_else(PoisonError::into_inner);
            gather(own).map_err(|why| self.apart(why.to_string()))
        };
        match &self.transport {
            NodeTransport::Nobody => self.peers.gather_bytes(own),
            NodeTransport::Threads(rendezvous) => {
                let handed = rendezvous.exchange(self.rank().0, Arc::new(own.to_vec()))?;
                let read = |value: &Arc<dyn std::any::Any + Send + Sync>| {
                    value.downcast_ref::<Vec<u8>>().cloned().unwrap_or_default()
                };
                Ok(handed.iter().map(read).collect())
            }
            NodeTransport::Processes(first) => {
                let of_node = self.peers.gather_bytes(own)?;
                // If the first rank fails, the others get nothing, and nobody waits for it.
                let of_all = first.as_ref().map(|gather| hand(gather, &frame(&of_node))).transpose();
                let told = of_all.as_ref().ok().and_then(Option::as_ref).map(|of_all| frame(of_all));
                let told = self.peers.gather_bytes(&told.unwrap_or_default())?;
                of_all?;
                let of_processes = unframe(&told[0]).unwrap_or_default();
                let of_nodes = of_processes.iter().step_by((of_processes.len() / self.nodes).max(1));
                Ok(of_nodes.flat_map(|of_node| unframe(of_node).unwrap_or_default()).collect())
            }
        }
    }

    /// Joins the rail of this rank: creates a communicator for the collectives of one lane, whose purpose `what` is
    /// named in errors. Returns none with one node. A collective call; the device must be current on this thread.
    ///
    /// # Errors
    /// If NCCL is not found or does not initialize, or if not all ranks join in time.
    pub fn join_rail(&self, what: &'static str) -> Result<Option<Rail>> {
        self.join_rail_with(what, CollNet::Off)
    }

    /// The same for a rail whose sums the network may take.
    ///
    /// # Errors
    /// As [`Cluster::join_rail`], and [`Error::NoCollNet`].
    pub fn join_rail_with(&self, what: &'static str, collnet: CollNet) -> Result<Option<Rail>> {
        if self.nodes == 1 {
            return Ok(None);
        }
        let collnet = self.agrees_on(collnet)?;
        // One rank of each rail creates the NCCL id; all zeros mean that it could not.
        let none = || -> NcclId { bytemuck::Zeroable::zeroed() };
        let own = match self.node() == Node(0) && !self.device().ledger().measures() {
            true => NcclId::new(),
            false => Ok(none()),
        };
        let ids = self.gather(*own.as_ref().unwrap_or(&none()))?;
        own?;
        // The first node's rank of this rail.
        let first = self.peers.local_rank().0;
        if ids[first] == none() && !self.device().ledger().measures() {
            return Err(Error::PeersStray { rank: self.rank(), other: Rank(first) });
        }
        Ok(Some(Rail::join(self, ids[first], what, collnet)?))
    }

    /// Whether the network is to sum: only if it can on all ranks. A collective call unless it is off.
    fn agrees_on(&self, collnet: CollNet) -> Result<bool> {
        if collnet == CollNet::Off {
            return Ok(false);
        }
        let own = CollNet::Require.check();
        let of_ranks = self.gather(u8::from(own.is_ok()))?;
        match (of_ranks.iter().position(|&has| has == 0), collnet) {
            (None, _) => Ok(true),
            (Some(_), CollNet::Off | CollNet::Auto) => Ok(false),
            (Some(rank), CollNet::Require) => own.and(Err(Error::NoCollNet(CollNetMissing::Elsewhere(rank)))),
        }
    }

    fn apart(&self, why: String) -> Error {
        Error::Nodes { rank: self.rank(), why }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let NodeTransport::Threads(rendezvous) = &self.transport {
            rendezvous.leave(self.rank().0);
        }
    }
}

/// Concatenates values, each preceded by its length.
fn frame(values: &[Vec<u8>]) -> Vec<u8> {
    let one = |value: &Vec<u8>| [&(value.len() as u32).to_le_bytes(), value.as_slice()].concat();
    values.iter().flat_map(one).collect()
}

/// Splits what [`frame`] has concatenated; none if the bytes are malformed.
fn unframe(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        values.push(value.to_vec());
        bytes = rest;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framed_values_come_back() {
        for values in [vec![], vec![vec![]], vec![vec![1, 2, 3], vec![], vec![0; 300]]] {
            assert_eq!(unframe(&frame(&values)), Some(values));
        }
        assert_eq!(unframe(&[9, 0, 0, 0, 1]), None);
        assert_eq!(unframe(&[9, 0]), None);
    }
}
