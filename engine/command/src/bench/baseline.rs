//! An earlier benchmark of training, to compare with.

use std::fs;
use std::path::Path;

use rankine_engine::training::TrainBench;
use serde::Deserialize;

use crate::{CommandError, Exit};

/// What `rankine bench train --json` printed earlier.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Baseline {
    name: String,
    device: String,
    batch_size: u64,
    pub(super) ms_per_iteration: f64,
    phases: Vec<Part>,
}

/// A part of a step, timed alone.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Part {
    name: String,
    ms: f64,
}

impl Baseline {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, CommandError> {
        let file = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| CommandError::new(Exit::Failed, format!("cannot read {file}: {error}")))?;
        serde_json::from_str(&text).map_err(|error| {
            let hint = "a baseline is the output of `rankine bench train --json`";
            CommandError::new(Exit::BadData, format!("{file}: {error}; {hint}"))
        })
    }

    /// Returns what was different then, apart from the times; empty if nothing was.
    pub(super) fn differences(&self, bench: &TrainBench) -> Vec<String> {
        let mut differences = Vec::new();
        if self.device != bench.device {
            differences.push(format!("on {}", self.device));
        }
        if self.name != bench.name {
            differences.push(format!("of the job {}", self.name));
        }
        if self.batch_size != bench.batch_size {
            differences.push(format!("with {} samples per step", self.batch_size));
        }
        differences
    }

    /// Returns how long a part took, in milliseconds.
    pub(super) fn ms_of(&self, part: &str) -> Option<f64> {
        self.phases.iter().find(|phase| phase.name == part).map(|phase| phase.ms)
    }

    /// Returns names and times of the parts that a step no longer has.
    pub(super) fn gone<'a>(&'a self, bench: &'a TrainBench) -> impl Iterator<Item = (&'a str, f64)> {
        let still = |part: &&Part| bench.phases.iter().any(|phase| phase.name == part.name);
        self.phases.iter().filter(move |part| !still(part)).map(|part| (part.name.as_str(), part.ms))
    }

    /// Returns the sum of the times of all parts, in milliseconds.
    pub(super) fn parts_ms(&self) -> f64 {
        self.phases.iter().map(|part| part.ms).sum()
    }
}

/// Returns the change of a time as text: `-2.5%`.
pub(super) fn change(before: f64, now: f64) -> String {
    format!("{:+.1}%", 100.0 * (now / before - 1.0))
}
