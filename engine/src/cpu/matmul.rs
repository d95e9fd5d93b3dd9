//! Matrix products of one thread, on the kernels of [`super::kernel`].
//!
//! The right matrix is read from [`Panels`]; the left one where it lies, row by row or in panels as well. So what one
//! product writes into panels, others read as their left matrix and as their right one, without packing and always
//! along memory: beyond the second-level cache that is four times as fast as from row to row. What comes behind a
//! product (a bias, a ReLU) is done while the sums are still in registers.

use std::ops::Range;

use super::kernel::{BLOCK_LINES, LANES, Line, Unit, Work, dispatch, panel_lines, sum_block};

/// A matrix in a slice, row by row or in panels.
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
    /// Elements from one row to the next.
    stride: usize,
    /// Elements from one panel's worth of columns to the next.
    panel_stride: usize,
}

impl Shape {
    fn new(rows: usize, columns: usize, stride: usize, elements: usize) -> Self {
        let shape = Self { rows, columns, stride, panel_stride: panel_width() };
        assert!(columns <= stride, "rows overlap: {shape:?}");
        let extent = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        assert!(extent <= elements, "{shape:?} does not fit {elements} elements");
        shape
    }

    /// Where a column begins.
    fn column(&self, column: usize) -> usize {
        column / panel_width() * self.panel_stride + column % panel_width()
    }
}

impl<'a> Matrix<'a> {
    /// `rows` x `columns`, rows `stride` elements apart.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, shape: Shape::new(rows, columns, stride, data.len()) }
    }

    /// `rows` x `columns`, one row right behind the other.
    pub(super) fn dense(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }

    /// A row of a matrix that lies row by row.
    fn row(&self, row: usize) -> &'a [f32] {
        debug_assert_eq!(self.shape.panel_stride, panel_width(), "a matrix in panels has no rows");
        &self.data[row * self.shape.stride..][..self.shape.columns]
    }

    /// Adds all rows to `sums`, one after the other: those columns of them that begin with `first`.
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
        let shape = Shape::new(rows, columns, stride, data.len());
        Self { data, shape }
    }

    /// `rows` x `columns`, one row right behind the other.
    pub(super) fn dense(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }
}

/// What becomes of a product's sums on their way out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finish<'a> {
    /// `out = a b`
    Replace,
    /// `out += a b`
    Add,
    /// `out = a b + bias`, with a bias a column.
    Bias(&'a [f32]),
    /// `out = max(a b + bias, 0)`
    BiasRelu(&'a [f32]),
    /// `out = a b` where this matrix of out's shape is positive, else 0: gradients on their way back through a ReLU,
    /// given its outputs.
    WherePositive(Matrix<'a>),
}

/// A matrix in panels: each has as many columns as the kernels are wide, and all rows of those one behind the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Panels {
    rows: usize,
    columns: usize,
    /// What stands behind the last column means nothing.
    lines: Vec<Line>,
}

impl Panels {
    /// Sets the sizes, and makes room for elements that the caller writes.
    pub(super) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        self.lines.resize(columns.div_ceil(panel_width()) * rows * panel_lines(), Line::ZERO);
    }

    /// The matrix, as what a product reads from the left.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix { data: bytemuck::cast_slice(&self.lines), shape: self.shape() }
    }

    /// The matrix, as what a product writes.
    pub(super) fn matrix_mut(&mut self) -> MatrixMut<'_> {
        MatrixMut { shape: self.shape(), data: bytemuck::cast_slice_mut(&mut self.lines) }
    }

    fn shape(&self) -> Shape {
        let Self { rows, columns, .. } = *self;
        Shape { rows, columns, stride: panel_width(), panel_stride: rows.max(1) * panel_width() }
    }

    /// Packs a matrix.
    pub(super) fn pack(&mut self, matrix: Matrix<'_>) {
        self.resize(matrix.shape.rows, matrix.shape.columns);
        dispatch(Pack { matrix, lines: &mut self.lines });
    }

    /// Packs the transpose of a matrix.
    pub(super) fn pack_transposed(&mut self, matrix: Matrix<'_>) {
        let Shape { rows, columns, .. } = matrix.shape;
        self.resize(columns, rows);
        let panels = self.lines.chunks_mut((columns * panel_lines()).max(1));
        for (panel, first) in panels.zip((0..rows).step_by(panel_width())) {
            // In squares: the lines of a column lie so far apart that the first-level cache holds few of them.
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

/// Floats in a row of a panel.
fn panel_width() -> usize {
    panel_lines() * LANES
}

struct Pack<'a> {
    matrix: Matrix<'a>,
    lines: &'a mut [Line],
}

impl Work for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(self, unit: U) {
        let rows = self.matrix.shape.rows;
        // Row by row, as the matrix lies in memory.
        for row in 0..rows {
            for (panel, from) in self.matrix.row(row).chunks(LINES * LANES).enumerate() {
                let lines = &mut self.lines[(panel * rows + row) * LINES..][..LINES];
                let (whole, cut) = from.as_chunks();
                for (line, from) in lines.iter_mut().zip(whole) {
                    unit.store(unit.load(from), &mut line.0);
                }
                if !cut.is_empty() {
                    lines[whole.len()].0 = whole_line(cut);
                }
            }
        }
    }
}

