//! Exact sums of numbers and of their squares: they depend neither on the order of the numbers nor on how they are
//! divided among threads, machines or files.
//!
//! A sum is an integer in digits of 32 bits, whose unit is the smallest positive number (or its square), so nothing is
//! ever rounded (a small superaccumulator: Neal, "Fast exact summation using small and large superaccumulators", 2015).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Digits of a sum of numbers: 2099 bits of the largest number in units of 2^-1074, and 77 more for sums.
pub(crate) const SUM_DIGITS: usize = 68;
/// Digits of a sum of squares.
pub(crate) const SQUARES_DIGITS: usize = 2 * SUM_DIGITS;
/// Additions after which carries are propagated: each adds less than 2^33 to a digit of 63 bits.
const ADDITIONS_MAX: u32 = 1 << 29;

/// A sum in units of 2^-1074, or of 2^-2148 for squares.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExactSum<const DIGITS: usize> {
    /// From the lowest; only the last one is negative if the sum is, once carries were propagated.
    digits: [i64; DIGITS],
    /// Additions since carries were propagated.
    additions: u32,
}

impl<const DIGITS: usize> Default for ExactSum<DIGITS> {
    fn default() -> Self {
        Self { digits: [0; DIGITS], additions: 0 }
    }
}

/// Returns the integer and the exponent of a finite number: it is `integer * 2^(exponent - 1074)`, apart from its sign.
#[inline]
fn parts(number: f64) -> (u64, usize) {
    let bits = number.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as usize);
    match exponent {
        0 => (fraction, 0),
        _ => (fraction | 1 << 52, exponent - 1),
    }
}

impl ExactSum<SUM_DIGITS> {
    /// Adds a finite number.
    pub(crate) fn add(&mut self, number: f64) {
        let (integer, exponent) = parts(number);
        let sign = if number.is_sign_negative() { -1 } else { 1 };
        self.add_scaled(u128::from(integer), exponent, sign);
    }
}

impl ExactSum<SQUARES_DIGITS> {
    /// Adds the square of a finite number.
    pub(crate) fn add_square(&mut self, number: f64) {
        let (integer, exponent) = parts(number);
        self.add_scaled(u128::from(integer) * u128::from(integer), 2 * exponent, 1);
    }
}

impl<const DIGITS: usize> ExactSum<DIGITS> {
    /// Adds `sign * integer * 2^exponent` units.
    fn add_scaled(&mut self, integer: u128, exponent: usize, sign: i64) {
        let (at, shift) = (exponent / 32, exponent % 32);
        self.add_at(at, (integer & u128::from(u64::MAX)) << shift, sign);
        self.add_at(at + 2, integer >> 64 << shift, sign);
        self.additions += 1;
        if self.additions == ADDITIONS_MAX {
            self.carry();
        }
    }

    /// Adds an integer of at most 96 bits from this digit on.
    fn add_at(&mut self, at: usize, integer: u128, sign: i64) {
        let digits = &mut self.digits[at..at + 3];
        for (number, digit) in digits.iter_mut().enumerate() {
            *digit += sign * i64::from((integer >> (32 * number)) as u32);
        }
    }

    /// Leaves less than 2^32 in each digit but the last.
    fn carry(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits[..DIGITS - 1] {
            let sum = *digit + carry;
            (*digit, carry) = (sum & 0xffff_ffff, sum >> 32);
        }
        self.digits[DIGITS - 1] += carry;
        self.additions = 0;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.carry();
        let mut other = other.clone();
        other.carry();
        self.digits.iter_mut().zip(other.digits).for_each(|(digit, other)| *digit += other);
        self.carry();
    }

    /// Returns whether the sum is negative, and its digits without the sign.
    pub(crate) fn magnitude(mut self) -> (bool, Vec<u32>) {
        self.carry();
        let is_negative = self.digits[DIGITS - 1] < 0;
        if is_negative {
            self.digits.iter_mut().for_each(|digit| *digit = -*digit);
            self.carry();
        }
        let mut digits: Vec<_> = self.digits[..DIGITS - 1].iter().map(|&digit| digit as u32).collect();
        let last = self.digits[DIGITS - 1] as u64;
        digits.extend([last as u32, (last >> 32) as u32]);
        (is_negative, digits)
    }
}

