//! How many look-ups the hottest rows of all tables serve: what a job would gain from keeping only these rows close.

use serde::Serialize;

use super::cost::table_bytes;
use super::machine::Machine;
use crate::frequency::FrequencyProfile;
use crate::optimizer::UpdateRule;
use crate::table::TableSpec;

/// A table with the frequencies of its rows.
#[derive(Debug)]
pub struct HottestInput<'a> {
    /// The table.
    pub spec: &'a TableSpec,
    /// Its update rule, which determines the state per row.
    pub rule: UpdateRule,
    /// How often its rows are looked up.
    pub profile: &'a FrequencyProfile,
}

/// An amount of memory for rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowBudget {
    /// Of the bytes of all rows, in `0..=1`.
    Share(f64),
    /// Bytes.
    Bytes(u64),
}

/// The hottest rows that fit into a budget: those with the most look-ups per byte.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HottestRows {
    /// The budget, as a share of the bytes of all rows.
    pub share: f64,
    /// Rows, over all tables.
    pub rows: u64,
    /// Their bytes with optimizer state, each row once.
    pub bytes: u64,
    /// The expected share of look-ups that they serve.
    pub lookup_share: f64,
    /// Expected distinct rows of a batch that are not among them.
    pub missed_rows: f64,
    /// The bytes of these, with optimizer state.
    pub missed_bytes: f64,
}

/// Rows of one table that are looked up about equally often.
pub(super) struct Segment {
    /// The number of the table.
    pub(super) table: usize,
    pub(super) rows: f64,
    pub(super) row_bytes: f64,
    /// Look-ups of a row per sample and byte.
    density: f64,
    /// Look-ups per sample of all of them, and distinct rows per batch.
    pub(super) lookups: f64,
    pub(super) distinct: f64,
}

impl Segment {
    /// Sorts segments by descending look-ups per byte. Equally hot rows stay in the order of their tables.
    pub(super) fn sort(segments: &mut [Self]) {
        segments.sort_by(|a, b| b.density.total_cmp(&a.density));
    }

    /// How many of its rows fit into `left` bytes, which become fewer.
    pub(super) fn take(&self, left: &mut f64) -> f64 {
        let rows = self.rows.min((*left / self.row_bytes).floor());
        *left -= rows * self.row_bytes;
        rows
    }
}

