//! Matrix products of one thread, on the kernels of [`super::kernel`].
//!
//! The left matrix is read where it lies. The right one is read from [`Panels`], packed once for many products; what
//! comes behind a product (a bias, a ReLU) is done while the sums are still in registers.

use super::kernel::{BLOCK_LINES, LANES, Line, Unit, Work, dispatch, panel_lines, prefetch, sum_block};

/// A matrix in a slice, rows `stride` elements apart.
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
    stride: usize,
}

impl Shape {
    fn new(rows: usize, columns: usize, stride: usize, elements: usize) -> Self {
        let shape = Self { rows, columns, stride };
        assert!(columns <= stride, "rows overlap: {shape:?}");
        let extent = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        assert!(extent <= elements, "{shape:?} does not fit {elements} elements");
        shape
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

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.shape.stride..][..self.shape.columns]
    }

    /// `count` columns from `first` on.
    fn columns(&self, first: usize, count: usize) -> Self {
        let Shape { rows, stride, .. } = self.shape;
        Self::new(self.data.get(first..).unwrap_or_default(), rows, count, stride)
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

impl Finish<'_> {
    /// What it is for `count` columns from `first` on.
    fn columns(self, first: usize, count: usize) -> Self {
        match self {
            Self::Replace | Self::Add => self,
            Self::Bias(bias) => Self::Bias(&bias[first..][..count]),
            Self::BiasRelu(bias) => Self::BiasRelu(&bias[first..][..count]),
            Self::WherePositive(mask) => Self::WherePositive(mask.columns(first, count)),
        }
    }
}

/// The right matrix of products, in panels: each has some lines of columns, and all rows of those one behind the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Panels {
    depth: usize,
    columns: usize,
    /// Lines of each panel but the last, which may have fewer.
    panel_lines: usize,
    lines: Vec<Line>,
}

impl Panels {
    /// Packs a matrix; missing columns of the last line are zeros.
    pub(super) fn pack(&mut self, b: Matrix<'_>) {
        self.lay(b.shape.rows, b.shape.columns);
        dispatch(Pack { b, panel_lines: self.panel_lines, lines: &mut self.lines });
    }

    /// Packs the transpose of a matrix.
    pub(super) fn pack_transposed(&mut self, b: Matrix<'_>) {
        self.lay(b.shape.columns, b.shape.rows);
        for (first, width, panel) in panels_mut(&mut self.lines, self.depth, self.panel_lines) {
            for v in 0..width {
                let first = first + v * LANES;
                let lanes = LANES.min(b.shape.rows - first);
                // In squares: lines of a panel lie so far apart that the first-level cache holds few of them.
                for (square, panel) in panel.chunks_mut(LANES * width).enumerate() {
                    for lane in 0..lanes {
                        let row = &b.row(first + lane)[square * LANES..];
                        for (lines, &value) in panel.chunks_exact_mut(width).zip(row) {
                            lines[v].0[lane] = value;
                        }
                    }
                    for lines in panel.chunks_exact_mut(width) {
                        lines[v].0[lanes..].fill(0.0);
                    }
                }
            }
        }
    }

    /// Sets the sizes, and makes room for lines that the caller writes, all of them.
    fn lay(&mut self, depth: usize, columns: usize) {
        (self.depth, self.columns, self.panel_lines) = (depth, columns, panel_lines());
        self.lines.resize(depth * columns.div_ceil(LANES), Line::ZERO);
    }
}

struct Pack<'a> {
    b: Matrix<'a>,
    panel_lines: usize,
    lines: &'a mut [Line],
}

impl Work for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(self, unit: U) {
        let Self { b, panel_lines, lines } = self;
        let panel_stride = b.shape.rows * panel_lines;
        // Row by row, as the matrix lies in memory.
        for row in 0..b.shape.rows {
            let (mut rest, mut panel) = (b.row(row), 0);
            while !rest.is_empty() {
                let (from, behind) = rest.split_at(rest.len().min(panel_lines * LANES));
                let width = from.len().div_ceil(LANES);
                let lines = &mut lines[panel + row * width..][..width];
                let (whole, cut) = from.as_chunks();
                for (line, from) in lines.iter_mut().zip(whole) {
                    unit.store(unit.load(from), &mut line.0);
                }
                if !cut.is_empty() {
                    lines[whole.len()].0 = whole_line(cut);
                }
                (rest, panel) = (behind, panel + panel_stride);
            }
        }
    }
}

