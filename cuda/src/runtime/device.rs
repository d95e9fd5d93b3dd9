//! A GPU with its primary context and its kernels.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};

use sys::CUdevice_attribute as Attribute;

use super::error::{DriverResult, Error, Result};
use super::kernel::Functions;
use super::ledger::Ledger;
use crate::probe::Version;
use crate::probe::library::{LoadError, file_at};
use crate::probe::specs::DRIVER;

/// The compute capability of the oldest supported GPUs: Ampere.
const CAPABILITY_MIN: (c_int, c_int) = (8, 0);

/// A GPU. All that is allocated on it holds it by an [`Arc`].
#[derive(Debug)]
pub struct Device {
    ordinal: usize,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    capability: (c_int, c_int),
    multiprocessors: u32,
    exports_memory: bool,
    functions: Functions,
    ledger: Ledger,
}

// SAFETY: the context may be current on any number of threads, which may all use its module and function handles; the
// driver locks where it must.
unsafe impl Send for Device {}
// SAFETY: as for `Send`; the fields never change except for the ledger, which any thread may change.
unsafe impl Sync for Device {}

/// Finds the driver's library as [`crate::probe`] does, and makes sure that the bindings use the same file.
fn find_driver() -> Result<()> {
    let driver = DRIVER.load().map_err(|why| match why {
        LoadError::Refused { version: Some(Version { major, minor, .. }), .. } => {
            Error::OldDriver { major, minor }
        }
        why => Error::NoDriver(why.to_string()),
    })?;
    // The bindings search under their own names and panic if they find nothing. A library that is loaded already is
    // found by the name in its file, libcuda.so.1; but they try `libcuda.so` first, which may be another file.
    // SAFETY: loading the driver's library runs its initializers, which it allows at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver(format!("{} is not named libcuda.so.1", driver.file(c"cuInit"))));
    }
    // SAFETY: the library is loaded; the pointer is not called.
    let theirs = unsafe { sys::culib().get::<unsafe extern "C" fn()>(b"cuInit") };
    let theirs = theirs.ok().map(|function| *function as usize);
    if theirs == driver.address(c"cuInit") {
        return Ok(());
    }
    let other = theirs.and_then(file_at).map_or("another file".into(), |path| path.display().to_string());
    Err(Error::NoDriver(format!(
        "the driver's library is {}, and the loader opens {other} as libcuda.so: a stub for linking, or another \
         driver's; remove its folder from LD_LIBRARY_PATH",
        driver.file(c"cuInit")
    )))
}

impl Device {
    /// Returns the number of GPUs.
    ///
    /// # Errors
    /// If there is no driver, or it is older than CUDA 13.0.
    pub fn count() -> Result<usize> {
        static DRIVER_FOUND: OnceLock<Result<()>> = OnceLock::new();
        DRIVER_FOUND.get_or_init(find_driver).clone()?;
        result::init().named("cuInit")?;
        Ok(result::device::get_count().named("cuDeviceGetCount")?.unsigned_abs() as usize)
    }

    /// Opens a GPU and makes it current on this thread. `load` loads kernels into its context.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver reports an error.
    pub(crate) fn with_functions(
        ordinal: usize,
        load: impl FnOnce() -> Result<Functions>,
    ) -> Result<Arc<Self>> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let handle = result::device::get(ordinal as c_int).named("cuDeviceGet")?;
        let attribute = |attribute| {
            // SAFETY: `handle` is a device that the driver gave.
            unsafe { result::device::get_attribute(handle, attribute) }.named("cuDeviceGetAttribute")
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < CAPABILITY_MIN {
            return Err(Error::OldDevice { ordinal, capability });
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let exports = attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?;
        // SAFETY: `handle` is a device that the driver gave; the context is released when the device is dropped.
        let context = unsafe { result::primary_ctx::retain(handle) }.named("cuDevicePrimaryCtxRetain")?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.named("cuCtxSetCurrent")?;
        let functions = load()?;
        Ok(Arc::new(Self {
            ordinal,
            handle,
            context,
            capability,
            multiprocessors: multiprocessors.unsigned_abs(),
            exports_memory: exports != 0,
            functions,
            ledger: Ledger::default(),
        }))
    }

    /// Makes the GPU current on this thread. A thread must do so before it uses anything on the GPU.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }.named("cuCtxSetCurrent")
    }

