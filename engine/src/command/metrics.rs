//! The outcome of an evaluation, as text.

use std::fmt;

use rankine::evaluation::{EvalMetrics, Metrics};
use rankine::training::IdCounts;

use super::{CommandError, output};

/// Prints how many ids were no rows of their tables, a line a column that had any.
pub(crate) fn ids_out_of_range(counts: &IdCounts) -> Result<(), CommandError> {
    counts.iter().try_for_each(|(column, count)| {
        output::text(format_args!("ids out of range    {count} of column {column}\n"))
    })
}

/// Metrics as a short table a head, beside the best AUC that there can be, where that is known.
#[derive(Debug)]
pub(crate) struct MetricsText<'a> {
    pub(crate) metrics: &'a EvalMetrics,
    pub(crate) auc_achievable: Option<f64>,
}

impl fmt::Display for MetricsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EvalMetrics { first, heads } = self.metrics;
        if heads.is_empty() {
            return table(f, first.as_ref(), self.auc_achievable);
        }
        for (label, metrics) in heads {
            writeln!(f, "head                {label}")?;
            table(f, metrics.as_ref(), None)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, metrics: Option<&Metrics>, auc_achievable: Option<f64>) -> fmt::Result {
    let Some(metrics) = metrics else { return writeln!(f, "samples             0 have this label") };
    let Metrics { samples, auc, log_loss, normalized_entropy, calibration, label_rate } = metrics;
    let known = |value: &Option<f64>, digits| match value {
        Some(value) => format!("{value:.digits$}"),
        None => "undefined: all labels are equal".into(),
    };
    write!(f, "AUC                 {}", known(auc, 5))?;
    if let Some(best) = auc_achievable {
        write!(f, "   (achievable: {best:.5})")?;
    }
    writeln!(f)?;
    writeln!(f, "log loss            {log_loss:.5}")?;
    writeln!(f, "normalized entropy  {}", known(normalized_entropy, 5))?;
    writeln!(f, "calibration         {}", known(calibration, 4))?;
    writeln!(f, "label rate          {label_rate:.5}")?;
    writeln!(f, "samples             {samples}")
}
