//! `traffic.cu`.

use bytemuck::{Pod, Zeroable};

use super::names::Family;
use super::{Id, Kernel};
use crate::runtime::Pointer;

/// What a rank has sent over links of one kind, over all steps.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct LinkCounts {
    /// Vectors that owners send, rows or pooled bags.
    pub rows: u64,
    /// Bytes of keys, of these vectors and of their gradients.
    pub bytes: u64,
    /// Other bytes of messages of fixed size; modulo 2^64 while a step is running.
    pub padding: u64,
    /// Bytes of the gradients of rows that every rank stores, and of their keys.
    pub reduced: u64,
}

/// The rows of a part of a table at an owner.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RowRange {
    /// The list that has them.
    pub list: u32,
    /// The smallest of their numbers.
    pub begin: u32,
    /// The first number after them.
    pub end: u32,
    /// Bytes that cross links for each row.
    pub bytes: u32,
    /// 1 if every rank stores the rows, so that only their gradients are sent; else 0.
    pub of_all: u32,
}

/// Counts what a rank exchanges for the rows of its lists. Grid: one block.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RowTraffic {
    /// List by list, ascending within each.
    pub rows: Pointer<u32>,
    /// Where each list starts, and where the last one ends.
    pub starts: Pointer<u32>,
    /// In any order.
    pub ranges: Pointer<RowRange>,
    /// What is counted is added here.
    pub counts: Pointer<LinkCounts>,
    /// Bytes of the messages of fixed size that are sent in a step.
    pub messages: u64,
    /// Number of ranges.
    pub ranges_count: u32,
    /// 1 if these messages contain what is counted here; else 0.
    pub contained: u32,
}

const _: () = assert!(size_of::<LinkCounts>() == 32 && size_of::<RowRange>() == 20);

// SAFETY: `traffic.cu` has the same struct.
unsafe impl Kernel for RowTraffic {
    const ID: Id = Family::RowTraffic.variant([]);
    const THREADS: u32 = 256;
}
