//! Tables of which a device stores only the hottest rows; host memory has the others.
//!
//! A batch's rows that the device does not store, its *cold* rows, are known a batch ahead. While the batch before is
//! computed, the host copies them into a *landing region* of the device's memory, where look-ups and updates find them
//! like all other rows; after the step they are copied back. Rows that the batch before has changed, too, are copied
//! from its region on the device, because host memory has them only later. So a step reads and writes the same values
//! in the same order as if all rows were on the device.
//!
//! Which rows are hot may be chosen again while training goes on, from what batches have looked up: [`RowSwaps`] are
//! the rows that change places.
//!
//! [`HotRows`] are the rows of a table that the device stores, and a [`TierPlan`] has them for all tables. [`ColdRows`]
//! are the others, in host memory.

use std::ops::AddAssign;

use serde::Serialize;

mod cold_rows;
mod hot_rows;
mod refresh;

pub use cold_rows::{ColdRows, Gathering, Scattering, gather, scatter};
pub use hot_rows::HotRows;
pub use refresh::{RowSwaps, moved_places};

/// Which rows of a model's tables a device stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierPlan {
    /// One per table; `None` if the device stores all rows.
    pub tables: Vec<Option<TableTier>>,
    /// After how many steps the rows that the device stores are chosen again; never without it.
    pub refresh_steps: Option<u64>,
}

/// Which rows of a table a device stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableTier {
    /// The rows that the device always stores.
    pub hot: HotRows,
    /// The most cold rows of a batch: the rows of a landing region.
    pub landing_rows: u64,
}

impl TableTier {
    /// Rows of host memory.
    pub fn cold_rows(&self) -> u64 {
        self.hot.table_rows() - self.hot.len()
    }
}

/// What was copied between devices and host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TierTraffic {
    /// Batches.
    pub batches: u64,
    /// Their distinct rows that the device did not store.
    pub cold_rows: u64,
    /// How many of these were copied from the batch before, on the device.
    pub forwarded_rows: u64,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied to host memory.
    pub bytes_to_host: u64,
    /// Seconds for which steps waited for their rows; with several devices, of the one that waited most.
    pub waited_s: f64,
    /// How often the rows that the device stores were chosen again.
    pub refreshes: u64,
    /// Rows that came to the device by these choices; as many left it.
    pub moved_rows: u64,
}

impl AddAssign for TierTraffic {
    /// Adds the traffic of another device in the same steps.
    fn add_assign(&mut self, other: Self) {
        self.batches = self.batches.max(other.batches);
        self.cold_rows += other.cold_rows;
        self.forwarded_rows += other.forwarded_rows;
        self.bytes_to_device += other.bytes_to_device;
        self.bytes_to_host += other.bytes_to_host;
        self.waited_s = self.waited_s.max(other.waited_s);
        self.refreshes = self.refreshes.max(other.refreshes);
        self.moved_rows += other.moved_rows;
    }
}
