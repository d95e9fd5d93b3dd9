//! What ranks with the same place in their nodes do together, by NCCL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Cluster;
use crate::buffer::Pointer;
use crate::error::{Error, Result};
use crate::kernels::Stamp;
use crate::lane::{Lane, Moment};
use crate::nccl::{Communicator, NcclElement, NcclId, Parcel, Reduction};
use crate::pinned::Pinned;

/// How long the host looks again and again whether a moment has passed, and how long it sleeps between two looks then.
const ATTENTION: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_micros(50);

/// A rank's membership in its rail, for collectives of one lane: those of two lanes could come in another order at
/// another rank. It must be dropped after the graphs that captured any of them.
///
/// A collective that a rank does not come to has no end: so the host waits for what has any in it by
/// [`Rail::wait_for`].
#[derive(Debug, Clone)]
pub struct Rail(Arc<Member>);

#[derive(Debug)]
struct Member {
    communicator: Mutex<Communicator>,
    /// Of the ranks of all nodes.
    rank: usize,
    nodes: usize,
    node: usize,
    /// What its lane is for.
    what: &'static str,
    deadline: Duration,
    /// The collective that the GPU is in, by its number from 1 on; else 0.
    inside: Pinned<u32>,
    /// What the collectives are for, in the order of their numbers.
    names: Mutex<Vec<&'static str>>,
}

// SAFETY: all fields but `inside` are `Sync`; that is memory which the GPU alone changes, and which is read by volatile
// reads.
unsafe impl Sync for Member {}

impl Rail {
    pub(super) fn join(cluster: &Cluster, id: NcclId, what: &'static str) -> Result<Self> {
        let (device, deadline) = (cluster.device(), cluster.deadline());
        let communicator = Communicator::new(device, id, cluster.node(), cluster.nodes(), deadline)?;
        Ok(Self(Arc::new(Member {
            communicator: Mutex::new(communicator),
            rank: cluster.rank(),
            nodes: cluster.nodes(),
            node: cluster.node(),
            what,
            deadline,
            inside: Pinned::zeroed(device, 1)?,
            names: Mutex::default(),
        })))
    }

    /// This rank's node, which is its number in the rail.
    pub fn node(&self) -> usize {
        self.0.node
    }

    /// All nodes.
    pub fn nodes(&self) -> usize {
        self.0.nodes
    }

    /// The other nodes, those behind this one first: so not all send to the same one at first.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (node, nodes) = (self.0.node, self.0.nodes);
        (1..nodes).map(move |step| (node + step) % nodes)
    }

    /// Enqueues sums over the rail: of some f32 values, and of a few f64 numbers; either may be none. All its ranks get
    /// the same bits.
    ///
    /// # Safety
    /// There must be as many elements as are said, as many at each rank of the rail; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where NCCL refuses.
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

    /// Enqueues sending and receiving parcels, whose ranks are nodes; see [`Communicator::exchange`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// Where NCCL refuses.
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

    /// Enqueues a collective between stamps that say so to the host.
    fn enqueue(
        &self,
        lane: &Lane,
        name: &'static str,
        collective: impl FnOnce(&Communicator) -> Result<()>,
    ) -> Result<()> {
        let number = {
            let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
            let place = names.iter().position(|&other| other == name);
            place.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let word = self.0.inside.device_pointer()?;
        let stamp = |value| Stamp { word, value, reserved: 0 };
        // SAFETY: the word lives as long as the rail, which outlives graphs.
        unsafe { lane.launch(&stamp(number as u32 + 1), (1, 1)) }?;
        collective(&self.communicator())?;
        // SAFETY: as above.
        unsafe { lane.launch(&stamp(0), (1, 1)) }
    }

    fn communicator(&self) -> MutexGuard<'_, Communicator> {
        self.0.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a moment has passed that comes behind collectives of some rails. Where it does not within the rails'
    /// deadline, or one of them fails meanwhile, all are aborted.
    ///
    /// # Errors
    /// Where work before the moment failed; where a collective did, or had no end in time: what it was for.
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

    /// Tells what has failed of some rails' collectives, or which of them has no end within the rails' deadline since
    /// the host has waited for them, or at all where a rank is known to be lost; then all are aborted.
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

    /// Ends all that was enqueued, whatever other ranks do; nothing can be enqueued after.
    pub fn abort(&self) {
        self.communicator().abort();
    }

    /// What a rank waits for that has waited too long.
    fn late(rails: &[&Self], waited: Duration) -> Error {
        let inside = |rail: &&&Self| {
            let word = &rail.0.inside.elements()[0];
            // SAFETY: the reference is valid and aligned; a GPU writes words as a whole.
            let number = unsafe { std::ptr::from_ref(word).read_volatile() } as usize;
            let names = rail.0.names.lock().unwrap_or_else(PoisonError::into_inner);
            Some((rail.0.what, *names.get(number.checked_sub(1)?)?))
        };
        let (lane, collective) =
            rails.iter().find_map(|rail| inside(&rail)).unwrap_or(("the GPU", "nothing that NCCL does"));
        let (rank, node, nodes) =
            rails.first().map_or((0, 0, 0), |rail| (rail.0.rank, rail.0.node, rail.0.nodes));
        Error::RailLate { rank, node, nodes, lane, collective, waited_ms: waited.as_millis() }
    }
}
