//! The teacher: a model with known weights that determines the labels, so that the best achievable AUC is known.
//!
//! Its logit is a bias, a linear term per dense feature, an effect per category, and a product of the effects of a
//! few pairs of columns, which only a model with interactions can learn. Rare categories have weak effects, because
//! no model could learn them from a finite sample. A sequence adds what attention over it yields (`interest.rs`).

use super::effect::{Category, Effects, symmetric};
use super::interest::Interest;
use crate::rng::Rng;
use crate::samples::Samples;

/// The standard deviation of all dense terms together, of all category effects, and of all interactions.
const DENSE_DEVIATION: f64 = 0.7;
const CATEGORY_DEVIATION: f64 = 1.4;
const INTERACTION_DEVIATION: f64 = 0.4;
/// Maximum number of interacting pairs of columns.
const PAIRS: usize = 4;
/// About a quarter of the labels are 1, as in Criteo's logs.
const BIAS: f64 = -1.7;

/// The weights of a teacher, which depend only on the seed.
#[derive(Debug)]
pub(super) struct Teacher {
    seed: u64,
    dense: Vec<DenseTerm>,
    /// The number of columns with effects. Columns of sequences follow, and have none of their own.
    columns: usize,
    category_scale: f64,
    pairs: Vec<(usize, usize)>,
    pair_scale: f64,
    interests: Vec<Interest>,
}

#[derive(Debug)]
struct DenseTerm {
    weight: f64,
    mean: f64,
}

impl Teacher {
    /// Creates a teacher. `dense` has mean and deviation of each stored dense feature; `columns` is the number of
    /// categorical columns before those in sequences.
    pub(super) fn new(seed: u64, dense: &[(f64, f64)], columns: usize, interests: Vec<Interest>) -> Self {
        let mut rng = Rng::from_parts(&[seed, 0x7eac_0001]);
        let dense_scale = DENSE_DEVIATION / (dense.len().max(1) as f64).sqrt();
        let dense = dense.iter().map(|&(mean, deviation)| DenseTerm {
            weight: dense_scale * symmetric(&mut rng) / deviation,
            mean,
        });
        let dense = dense.collect();
        let mut order: Vec<usize> = (0..columns).collect();
        rng.shuffle(&mut order);
        let pairs: Vec<_> = order.chunks_exact(2).take(PAIRS).map(|pair| (pair[0], pair[1])).collect();
        Self {
            seed,
            dense,
            columns,
            category_scale: CATEGORY_DEVIATION / (columns.max(1) as f64).sqrt(),
            pair_scale: INTERACTION_DEVIATION / (pairs.len().max(1) as f64).sqrt(),
            pairs,
            interests,
        }
    }

    /// Returns the logit of the last sample in `samples`; `drawn` has its categories by column.
    pub(super) fn logit(&self, samples: &Samples, drawn: &[Vec<Category>]) -> f64 {
        let dense = &samples.dense[(samples.len - 1) * samples.dense_columns..];
        let terms =
            self.dense.iter().zip(dense).map(|(term, &value)| term.weight * (f64::from(value) - term.mean));
        let effects: f64 = (0..self.columns).map(|column| self.effect(0, column, &drawn[column])).sum();
        let products = self.pairs.iter().enumerate().map(|(pair, &(a, b))| {
            let kind = 1 + pair as u64;
            self.effect(kind, a, &drawn[a]) * self.effect(kind, b, &drawn[b])
        });
        let products: f64 = products.sum();
        let interests: f64 = self.interests.iter().map(|interest| interest.logit(drawn)).sum();
        BIAS + terms.sum::<f64>() + self.category_scale * effects + self.pair_scale * products + interests
    }

    /// Returns the effect of a bag: the sum of its categories' effects, which have deviation 1 for the most frequent
    /// ones, divided by the square root of their number.
    fn effect(&self, kind: u64, column: usize, bag: &[Category]) -> f64 {
        let effects = Effects { seed: self.seed, purpose: 0x7eac_0002, kind, column };
        bag.iter().map(|&category| effects.of(category)).sum::<f64>() / (bag.len().max(1) as f64).sqrt()
    }
}