/// `a b` on the calling thread.
pub(super) fn product(out: MatrixMut<'_>, finish: Finish<'_>, a: Matrix<'_>, b: &Panels) {
    let Shape { rows, columns, stride, panel_stride } = a.shape;
    assert_eq!(columns, b.rows, "columns left and rows right");
    let left = Left {
        data: a.data,
        rows: 0..rows,
        row: Walk { step: stride, panel_skip: 0 },
        column: Walk { step: 1, panel_skip: panel_stride - panel_width() },
    };
    multiply(out, finish, left, b);
}

/// `aᵀ b` on the calling thread, of those columns of `a` that are named; `a` and `b` have a row a sample.
pub(super) fn transposed_product(
    out: MatrixMut<'_>,
    finish: Finish<'_>,
    (a, columns): (Matrix<'_>, Range<usize>),
    b: &Panels,
) {
    let Shape { rows, stride, panel_stride, .. } = a.shape;
    assert!(
        rows == b.rows && columns.end <= a.shape.columns,
        "columns {columns:?} of {:?}, and {} rows right",
        a.shape,
        b.rows
    );
    let left = Left {
        data: a.data,
        rows: columns,
        row: Walk { step: 1, panel_skip: panel_stride - panel_width() },
        column: Walk { step: stride, panel_skip: 0 },
    };
    multiply(out, finish, left, b);
}

/// The left matrix of a product.
#[derive(Debug, Clone)]
struct Left<'a> {
    data: &'a [f32],
    /// Those that are multiplied.
    rows: Range<usize>,
    row: Walk,
    column: Walk,
}

/// How far it is in memory to a row or column.
#[derive(Debug, Clone, Copy)]
struct Walk {
    step: usize,
    /// What is to be added for every panel's worth before.
    panel_skip: usize,
}

impl Walk {
    #[inline(always)]
    fn to<const FULL: usize>(self, number: usize) -> usize {
        number * self.step + number / (FULL * LANES) * self.panel_skip
    }
}

fn multiply(out: MatrixMut<'_>, finish: Finish<'_>, a: Left<'_>, b: &Panels) {
    let Shape { rows, columns, .. } = out.shape;
    assert_eq!((a.rows.len(), b.columns), (rows, columns), "the product's shape");
    match finish {
        Finish::Bias(bias) | Finish::BiasRelu(bias) => assert_eq!(bias.len(), columns),
        Finish::WherePositive(mask) => assert_eq!((mask.shape.rows, mask.shape.columns), (rows, columns)),
        Finish::Replace | Finish::Add => {}
    }
    dispatch(Multiply { out, finish, a, b, sums: [Line::ZERO; BLOCK_LINES] });
}

struct Multiply<'a> {
    out: MatrixMut<'a>,
    finish: Finish<'a>,
    a: Left<'a>,
    b: &'a Panels,
    /// The sums of the block at work.
    sums: [Line; BLOCK_LINES],
}

