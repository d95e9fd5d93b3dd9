//! What all processes do after a step, agreed among them, and whether all of them succeeded.

use rankine_base::StopCause;
use rankine_base::blame::Blame;
use rankine_launch::ProcessGroup;
use serde::{Deserialize, Serialize};

use crate::training::error::TrainError;

/// Number of steps after which several processes agree again.
const STEPS_TO_AGREE: u64 = 16;

/// What to do after a step: first as one process sees it, then as all have agreed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepAgreement {
    /// Why to stop, if a stop was requested.
    pub(super) stop: Option<StopCause>,
    /// Whether a checkpoint is due by time.
    pub(super) saves: bool,
    /// Whether the checkpoint in progress is written.
    pub(super) written: bool,
}

impl StepAgreement {
    /// Agrees with the other processes. Several processes exchange it only every [`STEPS_TO_AGREE`] steps.
    ///
    /// # Errors
    /// [`TrainError::Processes`].
    pub(super) fn among(self, processes: &ProcessGroup, step: u64) -> Result<Self, TrainError> {
        if processes.size() == 1 {
            return Ok(self);
        }
        if !step.is_multiple_of(STEPS_TO_AGREE) {
            return Ok(Self::default());
        }
        let all = processes.gather("what to do next", &self.to_bytes())?;
        let all: Vec<_> = all.iter().map(|bytes| Self::from_bytes(bytes)).collect();
        Ok(Self {
            // A request to stop any process stops all; the first process decides when a checkpoint is due by time.
            stop: all.iter().find_map(|each| each.stop),
            saves: all.first().is_some_and(|first| first.saves),
            written: all.iter().all(|each| each.written),
        })
    }

    fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&StopCause::to_number(self.stop).to_le_bytes());
        (bytes[8], bytes[9]) = (self.saves.into(), self.written.into());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let split = bytes.split_first_chunk();
        let (stop, rest) = split.map_or((0, bytes), |(stop, rest)| (u64::from_le_bytes(*stop), rest));
        let is_set = |at: usize| rest.get(at) == Some(&1);
        Self { stop: StopCause::of_number(stop), saves: is_set(0), written: is_set(1) }
    }
}

/// Why all processes fail.
#[derive(Debug)]
pub(super) struct SharedFailure {
    /// The own error, or that of the first process that failed.
    pub(super) error: TrainError,
    /// Whether all that failed can still save their state.
    pub(super) leaves_state: bool,
}

/// Exchanges with the other processes whether all succeeded.
///
/// # Errors
/// [`TrainError::Processes`]: nothing is known of the others.
pub(super) fn all_succeed(
    processes: &ProcessGroup,
    what: &str,
    own: Result<(), TrainError>,
) -> Result<Result<(), SharedFailure>, TrainError> {
    #[derive(Serialize, Deserialize)]
    struct Failed {
        words: String,
        blame: Blame,
        leaves_state: bool,
    }
    let of = |error: &TrainError| Failed {
        words: error.to_string(),
        blame: error.blame(),
        leaves_state: error.leaves_state(),
    };
    let outcome = serde_json::to_vec(&own.as_ref().err().map(of)).expect("it is plain data");
    let all = processes.gather(what, &outcome)?;
    let failed = all.iter().filter_map(|outcome| serde_json::from_slice::<Option<Failed>>(outcome).ok()?);
    let failed: Vec<_> = failed.collect();
    let leaves_state = failed.iter().all(|failed| failed.leaves_state);
    let other = failed.into_iter().next();
    let other = other.map(|Failed { words, blame, .. }| TrainError::Refused { words, blame });
    Ok(match own.err().or(other) {
        Some(error) => Err(SharedFailure { error, leaves_state }),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use rankine_topology::Process;

    use super::*;
    use crate::groups::in_group;

    /// Whichever process a signal reaches, and only at the steps at which processes agree.
    #[test]
    fn a_request_to_stop_any_process_stops_all_after_the_same_step() {
        for asked in [Process(0), Process(1), Process(2)] {
            let stops = in_group(3, |processes| {
                let cause = StopCause::Signal(15);
                let stop = (processes.process() == asked).then_some(cause);
                let own = StepAgreement { stop, ..StepAgreement::default() };
                let mut steps = (1..=2 * STEPS_TO_AGREE)
                    .filter(|&step| own.among(processes, step).expect("all are there").stop == Some(cause));
                (steps.next(), steps.next(), steps.next())
            });
            let expected = (Some(STEPS_TO_AGREE), Some(2 * STEPS_TO_AGREE), None);
            assert_eq!(stops, [expected; 3], "{asked}");
        }
    }

    /// The first process alone decides by its clock, and a checkpoint is published once all have written.
    #[test]
    fn the_first_process_has_the_clock_and_all_must_have_written() {
        for (saves, written) in [(0, 0b11), (1, 0b11), (0, 0b01), (0, 0b10)] {
            let agreed = in_group(2, |processes| {
                let number = processes.process().0;
                let own =
                    StepAgreement { stop: None, saves: number == saves, written: written >> number & 1 == 1 };
                let agreed = own.among(processes, STEPS_TO_AGREE).expect("all are there");
                (agreed.saves, agreed.written)
            });
            assert_eq!(agreed, [(saves == 0, written == 0b11); 2], "{saves}, {written}");
        }
    }

    /// Whichever process fails, all fail, and each knows whether all can save their state.
    #[test]
    fn if_one_process_fails_all_do() {
        let full = || TrainError::RunDir { path: "run".into(), what: "the disk is full".into() };
        let diverged = || TrainError::NotFinite("a weight".into());
        let outcomes = |errors: [Option<fn() -> TrainError>; 2]| {
            let all = in_group(2, |processes| {
                let own = errors[processes.process().0].map_or(Ok(()), |error| Err(error()));
                let failed = all_succeed(processes, "the outcome", own).expect("all are there").err()?;
                Some((failed.error.to_string(), failed.leaves_state))
            });
            let [first, second] = <[_; 2]>::try_from(all).expect("there are two");
            assert_eq!(first, second);
            first
        };
        assert_eq!(outcomes([None, None]), None);
        let expected = Some(("the disk is full".to_owned(), true));
        assert_eq!(outcomes([Some(full), None]), expected);
        assert_eq!(outcomes([None, Some(full)]), expected);
        assert_eq!(outcomes([Some(full), Some(full)]), expected);
        assert!(outcomes([None, Some(diverged)]).is_some_and(|(_, leaves_state)| !leaves_state));
    }
}
