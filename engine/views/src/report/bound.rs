//! What bounds the steps of a training.

use std::fmt;

use rankine_engine::training::StepTimes;
use serde::Serialize;

use super::phases::RunPhase;

/// What takes most of the time of steps, and its share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    /// What takes most of the time.
    pub by: RunPhase,
    /// Its share of the time, from 0 to 1.
    pub share: f64,
}

impl Bound {
    /// What bounds steps that took these times; `None` if they took none.
    pub fn of(times: &StepTimes) -> Option<Self> {
        let parts = [
            (RunPhase::Reading, times.reading),
            (RunPhase::Computing, times.computing),
            (RunPhase::Awaiting, times.awaiting),
        ];
        let (by, time) = parts.into_iter().max_by_key(|&(_, time)| time)?;
        let total = times.total();
        (!total.is_zero()).then(|| Self { by, share: time.as_secs_f64() / total.as_secs_f64() })
    }
}

/// Such as `bound by reading (62%)`.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bound by {} ({:.0}%)", self.by.name(), self.share * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_largest_part_bounds_the_step() {
        let times = |reading, computing, awaiting| {
            let [reading, computing, awaiting] = [reading, computing, awaiting].map(Duration::from_millis);
            Bound::of(&StepTimes { reading, computing, awaiting }).map(|bound| bound.to_string())
        };
        assert_eq!(times(62, 20, 18).as_deref(), Some("bound by reading (62%)"));
        assert_eq!(times(1, 3, 0).as_deref(), Some("bound by computing (75%)"));
        assert_eq!(times(0, 0, 7).as_deref(), Some("bound by awaiting (100%)"));
        assert_eq!(times(0, 0, 0), None);
    }
}
