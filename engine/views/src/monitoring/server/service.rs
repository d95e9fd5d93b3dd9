//! The loop of the server's thread: waits for events, advances connections, and accepts new ones.

use std::any::Any;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::connection::{Connection, Stage};
use super::message::{Request, Response, answer};
use super::{CONNECTIONS_MAX, Limits};

/// The most connections accepted per turn. All connections are served between two turns, so that in a flood of new
/// connections each is served several times before it is the oldest and has to go.
const ACCEPTED_MAX: usize = 16;

/// Makes the calling thread run only while no other thread wants its processor (`SCHED_IDLE`). The lowest priority of
/// usual threads is not enough: such a thread stops a busy one for milliseconds at a time, longer than a step on CPUs,
/// whose threads wait for each other.
fn take_idle_time_only() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, and 0 is the calling thread. A refusal does no harm.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

/// The state of the thread.
pub(super) struct Service<R> {
    /// `None` once the server is dropped.
    listener: Option<TcpListener>,
    /// Readable once the server is dropped.
    stop: Arc<OwnedFd>,
    routes: Routes<R>,
    limits: Limits,
    /// In the order in which they were accepted.
    connections: Vec<Connection>,
    /// While this is in the future, no connections are accepted.
    accepts_from: Instant,
    warned_of_accept: bool,
}

/// What is ready after a wait.
struct Ready {
    stop: bool,
    listener: bool,
    /// For each connection.
    connections: Vec<bool>,
}

impl<R: Fn(&Request<'_>) -> Response> Service<R> {
    pub(super) fn new(listener: TcpListener, stop: Arc<OwnedFd>, routes: R, limits: Limits) -> Self {
        Self {
            listener: Some(listener),
            stop,
            routes: Routes { routes, warned: false },
            limits,
            connections: Vec::with_capacity(CONNECTIONS_MAX + 1),
            accepts_from: Instant::now(),
            warned_of_accept: false,
        }
    }

    /// Serves until the server is dropped.
    pub(super) fn run(mut self) {
        if self.limits.idle {
            take_idle_time_only();
        }
        while self.listener.is_some() {
            self.turn();
        }
        while !self.connections.is_empty() {
            self.turn();
            self.connections.retain(|connection| connection.stage() == Stage::Sending);
        }
    }

    /// Waits for events and handles them: a bounded amount of work.
    pub(super) fn turn(&mut self) {
        let ready = self.wait();
        let mut readiness = ready.connections.iter();
        self.connections.retain_mut(|connection| {
            let ready = readiness.next().is_some_and(|ready| *ready);
            !ready || connection.advance(|head| answer(head, |request| self.routes.respond(request)))
        });
        let now = Instant::now();
        for overdue in self.connections.extract_if(.., |connection| connection.deadline <= now) {
            overdue.reset();
        }
        if ready.stop {
            self.close(now);
        } else if ready.listener {
            self.accept(now);
        }
    }

    /// Waits for an event or for the next instant at which there is something to do.
    fn wait(&self) -> Ready {
        let now = Instant::now();
        let accepts = self.accepts_from <= now;
        let paused_until = (self.listener.is_some() && !accepts).then_some(self.accepts_from);
        let wake = self.connections.iter().map(|connection| connection.deadline).chain(paused_until).min();
        let time = wake.and_then(|wake| Timespec::try_from(wake.saturating_duration_since(now)).ok());

        // A listener that is not to be accepted from must not be polled: its events would end every wait.
        let listener = self.listener.as_ref().filter(|_| accepts);
        let mut polled = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        polled
            .extend(self.connections.iter().map(|connection| PollFd::new(connection, connection.awaited())));
        polled.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut polled, time.as_ref()) {
            // After a signal nothing is ready.
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel is out of memory.
            Err(_) => thread::sleep(self.limits.accept_pause),
        }
        // Errors and hang-ups count as well: the attempt to receive or send returns them.
        let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
        Ready {
            stop: ready.next().unwrap_or_default(),
            connections: ready.by_ref().take(self.connections.len()).collect(),
            listener: ready.next().unwrap_or_default(),
        }
    }

    /// Accepts connections. If there are too many, each replaces one that matters less.
    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_MAX {
            let Some(listener) = &self.listener else { return };
            match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.connections.push(Connection::new(socket, now + self.limits.connection)),
                Err(Errno::AGAIN) => return,
                // A client gave up, or a signal came.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => return self.pause(now, error),
            }
            if self.connections.len() > CONNECTIONS_MAX {
                self.evict();
            }
        }
    }

    /// Closes the connection of the earliest stage, and the oldest one among several.
    fn evict(&mut self) {
        let stages = self.connections.iter().map(Connection::stage).enumerate();
        if let Some((evicted, stage)) = stages.min_by_key(|(_, stage)| *stage) {
            let connection = self.connections.remove(evicted);
            if stage != Stage::Draining {
                connection.reset();
            }
        }
    }

    /// Stops accepting for a while: the listener stays ready, so that the next attempt would follow at once.
    fn pause(&mut self, now: Instant, error: Errno) {
        self.accepts_from = now + self.limits.accept_pause;
        if !self.warned_of_accept {
            self.warned_of_accept = true;
            tracing::warn!("the metrics server cannot accept a connection: {error}; it keeps trying");
        }
    }

    /// Closes everything except responses that are being sent, which get a short time to end.
    fn close(&mut self, now: Instant) {
        self.listener = None;
        self.connections.retain(|connection| connection.stage() == Stage::Sending);
        for connection in &mut self.connections {
            connection.deadline = connection.deadline.min(now + self.limits.grace);
        }
        // Else the eventfd would end every further wait.
        let _ = rustix::io::read(&*self.stop, &mut [0; 8]);
    }
}

/// The caller's routes.
struct Routes<R> {
    routes: R,
    warned: bool,
}

impl<R: Fn(&Request<'_>) -> Response> Routes<R> {
    /// Returns the response to a request: status 500 if the routes panic, which is logged only the first time.
    fn respond(&mut self, request: &Request<'_>) -> Response {
        // A value that a panic leaves inconsistent is the caller's: it can show only in later responses.
        catch_unwind(AssertUnwindSafe(|| (self.routes)(request))).unwrap_or_else(|panic| {
            if !self.warned {
                self.warned = true;
                let (path, why) = (request.path, message_of(&*panic));
                tracing::warn!("the metrics server panicked on {path:?} and answers with status 500: {why}");
            }
            Response::of_status(500)
        })
    }
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}
