//! The types in which tables' weights are stored, and how weights are rounded to them.
//!
//! Arithmetic and optimizer state are f32. An update's result is rounded stochastically, up or down, so that its mean
//! is the unrounded number: rounding to nearest would lose every step smaller than half the distance between two
//! numbers. The random numbers depend only on seed, step, table, row and column.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::random::{UniformField, philox4x32};

/// The type of a table's weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 binary32.
    #[default]
    Fp32,
    /// bfloat16: the upper half of binary32, with 8 bits of precision.
    Bf16,
    /// IEEE 754 binary16: 11 bits of precision, up to 65504.
    Fp16,
}

/// The largest finite fp16 number and the smallest normal one, as f32 bits.
const FP16_MAX: u32 = 0x477f_e000;
const FP16_NORMAL: u32 = 0x3880_0000;
const BF16_MAX: u32 = 0x7f7f_0000;
const SIGN: u32 = 1 << 31;
/// The distance between subnormal fp16 numbers, 2^-24.
const FP16_UNIT: f32 = 1.0 / (1 << 24) as f32;

impl Dtype {
    /// Bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
        }
    }

    /// Writes the bytes of a number of the type, lowest first.
    ///
    /// # Panics
    /// If `bytes` does not have [`Dtype::bytes`] bytes.
    pub fn put(self, value: f32, bytes: &mut [u8]) {
        match self {
            Self::Fp32 => bytes.copy_from_slice(&value.to_le_bytes()),
            Self::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            Self::Fp16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        }
    }

    /// Writes values one behind the other.
    ///
    /// # Panics
    /// If `bytes` has another length than they take.
    pub fn put_all(self, values: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), values.len() * self.bytes());
        match self {
            Self::Fp32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
            Self::Bf16 | Self::Fp16 => {
                let elements = bytes.chunks_exact_mut(2);
                elements.zip(values).for_each(|(element, &value)| self.put(value, element));
            }
        }
    }

    /// Reads a number of the type from its bytes, lowest first.
    ///
    /// # Panics
    /// If there are not [`Dtype::bytes`] bytes.
    pub fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::Fp32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Self::Fp16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            _ => panic!("{} bytes are not a number of type {self:?}", bytes.len()),
        }
    }

    /// Reads values one behind the other.
    ///
    /// # Panics
    /// If `bytes` has another length than they take.
    pub fn read_all(self, bytes: &[u8], values: &mut [f32]) {
        assert_eq!(bytes.len(), values.len() * self.bytes());
        match self {
            Self::Fp32 => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
            Self::Bf16 | Self::Fp16 => {
                let elements = bytes.chunks_exact(2);
                values.iter_mut().zip(elements).for_each(|(value, element)| *value = self.read(element));
            }
        }
    }

    /// Rounds to the nearest number of the type, ties to even. Values that are too large become the largest finite
    /// number.
    pub fn nearest(self, value: f32) -> f32 {
        let magnitude = value.to_bits() & !SIGN;
        self.rounded(
            value,
            |dropped| ((1 << (dropped - 1)) - 1) + (magnitude >> dropped & 1),
            |units| units.round_ties_even(),
        )
    }

    /// Rounds stochastically to one of the two neighbours in the type, with a random word: the nearer, the likelier.
    /// Values that are too large become the largest finite number.
    pub fn at_random(self, value: f32, word: u32) -> f32 {
        self.rounded(
            value,
            |dropped| word >> (32 - dropped),
            |units| {
                let floor = units.floor();
                // 24 bits of a word are exact in f32, and so is the difference.
                if (word >> 8) as f32 * FP16_UNIT < units - floor { floor + 1.0 } else { floor }
            },
        )
    }

    /// Rounds by adding `added` to the bits before the lowest ones are dropped; for subnormal fp16 numbers, `units`
    /// rounds the value counted in units.
    fn rounded(self, value: f32, added: impl Fn(u32) -> u32, units: impl Fn(f32) -> f32) -> f32 {
        let (dropped, max) = match self {
            Self::Fp32 => return value,
            Self::Bf16 => (16, BF16_MAX),
            Self::Fp16 => (13, FP16_MAX),
        };
        let (sign, magnitude) = (value.to_bits() & SIGN, value.to_bits() & !SIGN);
        if value.is_nan() {
            return f32::NAN;
        }
        if self == Self::Fp16 && magnitude < FP16_NORMAL {
            let count = units(f32::from_bits(magnitude) / FP16_UNIT);
            return f32::from_bits((count * FP16_UNIT).to_bits() | sign);
        }
        let rounded = if magnitude >= max { max } else { magnitude + added(dropped) };
        f32::from_bits((rounded >> dropped << dropped).min(max) | sign)
    }
}

