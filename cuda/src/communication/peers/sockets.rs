//! How ranks that are processes of one node exchange values and memory handles: there is a socket between each two.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use rankine_topology::{LocalRank, NodeRanks, Rank};

use crate::runtime::{Error, Result};

/// The most bytes of a value; a peer that announces more is not a rank.
const VALUE_BYTES_MAX: usize = 1 << 16;
/// How long a connecting process may take to send its rank, which it does at once.
const HELLO: Duration = Duration::from_secs(1);
/// Bytes of a message's header: round and length of the value.
const HEAD_BYTES: usize = 12;

/// A rank's message: a value, and possibly a handle.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) value: Vec<u8>,
    pub(super) handle: Option<OwnedFd>,
}

/// A rank's sockets to all others.
#[derive(Debug)]
pub(super) struct Sockets {
    ranks: NodeRanks,
    rank: LocalRank,
    deadline: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    round: u64,
    /// Per rank; none for this one.
    others: Vec<Option<UnixStream>>,
    failed: bool,
}

/// Sends the values of this process's ranks to all processes of the node, and returns the values of all ranks, in
/// their order; or returns why it failed.
pub type Gather<'a> = dyn FnMut(&[Vec<u8>]) -> Result<Vec<Vec<u8>>, GatherError> + 'a;

/// Why values were not gathered: the launcher's error.
pub type GatherError = Box<dyn std::error::Error + Send + Sync>;

/// A rank that accepts connections.
struct ListeningRank {
    ranks: NodeRanks,
    rank: LocalRank,
    listener: UnixListener,
    name: String,
}

/// A rank that has connected to all ranks before it.
struct ConnectedRank {
    listening: ListeningRank,
    others: Vec<Option<UnixStream>>,
}

impl ListeningRank {
    fn new(ranks: NodeRanks, rank: LocalRank) -> Result<Self> {
        let (listener, name) = listen().map_err(|error| failed(ranks.rank(rank), &error))?;
        Ok(Self { ranks, rank, listener, name })
    }

    /// Connects to the ranks before this one; all must be listening.
    fn call(self, names: &[Vec<u8>]) -> Result<ConnectedRank> {
        let (ranks, rank) = (self.ranks, self.rank);
        let mut others: Vec<Option<UnixStream>> = names.iter().map(|_| None).collect();
        for (other, name) in names.iter().enumerate().take(rank.0) {
            let stream = SocketAddr::from_abstract_name(name)
                .and_then(|address| UnixStream::connect_addr(&address))
                .and_then(|stream| match is_own_user(&stream) {
                    true => Ok(stream),
                    false => Err(io::Error::other("the listening process belongs to another user")),
                });
            let mut stream = stream.map_err(|error| {
                let why = format_args!(
                    "cannot reach rank {}: {error}; processes that share memory are on one node, and in one \
                     container or with the host's network",
                    ranks.rank(LocalRank(other))
                );
                failed(ranks.rank(rank), &why)
            })?;
            stream
                .write_all(&(rank.0 as u32).to_le_bytes())
                .map_err(|error| failed(ranks.rank(rank), &error))?;
            others[other] = Some(stream);
        }
        Ok(ConnectedRank { listening: self, others })
    }
}

