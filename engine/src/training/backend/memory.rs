//! The device memory that a job uses, by purpose.

use std::fmt;

use serde::Serialize;

/// The memory of a device that has its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// What the job uses, the largest part first.
    pub parts: Vec<MemoryPart>,
    /// Bytes that remain free.
    pub free_bytes: u64,
    /// Bytes of the device.
    pub total_bytes: u64,
}

/// A part of the memory that a job uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    /// Its purpose.
    pub purpose: String,
    /// How many bytes.
    pub bytes: u64,
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let taken = self.parts.iter().map(|part| part.bytes).sum();
        write!(f, "{:.2} GB of {:.1}", gb(taken), gb(self.total_bytes))?;
        for (number, MemoryPart { purpose, bytes }) in self.parts.iter().enumerate() {
            write!(f, "{} {purpose} {:.2}", if number == 0 { ":" } else { "," }, gb(*bytes))?;
        }
        write!(f, "; {:.2} remain free", gb(self.free_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_taken_for_what() {
        let part = |purpose: &str, bytes| MemoryPart { purpose: purpose.into(), bytes };
        let memory = DeviceMemory {
            parts: vec![part("tables", 96_160_000_000), part("routes", 1_500_000_000)],
            free_bytes: 50_000_000_000,
            total_bytes: 150_110_000_000,
        };
        let line = "97.66 GB of 150.1: tables 96.16, routes 1.50; 50.00 remain free";
        assert_eq!(memory.to_string(), line);
    }
}
