//! Kernels: their parameters, and their functions on a GPU.

use cudarc::driver::sys;

/// A kernel, as the list of all kernels has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    /// The name of its family.
    pub(crate) name: &'static str,
    /// Its index among all kernels.
    pub(crate) index: usize,
}

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

/// The functions that a GPU has loaded, one per kernel. They are unloaded with the context.
#[derive(Debug)]
pub(crate) struct Functions {
    by_index: Vec<sys::CUfunction>,
    /// Whether the Hopper-only ones are loaded.
    hopper: bool,
}

impl Functions {
    /// Takes the functions of all kernels, in the order of [`Id::index`].
    pub(crate) fn new(by_index: Vec<sys::CUfunction>, hopper: bool) -> Self {
        Self { by_index, hopper }
    }

    pub(crate) fn function(&self, id: Id) -> sys::CUfunction {
        self.by_index[id.index]
    }

    pub(crate) fn hopper(&self) -> bool {
        self.hopper
    }
}
