//! The results of an evaluation as text.

use std::fmt;

use rankine_engine::training::IdCounts;
use rankine_model::evaluation::{EvalMetrics, Metrics};

use super::{CommandError, output};

/// Prints the number of ids outside of their tables, one line per column that has any.
pub(crate) fn ids_out_of_range(counts: &IdCounts) -> Result<(), CommandError> {
    counts.iter().try_for_each(|(column, count)| {
        output::text(format_args!("ids out of range    {count} in column {column}\n"))
    })
}

/// Metrics as a short table per head, with the best achievable AUC if it is known.
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
    let Metrics {
        samples,
        auc,
        log_loss,
        normalized_entropy,
        calibration,
        calibration_uncorrected,
        label_rate,
    } = metrics;
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
    write!(f, "calibration         {}", known(calibration, 4))?;
    if let Some(uncorrected) = calibration_uncorrected {
        write!(f, "   (uncorrected: {uncorrected:.4})")?;
    }
    writeln!(f)?;
    writeln!(f, "label rate          {label_rate:.5}")?;
    writeln!(f, "samples             {samples}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: Metrics = Metrics {
        samples: 1234,
        auc: Some(0.712_345_6),
        log_loss: 0.456_789,
        normalized_entropy: Some(0.876_543_2),
        calibration: Some(1.023_456),
        calibration_uncorrected: None,
        label_rate: 0.256_789,
    };

    #[test]
    fn each_metric_has_its_line() {
        let metrics = EvalMetrics { first: Some(METRICS), ..EvalMetrics::default() };
        let text = |auc_achievable| MetricsText { metrics: &metrics, auc_achievable }.to_string();
        let rest = "log loss            0.45679\nnormalized entropy  0.87654\ncalibration         1.0235\n\
                    label rate          0.25679\nsamples             1234\n";
        assert_eq!(text(None), format!("AUC                 0.71235\n{rest}"));
        let corrected = Metrics { calibration_uncorrected: Some(7.654_321), ..METRICS };
        let corrected = EvalMetrics { first: Some(corrected), ..EvalMetrics::default() };
        let corrected = MetricsText { metrics: &corrected, auc_achievable: None }.to_string();
        assert!(
            corrected.contains("\ncalibration         1.0235   (uncorrected: 7.6543)\nlabel rate"),
            "{corrected}"
        );
        assert_eq!(text(Some(0.75)), format!("AUC                 0.71235   (achievable: 0.75000)\n{rest}"));
    }

    #[test]
    fn heads_have_tables_and_undefined_metrics_are_named() {
        let equal = Metrics { auc: None, normalized_entropy: None, calibration: None, ..METRICS };
        let heads = [("buy".into(), None), ("click".into(), Some(equal))];
        let metrics = EvalMetrics { first: Some(equal), heads: heads.into() };
        let undefined = "undefined: all labels are equal";
        assert_eq!(
            MetricsText { metrics: &metrics, auc_achievable: None }.to_string(),
            format!(
                "head                buy\nsamples             0 have this label\n\n\
                 head                click\nAUC                 {undefined}\nlog loss            0.45679\n\
                 normalized entropy  {undefined}\ncalibration         {undefined}\nlabel rate          0.25679\n\
                 samples             1234\n\n"
            )
        );
    }
}
