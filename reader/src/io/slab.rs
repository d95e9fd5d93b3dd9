//! Slabs: a bounded ring of buffers, each of which is a permit that is returned when it is dropped.
//!
//! A reader can only start a read once it has a slab, and a slab becomes free only when its consumer drops it.
//! Back-pressure is thus a property of ownership: there is no call to forget.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use memmap2::MmapMut;
use rankine_base::error::{Error, Result};

use super::request::{ReadRequest, SLAB_ALIGN};

/// How long a reader waits for a free slab before it logs a message.
const STARVED_AFTER: Duration = Duration::from_secs(10);

/// Memory that is divided into slabs, such as page-locked memory for a GPU.
///
/// # Safety
/// From construction until drop, [`SlabMemory::as_ptr`] always returns the same pointer and [`SlabMemory::bytes`] the
/// same number; that many initialized bytes after the pointer are valid for reads and writes from any thread, by the
/// CPU and by the kernel; and nothing else reads or writes them.
pub unsafe trait SlabMemory: Send + Sync + 'static {
    /// Returns the first byte, aligned to [`SLAB_ALIGN`].
    fn as_ptr(&self) -> *mut u8;
    /// Returns the number of bytes.
    fn bytes(&self) -> usize;
}

/// Zeroed anonymous pages of this process.
#[derive(Debug)]
pub struct AlignedMemory {
    pages: MmapMut,
}

impl AlignedMemory {
    /// Maps `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] if the system does not have that much memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let pages = MmapMut::map_anon(bytes)
            .map_err(|error| Error::refused(format!("allocate {bytes} bytes for read buffers"), error))?;
        Ok(Self { pages })
    }
}

// SAFETY: the map is private to `pages`, lives as long and starts at a page, whose size is a multiple of 4096.
// Anonymous pages are zero and therefore initialized. `MmapMut::as_ptr` returns the pointer of the map itself, not
// one derived from a reference, and no reference to the pages is ever created through `pages`.
unsafe impl SlabMemory for AlignedMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr().cast_mut()
    }

    fn bytes(&self) -> usize {
        self.pages.len()
    }
}

struct RingMemory {
    memory: Box<dyn SlabMemory>,
    slab_bytes: usize,
    slabs: u32,
    given_back: Sender<u32>,
}

/// A fixed number of slabs of equal size, divided from one allocation. A reader owns it while it reads, and
/// [`super::Reads::close`] returns it.
pub struct SlabRing {
    memory: Arc<RingMemory>,
    free: Receiver<u32>,
}

impl SlabRing {
    /// Divides `memory` into as many slabs of `slab_bytes` as fit.
    ///
    /// # Errors
    /// [`Error::Setting`] if `slab_bytes` is not a multiple of [`SLAB_ALIGN`], or the memory is not aligned to it or
    /// does not hold one slab.
    pub fn new(memory: impl SlabMemory, slab_bytes: usize) -> Result<Self> {
        if slab_bytes == 0 || !slab_bytes.is_multiple_of(SLAB_ALIGN) || u32::try_from(slab_bytes).is_err() {
            let what = format!(
                "a slab cannot have {slab_bytes} bytes: it must be a multiple of {SLAB_ALIGN} below 2^32"
            );
            return Err(Error::setting("slab_bytes", what));
        }
        if !memory.as_ptr().addr().is_multiple_of(SLAB_ALIGN) {
            return Err(Error::setting(
                "memory",
                format!("memory for slabs is not aligned to {SLAB_ALIGN} bytes"),
            ));
        }
        let slabs = u32::try_from(memory.bytes() / slab_bytes).unwrap_or(u32::MAX);
        if slabs == 0 {
            return Err(Error::setting(
                "memory",
                format!("{} bytes of memory do not hold a slab of {slab_bytes}", memory.bytes()),
            ));
        }
        let (given_back, free) = bounded(slabs as usize);
        for index in 0..slabs {
            given_back.try_send(index).expect("the channel has room for every slab");
        }
        let memory = RingMemory { memory: Box::new(memory), slab_bytes, slabs, given_back };
        Ok(Self { memory: Arc::new(memory), free })
    }

