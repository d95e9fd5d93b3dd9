//! The tensors of a model, and the files that they are written to.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rankine_base::error::IoContext;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::{Disk, Files, Output, Writer};
use rankine_embedding::{Dtype, TableSpec, all_finite};
use rankine_model::ModelSpec;
use rayon::prelude::*;

use super::{RUN_BYTES, SavedModelError, Weights, keys};

/// Bytes of weights in memory that are written at a time.
const WRITTEN_BYTES: usize = 16 << 20;

/// A tensor of a model, and its place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name: `bottom.0.weight`, `embedding.TABLE`.
    pub name: String,
    /// Its dimensions; elements are stored row by row.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Where its bytes begin.
    pub begin: u64,
}

impl Tensor {
    /// Returns all tensors of a model, in the order in which [`Weights`] has them. Each begins at the first multiple of
    /// `align` bytes after the one before.
    pub fn all_of(spec: &ModelSpec, align: u64) -> Vec<Self> {
        let layers = spec.dense_layout().named_layers().into_iter().flat_map(|(name, layer)| {
            let weight = (format!("{name}.weight"), vec![layer.outputs, layer.inputs], Dtype::Fp32);
            let bias = layer.bias.then(|| (format!("{name}.bias"), vec![layer.outputs], Dtype::Fp32));
            std::iter::once(weight).chain(bias).collect::<Vec<_>>()
        });
        let named = |kind: &'static str, tables: Vec<TableSpec>| {
            let tensor = move |table: TableSpec| {
                (format!("{kind}.{}", table.name), vec![table.rows as usize, table.dim], table.dtype)
            };
            tables.into_iter().map(tensor)
        };
        let tables = named("embedding", spec.tables.clone());
        let mut end = 0_u64;
        let place = |(name, shape, dtype)| {
            let begin = end.checked_next_multiple_of(align).unwrap_or(u64::MAX);
            let tensor = Self { name, shape, dtype, begin };
            end = tensor.bytes().end;
            tensor
        };
        layers.chain(tables).chain(named("wide", spec.wide_tables())).map(place).collect()
    }

    /// Returns the range of its bytes; sizes beyond 64 bits, which only invalid models have, end at the largest number.
    pub fn bytes(&self) -> Range<u64> {
        let sizes = self.shape.iter().map(|&size| size as u64);
        let bytes = sizes.fold(self.dtype.bytes() as u64, u64::saturating_mul);
        self.begin..self.begin.saturating_add(bytes)
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Writes all weights of a model into a new file, durably, as [`Tensor::all_of`] places them. Takes a few buffers of
/// memory, however large the tables are.
///
/// # Errors
/// [`SavedModelError::Write`], [`SavedModelError::NotFinite`], and the errors of reading the weights.
pub fn write_tensors(
    path: &Path,
    model: &(impl Weights + ?Sized),
    align: u64,
) -> Result<(), SavedModelError> {
    let mut file = WeightsFile::create(path)?;
    file.put_tensors(model, align)?;
    file.finish()?;
    Ok(())
}

/// A file whose bytes are not kept.
struct Discarded;

impl Output for Discarded {
    fn write_at(&self, bytes: &[u8], _: u64) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn write_direct_at(&self, bytes: &[u8], _: u64) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file of weights.
pub(super) struct WeightsFile {
    path: PathBuf,
    file: Writer,
    bytes: u64,
}

impl WeightsFile {
    pub(super) fn create(path: &Path) -> rankine_base::error::Result<Self> {
        let file = Disk.create(path).and_then(Writer::with_checksum).context("create", path)?;
        Ok(Self { path: path.to_owned(), file, bytes: 0 })
    }

    /// Creates a file whose bytes only count for its checksum.
    pub(super) fn discarded() -> rankine_base::error::Result<Self> {
        let path = PathBuf::from("the weights");
        let file = Writer::with_checksum(Box::new(Discarded)).context("checksum", &path)?;
        Ok(Self { path, file, bytes: 0 })
    }

    /// Appends bytes, which `fill` sets.
    pub(super) fn put<T>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> T,
    ) -> rankine_base::error::Result<T> {
        let bytes = self.file.next(len).context("write", &self.path)?;
        let filled = fill(bytes);
        self.bytes += len as u64;
        Ok(filled)
    }

    /// Appends all weights of a model, tensor by tensor. Their places count from here on.
    pub(super) fn put_tensors(
        &mut self,
        model: &(impl Weights + ?Sized),
        align: u64,
    ) -> Result<(), SavedModelError> {
        let tensors = Tensor::all_of(model.spec(), align);
        let first = self.bytes;
        // The current tensor, and how many of its elements are missing.
        let (mut number, mut left) = (0, tensors[0].elements());
        // Dense tensors are in the order of the parameters: layer by layer, weights before bias.
        model.try_for_each_run(&mut |mut values| {
            while !values.is_empty() {
                while left == 0 {
                    number += 1;
                    let next = tensors.get(number).expect("a model has no more weights than its spec");
                    self.put((first + next.begin - self.bytes) as usize, |bytes| bytes.fill(0))?;
                    left = next.elements();
                }
                let Tensor { name, dtype, .. } = &tensors[number];
                let (here, behind) = values.split_at(values.len().min(left).min(WRITTEN_BYTES / 4));
                // No loss is computed after the last step's update, so nothing has checked it.
                if !self.put(here.len() * dtype.bytes(), |bytes| put_weights(here, *dtype, bytes))? {
                    return Err(SavedModelError::NotFinite { tensor: name.clone() });
                }
                (left, values) = (left - here.len(), behind);
            }
            Ok(())
        })?;
        let end = tensors.last().map_or(0, |last| last.bytes().end);
        assert_eq!(self.bytes - first, end, "a model has all weights of its spec");
        Ok(())
    }

    /// Appends the ids of dynamic tables.
    pub(super) fn put_keys(&mut self, model: &(impl Weights + ?Sized)) -> Result<(), SavedModelError> {
        for (_, membership) in model.memberships()? {
            let rows = membership.rows().table_rows() as usize;
            self.put(9 * rows, |bytes| {
                let (keys, has_key) = bytes.split_at_mut(8 * rows);
                keys::put(&membership, keys, has_key);
            })?;
        }
        Ok(())
    }

    /// Makes the file durable; returns its length and checksum.
    pub(super) fn finish(self) -> rankine_base::error::Result<(u64, Checksum)> {
        let checksum = self.file.finish().context("write", &self.path)?;
        Ok((self.bytes, checksum.expect("the writer computes one")))
    }
}

/// Writes weights one behind the other, on several threads. Returns whether all are finite.
pub(super) fn put_weights(weights: &[f32], dtype: Dtype, bytes: &mut [u8]) -> bool {
    let elements = RUN_BYTES / 4;
    let parts = weights.par_chunks(elements).zip(bytes.par_chunks_mut(elements * dtype.bytes()));
    let put = |(weights, bytes): (&[f32], &mut [u8])| {
        dtype.put_all(weights, bytes);
        all_finite(weights)
    };
    parts.map(put).reduce(|| true, |one, other| one & other)
}
