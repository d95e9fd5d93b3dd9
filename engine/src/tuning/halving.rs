//! Successive halving (Jamieson and Talwalkar 2016): all trials of a bracket train for a while, the best third trains
//! for three times as long, and so on.

/// The factor between the samples of two rounds, and between the numbers of their trials.
const FACTOR: u64 = 3;
/// The most rounds: the first one trains on a ninth of the samples. With less, a round often tells more about the
/// warm-up of a training than about its end.
const ROUNDS_MAX: u32 = 3;
/// Trials of a bracket, if the time decides how many brackets there are.
pub(super) const BRACKET: u64 = 9;

/// A step of a bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    /// The best trials of the round before that train on.
    pub(super) trials: usize,
    /// A trial has trained on a share of `1 / divisor` of the most samples when the round ends.
    pub(super) divisor: u64,
}

/// The rounds of a bracket with a number of trials.
pub(super) fn rounds(trials: u64) -> Vec<Round> {
    let rounds = (trials.max(1).ilog(FACTOR) + 1).min(ROUNDS_MAX);
    let round = |number: u32| Round {
        trials: (trials / FACTOR.pow(number)).max(1) as usize,
        divisor: FACTOR.pow(rounds - 1 - number),
    };
    (0..rounds).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_has_a_third_of_the_trials_and_three_times_the_samples() {
        let of =
            |trials| rounds(trials).iter().map(|round| (round.trials, round.divisor)).collect::<Vec<_>>();
        assert_eq!(of(1), [(1, 1)]);
        assert_eq!(of(2), [(2, 1)]);
        assert_eq!(of(3), [(3, 3), (1, 1)]);
        assert_eq!(of(8), [(8, 3), (2, 1)]);
        assert_eq!(of(9), [(9, 9), (3, 3), (1, 1)]);
        assert_eq!(of(27), [(27, 9), (9, 3), (3, 1)]);
        assert_eq!(of(100), [(100, 9), (33, 3), (11, 1)]);
    }
}
