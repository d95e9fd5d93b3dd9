//! From raw rows to samples, with the transforms and vocabularies of a dataset.

use rankine_reader::convert::{
    Encoder, RawColumn, RawColumnError, RawColumns, RawLabels, RawRows, RowFormat,
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
