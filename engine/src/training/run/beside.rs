//! An evaluation whose metrics are computed beside the steps.

use rankine_backend::PendingMetrics;
use rankine_base::sealed::Checksum;

use crate::training::ids::IdCounts;

/// The metrics are taken after this part of the steps until the next evaluation: late enough that training hardly ever
/// waits for them, and early enough that a run that has reached its target soon ends.
const TAKEN_AFTER: u64 = 8;

/// An evaluation after a step, until its metrics are known.
#[derive(Debug)]
pub(super) struct Evaluating {
    /// Steps completed.
    pub(super) step: u64,
    /// Whether the weights are averaged ones.
    pub(super) averaged: bool,
    /// Identifies the samples; only the first process knows it.
    pub(super) samples: Option<Checksum>,
    pub(super) ids_out_of_range: IdCounts,
    /// How long training has waited for it so far.
    pub(super) seconds: f64,
}

/// An evaluation whose metrics are computed beside the steps.
#[derive(Debug)]
pub(super) struct EvaluationBeside {
    pub(super) evaluating: Evaluating,
    pub(super) metrics: PendingMetrics,
    /// The step after which the metrics are taken at the latest.
    pub(super) taken_at: u64,
}

/// The step at which the metrics of an evaluation are taken, with this many steps until the next one. It does not
/// depend on when they are known: otherwise, two runs could end at different steps.
pub(super) fn taken_after(step: u64, interval: u64) -> u64 {
    step + interval.div_ceil(TAKEN_AFTER).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_taken_an_eighth_of_the_way_to_the_next_evaluation_and_never_at_once() {
        let taken: Vec<_> = [1, 8, 9, 800].map(|interval| taken_after(100, interval)).into();
        assert_eq!(taken, [101, 101, 102, 200]);
    }
}
