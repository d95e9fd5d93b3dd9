//! Single-threaded matrix products, on the kernels of [`super::kernel`].
//!
//! The right matrix is read from [`Panels`]; the left one from its own memory, row by row or in panels. So what one
//! product writes into panels, others read as their left or right matrix, without packing and always along memory:
//! beyond the second-level cache that is four times as fast as row by row. What follows a product (a bias, a ReLU, and
//! rounding to bf16) is applied while the sums are still in the first-level cache.

use std::ops::Range;

use super::amx::{self, Rows, TileRegisters};
use super::kernel::{BLOCK_LINES, Element, Line, sum_block};
use super::panels::{Matrix, MatrixMut, MatrixShape, Operand, Pairs, Panels, panel_width, whole_line};
use super::simd::{Kernel, LANES, Simd};

/// The matrix that a product computes.
#[derive(Debug)]
pub(super) enum Output<'a> {
    Floats(MatrixMut<'a>),
    /// Only products of pairs write pairs.
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
pub(super) enum Mask<'a> {
    Floats(Matrix<'a>),
    /// Only products of pairs have masks of pairs.
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
    WherePositive(Mask<'a>),
}

/// Computes `a b` on the calling thread.
pub(super) fn product<E: Element>(out: Output<'_>, epilogue: Epilogue<'_>, a: Matrix<'_, E>, b: &Panels<E>) {
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
pub(super) fn transposed_product<E: Element>(
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
    /// The sums of the current block.
    sums: [Line; BLOCK_LINES],
    /// The results of the current block, before they are rounded to bf16.
    results: [Line; BLOCK_LINES],
    /// The mask of the current block, if it is stored as pairs.
    mask: [Line; BLOCK_LINES],
}

impl<E: Element> Kernel for Multiply<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(mut self, simd: S) {
        let Panels { rows: depth, columns, ref lines } = *self.b;
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

impl<E: Element> Multiply<'_, E> {
    #[inline(always)]
    fn panel<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        column: usize,
        panel: &[Line<E>],
        mut ahead: &[Line<E>],
    ) {
        let rows = self.a.rows.len();
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
        panel: &[Line<E>],
        ahead: &[Line<E>],
    ) {
        let LeftMatrix { data, rows: Range { start: first, .. }, row: to_row, column: to_column } = self.a;
        let sums = &mut self.sums[..ROWS * LINES];
        if S::HAS_TILE_REGISTERS && ROWS == amx::ROWS {
            let tiles = self.tiles.as_ref().expect("the instruction set has them");
            debug_assert!(to_row.panel_skip == 0 && to_column.step == 1, "its rows are consecutive");
            let left = Rows {
                data: bytemuck::cast_slice(&data[(first + row) * to_row.step..]),
                stride: to_row.step,
                panel_skip: to_column.panel_skip,
            };
            tiles.sum_block::<LINES, FULL>(left, bytemuck::cast_slice(panel), bytemuck::cast_slice_mut(sums));
            self.epilogue::<S, ROWS, LINES, FULL>(simd, row, column);
            return;
        }
        let steps = self.b.rows;
        // A panel of the left matrix, or all of it if its columns are equally far apart.
        let piece = if to_column.panel_skip == 0 { steps.max(1) } else { FULL * LANES };
        let left = |number: usize| -> [&[E]; ROWS] {
            // All slices get the same length, so that one check per step covers all.
            let extent = (piece.min(steps - number * piece) - 1) * to_column.step + 1;
            let start = to_column.to::<FULL>(number * piece);
            std::array::from_fn(|r| &data[to_row.to::<FULL>(first + row + r) + start..][..extent])
        };
        let sums = sums.as_chunks_mut::<LINES>().0;
        sum_block::<S, E, ROWS, LINES, FULL>(simd, panel, left, (piece, to_column.step), ahead, sums);
        self.epilogue::<S, ROWS, LINES, FULL>(simd, row, column);
    }

    #[inline(always)]
    fn epilogue<S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let Self { out, epilogue, b, sums, results, mask, .. } = self;
        let sums = sums[..ROWS * LINES].as_chunks::<LINES>().0;
        let results = &mut results[..ROWS * LINES];
        let width = (LINES * LANES).min(b.columns - column);
        let block = match out {
            Output::Floats(MatrixMut { data, shape }) => {
                let start = row * shape.stride + shape.column(column);
                OutputBlock { data: &mut data[start..], stride: shape.stride, width }
            }
            Output::Pairs(_) => {
                OutputBlock { data: bytemuck::cast_slice_mut(results), stride: LINES * LANES, width }
            }
        };
        match *epilogue {
            Epilogue::Replace => block.write::<S, ROWS, LINES>(simd, sums, None, |_, sum, _| sum),
            Epilogue::Add => {
                block.write::<S, ROWS, LINES>(simd, sums, None, |out, sum, _| simd.add(out, sum))
            }
            Epilogue::Bias(bias) => {
                block.write::<S, ROWS, LINES>(simd, sums, Some((&bias[column..], 0)), |_, sum, bias| {
                    simd.add(sum, bias)
                });
            }
            Epilogue::BiasRelu(bias) => {
                let epilogue = |_, sum, bias| simd.relu(simd.add(sum, bias));
                block.write::<S, ROWS, LINES>(simd, sums, Some((&bias[column..], 0)), epilogue);
            }
            Epilogue::WherePositive(of) => {
                let mask: (&[f32], usize) = match of {
                    Mask::Floats(Matrix { data, shape }) => {
                        (&data[row * shape.stride + shape.column(column)..], shape.stride)
                    }
                    Mask::Pairs(pairs) => {
                        let mask = &mut mask[..ROWS * LINES];
                        if E::NUMBERS > 1 {
                            pairs.load::<S, LINES, FULL>(simd, row, column, mask.as_chunks_mut().0);
                        }
                        (bytemuck::cast_slice(mask), LINES * LANES)
                    }
                };
                block.write::<S, ROWS, LINES>(simd, sums, Some(mask), |_, sum, mask| {
                    simd.where_positive(mask, sum)
                });
            }
        }
        if E::NUMBERS > 1
            && let Output::Pairs(pairs) = out
        {
            pairs.store::<S, LINES, FULL>(simd, row, column, results.as_chunks_mut().0);
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

#[cfg(test)]
mod tests {
    use super::super::tests::oracle::uniform;
    use super::*;
    use proptest::prelude::*;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        uniform(seed, 0, len)
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
