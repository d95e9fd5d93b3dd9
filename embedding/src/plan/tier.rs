//! Which rows of tables a device stores if its memory does not hold all of them: those with the most look-ups per byte.
//!
//! The device needs memory for the rows that it stores, its *hot* rows, and for landing regions: the other rows, *cold*
//! ones, that a batch looks up. Fewer hot rows leave more room for landing regions and need more of it, so [`divide`]
//! tries amounts of memory for hot rows, the largest first, until both fit.

use std::iter;

use serde::Serialize;

use super::hottest::{Segment, segments};
use crate::frequency::FrequencyProfile;
use crate::optimizer::UpdateRule;
use crate::rows::RowLayout;
use crate::table::TableSpec;

/// Landing regions of a table on the device: of the batch before, of the one that is computed, and of the next two.
pub const LANDING_REGIONS: u64 = 4;
/// Regions in host memory through which rows are copied: one in each direction.
pub const STAGING_REGIONS: u64 = 2;
/// Bytes of host memory for each of its rows if they may change places with rows of the device: where the row is,
/// before and after a move, and how many batches have looked it up.
pub const MOVABLE_ROW_BYTES: u64 = 10;
/// Landing regions that hold any batch may take one part of this many of the budget.
const LANDING_PARTS: u64 = 4;
/// Otherwise a region holds the largest of these multiples of the expected cold rows of a batch with which all regions
/// take at most one part of `MULTIPLE_PARTS` of the budget, or the smallest, and some more rows.
const MULTIPLES: [f64; 4] = [16.0, 8.0, 4.0, LEAST_MULTIPLE];
const LEAST_MULTIPLE: f64 = 2.0;
const MULTIPLE_PARTS: u64 = 8;
const MORE_ROWS: u64 = 1024;
/// How many amounts of memory for hot rows are tried, and how often some of what remains is added to the one found.
const TRIED: u32 = 256;
const REFINED: usize = 12;

/// Which rows of a table a device is to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierRequest {
    /// All.
    Device,
    /// None.
    Host,
    /// Those among the hottest of all tables that fit.
    Hottest,
}

/// A table whose rows may be divided between a device and host memory.
#[derive(Debug)]
pub struct TierInput<'a> {
    /// The table.
    pub spec: &'a TableSpec,
    /// Its update rule, which determines the state per row.
    pub rule: UpdateRule,
    /// Which rows the device is to store.
    pub request: TierRequest,
    /// How often its rows are looked up.
    pub profile: &'a FrequencyProfile,
    /// The most look-ups of a batch.
    pub lookups_max: u64,
}

/// How the rows of a table are divided between a device and host memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DividedTable {
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of a row with its optimizer state.
    pub row_bytes: u64,
    /// Rows that the device stores: the most frequent ones.
    pub hot_rows: u64,
    /// Rows of a landing region; 0 if the device stores all rows.
    pub landing_rows: u64,
    /// Expected look-ups of a batch, and how many of them are of hot rows.
    pub lookups: f64,
    /// See `lookups`.
    pub hot_lookups: f64,
    /// Expected distinct cold rows of a batch.
    pub missed_rows: f64,
}

/// Why no rows are divided: the budget does not even hold the landing regions, and tables that must be on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTooSmall {
    /// The least budget that would do, to within 1/256.
    pub needed_bytes: u64,
}

/// How the rows of a model are divided between a device and host memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierReport {
    /// Rows that the device stores.
    pub device_rows: u64,
    /// Their bytes with optimizer state.
    pub device_bytes: u64,
    /// Bytes of all landing regions, on the device.
    pub landing_bytes: u64,
    /// Rows in host memory.
    pub host_rows: u64,
    /// Their bytes with optimizer state.
    pub host_bytes: u64,
    /// Bytes of host memory through which rows are copied, and in which it is noted what happens to them.
    pub staging_bytes: u64,
    /// The expected share of look-ups that are of the device's rows.
    pub lookup_share: f64,
    /// Expected distinct rows of a batch that are in host memory.
    pub missed_rows: f64,
    /// The bytes of these, which are copied to the device and back.
    pub missed_bytes: f64,
    /// The tables.
    pub tables: Vec<TableTierReport>,
}