/// Exponents of numbers that are added up quickly: magnitudes from 2^-32 to less than 2^32.
const NEAR_EXPONENTS: usize = 64;
/// The exponent in the bits of the smallest of them.
const NEAR_FIRST: usize = 1023 - 32;
/// Numbers in [`NearSums`]: each adds less than 2^106 to squares of 128 bits.
const NEAR_NUMBERS_MAX: u32 = 1 << 22;

/// Exact sums of numbers whose magnitudes are usual, and of their squares. Numbers of one exponent have one unit, so
/// that each costs one addition to a sum of integers and one to a sum of their squares.
#[derive(Debug)]
pub(crate) struct NearSums {
    /// For each exponent, from the smallest. The first entry is for zeros, and stays 0.
    sums: [(i128, u128); NEAR_EXPONENTS + 1],
    numbers: u32,
}

impl Default for NearSums {
    fn default() -> Self {
        Self { sums: [(0, 0); NEAR_EXPONENTS + 1], numbers: 0 }
    }
}

impl NearSums {
    /// Adds a finite number some `times`, at most 2^22, and its square, to these sums or to the exact ones.
    #[inline]
    pub(crate) fn add(
        &mut self,
        number: f64,
        times: u32,
        sum: &mut ExactSum<SUM_DIGITS>,
        squares: &mut ExactSum<SQUARES_DIGITS>,
    ) {
        let bits = number.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as usize;
        let integer = bits & ((1 << 52) - 1) | u64::from(exponent != 0) << 52;
        let entry = (exponent + 1).saturating_sub(NEAR_FIRST);
        if entry > NEAR_EXPONENTS || (entry == 0) & (number != 0.0) {
            for _ in 0..times {
                sum.add(number);
                squares.add_square(number);
            }
            return;
        }
        debug_assert!(times <= NEAR_NUMBERS_MAX);
        if self.numbers + times > NEAR_NUMBERS_MAX {
            self.move_to(sum, squares);
        }
        self.numbers += times;
        let sign = bits.cast_signed() >> 63;
        let (integers, integer_squares) = &mut self.sums[entry];
        *integers += i128::from((integer.cast_signed() ^ sign) - sign) * i128::from(times);
        *integer_squares += u128::from(integer) * u128::from(integer) * u128::from(times);
    }

    /// Adds these sums to exact ones, and starts again at 0.
    pub(crate) fn move_to(&mut self, sum: &mut ExactSum<SUM_DIGITS>, squares: &mut ExactSum<SQUARES_DIGITS>) {
        let Self { sums, .. } = std::mem::take(self);
        let used = sums.iter().skip(1).zip(NEAR_FIRST - 1..).filter(|((_, squares), _)| *squares != 0);
        for (&(integers, integer_squares), exponent) in used {
            let sign = if integers < 0 { -1 } else { 1 };
            sum.add_scaled(integers.unsigned_abs(), exponent, sign);
            squares.add_scaled(integer_squares, 2 * exponent, 1);
        }
    }
}

/// A sum as its digits, in a document.
impl<const DIGITS: usize> Serialize for ExactSum<DIGITS> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sum = self.clone();
        sum.carry();
        let digits = sum.digits.iter().enumerate().filter(|&(_, &digit)| digit != 0);
        serializer.collect_seq(digits)
    }
}

impl<'de, const DIGITS: usize> Deserialize<'de> for ExactSum<DIGITS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut sum = Self::default();
        for (at, digit) in Vec::<(usize, i64)>::deserialize(deserializer)? {
            // The last digit has the sign: 2^64 of the largest number give less than 2^20.
            let range = if at + 1 == DIGITS { -1 << 20..1 << 20 } else { 0..1 << 32 };
            match sum.digits.get_mut(at).filter(|_| range.contains(&digit)) {
                Some(own) => *own = digit,
                None => return Err(D::Error::custom(format!("digit {at} of a sum is {digit}"))),
            }
        }
        Ok(sum)
    }
}

