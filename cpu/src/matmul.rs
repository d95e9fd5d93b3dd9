//! Single-threaded matrix products, on the kernels of [`crate::kernel`].
//!
//! The right matrix is read from [`Panels`]; the left one from its own memory, row by row or in panels. So what one
//! product writes into panels, others read as their left or right matrix, without packing and always along memory:
//! beyond the second-level cache that is four times as fast as row by row. What follows a product (a bias, a ReLU, and
//! rounding to bf16) is applied while the sums are still in the first-level cache.

use std::ops::Range;

use crate::amx::{self, Rows, TileRegisters};
use crate::kernel::{BLOCK_LINES, Element, Line, sum_block};
use crate::panels::{Matrix, MatrixMut, MatrixShape, Operand, Pairs, Panels, panel_width, whole_line};
use crate::simd::{Kernel, LANES, Simd};

/// The matrix that a product computes.
#[derive(Debug)]
pub enum Output<'a> {
    /// In f32.
    Floats(MatrixMut<'a>),
    /// Rounded to bf16. The operands of the product must be in bf16, too.
    Pairs(&'a mut Pairs),
}

impl<'a> From<MatrixMut<'a>> for Output<'a> {
    fn from(matrix: MatrixMut<'a>) -> Self {
        Self::Floats(matrix)
    }
}

impl<'a> From<&'a mut Operand> for Output<'a> {
    fn from(operand: &'a mut Operand) -> Self {
        match operand {
            Operand::Floats(panels) => Self::Floats(panels.matrix_mut()),
            Operand::Pairs(pairs) => Self::Pairs(pairs),
        }
    }
}

impl Output<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Floats(matrix) => (matrix.shape.rows, matrix.shape.columns),
            Self::Pairs(pairs) => pairs.shape(),
        }
    }
}

/// A matrix whose positive elements select those of a product.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// In f32.
    Floats(Matrix<'a>),
    /// In bf16. The operands of the product must be in bf16, too.
    Pairs(&'a Pairs),
}

impl<'a> From<&'a Operand> for Mask<'a> {
    fn from(operand: &'a Operand) -> Self {
        match operand {
            Operand::Floats(panels) => Self::Floats(panels.matrix()),
            Operand::Pairs(pairs) => Self::Pairs(pairs),
        }
    }
}

/// What is done with a product's sums before they are stored (the epilogue of a GEMM).
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
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
    WherePositive(Mask<'a>),
}

