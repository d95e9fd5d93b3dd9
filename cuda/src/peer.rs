//! Memory of one GPU that others read and write.
//!
//! It comes from exportable handles, so that ranks in other processes can map it as well.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{result, sys};

use crate::buffer::Pointer;
use crate::device::Device;
use crate::error::{Error, Named, Result};
use crate::lane::{Lane, settle};

/// Elements in a GPU's memory that several GPUs of this process access at the same address.
#[derive(Debug)]
pub struct PeerBuffer<T> {
    device: Arc<Device>,
    pointer: Pointer<T>,
    len: usize,
    mapping: Mapping,
}

/// Reserved addresses with memory behind them; dropping undoes as much as was done.
#[derive(Debug)]
struct Mapping {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
    memory: Option<sys::CUmemGenericAllocationHandle>,
}

impl<T: Pod> PeerBuffer<T> {
    /// Memory of `device`, filled with a byte, that all of `peers` access too. `device` must be the current one of this
    /// thread.
    ///
    /// # Errors
    /// Where a peer cannot access the device's memory, or where the memory does not suffice.
    pub fn filled(device: &Arc<Device>, peers: &[Arc<Device>], len: usize, byte: u8) -> Result<Self> {
        for peer in peers {
            if !peer.can_access(device)? {
                return Err(Error::NoPeerAccess { from: peer.ordinal(), to: device.ordinal() });
            }
        }
        let bytes = len * size_of::<T>();
        let mapping = Mapping::new(device, peers, bytes.max(1))?;
        // SAFETY: the mapping has this many bytes at least, and nobody else has it yet.
        unsafe { result::memset_d8_sync(mapping.address, byte, bytes) }.named("cuMemsetD8")?;
        settle()?;
        Ok(Self { device: Arc::clone(device), pointer: Pointer::new(mapping.address), len, mapping })
    }

    /// The elements, once the lane has done all that was enqueued on it.
    ///
    /// # Errors
    /// Where work that was enqueued on the lane failed.
    pub fn read(&self, lane: &Lane) -> Result<Vec<T>> {
        lane.read(self.pointer, self.len)
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

    /// Where its first element lies, on every GPU that accesses it.
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

    /// The GPU whose memory it is.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes of memory that it takes: whole pages of the GPU.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }
}

impl Mapping {
    fn new(device: &Arc<Device>, peers: &[Arc<Device>], bytes: usize) -> Result<Self> {
        let location = |device: &Device| sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device.ordinal() as c_int,
        };
        // SAFETY: all zeros are a valid value of this plain C struct, and mean that nothing special is asked for.
        let mut properties: sys::CUmemAllocationProp = unsafe { zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(device);
        properties.requestedHandleTypes =
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        let mut page_bytes = 0;
        // SAFETY: both pointers are to live values.
        unsafe { sys::cuMemGetAllocationGranularity(&mut page_bytes, &properties, recommended) }
            .result()
            .named("cuMemGetAllocationGranularity")?;
        let bytes = bytes.next_multiple_of(page_bytes.max(1));

        let mut address = 0;
        // SAFETY: the pointer is to a live address; 0 leaves alignment and place to the driver.
        unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) }
            .result()
            .named("cuMemAddressReserve")?;
        let mut mapping = Self { device: Arc::clone(device), address, bytes, memory: None };
        let mut memory = 0;
        // SAFETY: both pointers are to live values, and the size is a multiple of the granularity.
        unsafe { sys::cuMemCreate(&mut memory, bytes, &properties, 0) }.result().named("cuMemCreate")?;
        // SAFETY: the addresses were reserved above for this many bytes, and nothing is mapped there.
        let mapped = unsafe { sys::cuMemMap(address, bytes, 0, memory, 0) }.result().named("cuMemMap");
        if mapped.is_ok() {
            mapping.memory = Some(memory);
        } else {
            // SAFETY: the handle was just created and is not mapped. The first error is the one to tell.
            let _ = unsafe { sys::cuMemRelease(memory) };
        }
        mapped?;
        let mut access: Vec<sys::CUmemAccessDesc> = Vec::new();
        for device in peers.iter().chain([device]) {
            let location = location(device);
            if !access.iter().any(|other| other.location.id == location.id) {
                let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                access.push(sys::CUmemAccessDesc { location, flags });
            }
        }
        // SAFETY: the addresses are mapped, and the pointer is to as many descriptions as are said.
        unsafe { sys::cuMemSetAccess(address, bytes, access.as_ptr(), access.len()) }
            .result()
            .named("cuMemSetAccess")?;
        Ok(mapping)
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
