//! The metrics that a training exports, against its summary.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The metrics of one process in a textfile.
pub(crate) struct Exported {
    page: String,
    process: usize,
}

impl Exported {
    #[track_caller]
    pub(crate) fn read(path: &Path, process: usize) -> Self {
        Self { page: fs::read_to_string(path).expect("the file is written"), process }
    }

    /// Returns the value of a series with these labels, besides those of the job and of the process.
    #[track_caller]
    pub(crate) fn value(&self, name: &str, labels: &str) -> f64 {
        let process = format!("rank=\"{}\"", self.process);
        // Labels are sorted by name.
        let mut labels: Vec<_> = labels.split(',').filter(|label| !label.is_empty()).collect();
        labels.extend(["name=\"small\"", &process]);
        labels.sort_unstable();
        value(&self.page, &format!("{name}{{{}}}", labels.join(",")))
    }

    /// Compares the final values of process 0 with the summary of its run.
    #[track_caller]
    pub(crate) fn agrees_with(&self, summary: &Value) {
        let trained = &summary["train"];
        let number = |value: &Value| value.as_f64().expect("a number");
        assert_eq!(self.value("rankine_train_samples_total", ""), number(&trained["samples"]));
        assert_eq!(self.value("rankine_train_steps_total", ""), number(&trained["steps"]));
        assert_eq!(self.value("rankine_train_step_seconds_count", ""), number(&trained["steps"]));
        assert_eq!(self.value("rankine_train_progress_ratio", ""), 1.0);
        assert_eq!(self.value("rankine_train_loss", ""), number(&trained["loss"]));
        let head = "head=\"label\",part=\"eval\"";
        assert_eq!(self.value("rankine_eval_auc", head), number(&summary["eval"]["auc"]));
        assert_eq!(self.value("rankine_eval_log_loss", head), number(&summary["eval"]["log_loss"]));
        assert_eq!(
            self.value("rankine_eval_calibration_ratio", head),
            number(&summary["eval"]["calibration"])
        );
        assert!(self.value("rankine_reader_bytes_total", "part=\"train\"") > 0.0);
        assert!(self.value("rankine_reader_bytes_total", "part=\"eval\"") > 0.0);
        // The mean of a step times steps is the total, of all three kinds of bytes.
        for scope in ["within_nodes", "between_nodes"] {
            let mean = |kind: &str| summary["exchange"][kind][scope].as_f64().unwrap_or(0.0);
            let total =
                (mean("bytes") + mean("padding_bytes") + mean("reduced_bytes")) * number(&trained["steps"]);
            let exported = self.value("rankine_exchange_bytes_total", &format!("scope=\"{scope}\""));
            // Exported as of the last report, at the last step or before; means are rounded.
            let most = total * (1.0 + 8.0 * f64::EPSILON);
            assert!(exported <= most && (exported > 0.0) == (total > 0.0), "{exported} of {total}");
        }
    }
}

/// Returns the value of a series of a page.
#[track_caller]
pub(crate) fn value(page: &str, series: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("`{series}` is not in:\n{page}"))
}
