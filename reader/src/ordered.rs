//! Parallel work whose results arrive in order, which makes every output independent of the number of threads.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use rankine_base::error::{Error, Result};
use rankine_base::stop::Stop;

/// Items in flight per thread: one being processed, one waiting, and one finished that waits for an earlier one.
pub(crate) const IN_FLIGHT_PER_THREAD: usize = 3;
/// How often a stop request is checked for while no result arrives.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Calls `work` on each item of `source`, on `threads` threads, and `sink` on each result, on this thread, in the
/// order of the source. The number of items in flight is bounded, and so is memory. After a stop request it returns
/// as soon as the items that threads are processing are done.
///
/// # Errors
/// The first error of `source`, `work` or `sink` in the order of the source; no later item reaches the sink.
/// [`Error::Stopped`] after a stop request.
pub(crate) fn ordered_map<T: Send, U: Send, E: From<Error>>(
    threads: NonZeroUsize,
    stop: &Stop,
    source: impl Iterator<Item = Result<T>> + Send,
    work: impl Fn(T) -> Result<U> + Sync,
    sink: impl FnMut(U) -> Result<(), E>,
) -> Result<(), E> {
    ordered_map_within(threads.get() * IN_FLIGHT_PER_THREAD, threads, stop, source, work, sink)
}

/// Does the same with at most `in_flight` items in flight: fewer take less memory, if they are large.
pub(crate) fn ordered_map_within<T: Send, U: Send, E: From<Error>>(
    in_flight: usize,
    threads: NonZeroUsize,
    stop: &Stop,
    mut source: impl Iterator<Item = Result<T>> + Send,
    work: impl Fn(T) -> Result<U> + Sync,
    mut sink: impl FnMut(U) -> Result<(), E>,
) -> Result<(), E> {
    map_in_order(in_flight, threads, stop, &mut source, &work, &mut sink)
}

/// Is compiled once for all sources, kinds of work and sinks with the same items and results.
fn map_in_order<T: Send, U: Send, E: From<Error>>(
    in_flight: usize,
    threads: NonZeroUsize,
    stop: &Stop,
    source: &mut (dyn Iterator<Item = Result<T>> + Send),
    work: &(dyn Fn(T) -> Result<U> + Sync),
    sink: &mut dyn FnMut(U) -> Result<(), E>,
) -> Result<(), E> {
    let (item_out, item_in) = bounded::<(u64, Result<T>)>(in_flight);
    let (result_out, result_in) = bounded::<(u64, Result<U>)>(in_flight);
    // Each item that is read takes a permit, which is returned when its result has reached the sink: behind a slow
    // item, finished results cannot pile up.
    let (permit_out, permit_in) = bounded::<()>(in_flight);
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = &stopped;
        scope.spawn(move || {
            for (number, item) in source.enumerate() {
                let failed = item.is_err();
                if permit_out.send(()).is_err() || item_out.send((number as u64, item)).is_err() || failed {
                    break;
                }
            }
        });
        for _ in 0..threads.get() {
            let (item_in, result_out) = (item_in.clone(), result_out.clone());
            scope.spawn(move || {
                for (number, item) in item_in {
                    if stopped.load(Ordering::Relaxed)
                        || result_out.send((number, item.and_then(work))).is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop((item_in, result_out));

        let mut waiting = BTreeMap::new();
        let mut next = 0;
        let mut consume = || {
            while let Some((number, result)) = receive(&result_in, stop)? {
                waiting.insert(number, result);
                while let Some(result) = waiting.remove(&next) {
                    next += 1;
                    sink(result?)?;
                    let _ = permit_in.recv();
                }
            }
            Ok(())
        };
        let outcome = consume();
        stopped.store(true, Ordering::Relaxed);
        // Dropping both ends wakes threads that wait to send.
        drop((permit_in, result_in));
        outcome
    })
}

/// Returns the next result, or `None` after the last.
fn receive<T>(results: &Receiver<T>, stop: &Stop) -> Result<Option<T>> {
    loop {
        stop.check()?;
        match results.recv_timeout(STOP_CHECK_INTERVAL) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_in_order_with_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let mut seen = Vec::new();
            let work = |item: u64| {
                std::thread::sleep(Duration::from_micros((item * 37) % 200));
                Ok(item * item)
            };
            let threads = NonZeroUsize::new(threads).unwrap();
            ordered_map(threads, &Stop::default(), (0..300).map(Ok), work, |result| {
                seen.push(result);
                Ok::<_, Error>(())
            })
            .unwrap();
            assert_eq!(seen, (0..300).map(|item| item * item).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_in_order_wins_and_an_endless_source_stops() {
        let mut seen = 0;
        let work = |item: u64| {
            if item >= 40 { Err(Error::setting("item", format!("item {item}"))) } else { Ok(item) }
        };
        let outcome =
            ordered_map(NonZeroUsize::new(4).unwrap(), &Stop::default(), (0..).map(Ok), work, |_| {
                seen += 1;
                Ok::<_, Error>(())
            });
        assert_eq!(outcome.unwrap_err().to_string(), "item 40");
        assert_eq!(seen, 40);
        let outcome = ordered_map(
            NonZeroUsize::new(2).unwrap(),
            &Stop::default(),
            (0..).map(Ok),
            |item: u64| Ok(item),
            |item| {
                if item == 10 { Err(Error::setting("item", "full")) } else { Ok(()) }
            },
        );
        assert_eq!(outcome.unwrap_err().to_string(), "full");
    }

    /// The number of results that wait for a slow item is bounded, and so is memory.
    #[test]
    fn three_items_per_thread_are_in_flight() {
        let read = std::sync::atomic::AtomicUsize::new(0);
        let source = (0..1000_u64).inspect(|_| {
            read.fetch_add(1, Ordering::SeqCst);
        });
        let mut read_before_first = 0;
        let work = |item: u64| {
            if item == 0 {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(item)
        };
        let threads = NonZeroUsize::new(2).unwrap();
        ordered_map(threads, &Stop::default(), source.map(Ok), work, |item| {
            if item == 0 {
                read_before_first = read.load(Ordering::SeqCst);
            }
            Ok::<_, Error>(())
        })
        .unwrap();
        // Plus one that waits to be sent.
        assert!((1..=2 * 3 + 1).contains(&read_before_first), "{read_before_first}");
        assert_eq!(read.into_inner(), 1000);
    }

    #[test]
    fn it_stops_when_asked_while_no_result_arrives() {
        let (stop, threads) = (Stop::default(), NonZeroUsize::new(2).unwrap());
        // The third item is slow.
        let third = std::iter::once_with(|| {
            std::thread::sleep(Duration::from_millis(200));
            2
        });
        let source = (0..2).chain(third).map(Ok);
        let work = |item: u64| {
            if item == 1 {
                stop.ask();
            }
            Ok(item)
        };
        let outcome = ordered_map(threads, &stop, source, work, |_| Ok(()));
        assert!(matches!(outcome, Err(Error::Stopped(rankine_base::StopCause::Program))), "{outcome:?}");
    }
}
