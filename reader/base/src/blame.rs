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
        use crate::Error;

        match error {
            Error::Io { .. } | Error::Lost { .. } | Error::Stopped(_) => Self::System,
            Error::Damaged { .. } | Error::BadRows { .. } => Self::Data,
            Error::Exists { .. }
            | Error::Locked { .. }
            | Error::Unsuitable { .. }
            | Error::Changed { .. }
            | Error::Setting { .. }
            | Error::Value(_)
            | Error::Document(_)
            | Error::Columns { .. }
            | Error::TooLarge { .. }
            | Error::Refused { .. }
            | Error::Unsupported { .. } => Self::Usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::error::{Error, InvalidValue};
    use crate::stop::StopCause;

    /// Exit codes follow from the blame, and scripts rely on them.
    #[test]
    fn each_error_has_its_blame() {
        let (path, what, source) = (|| "a".into(), || "b".into(), || io::Error::other("gone"));
        for (error, blame) in [
            (Error::Io { doing: "open", path: path(), source: source() }, Blame::System),
            (Error::Lost { path: path() }, Blame::System),
            (Error::Stopped(StopCause::Program), Blame::System),
            (Error::Damaged { path: path(), offset: None, what: what() }, Blame::Data),
            (Error::BadRows { path: Some(path()), row: Some(1), what: what() }, Blame::Data),
            (Error::Exists { path: path(), why: what() }, Blame::Usage),
            (Error::Locked { path: path(), holder: what(), lock: None }, Blame::Usage),
            (Error::Unsuitable { path: path(), what: what() }, Blame::Usage),
            (Error::Changed { path: None, what: what() }, Blame::Usage),
            (Error::Setting { setting: "depth", what: what() }, Blame::Usage),
            (InvalidValue::expected("c", "a number").into(), Blame::Usage),
            (Error::Columns { column: None, what: what() }, Blame::Usage),
            (Error::TooLarge { limit: 1, what: what() }, Blame::Usage),
            (Error::Refused { doing: what(), source: source() }, Blame::Usage),
            (Error::Unsupported { doing: "read Parquet", feature: "parquet" }, Blame::Usage),
        ] {
            assert_eq!(Blame::of_data(&error), blame, "{error:?}");
        }
    }
}
