//! Rows of Arrow's record batches, raw or mapped.

mod columns;
mod mapped;

use std::ops::Range;

use arrow_array::RecordBatch;

use crate::features::{RawColumn, RawColumnError};

pub use columns::ArrowColumn;
pub(crate) use mapped::MappedRows;

/// Raw rows, by columns: those of a record batch, or of arrays.
///
/// Columns are numbers, texts, decimals, dates, times, dictionaries or lists of these, and give the values that columns
/// of these types give in Parquet. A null is a missing number, or an empty text; in a list, it is no category, and a
/// bad weight. Numbers in fp64, 64-bit integers and texts are not copied.
#[derive(Debug, Clone)]
pub struct ArrowRows {
    rows: usize,
    columns: Vec<ArrowColumn>,
}

impl ArrowRows {
    /// Makes rows of columns. `rows` counts, if there are no columns.
    ///
    /// # Errors
    /// [`RawColumnError::Rows`] if a column has another number of rows.
    pub fn new(rows: usize, columns: Vec<ArrowColumn>) -> Result<Self, RawColumnError> {
        match columns.iter().find(|column| column.rows() != rows) {
            Some(column) => {
                let (column, found) = (column.name().to_owned(), column.rows());
                Err(RawColumnError::Rows { column, expected: rows, found })
            }
            None => Ok(Self { rows, columns }),
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Checks that columns whose values have positions, such as those of sequences, have no nulls in lists.
    ///
    /// # Errors
    /// [`RawColumnError::Value`]
    pub(crate) fn check_positions(&self, columns: &[String]) -> Result<(), RawColumnError> {
        let mut checked =
            self.columns.iter().filter(|column| columns.iter().any(|name| name == column.name()));
        let null = checked.find_map(|column| Some((column.name(), column.null_text()?)));
        null.map_or(Ok(()), |(column, row)| Err(RawColumnError::null_in_sequence(column, row)))
    }

    /// Returns some of the rows, without copying their values; [`Self::check_positions`] comes before.
    pub(crate) fn slice(&self, rows: Range<usize>) -> Self {
        let columns = self.columns.iter().map(|column| column.slice(rows.clone())).collect();
        Self { rows: rows.len(), columns }
    }

    /// Lends the columns to `take`.
    pub(crate) fn with_columns<R>(&self, take: impl FnOnce(&[RawColumn<'_>]) -> R) -> R {
        let copies: Vec<_> = self.columns.iter().map(ArrowColumn::copies).collect();
        let raw: Vec<_> =
            self.columns.iter().zip(&copies).map(|(column, copies)| column.raw(copies)).collect();
        take(&raw)
    }
}

impl TryFrom<&RecordBatch> for ArrowRows {
    type Error = RawColumnError;

    fn try_from(batch: &RecordBatch) -> Result<Self, RawColumnError> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns());
        let columns = columns.map(|(field, array)| ArrowColumn::new(field.name().clone(), array));
        Self::new(batch.num_rows(), columns.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{Int32Builder, ListBuilder, StringBuilder};
    use arrow_array::{
        Array, ArrayRef, BinaryArray, Date32Array, Date64Array, Decimal64Array, Decimal128Array,
        Decimal256Array, FixedSizeBinaryArray, Int32Array, Int64Array, StringArray, Time32SecondArray,
        Time64NanosecondArray, TimestampMillisecondArray, UInt64Array,
    };
    use rankine_reader::convert::{RawColumnValues, TimeUnit, ValueType};

    use super::*;

    fn integers(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    #[test]
    fn rows_of_a_ragged_column_are_divided_by_its_offsets() {
        let column =
            ArrowColumn::ragged("tags".into(), vec![0, 2, 2, 5], &integers(&[7, 8, 1, 2, 3])).unwrap();
        assert_eq!((column.name(), column.rows()), ("tags", 3));
        let rows = ArrowRows::new(3, vec![column]).unwrap();
        for (range, offsets, values) in
            [(0..3, &[0, 2, 2, 5][..], &[7, 8, 1, 2, 3][..]), (1..3, &[0, 0, 3], &[1, 2, 3])]
        {
            rows.slice(range).with_columns(|columns| {
                let [
                    RawColumn {
                        name: "tags",
                        values: RawColumnValues::Integers(found),
                        offsets: Some(of_rows),
                    },
                ] = columns
                else {
                    panic!("{columns:?}")
                };
                assert_eq!((*of_rows, *found), (offsets, values));
            });
        }
        assert_eq!((rows.is_empty(), rows.slice(2..2).is_empty()), (false, true));
    }

    /// Parquet stores the same values as the same integers.
    #[test]
    fn decimals_dates_and_times_are_exact_values() {
        let decimals = Decimal128Array::from(vec![Some(1230), None]).with_precision_and_scale(9, 2).unwrap();
        let small = Decimal64Array::from(vec![Some(-7), None]).with_precision_and_scale(9, 4).unwrap();
        let wide = Decimal256Array::from_iter([Some(arrow_buffer::i256::from_i128(-1)), None]);
        let wide = wide.with_precision_and_scale(38, 10).unwrap();
        let stamps = TimestampMillisecondArray::from(vec![Some(-1), None]).with_timezone("Europe/Paris");
        for (array, values, exact) in [
            (Arc::new(decimals) as ArrayRef, ValueType::Decimal { scale: 2 }, 1230),
            (Arc::new(small), ValueType::Decimal { scale: 4 }, -7),
            (Arc::new(wide), ValueType::Decimal { scale: 10 }, -1),
            (Arc::new(Date32Array::from(vec![Some(20_512), None])), ValueType::Date, 20_512),
            (Arc::new(Date64Array::from(vec![Some(-86_400_000), None])), ValueType::Date, -1),
            (Arc::new(Time32SecondArray::from(vec![Some(9), None])), ValueType::Time(TimeUnit::Second), 9),
            (
                Arc::new(Time64NanosecondArray::from(vec![Some(9), None])),
                ValueType::Time(TimeUnit::Nanosecond),
                9,
            ),
            (Arc::new(stamps), ValueType::Timestamp(TimeUnit::Millisecond), -1),
            (Arc::new(UInt64Array::from(vec![Some(u64::MAX), None])), ValueType::Integer, u64::MAX.into()),
            (Arc::new(Int32Array::from(vec![Some(-3), None])), ValueType::Integer, -3),
        ] {
            let column = ArrowColumn::new("x".into(), &array).unwrap();
            ArrowRows::new(2, vec![column]).unwrap().with_columns(|columns| match columns[0].values {
                RawColumnValues::Exact(found, values_found) => {
                    assert_eq!((found, values_found), (values, &[Some(exact), None][..]));
                }
                _ => panic!("{columns:?}"),
            });
        }
        let too_wide = Decimal256Array::from(vec![None]).with_precision_and_scale(39, 2).unwrap();
        let refused = ArrowColumn::new("x".into(), &(Arc::new(too_wide) as ArrayRef)).unwrap_err();
        assert!(refused.to_string().contains("values of type Decimal256(39, 2)"), "{refused}");
    }

    #[test]
    fn bytes_are_strings_and_lists_of_lists_are_bags() {
        let fixed = FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap();
        for array in [
            Arc::new(BinaryArray::from_vec(vec![b"ab", b"cd"])) as ArrayRef,
            Arc::new(fixed),
            Arc::new(StringArray::from(vec!["ab", "cd"])),
        ] {
            let column = ArrowColumn::new("x".into(), &array).unwrap();
            ArrowRows::new(2, vec![column]).unwrap().with_columns(|columns| {
                let found = matches!(columns[0].values, RawColumnValues::Texts(["ab", "cd"]));
                assert!(found, "{columns:?}");
            });
        }
        // [[1, 2], null, [], [null, 3]], null, [[4]]
        let mut lists = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        lists.values().append_value([Some(1), Some(2)]);
        lists.values().append_null();
        lists.values().append_value([]);
        lists.values().append_value([None, Some(3)]);
        lists.append(true);
        lists.append_null();
        lists.values().append_value([Some(4)]);
        lists.append(true);
        let lists: ArrayRef = Arc::new(lists.finish());
        // A null number stays: it has no category, and no weight.
        let rows = |first: usize| {
            let array = lists.slice(first, 3 - first);
            ArrowRows::new(array.len(), vec![ArrowColumn::new("x".into(), &array).unwrap()]).unwrap()
        };
        rows(0).with_columns(|columns| {
            let RawColumnValues::Exact(ValueType::Integer, found) = columns[0].values else {
                panic!("{columns:?}")
            };
            let expected = [Some(1), Some(2), None, Some(3), Some(4)];
            assert_eq!((columns[0].offsets, found), (Some(&[0, 4, 4, 5][..]), &expected[..]));
        });
        rows(1).with_columns(|columns| {
            let RawColumnValues::Integers(found) = columns[0].values else { panic!("{columns:?}") };
            assert_eq!((columns[0].offsets, found), (Some(&[0, 0, 1][..]), &[4][..]));
        });
    }

    #[test]
    fn null_texts_are_left_out_of_lists_but_not_of_sequences() {
        let mut lists = ListBuilder::new(StringBuilder::new());
        for row in [&[Some("a"), Some("b")][..], &[], &[Some("c"), None, Some("d")], &[None]] {
            lists.append_value(row.iter().copied());
        }
        let column = ArrowColumn::new("x".into(), &(Arc::new(lists.finish()) as ArrayRef)).unwrap();
        let rows = ArrowRows::new(4, vec![column]).unwrap();
        rows.with_columns(|columns| {
            let found = matches!(columns[0].values, RawColumnValues::Texts(["a", "b", "c", "d"]));
            assert!(found && columns[0].offsets == Some(&[0, 2, 2, 4, 4]), "{columns:?}");
        });
        rows.check_positions(&["y".into()]).unwrap();
        let refused = rows.check_positions(&["y".into(), "x".into()]).unwrap_err().to_string();
        assert_eq!(refused, "column x, row 2: null is not a category: each position of a sequence has one");
    }

    #[test]
    fn offsets_that_do_not_cover_the_values_once_are_refused() {
        let values = integers(&[7, 8, 1]);
        for offsets in [&[][..], &[1, 3], &[0, 2, 1, 3], &[0, 2], &[0, 4]] {
            let refused = ArrowColumn::ragged("tags".into(), offsets.to_vec(), &values).unwrap_err();
            assert_eq!(refused, RawColumnError::Offsets { column: "tags".into(), values: 3 }, "{offsets:?}");
        }
        let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"\xff"]));
        let refused = ArrowColumn::ragged("tags".into(), vec![0, 1], &bytes).unwrap_err();
        assert!(refused.to_string().contains("values of type Binary"), "{refused}");
    }
}
