//! Attention: the keys of a sequence's positions, one after another, become a sum for each sample. Rows are jagged: a
//! tile has as many as its samples have positions.
//!
//! A position's key is the concatenation of the rows of its ids. The gradient with respect to a key goes to the update
//! of these rows, look-up by look-up: see [`crate::positions`].

mod embedded;
mod unit;

use std::ops::Range;

use rankine_model::{AttentionSpec, Layer, MlpSpec, ModelSpec};
use rankine_reader::Samples;

use crate::mlp::{Mlp, MlpTile};
use crate::positions::features_of;
use crate::tables::LookUp;

pub(super) use embedded::EmbeddedPositions;
use unit::{Unit, UnitTile};

/// A model's attention over one sequence.
#[derive(Debug)]
pub(super) struct Attention {
    /// Its number among the model's.
    number: usize,
    /// A column of the sequence; the bags of the others have the same sizes.
    column: usize,
    /// Elements of a key.
    width: usize,
    /// Where the sums are among a sample's vectors, attribute by attribute.
    sums: Vec<Range<usize>>,
    /// Where the vectors of the query are among a sample's.
    query: Vec<Range<usize>>,
    unit: Unit,
    /// The learned vectors of positions, if they have some.
    positions: Option<EmbeddedPositions>,
}

/// What attention keeps of one tile between forward and backward pass.
#[derive(Debug, Default)]
pub(super) struct AttentionTile {
    /// Where the positions of each sample start in the tile, then their number.
    starts: Vec<usize>,
    /// `[position, width]`
    keys: Vec<f32>,
    /// `[sample, width]`: the queries.
    queries: Vec<f32>,
    /// `[position]`
    weights: Vec<f32>,
    /// `[position]`: the gradients with respect to the weights.
    weight_gradients: Vec<f32>,
    /// `[sample, width]`: the gradients with respect to the queries.
    query_gradients: Vec<f32>,
    /// `[width]`: a sample's sum, or the gradient with respect to it.
    sum: Vec<f32>,
    unit: UnitTile,
}

/// The positions of a tile with their keys and the queries of its samples.
#[derive(Clone, Copy)]
struct Positions<'a> {
    starts: &'a [usize],
    width: usize,
    keys: &'a [f32],
    queries: &'a [f32],
}

impl<'a> Positions<'a> {
    /// The number of positions.
    fn len(&self) -> usize {
        self.keys.len() / self.width
    }

    /// Returns each sample's query and the range of its positions.
    fn samples(self) -> impl Iterator<Item = (usize, &'a [f32], Range<usize>)> {
        let ranges = self.starts.windows(2).map(|pair| pair[0]..pair[1]).enumerate();
        ranges.map(move |(sample, range)| (sample, &self.queries[sample * self.width..][..self.width], range))
    }

    fn key(&self, position: usize) -> &'a [f32] {
        &self.keys[position * self.width..][..self.width]
    }
}

impl Attention {
    /// Creates the attention of a model; `units` and `positions` are the MLPs and the vectors of its layout.
    pub(super) fn all(spec: &ModelSpec, units: Vec<MlpSpec>, positions: Vec<Option<Layer>>) -> Vec<Self> {
        let slots: Vec<_> = features_of(spec).map(|(_, _, slot)| slot).collect();
        let attention = |(number, (attention, unit)): (usize, (&AttentionSpec, MlpSpec))| {
            let vectors = positions[number];
            let slots_of =
                |features: &[usize]| features.iter().map(|&feature| slots[feature].clone()).collect();
            Self {
                number,
                column: attention.features[0],
                width: spec.key_elements(attention),
                sums: slots_of(&attention.features),
                query: slots_of(attention.unit.query()),
                unit: Unit::new(&attention.unit, unit),
                positions: EmbeddedPositions::new(attention, vectors),
            }
        };
        spec.attention.iter().zip(units).enumerate().map(attention).collect()
    }

    /// Returns the bytes of the buffers of a tile of samples, without the buffers of the unit's MLP.
    pub(super) fn bytes(spec: &ModelSpec, attention: &AttentionSpec, samples: usize) -> u64 {
        let width = spec.key_elements(attention) as u64;
        let (samples, positions) =
            (samples as u64, (samples as u64).saturating_mul(attention.length_max as u64));
        let of_position = width + 2 + Unit::elements(&attention.unit, width);
        let floats = positions.saturating_mul(of_position).saturating_add(samples.saturating_mul(2 * width));
        floats.saturating_mul(size_of::<f32>() as u64)
    }

