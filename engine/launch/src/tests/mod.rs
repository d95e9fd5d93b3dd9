//! Meetings of threads, each of which is a process.

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rankine_base::build::Build;
use rankine_base::sealed::Checksum;
use rankine_topology::Process;

use super::watch::Patience;
use super::{
    Activity, Address, Failure, MeetError, Meeting, ProcessGroup, ProcessInfo, ProcessPlace, RunStage,
    Secret, StepStage, Terms,
};

#[path = "../../../../tests/support/groups.rs"]
#[allow(dead_code, reason = "groups end in other ways here")]
pub(crate) mod groups;
mod hostile;

use groups::{DEADLINE, address, here, on_processes, place, terms};

/// Meets without a secret.
fn join(place: &ProcessPlace, deadline: Duration) -> Result<Meeting, MeetError> {
    Meeting::join(place, &Secret::none(), deadline)
}

#[test]
fn values_of_any_length_come_in_the_order_of_processes() {
    let address = address();
    on_processes(5, &address, |place| {
        let mut meeting = join(&place, DEADLINE).unwrap();
        for round in 0..50usize {
            let value = |process: usize| vec![(process + round) as u8; (process * 7919 * round) % 300_000];
            let expected: Vec<_> = (0..5).map(value).collect();
            assert_eq!(meeting.gather(&value(place.process.0)).unwrap(), expected);
        }
    });
}

#[test]
fn one_alone_meets_itself() {
    let mut meeting = join(&ProcessPlace::alone(), DEADLINE).unwrap();
    assert_eq!(meeting.gather(b"here").unwrap(), [b"here"]);
}

#[test]
fn a_value_that_is_too_long_is_refused_and_the_meeting_goes_on() {
    const MOST: usize = 1 << 20;
    let address = address();
    on_processes(2, &address, |place| {
        let mut meeting = join(&place, DEADLINE).unwrap();
        let refused = meeting.gather(&vec![0; MOST + 1]).unwrap_err().to_string();
        assert!(refused.contains("a value of 1048577 bytes exceeds the limit of 1048576"), "{refused}");
        assert_eq!(meeting.gather(&vec![7; MOST]).unwrap(), [vec![7; MOST], vec![7; MOST]]);
        assert_eq!((meeting.process(), meeting.processes()), (place.process, 2));
    });
}

#[test]
fn processes_of_another_build_or_number_are_named() {
    for (change, words) in [
        ("version", "process 1 on h runs Rankine 0.0 ("),
        ("version", "), and process 0 on h runs Rankine 0."),
        ("commit", "process 1 on h runs Rankine 0.1.0 (222222222222"),
        ("checksum", ", checksum 0000000000000001), and process 0 on h runs"),
        ("features", ", features of-another-build, and process 0 on h runs"),
        ("target", ", for another-target, and process 0 on h runs"),
        ("rustc", ", compiled by rustc 0.1, and process 0 on h runs"),
        ("rustc", ": all processes of a job must run the same build. Install one build on all hosts"),
        ("process", "process 1 on h describes itself as process 0"),
        ("bytes", "process 1 sent an invalid description of itself: "),
    ] {
        let address = address();
        let outcomes = on_processes(2, &address, |place| {
            let mut meeting = join(&place, DEADLINE).unwrap();
            let here = ProcessInfo {
                host: "h".into(),
                gpus: 2,
                gpu_ids: vec!["GPU-1".into(), "GPU-2".into()],
                ..here(&place)
            };
            assert_eq!((here.process, here.gpus, here.pid), (place.process, 2, std::process::id()));
            let build = here.build.clone();
            let with = |build| ProcessInfo { build, ..here.clone() };
            let other = match (place.process, change) {
                (Process(1), "version") => with(Build { version: "0.0".into(), ..build }),
                (Process(1), "commit") => with(Build { commit: Some("2".repeat(40)), ..build }),
                (Process(1), "checksum") => with(Build { checksum: Some(Checksum(1)), ..build }),
                (Process(1), "features") => {
                    with(Build { features: vec!["of-another-build".into()], ..build })
                }
                (Process(1), "target") => with(Build { target: "another-target".into(), ..build }),
                (Process(1), "rustc") => with(Build { rustc: "0.1".into(), ..build }),
                (Process(1), "process") => ProcessInfo { process: Process(0), ..here },
                (Process(1), _) => return meeting.gather(b"{").map(drop).map_err(|error| error.to_string()),
                _ => here,
            };
            other.introduce(&mut meeting).map(drop).map_err(|error| error.to_string())
        });
        assert!(outcomes[0].as_ref().unwrap_err().contains(words), "{outcomes:?}");
    }
}

