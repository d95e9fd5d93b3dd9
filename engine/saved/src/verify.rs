//! Verification of a saved model: every byte is read and compared with the checksums.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rankine_base::files::open_regular;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::checksum_of_stripes;
use rankine_reader::dataset::FileManifest;
use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{MANIFEST_NAME, RUN_BYTES, SavedModel, SavedModelError, WEIGHTS_NAME};

/// How much [`SavedModel::verify`] has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedSize {
    /// Files, including `model.json`.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl SavedModel {
    /// Reads and checks every byte of a saved model, in small buffers.
    ///
    /// # Errors
    /// [`SavedModelError::Missing`]; [`SavedModelError::Damaged`], also if one of its files is missing;
    /// [`SavedModelError::Version`]; [`SavedModelError::Read`].
    pub fn verify(dir: &Path) -> Result<(Self, VerifiedSize), SavedModelError> {
        let saved = Self::open(dir)?;
        let path = dir.join(MANIFEST_NAME);
        let manifest = path.metadata().map_err(|source| SavedModelError::Read { path, source })?;
        let mut verified = VerifiedSize { files: 1, bytes: manifest.len() };
        for file in saved.files() {
            let is_striped = file.name == WEIGHTS_NAME;
            verify(dir, file, saved.weights_stripe_bytes.filter(|_| is_striped))?;
            verified.files += 1;
            verified.bytes += file.bytes;
        }
        Ok((saved, verified))
    }
}

/// Reads a file, whose checksum may be by stripes of some bytes.
fn verify(dir: &Path, manifest: &FileManifest, stripe_bytes: Option<usize>) -> Result<(), SavedModelError> {
    let path = dir.join(&manifest.name);
    let damaged = |what: &str| Err(SavedModelError::Damaged { path: path.clone(), what: what.into() });
    let read = |source| SavedModelError::Read { path: path.clone(), source };
    let file = match open_regular(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return damaged("the file is missing"),
        file => file.map_err(read)?,
    };
    let bytes = file.metadata().map_err(read)?.len();
    let checksum = (bytes == manifest.bytes).then(|| match stripe_bytes {
        Some(stripe) => checksum_by_stripes(&file, bytes, stripe),
        None => checksum_of(&file),
    });
    match checksum.transpose().map_err(read)? {
        Some(checksum) if checksum == manifest.xxh3 => Ok(()),
        _ => damaged("its length or checksum does not match model.json"),
    }
}

fn checksum_of(file: &File) -> io::Result<Checksum> {
    let (mut hash, mut buffer) = (Xxh3::new(), Vec::new());
    loop {
        buffer.clear();
        match file.take(RUN_BYTES as u64).read_to_end(&mut buffer)? {
            0 => return Ok(Checksum(hash.digest())),
            _ => hash.update(&buffer),
        }
    }
}

/// Reads stripes on several threads.
fn checksum_by_stripes(file: &File, bytes: u64, stripe: usize) -> io::Result<Checksum> {
    let sum = |buffer: &mut Vec<u8>, number: u64| {
        let begin = number * stripe as u64;
        buffer.resize((bytes - begin).min(stripe as u64) as usize, 0);
        file.read_exact_at(buffer, begin)?;
        Ok(xxh3_64(buffer))
    };
    let stripes = (0..bytes.div_ceil(stripe as u64)).into_par_iter().map_init(Vec::new, sum);
    Ok(checksum_of_stripes(stripes.collect::<io::Result<Vec<_>>>()?))
}
