//! The weights of a saved model, in the file that it was saved to.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rankine_base::files::open_regular;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::striped_checksum;
use rankine_embedding::cpu::Table;
use rankine_embedding::{Dtype, Membership};
use rankine_engine_cpu::CpuModel;
use rankine_model::{Model, ModelSpec};
use rayon::prelude::*;
use safetensors::tensor::Metadata;
use xxhash_rust::xxh3::xxh3_64;

use super::keys::{self, KeyTensor};
use super::{
    CACHED_BYTES, RUN_BYTES, SavedModel, SavedModelError, Tensor, WEIGHTS_NAME, Weights, runs_of,
    safetensors_type,
};

/// The maximum length of a header, which is also the limit of the safetensors library.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The weights of a saved model, whose file is mapped into memory.
#[derive(Debug)]
pub struct MappedWeights {
    spec: ModelSpec,
    path: PathBuf,
    file: File,
    map: Mmap,
    /// Where the tensors begin.
    begin: usize,
}

impl SavedModel {
    /// Opens the weights that [`super::save`] wrote, and checks them against their checksum.
    ///
    /// # Errors
    /// [`SavedModelError::Damaged`] if a tensor is missing, or has another shape or other bytes than were saved;
    /// [`SavedModelError::Read`].
    pub fn weights(&self, dir: &Path) -> Result<MappedWeights, SavedModelError> {
        let path = dir.join(WEIGHTS_NAME);
        let damaged = |what: String| SavedModelError::Damaged { path: path.clone(), what };
        let read = |source| SavedModelError::Read { path: path.clone(), source };
        let file = open_regular(&path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        if bytes != self.weights.bytes {
            return Err(damaged(format!("it has {bytes} bytes but should have {}", self.weights.bytes)));
        }
        // SAFETY: nothing changes the files of a saved model; a new one replaces the folder.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let begin = tensors_begin(&self.spec, &map).map_err(damaged)?;
        let checksum = match self.weights_stripe_bytes {
            Some(bytes) => striped_checksum(&map, bytes),
            None => Checksum(xxh3_64(&map)),
        };
        if checksum != self.weights.xxh3 {
            return Err(damaged("its checksum does not match model.json".into()));
        }
        Ok(MappedWeights { spec: self.spec.clone(), path, file, map, begin })
    }
}

impl MappedWeights {
    /// Returns a model in host memory, without optimizer state. Its tables in fp32 are mapped.
    ///
    /// # Errors
    /// [`SavedModelError::Read`].
    pub(super) fn load(&self) -> Result<CpuModel, SavedModelError> {
        let read = |source| SavedModelError::Read { path: self.path.clone(), source };
        let mut tables = Vec::new();
        let model = Model::sgd(self.spec.clone(), 0.0);
        for ((spec, optimizer), tensor) in model.all_tables().into_iter().zip(self.tables()) {
            let (dim, dtype) = (spec.dim, spec.dtype);
            let (begin, rows) = (self.begin as u64 + tensor.begin, self.bytes(&tensor));
            tables.push(match dtype {
                // SAFETY: as in `SavedModel::weights`.
                Dtype::Fp32 => unsafe { Table::mapped(spec, &self.file, begin) }.map_err(read)?,
                Dtype::Bf16 | Dtype::Fp16 => Table::filled(spec, optimizer, |row, weights| {
                    let bytes = dim * dtype.bytes();
                    dtype.read_all(&rows[row as usize * bytes..][..bytes], weights);
                }),
            });
        }
        let mut model = CpuModel::new(&model, self.parameters(), tables);
        model.set_memberships(self.memberships()?);
        Ok(model)
    }

    /// Returns the dense parameters.
    fn parameters(&self) -> Vec<f32> {
        let mut parameters = vec![0.0; self.spec.dense_parameters()];
        Dtype::Fp32.read_all(&self.map[self.begin..][..4 * parameters.len()], &mut parameters);
        parameters
    }

    /// Returns the tensors of all tables; first-order terms are last.
    fn tables(&self) -> Vec<Tensor> {
        let mut tensors = Tensor::all_of(&self.spec, 1);
        tensors.split_off(tensors.len() - self.spec.tables.len() - self.spec.wide_tables().len())
    }

    /// Returns where the weights end, from where the tensors begin.
    fn weights_end(&self) -> u64 {
        Tensor::all_of(&self.spec, 1).last().map_or(0, |last| last.bytes().end)
    }

    fn bytes(&self, tensor: &Tensor) -> &[u8] {
        let bytes = tensor.bytes();
        &self.map[self.begin + bytes.start as usize..self.begin + bytes.end as usize]
    }
}

impl Weights for MappedWeights {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        visit(&self.parameters())?;
        let tables = self.spec.tables.iter().cloned().chain(self.spec.wide_tables());
        for (table, tensor) in tables.zip(self.tables()) {
            let (bytes, row_bytes) = (self.bytes(&tensor), table.dim * table.dtype.bytes());
            runs_of(&table, CACHED_BYTES, |rows, weights| {
                let bytes = &bytes[rows.start as usize * row_bytes..rows.end as usize * row_bytes];
                let elements = RUN_BYTES / 4;
                let parts = weights.par_chunks_mut(elements);
                let parts = parts.zip(bytes.par_chunks(elements * table.dtype.bytes()));
                parts.for_each(|(weights, bytes)| table.dtype.read_all(bytes, weights));
                visit(weights)
            })?;
        }
        Ok(())
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        let of_keys = self.map.len() - self.begin - self.weights_end() as usize;
        let keys = &self.map[self.map.len() - of_keys..];
        let tensors = KeyTensor::all_of(&self.spec, 0);
        let bytes =
            tensors.iter().map(|tensor| &keys[tensor.bytes.start as usize..tensor.bytes.end as usize]);
        let bytes: Vec<_> = bytes.collect();
        keys::read(&self.spec, &bytes)
            .map_err(|what| SavedModelError::Damaged { path: self.path.clone(), what })
    }
}

/// Checks the header of a file of weights; returns where the tensors begin.
fn tensors_begin(spec: &ModelSpec, file: &[u8]) -> Result<usize, String> {
    let (length, rest) = file.split_first_chunk().ok_or("it has no header")?;
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX || length > rest.len() as u64 {
        return Err(format!("a header of {length} bytes is too long"));
    }
    let (header, tensors) = rest.split_at(length as usize);
    let metadata: Metadata = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    let shapes = Tensor::all_of(spec, 1);
    let weights_end = shapes.last().map_or(0, |last| last.bytes().end);
    let keys = KeyTensor::all_of(spec, weights_end);
    let of_weights = shapes
        .iter()
        .map(|Tensor { name, shape, dtype, .. }| (name.as_str(), shape.as_slice(), safetensors_type(*dtype)));
    let of_keys = keys.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..], tensor.dtype));
    let expected: Vec<_> = of_weights.chain(of_keys).collect();
    let names = metadata.offset_keys();
    let found: Vec<_> = names
        .iter()
        .filter_map(|name| Some((name.as_str(), metadata.info(name)?)))
        .map(|(name, info)| (name, info.shape.as_slice(), info.dtype))
        .collect();
    if found != expected {
        return Err("its tensors differ from those of the model".into());
    }
    // Checked before memory is allocated for tensors that the file does not have.
    if keys.last().map_or(weights_end, |last| last.bytes.end) != tensors.len() as u64 {
        return Err("its length does not fit its tensors".into());
    }
    // The format requires this, and rows are used where they are.
    let begin = file.len() - tensors.len();
    if begin.is_multiple_of(8) { Ok(begin) } else { Err("its tensors are not aligned".into()) }
}
