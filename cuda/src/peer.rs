//! Memory of one GPU that others read and write.

use std::ops::Deref;
use std::sync::Arc;

use bytemuck::Pod;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// Elements in a GPU's memory that several GPUs of this process access at the same address. All else is that of a
/// [`Buffer`].
#[derive(Debug)]
pub struct PeerBuffer<T>(Buffer<T>);

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
        let memory = Memory::for_peers(device, peers, len * size_of::<T>())?;
        memory.fill(byte, len * size_of::<T>())?;
        Ok(Self(Buffer::in_memory(memory, len)))
    }
}

impl<T> Deref for PeerBuffer<T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.0
    }
}
