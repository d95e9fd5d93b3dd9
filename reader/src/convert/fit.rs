//! Fitting: learns columns, transforms and vocabularies from raw rows for further conversions, and writes no samples.

use std::collections::BTreeMap;

use rankine_base::error::Result;
use rankine_base::publish::{PartialDir, refuse_inputs};
use serde::Serialize;

use crate::convert::known::{Inherited, KnownColumns, with_known};
use crate::convert::learn::columns::{LearntColumns, check_trained};
use crate::convert::pass::Pass;
use crate::convert::plan::Plan;
use crate::convert::report::as_map;
use crate::convert::rows::fault::BadReason;
use crate::convert::rows::source::RowSource;
use crate::convert::text::lines::Limits;
use crate::convert::{
    ConvertOptions, CriteoColumns, PlannedWork, Progress, SchemaFile, split_source, with_criteo, with_csv,
    with_parquet,
};
use crate::dataset::{FIT_NAME, FitManifest};
use crate::origin::Conversion;
use crate::schema::{DenseTransform, VocabularyKind};
use crate::write::write_file;

/// The report of a fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitReport {
    /// The rows that were read; also in the fit's manifest.
    #[serde(flatten)]
    pub conversion: Conversion,
    /// The dataset, fit or model whose columns were continued, as it was named; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// The number of bad rows for each reason; reasons that did not occur are absent.
    pub bad_by_reason: BTreeMap<BadReason, u64>,
    /// Categorical columns by name, in schema order.
    #[serde(serialize_with = "as_map")]
    pub columns: Vec<(String, FittedTable)>,
    /// Dense columns by name, in schema order.
    #[serde(serialize_with = "as_map")]
    pub dense: Vec<(String, DenseTransform)>,
}

/// The table of a categorical column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedTable {
    /// How categories become rows.
    pub vocabulary: VocabularyKind,
    /// Rows of the table; absent if the vocabulary is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Rows that were added to an exact vocabulary that was continued; otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_categories: Option<u64>,
}

/// Learns columns from Criteo's TSV, as [`crate::convert::convert_criteo`] would, and writes them without samples to
/// the folder `options.out`, for [`crate::convert::convert_like`]. If it fails or is interrupted, no folder remains.
///
/// # Errors
/// As [`crate::convert::convert_criteo`].
pub fn fit_criteo(
    options: &ConvertOptions,
    columns: &CriteoColumns,
    progress: &dyn Progress,
) -> Result<FitReport> {
    with_criteo(options, columns, Limits::default(), Fitting { options, progress })
}

/// Learns columns from CSV, as [`crate::convert::convert_csv`] would.
///
/// # Errors
/// As [`crate::convert::convert_csv`].
pub fn fit_csv(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<FitReport> {
    with_csv(options, schema, min_count, Limits::default(), Fitting { options, progress })
}

/// Learns columns from Parquet, as [`crate::convert::convert_parquet`] would.
///
/// # Errors
/// As [`crate::convert::convert_parquet`].
pub fn fit_parquet(
    options: &ConvertOptions,
    schema: &SchemaFile,
    min_count: u64,
    progress: &dyn Progress,
) -> Result<FitReport> {
    with_parquet(options, schema, min_count, Fitting { options, progress })
}

/// Continues the vocabularies of a dataset, a fit or a model with further rows: new categories get rows after the old
/// ones, and counts add up. Transforms are kept.
///
/// # Errors
/// As [`crate::convert::convert_like`].
pub fn fit_like(options: &ConvertOptions, known: KnownColumns, progress: &dyn Progress) -> Result<FitReport> {
    with_known(options, known, true, Limits::default(), Fitting { options, progress })
}

/// Learns columns and writes a fit.
pub(crate) struct Fitting<'a> {
    pub(crate) options: &'a ConvertOptions,
    pub(crate) progress: &'a dyn Progress,
}

impl PlannedWork for Fitting<'_> {
    type Report = FitReport;

    fn run<S: RowSource>(self, plan: &Plan, inherited: Option<Inherited>, source: S) -> Result<FitReport> {
        let Self { options, progress } = self;
        let source = &split_source(source, options)?;
        refuse_inputs(&options.out, options.files.iter().chain(&options.eval))?;
        let dir = PartialDir::create(&options.out)?;
        let pass = source.if_unchanged(Pass::new(options, source, &plan.draft, progress))?;
        let learnt = LearntColumns::learn(&pass, plan, inherited, dir.path(), true)?;
        let rows = learnt.statistics.rows.unwrap_or_default();
        check_trained(&rows, options)?;
        write(dir, options, plan, learnt)
    }
}

/// Writes what was learnt as a fit, and publishes it.
pub(crate) fn write(
    dir: PartialDir,
    options: &ConvertOptions,
    plan: &Plan,
    learnt: LearntColumns,
) -> Result<FitReport> {
    learnt.schema.validate()?;
    let vocabularies = learnt.write_vocabularies(&dir, &options.stop)?;
    let indexes = learnt.write_indexes(&dir, &options.stop)?;
    let report = report_of(options, plan, &learnt);
    let origin = report.conversion.clone();
    let manifest = FitManifest { schema: learnt.schema, vocabularies, indexes, origin };
    write_file(dir.path(), FIT_NAME, manifest.to_json().as_bytes())?;
    options.stop.check()?;
    dir.publish()?;
    Ok(report)
}

fn report_of(options: &ConvertOptions, plan: &Plan, learnt: &LearntColumns) -> FitReport {
    let LearntColumns { schema, old, statistics, .. } = learnt;
    let columns = schema.categorical.iter().enumerate().map(|(number, column)| {
        let old = old.as_ref().and_then(|(_, old)| old.categorical[number].rows);
        let is_exact = matches!(column.vocabulary, VocabularyKind::Exact { .. });
        let table = FittedTable {
            vocabulary: column.vocabulary.clone(),
            rows: column.rows,
            new_categories: old.filter(|_| is_exact).and_then(|old| Some(column.rows? - old)),
        };
        (column.name.clone(), table)
    });
    FitReport {
        conversion: options.conversion(plan, statistics.rows.unwrap_or_default()),
        like: old.as_ref().map(|(name, _)| name.clone()),
        bad_by_reason: statistics.bad_by_reason.clone(),
        columns: columns.collect(),
        dense: schema.dense.iter().map(|column| (column.name.clone(), column.transform)).collect(),
    }
}
