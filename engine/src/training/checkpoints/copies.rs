//! Host memory for copies of the ranks' state.
//!
//! The memory of one copy serves the next. Before the first one, a thread of its own makes the system allocate the
//! memory while training runs: for a GPU, that takes as long as the copy itself.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rankine_base::hooks;
use rankine_embedding::rows::Snapshot;

use rankine_base::system;

/// The share of the free memory that copies may take; training and the page cache need some, too.
const MEMORY_SHARE: f64 = 0.8;

/// Memory of copies that is unused now, one per rank of this process.
#[derive(Debug)]
pub(super) struct CopyMemory {
    /// Bytes of the free memory that this process may take.
    share: f64,
    spare: Vec<Snapshot>,
    preparing: Option<JoinHandle<Vec<Snapshot>>>,
}

/// Memory for one copy per rank; each rank takes its own.
#[derive(Debug)]
pub(super) struct SpareCopies(Mutex<Vec<Option<Snapshot>>>);

impl CopyMemory {
    /// Empty. `processes` share the same memory.
    pub(super) fn new(processes: usize) -> Self {
        Self { share: MEMORY_SHARE / processes as f64, spare: Vec::new(), preparing: None }
    }

    /// Starts to prepare memory for copies of so large parts, `words[rank][part]`; does nothing if there is not
    /// enough memory.
    pub(super) fn prepare(&mut self, words: Vec<Vec<u64>>) {
        if !self.has_room(4 * words.iter().flatten().sum::<u64>()) {
            return;
        }
        let prepare = move || words.into_iter().map(Snapshot::with_room).collect();
        // Without a thread for it, the first copy takes longer.
        self.preparing = thread::Builder::new().name("rankine-copies".into()).spawn(prepare).ok();
    }

    /// Whether there is memory for copies of this many bytes. The memory of earlier copies is used again.
    pub(super) fn has_room(&mut self, bytes: u64) -> bool {
        self.settle();
        let rehearsed = hooks::variable(hooks::COPY_BYTES).and_then(|text| text.to_str()?.parse().ok());
        let usable = rehearsed.or_else(|| system::memory().map(|memory| memory.usable_bytes()));
        let spare: u64 = self.spare.iter().map(Snapshot::room).sum();
        usable.is_none_or(|usable| bytes.saturating_sub(spare) as f64 <= usable as f64 * self.share)
    }

    /// Waits for the memory that is being prepared.
    fn settle(&mut self) {
        if let Some(preparing) = self.preparing.take() {
            self.spare = preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }

    /// All of the memory, for copies.
    pub(super) fn take(&mut self) -> SpareCopies {
        self.settle();
        SpareCopies(Mutex::new(std::mem::take(&mut self.spare).into_iter().map(Some).collect()))
    }

    /// Takes back the memory of copies.
    pub(super) fn put(&mut self, spare: Vec<Snapshot>) {
        self.spare = spare;
    }
}

impl SpareCopies {
    /// The memory of the rank with this index among those of this process.
    pub(super) fn of(&self, index: usize) -> Option<Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index).and_then(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_prepared_is_for_the_first_copies() {
        let mut memory = CopyMemory::new(1);
        memory.prepare(vec![vec![10, 2000], vec![5]]);
        assert!(memory.has_room(4 * 2015));
        let spare = memory.take();
        let rooms = [0, 1, 0, 2].map(|index| spare.of(index).as_ref().map(Snapshot::room));
        assert_eq!(rooms, [Some(8040), Some(20), None, None]);
        assert!(memory.take().of(0).is_none());
    }

    #[test]
    fn more_than_there_is_is_not_prepared() {
        let mut memory = CopyMemory::new(1);
        memory.prepare(vec![vec![1 << 50]]);
        assert!(memory.preparing.is_none() && !memory.has_room(1 << 52));
    }
}
