//! 8-bit floating-point numbers, rounded as in the kernels.

use bytemuck::{Pod, Zeroable};

/// fp8 with four exponent bits and three mantissa bits: from 2^-9 to 448, without infinities.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct E4m3(pub u8);

/// The sign bit.
const SIGN: u8 = 0x80;
/// Bits of the mantissa.
const MANTISSA: i32 = 3;
/// The exponent of subnormal numbers, and the exponent bias.
const EXPONENT_MIN: i32 = -6;
const BIAS: i32 = 7;

impl E4m3 {
    /// The largest number.
    pub const MAX: f32 = 448.0;
    /// Not a number.
    pub const NAN: Self = Self(0x7f);

    /// Rounds to nearest, ties to even; values beyond the largest number become it.
    pub fn of(value: f32) -> Self {
        if value.is_nan() {
            return Self::NAN;
        }
        let sign = if value.is_sign_negative() { SIGN } else { 0 };
        let magnitude = value.abs().min(Self::MAX);
        // The exponent of the f32; zero and subnormal f32 get the smallest exponent here too.
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(EXPONENT_MIN);
        let units = (magnitude * f32::exp2((MANTISSA - exponent) as f32)).round_ties_even() as i32;
        // Subnormal numbers have units only. If the units reach the next power of two, they carry into the exponent.
        let bits = ((exponent - EXPONENT_MIN) << MANTISSA) + units;
        Self(sign | bits as u8)
    }

    /// Its value.
    pub fn value(self) -> f32 {
        let magnitude = i32::from(self.0 & !SIGN);
        if magnitude == i32::from(Self::NAN.0) {
            return f32::NAN;
        }
        let (exponent, mantissa) = (magnitude >> MANTISSA, magnitude & ((1 << MANTISSA) - 1));
        let (exponent, units) = match exponent {
            0 => (EXPONENT_MIN, mantissa),
            exponent => (exponent - BIAS, mantissa + (1 << MANTISSA)),
        };
        let value = units as f32 * f32::exp2((exponent - MANTISSA) as f32);
        if self.0 & SIGN == 0 { value } else { -value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_rounds_to_itself() {
        for bits in 0..=u8::MAX {
            let number = E4m3(bits);
            if bits & !SIGN == E4m3::NAN.0 {
                assert!(number.value().is_nan() && E4m3::of(number.value()) == E4m3::NAN);
            } else {
                assert_eq!(E4m3::of(number.value()), number, "{}", number.value());
            }
        }
        assert_eq!(E4m3(0x7e).value(), E4m3::MAX);
        assert_eq!([E4m3(1).value(), E4m3(8).value(), E4m3(0x38).value()], [1.0 / 512.0, 1.0 / 64.0, 1.0]);
    }

    #[test]
    fn other_values_round_to_nearest_ties_to_even() {
        for bits in 0..0x7e {
            let [low, high] = [E4m3(bits), E4m3(bits + 1)];
            let middle = (low.value() + high.value()) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            for (value, nearest) in [
                (middle, even),
                (middle.next_down(), low),
                (middle.next_up(), high),
                (low.value().next_up(), low),
            ] {
                assert_eq!(E4m3::of(value), nearest, "{value}");
                assert_eq!(E4m3::of(-value), E4m3(nearest.0 | SIGN), "-{value}");
            }
        }
        for large in [449.0, 1e30, f32::INFINITY] {
            assert_eq!([E4m3::of(large).value(), E4m3::of(-large).value()], [E4m3::MAX, -E4m3::MAX]);
        }
        assert_eq!(E4m3::of(f32::MIN_POSITIVE / 2.0), E4m3(0));
    }
}
