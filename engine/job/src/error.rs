//! Errors in a job: a file that cannot be read, or problems with their places.

use std::fmt::{self, Display};

use rankine_base::document::{Conflict, Problem};
use rankine_base::files::NamedTextError;

/// Why a job cannot be read. `Display` writes the whole message, which has several lines.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The file cannot be read: it does not exist, is a pipe or a device, too long or not UTF-8.
    #[error(transparent)]
    Read(#[from] NamedTextError),
    /// The file or a `--set` is not valid.
    #[error("{}", ProblemList(.0))]
    Invalid(Vec<Problem>),
}

impl JobError {
    /// Returns the problems; none if the file cannot be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read(_) => &[],
            Self::Invalid(problems) => problems,
        }
    }
}

impl From<Problem> for JobError {
    fn from(problem: Problem) -> Self {
        Self::Invalid(vec![problem])
    }
}

struct ProblemList<'a>(&'a [Problem]);

impl Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 1 {
            writeln!(f, "{} problems with the job\n", self.0.len())?;
        }
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// One line of text for each conflict.
pub fn conflict_lines(conflicts: &[Conflict]) -> String {
    let lines: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
