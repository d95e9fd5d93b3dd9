//! Samples unpacked in memory, column by column: the input of converters and the output to training.

use crate::schema::Schema;

/// A run of unpacked samples.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// The number of samples.
    pub len: usize,
    /// `[label][sample]`, label-major: 0, 1, or NaN where the label is missing.
    pub labels: Vec<Vec<f32>>,
    /// One weight per sample; empty if the schema has no weight column.
    pub weights: Vec<f32>,
    /// `[sample, dense column]`, row-major.
    pub dense: Vec<f32>,
    /// The number of dense columns.
    pub dense_columns: usize,
    /// One entry per categorical column.
    pub categorical: Vec<Bags>,
}

/// Missing labels are equal to each other.
impl PartialEq for Samples {
    fn eq(&self, other: &Self) -> bool {
        fn same_labels(mine: &[f32], theirs: &[f32]) -> bool {
            let same = |(mine, theirs): (&f32, &f32)| mine == theirs || mine.is_nan() && theirs.is_nan();
            mine.len() == theirs.len() && mine.iter().zip(theirs).all(same)
        }
        let Self { len, labels, weights, dense, dense_columns, categorical } = self;
        (len, weights, dense, dense_columns, categorical)
            == (&other.len, &other.weights, &other.dense, &other.dense_columns, &other.categorical)
            && labels.len() == other.labels.len()
            && labels.iter().zip(&other.labels).all(|(mine, theirs)| same_labels(mine, theirs))
    }
}

/// Counts of the values of one label column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LabelCounts {
    /// Samples whose label is 1.
    pub(crate) positive: u64,
    /// Samples whose label is missing.
    pub(crate) missing: u64,
}

impl LabelCounts {
    pub(crate) fn of(labels: &[f32]) -> Self {
        let count = |is: fn(&f32) -> bool| labels.iter().filter(|label| is(label)).count() as u64;
        Self { positive: count(|&label| label == 1.0), missing: count(|label| label.is_nan()) }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.positive += other.positive;
        self.missing += other.missing;
    }
}

/// The bags of one categorical column: sample `i` has the ids `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Bags {
    /// One entry per sample plus one; the first is 0.
    pub offsets: Vec<u32>,
    /// Row numbers in the column's table.
    pub ids: Vec<u64>,
    /// One weight per id, finite and above 0, since an id with weight 0 looks up no row and is left out of its bag.
    /// Empty if the column has no weights.
    pub weights: Vec<f32>,
}

impl Default for Bags {
    fn default() -> Self {
        Self { offsets: vec![0], ids: Vec::new(), weights: Vec::new() }
    }
}

impl Bags {
    /// Returns the ids of one sample.
    pub fn bag(&self, sample: usize) -> &[u64] {
        &self.ids[self.offsets[sample] as usize..self.offsets[sample + 1] as usize]
    }

    /// Appends a sample's bag.
    ///
    /// # Panics
    /// If a run of samples would hold 2^32 ids of one column; blocks and batches are limited far below that.
    pub fn push(&mut self, ids: impl IntoIterator<Item = u64>) {
        self.ids.extend(ids);
        self.offsets.push(u32::try_from(self.ids.len()).expect("fewer than 2^32 ids in one run of samples"));
    }

    /// Appends a sample's bag of ids with weights, without the ids whose weight is 0.
    ///
    /// # Panics
    /// As [`Bags::push`].
    pub fn push_weighted(&mut self, bag: impl IntoIterator<Item = (u64, f32)>) {
        let (ids, weights): (Vec<_>, Vec<_>) = bag.into_iter().filter(|&(_, weight)| weight != 0.0).unzip();
        self.weights.extend(weights);
        self.push(ids);
    }

    /// Appends a sample's bag of other bags, with its weights.
    ///
    /// # Panics
    /// As [`Bags::push`].
    pub fn push_bag(&mut self, other: &Self, sample: usize) {
        let range = other.offsets[sample] as usize..other.offsets[sample + 1] as usize;
        if !other.weights.is_empty() {
            self.weights.extend_from_slice(&other.weights[range.clone()]);
        }
        self.push(other.ids[range].iter().copied());
    }

