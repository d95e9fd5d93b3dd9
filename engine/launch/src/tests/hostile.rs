//! Meetings at a port that others can reach. With `RANKINE_TEST_LONG` set, each race is run 50 times.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::Refusal;
use crate::frame::{Kind, Message};
use crate::reach::reach_first;
use crate::rendezvous::Rendezvous;

#[path = "../../../../tests/support/strangers.rs"]
mod strangers;

use strangers::Strangers;

fn repeats() -> usize {
    if std::env::var_os("RANKINE_TEST_LONG").is_some() { 50 } else { 1 }
}

fn secret(words: &str) -> Secret {
    Secret::new(format!("a secret of a test: {words}").as_bytes(), "a test").unwrap()
}

/// Connects to a port where somebody will listen soon.
fn reach(port: u16) -> TcpStream {
    let attempts = (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    attempts.expect("somebody listens")
}

#[test]
fn strangers_neither_end_a_meeting_nor_keep_a_process_out() {
    for round in 0..repeats() {
        // Strangers know the protocol, and where there is no secret one could come as a process.
        let (address, secret) = (address(), secret("shared"));
        on_processes(4, &address, |place| {
            let strangers = (place.process == Process(1)).then(|| Strangers::at(address.port, 4));
            if place.process != Process(0) {
                thread::sleep(Duration::from_millis(300 * place.process.0 as u64));
            }
            let mut meeting = Meeting::join(&place, &secret, DEADLINE).unwrap();
            for _ in 0..10 {
                assert_eq!(meeting.gather(&[place.process.0 as u8]).unwrap(), [[0], [1], [2], [3]]);
            }
            if let Some(strangers) = strangers {
                assert!(strangers.connected() > 100, "round {round}: {} connections", strangers.connected());
            }
        });
    }
}

#[test]
fn an_open_meeting_outlives_strangers_that_do_not_speak_the_protocol() {
    let address = address();
    on_processes(3, &address, |place| {
        if place.process == Process(1) {
            let mut garbage = reach(address.port);
            garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            garbage.write_all(&[0; 1000]).unwrap();
            let _silent = reach(address.port);
            join(&place, DEADLINE).unwrap().gather(b"x").unwrap();
        } else {
            join(&place, DEADLINE).unwrap().gather(b"x").unwrap();
        }
    });
}

#[test]
fn strangers_do_not_disturb_a_group_that_has_met() {
    let (address, secret) = (address(), secret("shared"));
    on_processes(3, &address, |place| {
        let end = |failure: &Failure, _: &Activity| panic!("{failure}");
        let terms = Terms { secret: secret.clone(), ..terms(Patience::USUAL) };
        let group = ProcessGroup::form(&place, here(&place), &terms, end).unwrap();
        let strangers = (place.process == Process(1)).then(|| Strangers::at(address.port, 3));
        let begun = Instant::now();
        let mut goes_on = true;
        while goes_on {
            let own = [u8::from(begun.elapsed() < Duration::from_secs(1))];
            goes_on = group.gather("values", &own).unwrap()[0] == [1];
        }
        // Nobody listens any more: what is not there cannot be flooded.
        if let Some(strangers) = strangers {
            assert_eq!(strangers.connected(), 0);
        }
        group.finish();
    });
}

#[test]
fn a_wrong_secret_is_told_to_that_process_and_the_job_goes_on() {
    let [right, wrong] = ["right", "wrong"].map(secret);
    let goes_on = |first: &Secret, other: &Secret, refusal| {
        let address = address();
        on_processes(3, &address, |own| {
            if own.process == Process(2) {
                let begun = Instant::now();
                match Meeting::join(&own, other, 2 * DEADLINE) {
                    Err(MeetError::Refused { refusal: told, .. }) => assert_eq!(told, refusal),
                    outcome => panic!("{outcome:?}"),
                }
                assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
            }
            let mut meeting = Meeting::join(&own, first, DEADLINE).unwrap();
            assert_eq!(meeting.gather(&[own.process.0 as u8]).unwrap(), [[0], [1], [2]]);
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| goes_on(&right, &wrong, Refusal::WrongSecret));
        scope.spawn(|| goes_on(&right, &Secret::none(), Refusal::ProcessHasNoSecret));
        scope.spawn(|| goes_on(&Secret::none(), &wrong, Refusal::FirstHasNoSecret));
    });
}

#[test]
fn who_was_refused_is_named_when_the_process_does_not_come() {
    let (address, [right, wrong]) = (address(), ["right", "wrong"].map(secret));
    let told = on_processes(2, &address, |own| {
        let secret = if own.process == Process(0) { &right } else { &wrong };
        Meeting::join(&own, secret, Duration::from_secs(2)).unwrap_err().to_string()
    });
    let words = "process 1 did not connect";
    assert!(told[0].contains(words) && told[0].contains("its secret differs from process 0's"), "{told:?}");
    assert!(told[1].contains("refused this process, which connected as process 1: its secret"), "{told:?}");
    assert!(told.iter().all(|told| told.contains("RANKINE_SECRET") && !told.contains("a secret of a test")));
}

#[test]
fn a_second_process_of_a_number_is_refused_and_the_first_one_stays() {
    for _ in 0..repeats() {
        let (address, secret) = (address(), secret("shared"));
        on_processes(3, &address, |own| {
            if own.process != Process(2) {
                let mut meeting = Meeting::join(&own, &secret, DEADLINE).unwrap();
                assert_eq!(meeting.gather(&[own.process.0 as u8]).unwrap(), [[0], [1], [2]]);
                return;
            }
            // Process 1 may come first or second: one of the two is refused at once, and one stays.
            let again = place(1, 3, &address);
            thread::sleep(Duration::from_millis(500));
            match Meeting::join(&again, &secret, DEADLINE) {
                Err(MeetError::Refused { refusal: Refusal::NumberTaken, .. }) => {}
                outcome => panic!("{outcome:?}"),
            }
            let mut meeting = Meeting::join(&own, &secret, DEADLINE).unwrap();
            assert_eq!(meeting.gather(&[2]).unwrap(), [[0], [1], [2]]);
        });
    }
}

#[test]
fn processes_of_other_jobs_and_sizes_are_refused_and_the_job_goes_on() {
    let address = address();
    on_processes(3, &address, |own| {
        if own.process == Process(1) {
            for (stray, refusal) in [
                (place(1, 4, &address), Refusal::OtherCount { processes: 3 }),
                (place(3, 3, &address), Refusal::NumberTaken),
                (ProcessPlace { job: Some("another".into()), ..own.clone() }, Refusal::OtherJob),
            ] {
                match join(&stray, DEADLINE) {
                    Err(MeetError::Refused { refusal: told, .. }) => assert_eq!(told, refusal),
                    outcome => panic!("{outcome:?}"),
                }
            }
        }
        assert_eq!(join(&own, DEADLINE).unwrap().gather(b"x").unwrap(), [b"x"; 3]);
    });
}

#[test]
fn a_process_that_ends_while_others_are_awaited_gives_its_place_to_the_next_one() {
    for _ in 0..repeats() {
        let (address, secret, ended) = (address(), secret("shared"), Barrier::new(2));
        on_processes(3, &address, |own| {
            if own.process == Process(1) {
                // It is let in, hands in its first value, and ends before the others have come.
                let (address, secret) = (&address, &secret);
                let first = Rendezvous { place: &own, address, secret, deadline: DEADLINE };
                let [mut values, _watch] = reach_first(&first).unwrap();
                values.send(&Message { kind: Kind::Values, round: 1, bytes: Vec::new() }).unwrap();
                ended.wait();
            }
            if own.process == Process(2) {
                ended.wait();
                thread::sleep(Duration::from_millis(300));
            }
            let mut meeting = Meeting::join(&own, &secret, DEADLINE).unwrap();
            assert_eq!(meeting.gather(&[own.process.0 as u8]).unwrap(), [[0], [1], [2]]);
        });
    }
}

#[test]
fn a_process_that_is_out_of_step_is_named_to_all() {
    let (address, secret) = (address(), secret("shared"));
    let told = on_processes(3, &address, |own| {
        if own.process != Process(1) {
            return Meeting::join(&own, &secret, DEADLINE).unwrap_err().to_string();
        }
        // It is a round ahead.
        let (address, secret) = (&address, &secret);
        let first = Rendezvous { place: &own, address, secret, deadline: DEADLINE };
        let [mut values, _watch] = reach_first(&first).unwrap();
        values.send(&Message { kind: Kind::Values, round: 2, bytes: Vec::new() }).unwrap();
        values.block(DEADLINE).unwrap();
        let answer = values.read(1000).unwrap().expect("process 0 answers");
        assert_eq!(answer.kind, Kind::Stray);
        String::from_utf8(answer.bytes).unwrap()
    });
    let words = "process 1 sent an unexpected message: do all processes run the same Rankine with the same arguments?";
    assert_eq!(told, [words; 3]);
}

/// What is done with a connection to process 0's address.
type Answer = fn(TcpStream);

/// Whoever answers at process 0's address gets no process to believe him, nor to wait for him.
#[test]
fn a_false_process_0_is_found_out() {
    let secret = secret("shared");
    let answers: [(Answer, &str); 4] = [
        (|stream| drop(stream), "closed the connection without an answer"),
        (|mut stream| stream.write_all(&[7; 500]).unwrap_or(()), "is not this version of Rankine"),
        // What a process has said comes back to it.
        (
            |mut stream| {
                let mut bytes = [0; 88];
                let _ = stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes));
            },
            "is not this version of Rankine",
        ),
        // A challenge as process 0 makes them, and a welcome whose tag is the process's own proof.
        (
            |mut stream| {
                let _ = stream.read_exact(&mut [0; 88]);
                let mut challenge = b"4eniknar".to_vec();
                challenge.extend(1u32.to_le_bytes());
                challenge.resize(44, 9);
                let mut proof = [0; 32];
                let _ = stream.write_all(&challenge).and_then(|()| stream.read_exact(&mut proof));
                let _ = stream.write_all(&[&[0; 8][..], &proof].concat());
            },
            "does not know the secret",
        ),
    ];
    for (answer, words) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        // It ends with the test.
        thread::spawn(move || listener.incoming().flatten().for_each(answer));
        let begun = Instant::now();
        let error = Meeting::join(&place(1, 2, &address), &secret, Duration::from_millis(700)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(begun.elapsed() < DEADLINE / 2);
    }
}

