//! The other processes' side of the rendezvous: each tries until process 0 accepts or refuses it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::address::Address;
use super::error::{MeetError, Refusal};
use super::handshake::{
    ANSWER_BYTES, Answer, CHALLENGE_BYTES, Challenge, HANDSHAKE, Hello, Line, Transcript, job_tag, random,
};
use super::rendezvous::Rendezvous;
use super::wire::Wire;

/// Before the second attempt; later waits double.
const RETRY_MIN: Duration = Duration::from_millis(25);
/// The longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_millis(500);
/// Time limit for one of several addresses.
const CONNECT: Duration = Duration::from_secs(5);
/// How long refusals by something that does not authenticate as process 0 are retried: a stranger may listen there for
/// a moment.
const DOUBT: Duration = Duration::from_secs(3);

/// Why an attempt failed.
enum Miss {
    Io(io::Error),
    Refused { refusal: Refusal, proven: bool },
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Connects to process 0, one connection after the other.
///
/// # Errors
/// [`MeetError::Unreached`], and [`MeetError::Refused`] if process 0 refuses this process.
pub(super) fn reach_first(rendezvous: &Rendezvous<'_>) -> Result<[Wire; 2], MeetError> {
    let Rendezvous { place: own, address, .. } = *rendezvous;
    let (process, processes) = (own.process, own.processes);
    let (begun, instance) = (Instant::now(), random().map_err(MeetError::Random)?);
    let mut refused: Option<(Instant, Refusal)> = None;
    let mut reach = |line| {
        let mut pause = RETRY_MIN;
        loop {
            let nonce = random().map_err(MeetError::Random)?;
            let (secret, job) = (rendezvous.secret.is_given(), job_tag(own.job.as_deref()));
            let hello = Hello { process, processes, line, secret, job, instance, nonce };
            let remaining = rendezvous.deadline.saturating_sub(begun.elapsed());
            let why = match attempt(rendezvous, &hello, remaining.max(RETRY_MAX)) {
                Ok(wire) => return Ok(wire),
                Err(Miss::Io(error)) => error.to_string(),
                Err(Miss::Refused { refusal, proven }) => {
                    if refused.is_none() && !proven {
                        tracing::warn!(
                            "process 0 at {address} refuses this process: {refusal}; trying again"
                        );
                    }
                    let since = refused.map_or_else(Instant::now, |(since, _)| since);
                    refused = Some((since, refusal));
                    if proven || since.elapsed() > DOUBT {
                        return Err(MeetError::Refused { process, address: address.clone(), refusal });
                    }
                    refusal.to_string()
                }
            };
            if begun.elapsed() > rendezvous.deadline {
                // Process 0 may have ended since; its refusal says more than that.
                if let Some((_, refusal)) = refused {
                    return Err(MeetError::Refused { process, address: address.clone(), refusal });
                }
                let seconds = begun.elapsed().as_secs_f64();
                return Err(MeetError::Unreached { process, address: address.clone(), seconds, why });
            }
            // Processes that start at the same time should not retry at the same time.
            let [share] = random().unwrap_or([0]);
            thread::sleep(pause.mul_f64(1.0 + f64::from(share) / 256.0));
            pause = (2 * pause).min(RETRY_MAX / 2);
        }
    };
    let [values, watch] = Line::ALL;
    Ok([reach(values)?, reach(watch)?])
}

/// Connects, and authenticates.
fn attempt(rendezvous: &Rendezvous<'_>, hello: &Hello, time: Duration) -> Result<Wire, Miss> {
    let mut stream = connect(rendezvous.address, time)?;
    stream.set_nodelay(true)?;
    let until = Instant::now() + HANDSHAKE.min(time);
    let secret = rendezvous.secret;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    stream.write_all(&hello.to_bytes())?;
    let mut challenge = [0; CHALLENGE_BYTES];
    read_until(&mut stream, &mut challenge, until)?;
    let challenge = Challenge::read(&challenge).ok_or_else(foreign)?;
    let refusal = match (hello.secret, challenge.secret) {
        (true, false) => Some(Refusal::FirstHasNoSecret),
        (false, true) => Some(Refusal::ProcessHasNoSecret),
        _ => None,
    };
    if let Some(refusal) = refusal {
        return Err(Miss::Refused { refusal, proven: false });
    }
    let transcript = Transcript::new(secret, hello, &challenge);
    stream.write_all(transcript.proof().as_bytes()).map_err(|_| closed())?;
    let mut answer = [0; ANSWER_BYTES];
    read_until(&mut stream, &mut answer, until)?;
    let (answer, proven) = transcript.read_answer(&answer).ok_or_else(foreign)?;
    match Refusal::of(answer) {
        Some(refusal) => Err(Miss::Refused { refusal, proven }),
        None if proven && answer == Answer::Welcome => Ok(Wire::of_other(stream, &transcript.keys())),
        None => Err(Miss::Refused { refusal: Refusal::Unproven, proven: false }),
    }
}

/// The other side is not process 0.
fn foreign() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the program that listens there is not this version of Rankine")
}

fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection without an answer")
}

/// Fills `bytes` before the deadline, however slowly they arrive.
fn read_until(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let late = || io::Error::new(ErrorKind::TimedOut, "it accepts the connection but does not answer");
        let remaining = until.checked_duration_since(Instant::now()).filter(|remaining| !remaining.is_zero());
        stream.set_read_timeout(Some(remaining.ok_or_else(late)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(closed()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(closed()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects to the first address of a host that can be reached.
fn connect(address: &Address, time: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    let addresses: Vec<SocketAddr> = (address.host.as_str(), address.port).to_socket_addrs()?.collect();
    let time = if addresses.len() > 1 { time.min(CONNECT) } else { time };
    for address in addresses {
        match TcpStream::connect_timeout(&address, time) {
            // A connection to an ephemeral port without a listener may connect to itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                last = ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
