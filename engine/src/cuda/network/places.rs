//! Where what belongs to a sample's vectors lies, and how rows are filled up.
//!
//! A sample has one row in the matrix of vectors: the bottom MLP's output, the features' vectors, zeros up to a
//! multiple of eight elements behind each, and then the first-order terms of each feature, one element a head.
//! Interaction and MLPs see the vectors with the zeros between them; the head reads the terms.

use crate::model::{Interaction, ModelSpec};

/// Elements that rows of matrices are filled up to a multiple of: they begin where tensor cores read from.
pub(super) const MULTIPLE: usize = 8;
/// The same of vectors that interact by products, and of what they become.
const DOT_MULTIPLE: usize = 16;
/// The same of first-order terms: rows of tables have as many.
const WIDE_MULTIPLE: usize = 4;

/// A model's row in a matrix, with zeros between its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Filled {
    /// Of each part: where it begins in the model's row and in the filled one, and its elements.
    parts: Vec<(usize, usize, usize)>,
    /// Elements of the filled row.
    pub(super) len: usize,
}

impl Filled {
    /// Parts of so many elements, each filled up to as many as stand beside them.
    pub(super) fn new(parts: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let place = |(elements, filled): (usize, usize)| {
            let part = (ours, theirs, elements);
            (ours, theirs) = (ours + elements, theirs + filled);
            part
        };
        Self { parts: parts.into_iter().map(place).collect(), len: theirs }
    }

    /// One part, filled up to a multiple of eight.
    pub(super) fn of(elements: usize) -> Self {
        Self::new([(elements, elements.next_multiple_of(MULTIPLE))])
    }

    /// One part, as it is.
    pub(super) fn exact(elements: usize) -> Self {
        Self::new([(elements, elements)])
    }

    /// Where each element of the model's row lies in the filled one.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().flat_map(|&(_, theirs, elements)| theirs..theirs + elements)
    }

    pub(super) fn put<V: Copy>(&self, from: &[V], to: &mut [V]) {
        for &(ours, theirs, elements) in &self.parts {
            to[theirs..theirs + elements].copy_from_slice(&from[ours..ours + elements]);
        }
    }

    pub(super) fn take(&self, from: &[f32], to: &mut [f32]) {
        for &(ours, theirs, elements) in &self.parts {
            to[ours..ours + elements].copy_from_slice(&from[theirs..theirs + elements]);
        }
    }
}

/// The row of a sample in the matrix of vectors.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Places {
    /// The vectors: the dense columns' where there is one, then the features'.
    pub(super) vectors: Filled,
    /// Elements of the first vector with its zeros; 0 without dense columns.
    pub(super) first: usize,
    /// Where each feature's vector begins.
    pub(in crate::cuda) features: Vec<usize>,
    /// Where each feature's first-order terms begin; none where the model has no such terms.
    pub(in crate::cuda) wide: Vec<usize>,
    /// Elements from one sample to the next.
    pub(in crate::cuda) stride: usize,
}

impl Places {
    pub(in crate::cuda) fn new(spec: &ModelSpec) -> Self {
        let multiple = match spec.interaction {
            Interaction::Dot => DOT_MULTIPLE,
            _ => MULTIPLE,
        };
        let dense = (spec.dense_columns > 0).then(|| spec.bottom_outputs());
        let dims = spec.features.iter().map(|feature| spec.feature_dim(feature));
        let sizes = dense.into_iter().chain(dims);
        let vectors = Filled::new(sizes.map(|size| (size, size.next_multiple_of(multiple))));
        let begins = vectors.parts.iter().skip(usize::from(dense.is_some()));
        let features = begins.map(|&(_, begin, _)| begin).collect();
        let wide_count = if spec.wide { spec.features.len() } else { 0 };
        let terms = Self::terms(spec.heads.len());
        let wide = (0..wide_count).map(|number| vectors.len + number * terms).collect();
        Self {
            first: dense.map_or(0, |size| size.next_multiple_of(multiple)),
            features,
            wide,
            stride: (vectors.len + wide_count * terms).next_multiple_of(MULTIPLE),
            vectors,
        }
    }

    /// Elements from one feature's first-order terms to the next one's.
    pub(super) fn terms(heads: usize) -> usize {
        heads.next_multiple_of(WIDE_MULTIPLE)
    }

    /// The vectors that interact by products, the elements of each, and those of what they become.
    pub(in crate::cuda) fn dot(&self, spec: &ModelSpec) -> (usize, usize, usize) {
        (spec.vectors(), self.vectors.len / spec.vectors(), self.products(spec).len)
    }

    /// What the dot interaction makes of the vectors: the first of them, and the products.
    pub(super) fn products(&self, spec: &ModelSpec) -> Filled {
        let count = spec.vectors();
        let pairs = count * count.saturating_sub(1) / 2;
        let products = (self.first + pairs).next_multiple_of(DOT_MULTIPLE) - self.first;
        Filled::new([(spec.bottom_outputs(), self.first), (pairs, products)])
    }
}
