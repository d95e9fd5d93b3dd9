//! Signals that stop a command.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankine_engine::training::{Stop, StopCause};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::{CommandError, Exit};

/// The exit code after a second SIGINT, as in a shell.
const INTERRUPTED: i32 = 128 + SIGINT;
/// How long work may take to stop before the process ends anyway.
const GRACE: Duration = Duration::from_millis(500);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(50);

/// Lets SIGTERM, SIGINT, SIGHUP and SIGUSR1 stop a training.
pub(crate) fn training() -> Result<Stop, CommandError> {
    listen(&[SIGTERM, SIGINT, SIGUSR1])
}

/// Lets SIGTERM, SIGINT and SIGHUP stop other work within a second.
pub(crate) fn work() -> Result<(Stop, Deadline), CommandError> {
    let stop = listen(&[SIGTERM, SIGINT])?;
    let deadline = Deadline::new(&stop, Exit::of_stop)?;
    Ok((stop, deadline))
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail with an error that names the file. By default the system
/// kills the process with SIGXFSZ in the middle of its work.
pub(crate) fn survive_file_size_limit() {
    // SAFETY: the call touches no memory, and ignoring a signal calls no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Lets the given signals and SIGHUP stop the work; a second SIGINT ends the process at once. SIGHUP stays ignored if
/// it was ignored at the start: that is how `nohup` keeps a command running.
fn listen(signals: &[i32]) -> Result<Stop, CommandError> {
    let (stop, interrupted) = (Stop::default(), Arc::new(AtomicBool::new(false)));
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    // The actions of SIGINT run in this order: the first one sees the flag that the second one set at an earlier
    // signal.
    let registered =
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupted))
            .and_then(|_| flag::register(SIGINT, interrupted))
            .and_then(|_| {
                signals.iter().copied().chain(hang_up).try_for_each(|signal| {
                    flag::register_usize(signal, stop.signal(), signal as usize).map(drop)
                })
            });
    let refused = |error| CommandError::new(Exit::Failed, format!("cannot listen for signals: {error}"));
    registered.map(|()| stop).map_err(refused)
}

/// Returns whether the process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call changes nothing, and writes the current one to `action`, for which all
    // zeros are a valid value.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Until it is dropped, ends the process if the work does not stop in time. The work may wait for a disk or a file
/// server that does not answer.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// Whether the work is over. Locked while the process ends, so that the work cannot finish meanwhile.
    over: Arc<Mutex<bool>>,
}

impl Deadline {
    /// Starts the deadline; `exit` returns the exit code of the process.
    pub(crate) fn new(stop: &Stop, exit: fn(StopCause) -> Exit) -> Result<Self, CommandError> {
        let over = Arc::new(Mutex::new(false));
        let (stop, ended) = (stop.clone(), Arc::clone(&over));
        let watch = move || {
            let mut asked: Option<Instant> = None;
            while !*ended.lock().unwrap_or_else(PoisonError::into_inner) {
                thread::sleep(PAUSE);
                let Some(cause) = stop.asked() else { continue };
                if asked.get_or_insert_with(Instant::now).elapsed() < GRACE {
                    continue;
                }
                let over = ended.lock().unwrap_or_else(PoisonError::into_inner);
                if !*over {
                    end(cause, exit(cause));
                }
            }
        };
        let thread = thread::Builder::new().name("rankine-deadline".into()).spawn(watch);
        let refused = |error| CommandError::new(Exit::Failed, format!("cannot start a thread: {error}"));
        thread.map(|_| Self { over }).map_err(refused)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

fn end(cause: StopCause, exit: Exit) -> ! {
    let text = format_args!(
        "stopped by {cause} while waiting for a file: a folder with the suffix .partial may remain, which the next run \
         replaces"
    );
    super::print_error(&text, None, exit);
    exit.now()
}
