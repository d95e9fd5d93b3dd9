//! The teacher's attention: what the positions of a sequence add to its logit.
//!
//! Frequent categories of a query's first column each belong to a hidden group. The positions in the query's group add
//! the effects of their other categories; all other positions add nothing. Take items and shops: users are likely to
//! click an item if they clicked items of the same group before, in shops with a positive effect. Pooled columns show
//! which items and which shops are in a history, but not which item came from which shop, so a model needs attention.

use super::effect::{Category, Effects};
use crate::rng::Rng;

/// The standard deviation of the sum over the positions, if half of `max` positions have one attribute beside the item.
const DEVIATION: f64 = 1.4;
/// Groups of categories, which are equally likely.
const GROUPS: u64 = 8;
/// The most frequent categories have a group. No model could learn the groups of rare ones from a finite sample.
const GROUPED: u64 = 256;

/// What one sequence adds to the logit.
#[derive(Debug)]
pub(super) struct Interest {
    seed: u64,
    /// The number of the query's first column, whose categories have groups.
    query: usize,
    /// The numbers of the sequence's columns, the one with the same categories first.
    columns: Vec<usize>,
    scale: f64,
}

impl Interest {
    /// Creates the attention of a query over the `columns` of a sequence of up to `max` positions.
    pub(super) fn new(seed: u64, query: usize, columns: Vec<usize>, max: u32) -> Self {
        let matches = f64::from(max) / 2.0 / GROUPS as f64;
        Self { seed, query, columns, scale: DEVIATION / matches.max(1.0).sqrt() }
    }

    /// Returns what the positions add to the logit; `drawn` has a sample's categories by column.
    pub(super) fn logit(&self, drawn: &[Vec<Category>]) -> f64 {
        let Some(group) = drawn[self.query].first().and_then(|category| self.group(category.rank)) else {
            return 0.0;
        };
        let (items, others) = (self.columns[0], &self.columns[1..]);
        let positions = drawn[items].iter().enumerate();
        let positions = positions.filter(|(_, item)| self.group(item.rank) == Some(group));
        let value = |position: usize| -> f64 {
            let attributes = if others.is_empty() { &self.columns[..] } else { others };
            let effect = |&column: &usize| {
                let effects = Effects { seed: self.seed, purpose: 0x7eac_0004, kind: 0, column };
                effects.of(drawn[column][position])
            };
            attributes.iter().map(effect).sum::<f64>() / (attributes.len() as f64).sqrt()
        };
        self.scale * positions.map(|(position, _)| value(position)).sum::<f64>()
    }

    /// Returns the group of a category of the query's first column.
    fn group(&self, rank: u64) -> Option<u64> {
        let mut rng = Rng::from_parts(&[self.seed, 0x7eac_0003, self.query as u64, rank]);
        (rank < GROUPED).then(|| rng.below(GROUPS))
    }
}
