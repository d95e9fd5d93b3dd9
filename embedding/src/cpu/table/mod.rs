//! A table's rows in host memory, and their update.

use std::fs::File;
use std::io;
use std::ops::Range;

use rayon::prelude::*;

use super::deduplicate::{BagIndex, Route};
use super::feature::Feature;
use crate::dtype::{Dtype, Rounding};
use crate::memory::Memory;
use crate::optimizer::{Optimizer, Step, Update, UpdateRule};
use crate::random::UniformField;
use crate::rows::{RowLayout, TouchedRows};
use crate::table::TableSpec;
use crate::vectorized;

/// Rows start at multiples of 16 bytes.
const ALIGN_ELEMENTS: usize = 4;
/// Gradients of one row are summed in runs of this many, and the runs' sums in order: otherwise a row that every
/// sample of a large batch names would lose small gradients to rounding.
const SUM_RUN: usize = 64;
/// Distinct rows that one task updates. Results depend neither on it nor on the number of threads.
const ROWS_PER_TASK: usize = 128;

/// An embedding table in host memory: each row's optimizer state is stored right behind its weights.
#[derive(Debug, Clone)]
pub struct Table {
    spec: TableSpec,
    optimizer: Optimizer,
    stride: usize,
    data: Memory,
    /// The random field of the initial weights, if they were drawn from one.
    field: Option<UniformField>,
    /// Which rows have been updated, if tracked.
    touched: Option<TouchedRows>,
}

