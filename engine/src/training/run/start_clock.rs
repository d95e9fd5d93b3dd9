//! Times what happens before the first step.

use std::time::Instant;

use rankine_base::system;

use crate::training::summary::StartSummary;

/// Assigns the time since the process started to the parts of the start.
#[derive(Debug, Clone)]
pub(super) struct StartClock {
    /// When the last part ended.
    last: Instant,
    times: StartSummary,
}

impl StartClock {
    /// Starts with what the process has done so far.
    pub(super) fn new() -> Self {
        let process_seconds = system::process_age().unwrap_or_default().as_secs_f64();
        Self { last: Instant::now(), times: StartSummary { process_seconds, ..StartSummary::default() } }
    }

    /// Adds the time since the last call to a part.
    pub(super) fn add_to(&mut self, part: impl FnOnce(&mut StartSummary) -> &mut f64) {
        let last = std::mem::replace(&mut self.last, Instant::now());
        *part(&mut self.times) += (self.last - last).as_secs_f64();
    }

    pub(super) fn times(&self) -> StartSummary {
        self.times
    }
}
