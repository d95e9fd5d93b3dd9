//! The rows of a table in host memory that a device does not store.

use std::sync::atomic::{AtomicU16, Ordering};

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

/// The cold rows of a table with their optimizer state, in the device's layout. They are numbered in ascending order.
#[derive(Debug)]
pub struct ColdRows {
    layout: RowLayout,
    data: Memory,
    movable: Option<Movable>,
}

/// What cold rows need that may change places with rows of the device.
#[derive(Debug)]
struct Movable {
    /// By number: where the row is.
    places: Vec<u32>,
    /// By number: how many batches have looked the row up since the rows of the device were chosen.
    counts: Vec<AtomicU16>,
}

impl ColdRows {
    /// Allocates the rows, as zeros. Memory that is never written takes no pages.
    pub fn zeroed(layout: RowLayout, rows: u64) -> Self {
        Self { layout, data: Memory::zeroed(rows as usize * layout.words), movable: None }
    }

    /// Counts from now on which rows are gathered, so that they may change places with rows of the device.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1 rows.
    #[must_use]
    pub fn counted(self) -> Self {
        let rows = u32::try_from(self.data.len() / self.layout.words).expect("rows are numbered by 32 bits");
        let counts = (0..rows).map(|_| AtomicU16::new(0)).collect();
        Self { movable: Some(Movable { places: (0..rows).collect(), counts }), ..self }
    }

    /// By number, how many batches have gathered each row since the last time; counts end at 65535. Empty if rows are
    /// not counted.
    pub fn take_counts(&mut self) -> Vec<u16> {
        let counts = self.movable.as_mut().map_or(&mut [][..], |movable| &mut movable.counts);
        counts.iter_mut().map(|count| std::mem::take(count.get_mut())).collect()
    }

    /// By number, where each row is. Empty if they are in order.
    pub fn places(&self) -> &[u32] {
        self.movable.as_ref().map_or(&[], |movable| &movable.places)
    }

    /// Changes which rows these are: says where each of them is.
    ///
    /// # Panics
    /// If rows are not counted, or there is not one place per row.
    pub fn set_places(&mut self, places: Vec<u32>) {
        let movable = self.movable.as_mut().expect("rows are counted");
        assert_eq!(places.len(), movable.places.len(), "a place per row");
        movable.places = places;
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

    fn place(&self, number: u64) -> usize {
        self.movable.as_ref().map_or(number, |movable| movable.places[number as usize].into()) as usize
    }

    /// The words of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, number: u64) -> &[f32] {
        &self.data[self.place(number) * self.layout.words..][..self.layout.words]
    }