/// How a step rounds the weights that it writes to a table.
#[derive(Debug, Clone, Copy)]
pub struct Rounding {
    dtype: Dtype,
    key: [u32; 2],
    table: u32,
}

/// Distinguishes the keys of steps, so that they share no random word with an initial weight.
const STEPS: u32 = 0x726f_756e;

impl Rounding {
    /// Creates the rounding of a table in a step; none for fp32. `field` is the random field of its initial weights.
    ///
    /// # Panics
    /// If weights are to be rounded, but were not drawn from a field.
    pub fn new(dtype: Dtype, field: Option<UniformField>, step: u64) -> Option<Self> {
        if dtype == Dtype::Fp32 {
            return None;
        }
        let field = field.expect("weights that are rounded were drawn from a seed");
        let counter = [step as u32, (step >> 32) as u32, STEPS, 0];
        let [first, second, ..] = philox4x32(counter, field.key());
        Some(Self { dtype, key: [first, second], table: field.stream() })
    }

    /// Rounds a row's weights, or those of some columns. Column `c` gets word `c % 4` of counter `(row low, row high,
    /// c / 4, table)`.
    pub fn round(&self, row: u64, first_column: usize, weights: &mut [f32]) {
        let mut words = [0; 4];
        for (column, weight) in (first_column..).zip(weights) {
            if column == first_column || column % 4 == 0 {
                let group = (column / 4) as u32;
                words = philox4x32([row as u32, (row >> 32) as u32, group, self.table], self.key);
            }
            *weight = self.dtype.at_random(*weight, words[column % 4]);
        }
    }
}

