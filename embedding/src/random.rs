//! Random numbers that depend only on their position: the same for any number of threads, ranks and devices.
//!
//! Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// Streams from here on belong to the keys of tables. Rows of tables have those before, and layers those from 2^31 on.
const KEY_STREAMS: u32 = 1 << 30;

/// Four random words for a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut words = counter;
    let mut key = key;
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let products = [
            u64::from(words[0]) * u64::from(MULTIPLIERS[0]),
            u64::from(words[2]) * u64::from(MULTIPLIERS[1]),
        ];
        words = [
            (products[1] >> 32) as u32 ^ words[1] ^ key[0],
            products[1] as u32,
            (products[0] >> 32) as u32 ^ words[3] ^ key[1],
            products[0] as u32,
        ];
    }
    words
}

/// Uniform random numbers: one per seed, stream (a table or a layer), row and column.
#[derive(Debug, Clone, Copy)]
pub struct UniformField {
    key: [u32; 2],
    stream: u32,
}

impl UniformField {
    /// The field of a seed and a stream.
    pub fn new(seed: u64, stream: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], stream }
    }

    /// The field of a seed and a table whose rows are given to keys: a key takes the place of the row. No other field
    /// of the seed has its numbers.
    pub fn of_keys(seed: u64, table: u32) -> Self {
        Self::new(seed, KEY_STREAMS | table)
    }

    /// The key derived from the seed.
    pub(crate) fn key(&self) -> [u32; 2] {
        self.key
    }

    /// The stream.
    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    /// Fills a row with uniform numbers in `-bound..bound`. Column `c` gets word `c % 4` of counter `(row low, row
    /// high, c / 4, stream)`.
    pub fn fill_row(&self, row: u64, bound: f32, out: &mut [f32]) {
        for (group, values) in out.chunks_mut(4).enumerate() {
            let words = philox4x32([row as u32, (row >> 32) as u32, group as u32, self.stream], self.key);
            for (value, word) in values.iter_mut().zip(words) {
                // 24 bits are exact in f32, so all values are evenly spaced.
                let unit = (word >> 8) as f32 * (1.0 / (1 << 24) as f32);
                *value = (2.0 * unit - 1.0) * bound;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the reference implementation (Random123, kat_vectors).
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_field_is_uniform_and_depends_on_its_place_alone() {
        let mut values = vec![0.0; 4096];
        for (row, chunk) in values.chunks_mut(16).enumerate() {
            UniformField::new(1, 2).fill_row(row as u64, 0.5, chunk);
        }
        let mean = values.iter().sum::<f32>() / 4096.0;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 4096.0;
        // Three standard errors: 0.5 / sqrt(3) / 64 of the mean, and 0.0745 / 64 of the variance.
        assert!(mean.abs() < 0.0136 && (variance - 1.0 / 12.0).abs() < 0.0035, "{mean} {variance}");
        let mut again = [0.0; 16];
        UniformField::new(1, 2).fill_row(3, 0.5, &mut again);
        assert_eq!(again, values[48..64]);
        UniformField::new(1, 3).fill_row(3, 0.5, &mut again);
        assert_ne!(again, values[48..64]);
    }

    /// Tests every word of the counter and of the key, and which column gets which word.
    #[test]
    fn a_number_is_the_one_of_its_seed_stream_row_and_column() {
        let (seed, stream, row) = (0x0123_4567_89ab_cdef, 77, 0xfedc_ba98_7654_3210);
        let mut values = [0.0; 11];
        UniformField::new(seed, stream).fill_row(row, 0.75, &mut values);
        for (column, value) in (0..).zip(values) {
            let counter = [0x7654_3210, 0xfedc_ba98, column / 4, stream];
            let word = philox4x32(counter, [0x89ab_cdef, 0x0123_4567])[column as usize % 4];
            let unit = f64::from(word >> 8) / f64::from(1 << 24);
            // Twice the unit less 1 has 24 bits, and is exact; the product is rounded once.
            assert_eq!(value, ((2.0 * unit - 1.0) * 0.75) as f32, "column {column}");
        }
    }
}
