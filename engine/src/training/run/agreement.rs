//! What all processes do after a step, agreed among them.

use rankine_reader::StopCause;

use super::super::TrainError;
use crate::launch::ProcessGroup;

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
