//! NVML, the management library of NVIDIA's driver: the power of GPUs, how busy they are, and what slows them down.
//!
//! It is loaded when it is first used, as all libraries are, and only read: nothing here changes clocks or limits. The
//! driver installs it, but containers may lack it. What a version or a GPU does not support is left out.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::probe::CallError;
use crate::probe::library::{LibrarySpec, LoadedLibrary};
use crate::probe::specs::NVML;

/// Why NVML cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library cannot be loaded.
    #[error("{library}: {why}")]
    Load {
        /// Its name.
        library: &'static str,
        /// The loader's message, or the version that is needed.
        why: String,
    },
    /// The library lacks a function, or cannot be initialized.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What NVML reports about a GPU now, as far as it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuReading {
    /// The power in watts. Since Ampere, it is the mean of the last second.
    pub watts: Option<f64>,
    /// The power limit in watts that applies.
    pub limit_watts: Option<f64>,
    /// The energy in joules since the driver was loaded.
    pub joules: Option<f64>,
    /// The share of a recent time in which a kernel ran.
    pub busy_share: Option<f64>,
    /// Bytes of its memory that all processes use together, with what the driver reserves.
    pub memory_bytes: Option<u64>,
    /// The temperature of the chip in degrees Celsius.
    pub celsius: Option<f64>,
    /// The clock of its multiprocessors in hertz.
    pub sm_hertz: Option<f64>,
    /// The clock of its memory in hertz.
    pub memory_hertz: Option<f64>,
    /// Why its clocks are lower than they could be.
    pub throttling: Option<Throttling>,
}

impl GpuReading {
    /// Returns whether the power limit slows the GPU down. Without the reasons of its clocks, whether it draws 98% of
    /// the limit or more.
    pub fn is_at_power_limit(&self) -> Option<bool> {
        let by_reason = self.throttling.map(Throttling::is_by_power);
        by_reason.or_else(|| self.watts.zip(self.limit_watts).map(|(watts, limit)| watts >= 0.98 * limit))
    }
}

/// Why the clocks of a GPU are lower than they could be: a set of NVML's `nvmlClocksEventReason` bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling(u64);

impl Throttling {
    /// The reasons by name, with their bits.
    const REASONS: [(&str, u64); 9] = [
        ("idle", 0x1),
        ("application_clocks", 0x2),
        ("power_cap", 0x4),
        ("hardware_slowdown", 0x8),
        ("sync_boost", 0x10),
        ("software_thermal", 0x20),
        ("hardware_thermal", 0x40),
        ("power_brake", 0x80),
        ("display_clocks", 0x100),
    ];
    /// The power limit, which the driver keeps, and the brake of the power supply.
    const BY_POWER: u64 = 0x4 | 0x80;

    /// Makes a set of the bits that NVML reports.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns each reason by name, and whether it holds.
    pub fn reasons(self) -> impl Iterator<Item = (&'static str, bool)> {
        Self::REASONS.into_iter().map(move |(name, bit)| (name, self.0 & bit != 0))
    }

    /// Returns whether the GPU is at its power limit.
    pub fn is_by_power(self) -> bool {
        self.0 & Self::BY_POWER != 0
    }
}

/// The loaded library, initialized. It is never shut down, as it is never unloaded.
#[derive(Debug)]
pub struct Nvml(Calls);

impl Nvml {
    /// Loads and initializes the library, which may take a tenth of a second.
    ///
    /// # Errors
    /// [`NvmlError`].
    pub fn load() -> Result<Self, NvmlError> {
        Self::load_by(&NVML)
    }

    fn load_by(spec: &LibrarySpec) -> Result<Self, NvmlError> {
        let loaded =
            spec.load().map_err(|error| NvmlError::Load { library: "NVML", why: error.to_string() })?;
        Ok(Self(Calls::of(&loaded)?))
    }

    /// Reads the GPU with this UUID, as nvidia-smi writes it. `None` if there is no such GPU.
    pub fn read(&self, uuid: &str) -> Option<GpuReading> {
        let calls = &self.0;
        let gpu = calls.gpu(&CString::new(uuid).ok()?)?;
        let thousandths = |value: u32| f64::from(value) / 1e3;
        let hertz = |megahertz: u32| f64::from(megahertz) * 1e6;
        Some(GpuReading {
            watts: gpu.get(calls.power_usage).map(thousandths),
            limit_watts: gpu.get(calls.power_limit).map(thousandths),
            joules: gpu.get(calls.energy).map(|millijoules: u64| millijoules as f64 / 1e3),
            busy_share: gpu.get(calls.utilization).map(|[kernels, _]| f64::from(kernels) / 100.0),
            memory_bytes: gpu.get(calls.memory).map(|[_total, _free, used]| used),
            celsius: gpu.get_of(calls.temperature, CHIP).map(f64::from),
            sm_hertz: gpu.get_of(calls.clock, SM_CLOCK).map(hertz),
            memory_hertz: gpu.get_of(calls.clock, MEMORY_CLOCK).map(hertz),
            throttling: gpu.get(calls.throttling).map(Throttling),
        })
    }
}

