//! Process 0's side of the rendezvous: accepts connections until all other processes have authenticated.
//!
//! The port may be open to everybody. So an unauthenticated connection gets little time and little memory, and cannot
//! make process 0 wait. Their number is limited: beyond the limit, the oldest connection of the host with the most is
//! closed. An error on one connection ends only that connection. Real processes retry.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rankine_topology::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::{MeetError, Refusal};
use super::frame::{Kind, Message, processes_to_bytes};
use super::handshake::{
    Answer, Challenge, HANDSHAKE, HELLO_BYTES, Hello, JobTag, Keys, PROOF_BYTES, Transcript, job_tag, random,
};
use super::listen::Listeners;
use super::rendezvous::{GRACE, Rendezvous};
use super::wire::Wire;

/// Most unauthenticated connections; for large jobs as many as their processes make.
const CALLERS_MAX: usize = 256;
/// Connections accepted before the existing ones are served again.
const ACCEPTED_MAX: usize = 64;
/// Longest wait between two looks at the clock.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Wait before the next attempt if no connection can be accepted.
const RETRY: Duration = Duration::from_millis(10);
/// Least time between two warnings about strangers.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The connections of all other processes, in their order, for values and for the watchdog.
pub(super) struct Connections {
    pub(super) values: Vec<Wire>,
    pub(super) watch: Vec<Wire>,
}

/// Accepts all other processes.
///
/// # Errors
/// [`MeetError::Listen`]; [`MeetError::Late`] with the missing processes.
pub(super) fn accept_all(rendezvous: &Rendezvous<'_>) -> Result<Connections, MeetError> {
    let listeners = Listeners::at(rendezvous.address, rendezvous.place.spread)?;
    announce(rendezvous, &listeners);
    let begun = Instant::now();
    let mut door = Door::new(rendezvous);
    loop {
        door.wait(&listeners.sockets);
        door.accept(&listeners.sockets);
        door.hear();
        if door.arrivals.iter().flat_map(|arrival| &arrival.lines).all(Option::is_some) {
            // The listeners are closed when this function returns: nothing connects later.
            return Ok(door.connections());
        }
        if begun.elapsed() > rendezvous.deadline {
            return Err(door.late(begun.elapsed()));
        }
    }
}

/// Logs where process 0 listens, and warns if that is open to others.
fn announce(rendezvous: &Rendezvous<'_>, listeners: &Listeners) {
    let addresses = listeners.words();
    match &listeners.everywhere {
        None => tracing::info!("process 0 listens on {addresses}"),
        Some(why) => tracing::warn!(
            "process 0 listens on {addresses}, which is all addresses of this host: {why}; set MASTER_ADDR or --meet \
             to an address of this host to listen only there"
        ),
    }
    if listeners.is_exposed() && !rendezvous.secret.is_given() {
        tracing::warn!(
            "process 0 listens on {addresses} without a secret: anyone who can reach this port can join the job. Give \
             all processes one secret with RANKINE_SECRET, or RANKINE_SECRET_FILE or --secret-file with a private \
             file; `openssl rand -hex 32` prints one"
        );
    }
}

/// A process other than 0.
#[derive(Default)]
struct Arrival {
    instance: [u8; 16],
    lines: [Option<Wire>; 2],
    /// Why a process with its number was refused last.
    refused: Option<Refusal>,
}

struct Door<'a> {
    rendezvous: &'a Rendezvous<'a>,
    job: JobTag,
    arrivals: Vec<Arrival>,
    callers: Vec<Caller>,
    strangers: WarningLimiter,
    refusals: WarningLimiter,
    troubles: WarningLimiter,
}

/// An unauthenticated connection.
struct Caller {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
    /// The bytes of the hello, and later of the proof.
    bytes: Vec<u8>,
    /// Set once the hello is complete.
    said: Option<(Hello, Challenge)>,
}

/// What is known about a caller after reading from it.
enum Identification {
    Pending,
    /// It is no process of the job, for this reason; without a reason if it disconnected.
    Stranger(Option<String>),
    Refused(Hello, Refusal),
    Member(Hello, Keys),
}

impl Caller {
    fn hear(&mut self, rendezvous: &Rendezvous<'_>) -> io::Result<Identification> {
        let wanted = if self.said.is_none() { HELLO_BYTES } else { PROOF_BYTES };
        while self.bytes.len() < wanted {
            let mut piece = [0; HELLO_BYTES];
            let room = wanted - self.bytes.len();
            match self.stream.read(&mut piece[..room]) {
                Ok(0) => return Ok(Identification::Stranger(None)),
                Ok(read) => self.bytes.extend(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let slow = self.since.elapsed() > HANDSHAKE;
                    let why = || format!("did not identify itself within {:.0} s", HANDSHAKE.as_secs_f64());
                    return Ok(if slow {
                        Identification::Stranger(Some(why()))
                    } else {
                        Identification::Pending
                    });
                }
                Err(error) => return Err(error),
            }
        }
        let bytes = std::mem::take(&mut self.bytes);
        match self.said {
            None => self.challenge(&bytes, rendezvous),
            Some((hello, challenge)) => self.check(&bytes, hello, &challenge, rendezvous),
        }
    }