/// How the rows of a table are divided between a device and host memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableTierReport {
    /// Its name.
    pub name: String,
    /// Rows that the device stores.
    pub device_rows: u64,
    /// Their bytes with optimizer state.
    pub device_bytes: u64,
    /// Rows in host memory.
    pub host_rows: u64,
    /// Their bytes with optimizer state.
    pub host_bytes: u64,
    /// The most rows in host memory that a batch may look up: the rows of a landing region.
    pub landing_rows: u64,
    /// The expected share of its look-ups that are of the device's rows.
    pub lookup_share: f64,
    /// Expected distinct rows of a batch that are in host memory.
    pub missed_rows: f64,
}

/// Returns the bytes of a row with its optimizer state in the memory of a GPU, where weights and state are padded to
/// whole vectors.
pub fn row_bytes(spec: &TableSpec, rule: UpdateRule) -> u64 {
    4 * RowLayout::padded(spec.dim, spec.dtype, rule).words as u64
}

impl DividedTable {
    /// Returns the number of rows in host memory.
    pub fn cold_rows(&self) -> u64 {
        self.rows - self.hot_rows
    }

    /// Returns the bytes on the device: hot rows and landing regions.
    pub fn device_bytes(&self) -> u64 {
        (self.hot_rows + LANDING_REGIONS * self.landing_rows) * self.row_bytes
    }

    /// Makes the device store all rows.
    fn keep_all(&mut self) {
        (self.hot_rows, self.landing_rows) = (self.rows, 0);
        (self.hot_lookups, self.missed_rows) = (self.lookups, 0.0);
    }
}

/// The size of landing regions.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LandingSize {
    /// Any batch fits.
    Any,
    /// Batches fit that look up at most this many times the expected cold rows.
    Expected(f64),
}

impl LandingSize {
    /// All sizes, the largest first.
    fn all() -> impl Iterator<Item = Self> {
        iter::once(Self::Any).chain(MULTIPLES.into_iter().map(Self::Expected))
    }

    /// The most bytes that the regions may take of a budget.
    fn most(self, budget: u64) -> u64 {
        match self {
            Self::Any => budget / LANDING_PARTS,
            Self::Expected(LEAST_MULTIPLE) => budget,
            Self::Expected(_) => budget / MULTIPLE_PARTS,
        }
    }
}

/// The tables to divide, with the rows that may be on either side.
struct Division<'a> {
    tables: &'a [TierInput<'a>],
    batch_size: u64,
    /// Without hot rows.
    undivided: Vec<DividedTable>,
    /// Of the tables whose hottest rows are to be stored, hottest first.
    segments: Vec<Segment>,
}

impl<'a> Division<'a> {
    fn new(tables: &'a [TierInput<'a>], batch_size: u64) -> Self {
        let undivided = tables.iter().map(|table| DividedTable {
            rows: table.spec.rows,
            row_bytes: row_bytes(table.spec, table.rule),
            hot_rows: 0,
            landing_rows: 0,
            lookups: table.profile.lookups_per_sample() * batch_size as f64,
            hot_lookups: 0.0,
            missed_rows: table.profile.distinct(batch_size as f64),
        });
        let undivided: Vec<_> = undivided.collect();
        let hottest = tables.iter().enumerate().filter(|(_, table)| table.request == TierRequest::Hottest);
        let mut segments: Vec<_> = hottest
            .flat_map(|(number, table)| {
                let row_bytes = undivided[number].row_bytes as f64;
                segments(number, table.spec.rows, row_bytes, table.profile, batch_size)
            })
            .collect();
        Segment::sort(&mut segments);
        Self { tables, batch_size, undivided, segments }
    }

    /// Divides the tables if hot rows may take `room` bytes.
    fn with_room(&self, mut room: f64, landing: LandingSize) -> Vec<DividedTable> {
        let mut divided = self.undivided.clone();
        for segment in &self.segments {
            let rows = segment.take(&mut room);
            let part = rows / segment.rows;
            let table = &mut divided[segment.table];
            table.hot_rows += rows as u64;
            table.hot_lookups += part * segment.lookups * self.batch_size as f64;
            table.missed_rows -= part * segment.distinct;
        }
        for (table, input) in divided.iter_mut().zip(self.tables) {
            if input.request == TierRequest::Device || table.cold_rows() == 0 {
                table.keep_all();
                continue;
            }
            table.missed_rows = table.missed_rows.max(0.0);
            table.landing_rows = table.cold_rows().min(input.lookups_max);
            if let LandingSize::Expected(times) = landing {
                let expected = (times * table.missed_rows).ceil() as u64 + MORE_ROWS;
                table.landing_rows = table.landing_rows.min(expected);
            }
            // Its rows take no more memory than its landing regions would.
            if input.request == TierRequest::Hottest
                && table.cold_rows() <= LANDING_REGIONS * table.landing_rows
            {
                table.keep_all();
            }
        }
        divided
    }
}

