//! Signals that ask a training to stop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rankine::training::Stop;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::{CommandError, Exit};

/// How a process ends that was interrupted for the second time: as the shell has it.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Lets SIGTERM, SIGUSR1 and SIGINT ask a training to stop; a second SIGINT ends the process at once.
pub(crate) fn stop() -> Result<Stop, CommandError> {
    let (stop, interrupted) = (Stop::default(), Arc::new(AtomicBool::new(false)));
    // The first of SIGINT's actions is done first: it sees what the last one of an earlier signal has set.
    let registered = flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupted))
        .and_then(|_| flag::register(SIGINT, interrupted))
        .and_then(|_| {
            let mut signals = [SIGTERM, SIGUSR1, SIGINT].into_iter();
            signals
                .try_for_each(|signal| flag::register_usize(signal, stop.signal(), signal as usize).map(drop))
        });
    let refused = |error| CommandError::new(Exit::Failed, format!("cannot listen for signals: {error}"));
    registered.map(|()| stop).map_err(refused)
}