    /// Answers a hello.
    fn challenge(&mut self, bytes: &[u8], rendezvous: &Rendezvous<'_>) -> io::Result<Identification> {
        let Some(hello) = bytes.try_into().ok().and_then(Hello::read) else {
            let why = "is not a process of this version of Rankine".to_owned();
            return Ok(Identification::Stranger(Some(why)));
        };
        let challenge = Challenge { secret: rendezvous.secret.is_given(), nonce: random()? };
        // A new connection has buffer space for it; otherwise it is closed.
        self.stream.write_all(&challenge.to_bytes())?;
        self.said = Some((hello, challenge));
        match (hello.secret, challenge.secret) {
            (true, false) => Ok(Identification::Refused(hello, Refusal::FirstHasNoSecret)),
            (false, true) => Ok(Identification::Refused(hello, Refusal::ProcessHasNoSecret)),
            _ => Ok(Identification::Pending),
        }
    }

    /// Checks a proof.
    fn check(
        &mut self,
        bytes: &[u8],
        hello: Hello,
        challenge: &Challenge,
        rendezvous: &Rendezvous<'_>,
    ) -> io::Result<Identification> {
        let transcript = Transcript::new(rendezvous.secret, &hello, challenge);
        if bytes.try_into().is_ok_and(|proof| transcript.is_proof(proof)) {
            return Ok(Identification::Member(hello, transcript.keys()));
        }
        self.stream.write_all(&transcript.answer(Answer::WrongSecret))?;
        Ok(Identification::Refused(hello, Refusal::WrongSecret))
    }
}

impl<'a> Door<'a> {
    fn new(rendezvous: &'a Rendezvous<'a>) -> Self {
        let arrivals = (1..rendezvous.place.processes).map(|_| Arrival::default()).collect();
        let job = job_tag(rendezvous.place.job.as_deref());
        let [strangers, refusals, troubles] = std::array::from_fn(|_| WarningLimiter::default());
        Self { rendezvous, job, arrivals, callers: Vec::new(), strangers, refusals, troubles }
    }

    /// Waits a short time for something to read.
    fn wait(&self, listeners: &[TcpListener]) {
        let polled = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let listeners = listeners.iter().map(AsFd::as_fd);
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        let mut all: Vec<_> = listeners.chain(callers).map(polled).collect();
        // A signal interrupts it; then all callers are read.
        let _ = poll(&mut all, Some(&PAUSE));
    }

    fn accept(&mut self, listeners: &[TcpListener]) {
        for listener in listeners {
            for _ in 0..ACCEPTED_MAX {
                match listener.accept() {
                    Ok((stream, from)) => {
                        if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                            let (since, bytes) = (Instant::now(), Vec::new());
                            self.callers.push(Caller { stream, from, since, bytes, said: None });
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // The connection was reset before it was accepted.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                    Err(error) => {
                        // Most likely too many files are open; a closed connection frees one.
                        self.troubles.warn(&format!("process 0 cannot accept a connection: {error}"));
                        self.drop_one();
                        std::thread::sleep(RETRY);
                        break;
                    }
                }
            }
        }
    }

    /// Reads from all callers, and then closes those above the limit.
    fn hear(&mut self) {
        for mut caller in std::mem::take(&mut self.callers) {
            let from = caller.from;
            match caller.hear(self.rendezvous) {
                Ok(Identification::Pending) => self.callers.push(caller),
                Ok(Identification::Member(hello, keys)) => self.answer(caller, hello, &keys),
                Ok(Identification::Refused(hello, refusal)) => self.refuse(from, hello, refusal),
                Ok(Identification::Stranger(Some(why))) => {
                    self.strangers.warn(&format!("a connection from {from} {why}; it was closed"));
                }
                Ok(Identification::Stranger(None)) | Err(_) => {
                    tracing::debug!("a connection from {from} ended")
                }
            }
        }
        while self.callers.len() > CALLERS_MAX.max(2 * self.rendezvous.place.processes) {
            self.drop_one();
        }
    }

