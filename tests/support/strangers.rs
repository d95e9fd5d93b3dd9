//! Strangers: clients of a rendezvous port that do not know the job's secret, with all attacks that they can make.
//! Tests of the command and of the library include this file by its path.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Idle connections of the flood; closed ones are opened again.
const FLOOD: usize = 400;
/// The pause between two attempts of a stranger.
const PAUSE: Duration = Duration::from_millis(5);

/// Strangers that attack a port of this host until they are dropped.
pub(crate) struct Strangers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    address: SocketAddr,
    over: AtomicBool,
    connected: AtomicUsize,
}

impl Shared {
    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok()?;
        // A connection to a port that nobody listens on may connect to itself.
        if stream.local_addr().ok()? == self.address {
            return None;
        }
        self.connected.fetch_add(1, Ordering::Relaxed);
        Some(stream)
    }

    fn continues(&self) -> bool {
        thread::sleep(PAUSE);
        !self.over.load(Ordering::Relaxed)
    }

    /// Sends the same bytes again and again, each time over a new connection, and waits briefly for an answer.
    fn send_again_and_again(&self, bytes: &[u8]) {
        while self.continues() {
            let Some(mut stream) = self.connect() else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            // Any answer, or none, is fine.
            let _ = stream.write_all(bytes).and_then(|()| stream.read(&mut [0; 256]));
        }
    }

    /// Does the same with a hello, and sends a wrong proof after it, whatever the answer.
    fn prove_again_and_again(&self, hello: &[u8]) {
        while self.continues() {
            let Some(mut stream) = self.connect() else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
            let _ = stream.write_all(hello).and_then(|()| stream.read(&mut [0; 256]));
            let _ = stream.write_all(&[0x5a; 32]).and_then(|()| stream.read(&mut [0; 256]));
        }
    }

    /// Sends one byte at a time, with long pauses.
    fn send_slowly(&self, bytes: &[u8]) {
        while self.continues() {
            let Some(mut stream) = self.connect() else { continue };
            for byte in bytes {
                if stream.write_all(&[*byte]).is_err() || !self.continues() {
                    break;
                }
                thread::sleep(Duration::from_millis(300));
            }
        }
    }

    /// Keeps idle connections open.
    fn flood(&self) {
        let mut open: Vec<Option<TcpStream>> = (0..FLOOD).map(|_| None).collect();
        while self.continues() {
            for slot in &mut open {
                let alive = slot.as_ref().is_some_and(|stream| {
                    stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
                });
                if alive {
                    continue;
                }
                *slot = self.connect().filter(|stream| stream.set_nonblocking(true).is_ok());
                if slot.is_none() {
                    break;
                }
            }
        }
    }
}

impl Strangers {
    /// Attacks the port of a job of `processes` processes.
    pub(crate) fn at(port: u16, processes: u32) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let shared =
            Arc::new(Shared { address, over: AtomicBool::new(false), connected: AtomicUsize::new(0) });
        let mut threads = Vec::new();
        let mut start = |run: Box<dyn Fn(&Shared) + Send>| {
            let shared = Arc::clone(&shared);
            threads.push(thread::spawn(move || run(&shared)));
        };
        let noise: Vec<u8> = (0..500u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for bytes in [
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
            noise,
            Vec::new(),
            old_hello(1, processes),
            old_hello(1, processes + 1),
            hello(1, processes),
        ] {
            start(Box::new(move |shared| shared.send_again_and_again(&bytes)));
        }
        start(Box::new(move |shared| shared.prove_again_and_again(&hello(processes - 1, processes))));
        start(Box::new(move |shared| shared.send_slowly(&hello(1, processes))));
        start(Box::new(move |shared| shared.send_slowly(&old_hello(1, processes))));
        start(Box::new(Shared::flood));
        Self { shared, threads }
    }

    /// Returns the number of connections made so far.
    pub(crate) fn connected(&self) -> usize {
        self.shared.connected.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has stopped, too.
            let _ = thread.join();
        }
    }
}

/// Returns the hello of a process that claims to have a secret, with a made-up job and nonces.
pub(crate) fn hello(process: u32, processes: u32) -> Vec<u8> {
    let mut bytes = b"rankine4".to_vec();
    bytes.extend([process, processes, 0, 1].iter().flat_map(|number| number.to_le_bytes()));
    bytes.resize(88, 0x5a);
    bytes
}

/// Returns a hello without a proof, with which earlier versions admitted any client.
fn old_hello(process: u32, processes: u32) -> Vec<u8> {
    let mut bytes = b"rankine2".to_vec();
    bytes.extend([process, processes, 0].iter().flat_map(|number| number.to_le_bytes()));
    bytes
}
