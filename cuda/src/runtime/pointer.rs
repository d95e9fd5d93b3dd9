//! Addresses in the memory of a GPU.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

/// An address in a GPU's memory, as kernel parameters have it. The caller that launches a kernel vouches for it.
#[repr(transparent)]
pub struct Pointer<T> {
    address: u64,
    element: PhantomData<*mut T>,
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> std::fmt::Debug for Pointer<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:#x}", self.address)
    }
}

// SAFETY: an address is a number; only kernels follow it.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Pointer<T> {}
// SAFETY: the null address is a valid value.
unsafe impl<T> Zeroable for Pointer<T> {}
// SAFETY: it is a number of eight bytes, any of which is an address that only kernels follow.
unsafe impl<T: 'static> Pod for Pointer<T> {}

impl<T> Pointer<T> {
    /// The null address.
    pub const NULL: Self = Self::new(0);

    pub(crate) const fn new(address: u64) -> Self {
        Self { address, element: PhantomData }
    }

    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// The same address, reinterpreted as elements of another type.
    pub fn cast<U>(self) -> Pointer<U> {
        Pointer::new(self.address)
    }

    /// The address of another element of the same buffer.
    pub fn element(self, index: usize) -> Self {
        Self::new(self.address + (index * size_of::<T>()) as u64)
    }
}
