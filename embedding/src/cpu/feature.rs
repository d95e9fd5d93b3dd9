//! A feature's look-ups in one batch.

use crate::table::Pooling;

/// The bags of one categorical column in one batch: bag `i` has the ids `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    /// Where each bag starts, then the end of the last; ascending, the first need not be 0.
    pub offsets: &'a [u32],
    /// Row numbers.
    pub ids: &'a [u64],
    /// One weight per id, finite and above 0; `None` if ids have no weights.
    pub weights: Option<&'a [f32]>,
}

impl<'a> Bags<'a> {
    /// The number of bags.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns whether there are no bags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids of one bag.
    pub fn bag(&self, bag: usize) -> &'a [u64] {
        &self.ids[self.range(bag)]
    }

    /// The factors of the rows of one bag, by the weights of its ids: the weights, or for the mean their shares of the
    /// bag's weights, which are summed in f64, where no sum overflows. `None` if ids have no weights.
    pub fn factors(
        &self,
        bag: usize,
        pooling: Pooling,
    ) -> Option<impl ExactSizeIterator<Item = f32> + use<'a>> {
        let weights = &self.weights?[self.range(bag)];
        let total = match pooling {
            Pooling::Sum => 1.0,
            Pooling::Mean => weights.iter().map(|&weight| f64::from(weight)).sum(),
        };
        Some(weights.iter().map(move |&weight| (f64::from(weight) / total) as f32))
    }

    fn range(&self, bag: usize) -> std::ops::Range<usize> {
        self.offsets[bag] as usize..self.offsets[bag + 1] as usize
    }
}

/// Position of a feature's vectors in a `[sample, stride]` matrix.
#[derive(Debug, Clone, Copy)]
pub struct FeatureSlot {
    /// Elements from one sample to the next.
    pub stride: usize,
    /// The first element of the feature's vector in a sample.
    pub offset: usize,
}

/// One of the features that look up a table, in one batch: one bag per sample.
#[derive(Debug, Clone, Copy)]
pub struct Feature<'a> {
    /// The ids of each sample.
    pub bags: Bags<'a>,
    /// How each bag is pooled.
    pub pooling: Pooling,
    /// Position of the vectors.
    pub slot: FeatureSlot,
}
