//! The types of raw values, alike in Parquet and in Arrow: what a value of each type may be read as, its number, and
//! its text.

use std::io::Write;

/// The type of raw values, however a file or an array stores them.
///
/// Values of [`ValueType::Integer`], decimals, dates and times are *exact*: an integer, which the type gives a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// A boolean: the number 0 or 1.
    Boolean,
    /// An integer.
    Integer,
    /// A floating-point number of any precision.
    Float,
    /// An integer times `10^-scale`.
    Decimal {
        /// Digits after the point.
        scale: i8,
    },
    /// A date: days since 1970-01-01.
    Date,
    /// A time of day since midnight.
    Time(TimeUnit),
    /// A date and time since 1970-01-01T00:00:00; in UTC if it has a time zone.
    Timestamp(TimeUnit),
    /// A string.
    Text,
}

/// The unit of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// A second.
    Second,
    /// A thousandth of a second.
    Millisecond,
    /// A millionth of a second.
    Microsecond,
    /// A billionth of a second.
    Nanosecond,
}

/// What a raw value is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueUse {
    /// A number: of a dense column, a label or a weight.
    Number,
    /// A category.
    Category,
    /// A text, to which a label is compared.
    Text,
}

impl ValueType {
    /// Returns whether values of this type can be read like this.
    pub fn fits(self, wanted: ValueUse) -> bool {
        match wanted {
            ValueUse::Number => self != Self::Text,
            ValueUse::Category => !matches!(self, Self::Boolean | Self::Float),
            ValueUse::Text => self == Self::Text,
        }
    }

    /// Describes values of this type.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Boolean => "booleans",
            Self::Integer => "integers",
            Self::Float => "floating-point numbers",
            Self::Decimal { .. } => "decimals",
            Self::Date => "dates",
            Self::Time(_) => "times",
            Self::Timestamp(_) => "timestamps",
            Self::Text => "strings",
        }
    }

    /// Returns the number of an exact value, correctly rounded: days of a date, and seconds of a time.
    pub fn number(self, value: i128) -> f64 {
        // Powers of ten up to 10^22, and integers up to 2^53, are exact.
        const POWERS: i8 = 22;
        match self.scale() {
            0 => value as f64,
            scale @ 1..=POWERS if value.unsigned_abs() <= 1 << 53 => value as f64 / 10_f64.powi(scale.into()),
            scale => {
                let mut text = Vec::new();
                write_decimal(value, scale, &mut text);
                std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
            }
        }
    }

    /// Appends the text of an exact value: the digits of integers and decimals, and dates and times as in ISO 8601.
    pub fn write_text(self, value: i128, out: &mut Vec<u8>) {
        match self {
            Self::Date => write_date(value, out),
            Self::Time(unit) => write_time(value, unit, out),
            Self::Timestamp(unit) => {
                let day = 86_400 * unit.per_second();
                write_date(value.div_euclid(day), out);
                out.push(b'T');
                write_time(value.rem_euclid(day), unit, out);
            }
            _ => write_decimal(value, self.scale(), out),
        }
    }

    /// Digits after the point of the number.
    fn scale(self) -> i8 {
        match self {
            Self::Decimal { scale } => scale,
            Self::Time(unit) | Self::Timestamp(unit) => unit.digits(),
            _ => 0,
        }
    }
}

impl TimeUnit {
    /// Digits of a fraction of a second.
    fn digits(self) -> i8 {
        match self {
            Self::Second => 0,
            Self::Millisecond => 3,
            Self::Microsecond => 6,
            Self::Nanosecond => 9,
        }
    }

    fn per_second(self) -> i128 {
        10_i128.pow(self.digits() as u32)
    }
}

impl ValueUse {
    /// Describes what values must be.
    pub fn expects(self) -> &'static str {
        match self {
            Self::Number => "numbers (integers, floats, decimals or booleans), dates or times",
            Self::Category => "categories (strings, integers, decimals, dates or times)",
            Self::Text => "strings",
        }
    }
}

/// Writes `value * 10^-scale`, with `scale` digits after the point.
fn write_decimal(value: i128, scale: i8, out: &mut Vec<u8>) {
    let (sign, digits) = (if value < 0 { "-" } else { "" }, value.unsigned_abs());
    let places = usize::from(scale.unsigned_abs());
    let written = match scale {
        0 => write!(out, "{value}"),
        ..0 if value == 0 => write!(out, "0"),
        ..0 => write!(out, "{value}{:0<places$}", ""),
        _ => {
            let digits = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            write!(out, "{sign}{whole}.{fraction}")
        }
    };
    written.expect("writing to a vector does not fail");
}

