//! Verification of a saved model: every byte is read and compared with the checksums.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rankine_base::files::open_regular;
use rankine_reader::dataset::FileManifest;
use xxhash_rust::xxh3::Xxh3;

use super::{MANIFEST_NAME, RUN_BYTES, SavedModel, SavedModelError};

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
            verify(dir, file)?;
            verified.files += 1;
            verified.bytes += file.bytes;
        }
        Ok((saved, verified))
    }
}

fn verify(dir: &Path, manifest: &FileManifest) -> Result<(), SavedModelError> {
    let path = dir.join(&manifest.name);
    let damaged = |what: &str| Err(SavedModelError::Damaged { path: path.clone(), what: what.into() });
    let read = |source| SavedModelError::Read { path: path.clone(), source };
    let mut file = match open_regular(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return damaged("the file is missing"),
        file => file.map_err(read)?,
    };
    let (mut hash, mut bytes, mut buffer) = (Xxh3::new(), 0, vec![0; RUN_BYTES]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hash.update(&buffer[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read(error)),
        }
    }
    if (bytes, hash.digest()) != (manifest.bytes, manifest.xxh3.0) {
        return damaged("its length or checksum does not match model.json");
    }
    Ok(())
}