    /// Writes the sums over the positions of some samples of a batch to their `vectors`, from which the queries are
    /// read.
    pub(super) fn forward(
        &self,
        (parameters, tables): (&[f32], &impl LookUp),
        (batch, samples): (&Samples, &Range<usize>),
        vectors: &mut [f32],
        tile: &mut AttentionTile,
    ) {
        let AttentionTile { starts, keys, queries, weights, sum, unit, .. } = tile;
        let stride = vectors.len() / samples.len().max(1);
        let offsets = &batch.categorical[self.column].offsets[samples.start..=samples.end];
        let (first, end) = (offsets[0] as usize, offsets[samples.len()] as usize);
        starts.clear();
        starts.extend(offsets.iter().map(|&offset| offset as usize - first));
        keys.resize((end - first) * self.width, 0.0);
        tables.keys(batch, self.number, first..end, keys);
        if let Some(positions) = &self.positions {
            positions.add_to(parameters, starts, keys);
        }
        queries.clear();
        if !self.query.is_empty() {
            for row in vectors.chunks_exact(stride) {
                self.query.iter().for_each(|slot| queries.extend_from_slice(&row[slot.clone()]));
            }
        } else {
            queries.resize(samples.len() * self.width, 0.0);
        }
        weights.resize(end - first, 0.0);
        let positions = Positions { starts, width: self.width, keys, queries };
        self.unit.forward(parameters, positions, weights, unit);
        for ((_, _, range), row) in positions.samples().zip(vectors.chunks_exact_mut(stride)) {
            sum.clear();
            sum.resize(self.width, 0.0);
            for position in range {
                add_times(sum, positions.key(position), weights[position]);
            }
            let mut rest = &sum[..];
            for slot in &self.sums {
                let (own, after) = rest.split_at(slot.len());
                row[slot.clone()].copy_from_slice(own);
                rest = after;
            }
        }
    }

    /// Computes the gradients with respect to the keys, `[position, width]`, from the gradients with respect to the
    /// sums, which are part of `vector_gradients`. Adds the gradients with respect to the queries to
    /// `vector_gradients`.
    pub(super) fn backward(
        &self,
        vector_gradients: &mut [f32],
        tile: &mut AttentionTile,
        key_gradients: &mut [f32],
    ) {
        let AttentionTile {
            starts,
            keys,
            queries,
            weights,
            weight_gradients,
            query_gradients,
            sum: sum_gradient,
            unit,
        } = tile;
        let samples = starts.len() - 1;
        let stride = vector_gradients.len() / samples.max(1);
        let positions = Positions { starts, width: self.width, keys, queries };
        weight_gradients.resize(positions.len(), 0.0);
        for ((_, _, range), row) in positions.samples().zip(vector_gradients.chunks_exact(stride)) {
            sum_gradient.clear();
            self.sums.iter().for_each(|slot| sum_gradient.extend_from_slice(&row[slot.clone()]));
            for position in range {
                weight_gradients[position] = dot(positions.key(position), sum_gradient);
                let out = &mut key_gradients[position * self.width..][..self.width];
                let weight = weights[position];
                out.iter_mut().zip(&*sum_gradient).for_each(|(out, gradient)| *out = weight * gradient);
            }
        }
        query_gradients.clear();
        query_gradients.resize(samples * self.width, 0.0);
        self.unit.backward(positions, (weights, weight_gradients), unit, (query_gradients, key_gradients));
        if self.query.is_empty() {
            return;
        }
        let rows = vector_gradients.chunks_exact_mut(stride);
        for (gradients, row) in query_gradients.chunks_exact(self.width).zip(rows) {
            let mut rest = gradients;
            for slot in &self.query {
                let (own, after) = rest.split_at(slot.len());
                add_times(&mut row[slot.clone()], own, 1.0);
                rest = after;
            }
        }
    }

    /// Returns the learned vectors of positions, if they have some.
    pub(super) fn positions(&self) -> Option<EmbeddedPositions> {
        self.positions
    }

    /// Returns the unit's MLP, without layers if it has none.
    pub(super) fn mlp(&self) -> &Mlp {
        self.unit.mlp()
    }

    /// Returns the unit's MLP, mutable.
    pub(super) fn mlp_mut(&mut self) -> &mut Mlp {
        self.unit.mlp_mut()
    }
}

impl AttentionTile {
    /// Returns the activations of the unit's MLP.
    pub(super) fn mlp(&self) -> &MlpTile {
        self.unit.mlp()
    }
}

/// Adds values times a factor.
fn add_times(sums: &mut [f32], values: &[f32], factor: f32) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * factor);
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
