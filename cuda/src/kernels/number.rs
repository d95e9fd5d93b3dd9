//! `number.cu`.

use super::names::Family;
use super::{Id, Kernel, KeySet};
use crate::runtime::Pointer;

/// Numbers the members of a set of keys and lists them. Grid: one block per group of [`super::GROUP_KEYS`] keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// `groups` is set; `lines` is written.
    pub set: KeySet,
    /// Per member: the row of its owner.
    pub rows: Pointer<u32>,
    /// Where each owner's members start, then the end of the last.
    pub starts: Pointer<u32>,
    /// Null, or `[member][sources_width]`, which is set to zeros.
    pub sources: Pointer<u32>,
    /// Owners among the keys.
    pub owners: u32,
    /// Keys of an owner.
    pub span: u32,
    /// Words per member.
    pub sources_width: u32,
    /// 0.
    pub reserved: u32,
}

/// Counts the members of each group, which is the input of [`Number`]. Grid: the same.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Groups(pub Number);

// SAFETY: `number.cu` has the same struct.
unsafe impl Kernel for Groups {
    const ID: Id = Family::Groups.variant([]);
    const THREADS: u32 = 1024;
}

// SAFETY: `number.cu` has the same struct.
unsafe impl Kernel for Number {
    const ID: Id = Family::Number.variant([]);
    const THREADS: u32 = 1024;
}
