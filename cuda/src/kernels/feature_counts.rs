//! `feature_counts.cu`.

use super::names::Family;
use super::{Id, Kernel, Pair};
use crate::runtime::Pointer;

/// Counts the look-ups of each feature in a routed batch, and the rows that it is the first to look up: their sum over
/// the features of a table is the number of distinct rows of the table. Grid: any number of blocks, which share the
/// look-ups.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FeatureCounts {
    /// Slot and bag of each look-up, ascending, as [`super::Route::sorted`].
    pub sorted: Pointer<Pair>,
    /// Number of look-ups.
    pub count: Pointer<u32>,
    /// Per feature two numbers: look-ups, and rows. Zero at the start.
    pub counts: Pointer<u32>,
    /// Features, [`super::Route::FEATURES_MAX`] at most.
    pub features: u32,
    /// Bits of a bag that are the sample's.
    pub sample_bits: u32,
}

// SAFETY: `feature_counts.cu` has the same struct.
unsafe impl Kernel for FeatureCounts {
    const ID: Id = Family::FeatureCounts.variant([]);
    const THREADS: u32 = 512;
}
