//! Traces of GPU activity: kernels and copies with their start and end times, from CUPTI's activity records.
//!
//! CUPTI belongs to the CUDA toolkit, not to the driver, and is loaded when a trace starts. It passes records to
//! global callbacks without a user pointer, so the state here is global, and there is one trace at a time.

use std::alloc::{self, Layout};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};

use super::error::{Error, Result};
use crate::probe::CallError;
use crate::probe::library::LoadedLibrary;
use crate::probe::specs::CUPTI;

/// Something that a GPU did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuActivity {
    /// Its kind.
    pub kind: ActivityKind,
    /// A kernel's function, or the direction of a copy.
    pub name: String,
    /// The GPU's number.
    pub device: u32,
    /// The lane's number, as the driver counts.
    pub lane: u32,
    /// Its start, in nanoseconds since a moment that is the same for all.
    pub begin_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Bytes copied or filled; 0 for a kernel.
    pub bytes: u64,
}

/// Kinds of activities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityKind {
    /// A kernel ran.
    Kernel,
    /// Memory was copied.
    Copy,
    /// Memory was filled.
    Fill,
}

/// Activities are recorded from when it is created until it is ended or dropped.
#[derive(Debug)]
pub struct Trace {
    calls: Calls,
}

/// `CUptiResult`, an enum of the size of an int; 0 is success.
type Status = i32;
type RequestCallback = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type CompletionCallback = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The functions that are used here, with the types that cupti_activity.h declares.
#[derive(Debug, Clone, Copy)]
struct Calls {
    register: unsafe extern "C" fn(RequestCallback, CompletionCallback) -> Status,
    enable: unsafe extern "C" fn(u32) -> Status,
    disable: unsafe extern "C" fn(u32) -> Status,
    flush: unsafe extern "C" fn(u32) -> Status,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status,
    words: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
}

/// The recorded activities, and the function that iterates over a buffer's records.
struct Records {
    next: Option<unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status>,
    activities: Vec<GpuActivity>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { next: None, activities: Vec::new() });

/// `CUpti_ActivityKind`.
const COPY: u32 = 1;
const FILL: u32 = 2;
const KERNEL: u32 = 3;
const CONCURRENT_KERNEL: u32 = 10;
const ENABLED: [u32; 3] = [COPY, FILL, CONCURRENT_KERNEL];
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: flushes buffers that are not full too.
const FLUSH_FORCED: u32 = 1;

/// Size of the buffers that CUPTI fills.
const BUFFER: Layout = match Layout::from_size_align(8 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("8 MiB is a valid size"),
};

/// The first fields of `CUpti_ActivityKernel10`, the same since `CUpti_ActivityKernel4`.
#[repr(C)]
struct KernelRecord {
    kind: u32,
    configuration: [u32; 3],
    start: u64,
    end: u64,
    completed: u64,
    device: u32,
    context: u32,
    stream: u32,
    grid: [i32; 3],
    block: [i32; 3],
    shared_memory: [i32; 2],
    local_memory: [u32; 2],
    correlation: u32,
    grid_id: i64,
    name: *const c_char,
}

/// The first fields of `CUpti_ActivityMemcpy6` and of `CUpti_ActivityMemset4`, as far as they are the same.
#[repr(C)]
struct MoveRecord {
    kind: u32,
    /// For a copy: its kind first.
    what: [u8; 4],
    bytes: u64,
    start: u64,
    end: u64,
    device: u32,
    context: u32,
    stream: u32,
}

const _: () = assert!(std::mem::offset_of!(KernelRecord, start) == 16);
const _: () = assert!(std::mem::offset_of!(KernelRecord, name) == 104);
const _: () = assert!(std::mem::offset_of!(MoveRecord, start) == 16);

impl Trace {
    /// Starts recording. Replayed graphs are recorded kernel by kernel, wherever they were captured.
    ///
    /// # Errors
    /// [`Error::NoTrace`] if CUPTI is not found, or reports an error.
    pub fn begin() -> Result<Self> {
        let loaded = CUPTI.load().map_err(|why| {
            Error::NoTrace(format!("CUPTI, which comes with the CUDA toolkit, cannot be used: {why}"))
        })?;
        let calls = Calls::of(&loaded).map_err(|why| Error::NoTrace(why.to_string()))?;
        {
            let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
            records.next = Some(calls.next);
            records.activities.clear();
        }
        // SAFETY: both functions have the types that cupti_activity.h requires, and live as long as the process.
        calls.check("cuptiActivityRegisterCallbacks", unsafe { (calls.register)(request, complete) })?;
        let trace = Self { calls };
        for kind in ENABLED {
            // SAFETY: callbacks are registered.
            calls.check("cuptiActivityEnable", unsafe { (calls.enable)(kind) })?;
        }
        Ok(trace)
    }

