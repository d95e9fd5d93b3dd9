//! `shard.cuh` and `learn.cuh`: what a GPU has of tables, and what their learning takes.

use bytemuck::{Pod, Zeroable};

use super::{Rate, Rule, Step};
use crate::buffer::Pointer;

/// Columns of a table whose rows a GPU has, all or some, and how they learn.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Shard {
    /// Where its first row lies, in words of four bytes.
    pub words: u64,
    /// The rule.
    pub rule: Rule,
    /// The number of its first row among those of all shards.
    pub base: u32,
    /// Rows that the GPU has of it.
    pub rows: u32,
    /// Words from one row to the next.
    pub row_words: u32,
    /// Elements of a row, without those that fill it up to a multiple of 4.
    pub dim: u32,
    /// Where a row's state begins, in words from the row's beginning.
    pub first: u32,
    /// Where the second of two numbers of state begins.
    pub second: u32,
    /// What its weights are stored as: a [`super::Dtype`].
    pub dtype: u32,
    /// The number of its table.
    pub table: u32,
    /// Its first column there, a multiple of 4.
    pub column: u32,
    /// Which row of the table its first row is.
    pub row: u32,
    /// How many rows of the table further on the next one is.
    pub step: u32,
    /// 1 where others have further columns of the rows, and a row's rule takes what follows from all; else 0.
    pub shares_squares: u32,
    /// Null, or in place of `row` and `step` of each of its rows: which one of the table it is.
    pub listed: Pointer<u32>,
}

/// What learning takes beside gradients.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Learning {
    /// In the order of their bases.
    pub shards: Pointer<Shard>,
    /// One a table.
    pub rates: Pointer<Rate>,
    /// Null, or what gradients are multiplied by.
    pub scale: Pointer<f32>,
    /// Nothing is written where it is not 0.
    pub stop: Pointer<u32>,
    /// The step's number.
    pub step: Pointer<Step>,
    /// The run's seed.
    pub seed: u64,
    /// All shards.
    pub storage: Pointer<f32>,
}

const _: () = assert!(size_of::<Shard>() == 96 && size_of::<Learning>() == 56);
