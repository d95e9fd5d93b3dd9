//! A table's rows in host memory, and their update.

use std::ops::Range;

use rayon::prelude::*;

use super::deduplicate::{BagPlace, Route};
use super::feature::Feature;
use crate::dtype::{Dtype, Rounding};
use crate::memory::Memory;
use crate::optimizer::{Optimizer, Step, Update, UpdateRule};
use crate::random::UniformField;
use crate::rows::{RowLayout, Touched};
use crate::table::TableSpec;
use crate::vectorized;

/// Rows start at multiples of 16 bytes.
const ALIGN_ELEMENTS: usize = 4;
/// Gradients of one row are summed in runs of this many, and the runs' sums in order: a row that every sample of a
/// large batch names would otherwise lose the small gradients to rounding.
const SUM_RUN: usize = 64;
/// Distinct rows that one task updates; it does not depend on the number of threads, nor does any result.
const ROWS_PER_TASK: usize = 128;

/// An embedding table in host memory: each row's optimizer state lies right behind its weights.
#[derive(Debug, Clone)]
pub struct Table {
    spec: TableSpec,
    optimizer: Optimizer,
    stride: usize,
    data: Memory,
    /// What the first weights were drawn from, where they were.
    field: Option<UniformField>,
    /// Which rows have been updated, where that is of interest.
    touched: Option<Touched>,
}

impl Table {
    /// A table of zeros, with the state that zeros start with. Elements are counted in 64 bits; memory is
    /// rows x (weights + state), 4 bytes each.
    pub fn zeroed(spec: TableSpec, optimizer: Optimizer) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = Memory::zeroed(spec.rows as usize * stride);
        let mut table = Self { spec, optimizer, stride, data, field: None, touched: None };
        let mut state = vec![0.0; optimizer.rule.state_elements(table.spec.dim)];
        optimizer.rule.initialize(&vec![0.0; table.spec.dim], &mut state);
        // Memory that was never written takes none.
        if state.iter().any(|state| *state != 0.0) {
            table.fill(|_, _| {});
        }
        table
    }

    /// A table as training starts with it: uniform weights within [`TableSpec::initial_bound`], a function of seed,
    /// table number, row and column alone.
    pub fn initialized(spec: TableSpec, optimizer: Optimizer, seed: u64, number: u32) -> Self {
        let (field, bound) = (UniformField::new(seed, number), spec.initial_bound());
        let table = Self::filled(spec, optimizer, |row, weights| field.fill_row(row, bound, weights));
        Self { field: Some(field), ..table }
    }

    /// A table whose weights `fill` sets, row by row, with the state that they start with. They are rounded to the
    /// table's type.
    pub fn filled(spec: TableSpec, optimizer: Optimizer, fill: impl Fn(u64, &mut [f32]) + Sync) -> Self {
        let stride = stride(&spec, optimizer.rule);
        let data = Memory::zeroed(spec.rows as usize * stride);
        let mut table = Self { spec, optimizer, stride, data, field: None, touched: None };
        table.fill(fill);
        table
    }

    /// Lets `fill` set the weights of every row, and sets the state that goes with them.
    fn fill(&mut self, fill: impl Fn(u64, &mut [f32]) + Sync) {
        let (dim, dtype, rule) = (self.spec.dim, self.spec.dtype, self.optimizer.rule);
        self.data.par_chunks_exact_mut(self.stride).enumerate().for_each(|(row, data)| {
            let (weights, state) = data.split_at_mut(dim);
            fill(row as u64, weights);
            weights.iter_mut().for_each(|weight| *weight = dtype.nearest(*weight));
            rule.initialize(weights, &mut state[..rule.state_elements(dim)]);
        });
    }

    /// Bytes that a table takes.
    pub fn bytes(spec: &TableSpec, rule: UpdateRule) -> u64 {
        spec.rows * (stride(spec, rule) * size_of::<f32>()) as u64
    }

    /// What the table is.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The weights of a row.
    pub fn weights(&self, row: u64) -> &[f32] {
        let start = row as usize * self.stride;
        &self.data[start..start + self.spec.dim]
    }

    /// The weights of a row, to be set; its state is not.
    pub fn weights_mut(&mut self, row: u64) -> &mut [f32] {
        let start = row as usize * self.stride;
        &mut self.data[start..start + self.spec.dim]
    }

    /// Updates every distinct row of a batch once, from the gradients of the pooled vectors.
    ///
    /// `route` was built from `features`; in `gradients` each feature's lie where its slot says.
    ///
    /// # Panics
    /// Where weights are to be rounded, and were not drawn from a seed.
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

    fn mark(&mut self, rows: &[u64]) {
        if let Some(touched) = &mut self.touched {
            touched.mark(rows);
        }
    }

    /// How a step's weights are rounded, where they are.
    fn rounding(&self, step: Step) -> Option<Rounding> {
        Rounding::new(self.spec.dtype, self.field, step.number)
    }

    /// Rounds some rows' weights: each is a row here with the row that it is of the table as a whole, of which this has
    /// the columns from `first_column` on.
    pub fn round(&mut self, rows: impl Iterator<Item = (u64, u64)>, first_column: usize, rounding: Rounding) {
        for (row, of_whole) in rows {
            rounding.round(of_whole, first_column, self.weights_mut(row));
        }
    }

    /// Updates some rows, each once, from the sums of their gradients, `[row, dim]`. Where the rule keeps one number a
    /// row and the table has only some columns of it, `mean_squares` are the means of the squared gradients over all
    /// columns, row by row.
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

    /// The sum of each row's squared gradients, weight decay included, from the sums of its gradients, `[row, dim]`.
    pub fn row_squares(&self, rows: &[u64], sums: &[f32]) -> Vec<f32> {
        let sums = sums.chunks_exact(self.spec.dim);
        rows.iter().zip(sums).map(|(&row, sum)| self.optimizer.row_squares(self.weights(row), sum)).collect()
    }

    /// A row's weights and, behind them, its optimizer state.
    pub fn row(&self, row: u64) -> &[f32] {
        let len = self.spec.dim + self.optimizer.rule.state_elements(self.spec.dim);
        &self.data[row as usize * self.stride..][..len]
    }

    /// How its rows lie in memory.
    pub fn layout(&self) -> RowLayout {
        let (dim, rule) = (self.spec.dim, self.optimizer.rule);
        RowLayout::new(self.stride, (dim, Dtype::Fp32), rule, (dim, dim))
    }

    /// Some rows as they lie in memory.
    ///
    /// # Panics
    /// Where there are not as many.
    pub fn words(&self, rows: Range<u64>) -> &[f32] {
        &self.data[rows.start as usize * self.stride..rows.end as usize * self.stride]
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// Where there are not as many.
    pub fn words_mut(&mut self, rows: Range<u64>) -> &mut [f32] {
        &mut self.data[rows.start as usize * self.stride..rows.end as usize * self.stride]
    }

    /// Which rows have been updated since [`Table::begin_tracking`]; `None` where there was none.
    pub fn touched(&self) -> Option<&Touched> {
        self.touched.as_ref()
    }

    /// Keeps book, from now on, of which rows are updated: a bit each.
    pub fn begin_tracking(&mut self) {
        self.touched = Some(Touched::none(self.spec.rows));
    }
}

