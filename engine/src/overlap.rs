//! What an iteration does at the same time on a GPU, by name: so that what each gains can be measured. Results are the
//! same to the bit with and without.

/// Two parts of an iteration that run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Copying and unpacking a batch beside the iterations before.
    Input,
    /// Look-ups beside the bottom MLP.
    LookUps,
    /// Making routes: over ranks beside the iteration before, alone beside the pass forward.
    Routes,
    /// On one GPU: gradients by weights and biases beside the way back.
    WeightGradients,
    /// Over ranks: gradients of rows on their way to the owners beside the way back.
    RowGradients,
    /// Over ranks: adding up the dense gradients of a part beside the way back through the next.
    GradientSums,
    /// The dense update beside that of the tables.
    DenseUpdate,
}

impl Overlap {
    /// All of them, in the order of an iteration.
    pub const ALL: [Self; 7] = [
        Self::Input,
        Self::LookUps,
        Self::Routes,
        Self::WeightGradients,
        Self::RowGradients,
        Self::GradientSums,
        Self::DenseUpdate,
    ];

    /// Its name in arguments.
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

/// Which of them an iteration has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlaps(u8);

impl Overlaps {
    /// Every one.
    pub const ALL: Self = Self(u8::MAX);

    /// All but these.
    pub fn without(left_out: &[Overlap]) -> Self {
        left_out.iter().fold(Self::ALL, |Self(bits), &overlap| Self(bits & !(1 << overlap as u8)))
    }

    /// Whether one is there.
    pub fn has(self, overlap: Overlap) -> bool {
        self.0 & 1 << overlap as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_left_out_are_not_there() {
        let overlaps = Overlaps::without(&[Overlap::Routes, Overlap::Input, Overlap::Routes]);
        let there = Overlap::ALL.into_iter().filter(|&overlap| overlaps.has(overlap)).collect::<Vec<_>>();
        assert_eq!((there.len(), there[0], there[1]), (5, Overlap::LookUps, Overlap::WeightGradients));
        assert!(Overlap::ALL.into_iter().all(|overlap| Overlaps::ALL.has(overlap)));
    }
}