    /// Closes a caller: of the host with the most, one that has sent nothing, or else the oldest.
    fn drop_one(&mut self) {
        let mut hosts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for caller in &self.callers {
            *hosts.entry(caller.from.ip()).or_default() += 1;
        }
        let order = |caller: &Caller| {
            let of_host = hosts.get(&caller.from.ip()).copied().unwrap_or(0);
            (std::cmp::Reverse(of_host), caller.said.is_some(), caller.since)
        };
        let Some(index) = (0..self.callers.len()).min_by_key(|&index| order(&self.callers[index])) else {
            return;
        };
        let from = self.callers.remove(index).from;
        self.strangers.warn(&format!(
            "too many connections to the rendezvous port: closed one from {from} that had not identified itself"
        ));
    }

    /// Answers a caller that knows the secret, and registers it if it is a process of this job.
    fn answer(&mut self, caller: Caller, hello: Hello, keys: &Keys) {
        let Caller { mut stream, from, said: Some((_, challenge)), .. } = caller else { return };
        let rendezvous = self.rendezvous;
        let transcript = Transcript::new(rendezvous.secret, &hello, &challenge);
        let answer = self.judge(&hello);
        let told = stream.write_all(&transcript.answer(answer));
        if let Some(refusal) = Refusal::of(answer) {
            self.refuse(from, hello, refusal);
        } else if told.is_ok() {
            let arrival = &mut self.arrivals[hello.process.0 - 1];
            if arrival.instance != hello.instance {
                *arrival = Arrival { instance: hello.instance, ..Arrival::default() };
            }
            arrival.lines[hello.line as usize] = Some(Wire::of_first(stream, keys));
            tracing::debug!("process {} connected from {from} ({:?})", hello.process, hello.line);
        }
    }

    fn judge(&self, hello: &Hello) -> Answer {
        let processes = self.rendezvous.place.processes;
        if hello.job != self.job {
            return Answer::OtherJob;
        }
        if hello.processes != processes {
            return Answer::OtherCount(processes as u32);
        }
        let Some(arrival) = hello.process.0.checked_sub(1).and_then(|index| self.arrivals.get(index)) else {
            return Answer::NumberTaken;
        };
        // A process that connects again has lost its connection; one that has ended is replaced by the next one.
        let gives_way =
            arrival.instance == hello.instance || arrival.lines.iter().flatten().any(Wire::is_over);
        match gives_way || arrival.lines.iter().all(Option::is_none) {
            true => Answer::Welcome,
            false => Answer::NumberTaken,
        }
    }

    fn refuse(&mut self, from: SocketAddr, hello: Hello, refusal: Refusal) {
        self.refusals.warn(&format!(
            "a process at {from}, which connected as process {} of {}, was refused: {refusal}",
            hello.process, hello.processes
        ));
        if let Some(arrival) = hello.process.0.checked_sub(1).and_then(|index| self.arrivals.get_mut(index)) {
            arrival.refused = Some(refusal);
        }
    }

    fn connections(self) -> Connections {
        let lines = self.arrivals.into_iter().filter_map(|arrival| {
            let [values, watch] = arrival.lines;
            values.zip(watch)
        });
        let (values, watch) = lines.unzip();
        Connections { values, watch }
    }

    /// Tells the connected processes which ones are missing.
    fn late(mut self, waited: Duration) -> MeetError {
        let is_late = |arrival: &Arrival| arrival.lines.iter().any(Option::is_none);
        let late: Vec<_> = (1..self.rendezvous.place.processes)
            .filter(|process| is_late(&self.arrivals[process - 1]))
            .map(Process)
            .collect();
        let message = Message { kind: Kind::Late, round: 1, bytes: processes_to_bytes(&late) };
        for wire in self.arrivals.iter_mut().filter_map(|arrival| arrival.lines[0].as_mut()) {
            // Errors are ignored: it may have ended.
            let _ = wire.block(GRACE).and_then(|()| wire.send(&message));
        }
        let refused = late.iter().find_map(|&process| Some((process, self.arrivals[process.0 - 1].refused?)));
        let refused = refused.map(|(process, refusal)| {
            format!("a process that connected as process {process} was refused: {refusal}")
        });
        MeetError::Late { late, seconds: waited.as_secs_f64(), refused }
    }
}

/// Warnings of one kind that strangers can cause: rate limited.
#[derive(Default)]
struct WarningLimiter {
    last: Option<Instant>,
    left_out: u64,
}

