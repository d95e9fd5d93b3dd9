//! Page-locked host memory, which GPUs access directly: copies from it are asynchronous, and kernels can write to it.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys;

use super::device::Device;
use super::error::{DriverResult, Result};
use super::pointer::Pointer;

/// Alignment of memory while the device is only measured, the same as the driver's.
const PAGE_BYTES: usize = 4096;

/// Elements in page-locked memory of the host.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    device: Arc<Device>,
    elements: *mut T,
    len: usize,
    /// Layout of ordinary memory, used while the device is only measured.
    measured: Option<Layout>,
}

// SAFETY: the memory is the value's own, and any thread may access it.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates zeros. The device must be current on this thread.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn zeroed(device: &Arc<Device>, len: usize) -> Result<Self> {
        let bytes = (len * size_of::<T>()).max(1);
        if device.ledger().measures() {
            let layout =
                Layout::from_size_align(bytes, PAGE_BYTES).expect("a length of memory is below 2^63");
            // SAFETY: the layout is of one byte or more.
            let address = unsafe { alloc::alloc_zeroed(layout) };
            if address.is_null() {
                alloc::handle_alloc_error(layout);
            }
            let device = Arc::clone(device);
            return Ok(Self { device, elements: address.cast(), len, measured: Some(layout) });
        }
        let mut address: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer is to a live variable.
        unsafe { sys::cuMemHostAlloc(&mut address, bytes, flags) }.result().named("cuMemHostAlloc")?;
        // SAFETY: the memory was just allocated with as many bytes.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { device: Arc::clone(device), elements: address.cast(), len, measured: None })
    }

    /// The elements. What kernels write to them is visible once the host knows that the kernels are done.
    pub fn elements(&self) -> &[T] {
        // SAFETY: the memory has `len` elements, aligned to a page, of a type for which any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.elements, self.len) }
    }

    /// The elements, mutable. They must not be changed while a copy reads them.
    pub fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `elements`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.elements, self.len) }
    }

    /// A pointer to the first of them, for writing while others read.
    pub(crate) fn first(&self) -> *mut T {
        self.elements
    }

    /// The elements' address for kernels of the device.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn device_pointer(&self) -> Result<Pointer<T>> {
        if self.measured.is_some() {
            return Ok(Pointer::NULL);
        }
        let mut address = 0;
        // SAFETY: the memory was allocated by `cuMemHostAlloc`, to be mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.elements.cast(), 0) }
            .result()
            .named("cuMemHostGetDevicePointer")?;
        Ok(Pointer::new(address))
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if let Some(layout) = self.measured {
            // SAFETY: the memory was allocated by `zeroed` with this layout, and is freed once.
            return unsafe { alloc::dealloc(self.elements.cast(), layout) };
        }
        let _ = self.device.bind();
        // SAFETY: the memory was allocated by `zeroed` and is freed once; the driver waits for what uses it.
        let _ = unsafe { sys::cuMemFreeHost(self.elements.cast()) };
    }
}

/// Page-locks existing memory, so that a GPU can copy from it asynchronously.
#[derive(Debug)]
pub struct PageLock {
    device: Arc<Device>,
    first: *mut c_void,
}

// SAFETY: the value never dereferences the address.
unsafe impl Send for PageLock {}
// SAFETY: as for `Send`; a shared reference offers no operations.
unsafe impl Sync for PageLock {}

impl PageLock {
    /// Page-locks memory until the value is dropped. The device must be current on this thread.
    ///
    /// # Safety
    /// The memory must live until then.
    ///
    /// # Errors
    /// If the driver reports an error: the memory is locked already, or the limit of locked memory is reached.
    pub unsafe fn new(device: &Arc<Device>, first: *mut u8, bytes: usize) -> Result<Self> {
        let first = first.cast();
        // SAFETY: the caller vouches for the memory.
        unsafe { sys::cuMemHostRegister_v2(first, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }
            .result()
            .named("cuMemHostRegister")?;
        Ok(Self { device: Arc::clone(device), first })
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the memory was locked by `new` and is unlocked once.
        let _ = unsafe { sys::cuMemHostUnregister(self.first) };
    }
}
