//! The bytes of a source as text: decompressed, and counted as they are read.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_base::error::{Error, IoContext, Result};

use crate::convert::text::compressed::Compression;

/// The first bytes of every Parquet file.
pub(crate) const PARQUET_MAGIC: &[u8] = b"PAR1";

/// A file that counts the bytes read from it.
pub(super) struct MeteredFile<F> {
    pub(super) file: F,
    pub(super) taken: Arc<AtomicU64>,
}

impl<F: Read> Read for MeteredFile<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// The text of a source, which is read from start to end.
pub(super) struct Input {
    text: Box<dyn Read + Send>,
    compression: Option<Compression>,
}

impl Input {
    /// The text of a file that starts with the bytes `magic`.
    pub(super) fn new(path: &Path, magic: &[u8], file: impl Read + Send + 'static) -> Result<Self> {
        if magic == PARQUET_MAGIC {
            let what = format!(
                "{} is a Parquet file, but rows of text are expected: `rankine convert parquet` reads Parquet, and a \
                 model reads rows in the format of its training data",
                path.display()
            );
            return Err(Error::unsuitable(path, what));
        }
        let compression = Compression::of(magic);
        let text = match compression {
            Some(compression) => compression.text(file),
            None => Box::new(file),
        };
        Ok(Self { text, compression })
    }

    /// The text of a file that is not compressed, from somewhere within.
    pub(super) fn plain(text: Box<dyn Read + Send>) -> Self {
        Self { text, compression: None }
    }

    /// Returns whether the file is compressed.
    pub(super) fn is_compressed(&self) -> bool {
        self.compression.is_some()
    }

    /// Fills a buffer starting at `from` until it is full or the input ends; returns the end of the filled bytes.
    pub(super) fn fill(&mut self, path: &Path, bytes: &mut [u8], from: usize) -> Result<usize> {
        let mut end = from;
        let outcome = loop {
            match self.text.read(&mut bytes[end..]) {
                Ok(0) => break Ok(end),
                Ok(read) => end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let source = match outcome {
            Ok(end) => return Ok(end),
            Err(error) => error,
        };
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match (self.compression, source.kind()) {
            (Some(compression), UnexpectedEof | InvalidInput | InvalidData) => {
                let what = format!(
                    "its {compression} stream is truncated or corrupt ({source}): download the file or \
                     compress its text again"
                );
                Err(Error::damaged(path, None, what))
            }
            _ => Err(source).context("read", path),
        }
    }
}
