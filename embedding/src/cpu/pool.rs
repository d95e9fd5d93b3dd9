//! Ids in, vectors out: the look-up of a table's rows, pooled bag by bag.

use super::feature::Feature;
use super::table::Table;
use crate::table::TableSpec;

/// The weights of a table's rows, to be looked up.
pub trait RowWeights: Sync {
    /// Returns the table's description.
    fn spec(&self) -> &TableSpec;

    /// Returns the weights of a row.
    ///
    /// # Panics
    /// If there is no such row.
    fn weights(&self, row: u64) -> &[f32];

    /// Pools the bags of the samples from `first` on into `out`, for as many samples as `out` has strides.
    fn pool(&self, feature: &Feature<'_>, first: usize, out: &mut [f32]) {
        let &Feature { bags, pooling, slot } = feature;
        let dim = self.spec().dim;
        for (sample, out) in out.chunks_exact_mut(slot.stride).enumerate() {
            let out = &mut out[slot.offset..slot.offset + dim];
            let bag = bags.bag(first + sample);
            if let Some(factors) = bags.factors(first + sample, pooling) {
                sum_weighted(self, bag, factors, out);
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
}

impl RowWeights for Table {
    #[inline]
    fn spec(&self) -> &TableSpec {
        self.spec()
    }

    #[inline]
    fn weights(&self, row: u64) -> &[f32] {
        self.weights(row)
    }
}

/// Sets `out` to the sum of a bag's rows, each times its factor.
fn sum_weighted(
    rows: &(impl RowWeights + ?Sized),
    bag: &[u64],
    factors: impl Iterator<Item = f32>,
    out: &mut [f32],
) {
    out.fill(0.0);
    for (&row, factor) in bag.iter().zip(factors) {
        out.iter_mut().zip(rows.weights(row)).for_each(|(sum, weight)| *sum += weight * factor);
    }
}
