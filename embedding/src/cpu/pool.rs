//! Ids in, vectors out: the look-up of a table's rows, pooled bag by bag.

use super::feature::Feature;
use super::table::Table;

impl Table {
    /// Pools the bags of the samples from `first` on into `out`, for as many samples as `out` has strides.
    pub fn pool(&self, feature: &Feature<'_>, first: usize, out: &mut [f32]) {
        let &Feature { bags, pooling, slot } = feature;
        let dim = self.spec().dim;
        for (sample, out) in out.chunks_exact_mut(slot.stride).enumerate() {
            let out = &mut out[slot.offset..slot.offset + dim];
            let bag = bags.bag(first + sample);
            if let Some(factors) = bags.factors(first + sample, pooling) {
                self.sum_weighted(bag, factors, out);
                continue;
            }
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

    /// Sets `out` to the sum of a bag's rows, each times its factor.
    fn sum_weighted(&self, bag: &[u64], factors: impl Iterator<Item = f32>, out: &mut [f32]) {
        out.fill(0.0);
        for (&row, factor) in bag.iter().zip(factors) {
            out.iter_mut().zip(self.weights(row)).for_each(|(sum, weight)| *sum += weight * factor);
        }
    }
}
