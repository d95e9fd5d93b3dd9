//! Limits that several kernels share.

/// The most ranks that access each other's memory.
pub const RANKS_MAX: usize = 8;
/// The most shared memory that a launcher requests, in bytes.
pub(super) const SHARED_BYTES_MAX: u32 = 144 << 10;
