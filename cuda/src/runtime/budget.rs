//! How much memory of a GPU serves which purpose.

use std::fmt;

use bytesize::ByteSize;
use serde::Serialize;

/// How much of a GPU's memory is used for which purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// The largest first.
    pub parts: Vec<Part>,
    /// Bytes that are free now.
    pub free_bytes: u64,
    /// Bytes of the GPU.
    pub total_bytes: u64,
}

/// A purpose of memory, and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The purpose in words.
    pub purpose: &'static str,
    /// Its size.
    pub bytes: u64,
}

impl Budget {
    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        sum(&self.parts)
    }
}

/// `12.30 GiB: tables 9.80 GiB, routes 1.20 GiB, ...`
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", ByteSize(self.bytes()))?;
        for (number, Part { purpose, bytes }) in self.parts.iter().enumerate() {
            write!(f, "{} {purpose} {:.2}", if number == 0 { ":" } else { "," }, ByteSize(*bytes))?;
        }
        Ok(())
    }
}

/// Bytes of all parts.
pub(crate) fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}
