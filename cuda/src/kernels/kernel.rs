//! What is common to all launchers.

use super::names::Id;

/// The most ranks that access each other's memory.
pub const RANKS_MAX: usize = 8;
/// The most shared memory that a launcher requests, in bytes.
pub(super) const SHARED_BYTES_MAX: i32 = 144 << 10;

/// The parameter of a kernel.
///
/// # Safety
/// The type must be `repr(C)` with the fields of the parameter of the kernel [`Kernel::ID`], and `THREADS` and
/// `shared_bytes` must be what that kernel expects.
pub unsafe trait Kernel: Copy {
    /// The kernel.
    const ID: Id;
    /// Threads of a block.
    const THREADS: u32;

    /// Bytes of dynamic shared memory, as the parameters require.
    fn shared_bytes(&self) -> u32 {
        0
    }
}
