//! Attention over sequences: the keys of their positions become sums among the vectors of a sample, before the
//! interaction, and the gradients go back to keys, queries and activation units after it.
//!
//! Look-ups write the keys beside the vectors, one after another, as many as a batch has positions. The gradients with
//! respect to keys are stored behind those with respect to the vectors, so that updates read both from one address.

use std::sync::Arc;

use rankine_cuda::kernels::{
    Attention as Parameters, AttentionKind, AttentionSizes, AttentionTiling, Element, KeyPlace, UnitLayer,
};
use rankine_cuda::{Buffer, Device, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::{AttentionSpec, AttentionUnit, Layer, ModelSpec};
use rankine_reader::schema::Hotness;

use super::layers::Layouts;
use super::positions::EmbeddedPositions;
use super::resources::{ActivationMatrices, Activations, PartialSums, Resources};
use super::rows::NetworkRows;
use super::vector_layout::VectorLayout;
use crate::cuda::input::Input;

/// The attention of a model over all of its sequences.
#[derive(Debug)]
pub(super) struct Attention<T> {
    sequences: Vec<Attended<T>>,
    /// The keys of a batch, sequence by sequence.
    keys: Buffer<T>,
    vectors: ActivationMatrices<T>,
    rows: NetworkRows,
}

/// The attention over a sequence.
#[derive(Debug)]
struct Attended<T> {
    /// What does not depend on the batch.
    parameters: Parameters<T>,
    /// If the sizes fit one.
    tiling: Option<AttentionTiling>,
    /// Of the blocks of either pass, without a tiling.
    memory: [Memory; 2],
    /// Ragged columns before one of the sequence's.
    ragged_before: usize,
    /// Elements of the keys that a sample may have in the sequences before.
    elements_before: usize,
    unit: Option<Unit>,
    /// The learned vectors of positions, if they have some.
    positions: Option<EmbeddedPositions>,
    _places: Buffer<KeyPlace>,
    _layers: Buffer<UnitLayer>,
}

/// The memory of the blocks of a pass.
#[derive(Debug)]
struct Memory {
    floats: usize,
    /// If it does not fit into shared memory.
    buffer: Option<Buffer<f32>>,
}

/// The activation unit of a sequence among the dense parameters.
#[derive(Debug)]
struct Unit {
    offset: usize,
    parts: PartialSums,
}

impl Memory {
    fn new<T: Element>(device: &Arc<Device>, floats: usize) -> Result<Self> {
        let fits = Parameters::<T>::fits_shared(floats);
        let buffer = || Buffer::filled(device, Parameters::<T>::blocks(None) * floats, 0xff);
        Ok(Self { floats, buffer: (!fits).then(buffer).transpose()? })
    }

    /// Returns parameters with this memory.
    fn given<T>(&self, parameters: Parameters<T>) -> Parameters<T> {
        let memory = self.buffer.as_ref().map_or(Pointer::NULL, Buffer::pointer);
        Parameters { memory_floats: self.floats as u32, memory, ..parameters }
    }
}

impl<T: Element> Attention<T> {
    /// Allocates the vectors of samples. Behind the gradients with respect to them there is memory for the gradients
    /// with respect to the keys.
    pub(super) fn vectors(
        (device, rows): (&Arc<Device>, NetworkRows),
        spec: &ModelSpec,
        vector_layout: &VectorLayout,
    ) -> Result<Activations<T>> {
        let strides = vector_layout.keys.iter().map(|key| key.len);
        let most = spec.attention.iter().map(|attention| attention.length_max);
        let of_sample = most.zip(strides).map(|(length, stride)| length * stride).sum();
        Activations::with_more_gradients(device, rows, vector_layout.stride, of_sample)
    }

    /// Creates the attention of a model between [`Attention::vectors`]; `None` if it has none. `hotness` has the
    /// numbers of ids of the columns.
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        spec: &ModelSpec,
        layouts: Layouts<'_>,
        vectors: ActivationMatrices<T>,
        hotness: &[Hotness],
    ) -> Result<Option<Self>> {
        if spec.attention.is_empty() {
            return Ok(None);
        }
        let (mut sequences, mut elements_before) = (Vec::new(), 0usize);
        for (number, attention) in spec.attention.iter().enumerate() {
            let column = attention.features[0];
            assert!(hotness[column].varies(), "sequences are ragged");
            let elements = attention.length_max * layouts.vectors.keys[number].len;
            let layers = &layouts.layers.attention[number];
            // The kernels with tiles read sixteen bytes at a time.
            let aligned = elements_before.is_multiple_of(8);
            let mut attended = Attended::new(device, spec, layouts, (number, attention), (layers, aligned))?;
            attended.ragged_before = hotness[..column].iter().filter(|hotness| hotness.varies()).count();
            attended.elements_before = elements_before;
            elements_before += elements;
            sequences.push(attended);
        }
        let keys = Buffer::filled(device, rows.values() * elements_before, 0)?;
        Ok(Some(Self { sequences, keys, vectors, rows }))
    }

    /// Returns the address of the keys.
    pub(super) fn keys(&self) -> Pointer<T> {
        self.keys.pointer()
    }

    /// Enqueues writing the sums of the first `samples` samples, after the look-ups; `learns` is whether a backward
    /// pass follows.
    ///
    /// # Safety
    /// The input must be of a training batch if `learns`, else of a batch that is scored; see [`Lane::launch`].
    pub(super) unsafe fn forward(
        &self,
        lane: &Lane,
        resources: &Resources<T>,
        input: Input,
        (samples, learns): (usize, bool),
    ) -> Result<()> {
        let room = if learns { self.rows.trained } else { self.rows.scored };
        for attended in &self.sequences {
            let parameters = self.parameters(attended, resources, input, room);
            let parameters = Parameters { samples: samples as u32, ..parameters };
            let Attended { tiling, memory: [memory, _], .. } = attended;
            let multiprocessors = resources.device.multiprocessors();
            let blocks = match &memory.buffer {
                Some(_) => Parameters::<T>::blocks(None) as u32,
                None => Parameters::<T>::forward_blocks(*tiling, multiprocessors),
            };
            // SAFETY: the buffers are this value's, or those that it was made for; the caller vouches for the input.
            unsafe {
                if let Some(positions) = &attended.positions {
                    positions.add(lane, resources, &parameters)?;
                }
                memory.given(parameters).enqueue_forward(lane, *tiling, (blocks, 1))?;
            }
        }
        Ok(())
    }

    /// Enqueues the gradients with respect to keys and units, and adding those with respect to queries, after the
    /// backward pass of the interaction.
    ///
    /// # Safety
    /// As for [`Attention::forward`] with a training batch.
    pub(super) unsafe fn backward(&self, lane: &Lane, resources: &Resources<T>, input: Input) -> Result<()> {
        for attended in &self.sequences {
            let parameters = self.parameters(attended, resources, input, self.rows.trained);
            let Attended { tiling, memory: [_, memory], .. } = attended;
            // SAFETY: as for `forward`; there is a part for each block, and a gradient for each parameter of the unit.
            unsafe {
                memory.given(parameters).enqueue_backward(lane, *tiling)?;
                if let Some(unit) = &attended.unit {
                    unit.parts.add_up(lane, resources.dense.gradients.pointer().element(unit.offset))?;
                }
                if let Some(positions) = &attended.positions {
                    positions.sum_gradients(lane, resources, &parameters)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the parameters of a sequence for batches with room for `room` samples.
    fn parameters(
        &self,
        attended: &Attended<T>,
        resources: &Resources<T>,
        input: Input,
        room: usize,
    ) -> Parameters<T> {
        let ActivationMatrices { values, gradients } = self.vectors;
        let (trained, before) = (self.rows.trained, attended.elements_before);
        let weights = resources.dense.weights();
        Parameters {
            vectors: values.pointer,
            keys: self.keys.pointer().element(room * before),
            gradients: gradients.pointer,
            key_gradients: gradients.pointer.element(trained * (gradients.stride + before)),
            offsets: input.ids.offsets.element(attended.ragged_before * (room + 1)),
            samples_count: input.ids.samples,
            weights: attended.unit.as_ref().map_or(weights, |unit| weights.element(unit.offset)),
            guard: resources.guard.pointer(),
            samples: trained as u32,
            stride: values.stride as u32,
            ..attended.parameters
        }
    }
}

impl<T: Element> Attended<T> {
    fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        layouts: Layouts<'_>,
        (number, attention): (usize, &AttentionSpec),
        (layers, aligned): (&[Layer], bool),
    ) -> Result<Self> {
        let Layouts { vectors, .. } = layouts;
        let AttentionSpec { features, unit, length_max, .. } = attention;
        let kind = match unit {
            AttentionUnit::Din { .. } => AttentionKind::Din,
            AttentionUnit::Dot { .. } => AttentionKind::Dot,
            AttentionUnit::Mean => AttentionKind::Mean,
        };
        // Without a query, its place is not read.
        let query = if unit.query().is_empty() { features } else { unit.query() };
        let parts = features.iter().zip(query).zip(vectors.keys[number].padded_parts());
        let parts = parts.map(|((&feature, &query), (_, elements))| {
            ([vectors.features[query], vectors.features[feature]], elements)
        });
        let places = Buffer::of(device, &KeyPlace::all(parts))?;
        let offset = layers.first().map_or(0, |layer| layer.offset);
        let parameters = layers.last().map_or(0, |layer| layer.end() - offset);
        let unit_layer = |(number, layer): (usize, &Layer)| UnitLayer {
            inputs: layer.inputs as u32,
            outputs: if number + 1 == layers.len() { 1 } else { layer.outputs as u32 },
            weights: (layer.offset - offset) as u32,
            bias: (layer.bias().start - offset) as u32,
        };
        let unit_layers: Vec<_> = layers.iter().enumerate().map(unit_layer).collect();
        let width = vectors.keys[number].len;
        let sizes = AttentionSizes { kind, width, length_max: *length_max, layers: &unit_layers, parameters };
        let [outputs_max, outputs_sum] = sizes.outputs();
        let tiling = AttentionTiling::of::<T>(&sizes).filter(|_| aligned);
        let floats = |backward| if tiling.is_some() { 0 } else { sizes.memory_floats(backward) };
        let memory = |backward| Memory::new::<T>(device, floats(backward));
        let layers_buffer = Buffer::of(device, &unit_layers)?;
        // Padding stays zero.
        let unit = (parameters > 0)
            .then(|| PartialSums::zeroed(device, Parameters::<T>::blocks(tiling) as u32, parameters));
        let unit = unit.transpose()?.map(|parts| Unit { offset, parts });
        Ok(Self {
            parameters: Parameters {
                vectors: Pointer::NULL,
                keys: Pointer::NULL,
                gradients: Pointer::NULL,
                key_gradients: Pointer::NULL,
                offsets: Pointer::NULL,
                samples_count: Pointer::NULL,
                places: places.pointer(),
                layers: layers_buffer.pointer(),
                weights: Pointer::NULL,
                parts: unit.as_ref().map_or(Pointer::NULL, |unit| unit.parts.pointer()),
                memory: Pointer::NULL,
                guard: Pointer::NULL,
                samples: 0,
                stride: 0,
                width: width as u32,
                kind: kind as u32,
                layers_count: unit_layers.len() as u32,
                outputs_max: outputs_max as u32,
                outputs_sum: outputs_sum as u32,
                parameters: parameters as u32,
                memory_floats: 0,
                length_max: *length_max as u32,
                score_scale: 1.0 / (spec.key_elements(attention) as f32).sqrt(),
                reserved: 0,
            },
            tiling,
            memory: [memory(false)?, memory(true)?],
            ragged_before: 0,
            elements_before: 0,
            unit,
            positions: EmbeddedPositions::of::<T>(device, attention, layouts.layers.positions[number])?,
            _places: places,
            _layers: layers_buffer,
        })
    }
}
