//! The messages of authenticated processes, as bytes over TCP.

use std::io::{self, ErrorKind, Read};

use rankine_topology::Process;

/// Most bytes of a value that a process sends to all; more is a protocol error.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;

/// The kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// From a process: its value. From process 0: all values, each after its length.
    Values = 1,
    /// From process 0: missing processes.
    Late = 2,
    /// From process 0: processes that have ended.
    Left = 3,
    /// From process 0: why the process is refused, as text.
    Stray = 4,
    /// A sign of life; from processes other than 0 with their activity.
    Alive = 5,
    /// From a process: why it fails. From process 0: why all end.
    Failed = 6,
    /// From a process that is complete.
    Done = 7,
}

/// A message: its kind, its round, and its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) round: u64,
    pub(super) bytes: Vec<u8>,
}

const HEAD_BYTES: usize = 13;
const TAG_BYTES: usize = blake3::OUT_LEN;

/// One direction of a connection: its key, and the number of messages sent. A tag covers both, so that no message can
/// be changed, dropped, repeated or reflected.
pub(super) struct Seal {
    key: [u8; blake3::KEY_LEN],
    count: u64,
}

impl Seal {
    pub(super) fn new(key: [u8; blake3::KEY_LEN]) -> Self {
        Self { key, count: 0 }
    }

    /// The tag of the next message.
    fn next(&mut self, frame: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.count.to_le_bytes()).update(frame);
        self.count += 1;
        hasher.finalize()
    }
}

impl Message {
    /// The message as it is sent: head, bytes and tag.
    pub(super) fn seal(&self, seal: &mut Seal) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEAD_BYTES + self.bytes.len() + TAG_BYTES);
        frame.push(self.kind as u8);
        frame.extend(self.round.to_le_bytes());
        frame.extend((self.bytes.len() as u32).to_le_bytes());
        frame.extend(&self.bytes);
        let tag = seal.next(&frame);
        frame.extend(tag.as_bytes());
        frame
    }
}

/// A complete message as received, with its tag.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// The message.
    ///
    /// # Errors
    /// `InvalidData` if it is not the next message of the other side, or malformed.
    pub(super) fn open(self, seal: &mut Seal) -> io::Result<Message> {
        let (frame, tag) = self.0.split_at(self.0.len() - TAG_BYTES);
        // This comparison takes constant time.
        if seal.next(frame) != *tag { Err(ErrorKind::InvalidData.into()) } else { self.unproven() }
    }

    /// The message, without checking its tag.
    ///
    /// # Errors
    /// `InvalidData` if it is malformed.
    pub(super) fn unproven(self) -> io::Result<Message> {
        let Self(mut frame) = self;
        let kind = match frame[0] {
            1 => Kind::Values,
            2 => Kind::Late,
            3 => Kind::Left,
            4 => Kind::Stray,
            5 => Kind::Alive,
            6 => Kind::Failed,
            7 => Kind::Done,
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        let mut round = [0; 8];
        round.copy_from_slice(&frame[1..9]);
        frame.truncate(frame.len() - TAG_BYTES);
        frame.drain(..HEAD_BYTES);
        Ok(Message { kind, round: u64::from_le_bytes(round), bytes: frame })
    }
}

/// A message that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Inbox(Vec<u8>);

