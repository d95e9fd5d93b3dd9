//! The log of a run, `metrics.jsonl`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rankine_base::files::open_regular;
use rankine_base::sealed::Checksum;
use rankine_engine::training::{RunPhaseSeconds, StoppingProgress};
use rankine_model::evaluation::{EvalMetrics, Metrics};
use rankine_reader::Part;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ReportError;
use super::evaluations::{Evaluated, Evaluations, name_of};
use super::phases::{RunPhase, RunPhaseTimes};
use super::view::RunSeries;

/// The longest line. Lines name columns with ids out of range, of which there may be thousands.
const LINE_BYTES_MAX: u64 = 16 << 20;
const BUFFER_BYTES: usize = 1 << 20;

/// What the log of a run says. It has no superseded lines: a run that resumes removes those after its checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Values by step.
    pub series: RunSeries,
    /// Where the time went.
    pub phases: RunPhaseTimes,
    /// The last report of the loss.
    pub report: Option<LoggedReport>,
    /// The evaluations, without the heads of the last ones.
    pub evaluations: Evaluations,
    /// The metrics of the last evaluation of each set of samples, by its name.
    pub last: BTreeMap<String, EvalMetrics>,
    /// The samples of the last evaluation, except of further datasets.
    pub scored: Option<String>,
    /// How the last evaluation compares with the best one, with early stopping.
    pub stopping: Option<StoppingProgress>,
    /// The time of the first report, RFC 3339 in UTC, and its seconds of training.
    pub first: Option<(String, f64)>,
}

/// A report of the loss. A number that was not finite is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoggedReport {
    /// Steps completed.
    pub step: u64,
    /// Epochs completed.
    pub epoch: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Samples per second since the report before.
    pub samples_per_second: Option<f64>,
    /// The mean loss since the report before.
    pub loss: Option<f64>,
}

/// A line of either kind. Null is a number that was not finite.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    step: u64,
    /// Of an evaluation; absent for the evaluation part.
    part: Option<Part>,
    #[serde(borrow)]
    set: Option<Cow<'a, str>>,
    samples_checksum: Option<Checksum>,
    #[serde(default)]
    averaged: bool,
    epoch: Option<u64>,
    samples: Option<u64>,
    loss: Option<f64>,
    dense_learning_rate: Option<f64>,
    seconds: Option<f64>,
    samples_per_second: Option<f64>,
    phase_seconds: Option<RunPhaseSeconds>,
    auc: Option<f64>,
    log_loss: Option<f64>,
    normalized_entropy: Option<f64>,
    calibration: Option<f64>,
    calibration_uncorrected: Option<f64>,
    label_rate: Option<f64>,
    /// Only the last evaluation's are read.
    #[serde(borrow)]
    heads: Option<&'a RawValue>,
}

impl Line<'_> {
    /// The samples of an evaluation.
    fn evaluated(&self) -> String {
        name_of(self.part.unwrap_or(Part::Eval), self.set.as_deref())
    }

    /// The metrics of the first head; `None` if no sample has its label.
    fn metrics(&self) -> Option<Metrics> {
        self.samples.zip(self.label_rate).map(|(samples, label_rate)| Metrics {
            samples,
            auc: self.auc,
            log_loss: self.log_loss.unwrap_or(f64::NAN),
            normalized_entropy: self.normalized_entropy,
            calibration: self.calibration,
            calibration_uncorrected: self.calibration_uncorrected,
            label_rate,
        })
    }
}

impl History {
    /// Reads a log line by line. A last line that is cut off is ignored: the run may be writing it. A log that does
    /// not exist is empty.
    ///
    /// # Errors
    /// [`ReportError::Read`]; [`ReportError::Damaged`] with the number of the line.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let unreadable = |source| ReportError::Read { path: path.to_owned(), source };
        let file = match open_regular(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            file => file.map_err(unreadable)?,
        };
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut history = Self::default();
        // Of the last evaluation of each set of samples, with the number of its line.
        let mut heads = BTreeMap::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
                break;
            }
            match serde_json::from_slice::<Line<'_>>(&line) {
                Ok(read) => {
                    history.add(&read);
                    match &*read.kind {
                        "eval" => {
                            let last = (number, read.metrics(), read.heads.map(ToOwned::to_owned));
                            heads.insert(read.evaluated(), last);
                        }
                        "early_stopping" => {
                            let stopping = serde_json::from_slice(&line);
                            let damaged = |error| ReportError::damaged(path, Some(number), &error);
                            history.stopping = Some(stopping.map_err(damaged)?);
                        }
                        _ => (),
                    }
                }
                Err(_) if !line.ends_with(b"\n") && (line.len() as u64) < LINE_BYTES_MAX => break,
                Err(error) => return Err(ReportError::damaged(path, Some(number), &error)),
            }
        }
        for (name, (number, first, heads)) in heads {
            let heads = heads.map(|heads| serde_json::from_str(heads.get())).transpose();
            let heads = heads.map_err(|error| ReportError::damaged(path, Some(number), &error))?;
            history.last.insert(name, EvalMetrics { first, heads: heads.unwrap_or_default() });
        }
        Ok(history)
    }

    /// When training started: the first report says how long before it that was.
    pub fn started(&self) -> Option<Timestamp> {
        let (time, seconds) = self.first.as_ref()?;
        let reported: Timestamp = time.parse().ok()?;
        reported.checked_sub(Duration::try_from_secs_f64(*seconds).ok()?).ok()
    }

    fn add(&mut self, line: &Line<'_>) {
        let Self { series, .. } = self;
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        // Other kinds may be added to the log.
        match &*line.kind {
            "train" => {
                series.loss.push(line.step, number(line.loss));
                series.samples_per_second.push(line.step, number(line.samples_per_second));
                series.dense_learning_rate.push(line.step, number(line.dense_learning_rate));
                let seconds = line.seconds.unwrap_or_default();
                self.first.get_or_insert_with(|| (line.time.clone().into_owned(), seconds));
                if let Some(RunPhaseSeconds { reading, computing, awaiting, checkpoint }) = line.phase_seconds
                {
                    self.phases.add(RunPhase::Reading, reading);
                    self.phases.add(RunPhase::Computing, computing);
                    self.phases.add(RunPhase::Awaiting, awaiting);
                    self.phases.add(RunPhase::Checkpoint, checkpoint);
                }
                self.report = Some(LoggedReport {
                    step: line.step,
                    epoch: line.epoch.unwrap_or_default(),
                    samples: line.samples.unwrap_or_default(),
                    seconds,
                    samples_per_second: line.samples_per_second,
                    loss: line.loss,
                });
            }
            "eval" => {
                let name = line.evaluated();
                self.evaluations.of(&name).add(Evaluated {
                    step: line.step,
                    averaged: line.averaged,
                    samples_checksum: line.samples_checksum,
                    auc: number(line.auc),
                    log_loss: number(line.log_loss),
                });
                if line.set.is_none() {
                    self.scored = Some(name);
                }
                self.phases.add(RunPhase::Evaluation, line.seconds.unwrap_or_default());
            }
            _ => (),
        }
    }
}
