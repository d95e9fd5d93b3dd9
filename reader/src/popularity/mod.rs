//! How often every row of a table is looked up, in at most one byte per row.
//!
//! Statistics name the most frequent 2^20 rows of a table with exact counts. [`Popularity`] names all rows, with a code
//! for each count: which of 40 million rows are the hottest tenth. Counts are exact while they are made and become
//! codes once, at the end, so neither threads nor the order of samples matter. `file` stores the codes beside the
//! statistics.

mod file;

use rankine_base::error::{Error, Result};

pub use file::FILE_NAME;
pub(crate) use file::{Counted, PopularityFile, write};

/// Rows of similar frequency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TailBucket {
    /// Number of rows.
    pub rows: u64,
    /// Total number of look-ups of these rows.
    pub lookups: u64,
}

/// Number of codes.
const CODES: usize = 256;
/// Counts below this are their own code.
const EXACT_COUNTS: u64 = 16;
/// Codes per octave of larger counts.
const OCTAVE_CODES: u64 = 8;

/// Returns the code of a count: the count itself below 16, then eight codes for each octave, so that counts with the
/// same code differ by less than an eighth. The last code, 255, has all counts from 15 * 2^30.
pub fn code_of(count: u64) -> u8 {
    if count < EXACT_COUNTS {
        return count as u8;
    }
    let octave = u64::from(count.ilog2());
    let code = OCTAVE_CODES * (octave - 2) + (count >> (octave - 3)) % OCTAVE_CODES;
    code.min(CODES as u64 - 1) as u8
}

/// Returns the lowest and the highest count of a code.
fn counts_of(code: u8) -> (u64, u64) {
    let lowest = |code: u64| match code {
        code if code < EXACT_COUNTS => code,
        code => (OCTAVE_CODES + code % OCTAVE_CODES) << (code / OCTAVE_CODES - 1),
    };
    (lowest(code.into()), if code == u8::MAX { u64::MAX } else { lowest(u64::from(code) + 1) - 1 })
}

/// The rows of a table by the code of their count, with the exact number of rows and look-ups of each code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopularityClasses(Box<[TailBucket; CODES]>);

impl Default for PopularityClasses {
    fn default() -> Self {
        Self(Box::new([TailBucket::default(); CODES]))
    }
}

impl PopularityClasses {
    /// Takes a row with this count out; returns `None` if no such row is left.
    pub(crate) fn remove(&mut self, count: u64) -> Option<()> {
        let class = &mut self.0[usize::from(code_of(count))];
        class.rows = class.rows.checked_sub(1)?;
        class.lookups = class.lookups.checked_sub(count)?;
        Some(())
    }

    fn add(&mut self, code: u8, rows: u64, lookups: u64) {
        let class = &mut self.0[usize::from(code)];
        class.rows += rows;
        class.lookups += lookups;
    }

    /// Returns the number of rows of the table.
    pub fn rows(&self) -> u64 {
        self.0.iter().map(|class| class.rows).sum()
    }

    /// Returns the number of look-ups of all rows.
    pub fn lookups(&self) -> u64 {
        self.0.iter().map(|class| class.lookups).sum()
    }

    /// Returns the number of rows that are looked up at least once.
    pub fn distinct_rows(&self) -> u64 {
        self.0[1..].iter().map(|class| class.rows).sum()
    }

    /// Returns the rows that are looked up by code, most frequent first.
    pub fn descending(&self) -> Vec<TailBucket> {
        self.0[1..].iter().rev().copied().filter(|class| class.rows > 0).collect()
    }
}

/// How often each row of a table is looked up in the training part, as a code per row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Popularity {
    classes: PopularityClasses,
    codes: Codes,
}

/// A code per row, in row order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Codes {
    Bytes(Vec<u8>),
    /// Consecutive rows with the same code: the code in the lowest byte, the number of rows above it. A vocabulary that
    /// numbers categories by frequency has few.
    Runs(Vec<u64>),
}

/// Bytes of a run.
const RUN_BYTES: u64 = 8;
/// Position of a run's number of rows.
const RUN_SHIFT: u32 = 8;