impl WarningLimiter {
    fn warn(&mut self, words: &str) {
        if self.last.is_some_and(|last| last.elapsed() < LOG_PAUSE) {
            self.left_out += 1;
            return;
        }
        match std::mem::take(&mut self.left_out) {
            0 => tracing::warn!("{words}"),
            1 => tracing::warn!("{words} (1 similar warning was suppressed)"),
            left_out => tracing::warn!("{words} ({left_out} similar warnings were suppressed)"),
        }
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::handshake::Line;
    use crate::process_place::ProcessPlace;
    use crate::secret::Secret;
    use crate::wire;

    fn address() -> Address {
        Address { host: "127.0.0.1".into(), port: 1 }
    }

    fn place() -> ProcessPlace {
        ProcessPlace { processes: 3, ..ProcessPlace::alone() }
    }

    fn rendezvous<'a>(place: &'a ProcessPlace, address: &'a Address, secret: &'a Secret) -> Rendezvous<'a> {
        Rendezvous { place, address, secret, deadline: Duration::from_secs(1) }
    }

    /// A connection that came some time ago from a host, and its other end.
    fn caller(ago: Duration, host: [u8; 4], said: bool) -> (Caller, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        let hello = Hello {
            process: Process(1),
            processes: 3,
            line: Line::Values,
            secret: false,
            job: [0; 16],
            instance: [0; 16],
            nonce: [0; 32],
        };
        let said = said.then_some((hello, Challenge { secret: false, nonce: [0; 32] }));
        let since = Instant::now() - ago;
        (Caller { stream, from: (host, 7).into(), since, bytes: Vec::new(), said }, other)
    }

    #[test]
    fn whoever_says_nothing_for_five_seconds_is_a_stranger() {
        let (address, secret) = (address(), Secret::none());
        for (seconds, pending) in [(4, true), (6, false)] {
            let (mut caller, mut other) = caller(Duration::from_secs(seconds), [127, 0, 0, 1], false);
            // A part of a hello is nothing.
            other.write_all(&[0; HELLO_BYTES - 1]).unwrap();
            let heard =
                std::iter::repeat_with(|| caller.hear(&rendezvous(&place(), &address, &secret)).unwrap());
            let heard =
                heard.take(100).inspect(|_| std::thread::sleep(Duration::from_millis(1))).last().unwrap();
            match heard {
                Identification::Pending => assert!(pending, "{seconds} s"),
                Identification::Stranger(Some(why)) => {
                    assert!(!pending && why == "did not identify itself within 5 s", "{seconds} s: {why}");
                }
                _ => panic!("a silent caller is heard"),
            }
        }
    }

    #[test]
    fn of_too_many_callers_one_of_the_busiest_host_goes_first_that_said_nothing_longest() {
        let (address, secret) = (address(), Secret::none());
        let place = place();
        let rendezvous = rendezvous(&place, &address, &secret);
        let mut door = Door::new(&rendezvous);
        let (busy, quiet) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let callers =
            [(9, quiet, false), (8, busy, true), (5, busy, false), (7, busy, false), (6, busy, true)];
        let (callers, _others): (Vec<_>, Vec<_>) = callers
            .into_iter()
            .map(|(seconds, host, said)| caller(Duration::from_secs(seconds), host, said))
            .unzip();
        let since: Vec<_> = callers.iter().map(|caller| caller.since).collect();
        door.callers = callers;
        let mut left = Vec::new();
        while !door.callers.is_empty() {
            let before: Vec<_> = door.callers.iter().map(|caller| caller.since).collect();
            door.drop_one();
            let gone =
                before.into_iter().find(|since| door.callers.iter().all(|caller| caller.since != *since));
            left.push(since.iter().position(|since| Some(*since) == gone).unwrap());
        }
        // The quiet host's caller goes when the busy host, too, has one left: it has said nothing.
        assert_eq!(left, [3, 2, 1, 0, 4]);
        door.drop_one();
    }

    #[test]
    fn a_number_is_for_one_process_that_lives() {
        let (address, secret) = (address(), Secret::none());
        let place = place();
        let rendezvous = rendezvous(&place, &address, &secret);
        let mut door = Door::new(&rendezvous);
        let hello = |process, instance| {
            let (line, job) = (Line::Values, job_tag(None));
            Hello {
                process,
                processes: 3,
                line,
                secret: false,
                job,
                instance: [instance; 16],
                nonce: [0; 32],
            }
        };
        assert_eq!([1, 2].map(|number| door.judge(&hello(Process(number), 1))), [Answer::Welcome; 2]);
        assert_eq!([0, 3].map(|number| door.judge(&hello(Process(number), 1))), [Answer::NumberTaken; 2]);
        assert_eq!(door.judge(&Hello { processes: 4, ..hello(Process(1), 1) }), Answer::OtherCount(3));
        assert_eq!(door.judge(&Hello { job: job_tag(Some("7")), ..hello(Process(1), 1) }), Answer::OtherJob);
        let [first, other] = wire::pair();
        door.arrivals[1] = Arrival { instance: [5; 16], lines: [Some(first), None], refused: None };
        assert_eq!(
            [4, 5].map(|instance| door.judge(&hello(Process(2), instance))),
            [Answer::NumberTaken, Answer::Welcome]
        );
        drop(other);
        assert_eq!(door.judge(&hello(Process(2), 4)), Answer::Welcome);
    }
}
