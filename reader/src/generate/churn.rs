//! Categories that come and go: samples are in order of time, and each frequency rank of a column belongs to one
//! category after another.
//!
//! The lives of the categories of different ranks begin at different times, so that about as many begin in every hour.
//! A category has the effects of its rank's place in the power law, but its own random ones: what was learned of its
//! predecessor says nothing about it.

use super::effect::Category;
use crate::origin::GenerateSpec;
use crate::part::Part;
use crate::rng::Rng;
use crate::vocabulary::hash_key;

/// The units of time of a day.
const DAY: u64 = 1 << 20;

/// The columns whose categories come and go.
#[derive(Debug)]
pub(super) struct Churn {
    seed: u64,
    /// The numbers of these columns.
    columns: Vec<usize>,
    /// The days of both parts; the evaluation part is the last one.
    days: u64,
    /// How long a category lives, in units of time.
    lifetime: u64,
    samples: u64,
    eval_samples: u64,
}

impl Churn {
    /// Returns the churn of a spec; without columns if its shape has none.
    pub(super) fn new(spec: &GenerateSpec) -> Self {
        let shape = spec.shape.churn.as_ref();
        Self {
            seed: spec.seed,
            columns: spec.shape.churning(),
            days: shape.map_or(1, |churn| churn.days.into()),
            lifetime: shape.map_or(1, |churn| u64::from(churn.lifetime_days) * DAY),
            samples: spec.samples,
            eval_samples: spec.eval_samples,
        }
    }

    /// Returns the time of a sample.
    pub(super) fn time(&self, part: Part, number: u64) -> u64 {
        let before_eval = self.days - 1;
        let (first, days, samples) = match part {
            Part::Train => (0, before_eval, self.samples),
            _ => (before_eval, 1, self.eval_samples),
        };
        let passed = u128::from(number) * u128::from(days * DAY) / u128::from(samples.max(1));
        first * DAY + passed as u64
    }

    /// Returns the category that has a frequency rank of a column at a time.
    pub(super) fn category(&self, column: usize, rank: u64, time: u64) -> Category {
        if !self.columns.contains(&column) {
            return Category { rank, before: 0 };
        }
        let lived = Rng::from_parts(&[self.seed, 0xc4a2_0001, column as u64, rank]).below(self.lifetime);
        Category { rank, before: (time + lived) / self.lifetime }
    }

    /// Returns the key of a category of a column, or `None` if the column has rows.
    pub(super) fn key(&self, column: usize, Category { rank, before }: Category) -> Option<u64> {
        let name = || format!("C{}/{rank}/{before}", column + 1);
        self.columns.contains(&column).then(|| hash_key(name().as_bytes()))
    }
}
