//! Matrices in memory: row by row, in panels, and in pairs of bf16 numbers.

use std::ops::Range;

use crate::kernel::{Element, Line, Pair, panel_lines};
use crate::simd::{Kernel, LANES, Simd};

/// A matrix in a slice, row by row or in panels.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, E = f32> {
    pub(crate) data: &'a [E],
    pub(crate) shape: MatrixShape,
}

/// A matrix to write to.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) shape: MatrixShape,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixShape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Elements from one panel's worth of columns to the next.
    pub(crate) panel_stride: usize,
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
    pub(crate) fn column(&self, column: usize) -> usize {
        column / panel_width() * self.panel_stride + column % panel_width()
    }

    /// Divides columns at the ends of panels: the offset of each part, and its number of columns.
    fn parts(self, columns: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        let mut column = columns.start;
        std::iter::from_fn(move || {
            let width = (columns.end - column).min(panel_width() - column % panel_width());
            let start = self.column(column);
            column += width;
            (width > 0).then_some((start, width))
        })
    }
}

impl<'a> Matrix<'a> {
    /// `rows` x `columns`, rows `stride` elements apart.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, shape: MatrixShape::new(rows, columns, stride, data.len()) }
    }

    /// `rows` x `columns`, stored row after row without gaps.
    pub fn dense(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }

    /// Returns a row of a matrix that is stored row by row.
    fn row(&self, row: usize) -> &'a [f32] {
        debug_assert_eq!(self.shape.panel_stride, panel_width(), "a matrix in panels has no rows");
        &self.data[row * self.shape.stride..][..self.shape.columns]
    }
}