    /// The same, for writing.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, number: u64) -> &mut [f32] {
        let first = self.place(number) * self.layout.words;
        &mut self.data[first..first + self.layout.words]
    }

    /// Loads a row into the cache, so that several rows are on their way from memory at once.
    fn prefetch(&self, number: u32) {
        if let Some(movable) = &self.movable {
            prefetch(&movable.counts[number as usize]);
        }
        self.row(number.into()).chunks(LINE_WORDS).for_each(|line| prefetch(&line[0]));
    }

    fn count(&self, number: u32) {
        if let Some(movable) = &self.movable {
            // A batch names a row once, so nobody else changes its count meanwhile.
            let count = &movable.counts[number as usize];
            count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
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
            rows.count(number);
            if absent[at] != 0 {
                to.copy_from_slice(rows.row(number.into()));
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
    let tasks = parts.into_iter().flat_map(|Scattering { rows, numbers, from }| {
        assert!(numbers.is_sorted_by(|one, next| one < next), "each row comes back once, in order");
        let places = Places::of(rows);
        let of_task = numbers.chunks(ROWS_PER_TASK).zip(from.chunks(ROWS_PER_TASK * places.words));
        of_task.map(move |(numbers, from)| (places, numbers, from))
    });
    tasks.collect::<Vec<_>>().into_par_iter().for_each(|(places, numbers, from)| {
        for (at, (&number, from)) in numbers.iter().zip(from.chunks_exact(places.words)).enumerate() {
            // SAFETY: no other task has the number, so nobody else has the row.
            unsafe {
                if let Some(&ahead) = numbers.get(at + ROWS_AHEAD) {
                    places.row(ahead).chunks(LINE_WORDS).for_each(|line| prefetch(&line[0]));
                }
                places.row(number).copy_from_slice(from);
            }
        }
    });
}

/// The places of a part's rows, for tasks that each write other rows.
#[derive(Clone, Copy)]
struct Places<'a> {
    data: *mut f32,
    rows: usize,
    words: usize,
    /// By number; empty if rows are in order.
    places: &'a [u32],
}

// SAFETY: it gives access to rows only by `Places::row`, whose callers ensure that no two threads have a row at once.
unsafe impl Send for Places<'_> {}
// SAFETY: as above.
unsafe impl Sync for Places<'_> {}

impl<'a> Places<'a> {
    fn of(rows: &'a mut ColdRows) -> Self {
        let ColdRows { layout, data, movable } = rows;
        let places = movable.as_ref().map_or(&[][..], |movable| &movable.places);
        Self { data: data.as_mut_ptr(), rows: data.len() / layout.words, words: layout.words, places }
    }

    /// The words of a row.
    ///
    /// # Safety
    /// Nobody else may have the row. Rows with different numbers have different places.
    unsafe fn row(&self, number: u32) -> &'a mut [f32] {
        let place = self.places.get(number as usize).map_or(number, |&place| place) as usize;
        assert!(place < self.rows, "row {place} of {}", self.rows);
        // SAFETY: the row is within the data, which is borrowed for as long; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(place * self.words), self.words) }
    }
}

/// Loads the line of a value into the cache.
fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction does nothing but load a line, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
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
            let spec = TableSpec { name: "t".into(), rows: 70_000, dim: 8, dtype, dynamic: None };
            let optimizer = Optimizer { rule, ..Optimizer::sgd(0.1) };
            let table = Table::initialized(spec.clone(), optimizer, 7, 3);
            let hot = HotRows::of(spec.rows, (0..spec.rows).filter(|row| row % 7 == 2 || *row > 69_000));
            let layout = RowLayout::padded(spec.dim, spec.dtype, rule);
            let mut cold = ColdRows::zeroed(layout, spec.rows - hot.len());
            cold.initialize(&hot, |row| row, (&spec, rule), Some(UniformField::new(7, 3)));
            let mut weights = vec![0.0; 8];
            for (number, row) in (0..).zip((0..spec.rows).filter(|&row| !hot.contains(row))) {
                let words = cold.row(number);
                layout.read_weights(words, &mut weights);
                assert_eq!(weights, table.weights(row), "row {row}");
                let z: Vec<f32> = weights.iter().map(|weight| -0.5 * weight).collect();
                assert_eq!(words[layout.state()[0]..][..8], z, "row {row}");
            }
        }
    }

    #[test]
    fn gathered_rows_come_back_to_their_places() {
        let spec = TableSpec { name: "t".into(), rows: 5000, dim: 4, dtype: Dtype::Fp32, dynamic: None };
        let layout = RowLayout::padded(spec.dim, spec.dtype, UpdateRule::Sgd);
        for is_counted in [false, true] {
            let mut cold = ColdRows::zeroed(layout, spec.rows);
            if is_counted {
                cold = cold.counted();
                cold.set_places((0..5000).map(|number| (number * 7 + 3) % 5000).collect());
            }
            for number in 0..spec.rows {
                cold.row_mut(number).fill(number as f32);
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
                assert_eq!(cold.row(number), [expected; 4]);
            }
            let counts: Vec<u16> = (0..5000).map(|number| u16::from(number % 3 == 1)).collect();
            assert_eq!(cold.take_counts(), if is_counted { &counts[..] } else { &[] });
            assert_eq!(cold.take_counts(), if is_counted { &[0; 5000][..] } else { &[] });
        }
    }
}
