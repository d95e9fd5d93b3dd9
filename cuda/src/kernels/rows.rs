//! `rows.cu`.

use half::bf16;

use super::{Feature, Id, Kernel, RANKS_MAX};
use crate::buffer::Pointer;

/// Writes an owner's rows to where the ranks that look them up want them. Grid: x over entries, any number of blocks,
/// and y over ranks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Send {
    /// `[row of this owner][dim]`
    pub table: Pointer<f32>,
    /// `[rank][capacity]`: the rows wanted.
    pub entries: Pointer<u32>,
    /// Of each rank: the slot there of this owner's first row.
    pub firsts: Pointer<u32>,
    /// Of each rank: the rows that it looks up here.
    pub counts: Pointer<u32>,
    /// Of each rank: `[slot][dim]`.
    pub landings: [Pointer<bf16>; RANKS_MAX],
    /// Entries that a rank can have.
    pub capacity: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
}

/// Reads the rows that a rank looks up from their owners' tables. Grid: x over rows, any number of blocks, and y over
/// owners.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fetch {
    /// Of each owner: `[row][dim]`.
    pub tables: [Pointer<f32>; RANKS_MAX],
    /// The rows, by owner.
    pub list: Pointer<u32>,
    /// Where those of each owner begin, and the end.
    pub starts: Pointer<u32>,
    /// `[slot][dim]`
    pub landing: Pointer<bf16>,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
    /// 0.
    pub reserved: u32,
}

/// Writes a vector for each id of all ranks that is this owner's. Grid: x over samples, any number of blocks, and y
/// over ranks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Vectors {
    /// `[row of this owner][dim]`
    pub table: Pointer<f32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Of each rank: by feature, and by sample within a feature.
    pub ids: [Pointer<u32>; RANKS_MAX],
    /// Of each rank: `[sample][stride]`.
    pub outputs: [Pointer<bf16>; RANKS_MAX],
    /// Samples of a rank.
    pub samples: u32,
    /// Features.
    pub features_count: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks.
    pub ranks: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
}

const _: () = assert!(size_of::<Send>() == 112 && size_of::<Fetch>() == 104 && size_of::<Vectors>() == 168);

// SAFETY: `rows.cu` has the same struct.
unsafe impl Kernel for Send {
    const ID: Id = Id::Send;
    const NAME: &'static str = "rows_send";
    const THREADS: u32 = 256;
}

// SAFETY: `rows.cu` has the same struct.
unsafe impl Kernel for Fetch {
    const ID: Id = Id::Fetch;
    const NAME: &'static str = "rows_fetch";
    const THREADS: u32 = 256;
}

// SAFETY: `rows.cu` has the same struct.
unsafe impl Kernel for Vectors {
    const ID: Id = Id::Vectors;
    const NAME: &'static str = "vectors_send";
    const THREADS: u32 = 256;
}
