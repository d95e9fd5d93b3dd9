//! Who must act before a failed command can succeed. The exit code follows from it.

use serde::{Deserialize, Serialize};

/// Who must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// The machine failed: a disk, a network, an operation that the operating system refused.
    System,
    /// Input files are damaged.
    Data,
    /// Nobody: a signal ended the command, which can simply be repeated.
    Nobody,
    /// The user: the command or the job does not fit the files or the machine.
    Usage,
}

impl Blame {
    /// Who must act after an error of data that are read.
    pub fn of_data(error: &crate::Error) -> Self {
        match error {
            crate::Error::Invalid(_) => Self::Usage,
            crate::Error::Damaged { .. } | crate::Error::BadRows(_) => Self::Data,
            _ => Self::System,
        }
    }
}
