//! How many threads a command uses.

use std::num::NonZeroUsize;

use crate::values::ThreadCount;

/// Returns the requested number of threads, by default all that this process may use.
pub fn thread_count(asked: Option<ThreadCount>) -> NonZeroUsize {
    let asked = asked.and_then(|threads| NonZeroUsize::new(threads.get() as usize));
    asked.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_number_counts() {
        assert_eq!(thread_count(ThreadCount::new(3)).get(), 3);
        assert_eq!(thread_count(None), std::thread::available_parallelism().unwrap());
    }
}
