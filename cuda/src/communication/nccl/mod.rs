//! NCCL: communication of ranks that cannot access each other's memory because they are on different nodes.
//!
//! The library is loaded only when the first communicator is created. Connections are made by the first collective of
//! a kind and size, so a collective must run once before it is captured.

mod library;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use crate::runtime::{Device, Error, Lane, Pointer, Result};

pub use library::NcclId;
use library::{Calls, Config, Handle, IN_PROGRESS, InitRankConfig, Status};

use crate::probe::{CollNetMissing, collnet_plugin};

/// Checks that NCCL is installed in a supported version.
///
/// # Errors
/// [`Error::NoNccl`].
pub fn check_library() -> Result<()> {
    Calls::load().map(drop)
}

/// Whether the network sums instead of the GPUs, in communicators with nothing but sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CollNet {
    /// By NCCL's default, it does not.
    #[default]
    Off,
    /// If NCCL and a plugin support it.
    Auto,
    /// It must.
    Require,
}

impl CollNet {
    /// Checks that CollNet is available to this process if it is required.
    ///
    /// # Errors
    /// [`Error::NoCollNet`].
    pub fn check(self) -> Result<()> {
        if self == Self::Require { check_collnet().map_err(Error::NoCollNet) } else { Ok(()) }
    }
}

/// Checks that NCCL and a plugin for CollNet are installed. Whether the switches can sum shows only when NCCL connects;
/// if they cannot, the GPUs sum.
///
/// # Errors
/// What is missing.
pub fn check_collnet() -> std::result::Result<(), CollNetMissing> {
    let calls = Calls::load().map_err(|error| CollNetMissing::NoNccl(error.to_string()))?;
    calls.configured()?;
    collnet_plugin().map(drop)
}

/// Element types that NCCL sums and sends.
///
/// # Safety
/// `KIND` must be the `ncclDataType_t` of the type.
pub unsafe trait NcclElement {
    /// The type's number in nccl.h.
    const KIND: i32;
}

macro_rules! elements {
    ($($element:ty = $kind:literal),+) => {
        $(
            // SAFETY: nccl.h has this number for it.
            unsafe impl NcclElement for $element {
                const KIND: i32 = $kind;
            }
        )+
    };
}

elements!(u8 = 1, i32 = 2, u32 = 3, i64 = 4, u64 = 5, f16 = 6, f32 = 7, f64 = 8, bf16 = 9);

/// How elements of several ranks are combined: `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum = 0,
    /// The maximum.
    Max = 2,
    /// The minimum.
    Min = 3,
}

/// Consecutive elements that are sent to a rank, or received from it.
#[derive(Debug, Clone, Copy)]
pub struct Parcel<T> {
    /// The other rank, or this one.
    pub rank: usize,
    /// Their address.
    pub pointer: Pointer<T>,
    /// How many elements.
    pub len: usize,
}

/// How long the host sleeps between two looks at a call in the background.
const NAP: Duration = Duration::from_micros(50);

/// A rank's membership in an NCCL communicator. It must be dropped after the graphs that captured any of its
/// collectives.
///
/// All ranks must enqueue the same collectives in the same order. A collective in which a rank does not take part
/// never ends: a caller that waits for one must call [`Communicator::abort`] when that takes too long.
#[derive(Debug)]
pub struct Communicator {
    device: Arc<Device>,
    calls: Calls,
    /// None if the device was only measured, and after an abort.
    handle: Option<Membership>,
    rank: usize,
    ranks: usize,
    /// How long a call may continue in the background.
    deadline: Duration,
}

/// `ncclComm_t`. Any thread may use it, but only one at a time.
#[derive(Debug)]
struct Membership(Handle);

// SAFETY: the library allows the use of a communicator from any thread, one at a time; `Communicator` is not `Sync`.
unsafe impl Send for Membership {}

impl NcclId {
    /// Creates the id of a new communicator, to be sent to its other ranks.
    ///
    /// # Errors
    /// If NCCL is not found, or finds no network.
    pub fn new() -> Result<Self> {
        Calls::load()?.unique_id()
    }
}

impl Communicator {
    /// Joins the ranks that have the id, each with its own GPU. Waits for all of them up to `deadline`; after that, a
    /// thread of the process keeps waiting.
    ///
    /// # Errors
    /// If NCCL is not found or does not initialize, or if not all ranks join in time.
    pub fn new(
        device: &Arc<Device>,
        id: NcclId,
        rank: usize,
        ranks: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let calls = Calls::load()?;
        let handle = match device.ledger().measures() {
            true => None,
            false => Some(join(calls, device, id, rank, ranks, deadline)?),
        };
        Ok(Self { device: Arc::clone(device), calls, handle, rank, ranks, deadline })
    }