impl Popularity {
    /// Makes the codes of counts, one per row in row order. They are gone through twice.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn of_counts(counts: impl Iterator<Item = u64> + Clone) -> Result<Self> {
        let mut classes = PopularityClasses::default();
        let (mut runs, mut last) = (0_u64, None);
        for count in counts.clone() {
            let code = code_of(count);
            classes.add(code, 1, count);
            runs += u64::from(last != Some(code));
            last = Some(code);
        }
        let rows = classes.rows();
        let codes = if runs.saturating_mul(RUN_BYTES) < rows {
            let mut of_runs: Vec<u64> = with_capacity(runs)?;
            for code in counts.map(code_of) {
                match of_runs.last_mut() {
                    Some(run) if *run as u8 == code => *run += 1 << RUN_SHIFT,
                    _ => of_runs.push(1 << RUN_SHIFT | u64::from(code)),
                }
            }
            Codes::Runs(of_runs)
        } else {
            let mut bytes = with_capacity(rows)?;
            bytes.extend(counts.map(code_of));
            Codes::Bytes(bytes)
        };
        Ok(Self { classes, codes })
    }

    /// Returns the rows by code.
    pub fn classes(&self) -> &PopularityClasses {
        &self.classes
    }

    /// Returns the `rows` hottest rows, or all if there are fewer: by descending code, and by row number among rows
    /// with the same code. Takes eight bytes for each.
    pub fn hottest(&self, rows: u64) -> Vec<u64> {
        // Where the rows of each code start in the result, and how many of them it has.
        let mut parts = [(0, 0); CODES];
        let mut len = 0;
        for (part, class) in parts.iter_mut().zip(&*self.classes.0).rev() {
            *part = (len, class.rows.min(rows - len));
            len += part.1;
        }
        let mut hottest = vec![0; len as usize];
        self.each_run(|code, first, run| {
            let (start, left) = &mut parts[usize::from(code)];
            let taken = run.min(*left);
            for row in first..first + taken {
                hottest[*start as usize] = row;
                *start += 1;
            }
            *left -= taken;
        });
        hottest
    }

    /// Returns the same rows in ascending order, without memory for them.
    pub fn hottest_ascending(&self, rows: u64) -> impl Iterator<Item = u64> + '_ {
        // How many rows of each code are among them: all of the highest codes, and the first of one.
        let mut left = [0; CODES];
        let mut missing = rows;
        for (left, class) in left.iter_mut().zip(&*self.classes.0).rev() {
            *left = class.rows.min(missing);
            missing -= *left;
        }
        self.runs().flat_map(move |(code, first, run)| {
            let left = &mut left[usize::from(code)];
            let taken = run.min(*left);
            *left -= taken;
            first..first + taken
        })
    }

    /// Returns the code, the first row and the number of rows of each run.
    fn runs(&self) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
        let (bytes, runs): (&[u8], &[u64]) = match &self.codes {
            Codes::Bytes(codes) => (codes, &[]),
            Codes::Runs(runs) => (&[], runs),
        };
        let of_bytes = bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64));
        let runs = of_bytes.chain(runs.iter().map(|&run| (run as u8, run >> RUN_SHIFT)));
        runs.scan(0, |first, (code, rows)| {
            *first += rows;
            Some((code, *first - rows, rows))
        })
    }

    /// Calls `each` with the code, the first row and the number of rows of each run.
    fn each_run(&self, mut each: impl FnMut(u8, u64, u64)) {
        self.runs().for_each(|(code, first, rows)| each(code, first, rows));
    }
}

/// Adds up the popularity of one table over several datasets that number its rows alike. A row counts as often as the
/// rows of its class do on average, so the sum is off by less than an eighth. The order of datasets does not matter.
#[derive(Debug, Default)]
pub(crate) struct PopularitySum(Vec<u64>);

impl PopularitySum {
    /// Returns the sum of no datasets for a table of this many rows. Takes eight bytes per row.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn new(rows: u64) -> Result<Self> {
        let mut sum = Self::default();
        sum.extend_to(rows)?;
        Ok(sum)
    }

    fn extend_to(&mut self, rows: u64) -> Result<()> {
        let more = usize::try_from(rows).unwrap_or(usize::MAX).saturating_sub(self.0.len());
        self.0.try_reserve_exact(more).map_err(|_| no_memory(rows.saturating_mul(8)))?;
        self.0.resize(self.0.len() + more, 0);
        Ok(())
    }

    /// Adds the popularity of a dataset, which may lack the last rows.
    ///
    /// # Errors
    /// As [`PopularitySum::new`].
    pub(crate) fn add(&mut self, popularity: &Popularity) -> Result<()> {
        self.extend_to(popularity.classes.rows())?;
        let sums = &mut self.0;
        popularity.each_run(|code, first, run| {
            let TailBucket { rows, lookups } = popularity.classes.0[usize::from(code)];
            let count = lookups / rows + u64::from(lookups % rows >= rows.div_ceil(2));
            let of_run = &mut sums[first as usize..(first + run) as usize];
            of_run.iter_mut().for_each(|sum| *sum = sum.saturating_add(count));
        });
        Ok(())
    }

    /// Returns the sum.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn finish(self) -> Result<Popularity> {
        Popularity::of_counts(self.0.iter().copied())
    }
}

/// Allocates memory for items of a table.
fn with_capacity<T>(items: u64) -> Result<Vec<T>> {
    let mut allocated = Vec::new();
    let bytes = items.saturating_mul(size_of::<T>() as u64);
    let reserved = usize::try_from(items).is_ok_and(|items| allocated.try_reserve_exact(items).is_ok());
    if reserved { Ok(allocated) } else { Err(no_memory(bytes)) }
}

fn no_memory(bytes: u64) -> Error {
    let what = format!(
        "the popularity of a table takes {bytes} bytes, which cannot be allocated: use a machine with more memory"
    );
    Error::too_large(bytes, what)
}

#[cfg(test)]
mod tests;