    /// Allocates `slabs` slabs of `slab_bytes`.
    ///
    /// # Errors
    /// See [`SlabRing::new`] and [`AlignedMemory::new`].
    pub fn allocate(slabs: usize, slab_bytes: usize) -> Result<Self> {
        let bytes = slabs.checked_mul(slab_bytes).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            Error::setting(
                "slabs",
                format!("{slabs} slabs of {slab_bytes} bytes are empty or exceed the address space"),
            )
        })?;
        Self::new(AlignedMemory::new(bytes)?, slab_bytes)
    }

    /// Returns the number of slabs.
    pub fn slabs(&self) -> u32 {
        self.memory.slabs
    }

    /// Returns the bytes per slab.
    pub fn slab_bytes(&self) -> usize {
        self.memory.slab_bytes
    }

    /// Returns the address of each slab by index, for registering them with the kernel or a GPU.
    pub fn addresses(&self) -> impl Iterator<Item = *mut u8> + '_ {
        (0..self.memory.slabs).map(|index| self.memory.address(index))
    }

    /// Returns a handle that keeps the memory from being freed.
    pub(super) fn keep_alive(&self) -> KeepAlive {
        KeepAlive { _memory: Arc::clone(&self.memory) }
    }

    /// Returns a free slab if there is one.
    pub(super) fn try_take(&self) -> Option<VacantSlab> {
        let index = self.free.try_recv().ok()?;
        Some(VacantSlab { memory: Arc::clone(&self.memory), index })
    }

    /// Waits for a free slab; returns `None` once `stop` is disconnected.
    pub(super) fn take(&self, stop: &Receiver<std::convert::Infallible>) -> Option<VacantSlab> {
        let mut warned = false;
        loop {
            crossbeam_channel::select! {
                recv(self.free) -> index => {
                    let index = index.expect("the ring itself holds a sender");
                    return Some(VacantSlab { memory: Arc::clone(&self.memory), index });
                }
                recv(stop) -> _ => return None,
                default(STARVED_AFTER) => {
                    if !warned {
                        // Expected while the consumer pauses (an evaluation, a checkpoint); a clue if it hangs.
                        tracing::debug!(slabs = self.memory.slabs, "reader waits: the consumer holds every slab");
                        warned = true;
                    }
                }
            }
        }
    }
}

impl fmt::Debug for SlabRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabRing")
            .field("slabs", &self.memory.slabs)
            .field("slab_bytes", &self.memory.slab_bytes)
            .field("free", &self.free.len())
            .finish()
    }
}

impl RingMemory {
    fn address(&self, index: u32) -> *mut u8 {
        // SAFETY: index < slabs, and slabs * slab_bytes are within the memory.
        unsafe { self.memory.as_ptr().add(index as usize * self.slab_bytes) }
    }
}

/// A handle that keeps the memory of a ring alive.
pub(super) struct KeepAlive {
    _memory: Arc<RingMemory>,
}

/// The permit to write into a slab, owned by the reader. Dropping it frees the slab.
pub(super) struct VacantSlab {
    memory: Arc<RingMemory>,
    index: u32,
}

impl VacantSlab {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the first of the slab's bytes. They may be written until the permit is dropped or filled.
    pub(super) fn address(&self) -> *mut u8 {
        self.memory.address(self.index)
    }

    /// Turns the permit to write into one to read, after all writes of the request have completed.
    pub(super) fn filled(self, request: ReadRequest, number: u64) -> Slab {
        assert!(request.bytes as usize <= self.memory.slab_bytes, "a request fits its slab");
        Slab { vacant: self, request, number }
    }
}

impl Drop for VacantSlab {
    fn drop(&mut self) {
        // The channel has capacity for every slab, so sending fails only if the ring is gone, which is fine.
        let _ = self.memory.given_back.try_send(self.index);
    }
}

/// A slab filled with the bytes of a request. Dropping it returns the buffer to the reader.
pub struct Slab {
    vacant: VacantSlab,
    request: ReadRequest,
    number: u64,
}

impl Slab {
    /// Returns the request that it answers.
    pub fn request(&self) -> ReadRequest {
        self.request
    }

    /// Returns the request's number in the plan, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the slab's index in the ring.
    pub fn index(&self) -> u32 {
        self.vacant.index
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slab's bytes are valid and initialized for as long as `memory` lives (`SlabMemory`), which this
        // slab keeps alive. Only the holder of a slab's one permit writes to it, and `filled` has consumed the
        // permit: nothing writes until this slab is dropped, which the borrow rules out.
        unsafe { std::slice::from_raw_parts(self.vacant.address(), self.request.bytes as usize) }
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("index", &self.vacant.index)
            .field("request", &self.request)
            .field("number", &self.number)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: ReadRequest = ReadRequest { file: 0, offset: 0, bytes: 4096 };

    #[test]
    fn a_ring_has_a_fixed_number_of_slabs() {
        let ring = SlabRing::allocate(3, 8192).unwrap();
        assert_eq!((ring.slabs(), ring.slab_bytes()), (3, 8192));
        let slabs: Vec<_> =
            std::iter::from_fn(|| ring.try_take()).map(|slab| slab.filled(REQUEST, 0)).collect();
        assert_eq!(slabs.len(), 3);
        assert!(slabs.iter().all(|slab| slab.bytes() == [0; 4096]));
        drop(slabs);
        assert_eq!(ring.free.len(), 3);
    }

    #[test]
    fn slabs_outlive_their_ring() {
        let ring = SlabRing::allocate(1, 4096).unwrap();
        let slab = ring.try_take().unwrap().filled(REQUEST, 7);
        drop(ring);
        assert_eq!(slab.len(), 4096);
        assert_eq!(slab.number(), 7);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (slabs, bytes) in [(0, 4096), (1, 0), (1, 4095), (1, 512), (usize::MAX, 4096)] {
            assert!(SlabRing::allocate(slabs, bytes).is_err(), "{slabs} x {bytes}");
        }
    }

    #[test]
    fn waiting_ends_when_the_reader_is_stopped() {
        let ring = SlabRing::allocate(1, 4096).unwrap();
        let (stop_out, stop) = bounded(0);
        let held = ring.take(&stop).unwrap();
        let waiting = std::thread::spawn(move || ring.take(&stop).is_none());
        drop(stop_out);
        assert!(waiting.join().unwrap());
        drop(held);
    }
}
