//! Rows to train on: features with labels and weights, and their check.

use rankine_reader::schema::Hotness;
use rankine_reader::{IdRules, Samples, Schema};

use super::{FeatureError, Features};

/// Mapped rows to train on: what a dataset stores, in the order of its columns.
#[derive(Debug, Clone, Copy)]
pub struct TrainingRows<'a> {
    /// The features.
    pub features: Features<'a>,
    /// `[label][row]`: 0, 1, or NaN where the label is missing.
    pub labels: &'a [&'a [f32]],
    /// The weight of each row, 0 or more; `None` if the dataset has no weights.
    pub weights: Option<&'a [f32]>,
}

impl TrainingRows<'_> {
    /// Copies checked rows into `samples`, which have the columns of the schema; see [`Features::check`].
    pub(crate) fn check(
        &self,
        schema: &Schema,
        rules: &IdRules,
        samples: &mut Samples,
    ) -> Result<(), FeatureError> {
        let Self { features, labels, weights } = *self;
        features.check(schema, rules, samples)?;
        let rows = features.rows;
        let length = |column: &str, found: usize| match found == rows {
            true => Ok(()),
            false => Err(FeatureError::Rows { column: column.to_owned(), expected: rows, found }),
        };
        if labels.len() != schema.labels.len() {
            return Err(FeatureError::Labels { expected: schema.labels.len(), found: labels.len() });
        }
        for ((values, label), to) in labels.iter().zip(&schema.labels).zip(&mut samples.labels) {
            length(&label.name, values.len())?;
            let is_label = |value: &f32| *value == 0.0 || *value == 1.0 || value.is_nan();
            if let Some(row) = values.iter().position(|value| !is_label(value)) {
                return Err(FeatureError::Label { column: label.name.clone(), row, value: values[row] });
            }
            to.extend_from_slice(values);
        }
        match (weights, &schema.weight) {
            (None, None) => {}
            (None, Some(column)) => return Err(FeatureError::NoWeights { column: column.clone() }),
            (Some(_), None) => return Err(FeatureError::Weights),
            (Some(weights), Some(column)) => {
                length(column, weights.len())?;
                let is_weight = |weight: &f32| *weight >= 0.0 && weight.is_finite();
                if let Some(row) = weights.iter().position(|weight| !is_weight(weight)) {
                    return Err(FeatureError::Weight { column: column.clone(), row, value: weights[row] });
                }
                samples.weights.extend_from_slice(weights);
            }
        }
        Ok(())
    }
}

/// Checks that no row has more ids than the dataset's largest: GPUs have memory for that many.
pub(crate) fn check_bags(schema: &Schema, samples: &Samples) -> Result<(), FeatureError> {
    for (column, bags) in schema.categorical.iter().zip(&samples.categorical) {
        let Hotness::Ragged { max } = column.hotness else { continue };
        if let Some(row) = bags.offsets.windows(2).position(|pair| pair[1] - pair[0] > max) {
            let found = bags.bag(row).len();
            return Err(FeatureError::BagTooLarge { column: column.name.clone(), row, most: max, found });
        }
    }
    Ok(())
}
