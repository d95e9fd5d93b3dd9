//! Elements in the memory of a GPU.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;

use super::device::{Device, settle};
use super::error::{DriverResult, Result};
use super::lane::Lane;
use super::memory::Memory;
use super::pointer::Pointer;

/// Elements in a GPU's memory. Kernels change them through their [`Pointer`]; lanes order the accesses.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Memory,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the memory is the GPU's, and the elements that the value stands for are `Pod`.
unsafe impl<T> Send for Buffer<T> {}
// SAFETY: as for `Send`; only kernels change the contents.
unsafe impl<T> Sync for Buffer<T> {}

impl<T: Pod> Buffer<T> {
    /// Allocates memory without initializing it. The device must be current on this thread.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn uninitialized(device: &Arc<Device>, len: usize) -> Result<Self> {
        Ok(Self::in_memory(Memory::new(device, len * size_of::<T>())?, len))
    }

    /// Allocates memory that other GPUs read and write, too, without initializing it. The device must be current on
    /// this thread, and all the others must be able to access it.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn for_peers(device: &Arc<Device>, peers: &[Arc<Device>], len: usize) -> Result<Self> {
        let bytes = len * size_of::<T>();
        let is_alone = peers.iter().all(|peer| peer.ordinal() == device.ordinal());
        let memory =
            if is_alone { Memory::new(device, bytes) } else { Memory::for_peers(device, peers, bytes) };
        Ok(Self::in_memory(memory?, len))
    }

    /// Allocates memory filled with a byte.
    ///
    /// # Errors
    /// If there is not enough memory, or the driver reports an error.
    pub fn filled(device: &Arc<Device>, len: usize, byte: u8) -> Result<Self> {
        let buffer = Self::uninitialized(device, len)?;
        buffer.memory.fill(byte, len * size_of::<T>())?;
        Ok(buffer)
    }

    /// Allocates a copy of host elements.
    ///
    /// # Errors
    /// If there is not enough memory, or the driver reports an error.
    pub fn of(device: &Arc<Device>, elements: &[T]) -> Result<Self> {
        let buffer = Self::uninitialized(device, elements.len())?;
        if !device.ledger().measures() {
            // SAFETY: the buffer has as many bytes as the elements, and nobody else has it yet.
            unsafe { result::memcpy_htod_sync(buffer.pointer().address(), elements) }
                .named("cuMemcpyHtoD")?;
            settle()?;
        }
        Ok(buffer)
    }

    /// Uses the start of some memory as `len` elements.
    pub(crate) fn in_memory(memory: Memory, len: usize) -> Self {
        assert!(len * size_of::<T>() <= memory.bytes(), "{len} elements in {} bytes", memory.bytes());
        Self { memory, len, element: PhantomData }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Fills the buffer by repeating `elements`; the last repetition may be partial.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) fn repeat(&self, elements: &[T]) -> Result<()> {
        let mut done = elements.len().min(self.len);
        // SAFETY: the buffer has at least as many elements.
        unsafe { result::memcpy_htod_sync(self.pointer().address(), &elements[..done]) }
            .named("cuMemcpyHtoD")?;
        while 0 < done && done < self.len {
            let next = done.min(self.len - done);
            let to = self.pointer().element(done).address();
            // SAFETY: the buffer has `done + next` elements, and the two pieces do not overlap.
            unsafe { result::memcpy_dtod_sync(to, self.pointer().address(), next * size_of::<T>()) }
                .named("cuMemcpyDtoD")?;
            done += next;
        }
        settle()
    }

    /// Copies the elements to the host, once the lane has finished all enqueued work.
    ///
    /// # Errors
    /// If work on the lane failed.
    pub fn read(&self, lane: &Lane) -> Result<Vec<T>> {
        lane.read(self.pointer(), self.len)
    }

    /// Copies `len` elements from `first` on, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the buffer has fewer elements.
    ///
    /// # Errors
    /// If work on the lane failed.
    pub fn read_part(&self, lane: &Lane, first: usize, len: usize) -> Result<Vec<T>> {
        assert!(first + len <= self.len, "elements {first} to {} of {}", first + len, self.len);
        lane.read(self.pointer().element(first), len)
    }

    /// Copies elements from `first` on into `to`, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the buffer has fewer elements.
    ///
    /// # Errors
    /// If work on the lane failed.
    pub fn read_into(&self, lane: &Lane, first: usize, to: &mut [T]) -> Result<()> {
        assert!(first + to.len() <= self.len, "elements {first} to {} of {}", first + to.len(), self.len);
        lane.read_into(self.pointer().element(first), to)
    }

    /// Replaces the elements from `first` on, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the buffer has fewer elements.
    ///
    /// # Errors
    /// If work on the lane failed.
    pub fn write_part(&self, lane: &Lane, first: usize, elements: &[T]) -> Result<()> {
        let end = first + elements.len();
        assert!(end <= self.len, "elements {first} to {end} of {}", self.len);
        lane.write(self.pointer().element(first), elements.len(), elements)
    }

    /// Replaces the elements, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If the number of elements is not the buffer's.
    ///
    /// # Errors
    /// If work on the lane failed.
    pub fn write(&self, lane: &Lane, elements: &[T]) -> Result<()> {
        lane.write(self.pointer(), self.len, elements)
    }
}

impl<T> Buffer<T> {
    /// The address of its first element, the same on every GPU that can access it.
    pub fn pointer(&self) -> Pointer<T> {
        Pointer::new(self.memory.address())
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The GPU whose memory it is.
    pub fn device(&self) -> &Arc<Device> {
        self.memory.device()
    }
}