/// Writes the date of a day since 1970-01-01 in the Gregorian calendar; years beyond four digits have a sign.
fn write_date(days: i128, out: &mut Vec<u8>) {
    // Years begin in March, so that a leap day ends one; 400 of them have 146097 days, of which 719468 are between
    // 0000-03-01 and 1970-01-01. See Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * era + next;
    let written = match year {
        0..=9999 => write!(out, "{year:04}"),
        _ => write!(out, "{year:+05}"),
    };
    written.and_then(|()| write!(out, "-{month:02}-{date:02}")).expect("writing to a vector does not fail");
}

/// Writes a time of day; the fraction of a second has no zeros at its end.
fn write_time(value: i128, unit: TimeUnit, out: &mut Vec<u8>) {
    let sign = if value < 0 { "-" } else { "" };
    let (seconds, fraction) =
        (value.abs() / unit.per_second(), value.unsigned_abs() % unit.per_second() as u128);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    write!(out, "{sign}{hours:02}:{minutes:02}:{:02}", seconds % 60)
        .expect("writing to a vector does not fail");
    if fraction > 0 {
        let digits = format!(".{fraction:0>width$}", width = unit.digits() as usize);
        out.extend_from_slice(digits.trim_end_matches('0').as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    use super::*;

    fn text(values: ValueType, value: i128) -> String {
        let mut text = Vec::new();
        values.write_text(value, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn decimals_have_their_digits_and_the_nearest_number() {
        for (value, scale, expected) in [
            (0, 0, "0"),
            (-7, 0, "-7"),
            (1230, 2, "12.30"),
            (-5, 3, "-0.005"),
            (0, 2, "0.00"),
            (12, -3, "12000"),
            (0, -3, "0"),
            (
                -99_999_999_999_999_999_999_999_999_999_999_999_999,
                38,
                "-0.99999999999999999999999999999999999999",
            ),
            // Dividing by 10^3 rounds twice: 2^53 + 1 is not a double.
            (9_007_199_254_740_993_000, 3, "9007199254740993.000"),
        ] {
            let values = ValueType::Decimal { scale };
            assert_eq!(text(values, value), expected);
            assert_eq!(
                values.number(value).to_bits(),
                expected.parse::<f64>().unwrap().to_bits(),
                "{expected}"
            );
        }
        assert_eq!(ValueType::Integer.number(u64::MAX.into()), 18_446_744_073_709_551_615.0);
        assert_eq!(text(ValueType::Integer, u64::MAX.into()), "18446744073709551615");
    }

    /// `datetime.date.fromordinal(719163 + days)` in Python; years beyond its range by counting 400 years.
    #[test]
    fn dates_are_those_of_the_gregorian_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (19_782, "2024-02-29"),
            (11_016, "2000-02-29"),
            (-25_508, "1900-03-01"),
            (-25_509, "1900-02-28"),
            (-719_162, "0001-01-01"),
            (2_932_896, "9999-12-31"),
            (2_932_897, "+10000-01-01"),
            (-719_163 - 366, "-0001-12-31"),
        ] {
            assert_eq!(text(ValueType::Date, days), expected);
            assert_eq!(ValueType::Date.number(days), days as f64);
        }
    }

    #[test]
    fn times_of_any_unit_have_one_text_and_number() {
        let instant = 1_764_469_805; // date -u -d 2025-11-30T02:30:05 +%s
        for (unit, per_second) in
            [(Second, 1), (Millisecond, 1000), (Microsecond, 1_000_000), (Nanosecond, 1_000_000_000)]
        {
            let stamp = ValueType::Timestamp(unit);
            assert_eq!(text(stamp, instant * per_second), "2025-11-30T02:30:05");
            assert_eq!(stamp.number(instant * per_second), 1_764_469_805.0);
            assert_eq!(text(ValueType::Time(unit), 86_399 * per_second), "23:59:59");
            if unit != Second {
                assert_eq!(text(stamp, -per_second / 100), "1969-12-31T23:59:59.99");
                assert_eq!(stamp.number(-per_second / 100), -0.01);
                assert_eq!(text(ValueType::Time(unit), per_second / 20), "00:00:00.05");
            }
        }
        // 32536850399999999999 / 10^9 as a decimal number, beyond 2^53.
        let stamp = ValueType::Timestamp(Nanosecond);
        assert_eq!(stamp.number(1_764_469_805_123_456_789), 1_764_469_805.123_456_7);
    }

    #[test]
    fn types_have_uses() {
        use ValueType::{Boolean, Date, Decimal, Float, Integer, Text, Time, Timestamp};
        for (values, number, category, text) in [
            (Boolean, true, false, false),
            (Float, true, false, false),
            (Integer, true, true, false),
            (Decimal { scale: 2 }, true, true, false),
            (Date, true, true, false),
            (Time(Second), true, true, false),
            (Timestamp(Second), true, true, false),
            (Text, false, true, true),
        ] {
            let fits =
                [ValueUse::Number, ValueUse::Category, ValueUse::Text].map(|wanted| values.fits(wanted));
            assert_eq!(fits, [number, category, text], "{values:?}");
        }
    }
}
