//! The memory of NumPy arrays.

use std::slice;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::row_error;

pub(crate) type Array<'py> = Bound<'py, PyUntypedArray>;

/// A type of scalars of NumPy, in the byte order of the machine.
pub(crate) trait Scalar {
    const KIND: u8;
    const NAME: &'static str;
}

macro_rules! scalars {
    ($($type:ty: $kind:literal, $name:literal;)*) => {
        $(impl Scalar for $type {
            const KIND: u8 = $kind;
            const NAME: &'static str = $name;
        })*
    };
}

scalars! {
    f32: b'f', "float32";
    f64: b'f', "float64";
    i64: b'i', "int64";
    u64: b'u', "uint64";
}

/// Returns a NumPy array, or what NumPy makes of other arrays and lists.
pub(crate) fn array_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if let Ok(array) = given.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let array = given.py().import("numpy")?.call_method1("asarray", (given,));
    Ok(array.map_err(row_error)?.cast_into::<PyUntypedArray>()?)
}

/// Returns the array itself if it is of a type, and its scalars are consecutive and aligned; otherwise a copy that is.
pub(crate) fn fitting<'py, T: Scalar>(array: Array<'py>) -> PyResult<Array<'py>> {
    let own = array.dtype();
    let fits = own.kind() == T::KIND && own.itemsize() == size_of::<T>() && own.byteorder() != b'>';
    if fits && array.is_c_contiguous() && data(&array).align_offset(align_of::<T>()) == 0 {
        return Ok(array);
    }
    let copy = array.py().import("numpy")?.call_method1("require", (array, T::NAME, ["C", "A"]))?;
    Ok(copy.cast_into::<PyUntypedArray>()?)
}

/// Returns an array of numbers in single precision; `what` names it in the error.
pub(crate) fn floats<'py>(what: &str, array: Array<'py>) -> PyResult<Array<'py>> {
    match array.dtype().kind() {
        b'f' | b'i' | b'u' | b'b' => fitting::<f32>(array),
        _ => Err(row_error(format!("{what} are of type {}; expected float32", array.dtype()))),
    }
}

/// Returns where the scalars of an array are; an array of any size has an address.
pub(crate) fn data(array: &Array<'_>) -> *mut u8 {
    // SAFETY: NumPy's struct is valid as long as the array.
    unsafe { (*array.as_array_ptr()).fields.data.cast() }
}

/// Returns the scalars of an array.
///
/// # Safety
/// The array comes from [`fitting`], with the type `T` or one of the same bits. A write of another thread changes
/// numbers only, since any bits are a valid scalar.
pub(crate) unsafe fn scalars<'a, T: Scalar>(array: &'a Array<'_>) -> &'a [T] {
    if array.is_empty() {
        return &[];
    }
    // SAFETY: `fitting` has checked type, alignment and layout, and the array keeps its scalars.
    unsafe { slice::from_raw_parts(data(array).cast(), array.len()) }
}