/// Returns the hottest rows for each budget. A batch has `batch_size` samples over all ranks.
pub fn hottest(
    tables: &[HottestInput<'_>],
    machine: &Machine,
    batch_size: u64,
    budgets: &[RowBudget],
) -> Vec<HottestRows> {
    let of_table = |(table, input): (usize, &HottestInput<'_>)| {
        let HottestInput { spec, rule, profile } = *input;
        let row_bytes = table_bytes(machine, spec.dtype, 1, spec.dim, rule);
        segments(table, spec.rows, row_bytes, profile, batch_size)
    };
    let mut segments: Vec<_> = tables.iter().enumerate().flat_map(of_table).collect();
    Segment::sort(&mut segments);
    let sum = |of: fn(&Segment) -> f64| segments.iter().map(of).sum::<f64>();
    let all_bytes = sum(|of| of.rows * of.row_bytes);
    let all_lookups = sum(|of| of.lookups);
    let of_budget = |&budget: &RowBudget| {
        let budget = match budget {
            RowBudget::Share(share) => share * all_bytes,
            RowBudget::Bytes(bytes) => bytes as f64,
        };
        let mut found = HottestRows {
            share: if all_bytes > 0.0 { (budget / all_bytes).min(1.0) } else { 1.0 },
            rows: 0,
            bytes: 0,
            lookup_share: 0.0,
            missed_rows: 0.0,
            missed_bytes: 0.0,
        };
        let mut left = budget;
        for segment in &segments {
            let rows = segment.take(&mut left);
            let part = rows / segment.rows;
            found.rows += rows as u64;
            found.bytes += (rows * segment.row_bytes) as u64;
            found.lookup_share += part * segment.lookups / all_lookups.max(f64::MIN_POSITIVE);
            found.missed_rows += (1.0 - part) * segment.distinct;
            found.missed_bytes += (1.0 - part) * segment.distinct * segment.row_bytes;
        }
        found
    };
    budgets.iter().map(of_budget).collect()
}

/// Returns the rows of a table by frequency, most frequent first, and last those that were never looked up.
pub(super) fn segments(
    table: usize,
    table_rows: u64,
    row_bytes: f64,
    profile: &FrequencyProfile,
    batch_size: u64,
) -> Vec<Segment> {
    let lookups = profile.lookups_after();
    let distinct = profile.distinct_after(0, batch_size as f64);
    let samples = profile.samples().max(1.0);
    let mut unseen = table_rows as f64;
    let mut segments: Vec<_> = profile
        .classes()
        .iter()
        .enumerate()
        .map(|(at, class)| {
            unseen -= class.rows;
            let (lookups, distinct) = (lookups[at] - lookups[at + 1], distinct[at] - distinct[at + 1]);
            let density = class.count / (samples * row_bytes);
            Segment { table, rows: class.rows, row_bytes, density, lookups, distinct }
        })
        .collect();
    if unseen > 0.0 {
        let distinct = distinct.last().copied().unwrap_or_default();
        segments.push(Segment { table, rows: unseen, row_bytes, density: 0.0, lookups: 0.0, distinct });
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::frequency::{CountClass, TableFrequencies};

    fn spec(rows: u64, dim: usize) -> TableSpec {
        TableSpec { name: "t".into(), rows, dim, dtype: Dtype::Fp32, dynamic: None }
    }

    #[test]
    fn rows_with_the_most_look_ups_per_byte_come_first() {
        // 100 samples of one id each per table. Row bytes are 16 and 64 with plain SGD.
        let small = TableFrequencies {
            samples: 100,
            lookups: 100,
            distinct_rows: 5,
            head: vec![(7, 60), (3, 20)],
            tail: vec![CountClass { rows: 3, lookups: 20 }],
        };
        let large = TableFrequencies {
            samples: 100,
            lookups: 100,
            distinct_rows: 2,
            head: vec![(1, 90), (0, 10)],
            tail: Vec::new(),
        };
        let specs = [spec(10, 4), spec(4, 16)];
        let profiles = [FrequencyProfile::new(10, &small), FrequencyProfile::new(4, &large)];
        let tables: Vec<_> = std::iter::zip(&specs, &profiles)
            .map(|(spec, profile)| HottestInput { spec, rule: UpdateRule::Sgd, profile })
            .collect();
        let budgets = [0, 16, 31, 32, 80, 112, 144, 208, 416].map(RowBudget::Bytes);
        let found = hottest(&tables, &Machine::cpu(1 << 30), 1, &budgets);
        // Densities: 60 / 16, 90 / 64, 20 / 16, three of 20 / 48, then 10 / 64, then rows without look-ups. A row that
        // does not fit is passed over for later ones.
        let expected = [
            (0, 0, 0.0),
            (1, 16, 60.0),
            (1, 16, 60.0),
            (2, 32, 80.0),
            (2, 80, 150.0),
            (4, 112, 150.0 + 20.0 + 20.0 / 3.0),
            (6, 144, 190.0),
            (7, 208, 200.0),
            (14, 416, 200.0),
        ];
        for (found, (rows, bytes, lookups)) in found.iter().zip(expected) {
            assert_eq!((found.rows, found.bytes), (rows, bytes));
            assert!((found.lookup_share - lookups / 200.0).abs() < 1e-12, "{found:?}");
            // A batch of one sample names one row of each table, so it misses what is not looked up there.
            assert!((found.missed_rows - (2.0 - lookups / 100.0)).abs() < 1e-9, "{found:?}");
        }
        assert!((found[1].missed_bytes - (0.4 * 16.0 + 64.0)).abs() < 1e-9);
        let shares =
            hottest(&tables, &Machine::cpu(1 << 30), 1, &[RowBudget::Share(0.5), RowBudget::Share(1.0)]);
        assert_eq!((shares[0].share, shares[0].bytes, shares[1].rows), (0.5, 208, 14));
    }
}
