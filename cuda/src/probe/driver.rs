//! The driver's library, and the GPUs that it shows to this process.

use std::ffi::{CStr, c_char};

use serde::Serialize;

use super::library::LoadedLibrary;
use super::{CallError, Library, Version};

/// The driver and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// The library; its version is the newest CUDA that the driver supports.
    #[serde(flatten)]
    pub library: Library,
    /// The GPUs in the driver's order (`CUDA_VISIBLE_DEVICES` applies), or why there are none.
    #[serde(serialize_with = "super::value_or_error")]
    pub devices: Result<Vec<VisibleGpu>, CallError>,
}

/// A GPU that the driver shows to this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VisibleGpu {
    /// The product name.
    pub name: String,
    /// The UUID, the same in all processes of the host, as nvidia-smi writes it.
    pub uuid: String,
    /// Its total memory.
    pub memory_bytes: u64,
    /// Compute capability, major and minor: 9 and 0 for Hopper.
    pub compute_capability: (u32, u32),
    /// The address on the PCI bus, such as `0000:17:00.0`.
    pub pci_address: String,
}

/// `CUresult`, an enum of the size of an int; 0 is success.
type Status = i32;

/// More GPUs than any machine has: a broken driver may report nonsense.
const DEVICES_MAX: i32 = 1024;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` of cuda.h.
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR` of cuda.h.
const COMPUTE_CAPABILITY_MINOR: i32 = 76;

/// Returns the newest CUDA version that the driver supports.
pub(super) fn version(loaded: &LoadedLibrary) -> Result<Version, CallError> {
    Calls::of(loaded)?.version()
}

/// Returns the GPUs that the driver shows.
pub(super) fn devices(loaded: &LoadedLibrary) -> Result<Vec<VisibleGpu>, CallError> {
    Calls::of(loaded)?.devices()
}

/// The functions that are used here, with the types that cuda.h declares. A `CUdevice` is an int.
struct Calls {
    init: unsafe extern "C" fn(u32) -> Status,
    driver_get_version: unsafe extern "C" fn(*mut i32) -> Status,
    get_error_string: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    device_get_count: unsafe extern "C" fn(*mut i32) -> Status,
    device_get: unsafe extern "C" fn(*mut i32, i32) -> Status,
    device_get_name: unsafe extern "C" fn(*mut c_char, i32, i32) -> Status,
    device_get_uuid: unsafe extern "C" fn(*mut [u8; 16], i32) -> Status,
    device_total_mem: unsafe extern "C" fn(*mut usize, i32) -> Status,
    device_get_attribute: unsafe extern "C" fn(*mut i32, i32, i32) -> Status,
    device_get_pci_bus_id: unsafe extern "C" fn(*mut c_char, i32, i32) -> Status,
}

impl Calls {
    fn of(loaded: &LoadedLibrary) -> Result<Self, CallError> {
        // SAFETY: each name has the type that cuda.h gives it, since CUDA 11.4 for `cuDeviceGetUuid_v2` and longer
        // for the others; a name whose type changes gets a new suffix.
        unsafe {
            Ok(Self {
                init: loaded.symbol(c"cuInit")?,
                driver_get_version: loaded.symbol(c"cuDriverGetVersion")?,
                get_error_string: loaded.symbol(c"cuGetErrorString")?,
                device_get_count: loaded.symbol(c"cuDeviceGetCount")?,
                device_get: loaded.symbol(c"cuDeviceGet")?,
                device_get_name: loaded.symbol(c"cuDeviceGetName")?,
                device_get_uuid: loaded.symbol(c"cuDeviceGetUuid_v2")?,
                device_total_mem: loaded.symbol(c"cuDeviceTotalMem_v2")?,
                device_get_attribute: loaded.symbol(c"cuDeviceGetAttribute")?,
                device_get_pci_bus_id: loaded.symbol(c"cuDeviceGetPCIBusId")?,
            })
        }
    }