    /// The same with sums by the network, where it can take them; otherwise the GPUs sum. No thread keeps waiting after
    /// `deadline`.
    ///
    /// # Errors
    /// As [`Communicator::new`], and [`Error::NoCollNet`] if NCCL is too old.
    pub fn with_collnet(
        device: &Arc<Device>,
        id: NcclId,
        rank: usize,
        ranks: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let calls = Calls::load()?;
        let init = calls.configured().map_err(Error::NoCollNet)?;
        let mut joined = Self { device: Arc::clone(device), calls, handle: None, rank, ranks, deadline };
        if !device.ledger().measures() {
            joined.join_without_blocking(id, init)?;
        }
        Ok(joined)
    }

    /// Joins through a call that returns at once; if that does not succeed in time, aborts it.
    fn join_without_blocking(&mut self, id: NcclId, init: InitRankConfig) -> Result<()> {
        self.device.bind()?;
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::with_collnet());
        // SAFETY: both pointers are to live variables, which NCCL reads before it returns; the id is plain bytes.
        let status = unsafe { init(&mut handle, self.ranks as i32, id, self.rank as i32, &mut config) };
        if handle.is_null() {
            return self.calls.named(status, "ncclCommInitRankConfig").and(Err(Error::Nccl {
                call: "ncclCommInitRankConfig",
                words: "it returned no communicator".into(),
            }));
        }
        self.handle = Some(Membership(handle));
        self.finish(handle, status, "ncclCommInitRankConfig").inspect_err(|_| self.abort())
    }

    /// Waits for a call that continues in the background, as only calls of communicators that do not block do.
    fn finish(&self, handle: Handle, status: Status, call: &'static str) -> Result<()> {
        if status != IN_PROGRESS {
            return self.calls.named(status, call);
        }
        let begun = Instant::now();
        loop {
            let mut state = 0;
            // SAFETY: communicator and state live.
            let asked = unsafe { (self.calls.async_error)(handle, &mut state) };
            self.calls.named(asked, "ncclCommGetAsyncError")?;
            if state != IN_PROGRESS {
                return self.calls.named(state, call);
            }
            if begun.elapsed() > self.deadline {
                let deadline_ms = self.deadline.as_millis();
                return Err(Error::NcclLate { rank: self.rank, ranks: self.ranks, deadline_ms });
            }
            thread::sleep(NAP);
        }
    }

    /// This rank's GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    fn handle(&self, call: &'static str) -> Result<Option<Handle>> {
        match &self.handle {
            Some(Membership(handle)) => Ok(Some(*handle)),
            None if self.device.ledger().measures() => Ok(None),
            None => Err(Error::Nccl { call, words: "the communicator was aborted before".into() }),
        }
    }

    /// Enqueues an all-reduce of `len` elements. Input and output may be the same memory.
    ///
    /// # Safety
    /// As for [`Lane::launch`]: both pointers must point to `len` elements.
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub unsafe fn all_reduce<T: NcclElement>(
        &self,
        lane: &Lane,
        from: Pointer<T>,
        to: Pointer<T>,
        len: usize,
        reduction: Reduction,
    ) -> Result<()> {
        let Some(handle) = self.handle("ncclAllReduce")? else { return Ok(()) };
        let (from, to) = (from.address() as *const _, to.address() as *mut _);
        // SAFETY: communicator and stream live; the caller vouches for the memory.
        let status = unsafe {
            (self.calls.all_reduce)(from, to, len, T::KIND, reduction as i32, handle, lane.stream())
        };
        self.finish(handle, status, "ncclAllReduce")
    }

    /// Enqueues copying `len` elements of one rank to all. Input and output may be the same memory.
    ///
    /// # Safety
    /// As for [`Lane::launch`]: both pointers must point to `len` elements.
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub unsafe fn broadcast<T: NcclElement>(
        &self,
        lane: &Lane,
        from: Pointer<T>,
        to: Pointer<T>,
        len: usize,
        root: usize,
    ) -> Result<()> {
        let Some(handle) = self.handle("ncclBroadcast")? else { return Ok(()) };
        let (from, to) = (from.address() as *const _, to.address() as *mut _);
        // SAFETY: communicator and stream live; the caller vouches for the memory.
        let status =
            unsafe { (self.calls.broadcast)(from, to, len, T::KIND, root as i32, handle, lane.stream()) };
        self.finish(handle, status, "ncclBroadcast")
    }

    /// Enqueues sending and receiving parcels, all at the same time. What one rank sends to another must be received
    /// there in the same order and with the same lengths.
    ///
    /// # Safety
    /// As for [`Lane::launch`]: each pointer must point to as many elements as its parcel has.
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub unsafe fn exchange<T: NcclElement>(
        &self,
        lane: &Lane,
        sent: &[Parcel<T>],
        received: &[Parcel<T>],
    ) -> Result<()> {
        let Some(handle) = self.handle("ncclSend")? else { return Ok(()) };
        self.group(|| {
            for Parcel { rank, pointer, len } in sent {
                let from = pointer.address() as *const _;
                // SAFETY: communicator and stream live; the caller vouches for the memory.
                let status =
                    unsafe { (self.calls.send)(from, *len, T::KIND, *rank as i32, handle, lane.stream()) };
                self.finish(handle, status, "ncclSend")?;
            }
            for Parcel { rank, pointer, len } in received {
                let to = pointer.address() as *mut _;
                // SAFETY: as for those that are sent.
                let status =
                    unsafe { (self.calls.receive)(to, *len, T::KIND, *rank as i32, handle, lane.stream()) };
                self.finish(handle, status, "ncclRecv")?;
            }
            Ok(())
        })
    }

    /// Enqueues all collectives that `enqueue` enqueues as one group, which run at the same time.
    ///
    /// # Errors
    /// Those of `enqueue`, and if NCCL reports an error.
    pub fn group(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(handle) = self.handle("ncclGroupStart")? else { return Ok(()) };
        // SAFETY: groups are started and ended by the same thread.
        self.calls.named(unsafe { (self.calls.group_start)() }, "ncclGroupStart")?;
        let enqueued = enqueue();
        // The group must end in any case. If enqueueing failed, its error is returned.
        // SAFETY: it was started above.
        let ended = self.finish(handle, unsafe { (self.calls.group_end)() }, "ncclGroupEnd");
        enqueued.and(ended)
    }

    /// Checks for background errors, such as a broken connection, without waiting.
    ///
    /// # Errors
    /// The background error. After it, enqueued work can be waited for only after [`Communicator::abort`].
    pub fn check(&self) -> Result<()> {
        let Some(handle) = self.handle("ncclCommGetAsyncError")? else { return Ok(()) };
        let mut status = 0;
        // SAFETY: communicator and status live.
        let asked = unsafe { (self.calls.async_error)(handle, &mut status) };
        self.calls.named(asked, "ncclCommGetAsyncError")?;
        match status {
            IN_PROGRESS => Ok(()),
            status => self.calls.named(status, "a collective in the background"),
        }
    }

    /// Ends all enqueued collectives, whatever other ranks do; the results are undefined. Nothing can be enqueued
    /// afterwards.
    pub fn abort(&mut self) {
        if let Some(Membership(handle)) = self.handle.take() {
            let _ = self.device.bind();
            // SAFETY: the communicator was created by `join`, and is released once.
            let _ = unsafe { (self.calls.abort)(handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A failing rank does not wait for the others, nor for those that failed.
        if thread::panicking() || self.check().is_err() {
            self.abort();
        }
        if let Some(Membership(handle)) = self.handle.take() {
            let _ = self.device.bind();
            // SAFETY: the communicator was created by `join`, and is released once.
            let _ = unsafe { (self.calls.destroy)(handle) };
        }
    }
}

/// Creates a communicator on a separate thread, since NCCL waits for the other ranks without a timeout.
fn join(
    calls: Calls,
    device: &Arc<Device>,
    id: NcclId,
    rank: usize,
    ranks: usize,
    deadline: Duration,
) -> Result<Membership> {
    let (sender, receiver) = mpsc::channel();
    let device = Arc::clone(device);
    thread::spawn(move || {
        let make = || {
            device.bind()?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: the pointer is to a live variable; the id is plain bytes.
            let status = unsafe { (calls.init_rank)(&mut handle, ranks as i32, id, rank as i32) };
            calls.named(status, "ncclCommInitRank")?;
            Ok(Membership(handle))
        };
        if let Err(mpsc::SendError(Ok(Membership(handle)))) = sender.send(make()) {
            // SAFETY: the communicator was just created, and nobody waits for it any longer.
            let _ = unsafe { (calls.abort)(handle) };
        }
    });
    let late = |_| Error::NcclLate { rank, ranks, deadline_ms: deadline.as_millis() };
    receiver.recv_timeout(deadline).map_err(late)?
}
