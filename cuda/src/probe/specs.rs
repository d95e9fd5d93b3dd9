//! The libraries that the crate uses: their names, and the versions that are supported.

use std::ffi::{CStr, c_char};

use super::library::{LibrarySpec, LoadedLibrary, VersionRange};
use super::{CallError, Version, driver};

/// The driver. One that supports a later CUDA also supports 13.0, which the kernels are compiled for.
pub(crate) const DRIVER: LibrarySpec = LibrarySpec {
    names: &["libcuda.so.1", "libcuda.so"],
    symbol: c"cuInit",
    version: driver::version,
    needed: VersionRange { major: 13, minor: 0, later_majors: true },
};

/// Matrix multiplication. Structs of the bindings are those of CUDA 13. Version 12 is searched so that errors can
/// name it.
pub(crate) const CUBLAS_LT: LibrarySpec = LibrarySpec {
    names: &["libcublasLt.so.13", "libcublasLt.so", "libcublasLt.so.12"],
    symbol: c"cublasLtGetVersion",
    version: cublas_lt_version,
    needed: VersionRange { major: 13, minor: 0, later_majors: false },
};

/// Collectives. `ncclGetLastError` was added in 2.13.
pub(crate) const NCCL: LibrarySpec = LibrarySpec {
    names: &["libnccl.so.2", "libnccl.so"],
    symbol: c"ncclGetVersion",
    version: nccl_version,
    needed: VersionRange { major: 2, minor: 13, later_majors: false },
};

/// Traces of GPU activity. Records have the layout of CUDA 13.
pub(crate) const CUPTI: LibrarySpec = LibrarySpec {
    names: &["libcupti.so.13", "libcupti.so"],
    symbol: c"cuptiGetVersion",
    version: cupti_version,
    needed: VersionRange { major: 13, minor: 0, later_majors: false },
};

/// Power and clocks of GPUs. All functions that are needed are older than any driver of CUDA 13.
pub(crate) const NVML: LibrarySpec = LibrarySpec {
    names: &["libnvidia-ml.so.1", "libnvidia-ml.so"],
    symbol: c"nvmlInit_v2",
    version: nvml_version,
    needed: VersionRange { major: 11, minor: 0, later_majors: true },
};

pub(super) fn cublas_lt_version(loaded: &LoadedLibrary) -> Result<Version, CallError> {
    // SAFETY: cublasLt.h declares `size_t cublasLtGetVersion(void)`.
    let get_version = unsafe { loaded.symbol::<unsafe extern "C" fn() -> usize>(c"cublasLtGetVersion") }?;
    // SAFETY: the function takes nothing and has no precondition; the library is never unloaded.
    let number = unsafe { get_version() };
    Ok(Version::of_library(u32::try_from(number).unwrap_or(u32::MAX)))
}

fn nccl_version(loaded: &LoadedLibrary) -> Result<Version, CallError> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: nccl.h declares `ncclResult_t ncclGetVersion(int*)`, and `ncclResult_t` is an enum of the size of an int.
    let get_version = unsafe { loaded.symbol::<GetVersion>(c"ncclGetVersion") }?;
    let mut number = 0;
    // SAFETY: the pointer is to a live i32 that the function writes before it returns; the library is never unloaded.
    match unsafe { get_version(&mut number) } {
        0 => Ok(Version::of_library(number.unsigned_abs())),
        status => Err(CallError::Returned { call: "ncclGetVersion", status }),
    }
}

fn cupti_version(loaded: &LoadedLibrary) -> Result<Version, CallError> {
    type GetVersion = unsafe extern "C" fn(*mut u32) -> i32;
    // SAFETY: cupti_version.h declares `CUptiResult cuptiGetVersion(uint32_t*)`, and `CUptiResult` is an enum of the
    // size of an int.
    let get_version = unsafe { loaded.symbol::<GetVersion>(c"cuptiGetVersion") }?;
    let mut number = 0;
    // SAFETY: the pointer is to a live u32 that the function writes before it returns; the library is never unloaded.
    match unsafe { get_version(&mut number) } {
        0 => Ok(Version::of_library(number)),
        status => Err(CallError::Returned { call: "cuptiGetVersion", status }),
    }
}

/// NVML writes the CUDA that the driver supports and the driver's own version, such as `13.580.65.06`.
fn nvml_version(loaded: &LoadedLibrary) -> Result<Version, CallError> {
    type GetVersion = unsafe extern "C" fn(*mut c_char, u32) -> i32;
    let call = "nvmlSystemGetNVMLVersion";
    // SAFETY: nvml.h declares `nvmlReturn_t nvmlSystemGetNVMLVersion(char*, unsigned int)`, and `nvmlReturn_t` is an
    // enum of the size of an int.
    let get_version = unsafe { loaded.symbol::<GetVersion>(c"nvmlSystemGetNVMLVersion") }?;
    let mut text = [0; 80];
    // SAFETY: the buffer is live and has the given length; the call may come before `nvmlInit`.
    let status = unsafe { get_version(text.as_mut_ptr(), text.len() as u32) };
    let text = text.map(|c| c as u8);
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    match (status, numbers.next(), numbers.next()) {
        (0, Some(major), Some(minor)) => Ok(Version { major, minor, patch: numbers.next() }),
        _ => Err(CallError::Returned { call, status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_versions_are_distinguished_from_others() {
        let version = |major, minor| Version { major, minor, patch: None };
        for (needed, admitted, refused) in [
            (DRIVER.needed, vec![(13, 0), (13, 2), (14, 0)], vec![(12, 9)]),
            (CUBLAS_LT.needed, vec![(13, 0), (13, 5)], vec![(12, 9), (14, 0)]),
            (NCCL.needed, vec![(2, 13), (2, 28)], vec![(2, 12), (3, 0), (1, 99)]),
        ] {
            assert!(admitted.iter().all(|&(major, minor)| needed.admits(version(major, minor))), "{needed}");
            assert!(!refused.iter().any(|&(major, minor)| needed.admits(version(major, minor))), "{needed}");
        }
    }
}
