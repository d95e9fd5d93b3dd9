//! Exchange of small values over TCP: from all processes to process 0, and from there to all.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rankine_topology::Process;

use super::door::{Connections, accept_all};
use super::error::MeetError;
use super::frame::{Kind, Message, VALUE_BYTES_MAX, join, processes_of_bytes, processes_to_bytes, split};
use super::process_place::ProcessPlace;
use super::reach::reach_first;
use super::rendezvous::{GRACE, Rendezvous};
use super::secret::Secret;
use super::wire::{self, Wire};

/// The process that the others connect to.
const FIRST: Process = Process(0);
/// Longest time between two looks at the clock.
const PAUSE: Duration = Duration::from_millis(100);
/// Most bytes of a value that a process sends only to process 0.
pub(super) const COLLECTED_BYTES_MAX: usize = 1 << 29;

/// A process's end of the exchange. Processes make the same calls in the same order.
#[derive(Debug)]
pub struct Meeting {
    process: Process,
    processes: usize,
    deadline: Duration,
    round: u64,
    role: Role,
    watch: WatchLines,
}

/// The connections of the watchdog: on process 0 one to each other process, on others one to process 0.
pub(super) type WatchLines = Vec<Wire>;

#[derive(Debug)]
enum Role {
    /// Process 0, with its connections to all others, in their order; `None` for a single process.
    First(Vec<Wire>),
    Other(Wire),
    /// Failed: later rounds could be mixed up, so there are none.
    Failed,
}

impl Meeting {
    /// Meets the other processes, and waits for all of them at most `deadline`; each later exchange has the same
    /// limit.
    ///
    /// # Errors
    /// If process 0 cannot listen, is not reached or refuses this process, and if processes are missing at the
    /// deadline.
    pub fn join(place: &ProcessPlace, secret: &Secret, deadline: Duration) -> Result<Self, MeetError> {
        let (process, processes) = (place.process, place.processes);
        let rendezvous = |address| Rendezvous { place, address, secret, deadline };
        let (role, watch) = match &place.meet {
            None => (Role::First(Vec::new()), Vec::new()),
            Some(address) if process == Process(0) => {
                let Connections { values, watch } = accept_all(&rendezvous(address))?;
                (Role::First(values), watch)
            }
            Some(address) => {
                let [values, watch] = reach_first(&rendezvous(address))?;
                (Role::Other(values), vec![watch])
            }
        };
        let mut meeting = Self { process, processes, deadline, round: 0, role, watch };
        // After this, all processes are known to be connected.
        meeting.gather(&[])?;
        Ok(meeting)
    }

    /// This process.
    pub fn process(&self) -> Process {
        self.process
    }

    /// All processes.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// The connections of the watchdog; can be taken once.
    pub(super) fn take_watch_lines(&mut self) -> WatchLines {
        std::mem::take(&mut self.watch)
    }

    /// Removes the time limit: the watchdog ends waiting from now on.
    pub(super) fn wait_without_end(&mut self) {
        self.deadline = Duration::from_secs(u64::from(u32::MAX));
    }

    /// Sends a value of at most [`COLLECTED_BYTES_MAX`] to process 0, which gets those of all other processes, in
    /// their order; the others get none.
    ///
    /// # Errors
    /// As [`Meeting::gather`].
    pub(super) fn collect(&mut self, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        self.round += 1;
        self.attempt(|meeting, role| match role {
            Role::First(others) => meeting.receive_all(others, COLLECTED_BYTES_MAX),
            Role::Other(first) => {
                let message = Message { kind: Kind::Values, round: meeting.round, bytes: value.to_vec() };
                let sent = first.block(meeting.deadline).and_then(|()| first.send(&message));
                sent.map(|()| Vec::new()).map_err(|_| MeetError::Left { left: vec![FIRST] })
            }
            Role::Failed => Err(MeetError::AfterFailure),
        })
    }

