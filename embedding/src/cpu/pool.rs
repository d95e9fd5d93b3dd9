//! Ids in, vectors out: the look-up of a table's rows, pooled bag by bag.

use super::table::Table;
use crate::table::Pooling;

/// The bags of one categorical column in one batch: bag `i` has the ids `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    /// One entry a bag and one more, ascending; the first need not be 0.
    pub offsets: &'a [u32],
    /// Row numbers.
    pub ids: &'a [u64],
}

impl<'a> Bags<'a> {
    /// The number of bags.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no bag.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids of one bag.
    pub fn bag(&self, bag: usize) -> &'a [u64] {
        &self.ids[self.offsets[bag] as usize..self.offsets[bag + 1] as usize]
    }
}

/// Where a feature's vectors lie in a `[sample, stride]` matrix.
#[derive(Debug, Clone, Copy)]
pub struct FeatureSlot {
    /// Elements from one sample to the next.
    pub stride: usize,
    /// The first element of the feature's vector in a sample.
    pub offset: usize,
}

/// One of the features that look up a table, in one batch: a bag a sample.
#[derive(Debug, Clone, Copy)]
pub struct Feature<'a> {
    /// The ids of each sample.
    pub bags: Bags<'a>,
    /// How each bag becomes a vector.
    pub pooling: Pooling,
    /// Where the vectors lie.
    pub slot: FeatureSlot,
}

impl Table {
    /// Pools the bags of the samples `first..` of a batch into `out`, which holds as many samples as it has strides.
    pub fn pool(&self, feature: &Feature<'_>, first: usize, out: &mut [f32]) {
        let &Feature { bags, pooling, slot } = feature;
        let dim = self.spec().dim;
        for (sample, out) in out.chunks_exact_mut(slot.stride).enumerate() {
            let out = &mut out[slot.offset..slot.offset + dim];
            let bag = bags.bag(first + sample);
            let Some((&one, rest)) = bag.split_first() else {
                out.fill(0.0);
                continue;
            };
            out.copy_from_slice(self.weights(one));
            for &row in rest {
                out.iter_mut().zip(self.weights(row)).for_each(|(sum, weight)| *sum += weight);
            }
            let scale = pooling.scale(bag.len());
            if scale != 1.0 {
                out.iter_mut().for_each(|sum| *sum *= scale);
            }
        }
    }
}
