//! Matrices in the memory of a GPU.

use super::pointer::Pointer;

/// A matrix, stored row by row.
#[derive(Debug)]
pub struct Matrix<T> {
    /// Its first element.
    pub pointer: Pointer<T>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<T> Clone for Matrix<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<T> {}

impl<T> Matrix<T> {
    /// Returns a matrix whose rows are stored without gaps.
    pub fn contiguous(pointer: Pointer<T>, rows: usize, columns: usize) -> Self {
        Self { pointer, rows, columns, stride: columns }
    }

    /// Returns the first rows.
    pub fn first_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Returns the same matrix, reinterpreted as elements of another type of the same size.
    pub fn cast<U>(self) -> Matrix<U> {
        let Self { pointer, rows, columns, stride } = self;
        Matrix { pointer: pointer.cast(), rows, columns, stride }
    }
}
