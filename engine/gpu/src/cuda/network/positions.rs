//! The learned vectors of the positions of a sequence, which are added to their keys before attention.

use std::sync::Arc;

use rankine_cuda::kernels::{Attention, Element, Positions};
use rankine_cuda::{Device, Lane};
use rankine_embedding::cuda::Result;
use rankine_model::{AttentionSpec, Layer};
use rankine_reader::schema::Keep;

use super::resources::{PartialSums, Resources};

/// The vectors of the positions of a sequence, among the dense parameters.
#[derive(Debug)]
pub(super) struct EmbeddedPositions {
    /// `[position, elements of a key]`, padded.
    vectors: Layer,
    /// The end of a sample's sequence from which positions are counted.
    first: Keep,
    parts: PartialSums,
}

impl EmbeddedPositions {
    /// Creates the vectors of a sequence, which are laid out as on the GPU; `None` if its positions have none.
    pub(super) fn of<T: Element>(
        device: &Arc<Device>,
        attention: &AttentionSpec,
        vectors: Option<Layer>,
    ) -> Result<Option<Self>> {
        let Some((first, vectors)) = attention.position_embedding.zip(vectors) else { return Ok(None) };
        let columns = vectors.weight().len();
        let parts = PartialSums::new(device, Positions::<T>::slices(columns) as u32, columns)?;
        Ok(Some(Self { vectors, first, parts }))
    }

    /// Enqueues adding them to the keys that `attention` reads.
    ///
    /// # Safety
    /// As for the forward pass of attention, which comes after it.
    pub(super) unsafe fn add<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        attention: &Attention<T>,
    ) -> Result<()> {
        // SAFETY: the vectors have this place among the weights; the caller vouches for the rest.
        unsafe { self.parameters(resources, attention).enqueue_add(lane, resources.blocks()) }?;
        Ok(())
    }

    /// Enqueues the gradients with respect to them, from the gradients with respect to the keys.
    ///
    /// # Safety
    /// As for the backward pass of attention, which comes before it.
    pub(super) unsafe fn sum_gradients<T: Element>(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        attention: &Attention<T>,
    ) -> Result<()> {
        // SAFETY: there is a part for each slice, and a gradient for each element; the caller vouches for the rest.
        unsafe {
            self.parameters(resources, attention).enqueue_gradient(lane)?;
            self.parts.add_up(lane, resources.dense.gradients.pointer().element(self.vectors.offset))
        }
    }

    fn parameters<T: Element>(&self, resources: &Resources<T>, attention: &Attention<T>) -> Positions<T> {
        Positions {
            keys: attention.keys,
            key_gradients: attention.key_gradients,
            offsets: attention.offsets,
            samples_count: attention.samples_count,
            vectors: resources.dense.weights().element(self.vectors.offset),
            parts: self.parts.pointer(),
            samples: attention.samples,
            width: attention.width,
            length_max: attention.length_max,
            columns: self.vectors.weight().len() as u32,
            from_last: u32::from(self.first == Keep::Last),
            reserved: 0,
        }
    }
}
