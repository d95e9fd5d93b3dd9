//! Tables of other libraries, through Arrow's PyCapsule interface, without copies of their values.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::ffi::{self, FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::error::row_error;

/// The record batches of a table of another library, one after the other.
pub(crate) enum Batches {
    Stream(RecordBatchStreamReader),
    One(SchemaRef, Option<RecordBatch>),
}

/// Returns whether an object is a table or a record batch.
pub(crate) fn has_tables(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(data.hasattr("__arrow_c_stream__")? || data.hasattr("__arrow_c_array__")?)
}

impl Batches {
    /// Returns the record batches of a table, a stream or a record batch.
    pub(crate) fn of(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(export) = data.getattr_opt("__arrow_c_stream__")? {
            return stream(&export.call0()?).map(Self::Stream);
        }
        let capsules = data.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let batch = record_batch(&capsules.get_item(0)?, &capsules.get_item(1)?)?;
        Ok(Self::One(batch.schema(), Some(batch)))
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        match self {
            Self::Stream(reader) => reader.schema(),
            Self::One(schema, _) => Arc::clone(schema),
        }
    }

    /// Returns all of them, at least one: also a stream without batches has columns, which are checked.
    pub(crate) fn collect(self) -> PyResult<Vec<RecordBatch>> {
        let none = RecordBatch::new_empty(self.schema());
        let batches: Vec<_> = Iterator::collect::<Result<_, _>>(self).map_err(row_error)?;
        Ok(if batches.is_empty() { vec![none] } else { batches })
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Stream(reader) => reader.next(),
            Self::One(_, batch) => batch.take().map(Ok),
        }
    }
}

/// Returns record batches, of which there is at least one, as one.
pub(crate) fn joined(batches: &[RecordBatch]) -> PyResult<RecordBatch> {
    match batches {
        [batch] => Ok(batch.clone()),
        several => concat_batches(&several[0].schema(), several).map_err(row_error),
    }
}

fn stream(capsule: &Bound<'_, PyAny>) -> PyResult<RecordBatchStreamReader> {
    let pointer = pointer::<FFI_ArrowArrayStream>(capsule, c"arrow_array_stream")?;
    // SAFETY: A capsule of this name holds a valid stream, which its consumer may move out, once.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) };
    RecordBatchStreamReader::try_new(stream).map_err(row_error)
}

fn record_batch(schema: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let schema = pointer::<FFI_ArrowSchema>(schema, c"arrow_schema")?;
    let array = pointer::<FFI_ArrowArray>(array, c"arrow_array")?;
    // SAFETY: Capsules of these names hold a valid schema, which lives as long as its capsule, and a valid array of
    // that schema, which its consumer may move out, once.
    let data = unsafe { ffi::from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    let data = data.map_err(row_error)?;
    if !matches!(data.data_type(), DataType::Struct(_)) {
        return Err(row_error(
            "an Arrow array has no column names: give a table, or a mapping from names to arrays",
        ));
    }
    Ok(StructArray::from(data).into())
}

fn pointer<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<NonNull<T>> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast())
}
