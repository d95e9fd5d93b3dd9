//! Blocks in the memory of one GPU from which other GPUs of the process copy them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rankine_cuda::{Moment, Pointer};

/// A block that one GPU has, or will have: its *home*.
#[derive(Debug, Default)]
pub(super) struct PlacedBlock {
    state: Mutex<State>,
    changed: Condvar,
    /// When other GPUs have copied it.
    copied: Mutex<Vec<Arc<Moment>>>,
}

#[derive(Debug, Clone, Default)]
enum State {
    /// The home's thread has not enqueued its copy yet.
    #[default]
    Awaited,
    /// It is there once the moment has passed.
    Placed(Pointer<u8>, Arc<Moment>),
    /// The home's thread has ended.
    Lost,
}

/// The duty of the home's thread to say where the block is. Dropping it says that the block will not come.
#[derive(Debug)]
pub(super) struct Announcement(Arc<PlacedBlock>);

impl Announcement {
    /// The block that it is about.
    pub(super) fn block(&self) -> Arc<PlacedBlock> {
        Arc::clone(&self.0)
    }

    /// Says that the block is at an address once the moment has passed.
    pub(super) fn placed(self, at: Pointer<u8>, moment: Arc<Moment>) {
        *self.0.state() = State::Placed(at, moment);
        self.0.changed.notify_all();
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(*state, State::Awaited) {
            *state = State::Lost;
            self.0.changed.notify_all();
        }
    }
}

impl PlacedBlock {
    /// Returns a block that its home will announce.
    pub(super) fn announced() -> (Arc<Self>, Announcement) {
        let placed = Arc::new(Self::default());
        (Arc::clone(&placed), Announcement(placed))
    }

    /// Waits until the home has enqueued its copy; returns where the block is and when. `None` if it will not come.
    pub(super) fn wait(&self) -> Option<(Pointer<u8>, Arc<Moment>)> {
        let awaited = |state: &mut State| matches!(state, State::Awaited);
        let state = self.changed.wait_while(self.state(), awaited).unwrap_or_else(PoisonError::into_inner);
        match state.clone() {
            State::Placed(at, moment) => Some((at, moment)),
            State::Awaited | State::Lost => None,
        }
    }

    /// Notes when another GPU has copied the block: its home must not overwrite it before.
    pub(super) fn is_copied_at(&self, moment: Arc<Moment>) {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner).push(moment);
    }

    /// Returns when the other GPUs have copied it.
    pub(super) fn copied(&self) -> Vec<Arc<Moment>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_block_learns_that_its_home_has_ended() {
        let (placed, announcement) = PlacedBlock::announced();
        let waiting = std::thread::spawn(move || placed.wait().is_none());
        drop(announcement);
        assert!(waiting.join().unwrap());
    }
}