impl Table {
    /// Creates a table of zeros, with the matching initial state. Elements are counted in 64 bits; memory is rows x
    /// (weights + state), 4 bytes each.
    pub fn zeroed(spec: TableSpec, optimizer: Optimizer) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = Memory::zeroed(spec.rows as usize * stride);
        let mut table = Self { spec, optimizer, stride, data, field: None, touched: None };
        let mut state = vec![0.0; optimizer.rule.state_elements(table.spec.dim)];
        optimizer.rule.initialize(&vec![0.0; table.spec.dim], &mut state);
        // Memory that was never written takes no pages.
        if state.iter().any(|state| *state != 0.0) {
            table.fill(|_, _| {});
        }
        table
    }

    /// Creates a table as training starts with it: uniform weights within [`TableSpec::initial_bound`], which depend
    /// only on seed, table number, row and column.
    pub fn initialized(spec: TableSpec, optimizer: Optimizer, seed: u64, number: u32) -> Self {
        let (field, bound) = (UniformField::new(seed, number), spec.initial_bound());
        let table = Self::filled(spec, optimizer, |row, weights| field.fill_row(row, bound, weights));
        Self { field: Some(field), ..table }
    }

    /// Creates a table whose weights `fill` sets, row by row, with the matching initial state. Weights are rounded to
    /// the table's type.
    pub fn filled(spec: TableSpec, optimizer: Optimizer, fill: impl Fn(u64, &mut [f32]) + Sync) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = Memory::zeroed(spec.rows as usize * stride);
        let mut table = Self { spec, optimizer, stride, data, field: None, touched: None };
        table.fill(fill);
        table
    }

    /// Maps a table in fp32 from a file that has its rows one after another from `offset` on. It has no optimizer
    /// state, and shares its memory with every process that maps it.
    ///
    /// # Safety
    /// The file must not change as long as the table lives. If it is truncated, access ends the process.
    ///
    /// # Panics
    /// If the table is of another type, or `offset` is not a multiple of 4.
    ///
    /// # Errors
    /// Those of the system.
    pub unsafe fn mapped(spec: TableSpec, file: &File, offset: u64) -> io::Result<Self> {
        assert_eq!(spec.dtype, Dtype::Fp32, "rows are used as the file has them");
        let stride = spec.dim;
        // SAFETY: the caller vouches for the file.
        let data = unsafe { Memory::of_file(file, offset, spec.rows as usize * stride) }?;
        Ok(Self { spec, optimizer: Optimizer::sgd(0.0), stride, data, field: None, touched: None })
    }

    /// Calls `fill` for the weights of every row, and sets the matching state.
    fn fill(&mut self, fill: impl Fn(u64, &mut [f32]) + Sync) {
        let (dim, dtype, rule) = (self.spec.dim, self.spec.dtype, self.optimizer.rule);
        self.data.par_chunks_exact_mut(self.stride).enumerate().for_each(|(row, data)| {
            let (weights, state) = data.split_at_mut(dim);
            fill(row as u64, weights);
            weights.iter_mut().for_each(|weight| *weight = dtype.nearest(*weight));
            rule.initialize(weights, &mut state[..rule.state_elements(dim)]);
        });
    }

    /// Bytes of a table, or the largest number if there are more.
    pub fn bytes(spec: &TableSpec, rule: UpdateRule) -> u64 {
        spec.rows.saturating_mul((stride(spec, rule) * size_of::<f32>()) as u64)
    }

    /// The table's description.
    #[inline]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The weights of a row.
    #[inline]
    pub fn weights(&self, row: u64) -> &[f32] {
        let start = row as usize * self.stride;
        &self.data[start..start + self.spec.dim]
    }

    /// The weights of a row, for writing; its state is not changed.
    pub fn weights_mut(&mut self, row: u64) -> &mut [f32] {
        let start = row as usize * self.stride;
        &mut self.data[start..start + self.spec.dim]
    }

    /// Updates every distinct row of a batch once, from the gradients of the pooled vectors.
    ///
    /// `route` must have been built from `features`; in `gradients`, each feature's gradients are at its slot.
    ///
    /// # Panics
    /// If weights are to be rounded, but were not drawn from a seed.
    pub fn update(&mut self, route: &Route, features: &[Feature<'_>], gradients: &[f32], step: Step) {
        let task = UpdateTask {
            dim: self.spec.dim,
            state_elements: self.optimizer.rule.state_elements(self.spec.dim),
            stride: self.stride,
            update: self.optimizer.at(step),
            rounding: self.rounding(step),
            route,
            features,
            gradients,
        };
        task.run(0..route.rows.len(), 0, &mut self.data);
        self.mark(&route.rows);
    }

    /// Marks rows as updated, if that is tracked.
    pub(super) fn mark(&mut self, rows: &[u64]) {
        if let Some(touched) = &mut self.touched {
            touched.mark(rows);
        }
    }

    /// How a step's weights are rounded, if they are.
    fn rounding(&self, step: Step) -> Option<Rounding> {
        Rounding::new(self.spec.dtype, self.field, step.number)
    }

    /// Rounds some rows' weights. Each is given as its row here and its row in the whole table; the table here has
    /// the columns from `first_column` on.
    pub fn round(&mut self, rows: impl Iterator<Item = (u64, u64)>, first_column: usize, rounding: Rounding) {
        for (row, of_whole) in rows {
            rounding.round(of_whole, first_column, self.weights_mut(row));
        }
    }

    /// Updates some rows, each once, from the sums of their gradients, `[row, dim]`. If the rule keeps one number per
    /// row and the table has only some of a row's columns, `mean_squares` are the means of the squared gradients over
    /// all columns, one per row.
    pub fn update_summed(&mut self, rows: &[u64], sums: &[f32], mean_squares: Option<&[f32]>, step: Step) {
        let dim = self.spec.dim;
        let state_elements = self.optimizer.rule.state_elements(dim);
        let update = self.optimizer.at(step);
        for (index, (&row, sum)) in rows.iter().zip(sums.chunks_exact(dim)).enumerate() {
            let row = &mut self.data[row as usize * self.stride..][..self.stride];
            let (weights, state) = row.split_at_mut(dim);
            let state = &mut state[..state_elements];
            match mean_squares {
                Some(means) => update.apply_rowwise(weights, state, sum, means[index]),
                None => update.apply(weights, state, sum),
            }
        }
        self.mark(rows);
    }

    /// The sum of each row's squared gradients, including weight decay, from the sums of its gradients, `[row, dim]`.
    pub fn row_squares(&self, rows: &[u64], sums: &[f32]) -> Vec<f32> {
        let sums = sums.chunks_exact(self.spec.dim);
        rows.iter().zip(sums).map(|(&row, sum)| self.optimizer.row_squares(self.weights(row), sum)).collect()
    }

    /// A row's weights, followed by its optimizer state.
    pub fn row(&self, row: u64) -> &[f32] {
        let len = self.spec.dim + self.optimizer.rule.state_elements(self.spec.dim);
        &self.data[row as usize * self.stride..][..len]
    }

    /// The memory layout of its rows.
    pub fn layout(&self) -> RowLayout {
        let (dim, rule) = (self.spec.dim, self.optimizer.rule);
        RowLayout::new(self.stride, (dim, Dtype::Fp32), rule, (dim, dim))
    }

    /// Some rows in their memory layout.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn words(&self, rows: Range<u64>) -> &[f32] {
        &self.data[rows.start as usize * self.stride..rows.end as usize * self.stride]
    }

    /// The same, for writing.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn words_mut(&mut self, rows: Range<u64>) -> &mut [f32] {
        &mut self.data[rows.start as usize * self.stride..rows.end as usize * self.stride]
    }

    /// Which rows have been updated since [`Table::begin_tracking`]; `None` if it was not called.
    pub fn touched(&self) -> Option<&TouchedRows> {
        self.touched.as_ref()
    }

    /// Starts recording which rows are updated, one bit each.
    pub fn begin_tracking(&mut self) {
        self.touched = Some(TouchedRows::none(self.spec.rows));
    }
}

