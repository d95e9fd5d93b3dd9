//! The process that holds a lock: its record in the lock file, and whether it still runs.

use std::fs;
use std::process;

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// The initial PID namespace of every Linux kernel (`PROC_PID_INIT_INO`), which processes outside containers use.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The contents of a lock file: the process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    /// Whether the process also holds an exclusive flock(2) on the file, which the kernel releases when it ends.
    pub(super) flock: bool,
    pub(super) host: String,
    pub(super) pid: u32,
    /// When the process started, in clock ticks since boot; distinguishes it from a later one with the same PID.
    pub(super) start_ticks: u64,
    /// Different after every boot.
    pub(super) boot_id: String,
    /// `/etc/machine-id`; empty if it does not exist.
    pub(super) machine_id: String,
    /// The PID namespace: a PID is only valid within one.
    pub(super) pid_namespace: String,
    /// When the lock was taken, for messages.
    pub(super) since: String,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    Dead,
    /// It is on another machine or in another container, or may be.
    Unknown,
}

impl Owner {
    /// Returns the record of this process.
    pub(super) fn this_process(flock: bool) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pid_namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            flock,
            host: text("/proc/sys/kernel/hostname"),
            pid: process::id(),
            start_ticks: stat(process::id()).map_or(0, |stat| stat.start_ticks),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            machine_id: text("/etc/machine-id"),
            pid_namespace: pid_namespace.to_string_lossy().into_owned(),
            since: Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        }
    }

    /// Returns whether the process runs, as seen by the process `here`.
    pub(super) fn life(&self, here: &Self) -> Life {
        if self.boot_id.is_empty() || self.pid_namespace.is_empty() {
            return Life::Unknown;
        }
        if self.boot_id == here.boot_id {
            return if self.pid_namespace == here.pid_namespace {
                process_life(self.pid, self.start_ticks)
            } else {
                Life::Unknown
            };
        }
        // Either this machine has been rebooted, or it is another one. Containers are named and copied too freely to
        // distinguish: two of them may have the same host name and machine ID, and both run.
        let same_machine = self.host == here.host
            && self.machine_id == here.machine_id
            && !self.machine_id.is_empty()
            && self.pid_namespace == INITIAL_PID_NAMESPACE
            && here.pid_namespace == INITIAL_PID_NAMESPACE;
        if same_machine { Life::Dead } else { Life::Unknown }
    }

    /// Describes the process.
    pub(super) fn name(&self) -> String {
        format!("process {} on {}, since {}", self.pid, self.host, self.since)
    }
}

/// Returns whether the process with this PID and start time runs in this PID namespace.
fn process_life(pid: u32, start_ticks: u64) -> Life {
    let Some(of_process) = i32::try_from(pid).ok().filter(|&pid| pid > 0).and_then(Pid::from_raw) else {
        return Life::Unknown;
    };
    if test_kill_process(of_process) == Err(Errno::SRCH) {
        return Life::Dead;
    }
    match stat(pid) {
        Some(stat) if stat.ended || stat.start_ticks != start_ticks => Life::Dead,
        // If /proc hides the processes of other users, there is no start time to compare.
        Some(_) | None => Life::Alive,
    }
}

struct Stat {
    start_ticks: u64,
    /// It is a zombie: it has ended, but its parent has not collected its exit status.
    ended: bool,
}

/// Parses `/proc/PID/stat`; see proc_pid_stat(5).
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 2, the name of the program in parentheses, may contain anything; field 3 follows the last parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X");
    Some(Stat { start_ticks: fields.get(22 - 3)?.parse().ok()?, ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_dead_once_it_has_ended_or_its_pid_is_reused() {
        let here = Owner::this_process(false);
        assert!(
            here.start_ticks > 0 && !here.boot_id.is_empty() && !here.pid_namespace.is_empty(),
            "{here:?}"
        );
        assert_eq!(here.life(&here), Life::Alive);
        let reused = Owner { start_ticks: here.start_ticks - 1, ..here.clone() };
        assert_eq!(reused.life(&here), Life::Dead);

        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let start_ticks = stat(child.id()).unwrap().start_ticks;
        let owner = Owner { pid: child.id(), start_ticks, ..here.clone() };
        assert_eq!(owner.life(&here), Life::Alive);
        child.kill().unwrap();
        // A zombie until it is waited for; killing takes a moment.
        let ended = || (owner.life(&here) == Life::Dead).then_some(());
        while ended().is_none() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(owner.life(&here), Life::Dead);
    }

    #[test]
    fn a_process_elsewhere_is_neither_alive_nor_dead() {
        let here = Owner {
            machine_id: "m".into(),
            pid_namespace: INITIAL_PID_NAMESPACE.into(),
            ..Owner::this_process(false)
        };
        let rebooted = Owner { boot_id: "earlier".into(), ..here.clone() };
        assert_eq!(rebooted.life(&here), Life::Dead);
        for elsewhere in [
            Owner { host: "other".into(), ..rebooted.clone() },
            Owner { machine_id: "other".into(), ..rebooted.clone() },
            Owner { pid_namespace: "pid:[1]".into(), ..rebooted.clone() },
            Owner { pid_namespace: "pid:[1]".into(), ..here.clone() },
            Owner { boot_id: String::new(), ..here.clone() },
            Owner { pid: 0, ..here.clone() },
        ] {
            assert_eq!(elsewhere.life(&here), Life::Unknown, "{elsewhere:?}");
        }
        // From a container, the machine's other processes are elsewhere as well.
        let contained = Owner { pid_namespace: "pid:[1]".into(), ..here.clone() };
        assert_eq!(rebooted.life(&contained), Life::Unknown);
        let unnamed = Owner { machine_id: String::new(), ..rebooted };
        assert_eq!(unnamed.life(&Owner { machine_id: String::new(), ..here }), Life::Unknown);
    }
}
