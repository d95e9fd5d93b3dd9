//! The rows of a table in host memory that a device does not store.

use std::ops::Range;

use rayon::prelude::*;

use crate::memory::Memory;
use crate::optimizer::UpdateRule;
use crate::random::UniformField;
use crate::rows::RowLayout;
use crate::table::TableSpec;
use crate::tier::HotRows;

/// Rows that one task copies.
const ROWS_PER_TASK: usize = 256;

/// The cold rows of a table with their optimizer state, in ascending order and in the device's layout.
#[derive(Debug)]
pub struct ColdRows {
    layout: RowLayout,
    data: Memory,
}

impl ColdRows {
    /// Allocates the rows, as zeros. Memory that is never written takes no pages.
    pub fn zeroed(layout: RowLayout, rows: u64) -> Self {
        Self { layout, data: Memory::zeroed(rows as usize * layout.words) }
    }

    /// Writes the weights with which training starts, and the matching state; the weights are zeros without a field.
    pub fn initialize(
        &mut self,
        hot: &HotRows,
        spec: &TableSpec,
        rule: UpdateRule,
        field: Option<UniformField>,
    ) {
        let (layout, bound) = (self.layout, spec.initial_bound());
        let (dim, states) = (layout.dim, rule.state_elements(layout.dim));
        let rows = hot.table_rows();
        // A task takes a range of the table, whose cold rows are consecutive.
        let (mut tasks, mut left) = (Vec::new(), &mut self.data[..]);
        for first in (0..rows).step_by(1 << 16) {
            let last = rows.min(first + (1 << 16));
            let cold = (last - first) - (hot.before(last) - hot.before(first));
            let (own, behind) = left.split_at_mut(cold as usize * layout.words);
            tasks.push((first..last, own));
            left = behind;
        }
        tasks.into_par_iter().for_each(|(rows, data)| {
            let (mut weights, mut state) = (vec![0.0; dim], vec![0.0; states]);
            let cold = rows.filter(|&row| !hot.contains(row));
            for (row, words) in cold.zip(data.chunks_exact_mut(layout.words)) {
                if let Some(field) = &field {
                    field.fill_row(row, bound, &mut weights);
                    weights.iter_mut().for_each(|weight| *weight = spec.dtype.nearest(*weight));
                }
                rule.initialize(&weights, &mut state);
                layout.set_weights(words, 0, crate::Dtype::Fp32, bytemuck::cast_slice(&weights));
                for (&begin, state) in layout.state().iter().zip(state.chunks_exact(layout.state_words())) {
                    words[begin..][..state.len()].copy_from_slice(state);
                }
            }
        });
    }

    /// The memory layout of a row.
    pub fn layout(&self) -> RowLayout {
        self.layout
    }

    /// The words of consecutive cold rows, by their numbers.
    pub fn words(&self, numbers: Range<u64>) -> &[f32] {
        &self.data[numbers.start as usize * self.layout.words..numbers.end as usize * self.layout.words]
    }

    /// The same, for writing.
    pub fn words_mut(&mut self, numbers: Range<u64>) -> &mut [f32] {
        let words = self.layout.words;
        &mut self.data[numbers.start as usize * words..numbers.end as usize * words]
    }

    /// Copies rows one after another to `to`. `number` gives the number of each cold row that is wanted, or `None` for
    /// one that is to be left out.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn gather<N>(&self, rows: &[N], number: impl Fn(&N) -> Option<u64> + Sync, to: &mut [f32])
    where
        N: Sync,
    {
        let words = self.layout.words;
        let tasks = rows.par_chunks(ROWS_PER_TASK).zip(to.par_chunks_mut(ROWS_PER_TASK * words));
        tasks.for_each(|(rows, to)| {
            for (row, to) in rows.iter().zip(to.chunks_exact_mut(words)) {
                if let Some(number) = number(row) {
                    to.copy_from_slice(self.words(number..number + 1));
                }
            }
        });
    }

