//! The all-reduce bandwidth of some GPUs, as `rankine doctor --cluster` reports it.

use std::fmt;

use serde::Serialize;

/// The all-reduce bandwidth of some GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// The GPUs and the method.
    pub what: &'static str,
    /// Their number.
    pub gpus: usize,
    /// Least bytes that leave each GPU per time, in GB/s. `None` if it cannot be measured, or for a single GPU.
    pub gb_per_second: Option<f64>,
    /// Why it cannot be measured.
    pub refused: Option<String>,
}

/// One line; nothing for a single GPU.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, gpus, gb_per_second, refused } = self;
        match (gb_per_second, refused) {
            (Some(gb), _) => writeln!(f, "all-reduce over {what} ({gpus}): {gb:.1} GB/s"),
            (None, Some(why)) => writeln!(f, "all-reduce over {what} ({gpus}): {why}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_bandwidth_or_why_there_is_none() {
        let link = Link { what: "NCCL", gpus: 8, gb_per_second: Some(361.26), refused: None };
        assert_eq!(link.to_string(), "all-reduce over NCCL (8): 361.3 GB/s\n");
        let refused = Link { gb_per_second: None, refused: Some("no NCCL".into()), ..link.clone() };
        assert_eq!(refused.to_string(), "all-reduce over NCCL (8): no NCCL\n");
        assert_eq!(Link { gpus: 1, gb_per_second: None, ..link }.to_string(), "");
    }
}
