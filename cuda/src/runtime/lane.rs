//! Lanes: work that a GPU executes in order, and moments in it.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{result, sys};

use super::device::{Device, settle};
use super::error::{DriverResult, Result};
use super::kernel::Kernel;
#[cfg(doc)]
use super::pinned::PageLock;
use super::pinned::PinnedBuffer;
use super::pointer::Pointer;

/// A CUDA stream. Work on one lane runs in order; [`Moment`]s order work between lanes.
#[derive(Debug)]
pub struct Lane {
    device: Arc<Device>,
    stream: sys::CUstream,
}

// SAFETY: the driver allows the use of a stream from any thread that has its context current.
unsafe impl Send for Lane {}
// SAFETY: as for `Send`.
unsafe impl Sync for Lane {}

impl Lane {
    /// Creates a lane on the GPU, which must be current on this thread. It does not wait for other lanes.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let (least, _) = result::stream::get_priority_range().named("cuCtxGetStreamPriorityRange")?;
        Self::of_priority(device, least)
    }

    /// Creates a lane whose blocks are scheduled before those of other lanes.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn of_high_priority(device: &Arc<Device>) -> Result<Self> {
        let (_, greatest) = result::stream::get_priority_range().named("cuCtxGetStreamPriorityRange")?;
        Self::of_priority(device, greatest)
    }

    fn of_priority(device: &Arc<Device>, priority: i32) -> Result<Self> {
        let kind = result::stream::StreamKind::NonBlocking;
        let stream =
            result::stream::create_with_priority(kind, priority).named("cuStreamCreateWithPriority")?;
        Ok(Self { device: Arc::clone(device), stream })
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Waits until all enqueued work is done.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.named("cuStreamSynchronize")
    }

    /// Enqueues a kernel: `blocks` along x and y.
    ///
    /// # Safety
    /// The parameters' addresses must point into buffers with the lengths that the kernel's description gives. The
    /// buffers must live, and those that the kernel writes must not be accessed otherwise, until the lane has
    /// finished; if a graph is being captured, for as long as it is replayed.
    ///
    /// # Errors
    /// If the driver reports an error. Errors in the kernel itself appear when the lane is waited for.
    pub unsafe fn launch<K: Kernel>(&self, parameters: &K, blocks: (u32, u32)) -> Result<()> {
        // The driver rejects empty grids, which have nothing to do.
        if self.measures() || blocks.0 == 0 || blocks.1 == 0 {
            return Ok(());
        }
        let function = self.device.functions().function(K::ID);
        let mut pointers = [std::ptr::from_ref(parameters).cast::<c_void>().cast_mut()];
        // SAFETY: the function was loaded in this device's context, and its one parameter is of this type (the
        // build asserts that both sides have the same layout); the driver copies it. The caller vouches for the
        // addresses in it.
        unsafe {
            result::launch_kernel(
                function,
                (blocks.0, blocks.1, 1),
                (K::THREADS, 1, 1),
                parameters.shared_bytes(),
                self.stream,
                &mut pointers,
            )
        }
        .named(K::ID.name)
    }

    /// Enqueues filling words of memory with a value.
    ///
    /// # Safety
    /// As for [`Lane::launch`]; the buffer must have `len` elements from the pointer on.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn fill(&self, pointer: Pointer<u32>, value: u32, len: usize) -> Result<()> {
        if self.measures() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { sys::cuMemsetD32Async(pointer.address(), value, len, self.stream) }
            .result()
            .named("cuMemsetD32Async")
    }

    /// Enqueues a copy from page-locked host memory.
    ///
    /// # Safety
    /// As for [`Lane::launch`]; the destination must have room for as many elements, and the source must not change
    /// until the copy is done.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn upload<T: Pod>(&self, from: &PinnedBuffer<T>, to: Pointer<T>) -> Result<()> {
        if self.measures() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_htod_async(to.address(), from.elements(), self.stream) }
            .named("cuMemcpyHtoDAsync")
    }

    /// Enqueues a copy of `count` elements to the start of page-locked host memory.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// As for [`Lane::launch`]; the source must have as many elements, and the destination must not be used until the
    /// copy is done.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn download<T: Pod>(
        &self,
        from: Pointer<T>,
        to: &mut PinnedBuffer<T>,
        count: usize,
    ) -> Result<()> {
        let to = &mut to.elements_mut()[..count];
        if self.measures() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_dtoh_async(to, from.address(), self.stream) }.named("cuMemcpyDtoHAsync")
    }

    /// Enqueues a copy of bytes that a [`PageLock`] covers. For other memory the host waits until it is done.
    ///
    /// # Safety
    /// As for [`Lane::upload`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn upload_bytes(&self, from: &[u8], to: Pointer<u8>) -> Result<()> {
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_htod_async(to.address(), from, self.stream) }.named("cuMemcpyHtoDAsync")
    }

    /// Enqueues a copy to bytes in page-locked memory. For other memory the host waits until it is done.
    ///
    /// # Safety
    /// As for [`Lane::download`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn download_bytes(&self, from: Pointer<u8>, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_dtoh_async(to, from.address(), self.stream) }.named("cuMemcpyDtoHAsync")
    }

    /// Enqueues a copy within the GPU's memory.
    ///
    /// # Safety
    /// As for [`Lane::launch`]; both ranges must have `len` elements and must not overlap.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn copy<T: Pod>(&self, from: Pointer<T>, to: Pointer<T>, len: usize) -> Result<()> {
        if self.measures() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_dtod_async(to.address(), from.address(), len * size_of::<T>(), self.stream) }
            .named("cuMemcpyDtoDAsync")
    }

    /// Records the moment when all work enqueued so far is done.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn record(&self, moment: &Moment) -> Result<()> {
        // SAFETY: event and stream live, and are of the same device's context or the driver refuses.
        unsafe { result::event::record(moment.event, self.stream) }.named("cuEventRecord")
    }

    /// The same while a graph is captured from the lane, at each replay, so that [`Moment::ms_since`] can time parts of
    /// it.
    ///
    /// # Errors
    /// If the driver reports an error, for example because no graph is being captured.
    pub fn record_at_replay(&self, moment: &Moment) -> Result<()> {
        let flags = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: as for `record`.
        unsafe { sys::cuEventRecordWithFlags(moment.event, self.stream, flags) }
            .result()
            .named("cuEventRecordWithFlags")
    }

    /// Makes work that is enqueued from now on wait for a moment of another lane. While a graph is captured from that
    /// lane, this lane becomes part of it.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn wait(&self, moment: &Moment) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live.
        unsafe { result::stream::wait_event(self.stream, moment.event, flags) }.named("cuStreamWaitEvent")
    }

    /// Waits for the lane and copies elements to the host. The pointer must point to a buffer with as many elements.
    pub(crate) fn read<T: Pod>(&self, pointer: Pointer<T>, len: usize) -> Result<Vec<T>> {
        self.synchronize()?;
        let mut elements = vec![T::zeroed(); len];
        if self.measures() {
            return Ok(elements);
        }
        // SAFETY: callers are this crate's buffers, which pass their own pointer and length; any bytes are a valid `T`.
        unsafe { result::memcpy_dtoh_sync(&mut elements, pointer.address()) }.named("cuMemcpyDtoH")?;
        Ok(elements)
    }

    /// Waits for the lane and copies elements into `to`. The pointer must point to a buffer with as many elements.
    pub(crate) fn read_into<T: Pod>(&self, pointer: Pointer<T>, to: &mut [T]) -> Result<()> {
        self.synchronize()?;
        if self.measures() {
            return Ok(());
        }
        // SAFETY: callers are this crate's buffers, which pass their own pointer and no more elements than they have.
        unsafe { result::memcpy_dtoh_sync(to, pointer.address()) }.named("cuMemcpyDtoH")
    }

    /// Waits for the lane and replaces all `len` elements of a buffer.
    pub(crate) fn write<T: Pod>(&self, pointer: Pointer<T>, len: usize, elements: &[T]) -> Result<()> {
        assert_eq!(elements.len(), len, "the whole buffer is replaced");
        self.synchronize()?;
        if self.measures() {
            return Ok(());
        }
        // SAFETY: callers are this crate's buffers, which pass their own pointer and length; the lane is idle.
        unsafe { result::memcpy_htod_sync(pointer.address(), elements) }.named("cuMemcpyHtoD")?;
        settle()
    }

    /// Returns whether nothing is executed because the device is only measured.
    pub(crate) fn measures(&self) -> bool {
        self.device.ledger().measures()
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the stream was created by `new` and is destroyed once; the driver waits for its work first.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// A point in a lane's work: other lanes can wait for it, and the time between two moments can be measured.
#[derive(Debug)]
pub struct Moment {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: the driver allows the use of an event from any thread that has its context current.
unsafe impl Send for Moment {}
// SAFETY: as for `Send`.
unsafe impl Sync for Moment {}

impl Moment {
    /// Creates a moment on the GPU, which must be current on this thread.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).named("cuEventCreate")?;
        Ok(Self { device: Arc::clone(device), event })
    }

    /// Waits until the moment has passed. A moment that was never recorded counts as passed.
    ///
    /// # Errors
    /// If work before it failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.event) }.named("cuEventSynchronize")
    }

    /// Returns whether the moment has passed. A moment that was never recorded counts as passed.
    ///
    /// # Errors
    /// If work before it failed.
    pub fn has_passed(&self) -> Result<bool> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.event) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.named("cuEventQuery").map(|()| true),
        }
    }

    /// Returns the milliseconds from an earlier moment to this one. The lane must have been waited for, so that both
    /// have passed.
    ///
    /// # Errors
    /// If one of them has not been recorded or has not passed.
    pub fn ms_since(&self, earlier: &Moment) -> Result<f64> {
        // SAFETY: both events live.
        unsafe { result::event::elapsed(earlier.event, self.event) }
            .named("cuEventElapsedTime")
            .map(f64::from)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // A lane of another GPU may have waited for it: this thread's current GPU must not change.
        let current = result::ctx::get_current();
        let _ = self.device.bind();
        // SAFETY: the event was created by `new` and is destroyed once; the driver waits for its work first.
        let _ = unsafe { result::event::destroy(self.event) };
        if let Ok(Some(current)) = current {
            // SAFETY: the context was current just now, and nothing has ended it since.
            let _ = unsafe { result::ctx::set_current(current) };
        }
    }
}