impl Work for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(mut self, unit: U) {
        let Panels { rows: depth, columns, ref lines } = *self.b;
        for number in 0..columns.div_ceil(LINES * LANES) {
            let first = number * LINES * LANES;
            let (panel, behind) = lines[number * LINES * depth..].split_at(LINES * depth);
            // The next panel is on its way while this one is used.
            let ahead = &behind[..behind.len().min(LINES * depth)];
            // Of a panel that is less than full, only the widths that there are in this unit are compiled.
            let width = LINES.min((columns - first).div_ceil(LANES));
            if width == LINES {
                self.panel::<U, ROWS, LINES, LINES>(unit, first, panel, ahead);
            } else if LINES > 3 && width == 3 {
                self.panel::<U, ROWS, 3, LINES>(unit, first, panel, ahead);
            } else if LINES > 2 && width == 2 {
                self.panel::<U, ROWS, 2, LINES>(unit, first, panel, ahead);
            } else {
                self.panel::<U, TALL, 1, LINES>(unit, first, panel, ahead);
            }
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn panel<U: Unit, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        unit: U,
        column: usize,
        panel: &[Line],
        mut ahead: &[Line],
    ) {
        let rows = self.out.shape.rows;
        let mut row = 0;
        while row + ROWS <= rows {
            let (now, later) = ahead.split_at(ahead.len().min(self.b.rows / 2));
            self.block::<U, ROWS, LINES, FULL>(unit, row, column, panel, now);
            (row, ahead) = (row + ROWS, later);
        }
        // What is left is less than one such block.
        if ROWS > 12 && row + 12 <= rows {
            self.block::<U, 12, LINES, FULL>(unit, row, column, panel, &[]);
            row += 12;
        }
        if ROWS > 6 && row + 6 <= rows {
            self.block::<U, 6, LINES, FULL>(unit, row, column, panel, &[]);
            row += 6;
        }
        if ROWS > 4 && row + 4 <= rows {
            self.block::<U, 4, LINES, FULL>(unit, row, column, panel, &[]);
            row += 4;
        }
        if ROWS > 2 && row + 2 <= rows {
            self.block::<U, 2, LINES, FULL>(unit, row, column, panel, &[]);
            row += 2;
        }
        if row < rows {
            self.block::<U, 1, LINES, FULL>(unit, row, column, panel, &[]);
        }
    }

    #[inline(always)]
    fn block<U: Unit, const ROWS: usize, const LINES: usize, const FULL: usize>(
        &mut self,
        unit: U,
        row: usize,
        column: usize,
        panel: &[Line],
        ahead: &[Line],
    ) {
        let Left { data, rows: Range { start: first, .. }, row: to_row, column: to_column } = self.a;
        let steps = self.b.rows;
        // A panel of the left matrix, or all of it where its columns are equally far apart.
        let piece = if to_column.panel_skip == 0 { steps.max(1) } else { FULL * LANES };
        let left = |number: usize| -> [&[f32]; ROWS] {
            // All slices get the same length, so that one check a step stands for all.
            let extent = (piece.min(steps - number * piece) - 1) * to_column.step + 1;
            let start = to_column.to::<FULL>(number * piece);
            std::array::from_fn(|r| &data[to_row.to::<FULL>(first + row + r) + start..][..extent])
        };
        let sums = self.sums[..ROWS * LINES].as_chunks_mut::<LINES>().0;
        sum_block::<U, ROWS, LINES, FULL>(unit, panel, left, (piece, to_column.step), ahead, sums);
        self.finish::<U, ROWS, LINES>(unit, row, column);
    }

    #[inline(always)]
    fn finish<U: Unit, const ROWS: usize, const LINES: usize>(&mut self, unit: U, row: usize, column: usize) {
        let sums = self.sums[..ROWS * LINES].as_chunks::<LINES>().0;
        let Shape { columns, stride, .. } = self.out.shape;
        let start = row * stride + self.out.shape.column(column);
        let width = (LINES * LANES).min(columns - column);
        let out = Window { data: &mut self.out.data[start..], stride, width };
        match self.finish {
            Finish::Replace => out.write::<U, ROWS, LINES>(unit, sums, None, |_, sum, _| sum),
            Finish::Add => out.write::<U, ROWS, LINES>(unit, sums, None, |out, sum, _| unit.add(out, sum)),
            Finish::Bias(bias) => {
                out.write::<U, ROWS, LINES>(unit, sums, Some((&bias[column..], 0)), |_, sum, bias| {
                    unit.add(sum, bias)
                });
            }
            Finish::BiasRelu(bias) => {
                let finish = |_, sum, bias| unit.relu(unit.add(sum, bias));
                out.write::<U, ROWS, LINES>(unit, sums, Some((&bias[column..], 0)), finish);
            }
            Finish::WherePositive(mask) => {
                let mask =
                    (&mask.data[row * mask.shape.stride + mask.shape.column(column)..], mask.shape.stride);
                out.write::<U, ROWS, LINES>(unit, sums, Some(mask), |_, sum, mask| {
                    unit.where_positive(mask, sum)
                });
            }
        }
    }
}