/// Elements from one row to the next.
fn stride(spec: &TableSpec, rule: UpdateRule) -> usize {
    (spec.dim + rule.state_elements(spec.dim)).next_multiple_of(ALIGN_ELEMENTS)
}

/// All that updating a range of distinct rows takes, but the rows.
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
    /// Updates the distinct rows `range`; `data` holds the table from row `first_row` on. Distinct rows ascend, so that
    /// halves of a range lie in disjoint pieces of the table, which threads own one each.
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
            let scale = pooling.scale(bags.bag(bag.sample).len());
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

/// Sets `total` to the sum over a row's bags, in runs; `add` adds a bag's gradient. It is compiled into its callers, as
/// [`Update::apply`] is.
#[inline(always)]
pub(super) fn sum_in_runs(
    mut bags: impl ExactSizeIterator<Item = BagPlace>,
    total: &mut [f32],
    run_sum: &mut [f32],
    add: impl Fn(BagPlace, &mut [f32]),
) {
    total.fill(0.0);
    while bags.len() > 0 {
        run_sum.fill(0.0);
        bags.by_ref().take(SUM_RUN).for_each(|bag| add(bag, run_sum));
        total.iter_mut().zip(&*run_sum).for_each(|(total, sum)| *total += sum);
    }
}

vectorized! {
    /// Updates some distinct rows, one after the other.
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
