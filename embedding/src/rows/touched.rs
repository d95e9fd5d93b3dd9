//! Which rows have been written.

/// A bit a row, by position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    words: Vec<u32>,
}

impl Touched {
    /// None of so many rows.
    pub fn none(rows: u64) -> Self {
        Self { words: vec![0; Self::words(rows)] }
    }

    /// Words of 32 bits for so many rows.
    pub fn words(rows: u64) -> usize {
        rows.div_ceil(32) as usize
    }

    /// From words of 32 bits each, the lowest first.
    pub fn of(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Marks rows.
    ///
    /// # Panics
    /// Where one is not below as many as there are.
    pub fn mark(&mut self, rows: &[u64]) {
        for row in rows {
            self.words[(row / 32) as usize] |= 1 << (row % 32);
        }
    }

    /// Whether a row is marked.
    pub fn has(&self, row: u64) -> bool {
        self.words.get((row / 32) as usize).is_some_and(|word| word >> (row % 32) & 1 == 1)
    }

    /// The marked rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at as u64 * 32 + u64::from(bit))
            })
        })
    }
}