/// Returns the mean of `count` numbers with this sum, rounded to nearest; `count` is at least 1.
pub(crate) fn mean(sum: &ExactSum<SUM_DIGITS>, count: u64) -> f64 {
    let (is_negative, mut digits) = sum.clone().magnitude();
    let mut rest = 0;
    for digit in digits.iter_mut().rev() {
        let value = u128::from(rest) << 32 | u128::from(*digit);
        *digit = (value / u128::from(count)) as u32;
        rest = (value % u128::from(count)) as u64;
    }
    let (top, exponent) = top_bits(&digits, rest != 0);
    let mean = scaled(top, exponent - 1074);
    if is_negative { -mean } else { mean }
}

/// Returns the standard deviation of `count` numbers with these sums: within two roundings of the exact value.
pub(crate) fn deviation(sum: &ExactSum<SUM_DIGITS>, squares: &ExactSum<SQUARES_DIGITS>, count: u64) -> f64 {
    // The variance is (count * squares - sum^2) / count^2; nothing is rounded before the difference.
    let (_, sum) = sum.clone().magnitude();
    let (_, squares) = squares.clone().magnitude();
    let mut difference = vec![0; 2 * sum.len() + 2];
    add_product(&mut difference, &squares, &[count as u32, (count >> 32) as u32]);
    let mut square = vec![0; difference.len()];
    add_product(&mut square, &sum, &sum);
    let mut borrow = false;
    for (digit, other) in difference.iter_mut().zip(square) {
        let (own, first) = digit.overflowing_sub(other);
        let (own, second) = own.overflowing_sub(u32::from(borrow));
        (*digit, borrow) = (own, first || second);
    }
    debug_assert!(!borrow, "the mean of squares is at least the square of the mean");
    let (top, exponent) = top_bits(&difference, false);
    // An even exponent has a root.
    let (top, exponent) = match exponent % 2 {
        0 => (top as f64, exponent),
        _ => (top as f64 * 2.0, exponent - 1),
    };
    scaled_float(top.sqrt() / count as f64, (exponent - 2148) / 2)
}

/// Adds the product of two integers, which must fit.
fn add_product(to: &mut [u32], a: &[u32], b: &[u32]) {
    for (at, &one) in a.iter().enumerate().filter(|&(_, &one)| one != 0) {
        let mut carry = 0;
        for (digit, other) in to[at..].iter_mut().zip(b.iter().copied().chain(std::iter::repeat(0))) {
            let sum = u64::from(one) * u64::from(other) + u64::from(*digit) + carry;
            (*digit, carry) = (sum as u32, sum >> 32);
        }
    }
}

/// Returns the highest 64 bits of an integer and the exponent of the lowest of them; this one is also set if any bit
/// below is, or `rest`, so that rounding to fewer bits is right.
fn top_bits(digits: &[u32], rest: bool) -> (u64, i32) {
    let Some(last) = digits.iter().rposition(|&digit| digit != 0) else { return (u64::from(rest), 0) };
    let first = last.saturating_sub(2);
    let top = digits[first..=last].iter().rev().fold(0_u128, |top, &digit| top << 32 | u128::from(digit));
    let excess = (128 - top.leading_zeros()).saturating_sub(64);
    let is_below = rest || digits[..first].iter().any(|&digit| digit != 0) || top & ((1 << excess) - 1) != 0;
    ((top >> excess) as u64 | u64::from(is_below), (32 * first) as i32 + excess as i32)
}

/// Returns `integer * 2^exponent`, rounded to nearest once.
fn scaled(integer: u64, exponent: i32) -> f64 {
    // Numbers below 2^-1022 have a fixed unit of 2^-1074. Here, the exponent is never below it, and if there are more
    // than 53 bits, the number is not one of these.
    debug_assert!(exponent >= -1074);
    scaled_float(integer as f64, exponent)
}

/// Returns `number * 2^exponent`; the steps are exact unless the result is below 2^-1022.
fn scaled_float(mut number: f64, mut exponent: i32) -> f64 {
    const STEP: i32 = 1000;
    while exponent > STEP {
        (number, exponent) = (number * 2.0_f64.powi(STEP), exponent - STEP);
    }
    while exponent < -STEP {
        (number, exponent) = (number * 2.0_f64.powi(-STEP), exponent + STEP);
    }
    number * 2.0_f64.powi(exponent)
}
