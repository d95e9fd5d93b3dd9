//! The functions that parse bytes from connections, as fuzz targets call them.

use std::io::{self, ErrorKind, Read};

use super::frame::{Inbox, Kind, VALUE_BYTES_MAX, processes_of_bytes, split};
use super::handshake::{HELLO_BYTES, Hello, Line};
use super::watch::{self, Failure};
use super::{Activity, ProcessInfo};

/// Parses a hello and the messages after it, up to the end of `bytes`, as their receiver would; returns the number of
/// messages. Tags are not checked: without the secret, no peer gets past the handshake.
///
/// # Errors
/// `InvalidData` if they are malformed, and `UnexpectedEof` if they end within one.
pub fn read_stream(bytes: &[u8]) -> io::Result<usize> {
    let (hello, mut rest) = bytes.split_first_chunk::<HELLO_BYTES>().ok_or(ErrorKind::UnexpectedEof)?;
    let Hello { processes, line, .. } = Hello::read(hello).ok_or(ErrorKind::InvalidData)?;
    let most = match line {
        Line::Values => VALUE_BYTES_MAX,
        Line::Watch => watch::BYTES_MAX,
    };
    let (mut inbox, mut messages) = (Inbox::default(), 0);
    while !rest.is_empty() {
        let message = inbox.read(Read::by_ref(&mut rest), most)?.ok_or(ErrorKind::WouldBlock)?.unproven()?;
        let bytes = &message.bytes;
        let understood = match message.kind {
            Kind::Values => {
                let _ = serde_json::from_slice::<ProcessInfo>(bytes);
                split(bytes, processes.min(1 << 10)).is_some()
            }
            Kind::Late | Kind::Left => !processes_of_bytes(bytes).is_empty(),
            Kind::Stray => !String::from_utf8_lossy(bytes).is_empty(),
            Kind::Alive => serde_json::from_slice::<Activity>(bytes).is_ok(),
            Kind::Failed => serde_json::from_slice::<Failure>(bytes).is_ok(),
            Kind::Done => true,
        };
        messages += usize::from(understood);
    }
    Ok(messages)
}
