//! `shard.cuh` and `learn.cuh`: the tables' shards on a GPU, and the parameters of their updates.

use bytemuck::{Pod, Zeroable};

use super::{Rate, Rule, Step};
use crate::runtime::Pointer;

/// All or some columns of a table's rows, all or some of which this GPU stores, and how they learn.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Shard {
    /// Where its first row is stored, in words of four bytes.
    pub words: u64,
    /// The rule.
    pub rule: Rule,
    /// The number of its first row among those of all shards.
    pub base: u32,
    /// Number of its rows on the GPU.
    pub rows: u32,
    /// Words from one row to the next.
    pub row_words: u32,
    /// Elements of a row, without the padding to a multiple of 4.
    pub dim: u32,
    /// Where a row's state starts, in words from the start of the row.
    pub first: u32,
    /// Where the second state starts.
    pub second: u32,
    /// Type of its weights: a [`super::Dtype`].
    pub dtype: u32,
    /// The number of its table.
    pub table: u32,
    /// Its first column there, a multiple of 4.
    pub column: u32,
    /// Its first row's number in the table.
    pub row: u32,
    /// Distance to the next row in the table.
    pub step: u32,
    /// 1 if other ranks have more columns of the rows and the rule depends on all columns; else 0.
    pub shares_squares: u32,
    /// Null, or for each of its rows the number in the table, instead of `row` and `step`.
    pub listed: Pointer<u32>,
}

/// What an update needs apart from gradients.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UpdateContext {
    /// Ordered by base.
    pub shards: Pointer<Shard>,
    /// One per table.
    pub rates: Pointer<Rate>,
    /// Null, or the factor of the gradients.
    pub scale: Pointer<f32>,
    /// If this is not 0, nothing is written.
    pub stop: Pointer<u32>,
    /// The step's number.
    pub step: Pointer<Step>,
    /// The run's seed.
    pub seed: u64,
    /// Memory of all shards.
    pub storage: Pointer<f32>,
}

const _: () = assert!(size_of::<Shard>() == 96 && size_of::<UpdateContext>() == 56);
