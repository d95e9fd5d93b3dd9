//! The rows of a table in host memory that a device does not store.

use std::ops::Range;

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::memory::Memory;
use crate::optimizer::UpdateRule;
use crate::random::UniformField;
use crate::rows::{RowLayout, VECTOR};
use crate::table::TableSpec;
use crate::tier::HotRows;

/// Rows that one task copies: few, because each waits for memory, and a batch has only some ten thousand.
const ROWS_PER_TASK: usize = 64;
/// How many rows before it is copied a row is loaded into the cache.
const ROWS_AHEAD: usize = 8;
/// Words of a line of the cache.
const LINE_WORDS: usize = 16;

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
        let filled = layout.dim.next_multiple_of(VECTOR);
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

    /// Loads the words of a row into the cache, so that several rows are on their way from memory at once.
    fn prefetch(&self, number: u32) {
        let first = number as usize * self.layout.words;
        if let Some(row) = self.data.get(first..first + self.layout.words) {
            row.chunks(LINE_WORDS).for_each(prefetch);
        }
    }
}

/// Cold rows that are wanted one after another.
#[derive(Debug)]
pub struct Gathering<'a> {
    /// The rows of a part.
    pub rows: &'a ColdRows,
    /// The numbers of the rows that are wanted.
    pub numbers: &'a [u32],
    /// For each of them, 0 if it is left out, which leaves a gap.
    pub absent: &'a [u32],
    /// Where they are copied to.
    pub to: &'a mut [f32],
}

/// Copies rows of several parts, with all threads.
///
/// # Panics
/// If there is no such row, or not as much room.
pub fn gather(parts: Vec<Gathering<'_>>) {
    let tasks = parts.into_iter().flat_map(|Gathering { rows, numbers, absent, to }| {
        let of_task = numbers.chunks(ROWS_PER_TASK).zip(absent.chunks(ROWS_PER_TASK));
        let words = rows.layout.words;
        of_task.zip(to.chunks_mut(ROWS_PER_TASK * words)).map(move |(task, to)| (rows, task, to))
    });
    tasks.collect::<Vec<_>>().into_par_iter().for_each(|(rows, (numbers, absent), to)| {
        let words = rows.layout.words;
        numbers.iter().take(ROWS_AHEAD).for_each(|&number| rows.prefetch(number));
        for (at, (to, &number)) in to.chunks_exact_mut(words).zip(numbers).enumerate() {
            numbers.get(at + ROWS_AHEAD).iter().for_each(|&&ahead| rows.prefetch(ahead));
            if absent[at] != 0 {
                to.copy_from_slice(rows.words(number.into()..u64::from(number) + 1));
            }
        }
    });
}

/// Cold rows that come back.
#[derive(Debug)]
pub struct Scattering<'a> {
    /// The rows of a part.
    pub rows: &'a mut ColdRows,
    /// The numbers of those that come back, ascending.
    pub numbers: &'a [u32],
    /// Their new contents, one after another.
    pub from: &'a [f32],
}

/// Copies rows of several parts back, with all threads.
///
/// # Panics
/// If there is no such row, or numbers do not ascend.
pub fn scatter(parts: Vec<Scattering<'_>>) {
    // Each task gets the part of the memory that has its rows.
    let mut tasks = Vec::new();
    for Scattering { rows, numbers, from } in parts {
        let words = rows.layout.words;
        let (mut left, mut begin) = (&mut rows.data[..], 0);
        for (numbers, from) in numbers.chunks(ROWS_PER_TASK).zip(from.chunks(ROWS_PER_TASK * words)) {
            let end = numbers.last().map_or(begin, |&number| number as usize + 1);
            let (own, behind) = left.split_at_mut((end - begin) * words);
            tasks.push((begin, own, words, numbers, from));
            (left, begin) = (behind, end);
        }
    }
    tasks.into_par_iter().for_each(|(begin, own, words, numbers, from)| {
        let first = |number: u32| (number as usize - begin) * words;
        for (at, (&number, from)) in numbers.iter().zip(from.chunks_exact(words)).enumerate() {
            if let Some(&ahead) = numbers.get(at + ROWS_AHEAD) {
                own[first(ahead)..][..words].chunks(LINE_WORDS).for_each(prefetch);
            }
            own[first(number)..][..words].copy_from_slice(from);
        }
    });
}

/// Loads a line into the cache.
fn prefetch(line: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction does nothing but load a line, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Optimizer;
    use crate::cpu::Table;

    #[test]
    fn cold_rows_start_as_those_of_a_table() {
        let rule = UpdateRule::Ftrl { beta: 0.5, l1: 0.0, l2: 0.0 };
        for dtype in [Dtype::Fp32, Dtype::Bf16] {
            let spec = TableSpec { name: "t".into(), rows: 70_000, dim: 8, dtype };
            let optimizer = Optimizer { rule, ..Optimizer::sgd(0.1) };
            let table = Table::initialized(spec.clone(), optimizer, 7, 3);
            let hot = HotRows::of(spec.rows, (0..spec.rows).filter(|row| row % 7 == 2 || *row > 69_000));
            let layout = RowLayout::padded(spec.dim, spec.dtype, rule);
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
        let layout = RowLayout::padded(spec.dim, spec.dtype, UpdateRule::Sgd);
        let mut cold = ColdRows::zeroed(layout, spec.rows);
        for number in 0..spec.rows {
            cold.words_mut(number..number + 1).fill(number as f32);
        }
        let wanted: Vec<u32> = (0..5000).filter(|number| number % 3 == 1).collect();
        let mut staged = vec![-1.0; wanted.len() * 4];
        let absent: Vec<u32> = wanted.iter().map(|number| u32::from(number % 2 == 0)).collect();
        gather(vec![Gathering { rows: &cold, numbers: &wanted, absent: &absent, to: &mut staged }]);
        for (number, staged) in wanted.iter().zip(staged.chunks_exact_mut(4)) {
            assert_eq!(staged[3], if number % 2 == 0 { *number as f32 } else { -1.0 });
            staged.fill(-f64::from(*number) as f32);
        }
        scatter(vec![Scattering { rows: &mut cold, numbers: &wanted, from: &staged }]);
        for number in 0..spec.rows {
            let expected = if number % 3 == 1 { -(number as f32) } else { number as f32 };
            assert_eq!(cold.words(number..number + 1), [expected; 4]);
        }
    }
}
