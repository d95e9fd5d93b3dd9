//! How rows are divided between a GPU and host memory, as `plan` and `check` show it.

use std::fmt::{self, Display};

use bytesize::ByteSize;
use rankine_embedding::plan::{TableTierReport, TierReport};

use super::table::{DecimalCount, TextTable};

/// The rows of each table on the GPU and in host memory, and what a batch copies.
pub(super) struct TierText<'a>(pub(super) &'a TierReport);

impl Display for TierText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TierReport { landing_bytes, staging_bytes, missed_rows, missed_bytes, tables, .. } = self.0;
        let headings = ["table", "on the GPU", "bytes", "look-ups", "in host memory", "bytes", "missed rows"];
        let mut lines = TextTable::new(headings, &[0]);
        let all = TableTierReport {
            name: "all tables".into(),
            device_rows: self.0.device_rows,
            device_bytes: self.0.device_bytes,
            host_rows: self.0.host_rows,
            host_bytes: self.0.host_bytes,
            landing_rows: 0,
            lookup_share: self.0.lookup_share,
            missed_rows: *missed_rows,
        };
        for table in tables.iter().chain([&all]) {
            lines.row([
                &table.name,
                &DecimalCount(table.device_rows as f64),
                &ByteSize(table.device_bytes),
                &format_args!("{:.1}%", table.lookup_share * 100.0),
                &DecimalCount(table.host_rows as f64),
                &ByteSize(table.host_bytes),
                &DecimalCount(table.missed_rows),
            ]);
        }
        write!(f, "rows on the GPU and in host memory, and what a batch misses on the GPU\n{lines}")?;
        writeln!(f, "  {:<30} {} each way", "copied for a batch", ByteSize(*missed_bytes as u64))?;
        writeln!(f, "  {:<30} {}", "landing regions on the GPU", ByteSize(*landing_bytes))?;
        writeln!(f, "  {:<30} {}", "copies in host memory", ByteSize(*staging_bytes))
    }
}
