//! Collectives among the ranks of a rail, by NCCL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankine_topology::{Node, Rank};

use super::gate::HostWord;
use super::{Cluster, CopyGate};
use crate::communication::nccl::{Communicator, NcclElement, NcclId, Parcel, Reduction};
use crate::kernels::Stamp;
use crate::runtime::{Error, Lane, Moment, Pointer, Result};

/// How long the host polls for a moment without sleeping, and how long it sleeps between polls after that.
const ATTENTION: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_micros(50);

/// A rank's membership in its rail, for the collectives of one lane: collectives of two lanes could run in different
/// orders on different ranks. It must be dropped after the graphs that captured any of its collectives.
///
/// A collective never ends if a rank does not take part. So the host waits for work with collectives through
/// [`Rail::wait_for`].
#[derive(Debug, Clone)]
pub struct Rail(Arc<Member>);

#[derive(Debug)]
struct Member {
    communicator: Mutex<Communicator>,
    rank: Rank,
    node: Node,
    nodes: usize,
    /// The lane's purpose, for errors.
    what: &'static str,
    deadline: Duration,
    /// Number (from 1) of the collective that the GPU is in, or 0.
    inside: Arc<HostWord>,
    /// Lets copies wait for collectives, and collectives for the copy that is running.
    gate: Option<Arc<CopyGate>>,
    /// Names of the collectives, by number.
    names: Mutex<Vec<&'static str>>,
}

impl Rail {
    pub(super) fn join(cluster: &Cluster, id: NcclId, what: &'static str, collnet: bool) -> Result<Self> {
        let (device, deadline) = (cluster.device(), cluster.deadline());
        let (node, nodes) = (cluster.node().0, cluster.nodes());
        let communicator = match collnet {
            false => Communicator::new(device, id, node, nodes, deadline)?,
            true => Communicator::with_collnet(device, id, node, nodes, deadline)?,
        };
        let inside = Arc::new(HostWord::new(device)?);
        if let Some(gate) = &cluster.gate {
            gate.add_rail(&inside);
        }
        Ok(Self(Arc::new(Member {
            communicator: Mutex::new(communicator),
            rank: cluster.rank(),
            nodes: cluster.nodes(),
            node: cluster.node(),
            what,
            deadline,
            inside,
            gate: cluster.gate.clone(),
            names: Mutex::default(),
        })))
    }

    /// This rank's node, which is its number in the rail.
    pub fn node(&self) -> Node {
        self.0.node
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.0.nodes
    }

    /// The other nodes, starting after this one: so not all ranks send to the same node first.
    pub fn others(&self) -> impl Iterator<Item = Node> + use<> {
        let (node, nodes) = (self.0.node, self.0.nodes);
        (1..nodes).map(move |step| Node((node.0 + step) % nodes))
    }

