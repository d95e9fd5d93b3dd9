//! Mapped rows of a record batch, whose columns have the names of the model's.

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use rankine_reader::Schema;
use rankine_reader::convert::{RawLabels, check_column_names};
use rankine_reader::schema::{Categorical, Hotness};

use super::columns::{FlatValues, Lists, too_many};
use crate::features::{FeatureError, Features, Ids, RawColumnError, TrainingRows, row_of};

/// Mapped rows of a record batch: ids of 64 bits in its memory, and copies of the other values.
pub(crate) struct MappedRows {
    rows: usize,
    dense: Vec<f32>,
    categorical: Vec<ColumnIds>,
    /// Empty if labels are not read, as are the weights then.
    labels: Vec<Vec<f32>>,
    weights: Option<Vec<f32>>,
}

struct ColumnIds {
    /// `None`: each row has as many.
    offsets: Option<Vec<u32>>,
    ids: ScalarBuffer<u64>,
    /// One per id; `None` if the column has no weights.
    weights: Option<Vec<f32>>,
}

impl ColumnIds {
    fn lent(&self) -> Ids<'_> {
        match (&self.offsets, &self.weights) {
            (Some(offsets), Some(weights)) => Ids::Weighted { offsets, ids: &self.ids, weights },
            (Some(offsets), None) => Ids::Bags { offsets, ids: &self.ids },
            (None, _) => Ids::Fixed(&self.ids),
        }
    }
}

impl MappedRows {
    /// Reads a batch that has the columns of the schema by name; columns of labels and weights that are not needed may
    /// be there.
    pub(crate) fn new(batch: &RecordBatch, schema: &Schema, labels: RawLabels) -> Result<Self, FeatureError> {
        let rows = batch.num_rows();
        let columns = BatchColumns { batch };
        columns.check_names(schema)?;
        let dense_columns = schema.dense.len();
        let mut dense = vec![0.0; rows * dense_columns];
        for (number, column) in schema.dense.iter().enumerate() {
            let to = dense.iter_mut().skip(number).step_by(dense_columns);
            to.zip(columns.numbers(&column.name)?).for_each(|(to, value)| *to = value);
        }
        let categorical = schema.stored_categorical().iter().map(|column| columns.ids(column));
        let categorical = categorical.collect::<Result<_, _>>()?;
        let (mut of_labels, mut weights) = (Vec::new(), None);
        if labels == RawLabels::Needed {
            for label in &schema.labels {
                of_labels.push(columns.numbers(&label.name)?);
            }
            if let Some(name) = &schema.weight {
                weights = Some(columns.numbers(name)?);
            }
        }
        Ok(Self { rows, dense, categorical, labels: of_labels, weights })
    }

    /// Lends the features to `take`.
    pub(crate) fn with_features<R>(&self, take: impl FnOnce(&Features<'_>) -> R) -> R {
        let categorical: Vec<_> = self.categorical.iter().map(ColumnIds::lent).collect();
        take(&Features { rows: self.rows, dense: &self.dense, categorical: &categorical })
    }

    /// Lends the rows with their labels to `take`.
    pub(crate) fn with_training_rows<R>(&self, take: impl FnOnce(&TrainingRows<'_>) -> R) -> R {
        let labels: Vec<_> = self.labels.iter().map(Vec::as_slice).collect();
        self.with_features(|&features| {
            take(&TrainingRows { features, labels: &labels, weights: self.weights.as_deref() })
        })
    }
}

/// The columns of a batch, by name.
struct BatchColumns<'a> {
    batch: &'a RecordBatch,
}

impl<'a> BatchColumns<'a> {
    fn check_names(&self, schema: &Schema) -> Result<(), RawColumnError> {
        let labels = schema.labels.iter().map(|label| &label.name).chain(&schema.weight);
        let features = schema.dense.iter().map(|column| &column.name);
        let features = features.chain(schema.stored_categorical().iter().map(|column| &column.name));
        let weighted = schema.stored_categorical().iter().filter(|column| column.weighted);
        let weights: Vec<_> = weighted.map(|column| weights_name(&column.name)).collect();
        let known: Vec<_> = labels.chain(features).chain(&weights).map(String::as_str).collect();
        let found = self.batch.schema();
        check_column_names(&known, found.fields().iter().map(|field| field.name().as_str()))
    }

    fn find(&self, name: &str) -> Result<&'a ArrayRef, RawColumnError> {
        let missing = || RawColumnError::Missing { name: name.to_owned(), hint: String::new() };
        self.batch.column_by_name(name).ok_or_else(missing)
    }

    /// Returns the number of each row; NaN where it is null.
    fn numbers(&self, name: &str) -> Result<Vec<f32>, RawColumnError> {
        numbers_of(name, self.find(name)?)
    }

    /// Returns the ids of a column: one or several per row, and their weights if it has some.
    fn ids(&self, column: &Categorical) -> Result<ColumnIds, FeatureError> {
        let mut ids = self.ids_alone(column)?;
        if let (true, Some(offsets)) = (column.weighted, &ids.offsets) {
            ids.weights = Some(self.weights(&column.name, offsets)?);
        }
        Ok(ids)
    }