/// Where a block of a product lies in its matrix.
struct Window<'a> {
    data: &'a mut [f32],
    stride: usize,
    /// Columns of the block; its last line may be cut.
    width: usize,
}

impl Window<'_> {
    /// Sets each element to `function(element, sum, other)`; `other` is a matrix of the same shape, with its stride,
    /// and zeros where there is none.
    #[inline(always)]
    fn write<U: Unit, const ROWS: usize, const LINES: usize>(
        self,
        unit: U,
        sums: &[[Line; LINES]],
        other: Option<(&[f32], usize)>,
        function: impl Fn(U::Vector, U::Vector, U::Vector) -> U::Vector,
    ) {
        let Self { data, stride, width } = self;
        let zero = unit.splat(0.0);
        if width == LINES * LANES {
            for r in 0..ROWS {
                let out = &mut data[r * stride..][..LINES * LANES].as_chunks_mut::<LANES>().0;
                let other = other.map(|(data, stride)| data[r * stride..][..LINES * LANES].as_chunks().0);
                for v in 0..LINES {
                    let other = other.map_or(zero, |other| unit.load(&other[v]));
                    unit.store(function(unit.load(&out[v]), unit.load(&sums[r][v].0), other), &mut out[v]);
                }
            }
        } else {
            for r in 0..ROWS {
                let out = &mut data[r * stride..][..width];
                for v in 0..LINES {
                    let out = &mut out[v * LANES..width.min((v + 1) * LANES)];
                    let other = other.map_or(zero, |(data, stride)| {
                        unit.load(&whole_line(&data[r * stride + v * LANES..][..out.len()]))
                    });
                    let mut line = whole_line(out);
                    unit.store(function(unit.load(&line), unit.load(&sums[r][v].0), other), &mut line);
                    out.copy_from_slice(&line[..out.len()]);
                }
            }
        }
    }
}

/// A line's worth of floats, those that are missing 0.
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
        /// With every way to pack, every finish, and strides beyond the rows.
        #[test]
        fn products_equal_the_oracle(
            (m, n, k) in (1..40usize, 1..140usize, 0..70usize),
            form in 0..3usize,
            in_panels in any::<bool>(),
            finish in 0..5usize,
            seed in any::<u64>(),
        ) {
            // The left matrix is `[k, m]` where it is to be transposed, the right one `[n, k]`.
            let (left_rows, left_columns) = if form == 2 { (k, m) } else { (m, k) };
            let (right_rows, right_columns) = if form == 1 { (n, k) } else { (k, n) };
            let (left, right) =
                (random(left_rows * (left_columns + 1), seed), random(right_rows * right_columns, seed + 1));
            let (before, mask, bias) =
                (random(m * (n + 2), seed + 2), random(m * (n + 1), seed + 3), random(n, seed + 4));
            let mut mask_panels = packed(Matrix::new(&mask, m, n, n + 1));
            // What is packed over leaves no trace.
            mask_panels.pack(Matrix::dense(&random(90 * 90, seed), 90, 90));
            mask_panels.pack(Matrix::new(&mask, m, n, n + 1));
            let mask_matrix = if in_panels { mask_panels.matrix() } else { Matrix::new(&mask, m, n, n + 1) };
            let finish = match finish {
                0 => Finish::Replace,
                1 => Finish::Add,
                2 => Finish::Bias(&bias),
                3 => Finish::BiasRelu(&bias),
                _ => Finish::WherePositive(mask_matrix),
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
                transposed_product(to, finish, (a, 0..m), &panels);
            } else {
                product(to, finish, a, &panels);
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
                    let exact = match finish {
                        Finish::Replace => sum,
                        Finish::Add => sum + f64::from(before[here]),
                        Finish::Bias(bias) => sum + f64::from(bias[column]),
                        Finish::BiasRelu(bias) => (sum + f64::from(bias[column])).max(0.0),
                        Finish::WherePositive(_) if mask[row * (n + 1) + column] > 0.0 => sum,
                        Finish::WherePositive(_) => 0.0,
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
    fn broken_numbers_are_not_hidden_by_the_relu() {
        let (mut panels, mut out) = (Panels::default(), [0.0; 2]);
        panels.pack(Matrix::dense(&[f32::NAN, -1.0], 1, 2));
        let finish = Finish::BiasRelu(&[0.0, 0.0]);
        product(MatrixMut::dense(&mut out, 1, 2), finish, Matrix::dense(&[1.0], 1, 1), &panels);
        assert!(out[0].is_nan());
        assert_eq!(out[1], 0.0);
    }
}