impl Inbox {
    /// Reads available bytes, or waits up to the stream's time-out. `None`: the message is incomplete.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other side has ended, and `InvalidData` for a message of more than `most` bytes.
    pub(super) fn read(&mut self, mut stream: impl Read, most: usize) -> io::Result<Option<Frame>> {
        loop {
            let wanted = self.wanted(most)?;
            if self.0.len() == wanted {
                return Ok(Some(Frame(std::mem::take(&mut self.0))));
            }
            let mut piece = vec![0; (wanted - self.0.len()).min(1 << 16)];
            match stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.0.extend(&piece[..read]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the head; once that is complete, of the whole message.
    fn wanted(&self, most: usize) -> io::Result<usize> {
        let Some(head) = self.0.get(..HEAD_BYTES) else { return Ok(HEAD_BYTES) };
        let len = u32::from_le_bytes([head[9], head[10], head[11], head[12]]) as usize;
        if len > most { Err(ErrorKind::InvalidData.into()) } else { Ok(HEAD_BYTES + len + TAG_BYTES) }
    }
}

/// The values one after the other, each after its length.
pub(super) fn join(values: &[Vec<u8>]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| (value.len() as u32).to_le_bytes().into_iter().chain(value.iter().copied()))
        .collect()
}

/// The values that [`join`] joined, if there are as many as expected.
pub(super) fn split(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        values.push(value.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(values)
}

/// Processes as bytes, and back.
pub(super) fn processes_to_bytes(processes: &[Process]) -> Vec<u8> {
    processes.iter().flat_map(|&Process(number)| (number as u32).to_le_bytes()).collect()
}

pub(super) fn processes_of_bytes(bytes: &[u8]) -> Vec<Process> {
    bytes
        .chunks_exact(4)
        .map(|word| Process(u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    #[test]
    fn a_message_has_a_head_its_bytes_and_a_tag() {
        let message = Message { kind: Kind::Failed, round: 0x0102, bytes: b"why".to_vec() };
        let sealed = message.seal(&mut Seal::new(KEY));
        let head = [&[6, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0][..], b"why"].concat();
        assert_eq!(sealed[..16], head);
        let tag = blake3::keyed_hash(&KEY, &[&0u64.to_le_bytes()[..], &head].concat());
        assert_eq!(sealed[16..], *tag.as_bytes());
        let mut seal = Seal::new(KEY);
        for kind in [1, 2, 3, 4, 5, 6, 7] {
            let frame = [&[kind][..], &head[1..]].concat();
            let tag = seal.next(&frame);
            let open = Frame([&frame[..], tag.as_bytes()].concat()).unproven().unwrap();
            assert_eq!((open.kind as u8, open.round, &open.bytes[..]), (kind, 0x0102, &b"why"[..]));
        }
        let unknown = Frame([&[8][..], &sealed[1..]].concat());
        assert_eq!(unknown.unproven().unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_message_may_come_in_pieces_and_not_be_longer_than_it_may() {
        let sealed = Message { kind: Kind::Values, round: 1, bytes: vec![5; 100] }.seal(&mut Seal::new(KEY));
        let mut inbox = Inbox::default();
        /// A connection with a piece in it, and more to come.
        struct Piece<'a>(&'a [u8]);
        impl Read for Piece<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { self.0.read(out) }
            }
        }
        let (last, before) = sealed.split_last().unwrap();
        for piece in before.chunks(7) {
            assert!(inbox.read(Piece(piece), 100).unwrap().is_none());
        }
        let whole = inbox.read(Piece(&[*last]), 100).unwrap().unwrap();
        assert_eq!(whole.open(&mut Seal::new(KEY)).unwrap().bytes, [5; 100]);
        let refused = Inbox::default().read(&sealed[..], 99).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let cut = Inbox::default().read(&sealed[..20], 100).err().unwrap();
        assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn values_are_taken_apart_as_they_were_joined() {
        let values = [b"one".to_vec(), Vec::new(), vec![9; 300]];
        let joined = join(&values);
        assert_eq!(joined[..7], [3, 0, 0, 0, b'o', b'n', b'e']);
        assert_eq!(split(&joined, 3).unwrap(), values);
        // As many values as there are processes, and nothing behind them.
        assert!(split(&joined, 2).is_none() && split(&joined, 4).is_none());
        assert!(split(&joined[..joined.len() - 1], 3).is_none());
        let processes = [0, 3, 4095].map(Process);
        assert_eq!(processes_of_bytes(&processes_to_bytes(&processes)), processes);
    }
}
