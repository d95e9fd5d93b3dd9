//! A connection between process 0 and another process, after both have authenticated.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{Inbox, Message, Seal};
use super::handshake::Keys;

/// A connection with authenticated messages.
pub(super) struct Wire {
    stream: TcpStream,
    inbox: Inbox,
    /// Bytes that are sealed but not yet sent: after a part of a message only the rest of it may follow.
    outbox: Vec<u8>,
    sends: Seal,
    receives: Seal,
}

impl Wire {
    /// Process 0's end.
    pub(super) fn of_first(stream: TcpStream, keys: &Keys) -> Self {
        Self::new(stream, keys.from_first, keys.to_first)
    }

    /// The end of any other process.
    pub(super) fn of_other(stream: TcpStream, keys: &Keys) -> Self {
        Self::new(stream, keys.to_first, keys.from_first)
    }

    fn new(stream: TcpStream, sends: [u8; 32], receives: [u8; 32]) -> Self {
        let (sends, receives) = (Seal::new(sends), Seal::new(receives));
        Self { stream, inbox: Inbox::default(), outbox: Vec::new(), sends, receives }
    }

    /// Reads and writes block, at most this long.
    pub(super) fn block(&self, time: Duration) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(time))?;
        self.stream.set_write_timeout(Some(time))
    }

    /// Reads and writes never block.
    pub(super) fn unblock(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// Sends a message. Bytes that the connection does not take now are sent before the next message.
    ///
    /// # Errors
    /// `WouldBlock` if it takes no more, and other errors of the system.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let sealed = message.seal(&mut self.sends);
        match self.outbox.is_empty() {
            true => self.outbox = sealed,
            false => self.outbox.extend(sealed),
        }
        self.flush()
    }

    /// Sends the rest of earlier messages.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        let error = loop {
            if sent == self.outbox.len() {
                // Values can be long: their memory is not kept.
                self.outbox = Vec::new();
                return Ok(());
            }
            match (&self.stream).write(&self.outbox[sent..]) {
                Ok(0) => break ErrorKind::WriteZero.into(),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        self.outbox.drain(..sent);
        Err(error)
    }

    /// Reads a message. `None`: it is incomplete.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other side has ended; `InvalidData` if the bytes are not its next message, or more than
    /// `most`.
    pub(super) fn read(&mut self, most: usize) -> io::Result<Option<Message>> {
        let frame = self.inbox.read(&self.stream, most)?;
        frame.map(|frame| frame.open(&mut self.receives)).transpose()
    }

    /// Whether the other side has closed the connection, even if unread bytes are left.
    pub(super) fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        // Does not block.
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|changed| changed > 0)
    }
}

/// Waits until one of the connections can be read or has ended, at most this long.
pub(super) fn wait<'a>(wires: impl Iterator<Item = &'a Wire>, time: Duration) {
    let mut polled: Vec<_> = wires.map(|wire| PollFd::new(&wire.stream, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // A signal interrupts it; then all connections are read.
    let _ = poll(&mut polled, Some(&time));
}

/// Never the keys.
impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({:?})", self.stream)
    }
}

/// Process 0's end of a connection, and the other one.
#[cfg(test)]
pub(super) fn pair() -> [Wire; 2] {
    let (first, other) = tests::streams();
    [Wire::of_first(first, &tests::KEYS), Wire::of_other(other, &tests::KEYS)]
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;
    use crate::frame::Kind;

    pub(super) const KEYS: Keys = Keys { to_first: [1; 32], from_first: [2; 32] };

    pub(super) fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, other)
    }

    fn message(round: u64, bytes: usize) -> Message {
        Message { kind: Kind::Values, round, bytes: vec![round as u8; bytes] }
    }

    /// Process 0's end of a connection, and the bytes that the other end has sent, not yet received.
    fn first_and_frames() -> (Wire, TcpStream, Vec<Vec<u8>>) {
        let (first, other) = streams();
        let mut seal = Seal::new(KEYS.to_first);
        let frames = (0..3).map(|round| message(round, 100).seal(&mut seal)).collect();
        (Wire::of_first(first, &KEYS), other, frames)
    }

    #[test]
    fn messages_that_were_changed_repeated_left_out_or_sent_back_are_refused() {
        type Change = fn(&mut Vec<Vec<u8>>);
        let changes: [Change; 6] = [
            |frames| frames[0][20] ^= 1,
            |frames| frames[0][3] ^= 1,
            |frames| frames[0][113] ^= 1,
            |frames| frames[1] = frames[0].clone(),
            |frames| drop(frames.remove(0)),
            |frames| frames[0] = message(0, 100).seal(&mut Seal::new(KEYS.from_first)),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut wire, mut other, mut frames) = first_and_frames();
            change(&mut frames);
            other.write_all(&frames.concat()).unwrap();
            let outcome: io::Result<Vec<_>> = (0..2).map(|_| wire.read(1000)).collect();
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidData, "change {number}");
        }
        let (mut wire, mut other, frames) = first_and_frames();
        other.write_all(&frames.concat()).unwrap();
        for round in 0..3 {
            assert_eq!(wire.read(1000).unwrap(), Some(message(round, 100)));
        }
    }

    #[test]
    fn what_a_full_connection_does_not_take_follows_later() {
        let (first, mut other) = streams();
        let (mut wire, mut seal) = (Wire::of_first(first, &KEYS), Seal::new(KEYS.from_first));
        wire.unblock().unwrap();
        let mut rounds = 0;
        let full = loop {
            rounds += 1;
            if let Err(error) = wire.send(&message(rounds, 100_000)) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let expected: Vec<u8> =
            (1..=rounds).flat_map(|round| message(round, 100_000).seal(&mut seal)).collect();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; expected.len()];
            other.read_exact(&mut bytes).unwrap();
            assert!(bytes == expected);
        });
        wire.block(Duration::from_secs(20)).unwrap();
        wire.flush().unwrap();
        reader.join().unwrap();
    }
}
