//! Who has to act before a command that failed can succeed. The exit code follows from it.

use serde::{Deserialize, Serialize};

/// Who has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// The machine failed: a disk, a network, an operation that the operating system refused.
    System,
    /// Files are damaged.
    Data,
    /// Nobody: a signal asked the command to end, and it can be given again.
    Nobody,
    /// The command or the job does not suit what is there.
    Usage,
}
