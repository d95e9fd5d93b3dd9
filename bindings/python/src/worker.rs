//! Long work on a thread of its own, while the calling thread looks for Ctrl-C and receives messages.

use std::panic;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use rankine_base::Stop;

/// How often the calling thread looks for signals, at least.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
/// Messages that may wait for the calling thread; then the work waits.
const MESSAGES_MAX: usize = 64;

/// Does work without the interpreter, and receives its messages on the calling thread. If a signal handler or `receive`
/// raises an exception, such as KeyboardInterrupt, asks the work to stop, waits for its end, and raises the exception
/// with a note of why the work ended.
pub(crate) fn run<M: Send, R: Send>(
    py: Python<'_>,
    stop: &Stop,
    work: impl FnOnce(&SyncSender<M>) -> Result<R, PyErr> + Send,
    mut receive: impl FnMut(M) -> PyResult<()>,
) -> PyResult<R> {
    let (sender, mut receiver) = sync_channel(MESSAGES_MAX);
    thread::scope(|scope| {
        let worker = scope.spawn(move || work(&sender));
        let raised = loop {
            let receiver = &mut receiver;
            let outcome = match py.detach(move || receiver.recv_timeout(SIGNALS_EVERY)) {
                Ok(message) => receive(message),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => break None,
            };
            // Also after messages: they may come more often than the time limit.
            if let Err(raised) = outcome.and_then(|()| py.check_signals()) {
                stop.ask();
                break Some(raised);
            }
        };
        let ended = py.detach(move || {
            receiver.iter().for_each(drop);
            worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        });
        let Some(raised) = raised else { return ended };
        if let Err(error) = ended {
            raised.value(py).call_method1("add_note", (error.value(py).str()?,))?;
        }
        Err(raised)
    })
}

/// Does work without the interpreter, as [`run`] does, that sends no messages.
pub(crate) fn wait<R: Send>(
    py: Python<'_>,
    stop: &Stop,
    work: impl FnOnce() -> Result<R, PyErr> + Send,
) -> PyResult<R> {
    run(py, stop, |_: &SyncSender<()>| work(), |()| Ok(()))
}
