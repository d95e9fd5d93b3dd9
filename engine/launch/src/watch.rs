//! The watchdog of a job's processes: each reports to process 0 that it is alive and what it does, and process 0 tells
//! all when one of them has failed, ended, fallen silent, or makes no progress.
//!
//! It is a thread of each process. When a process is lost, the thread gives threads that wait for that process a short
//! time to return and report where they waited; then it ends its own process. So a job ends everywhere, whatever its
//! threads wait for.

use std::fmt;
use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rankine_topology::Process;
use serde::{Deserialize, Serialize};

use super::activity::{Activity, RunStage};
use super::frame::{Kind, Message};
use super::meeting::WatchLines;
use super::pulse::Pulse;
use super::wire::Wire;

/// Longest time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Time between two checks of the connections.
const PAUSE: Duration = Duration::from_millis(50);
/// A pause of this length means that the process was stopped (SIGSTOP, Ctrl-Z, `scontrol suspend`) or its machine
/// suspended. Nothing could happen meanwhile, so all time limits start again.
const SUSPENDED: Duration = Duration::from_secs(1);

/// The time limits of the watchdog.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a sign of life.
    pub silence: Duration,
    /// For progress of a process whose work has small steps.
    pub standstill: Duration,
    /// For the cause, when a process only reports that it waited for another one.
    pub grace: Duration,
}

impl Patience {
    /// Barriers on the GPUs give up after 30 s with a better message, so this is longer; a job still ends within a
    /// minute.
    pub const USUAL: Self = Self {
        silence: Duration::from_secs(40),
        standstill: Duration::from_secs(45),
        grace: Duration::from_secs(3),
    };
    /// For a single process.
    pub const ALONE: Self = Self { standstill: Duration::from_secs(300), ..Self::USUAL };

    /// Interval of the signs of life: several before a process is considered silent.
    fn beat(self) -> Duration {
        BEAT.min(self.silence.min(self.standstill) / 4)
    }
}

/// How long a process has to end by itself.
const LAST: Duration = Duration::from_secs(8);
/// Most bytes of a message.
pub(super) const BYTES_MAX: usize = 1 << 16;

/// Why all processes of a job end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    /// The process that is lost.
    pub process: Process,
    /// What happened to it, and what it was doing.
    pub words: String,
    /// Whether it only waited for another process.
    pub(super) follows: bool,
}

/// Ends this process, which was in this activity when another one was lost.
pub(super) type End = Box<dyn FnOnce(&Failure, &Activity) + Send>;

/// Releases threads that wait for a lost process.
#[derive(Default)]
struct Release(Option<Box<dyn Fn() + Send>>);

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}