#[allow(private_bounds, reason = "callers have matrices of f32 only")]
impl<E: Element> Matrix<'_, E> {
    /// Returns some columns, each with its elements after each other.
    pub(crate) fn transposed(&self, columns: Range<usize>) -> Vec<E> {
        let MatrixShape { rows, stride, .. } = self.shape;
        let mut transposed = vec![E::zeroed(); columns.len() * rows];
        let mut rest = &mut transposed[..];
        for (start, width) in self.shape.parts(columns) {
            let these = rest.split_off_mut(..width * rows).expect("there are as many columns");
            // In memory order: the part is rarely in a cache.
            for row in 0..rows {
                let elements = &self.data[start + row * stride..][..width];
                these[row..].iter_mut().step_by(rows).zip(elements).for_each(|(to, element)| *to = *element);
            }
        }
        transposed
    }

    /// Adds the numbers of each column from `first` on to `sums`, one row after another.
    pub(crate) fn add_rows_to(&self, first: usize, sums: &mut [f32]) {
        let mut rest = sums;
        for (start, width) in self.shape.parts(first..first + rest.len()) {
            let these = rest.split_off_mut(..width).expect("a sum per column");
            for row in 0..self.shape.rows {
                let row = &self.data[start + row * self.shape.stride..][..width];
                these.iter_mut().zip(row).for_each(|(sum, element)| *sum = element.add_to(*sum));
            }
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` x `columns`, rows `stride` elements apart.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let shape = MatrixShape::new(rows, columns, stride, data.len());
        Self { data, shape }
    }

    /// `rows` x `columns`, stored row after row without gaps.
    pub fn dense(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, rows, columns, columns)
    }
}

/// A matrix in panels: each panel is as many columns wide as the kernels, and stores all rows of them one after
/// another. Panels of pairs have half as many rows, or half as many columns, as their matrix has.
#[derive(Debug, Clone)]
pub struct Panels<E = f32> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Elements after the last column are undefined.
    pub(crate) lines: Vec<Line<E>>,
}

impl<E> Default for Panels<E> {
    fn default() -> Self {
        Self { rows: 0, columns: 0, lines: Vec::new() }
    }
}

#[allow(private_bounds, reason = "callers have matrices of f32 only")]
impl<E: Element> Panels<E> {
    /// Sets the sizes, and allocates elements for the caller to write.
    pub(crate) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        let lines = columns.div_ceil(panel_width()) * rows * panel_lines();
        self.lines.resize(lines, bytemuck::Zeroable::zeroed());
    }

    /// Returns the matrix as the left operand of a product.
    pub(crate) fn matrix(&self) -> Matrix<'_, E> {
        Matrix { data: bytemuck::cast_slice(&self.lines), shape: self.shape() }
    }

    fn shape(&self) -> MatrixShape {
        let Self { rows, columns, .. } = *self;
        MatrixShape { rows, columns, stride: panel_width(), panel_stride: rows.max(1) * panel_width() }
    }

    /// Returns the number of the line that has an element. `FULL` are the lines of a full panel.
    #[inline(always)]
    fn line<const FULL: usize>(&self, row: usize, column: usize) -> usize {
        let (panel, line) = (column / (FULL * LANES), column / LANES % FULL);
        (panel * self.rows + row) * FULL + line
    }

    /// Packs a matrix as the right operand of a product: pairs consist of a row and the next one.
    pub(crate) fn pack(&mut self, matrix: Matrix<'_>) {
        self.resize(matrix.shape.rows.div_ceil(E::NUMBERS), matrix.shape.columns);
        E::dispatch(Pack { matrix, panels: self });
    }

    /// Packs the transpose of a matrix in the same way.
    pub(crate) fn pack_transposed(&mut self, matrix: Matrix<'_>) {
        self.resize(matrix.shape.columns.div_ceil(E::NUMBERS), matrix.shape.rows);
        E::dispatch(PackTransposed { matrix, panels: self });
    }
}

impl Panels {
    /// Returns the matrix as the result of a product.
    pub(crate) fn matrix_mut(&mut self) -> MatrixMut<'_> {
        MatrixMut { shape: self.shape(), data: bytemuck::cast_slice_mut(&mut self.lines) }
    }
}

/// Returns the elements in a row of a panel.
pub(crate) fn panel_width() -> usize {
    panel_lines() * LANES
}

struct Pack<'a, E> {
    matrix: Matrix<'a>,
    panels: &'a mut Panels<E>,
}

impl<E: Element> Kernel for Pack<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let MatrixShape { rows, columns, .. } = self.matrix.shape;
        let depth = self.panels.rows;
        // Row by row, in memory order.
        for row in 0..depth {
            let first = self.matrix.row(row * E::NUMBERS);
            let second = row * E::NUMBERS + 1;
            let second = if E::NUMBERS > 1 && second < rows { self.matrix.row(second) } else { &[] };
            for column in (0..columns).step_by(LANES) {
                let elements = E::interleave(simd, &line_at(first, column), &line_at(second, column));
                let line = self.panels.line::<LINES>(row, column);
                self.panels.lines[line].0 = elements;
            }
        }
    }
}

struct PackTransposed<'a, E> {
    matrix: Matrix<'a>,
    panels: &'a mut Panels<E>,
}

impl<E: Element> Kernel for PackTransposed<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let Panels { rows: depth, columns, ref mut lines } = *self.panels;
        for first in (0..columns).step_by(LINES * LANES) {
            // In squares: the lines of a column are so far apart that the first-level cache holds few of them.
            for top in (0..depth).step_by(LANES) {
                for column in first..columns.min(first + LINES * LANES) {
                    let (row, number) = (self.matrix.row(column), top * E::NUMBERS);
                    let elements =
                        E::consecutive(simd, &[line_at(row, number), line_at(row, number + LANES)]);
                    let start = first / LANES * depth + top * LINES + (column - first) / LANES;
                    for i in 0..LANES.min(depth - top) {
                        lines[start + i * LINES].0[column % LANES] = elements[i];
                    }
                }
            }
        }
    }
}

/// A matrix of bf16 numbers in both forms that products read.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    rows: usize,
    columns: usize,
    /// Pairs of a row and the next one: the right operand of a product, or the left one of a transposed product.
    pub(crate) of_rows: Panels<Pair>,
    /// Pairs of a column and the next one: the left operand of a product.
    pub(crate) of_columns: Panels<Pair>,
}

impl Pairs {
    /// Sets the sizes, and allocates elements for the caller to write.
    pub(crate) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        self.of_rows.resize(rows.div_ceil(2), columns);
        self.of_columns.resize(rows, columns.div_ceil(2));
    }

    /// Rounds a matrix to bf16.
    pub(crate) fn pack(&mut self, matrix: Matrix<'_>) {
        self.resize(matrix.shape.rows, matrix.shape.columns);
        Pair::dispatch(PackPairs { matrix, pairs: self });
    }

    /// Returns rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Rounds a block of rows of `width` lines, which starts at an even row and at a panel. What it has beyond the last
    /// column is overwritten or ignored. `FULL` are the lines of a full panel.
    #[inline(always)]
    pub(crate) fn store<S: Simd, const FULL: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
        width: usize,
        block: &mut [Line],
    ) {
        debug_assert!(row.is_multiple_of(2) && column.is_multiple_of(FULL * LANES));
        let beyond = self.columns - column;
        if beyond < width * LANES && !beyond.is_multiple_of(2) {
            // It makes a pair with the last column.
            for lines in block.chunks_exact_mut(width) {
                lines[beyond / LANES].0[beyond % LANES] = 0.0;
            }
        }
        let start = self.of_rows.line::<FULL>(row / 2, column);
        for (pair, lines) in block.chunks(2 * width).enumerate() {
            let to = &mut self.of_rows.lines[start + pair * FULL..][..width];
            let (first, second) = lines.split_at(width);
            for v in 0..width {
                let second = if let Some(line) = second.get(v) { line } else { &Line::ZERO };
                to[v].0 = Pair::interleave(simd, &first[v].0, &second.0);
            }
        }
        // A line has two numbers per lane.
        let start = self.of_columns.line::<FULL>(row, column / 2) * 2 * LANES + column % (2 * LANES);
        let numbers: &mut [u16] = bytemuck::cast_slice_mut(&mut self.of_columns.lines);
        for (r, lines) in block.chunks_exact(width).enumerate() {
            let to = &mut numbers[start + r * FULL * 2 * LANES..][..width * LANES];
            for v in 0..width {
                to[v * LANES..][..LANES].copy_from_slice(&simd.round(&lines[v].0));
            }
        }
    }

    /// Reads a block of rows of `width` lines at an even row, as f32. Numbers beyond the last column are undefined.
    #[inline(always)]
    pub(crate) fn load<S: Simd, const FULL: usize>(
        &self,
        simd: S,
        row: usize,
        column: usize,
        width: usize,
        block: &mut [Line],
    ) {
        let start = self.of_rows.line::<FULL>(row / 2, column);
        for (pair, lines) in block.chunks_mut(2 * width).enumerate() {
            let from = &self.of_rows.lines[start + pair * FULL..][..width];
            let (first, second) = lines.split_at_mut(width);
            for v in 0..width {
                let numbers = simd.unpack(Pair::load(simd, &from[v].0));
                simd.store(numbers[0], &mut first[v].0);
                if let Some(second) = second.get_mut(v) {
                    simd.store(numbers[1], &mut second.0);
                }
            }
        }
    }
}

struct PackPairs<'a> {
    matrix: Matrix<'a>,
    pairs: &'a mut Pairs,
}

impl Kernel for PackPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) {
        let MatrixShape { rows, columns, .. } = self.matrix.shape;
        for row in (0..rows).step_by(2) {
            for column in (0..columns).step_by(LINES * LANES) {
                let mut block = [[Line::ZERO; LINES]; 2];
                let block = &mut block[..(rows - row).min(2)];
                for (r, lines) in block.iter_mut().enumerate() {
                    for (v, line) in lines.iter_mut().enumerate() {
                        line.0 = line_at(self.matrix.row(row + r), column + v * LANES);
                    }
                }
                self.pairs.store::<S, LINES>(simd, row, column, LINES, block.as_flattened_mut());
            }
        }
    }
}

/// Returns sixteen numbers of a row, padded with zeros.
#[inline(always)]
fn line_at(row: &[f32], column: usize) -> [f32; LANES] {
    if row.len() < column + LANES {
        return whole_line(&row[column.min(row.len())..]);
    }
    let mut line = [0.0; LANES];
    line.copy_from_slice(&row[column..column + LANES]);
    line
}

/// Returns a line of floats, padded with zeros.
#[inline(always)]
pub(crate) fn whole_line(floats: &[f32]) -> [f32; LANES] {
    let mut line = [0.0; LANES];
    line[..floats.len()].copy_from_slice(floats);
    line
}

/// What products multiply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Numbers in f32.
    #[default]
    F32,
    /// Numbers rounded to bf16; sums are in f32.
    Bf16,
}

/// A matrix that products read, as their left or their right operand.
#[derive(Debug)]
pub enum Operand {
    /// In f32.
    Floats(Panels),
    /// Rounded to bf16.
    Pairs(Pairs),
}

impl Default for Operand {
    fn default() -> Self {
        Self::Floats(Panels::default())
    }
}

impl Operand {
    /// Sets the sizes, and allocates elements for the caller to write.
    pub fn resize(&mut self, arithmetic: Arithmetic, rows: usize, columns: usize) {
        match (&mut *self, arithmetic) {
            (Self::Floats(panels), Arithmetic::F32) => panels.resize(rows, columns),
            (Self::Pairs(pairs), Arithmetic::Bf16) => pairs.resize(rows, columns),
            (Self::Pairs(_), Arithmetic::F32) => {
                *self = Self::Floats(Panels::default());
                self.resize(arithmetic, rows, columns);
            }
            (Self::Floats(_), Arithmetic::Bf16) => {
                *self = Self::Pairs(Pairs::default());
                self.resize(arithmetic, rows, columns);
            }
        }
    }

    /// Returns the bytes of an operand of these sizes. Its panels are as wide as those of the kernels; in bf16, it has
    /// two forms of half as many bytes each.
    pub fn bytes(rows: usize, columns: usize) -> u64 {
        let columns = columns.next_multiple_of(panel_width());
        (size_of::<f32>() as u64).saturating_mul(rows as u64).saturating_mul(columns as u64)
    }

    /// Packs a matrix, in the arithmetic of the last [`Operand::resize`].
    pub fn pack(&mut self, matrix: Matrix<'_>) {
        match self {
            Self::Floats(panels) => panels.pack(matrix),
            Self::Pairs(pairs) => pairs.pack(matrix),
        }
    }

    /// Adds the numbers of each column from `first` on to `sums`, one row after another.
    pub fn add_rows_to(&self, first: usize, sums: &mut [f32]) {
        match self {
            Self::Floats(panels) => panels.matrix().add_rows_to(first, sums),
            Self::Pairs(pairs) => pairs.of_rows.matrix().add_rows_to(first, sums),
        }
    }
}
