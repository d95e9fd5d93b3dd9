//! How ranks that are threads of one process exchange values.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rankine_topology::Rank;

use crate::runtime::{Error, Result};

/// A value that a rank hands out.
pub(crate) type Value = Arc<dyn Any + Send + Sync>;

/// A meeting point of all ranks, where each hands out one value per round.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    deadline: Duration,
    /// The number of the first rank, in errors.
    first: Rank,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    round: u64,
    /// Per rank, the value of this round.
    handed: Vec<Option<Value>>,
    /// The values of the previous round, until all ranks have taken them.
    complete: Vec<Value>,
    untaken: usize,
    /// Per rank, whether it has left and hands out nothing more.
    left: Vec<bool>,
    /// The ranks that timed out. After a timeout rounds could be mixed up, so no more values are exchanged.
    late: Vec<Rank>,
}

impl Rendezvous {
    /// Creates a meeting point of `ranks` ranks, numbered from `first` in errors, each of which waits up to `deadline`
    /// for the others.
    pub(crate) fn new(first: Rank, ranks: usize, deadline: Duration) -> Self {
        let state = State {
            round: 0,
            handed: vec![None; ranks],
            complete: Vec::new(),
            untaken: 0,
            left: vec![false; ranks],
            late: Vec::new(),
        };
        Self { deadline, first, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Hands out the value of a rank, by its position among them, and returns the values of all, in their order.
    ///
    /// # Errors
    /// If a rank does not take part in time, or has left.
    pub(crate) fn exchange(&self, position: usize, value: Value) -> Result<Vec<Value>> {
        let mut state = self.state();
        let round = state.round;
        state.handed[position] = Some(value);
        if state.handed.iter().all(Option::is_some) {
            state.complete = state.handed.iter_mut().filter_map(Option::take).collect();
            state.untaken = state.complete.len();
            state.round += 1;
            self.changed.notify_all();
        }
        let begun = Instant::now();
        while state.round == round {
            let rank = self.rank(position);
            let missing = |gone: &dyn Fn(usize) -> bool| -> Vec<Rank> {
                let not_handed = (0..state.handed.len()).filter(|&other| state.handed[other].is_none());
                not_handed.filter(|&other| gone(other)).map(|other| self.rank(other)).collect()
            };
            let left = missing(&|other| state.left[other]);
            if !left.is_empty() {
                return Err(Error::PeersLeft { rank, left });
            }
            let late = if state.late.is_empty() { missing(&|_| true) } else { state.late.clone() };
            let remaining = self.deadline.saturating_sub(begun.elapsed());
            if remaining.is_zero() || !state.late.is_empty() {
                state.late.clone_from(&late);
                self.changed.notify_all();
                return Err(Error::PeersLate { rank, late, deadline_ms: self.deadline.as_millis() });
            }
            let waited = self.changed.wait_timeout(state, remaining);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // No later round can be complete before this rank has handed out a value to it.
        state.untaken -= 1;
        Ok(match state.untaken {
            0 => std::mem::take(&mut state.complete),
            _ => state.complete.clone(),
        })
    }

    /// Marks the rank at a position as gone, so that nobody waits for it.
    pub(crate) fn leave(&self, position: usize) {
        self.state().left[position] = true;
        self.changed.notify_all();
    }

    fn rank(&self, position: usize) -> Rank {
        self.first.plus(position)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent after each change, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn numbers(rendezvous: &Rendezvous, rank: usize, number: u64) -> Result<Vec<u64>> {
        let values = rendezvous.exchange(rank, Arc::new(number))?;
        Ok(values.iter().map(|value| *value.downcast_ref().unwrap()).collect())
    }

    #[test]
    fn values_come_in_the_order_of_ranks_round_by_round() {
        let rendezvous = Rendezvous::new(Rank(0), 4, Duration::from_secs(20));
        thread::scope(|scope| {
            for rank in 0..4 {
                let rendezvous = &rendezvous;
                scope.spawn(move || {
                    for round in 0..500 {
                        let found = numbers(rendezvous, rank, 10 * round + rank as u64).unwrap();
                        assert_eq!(found, [0, 1, 2, 3].map(|rank| 10 * round + rank));
                    }
                });
            }
        });
        assert!(rendezvous.state().complete.is_empty(), "no value is kept");
    }

    #[test]
    fn all_ranks_name_a_rank_that_is_late() {
        let rendezvous = Rendezvous::new(Rank(8), 4, Duration::from_millis(50));
        let late = |position| match numbers(&rendezvous, position, 0) {
            Err(Error::PeersLate { late, deadline_ms: 50, .. }) => late,
            other => panic!("{other:?}"),
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| late(0));
            assert_eq!(late(2), [9, 11].map(Rank));
            assert_eq!(first.join().unwrap(), [9, 11].map(Rank));
        });
        // Later calls neither wait nor succeed.
        assert_eq!(late(1), [9, 11].map(Rank));
    }

    #[test]
    fn nobody_waits_for_a_rank_that_left() {
        let rendezvous = Rendezvous::new(Rank(3), 3, Duration::from_secs(1000));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| numbers(&rendezvous, 0, 0));
            rendezvous.leave(2);
            let found = waiting.join().unwrap();
            assert!(
                matches!(&found, Err(Error::PeersLeft { rank: Rank(3), left }) if left == &[Rank(5)]),
                "{found:?}"
            );
        });
    }

    #[test]
    fn leaving_after_the_last_round_is_no_error() {
        let rendezvous = Rendezvous::new(Rank(0), 2, Duration::from_secs(20));
        thread::scope(|scope| {
            let first = scope.spawn(|| numbers(&rendezvous, 0, 7));
            assert_eq!(numbers(&rendezvous, 1, 8).unwrap(), [7, 8]);
            rendezvous.leave(1);
            assert_eq!(first.join().unwrap().unwrap(), [7, 8]);
        });
    }
}
