//! Verification of a saved model: every byte is read and compared with the checksums.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rankine_base::files::open_regular;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::checksum_of_stripes;
use rankine_reader::dataset::FileManifest;
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
    /// Reads and checks every byte of a saved model, in a small buffer.
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
    let mut file = match open_regular(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return damaged("the file is missing"),
        file => file.map_err(read)?,
    };
    let (mut hash, mut stripes, mut bytes) = (Xxh3::new(), Vec::new(), 0);
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let at_once = stripe_bytes.unwrap_or(RUN_BYTES) as u64;
        match (&mut file).take(at_once).read_to_end(&mut buffer).map_err(read)? {
            0 => break,
            count => bytes += count as u64,
        }
        match stripe_bytes {
            Some(_) => stripes.push(xxh3_64(&buffer)),
            None => hash.update(&buffer),
        }
    }
    let checksum = match stripe_bytes {
        Some(_) => checksum_of_stripes(stripes),
        None => Checksum(hash.digest()),
    };
    if (bytes, checksum) != (manifest.bytes, manifest.xxh3) {
        return damaged("its length or checksum does not match model.json");
    }
    Ok(())
}
