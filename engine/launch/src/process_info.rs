//! Who the processes are, and which of them share a host.

use rankine_base::build::Build;
use rankine_base::system;
use rankine_topology::{LocalProcess, Process};
use serde::{Deserialize, Serialize};

use super::error::{MeetError, Runs};
use super::meeting::Meeting;
use super::process_place::ProcessPlace;

/// What a process tells the others about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its number.
    pub process: Process,
    /// The host's name.
    pub host: String,
    /// The boot id of the host's system: containers of one host share it.
    pub boot: String,
    /// Its id in the system of its host.
    pub pid: u32,
    /// Its number among the processes of its host, if the launcher sets it.
    pub local: Option<LocalProcess>,
    /// How many GPUs it sees.
    pub gpus: usize,
    /// The ids of these GPUs, the same for all processes of the host.
    pub gpu_ids: Vec<String>,
    /// The build of Rankine.
    pub build: Build,
}

/// A host, with its processes in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name.
    #[serde(rename = "host")]
    pub name: String,
    /// Its processes.
    pub processes: Vec<Process>,
}

impl ProcessInfo {
    /// This process, which sees some GPUs.
    pub fn here(place: &ProcessPlace, gpu_ids: Vec<String>, build: &Build) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            process: place.process,
            host: system::host_name(),
            boot: boot.trim().to_owned(),
            pid: std::process::id(),
            local: place.local,
            gpus: gpu_ids.len(),
            gpu_ids,
            build: build.clone(),
        }
    }

    /// Sends this to all others, and returns all, in their order.
    ///
    /// # Errors
    /// Those of [`Meeting::gather`]; and if a process is of another build, or its build is not known exactly.
    pub fn introduce(self, meeting: &mut Meeting) -> Result<Vec<Self>, MeetError> {
        let own = serde_json::to_vec(&self).expect("a description is plain data");
        let all = meeting.gather(&own)?;
        let read = |(index, bytes): (usize, &Vec<u8>)| {
            let process = Process(index);
            let member: Self =
                serde_json::from_slice(bytes).map_err(|source| MeetError::Description { process, source })?;
            if member.process != process {
                return Err(MeetError::Misnumbered { process, host: member.host, described: member.process });
            }
            if process != self.process && !member.build.is_same(&self.build) {
                let runs = |one: &Self, than: &Self| Runs {
                    process: one.process,
                    host: one.host.clone(),
                    build: one.build.unlike(&than.build).to_string(),
                };
                let both = [runs(&member, &self), runs(&self, &member)];
                return Err(MeetError::OtherBuild(both.into()));
            }
            Ok(member)
        };
        all.iter().enumerate().map(read).collect()
    }
}

/// The hosts, in the order of their first processes.
pub fn hosts(members: &[ProcessInfo]) -> Vec<Host> {
    let mut found: Vec<(&ProcessInfo, Host)> = Vec::new();
    for member in members {
        match found.iter_mut().find(|(first, _)| (&first.host, &first.boot) == (&member.host, &member.boot)) {
            Some((_, host)) => host.processes.push(member.process),
            None => found.push((member, Host { name: member.host.clone(), processes: vec![member.process] })),
        }
    }
    found.into_iter().map(|(_, host)| host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::groups::build;

    #[test]
    fn processes_of_one_host_are_found_together() {
        let member = |process, host: &str, boot: &str| ProcessInfo {
            process: Process(process),
            host: host.into(),
            boot: boot.into(),
            pid: 1,
            local: None,
            gpus: 0,
            gpu_ids: Vec::new(),
            build: build(),
        };
        let members = [member(0, "a", "x"), member(1, "b", "y"), member(2, "a", "x"), member(3, "a", "z")];
        let found: Vec<_> = hosts(&members).into_iter().map(|host| (host.name, host.processes)).collect();
        // Two pods of one name are not one.
        let [a, b, other] =
            [&[0, 2][..], &[1], &[3]].map(|processes| processes.iter().copied().map(Process).collect());
        assert_eq!(found, [("a".into(), a), ("b".into(), b), ("a".into(), other)]);
    }
}
