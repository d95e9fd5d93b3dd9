//! `look_up.cu`.

use super::{Element, Feature, Id, Kernel};
use crate::buffer::Pointer;

/// Copies the rows that ids name out of tables on this GPU to where their vectors belong. Grid: any number of blocks; a
/// warp takes a sample at a time.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LookUp<T> {
    /// All tables.
    pub tables: Pointer<f32>,
    /// All features.
    pub features: Pointer<Feature>,
    /// Where the features say.
    pub ids: Pointer<u32>,
    /// How many samples there are; vectors of those behind are zeros.
    pub samples_count: Pointer<u32>,
    /// `[sample][stride]`
    pub output: Pointer<T>,
    /// Samples.
    pub samples: u32,
    /// Features.
    pub features_count: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
}

const _: () = assert!(size_of::<LookUp<f32>>() == 56);

// SAFETY: `look_up.cu` has the same struct.
unsafe impl<T: Element> Kernel for LookUp<T> {
    const ID: Id = Id::of::<T>([Id::LookUpF32, Id::LookUpBf16, Id::LookUpF16]);
    const NAME: &'static str = "look_up";
    const THREADS: u32 = 256;
}