impl ConnectedRank {
    /// Accepts connections of the ranks after this one.
    fn answer(self, deadline: Duration) -> Result<Sockets> {
        let Self { listening: ListeningRank { ranks, rank, listener, .. }, mut others } = self;
        let begun = Instant::now();
        listener.set_nonblocking(true).map_err(|error| failed(ranks.rank(rank), &error))?;
        while others.iter().skip(rank.0 + 1).any(Option::is_none) {
            let missing = || (rank.0 + 1..ranks.count).filter(|&other| others[other].is_none());
            let remaining = deadline.saturating_sub(begun.elapsed());
            if remaining.is_zero() {
                let late = missing().map(|other| ranks.rank(LocalRank(other))).collect();
                let rank = ranks.rank(rank);
                return Err(Error::PeersLate { rank, late, deadline_ms: deadline.as_millis() });
            }
            if !wait(vec![PollFd::new(&listener, PollFlags::IN)], remaining)[0] {
                continue;
            }
            let Ok((stream, _)) = listener.accept() else { continue };
            if !is_own_user(&stream) || stream.set_nonblocking(false).is_err() {
                continue;
            }
            let mut number = [0; 4];
            let said = stream.set_read_timeout(Some(remaining.min(HELLO))).is_ok()
                && io::Read::read_exact(&mut &stream, &mut number).is_ok();
            let other = u32::from_le_bytes(number) as usize;
            if said && other > rank.0 && other < ranks.count && others[other].is_none() {
                others[other] = Some(stream);
            }
        }
        Ok(Sockets { ranks, rank, deadline, state: Mutex::new(State { round: 0, others, failed: false }) })
    }
}

fn failed(rank: Rank, what: &dyn fmt::Display) -> Error {
    Error::PeersSocket { rank, why: what.to_string() }
}

impl Sockets {
    /// Connects all ranks of a node, some of them in this process, which find each other through `gather`.
    pub(super) fn connect(
        ranks: NodeRanks,
        own: Range<usize>,
        deadline: Duration,
        gather: &mut Gather<'_>,
    ) -> Result<Vec<Self>> {
        let listening =
            own.clone().map(|rank| ListeningRank::new(ranks, LocalRank(rank))).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = listening.iter().map(|one| one.name.clone().into_bytes()).collect();
        let first = ranks.rank(LocalRank(own.start));
        let names = gather(&names).map_err(|error| failed(first, &error))?;
        if names.len() != ranks.count {
            let why = format_args!("{} ranks answered instead of {}", names.len(), ranks.count);
            return Err(failed(first, &why));
        }
        // All are listening by now, so connecting cannot deadlock: first to lower ranks, then from higher ones.
        let called = listening.into_iter().map(|one| one.call(&names)).collect::<Result<Vec<_>>>()?;
        called.into_iter().map(|one| one.answer(deadline)).collect()
    }

    /// Sends a value, and returns the values of all other ranks; its own entry is none.
    pub(super) fn exchange(
        &self,
        value: &[u8],
        handle: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<Option<Message>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failed {
            let why = "an earlier exchange between the ranks failed";
            return Err(failed(self.ranks.rank(self.rank), &why));
        }
        state.round += 1;
        let outcome = self.exchange_round(&state, value, handle);
        state.failed = outcome.is_err();
        outcome
    }

    fn exchange_round(
        &self,
        state: &State,
        value: &[u8],
        handle: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<Option<Message>>> {
        let rank = self.ranks.rank(self.rank);
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is too large", value.len());
        let mut message = state.round.to_le_bytes().to_vec();
        message.extend((value.len() as u32).to_le_bytes());
        message.extend(value);
        let left = |other| Error::PeersLeft { rank, left: vec![self.ranks.rank(LocalRank(other))] };
        let streams =
            || state.others.iter().enumerate().filter_map(|(other, own)| Some((other, own.as_ref()?)));
        for (other, stream) in streams() {
            send(stream, &message, handle).map_err(|_| left(other))?;
        }
        let begun = Instant::now();
        let mut handed: Vec<Option<Message>> = state.others.iter().map(|_| None).collect();
        let mut missing: Vec<_> = streams().collect();
        while !missing.is_empty() {
            let remaining = self.deadline.saturating_sub(begun.elapsed());
            if remaining.is_zero() {
                let late = missing.iter().map(|(other, _)| self.ranks.rank(LocalRank(*other))).collect();
                return Err(Error::PeersLate { rank, late, deadline_ms: self.deadline.as_millis() });
            }
            let sockets = missing.iter().map(|(_, stream)| PollFd::new(*stream, PollFlags::IN)).collect();
            let mut ready = wait(sockets, remaining).into_iter();
            let (come, still): (Vec<_>, Vec<_>) =
                missing.into_iter().partition(|_| ready.next() == Some(true));
            missing = still;
            for (other, stream) in come {
                let (round, found) = receive(stream, remaining).map_err(|error| match error.kind() {
                    ErrorKind::InvalidData => {
                        Error::PeersStray { rank, other: self.ranks.rank(LocalRank(other)) }
                    }
                    _ => left(other),
                })?;
                if round != state.round {
                    return Err(Error::PeersStray { rank, other: self.ranks.rank(LocalRank(other)) });
                }
                handed[other] = Some(found);
            }
        }
        Ok(handed)
    }
}

/// Listens under an unused name that other users of the host cannot guess and take.
fn listen() -> io::Result<(UnixListener, String)> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let name = format!("rankine-{}-{:032x}", std::process::id(), u128::from_le_bytes(random));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    Ok((listener, name))
}

