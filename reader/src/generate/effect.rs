//! Effects of categories: random numbers that depend on the seed and the category only.

use crate::rng::Rng;

/// The frequency rank at which effects start to fade.
const FADING_RANK: f64 = 16.0;
/// Uniform numbers between plus and minus this have deviation 1.
pub(super) const SQRT_3: f64 = 1.732_050_807_568_877_2;

/// A category that was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Category {
    /// Its frequency rank.
    pub(super) rank: u64,
    /// How many categories had this rank before it; 0 if categories do not come and go.
    pub(super) before: u64,
}

/// Which effects of categories are meant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effects {
    pub(super) seed: u64,
    /// What the effects are for.
    pub(super) purpose: u64,
    pub(super) kind: u64,
    pub(super) column: usize,
}

impl Effects {
    /// Returns the effect of a category: of deviation 1 for the most frequent ones, and less for rare ones.
    pub(super) fn of(self, Category { rank, before }: Category) -> f64 {
        let Self { seed, purpose, kind, column } = self;
        let parts = [seed, purpose, kind, column as u64, rank, before];
        let mut rng = Rng::from_parts(if before == 0 { &parts[..5] } else { &parts });
        symmetric(&mut rng) / (1.0 + rank as f64 / FADING_RANK)
    }
}

/// Returns a uniform number with mean 0 and deviation 1.
pub(super) fn symmetric(rng: &mut Rng) -> f64 {
    (2.0 * rng.unit_f64() - 1.0) * SQRT_3
}