/// Returns whether every number is finite.
pub fn all_finite(numbers: &[f32]) -> bool {
    // No early exit, so that the loop is vectorized.
    numbers.iter().fold(true, |all, number| all & number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALVES: [Dtype; 2] = [Dtype::Bf16, Dtype::Fp16];

    /// Words with every possible upper part, in a scattered order.
    fn words(count: u32) -> impl Iterator<Item = u32> {
        (0..count).map(|number| number.wrapping_mul(0x9E37_79B1))
    }

    /// The distance between neighbouring numbers of a type around a value.
    fn distance(dtype: Dtype, value: f32) -> f32 {
        let bits = if dtype == Dtype::Bf16 { 7 } else { 10 };
        let least = if dtype == Dtype::Bf16 { -126 } else { -14 };
        2f32.powi((value.abs().log2().floor() as i32).max(least) - bits)
    }

    #[test]
    fn rounding_at_random_keeps_the_mean() {
        for dtype in HALVES {
            for value in [1.0003f32, -0.7, 3.3e-5, -1.234e-7, 2.0e-8, 1000.3, -65_500.5] {
                let (low, distance) =
                    (value.abs() / distance(dtype, value), f64::from(distance(dtype, value)));
                let count = 1 << 16;
                let mut sum = 0.0;
                for word in words(count) {
                    let rounded = dtype.at_random(value, word);
                    let units = rounded.abs() / distance as f32;
                    assert!(units == low.floor() || units == low.ceil(), "{dtype:?} {value}: {rounded}");
                    sum += f64::from(rounded);
                }
                let mean = sum / f64::from(count);
                // Evenly spread words miss a share by at most one of them, plus the bits that are dropped.
                let bound = distance * 2.0 / f64::from(count);
                assert!((mean - f64::from(value)).abs() <= bound, "{dtype:?} {value}: {mean}");
            }
        }
    }

    #[test]
    fn numbers_of_the_type_stay_and_large_values_saturate() {
        for dtype in HALVES {
            let largest = if dtype == Dtype::Bf16 { f32::from_bits(BF16_MAX) } else { 65_504.0 };
            for word in words(1000) {
                for value in [0.0f32, 1.0, -1.5, 0.007_812_5, -2f32.powi(-20), largest, -largest] {
                    assert_eq!(dtype.at_random(value, word).to_bits(), value.to_bits(), "{dtype:?}");
                    assert_eq!(dtype.nearest(value).to_bits(), value.to_bits(), "{dtype:?}");
                }
                for value in [f32::MAX, f32::INFINITY, f32::from_bits(largest.to_bits() + 1)] {
                    assert_eq!(dtype.at_random(-value, word), -largest);
                    assert_eq!(dtype.nearest(value), largest);
                }
                assert!(dtype.at_random(f32::NAN, word).is_nan() && dtype.nearest(f32::NAN).is_nan());
            }
        }
    }

    /// Compared with the crate `half`, to the bit, over the whole range and with all kinds of ties.
    #[test]
    fn rounding_to_nearest_equals_another_implementation() {
        for dtype in HALVES {
            let (largest, dropped) = match dtype {
                Dtype::Bf16 => (f32::from_bits(BF16_MAX), 16),
                _ => (f32::from_bits(FP16_MAX), 13),
            };
            let near_ties = words(1 << 14).flat_map(|word| {
                let tie = word >> dropped << dropped | 1 << (dropped - 1);
                [tie - 1, tie, tie + 1]
            });
            // Subnormal fp16 numbers are multiples of 2^-24, with ties between them.
            let subnormal = (0..4096).map(|halves| (halves as f32 * 2f32.powi(-25)).to_bits());
            for value in words(1 << 16).chain(near_ties).chain(subnormal).map(f32::from_bits) {
                let other = match dtype {
                    Dtype::Bf16 => bf16::from_f32(value).to_f32(),
                    _ => f16::from_f32(value).to_f32(),
                };
                if value.abs() <= largest {
                    assert_eq!(dtype.nearest(value).to_bits(), other.to_bits(), "{dtype:?} {value:e}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_stored_lowest_byte_first() {
        let stored = |dtype: Dtype, value| {
            let mut bytes = vec![0xff; dtype.bytes()];
            dtype.put(value, &mut bytes);
            assert_eq!(dtype.read(&bytes), value);
            bytes
        };
        assert_eq!(stored(Dtype::Fp32, -1.5), [0, 0, 0xc0, 0xbf]);
        assert_eq!(stored(Dtype::Bf16, -1.5), [0xc0, 0xbf]);
        assert_eq!(stored(Dtype::Fp16, -1.5), [0, 0xbe]);
    }

    /// A weight's random word depends on seed, step, table, row and column, as the module says.
    #[test]
    fn weights_are_rounded_with_the_word_of_their_position() {
        let (seed, table, step, row) = (0x0123_4567_89ab_cdef, 3, 0x1_0000_0007, 0x2_0000_0005);
        let [first, second, ..] = philox4x32([7, 1, 0x726f_756e, 0], [0x89ab_cdef, 0x0123_4567]);
        for dtype in HALVES {
            let rounding = Rounding::new(dtype, Some(UniformField::new(seed, table)), step).unwrap();
            let weights: Vec<_> = (0..23).map(|column| 1.0 + column as f32 * 1e-4).collect();
            let mut rounded = weights.clone();
            rounding.round(row, 6, &mut rounded);
            for ((column, weight), rounded) in (6..).zip(weights).zip(rounded) {
                let word = philox4x32([5, 2, column / 4, table], [first, second])[column as usize % 4];
                // The distance between numbers from 1 to 2. Words round up in proportion to the fraction, the largest
                // ones first.
                let distance = if dtype == Dtype::Bf16 { 2f64.powi(-7) } else { 2f64.powi(-10) };
                let units = f64::from(weight) / distance;
                let up = f64::from(word) / 2f64.powi(32) >= 1.0 - units.fract();
                let expected = (units.floor() + f64::from(u8::from(up))) * distance;
                assert_eq!(f64::from(rounded), expected, "{dtype:?}, column {column}");
            }
        }
    }

    #[test]
    fn a_part_of_a_row_is_rounded_as_the_whole() {
        let rounding = |step| Rounding::new(Dtype::Bf16, Some(UniformField::new(7, 3)), step).unwrap();
        let weights: Vec<_> = (0..37).map(|column| 1.0 + column as f32 * 1e-3).collect();
        let mut whole = weights.clone();
        rounding(5).round(1 << 33, 0, &mut whole);
        for columns in [0..4, 3..11, 17..37] {
            let mut part = weights[columns.clone()].to_vec();
            rounding(5).round(1 << 33, columns.start, &mut part);
            assert_eq!(part, whole[columns]);
        }
        assert!(Rounding::new(Dtype::Fp32, Some(UniformField::new(7, 3)), 5).is_none());
    }
}