/// Returns the bytes on the device, and how many of them are landing regions.
fn device_bytes(divided: &[DividedTable]) -> (u64, u64) {
    let landing = divided.iter().map(|table| LANDING_REGIONS * table.landing_rows * table.row_bytes).sum();
    (divided.iter().map(DividedTable::device_bytes).sum(), landing)
}

/// Divides the rows of tables between a device, on which they may take `budget` bytes, and host memory. Without a
/// budget, the device stores all rows of tables whose hottest rows it is to store. A batch has `batch_size` samples.
///
/// A landing region of a table holds the cold rows of any batch: as many as the table has, but no more than a batch has
/// look-ups. If such regions took more than a quarter of the budget, they hold at most 16, 8, 4 or 2 times the expected
/// cold rows of a batch and 1024 more: as many as fit an eighth of the budget, but at least twice as many. A table
/// whose cold rows would take no more memory than its landing regions stays whole.
///
/// # Errors
/// [`BudgetTooSmall`].
pub fn divide(
    tables: &[TierInput<'_>],
    batch_size: u64,
    budget: Option<u64>,
) -> Result<Vec<DividedTable>, BudgetTooSmall> {
    let division = Division::new(tables, batch_size);
    let Some(budget) = budget else { return Ok(division.with_room(f64::INFINITY, LandingSize::Any)) };
    let mut needed_bytes = u64::MAX;
    for landing in LandingSize::all() {
        let mut fits = |divided: &[DividedTable]| {
            let (bytes, of_landing) = device_bytes(divided);
            needed_bytes = needed_bytes.min(bytes);
            budget.checked_sub(bytes).filter(|_| of_landing <= landing.most(budget))
        };
        for part in (0..=TRIED).rev() {
            let mut room = budget as f64 * f64::from(part) / f64::from(TRIED);
            let mut divided = division.with_room(room, landing);
            let Some(mut left) = fits(&divided) else { continue };
            let mut step = left;
            for _ in 0..REFINED {
                let more = division.with_room(room + step as f64, landing);
                match fits(&more) {
                    Some(less) if less < left => {
                        room += step as f64;
                        (divided, left, step) = (more, less, less);
                    }
                    _ => step /= 2,
                }
            }
            return Ok(divided);
        }
    }
    Err(BudgetTooSmall { needed_bytes })
}

impl TierReport {
    /// Describes the division of the tables of a model.
    pub fn new<'a>(tables: impl IntoIterator<Item = (&'a TableSpec, &'a DividedTable)>) -> Self {
        let mut report = Self {
            device_rows: 0,
            device_bytes: 0,
            landing_bytes: 0,
            host_rows: 0,
            host_bytes: 0,
            staging_bytes: 0,
            lookup_share: 0.0,
            missed_rows: 0.0,
            missed_bytes: 0.0,
            tables: Vec::new(),
        };
        let (mut lookups, mut hot_lookups) = (0.0, 0.0);
        for (spec, table) in tables {
            let (host_rows, row_bytes) = (table.cold_rows(), table.row_bytes);
            let own = TableTierReport {
                name: spec.name.clone(),
                device_rows: table.hot_rows,
                device_bytes: table.hot_rows * row_bytes,
                host_rows,
                host_bytes: host_rows * row_bytes,
                landing_rows: table.landing_rows,
                lookup_share: share(table.hot_lookups, table.lookups),
                missed_rows: table.missed_rows,
            };
            report.device_rows += own.device_rows;
            report.device_bytes += own.device_bytes;
            report.landing_bytes += LANDING_REGIONS * own.landing_rows * row_bytes;
            report.host_rows += own.host_rows;
            report.host_bytes += own.host_bytes;
            report.staging_bytes += STAGING_REGIONS * own.landing_rows * row_bytes;
            report.missed_rows += own.missed_rows;
            report.missed_bytes += own.missed_rows * row_bytes as f64;
            lookups += table.lookups;
            hot_lookups += table.hot_lookups;
            report.tables.push(own);
        }
        report.lookup_share = share(hot_lookups, lookups);
        report
    }
}

