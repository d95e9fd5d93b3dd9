//! Parsing numbers in text.

/// Parses a decimal number with optional point and exponent; it must be finite and within the range of single
/// precision.
#[inline]
pub(crate) fn parse(text: &[u8]) -> Option<f64> {
    match integer(text) {
        Some(integer) => Some(integer),
        None => float(text),
    }
}

/// Parses an integer of up to 15 digits, which is exact.
#[inline]
fn integer(text: &[u8]) -> Option<f64> {
    const DIGITS_MAX: usize = 15;
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > DIGITS_MAX {
        return None;
    }
    let mut value = 0_i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit >= 10 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -(value as f64) } else { value as f64 })
}

fn float(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // Words such as `inf` and `nan` parse as well; neither is within the bounds.
    (value.abs() <= f64::from(f32::MAX)).then_some(value)
}

/// What a weight must be.
pub(crate) const WEIGHT: &str = "a weight: it must be 0, or a number from 1.5e-45 to 3.4e38";

/// Returns a weight in single precision, in which it is stored; `None` if it is negative, not finite, or would become
/// infinite or 0, so that its sample would not count.
#[inline]
pub(crate) fn weight(weight: f64) -> Option<f32> {
    let stored = weight as f32;
    (weight == 0.0 || stored > 0.0 && stored.is_finite()).then_some(stored)
}

/// Parses a weight.
#[inline]
pub(crate) fn parse_weight(text: &[u8]) -> Option<f32> {
    parse(text).and_then(weight)
}

/// Describes a row whose column `column` has another number of weights than of categories.
pub(crate) fn weight_count((weights, categories): (usize, usize), column: &str) -> String {
    let (plural, of) = (|count| if count == 1 { "" } else { "s" }, if categories == 1 { "y" } else { "ies" });
    format!(
        "{weights} weight{} for {categories} categor{of} of {column}: each category needs one",
        plural(weights)
    )
}

/// Parses a number below `rows` in decimal digits.
#[inline]
pub(crate) fn parse_row(text: &[u8], rows: u64) -> Option<u64> {
    let mut value = 0_u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit >= 10 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!text.is_empty() && value < rows).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_weight_that_does_not_fit_single_precision_is_none() {
        for (number, stored) in [(0.0, 0.0), (1.0, 1.0), (0.1, 0.1_f32), (1.5e-45, f32::from_bits(1))] {
            assert_eq!(weight(number), Some(stored), "{number}");
        }
        for none in [-1.0, -1e-300, 1e-300, 0.6e-45, 3.5e38, 1e300, f64::INFINITY, f64::NAN] {
            assert_eq!(weight(none), None, "{none}");
        }
    }

    #[test]
    fn numbers_are_recognized() {
        for (text, expected) in [
            ("0", Some(0.0)),
            ("-17", Some(-17.0)),
            ("1.5", Some(1.5)),
            ("1e3", Some(1000.0)),
            (".5", Some(0.5)),
            ("+2", Some(2.0)),
            ("999999999999999", Some(999_999_999_999_999.0)),
            ("12345678901234567890", Some(12_345_678_901_234_567_890.0)),
            ("", None),
            ("-", None),
            (" 1", None),
            ("1,5", None),
            ("nan", None),
            ("inf", None),
            ("1e39", None),
            ("0x10", None),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in
            [("0", Some(0)), ("16", Some(16)), ("0016", Some(16)), ("17", None), ("", None), ("+1", None)]
        {
            assert_eq!(parse_row(text.as_bytes(), 17), expected, "{text}");
        }
        assert_eq!(parse_row(b"99999999999999999999999", u64::MAX), None);
    }

    proptest! {
        #[test]
        fn both_parsers_agree(value in any::<i64>()) {
            let text = (value >> (value & 63)).to_string();
            prop_assert_eq!(parse(text.as_bytes()), float(text.as_bytes()));
        }
    }
}
