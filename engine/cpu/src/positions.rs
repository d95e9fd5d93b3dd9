//! Where vectors and keys are stored: the vectors of features side by side in a sample's row; the keys of sequences,
//! and the gradients with respect to them, one after another behind the vectors of a batch's samples.

use std::ops::Range;

use rankine_embedding::Pooling;
use rankine_embedding::cpu::{Bags, Feature, FeatureSlot};
use rankine_model::{AttentionSpec, FeatureSpec, ModelSpec};
use rankine_reader::Samples;

/// Returns the features with their columns' numbers, and where their vectors are in a sample's.
pub(crate) fn features_of(spec: &ModelSpec) -> impl Iterator<Item = (usize, &FeatureSpec, Range<usize>)> {
    let mut offset = spec.bottom_outputs();
    spec.features.iter().enumerate().map(move |(column, feature)| {
        let first = offset;
        offset += spec.feature_dim(feature);
        (column, feature, first..offset)
    })
}

/// A sequence that attention reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SequenceKeys {
    /// One of its columns; the bags of the others have the same sizes.
    column: usize,
    /// Elements of a key.
    pub(crate) elements: usize,
}

impl SequenceKeys {
    /// Returns the sequences of a model.
    pub(crate) fn all(spec: &ModelSpec) -> Vec<Self> {
        let sequence = |attention: &AttentionSpec| Self {
            column: attention.features[0],
            elements: spec.key_elements(attention),
        };
        spec.attention.iter().map(sequence).collect()
    }

    /// Returns the elements of the keys of some samples of a batch.
    pub(crate) fn key_elements(&self, batch: &Samples, samples: &Range<usize>) -> usize {
        let offsets = &batch.categorical[self.column].offsets;
        (offsets[samples.end] - offsets[samples.start]) as usize * self.elements
    }
}

/// A feature whose rows are parts of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute {
    /// The number of the sequence.
    pub(crate) sequence: usize,
    /// Where its row starts in a key.
    pub(crate) offset: usize,
}

impl Attribute {
    /// Returns what a feature is to attention; `None` if it is pooled.
    pub(crate) fn of(spec: &ModelSpec, feature: usize) -> Option<Self> {
        let sequence = spec.attention_of(feature)?;
        let before = spec.attention[sequence].features.iter().take_while(|&&other| other != feature);
        let offset = before.map(|&other| spec.feature_dim(&spec.features[other])).sum();
        Some(Self { sequence, offset })
    }
}

/// The memory of the keys of a batch's sequences, which follow one another: `[position, elements of a key]` each.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PositionSlots {
    /// Where the keys of each sequence are.
    keys: Vec<Range<usize>>,
    end: usize,
}

impl PositionSlots {
    /// Returns the memory of the sequences of a batch, behind `before` elements.
    pub(crate) fn new(sequences: &[SequenceKeys], batch: &Samples, before: usize) -> Self {
        let mut end = before;
        let range = |sequence: &SequenceKeys| {
            let start = end;
            end += batch.categorical[sequence.column].ids.len() * sequence.elements;
            start..end
        };
        let keys = sequences.iter().map(range).collect();
        Self { keys, end }
    }

    /// Returns the end of all keys.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Returns where the keys of a sequence are.
    pub(crate) fn keys(&self, sequence: usize) -> Range<usize> {
        self.keys[sequence].clone()
    }

    /// Returns the slot of the rows of an attribute.
    pub(crate) fn slot(&self, attribute: Attribute, sequences: &[SequenceKeys]) -> FeatureSlot {
        let Attribute { sequence, offset } = attribute;
        FeatureSlot { stride: sequences[sequence].elements, offset: self.keys[sequence].start + offset }
    }

    /// Divides the memory behind the vectors among the sequences.
    pub(crate) fn split<'a>(&self, memory: &'a mut [f32]) -> Vec<&'a mut [f32]> {
        let mut rest = memory;
        let piece = |range: &Range<usize>| take_front(&mut rest, range.len());
        self.keys.iter().map(piece).collect()
    }
}

/// Takes elements off the front of a slice.
pub(crate) fn take_front<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (own, after) = std::mem::take(rest).split_at_mut(count);
    *rest = after;
    own
}

/// The offsets of bags of one id each: a position is a bag of its own in routes and updates, which so treat it as any
/// other look-up.
#[derive(Debug)]
pub(crate) struct OneIdEach(Vec<u32>);

impl Default for OneIdEach {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl OneIdEach {
    /// Makes it suffice for all columns of a batch.
    pub(crate) fn resize(&mut self, batch: &Samples) {
        let most = batch.categorical.iter().map(|bags| bags.ids.len()).max().unwrap_or(0);
        self.0.extend(self.0.len() as u32..=most as u32);
    }

    /// Returns the look-ups of a column of a batch, one by one.
    pub(crate) fn feature<'a>(&'a self, batch: &'a Samples, column: usize, slot: FeatureSlot) -> Feature<'a> {
        let ids = &batch.categorical[column].ids;
        let bags = Bags { offsets: &self.0[..=ids.len()], ids, weights: None };
        Feature { bags, pooling: Pooling::Sum, slot }
    }
}
