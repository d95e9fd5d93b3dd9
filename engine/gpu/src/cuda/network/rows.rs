//! The numbers of samples that a network has memory for.

/// The numbers of samples that a network has memory for.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkRows {
    /// Samples of a training batch.
    pub(super) trained: usize,
    /// Samples that are scored at a time, which have no backward pass.
    pub(super) scored: usize,
}

impl NetworkRows {
    /// Returns the rows of activations, of which training uses the first ones.
    pub(super) fn values(self) -> usize {
        self.trained.max(self.scored)
    }
}
