//! Bounds of the gradients that updates multiply by factors: of features whose ids have weights.

use std::sync::Arc;

use rankine_cuda::kernels::{Element, FactorCheck, FactorFeature, Guard};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::Pooling;
use rankine_embedding::cuda::{Feature, Ids, Layout, Result};

/// Blocks per multiprocessor.
const BLOCKS_EACH: u32 = 8;

/// The features whose factors may exceed 1. The factors of a mean are shares, which do not.
#[derive(Debug)]
pub(super) struct FactorBounds {
    features: Buffer<FactorFeature>,
    stride: usize,
}

impl FactorBounds {
    /// Returns the bounded features of a layout; `None` if it has none. Gradients have `stride` elements per sample.
    pub(super) fn new(device: &Arc<Device>, layout: &Layout, stride: usize) -> Result<Option<Self>> {
        let of_feature = |feature: &Feature| FactorFeature {
            offsets: layout.offsets_begin(feature.column) as u32,
            factors: layout.factors_begin(feature.column) as u32,
            vector_offset: feature.vector_offset as u32,
            dim: layout.tables()[feature.table].dim.next_multiple_of(4) as u32,
        };
        let bounded = layout
            .features()
            .iter()
            .filter(|feature| feature.pooling == Pooling::Sum && layout.is_weighted(feature.column));
        let features: Vec<_> = bounded.map(of_feature).collect();
        if features.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { features: Buffer::of(device, &features)?, stride }))
    }

    /// Enqueues looking for gradients with respect to vectors that are out of bounds times a factor of their bag, and
    /// reporting them to the guard.
    ///
    /// # Safety
    /// Ids and gradients must fit the layout; see [`Lane::launch`].
    pub(super) unsafe fn check<T: Element>(
        &self,
        lane: &Lane,
        ids: Ids,
        gradients: Pointer<T>,
        guard: Pointer<Guard>,
    ) -> Result<()> {
        let check = FactorCheck {
            gradients,
            features: self.features.pointer(),
            offsets: ids.offsets,
            factors: ids.factors,
            samples_count: ids.samples,
            guard,
            stride: self.stride as u32,
            reserved: 0,
        };
        let features = self.features.len() as u32;
        let blocks = (BLOCKS_EACH * lane.device().multiprocessors()).div_ceil(features);
        // SAFETY: the features belong to this value; the caller vouches for the rest.
        Ok(unsafe { lane.launch(&check, (blocks, features)) }?)
    }
}
