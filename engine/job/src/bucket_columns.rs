//! The categorical columns that a job makes of a dataset's numbers.

use rankine_base::did_you_mean;
use rankine_reader::Schema;
use rankine_reader::buckets::{log_boundaries, stored_boundaries};
use rankine_reader::schema::{Categorical, Dense, Hotness, Pooling, VocabularyKind};

use super::{Buckets, Conflict, Feature, Job};

impl Job {
    /// Returns the categorical columns that the job makes of the numbers of a dataset, each with the number of its
    /// `[[feature]]`. Those of quantiles have no boundaries yet.
    #[doc(hidden)]
    pub fn bucket_columns(&self, schema: &Schema) -> Result<Vec<(usize, Categorical)>, Vec<Conflict>> {
        let stored = schema.stored();
        let is_named = |dense: &&Dense| self.features.iter().any(|feature| feature.column == dense.name);
        let mut conflicts = Vec::new();
        let mut columns = Vec::new();
        for (number, feature) in self.features.iter().enumerate() {
            let key = |key: &str| format!("feature.{number}.{key}");
            let of: Vec<_> = match stored.dense.iter().find(|dense| dense.name == feature.column) {
                Some(dense) => vec![dense],
                None if feature.is_of_others() => {
                    stored.dense.iter().filter(|dense| !is_named(dense)).collect()
                }
                None => {
                    conflicts.push(Conflict::new(key("column"), no_numbers(&feature.column, &stored)));
                    continue;
                }
            };
            for dense in of {
                let column = categorical(feature, dense, &stored);
                if stored.names().any(|other| other == column.name) {
                    let key = key(if feature.name.is_some() { "name" } else { "column" });
                    let message =
                        format!("the dataset already has a column {}: set another name", column.name);
                    conflicts.push(Conflict::new(key, message));
                }
                columns.push((number, column));
            }
        }
        if conflicts.is_empty() { Ok(columns) } else { Err(conflicts) }
    }
}

/// Returns the column of a feature. Its boundaries are empty if they are quantiles, which samples determine.
fn categorical(feature: &Feature, dense: &Dense, schema: &Schema) -> Categorical {
    let dtype = schema.dense_dtype;
    let (rows, boundaries) = match &feature.buckets {
        Buckets::Quantiles(count) => (u64::from(*count), Vec::new()),
        Buckets::Log => {
            let boundaries = log_boundaries(dense, dtype);
            (boundaries.len() as u64 + 1, boundaries)
        }
        Buckets::Boundaries(raw) => {
            (raw.len() as u64 + 1, stored_boundaries(dense, dtype, raw.iter().copied()))
        }
    };
    Categorical {
        name: feature.name_for(&dense.name),
        rows: Some(rows),
        hotness: Hotness::Fixed(1),
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Buckets { of: dense.name.clone(), boundaries },
        weighted: false,
        shares: None,
    }
}

/// Returns the message for a column that is missing or not numeric.
fn no_numbers(column: &str, schema: &Schema) -> String {
    let dense = || schema.dense.iter().map(|dense| dense.name.as_str());
    if schema.names().any(|name| name == column) {
        return format!("the column `{column}` is not a dense column, and buckets are made of numbers");
    }
    match did_you_mean(column, dense()) {
        hint if !hint.is_empty() => format!("the dataset has no column `{column}`{hint}"),
        _ if schema.dense.is_empty() => "the dataset has no dense columns".into(),
        _ => {
            let names: Vec<_> = dense().collect();
            format!("the dataset has no column `{column}`; its dense columns are: `{}`", names.join("`, `"))
        }
    }
}