/// Computes `a b` on the calling thread.
pub(crate) fn product<E: Element>(out: Output<'_>, epilogue: Epilogue<'_>, a: Matrix<'_, E>, b: &Panels<E>) {
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
pub(crate) fn transposed_product<E: Element>(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    (a, columns): (Matrix<'_, E>, Range<usize>),
    b: &Panels<E>,
) {
    let MatrixShape { rows, stride, panel_stride, .. } = a.shape;
    assert!(
        rows == b.rows && columns.end <= a.shape.columns,
        "columns {columns:?} of {:?}, and {} rows right",
        a.shape,
        b.rows
    );
    let transposed;
    let left = if E::in_tile_registers() {
        // They load rows, not columns.
        transposed = a.transposed(columns.clone());
        LeftMatrix {
            data: &transposed,
            rows: 0..columns.len(),
            row: Stride { step: rows, panel_skip: 0 },
            column: Stride { step: 1, panel_skip: 0 },
        }
    } else {
        LeftMatrix {
            data: a.data,
            rows: columns,
            row: Stride { step: 1, panel_skip: panel_stride - panel_width() },
            column: Stride { step: stride, panel_skip: 0 },
        }
    };
    multiply(out.into(), epilogue, left, b);
}

/// The left matrix of a product.
#[derive(Debug, Clone)]
struct LeftMatrix<'a, E> {
    data: &'a [E],
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

fn multiply<E: Element>(out: Output<'_>, epilogue: Epilogue<'_>, a: LeftMatrix<'_, E>, b: &Panels<E>) {
    assert_eq!((a.rows.len(), b.columns), out.shape(), "the product's shape");
    match epilogue {
        Epilogue::Bias(bias) | Epilogue::BiasRelu(bias) => assert_eq!(bias.len(), b.columns),
        Epilogue::WherePositive(Mask::Floats(mask)) => {
            assert_eq!((mask.shape.rows, mask.shape.columns), out.shape());
        }
        Epilogue::WherePositive(Mask::Pairs(mask)) => assert_eq!(mask.shape(), out.shape()),
        Epilogue::Replace | Epilogue::Add => {}
    }
    let blank = [Line::ZERO; BLOCK_LINES];
    E::dispatch(Multiply { out, epilogue, a, b, tiles: None, sums: blank, results: blank, mask: blank });
}

struct Multiply<'a, E> {
    out: Output<'a>,
    epilogue: Epilogue<'a>,
    a: LeftMatrix<'a, E>,
    b: &'a Panels<E>,
    /// The registers for blocks of [`amx::ROWS`] rows, if the instruction set has them.
    tiles: Option<TileRegisters>,
    /// Sums that wait for the epilogue.
    sums: [Line; BLOCK_LINES],
    /// Results, before they are rounded to bf16.
    results: [Line; BLOCK_LINES],
    /// The mask of the results, if it is stored as pairs.
    mask: [Line; BLOCK_LINES],
}

impl<E: Element> Kernel for Multiply<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(mut self, simd: S) {
        let Panels { rows: depth, columns, ref lines } = *self.b;
        if self.a.rows.is_empty() {
            return;
        }
        self.tiles = simd.tile_registers(depth);
        for number in 0..columns.div_ceil(LINES * LANES) {
            let first = number * LINES * LANES;
            let (panel, rest) = lines[number * LINES * depth..].split_at(LINES * depth);
            // The next panel is prefetched while this one is used.
            let ahead = &rest[..rest.len().min(LINES * depth)];
            // For a panel that is not full, only the widths that the instruction set can have are compiled.
            let width = LINES.min((columns - first).div_ceil(LANES));
            if width == LINES {
                self.panel::<S, ROWS, LINES, LINES>(simd, first, panel, ahead);
            } else if const { LINES > 3 } && width == 3 {
                self.panel::<S, ROWS, 3, LINES>(simd, first, panel, ahead);
            } else if const { LINES > 2 } && width == 2 {
                self.panel::<S, ROWS, 2, LINES>(simd, first, panel, ahead);
            } else {
                self.panel::<S, TALL, 1, LINES>(simd, first, panel, ahead);
            }
        }
    }
}

