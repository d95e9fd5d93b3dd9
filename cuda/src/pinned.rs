//! Memory of the host that GPUs access themselves: copies from it do not wait for the host, and kernels can write to
//! it.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys;

use crate::buffer::Pointer;
use crate::device::Device;
use crate::error::{Named, Result};

/// What the memory that measuring gets begins at a multiple of, as the driver's does.
const PAGE_BYTES: usize = 4096;

/// Elements in page-locked memory of the host.
#[derive(Debug)]
pub struct Pinned<T> {
    device: Arc<Device>,
    elements: *mut T,
    len: usize,
    /// Of memory that is not page-locked, since the device was only measured.
    measured: Option<Layout>,
}

// SAFETY: the memory is the value's own, and any thread may access it.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Zeros. The device must be the current one of this thread.
    ///
    /// # Errors
    /// Where the driver refuses.
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

    /// The elements. What kernels write to them is seen once the host knows that they are done.
    pub fn elements(&self) -> &[T] {
        // SAFETY: the memory has `len` elements, aligned to a page, of a type for which any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.elements, self.len) }
    }

    /// The elements, to be changed while no copy reads them.
    pub fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `elements`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.elements, self.len) }
    }

    /// The first of them, for whoever writes while others look.
    pub(crate) fn first(&self) -> *mut T {
        self.elements
    }

    /// Their address for kernels of the device.
    ///
    /// # Errors
    /// Where the driver refuses.
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

impl<T> Drop for Pinned<T> {
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

/// Keeps memory of somebody else's in place, so that a GPU copies from it by itself.
#[derive(Debug)]
pub struct Locked {
    device: Arc<Device>,
    first: *mut c_void,
}

// SAFETY: the address is a number to this value, which follows it nowhere.
unsafe impl Send for Locked {}
// SAFETY: as for `Send`; there is nothing to do with a shared one.
unsafe impl Sync for Locked {}

impl Locked {
    /// Locks memory until the value is dropped. The device must be the current one of this thread.
    ///
    /// # Safety
    /// The memory must live until then.
    ///
    /// # Errors
    /// Where the driver refuses: the memory is locked already, or there is not as much that can be.
    pub unsafe fn new(device: &Arc<Device>, first: *mut u8, bytes: usize) -> Result<Self> {
        let first = first.cast();
        // SAFETY: the caller vouches for the memory.
        unsafe { sys::cuMemHostRegister_v2(first, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }
            .result()
            .named("cuMemHostRegister")?;
        Ok(Self { device: Arc::clone(device), first })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the memory was locked by `new` and is unlocked once.
        let _ = unsafe { sys::cuMemHostUnregister(self.first) };
    }
}
