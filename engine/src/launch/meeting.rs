//! Where processes hand each other small values, over TCP: all of them to rank 0, and from there to all.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::address::Address;
use super::error::MeetError;
use super::frame::{
    HELLO_BYTES, Inbox, Kind, Line, Message, VALUE_BYTES_MAX, hello, join, ranks_of_bytes, ranks_to_bytes,
    read_hello, split,
};
use super::seat::Seat;

/// Between two looks at whether something has come.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two attempts to reach rank 0, which may start later.
const RETRY: Duration = Duration::from_millis(100);
/// How much longer than rank 0 the others wait: it says who is missing.
const GRACE: Duration = Duration::from_secs(2);
/// How long one may be silent who has connected.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes that one rank hands to rank 0 alone, at most.
pub(super) const COLLECTED_BYTES_MAX: usize = 1 << 29;

/// A process's place where all hand each other values. Processes make the same calls in the same order.
#[derive(Debug)]
pub struct Meeting {
    rank: usize,
    ranks: usize,
    deadline: Duration,
    round: u64,
    role: Role,
    watch: WatchLines,
}

/// What the watch over the processes goes over: of rank 0 a connection to each other one, of others one to rank 0.
pub(super) type WatchLines = Vec<TcpStream>;

#[derive(Debug)]
enum Role {
    /// Rank 0, with its connections to all others in the order of ranks. None where it is alone.
    First(Vec<TcpStream>),
    Other(TcpStream),
    /// Something has failed: rounds could be mixed up after that, so there are none.
    Failed,
}

