//! Dates and times of day in UTC, for names and messages.

use std::fmt;
use std::time::SystemTime;

/// A second in UTC. Its `Display` is `2026-01-31 23:59:59 UTC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Utc {
    /// The system's clock; 1970 where it is set to an earlier year.
    pub fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::at(since_1970.as_secs())
    }

    /// The second that begins `seconds` after 1970 began. Days to dates by Howard Hinnant's `civil_from_days`.
    pub fn at(seconds: u64) -> Self {
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }

    /// `20260131-235959`: for names of files, which sort by time.
    pub fn compact(self) -> String {
        let Self { year, month, day, hour, minute, second } = self;
        format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(Utc::at(0).compact(), "19700101-000000");
        assert_eq!(Utc::at(3600 + 2 * 60 + 3).compact(), "19700101-010203");
        // After 31 days of January and 28 of February, and around the end of a year of 366.
        assert_eq!(Utc::at(31 * 86_400).compact(), "19700201-000000");
        assert_eq!(Utc::at(59 * 86_400).compact(), "19700301-000000");
        assert_eq!(Utc::at(1_735_603_200).to_string(), "2024-12-31 00:00:00 UTC");
        assert_eq!(Utc::at(1_735_689_600).to_string(), "2025-01-01 00:00:00 UTC");
        assert_eq!(Utc::at(951_782_399).compact(), "20000228-235959");
        assert_eq!(Utc::at(951_782_400).compact(), "20000229-000000");
        assert_eq!(Utc::at(4_107_542_399).compact(), "21000228-235959");
        assert_eq!(Utc::at(4_107_542_400).to_string(), "2100-03-01 00:00:00 UTC");
    }
}