    /// Copies rows back from `from`, in which they are one after another. Their numbers must ascend.
    ///
    /// # Panics
    /// If there is no such row, or numbers do not ascend.
    pub fn scatter<N>(&mut self, rows: &[N], number: impl Fn(&N) -> u64 + Sync, from: &[f32])
    where
        N: Sync,
    {
        let words = self.layout.words;
        // Each task gets the part of the memory that has its rows.
        let (mut tasks, mut left, mut begin) = (Vec::new(), &mut self.data[..], 0);
        for (rows, from) in rows.chunks(ROWS_PER_TASK).zip(from.chunks(ROWS_PER_TASK * words)) {
            let end = rows.last().map_or(begin, |row| number(row) + 1);
            let (own, behind) = left.split_at_mut((end - begin) as usize * words);
            tasks.push((begin, own, rows, from));
            (left, begin) = (behind, end);
        }
        tasks.into_par_iter().for_each(|(begin, own, rows, from)| {
            for (row, from) in rows.iter().zip(from.chunks_exact(words)) {
                own[(number(row) - begin) as usize * words..][..words].copy_from_slice(from);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Table;
    use crate::{Dtype, Optimizer};

    fn layout(spec: &TableSpec, rule: UpdateRule) -> RowLayout {
        let weight_words = (spec.dim * spec.dtype.bytes() / 4).next_multiple_of(4);
        let words = weight_words + rule.state_elements(spec.dim).next_multiple_of(4);
        RowLayout::new(words, (spec.dim, spec.dtype), rule, (weight_words, spec.dim))
    }

    #[test]
    fn cold_rows_start_as_those_of_a_table() {
        let rule = UpdateRule::Ftrl { beta: 0.5, l1: 0.0, l2: 0.0 };
        for dtype in [Dtype::Fp32, Dtype::Bf16] {
            let spec = TableSpec { name: "t".into(), rows: 70_000, dim: 8, dtype };
            let optimizer = Optimizer { rule, ..Optimizer::sgd(0.1) };
            let table = Table::initialized(spec.clone(), optimizer, 7, 3);
            let hot = HotRows::of(spec.rows, (0..spec.rows).filter(|row| row % 7 == 2 || *row > 69_000));
            let layout = layout(&spec, rule);
            let mut cold = ColdRows::zeroed(layout, spec.rows - hot.len());
            cold.initialize(&hot, &spec, rule, Some(UniformField::new(7, 3)));
            let mut weights = vec![0.0; 8];
            for (number, row) in (0..).zip((0..spec.rows).filter(|&row| !hot.contains(row))) {
                let words = cold.words(number..number + 1);
                layout.read_weights(words, &mut weights);
                assert_eq!(weights, table.weights(row), "row {row}");
                let z: Vec<f32> = weights.iter().map(|weight| -0.5 * weight).collect();
                assert_eq!(words[layout.state()[0]..][..8], z, "row {row}");
            }
        }
    }

    #[test]
    fn gathered_rows_come_back_to_their_places() {
        let spec = TableSpec { name: "t".into(), rows: 5000, dim: 4, dtype: Dtype::Fp32 };
        let layout = layout(&spec, UpdateRule::Sgd);
        let mut cold = ColdRows::zeroed(layout, spec.rows);
        for number in 0..spec.rows {
            cold.words_mut(number..number + 1).fill(number as f32);
        }
        let wanted: Vec<u32> = (0..5000).filter(|number| number % 3 == 1).collect();
        let mut staged = vec![-1.0; wanted.len() * 4];
        cold.gather(&wanted, |&number| (number % 2 == 0).then_some(number.into()), &mut staged);
        for (number, staged) in wanted.iter().zip(staged.chunks_exact_mut(4)) {
            assert_eq!(staged[3], if number % 2 == 0 { *number as f32 } else { -1.0 });
            staged.fill(-f64::from(*number) as f32);
        }
        cold.scatter(&wanted, |&number| number.into(), &staged);
        for number in 0..spec.rows {
            let expected = if number % 3 == 1 { -(number as f32) } else { number as f32 };
            assert_eq!(cold.words(number..number + 1), [expected; 4]);
        }
    }
}
