//! The planted teacher: a model of known weights that decides the labels, so that the best achievable AUC is known.
//!
//! Its logit is a bias, a linear term a dense feature, an effect a category, and a product of the effects of a few
//! pairs of columns, which only a model with interactions can learn. Rare categories have weak effects: what no model
//! could learn from a finite sample should not count either.

use crate::rng::Rng;
use crate::samples::Samples;

/// The standard deviation that all dense terms have together, all category effects, and all interactions.
const DENSE_DEVIATION: f64 = 0.7;
const CATEGORY_DEVIATION: f64 = 1.4;
const INTERACTION_DEVIATION: f64 = 0.4;
/// Pairs of columns that interact, at most.
const PAIRS: usize = 4;
/// About a quarter of the labels are 1, as in Criteo's logs.
const BIAS: f64 = -1.7;
/// The frequency rank from which on effects fade.
const FADING_RANK: f64 = 16.0;
/// Uniform numbers between plus and minus this have deviation 1.
pub(super) const SQRT_3: f64 = 1.732_050_807_568_877_2;

/// The weights of a teacher: a function of the seed alone.
#[derive(Debug)]
pub(super) struct Teacher {
    seed: u64,
    dense: Vec<DenseTerm>,
    category_scale: f64,
    pairs: Vec<(usize, usize)>,
    pair_scale: f64,
}

#[derive(Debug)]
struct DenseTerm {
    weight: f64,
    mean: f64,
}

impl Teacher {
    /// `dense` gives mean and deviation of each stored dense feature.
    pub(super) fn new(seed: u64, dense: &[(f64, f64)], columns: usize) -> Self {
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
            category_scale: CATEGORY_DEVIATION / (columns.max(1) as f64).sqrt(),
            pair_scale: INTERACTION_DEVIATION / (pairs.len().max(1) as f64).sqrt(),
            pairs,
        }
    }

    /// The logit of the last sample in `samples`; `ranks` are the frequency ranks of its ids, column by column.
    pub(super) fn logit(&self, samples: &Samples, ranks: &[Vec<u64>]) -> f64 {
        let dense = &samples.dense[(samples.len - 1) * samples.dense_columns..];
        let terms =
            self.dense.iter().zip(dense).map(|(term, &value)| term.weight * (f64::from(value) - term.mean));
        let effects: f64 = (0..ranks.len()).map(|column| self.effect(0, column, &ranks[column])).sum();
        let products = self.pairs.iter().enumerate().map(|(pair, &(a, b))| {
            let kind = 1 + pair as u64;
            self.effect(kind, a, &ranks[a]) * self.effect(kind, b, &ranks[b])
        });
        let products: f64 = products.sum();
        BIAS + terms.sum::<f64>() + self.category_scale * effects + self.pair_scale * products
    }

    /// The effect of a bag: the sum of its categories' effects, each of deviation 1 for the most frequent ones, over
    /// the square root of their number.
    fn effect(&self, kind: u64, column: usize, ranks: &[u64]) -> f64 {
        let one = |&rank: &u64| {
            let mut rng = Rng::from_parts(&[self.seed, 0x7eac_0002, kind, column as u64, rank]);
            symmetric(&mut rng) / (1.0 + rank as f64 / FADING_RANK)
        };
        ranks.iter().map(one).sum::<f64>() / (ranks.len().max(1) as f64).sqrt()
    }
}

/// Uniform with mean 0 and deviation 1.
fn symmetric(rng: &mut Rng) -> f64 {
    (2.0 * rng.unit_f64() - 1.0) * SQRT_3
}
