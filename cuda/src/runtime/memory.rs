//! Memory of a GPU: how it is allocated, and for which purposes.
//!
//! Every allocation is entered in its device's ledger under the current purpose, from which a budget is reported.
//! [`Device::measure`] runs constructors without allocating on the device, so that their memory needs are known in
//! advance.
//!
//! Large allocations are whole pages with a handle that ranks in other processes can map too; so is all memory that
//! several GPUs access.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::budget::{Budget, Part};
use super::device::{Device, settle};
use super::error::{DriverResult, Error, Result};
use super::ledger::{OTHER, enter};

/// Allocations of at least this size are whole pages.
const PAGES_BYTES_MIN: usize = 32 << 20;
/// How other processes can map whole pages.
const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// Whole pages are multiples of this.
const PAGE_BYTES: usize = 2 << 20;
/// Memory that the driver and the libraries take in addition: graphs, and kernels that are loaded when they first
/// run.
const RESERVED_BYTES: u64 = 512 << 20;
/// Address of memory that is only measured; no kernel sees it.
const MEASURED_ADDRESS: sys::CUdeviceptr = 1 << 40;

/// While it lives, allocations on its device are entered under its purpose.
#[derive(Debug)]
#[must_use = "a purpose applies for as long as the value lives"]
pub struct Purpose<'a> {
    device: &'a Device,
    before: &'static str,
}

impl Drop for Purpose<'_> {
    fn drop(&mut self) {
        self.device.ledger().pages().purpose = self.before;
    }
}