    fn version(&self) -> Result<Version, CallError> {
        let mut number = 0;
        // SAFETY: the pointer is to a live i32, and this call may come before `cuInit`.
        let status = unsafe { (self.driver_get_version)(&mut number) };
        self.check("cuDriverGetVersion", status)?;
        Ok(Version::of_driver(number.unsigned_abs()))
    }

    fn devices(&self) -> Result<Vec<VisibleGpu>, CallError> {
        // SAFETY: 0 is the only value allowed; the call may be repeated, from any thread.
        self.check("cuInit", unsafe { (self.init)(0) })?;
        let mut count = 0;
        // SAFETY: the driver is initialized, and the pointer is to a live i32.
        self.check("cuDeviceGetCount", unsafe { (self.device_get_count)(&mut count) })?;
        (0..count.min(DEVICES_MAX)).map(|ordinal| self.device(ordinal)).collect()
    }

    /// Describes a GPU with a number below the count. The driver must be initialized.
    fn device(&self, ordinal: i32) -> Result<VisibleGpu, CallError> {
        let mut device = 0;
        // SAFETY: the driver is initialized, and the pointer is to a live i32; an ordinal out of range is an error.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&mut device, ordinal) })?;

        let name = self.text("cuDeviceGetName", self.device_get_name, device)?;
        let pci_address = self.text("cuDeviceGetPCIBusId", self.device_get_pci_bus_id, device)?;

        let mut uuid = [0; 16];
        // SAFETY: the pointer is to 16 live bytes, which is what a CUuuid is.
        self.check("cuDeviceGetUuid", unsafe { (self.device_get_uuid)(&mut uuid, device) })?;

        let mut memory_bytes = 0;
        // SAFETY: the pointer is to a live usize; `device` is a handle that the driver gave.
        let status = unsafe { (self.device_total_mem)(&mut memory_bytes, device) };
        self.check("cuDeviceTotalMem", status)?;

        let compute_capability = (
            self.attribute(COMPUTE_CAPABILITY_MAJOR, device)?,
            self.attribute(COMPUTE_CAPABILITY_MINOR, device)?,
        );
        let (uuid, memory_bytes) = (uuid_text(uuid), memory_bytes as u64);
        Ok(VisibleGpu { name, uuid, memory_bytes, compute_capability, pci_address })
    }

    /// Returns the string that a driver function writes about a device, such as its PCI address.
    fn text(
        &self,
        name: &'static str,
        call: unsafe extern "C" fn(*mut c_char, i32, i32) -> Status,
        device: i32,
    ) -> Result<String, CallError> {
        let mut text = [0; 256];
        // SAFETY: the buffer is live and has the given length; `device` is a handle that the driver gave.
        self.check(name, unsafe { call(text.as_mut_ptr(), text.len() as i32, device) })?;
        let text = text.map(|c| c as u8);
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned())
    }

    fn attribute(&self, attribute: i32, device: i32) -> Result<u32, CallError> {
        let mut value = 0;
        // SAFETY: the pointer is to a live i32; `device` is a handle that the driver gave, and an attribute that it
        // does not know is an error.
        let status = unsafe { (self.device_get_attribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", status)?;
        Ok(value.unsigned_abs())
    }

    /// Turns a status into an error with the driver's message.
    fn check(&self, call: &'static str, status: Status) -> Result<(), CallError> {
        if status == 0 {
            return Ok(());
        }
        let mut words = std::ptr::null();
        // SAFETY: the pointer is to a live pointer; the call may come before `cuInit`, and sets null for a status that
        // it does not know.
        unsafe { (self.get_error_string)(status, &mut words) };
        let words = if words.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: not null, so it is a string constant of the library, which is never unloaded.
            unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
        };
        Err(CallError::Failed { call, words, status })
    }
}

/// Formats a UUID as nvidia-smi does: `GPU-` and the bytes in hexadecimal, in five groups.
/// Writes the UUID of a GPU as NVIDIA's tools do.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in uuid.into_iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_are_written_as_by_nvidia_smi() {
        let uuid = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(super::uuid_text(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