    /// Enqueues all-reduces over the rail: of f32 values and of a few f64 numbers; either may be empty. All ranks of
    /// the rail get the same bits.
    ///
    /// # Safety
    /// Both buffers must have the given lengths, which must be the same at each rank of the rail; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub unsafe fn sum(
        &self,
        lane: &Lane,
        name: &'static str,
        (values, values_len): (Pointer<f32>, usize),
        (numbers, numbers_len): (Pointer<f64>, usize),
    ) -> Result<()> {
        self.enqueue(lane, name, |communicator| {
            // SAFETY: the caller vouches for the memory.
            communicator.group(|| unsafe {
                if values_len > 0 {
                    communicator.all_reduce(lane, values, values, values_len, Reduction::Sum)?;
                }
                if numbers_len > 0 {
                    communicator.all_reduce(lane, numbers, numbers, numbers_len, Reduction::Sum)?;
                }
                Ok(())
            })
        })
    }

    /// Bytes that this rank sends if `len` f32 values are all-reduced over the rail. NCCL's rings and trees alike send
    /// each value once per other node to be summed, and its sum once per other node; rings give each rank this share.
    pub fn bytes_of_sum(&self, len: usize) -> u64 {
        bytes_of_sum(len, self.node(), self.nodes())
    }

    /// Enqueues sending and receiving parcels, whose ranks are nodes; see [`Communicator::exchange`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub unsafe fn exchange<T: NcclElement>(
        &self,
        lane: &Lane,
        name: &'static str,
        sent: &[Parcel<T>],
        received: &[Parcel<T>],
    ) -> Result<()> {
        // SAFETY: the caller vouches for the memory.
        self.enqueue(lane, name, |communicator| unsafe { communicator.exchange(lane, sent, received) })
    }

    /// Enqueues a collective between two stamps, from which the host knows that the GPU is inside.
    fn enqueue(
        &self,
        lane: &Lane,
        name: &'static str,
        collective: impl FnOnce(&Communicator) -> Result<()>,
    ) -> Result<()> {
        let number = {
            let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
            let known = names.iter().position(|&other| other == name);
            known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let word = self.0.inside.device_pointer()?;
        let copying = self.0.gate.as_ref().map_or(Ok(Pointer::NULL), |gate| gate.copying())?;
        let stamp = |value, awaited| Stamp { word, awaited, value, reserved: 0 };
        // SAFETY: the words live as long as the rail and its gate, which outlive graphs.
        unsafe { lane.launch(&stamp(number as u32 + 1, copying), (1, 1)) }?;
        collective(&self.communicator())?;
        // SAFETY: as above.
        unsafe { lane.launch(&stamp(0, Pointer::NULL), (1, 1)) }
    }

    fn communicator(&self) -> MutexGuard<'_, Communicator> {
        self.0.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a moment has passed that follows collectives of some rails. If it does not pass within the rails'
    /// deadline, or if a collective fails, all rails are aborted.
    ///
    /// # Errors
    /// If work before the moment failed, or if a collective failed or timed out; the error names the collective.
    pub fn wait_for(moment: &Moment, rails: &[&Self]) -> Result<()> {
        let begun = Instant::now();
        while !moment.has_passed()? {
            if begun.elapsed() < ATTENTION {
                thread::yield_now();
                continue;
            }
            Self::check(rails, begun, false)?;
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// Checks the collectives of some rails: whether one failed, timed out since `begun`, or is still running
    /// although a rank is known to be lost. In each case all rails are aborted.
    ///
    /// # Errors
    /// As [`Rail::wait_for`].
    pub fn check(rails: &[&Self], begun: Instant, is_lost: bool) -> Result<()> {
        let failed = rails.iter().find_map(|rail| rail.communicator().check().err());
        let is_late = rails.iter().any(|rail| is_lost || begun.elapsed() > rail.0.deadline);
        let Some(error) = failed.or_else(|| is_late.then(|| Self::late(rails, begun.elapsed()))) else {
            return Ok(());
        };
        rails.iter().for_each(|rail| rail.abort());
        Err(error)
    }

    /// Ends all enqueued collectives, whatever other ranks do; nothing can be enqueued afterwards.
    pub fn abort(&self) {
        self.communicator().abort();
    }

    /// The error for a rank that has waited too long.
    fn late(rails: &[&Self], waited: Duration) -> Error {
        let inside = |rail: &&&Self| {
            let number = rail.0.inside.get() as usize;
            let names = rail.0.names.lock().unwrap_or_else(PoisonError::into_inner);
            Some((rail.0.what, *names.get(number.checked_sub(1)?)?))
        };
        let (lane, collective) =
            rails.iter().find_map(|rail| inside(&rail)).unwrap_or(("the GPU", "no NCCL collective"));
        let (rank, node, nodes) =
            rails.first().map_or((Rank(0), Node(0), 0), |rail| (rail.0.rank, rail.0.node, rail.0.nodes));
        Error::RailLate { rank, node, nodes, lane, collective, waited_ms: waited.as_millis() }
    }
}

/// Bytes that a node sends for a sum of `len` f32 values over `nodes` nodes, each of which sums a piece for all.
fn bytes_of_sum(len: usize, node: Node, nodes: usize) -> u64 {
    let piece = len * (node.0 + 1) / nodes - len * node.0 / nodes;
    (((len - piece) + (nodes - 1) * piece) * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_sent_twice_per_other_node() {
        for (len, nodes) in [(0, 2), (1, 2), (7, 3), (1000, 8), (5, 1)] {
            let sent: u64 = Node::first(nodes).map(|node| bytes_of_sum(len, node, nodes)).sum();
            assert_eq!(sent, (2 * (nodes - 1) * len * 4) as u64);
        }
    }
}
