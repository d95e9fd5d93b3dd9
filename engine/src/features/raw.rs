//! From raw rows to samples, with the transforms and vocabularies of a dataset.

use std::collections::HashSet;

use rankine_reader::convert::{
    ColumnSources, Encoder, RawColumn, RawColumnError, RawColumns, RawLabels, RawRows, RowFormat,
};
use rankine_reader::{IdRules, Samples, Schema};

use super::{FeatureError, check_ids};

/// What turns raw rows into samples.
#[derive(Debug)]
pub(crate) struct RawEncoder {
    /// The format of raw rows, and the vocabularies; `None` if the dataset was generated.
    source: Option<(RowFormat, Encoder)>,
    labels: RawLabels,
    /// The columns of raw rows.
    stored: Schema,
}

impl RawEncoder {
    /// `source` is the format of raw rows with their vocabularies, or `None` if there are no raw rows; `schema` has the
    /// columns of samples.
    pub(crate) fn new(source: Option<(RowFormat, Encoder)>, schema: &Schema, labels: RawLabels) -> Self {
        Self { source, labels, stored: schema.stored() }
    }

    /// Returns the format of raw rows; `None` if the dataset was generated.
    pub(crate) fn format(&self) -> Option<&RowFormat> {
        self.source.as_ref().map(|(format, _)| format)
    }

    /// Returns the names of the raw columns that are read, each once: dense columns, categorical ones, then labels and
    /// weight if they are read; `None` if the dataset was generated.
    pub(crate) fn columns(&self) -> Option<Vec<String>> {
        let ColumnSources { labels, weight, dense, categorical } = self.format()?.sources(&self.stored);
        let mut names = dense;
        names.extend(
            categorical.into_iter().flat_map(|source| std::iter::once(source.column).chain(source.weights)),
        );
        if self.labels == RawLabels::Needed {
            names.extend(labels.into_iter().map(|label| label.column).chain(weight));
        }
        let mut known = HashSet::new();
        names.retain(|name| known.insert(name.clone()));
        Some(names)
    }

    /// Returns the names of the raw columns that belong to sequences.
    #[cfg(feature = "arrow")]
    pub(crate) fn columns_of_sequences(&self) -> Vec<String> {
        let Some(format) = self.format() else { return Vec::new() };
        let sources = format.sources(&self.stored).categorical;
        let numbers = self.stored.columns_of_sequences().into_iter().flatten();
        numbers.map(|number| sources[number].column.clone()).collect()
    }

    /// Turns raw rows into samples. Ids out of range stay, where the rules are that they are no errors. `raw` is memory
    /// that is reused.
    pub(crate) fn encode(
        &self,
        schema: &Schema,
        rules: &IdRules,
        rows: (usize, &[RawColumn<'_>]),
        raw: &mut RawRows,
        samples: &mut Samples,
    ) -> Result<(), FeatureError> {
        let (format, encoder) = self.source.as_ref().ok_or(RawColumnError::NoRawRows)?;
        let (rows, columns) = rows;
        raw.clear();
        raw.append_columns(&RawColumns { schema: &self.stored, format, labels: self.labels, rows, columns })?;
        samples.clear();
        encoder.encode_as_stored(raw, samples);
        check_ids(schema, rules, samples)
    }
}
