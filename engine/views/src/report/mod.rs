//! Runs as reports, the list of runs and the live page show them.
//!
//! Start at [`load()`], which reads a run folder, and at [`RunView`]; [`render()`] makes an HTML file of them.

use std::path::{Path, PathBuf};

pub mod assets;
mod bound;
mod evaluations;
mod history;
mod load;
mod phases;
mod render;
mod series;
mod view;

pub use bound::Bound;
pub(crate) use evaluations::Evaluated;
pub use evaluations::{EvaluationView, Evaluations, HeadView, name_of};
pub use history::{History, LoggedReport};
pub use load::{load, settings_of};
pub use phases::{RunPhase, RunPhaseTimes, RunPhaseView};
pub use render::{REPORT_MARK, render};
pub use series::{POINTS_MAX, Series};
pub use view::{
    DeviceView, ModelView, ProcessView, ProgressView, RefitView, RunSeries, RunState, RunView, TableView,
    TaskView, WarningView,
};

/// An error while reading a run folder.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder is not a run folder.
    #[error(
        "{} is not a run folder, since it has no {missing}: name a folder that `rankine train` wrote",
        path.display()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// The file that it lacks.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The content of a file is not what a run writes.
    #[error("{} is damaged{}: {what}. {}", path.display(), in_line(*.line), way_out(*.line))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1, if the file is read by lines.
        line: Option<u64>,
        /// What is wrong.
        what: String,
    },
}

fn in_line(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(" in line {line}"))
}

fn way_out(line: Option<u64>) -> &'static str {
    match line {
        Some(_) => "Remove that line to read the others",
        None => "Move it elsewhere to read the rest of the run",
    }
}

impl ReportError {
    fn damaged(path: &Path, line: Option<u64>, what: &impl ToString) -> Self {
        let what = what.to_string();
        // Each line of a log is a document of its own to the parser.
        let what = match line {
            Some(_) => what.replace(" at line 1 column ", " at column "),
            None => what,
        };
        Self::Damaged { path: path.to_owned(), line, what: what.trim_end().to_owned() }
    }
}

#[cfg(test)]
mod tests;