/// Each panel with its first column and its lines.
fn panels_mut(
    lines: &mut [Line],
    depth: usize,
    panel_lines: usize,
) -> impl Iterator<Item = (usize, usize, &mut [Line])> {
    let panels = lines.chunks_mut((depth * panel_lines).max(1)).enumerate();
    panels.map(move |(number, panel)| (number * panel_lines * LANES, panel.len() / depth.max(1), panel))
}

/// `a b` on the calling thread.
pub(super) fn product(out: MatrixMut<'_>, finish: Finish<'_>, a: Matrix<'_>, b: &Panels) {
    let shape = (a.shape.rows, a.shape.columns, b.columns);
    assert!(
        shape == (out.shape.rows, b.depth, out.shape.columns),
        "{:?} = {:?} x {} rows",
        out.shape,
        a.shape,
        b.depth
    );
    multiply(out, finish, Left { data: a.data, row_stride: a.shape.stride, column_stride: 1 }, b);
}

/// `aᵀ b` on the calling thread, where `a` and `b` have a row a sample. `b` is packed into `scratch`, panel by panel,
/// so that each is still in the cache when it is read.
pub(super) fn transposed_product(
    out: MatrixMut<'_>,
    finish: Finish<'_>,
    a: Matrix<'_>,
    b: Matrix<'_>,
    scratch: &mut Panels,
) {
    let Shape { rows, columns, stride } = out.shape;
    let shape = (a.shape.columns, a.shape.rows, b.shape.columns);
    assert!(shape == (rows, b.shape.rows, columns), "{:?} = {:?}ᵀ {:?}", out.shape, a.shape, b.shape);
    let width = panel_lines() * LANES;
    for first in (0..columns).step_by(width) {
        let count = width.min(columns - first);
        scratch.pack(b.columns(first, count));
        multiply(
            MatrixMut::new(&mut out.data[first..], rows, count, stride),
            finish.columns(first, count),
            Left { data: a.data, row_stride: 1, column_stride: a.shape.stride },
            scratch,
        );
    }
}

/// The left matrix: element `(row, column)` is at `row * row_stride + column * column_stride`.
#[derive(Debug, Clone, Copy)]
struct Left<'a> {
    data: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