impl Meeting {
    /// Meets the other processes, and waits for all of them as long as `deadline`; so does each later exchange.
    ///
    /// # Errors
    /// Where rank 0 cannot listen or is not reached, and where ranks do not come in time.
    pub fn join(seat: &Seat, deadline: Duration) -> Result<Self, MeetError> {
        let Seat { rank, ranks, .. } = *seat;
        let (role, watch) = match &seat.meet {
            None => (Role::First(Vec::new()), Vec::new()),
            Some(address) if rank == 0 => {
                let (values, watch) = accept_all(address, ranks, deadline)?;
                (Role::First(values), watch)
            }
            Some(address) => {
                let [values, watch] = Line::ALL.map(|line| reach(address, (rank, ranks, line), deadline));
                (Role::Other(values?), vec![watch?])
            }
        };
        let mut meeting = Self { rank, ranks, deadline, round: 0, role, watch };
        // Whoever comes through here knows that all have come.
        meeting.gather(&[])?;
        Ok(meeting)
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// All processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// What the watch over the processes goes over; it can be had once.
    pub(super) fn take_watch_lines(&mut self) -> WatchLines {
        std::mem::take(&mut self.watch)
    }

    /// Waits for others without end from now on: somebody else sees to it that they come.
    pub(super) fn wait_without_end(&mut self) {
        self.deadline = Duration::from_secs(u64::from(u32::MAX));
    }

    /// Hands a value of at most [`COLLECTED_BYTES_MAX`] to rank 0, which gets those of all other ranks, in their order;
    /// the others get none.
    ///
    /// # Errors
    /// As [`Meeting::gather`].
    pub(super) fn collect(&mut self, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        self.round += 1;
        let outcome = match &self.role {
            Role::First(others) => self.receive_all(others, COLLECTED_BYTES_MAX),
            Role::Other(first) => {
                let message = Message { kind: Kind::Values, round: self.round, bytes: value.to_vec() };
                let sent = blocking(first, self.deadline).and_then(|()| message.send(first));
                sent.map(|()| Vec::new()).map_err(|_| MeetError::Left { left: vec![0] })
            }
            Role::Failed => Err(MeetError::after_failure()),
        };
        if outcome.is_err() {
            self.role = Role::Failed;
        }
        outcome
    }

    /// Hands out a value of at most a MiB, and returns those of all ranks, in their order.
    ///
    /// # Errors
    /// Where ranks do not come in time or have ended, who they are; then the meeting is over. Where the value is too
    /// long.
    pub fn gather(&mut self, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        if value.len() > VALUE_BYTES_MAX {
            let most = VALUE_BYTES_MAX;
            return Err(MeetError::Stray(format!(
                "a value of {} bytes: at most {most} are handed out",
                value.len()
            )));
        }
        self.round += 1;
        let outcome = match &self.role {
            Role::First(others) => self.answer_all(others, value),
            Role::Other(first) => self.hand_in(first, value),
            Role::Failed => Err(MeetError::after_failure()),
        };
        if outcome.is_err() {
            self.role = Role::Failed;
        }
        outcome
    }

    /// Rank 0's part.
    fn answer_all(&self, others: &[TcpStream], value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let outcome = self.receive_all(others, VALUE_BYTES_MAX);
        let (kind, bytes) = match &outcome {
            Ok(values) => {
                let mut all = vec![value.to_vec()];
                all.extend_from_slice(values);
                (Kind::Values, join(&all))
            }
            Err(MeetError::Late { late, .. }) => (Kind::Late, ranks_to_bytes(late)),
            Err(MeetError::Left { left }) => (Kind::Left, ranks_to_bytes(left)),
            Err(error) => (Kind::Stray, error.to_string().into_bytes()),
        };
        let message = Message { kind, round: self.round, bytes };
        let mut left = Vec::new();
        for (place, stream) in others.iter().enumerate() {
            if blocking(stream, self.deadline).and_then(|()| message.send(stream)).is_err() {
                left.push(place + 1);
            }
        }
        let values = outcome?;
        if !left.is_empty() {
            return Err(MeetError::Left { left });
        }
        Ok([value.to_vec()].into_iter().chain(values).collect())
    }

    /// The others' values.
    fn receive_all(&self, others: &[TcpStream], bytes_max: usize) -> Result<Vec<Vec<u8>>, MeetError> {
        let begun = Instant::now();
        let mut inboxes: Vec<_> = others.iter().map(|_| Inbox::default()).collect();
        let mut values: Vec<Option<Vec<u8>>> = vec![None; others.len()];
        loop {
            for (place, stream) in others.iter().enumerate() {
                if values[place].is_some() {
                    continue;
                }
                let rank = place + 1;
                stream.set_nonblocking(true).map_err(|_| MeetError::Left { left: vec![rank] })?;
                match inboxes[place].read(stream, bytes_max) {
                    Ok(None) => {}
                    Ok(Some(Message { kind: Kind::Values, round, bytes })) if round == self.round => {
                        values[place] = Some(bytes);
                    }
                    Ok(Some(_)) => return Err(stray(rank)),
                    Err(error) if error.kind() == ErrorKind::InvalidData => return Err(stray(rank)),
                    Err(_) => return Err(MeetError::Left { left: vec![rank] }),
                }
            }
            let late: Vec<_> =
                (0..others.len()).filter(|&place| values[place].is_none()).map(|at| at + 1).collect();
            if late.is_empty() {
                return Ok(values.into_iter().flatten().collect());
            }
            if begun.elapsed() > self.deadline {
                return Err(MeetError::Late { late, seconds: begun.elapsed().as_secs_f64() });
            }
            thread::sleep(PAUSE);
        }
    }

    /// The part of any other rank.
    fn hand_in(&self, first: &TcpStream, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let gone = |_| MeetError::Left { left: vec![0] };
        blocking(first, self.deadline + GRACE).map_err(gone)?;
        let message = Message { kind: Kind::Values, round: self.round, bytes: value.to_vec() };
        // Rank 0 may have said why it ended before it did.
        let sent = message.send(first);
        let begun = Instant::now();
        let answer = Inbox::default().read(first, self.ranks * (VALUE_BYTES_MAX + 4));
        let seconds = begun.elapsed().as_secs_f64();
        match answer {
            Ok(Some(Message { kind: Kind::Late, bytes, .. })) => {
                Err(MeetError::Late { late: ranks_of_bytes(&bytes), seconds })
            }
            Ok(Some(Message { kind: Kind::Left, bytes, .. })) => {
                Err(MeetError::Left { left: ranks_of_bytes(&bytes) })
            }
            Ok(Some(Message { kind: Kind::Stray, bytes, .. })) => {
                Err(MeetError::Stray(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Ok(Some(Message { kind: Kind::Values, round, bytes })) if round == self.round => {
                sent.map_err(gone)?;
                split(&bytes, self.ranks).ok_or_else(|| stray(0))
            }
            Ok(Some(_)) => Err(stray(0)),
            Ok(None) => Err(MeetError::Late { late: vec![0], seconds }),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(stray(0)),
            Err(_) => Err(MeetError::Left { left: vec![0] }),
        }
    }
}

fn stray(rank: usize) -> MeetError {
    MeetError::Stray(format!(
        "rank {rank} sends what does not belong here: do all processes run the same Rankine with the same arguments?"
    ))
}

/// Reading and writing wait, so long.
fn blocking(stream: &TcpStream, time: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(time))?;
    stream.set_write_timeout(Some(time))
}

/// Of each other rank, a connection of each kind.
type Come = Vec<[Option<TcpStream>; 2]>;

/// Rank 0: listens until all others have come. Returns their connections for values, and those for the watch.
fn accept_all(
    address: &Address,
    ranks: usize,
    deadline: Duration,
) -> Result<(Vec<TcpStream>, WatchLines), MeetError> {
    // On all of the host's networks: the name may be one that only others resolve to it.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port)))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|source| MeetError::Listen { address: address.clone(), source })?;
    let begun = Instant::now();
    let mut come: Come = (1..ranks).map(|_| [None, None]).collect();
    let mut silent: Vec<(TcpStream, Instant)> = Vec::new();
    loop {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                silent.push((stream, Instant::now()));
            }
        }
        for (stream, since) in std::mem::take(&mut silent) {
            let mut bytes = [0; HELLO_BYTES];
            match stream.peek(&mut bytes) {
                Ok(HELLO_BYTES) => seat(&stream, &bytes, ranks, &mut come)?,
                Ok(0) => {}
                Ok(_) if since.elapsed() < SILENCE => silent.push((stream, since)),
                Err(error) if error.kind() == ErrorKind::WouldBlock && since.elapsed() < SILENCE => {
                    silent.push((stream, since));
                }
                // Whoever says nothing, or something else, is no rank: the port is open to all.
                _ => {}
            }
        }
        if come.iter().flatten().all(Option::is_some) {
            let lines = come.into_iter().filter_map(|[values, watch]| values.zip(watch));
            return Ok(lines.unzip());
        }
        if begun.elapsed() > deadline {
            let late: Vec<_> = (1..ranks).filter(|rank| come[rank - 1].iter().any(Option::is_none)).collect();
            let message = Message { kind: Kind::Late, round: 1, bytes: ranks_to_bytes(&late) };
            for stream in come.iter().filter_map(|lines| lines[0].as_ref()) {
                // Whoever is gone need not know.
                let _ = blocking(stream, GRACE).and_then(|()| message.send(stream));
            }
            return Err(MeetError::Late { late, seconds: begun.elapsed().as_secs_f64() });
        }
        thread::sleep(PAUSE);
    }
}

/// Seats one who has said hello, if it is a rank.
fn seat(
    stream: &TcpStream,
    bytes: &[u8; HELLO_BYTES],
    ranks: usize,
    come: &mut Come,
) -> Result<(), MeetError> {
    let Some((rank, of, line)) = read_hello(bytes) else { return Ok(()) };
    let line = line as usize;
    let _ = blocking(stream, GRACE);
    let mut taken = [0; HELLO_BYTES];
    let complaint = match io::Read::read_exact(&mut &*stream, &mut taken) {
        Err(_) => return Ok(()),
        Ok(()) if of != ranks => Some(format!(
            "a process came as rank {rank} of {of}, and rank 0 is one of {ranks}: two jobs meet at the same address, \
             or launchers tell them different things"
        )),
        Ok(()) if rank == 0 || rank >= ranks || come[rank - 1][line].is_some() => Some(format!(
            "two processes came as rank {rank}: two jobs meet at the same address, or launchers tell them the same \
             rank"
        )),
        Ok(()) => None,
    };
    if let Some(complaint) = complaint {
        let message = Message { kind: Kind::Stray, round: 1, bytes: complaint.clone().into_bytes() };
        for stream in come.iter().filter_map(|lines| lines[0].as_ref()).chain([stream]) {
            // Whoever is gone need not know.
            let _ = blocking(stream, GRACE).and_then(|()| message.send(stream));
        }
        return Err(MeetError::Stray(complaint));
    }
    come[rank - 1][line] = stream.try_clone().ok();
    Ok(())
}

/// Any other rank: tries until rank 0 answers.
fn reach(
    address: &Address,
    (rank, ranks, line): (usize, usize, Line),
    deadline: Duration,
) -> Result<TcpStream, MeetError> {
    let begun = Instant::now();
    loop {
        let connected =
            connect(address, deadline.saturating_sub(begun.elapsed()).max(RETRY)).and_then(|stream| {
                stream.set_nodelay(true)?;
                blocking(&stream, deadline)?;
                io::Write::write_all(&mut &stream, &hello(rank, ranks, line))?;
                Ok(stream)
            });
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > deadline => {
                let seconds = begun.elapsed().as_secs_f64();
                let why = error.to_string();
                return Err(MeetError::Unreached { rank, address: address.clone(), seconds, why });
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Connects to the first of a host's addresses that can be reached.
fn connect(address: &Address, time: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (address.host.as_str(), address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
