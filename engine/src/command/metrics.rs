//! The outcome of an evaluation, as text.

use std::fmt;

use rankine::evaluation::Metrics;

/// Metrics as a short table, beside the best AUC that there can be, where that is known.
#[derive(Debug)]
pub(crate) struct MetricsText<'a> {
    pub(crate) metrics: &'a Metrics,
    pub(crate) auc_achievable: Option<f64>,
}

impl fmt::Display for MetricsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metrics { samples, auc, log_loss, normalized_entropy, calibration, label_rate } = self.metrics;
        let known = |value: &Option<f64>, digits| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "undefined: all labels are equal".into(),
        };
        write!(f, "AUC                 {}", known(auc, 5))?;
        if let Some(best) = self.auc_achievable {
            write!(f, "   (achievable: {best:.5})")?;
        }
        writeln!(f)?;
        writeln!(f, "log loss            {log_loss:.5}")?;
        writeln!(f, "normalized entropy  {}", known(normalized_entropy, 5))?;
        writeln!(f, "calibration         {}", known(calibration, 4))?;
        writeln!(f, "label rate          {label_rate:.5}")?;
        writeln!(f, "samples             {samples}")
    }
}
