//! Ranks whose GPUs access each other's memory: what they share, and how they wait for each other.

mod all_reduce;
mod barrier;
mod give_up;
mod sockets;
mod watch;

use std::any::Any;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use rankine_topology::{LocalRank, Node, NodeRanks, Rank};

use crate::kernels::RANKS_MAX;
use crate::runtime::{Buffer, Device, Error, Memory, Pointer, Result};

use super::rendezvous::{Rendezvous, Value};
pub use all_reduce::{AllReduce, AllReduceWay};
pub use barrier::PeerBarrier;
pub use give_up::GiveUpFlag;
pub use sockets::{Gather, GatherError};
use sockets::{Message, Sockets};

/// A rank's membership among GPUs that access each other's memory (an NVLink domain); moved to the rank's thread.
/// Ranks are threads of one process, or processes of one node.
///
/// A *collective call* must be made by all ranks, in the same order. A rank that drops its membership makes no more
/// of them, and ranks that wait for it get an error at once: so it must be held for as long as others may wait. While
/// its device is only measured, a rank waits for nobody, and sees its own value for each peer.
#[derive(Debug)]
pub struct Peers {
    rank: LocalRank,
    ranks: NodeRanks,
    device: Arc<Device>,
    deadline: Duration,
    give_up_flag: Arc<GiveUpFlag>,
    transport: Transport,
}

/// How ranks exchange values.
#[derive(Debug)]
enum Transport {
    /// All in one process; with the GPU of each rank.
    Threads(Arc<Rendezvous>, Vec<Arc<Device>>),
    /// In several processes, each with one or more ranks.
    Processes(Sockets),
}

