//! Ids that follow a power law: a few categories have most look-ups, as in all click logs.

/// Draws rows with `p(k) ~ k^-alpha` over the frequency ranks k = 1 to `rows`, by inverting the continuous
/// distribution on `[1, rows + 1)` and rounding down. A fixed permutation scatters the frequency ranks over the
/// table.
#[derive(Debug, Clone)]
pub struct PowerLaw {
    rows: u64,
    /// `(rows + 1)^(1 - alpha) - 1`, or `ln(rows + 1)` if alpha is 1.
    span: f64,
    exponent: Exponent,
    multiplier: u64,
}

#[derive(Debug, Clone, Copy)]
enum Exponent {
    /// alpha is 1: the inverse is `exp(u span)`.
    Exponential,
    /// `1 / (1 - alpha)` is an integer, -10 for the benchmark's 1.1: a few multiplications suffice.
    Integer(i32),
    Real(f64),
}

impl PowerLaw {
    /// Creates the law for a table of `rows` rows, at least one. alpha must be 0 or more; 0 makes all rows equally
    /// likely.
    pub fn new(rows: u64, alpha: f64) -> Self {
        let end = rows as f64 + 1.0;
        let (span, exponent) = if (alpha - 1.0).abs() < 1e-9 {
            (libm::log(end), Exponent::Exponential)
        } else {
            let inverse = 1.0 / (1.0 - alpha);
            let near = libm::round(inverse);
            let integer = (inverse - near).abs() < 1e-9 * near.abs() && near.abs() <= 64.0;
            let exponent = if integer { Exponent::Integer(near as i32) } else { Exponent::Real(inverse) };
            (libm::pow(end, 1.0 - alpha) - 1.0, exponent)
        };
        Self { rows, span, exponent, multiplier: scattering_multiplier(rows) }
    }

    /// Returns the frequency rank, from 0, for a `u` uniform in `[0, 1)`.
    pub fn rank(&self, u: f64) -> u64 {
        let x = match self.exponent {
            Exponent::Exponential => libm::exp(u * self.span),
            Exponent::Integer(power) => integer_power(1.0 + u * self.span, power),
            Exponent::Real(power) => libm::pow(1.0 + u * self.span, power),
        };
        ((x as u64).max(1) - 1).min(self.rows - 1)
    }

    /// Returns the share of ids with a frequency rank below this one, in `0..=1`.
    pub fn share_below(&self, rank: u64) -> f64 {
        if rank >= self.rows {
            return 1.0;
        }
        let end = rank as f64 + 1.0;
        match self.exponent {
            Exponent::Exponential => libm::log(end) / self.span,
            Exponent::Integer(power) => (libm::pow(end, 1.0 / f64::from(power)) - 1.0) / self.span,
            Exponent::Real(power) => (libm::pow(end, 1.0 / power) - 1.0) / self.span,
        }
    }

    /// Returns the row of a frequency rank in the table: `rank * multiplier mod rows`, a permutation because the two
    /// are coprime.
    pub fn row(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.multiplier) % u128::from(self.rows)) as u64
    }
}

/// Computes a power by repeated squaring, so that every machine computes the same bits.
fn integer_power(x: f64, power: i32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, x, power.unsigned_abs());
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    if power < 0 { 1.0 / result } else { result }
}

/// Returns the first number from `rows` / golden ratio up that is coprime to `rows`: neighbouring frequency ranks are
/// placed far apart.
fn scattering_multiplier(rows: u64) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = ((rows as f64 * 0.618_033_988_749_894_9) as u64).max(1);
    (start..).find(|&candidate| divisor(candidate, rows) == 1).expect("the next prime is coprime")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn rows_are_a_permutation_of_ranks() {
        for rows in [1, 2, 3, 10, 64, 97, 1000, 4096] {
            let law = PowerLaw::new(rows, 1.1);
            let mut seen: Vec<u64> = (0..rows).map(|rank| law.row(rank)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..rows));
        }
    }

    #[test]
    fn ranks_follow_the_law() {
        for alpha in [0.0, 0.5, 1.0, 1.1, 1.37, 2.0] {
            let (rows, draws) = (50, 200_000);
            let law = PowerLaw::new(rows, alpha);
            let mut rng = Rng::new(7);
            let mut counts = vec![0u32; rows as usize];
            (0..draws).for_each(|_| counts[law.rank(rng.unit_f64()) as usize] += 1);
            // The probability of a frequency rank is the integral of x^-alpha over [k, k + 1).
            let integral =
                |x: f64| if alpha == 1.0 { x.ln() } else { (x.powf(1.0 - alpha) - 1.0) / (1.0 - alpha) };
            for (rank, &count) in counts.iter().enumerate() {
                let k = rank as f64 + 1.0;
                let p = (integral(k + 1.0) - integral(k)) / integral(rows as f64 + 1.0);
                let deviation = (p * f64::from(draws)).sqrt();
                assert!(
                    (f64::from(count) - p * f64::from(draws)).abs() < 5.0 * deviation + 5.0,
                    "{alpha} {rank}"
                );
                let share = law.share_below(rank as u64 + 1) - law.share_below(rank as u64);
                assert!((share - p).abs() < 1e-12, "{alpha} {rank}: {share} for {p}");
            }
            assert_eq!((law.rank(0.0), law.rank(1.0 - f64::EPSILON / 2.0)), (0, rows - 1));
            assert_eq!((law.share_below(0), law.share_below(rows)), (0.0, 1.0));
        }
    }

    /// The reference workload: tables capped at 5,000,000 rows and a batch of 65536, in which 12.7% of the look-ups
    /// are distinct.
    #[test]
    fn the_benchmarks_share_of_distinct_rows_is_reproduced() {
        let (mut distinct, mut lookups) = (0, 0);
        for (table, rows) in crate::generate::Shape::load("dlrm").unwrap().rows.into_iter().enumerate() {
            let law = PowerLaw::new(rows.min(5_000_000), 1.1);
            let mut rng = Rng::from_parts(&[table as u64]);
            let mut seen: Vec<u64> = (0..65536).map(|_| law.row(law.rank(rng.unit_f64()))).collect();
            lookups += seen.len();
            seen.sort_unstable();
            seen.dedup();
            distinct += seen.len();
        }
        let share = distinct as f64 / lookups as f64;
        assert!((share - 0.127).abs() < 0.001, "{share}");
    }
}