    /// Makes the GPU current on this thread, and waits until it has finished all enqueued work.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        result::ctx::synchronize().named("cuCtxSynchronize")
    }

    /// Returns whether kernels on this GPU can read and write the memory of the other one.
    ///
    /// # Errors
    /// If the driver does not report it.
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        if self.ordinal == other.ordinal {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the pointer is to a live integer, and both handles are devices that the driver gave.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.handle, other.handle) }
            .result()
            .named("cuDeviceCanAccessPeer")?;
        Ok(can != 0)
    }

    /// Its number among the GPUs that the driver shows.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The product name.
    ///
    /// # Errors
    /// If the driver does not report it.
    pub fn name(&self) -> Result<String> {
        result::device::get_name(self.handle).named("cuDeviceGetName")
    }

    /// The UUID, the same in all processes of the host.
    ///
    /// # Errors
    /// If the driver does not report it.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let uuid = result::device::get_uuid(self.handle).named("cuDeviceGetUuid")?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// The address on the PCI bus, such as `0000:17:00.0`.
    ///
    /// # Errors
    /// If the driver does not report it.
    pub fn pci_address(&self) -> Result<String> {
        let attribute = |attribute| {
            // SAFETY: the handle is a device that the driver gave.
            unsafe { result::device::get_attribute(self.handle, attribute) }.named("cuDeviceGetAttribute")
        };
        let domain = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    /// Free bytes of its memory. The device must be current on this thread.
    ///
    /// # Errors
    /// If the driver does not report it.
    pub fn free_bytes(&self) -> Result<u64> {
        Ok(result::mem_get_info().named("cuMemGetInfo")?.0 as u64)
    }

    /// Returns whether constructors only measure the memory that they need ([`Device::measure`]).
    pub fn is_measured(&self) -> bool {
        self.ledger().measures()
    }

    /// Number of streaming multiprocessors, for sizing grids of blocks that loop.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The major and minor number of its compute capability.
    pub(crate) fn capability(&self) -> (c_int, c_int) {
        self.capability
    }

    /// The highest clock rate of its multiprocessors, in Hz; `None` if the driver does not know it.
    pub(crate) fn clock_hz(&self) -> Result<Option<f64>> {
        let khz = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
        Ok((khz > 0).then_some(f64::from(khz) * 1e3))
    }

    /// The bytes per second that its memory transfers at its highest clock rate; `None` if the driver does not know
    /// them.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn peak_bytes_per_s(&self) -> Result<Option<f64>> {
        let khz = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let bits = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        // Memory transfers twice per clock.
        let rate = 2.0 * f64::from(khz) * 1e3 * f64::from(bits) / 8.0;
        Ok((rate > 0.0).then_some(rate))
    }

    fn attribute(&self, attribute: Attribute) -> Result<c_int> {
        // SAFETY: the handle is a device that the driver gave.
        unsafe { result::device::get_attribute(self.handle, attribute) }.named("cuDeviceGetAttribute")
    }

    /// Returns whether other processes can map its memory.
    pub(crate) fn exports_memory(&self) -> bool {
        self.exports_memory
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }
}

/// Waits for copies and fills that were called without a lane: they may return before the memory has changed, and
/// lanes do not wait for them.
pub(crate) fn settle() -> Result<()> {
    // SAFETY: the null stream always exists.
    unsafe { result::stream::synchronize(result::stream::null()) }.named("cuStreamSynchronize")
}

impl Drop for Device {
    fn drop(&mut self) {
        // A failure here means that the process is ending or the context is lost; nobody could handle it.
        // SAFETY: the context was retained once by `open`, and everything allocated in it held this device.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}
