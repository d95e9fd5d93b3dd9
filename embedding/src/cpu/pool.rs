//! Ids in, vectors out: the look-up of a table's rows, pooled bag by bag.

use super::table::Table;

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

/// Where a table's vectors lie in a `[sample, feature elements]` matrix.
#[derive(Debug, Clone, Copy)]
pub struct FeatureSlot {
    /// Elements from one sample to the next.
    pub stride: usize,
    /// The first element of the table's vector in a sample.
    pub offset: usize,
}

impl Table {
    /// Pools the bags `first..` of a batch into `features`, which holds their samples: as many as it has strides.
    pub fn pool(&self, bags: Bags<'_>, first: usize, slot: FeatureSlot, features: &mut [f32]) {
        let (dim, pooling) = (self.spec().dim, self.spec().pooling);
        for (sample, features) in features.chunks_exact_mut(slot.stride).enumerate() {
            let out = &mut features[slot.offset..slot.offset + dim];
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