/// Part of a whole, which may be nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dtype::Dtype;
    use crate::frequency::{CountClass, TableFrequencies};

    const SAMPLES: u64 = 1000;

    /// A table with a count per row, and its frequencies: rows with the same count are a class.
    fn table(dim: usize, counts: &[u64]) -> (TableSpec, FrequencyProfile) {
        let spec = TableSpec {
            name: format!("{dim}"),
            rows: counts.len() as u64,
            dim,
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let mut descending = counts.to_vec();
        descending.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        let classes = descending.chunk_by(|a, b| a == b).filter(|class| class[0] > 0);
        let class = |class: &[u64]| CountClass { rows: class.len() as u64, lookups: class.iter().sum() };
        let frequencies = TableFrequencies {
            samples: SAMPLES,
            lookups: counts.iter().sum(),
            distinct_rows: counts.iter().filter(|&&count| count > 0).count() as u64,
            head: Vec::new(),
            tail: classes.map(class).collect(),
        };
        let profile = FrequencyProfile::new(spec.rows, &frequencies);
        (spec, profile)
    }

    /// The probability that a batch names a row with a count, by the profile's own formula; which is tested elsewhere.
    fn missed(profile: &FrequencyProfile, cold: &[u64], batch: u64) -> f64 {
        cold.iter().filter(|&&count| count > 0).map(|&count| profile.named(count as f64, batch as f64)).sum()
    }

    fn any_tables() -> impl Strategy<Value = Vec<(usize, Vec<u64>, TierRequest, u64)>> {
        let count = prop_oneof![3 => 0..4_u64, 1 => 1..400_u64];
        let request = prop_oneof![
            5 => Just(TierRequest::Hottest),
            1 => Just(TierRequest::Device),
            1 => Just(TierRequest::Host)
        ];
        let dim = prop_oneof![Just(1), Just(4), Just(17)];
        let table = (dim, prop::collection::vec(count, 1..300), request, 1..4_u64);
        prop::collection::vec(table, 1..5)
    }

    proptest! {
        /// Against a list of all rows, of which the hottest are taken one at a time.
        #[test]
        fn the_hottest_rows_per_byte_are_taken_first(
            tables in any_tables(), room in 0..40_000_u32, batch in 1..30_u64,
        ) {
            let known: Vec<_> = tables.iter().map(|(dim, counts, ..)| table(*dim, counts)).collect();
            let inputs: Vec<_> = iter::zip(&known, &tables)
                .map(|((spec, profile), &(_, _, request, hotness))| {
                    TierInput { spec, rule: UpdateRule::Sgd, request, profile, lookups_max: hotness * batch }
                })
                .collect();
            let divided = Division::new(&inputs, batch).with_room(room.into(), LandingSize::Any);

            let mut rows: Vec<(f64, usize, u64)> = Vec::new();
            for (number, (dim, counts, request, _)) in tables.iter().enumerate() {
                let bytes = 4 * dim.next_multiple_of(4);
                let of_table = counts.iter().map(|&count| (count as f64 / (1e3 * bytes as f64), number, count));
                rows.extend(of_table.filter(|_| *request == TierRequest::Hottest));
            }
            rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut cold: Vec<Vec<u64>> = tables.iter().map(|table| table.1.clone()).collect();
            let (mut left, mut full) = (u64::from(room), Vec::new());
            for (density, number, count) in rows {
                let bytes = divided[number].row_bytes;
                // Once a row of a class did not fit, none of the class does.
                if bytes > left || full.contains(&(density.to_bits(), number)) {
                    full.push((density.to_bits(), number));
                    continue;
                }
                left -= bytes;
                let at = cold[number].iter().position(|&other| other == count).unwrap();
                cold[number].swap_remove(at);
            }
            for (number, (_, counts, request, hotness)) in tables.iter().enumerate() {
                let (found, profile) = (&divided[number], &known[number].1);
                let cold_rows = cold[number].len() as u64;
                let landing = cold_rows.min(hotness * batch);
                let whole = *request == TierRequest::Device
                    || (*request == TierRequest::Hottest && cold_rows <= LANDING_REGIONS * landing);
                let cold: &[u64] = if whole { &[] } else { &cold[number] };
                prop_assert_eq!(found.hot_rows, (counts.len() - cold.len()) as u64);
                prop_assert_eq!(found.landing_rows, if whole { 0 } else { landing });
                let all: u64 = counts.iter().sum();
                let hot = all - cold.iter().sum::<u64>();
                let per_batch = batch as f64 / SAMPLES as f64;
                prop_assert!((found.lookups - all as f64 * per_batch).abs() < 1e-9);
                prop_assert!((found.hot_lookups - hot as f64 * per_batch).abs() < 1e-9);
                prop_assert!((found.missed_rows - missed(profile, cold, batch)).abs() < 1e-9);
            }
        }

        /// Whatever is chosen fits, and nothing larger that was tried does.
        #[test]
        fn a_budget_holds_hot_rows_and_landing_regions(
            tables in any_tables(), budget in 0..60_000_u64, batch in 1..30_u64,
        ) {
            let known: Vec<_> = tables.iter().map(|(dim, counts, ..)| table(*dim, counts)).collect();
            let inputs: Vec<_> = iter::zip(&known, &tables)
                .map(|((spec, profile), &(_, _, request, hotness))| {
                    TierInput { spec, rule: UpdateRule::Sgd, request, profile, lookups_max: hotness * batch }
                })
                .collect();
            let division = Division::new(&inputs, batch);
            let rooms = || (0..=256).map(|part| budget as f64 * f64::from(part) / 256.0);
            let bytes = |room: f64, landing| device_bytes(&division.with_room(room, landing));
            let fits = |room: f64, landing: LandingSize| {
                let (bytes, of_landing) = bytes(room, landing);
                bytes <= budget && of_landing <= landing.most(budget)
            };
            let largest = |landing| rooms().rfind(|&room| fits(room, landing)).map(|room| (room, landing));
            let least = |landing| rooms().map(|room| bytes(room, landing).0).min().unwrap();
            match divide(&inputs, batch, Some(budget)) {
                Err(BudgetTooSmall { needed_bytes }) => {
                    prop_assert!(LandingSize::all().all(|landing| largest(landing).is_none()));
                    let least = LandingSize::all().map(least).min().unwrap();
                    prop_assert!(needed_bytes == least && least > budget);
                }
                Ok(divided) => {
                    let (found, of_landing) = device_bytes(&divided);
                    let (room, landing) = LandingSize::all().find_map(largest).unwrap();
                    prop_assert!(found <= budget && of_landing <= landing.most(budget));
                    prop_assert!(found >= bytes(room, landing).0);
                }
            }
        }
    }

    fn input<'a>((spec, profile): &'a (TableSpec, FrequencyProfile), lookups_max: u64) -> TierInput<'a> {
        TierInput { spec, rule: UpdateRule::Sgd, request: TierRequest::Hottest, profile, lookups_max }
    }

    #[test]
    fn tables_that_fit_and_small_ones_are_whole() {
        // 20,000 rows of 16 bytes, of which the first are hot; and 100 rows, some of them never looked up.
        let large = table(4, &(0..20_000).map(|row| 40_000 / (row + 1)).collect::<Vec<u64>>());
        let small = table(4, &(0..100).map(|row| 70 - row.min(70)).collect::<Vec<u64>>());
        let inputs = [input(&large, 50), input(&small, 50)];
        let of = |budget| divide(&inputs, 50, budget).unwrap();
        for budget in [None, Some(16 * 20_100)] {
            for table in of(budget) {
                assert_eq!((table.cold_rows(), table.landing_rows, table.missed_rows), (0, 0, 0.0));
                assert_eq!(table.hot_lookups, table.lookups);
            }
        }
        // A byte is missing: four landing regions of 50 rows, and 201 rows are cold at least.
        let [large, small] = of(Some(16 * 20_100 - 1))[..] else { panic!() };
        assert_eq!((large.landing_rows, small.cold_rows(), small.landing_rows), (50, 0, 0));
        assert_eq!(large.cold_rows(), 201, "{large:?}");
        // Landing regions of any batch would take more than a quarter, so they are for twice the expected rows.
        // 200,000 rows, most of them rare.
        let rare = table(4, &(0..200_000).map(|row| 1 + 400_000 / (row + 1)).collect::<Vec<u64>>());
        let divided = |lookups_max, budget| {
            divide(&[input(&rare, lookups_max)], 4, Some(budget)).map(|divided| divided[0])
        };
        let generous = divided(4000, 16 * 100_000).unwrap();
        assert_eq!(generous.landing_rows, 4000);
        let tight = divided(40_000, 16 * 100_000).unwrap();
        let expected = (2.0 * tight.missed_rows).ceil() as u64 + 1024;
        assert_eq!(tight.landing_rows, expected, "{tight:?}");
        assert!(tight.device_bytes() <= 16 * 100_000 && tight.device_bytes() > 16 * 99_900, "{tight:?}");
        assert!(divided(40_000, 16 * 1000).is_err());
    }

    #[test]
    fn rows_have_the_bytes_of_the_device() {
        let spec = |dim, dtype| TableSpec { name: "t".into(), rows: 1, dim, dtype, dynamic: None };
        let adagrad = UpdateRule::Adagrad { epsilon: 1.0, initial_accumulator: 0.0 };
        let bytes = |dim, dtype, rule| row_bytes(&spec(dim, dtype), rule);
        assert_eq!(bytes(128, Dtype::Fp32, UpdateRule::Sgd), 512);
        assert_eq!(bytes(128, Dtype::Fp32, adagrad), 1024);
        assert_eq!(bytes(128, Dtype::Bf16, adagrad), 768);
        // Five elements take two vectors of four, or one of eight halves.
        assert_eq!(bytes(5, Dtype::Fp32, adagrad), 64);
        assert_eq!(bytes(5, Dtype::Fp16, UpdateRule::Sgd), 16);
        assert_eq!(bytes(1, Dtype::Bf16, UpdateRule::Sgd), 16);
    }

    #[test]
    fn a_report_adds_up_its_tables() {
        let (a, b) = (table(4, &[4, 4, 0]).0, table(8, &[1; 10]).0);
        let divided = |rows, row_bytes, hot_rows, landing_rows, hot_lookups, missed_rows| DividedTable {
            rows,
            row_bytes,
            hot_rows,
            landing_rows,
            lookups: 10.0,
            hot_lookups,
            missed_rows,
        };
        let tables = [divided(3, 16, 3, 0, 10.0, 0.0), divided(10, 32, 4, 5, 5.0, 2.5)];
        let report = TierReport::new(iter::zip([&a, &b], &tables));
        assert_eq!((report.device_rows, report.device_bytes), (7, 3 * 16 + 4 * 32));
        assert_eq!((report.host_rows, report.host_bytes), (6, 6 * 32));
        assert_eq!((report.landing_bytes, report.staging_bytes), (4 * 5 * 32, 2 * 5 * 32));
        assert_eq!((report.lookup_share, report.missed_rows, report.missed_bytes), (0.75, 2.5, 80.0));
        let second = &report.tables[1];
        assert_eq!((second.name.as_str(), second.lookup_share, second.host_bytes), ("8", 0.5, 192));
        assert_eq!(tables[1].device_bytes(), (4 + 20) * 32);
    }
}
