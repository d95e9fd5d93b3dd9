//! A local file, read from front to back by several threads at a time.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::thread;

/// Most threads that copy a file from the page cache. A single one copies more slowly than 16 threads parse.
const COPIERS_MAX: usize = 4;
/// Processors for each thread that copies: with fewer, parsing is slower than copying.
const PROCESSORS_PER_COPIER: usize = 4;
/// Bytes that are worth starting a thread for.
const PIECE_BYTES_MIN: usize = 256 << 10;

/// A local file that is read from front to back.
#[derive(Debug)]
pub(crate) struct LocalFile {
    file: File,
    /// The bytes that were read.
    at: u64,
    copiers: usize,
}

impl LocalFile {
    pub(crate) fn new(file: File) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::with_copiers(file, (processors / PROCESSORS_PER_COPIER).clamp(1, COPIERS_MAX))
    }

    fn with_copiers(file: File, copiers: usize) -> Self {
        Self { file, at: 0, copiers }
    }

    /// Continues at a position.
    pub(crate) fn skip_to(&mut self, at: u64) {
        self.at = at;
    }

    /// Returns the file, to read it in another way.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

impl Read for LocalFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let pieces = self.copiers.min(buffer.len() / PIECE_BYTES_MIN);
        let bytes = match pieces {
            0 | 1 => self.file.read_at(buffer, self.at)?,
            _ => read_pieces(&self.file, self.at, buffer, buffer.len().div_ceil(pieces))?,
        };
        self.at += bytes as u64;
        Ok(bytes)
    }
}

/// Reads pieces of a buffer at the same time; returns the bytes before the first one that is not filled.
fn read_pieces(file: &File, at: u64, buffer: &mut [u8], piece_bytes: usize) -> io::Result<usize> {
    thread::scope(|scope| {
        let mut pieces = buffer.chunks_mut(piece_bytes).zip((at..).step_by(piece_bytes));
        let own = pieces.next();
        let mut others = Vec::new();
        for (piece, at) in pieces {
            let len = piece.len();
            let other = thread::Builder::new().spawn_scoped(scope, move || read_full(file, piece, at));
            // If no thread can be started, this piece and those after it are read next time.
            let Ok(other) = other else { break };
            others.push((other, len));
        }
        let mut bytes = own.map_or(Ok(0), |(piece, at)| read_full(file, piece, at))?;
        let mut is_filled = bytes == piece_bytes;
        for (other, len) in others {
            let read = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // An error is found again by the next call, at the front of its buffer.
            let read = read.unwrap_or(0);
            if is_filled {
                bytes += read;
                is_filled = read == len;
            }
        }
        Ok(bytes)
    })
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut bytes = 0;
    while bytes < buffer.len() {
        match file.read_at(&mut buffer[bytes..], at + bytes as u64) {
            Ok(0) => break,
            Ok(read) => bytes += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if bytes > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn pieces_are_joined_up_to_the_end_of_the_file() {
        let bytes: Vec<u8> = (0..2_500_001_u32).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for copiers in [1, 2, 3, 4] {
            for len in [1000, 1 << 20, (1 << 21) - 1, 1 << 22] {
                let mut file = LocalFile::with_copiers(file.try_clone().unwrap(), copiers);
                let (mut found, mut buffer) = (Vec::new(), vec![0; len]);
                loop {
                    let read = file.read(&mut buffer).unwrap();
                    // Only the end of a file ends a read early.
                    assert_eq!(read, len.min(bytes.len() - found.len()), "{copiers} {len}");
                    if read == 0 {
                        break;
                    }
                    found.extend_from_slice(&buffer[..read]);
                }
                assert!(found == bytes, "{copiers} {len}");
            }
        }
    }
}