impl<E: Element> Multiply<'_, E> {
    #[inline(always)]
    fn panel<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        column: usize,
        panel: &[Line<E>],
        mut ahead: &[Line<E>],
    ) {
        let mut summed = Summed { rows: 0..0, column };
        let rows = self.a.rows.len();
        while summed.rows.end + ROWS <= rows {
            let (now, later) = ahead.split_at(ahead.len().min(self.b.rows / 2));
            self.block::<S, ROWS, LINES, FULL>(simd, &mut summed, panel, now);
            ahead = later;
        }
        // The remaining rows are fewer than one such block.
        if const { ROWS > 12 } && summed.rows.end + 12 <= rows {
            self.block::<S, 12, LINES, FULL>(simd, &mut summed, panel, &[]);
        }
        if const { ROWS > 6 } && summed.rows.end + 6 <= rows {
            self.block::<S, 6, LINES, FULL>(simd, &mut summed, panel, &[]);
        }
        if const { ROWS > 4 } && summed.rows.end + 4 <= rows {
            self.block::<S, 4, LINES, FULL>(simd, &mut summed, panel, &[]);
        }
        if const { ROWS > 2 } && summed.rows.end + 2 <= rows {
            self.block::<S, 2, LINES, FULL>(simd, &mut summed, panel, &[]);
        }
        if summed.rows.end < rows {
            self.block::<S, 1, LINES, FULL>(simd, &mut summed, panel, &[]);
        }
        simd.run(ApplyEpilogue { product: self, summed: &summed });
    }

    /// Sums the block of the `ROWS` rows after those that are summed.
    #[inline(always)]
    fn block<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        summed: &mut Summed,
        panel: &[Line<E>],
        ahead: &[Line<E>],
    ) {
        if (summed.rows.len() + ROWS) * LINES > self.sums.len() {
            simd.run(ApplyEpilogue { product: self, summed });
            summed.rows.start = summed.rows.end;
        }
        let LeftMatrix { data, rows: Range { start: first, .. }, row: to_row, column: to_column } = self.a;
        let row = first + summed.rows.end;
        let sums = &mut self.sums[summed.rows.len() * LINES..][..ROWS * LINES];
        summed.rows.end += ROWS;
        if const { S::HAS_TILE_REGISTERS && ROWS == amx::ROWS } {
            let tiles = self.tiles.as_ref().expect("the instruction set has them");
            debug_assert!(to_row.panel_skip == 0 && to_column.step == 1, "its rows are consecutive");
            let left = Rows {
                data: bytemuck::cast_slice(&data[row * to_row.step..]),
                stride: to_row.step,
                panel_skip: to_column.panel_skip,
            };
            tiles.sum_block::<LINES, FULL>(left, bytemuck::cast_slice(panel), bytemuck::cast_slice_mut(sums));
            return;
        }
        let steps = self.b.rows;
        // A panel of the left matrix, or all of it if its columns are equally far apart.
        let piece = if to_column.panel_skip == 0 { steps.max(1) } else { FULL * LANES };
        let left = |number: usize| -> [&[E]; ROWS] {
            // All slices get the same length, so that one check per step covers all.
            let extent = (piece.min(steps - number * piece) - 1) * to_column.step + 1;
            let start = to_column.to::<FULL>(number * piece);
            std::array::from_fn(|r| &data[to_row.to::<FULL>(row + r) + start..][..extent])
        };
        let sums = sums.as_chunks_mut::<LINES>().0;
        sum_block::<S, E, ROWS, LINES, FULL>(simd, panel, left, (piece, to_column.step), ahead, sums);
    }
}

/// Rows of a panel of a product whose sums wait for the epilogue, each in the lines of the panel.
#[derive(Debug)]
struct Summed {
    rows: Range<usize>,
    /// The panel's first column.
    column: usize,
}

/// Applies the epilogue to sums. Blocks of all shapes share this code: it is one function for each instruction set.
struct ApplyEpilogue<'p, 'a, E> {
    product: &'p mut Multiply<'a, E>,
    summed: &'p Summed,
}

impl<E: Element> Kernel for ApplyEpilogue<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const FULL: usize, const TALL: usize>(self, simd: S) {
        let Self { product, summed } = self;
        let Multiply { out, epilogue, b, sums, results, mask, .. } = product;
        let (row, column) = (summed.rows.start, summed.column);
        let width = (FULL * LANES).min(b.columns - column);
        let lines = width.div_ceil(LANES);
        let sums = &sums[..summed.rows.len() * lines];
        let results = &mut results[..sums.len()];
        let to = match out {
            Output::Floats(MatrixMut { data, shape }) => {
                let start = row * shape.stride + shape.column(column);
                OutputBlock { data: &mut data[start..], stride: shape.stride, width }
            }
            Output::Pairs(_) => {
                OutputBlock { data: bytemuck::cast_slice_mut(results), stride: lines * LANES, width }
            }
        };
        match *epilogue {
            Epilogue::Replace => to.write(simd, sums, None, |_, sum, _| sum),
            Epilogue::Add => to.write(simd, sums, None, |out, sum, _| simd.add(out, sum)),
            Epilogue::Bias(bias) => {
                to.write(simd, sums, Some((&bias[column..], 0)), |_, sum, bias| simd.add(sum, bias));
            }
            Epilogue::BiasRelu(bias) => {
                let epilogue = |_, sum, bias| simd.relu(simd.add(sum, bias));
                to.write(simd, sums, Some((&bias[column..], 0)), epilogue);
            }
            Epilogue::WherePositive(of) => {
                let mask: (&[f32], usize) = match of {
                    Mask::Floats(Matrix { data, shape }) => {
                        (&data[row * shape.stride + shape.column(column)..], shape.stride)
                    }
                    Mask::Pairs(pairs) => {
                        let mask = &mut mask[..sums.len()];
                        if const { E::NUMBERS > 1 } {
                            pairs.load::<S, FULL>(simd, row, column, lines, mask);
                        }
                        (bytemuck::cast_slice(mask), lines * LANES)
                    }
                };
                to.write(simd, sums, Some(mask), |_, sum, mask| simd.where_positive(mask, sum));
            }
        }
        if const { E::NUMBERS > 1 }
            && let Output::Pairs(pairs) = out
        {
            pairs.store::<S, FULL>(simd, row, column, lines, results);
        }
    }
}

