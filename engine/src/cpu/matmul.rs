//! Matrix products of one thread: a checked face for the `gemm` crate.

/// A matrix in a slice: element `(row, column)` is at `row * row_stride + column * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    shape: Shape,
}

/// A matrix to be written.
#[derive(Debug)]
pub(super) struct MatrixMut<'a> {
    data: &'a mut [f32],
    shape: Shape,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl Shape {
    fn row_major(rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride, "rows of {columns} elements overlap at a stride of {row_stride}");
        Self { rows, columns, row_stride, column_stride: 1 }
    }

    /// Elements that a slice needs to hold the matrix.
    fn extent(&self) -> usize {
        if self.rows == 0 || self.columns == 0 {
            return 0;
        }
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1
    }
}

impl<'a> Matrix<'a> {
    /// `rows` x `columns`, rows `row_stride` elements apart.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let shape = Shape::row_major(rows, columns, row_stride);
        assert!(shape.extent() <= data.len(), "{shape:?} does not fit {} elements", data.len());
        Self { data, shape }
    }

    /// The transpose.
    pub(super) fn transposed(self) -> Self {
        let Shape { rows, columns, row_stride, column_stride } = self.shape;
        let shape =
            Shape { rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride };
        Self { shape, ..self }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` x `columns`, rows `row_stride` elements apart.
    pub(super) fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let shape = Shape::row_major(rows, columns, row_stride);
        assert!(shape.extent() <= data.len(), "{shape:?} does not fit {} elements", data.len());
        Self { data, shape }
    }
}

/// What a product does to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// `out = a b`
    Replace,
    /// `out += a b`
    Add,
}

/// `out = a b` or `out += a b`, on the calling thread.
pub(super) fn matmul(out: MatrixMut<'_>, write: Write, a: Matrix<'_>, b: Matrix<'_>) {
    let (m, n, k) = (out.shape.rows, out.shape.columns, a.shape.columns);
    assert!(
        a.shape.rows == m && b.shape.rows == k && b.shape.columns == n,
        "{out:?} = {:?} {:?}",
        a.shape,
        b.shape
    );
    // SAFETY: each matrix was checked to lie within its slice when it was made, and m, n, k are the shapes of all
    // three. `out` is borrowed mutably, so it overlaps neither `a` nor `b`. Its elements are distinct: a row is no
    // longer than the row stride. `read_dst` is set only where the old contents, initialized floats, are to be added.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.data.as_mut_ptr(),
            out.shape.column_stride as isize,
            out.shape.row_stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.shape.column_stride as isize,
            a.shape.row_stride as isize,
            b.data.as_ptr(),
            b.shape.column_stride as isize,
            b.shape.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rankine_embedding::random::UniformField;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; len];
        UniformField::new(seed, 0).fill_row(0, 1.0, &mut values);
        values
    }

    proptest! {
        #[test]
        fn products_equal_the_oracle(
            (m, n, k) in (1..40usize, 1..40usize, 0..70usize),
            transpose in any::<bool>(),
            add in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let (a, b) = (random(m * k, seed), random(k * n, seed + 1));
            let before = random(m * (n + 2), seed + 2);
            let mut out = before.clone();
            let b_matrix = if transpose { Matrix::new(&b, n, k, k).transposed() } else { Matrix::new(&b, k, n, n) };
            let write = if add { Write::Add } else { Write::Replace };
            matmul(MatrixMut::new(&mut out, m, n, n + 2), write, Matrix::new(&a, m, k, k), b_matrix);
            for row in 0..m {
                for column in 0..n + 2 {
                    let at = row * (n + 2) + column;
                    if column >= n {
                        prop_assert_eq!(out[at], before[at]);
                        continue;
                    }
                    let start = if add { f64::from(before[at]) } else { 0.0 };
                    let b_at = |i: usize| if transpose { b[column * k + i] } else { b[i * n + column] };
                    let products = (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b_at(i)));
                    let exact = start + products.sum::<f64>();
                    // k products and sums of numbers below 1, each rounded by 2^-24 of a partial sum below k + 1.
                    let tolerance = ((k + 2) * (k + 2)) as f64 / f64::from(1 << 24);
                    prop_assert!((f64::from(out[at]) - exact).abs() <= tolerance);
                }
            }
        }
    }
}
