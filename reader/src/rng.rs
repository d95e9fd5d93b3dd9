//! Pseudo-random numbers that depend only on their seed: SplitMix64 with unbiased bounded draws.
//!
//! Implemented here instead of in a dependency because a shuffle must be the same under every version of every
//! dependency: a run that resumes after an upgrade continues with the samples that it would have seen.

/// A generator with 64 bits of state.
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

/// 2^64 divided by the golden ratio, made odd: SplitMix64's step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer (Steele, Lea and Flood 2014): a bijection in which every input bit moves every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[allow(dead_code, reason = "the stream uses half of it, the generator all")]
impl Rng {
    /// Returns a generator seeded with `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a generator seeded with several numbers, such as (seed, epoch, window). Other numbers, another order
    /// or another count give an unrelated generator.
    pub(crate) fn from_parts(parts: &[u64]) -> Self {
        let start = mix(parts.len() as u64 ^ STEP);
        Self {
            state: parts.iter().fold(start, |state, &part| mix(state.wrapping_add(STEP) ^ mix(part ^ STEP))),
        }
    }

    /// Returns 64 random bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Returns a uniformly distributed number below `n` (Lemire 2019).
    ///
    /// # Panics
    /// If `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "the bound must not be 0");
        let mut product = u128::from(self.next_u64()) * u128::from(n);
        if (product as u64) < n {
            // The low halves below 2^64 mod n belong to an incomplete round: numbers drawn from it would be too
            // frequent.
            let incomplete = n.wrapping_neg() % n;
            while (product as u64) < incomplete {
                product = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// Returns a uniformly distributed number in `[0, 1)`, a multiple of 2^-53.
    pub(crate) fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Shuffles the items (Fisher and Yates), each order equally likely.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The first outputs for seed 1234567, as printed by the reference implementation.
        let mut rng = Rng::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, [(); 3].map(|()| rng.next_u64()));
    }

    /// Expected values come from another implementation: the shuffle or dataset of a seed must never change.
    #[test]
    fn draws_match_another_implementation() {
        let first = |parts: &[u64]| Rng::from_parts(parts).next_u64();
        assert_eq!(
            [first(&[]), first(&[0]), first(&[1, 2]), first(&[2, 1])],
            [
                12_035_550_249_420_947_055,
                8_856_154_996_443_567_598,
                17_327_811_439_971_751_514,
                3_965_818_740_016_414_228
            ]
        );
        let mut rng = Rng::from_parts(&[3]);
        assert_eq!([(); 8].map(|()| rng.below(6)), [2, 4, 1, 0, 4, 2, 4, 2]);
        // Nearly half of the numbers fall into the incomplete round and are drawn again.
        let mut rng = Rng::new(9);
        assert_eq!(
            [(); 6].map(|()| rng.below((1 << 63) + 1)),
            [
                6_293_685_368_797_016_114,
                6_923_938_283_921_077_553,
                7_238_628_665_223_327_792,
                2_421_627_889_027_662_800,
                5_956_534_231_975_222_374,
                2_020_246_655_926_038_708
            ]
        );
    }

    #[test]
    fn different_parts_give_different_generators() {
        let firsts =
            [&[][..], &[0], &[0, 0], &[0, 1], &[1, 0], &[1]].map(|parts| Rng::from_parts(parts).next_u64());
        for (i, a) in firsts.iter().enumerate() {
            assert!(firsts[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn draws_are_even() {
        let mut rng = Rng::new(5);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[rng.below(6) as usize] += 1);
        // Each count is binomial with standard deviation 91; the bound is six of these.
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 550), "{counts:?}");
        let mean = (0..60_000).map(|_| rng.unit_f64()).sum::<f64>() / 60_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!((0..1000).all(|_| rng.below(1) == 0));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit_f64())));
    }

    #[test]
    fn all_orders_of_three_are_equally_likely() {
        let mut rng = Rng::new(9);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..60_000 {
            let mut items = [0, 1, 2];
            rng.shuffle(&mut items);
            *counts.entry(items).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&count| count.abs_diff(10_000) < 550), "{counts:?}");
    }
}
