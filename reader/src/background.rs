//! A thread that produces items ahead of their consumer.

use std::convert::Infallible;
use std::fmt;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use rankine_base::error::{Error, Result};

/// A thread that produces items in order and returns a result when it ends. Dropping this stops the thread and waits
/// for it to end.
pub(crate) struct Background<T, L> {
    /// `None` once stopped. The thread notices by itself when it sends the next item.
    items: Option<Receiver<T>>,
    /// Dropped to wake the thread when it waits for something else.
    stop: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<L>>,
    left: Option<L>,
}

/// Tells the thread that nobody takes its items any more: the channel is then disconnected.
pub(crate) struct StopSignal(pub(crate) Receiver<Infallible>);

impl StopSignal {
    /// Returns whether nobody takes items any more.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.0.try_recv(), Err(TryRecvError::Disconnected))
    }
}

impl<T: Send + 'static, L: Send + 'static> Background<T, L> {
    /// Starts a thread that sends items; up to `capacity` of them wait to be taken.
    ///
    /// # Errors
    /// [`Error::Refused`] if the system cannot start a thread.
    pub(crate) fn spawn(
        name: &str,
        capacity: usize,
        work: impl FnOnce(&Sender<T>, &StopSignal) -> L + Send + 'static,
    ) -> Result<Self> {
        let (out, items) = bounded(capacity);
        let (stop, stopped) = bounded(0);
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || work(&out, &StopSignal(stopped)));
        let thread = thread.map_err(|error| Error::refused("start a thread", error))?;
        Ok(Self { items: Some(items), stop: Some(stop), thread: Some(thread), left: None })
    }
}

impl<T, L> Background<T, L> {
    /// Stops the thread and returns its result.
    pub(crate) fn close(mut self) -> L {
        self.stop();
        self.left.take().expect("the thread has ended with a result")
    }

    /// Returns the number of items that wait to be taken.
    pub(crate) fn ready(&self) -> usize {
        self.items.as_ref().map_or(0, Receiver::len)
    }

    /// Ends the thread. A panic of the thread continues here, so that a broken stream does not pass for a short one.
    fn stop(&mut self) {
        (self.stop, self.items) = (None, None);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(left)) => self.left = Some(left),
            Some(Err(panic)) if !std::thread::panicking() => std::panic::resume_unwind(panic),
            Some(Err(_)) | None => {}
        }
    }
}

impl<T, L> Iterator for Background<T, L> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let next = self.items.as_ref()?.recv().ok();
        if next.is_none() {
            self.stop();
        }
        next
    }
}

impl<T, L> Drop for Background<T, L> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<T, L> fmt::Debug for Background<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").field("running", &self.thread.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_thread_stops_while_sending_and_while_waiting() {
        let mut sending =
            Background::spawn("endless", 2, |out, _| (0..).take_while(|i| out.send(*i).is_ok()).count());
        let sending = sending.as_mut().unwrap();
        assert_eq!(sending.by_ref().take(3).collect::<Vec<u64>>(), [0, 1, 2]);
        let waiting = Background::<u8, _>::spawn("waiting", 1, |_, stop| {
            let _ = stop.0.recv();
            stop.is_asked()
        });
        assert!(waiting.unwrap().close());
    }

    #[test]
    fn a_panic_is_propagated() {
        let panicking = Background::<u8, ()>::spawn("panicking", 1, |_, _| panic!("on purpose")).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panicking.count()));
        assert!(outcome.is_err());
    }
}