    /// Removes the ids with weight 0 from bag `first` and all after it.
    pub fn remove_zero_weights(&mut self, first: usize) {
        self.retain(first, |_, weight| weight != Some(0.0));
    }

    /// Keeps the ids, with their weights, for which `keep` returns true, in bag `first` and all after it.
    pub(crate) fn retain(&mut self, first: usize, keep: impl Fn(u64, Option<f32>) -> bool) {
        let mut start = self.offsets[first] as usize;
        let mut kept = start;
        for end in &mut self.offsets[first + 1..] {
            for at in start..*end as usize {
                let (id, weight) = (self.ids[at], self.weights.get(at).copied());
                if !keep(id, weight) {
                    continue;
                }
                self.ids[kept] = id;
                if let Some(weight) = weight {
                    self.weights[kept] = weight;
                }
                kept += 1;
            }
            start = *end as usize;
            *end = kept as u32;
        }
        self.ids.truncate(kept);
        self.weights.truncate(kept);
    }

    /// Appends bags of one id each.
    pub(crate) fn extend_one_hot(&mut self, ids: impl Iterator<Item = u64>) {
        let first = self.ids.len() as u32;
        self.ids.extend(ids);
        let last = u32::try_from(self.ids.len()).expect("fewer than 2^32 ids in one run of samples");
        self.offsets.extend(first + 1..=last);
    }

    /// Removes the bags and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.offsets.truncate(1);
        self.ids.clear();
        self.weights.clear();
    }

    pub(crate) fn append(&mut self, other: &Self, range: std::ops::Range<usize>) {
        let (from, to) = (other.offsets[range.start], other.offsets[range.end]);
        let base = self.ids.len() as u32;
        self.ids.extend_from_slice(&other.ids[from as usize..to as usize]);
        if !other.weights.is_empty() {
            self.weights.extend_from_slice(&other.weights[from as usize..to as usize]);
        }
        self.offsets
            .extend(other.offsets[range.start + 1..=range.end].iter().map(|offset| offset - from + base));
    }
}

impl Samples {
    /// Returns an empty run with the columns of a schema.
    pub fn new(schema: &Schema) -> Self {
        Self {
            len: 0,
            labels: vec![Vec::new(); schema.labels.len()],
            weights: Vec::new(),
            dense: Vec::new(),
            dense_columns: schema.dense.len(),
            categorical: vec![Bags::default(); schema.categorical.len()],
        }
    }

    /// Returns the bytes that the samples take.
    pub fn bytes(&self) -> usize {
        let of_bags =
            |bags: &Bags| size_of_val(&*bags.offsets) + size_of_val(&*bags.ids) + size_of_val(&*bags.weights);
        self.labels.iter().map(|labels| size_of_val(&**labels)).sum::<usize>()
            + size_of_val(&*self.weights)
            + size_of_val(&*self.dense)
            + self.categorical.iter().map(of_bags).sum::<usize>()
    }

    /// Copies a range of the samples.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let mut slice = Self {
            len: 0,
            labels: vec![Vec::new(); self.labels.len()],
            weights: Vec::new(),
            dense: Vec::new(),
            dense_columns: self.dense_columns,
            categorical: vec![Bags::default(); self.categorical.len()],
        };
        slice.append(self, range);
        slice
    }

    /// Removes the samples and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
        self.labels.iter_mut().for_each(Vec::clear);
        self.weights.clear();
        self.dense.clear();
        self.categorical.iter_mut().for_each(Bags::clear);
    }

    /// Appends a range of another run with the same columns.
    pub fn append(&mut self, other: &Self, range: std::ops::Range<usize>) {
        self.len += range.len();
        for (mine, theirs) in self.labels.iter_mut().zip(&other.labels) {
            mine.extend_from_slice(&theirs[range.clone()]);
        }
        if !other.weights.is_empty() {
            self.weights.extend_from_slice(&other.weights[range.clone()]);
        }
        let columns = other.dense_columns;
        self.dense.extend_from_slice(&other.dense[range.start * columns..range.end * columns]);
        for (mine, theirs) in self.categorical.iter_mut().zip(&other.categorical) {
            mine.append(theirs, range.clone());
        }
    }
}
