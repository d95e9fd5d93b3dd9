//! Samples that a device has scored: their metrics are computed now, or beside other work.

use std::fmt;
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use rankine_model::evaluation::HeadMetrics;
use rayon::ThreadPoolBuilder;
use rustix::process::setpriority_process;

use super::error::BackendError;

/// The nice value of threads beside the training: they get what processor time others leave.
const NICE: i32 = 19;

/// The metrics of each head, in the model's order; `None` if a score is not a number.
type Metrics = Result<Option<Vec<HeadMetrics>>, BackendError>;

/// The scores of an evaluation, whose metrics are still to be computed. They have the same bits wherever that happens.
pub struct Scored {
    compute: Box<dyn FnOnce() -> Metrics + Send>,
    threads: usize,
}

impl fmt::Debug for Scored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scored").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Scored {
    /// Scores whose metrics `compute` returns. It may use this number of threads of rayon.
    pub fn new(threads: usize, compute: impl FnOnce() -> Metrics + Send + 'static) -> Self {
        Self { compute: Box::new(compute), threads }
    }

    /// Computes the metrics on this thread, and on the threads of its pool.
    ///
    /// # Errors
    /// [`BackendError::Failed`] if an operation of the device failed.
    pub fn metrics(self) -> Metrics {
        (self.compute)()
    }

    /// Starts to compute the metrics on threads of their own, of the lowest priority.
    ///
    /// # Errors
    /// [`BackendError::Failed`] if no thread can be started.
    pub fn beside(self) -> Result<PendingMetrics, BackendError> {
        let Self { compute, threads } = self;
        let run = move || {
            // On Linux, this is the priority of the calling thread. Without it, the threads only compete with others.
            let start = |_| setpriority_process(None, NICE).unwrap_or_default();
            let name = |_| "rankine-metrics".into();
            let pool = ThreadPoolBuilder::new().num_threads(threads).start_handler(start).thread_name(name);
            let pool = pool.build().map_err(|error| BackendError::Failed(error.into()))?;
            pool.install(compute)
        };
        let thread = thread::Builder::new().name("rankine-metrics".into()).spawn(run);
        Ok(PendingMetrics { thread: Some(thread.map_err(|error| BackendError::Failed(error.into()))?) })
    }
}

/// Metrics that are computed beside other work. If they are dropped, that is waited for.
#[derive(Debug)]
pub struct PendingMetrics {
    thread: Option<JoinHandle<Metrics>>,
}

impl PendingMetrics {
    /// Waits for the metrics.
    ///
    /// # Panics
    /// If computing them panicked.
    ///
    /// # Errors
    /// As [`Scored::metrics`].
    pub fn wait(mut self) -> Metrics {
        let thread = self.thread.take().expect("only dropping takes it otherwise");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for PendingMetrics {
    fn drop(&mut self) {
        // Its thread may use the memory of the device. Nobody misses the result.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::process::getpriority_process;

    use super::*;

    fn metrics() -> Vec<HeadMetrics> {
        vec![HeadMetrics::new("click".into(), None, None)]
    }

    #[test]
    fn metrics_beside_are_computed_on_as_many_threads_of_low_priority_while_others_work() {
        let before = getpriority_process(None).unwrap();
        let (go, wait) = channel();
        let scored = Scored::new(3, move || {
            wait.recv().unwrap();
            assert_eq!((rayon::current_num_threads(), getpriority_process(None).unwrap()), (3, NICE));
            Ok(Some(metrics()))
        });
        let pending = scored.beside().unwrap();
        go.send(()).unwrap();
        assert_eq!(pending.wait().unwrap(), Some(metrics()));
        assert_eq!(getpriority_process(None).unwrap(), before, "of this thread");
    }

    #[test]
    fn an_error_arrives_where_the_metrics_are_waited_for() {
        let failing = || Scored::new(1, || Err(BackendError::Failed("the GPU is lost".into())));
        assert_eq!(failing().metrics().unwrap_err().to_string(), "the GPU is lost");
        assert_eq!(failing().beside().unwrap().wait().unwrap_err().to_string(), "the GPU is lost");
    }

    #[test]
    fn dropped_metrics_use_no_memory_of_the_device_any_more() {
        let done = Arc::<AtomicBool>::default();
        let theirs = Arc::clone(&done);
        let scored = Scored::new(1, move || {
            thread::sleep(Duration::from_millis(50));
            theirs.store(true, Ordering::Relaxed);
            Ok(None)
        });
        drop(scored.beside().unwrap());
        assert!(done.load(Ordering::Relaxed));
    }
}
