//! The rows of a table in host memory that a device does not store.

use std::ops::Range;

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::memory::Memory;
use crate::optimizer::UpdateRule;
use crate::random::UniformField;
use crate::rows::RowLayout;
use crate::table::TableSpec;
use crate::tier::HotRows;

/// Rows and each kind of their state have room for a multiple of this many elements.
const ALIGN_ELEMENTS: usize = 4;
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
    /// `hot` numbers rows of a part of the table, and `row_of_table` gives the table's numbers for these.
    pub fn initialize(
        &mut self,
        hot: &HotRows,
        row_of_table: impl Fn(u64) -> u64 + Sync,
        (spec, rule): (&TableSpec, UpdateRule),
        field: Option<UniformField>,
    ) {
        let (layout, bound) = (self.layout, spec.initial_bound());
        // Padding learns nothing, but has the state of weights that are zero, as on the device.
        let filled = layout.dim.next_multiple_of(ALIGN_ELEMENTS);
        let state_begin = layout.state().first().copied().unwrap_or(layout.words);
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
            let mut weights = vec![0.0; filled];
            let cold = rows.filter(|&row| !hot.contains(row));
            for (row, words) in cold.zip(data.chunks_exact_mut(layout.words)) {
                if let Some(field) = &field {
                    field.fill_row(row_of_table(row), bound, &mut weights[..layout.dim]);
                    weights.iter_mut().for_each(|weight| *weight = spec.dtype.nearest(*weight));
                }
                layout.set_weights(words, 0, Dtype::Fp32, bytemuck::cast_slice(&weights[..layout.dim]));
                rule.initialize(&weights, &mut words[state_begin..]);
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

    /// Copies rows one after another to `to`, by their numbers; not those of which `absent` is 0, which leave gaps.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn gather(&self, numbers: &[u32], absent: &[u32], to: &mut [f32]) {
        let words = self.layout.words;
        let rows = numbers.par_chunks(ROWS_PER_TASK).zip(absent.par_chunks(ROWS_PER_TASK));
        rows.zip(to.par_chunks_mut(ROWS_PER_TASK * words)).for_each(|((numbers, absent), to)| {
            for ((&number, &absent), to) in numbers.iter().zip(absent).zip(to.chunks_exact_mut(words)) {
                if absent != 0 {
                    to.copy_from_slice(self.words(number.into()..u64::from(number) + 1));
                }
            }
        });
    }

    /// Copies rows back from `from`, in which they are one after another. Their numbers must ascend.
    ///
    /// # Panics
    /// If there is no such row, or numbers do not ascend.
    pub fn scatter(&mut self, numbers: &[u32], from: &[f32]) {
        let words = self.layout.words;
        // Each task gets the part of the memory that has its rows.
        let (mut tasks, mut left, mut begin) = (Vec::new(), &mut self.data[..], 0);
        for (numbers, from) in numbers.chunks(ROWS_PER_TASK).zip(from.chunks(ROWS_PER_TASK * words)) {
            let end = numbers.last().map_or(begin, |&number| number as usize + 1);
            let (own, behind) = left.split_at_mut((end - begin) * words);
            tasks.push((begin, own, numbers, from));
            (left, begin) = (behind, end);
        }
        tasks.into_par_iter().for_each(|(begin, own, numbers, from)| {
            for (&number, from) in numbers.iter().zip(from.chunks_exact(words)) {
                own[(number as usize - begin) * words..][..words].copy_from_slice(from);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Optimizer;
    use crate::cpu::Table;

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
            cold.initialize(&hot, |row| row, (&spec, rule), Some(UniformField::new(7, 3)));
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
        let absent: Vec<u32> = wanted.iter().map(|number| u32::from(number % 2 == 0)).collect();
        cold.gather(&wanted, &absent, &mut staged);
        for (number, staged) in wanted.iter().zip(staged.chunks_exact_mut(4)) {
            assert_eq!(staged[3], if number % 2 == 0 { *number as f32 } else { -1.0 });
            staged.fill(-f64::from(*number) as f32);
        }
        cold.scatter(&wanted, &staged);
        for number in 0..spec.rows {
            let expected = if number % 3 == 1 { -(number as f32) } else { number as f32 };
            assert_eq!(cold.words(number..number + 1), [expected; 4]);
        }
    }
}