/// `nvmlReturn_t`, an enum of the size of an int; 0 is success.
type Status = i32;
/// `nvmlDevice_t`.
type Handle = *mut c_void;
/// A function that writes a value about a GPU.
type Get<T> = unsafe extern "C" fn(Handle, *mut T) -> Status;
/// The same with an enum, of the size of an int, that selects the value.
type GetOf<T> = unsafe extern "C" fn(Handle, u32, *mut T) -> Status;

/// `NVML_TEMPERATURE_GPU`.
const CHIP: u32 = 0;
/// `NVML_CLOCK_SM`.
const SM_CLOCK: u32 = 1;
/// `NVML_CLOCK_MEM`.
const MEMORY_CLOCK: u32 = 2;

/// The functions that are used here, with the types that nvml.h declares. Each one that reads is optional.
#[derive(Debug)]
struct Calls {
    by_uuid: unsafe extern "C" fn(*const c_char, *mut Handle) -> Status,
    power_usage: Option<Get<u32>>,
    power_limit: Option<Get<u32>>,
    energy: Option<Get<u64>>,
    /// `nvmlUtilization_t`: percentages of the time in which kernels ran, and in which memory was accessed.
    utilization: Option<Get<[u32; 2]>>,
    /// `nvmlMemory_t`: total, free and used bytes.
    memory: Option<Get<[u64; 3]>>,
    temperature: Option<GetOf<u32>>,
    clock: Option<GetOf<u32>>,
    throttling: Option<Get<u64>>,
}

impl Calls {
    /// Finds the functions, and initializes the library.
    fn of(loaded: &LoadedLibrary) -> Result<Self, CallError> {
        // SAFETY: nvml.h declares `nvmlReturn_t nvmlInit_v2(void)`.
        let init = unsafe { loaded.symbol::<unsafe extern "C" fn() -> Status>(c"nvmlInit_v2") }?;
        // SAFETY: the call may be repeated, from any thread.
        check(loaded, "nvmlInit", unsafe { init() })?;
        // SAFETY: each name has the type that nvml.h gives it; a name whose type changes gets a new suffix.
        unsafe {
            Ok(Self {
                by_uuid: loaded.symbol(c"nvmlDeviceGetHandleByUUID")?,
                power_usage: loaded.symbol(c"nvmlDeviceGetPowerUsage").ok(),
                power_limit: loaded.symbol(c"nvmlDeviceGetEnforcedPowerLimit").ok(),
                energy: loaded.symbol(c"nvmlDeviceGetTotalEnergyConsumption").ok(),
                utilization: loaded.symbol(c"nvmlDeviceGetUtilizationRates").ok(),
                memory: loaded.symbol(c"nvmlDeviceGetMemoryInfo").ok(),
                temperature: loaded.symbol(c"nvmlDeviceGetTemperature").ok(),
                clock: loaded.symbol(c"nvmlDeviceGetClockInfo").ok(),
                throttling: loaded.symbol(c"nvmlDeviceGetCurrentClocksThrottleReasons").ok(),
            })
        }
    }

    fn gpu(&self, uuid: &CStr) -> Option<Gpu> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is initialized; the text ends with a NUL, and the pointer is to a live pointer.
        let status = unsafe { (self.by_uuid)(uuid.as_ptr(), &mut handle) };
        (status == 0).then_some(Gpu(handle))
    }
}

/// A handle that NVML gave.
struct Gpu(Handle);

impl Gpu {
    /// Calls a function; `None` without it, or if it fails.
    fn get<T: Default>(&self, call: Option<Get<T>>) -> Option<T> {
        let mut value = T::default();
        // SAFETY: NVML gave the handle, and it may be used from any thread; the pointer is to a live value of the type
        // that the function writes.
        (unsafe { call?(self.0, &mut value) } == 0).then_some(value)
    }

    /// The same for a function that a number selects a value of.
    fn get_of<T: Default>(&self, call: Option<GetOf<T>>, which: u32) -> Option<T> {
        let mut value = T::default();
        // SAFETY: as in `get`; NVML returns an error for a number that it does not know.
        (unsafe { call?(self.0, which, &mut value) } == 0).then_some(value)
    }
}

