//! A very small HTTP/1.1 server for the metrics of a training process.
//!
//! One thread, which only gets idle processor time, serves all connections without blocking. It must never delay
//! training, whatever clients do, so everything has a limit: connections, bytes of a request, time per connection, and
//! work per turn of the loop. Nothing is logged per request.
//!
//! Deliberately absent: persistent connections, request bodies, TLS, compression, and a second thread.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use service::Service;

pub use message::{Host, Request, Response};

mod connection;
mod message;
mod service;
#[cfg(test)]
mod tests;

/// The most connections at the same time. If more clients connect, the server drops the connections that matter least.
pub const CONNECTIONS_MAX: usize = 64;

/// The most connections that the kernel holds until they are accepted. Beyond it a client has to try again, a second
/// later, which must not happen to a scrape because of a burst of other clients.
const BACKLOG: i32 = 1024;

/// The longest wait of a drop for the thread, which gets hardly any time on a machine whose processors are all busy.
const DROP_TIME_MAX: Duration = Duration::from_millis(90);

/// Limits, which tests change.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// From accepting a connection to closing it.
    connection: Duration,
    /// How long the server, when dropped, lets clients receive responses that it has begun to send.
    grace: Duration,
    /// How long it does not accept after an error, such as too many open files.
    accept_pause: Duration,
    /// Whether the thread only gets processor time that no other thread wants. Tests that measure time run it as usual:
    /// they also run on machines whose processors are all busy.
    idle: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection: Duration::from_secs(5),
            grace: Duration::from_millis(50),
            accept_pause: Duration::from_millis(100),
            idle: true,
        }
    }
}

/// A running server.
///
/// Dropping it makes the thread close the listener and all connections and end. The drop waits for that, but less than
/// 100 ms: if the machine is busy or `routes` has not returned, the thread ends by itself later.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// An eventfd that ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the thread `rankine-metrics`, which answers GET and HEAD requests with `routes`.
    ///
    /// `routes` runs on that thread, for one request at a time; meanwhile other clients wait. It must not hold a lock
    /// that training takes: the thread only gets idle processor time, so on a busy machine it can lose the processor
    /// while it holds the lock. If `routes` panics, the client gets status 500. The first panic is logged, but the
    /// panic hook of the process still prints each.
    ///
    /// Up to [`CONNECTIONS_MAX`] responses are in memory at the same time.
    ///
    /// # Errors
    /// Errors of the system, if the listener cannot be configured, or the eventfd or the thread cannot be created.
    pub fn start(
        listener: TcpListener,
        routes: impl Fn(&Request<'_>) -> Response + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(listener, routes, Limits::default())
    }

    fn start_with(
        listener: TcpListener,
        routes: impl Fn(&Request<'_>) -> Response + Send + 'static,
        limits: Limits,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        // Replaces the backlog of the standard library, 128.
        rustix::net::listen(&listener, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let service = Service::new(listener, Arc::clone(&stop), routes, limits);
        let thread = thread::Builder::new().name("rankine-metrics".into()).spawn(|| service.run())?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if the counter is full; then the thread wakes up as well.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() >= DROP_TIME_MAX {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if thread.join().is_err() {
            tracing::warn!("the thread of the metrics server has panicked");
        }
    }
}