    /// Sends a value of at most 1 MiB to all processes, and returns those of all, in their order.
    ///
    /// # Errors
    /// If processes are late or have ended, with their numbers; no later exchange succeeds. If the value is too long.
    pub fn gather(&mut self, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(MeetError::TooLong { bytes: value.len(), most: VALUE_BYTES_MAX });
        }
        self.round += 1;
        self.attempt(|meeting, role| match role {
            Role::First(others) => meeting.answer_all(others, value),
            Role::Other(first) => meeting.hand_in(first, value),
            Role::Failed => Err(MeetError::AfterFailure),
        })
    }

    /// Runs a round; after an error there are no more.
    fn attempt<V>(
        &mut self,
        run: impl FnOnce(&Self, &mut Role) -> Result<V, MeetError>,
    ) -> Result<V, MeetError> {
        let mut role = std::mem::replace(&mut self.role, Role::Failed);
        let value = run(self, &mut role)?;
        self.role = role;
        Ok(value)
    }

    /// Process 0's part.
    fn answer_all(&self, others: &mut [Wire], value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let outcome = self.receive_all(others, VALUE_BYTES_MAX);
        let (kind, bytes) = match &outcome {
            Ok(values) => {
                let mut all = vec![value.to_vec()];
                all.extend_from_slice(values);
                (Kind::Values, join(&all))
            }
            Err(MeetError::Late { late, .. }) => (Kind::Late, processes_to_bytes(late)),
            Err(MeetError::Left { left }) => (Kind::Left, processes_to_bytes(left)),
            Err(error) => (Kind::Stray, error.to_string().into_bytes()),
        };
        let message = Message { kind, round: self.round, bytes };
        let mut left = Vec::new();
        for (index, wire) in others.iter_mut().enumerate() {
            if wire.block(self.deadline).and_then(|()| wire.send(&message)).is_err() {
                left.push(Process(index + 1));
            }
        }
        let values = outcome?;
        if !left.is_empty() {
            return Err(MeetError::Left { left });
        }
        Ok([value.to_vec()].into_iter().chain(values).collect())
    }

    /// The values of the others.
    fn receive_all(&self, others: &mut [Wire], bytes_max: usize) -> Result<Vec<Vec<u8>>, MeetError> {
        let begun = Instant::now();
        let mut values: Vec<Option<Vec<u8>>> = vec![None; others.len()];
        loop {
            for (index, wire) in others.iter_mut().enumerate() {
                if values[index].is_some() {
                    continue;
                }
                let process = Process(index + 1);
                wire.unblock().map_err(|_| MeetError::Left { left: vec![process] })?;
                match wire.read(bytes_max) {
                    Ok(None) => {}
                    Ok(Some(Message { kind: Kind::Values, round, bytes })) if round == self.round => {
                        values[index] = Some(bytes);
                    }
                    Ok(Some(_)) => return Err(MeetError::Stray(process)),
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        return Err(MeetError::Stray(process));
                    }
                    Err(_) => return Err(MeetError::Left { left: vec![process] }),
                }
            }
            let late: Vec<_> = (0..others.len())
                .filter(|&index| values[index].is_none())
                .map(|at| Process(at + 1))
                .collect();
            if late.is_empty() {
                return Ok(values.into_iter().flatten().collect());
            }
            if begun.elapsed() > self.deadline {
                return Err(MeetError::Late { late, seconds: begun.elapsed().as_secs_f64(), refused: None });
            }
            wire::wait(late.iter().map(|process| &others[process.0 - 1]), PAUSE);
        }
    }

    /// The part of any other process.
    fn hand_in(&self, first: &mut Wire, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let gone = |_| MeetError::Left { left: vec![FIRST] };
        first.block(self.deadline + GRACE).map_err(gone)?;
        let message = Message { kind: Kind::Values, round: self.round, bytes: value.to_vec() };
        // Process 0 may have sent the reason before it ended.
        let sent = first.send(&message);
        let begun = Instant::now();
        let answer = first.read(self.processes * (VALUE_BYTES_MAX + 4));
        let seconds = begun.elapsed().as_secs_f64();
        match answer {
            Ok(Some(Message { kind: Kind::Late, bytes, .. })) => {
                Err(MeetError::Late { late: processes_of_bytes(&bytes), seconds, refused: None })
            }
            Ok(Some(Message { kind: Kind::Left, bytes, .. })) => {
                Err(MeetError::Left { left: processes_of_bytes(&bytes) })
            }
            Ok(Some(Message { kind: Kind::Stray, bytes, .. })) => {
                Err(MeetError::Ended { words: String::from_utf8_lossy(&bytes).into_owned() })
            }
            Ok(Some(Message { kind: Kind::Values, round, bytes })) if round == self.round => {
                sent.map_err(gone)?;
                split(&bytes, self.processes).ok_or(MeetError::Stray(FIRST))
            }
            Ok(Some(_)) => Err(MeetError::Stray(FIRST)),
            Ok(None) => Err(MeetError::Late { late: vec![FIRST], seconds, refused: None }),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(MeetError::Stray(FIRST)),
            Err(_) => Err(MeetError::Left { left: vec![FIRST] }),
        }
    }
}
