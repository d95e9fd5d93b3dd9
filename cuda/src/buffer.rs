//! Memory of a GPU that only it accesses, and addresses in such memory.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{result, sys};

use crate::device::Device;
use crate::error::{Named, Result};
use crate::lane::{Lane, settle};

/// An address in a GPU's memory, as kernels' parameters have it. Whoever launches a kernel vouches for it.
#[repr(transparent)]
pub struct Pointer<T> {
    address: u64,
    element: PhantomData<*mut T>,
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> std::fmt::Debug for Pointer<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:#x}", self.address)
    }
}

// SAFETY: an address is a number; only kernels follow it.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Pointer<T> {}

impl<T> Pointer<T> {
    /// No address.
    pub const NULL: Self = Self::new(0);

    pub(crate) const fn new(address: u64) -> Self {
        Self { address, element: PhantomData }
    }

    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// The same address, of other elements.
    pub fn cast<U>(self) -> Pointer<U> {
        Pointer::new(self.address)
    }

    /// The address of another element of the same buffer.
    pub fn element(self, index: usize) -> Self {
        Self::new(self.address + (index * size_of::<T>()) as u64)
    }
}

/// Elements in a GPU's memory. Kernels change them by their [`Pointer`]; the lane orders who does when.
#[derive(Debug)]
pub struct Buffer<T> {
    device: Arc<Device>,
    pointer: Pointer<T>,
    len: usize,
}

impl<T: Pod> Buffer<T> {
    /// Memory with whatever lay there before. The device must be the current one of this thread.
    ///
    /// # Errors
    /// Where the memory does not suffice.
    pub fn uninitialized(device: &Arc<Device>, len: usize) -> Result<Self> {
        // SAFETY: any bytes are valid for a `Pod`; the driver refuses lengths of 0.
        let address = unsafe { result::malloc_sync((len * size_of::<T>()).max(1)) }.named("cuMemAlloc")?;
        Ok(Self { device: Arc::clone(device), pointer: Pointer::new(address), len })
    }

    /// Memory filled with a byte.
    ///
    /// # Errors
    /// Where the memory does not suffice, or the driver refuses.
    pub fn filled(device: &Arc<Device>, len: usize, byte: u8) -> Result<Self> {
        let buffer = Self::uninitialized(device, len)?;
        // SAFETY: the buffer has this many bytes, and nobody else has it yet.
        unsafe { result::memset_d8_sync(buffer.pointer.address(), byte, len * size_of::<T>()) }
            .named("cuMemsetD8")?;
        settle()?;
        Ok(buffer)
    }

    /// A copy of elements of the host.
    ///
    /// # Errors
    /// Where the memory does not suffice, or the driver refuses.
    pub fn of(device: &Arc<Device>, elements: &[T]) -> Result<Self> {
        let buffer = Self::uninitialized(device, elements.len())?;
        // SAFETY: the buffer has as many bytes as the elements, and nobody else has it yet.
        unsafe { result::memcpy_htod_sync(buffer.pointer.address(), elements) }.named("cuMemcpyHtoD")?;
        settle()?;
        Ok(buffer)
    }

    /// The elements, once the lane has done all that was enqueued on it.
    ///
    /// # Errors
    /// Where work that was enqueued on the lane failed.
    pub fn read(&self, lane: &Lane) -> Result<Vec<T>> {
        lane.read(self.pointer, self.len)
    }

    /// `len` elements from `first` on, once the lane has done all that was enqueued on it.
    ///
    /// # Panics
    /// Where the buffer has not as many.
    ///
    /// # Errors
    /// Where work that was enqueued on the lane failed.
    pub fn read_part(&self, lane: &Lane, first: usize, len: usize) -> Result<Vec<T>> {
        assert!(first + len <= self.len, "elements {first} to {} of {}", first + len, self.len);
        lane.read(self.pointer.element(first), len)
    }

    /// Replaces the elements, once the lane has done all that was enqueued on it.
    ///
    /// # Panics
    /// Where there are more or fewer elements than the buffer has.
    ///
    /// # Errors
    /// Where work that was enqueued on the lane failed.
    pub fn write(&self, lane: &Lane, elements: &[T]) -> Result<()> {
        lane.write(self.pointer, self.len, elements)
    }

    /// Where its first element lies.
    pub fn pointer(&self) -> Pointer<T> {
        self.pointer
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // The driver frees once all work is done. A failure means that the context is lost, and the memory with it.
        let _ = self.device.bind();
        let address: sys::CUdeviceptr = self.pointer.address();
        // SAFETY: the memory was allocated by `uninitialized` and is freed once.
        let _ = unsafe { result::free_sync(address) };
    }
}