/// What was recorded of one meeting lets nobody into the next.
#[test]
fn a_recorded_handshake_opens_no_other_meeting() {
    let secret = secret("shared");
    let (real, proxy) = (address(), TcpListener::bind("127.0.0.1:0").unwrap());
    let through = Address { host: "127.0.0.1".into(), port: proxy.local_addr().unwrap().port() };
    // The first line of process 1 goes through the recorder.
    let recorder = thread::spawn(move || {
        let (mut process, _) = proxy.accept().unwrap();
        let mut first = reach(real.port);
        let (mut hello, mut challenge, mut proof) = ([0; 88], [0; 44], [0; 32]);
        process.read_exact(&mut hello).unwrap();
        first.write_all(&hello).unwrap();
        first.read_exact(&mut challenge).unwrap();
        process.write_all(&challenge).unwrap();
        process.read_exact(&mut proof).unwrap();
        (hello, proof)
    });
    let short = Duration::from_secs(1);
    thread::scope(|scope| {
        scope.spawn(|| Meeting::join(&place(0, 2, &real), &secret, short).unwrap_err());
        scope.spawn(|| Meeting::join(&place(1, 2, &through), &secret, short).unwrap_err());
    });
    let (hello, proof) = recorder.join().unwrap();
    let next = address();
    on_processes(2, &next, |own| {
        if own.process == Process(1) {
            let mut replayed = reach(next.port);
            replayed.write_all(&hello).unwrap();
            replayed.read_exact(&mut [0; 44]).unwrap();
            replayed.write_all(&proof).unwrap();
            let mut answer = [0; 40];
            replayed.read_exact(&mut answer).unwrap();
            // Refused, for its secret, and without a tag.
            assert_eq!(answer[..4], 1u32.to_le_bytes());
            assert_eq!(answer[8..], [0; 32]);
        }
        assert_eq!(Meeting::join(&own, &secret, DEADLINE).unwrap().gather(b"x").unwrap(), [b"x"; 2]);
    });
}

#[test]
fn process_0_listens_on_the_address_asked_for_alone() {
    let address = address();
    on_processes(2, &address, |own| {
        if own.process == Process(1) {
            drop(reach(address.port));
            // All of 127.0.0.0/8 is this host: who listens on all addresses would be found there.
            assert!(TcpStream::connect(("127.0.0.2", address.port)).is_err());
        }
        join(&own, DEADLINE).unwrap().gather(b"x").unwrap();
    });
}