/// Elements from one row to the next.
fn stride(spec: &TableSpec, rule: UpdateRule) -> usize {
    (spec.dim + rule.state_elements(spec.dim)).next_multiple_of(ALIGN_ELEMENTS)
}

/// Inputs of an update of a range of distinct rows.
struct UpdateTask<'a> {
    dim: usize,
    state_elements: usize,
    stride: usize,
    update: Update,
    rounding: Option<Rounding>,
    route: &'a Route,
    features: &'a [Feature<'a>],
    gradients: &'a [f32],
}

impl UpdateTask<'_> {
    /// Updates the distinct rows `range`; `data` holds the table from row `first_row` on. Distinct rows ascend, so
    /// halves of a range are in disjoint pieces of the table, each owned by one thread.
    fn run(&self, range: Range<usize>, first_row: u64, data: &mut [f32]) {
        if range.len() <= ROWS_PER_TASK {
            return update_rows(self, range, first_row, data);
        }
        let middle = range.start + range.len() / 2;
        let row = self.route.rows[middle];
        let (low, high) = data.split_at_mut((row - first_row) as usize * self.stride);
        rayon::join(
            || self.run(range.start..middle, first_row, low),
            || self.run(middle..range.end, row, high),
        );
    }

    #[inline(always)]
    fn update_row(&self, index: usize, row: &mut [f32], sums: &mut [f32]) {
        let (total, run_sum) = sums.split_at_mut(self.dim);
        sum_in_runs(self.route.bags_of(index), total, run_sum, |bag, sums| {
            let Feature { bags, pooling, slot } = &self.features[bag.feature];
            let start = bag.sample * slot.stride + slot.offset;
            let scale = bag.factor.unwrap_or_else(|| pooling.scale(bags.bag(bag.sample).len()));
            let gradient = &self.gradients[start..start + self.dim];
            sums.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient * scale);
        });
        let (weights, state) = row.split_at_mut(self.dim);
        self.update.apply(weights, &mut state[..self.state_elements], total);
        if let Some(rounding) = self.rounding {
            rounding.round(self.route.rows[index], 0, weights);
        }
    }
}

/// Sets `total` to the sum over a row's bags, in runs; `add` adds a bag's gradient. It is inlined into its callers,
/// as [`Update::apply`] is.
#[inline(always)]
pub(super) fn sum_in_runs(
    mut bags: impl ExactSizeIterator<Item = BagIndex>,
    total: &mut [f32],
    run_sum: &mut [f32],
    add: impl Fn(BagIndex, &mut [f32]),
) {
    total.fill(0.0);
    while bags.len() > 0 {
        run_sum.fill(0.0);
        bags.by_ref().take(SUM_RUN).for_each(|bag| add(bag, run_sum));
        total.iter_mut().zip(&*run_sum).for_each(|(total, sum)| *total += sum);
    }
}

vectorized! {
    /// Updates some distinct rows, one after another.
    fn update_rows(task: &UpdateTask<'_>, range: Range<usize>, first_row: u64, data: &mut [f32]) {
        let mut sums = vec![0.0; 2 * task.dim];
        for index in range {
            let start = (task.route.rows[index] - first_row) as usize * task.stride;
            task.update_row(index, &mut data[start..start + task.stride], &mut sums);
        }
    }
}

#[cfg(test)]
mod tests;
