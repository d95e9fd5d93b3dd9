//! Standard input as a source of lines. It can be read only once, but its first row decides how all rows are read: what
//! was read to look at that row is kept, and read again.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Standard input, or another stream in its place.
#[derive(Clone)]
pub(crate) struct StandardInput(Arc<Mutex<Stream>>);

struct Stream {
    input: Box<dyn Read + Send>,
    /// The bytes at its front that were read to look at them.
    front: Vec<u8>,
}

impl StandardInput {
    /// Returns the standard input of the process.
    pub(crate) fn of_process() -> Self {
        Self::new(io::stdin())
    }

    /// Returns what the system reports now about the file that is the standard input of the process; `None` if it is
    /// not a file.
    pub(crate) fn file_of_process() -> Option<Metadata> {
        let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        file.and_then(|file| file.metadata()).ok().filter(Metadata::is_file)
    }

    fn new(input: impl Read + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Stream { input: Box::new(input), front: Vec::new() })))
    }

    /// Returns a reader from the start. What a reader to `peek` reads remains for later readers; after any other one,
    /// nothing is left.
    pub(crate) fn reader(&self, peek: bool) -> StandardInputReader {
        StandardInputReader { stream: self.clone(), at: 0, peek }
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        // A panic elsewhere must not be hidden by a second one here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StandardInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StandardInput")
    }
}

/// Reads standard input from its start.
pub(crate) struct StandardInputReader {
    stream: StandardInput,
    /// Bytes of the front that were read.
    at: usize,
    peek: bool,
}

impl Read for StandardInputReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream.stream();
        let Stream { input, front } = &mut *stream;
        if let Some(rest) = front.get(self.at..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            self.at += count;
            return Ok(count);
        }
        let count = input.read(buffer)?;
        if self.peek {
            front.extend_from_slice(&buffer[..count]);
            self.at += count;
        } else {
            *front = Vec::new();
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_read_again() {
        let text: Vec<u8> = (0..=255).collect();
        let input = StandardInput::new(io::Cursor::new(text.clone()));
        for length in [5, 3, 40] {
            let mut front = vec![0; length];
            input.reader(true).read_exact(&mut front).unwrap();
            assert_eq!(front, text[..length]);
        }
        let mut all = Vec::new();
        input.reader(false).read_to_end(&mut all).unwrap();
        assert_eq!(all, text);
        assert!(input.stream().front.is_empty());
    }
}