    /// Stops recording and returns the recorded activities, ordered by start. Lanes must have been waited for.
    ///
    /// # Errors
    /// [`Error::NoTrace`] if CUPTI fails.
    pub fn end(self) -> Result<Vec<GpuActivity>> {
        // SAFETY: callbacks are registered; none of this thread's locks is held.
        self.calls.check("cuptiActivityFlushAll", unsafe { (self.calls.flush)(FLUSH_FORCED) })?;
        drop(self);
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut activities = std::mem::take(&mut records.activities);
        activities.sort_by_key(|activity| (activity.begin_ns, activity.end_ns));
        Ok(activities)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        for kind in ENABLED {
            // SAFETY: a kind that was not enabled may be disabled. A failure only leaves records that nobody reads.
            let _ = unsafe { (self.calls.disable)(kind) };
        }
    }
}

impl Calls {
    fn of(loaded: &LoadedLibrary) -> Result<Self, CallError> {
        // SAFETY: each name has the type that cupti_activity.h and cupti_result.h give it.
        unsafe {
            Ok(Self {
                register: loaded.symbol(c"cuptiActivityRegisterCallbacks")?,
                enable: loaded.symbol(c"cuptiActivityEnable")?,
                disable: loaded.symbol(c"cuptiActivityDisable")?,
                flush: loaded.symbol(c"cuptiActivityFlushAll")?,
                next: loaded.symbol(c"cuptiActivityGetNextRecord")?,
                words: loaded.symbol(c"cuptiGetResultString")?,
            })
        }
    }

    fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut words = std::ptr::null();
        // SAFETY: the pointer is to a live pointer, which stays null for an unknown status.
        unsafe { (self.words)(status, &mut words) };
        let words = if words.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: not null, so it is a string constant of the library, which is never unloaded.
            unsafe { CStr::from_ptr(words) }.to_string_lossy()
        };
        let hint = if words.contains("INSUFFICIENT_PRIVILEGES") {
            "; the driver lets only root trace (NVreg_RestrictProfilingToAdminUsers)"
        } else {
            ""
        };
        Err(Error::NoTrace(format!("{call}: {words} (CUPTI error {status}){hint}")))
    }
}

/// Gives CUPTI a buffer, or none if there is no memory; then it drops records.
unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    // SAFETY: CUPTI passes pointers to live values; the layout is not empty.
    unsafe {
        *buffer = alloc::alloc(BUFFER);
        *size = if (*buffer).is_null() { 0 } else { BUFFER.size() };
        // As many records as fit.
        *records_max = 0;
    }
}

/// Takes a buffer back with its records.
unsafe extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let Some(buffer) = NonNull::new(buffer) else { return };
    {
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = records.next {
            let mut record = null_mut();
            // SAFETY: CUPTI fills the buffer with `valid` bytes of records, which stay there until it is freed below.
            while unsafe { next(buffer.as_ptr(), valid, &mut record) } == 0 {
                // SAFETY: as above: `record` is one of them.
                records.activities.extend(unsafe { activity(record) });
            }
        }
    }
    // SAFETY: the buffer was allocated by `request` with this layout, and CUPTI no longer uses it.
    unsafe { alloc::dealloc(buffer.as_ptr(), BUFFER) };
}

/// Converts a record of the kinds that are traced; none for others.
///
/// # Safety
/// `record` must point to a record of CUPTI.
unsafe fn activity(record: *const u8) -> Option<GpuActivity> {
    // SAFETY: every record starts with its kind.
    let kind = unsafe { record.cast::<u32>().read_unaligned() };
    if kind == KERNEL || kind == CONCURRENT_KERNEL {
        // SAFETY: records of this kind start with these fields.
        let KernelRecord { start, end, device, stream, name, .. } =
            unsafe { record.cast::<KernelRecord>().read_unaligned() };
        let name = if name.is_null() {
            "kernel".into()
        } else {
            // SAFETY: CUPTI's names are strings that live as long as the process.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        let kind = ActivityKind::Kernel;
        return Some(GpuActivity {
            kind,
            name,
            device,
            lane: stream,
            begin_ns: start,
            end_ns: end,
            bytes: 0,
        });
    }
    if kind != COPY && kind != FILL {
        return None;
    }
    // SAFETY: records of these kinds start with these fields.
    let MoveRecord { what, bytes, start, end, device, stream, .. } =
        unsafe { record.cast::<MoveRecord>().read_unaligned() };
    let (kind, name) = match (kind, what[0]) {
        (FILL, _) => (ActivityKind::Fill, "fill"),
        // `CUpti_ActivityMemcpyKind`.
        (_, 1) => (ActivityKind::Copy, "copy host to device"),
        (_, 2) => (ActivityKind::Copy, "copy device to host"),
        (_, 8) => (ActivityKind::Copy, "copy on the device"),
        _ => (ActivityKind::Copy, "copy"),
    };
    Some(GpuActivity { kind, name: name.into(), device, lane: stream, begin_ns: start, end_ns: end, bytes })
}
