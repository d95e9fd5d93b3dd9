//! The layout of a sample's vectors, and how rows are padded.
//!
//! A sample has one row in the matrix of vectors: the bottom MLP's output, the features' vectors, each padded with
//! zeros to a multiple of eight elements, and then the first-order terms of each feature, one element per head.
//! Interaction and MLPs read the vectors with their padding; the head reads the terms. The keys of sequences are rows
//! of matrices of their own.

use rankine_model::ModelSpec;

/// Rows of matrices are padded to a multiple of this number of elements, so that they are aligned for tensor cores.
pub(super) const MULTIPLE: usize = 8;
/// The same for vectors of the dot interaction, and for its results.
const DOT_MULTIPLE: usize = 16;
/// The same for first-order terms and for the parts of keys: rows of tables have this multiple.
const ROW_MULTIPLE: usize = 4;

/// A row of the model in a matrix, with padding between its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct PaddedRow {
    /// For each part: its start in the model's row, its start in the padded row, and its elements.
    parts: Vec<(usize, usize, usize)>,
    /// Elements of the padded row.
    pub(in crate::cuda) len: usize,
}

impl PaddedRow {
    /// Creates a row of parts, given as pairs of their elements without and with padding.
    pub(super) fn new(parts: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let (mut start, mut padded_start) = (0, 0);
        let part = |(elements, padded): (usize, usize)| {
            let part = (start, padded_start, elements);
            (start, padded_start) = (start + elements, padded_start + padded);
            part
        };
        Self { parts: parts.into_iter().map(part).collect(), len: padded_start }
    }

    /// One part, padded to a multiple of eight.
    pub(super) fn of(elements: usize) -> Self {
        Self::new([(elements, elements.next_multiple_of(MULTIPLE))])
    }

    /// One part without padding.
    pub(super) fn exact(elements: usize) -> Self {
        Self::new([(elements, elements)])
    }

    /// Returns the position in the padded row of each element of the model's row.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().flat_map(|&(_, padded_start, elements)| padded_start..padded_start + elements)
    }

    /// Returns the start in the padded row of each part, and its elements with padding.
    pub(in crate::cuda) fn padded_parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = || self.parts.iter().map(|&(_, padded_start, _)| padded_start);
        starts().zip(starts().skip(1).chain([self.len])).map(|(start, end)| (start, end - start))
    }

    pub(super) fn put<V: Copy>(&self, from: &[V], to: &mut [V]) {
        for &(start, padded_start, elements) in &self.parts {
            to[padded_start..padded_start + elements].copy_from_slice(&from[start..start + elements]);
        }
    }

    pub(super) fn take(&self, from: &[f32], to: &mut [f32]) {
        for &(start, padded_start, elements) in &self.parts {
            to[start..start + elements].copy_from_slice(&from[padded_start..padded_start + elements]);
        }
    }
}

/// The row of a sample in the matrix of vectors.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct VectorLayout {
    /// The vectors: that of the dense columns, if there is one, then those of the features.
    pub(super) vectors: PaddedRow,
    /// Elements of the first vector with its padding; 0 without dense columns.
    pub(super) first: usize,
    /// The start of each feature's vector.
    pub(in crate::cuda) features: Vec<usize>,
    /// The start of each feature's first-order terms; empty if the model has no such terms.
    pub(in crate::cuda) wide: Vec<usize>,
    /// The key of a position of each sequence that attention reads: the rows of its attributes.
    pub(in crate::cuda) keys: Vec<PaddedRow>,
    /// Elements from one sample to the next.
    pub(in crate::cuda) stride: usize,
}

impl VectorLayout {
    pub(in crate::cuda) fn new(spec: &ModelSpec) -> Self {
        let multiple = if has_pairs(spec) { DOT_MULTIPLE } else { MULTIPLE };
        let dense = (spec.dense_columns > 0).then(|| spec.bottom_outputs());
        let dims = spec.features.iter().map(|feature| spec.feature_dim(feature));
        let sizes = dense.into_iter().chain(dims);
        let vectors = PaddedRow::new(sizes.map(|size| (size, size.next_multiple_of(multiple))));
        let begins = vectors.parts.iter().skip(usize::from(dense.is_some()));
        let features = begins.map(|&(_, begin, _)| begin).collect();
        let wide_count = if spec.wide { spec.features.len() } else { 0 };
        let terms = Self::terms(spec.heads.len());
        let keys = spec.attention.iter().map(|attention| {
            let dims = attention.features.iter().map(|&feature| spec.feature_dim(&spec.features[feature]));
            PaddedRow::new(dims.map(|dim| (dim, dim.next_multiple_of(ROW_MULTIPLE))))
        });
        let wide = (0..wide_count).map(|number| vectors.len + number * terms).collect();
        Self {
            first: dense.map_or(0, |size| size.next_multiple_of(multiple)),
            features,
            wide,
            keys: keys.collect(),
            stride: (vectors.len + wide_count * terms).next_multiple_of(MULTIPLE),
            vectors,
        }
    }

    /// Returns the elements from one feature's first-order terms to the next one's.
    pub(super) fn terms(heads: usize) -> usize {
        heads.next_multiple_of(ROW_MULTIPLE)
    }

    /// Returns the number of vectors in the dot interaction, the elements of each, and those of its result.
    pub(in crate::cuda) fn dot(&self, spec: &ModelSpec) -> (usize, usize, usize) {
        (spec.vectors(), self.vectors.len / spec.vectors(), self.products(spec).len)
    }

    /// Returns the row of the input of the activation unit over a sequence: query, key, query - key and query * key.
    pub(super) fn unit_inputs(&self, sequence: usize) -> PaddedRow {
        let key = &self.keys[sequence];
        let part = |(&(_, _, elements), (_, padded)): (&(usize, usize, usize), _)| (elements, padded);
        let parts: Vec<_> = key.parts.iter().zip(key.padded_parts()).map(part).collect();
        PaddedRow::new([(); 4].iter().flat_map(|()| parts.iter().copied()))
    }

    /// Returns the row of the top MLP's input.
    pub(super) fn top_inputs(&self, spec: &ModelSpec) -> PaddedRow {
        if has_pairs(spec) { self.products(spec) } else { self.vectors.clone() }
    }

    /// Returns the row of the dot interaction's result: the first vector, and the products.
    pub(super) fn products(&self, spec: &ModelSpec) -> PaddedRow {
        let pairs = spec.interaction.pairs(spec.vector_sizes());
        let products = (self.first + pairs).next_multiple_of(DOT_MULTIPLE) - self.first;
        PaddedRow::new([(spec.bottom_outputs(), self.first), (pairs, products)])
    }
}

/// Whether the top MLP's input has the products of pairs of vectors.
pub(in crate::cuda) fn has_pairs(spec: &ModelSpec) -> bool {
    spec.interaction.pairs(spec.vector_sizes()) > 0
}
