//! Numbers of bytes, as people write them.

use crate::error::InvalidValue;

/// Parses a size: a whole number of bytes, or a number with a binary unit (`1.5GiB`) or a decimal one (`80GB`).
/// Fractions of a byte are dropped.
///
/// # Errors
/// If it is no such text.
pub fn parse_size(text: &str) -> Result<u64, InvalidValue> {
    parse_bytes(text).ok_or_else(|| InvalidValue::expected(text, "a size such as 512MiB, 1.5GiB or 80GB"))
}

fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u128); 10] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let unit = UNITS.iter().find_map(|&(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), bytes)));
    let Some((number, unit)) = unit else { return parse_whole(text) };
    let (number, fraction) = match number.split_once('.') {
        Some((number, fraction)) if unit > 1 => (number, fraction),
        Some(_) => return None,
        None => (number, "0"),
    };
    // 18 digits resolve single bytes of a TiB, and their product with the unit fits in 128 bits.
    if fraction.is_empty() || fraction.len() > 18 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let part = fraction.parse::<u128>().ok()? * unit / 10u128.pow(fraction.len() as u32);
    u64::try_from(u128::from(parse_whole(number)?) * unit + part).ok()
}

/// Parses a whole number, whose digits may be grouped: `1_000_000`. `None` for any other text.
pub fn parse_whole(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_or_decimal_units() {
        for (text, expected) in [
            ("4096", 4096),
            ("4_096", 4096),
            ("7B", 7),
            ("3KiB", 3 << 10),
            ("512 MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("2TiB", 2 << 40),
            ("0.001KiB", 1),
            ("12kB", 12_000),
            ("12KB", 12_000),
            ("0.25MB", 250_000),
            ("80GB", 80_000_000_000),
            ("1.5TB", 1_500_000_000_000),
            ("16777215.999999TiB", u64::MAX - 1_099_511),
        ] {
            assert_eq!(parse_size(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "GiB",
            ".5GiB",
            "1.GiB",
            "1.5",
            "1.5B",
            "-1KiB",
            "+1KiB",
            "1e3KiB",
            "1.+5GiB",
            "2 G",
            "1.5.5GB",
            "nanGB",
            "16777216TiB",
            "99999999999TiB",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
