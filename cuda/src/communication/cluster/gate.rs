//! Keeps copies from the host to a GPU apart from the GPU's transfers to and from other nodes.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::runtime::{Device, Lane, PinnedBuffer, Pointer, Result};

/// Bytes of a piece of a copy. A transfer that begins meanwhile waits for it: about ten microseconds over PCIe 5.
const PIECE_BYTES: usize = 512 << 10;

/// How long a copy waits. Transfers take less; one that takes longer waits for a rank, and that rank may be waiting for
/// this copy.
const PATIENCE: Duration = Duration::from_millis(2);

/// A GPU's gate: copies from the host that pass it run while none of the GPU's rails transfers. A network card and a
/// GPU may share PCIe, so a copy can delay the transfer that a whole step waits for.
///
/// The host waits before it enqueues a copy: a lane that waited on the GPU could hold up other lanes.
#[derive(Debug)]
pub struct CopyGate {
    /// 1 while a copy runs.
    copying: HostWord,
    /// Held by the thread that copies.
    turn: Mutex<()>,
    rails: Mutex<Vec<Arc<HostWord>>>,
}

/// A word in page-locked memory, by which the host and a GPU tell each other what they are doing.
#[derive(Debug)]
pub(super) struct HostWord(PinnedBuffer<u32>);

// SAFETY: the host and the GPU read and write the word as a whole, by volatile accesses.
unsafe impl Sync for HostWord {}

impl HostWord {
    /// Allocates a word of 0 for a device, which must be current on this thread.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self(PinnedBuffer::zeroed(device, 1)?))
    }

    pub(super) fn device_pointer(&self) -> Result<Pointer<u32>> {
        self.0.device_pointer()
    }

    pub(super) fn get(&self) -> u32 {
        // SAFETY: the memory is allocated and aligned; a GPU writes words as a whole.
        unsafe { self.0.first().read_volatile() }
    }

    fn set(&self, value: u32) {
        // SAFETY: as for `get`.
        unsafe { self.0.first().write_volatile(value) };
    }
}

impl CopyGate {
    /// Creates the gate of a GPU, which must be current on this thread.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self { copying: HostWord::new(device)?, turn: Mutex::default(), rails: Mutex::default() })
    }

    /// Adds a rail, whose word is not 0 while it transfers.
    pub(super) fn add_rail(&self, transfers: &Arc<HostWord>) {
        self.rails.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(transfers));
    }

    /// Returns the word that is 1 while a copy runs.
    pub(super) fn copying(&self) -> Result<Pointer<u32>> {
        self.copying.device_pointer()
    }

    /// Copies page-locked bytes to the GPU. With a gate, pieces of them are copied while no rail transfers, and this
    /// waits until all have been copied; without one, this only enqueues the copy.
    ///
    /// # Safety
    /// As for [`Lane::upload_bytes`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn upload(gate: Option<&Self>, lane: &Lane, from: &[u8], to: Pointer<u8>) -> Result<()> {
        let Some(gate) = gate else {
            // SAFETY: the caller vouches for the memory.
            return unsafe { lane.upload_bytes(from, to) };
        };
        // The GPU's transfers must wait for the copy alone, and not for what the lane does before.
        lane.synchronize()?;
        for (number, piece) in from.chunks(PIECE_BYTES).enumerate() {
            // SAFETY: the caller vouches for the memory.
            gate.pass(|| unsafe {
                lane.upload_bytes(piece, to.element(number * PIECE_BYTES))?;
                lane.synchronize()
            })?;
        }
        Ok(())
    }

    /// Runs a copy once no rail transfers. Each side first announces itself, and then looks at the other's word: so at
    /// least one of them waits.
    fn pass(&self, copy: impl FnOnce() -> Result<()>) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let transfers = || rails.iter().any(|rail| rail.get() != 0);
        let begun = Instant::now();
        loop {
            self.copying.set(1);
            fence(Ordering::SeqCst);
            if !transfers() || begun.elapsed() > PATIENCE {
                break;
            }
            self.copying.set(0);
            while transfers() && begun.elapsed() <= PATIENCE {
                std::thread::yield_now();
            }
        }
        let copied = copy();
        self.copying.set(0);
        copied
    }
}
