//! A file or an object whose blocks the reader's ring reads, through the cache. Each read is one packed block.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use super::pool::ReadAt;
use crate::block::is_intact;
use crate::store::{self, BlockCache, BlockKey, Objects, Version};

/// How often a block that differs from its checksum is fetched again.
const FETCHES_OF_DAMAGED: u32 = 3;

/// A file or an object that is open for reading.
pub(super) enum ObjectFile {
    /// A local file, beside objects.
    Local(File),
    /// An object.
    Object(Object),
}

pub(super) struct Object {
    url: PathBuf,
    version: Version,
    cache: Option<Arc<BlockCache>>,
}

impl ObjectFile {
    /// Opens a file of a part. An object that is not among `objects` is a local file.
    pub(super) fn open(path: &Path, objects: &Objects) -> io::Result<Self> {
        Ok(match objects.versions.get(path) {
            None => Self::Local(File::open(path)?),
            Some(version) => Self::Object(Object {
                url: path.to_owned(),
                version: version.clone(),
                cache: objects.cache.clone(),
            }),
        })
    }
}

impl ReadAt for ObjectFile {
    /// The error of an object holds a [`rankine_base::Error`].
    unsafe fn read_at(&self, offset: u64, into: *mut u8, bytes: u32) -> io::Result<u32> {
        match self {
            // SAFETY: the caller guarantees the same.
            Self::Local(file) => unsafe { file.read_at(offset, into, bytes) },
            Self::Object(object) => {
                // SAFETY: the caller guarantees that only this call accesses the buffer, which may be uninitialized.
                let into =
                    unsafe { slice::from_raw_parts_mut(into.cast::<MaybeUninit<u8>>(), bytes as usize) };
                object.read(offset, into)
            }
        }
    }
}

impl Object {
    /// Reads up to the end of the buffer or of the object.
    fn read(&self, offset: u64, into: &mut [MaybeUninit<u8>]) -> io::Result<u32> {
        let left = self.version.bytes.saturating_sub(offset).min(into.len() as u64);
        let into = &mut into[..left as usize];
        if into.is_empty() {
            return Ok(0);
        }
        let range = offset..offset + left;
        let key = BlockKey::new(&self.url, &self.version, &range);
        if let Some(cache) = &self.cache {
            let is_hit = cache.read(&key, into);
            if is_hit {
                return Ok(left as u32);
            }
        }
        let fetch = || store::range(&self.url, &self.version, range.clone()).map_err(io::Error::other);
        let mut fetched = fetch()?;
        // Changed on the way, or damaged in the store, which whoever checks the block reports.
        for _ in 0..FETCHES_OF_DAMAGED {
            if is_intact(&fetched) {
                break;
            }
            fetched = fetch()?;
        }
        assert_eq!(fetched.len(), into.len(), "the client returns the whole range");
        // SAFETY: both are as long as `into`, and bytes that were just received are other memory.
        unsafe { into.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(fetched.as_ptr(), into.len()) };
        if let Some(cache) = &self.cache
            && is_intact(&fetched)
        {
            cache.insert(&key, &fetched);
        }
        Ok(left as u32)
    }
}
