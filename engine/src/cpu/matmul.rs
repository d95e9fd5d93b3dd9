//! Single-threaded matrix products, on the kernels of [`super::kernel`].
//!
//! The right matrix is read from [`Panels`]; the left one from its own memory, row by row or in panels. So what one
//! product writes into panels, others read as their left or right matrix, without packing and always along memory:
//! beyond the second-level cache that is four times as fast as row by row. What follows a product (a bias, a ReLU) is
//! applied while the sums are still in registers.

use std::ops::Range;

use super::kernel::{BLOCK_LINES, Kernel, LANES, Line, Simd, dispatch, panel_lines, sum_block};

/// A matrix in a slice, row by row or in panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    shape: MatrixShape,
}

/// A matrix to write to.
#[derive(Debug)]
pub(super) struct MatrixMut<'a> {
    data: &'a mut [f32],
    shape: MatrixShape,
}

#[derive(Debug, Clone, Copy)]
struct MatrixShape {
    rows: usize,
    columns: usize,
    /// Elements from one row to the next.
    stride: usize,
    /// Elements from one panel's worth of columns to the next.
    panel_stride: usize,
}

impl MatrixShape {
    fn new(rows: usize, columns: usize, stride: usize, elements: usize) -> Self {
        let shape = Self { rows, columns, stride, panel_stride: panel_width() };
        assert!(columns <= stride, "rows overlap: {shape:?}");
        let extent = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        assert!(extent <= elements, "{shape:?} does not fit {elements} elements");
        shape
    }

    /// Returns the offset of a column.
    fn column(&self, column: usize) -> usize {
        column / panel_width() * self.panel_stride + column % panel_width()
    }
}