#[test]
fn who_is_late_is_named_to_all() {
    let address = address();
    let deadline = Duration::from_millis(300);
    on_processes(4, &address, |place| {
        let mut meeting = join(&place, deadline).unwrap();
        if [1, 2].map(Process).contains(&place.process) {
            thread::sleep(3 * deadline);
            return;
        }
        match meeting.gather(b"x") {
            Err(MeetError::Late { late, .. }) => assert_eq!(late, [1, 2].map(Process)),
            other => panic!("{other:?}"),
        }
        assert!(meeting.gather(b"x").unwrap_err().to_string().contains("has failed"));
    });
}

#[test]
fn who_has_ended_is_named_to_all_at_once() {
    for gone in [0, 2] {
        let (address, begun) = (address(), Instant::now());
        on_processes(4, &address, |place| {
            let mut meeting = join(&place, DEADLINE).unwrap();
            if place.process == Process(gone) {
                return;
            }
            match meeting.gather(b"x") {
                Err(MeetError::Left { left }) => assert_eq!(left, [Process(gone)]),
                other => panic!("{other:?}"),
            }
        });
        assert!(begun.elapsed() < DEADLINE / 2);
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address { host: "127.0.0.1".into(), port: taken.local_addr().unwrap().port() };
    match join(&place(0, 2, &address), DEADLINE) {
        Err(error @ MeetError::Listen { .. }) => {
            assert!(error.to_string().contains(&format!(":{}: Address", address.port)), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// As long as a test may take.
const SHORT: Patience = Patience {
    silence: Duration::from_millis(1500),
    standstill: Duration::from_millis(1000),
    grace: Duration::from_millis(300),
};

/// What the watch of each of three processes says; `act` is what each of them does. Of one for which it returns false
/// nothing is asked.
fn on_a_group(act: impl Fn(&ProcessPlace, &ProcessGroup) -> bool + Sync) -> Vec<Option<String>> {
    let address = address();
    on_processes(3, &address, |place| {
        let (said, words) = channel();
        let here = here(&place);
        let end = move |failure: &Failure, _: &Activity| said.send(failure.to_string()).unwrap();
        let group = ProcessGroup::form(&place, here, &terms(SHORT), end).unwrap();
        act(&place, &group).then(|| words.recv_timeout(DEADLINE).unwrap())
    })
}

#[test]
fn a_group_hands_values_around_and_ends_in_peace() {
    let address = address();
    on_processes(3, &address, |place| {
        let end = |failure: &Failure, _: &Activity| panic!("{failure}");
        let group = ProcessGroup::form(&place, here(&place), &terms(Patience::USUAL), end).unwrap();
        let own = [place.process.0 as u8; 3];
        assert_eq!(group.gather("values", &own).unwrap(), [[0; 3], [1; 3], [2; 3]]);
        assert_eq!(group.of_first("a value", &own).unwrap(), [0; 3]);
        let long = vec![place.process.0 as u8; 3 << 20];
        let collected = group.collect("long values", &long).unwrap();
        let expected =
            if place.process == Process(0) { vec![vec![1; 3 << 20], vec![2; 3 << 20]] } else { Vec::new() };
        assert!(collected == expected);
        group.wait("the end").unwrap();
        // Nobody is missed who has finished, however late the others are.
        thread::sleep(Duration::from_millis(200 * place.process.0 as u64));
        group.finish();
    });
}

#[test]
fn a_group_waits_longer_for_values_than_it_did_for_the_processes() {
    let address = address();
    let deadline = Duration::from_millis(400);
    on_processes(2, &address, |place| {
        let end = |failure: &Failure, _: &Activity| panic!("{failure}");
        let terms = Terms { deadline, ..terms(Patience::USUAL) };
        let group = ProcessGroup::form(&place, here(&place), &terms, end).unwrap();
        assert_eq!(
            (group.process(), group.size(), group.is_first()),
            (place.process, 2, place.process == Process(0))
        );
        if place.process == Process(1) {
            thread::sleep(2 * deadline);
        }
        assert_eq!(group.gather("values", &[place.process.0 as u8]).unwrap(), [[0], [1]]);
        group.finish();
    });
}

#[test]
fn an_error_is_told_to_all_before_what_follows_from_it() {
    let words = "process 2 failed in training, at step 1203: the disk is full";
    let found = on_a_group(|place, group| {
        group.does(RunStage::Training, 1203);
        match place.process {
            // This one only misses process 2, and says so before that one says anything.
            Process(1) => {
                assert_eq!(group.fail("process 1 waited for process 2", true).unwrap().to_string(), words)
            }
            Process(2) => {
                thread::sleep(Duration::from_millis(150));
                assert_eq!(group.fail("the disk is full", false), None);
            }
            _ => return true,
        }
        false
    });
    assert_eq!(found[0].as_deref(), Some(words));
}

#[test]
fn one_who_hangs_is_named_to_all_with_what_it_did() {
    let found = on_a_group(|place, group| {
        let step = 7 + place.process.0 as u64;
        if place.process == Process(1) {
            group.does(RunStage::Training, step);
        } else {
            // Whoever waits for the one that hangs does not hang.
            let waiting = group.clone();
            thread::spawn(move || {
                waiting.does(RunStage::Training, step);
                waiting.wait("the verdict")
            });
        }
        true
    });
    for words in found {
        let words = words.unwrap();
        assert!(
            words.starts_with("process 1 has made no progress for 1 s in training, at step 8: "),
            "{words}"
        );
    }
}

#[test]
fn threads_that_wait_for_a_lost_process_are_released() {
    on_a_group(|place, group| {
        let (release, released) = channel();
        group.when_lost(move || release.send(()).unwrap());
        group.wait("all are ready").unwrap();
        if place.process == Process(1) {
            group.fail("the disk is full", false);
            return false;
        }
        released.recv_timeout(DEADLINE).expect("the watchdog releases them");
        true
    });
}

#[test]
fn one_who_is_gone_or_silent_is_named_to_all() {
    for (gone, patience, what) in [
        (true, Patience::USUAL, "ended without an error message while it prepared: was it killed?"),
        (false, SHORT, "has been silent for 2 s while it prepared: its process is stopped"),
    ] {
        let address = address();
        let found = on_processes(3, &address, |place| {
            let here = here(&place);
            if place.process == Process(1) {
                // As far as the others see it, a process that is killed, or stopped.
                let mut meeting = join(&place, DEADLINE).unwrap();
                here.introduce(&mut meeting).unwrap();
                let lines = meeting.take_watch_lines();
                thread::sleep(if gone { Duration::ZERO } else { 3 * SHORT.silence });
                drop(lines);
                return None;
            }
            let (said, words) = channel();
            let end = move |failure: &Failure, _: &Activity| said.send(failure.to_string()).unwrap();
            let _group = ProcessGroup::form(&place, here, &terms(patience), end).unwrap();
            Some(words.recv_timeout(DEADLINE).unwrap())
        });
        for words in found.into_iter().flatten() {
            assert!(words.starts_with(&format!("process 1 {what}")), "{words}");
        }
    }
}

#[test]
fn one_alone_that_hangs_says_where() {
    for (stage, words) in [
        (StepStage::Reading, "at step 12, waiting for the reader's next batch: the process hangs"),
        (StepStage::Computing, "at step 12, computing it: the process hangs"),
        (StepStage::Awaiting, "at step 12, waiting for the device to finish the steps"),
    ] {
        let (said, told) = channel();
        let end = move |failure: &Failure, _: &Activity| said.send(failure.to_string()).unwrap();
        let group = ProcessGroup::watched_alone(SHORT, end).unwrap();
        assert!(group.is_watched() && group.size() == 1);
        // Whoever goes on is left alone.
        for step in 0..12 {
            group.does(RunStage::Training, step);
            thread::sleep(SHORT.standstill / 8);
        }
        assert!(told.try_recv().is_err());
        group.is_at(RunStage::Training, 12, stage);
        let told = told.recv_timeout(DEADLINE).unwrap();
        assert!(
            told.starts_with("process 0 has made no progress for 1 s in training, ") && told.contains(words),
            "{told}"
        );
    }
    // A complete process is not missed, and neither is one that fails by itself.
    let group = ProcessGroup::watched_alone(SHORT, |failure, _| panic!("{failure}")).unwrap();
    group.does(RunStage::Training, 1);
    assert_eq!(group.fail("the disk is full", false), None);
    assert_eq!(group.gather("values", &[7]).unwrap(), [[7]]);
    group.finish();
    thread::sleep(2 * SHORT.standstill);
}
