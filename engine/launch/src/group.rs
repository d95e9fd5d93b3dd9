//! The processes of a job, as one of them sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rankine_topology::Process;

use super::activity::{Activity, RunStage, StepStage};
use super::error::MeetError;
use super::meeting::{Meeting, WatchLines};
use super::process_info::ProcessInfo;
use super::process_place::ProcessPlace;
use super::pulse::Pulse;
use super::secret::Secret;
use super::watch::{Failure, Patience, Watch};

/// The terms on which processes meet.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The secret that they prove to each other.
    pub secret: Secret,
    /// How long to wait for all of them.
    pub deadline: Duration,
    /// The time limits of the watchdog.
    pub patience: Patience,
}

/// The processes of a job, and which of them this one is. Clones share the group.
///
/// All processes make collective calls in the same order. The calls wait for each other without a time limit, since
/// the watchdog ends all processes when one is lost.
#[derive(Debug, Clone)]
pub struct ProcessGroup(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    process: Process,
    members: Vec<ProcessInfo>,
    /// `None` for a single process.
    meeting: Option<Mutex<Meeting>>,
    /// `None` for a single process without a watchdog.
    watch: Option<Watch>,
}

impl ProcessGroup {
    /// A single process without a watchdog.
    pub fn alone() -> Self {
        Self(Arc::new(Inner { process: Process(0), members: Vec::new(), meeting: None, watch: None }))
    }

    /// A single process with a watchdog: if it makes no progress for as long as the standstill limit, the watchdog
    /// calls `end` on its own thread, which must end the process.
    ///
    /// # Errors
    /// If the watchdog's thread cannot be started.
    pub fn watched_alone(
        patience: Patience,
        end: impl FnOnce(&Failure, &Activity) + Send + 'static,
    ) -> Result<Self, MeetError> {
        let (process, watch) = (Process(0), watch(Process(0), Vec::new(), patience, end)?);
        Ok(Self(Arc::new(Inner { process, members: Vec::new(), meeting: None, watch: Some(watch) })))
    }

    /// Meets the other processes, and watches over them from then on. If one of them is lost, and this one does not
    /// call [`ProcessGroup::fail`] within some seconds, the watchdog calls `end` on its own thread, which must end
    /// the process.
    ///
    /// # Errors
    /// If processes are not present before the deadline, if process 0 refuses this process, or if a process runs
    /// another version.
    pub fn form(
        place: &ProcessPlace,
        here: ProcessInfo,
        Terms { secret, deadline, patience }: &Terms,
        end: impl FnOnce(&Failure, &Activity) + Send + 'static,
    ) -> Result<Self, MeetError> {
        let mut meeting = Meeting::join(place, secret, *deadline)?;
        let members = here.introduce(&mut meeting)?;
        if place.processes == 1 {
            return Ok(Self(Arc::new(Inner { process: place.process, members, meeting: None, watch: None })));
        }
        let watch = watch(place.process, meeting.take_watch_lines(), *patience, end)?;
        meeting.wait_without_end();
        let meeting = Some(Mutex::new(meeting));
        Ok(Self(Arc::new(Inner { process: place.process, members, meeting, watch: Some(watch) })))
    }

    /// This process.
    pub fn process(&self) -> Process {
        self.0.process
    }

    /// All processes.
    pub fn size(&self) -> usize {
        self.0.members.len().max(1)
    }

    /// Whether this is the first process, which writes and prints.
    pub fn is_first(&self) -> bool {
        self.0.process == Process(0)
    }

    /// The members, in their order. Empty for a group made by [`ProcessGroup::alone`].
    pub fn members(&self) -> &[ProcessInfo] {
        &self.0.members
    }

    /// Sends a value of at most 1 MiB to all processes, and returns the values of all, in their order. `what` names
    /// the value in errors.
    ///
    /// # Errors
    /// If a process has ended.
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

    /// Sends a value of at most 512 MiB to the first process, which gets those of all others; the others get none.
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

    /// Reports what this process does, and that it makes progress.
    pub fn does(&self, stage: RunStage, step: u64) {
        self.is_at(stage, step, StepStage::Working);
    }

    /// The same, with the stage within it.
    pub fn is_at(&self, stage: RunStage, step: u64, in_step: StepStage) {
        self.tell(|activity| (activity.stage, activity.step, activity.in_step) = (stage, step, in_step));
    }

    /// Reports that the trained model is saved.
    pub fn has_saved_model(&self) {
        self.tell(|activity| activity.model_saved = true);
    }

    fn tell(&self, change: impl FnOnce(&mut Activity)) {
        if let Some(watch) = &self.0.watch {
            watch.does(change);
        }
    }

    /// What this process does and whether it makes progress, as its watchdog sees it; `None` without a watchdog.
    pub fn pulse(&self) -> Option<Pulse> {
        self.0.watch.as_ref().map(|watch| watch.pulse(self.process()))
    }

    /// The same for each process that is known to this one, in their order: on the first one, for all.
    pub fn pulses(&self) -> Vec<Pulse> {
        let others = self.0.watch.iter().flat_map(Watch::pulses_of_others);
        let mut pulses: Vec<_> = self.pulse().into_iter().chain(others).collect();
        pulses.sort_by_key(|pulse| pulse.process);
        pulses
    }

    /// Whether a watchdog ends a process without progress.
    pub fn is_watched(&self) -> bool {
        self.0.watch.is_some()
    }

    /// Sets a function that the watchdog calls, on its thread, when a process is lost: it must release threads that
    /// wait for that process other than in a call of this group.
    pub fn when_lost(&self, release: impl Fn() + Send + 'static) {
        if let Some(watch) = &self.0.watch {
            watch.when_lost(release);
        }
    }

    /// Reports to the others that this process fails, and why; `follows` if it only waited for another one. Returns
    /// the failure of the other process, if that is the reason why all end.
    pub fn fail(&self, words: &str, follows: bool) -> Option<Failure> {
        self.0.meeting.as_ref()?;
        let watch = self.0.watch.as_ref()?;
        let verdict = watch.fail(self.process(), words, follows);
        (verdict.process != self.process()).then_some(verdict)
    }

    /// Reports to the others that this process is complete.
    pub fn finish(&self) {
        if let Some(watch) = &self.0.watch {
            watch.finish();
        }
    }
}

fn watch(
    process: Process,
    lines: WatchLines,
    patience: Patience,
    end: impl FnOnce(&Failure, &Activity) + Send + 'static,
) -> Result<Watch, MeetError> {
    let watch = Watch::start(process, lines, patience, Box::new(end));
    watch.map_err(MeetError::Watch)
}
