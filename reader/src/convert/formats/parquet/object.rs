//! A Parquet file or object, of which the decoder reads parts in any order.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::store::{self, Version};

/// Objects are fetched in ranges of this length, of which the latest are kept: the decoder asks for the header of each
/// page and then for the page.
const RANGE_BYTES: u64 = 4 << 20;
/// How many ranges are kept. Each column that is read at the same time needs one.
const RANGES_KEPT: usize = 64;
/// How much of a file is read for the header of a page.
const HEADER_BYTES: usize = 256;

/// A file or an object, which several threads read. Errors of an object hold a [`rankine_base::Error`].
pub(super) enum ParquetInput {
    Local(Arc<Local>),
    Object(Arc<Object>),
}

/// A file, read without its position, which threads would share.
pub(super) struct Local {
    file: File,
    bytes: u64,
}

/// An object, with the ranges that were read last, the latest at the end.
pub(super) struct Object {
    url: PathBuf,
    version: Version,
    latest: Mutex<Vec<(u64, Arc<Mutex<Bytes>>)>>,
}

impl ParquetInput {
    pub(super) fn local(file: File, bytes: u64) -> Self {
        Self::Local(Arc::new(Local { file, bytes }))
    }

    pub(super) fn object(url: &Path, version: &Version) -> Self {
        Self::Object(Arc::new(Object {
            url: url.to_owned(),
            version: version.clone(),
            latest: Mutex::default(),
        }))
    }
}

impl Object {
    /// Returns the range with this number.
    fn range(&self, number: u64) -> io::Result<Bytes> {
        // A thread that fetches a range only holds up others that need it, too.
        let range = self.kept(number);
        let mut bytes = range.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() {
            let start = number * RANGE_BYTES;
            let range = start..self.version.bytes.min(start + RANGE_BYTES);
            let fetched = store::range(&self.url, &self.version, range).map_err(io::Error::other)?;
            *bytes = Bytes::copy_from_slice(&fetched);
        }
        Ok(bytes.clone())
    }

    /// Returns the range with this number from those that are kept; it is empty until it is fetched.
    fn kept(&self, number: u64) -> Arc<Mutex<Bytes>> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let range = match latest.iter().position(|(of, _)| *of == number) {
            Some(at) => latest.remove(at).1,
            None => Arc::default(),
        };
        if latest.len() == RANGES_KEPT {
            latest.remove(0);
        }
        latest.push((number, Arc::clone(&range)));
        range
    }

    /// Returns bytes from one offset to another, or to the end of their range if that comes first.
    fn part(&self, wanted: Range<u64>) -> io::Result<Bytes> {
        if wanted.is_empty() || wanted.start >= self.version.bytes {
            return Ok(Bytes::new());
        }
        let number = wanted.start / RANGE_BYTES;
        let bytes = self.range(number)?;
        let first = number * RANGE_BYTES;
        let end = wanted.end.min(first + bytes.len() as u64);
        Ok(bytes.slice((wanted.start - first) as usize..(end - first) as usize))
    }
}

/// Reads a file from an offset on.
struct LocalFromOffset {
    local: Arc<Local>,
    at: u64,
}

impl Read for LocalFromOffset {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.local.file.read_at(buffer, self.at)?;
        self.at += bytes as u64;
        Ok(bytes)
    }
}

/// Reads an object from an offset on.
struct FromOffset {
    object: Arc<Object>,
    at: u64,
}

impl Read for FromOffset {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let part = self.object.part(self.at..self.at + buffer.len() as u64)?;
        buffer[..part.len()].copy_from_slice(&part);
        self.at += part.len() as u64;
        Ok(part.len())
    }
}

impl Length for ParquetInput {
    fn len(&self) -> u64 {
        match self {
            Self::Local(local) => local.bytes,
            Self::Object(object) => object.version.bytes,
        }
    }
}

impl ChunkReader for ParquetInput {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(match self {
            Self::Local(local) => {
                let rest = LocalFromOffset { local: Arc::clone(local), at: start };
                Box::new(BufReader::with_capacity(HEADER_BYTES, rest))
            }
            Self::Object(object) => Box::new(FromOffset { object: Arc::clone(object), at: start }),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let object = match self {
            Self::Local(local) => {
                // A damaged file may state any length.
                if start.saturating_add(length as u64) > local.bytes {
                    let rest = local.bytes.saturating_sub(start);
                    return Err(ParquetError::EOF(format!("{rest} of {length} bytes are there")));
                }
                let mut bytes = vec![0; length];
                local.file.read_exact_at(&mut bytes, start)?;
                return Ok(bytes.into());
            }
            Self::Object(object) => object,
        };
        let part = object.part(start..start + length as u64)?;
        if part.len() == length {
            return Ok(part);
        }
        // It spans several ranges, or the file ends before.
        let mut bytes = Vec::new();
        let rest = FromOffset { object: Arc::clone(object), at: start };
        rest.take(length as u64).read_to_end(&mut bytes)?;
        match bytes.len() == length {
            true => Ok(bytes.into()),
            false => Err(ParquetError::EOF(format!("{} of {length} bytes are there", bytes.len()))),
        }
    }
}