/// Returns which sockets have something to read or are closed; waits for the first.
fn wait(mut sockets: Vec<PollFd<'_>>, time: Duration) -> Vec<bool> {
    // A failure is a signal: then nothing is ready.
    let _ = poll(&mut sockets, Timespec::try_from(time).ok().as_ref());
    sockets.iter().map(|socket| !socket.revents().is_empty()).collect()
}

/// Returns whether the other side of a socket is a process of the same user.
fn is_own_user(stream: &UnixStream) -> bool {
    // Not with rustix, whose type for process ids has no 0, which the system reports for a process of another PID
    // namespace.
    let mut other = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut other).cast();
    // SAFETY: the pointers are to live values, the first with the size that the second gives.
    let told =
        unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) };
    told == 0 && other.uid == rustix::process::geteuid().as_raw()
}

/// Sends all bytes, with a handle attached to the first of them.
fn send(stream: &UnixStream, mut bytes: &[u8], mut handle: Option<BorrowedFd<'_>>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let attached = handle.as_slice();
        if !attached.is_empty() {
            let has_room = control.push(SendAncillaryMessage::ScmRights(attached));
            assert!(has_room, "the buffer has room for one handle");
        }
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                handle = None;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives a message: its round and contents.
fn receive(stream: &UnixStream, time: Duration) -> io::Result<(u64, Message)> {
    stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
    let mut handed = Message::default();
    let mut head = [0; HEAD_BYTES];
    fill(stream, &mut head, &mut handed.handle)?;
    let (round, len) = head.split_at(8);
    let round = round.try_into().map(u64::from_le_bytes).map_err(|_| ErrorKind::InvalidData)?;
    let len = len.try_into().map(u32::from_le_bytes).map_err(|_| ErrorKind::InvalidData)? as usize;
    if len > VALUE_BYTES_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    handed.value = vec![0; len];
    fill(stream, &mut handed.value, &mut handed.handle)?;
    Ok((round, handed))
}

/// Fills the buffer from the socket, and stores a handle if one arrives with the bytes.
fn fill(stream: &UnixStream, mut bytes: &mut [u8], handle: &mut Option<OwnedFd>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(bytes)];
        let received = match recvmsg(stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            received => received?.bytes,
        };
        if received == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(handles) = message {
                // A handle received before is closed.
                *handle = handles.last().or(handle.take());
            }
        }
        bytes = &mut bytes[received..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::os::fd::AsFd;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use rankine_topology::Node;

    /// Connects ranks that are threads, and returns the result of each.
    fn on_ranks<V: Send>(
        ranks: usize,
        deadline: Duration,
        run: impl Fn(usize, Sockets) -> V + Sync,
    ) -> Vec<V> {
        let (names, barrier) = (Mutex::new(vec![Vec::new(); ranks]), Barrier::new(ranks));
        thread::scope(|scope| {
            let (names, barrier, run) = (&names, &barrier, &run);
            let start = |rank| {
                scope.spawn(move || {
                    let mut gather = |own: &[Vec<u8>]| {
                        names.lock().unwrap()[rank] = own[0].clone();
                        barrier.wait();
                        Ok(names.lock().unwrap().clone())
                    };
                    let mut own = Sockets::connect(
                        NodeRanks { node: Node(0), count: ranks },
                        rank..rank + 1,
                        deadline,
                        &mut gather,
                    )
                    .unwrap();
                    run(rank, own.remove(0))
                })
            };
            let running: Vec<_> = (0..ranks).map(start).collect();
            running.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn values_and_handles_come_from_each_rank() {
        on_ranks(4, Duration::from_secs(20), |rank, sockets| {
            for round in 0..200 {
                // A pipe whose other end sends the rank's number.
                let (from, mut to) = pipe().unwrap();
                to.write_all(&[rank as u8; 3]).unwrap();
                let value = vec![rank as u8; rank * round];
                let with_handle = (rank + round) % 2 == 0;
                let handed = sockets.exchange(&value, with_handle.then_some(from.as_fd())).unwrap();
                for (other, handed) in handed.into_iter().enumerate() {
                    let Some(Message { value, handle }) = handed else {
                        assert_eq!(other, rank);
                        continue;
                    };
                    assert_eq!(value, vec![other as u8; other * round]);
                    assert_eq!(handle.is_some(), (other + round) % 2 == 0);
                    // The bytes can be read only once.
                    if let Some(handle) = handle.filter(|_| (rank + 1) % 4 == other) {
                        let mut bytes = [0; 3];
                        File::from(handle).read_exact(&mut bytes).unwrap();
                        assert_eq!(bytes, [other as u8; 3]);
                    }
                }
                // All ranks keep their end open until it is read.
                sockets.exchange(&[], None).unwrap();
            }
        });
    }

    #[test]
    fn strangers_that_connect_do_not_block_ranks() {
        let names = Barrier::new(3);
        let called = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let (names, called) = (&names, &called);
            for rank in 0..2 {
                scope.spawn(move || {
                    let mut gather = |own: &[Vec<u8>]| {
                        called.lock().unwrap().push((rank, own[0].clone()));
                        names.wait();
                        // Strangers connect before any rank does.
                        names.wait();
                        let mut all = called.lock().unwrap().clone();
                        all.sort();
                        Ok(all.into_iter().map(|(_, name)| name).collect())
                    };
                    let own = rank..rank + 1;
                    let ranks = NodeRanks { node: Node(0), count: 2 };
                    let mut own = Sockets::connect(ranks, own, Duration::from_secs(20), &mut gather).unwrap();
                    let handed = own.remove(0).exchange(&[rank as u8], None).unwrap();
                    assert_eq!(handed[1 - rank].as_ref().unwrap().value, [1 - rank as u8]);
                });
            }
            names.wait();
            let mut open = Vec::new();
            for (_, name) in called.lock().unwrap().iter() {
                for words in [&b""[..], b"G", b"GET / HTTP/1.1", &[0; 4], &[9; 4]] {
                    let address = SocketAddr::from_abstract_name(name).unwrap();
                    let mut stranger = UnixStream::connect_addr(&address).unwrap();
                    stranger.write_all(words).unwrap();
                    open.push(stranger);
                }
            }
            names.wait();
        });
    }

    #[test]
    fn late_and_lost_ranks_are_named() {
        on_ranks(4, Duration::from_millis(200), |rank, sockets| {
            if rank == 1 || rank == 3 {
                thread::sleep(Duration::from_millis(1000));
                return;
            }
            match sockets.exchange(&[1], None) {
                Err(Error::PeersLate { late, .. }) => assert_eq!(late, [1, 3].map(Rank)),
                // The other one may have given up first.
                Err(Error::PeersLeft { left, .. }) => assert_eq!(left, [Rank(2 - rank)]),
                other => panic!("{other:?}"),
            }
            assert!(sockets.exchange(&[1], None).unwrap_err().to_string().contains("an earlier exchange"));
        });
        on_ranks(3, Duration::from_secs(1000), |rank, sockets| {
            if rank != 1 {
                let gone = sockets.exchange(&[1], None).unwrap_err();
                assert!(matches!(gone, Error::PeersLeft { .. }), "{gone:?}");
            }
        });
    }
}