impl Device {
    /// Sets the purpose of allocations until the returned value is dropped or another purpose is set.
    pub fn purpose(&self, purpose: &'static str) -> Purpose<'_> {
        let before = std::mem::replace(&mut self.ledger().pages().purpose, purpose);
        Purpose { device: self, before }
    }

    /// Returns the purposes of the memory allocated now.
    ///
    /// # Errors
    /// If the driver does not report the free memory.
    pub fn budget(&self) -> Result<Budget> {
        let parts = self.ledger().pages().held.clone();
        self.budget_of(parts)
    }

    /// Runs constructors without allocating or executing anything on the GPU, which must be current on this thread.
    /// Returns the most memory that they would hold at once, including what the driver and the libraries will take.
    /// Meanwhile memory reads as zeros.
    ///
    /// # Errors
    /// Those of the constructors, and [`Error::OutOfMemory`] if more is needed than is free.
    pub fn measure<V, E: From<Error>>(&self, make: impl FnOnce() -> Result<V, E>) -> Result<Budget, E> {
        let budget = self.needed(make)?;
        if budget.bytes() > budget.free_bytes {
            return Err(Error::OutOfMemory { needed: budget.into() }.into());
        }
        Ok(budget)
    }

    /// The same, whether or not as much memory is free.
    ///
    /// # Errors
    /// Those of the constructors.
    pub fn needed<V, E: From<Error>>(&self, make: impl FnOnce() -> Result<V, E>) -> Result<Budget, E> {
        self.ledger().measures.store(true, Ordering::Relaxed);
        let made = make();
        self.ledger().measures.store(false, Ordering::Relaxed);
        let mut parts = {
            let mut pages = self.ledger().pages();
            pages.measured.clear();
            std::mem::take(&mut pages.most)
        };
        made?;
        enter(&mut parts, "driver and libraries", RESERVED_BYTES);
        Ok(self.budget_of(parts)?)
    }

    fn budget_of(&self, mut parts: Vec<Part>) -> Result<Budget> {
        parts.retain(|part| part.bytes > 0);
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let (free, total) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok(Budget { parts, free_bytes: free as u64, total_bytes: total as u64 })
    }
}

/// A piece of a GPU's memory, freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
    purpose: &'static str,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Only measured.
    Measured,
    Driver,
    Pages(Mapping),
    /// Pages of another process, which has them in its ledger.
    Imported(#[expect(dead_code, reason = "dropping it unmaps the pages")] Mapping),
}

impl Memory {
    /// Allocates uninitialized memory. The device must be current on this thread.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        if bytes >= PAGES_BYTES_MIN && device.exports_memory() {
            return Self::for_peers(device, &[], bytes);
        }
        // The driver rejects lengths of 0.
        Self::entered(device, bytes.max(1), |bytes| {
            // SAFETY: the contents of the memory are unspecified.
            let address = unsafe { result::malloc_sync(bytes) }.named("cuMemAlloc")?;
            Ok((address, bytes, Source::Driver))
        })
    }

    /// As [`Memory::new`], accessible from GPUs that all can access the device's memory.
    pub(crate) fn for_peers(device: &Arc<Device>, peers: &[Arc<Device>], bytes: usize) -> Result<Self> {
        // Whole pages are counted while they are only measured, too.
        Self::entered(device, bytes.max(1).next_multiple_of(PAGE_BYTES), |bytes| {
            let mapping = Mapping::new(device, peers, bytes)?;
            Ok((mapping.address, mapping.bytes, Source::Pages(mapping)))
        })
    }

    /// Maps another process's memory for this GPU, by the handle that was exported.
    pub(crate) fn imported(device: &Arc<Device>, handle: &OwnedFd, bytes: usize) -> Result<Self> {
        let mapping = Mapping::imported(device, handle, bytes)?;
        let (address, bytes) = (mapping.address, mapping.bytes);
        Ok(Self {
            device: Arc::clone(device),
            address,
            bytes,
            purpose: OTHER,
            source: Source::Imported(mapping),
        })
    }

    /// Exports a handle with which another process can map the memory; none if it has no such handle.
    pub(crate) fn export(&self) -> Result<Option<OwnedFd>> {
        let Source::Pages(Mapping { memory: Some(memory), .. }) = &self.source else { return Ok(None) };
        let mut handle: RawFd = -1;
        // SAFETY: the memory was created with handles of this type, and the pointer is to a live value of that type.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut handle).cast(), *memory, HANDLE_TYPE, 0) }
            .result()
            .named("cuMemExportToShareableHandle")?;
        // SAFETY: the driver has just opened it for the caller.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(handle) }))
    }

    fn entered(
        device: &Arc<Device>,
        bytes: usize,
        allocate: impl FnOnce(usize) -> Result<(sys::CUdeviceptr, usize, Source)>,
    ) -> Result<Self> {
        let measures = device.ledger().measures();
        let allocated =
            if measures { Ok((MEASURED_ADDRESS, bytes, Source::Measured)) } else { allocate(bytes) };
        let mut pages = device.ledger().pages();
        let purpose = pages.purpose;
        let (address, bytes, source) = match allocated {
            Ok(allocated) => allocated,
            Err(error) if error.is_out_of_memory() => {
                let mut needed = pages.held.clone();
                drop(pages);
                enter(&mut needed, purpose, bytes as u64);
                return Err(Error::OutOfMemory { needed: device.budget_of(needed)?.into() });
            }
            Err(error) => return Err(error),
        };
        match measures {
            true => pages.measure(purpose, bytes as u64),
            false => enter(&mut pages.held, purpose, bytes as u64),
        }
        drop(pages);
        Ok(Self { device: Arc::clone(device), address, bytes, purpose, source })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills the first `bytes` bytes, and waits until it is done.
    pub(crate) fn fill(&self, byte: u8, bytes: usize) -> Result<()> {
        assert!(bytes <= self.bytes, "{bytes} bytes of {}", self.bytes);
        if self.device.ledger().measures() {
            return Ok(());
        }
        // SAFETY: the memory has this many bytes, and callers have just allocated it.
        unsafe { result::memset_d8_sync(self.address, byte, bytes) }.named("cuMemsetD8")?;
        settle()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Source::Imported(_) = self.source {
            return;
        }
        let mut pages = self.device.ledger().pages();
        let measured = matches!(self.source, Source::Measured);
        let parts = if measured { &mut pages.measured } else { &mut pages.held };
        if let Some(part) = parts.iter_mut().find(|part| part.purpose == self.purpose) {
            part.bytes -= self.bytes as u64;
        }
        drop(pages);
        if let Source::Driver = self.source {
            // The driver frees memory once all work is done. A failure means that the context is lost, and the memory
            // with it.
            let _ = self.device.bind();
            // SAFETY: the memory was allocated by `new` and is freed once.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Reserved addresses with memory mapped to them; dropping it undoes as much as was done.
#[derive(Debug)]
struct Mapping {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
    memory: Option<sys::CUmemGenericAllocationHandle>,
}

impl Mapping {
    fn new(device: &Arc<Device>, peers: &[Arc<Device>], bytes: usize) -> Result<Self> {
        // SAFETY: all zeros are a valid value of this plain C struct, and request no special properties.
        let mut properties: sys::CUmemAllocationProp = unsafe { zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(device);
        properties.requestedHandleTypes = HANDLE_TYPE;
        let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        let mut page_bytes = 0;
        // SAFETY: both pointers are to live values.
        unsafe { sys::cuMemGetAllocationGranularity(&mut page_bytes, &properties, recommended) }
            .result()
            .named("cuMemGetAllocationGranularity")?;
        let mut mapping = Self::reserved(device, bytes.next_multiple_of(page_bytes.max(1)))?;
        let mut memory = 0;
        // SAFETY: both pointers are to live values, and the size is a multiple of the granularity.
        unsafe { sys::cuMemCreate(&mut memory, mapping.bytes, &properties, 0) }
            .result()
            .named("cuMemCreate")?;
        mapping.map(memory)?;
        mapping.allow(peers)?;
        Ok(mapping)
    }

    /// Maps memory of another process, which has `bytes` bytes: whole pages.
    fn imported(device: &Arc<Device>, handle: &OwnedFd, bytes: usize) -> Result<Self> {
        let mut mapping = Self::reserved(device, bytes)?;
        let mut memory = 0;
        // A handle of this type is passed as the number itself, cast to a pointer.
        let number = handle.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the pointer is to a live value, and the handle is open.
        unsafe { sys::cuMemImportFromShareableHandle(&mut memory, number, HANDLE_TYPE) }
            .result()
            .named("cuMemImportFromShareableHandle")?;
        mapping.map(memory)?;
        mapping.allow(&[])?;
        Ok(mapping)
    }

    /// Reserves addresses without mapping memory.
    fn reserved(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: the pointer is to a live address; 0 leaves alignment and address to the driver.
        unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) }
            .result()
            .named("cuMemAddressReserve")?;
        Ok(Self { device: Arc::clone(device), address, bytes, memory: None })
    }

    /// Maps memory to all the addresses; it is released with them.
    fn map(&mut self, memory: sys::CUmemGenericAllocationHandle) -> Result<()> {
        // SAFETY: the addresses were reserved for this many bytes, and nothing is mapped there.
        let mapped =
            unsafe { sys::cuMemMap(self.address, self.bytes, 0, memory, 0) }.result().named("cuMemMap");
        match mapped {
            Ok(()) => self.memory = Some(memory),
            // SAFETY: the handle is not mapped. The first error is the one to return.
            Err(_) => drop(unsafe { sys::cuMemRelease(memory) }),
        }
        mapped
    }

    /// Allows the device and its peers to read and write.
    fn allow(&self, peers: &[Arc<Device>]) -> Result<()> {
        let mut access: Vec<sys::CUmemAccessDesc> = Vec::new();
        for device in peers.iter().chain([&self.device]) {
            let location = location(device);
            if !access.iter().any(|other| other.location.id == location.id) {
                let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                access.push(sys::CUmemAccessDesc { location, flags });
            }
        }
        // SAFETY: the addresses are mapped, and the pointer is to as many descriptions as are said.
        unsafe { sys::cuMemSetAccess(self.address, self.bytes, access.as_ptr(), access.len()) }
            .result()
            .named("cuMemSetAccess")
    }
}

fn location(device: &Device) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device.ordinal() as c_int,
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unlike freeing, unmapping does not wait for work that may still use the memory. Failures mean that the
        // context is lost, and the memory with it.
        let _ = self.device.bind();
        let _ = result::ctx::synchronize();
        // SAFETY: addresses and memory were reserved, created and mapped by `new`, and are given back once.
        unsafe {
            if let Some(memory) = self.memory {
                let _ = sys::cuMemUnmap(self.address, self.bytes);
                let _ = sys::cuMemRelease(memory);
            }
            let _ = sys::cuMemAddressFree(self.address, self.bytes);
        }
    }
}
