//! A Parquet file or object, of which the decoder reads parts in any order.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
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

/// A file or an object. Errors of an object hold a [`rankine_base::Error`].
pub(super) enum ParquetInput {
    Local(File),
    Object(Arc<Object>),
}

/// An object, with the ranges that were read last, the latest at the end.
pub(super) struct Object {
    url: PathBuf,
    version: Version,
    latest: Mutex<Vec<(u64, Bytes)>>,
}

impl ParquetInput {
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
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = latest.iter().position(|(of, _)| *of == number) {
            let found = latest.remove(at);
            let bytes = found.1.clone();
            latest.push(found);
            return Ok(bytes);
        }
        let start = number * RANGE_BYTES;
        let range = start..self.version.bytes.min(start + RANGE_BYTES);
        let bytes = store::range(&self.url, &self.version, range).map_err(io::Error::other)?;
        let bytes = Bytes::copy_from_slice(&bytes);
        if latest.len() == RANGES_KEPT {
            latest.remove(0);
        }
        latest.push((number, bytes.clone()));
        Ok(bytes)
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
            Self::Local(file) => Length::len(file),
            Self::Object(object) => object.version.bytes,
        }
    }
}

impl ChunkReader for ParquetInput {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(match self {
            Self::Local(file) => Box::new(file.get_read(start)?),
            Self::Object(object) => Box::new(FromOffset { object: Arc::clone(object), at: start }),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let object = match self {
            Self::Local(file) => return file.get_bytes(start, length),
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
