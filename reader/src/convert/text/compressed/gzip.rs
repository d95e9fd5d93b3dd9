//! Gzip: members one after another.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use super::buffer::{buffered, invalid};

/// The text of consecutive gzip members, as written by `cat a.gz b.gz`. Zeros after the last one are padding.
pub(super) struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(file: R) -> Self {
        Self(Some(GzDecoder::new(file)))
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let bytes = member.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            // Before the member is dropped: an error here must not look like the end of the text.
            let last = is_padding(member.get_mut())?;
            let rest = self.0.take().map(GzDecoder::into_inner);
            self.0 = rest.filter(|_| !last).map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// Consumes zeros; returns whether there were only zeros before the end of the file.
///
/// # Errors
/// Those of the file; [`io::ErrorKind::InvalidData`] if other bytes follow zeros.
fn is_padding(rest: &mut impl BufRead) -> io::Result<bool> {
    let mut zeros = false;
    loop {
        let bytes = buffered(rest)?;
        if bytes.is_empty() {
            return Ok(true);
        }
        match bytes.iter().position(|&byte| byte != 0) {
            Some(0) if !zeros => return Ok(false),
            Some(_) => return Err(invalid("the zeros after a member are followed by other bytes")),
            None => {}
        }
        zeros = true;
        let count = bytes.len();
        rest.consume(count);
    }
}
