//! `number.cu`.

use super::{Id, Kernel, KeySet};
use crate::buffer::Pointer;

/// Numbers the members of a set of keys and lists them. Grid: one block a group of [`super::GROUP_KEYS`] keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// Its `groups` and `lines` are set.
    pub set: KeySet,
    /// Of each member: the row of its owner.
    pub rows: Pointer<u32>,
    /// One an owner and one more: where its members begin.
    pub starts: Pointer<u32>,
    /// Null, or `[member][sources_width]`, to be set to zeros.
    pub sources: Pointer<u32>,
    /// Owners among the keys.
    pub owners: u32,
    /// Keys of an owner.
    pub span: u32,
    /// Words a member.
    pub sources_width: u32,
    /// 0.
    pub reserved: u32,
}

/// Counts the members of each group, which [`Number`] starts from. Grid: the same.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Groups(pub Number);

// SAFETY: `number.cu` has the same struct.
unsafe impl Kernel for Groups {
    const ID: Id = Id::Groups;
    const NAME: &'static str = "number_groups";
    const THREADS: u32 = 1024;
}

const _: () = assert!(size_of::<Number>() == 64);

// SAFETY: `number.cu` has the same struct.
unsafe impl Kernel for Number {
    const ID: Id = Id::Number;
    const NAME: &'static str = "number";
    const THREADS: u32 = 1024;
}
