//! How many ids a bag has.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of ids in a sample's bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hotness {
    /// The same number in every sample; 1 is called one-hot.
    Fixed(u32),
    /// Any number from 0 to this one.
    Ragged {
        /// The maximum number of ids per bag.
        max: u32,
    },
}

impl Hotness {
    /// Returns the maximum number of ids per bag.
    pub fn max(self) -> u32 {
        match self {
            Self::Fixed(count) => count,
            Self::Ragged { max } => max,
        }
    }

    /// Returns whether bags may differ in size.
    pub fn varies(self) -> bool {
        matches!(self, Self::Ragged { .. })
    }

    /// Returns the sizes that bags of either kind have.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == other { self } else { Self::Ragged { max: self.max().max(other.max()) } }
    }

    /// Returns whether a bag may hold `count` ids.
    pub fn admits(self, count: u64) -> bool {
        match self {
            Self::Fixed(fixed) => count == u64::from(fixed),
            Self::Ragged { max } => count <= u64::from(max),
        }
    }
}

impl fmt::Display for Hotness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(count) => write!(f, "{count}"),
            Self::Ragged { max } => write!(f, "up to {max}"),
        }
    }
}
