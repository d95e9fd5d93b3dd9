//! A connection: receives one request, sends the response, and waits for the client to close.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::message::HEAD_BYTES_MAX;

/// The most bytes sent at once, so that a large response does not delay other clients.
const SENT_BYTES_MAX: usize = 256 << 10;

/// A non-blocking connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// When the connection is cut off, whatever its state.
    pub(super) deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Receives a request, whose first bytes are these.
    Receiving(Vec<u8>),
    Sending {
        response: Vec<u8>,
        sent: usize,
    },
    /// Has sent everything, and discards what the client sends until it closes. If the socket were closed with unread
    /// bytes, the kernel would send a reset, at which the client may drop a response that it has not read.
    Draining,
}

/// The state of a connection without its data, in the order in which connections are given up for new ones.
///
/// Those that drain have their response. Those that receive are most likely idle clients, which must not lock out
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Draining,
    Receiving,
    Sending,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, deadline: Instant) -> Self {
        Self { socket, deadline, state: State::Receiving(Vec::new()) }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Draining => Stage::Draining,
            State::Receiving(_) => Stage::Receiving,
            State::Sending { .. } => Stage::Sending,
        }
    }

    /// Returns the event that [`Connection::advance`] waits for.
    pub(super) fn awaited(&self) -> PollFlags {
        match self.state {
            State::Receiving(_) | State::Draining => PollFlags::IN,
            State::Sending { .. } => PollFlags::OUT,
        }
    }

    /// Receives and sends without blocking, each at most once. Returns whether the connection is still of use.
    ///
    /// `answer` returns the response to the bytes of a request, or `None` if they are incomplete.
    pub(super) fn advance(&mut self, answer: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> bool {
        match self.try_advance(answer) {
            Ok(open) => open,
            Err(Errno::AGAIN | Errno::INTR) => true,
            // The client is gone.
            Err(_) => false,
        }
    }

    fn try_advance(&mut self, answer: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Result<bool, Errno> {
        let mut buffer = [0; HEAD_BYTES_MAX];
        if let State::Receiving(head) = &mut self.state {
            let room = HEAD_BYTES_MAX - head.len();
            let (received, _) = recv(&self.socket, &mut buffer[..room], RecvFlags::empty())?;
            head.extend(&buffer[..received]);
            match answer(head) {
                Some(response) => self.state = State::Sending { response, sent: 0 },
                // The client may have shut down its side after a complete request, but not before.
                None => return Ok(received > 0),
            }
        }
        if let State::Sending { response, sent } = &mut self.state {
            let rest = &response[*sent..];
            let piece = &rest[..rest.len().min(SENT_BYTES_MAX)];
            // If the client is gone: an error, and no SIGPIPE, even if the process does not ignore it.
            *sent += send(&self.socket, piece, SendFlags::NOSIGNAL)?;
            if *sent == response.len() {
                shutdown(&self.socket, Shutdown::Write)?;
                self.state = State::Draining;
            }
            return Ok(true);
        }
        let (received, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
        Ok(received > 0)
    }

    /// Closes the connection with a reset: the kernel drops what the client has not received, instead of keeping it
    /// for minutes.
    pub(super) fn reset(self) {
        // If it fails, the connection is closed the usual way.
        let _ = set_socket_linger(&self.socket, Some(Duration::ZERO));
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