    /// Returns the weights of the ids of a column, whose rows end at `offsets`.
    fn weights(&self, of: &str, offsets: &[u32]) -> Result<Vec<f32>, FeatureError> {
        let name = weights_name(of);
        let array = self.find(&name)?;
        let lists = Lists::of(array);
        let range = |row: usize| match &lists {
            None => row..row + 1,
            Some(_) if array.is_null(row) => 0..0,
            Some(lists) => lists.range(row),
        };
        let values = lists.as_ref().map_or(array, |lists| lists.values);
        let numbers = numbers_of(&name, values)?;
        let mut weights = Vec::with_capacity(numbers.len());
        for (row, pair) in offsets.windows(2).enumerate() {
            let (expected, found) = ((pair[1] - pair[0]) as usize, range(row).len());
            if found != expected {
                let (column, of) = (name.clone(), of.to_owned());
                return Err(RawColumnError::WeightCount { column, row, of, expected, found }.into());
            }
            weights.extend_from_slice(&numbers[range(row)]);
        }
        Ok(weights)
    }

    /// Returns the ids of a column without weights.
    fn ids_alone(&self, column: &Categorical) -> Result<ColumnIds, FeatureError> {
        let (name, array) = (&column.name, self.find(&column.name)?);
        let Some(lists) = Lists::of(array) else {
            let ids = ids_of(name, array, |at| at)?;
            let offsets = match column.hotness {
                Hotness::Fixed(_) => None,
                Hotness::Ragged { .. } => {
                    Some((0..=u32::try_from(ids.len()).map_err(|_| too_many(name))?).collect())
                }
            };
            return Ok(ColumnIds { offsets, ids, weights: None });
        };
        let first = if array.is_empty() { 0 } else { lists.range(0).start };
        let mut offsets = vec![0];
        for row in 0..array.len() {
            if array.is_null(row) {
                let (column, value, expected) = (name.clone(), "null".into(), "a list of ids".into());
                return Err(RawColumnError::Value { column, row, value, expected }.into());
            }
            let end = lists.range(row).end - first;
            offsets.push(u32::try_from(end).map_err(|_| too_many(name))?);
        }
        let end = offsets[array.len()] as usize;
        let ids = ids_of(name, &lists.values.slice(first, end), |at| row_of(&offsets, at))?;
        let Hotness::Fixed(count) = column.hotness else {
            return Ok(ColumnIds { offsets: Some(offsets), ids, weights: None });
        };
        match offsets.windows(2).position(|row| row[1] - row[0] != count) {
            Some(row) => {
                let (column, found) = (name.clone(), (offsets[row + 1] - offsets[row]) as usize);
                Err(FeatureError::BagSize { column, row, expected: count, found })
            }
            None => Ok(ColumnIds { offsets: None, ids, weights: None }),
        }
    }
}

/// Returns the name of the column with the weights of the ids of another.
fn weights_name(column: &str) -> String {
    format!("{column}.weights")
}

/// Returns the number of each row; NaN where it is null.
fn numbers_of(name: &str, array: &ArrayRef) -> Result<Vec<f32>, RawColumnError> {
    let numbers = Some(array).filter(|array| is_numeric(array)).and_then(FlatValues::of);
    let FlatValues { array: numbers, values } = numbers.ok_or_else(|| wrong_type(name, array, "numbers"))?;
    Ok(match numbers.data_type() {
        DataType::Float64 => {
            numbers.as_primitive::<Float64Type>().values().iter().map(|&number| number as f32).collect()
        }
        DataType::Int64 => {
            numbers.as_primitive::<Int64Type>().values().iter().map(|&number| number as f32).collect()
        }
        _ => {
            let number = |exact: Option<i128>| exact.map_or(f32::NAN, |exact| values.number(exact) as f32);
            numbers.as_primitive::<Decimal128Type>().iter().map(number).collect()
        }
    })
}

/// Returns ids of 64 bits in the memory of the array; others are copied. `row_of` is the row that an id is of.
fn ids_of(
    name: &str,
    array: &ArrayRef,
    row_of: impl Fn(usize) -> usize,
) -> Result<ScalarBuffer<u64>, RawColumnError> {
    let not_an_id = |at, value: String| {
        let expected = "the number of a row of its table".to_owned();
        RawColumnError::Value { column: name.to_owned(), row: row_of(at), value, expected }
    };
    if !array.data_type().is_integer() {
        return Err(wrong_type(name, array, "integers"));
    }
    if let Some(at) = (0..array.len()).find(|&at| array.is_null(at)) {
        return Err(not_an_id(at, "null".to_owned()));
    }
    if *array.data_type() == DataType::UInt64 {
        return Ok(array.as_primitive::<UInt64Type>().values().clone());
    }
    let integers = FlatValues::of(array).ok_or_else(|| wrong_type(name, array, "integers"))?;
    let integers = integers.array.as_primitive::<Int64Type>().values();
    if let Some(at) = integers.iter().position(|&id| id < 0) {
        return Err(not_an_id(at, integers[at].to_string()));
    }
    // Integers of 0 or more have the same bits with and without a sign.
    Ok(ScalarBuffer::new(integers.inner().clone(), 0, integers.len()))
}

fn is_numeric(array: &ArrayRef) -> bool {
    array.data_type().is_numeric() || *array.data_type() == DataType::Boolean
}

fn wrong_type(name: &str, array: &ArrayRef, expected: &'static str) -> RawColumnError {
    let found = format!("values of type {}", array.data_type());
    RawColumnError::Type { column: name.to_owned(), found, expected }
}
