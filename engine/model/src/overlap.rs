//! The parts of an iteration that a GPU overlaps, by name, so that the gain of each can be measured. Results have the
//! same bits with and without overlap.

/// Work that overlaps other work of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// A batch is copied and unpacked during the iterations before it.
    Input,
    /// Look-ups run in parallel with the bottom MLP.
    LookUps,
    /// Routes are built during the iteration before with several ranks, and during the forward pass with one.
    Routes,
    /// On one GPU, gradients of weights and biases are computed in parallel with the rest of the backward pass.
    WeightGradients,
    /// With several ranks, row gradients are sent to the owners during the backward pass.
    RowGradients,
    /// With several ranks, the dense gradients of one part are all-reduced while the backward pass computes the next
    /// part.
    GradientSums,
    /// Dense parameters are updated in parallel with the tables.
    DenseUpdate,
}

impl Overlap {
    /// All overlaps, in the order of an iteration.
    pub const ALL: [Self; 7] = [
        Self::Input,
        Self::LookUps,
        Self::Routes,
        Self::WeightGradients,
        Self::RowGradients,
        Self::GradientSums,
        Self::DenseUpdate,
    ];

    /// Its name in command line arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::LookUps => "look-ups",
            Self::Routes => "routes",
            Self::WeightGradients => "weight-gradients",
            Self::RowGradients => "row-gradients",
            Self::GradientSums => "gradient-sums",
            Self::DenseUpdate => "dense-update",
        }
    }
}

/// The overlaps that an iteration uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlaps(u8);

impl Overlaps {
    /// Every overlap.
    pub const ALL: Self = Self(u8::MAX);

    /// All overlaps except these.
    pub fn without(omitted: &[Overlap]) -> Self {
        omitted.iter().fold(Self::ALL, |Self(bits), &overlap| Self(bits & !(1 << overlap as u8)))
    }

    /// Whether an overlap is used.
    pub fn has(self, overlap: Overlap) -> bool {
        self.0 & 1 << overlap as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_overlaps_are_not_used() {
        let overlaps = Overlaps::without(&[Overlap::Routes, Overlap::Input, Overlap::Routes]);
        let used = Overlap::ALL.into_iter().filter(|&overlap| overlaps.has(overlap)).collect::<Vec<_>>();
        assert_eq!((used.len(), used[0], used[1]), (5, Overlap::LookUps, Overlap::WeightGradients));
        assert!(Overlap::ALL.into_iter().all(|overlap| Overlaps::ALL.has(overlap)));
    }
}
