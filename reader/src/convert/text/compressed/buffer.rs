//! What the readers of compressed files share.

use std::io::{self, BufRead, ErrorKind};

/// Returns the buffer, filled again if it is empty; an empty slice at the end of the file.
pub(super) fn buffered(file: &mut impl BufRead) -> io::Result<&[u8]> {
    while let Err(error) = file.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    file.fill_buf()
}

pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}
