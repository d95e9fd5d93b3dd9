//! The parts of a dataset.

use serde::{Deserialize, Serialize};

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Part {
    /// The part that the model learns from.
    Train = 0,
    /// The part that the model is evaluated on.
    Eval = 1,
    /// Samples of the training part that a training holds out for validation. Datasets do not store it.
    Validation = 2,
}

impl Part {
    /// The parts that datasets store.
    pub const STORED: [Self; 2] = [Self::Train, Self::Eval];

    /// Returns the part with this number in block headers.
    #[doc(hidden)]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::STORED.into_iter().find(|&part| part as u8 == code)
    }

    /// Returns the name: that of the part's folder, if it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Validation => "validation",
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