fn multiply(out: MatrixMut<'_>, finish: Finish<'_>, a: Left<'_>, b: &Panels) {
    let Shape { rows, columns, .. } = out.shape;
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
        let Panels { depth, columns, ref lines, .. } = *self.b;
        for number in 0..columns.div_ceil(LINES * LANES) {
            let first = number * LINES * LANES;
            let width = LINES.min((columns - first).div_ceil(LANES));
            let (panel, behind) = lines[number * LINES * depth..].split_at(width * depth);
            // The next panel is on its way while this one is used.
            let ahead = &behind[..behind.len().min(LINES * depth)];
            // Of a panel that is less than full, only the widths that there are in this unit are compiled.
            if width == LINES {
                self.panel::<U, ROWS, LINES>(unit, first, panel, ahead);
            } else if LINES > 3 && width == 3 {
                self.panel::<U, ROWS, 3>(unit, first, panel, ahead);
            } else if LINES > 2 && width == 2 {
                self.panel::<U, ROWS, 2>(unit, first, panel, ahead);
            } else {
                self.panel::<U, TALL, 1>(unit, first, panel, ahead);
            }
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn panel<U: Unit, const ROWS: usize, const LINES: usize>(
        &mut self,
        unit: U,
        column: usize,
        panel: &[Line],
        mut ahead: &[Line],
    ) {
        let rows = self.out.shape.rows;
        let mut row = 0;
        while row + ROWS <= rows {
            let (now, later) = ahead.split_at(ahead.len().min(panel.len() / LINES / 2));
            self.block::<U, ROWS, LINES>(unit, row, column, panel, now);
            (row, ahead) = (row + ROWS, later);
        }
        // What is left is less than one such block.
        if ROWS > 12 && row + 12 <= rows {
            self.block::<U, 12, LINES>(unit, row, column, panel, &[]);
            row += 12;
        }
        if ROWS > 6 && row + 6 <= rows {
            self.block::<U, 6, LINES>(unit, row, column, panel, &[]);
            row += 6;
        }
        if ROWS > 4 && row + 4 <= rows {
            self.block::<U, 4, LINES>(unit, row, column, panel, &[]);
            row += 4;
        }
        if ROWS > 2 && row + 2 <= rows {
            self.block::<U, 2, LINES>(unit, row, column, panel, &[]);
            row += 2;
        }
        if row < rows {
            self.block::<U, 1, LINES>(unit, row, column, panel, &[]);
        }
    }

    #[inline(always)]
    fn block<U: Unit, const ROWS: usize, const LINES: usize>(
        &mut self,
        unit: U,
        row: usize,
        column: usize,
        panel: &[Line],
        ahead: &[Line],
    ) {
        self.prefetch::<ROWS, LINES>(row, column);
        let Left { data, row_stride, column_stride } = self.a;
        // All slices get the same length, so that one check a step stands for all.
        let extent = (panel.len() / LINES).saturating_sub(1) * column_stride + 1;
        let rows: [&[f32]; ROWS] = std::array::from_fn(|r| match panel {
            [] => [].as_slice(),
            _ => &data[(row + r) * row_stride..][..extent],
        });
        let sums = self.sums[..ROWS * LINES].as_chunks_mut::<LINES>().0;
        sum_block::<U, ROWS, LINES>(unit, panel, |r, i| rows[r][i * column_stride], ahead, sums);
        self.finish::<U, ROWS, LINES>(unit, row, column);
    }

    /// Asks for what the sums of a block go into and are masked by, so that it is there when they are done.
    #[inline(always)]
    fn prefetch<const ROWS: usize, const LINES: usize>(&self, row: usize, column: usize) {
        let ask = |data: &[f32], stride: usize| {
            for r in 0..ROWS {
                for v in 0..LINES {
                    if let Some(first) = data.get((row + r) * stride + column + v * LANES) {
                        prefetch(first);
                    }
                }
            }
        };
        ask(self.out.data, self.out.shape.stride);
        if let Finish::WherePositive(mask) = self.finish {
            ask(mask.data, mask.shape.stride);
        }
    }

    #[inline(always)]
    fn finish<U: Unit, const ROWS: usize, const LINES: usize>(&mut self, unit: U, row: usize, column: usize) {
        let sums = self.sums[..ROWS * LINES].as_chunks::<LINES>().0;
        let Shape { columns, stride, .. } = self.out.shape;
        let width = (LINES * LANES).min(columns - column);
        let out = Window { data: &mut self.out.data[row * stride + column..], stride, width };
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
                let mask = (&mask.data[row * mask.shape.stride + column..], mask.shape.stride);
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
            let finish = match finish {
                0 => Finish::Replace,
                1 => Finish::Add,
                2 => Finish::Bias(&bias),
                3 => Finish::BiasRelu(&bias),
                _ => Finish::WherePositive(Matrix::new(&mask, m, n, n + 1)),
            };
            let mut out = before.clone();
            let a = Matrix::new(&left, left_rows, left_columns, left_columns + 1);
            let b = Matrix::dense(&right, right_rows, right_columns);
            let mut panels = Panels::default();
            // What was packed before leaves no trace.
            panels.pack(Matrix::dense(&random(90 * 90, seed), 90, 90));
            let out_matrix = MatrixMut::new(&mut out, m, n, n + 2);
            match form {
                0 => {
                    panels.pack(b);
                    product(out_matrix, finish, a, &panels);
                }
                1 => {
                    panels.pack_transposed(b);
                    product(out_matrix, finish, a, &panels);
                }
                _ => transposed_product(out_matrix, finish, a, b, &mut panels),
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
    fn broken_numbers_are_not_hidden_by_the_relu() {
        let (mut panels, mut out) = (Panels::default(), [0.0; 2]);
        panels.pack(Matrix::dense(&[f32::NAN, -1.0], 1, 2));
        let finish = Finish::BiasRelu(&[0.0, 0.0]);
        product(MatrixMut::dense(&mut out, 1, 2), finish, Matrix::dense(&[1.0], 1, 1), &panels);
        assert!(out[0].is_nan());
        assert_eq!(out[1], 0.0);
    }
}
