//! The processes of a job, as one of them sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::activity::{Activity, Phase, Stage};
use super::error::MeetError;
use super::meeting::{Meeting, WatchLines};
use super::member::Member;
use super::seat::Seat;
use super::secret::Secret;
use super::watch::{Failure, Patience, Watch};

/// On which terms processes meet.
#[derive(Debug, Clone)]
pub struct Terms {
    /// What they prove to each other that they know.
    pub secret: Secret,
    /// How long to wait for all of them.
    pub deadline: Duration,
    /// How long the watch over them waits.
    pub patience: Patience,
}

/// The processes of a job, and this one's place among them. Clones are the same.
///
/// What all must call, all call in the same order; they wait for each other without end, since the watch over them ends
/// all when one is lost.
#[derive(Debug, Clone)]
pub struct ProcessGroup(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: usize,
    members: Vec<Member>,
    /// None where there is but one.
    meeting: Option<Mutex<Meeting>>,
    /// None where nobody watches over the only one.
    watch: Option<Watch>,
}

impl ProcessGroup {
    /// One process, which waits for nobody, and over which nobody watches.
    pub fn alone() -> Self {
        Self(Arc::new(Inner { rank: 0, members: Vec::new(), meeting: None, watch: None }))
    }

    /// One process with a watch over it: where it makes no progress for as long as the patience for a standstill, the
    /// watch calls `end` on a thread of its own, which is to end the process.
    ///
    /// # Errors
    /// Where there is no thread for the watch.
    pub fn watched_alone(
        patience: Patience,
        end: impl FnOnce(&Failure, &Activity) + Send + 'static,
    ) -> Result<Self, MeetError> {
        let watch = watch(0, Vec::new(), patience, end)?;
        Ok(Self(Arc::new(Inner { rank: 0, members: Vec::new(), meeting: None, watch: Some(watch) })))
    }

    /// Meets the other processes, and watches over them from then on. Where one of them is lost, and this one does not
    /// come to [`ProcessGroup::fail`] within some seconds, the watch calls `end` on a thread of its own, which is to
    /// end the process.
    ///
    /// # Errors
    /// Where ranks do not come before the deadline, where rank 0 refuses this process, and where ranks are of another
    /// version.
    pub fn form(
        seat: &Seat,
        here: Member,
        Terms { secret, deadline, patience }: &Terms,
        end: impl FnOnce(&Failure, &Activity) + Send + 'static,
    ) -> Result<Self, MeetError> {
        let mut meeting = Meeting::join(seat, secret, *deadline)?;
        let members = here.introduce(&mut meeting)?;
        if seat.ranks == 1 {
            return Ok(Self(Arc::new(Inner { rank: 0, members, meeting: None, watch: None })));
        }
        let watch = watch(seat.rank, meeting.take_watch_lines(), *patience, end)?;
        meeting.wait_without_end();
        let meeting = Some(Mutex::new(meeting));
        Ok(Self(Arc::new(Inner { rank: seat.rank, members, meeting, watch: Some(watch) })))
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// All processes.
    pub fn size(&self) -> usize {
        self.0.members.len().max(1)
    }

    /// Whether this is the first process, which writes and tells.
    pub fn is_first(&self) -> bool {
        self.0.rank == 0
    }

    /// Who they are, in the order of ranks. Of one that was made by [`ProcessGroup::alone`] nothing is known.
    pub fn members(&self) -> &[Member] {
        &self.0.members
    }

    /// Hands out a value of at most a MiB, and returns those of all processes, in their order. `what` says what is
    /// waited for.
    ///
    /// # Errors
    /// Where a process has ended.
    pub fn gather(&self, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        self.meet(what, |meeting| meeting.gather(value)).unwrap_or_else(|| Ok(vec![value.to_vec()]))
    }

    /// The value of the first process, which all others get.
    ///
    /// # Errors
    /// As [`ProcessGroup::gather`].
    pub fn of_first(&self, what: &str, value: &[u8]) -> Result<Vec<u8>, MeetError> {
        let own = if self.is_first() { value } else { &[] };
        Ok(self.gather(what, own)?.swap_remove(0))
    }

    /// Hands a value, of 512 MiB at most, to the first process, which gets those of all others; the others get none.
    ///
    /// # Errors
    /// As [`ProcessGroup::gather`].
    pub fn collect(&self, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        self.meet(what, |meeting| meeting.collect(value)).unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Waits for all others.
    ///
    /// # Errors
    /// As [`ProcessGroup::gather`].
    pub fn wait(&self, what: &str) -> Result<(), MeetError> {
        self.gather(what, &[]).map(drop)
    }

    fn meet<V>(
        &self,
        what: &str,
        run: impl FnOnce(&mut Meeting) -> Result<V, MeetError>,
    ) -> Option<Result<V, MeetError>> {
        let meeting = self.0.meeting.as_ref()?;
        self.tell(|activity| activity.waits_for = Some(what.to_owned()));
        let outcome = run(&mut meeting.lock().unwrap_or_else(PoisonError::into_inner));
        if outcome.is_ok() {
            self.tell(|activity| activity.waits_for = None);
        }
        Some(outcome)
    }

    /// Says what this process does, and that it does something.
    pub fn does(&self, phase: Phase, step: u64) {
        self.is_at(phase, step, Stage::Working);
    }

    /// The same, with what it is at there.
    pub fn is_at(&self, phase: Phase, step: u64, stage: Stage) {
        self.tell(|activity| (activity.phase, activity.step, activity.stage) = (phase, step, stage));
    }

    fn tell(&self, change: impl FnOnce(&mut Activity)) {
        if let Some(watch) = &self.0.watch {
            watch.does(change);
        }
    }

    /// Whether a watch ends what makes no progress.
    pub fn is_watched(&self) -> bool {
        self.0.watch.is_some()
    }

    /// What is called, on another thread, when a rank is lost: it has those come back who wait for that rank, if they
    /// wait for anything but a value.
    pub fn when_lost(&self, release: impl Fn() + Send + 'static) {
        if let Some(watch) = &self.0.watch {
            watch.when_lost(release);
        }
    }

    /// Tells the others that this process ends, and why; `follows` where it only missed another one. Returns what
    /// happened to another rank, where that is what all end for.
    pub fn fail(&self, words: &str, follows: bool) -> Option<Failure> {
        self.0.meeting.as_ref()?;
        let watch = self.0.watch.as_ref()?;
        let verdict = watch.fail(self.rank(), words, follows);
        (verdict.rank != self.rank()).then_some(verdict)
    }

    /// Tells the others that there is nothing more to do here.
    pub fn finish(&self) {
        if let Some(watch) = &self.0.watch {
            watch.finish();
        }
    }
}

fn watch(
    rank: usize,
    lines: WatchLines,
    patience: Patience,
    end: impl FnOnce(&Failure, &Activity) + Send + 'static,
) -> Result<Watch, MeetError> {
    let watch = Watch::start(rank, lines, patience, Box::new(end));
    watch.map_err(|error| MeetError::Stray(format!("the processes cannot be watched: {error}")))
}