impl Peers {
    /// Creates the ranks of a node, all in one process: local rank `r` on `devices[r]`. A GPU may have several ranks.
    /// If they measure their memory at the same time, each must have opened the GPU itself. Before the driver is first
    /// used, `CUDA_DEVICE_MAX_CONNECTIONS` must be set to at least the number of their lanes, since lanes on one
    /// connection wait for each other. `deadline` is how long one rank waits for another.
    ///
    /// # Errors
    /// If there are no ranks or more than [`RANKS_MAX`], or a GPU cannot access another one's memory.
    pub fn in_process(devices: &[Arc<Device>], node: Node, deadline: Duration) -> Result<Vec<Self>> {
        if devices.is_empty() || devices.len() > RANKS_MAX {
            return Err(Error::PeersCount { ranks: devices.len(), most: RANKS_MAX });
        }
        for (from, to) in devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to))) {
            if !from.can_access(to)? {
                return Err(Error::NoPeerAccess { from: from.ordinal(), to: to.ordinal() });
            }
        }
        let ranks = NodeRanks { node, count: devices.len() };
        let rendezvous = Arc::new(Rendezvous::new(ranks.rank(LocalRank(0)), ranks.count, deadline));
        let of_rank = |(rank, device)| {
            let give_up_flag = Arc::new(GiveUpFlag::new(device)?);
            let transport = Transport::Threads(Arc::clone(&rendezvous), devices.to_vec());
            let (rank, device) = (LocalRank(rank), Arc::clone(device));
            Ok(Self { rank, ranks, device, deadline, give_up_flag, transport })
        };
        devices.iter().enumerate().map(of_rank).collect()
    }

    /// Creates this process's ranks among the `ranks` ranks of a node: local rank `first + i` on `devices[i]`. All
    /// processes must belong to the same user and see all GPUs of the ranks. They find each other by one exchange
    /// through `gather`, which the launcher provides. Every process must call this. Ranks of one process treat each
    /// other like ranks of other processes.
    ///
    /// # Errors
    /// If there are no ranks or more than [`RANKS_MAX`], if a GPU's memory has no handles for other processes, or if
    /// a process is not reached in time.
    pub fn of_processes(
        devices: &[Arc<Device>],
        node: Node,
        first: LocalRank,
        ranks: usize,
        deadline: Duration,
        gather: &mut Gather<'_>,
    ) -> Result<Vec<Self>> {
        let of_node = NodeRanks { node, count: ranks };
        let own = first.0..first.0 + devices.len();
        if own.is_empty() || own.end > ranks || ranks > RANKS_MAX {
            return Err(Error::PeersCount { ranks, most: RANKS_MAX });
        }
        if let Some((rank, device)) = own.clone().zip(devices).find(|(_, device)| !device.exports_memory()) {
            let why = format!("the memory of GPU {} has no handles for them", device.ordinal());
            return Err(Error::PeersSocket { rank: of_node.rank(LocalRank(rank)), why });
        }
        let sockets = Sockets::connect(of_node, own.clone(), deadline, gather)?;
        let of_rank = |((rank, device), sockets): ((usize, &Arc<Device>), Sockets)| {
            let (give_up_flag, transport) =
                (Arc::new(GiveUpFlag::new(device)?), Transport::Processes(sockets));
            let (rank, ranks) = (LocalRank(rank), of_node);
            Ok(Self { rank, ranks, device: Arc::clone(device), deadline, give_up_flag, transport })
        };
        own.zip(devices).zip(sockets).map(of_rank).collect()
    }

    /// The node.
    pub fn node(&self) -> Node {
        self.ranks.node
    }

    /// This rank, within the node.
    pub fn local_rank(&self) -> LocalRank {
        self.rank
    }

    /// This rank, among those of all nodes, which have the same number of ranks.
    pub fn rank(&self) -> Rank {
        self.ranks.rank(self.rank)
    }

    /// Number of ranks of the node.
    pub fn ranks(&self) -> usize {
        self.ranks.count
    }

    /// This rank's GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The flag that makes this rank's GPU stop waiting for others, usable from any thread.
    pub fn give_up_flag(&self) -> &Arc<GiveUpFlag> {
        &self.give_up_flag
    }

    /// How long a rank waits for another one.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Allocates memory of this rank, filled with a byte, that all ranks access; lengths may differ between ranks. It
    /// takes whole pages of 2 MiB. A collective call; the device must be current on this thread.
    ///
    /// # Errors
    /// If there is not enough memory, here or at another rank, or if a rank does not take part in time.
    pub fn share<T: Pod>(&self, len: usize, byte: u8) -> Result<SharedBuffer<T>> {
        let (device, bytes) = (self.device(), len * size_of::<T>());
        let accessing = match &self.transport {
            Transport::Threads(_, devices) => devices.as_slice(),
            Transport::Processes(_) => &[],
        };
        let own = Memory::for_peers(device, accessing, bytes).and_then(|memory| {
            memory.fill(byte, bytes)?;
            Ok(Arc::new(Buffer::<T>::in_memory(memory, len)))
        });
        if device.ledger().measures() {
            return Ok(SharedBuffer { rank: self.rank, ranks: vec![own?; self.ranks()] });
        }
        let ranks = match &self.transport {
            Transport::Threads(rendezvous, _) => {
                // A rank without memory reports that, so that nobody waits for it.
                let handed: Value = match &own {
                    Ok(buffer) => Arc::clone(buffer) as Value,
                    Err(_) => Arc::new(()),
                };
                let handed = rendezvous.exchange(self.rank.0, handed);
                own?;
                self.downcast(handed?)?
            }
            Transport::Processes(sockets) => self.import(sockets, own)?,
        };
        Ok(SharedBuffer { rank: self.rank, ranks })
    }

    /// Sends handles of this process's memory, and maps that of the others.
    fn import<T: Pod>(&self, sockets: &Sockets, own: Result<Arc<Buffer<T>>>) -> Result<Vec<Arc<Buffer<T>>>> {
        let exported = own.and_then(|own| Ok((own.memory().export()?, own)));
        let (handle, sizes) = match &exported {
            Ok((handle, own)) => (handle.as_ref(), [own.len() as u64, own.bytes() as u64]),
            Err(_) => (None, [0, 0]),
        };
        // As among threads, a rank without memory reports that to the others.
        let handed = sockets.exchange(bytemuck::bytes_of(&sizes), handle.map(AsFd::as_fd));
        let (_, own) = exported?;
        let import = |(other, handed): (usize, Option<Message>)| {
            let Some(Message { value, handle }) = handed else { return Ok(Arc::clone(&own)) };
            let sizes = bytemuck::try_pod_read_unaligned::<[u64; 2]>(&value);
            let (Ok([len, bytes]), Some(handle)) = (sizes, handle) else { return Err(self.stray(other)) };
            if len.checked_mul(size_of::<T>() as u64).is_none_or(|wanted| wanted > bytes) {
                return Err(self.stray(other));
            }
            let memory = Memory::imported(&self.device, &handle, bytes as usize)?;
            Ok(Arc::new(Buffer::in_memory(memory, len as usize)))
        };
        handed?.into_iter().enumerate().map(import).collect()
    }

    /// Sends a small value to all ranks and returns the values of all, in their order. A collective call.
    ///
    /// # Errors
    /// If a rank does not take part in time, or has ended.
    pub fn gather<V: Pod>(&self, value: V) -> Result<Vec<V>> {
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            bytemuck::try_pod_read_unaligned(&bytes).map_err(|_| self.stray(rank))
        };
        self.gather_bytes(bytemuck::bytes_of(&value))?.into_iter().enumerate().map(read).collect()
    }

    /// As [`Peers::gather`], for values of any length, which may differ between ranks.
    pub(crate) fn gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.device().ledger().measures() {
            return Ok(vec![own.to_vec(); self.ranks()]);
        }
        match &self.transport {
            Transport::Threads(rendezvous, _) => {
                let handed =
                    self.downcast::<Vec<u8>>(rendezvous.exchange(self.rank.0, Arc::new(own.to_vec()))?)?;
                Ok(handed.iter().map(|value| value.to_vec()).collect())
            }
            Transport::Processes(sockets) => {
                let handed = sockets.exchange(own, None)?.into_iter();
                Ok(handed.map(|handed| handed.map_or_else(|| own.to_vec(), |handed| handed.value)).collect())
            }
        }
    }

    fn downcast<V: Any + Send + Sync>(&self, values: Vec<Value>) -> Result<Vec<Arc<V>>> {
        let one = |(rank, value): (usize, Value)| value.downcast().map_err(|_| self.stray(rank));
        values.into_iter().enumerate().map(one).collect()
    }

    fn stray(&self, other: usize) -> Error {
        Error::PeersStray { rank: self.rank(), other: self.ranks.rank(LocalRank(other)) }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // A process's sockets are closed when it is dropped.
        if let Transport::Threads(rendezvous, _) = &self.transport {
            rendezvous.leave(self.rank.0);
        }
    }
}