/// Turns a status into an error with the library's message.
fn check(loaded: &LoadedLibrary, call: &'static str, status: Status) -> Result<(), CallError> {
    if status == 0 {
        return Ok(());
    }
    type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
    // SAFETY: nvml.h declares `const char* nvmlErrorString(nvmlReturn_t)`.
    let Ok(error_string) = (unsafe { loaded.symbol::<ErrorString>(c"nvmlErrorString") }) else {
        return Err(CallError::Returned { call, status });
    };
    // SAFETY: the function takes any status, and may be called before the library is initialized.
    let words = unsafe { error_string(status) };
    if words.is_null() {
        return Err(CallError::Returned { call, status });
    }
    // SAFETY: not null, so it is a string constant of the library, which is never unloaded.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned();
    Err(CallError::Failed { call, words, status })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs, process};

    use super::*;

    /// A library with one GPU, `GPU-1`, written against nvml.h, with its names, types and units.
    const FAKE: &str = r#"
        #include <string.h>
        typedef unsigned long long u64;
        typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
        typedef struct { u64 total, free, used; } nvmlMemory_t;
        static int gpu, initialized;
        int nvmlSystemGetNVMLVersion(char* text, unsigned length) { strncpy(text, "13.580.65.06", length); return 0; }
        const char* nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "Unknown Error"; }
        int nvmlInit_v2(void) { initialized = INIT == 0; return INIT; }
        int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
            *device = &gpu;
            return !initialized ? 1 : strcmp(uuid, "GPU-1") ? 6 : 0;
        }
        int nvmlDeviceGetPowerUsage(void* device, unsigned* value) { *value = 650500; return device != &gpu; }
        int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* value) { *value = 700000; return device != &gpu; }
        int nvmlDeviceGetUtilizationRates(void* device, nvmlUtilization_t* value) {
            value->gpu = 98; value->memory = 40; return device != &gpu;
        }
        int nvmlDeviceGetMemoryInfo(void* device, nvmlMemory_t* value) {
            value->total = 3000; value->free = 2000; value->used = 1000; return device != &gpu;
        }
        int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* value) {
            *value = 61; return device != &gpu || sensor != 0;
        }
        int nvmlDeviceGetClockInfo(void* device, int type, unsigned* value) {
            *value = type == 1 ? 1755 : 3201; return type != 1 && type != 2;
        }
        int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, u64* value) { *value = 0x4; return device != &gpu; }
    "#;
    /// A function that the other GPUs of the fake library lack: this one answers `NVML_ERROR_NOT_SUPPORTED` or a value.
    const ENERGY: &str = "int nvmlDeviceGetTotalEnergyConsumption(void* device, u64* value) \
                          { *value = 9000000123456ull; return 0; }";
    const NO_ENERGY: &str = "int nvmlDeviceGetTotalEnergyConsumption(void* device, u64* value) { return 3; }";

    fn compile(dir: &Path, name: &str, init: i32, more: &str) -> PathBuf {
        let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
        fs::write(&source, format!("#define INIT {init}\n{FAKE}\n{more}\n")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().unwrap().success(), "cc makes a shared library");
        library
    }

    fn load(library: &Path) -> Result<Nvml, NvmlError> {
        let name: &'static str = library.display().to_string().leak();
        Nvml::load_by(&NVML.named(vec![name].leak()))
    }

    #[test]
    fn values_have_the_units_that_they_are_named_after() {
        let dir = env::temp_dir().join(format!("rankine-nvml-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();

        let nvml = load(&compile(&dir, "whole", 0, ENERGY)).unwrap();
        let reading = nvml.read("GPU-1").unwrap();
        let expected = GpuReading {
            watts: Some(650.5),
            limit_watts: Some(700.0),
            joules: Some(9_000_000_123.456),
            busy_share: Some(0.98),
            memory_bytes: Some(1000),
            celsius: Some(61.0),
            sm_hertz: Some(1.755e9),
            memory_hertz: Some(3.201e9),
            throttling: Some(Throttling(4)),
        };
        assert_eq!(reading, expected);
        assert_eq!(nvml.read("GPU-2"), None);
        assert_eq!(nvml.read("GPU\0"), None);

        // A GPU without the counter, and a library without the function, leave the value out.
        for (name, more) in [("unsupported", NO_ENERGY), ("older", "")] {
            let reading = load(&compile(&dir, name, 0, more)).unwrap().read("GPU-1").unwrap();
            assert_eq!(reading, GpuReading { joules: None, ..expected }, "{name}");
        }
        let error = load(&compile(&dir, "broken", 9, ENERGY)).unwrap_err();
        assert_eq!(error.to_string(), "nvmlInit: Driver Not Loaded (error 9)");
        let error = load(&dir.join("absent.so")).unwrap_err().to_string();
        assert!(
            error.ends_with("absent.so: cannot open shared object file: No such file or directory"),
            "{error}"
        );
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_power_limit_is_told_from_other_reasons_and_without_them_by_the_power() {
        let limited = |bits| {
            let throttling = Some(Throttling::from_bits(bits));
            GpuReading { throttling, watts: Some(699.0), limit_watts: Some(700.0), ..GpuReading::default() }
                .is_at_power_limit()
        };
        assert_eq!((limited(0x4), limited(0x80), limited(0x4 | 0x40)), (Some(true), Some(true), Some(true)));
        assert_eq!((limited(0), limited(0x20 | 0x8)), (Some(false), Some(false)));

        let drawing =
            |watts| GpuReading { watts: Some(watts), limit_watts: Some(700.0), ..GpuReading::default() };
        assert_eq!(drawing(686.0).is_at_power_limit(), Some(true));
        assert_eq!(drawing(685.0).is_at_power_limit(), Some(false));
        assert_eq!(GpuReading { watts: Some(686.0), ..GpuReading::default() }.is_at_power_limit(), None);
        let reasons: Vec<_> =
            Throttling(0x4 | 0x20).reasons().filter(|(_, holds)| *holds).map(|(name, _)| name).collect();
        assert_eq!(reasons, ["power_cap", "software_thermal"]);
    }
}