impl<'a> Matrix<'a> {
    /// `rows` x `columns`, rows `stride` elements apart.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, shape: MatrixShape::new(rows, columns, stride, data.len()) }
    }

    /// `rows` x `columns`, stored row after row without gaps.
    pub(super) fn dense(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }

    /// Returns a row of a matrix that is stored row by row.
    fn row(&self, row: usize) -> &'a [f32] {
        debug_assert_eq!(self.shape.panel_stride, panel_width(), "a matrix in panels has no rows");
        &self.data[row * self.shape.stride..][..self.shape.columns]
    }

    /// Adds all rows to `sums`, one after another: the columns from `first` on.
    pub(super) fn add_rows_to(&self, first: usize, sums: &mut [f32]) {
        let (mut column, mut sums) = (first, sums);
        while !sums.is_empty() {
            let width = sums.len().min(panel_width() - column % panel_width());
            let (these, rest) = sums.split_at_mut(width);
            let start = self.shape.column(column);
            for row in 0..self.shape.rows {
                let row = &self.data[start + row * self.shape.stride..][..width];
                these.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            (column, sums) = (column + width, rest);
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` x `columns`, rows `stride` elements apart.
    pub(super) fn new(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let shape = MatrixShape::new(rows, columns, stride, data.len());
        Self { data, shape }
    }

    /// `rows` x `columns`, stored row after row without gaps.
    pub(super) fn dense(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }
}

/// What is done with a product's sums before they are stored (the epilogue of a GEMM).
#[derive(Debug, Clone, Copy)]
pub(super) enum Epilogue<'a> {
    /// `out = a b`
    Replace,
    /// `out += a b`
    Add,
    /// `out = a b + bias`, with one bias per column.
    Bias(&'a [f32]),
    /// `out = max(a b + bias, 0)`
    BiasRelu(&'a [f32]),
    /// `out = a b` where this matrix of out's shape is positive, else 0: the backward pass of a ReLU, given its
    /// outputs.
    WherePositive(Matrix<'a>),
}

/// A matrix in panels: each panel is as many columns wide as the kernels, and stores all rows of them one after
/// another.
#[derive(Debug, Clone, Default)]
pub(super) struct Panels {
    rows: usize,
    columns: usize,
    /// Elements after the last column are undefined.
    lines: Vec<Line>,
}

impl Panels {
    /// Sets the sizes, and allocates elements for the caller to write.
    pub(super) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        self.lines.resize(columns.div_ceil(panel_width()) * rows * panel_lines(), Line::ZERO);
    }

    /// Returns the matrix as the left operand of a product.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix { data: bytemuck::cast_slice(&self.lines), shape: self.shape() }
    }

    /// Returns the matrix as the result of a product.
    pub(super) fn matrix_mut(&mut self) -> MatrixMut<'_> {
        MatrixMut { shape: self.shape(), data: bytemuck::cast_slice_mut(&mut self.lines) }
    }

    fn shape(&self) -> MatrixShape {
        let Self { rows, columns, .. } = *self;
        MatrixShape { rows, columns, stride: panel_width(), panel_stride: rows.max(1) * panel_width() }
    }

    /// Packs a matrix.
    pub(super) fn pack(&mut self, matrix: Matrix<'_>) {
        self.resize(matrix.shape.rows, matrix.shape.columns);
        dispatch(Pack { matrix, lines: &mut self.lines });
    }

    /// Packs the transpose of a matrix.
    pub(super) fn pack_transposed(&mut self, matrix: Matrix<'_>) {
        let MatrixShape { rows, columns, .. } = matrix.shape;
        self.resize(columns, rows);
        let panels = self.lines.chunks_mut((columns * panel_lines()).max(1));
        for (panel, first) in panels.zip((0..rows).step_by(panel_width())) {
            // In squares: the lines of a column are so far apart that the first-level cache holds few of them.
            for (square, panel) in panel.chunks_mut(LANES * panel_lines()).enumerate() {
                for row in first..rows.min(first + panel_width()) {
                    let (line, lane) = ((row - first) / LANES, row % LANES);
                    let values = &matrix.row(row)[square * LANES..];
                    for (lines, &value) in panel.chunks_exact_mut(panel_lines()).zip(values) {
                        lines[line].0[lane] = value;
                    }
                }
            }
        }
    }
}

/// Returns the floats in a row of a panel.
fn panel_width() -> usize {
    panel_lines() * LANES
}

struct Pack<'a> {
    matrix: Matrix<'a>,
    lines: &'a mut [Line],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let rows = self.matrix.shape.rows;
        // Row by row, in memory order.
        for row in 0..rows {
            for (panel, from) in self.matrix.row(row).chunks(LINES * LANES).enumerate() {
                let lines = &mut self.lines[(panel * rows + row) * LINES..][..LINES];
                let (whole, partial) = from.as_chunks();
                for (line, from) in lines.iter_mut().zip(whole) {
                    simd.store(simd.load(from), &mut line.0);
                }
                if !partial.is_empty() {
                    lines[whole.len()].0 = whole_line(partial);
                }
            }
        }
    }
}

/// Computes `a b` on the calling thread.
pub(super) fn product(out: MatrixMut<'_>, epilogue: Epilogue<'_>, a: Matrix<'_>, b: &Panels) {
    let MatrixShape { rows, columns, stride, panel_stride } = a.shape;
    assert_eq!(columns, b.rows, "columns left and rows right");
    let left = LeftMatrix {
        data: a.data,
        rows: 0..rows,
        row: Stride { step: stride, panel_skip: 0 },
        column: Stride { step: 1, panel_skip: panel_stride - panel_width() },
    };
    multiply(out, epilogue, left, b);
}

/// Computes `aᵀ b` on the calling thread, for the given columns of `a`; `a` and `b` have one row per sample.
pub(super) fn transposed_product(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    (a, columns): (Matrix<'_>, Range<usize>),
    b: &Panels,
) {
    let MatrixShape { rows, stride, panel_stride, .. } = a.shape;
    assert!(
        rows == b.rows && columns.end <= a.shape.columns,
        "columns {columns:?} of {:?}, and {} rows right",
        a.shape,
        b.rows
    );
    let left = LeftMatrix {
        data: a.data,
        rows: columns,
        row: Stride { step: 1, panel_skip: panel_stride - panel_width() },
        column: Stride { step: stride, panel_skip: 0 },
    };
    multiply(out, epilogue, left, b);
}

/// The left matrix of a product.
#[derive(Debug, Clone)]
struct LeftMatrix<'a> {
    data: &'a [f32],
    /// The rows to multiply.
    rows: Range<usize>,
    row: Stride,
    column: Stride,
}

/// The distance in memory of a row or column.
#[derive(Debug, Clone, Copy)]
struct Stride {
    step: usize,
    /// The number of elements to add for every full panel before.
    panel_skip: usize,
}

impl Stride {
    #[inline(always)]
    fn to<const FULL: usize>(self, number: usize) -> usize {
        number * self.step + number / (FULL * LANES) * self.panel_skip
    }
}

fn multiply(out: MatrixMut<'_>, epilogue: Epilogue<'_>, a: LeftMatrix<'_>, b: &Panels) {
    let MatrixShape { rows, columns, .. } = out.shape;
    assert_eq!((a.rows.len(), b.columns), (rows, columns), "the product's shape");
    match epilogue {
        Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) => assert_eq!(bias.len(), columns),
        Epilogue::WherePositive(mask) => assert_eq!((mask.shape.rows, mask.shape.columns), (rows, columns)),
        Epilogue::Replace | Epilogue::Add => {}
    }
    dispatch(Multiply { out, epilogue, a, b, sums: [Line::ZERO; BLOCK_LINES] });
}

struct Multiply<'a> {
    out: MatrixMut<'a>,
    epilogue: Epilogue<'a>,
    a: LeftMatrix<'a>,
    b: &'a Panels,
    /// The sums of the current block.
    sums: [Line; BLOCK_LINES],
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(mut self, simd: S) {
        let Panels { rows: depth, columns, ref lines } = *self.b;
        for number in 0..columns.div_ceil(LINES * LANES) {
            let first = number * LINES * LANES;
            let (panel, rest) = lines[number * LINES * depth..].split_at(LINES * depth);
            // The next panel is prefetched while this one is used.
            let ahead = &rest[..rest.len().min(LINES * depth)];
            // For a panel that is not full, only the widths that the instruction set can have are compiled.
            let width = LINES.min((columns - first).div_ceil(LANES));
            if width == LINES {
                self.panel::<S, ROWS, LINES, LINES>(simd, first, panel, ahead);
            } else if LINES > 3 && width == 3 {
                self.panel::<S, ROWS, 3, LINES>(simd, first, panel, ahead);
            } else if LINES > 2 && width == 2 {
                self.panel::<S, ROWS, 2, LINES>(simd, first, panel, ahead);
            } else {
                self.panel::<S, TALL, 1, LINES>(simd, first, panel, ahead);
            }
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn panel<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        column: usize,
        panel: &[Line],
        mut ahead: &[Line],
    ) {
        let rows = self.out.shape.rows;
        let mut row = 0;
        while row + ROWS <= rows {
            let (now, later) = ahead.split_at(ahead.len().min(self.b.rows / 2));
            self.block::<S, ROWS, LINES, FULL>(simd, row, column, panel, now);
            (row, ahead) = (row + ROWS, later);
        }
        // The remaining rows are fewer than one such block.
        if ROWS > 12 && row + 12 <= rows {
            self.block::<S, 12, LINES, FULL>(simd, row, column, panel, &[]);
            row += 12;
        }
        if ROWS > 6 && row + 6 <= rows {
            self.block::<S, 6, LINES, FULL>(simd, row, column, panel, &[]);
            row += 6;
        }
        if ROWS > 4 && row + 4 <= rows {
            self.block::<S, 4, LINES, FULL>(simd, row, column, panel, &[]);
            row += 4;
        }
        if ROWS > 2 && row + 2 <= rows {
            self.block::<S, 2, LINES, FULL>(simd, row, column, panel, &[]);
            row += 2;
        }
        if row < rows {
            self.block::<S, 1, LINES, FULL>(simd, row, column, panel, &[]);
        }
    }

    #[inline(always)]
    fn block<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
        panel: &[Line],
        ahead: &[Line],
    ) {
        let LeftMatrix { data, rows: Range { start: first, .. }, row: to_row, column: to_column } = self.a;
        let steps = self.b.rows;
        // A panel of the left matrix, or all of it if its columns are equally far apart.
        let piece = if to_column.panel_skip == 0 { steps.max(1) } else { FULL * LANES };
        let left = |number: usize| -> [&[f32]; ROWS] {
            // All slices get the same length, so that one check per step covers all.
            let extent = (piece.min(steps - number * piece) - 1) * to_column.step + 1;
            let start = to_column.to::<FULL>(number * piece);
            std::array::from_fn(|r| &data[to_row.to::<FULL>(first + row + r) + start..][..extent])
        };
        let sums = self.sums[..ROWS * LINES].as_chunks_mut::<LINES>().0;
        sum_block::<S, ROWS, LINES, FULL>(simd, panel, left, (piece, to_column.step), ahead, sums);
        self.epilogue::<S, ROWS, LINES>(simd, row, column);
    }

    #[inline(always)]
    fn epilogue<S: Simd, const ROWS: usize, const LINES: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let sums = self.sums[..ROWS * LINES].as_chunks::<LINES>().0;
        let MatrixShape { columns, stride, .. } = self.out.shape;
        let start = row * stride + self.out.shape.column(column);
        let width = (LINES * LANES).min(columns - column);
        let out = OutputBlock { data: &mut self.out.data[start..], stride, width };
        match self.epilogue {
            Epilogue::Replace => out.write::<S, ROWS, LINES>(simd, sums, None, |_, sum, _| sum),
            Epilogue::Add => out.write::<S, ROWS, LINES>(simd, sums, None, |out, sum, _| simd.add(out, sum)),
            Epilogue::Bias(bias) => {
                out.write::<S, ROWS, LINES>(simd, sums, Some((&bias[column..], 0)), |_, sum, bias| {
                    simd.add(sum, bias)
                });
            }
            Epilogue::BiasRelu(bias) => {
                let epilogue = |_, sum, bias| simd.relu(simd.add(sum, bias));
                out.write::<S, ROWS, LINES>(simd, sums, Some((&bias[column..], 0)), epilogue);
            }
            Epilogue::WherePositive(mask) => {
                let mask =
                    (&mask.data[row * mask.shape.stride + mask.shape.column(column)..], mask.shape.stride);
                out.write::<S, ROWS, LINES>(simd, sums, Some(mask), |_, sum, mask| {
                    simd.where_positive(mask, sum)
                });
            }
        }
    }
}

/// The memory of one block of the result.
struct OutputBlock<'a> {
    data: &'a mut [f32],
    stride: usize,
    /// Columns of the block; its last line may be partial.
    width: usize,
}

impl OutputBlock<'_> {
    /// Sets each element to `function(element, sum, other)`; `other` is a matrix of the same shape, with its stride,
    /// or all zeros if `None`.
    #[inline(always)]
    fn write<S: Simd, const ROWS: usize, const LINES: usize>(
        self,
        simd: S,
        sums: &[[Line; LINES]],
        other: Option<(&[f32], usize)>,
        function: impl Fn(S::Vector, S::Vector, S::Vector) -> S::Vector,
    ) {
        let Self { data, stride, width } = self;
        let zero = simd.splat(0.0);
        if width == LINES * LANES {
            for r in 0..ROWS {
                let out = &mut data[r * stride..][..LINES * LANES].as_chunks_mut::<LANES>().0;
                let other = other.map(|(data, stride)| data[r * stride..][..LINES * LANES].as_chunks().0);
                for v in 0..LINES {
                    let other = other.map_or(zero, |other| simd.load(&other[v]));
                    simd.store(function(simd.load(&out[v]), simd.load(&sums[r][v].0), other), &mut out[v]);
                }
            }
        } else {
            for r in 0..ROWS {
                let out = &mut data[r * stride..][..width];
                for v in 0..LINES {
                    let out = &mut out[v * LANES..width.min((v + 1) * LANES)];
                    let other = other.map_or(zero, |(data, stride)| {
                        simd.load(&whole_line(&data[r * stride + v * LANES..][..out.len()]))
                    });
                    let mut line = whole_line(out);
                    simd.store(function(simd.load(&line), simd.load(&sums[r][v].0), other), &mut line);
                    out.copy_from_slice(&line[..out.len()]);
                }
            }
        }
    }
}

/// Returns a line of floats, padded with zeros.
#[inline(always)]
fn whole_line(floats: &[f32]) -> [f32; LANES] {
    let mut line = [0.0; LANES];
    line[..floats.len()].copy_from_slice(floats);
    line
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

    fn packed(matrix: Matrix<'_>) -> Panels {
        let mut panels = Panels::default();
        panels.pack(matrix);
        panels
    }

    /// Elements of a matrix, rows `stride` apart, at `(row, column)`.
    fn at(data: &[f32], stride: usize) -> impl Fn(usize, usize) -> f64 {
        move |row, column| f64::from(data[row * stride + column])
    }

    proptest! {
        /// Covers every way to pack, every epilogue, and strides beyond the rows.
        #[test]
        fn products_equal_the_oracle(
            (m, n, k) in (1..40usize, 1..140usize, 0..70usize),
            form in 0..3usize,
            in_panels in any::<bool>(),
            epilogue in 0..5usize,
            seed in any::<u64>(),
        ) {
            // The left matrix is `[k, m]` if it is to be transposed; the right one likewise is `[n, k]`.
            let (left_rows, left_columns) = if form == 2 { (k, m) } else { (m, k) };
            let (right_rows, right_columns) = if form == 1 { (n, k) } else { (k, n) };
            let (left, right) =
                (random(left_rows * (left_columns + 1), seed), random(right_rows * right_columns, seed + 1));
            let (before, mask, bias) =
                (random(m * (n + 2), seed + 2), random(m * (n + 1), seed + 3), random(n, seed + 4));
            let mut mask_panels = packed(Matrix::new(&mask, m, n, n + 1));
            // Packing over older contents leaves no trace of them.
            mask_panels.pack(Matrix::dense(&random(90 * 90, seed), 90, 90));
            mask_panels.pack(Matrix::new(&mask, m, n, n + 1));
            let mask_matrix = if in_panels { mask_panels.matrix() } else { Matrix::new(&mask, m, n, n + 1) };
            let epilogue = match epilogue {
                0 => Epilogue::Replace,
                1 => Epilogue::Add,
                2 => Epilogue::Bias(&bias),
                3 => Epilogue::BiasRelu(&bias),
                _ => Epilogue::WherePositive(mask_matrix),
            };
            let mut out = before.clone();
            let a = Matrix::new(&left, left_rows, left_columns, left_columns + 1);
            let a_panels = packed(a);
            let a = if in_panels { a_panels.matrix() } else { a };
            let b = Matrix::dense(&right, right_rows, right_columns);
            let mut panels = Panels::default();
            if form == 1 { panels.pack_transposed(b) } else { panels.pack(b) }
            let mut out_panels = packed(Matrix::new(&out, m, n, n + 2));
            let to = if in_panels { out_panels.matrix_mut() } else { MatrixMut::new(&mut out, m, n, n + 2) };
            if form == 2 {
                transposed_product(to, epilogue, (a, 0..m), &panels);
            } else {
                product(to, epilogue, a, &panels);
            }
            if in_panels {
                let result = out_panels.matrix();
                for (row, out) in out.chunks_exact_mut(n + 2).enumerate() {
                    for (column, out) in out[..n].iter_mut().enumerate() {
                        *out = result.data[result.shape.column(column) + row * result.shape.stride];
                    }
                }
            }
            let (left_at, right_at) = (at(&left, left_columns + 1), at(&right, right_columns));
            for row in 0..m {
                for column in 0..n + 2 {
                    let here = row * (n + 2) + column;
                    if column >= n {
                        prop_assert_eq!(out[here], before[here]);
                        continue;
                    }
                    let left = |i| if form == 2 { left_at(i, row) } else { left_at(row, i) };
                    let right = |i| if form == 1 { right_at(column, i) } else { right_at(i, column) };
                    let sum: f64 = (0..k).map(|i| left(i) * right(i)).sum();
                    let exact = match epilogue {
                        Epilogue::Replace => sum,
                        Epilogue::Add => sum + f64::from(before[here]),
                        Epilogue::Bias(bias) => sum + f64::from(bias[column]),
                        Epilogue::BiasRelu(bias) => (sum + f64::from(bias[column])).max(0.0),
                        Epilogue::WherePositive(_) if mask[row * (n + 1) + column] > 0.0 => sum,
                        Epilogue::WherePositive(_) => 0.0,
                    };
                    // k products and sums of numbers below 1, each rounded by 2^-24 of a partial sum below k + 1.
                    let tolerance = ((k + 2) * (k + 2)) as f64 / f64::from(1 << 24);
                    prop_assert!((f64::from(out[here]) - exact).abs() <= tolerance, "{} {exact}", out[here]);
                }
            }
        }
    }

    #[test]
    fn rows_are_added_from_any_column_on() {
        let (rows, columns) = (5, 150);
        let values = random(rows * columns, 0);
        let dense = Matrix::dense(&values, rows, columns);
        for (first, count) in [(0, 150), (3, 61), (63, 70), (140, 10), (7, 0)] {
            let sums = (first..first + count)
                .map(|column| (0..rows).fold(1.0, |sum, row| sum + values[row * columns + column]));
            let sums: Vec<f32> = sums.collect();
            for matrix in [dense, packed(dense).matrix()] {
                let mut added = vec![1.0; count];
                matrix.add_rows_to(first, &mut added);
                assert_eq!(added, sums);
            }
        }
    }

    #[test]
    fn the_relu_does_not_hide_nan() {
        let (mut panels, mut out) = (Panels::default(), [0.0; 2]);
        panels.pack(Matrix::dense(&[f32::NAN, -1.0], 1, 2));
        let epilogue = Epilogue::BiasRelu(&[0.0, 0.0]);
        product(MatrixMut::dense(&mut out, 1, 2), epilogue, Matrix::dense(&[1.0], 1, 1), &panels);
        assert!(out[0].is_nan());
        assert_eq!(out[1], 0.0);
    }
}