/// Elements in this rank's memory that all ranks access, with the addresses of the others'. It dereferences to this
/// rank's [`Buffer`]. Memory is freed when the last of the ranks has dropped it.
#[derive(Debug)]
pub struct SharedBuffer<T> {
    rank: LocalRank,
    /// Per rank.
    ranks: Vec<Arc<Buffer<T>>>,
}

impl<T> SharedBuffer<T> {
    /// The address, for this rank's GPU, of a rank's first element.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of(&self, rank: LocalRank) -> Pointer<T> {
        self.ranks[rank.0].pointer()
    }

    /// [`SharedBuffer::of`] for each rank, as kernels take it: null after the last rank.
    pub fn of_ranks(&self) -> [Pointer<T>; RANKS_MAX] {
        std::array::from_fn(|rank| self.ranks.get(rank).map_or(Pointer::NULL, |buffer| buffer.pointer()))
    }

    /// Number of elements of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn len_of(&self, rank: LocalRank) -> usize {
        self.ranks[rank.0].len()
    }
}

impl<T> Deref for SharedBuffer<T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.ranks[self.rank.0]
    }
}

impl<T> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        // The last rank to drop a piece waits only for the GPU whose memory it is, so each rank first waits for its
        // own.
        let device = Arc::clone(self.device());
        let _ = device.synchronize();
        self.ranks.clear();
        // Freeing another GPU's memory makes that GPU current.
        let _ = device.bind();
    }
}
