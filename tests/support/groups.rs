//! Processes that work together, each of them a thread here.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rankine_base::build::Build;
use rankine_launch::{
    Activity, Address, Failure, Launcher, Patience, ProcessGroup, ProcessInfo, ProcessPlace, Secret, Spread,
    Terms,
};
use rankine_topology::Process;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn address() -> Address {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    Address { host: "127.0.0.1".into(), port }
}

pub(crate) fn place(process: usize, processes: usize, address: &Address) -> ProcessPlace {
    let (spread, launcher) = (Spread::Unknown, Launcher::None);
    ProcessPlace {
        process: Process(process),
        processes,
        local: None,
        meet: Some(address.clone()),
        spread,
        job: None,
        launcher,
    }
}

/// A process without GPUs.
pub(crate) fn here(place: &ProcessPlace) -> ProcessInfo {
    ProcessInfo::here(place, Vec::new(), &build())
}

/// A build whose commit is known.
pub(crate) fn build() -> Build {
    Build {
        version: "0.1.0".into(),
        commit: Some("1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d".into()),
        dirty: false,
        features: Vec::new(),
        target: "x86_64-unknown-linux-gnu".into(),
        rustc: "1.95.0".into(),
        checksum: None,
    }
}

/// Terms without a secret.
pub(crate) fn terms(patience: Patience) -> Terms {
    Terms { secret: Secret::none(), deadline: DEADLINE, patience }
}

/// What each process's thread returns.
pub(crate) fn on_processes<V: Send>(
    processes: usize,
    address: &Address,
    run: impl Fn(ProcessPlace) -> V + Sync,
) -> Vec<V> {
    let run = &run;
    thread::scope(|scope| {
        let start = |process| scope.spawn(move || run(place(process, processes, address)));
        let running: Vec<_> = (0..processes).map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What each process of a group returns; each is a thread here.
pub(crate) fn in_group<V: Send>(processes: usize, run: impl Fn(&ProcessGroup) -> V + Sync) -> Vec<V> {
    on_processes(processes, &address(), |place| {
        let end = |failure: &Failure, _: &Activity| panic!("{failure}");
        let group = ProcessGroup::form(&place, here(&place), &terms(Patience::USUAL), end).unwrap();
        let returned = run(&group);
        group.finish();
        returned
    })
}
