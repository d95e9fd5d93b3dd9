//! NCCL's functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::sys::CUstream;

use crate::probe::library::LoadedLibrary;
use crate::probe::specs::NCCL;
use crate::probe::{CallError, CollNetMissing};
use crate::runtime::{Error, Result};

/// `ncclComm_t`.
pub(super) type Handle = *mut c_void;
/// `ncclResult_t`, an enum of the size of an int; 0 is success.
pub(super) type Status = c_int;
/// `ncclInProgress`: what was started continues in the background.
pub(super) const IN_PROGRESS: Status = 7;
/// The first version whose communicators can be configured to use CollNet.
const CONFIGURED: c_int = 22700;

/// `ncclConfig_t` of NCCL 2.27. Later versions have more fields, which then have their defaults: NCCL reads as much as
/// `size` says.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

const _: () = assert!(size_of::<Config>() == 72 && std::mem::offset_of!(Config, collnet_enable) == 56);

impl Config {
    /// A communicator whose calls do not block, and which sums in the network if it can.
    pub(super) fn with_collnet() -> Self {
        // `NCCL_CONFIG_UNDEF_INT`.
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: CONFIGURED as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: 1,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
        }
    }
}

/// `ncclCommInitRankConfig`.
pub(super) type InitRankConfig =
    unsafe extern "C" fn(*mut Handle, c_int, NcclId, c_int, *mut Config) -> Status;

/// The id of a communicator: one rank creates it and sends it to the others. `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct NcclId([u8; 128]);

impl std::fmt::Debug for NcclId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NcclId")
    }
}

/// The functions that are used here, typed as nccl.h declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    get_unique_id: unsafe extern "C" fn(*mut NcclId) -> Status,
    pub(super) init_rank: unsafe extern "C" fn(*mut Handle, c_int, NcclId, c_int) -> Status,
    get_version: unsafe extern "C" fn(*mut c_int) -> Status,
    init_rank_config: Option<InitRankConfig>,
    pub(super) destroy: unsafe extern "C" fn(Handle) -> Status,
    pub(super) abort: unsafe extern "C" fn(Handle) -> Status,
    pub(super) async_error: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    pub(super) all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> Status,
    pub(super) broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> Status,
    pub(super) send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, CUstream) -> Status,
    pub(super) receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, CUstream) -> Status,
    pub(super) group_start: unsafe extern "C" fn() -> Status,
    pub(super) group_end: unsafe extern "C" fn() -> Status,
    words: unsafe extern "C" fn(Status) -> *const c_char,
    last_words: unsafe extern "C" fn(Handle) -> *const c_char,
}

impl Calls {
    /// Loads the library, which stays loaded.
    pub(super) fn load() -> Result<Self> {
        let library = NCCL.load().map_err(|why| Error::NoNccl(why.to_string()))?;
        Self::of(&library).map_err(|why| Error::NoNccl(why.to_string()))
    }

    fn of(library: &LoadedLibrary) -> Result<Self, CallError> {
        // SAFETY: the fields' types are those with which nccl.h declares the functions of these names; a communicator
        // is a pointer, and the enums are ints.
        unsafe {
            Ok(Self {
                get_unique_id: library.symbol(c"ncclGetUniqueId")?,
                init_rank: library.symbol(c"ncclCommInitRank")?,
                get_version: library.symbol(c"ncclGetVersion")?,
                // Since 2.14.
                init_rank_config: library.symbol(c"ncclCommInitRankConfig").ok(),
                destroy: library.symbol(c"ncclCommDestroy")?,
                abort: library.symbol(c"ncclCommAbort")?,
                async_error: library.symbol(c"ncclCommGetAsyncError")?,
                all_reduce: library.symbol(c"ncclAllReduce")?,
                broadcast: library.symbol(c"ncclBroadcast")?,
                send: library.symbol(c"ncclSend")?,
                receive: library.symbol(c"ncclRecv")?,
                group_start: library.symbol(c"ncclGroupStart")?,
                group_end: library.symbol(c"ncclGroupEnd")?,
                words: library.symbol(c"ncclGetErrorString")?,
                last_words: library.symbol(c"ncclGetLastError")?,
            })
        }
    }

    /// The function that creates communicators with a configuration; or why it cannot choose CollNet.
    pub(super) fn configured(&self) -> std::result::Result<InitRankConfig, CollNetMissing> {
        let mut version = 0;
        // SAFETY: the pointer is to a live int.
        let status = unsafe { (self.get_version)(&mut version) };
        match self.init_rank_config.filter(|_| status == 0 && version >= CONFIGURED) {
            Some(init) => Ok(init),
            None => Err(CollNetMissing::OldNccl { version }),
        }
    }

    pub(super) fn unique_id(&self) -> Result<NcclId> {
        let mut id = NcclId([0; 128]);
        // SAFETY: the pointer is to a live value of the function's type.
        self.named(unsafe { (self.get_unique_id)(&mut id) }, "ncclGetUniqueId")?;
        Ok(id)
    }

    /// Names the call that a status comes from.
    pub(super) fn named(&self, status: Status, call: &'static str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any status has a message, and the null communicator stands for this thread's last error; both are
        // strings of the library, which is never unloaded.
        let (words, details) = unsafe { ((self.words)(status), (self.last_words)(std::ptr::null_mut())) };
        Err(Error::Nccl { call, words: join(text(words), text(details)) })
    }
}

fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: it is a string of the library; see `Calls::named`.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned()
}

fn join(words: String, details: String) -> String {
    if details.is_empty() { words } else { format!("{words} ({details})") }
}