/// A process's handle of the watchdog. Call [`Watch::finish`] before dropping it, to tell the others that it is
/// complete.
#[derive(Debug)]
pub(super) struct Watch {
    patience: Patience,
    shared: Arc<SharedState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct SharedState {
    state: Mutex<State>,
    changed: Condvar,
}

/// State shared by the watchdog's thread and the other threads of the process.
#[derive(Debug, Default)]
struct State {
    activity: Activity,
    /// When this process made progress last, as far as the thread has noticed.
    moved: Option<Instant>,
    /// The processes that report to this one.
    others: Vec<Other>,
    /// Why this process fails, until it is sent.
    report: Option<Failure>,
    verdict: Option<Failure>,
    /// Releases the waiting threads of the process.
    release: Release,
    /// Whether the process itself reports why it ends.
    ends_itself: bool,
    done: bool,
}

/// Another process, as of its last report.
#[derive(Debug)]
struct Other {
    process: Process,
    activity: Activity,
    moved: Instant,
    heard: Instant,
}

impl Watch {
    pub(super) fn start(
        process: Process,
        lines: WatchLines,
        patience: Patience,
        end: End,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(SharedState::default());
        let others = if process == Process(0) { 1 } else { 0 };
        let line = |(index, wire)| Line::new(Process(index + others), wire);
        let lines = lines.into_iter().enumerate().map(line).collect::<std::io::Result<_>>()?;
        let watcher = Watcher::new(process, patience, Arc::clone(&shared), lines);
        let thread = thread::Builder::new().name("rankine-watch".into()).spawn(|| watcher.run(end))?;
        Ok(Self { patience, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Reports what this process does, and that it makes progress.
    pub(super) fn does(&self, change: impl FnOnce(&mut Activity)) {
        let activity = &mut self.shared.state().activity;
        change(activity);
        activity.signs += 1;
    }

    /// Returns what this process does, and whether it makes progress.
    pub(super) fn pulse(&self, process: Process) -> Pulse {
        let state = self.shared.state();
        Pulse {
            process,
            activity: state.activity.clone(),
            still: state.moved.map_or(Duration::ZERO, |moved| moved.elapsed()),
            silent: Duration::ZERO,
            limit: self.patience.standstill,
        }
    }

    /// Returns the same of the processes that report to this one: to process 0 all do, and process 0 to the others.
    pub(super) fn pulses_of_others(&self) -> Vec<Pulse> {
        let pulse = |other: &Other| Pulse {
            process: other.process,
            activity: other.activity.clone(),
            still: other.moved.elapsed(),
            silent: other.heard.elapsed(),
            limit: self.patience.standstill,
        };
        self.shared.state().others.iter().map(pulse).collect()
    }

    /// Sets a function that is called, on the watchdog's thread, when a process is lost: it must release threads that
    /// wait for it.
    pub(super) fn when_lost(&self, release: impl Fn() + Send + 'static) {
        self.shared.state().release = Release(Some(Box::new(release)));
    }

    /// Reports to all others that this process fails, and why; returns the reason why all end, which may be an
    /// earlier failure of another process.
    pub(super) fn fail(&self, process: Process, words: &str, follows: bool) -> Failure {
        let mut state = self.shared.state();
        let failure = Failure { follows, ..lost(process, "failed", &state.activity, words) };
        state.ends_itself = true;
        state.report = Some(failure.clone());
        let begun = Instant::now();
        while state.verdict.is_none() && begun.elapsed() < 2 * self.patience.grace {
            let waited = self.shared.changed.wait_timeout(state, PAUSE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.verdict.clone().unwrap_or(failure)
    }

    /// Reports to all others that this process is complete.
    pub(super) fn finish(&self) {
        self.shared.state().done = true;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It sends nothing more.
            let _ = thread.join();
        }
    }
}

impl SharedState {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent after each change, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the thread.
struct Watcher {
    process: Process,
    patience: Patience,
    shared: Arc<SharedState>,
    lines: Vec<Line>,
    /// On process 0: the failure, and when it became known.
    found: Vec<(Failure, Instant)>,
    /// When this process sent its last sign of life, at which stage, and whether it waited for others.
    told: Option<(Instant, (RunStage, bool))>,
    progress: Progress,
    /// The time of the last check. All time limits are measured between checks, so that a suspension of this thread is
    /// noticed before it counts against any process.
    now: Instant,
}

/// What the watchdog does after a check.
enum Decision {
    /// Nothing is wrong.
    GoOn,
    /// This process is complete.
    Done,
    /// All processes end.
    End(Failure),
}

/// What a process does, and since when.
struct Progress {
    activity: Activity,
    /// When it made progress last.
    moved: Instant,
}

/// A connection, and the process at its other end.
struct Line {
    process: Process,
    wire: Wire,
    heard: Instant,
    progress: Progress,
    /// Nothing more is expected from it.
    over: bool,
}

impl Progress {
    fn new(now: Instant) -> Self {
        Self { activity: Activity::default(), moved: now }
    }

    fn update(&mut self, activity: Activity, now: Instant) {
        if activity.signs != self.activity.signs {
            self.moved = now;
        }
        self.activity = activity;
    }

    fn stands_still(&self, patience: Patience, now: Instant) -> bool {
        // A process that waits for others is not the one that hangs.
        let works = self.activity.stage.goes_by_small_steps() && self.activity.waits_for.is_none();
        works && now.duration_since(self.moved) > patience.standstill
    }
}

impl Line {
    fn new(process: Process, wire: Wire) -> std::io::Result<Self> {
        wire.unblock()?;
        let now = Instant::now();
        Ok(Self { process, wire, heard: now, progress: Progress::new(now), over: false })
    }

    /// Reads messages; returns the failure, if there is one.
    fn read(&mut self, patience: Patience, now: Instant) -> Option<Failure> {
        while !self.over {
            match self.wire.read(BYTES_MAX) {
                Ok(None) => break,
                Ok(Some(Message { kind: Kind::Alive, bytes, .. })) => {
                    self.heard = now;
                    if let Ok(activity) = serde_json::from_slice(&bytes) {
                        self.progress.update(activity, now);
                    }
                }
                Ok(Some(Message { kind: Kind::Failed, bytes, .. })) => {
                    self.over = true;
                    return serde_json::from_slice(&bytes).ok();
                }
                Ok(Some(Message { kind: Kind::Done, .. })) => self.over = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Some(_)) | Err(_) => {
                    self.over = true;
                    return Some(self.lost(
                        "ended without an error message",
                        "was it killed? The system log lists processes that were killed for memory",
                    ));
                }
            }
        }
        let silent = !self.over && now.duration_since(self.heard) > patience.silence;
        silent.then(|| {
            self.over = true;
            let what = format!("has been silent for {:.0} s", patience.silence.as_secs_f64());
            self.lost(&what, "its process is stopped, or its host hangs or cannot be reached")
        })
    }

    fn other(&self) -> Other {
        let Progress { activity, moved } = &self.progress;
        Other { process: self.process, activity: activity.clone(), moved: *moved, heard: self.heard }
    }

    fn lost(&self, what: &str, why: &str) -> Failure {
        lost(self.process, what, &self.progress.activity, why)
    }

    fn send(&mut self, kind: Kind, value: &impl Serialize) {
        // A connection that has not taken the last messages gets no further signs of life.
        if kind == Kind::Alive && (self.over || self.wire.flush().is_err()) {
            return;
        }
        let bytes = serde_json::to_vec(value).unwrap_or_default();
        // Small messages, of which the connection takes many; a closed connection is noticed by reading.
        let _ = self.wire.send(&Message { kind, round: 0, bytes });
    }
}

fn lost(process: Process, what: &str, activity: &Activity, why: &str) -> Failure {
    Failure { process, words: format!("process {process} {what} {activity}: {why}"), follows: false }
}

impl Watcher {
    fn new(process: Process, patience: Patience, shared: Arc<SharedState>, lines: Vec<Line>) -> Self {
        let now = Instant::now();
        Self {
            process,
            patience,
            shared,
            lines,
            found: Vec::new(),
            told: None,
            progress: Progress::new(now),
            now,
        }
    }

    fn run(mut self, end: End) {
        loop {
            match self.check(Instant::now()) {
                Decision::GoOn => thread::sleep(PAUSE),
                Decision::Done => return,
                Decision::End(verdict) => return self.end(&verdict, end),
            }
        }
    }

    /// Sends this process's activity to the others, and reads theirs.
    fn check(&mut self, now: Instant) -> Decision {
        if now.duration_since(self.now) > SUSPENDED {
            self.begin_periods(now);
        }
        self.now = now;
        let (report, done) = {
            let mut state = self.shared.state();
            self.progress.update(state.activity.clone(), now);
            state.moved = Some(self.progress.moved);
            state.others = self.lines.iter().map(Line::other).collect();
            (state.report.take(), state.done)
        };
        if let Some(report) = report {
            self.report(report);
        }
        let beat = self.patience.beat();
        let state = (self.progress.activity.stage, self.progress.activity.waits_for.is_some());
        if self.told.is_none_or(|(told, before)| now.duration_since(told) > beat || before != state) {
            self.told = Some((now, state));
            for line in &mut self.lines {
                line.send(Kind::Alive, &self.progress.activity);
            }
        }
        if let Some(verdict) = self.failure() {
            return Decision::End(verdict);
        }
        if done {
            self.lines.iter_mut().for_each(|line| line.send(Kind::Done, &()));
            return Decision::Done;
        }
        Decision::GoOn
    }

    /// Restarts all time limits. A process that was suspended by itself is still found, by those that were not.
    fn begin_periods(&mut self, now: Instant) {
        self.progress.moved = now;
        for line in &mut self.lines {
            (line.heard, line.progress.moved) = (now, now);
        }
    }

    /// A failure of this process goes to process 0, which knows of other failures.
    fn report(&mut self, report: Failure) {
        match self.process {
            Process(0) => self.found.push((report, self.now)),
            _ => self.lines.iter_mut().for_each(|line| line.send(Kind::Failed, &report)),
        }
    }

    /// Checks all other processes; returns why all end, once that is known.
    fn failure(&mut self) -> Option<Failure> {
        let (patience, now) = (self.patience, self.now);
        let read = |line: &mut Line| Some((line.read(patience, now)?, now));
        let found: Vec<_> = self.lines.iter_mut().filter_map(read).collect();
        if self.process != Process(0) {
            return found.into_iter().next().map(|(failure, _)| failure);
        }
        self.found.extend(found);
        if self.found.is_empty() {
            self.found.extend(self.at_a_standstill().map(|failure| (failure, now)));
        }
        // A cause goes before its consequences, which may arrive earlier.
        let first = self.found.iter().find(|(failure, _)| !failure.follows);
        let late = |since: Instant| now.duration_since(since) > patience.grace;
        let first = first.or_else(|| self.found.first().filter(|(_, since)| late(*since)));
        let verdict = first.map(|(failure, _)| failure.clone())?;
        self.lines.iter_mut().for_each(|line| line.send(Kind::Failed, &verdict));
        Some(verdict)
    }

    /// The process without progress for the longest time, if that is too long.
    fn at_a_standstill(&self) -> Option<Failure> {
        let others = self.lines.iter().filter(|line| !line.over).map(|line| (line.process, &line.progress));
        let all = others.chain([(self.process, &self.progress)]);
        let still = all.filter(|(_, progress)| progress.stands_still(self.patience, self.now));
        let (process, progress) = still.min_by_key(|(_, progress)| progress.moved)?;
        let what = format!("has made no progress for {:.0} s", self.patience.standstill.as_secs_f64());
        let cause = "the process hangs, or waits for a file or device that does not respond";
        Some(lost(process, &what, &progress.activity, cause))
    }

    fn end(&self, verdict: &Failure, end: End) {
        {
            let mut state = self.shared.state();
            state.verdict = Some(verdict.clone());
            if let Release(Some(release)) = &state.release {
                release();
            }
        }
        self.shared.changed.notify_all();
        let begun = Instant::now();
        while begun.elapsed() < self.patience.grace && !self.shared.state().ends_itself {
            thread::sleep(PAUSE);
        }
        if self.shared.state().ends_itself {
            // A process must not wait for a GPU when it exits.
            thread::sleep(LAST);
        }
        end(verdict, &self.progress.activity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::pair;

    const PATIENCE: Patience = Patience {
        silence: Duration::from_secs(40),
        standstill: Duration::from_secs(300),
        grace: Duration::from_secs(3),
    };

    /// The watch of process 0 over itself and a process that says nothing, and the time of its making.
    fn watcher(processes: usize) -> (Watcher, Vec<Wire>, Instant) {
        let connect = |process| {
            let [first, other] = pair();
            (Line::new(process, first).unwrap(), other)
        };
        let (lines, others) = (1..processes).map(Process).map(connect).unzip();
        let watcher = Watcher::new(Process(0), PATIENCE, Arc::default(), lines);
        watcher.shared.state().activity.stage = RunStage::Training;
        let now = watcher.now;
        (watcher, others, now)
    }

    /// Checks every 50 ms from one time to another, both in seconds; returns when the job ends, and why.
    fn checks(watcher: &mut Watcher, start: Instant, from: f64, to: f64) -> Option<(f64, String)> {
        let checks = ((to - from) / PAUSE.as_secs_f64()) as u32;
        (0..=checks).find_map(|check| {
            let seconds = from + f64::from(check) * PAUSE.as_secs_f64();
            match watcher.check(start + Duration::from_secs_f64(seconds)) {
                Decision::End(failure) => Some((seconds, failure.words)),
                Decision::GoOn | Decision::Done => None,
            }
        })
    }

    #[test]
    fn a_process_tells_that_it_lives_several_times_before_it_is_missed() {
        let patience = |silence, standstill| Patience {
            silence: Duration::from_millis(silence),
            standstill: Duration::from_millis(standstill),
            ..Patience::USUAL
        };
        let beats = [(40_000, 45_000), (2000, 45_000), (40_000, 400)].map(|(a, b)| patience(a, b).beat());
        assert_eq!(beats, [1000, 500, 100].map(Duration::from_millis));
    }

    /// Sends what another process does.
    fn tells(other: &mut Wire, stage: RunStage, step: u64, waits: bool) {
        let waits_for = waits.then(|| "all".to_owned());
        let activity = Activity { stage, step, waits_for, signs: step, ..Activity::default() };
        let bytes = serde_json::to_vec(&activity).unwrap();
        other.send(&Message { kind: Kind::Alive, round: 0, bytes }).unwrap();
    }

    #[test]
    fn the_one_that_stands_still_is_named_and_not_those_that_wait_or_prepare() {
        let (mut watcher, mut others, start) = watcher(4);
        watcher.patience.silence = Duration::from_secs(1000);
        watcher.shared.state().activity.waits_for = Some("all".into());
        // All of them tell once what they do: wait, prepare, train.
        tells(&mut others[0], RunStage::Training, 5, true);
        tells(&mut others[1], RunStage::Preparing, 6, false);
        tells(&mut others[2], RunStage::Training, 7, false);
        let (seconds, words) = checks(&mut watcher, start, 0.0, 400.0).expect("the hang is found");
        assert!((300.0..300.5).contains(&seconds), "{seconds}");
        assert!(
            words.starts_with("process 3 has made no progress for 300 s in training, at step 7: "),
            "{words}"
        );
    }

    #[test]
    fn who_has_told_its_end_is_not_missed() {
        let (mut watcher, mut others, start) = watcher(2);
        watcher.shared.state().activity.waits_for = Some("all".into());
        others[0].send(&Message { kind: Kind::Done, round: 0, bytes: b"null".to_vec() }).unwrap();
        assert_eq!(checks(&mut watcher, start, 0.0, 100.0), None);
    }

    #[test]
    fn who_only_misses_another_one_waits_for_what_happened_to_that_one() {
        let fails = |other: &mut Wire, process, follows| {
            let failure = Failure { process, words: format!("process {process} failed"), follows };
            let bytes = serde_json::to_vec(&failure).unwrap();
            other.send(&Message { kind: Kind::Failed, round: 0, bytes }).unwrap();
        };
        let (mut watcher, mut others, start) = watcher(3);
        fails(&mut others[0], Process(1), true);
        assert_eq!(checks(&mut watcher, start, 0.0, 2.0), None);
        fails(&mut others[1], Process(2), false);
        assert_eq!(checks(&mut watcher, start, 2.0, 4.0), Some((2.0, "process 2 failed".into())));
        // Nothing has happened to any other one: then that is why all end, after 3 s of grace.
        let (mut watcher, mut others, start) = self::watcher(3);
        fails(&mut others[0], Process(1), true);
        let (seconds, words) = checks(&mut watcher, start, 0.0, 10.0).expect("all end");
        assert!((3.0..3.2).contains(&seconds) && words == "process 1 failed", "{seconds}: {words}");
    }

    #[test]
    fn a_suspended_process_gets_a_new_period_and_a_hang_is_still_found() {
        let (mut watcher, _, start) = watcher(1);
        assert_eq!(checks(&mut watcher, start, 0.0, 299.0), None);
        // Stopped for an hour, a second before the period is over.
        assert_eq!(checks(&mut watcher, start, 3899.0, 4198.0), None);
        let (seconds, words) = checks(&mut watcher, start, 4198.0, 4300.0).expect("the hang is found");
        assert!((4199.0..4200.0).contains(&seconds), "{seconds}");
        assert!(words.contains("process 0 has made no progress for 300 s"), "{words}");
    }

    #[test]
    fn a_suspended_job_does_not_miss_the_others_and_one_suspended_process_is_missed() {
        let (mut watcher, _others, start) = watcher(3);
        assert_eq!(checks(&mut watcher, start, 0.0, 39.0), None);
        assert_eq!(checks(&mut watcher, start, 1039.0, 1078.0), None);
        let (seconds, words) = checks(&mut watcher, start, 1078.0, 1100.0).expect("the silence is found");
        assert!((1079.0..1080.0).contains(&seconds), "{seconds}");
        assert!(words.contains("has been silent for 40 s"), "{words}");
    }

    fn send(other: &mut Wire, kind: Kind, value: &impl Serialize) {
        let bytes = serde_json::to_vec(value).unwrap();
        other.send(&Message { kind, round: 0, bytes }).unwrap();
    }

    fn failed(process: Process, follows: bool) -> Failure {
        Failure { process, words: format!("process {process} failed"), follows }
    }

    /// A process that only misses another one gets no verdict while that one may still report.
    #[test]
    fn the_cause_goes_before_what_follows_from_it() {
        let (mut watcher, mut others, start) = watcher(3);
        send(&mut others[0], Kind::Failed, &failed(Process(1), true));
        assert_eq!(checks(&mut watcher, start, 0.0, 2.0), None);
        send(&mut others[1], Kind::Failed, &failed(Process(2), false));
        let (_, words) = checks(&mut watcher, start, 2.0, 2.5).expect("all is known");
        assert_eq!(words, "process 2 failed");
    }

    #[test]
    fn what_follows_from_nothing_known_is_told_after_the_grace() {
        let (mut watcher, mut others, start) = watcher(3);
        send(&mut others[0], Kind::Failed, &failed(Process(1), true));
        let (seconds, words) = checks(&mut watcher, start, 0.0, 10.0).expect("the failure is reported");
        assert!((3.0..3.2).contains(&seconds) && words == "process 1 failed", "{seconds}: {words}");
        // A failure that does not follow from another one is reported at once.
        let [first, mut other] = pair();
        let lines = vec![Line::new(Process(0), first).unwrap()];
        let mut watcher = Watcher::new(Process(1), PATIENCE, Arc::default(), lines);
        let start = watcher.now;
        send(&mut other, Kind::Failed, &failed(Process(2), false));
        let (seconds, words) = checks(&mut watcher, start, 0.0, 1.0).expect("the failure is reported");
        assert!(seconds < 0.2 && words == "process 2 failed", "{seconds}: {words}");
    }

    /// Only a process that goes by small steps and waits for nobody can stand still; of several, the longest one
    /// counts.
    #[test]
    fn whoever_waits_or_prepares_is_not_at_a_standstill() {
        let (mut alone, _, start) = watcher(1);
        alone.shared.state().activity.stage = RunStage::Preparing;
        assert_eq!(checks(&mut alone, start, 0.0, 400.0), None);
        alone.shared.state().activity.stage = RunStage::Training;
        alone.shared.state().activity.waits_for = Some("the dataset".to_owned());
        assert_eq!(checks(&mut alone, start, 400.0, 800.0), None);
        alone.shared.state().activity.waits_for = None;
        assert!(checks(&mut alone, start, 800.0, 800.1).is_some());

        let (mut watcher, mut others, start) = watcher(2);
        let mut activity = Activity { stage: RunStage::Training, signs: 1, ..Activity::default() };
        for seconds in (0..300).step_by(10).map(f64::from) {
            // Process 1 lives, and does something for 100 s; process 0 for 200 s.
            activity.signs += u64::from(seconds < 100.0);
            watcher.shared.state().activity.signs += u64::from(seconds < 200.0);
            send(&mut others[0], Kind::Alive, &activity);
            assert_eq!(checks(&mut watcher, start, seconds, seconds + 9.9), None);
        }
        for seconds in (300..390).step_by(10).map(f64::from) {
            send(&mut others[0], Kind::Alive, &activity);
            assert_eq!(checks(&mut watcher, start, seconds, seconds + 9.9), None);
        }
        send(&mut others[0], Kind::Alive, &activity);
        let (seconds, words) = checks(&mut watcher, start, 390.0, 400.0).expect("it stands still");
        assert!(
            (390.0..391.0).contains(&seconds) && words.starts_with("process 1 has made no progress"),
            "{words}"
        );
    }

    /// Both processes waited for others, which hides that they make no progress, and stop waiting at the same moment.
    #[test]
    fn of_several_processes_without_progress_the_first_to_stop_is_blamed() {
        for first in [0, 1] {
            let (mut watcher, mut others, start) = watcher(2);
            let mut activity = Activity { stage: RunStage::Training, signs: 1, ..Activity::default() };
            for seconds in (0..600).step_by(10).map(f64::from) {
                let last = [if first == 0 { 100.0 } else { 200.0 }, if first == 1 { 100.0 } else { 200.0 }];
                activity.signs += u64::from(seconds < last[1]);
                activity.waits_for = Some("the dataset".to_owned());
                send(&mut others[0], Kind::Alive, &activity);
                let mut state = watcher.shared.state();
                state.activity.stage = RunStage::Training;
                state.activity.signs += u64::from(seconds < last[0]);
                state.activity.waits_for.clone_from(&activity.waits_for);
                drop(state);
                assert_eq!(checks(&mut watcher, start, seconds, seconds + 9.9), None);
            }
            activity.waits_for = None;
            send(&mut others[0], Kind::Alive, &activity);
            watcher.shared.state().activity.waits_for = None;
            let (_, words) = checks(&mut watcher, start, 600.0, 610.0).expect("the standstill is found");
            assert!(words.starts_with(&format!("process {first} has made no progress")), "{words}");
        }
    }

    /// A completed process may be silent; one that ends without a message is lost at once.
    #[test]
    fn the_end_of_a_process_is_told_from_its_loss() {
        let (mut watcher, mut others, start) = watcher(2);
        watcher.shared.state().activity.stage = RunStage::Preparing;
        send(&mut others[0], Kind::Done, &());
        assert_eq!(checks(&mut watcher, start, 0.0, 100.0), None);
        let (mut watcher, others, start) = self::watcher(2);
        drop(others);
        let (seconds, words) = checks(&mut watcher, start, 0.0, 1.0).expect("the loss is found");
        assert!(seconds < 0.2 && words.starts_with("process 1 ended without an error message"), "{words}");
    }
}