/// The memory of some rows of a panel of the result.
struct OutputBlock<'a> {
    data: &'a mut [f32],
    stride: usize,
    /// Columns; the last line may be partial.
    width: usize,
}

impl OutputBlock<'_> {
    /// Sets each element to `function(element, sum, other)`; `other` is a matrix of the same shape, with its stride,
    /// or all zeros if `None`.
    #[inline(always)]
    fn write<S: Simd>(
        self,
        simd: S,
        sums: &[Line],
        other: Option<(&[f32], usize)>,
        function: impl Fn(S::Vector, S::Vector, S::Vector) -> S::Vector,
    ) {
        let Self { data, stride, width } = self;
        for (r, sums) in sums.chunks_exact(width.div_ceil(LANES)).enumerate() {
            let (out, last) = data[r * stride..][..width].as_chunks_mut::<LANES>();
            let (other, last_other) = match other {
                Some((data, stride)) => data[r * stride..][..width].as_chunks::<LANES>(),
                None => (&[][..], &[][..]),
            };
            for (v, out) in out.iter_mut().enumerate() {
                let other = if let Some(line) = other.get(v) { simd.load(line) } else { simd.splat(0.0) };
                simd.store(function(simd.load(out), simd.load(&sums[v].0), other), out);
            }
            if !last.is_empty() {
                let mut line = whole_line(last);
                let sum = simd.load(&sums[width / LANES].0);
                let result = function(simd.load(&line), sum, simd.load(&whole_line(last_other)));
                simd.store(result, &mut line);
                last.copy_from_slice(&line[..last.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random;
    use proptest::prelude::*;

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
            (m, n, k) in (0..150usize, 1..140usize, 0..70usize),
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
                _ => Epilogue::WherePositive(Mask::Floats(mask_matrix)),
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
                product(to.into(), epilogue, a, &panels);
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
    fn columns_are_transposed_from_any_column_on() {
        let (rows, columns) = (5, 150);
        let values = random(rows * columns, 0);
        let dense = Matrix::dense(&values, rows, columns);
        let column = |column| (0..rows).map(move |row| row * columns + column);
        for (first, count) in [(0, 150), (3, 61), (63, 70), (140, 10), (7, 0)] {
            let expected: Vec<f32> =
                (first..first + count).flat_map(column).map(|element| values[element]).collect();
            for matrix in [dense, packed(dense).matrix()] {
                assert_eq!(matrix.transposed(first..first + count), expected);
            }
        }
    }

    #[test]
    fn the_relu_does_not_hide_nan() {
        let (mut panels, mut out) = (Panels::default(), [0.0; 2]);
        panels.pack(Matrix::dense(&[f32::NAN, -1.0], 1, 2));
        let epilogue = Epilogue::BiasRelu(&[0.0, 0.0]);
        let to = MatrixMut::dense(&mut out, 1, 2).into();
        product(to, epilogue, Matrix::dense(&[1.0], 1, 1), &panels);
        assert!(out[0].is_nan());
        assert_eq!(out[1], 0.0);
    }
}
